//! A lock that belongs to one thread until somebody else needs it.
//!
//! The owner enters and leaves with plain stores and one load, no read-modify-write and no fence. Whoever else needs
//! what it guards revokes it first, which costs a barrier in every thread of the process:
//!
//! ```text
//!   owner                              another thread (one at a time)
//!   busy = 1                           revoked = 1
//!   (the compiler keeps the order)     barrier everywhere
//!   revoked?  yes: busy = 0, wait      wait until busy == 0
//!   ... work ...                       ... work ...
//!   busy = 0                           revoked = 0
//! ```
//!
//! An owner that looks up what it works on by a word that the other side takes away together with setting `revoked`
//! may look at that word instead ([`begin`](Bias::begin)): it is one read less.
//!
//! The barrier stands between the other's write and read, and also between the owner's, since the owner goes through
//! it too: so one of them sees the other's write, and they never work at once. The owner never waits while busy.
//!
//! The atomics come from the parent module, so that a model checker can put its own in their place.

use super::sync::{AtomicU32, Ordering, barrier_everywhere, owner_fence, pause};

/// See the module.
pub(crate) struct Bias {
    busy: AtomicU32,
    revoked: AtomicU32,
}

impl Bias {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self { busy: AtomicU32::new(0), revoked: AtomicU32::new(0) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { busy: AtomicU32::new(0), revoked: AtomicU32::new(0) }
    }

    /// The owner enters. False if it is revoked: the owner has to wait for whoever did that.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        self.begin();
        if self.revoked.load(Ordering::Acquire) != 0 {
            self.leave();
            return false;
        }
        true
    }

    /// The owner enters, and looks itself whether it is revoked.
    #[inline(always)]
    pub(crate) fn begin(&self) {
        self.busy.store(1, Ordering::Relaxed);
        owner_fence();
    }

    /// The owner leaves.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// Asks the owner to keep out. One thread at a time, which calls [`barrier`](Self::barrier) next.
    pub(crate) fn revoke(&self) {
        self.revoked.store(1, Ordering::Relaxed);
    }

    /// Between [`revoke`](Self::revoke), of any number of these, and [`wait`](Self::wait).
    pub(crate) fn barrier() {
        barrier_everywhere();
    }

    /// Until the owner is out; what it guards is the caller's then, until [`restore`](Self::restore).
    pub(crate) fn wait(&self) {
        let mut n = 0;
        while self.busy.load(Ordering::Acquire) != 0 {
            pause(n);
            n += 1;
        }
    }

    /// Lets the owner in again.
    pub(crate) fn restore(&self) {
        self.revoked.store(0, Ordering::Release);
    }

    /// For the child of a fork, where the owner does not exist: out, and not revoked.
    pub(crate) fn reset(&self) {
        self.busy.store(0, Ordering::Relaxed);
        self.revoked.store(0, Ordering::Relaxed);
    }
}
