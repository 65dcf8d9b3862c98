//! What the library reads of `/sys` and `/proc`, on invented trees and texts, against readers written with the
//! standard library's strings, where speed and heap do not matter.
//!
//! The first byte chooses: a text for every parser ([`texts`]), or a tree of NUMA nodes, memory cgroups or huge page
//! pools ([`trees`]).
#![no_main]

#[path = "sysfs/reference.rs"]
mod reference;
#[path = "sysfs/texts.rs"]
mod texts;
#[path = "sysfs/trees.rs"]
mod trees;

use libfuzzer_sys::fuzz_target;
use pinned_alloc_fuzz::Bytes;

fuzz_target!(|data: &[u8]| {
    let mut b = Bytes(data);
    match b.byte() % 5 {
        0 => texts::all(b),
        1 => trees::topology(b),
        2 => trees::cgroup(b),
        3 => trees::cgroup_of_any_text(b),
        _ => trees::hugetlb(b),
    }
});
