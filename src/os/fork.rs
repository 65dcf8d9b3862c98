//! Fork: the lock epoch, and the handlers that keep every lock of the crate whole across `fork`.
//!
//! Locked memory is not inherited (`man 2 mlock`): in the child every page that was locked is an ordinary one.
//! The epoch says so without a walk over anything: it is one more in each child, and a span counts as locked
//! only while the epoch in its record is the current one.

use super::call::{Call, OsError, injected};
use std::sync::atomic::{AtomicU32, Ordering};

static EPOCH: AtomicU32 = AtomicU32::new(1);

/// The current epoch: 1 in the first process, one more in each child.
#[inline]
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// To be called first thing in the child.
pub(crate) fn next_epoch() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

/// Registers fork handlers: `prepare` before, `parent` and `child` after (`man 3 pthread_atfork`).
pub(crate) fn at_fork(
    prepare: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) -> Result<(), OsError> {
    unsafe extern "C" {
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> libc::c_int;
    }
    injected(Call::PthreadAtfork, 0, 0)?;
    // SAFETY: the three functions live as long as the program, and do not unwind.
    match unsafe { pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        e => Err(OsError::new(Call::PthreadAtfork, e, 0, 0)),
    }
}
