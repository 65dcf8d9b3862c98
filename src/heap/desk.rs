//! A desk: the trays of one thread, by the keys of their heaps, and who else may reach them.
//!
//! The thread finds its desk by a word of its own ([`tls`]), and is let in by a [`Bias`]. Whoever needs what all threads
//! keep holds the door and revokes all desks, twice over:
//!
//! ```text
//!   1. revoked, barrier, nobody busy:   no tray is put into a slot any more
//!   2. keys hidden, barrier, nobody busy:   no fast way finds a tray any more
//!   ... the trays are emptied ...   keys shown, not revoked
//! ```
//!
//! Desks are never freed; threads that end leave theirs to others.

use super::Heap;
use super::bias::Bias;
use super::large::Large;
use super::tray::{Batch, Keep, Tray};
use crate::os::lock::Lock;
use crate::os::{barrier, thread, tls};
use crate::pages::meta::Use;
use crate::pages::{cache, meta};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Heaps a thread can have trays for at once; a further one takes the place of another.
pub(super) const SLOTS: usize = 32;

pub(super) const SLOT_BYTES: usize = size_of::<Slot>();

/// The bits of a key that say in which slot it belongs, as an offset in bytes.
pub(super) const SLOT_MASK: u64 = ((SLOTS - 1) * SLOT_BYTES) as u64;

/// The key of a slot without a tray. No heap has it, nor 0, which stands for "not kept by threads".
pub(super) const NO_KEY: u64 = u64::MAX;

/// A key that no other heap had or will have.
pub(super) fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    (n << 16) | ((n % SLOTS as u64) * SLOT_BYTES as u64)
}

#[repr(C)]
pub(super) struct Slot {
    /// The key of the tray's heap; NO_KEY where there is none, and while the desk is revoked.
    pub(super) shown: AtomicU64,
    pub(super) tray: *mut Tray,
}

impl Slot {
    /// The key of the tray's heap, also while the desk is revoked.
    pub(super) fn key(&self) -> u64 {
        // SAFETY: a tray in a slot is whole.
        unsafe { self.tray.as_ref() }.map_or(NO_KEY, |t| t.key)
    }

    /// Puts another tray there, or none; gives the old one.
    pub(super) fn replace(&mut self, tray: *mut Tray) -> *mut Tray {
        let old = core::mem::replace(&mut self.tray, tray);
        self.shown.store(self.key(), Ordering::Relaxed);
        old
    }
}

/// What belongs to one thread at a time. Never freed; threads that end leave theirs to others.
#[repr(C, align(64))]
pub(super) struct Desk {
    pub(super) bias: Bias,
    pub(super) slots: UnsafeCell<[Slot; SLOTS]>,
    /// Bytes of large blocks in its trays, and how many it has leave to keep.
    pub(super) large: UnsafeCell<Keep>,
    pub(super) taken: AtomicBool,
    pub(super) next: AtomicPtr<Desk>,
}

// SAFETY: the slots, and the trays they lead to, are touched by whoever is inside `bias` only: the thread whose desk it
// is, or one that has revoked it.
unsafe impl Sync for Desk {}

pub(super) static DESKS: AtomicPtr<Desk> = AtomicPtr::new(ptr::null_mut());

/// Held by who revokes desks, and for the moment in which a thread takes one. No lock of a heap is held by who waits.
pub(super) static DOOR: Lock<()> = Lock::new(());

/// The calling thread's desk; null if it has none (yet, or any more).
#[inline(always)]
pub(super) fn mine() -> *const Desk {
    tls::get().cast()
}

impl Desk {
    pub(super) const fn new() -> Self {
        Self {
            bias: Bias::new(),
            slots: UnsafeCell::new(
                [const { Slot { shown: AtomicU64::new(NO_KEY), tray: ptr::null_mut() } }; SLOTS],
            ),
            large: UnsafeCell::new(Keep { held: 0, leave: 0 }),
            taken: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The slot where a tray for `key` is, if there is one.
    #[inline(always)]
    pub(super) fn slot(&self, key: u64) -> *mut Slot {
        // The mask keeps the offset inside the array, on a multiple of the slot's size.
        self.slots.get().cast::<Slot>().wrapping_byte_add((key & SLOT_MASK) as usize)
    }

    /// Shows the keys of its trays, or none. Only who has revoked the desk calls this.
    pub(super) fn show(&self, yes: bool) {
        for i in 0..SLOTS {
            // SAFETY: the address of a slot; `shown` is atomic, and `tray` is read only where the owner is out.
            unsafe {
                let slot = self.slots.get().cast::<Slot>().add(i);
                (*slot).shown.store(if yes { (*slot).key() } else { NO_KEY }, Ordering::Release);
            }
        }
    }

    /// Lets the owner in again.
    pub(super) fn restore(&self) {
        self.show(true);
        self.bias.restore();
    }

    /// Enters, waiting for whoever has revoked the desk.
    pub(super) fn enter(&self) {
        while !self.bias.enter() {
            drop(DOOR.lock());
        }
    }
}

/// The calling thread's desk, if it can have one.
pub(super) fn obtain() -> Option<&'static Desk> {
    // SAFETY: desks are never freed.
    unsafe { mine().as_ref() }.or_else(enlist)
}

#[cold]
pub(super) fn enlist() -> Option<&'static Desk> {
    // A desk must be given up when its thread ends, and it must be possible to revoke it.
    if !thread::end_is_told() || !barrier::available() {
        return None;
    }
    thread::at_end(end);
    let mut fresh: Option<NonNull<Desk>> = None;
    loop {
        let door = DOOR.lock();
        let mut p = DESKS.load(Ordering::Acquire);
        // SAFETY: desks in the list are whole and never freed.
        while let Some(d) = unsafe { p.as_ref() } {
            if !d.taken.load(Ordering::Relaxed) {
                break;
            }
            p = d.next.load(Ordering::Relaxed);
        }
        if p.is_null()
            && let Some(new) = fresh.take()
        {
            p = new.as_ptr();
            // SAFETY: a whole desk that nobody knows yet.
            unsafe { (*p).next.store(DESKS.load(Ordering::Relaxed), Ordering::Relaxed) };
            DESKS.store(p, Ordering::Release);
        }
        // SAFETY: as above.
        if let Some(d) = unsafe { p.as_ref() } {
            d.taken.store(true, Ordering::Relaxed);
            drop(door);
            if let Some(spare) = fresh {
                // SAFETY: made below, used by nobody.
                unsafe { meta::free(spare.cast(), size_of::<Desk>(), Use::Other) };
            }
            tls::set(ptr::from_ref(d).cast());
            return Some(d);
        }
        drop(door);
        let p = meta::alloc(size_of::<Desk>(), Use::Other).ok()?.cast::<Desk>();
        // SAFETY: the piece is large and aligned enough (a power of two from 64 bytes), and nobody else's.
        unsafe { p.write(Desk::new()) };
        fresh = Some(p);
    }
}

/// The calling thread ends: nothing stays on its desk. Whoever trims meanwhile waits for that, and misses nothing.
pub(super) fn end() {
    // SAFETY: desks are never freed.
    let Some(d) = (unsafe { mine().as_ref() }) else { return };
    tls::set(ptr::null());
    let mut out = Removed(ptr::null_mut());
    let _door = DOOR.lock();
    // SAFETY: this thread's desk, which nobody revokes while the door is held.
    unsafe {
        for i in 0..SLOTS {
            clear_slot(&mut (*d.slots.get())[i], &mut *d.large.get(), true, &mut out);
        }
        end_leave(&mut *d.large.get());
    }
    d.taken.store(false, Ordering::Release);
    // Still behind the door, so that a trim finds them: there is room for them where they go, since this thread had
    // leave to keep them, and so no call is made but in the rarest case.
    out.release();
}

/// Large blocks that were taken out of their heaps under the door, to be released after it is let go: that may take
/// calls.
pub(super) struct Removed(*mut Large);

impl Removed {
    pub(super) fn add(&mut self, heap: &Heap, large: *mut Large) {
        // SAFETY: a kept block's record is whole, and the caller's alone.
        unsafe {
            heap.take_out(large);
            (*large).next = self.0;
        }
        self.0 = large;
    }

    pub(super) fn release(self) {
        let mut p = self.0;
        while let Some(l) = NonNull::new(p) {
            // SAFETY: out of its heap, this thread's alone.
            let span = unsafe {
                p = l.as_ref().next;
                Large::destroy(l)
            };
            cache::put(span);
        }
    }
}

/// Gives back what leave a desk has that holds nothing.
pub(super) fn end_leave(keep: &mut Keep) {
    if keep.held == 0 {
        cache::end_leave(keep.leave);
        keep.leave = 0;
    }
}

/// Gives what is in a slot's tray back to the slabs, and ends the tray if `end` says so.
///
/// # Safety
/// The caller is the only one who can reach the desk, and holds the door.
pub(super) unsafe fn clear_slot(slot: &mut Slot, keep: &mut Keep, end: bool, out: &mut Removed) {
    // SAFETY: a tray in a slot is whole, and of a heap that is never freed.
    let Some(tray) = (unsafe { slot.tray.as_mut() }) else { return };
    // SAFETY: as above.
    let heap = unsafe { &*tray.heap };
    let mut batch = Batch::new();
    loop {
        let more = tray.take_all(&mut batch);
        heap.give_back_quietly(batch.as_slice());
        batch.clear();
        if !more {
            break;
        }
    }
    loop {
        let l = tray.take_large(keep);
        if l.is_null() {
            break;
        }
        out.add(heap, l);
    }
    if end {
        heap.trays.fetch_sub(1, Ordering::SeqCst);
        if let Some(t) = NonNull::new(slot.replace(ptr::null_mut())) {
            // SAFETY: out of its slot, nobody's any more.
            unsafe { meta::free(t.cast(), size_of::<Tray>(), Use::Tray) };
        }
    }
}

/// Empties a tray that is in no slot any more, and ends it. Its large blocks are not in the desk's count any more.
pub(super) fn discard(tray: *mut Tray) {
    // SAFETY: a tray out of its slot is the caller's alone.
    let Some(t) = (unsafe { tray.as_mut() }) else { return };
    // SAFETY: heaps are never freed.
    let heap = unsafe { &*t.heap };
    let mut batch = Batch::new();
    loop {
        let more = t.take_all(&mut batch);
        heap.give_back(batch.as_slice());
        batch.clear();
        if !more {
            break;
        }
    }
    let mut keep = Keep { held: usize::MAX, leave: 0 };
    loop {
        let l = t.take_large(&mut keep);
        if l.is_null() {
            break;
        }
        heap.release_large(l);
    }
    heap.trays.fetch_sub(1, Ordering::SeqCst);
    // SAFETY: nobody's any more.
    unsafe { meta::free(NonNull::from(t).cast(), size_of::<Tray>(), Use::Tray) };
}

pub(super) fn each_desk(mut f: impl FnMut(&'static Desk)) {
    let mut p = DESKS.load(Ordering::Acquire);
    // SAFETY: desks in the list are whole and never freed.
    while let Some(d) = unsafe { p.as_ref() } {
        f(d);
        p = d.next.load(Ordering::Acquire);
    }
}

/// Revokes every desk. The caller holds the door.
pub(super) fn revoke_all() {
    let my_desk = mine();
    let mut others = false;
    each_desk(|d| {
        d.bias.revoke();
        others |= d.taken.load(Ordering::Relaxed) && !ptr::eq(d, my_desk);
    });
    let everybody_out = || {
        if others {
            Bias::barrier();
        }
        each_desk(|d| d.bias.wait());
    };
    // From here on nobody puts a tray into a slot, which asks whether the desk is revoked ...
    everybody_out();
    // ... so the keys stay hidden, which is what the fast ways look at.
    each_desk(|d| d.show(false));
    everybody_out();
}

/// Gives what threads keep back to the slabs: of the heap with that key, or of all.
pub(super) fn empty_all(key: Option<u64>) {
    if DESKS.load(Ordering::Acquire).is_null() {
        return;
    }
    let mut out = Removed(ptr::null_mut());
    let door = DOOR.lock();
    revoke_all();
    each_desk(|d| {
        for i in 0..SLOTS {
            // SAFETY: every desk is revoked, and the door is held.
            unsafe {
                let slot = &mut (*d.slots.get())[i];
                if key.is_none_or(|k| k == slot.key()) {
                    clear_slot(slot, &mut *d.large.get(), key.is_some(), &mut out);
                }
            }
        }
        // SAFETY: as above.
        unsafe { end_leave(&mut *d.large.get()) };
    });
    each_desk(Desk::restore);
    drop(door);
    out.release();
}

/// Gives what the calling thread keeps back to the slabs.
pub(super) fn empty_mine() {
    // SAFETY: desks are never freed.
    let Some(d) = (unsafe { mine().as_ref() }) else { return };
    for i in 0..SLOTS {
        loop {
            let mut batch = Batch::new();
            d.enter();
            // SAFETY: inside the bias the slots are this thread's; one with a key has a whole tray.
            let (heap, more, large) = unsafe {
                let Some(tray) = (*d.slots.get())[i].tray.as_mut() else {
                    d.bias.leave();
                    break;
                };
                (&*tray.heap, tray.take_all(&mut batch), tray.take_large(&mut *d.large.get()))
            };
            d.bias.leave();
            heap.give_back(batch.as_slice());
            if !large.is_null() {
                heap.release_large(large);
            } else if !more {
                break;
            }
        }
    }
}

/// For the `prepare` fork handler, before the locks of heaps are taken: nobody is busy until [`release_all`].
pub(super) fn hold_all() {
    DOOR.raw_lock();
    revoke_all();
}

/// For the `parent` fork handler.
///
/// # Safety
/// After [`hold_all`] by this thread.
pub(super) unsafe fn release_all() {
    each_desk(Desk::restore);
    // SAFETY: the caller's promise.
    unsafe { DOOR.raw_unlock() };
}

/// For the `child` fork handler: what any thread kept goes back to its slab, by `give`, and the desks of the threads that
/// do not exist here are free.
///
/// # Safety
/// After [`hold_all`] by the thread this process was forked from, with the locks of heaps held.
pub(super) unsafe fn abandon_all(mut give: impl FnMut(&'static Heap, *mut u8)) {
    let my_desk = mine();
    each_desk(|d| {
        for i in 0..SLOTS {
            // SAFETY: nobody is busy, as the caller promises.
            let slot = unsafe { &mut (*d.slots.get())[i] };
            // SAFETY: a tray in a slot is whole, and of a heap that is never freed.
            let Some(tray) = (unsafe { slot.tray.as_mut() }) else { continue };
            // SAFETY: as above.
            let heap = unsafe { &*tray.heap };
            let mut batch = Batch::new();
            loop {
                let more = tray.take_all(&mut batch);
                batch.as_slice().iter().for_each(|e| give(heap, e.block));
                batch.clear();
                if !more {
                    break;
                }
            }
            // The tray is lost, a piece of 64 KiB: the lock of the records' memory is held.
            heap.trays.fetch_sub(1, Ordering::SeqCst);
            slot.replace(ptr::null_mut());
        }
        d.taken.store(ptr::eq(ptr::from_ref(d), my_desk), Ordering::Relaxed);
        d.bias.reset();
        // SAFETY: as above. Kept large blocks are known by their records, which say that nobody has them.
        unsafe { *d.large.get() = Keep { held: 0, leave: 0 } };
    });
    cache::no_leave();
    barrier::after_fork();
    // SAFETY: the caller's promise.
    unsafe { DOOR.raw_unlock() };
}
