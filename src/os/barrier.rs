//! A memory barrier in every thread of the process, on one thread's account (`man 2 membarrier`).
//!
//! It makes a handshake cheap for the side that does it all the time: that side needs no fence of its own, if the
//! other side calls [`everywhere`] between its write and its read.

use std::sync::atomic::{AtomicU8, Ordering, fence};

// From linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether [`everywhere`] works here: Linux 4.14, and no filter against it. Asked once, and again in a child.
pub(crate) fn available() -> bool {
    match STATE.load(Ordering::Relaxed) {
        1 => true,
        2 => false,
        _ => {
            let ok = membarrier(REGISTER_PRIVATE_EXPEDITED);
            STATE.store(if ok { 1 } else { 2 }, Ordering::Relaxed);
            ok
        }
    }
}

static STATE: AtomicU8 = AtomicU8::new(0);

/// For the child of a fork: asks again.
pub(crate) fn after_fork() {
    STATE.store(0, Ordering::Relaxed);
}

/// When it returns, every running thread of the process has gone through a full barrier since it was called.
///
/// To be used only where [`available`] has said yes.
pub(crate) fn everywhere() {
    fence(Ordering::SeqCst);
    if !membarrier(PRIVATE_EXPEDITED) {
        // A filter that came later. A store leaves a processor's buffer within a microsecond, and a thread that was
        // taken off its processor went through a barrier there: after this long both have happened.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fence(Ordering::SeqCst);
}
