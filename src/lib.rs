//! Page-locked ("pinned") memory with the full semantics of OpenMP memory spaces and allocator traits.
//!
//! A block of a pinned allocator is resident and locked when the call returns, or the allocator's fallback served it;
//! which of the two can be asked of every block. [`PinnedAlloc`] is the Rust face, [`routines`] are OpenMP's routines
//! on handles, [`PinnedGlobal`] is a `#[global_allocator]`.
//!
//! ```
//! use pinned_alloc::{PinnedAlloc, traits::Fallback};
//! use std::alloc::Layout;
//!
//! // Pinned if the lock limit allows, and if not, an ordinary block that says so.
//! let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
//! let layout = Layout::from_size_align(4096, 4096).unwrap();
//! let block = alloc.allocate(layout)?;
//! println!("{} of {} bytes", if alloc.is_pinned(block.cast()) { "pinned" } else { "not pinned" }, block.len());
//! // SAFETY: the block came from this allocator with this layout, and is not used again.
//! unsafe { alloc.deallocate(block.cast(), layout) };
//! # Ok::<(), pinned_alloc::Error>(())
//! ```
//!
//! # Collections
//!
//! With the feature `allocator-api2`, which is on by default, a [`PinnedAlloc`] is an allocator for the collections of
//! `allocator-api2 = "0.2"` (and of hashbrown, bumpalo and others that use it); with `allocator-api2-04` for those of
//! its 0.4; with `nightly` for std's own. Clones are one allocator, so each collection takes a clone.
//!
//! ```
//! # #[cfg(feature = "allocator-api2")] {
//! use allocator_api2::vec::Vec;
//! use pinned_alloc::{PinnedAlloc, last_error};
//!
//! let alloc = PinnedAlloc::new()?;
//! let mut v = Vec::new_in(alloc.clone());
//! match v.try_reserve(1000) {
//!     Ok(()) => v.extend(0..1000u32), // every byte of it is locked
//!     // A collection's error has no reason in it.
//!     Err(_) => println!("{}", last_error().unwrap()),
//! }
//! # }
//! # Ok::<(), pinned_alloc::Error>(())
//! ```
//!
//! # Features
//!
//! | feature | gives |
//! |---|---|
//! | `allocator-api2` (default) | `Allocator` of allocator-api2 0.2 |
//! | `allocator-api2-04` | the same for 0.4 |
//! | `nightly` | std's unstable `Allocator` |
//! | `cli` | the command line `pinned-alloc` |
//! | `fault-injection` | tests only: system calls that fail on demand |
//! | `peers` | benches only: the allocators to compare with |
//!
//! # What is promised
//!
//! | | |
//! |---|---|
//! | pinned | Resident and locked when the call returns, or served by the `fallback`; asked per block, and counted. |
//! | location | A live block never changes address, never loses its lock, never shares a page with a block of other attributes. Only `realloc` under [`ReallocPolicy::MayMove`] ends one lifetime and starts another. |
//! | `Fixed` | The same address, or an error that leaves the block untouched. Inside a reservation growth never moves. |
//! | failure | A failed call changes nothing: no leak, no half-locked range, no charge left on a pool or on `RLIMIT_MEMLOCK`. |
//! | `pool_size` | Never exceeded, and never refused while there is room. A pool of N bytes serves one block of N bytes. |
//! | accounting | [`ProcessStats::locked`] is what the kernel counts (`VmLck`), page for page. |
//! | threads | Any thread may free; thread exit, fork, use before `main` and in thread-local destructors are defined. |
//! | bad input | Forged handles, absurd sizes, bad alignments and garbage in `OMP_ALLOCATOR` are answered, never dereferenced. |
//!
//! What moves a locked page's *frame* (compaction, NUMA migration, a parent's write after fork), and every reading of
//! the OpenMP text where it is open, is in `SPEC_NOTES.md` of the repository.
//!
//! # Safety
//!
//! Allocating and asking are safe. What is unsafe is what ends or changes a block: the caller vouches that a pointer is
//! a live block of this crate which nobody uses otherwise. Memory that a device or a ring of an asynchronous interface
//! may still access must not be freed, and under `MayMove` not be resized.
//!
//! # Fork
//!
//! Locks are not inherited (`man 2 mlock`). In the child, blocks are there according to [`ForkPolicy`], none is pinned,
//! [`process_stats`] starts at 0 locked bytes, and new blocks are locked under the child's own limit.
//! [`PinnedAlloc::relock`] locks inherited ones. Locks of the allocator are held across `fork`, so a child of a threaded
//! program may allocate and free (before `exec`, within what POSIX allows such a child).
//!
//! # Layers
//!
//! ```text
//!  pinned   PinnedAlloc, PinnedGlobal, Allocator of collections
//!  omp      memory spaces, traits, allocators, fallback, partitions
//!  heap     blocks from spans: size classes, slabs, large blocks, realloc
//!  pages    spans of pages and what is true of them; accounting; cache of freed spans
//!  os       every system call, with its contract
//! ```
#![deny(missing_docs)]
#![cfg(not(loom))] // tests/loom.rs models parts of it by themselves
#![cfg_attr(feature = "nightly", feature(allocator_api))]

mod heap;
pub mod omp;
pub mod os;
mod pages;
mod pinned;

#[doc(inline)]
pub use omp::{
    AllocatorHandle, Error, MemSpace, Policy, ReallocPolicy, Reserve, TraitError, Traits, handle, last_error,
    partition, routines, space, traits,
};
#[doc(inline)]
pub use pages::{Cause, Cure, ForkPolicy, HugePages, PagesError};
#[doc(inline)]
pub use pinned::{
    AllocatorBuilder, BlockInfo, Pin, PinnedAlloc, PinnedGlobal, ProcessStats, Stats, process_stats,
};

/// Gives idle memory of the whole process back to the system: freed large blocks until at most `target` bytes of
/// these are kept, and with a `target` of 0 the empty slabs of every allocator too. Live blocks stay. Returns the
/// bytes given back.
///
/// After `trim(0)` with no live block, nothing of this crate is locked.
///
/// ```
/// let given_back = pinned_alloc::trim(0);
/// assert_eq!(pinned_alloc::process_stats().cached, 0);
/// # let _ = given_back;
/// ```
pub fn trim(target: usize) -> usize {
    let spans = heap::release_kept(target);
    if target == 0 { spans + heap::reclaim_idle() } else { spans }
}

/// Sets how many bytes of freed large blocks are kept for reuse (64 MiB at start), and trims to it.
///
/// Kept blocks stay locked and count against `RLIMIT_MEMLOCK`; they are given back before any allocation fails for
/// want of it.
///
/// ```
/// pinned_alloc::set_cache_limit(0); // freed large blocks go back at once
/// ```
pub fn set_cache_limit(bytes: usize) {
    pages::cache::set_limit(bytes);
    heap::release_kept(bytes);
}
