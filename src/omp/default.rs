//! The default allocator (`def-allocator-var`) and `OMP_ALLOCATOR`.
//!
//! Without an OpenMP runtime beneath there are no tasks: each thread has a default of its own, over an initial
//! value for the process that comes from `OMP_ALLOCATOR`.

use super::env::{self, EnvAllocator};
use super::handle::AllocatorHandle;
use super::policy::Policy;
use super::table;
use core::cell::Cell;
use core::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    static MINE: Cell<usize> = const { Cell::new(0) };
}

static INITIAL: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's default allocator; never the null handle.
pub(super) fn get() -> AllocatorHandle {
    match MINE.try_with(Cell::get).unwrap_or(0) {
        0 => initial(),
        h => AllocatorHandle::from_raw(h),
    }
}

/// Sets it. The null handle stands for `omp_default_mem_alloc`, as in both runtimes.
pub(super) fn set(h: AllocatorHandle) {
    let raw = if h == AllocatorHandle::NULL { AllocatorHandle::DEFAULT_MEM.raw() } else { h.raw() };
    let _ = MINE.try_with(|m| m.set(raw));
}

/// The value every thread starts with.
fn initial() -> AllocatorHandle {
    let raw = INITIAL.load(Ordering::Acquire);
    if raw != 0 {
        return AllocatorHandle::from_raw(raw);
    }
    let h = from_environment();
    match INITIAL.compare_exchange(0, h.raw(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => h,
        Err(other) => {
            // Another thread was faster; if it was this thread that made an allocator, that one is not needed.
            if let Ok(a) = table::enter(h) {
                a.destroy();
                a.exit();
            }
            AllocatorHandle::from_raw(other)
        }
    }
}

#[cold]
fn from_environment() -> AllocatorHandle {
    // SAFETY: getenv reads the environment, which a program may not change while other threads read it (C11
    // 7.22.4.6); std's own readers rely on the same.
    let p = unsafe { libc::getenv(c"OMP_ALLOCATOR".as_ptr()) };
    if p.is_null() {
        return AllocatorHandle::DEFAULT_MEM;
    }
    // SAFETY: getenv gives a NUL-terminated string that stays while the environment is not changed.
    let text = unsafe { CStr::from_ptr(p) }.to_bytes();
    match env::parse(text) {
        Ok(EnvAllocator::Predefined(h)) => h,
        Ok(EnvAllocator::Create { space, traits }) => match table::create(space, traits, Policy::DEFAULT) {
            Ok(a) => a.give_handle(),
            Err(_) => {
                crate::os::say(&[
                    "pinned-alloc: OMP_ALLOCATOR: no such allocator can be made here; using omp_default_mem_alloc\n",
                ]);
                AllocatorHandle::DEFAULT_MEM
            }
        },
        Err(e) => {
            let mut line = super::allocator::Text::new();
            let _ = core::fmt::Write::write_fmt(
                &mut line,
                format_args!("pinned-alloc: OMP_ALLOCATOR: {e}; using omp_default_mem_alloc\n"),
            );
            crate::os::say(&[line.as_str()]);
            AllocatorHandle::DEFAULT_MEM
        }
    }
}
