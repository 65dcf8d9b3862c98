//! What the system says: limits on locked memory ([`limits`]), what the kernel knows of a range of memory
//! ([`procfs`]), NUMA nodes and what they are good at ([`topology`]), and the error of a system call ([`OsError`]).
//!
//! # For the crate itself
//!
//! The ground floor: every system call of the crate, each with its contract, and nothing else. A port edits this folder only. What the floors above may rely on:
//!
//! | state of a range | reached by | leaves it by |
//! |---|---|---|
//! | free address space | - | `mem::reserve`, `mem::map` |
//! | reserved (no access, no memory, not counted) | `mem::reserve`, `mem::close` | `mem::open`, `mem::unmap` |
//! | open (readable, writable, not populated) | `mem::open`, `mem::map` | `mem::lock`, `mem::close`, `mem::unmap` |
//! | locked (open, resident, counted in `VmLck`) | `mem::lock` | `mem::close`, `mem::unmap`, `mem::unlock` |
//!
//! A failed call changes nothing, except `mlock`, which may leave any part of its range locked (its caller
//! closes or unmaps the range: `man 2 mlock` promises no roll-back, and the kernel does none), and
//! `mem::close`, which may lose the contents.
//!
//! Nothing here allocates from the Rust heap or panics, because it runs inside a global allocator. With the
//! feature `fault-injection` the n-th call of a kind fails with a chosen errno (`fault`).
//!
//! `mlock`, `munlock` and `mremap` go to the kernel by number and not through libc's wrappers: the sanitizer
//! runtimes replace the first two by functions that do nothing and report success, and glibc's `mremap` reads a
//! fifth argument that the caller may not have passed.

pub(crate) mod barrier;
mod call;
pub(crate) mod files;
pub(crate) mod fork;
pub mod limits;
pub(crate) mod lock;
pub(crate) mod mem;
pub(crate) mod numa;
pub mod procfs;
pub(crate) mod thread;
pub(crate) mod tls;
pub mod topology;

pub use call::{Call, OsError};

#[cfg(any(test, feature = "fault-injection"))]
pub use call::fault;

use std::sync::atomic::{AtomicUsize, Ordering};

/// The page size in bytes: a power of two, at least 4096.
///
/// ```
/// assert!(pinned_alloc::os::page_size().is_power_of_two());
/// ```
pub fn page_size() -> usize {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    match PAGE.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: sysconf reads a constant of the process; it has no preconditions.
            let p = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            let p = usize::try_from(p).ok().filter(|p| p.is_power_of_two() && *p >= 4096).unwrap_or(4096);
            PAGE.store(p, Ordering::Relaxed);
            p
        }
        p => p,
    }
}

/// The size of a transparent huge page: 2 MiB on every machine this crate has been run on.
pub(crate) const HUGE: usize = 2 << 20;

/// Ends the process abnormally (`SIGABRT`) after writing `words` to standard error.
///
/// Writes with `write(2)` alone: no lock, no heap.
pub(crate) fn die(words: &[&str]) -> ! {
    say(words);
    std::process::abort()
}

/// Writes `words` to standard error with `write(2)`.
pub(crate) fn say(words: &[&str]) {
    for w in words {
        // SAFETY: the buffer is valid for its length. A short or failed write loses words, which is all that
        // can be done about it here.
        let _ = unsafe { libc::write(2, w.as_ptr().cast(), w.len()) };
    }
}
