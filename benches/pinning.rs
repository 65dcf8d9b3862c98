//! New pinned memory against `mmap` and `mlock` by hand, for the same page size.
//!
//! `cargo bench --bench pinning -- --check` exits 1 if a floor is missed: 0.95 of the raw rate is 1.053 of its time.
//! Wants a machine with nothing else to do, the right to lock 256 MiB, and two idle cores for the last table.

mod common;

use common::{MIB, Table, finish, raw_pin, raw_unpin, time};
use pinned_alloc::{HugePages, PinnedAlloc, set_cache_limit};
use std::alloc::Layout;

const FLOOR: f64 = 1.0 / 0.95;

/// Allocates and frees; gives the time of the allocation alone, or of both.
fn ours(a: &PinnedAlloc, size: usize, n: usize, both: bool) -> f64 {
    let l = Layout::from_size_align(size, 8).unwrap();
    let mut alone = 0.0;
    let all = time(n, || {
        let mut p = None;
        alone += time(1, || p = Some(a.allocate(l).unwrap().cast::<u8>()));
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { a.deallocate(p.unwrap(), l) };
    });
    if both { all } else { alone / n as f64 }
}

fn raw(size: usize, huge: bool, n: usize, both: bool) -> f64 {
    let mut alone = 0.0;
    let all = time(n, || {
        let mut p = 0;
        alone += time(1, || p = raw_pin(size, huge));
        raw_unpin(p, size);
    });
    if both { all } else { alone / n as f64 }
}

fn main() {
    set_cache_limit(0);
    let mut missed = 0;
    let small = PinnedAlloc::builder().huge_pages(HugePages::Never).build().unwrap();
    let big = PinnedAlloc::new().unwrap();
    for both in [false, true] {
        let what = if both { "allocate and free" } else { "allocate" };
        let mut t = Table::new(&format!("{what}: 4 KiB pages / mmap+mlock"));
        for (size, name) in [
            (32 << 10, "32 KiB"),
            (64 << 10, "64 KiB"),
            (256 << 10, "256 KiB"),
            (MIB, "1 MiB"),
            (16 * MIB, "16 MiB"),
        ] {
            let n = (32 * MIB / size).clamp(1, 512);
            t.row(name, Some(FLOOR), || ours(&small, size, n, both), || raw(size, false, n, both));
        }
        missed += t.end();
        let mut t = Table::new(&format!("{what}: huge pages / mmap+MADV_HUGEPAGE+mlock"));
        for (size, name) in
            [(2 * MIB, "2 MiB"), (16 * MIB, "16 MiB"), (64 * MIB, "64 MiB"), (256 * MIB, "256 MiB")]
        {
            let n = (128 * MIB / size).clamp(1, 32);
            t.row(name, Some(FLOOR), || ours(&big, size, n, both), || raw(size, true, n, both));
        }
        missed += t.end();
    }
    let mut t = Table::new("populated by two threads / by one");
    let (one, two) = (&big, PinnedAlloc::builder().populate_threads(2).build().unwrap());
    for (size, name) in [(64 * MIB, "64 MiB, huge pages"), (256 * MIB, "256 MiB, huge pages")] {
        t.row(name, Some(1.0 / 1.5), || ours(&two, size, 1, false), || ours(one, size, 1, false));
    }
    let two = PinnedAlloc::builder().populate_threads(2).huge_pages(HugePages::Never).build().unwrap();
    for (size, name) in [(64 * MIB, "64 MiB, 4 KiB pages"), (256 * MIB, "256 MiB, 4 KiB pages")] {
        t.row(name, Some(1.0 / 1.5), || ours(&two, size, 1, false), || ours(&small, size, 1, false));
    }
    missed += t.end();
    finish(missed)
}
