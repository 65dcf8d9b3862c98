//! The table of allocators: slots with generations, in memory that is never freed.
//!
//! ```text
//!   state of a slot, one atomic word:   | generation 32 | alive 1 | users 31 |
//! ```
//!
//! A user is a call under way or a `PinnedAlloc`. A new allocator has its maker as a user, so that nobody who guesses the
//! handle can end it before its maker has it. An allocator that was destroyed keeps its record until it has no
//! users, no live block is left in its heaps, and it serves no other allocator's blocks; then heaps and slot serve
//! others. So a block may outlive its allocator, and a stale handle meets a newer generation.

use super::allocator::{Core, SubHeap};
use super::error::Error;
use super::handle::AllocatorHandle;
use super::policy::Policy;
use super::pool::Pool;
use super::space::MemSpace;
use super::traits::{Access, Fallback, Traits};
use crate::heap::Heap;
use crate::os::lock::Lock;
use crate::os::{fork, numa};
use crate::pages::{PagesError, meta, meta::Use};
use core::cell::UnsafeCell;
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// Slots in the table. The first 16 are for predefined allocators.
pub(crate) const SLOTS: usize = 1 << 16;
const CHUNK: usize = 64;
const FIRST_USER: u32 = 16;
const ALIVE: u64 = 1 << 31;
/// So many users (or owners) are never counted down again: whoever forgets handles by the thousand million keeps the
/// allocator for ever, and cannot make the count wrap.
const STICKY: u64 = 1 << 30;

/// One slot: an allocator, alive or not.
pub(crate) struct Allocator {
    index: u32,
    state: AtomicU64,
    core: UnsafeCell<Core>, // written while nobody can use the slot
    /// Heaps of blocks that were asked of this allocator; append-only while it lives.
    pub(super) heaps: AtomicPtr<SubHeap>,
    /// Pools of blocks this allocator serves, one an access group.
    pub(super) pools: AtomicPtr<super::allocator::PoolCell>,
    pub(crate) counts: super::allocator::Counts,
    /// Heaps of other allocators whose blocks this one serves.
    lends: AtomicU32,
    /// `PinnedAlloc`s that own it: the last one ends it.
    owners: AtomicU32,
    next_free: AtomicU32,
    /// The key of the heap that serves ordinary requests of any thread; 0 where a request needs more thought.
    pub(crate) fast_key: AtomicU64,
}

// SAFETY: `core` is written only in `create` while the slot is not alive and has no users; all else is atomic.
unsafe impl Sync for Allocator {}

struct Table {
    free: u32, // 0: none
    fresh: u32,
}

static TABLE: Lock<Table> = Lock::new(Table { free: 0, fresh: FIRST_USER });
static CHUNKS: [AtomicPtr<Allocator>; SLOTS / CHUNK] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS / CHUNK];
/// Serialises what changes the lists of an allocator: new heaps and pools, and recycling.
pub(super) static LISTS: Lock<Spare> = Lock::new(Spare { heaps: ptr::null_mut(), pools: ptr::null_mut() });

/// Heaps and pools of allocators that are gone, to be used again.
pub(super) struct Spare {
    pub(super) heaps: *mut SubHeap,
    pub(super) pools: *mut super::allocator::PoolCell,
}
// SAFETY: the pointers lead to records that are touched under the lock only while they are spare.
unsafe impl Send for Spare {}

impl Spare {
    /// The first spare heap that `fits` takes.
    pub(super) fn take_heap(&mut self, fits: impl Fn(&Heap) -> bool) -> Option<&'static SubHeap> {
        let mut before: Option<&SubHeap> = None;
        let mut p = self.heaps;
        // SAFETY: sub-heaps are never freed; spare ones are touched under the lock that `self` is behind.
        while let Some(s) = unsafe { p.as_ref() } {
            let next = s.next.load(Ordering::Relaxed);
            if fits(s.heap()) {
                match before {
                    Some(b) => b.next.store(next, Ordering::Relaxed),
                    None => self.heaps = next,
                }
                return Some(s);
            }
            before = Some(s);
            p = next;
        }
        None
    }
}

fn chunk(i: usize) -> Result<*mut Allocator, PagesError> {
    let p = CHUNKS[i].load(Ordering::Acquire);
    if !p.is_null() {
        return Ok(p);
    }
    let fresh = meta::alloc(size_of::<Allocator>() * CHUNK, Use::Other)?.cast::<Allocator>();
    for n in 0..CHUNK {
        // SAFETY: the piece has room for CHUNK records and is nobody else's yet.
        unsafe {
            fresh.add(n).write(Allocator {
                index: (i * CHUNK + n) as u32,
                state: AtomicU64::new(0),
                core: UnsafeCell::new(Core::EMPTY),
                heaps: AtomicPtr::new(ptr::null_mut()),
                pools: AtomicPtr::new(ptr::null_mut()),
                counts: super::allocator::Counts::new(),
                lends: AtomicU32::new(0),
                owners: AtomicU32::new(0),
                next_free: AtomicU32::new(0),
                fast_key: AtomicU64::new(0),
            });
        }
    }
    match CHUNKS[i].compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(fresh.as_ptr()),
        Err(other) => {
            // SAFETY: allocated above with this size, and published to nobody.
            unsafe { meta::free(fresh.cast(), size_of::<Allocator>() * CHUNK, Use::Other) };
            Ok(other)
        }
    }
}

/// The record of slot `index`, whatever its state.
pub(crate) fn slot(index: u32) -> Option<&'static Allocator> {
    let p = CHUNKS.get(index as usize / CHUNK)?.load(Ordering::Acquire);
    if p.is_null() {
        return None;
    }
    // SAFETY: a published chunk has CHUNK records and is never freed.
    Some(unsafe { &*p.add(index as usize % CHUNK) })
}

fn made(index: u32) -> Result<&'static Allocator, Error> {
    chunk(index as usize / CHUNK)?;
    slot(index).ok_or(Error::TooMany)
}

/// Makes an allocator with the caller as its one user: ends with [`Allocator::exit`]. Its handle is alive until
/// [`Allocator::destroy`], which anybody may call who guesses it.
pub(crate) fn create(space: MemSpace, traits: Traits, policy: Policy) -> Result<&'static Allocator, Error> {
    traits.validate()?;
    start();
    let index = {
        let mut t = TABLE.lock();
        match t.free {
            0 if t.fresh as usize >= SLOTS => return Err(Error::TooMany),
            0 => {
                t.fresh += 1;
                t.fresh - 1
            }
            f => {
                t.free = slot(f).map_or(0, |a| a.next_free.load(Ordering::Relaxed));
                f
            }
        }
    };
    let a = match made(index) {
        Ok(a) => a,
        Err(e) => {
            give_slot(index);
            return Err(e);
        }
    };
    // SAFETY: the slot is not alive, has no users and was just taken from the free slots: it is ours alone.
    unsafe { *a.core.get() = Core::new(space, traits, policy) };
    a.counts.clear();
    a.fast_key.store(0, Ordering::Relaxed);
    a.owners.store(0, Ordering::Relaxed);
    let generation = ((a.state.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(1).max(1);
    a.state.store((generation as u64) << 32 | ALIVE | 1, Ordering::Release);
    // Last: a late `try_recycle` of the predecessor must find the slot either recycled or alive.
    a.counts.recycled.store(false, Ordering::Release);
    Ok(a)
}

fn give_slot(index: u32) {
    let mut t = TABLE.lock();
    match slot(index) {
        Some(a) => {
            a.next_free.store(t.free, Ordering::Relaxed);
            t.free = index;
        }
        // No record: only the newest slot can be without.
        None if t.fresh == index + 1 => t.fresh = index,
        None => {}
    }
}

/// A predefined allocator by its handle's number.
fn predefined(raw: usize) -> Option<(u32, MemSpace, Traits)> {
    let plain = Traits::default();
    let with = |f: fn(&mut Traits)| {
        let mut t = Traits::default();
        f(&mut t);
        t
    };
    Some(match raw {
        1 => (1, MemSpace::Default, with(|t| t.fallback = Fallback::Null)),
        2 => (2, MemSpace::LargeCap, plain),
        3 => (3, MemSpace::Const, plain),
        4 => (4, MemSpace::HighBw, plain),
        5 => (5, MemSpace::LowLat, plain),
        6 => (6, MemSpace::LowLat, with(|t| t.access = Access::CGroup)),
        7 => (7, MemSpace::LowLat, with(|t| t.access = Access::PTeam)),
        8 => (8, MemSpace::LowLat, with(|t| t.access = Access::Thread)),
        100 | 200 => (9, MemSpace::Default, {
            with(|t| {
                t.pinned = true;
                t.fallback = Fallback::Null;
            })
        }),
        _ => return None,
    })
}

/// The allocator of a handle, with the caller as a user: ends with [`Allocator::exit`].
pub(crate) fn enter(handle: AllocatorHandle) -> Result<&'static Allocator, Error> {
    if let Some((index, space, traits)) = predefined(handle.raw()) {
        return Ok(builtin(index, space, traits)?);
    }
    let bad = Error::Handle { handle };
    let (index, generation) = handle.split().ok_or(bad)?;
    let a = slot(index).ok_or(bad)?;
    if a.enter(generation) { Ok(a) } else { Err(bad) }
}

/// The allocator that `default_mem_fb` ends in: default space, default traits, `null_fb`.
pub(crate) fn default_mem() -> Result<&'static Allocator, Error> {
    enter(AllocatorHandle::DEFAULT_MEM)
}

fn builtin(index: u32, space: MemSpace, traits: Traits) -> Result<&'static Allocator, PagesError> {
    if let Some(a) = slot(index).filter(|a| a.is_alive()) {
        return Ok(a);
    }
    start();
    chunk(0)?;
    let _g = TABLE.lock();
    let a = slot(index).ok_or(PagesError::overflow(0))?;
    if !a.is_alive() {
        // SAFETY: a predefined slot is written once, under the lock, before it is alive.
        unsafe { *a.core.get() = Core::new(space, traits, Policy::DEFAULT) };
        a.state.store(1 << 32 | ALIVE, Ordering::Release);
    }
    Ok(a)
}

impl Allocator {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn core(&self) -> &Core {
        // SAFETY: written only while the slot is neither alive nor used; whoever asks is a user, or holds a live
        // block that keeps the slot from being used again.
        unsafe { &*self.core.get() }
    }

    /// Whether it may still be asked by its handle.
    pub(crate) fn is_alive(&self) -> bool {
        self.state.load(Ordering::Acquire) & ALIVE != 0
    }

    fn is_predefined(&self) -> bool {
        self.index < FIRST_USER
    }

    pub(crate) fn handle(&self) -> AllocatorHandle {
        if self.is_predefined() {
            return AllocatorHandle::from_raw(if self.index == 9 { 200 } else { self.index as usize });
        }
        AllocatorHandle::user(self.index, (self.state.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// A block of the calling thread's own, aligned to 16, if it has one ready and nothing has to be decided. Null
    /// otherwise.
    #[inline(always)]
    pub(crate) fn take(&self, size: usize) -> *mut u8 {
        crate::heap::take(self.fast_key.load(Ordering::Relaxed), size)
    }

    /// The next step where [`take`](Self::take) gives none; also for blocks with pages of their own.
    pub(crate) fn take_back(&self, size: usize) -> *mut u8 {
        crate::heap::take_back(self.fast_key.load(Ordering::Relaxed), size)
    }

    /// The handle alone, from the maker, who is a user no longer.
    pub(crate) fn give_handle(&'static self) -> AllocatorHandle {
        let h = self.handle();
        self.exit();
        h
    }

    fn enter(&self, generation: u32) -> bool {
        let mut s = self.state.load(Ordering::Relaxed);
        loop {
            if (s >> 32) as u32 != generation || s & ALIVE == 0 {
                return false;
            }
            if s & (ALIVE - 1) >= STICKY {
                return true;
            }
            match self.state.compare_exchange_weak(s, s + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(n) => s = n,
            }
        }
    }

    /// One user more. The caller is a user already.
    pub(crate) fn enter_again(&self) {
        if !self.is_predefined() && self.state.load(Ordering::Relaxed) & (ALIVE - 1) < STICKY {
            self.state.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One user more, who has nothing but a live block of it: it may be dead, and another thread may be about to take
    /// its empty heaps away, for it or for the slot's former owner. That happens under the lock of the lists.
    pub(crate) fn enter_by_block(&self) {
        if self.is_predefined() || self.enter((self.state.load(Ordering::Relaxed) >> 32) as u32) {
            return;
        }
        let _g = LISTS.lock();
        if self.state.load(Ordering::Acquire) & (ALIVE - 1) < STICKY {
            self.state.fetch_add(1, Ordering::Acquire);
        }
    }

    /// One user less.
    pub(crate) fn exit(&self) {
        if self.is_predefined() {
            return;
        }
        let less = |s: u64| (s & (ALIVE - 1) < STICKY).then(|| s - 1);
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        if before.is_ok_and(|s| s & ALIVE == 0 && s & (ALIVE - 1) == 1) {
            self.try_recycle();
        }
    }

    /// Ends the allocator: its handle is dead, its blocks live on. False if it was dead already, or is predefined.
    pub(crate) fn destroy(&self) -> bool {
        if self.is_predefined() {
            return false;
        }
        let was = self.state.fetch_and(!ALIVE, Ordering::AcqRel);
        if was & ALIVE == 0 {
            return false;
        }
        self.fast_key.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // No thread keeps blocks of it any more: what is live is known exactly from here on.
        self.each_heap(Heap::close);
        self.try_recycle();
        true
    }

    /// Gives slot, heaps and pools to others once nothing refers to them. Called whenever that may have come true.
    #[cold]
    pub(crate) fn try_recycle(&self) {
        if self.is_predefined() || self.is_alive() {
            return;
        }
        // Idle memory goes back at once, also while blocks keep the rest.
        let mut p = self.heaps.load(Ordering::Acquire);
        // SAFETY: sub-heaps are never freed; the list of a slot that is not alive only shrinks under LISTS.
        while let Some(h) = unsafe { p.as_ref() } {
            h.heap().release_idle();
            p = h.next.load(Ordering::Acquire);
        }
        let mut lent = [0u32; 16];
        loop {
            let mut n = 0;
            {
                let mut spare = LISTS.lock();
                let s = self.state.load(Ordering::Acquire);
                if s & (ALIVE | (ALIVE - 1)) != 0 {
                    return;
                }
                // Heaps that serve through another allocator let it go as they become empty, so that two that
                // serve each other do not keep one another.
                let mut link = &self.heaps;
                // SAFETY: as above, and under LISTS.
                while let Some(h) = unsafe { link.load(Ordering::Relaxed).as_ref() } {
                    if n < lent.len() && h.heap().is_empty() {
                        link.store(h.next.load(Ordering::Relaxed), Ordering::Release);
                        if h.server() != self.index {
                            lent[n] = h.server();
                            n += 1;
                        }
                        h.next.store(spare.heaps, Ordering::Relaxed);
                        spare.heaps = (&raw const *h).cast_mut();
                        continue;
                    }
                    link = &h.next;
                }
                let idle =
                    self.heaps.load(Ordering::Relaxed).is_null() && self.lends.load(Ordering::Acquire) == 0;
                // The exchange makes one thread the one that recycles.
                if idle && !self.counts.recycled.swap(true, Ordering::AcqRel) {
                    let mut p = self.pools.swap(ptr::null_mut(), Ordering::Relaxed);
                    // SAFETY: pools are never freed, and nothing is charged to these: no block is left.
                    while let Some(c) = unsafe { p.as_ref() } {
                        let next = c.next.load(Ordering::Relaxed);
                        c.next.store(spare.pools, Ordering::Relaxed);
                        spare.pools = p;
                        p = next;
                    }
                    drop(spare);
                    give_slot(self.index);
                }
            }
            for &i in &lent[..n] {
                if let Some(a) = slot(i)
                    && a.lends.fetch_sub(1, Ordering::AcqRel) == 1
                {
                    a.try_recycle();
                }
            }
            if n < lent.len() {
                return;
            }
        }
    }

    /// Takes note of a heap of another allocator that this one serves.
    pub(super) fn lend(&self) {
        self.lends.fetch_add(1, Ordering::Relaxed);
    }

    /// One more owner: see [`disown`](Self::disown).
    pub(crate) fn own(&self) {
        if u64::from(self.owners.load(Ordering::Relaxed)) < STICKY {
            self.owners.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One owner less; the last one destroys the allocator.
    pub(crate) fn disown(&self) {
        let less = |n: u32| (u64::from(n) < STICKY).then(|| n - 1);
        if self.owners.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) == Ok(1) {
            self.destroy();
        }
    }
}

/// After a block of `heap` was freed: its allocators may have been waiting for that. `origin` is of the tag that the
/// heap had while the block was out; by now it may be another's.
#[inline]
pub(crate) fn after_free(heap: &'static Heap, origin: u32) {
    if origin >= FIRST_USER
        && let Some(a) = slot(origin)
        && !a.is_alive()
        && heap.is_empty()
    {
        a.try_recycle();
    }
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// What has to happen once, before the first allocator: fork handlers.
fn start() {
    if STARTED.load(Ordering::Acquire) {
        return;
    }
    let _g = TABLE.lock();
    if !STARTED.load(Ordering::Relaxed) {
        // Without handlers (no memory for them) a fork in a threaded program may find a lock taken for ever;
        // nothing else depends on them, so the allocator serves all the same and tries again at the next start.
        if fork::at_fork(before_fork, after_fork_parent, after_fork_child).is_ok() {
            crate::heap::on_late_return(after_free);
            STARTED.store(true, Ordering::Release);
        }
    }
}

extern "C" fn before_fork() {
    super::partition::raw_lock();
    TABLE.raw_lock();
    LISTS.raw_lock();
    crate::heap::lock_all();
}

fn release(child: bool) {
    // SAFETY: `before_fork` took these locks on this thread, or on the thread this child was forked from.
    unsafe {
        crate::heap::unlock_all(child);
        LISTS.raw_unlock();
        TABLE.raw_unlock();
        super::partition::raw_unlock();
    }
}

extern "C" fn after_fork_parent() {
    release(false);
}

extern "C" fn after_fork_child() {
    fork::next_epoch();
    crate::pages::account::after_fork();
    numa::after_fork();
    // SAFETY: `before_fork` took the locks on the thread that this child was forked from.
    unsafe { crate::heap::claim_all() };
    release(true);
}

/// Every allocator that is alive or has blocks, for statistics.
pub(crate) fn each(mut f: impl FnMut(&'static Allocator)) {
    let fresh = TABLE.lock().fresh;
    for i in 0..fresh {
        if let Some(a) = slot(i)
            && (a.is_alive() || !a.heaps.load(Ordering::Acquire).is_null())
        {
            f(a);
        }
    }
}

/// A pool for another owner, or a new one.
pub(super) fn take_pool(
    spare: &mut Spare,
    limit: usize,
    counts: bool,
) -> Result<&'static super::allocator::PoolCell, PagesError> {
    use super::allocator::PoolCell;
    // SAFETY: spare pools are whole and nobody's.
    if let Some(c) = unsafe { spare.pools.as_ref() } {
        spare.pools = c.next.load(Ordering::Relaxed);
        c.pool.reset(limit, counts);
        return Ok(c);
    }
    let p = meta::alloc(size_of::<PoolCell>(), Use::Other)?.cast::<PoolCell>();
    // SAFETY: the piece is large and aligned enough, nobody else's and never freed.
    unsafe {
        p.write(PoolCell {
            pool: Pool::new(limit, counts),
            group: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
        });
        Ok(&*p.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_reaches_its_bound_stays() {
        let a = create(MemSpace::Default, Traits::DEFAULT, Policy::DEFAULT).unwrap();
        let before = a.handle();
        a.state.fetch_add(STICKY - 3, Ordering::Relaxed);
        a.owners.store(STICKY as u32 - 1, Ordering::Relaxed);
        for _ in 0..10 {
            a.enter_again();
            a.own();
        }
        assert!(enter(before).is_ok());
        let users = a.state.load(Ordering::Relaxed) & (ALIVE - 1);
        assert_eq!((users, a.owners.load(Ordering::Relaxed)), (STICKY, STICKY as u32));
        for _ in 0..20 {
            a.disown();
            a.exit();
        }
        assert_eq!(a.state.load(Ordering::Relaxed) & (ALIVE - 1), STICKY);
        assert!(a.is_alive() && a.handle() == before);
        a.destroy();
        assert!(enter(before).is_err());
        assert!(!a.counts.recycled.load(Ordering::Relaxed), "who still uses it is not known any more");
    }
}
