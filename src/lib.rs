//! Page-locked ("pinned") memory with the full semantics of OpenMP memory spaces and allocator traits.
#![deny(missing_docs)]
#![cfg_attr(feature = "nightly", feature(allocator_api))]

mod heap;
pub mod omp;
pub mod os;
mod pages;
mod pinned;

pub use omp::{
    AllocatorBuilder, AllocatorHandle, Error, MemSpace, Policy, ReallocPolicy, Reserve, TraitError, Traits,
    handle, partition, routines, space, traits,
};
pub use pages::{Cause, Cure, ForkPolicy, HugePages, PagesError};
pub use pinned::{BlockInfo, Pin, PinnedAlloc, PinnedGlobal, ProcessStats, Stats, process_stats};

/// Gives idle memory of the whole process back to the system: empty slabs of every allocator, and freed large
/// blocks until at most `target` bytes of these are kept. Live blocks stay. Returns the bytes given back.
///
/// With a `target` of 0 and no live block, nothing of this crate stays locked.
pub fn trim(target: usize) -> usize {
    let spans = pages::cache::trim(target);
    if target == 0 { spans + heap::reclaim_idle() } else { spans }
}

/// Sets how many bytes of freed large blocks are kept for reuse (64 MiB at start), and trims to it.
pub fn set_cache_limit(bytes: usize) {
    pages::cache::set_limit(bytes);
}
