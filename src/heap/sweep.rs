//! What concerns heaps as a whole: giving idle memory back, fork, locking again in a child.

use super::large::Large;
use super::slab::{CHUNK_SLABS, Slab, State};
use super::{FIRST, HEAPS, Heap, Inner, desk};
use crate::os::fork;
use crate::pages::{ForkPolicy, PagesError, cache, map, meta};
use core::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

fn each(mut f: impl FnMut(&'static Heap)) {
    let mut p = FIRST.load(Ordering::Acquire);
    // SAFETY: heaps in the list are whole and never freed.
    while let Some(h) = unsafe { p.as_ref() } {
        f(h);
        p = h.next.load(Ordering::Acquire);
    }
}

/// Releases freed large blocks until at most `target` bytes of them are kept, by threads or for all. Returns the bytes.
pub(crate) fn release_kept(target: usize) -> usize {
    if cache::leave() != 0 && cache::leave() + cache::bytes() > target {
        desk::empty_all(None);
    }
    cache::trim(target)
}

/// Gives back every empty slab and every cached span of the process, after threads gave back what they keep ready.
/// Returns the bytes given back.
pub(crate) fn reclaim_idle() -> usize {
    desk::empty_all(None);
    let mut freed = cache::trim(0);
    each(|h| freed += h.release_idle());
    freed
}

/// Bytes asked for in the live blocks of all heaps with that pool.
pub(crate) fn requested_of_pool(pool: *const ()) -> usize {
    let mut n = 0;
    each(|h| n += h.requested_of(pool));
    n
}

/// Bytes of freed large blocks that threads keep.
pub(crate) fn kept() -> usize {
    let mut n = 0;
    each(|h| n += h.stats().kept);
    n
}

impl Heap {
    /// Gives back the empty slabs of this heap. Returns their open bytes.
    pub(crate) fn release_idle(&self) -> usize {
        let mut freed = self.release_orphans();
        loop {
            let mut g = self.lock();
            let Some(slab) = (0..2).find_map(|k| g.take_idle(k, State::Closing)) else { return freed };
            // SAFETY: in no list and empty it is this thread's alone.
            let s = unsafe { &mut *slab.as_ptr() };
            let (opened, before) = (s.opened, g.slab_opened);
            g.closing += 1;
            drop(g);
            self.drop_slab(s);
            let mut g = self.lock();
            g.closing -= 1;
            if g.slab_opened >= before {
                return freed; // The kernel refused; it would refuse again.
            }
            freed += opened;
        }
    }

    /// As [`release_idle`](Self::release_idle), after threads gave back what they keep of this heap.
    pub(crate) fn trim(&'static self) -> usize {
        if self.trays.load(Ordering::SeqCst) != 0 {
            desk::empty_all(Some(self.key()));
        }
        self.release_idle()
    }

    /// The first one to lock this heap in the child of a fork sets it right: what was locked is not any more,
    /// and slabs that a thread was opening or giving back, which does not exist here, are nobody's.
    #[cold]
    pub(super) fn after_fork(&self, g: &mut Inner) {
        let spec = self.spec();
        let keeps = spec.fork != ForkPolicy::DontFork;
        let usable = keeps && !spec.pinned;
        g.forget_lists();
        (g.large_locked, g.slack, g.busy, g.closing) = (0, 0, 0, 0);
        let mut chunk = g.chunks;
        // SAFETY: chunks and slabs of this heap are whole, under the lock; a record outlives DONTFORK, which
        // concerns the user's pages.
        unsafe {
            while let Some(c) = chunk.as_mut() {
                c.stale = !keeps;
                for &slab in &c.slabs {
                    let Some(s) = slab.as_mut() else { continue };
                    s.prev = ptr::null_mut();
                    s.next = ptr::null_mut();
                    if s.state == State::Closing {
                        continue; // out of the page map, its pages gone or about to be
                    }
                    s.growing = false;
                    s.grow_next = ptr::null_mut();
                    s.state = State::Stale;
                    if usable {
                        s.epoch = fork::epoch();
                        g.sort_in(s);
                    } else {
                        s.record.key.store(0, Ordering::Relaxed);
                    }
                }
                chunk = c.next;
            }
        }
        let mut large = g.larges;
        // SAFETY: records in the list are whole, under the lock.
        while let Some(l) = unsafe { large.as_mut() } {
            large = l.next;
            if !usable {
                l.record.key.store(0, Ordering::Relaxed);
            }
            if l.start.load(Ordering::Relaxed) == 0 {
                // A thread kept it.
                g.remove_large(l);
                l.next = g.orphans;
                g.orphans = l;
            }
        }
        g.epoch = fork::epoch();
    }

    /// Releases what threads kept that do not exist in this process. Returns the bytes.
    fn release_orphans(&self) -> usize {
        let mut freed = 0;
        let mut p = core::mem::replace(&mut self.lock().orphans, ptr::null_mut());
        while let Some(l) = NonNull::new(p) {
            // SAFETY: a record out of the list is whole and this thread's alone.
            let span = unsafe {
                p = l.as_ref().next;
                Large::destroy(l)
            };
            freed += span.len();
            span.release();
        }
        freed
    }

    /// Locks, in the child of a fork, what was locked in the parent. Returns the bytes locked.
    ///
    /// # Errors
    /// The first failure; what was locked before it stays locked and is reported as such.
    pub(crate) fn relock(&self) -> Result<usize, PagesError> {
        let mut done = 0;
        let mut g = self.lock();
        if !self.spec().pinned || self.spec().fork != ForkPolicy::Keep {
            return Ok(0);
        }
        let mut chunk = g.chunks;
        // SAFETY: chunks, slabs and large records of this heap are whole, under the lock.
        unsafe {
            while let Some(c) = chunk.as_mut() {
                for i in 0..CHUNK_SLABS {
                    let Some(s) = c.slabs[i].as_mut() else { continue };
                    if s.state != State::Stale || s.opened == 0 {
                        continue;
                    }
                    c.span.relock_piece(s.base, s.opened)?;
                    s.epoch = fork::epoch();
                    s.record.key.store(self.record_key(), Ordering::Relaxed);
                    done += s.opened;
                    g.sort_in(s);
                }
                chunk = c.next;
            }
            let mut large = g.larges;
            while let Some(l) = large.as_mut() {
                if !l.busy.swap(true, Ordering::Acquire) {
                    let before = l.span.locked_now();
                    let r = l.span.relock();
                    let now = l.span.locked_now() - before;
                    l.record.key.store(self.large_key(), Ordering::Relaxed);
                    l.unclaim();
                    r?;
                    g.large_locked += now;
                    done += now;
                }
                large = l.next;
            }
        }
        Ok(done)
    }
}

/// For the `prepare` fork handler: keeps threads from what they keep ready, and holds every lock of heaps and pages.
pub(crate) fn lock_all() {
    desk::hold_all();
    HEAPS.raw_lock();
    each(|h| h.inner.raw_lock());
    cache::raw_lock();
    meta::raw_lock();
}

/// For the `child` fork handler: takes the addresses of memory that this process was not given
/// ([`ForkPolicy::DontFork`]), so that nothing else comes to lie where a pointer of its parent's leads.
///
/// # Safety
/// Between [`lock_all`] by the thread this child was forked from and [`unlock_all`].
pub(crate) unsafe fn claim_all() {
    each(|h| {
        if h.spec().fork != ForkPolicy::DontFork {
            return;
        }
        // SAFETY: the lock is held, as the caller promises, and this process has one thread. Records in the lists are
        // whole; one whose span a thread was changing says so.
        unsafe {
            let g = h.inner.raw_data();
            let mut chunk = g.chunks;
            while let Some(c) = chunk.as_ref() {
                c.span.claim();
                chunk = c.next;
            }
            let mut large = g.larges;
            while let Some(l) = large.as_ref() {
                if !l.busy.load(Ordering::Relaxed) {
                    l.span.claim();
                }
                large = l.next;
            }
        }
    });
}

/// Releases what [`lock_all`] took.
///
/// # Safety
/// After [`lock_all`] by this thread (or, with `child`, by the thread this process was forked from).
pub(crate) unsafe fn unlock_all(child: bool) {
    // SAFETY: as the caller promises; the locks of all heaps are held.
    unsafe {
        if child {
            desk::abandon_all(|h, b| {
                let g = h.inner.raw_data();
                if let Some(s) = map::get(b.addr()).cast::<Slab>().as_mut() {
                    s.give(b.addr());
                    g.out -= 1;
                }
            });
        }
        meta::raw_unlock();
        cache::raw_unlock();
        each(|h| h.inner.raw_unlock());
        HEAPS.raw_unlock();
        if !child {
            desk::release_all();
        }
    }
}
