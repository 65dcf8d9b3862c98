//! The one lock of the crate: a pthread mutex that a fork handler can hold and release.
//!
//! std's `Mutex` cannot be released without its guard, which the child of a fork does not have, and other lock
//! crates allocate. POSIX allows the child to unlock what its parent locked in the `prepare` handler.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A mutex over `T`. It must not move while it is in use: it lives in statics and in memory that never moves.
pub(crate) struct Lock<T> {
    raw: UnsafeCell<libc::pthread_mutex_t>,
    data: UnsafeCell<T>,
}

// SAFETY: the data is reached only through a guard (or `raw_lock`'s contract), one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: moving the lock moves the data with it; no guard can be alive then.
unsafe impl<T: Send> Send for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(data: T) -> Self {
        Self { raw: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER), data: UnsafeCell::new(data) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.raw_lock();
        Guard { lock: self }
    }

    /// Locks without a guard, for the `prepare` fork handler.
    #[inline]
    pub(crate) fn raw_lock(&self) {
        // SAFETY: a statically initialised normal mutex that does not move; locking it has no error cases but
        // self-deadlock, which no path of this crate does.
        unsafe { libc::pthread_mutex_lock(self.raw.get()) };
    }

    /// The data, for the fork handlers.
    ///
    /// # Safety
    /// As [`raw_unlock`](Self::raw_unlock), and no other thread or guard uses the data meanwhile.
    #[allow(clippy::mut_from_ref)] // As a guard gives it; the contract stands for the guard.
    pub(crate) unsafe fn raw_data(&self) -> &mut T {
        // SAFETY: held by this thread, as the caller promises.
        unsafe { &mut *self.data.get() }
    }

    /// Unlocks what [`raw_lock`](Self::raw_lock) locked.
    ///
    /// # Safety
    /// The calling thread (or, in a child, the thread it was forked from) holds the lock and has no guard of it.
    #[inline]
    pub(crate) unsafe fn raw_unlock(&self) {
        // SAFETY: held by this thread, as the caller promises.
        unsafe { libc::pthread_mutex_unlock(self.raw.get()) };
    }
}

/// Holds a [`Lock`].
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard is proof that this thread holds the lock.
        unsafe { &*self.lock.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` makes this the only reference through the guard.
        unsafe { &mut *self.lock.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this guard holds the lock and ends here.
        unsafe { self.lock.raw_unlock() };
    }
}
