//! What each thread keeps ready of each heap: the way on which almost every small block comes and goes.
//!
//! ```text
//!  thread ──> Desk ──slot of the heap's key──> Tray ──class──> Bin   ready: [ | | |x|x|x]  blocks to hand out
//!             bias                                                  freed: [ | | | | |x]  blocks taken back
//! ```
//!
//! A block is popped from `ready` and pushed to `freed`; when `ready` is empty and `freed` is not, they change
//! places, and only when that does not help is the heap asked, under its lock, for as many blocks as there is room
//! for (of what is open already: nothing is locked ahead). Two stacks instead of one, so that a pair does not wait for
//! its own last store. A stack holds 8 KiB of blocks at most, and at least two.
//!
//! Blocks of any thread are taken back: they go to their slabs in batches, whoever asked for them, so a thread that
//! only frees what another allocates fills its stack and empties it under one lock for many blocks; and a thread that
//! ends leaves nothing behind. An entry is the block and its mark, the requested size in the slab's record (0: free),
//! so nothing is written into the blocks, and a query from any thread sees what is live.
//!
//! A desk is guarded by a [`Bias`]: its thread enters without a read-modify-write; `trim`, a shortage, the end of an
//! allocator and `fork` revoke it and empty the trays. While busy a thread takes no lock and makes no call.

use super::bias::Bias;
use super::large::Large;
use super::slab::Slab;
use super::{Heap, LARGE_KEY, Record, class};
use crate::os::lock::Lock;
use crate::os::{barrier, page_size, thread, tls};
use crate::pages::meta::Use;
use crate::pages::{cache, map, meta};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU64, Ordering};

/// Heaps a thread can have trays for at once; a further one takes the place of another.
const SLOTS: usize = 32;
const SLOT_BYTES: usize = size_of::<Slot>();
/// The bits of a key that say in which slot it belongs, as an offset in bytes.
const SLOT_MASK: u64 = ((SLOTS - 1) * SLOT_BYTES) as u64;
/// The key of a slot without a tray. No heap has it, nor 0, which stands for "not kept by threads".
const NO_KEY: u64 = u64::MAX;

/// A key that no other heap had or will have.
pub(super) fn new_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    (n << 16) | ((n % SLOTS as u64) * SLOT_BYTES as u64)
}

/// A block that is free, and its mark.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    block: *mut u8,
    mark: *const AtomicU16,
}

/// Two stacks that grow upwards. Each top points to the topmost entry; at the bottom lies one whose block is null.
#[repr(C)]
struct Bin {
    ready: *mut Entry,
    freed: *mut Entry,
    freed_end: *mut Entry,
    ready_end: *mut Entry,
}

/// Most entries of a stack of class `c`.
const fn capacity(c: usize) -> usize {
    let n = 8192 / class::bytes(c);
    if n < 2 {
        2
    } else if n > MOST {
        MOST
    } else {
        n
    }
}

/// Most entries of any stack.
pub(super) const MOST: usize = 64;

/// Where the stacks of each class begin among the entries, and how many entries there are.
const LAYOUT: ([usize; class::COUNT], usize) = {
    let mut at = [0; class::COUNT];
    let mut n = 1; // entry 0 is the bottom of every stack that is not set up yet
    let mut c = 0;
    while c < class::COUNT {
        at[c] = n;
        n += 2 * (capacity(c) + 1);
        c += 1;
    }
    (at, n)
};

/// The stacks of one heap.
#[repr(C)]
struct Tray {
    bins: [Bin; class::COUNT],
    heap: *const Heap,
    key: u64,
    /// Freed blocks with pages of their own, each with its length in bytes; 0 where there is none.
    larges: [(usize, *mut Large); LARGES],
    /// Which of them was put there longest ago, more or less.
    oldest: usize,
    entries: [Entry; LAYOUT.1],
}

/// Large blocks a thread keeps of a heap.
const LARGES: usize = 4;

#[repr(C)]
struct Slot {
    /// The key of the tray's heap; NO_KEY where there is none, and while the desk is revoked.
    shown: AtomicU64,
    tray: *mut Tray,
}

impl Slot {
    /// The key of the tray's heap, also while the desk is revoked.
    fn key(&self) -> u64 {
        // SAFETY: a tray in a slot is whole.
        unsafe { self.tray.as_ref() }.map_or(NO_KEY, |t| t.key)
    }

    /// Puts another tray there, or none; gives the old one.
    fn replace(&mut self, tray: *mut Tray) -> *mut Tray {
        let old = core::mem::replace(&mut self.tray, tray);
        self.shown.store(self.key(), Ordering::Relaxed);
        old
    }
}

#[derive(Clone, Copy)]
struct Keep {
    held: usize,
    leave: usize,
}

/// What belongs to one thread at a time. Never freed; threads that end leave theirs to others.
#[repr(C, align(64))]
struct Desk {
    bias: Bias,
    slots: UnsafeCell<[Slot; SLOTS]>,
    /// Bytes of large blocks in its trays, and how many it has leave to keep.
    large: UnsafeCell<Keep>,
    taken: AtomicBool,
    next: AtomicPtr<Desk>,
}

// SAFETY: the slots, and the trays they lead to, are touched by whoever is inside `bias` only: the thread whose desk it
// is, or one that has revoked it.
unsafe impl Sync for Desk {}

static DESKS: AtomicPtr<Desk> = AtomicPtr::new(ptr::null_mut());
/// Held by who revokes desks, and for the moment in which a thread takes one. No lock of a heap is held by who waits.
static DOOR: Lock<()> = Lock::new(());

/// The calling thread's desk; null if it has none (yet, or any more).
#[inline(always)]
fn desk() -> *const Desk {
    tls::get().cast()
}

impl Desk {
    const fn new() -> Self {
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
    fn slot(&self, key: u64) -> *mut Slot {
        // The mask keeps the offset inside the array, on a multiple of the slot's size.
        self.slots.get().cast::<Slot>().wrapping_byte_add((key & SLOT_MASK) as usize)
    }

    /// Shows the keys of its trays, or none. Only who has revoked the desk calls this.
    fn show(&self, yes: bool) {
        for i in 0..SLOTS {
            // SAFETY: the address of a slot; `shown` is atomic, and `tray` is read only where the owner is out.
            unsafe {
                let slot = self.slots.get().cast::<Slot>().add(i);
                (*slot).shown.store(if yes { (*slot).key() } else { NO_KEY }, Ordering::Release);
            }
        }
    }

    /// Lets the owner in again.
    fn restore(&self) {
        self.show(true);
        self.bias.restore();
    }

    /// Enters, waiting for whoever has revoked the desk.
    fn enter(&self) {
        while !self.bias.enter() {
            drop(DOOR.lock());
        }
    }
}

/// A block of `size` bytes from the calling thread's tray of the heap with that key; null if there is none.
///
/// The alignment is 16.
#[inline(always)]
pub(crate) fn take(key: u64, size: usize) -> *mut u8 {
    let Some(class) = class::index_checked(size) else { return ptr::null_mut() };
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk().as_ref() }) else { return ptr::null_mut() };
    desk.bias.begin();
    let slot = desk.slot(key);
    // SAFETY: while the key is shown, inside the bias, the slot is this thread's, and its tray whole.
    let block = unsafe {
        if (*slot).shown.load(Ordering::Acquire) == key {
            (*(*slot).tray).pop_or_swap(class, size)
        } else {
            ptr::null_mut()
        }
    };
    desk.bias.leave();
    block
}

/// As [`take`], for a block with pages of its own: only one of just as many pages will do.
#[inline(always)]
pub(crate) fn take_large(key: u64, size: usize) -> *mut u8 {
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk().as_ref() }) else { return ptr::null_mut() };
    if size > isize::MAX as usize {
        return ptr::null_mut();
    }
    desk.bias.begin();
    let slot = desk.slot(key);
    // SAFETY: as in `take`.
    let block = unsafe {
        if (*slot).shown.load(Ordering::Acquire) == key {
            (*(*slot).tray).pop_large(&mut *desk.large.get(), size)
        } else {
            ptr::null_mut()
        }
    };
    desk.bias.leave();
    block
}

/// Takes a live block back into the calling thread's tray. False if that is not possible; nothing was done then.
///
/// # Safety
/// `block` is live, and the caller gives it up if the answer is true.
#[inline(always)]
pub(crate) unsafe fn give(block: *mut u8) -> bool {
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk().as_ref() }) else { return false };
    // SAFETY: a live block has a record, which begins with a Record.
    let record = unsafe { map::get_known(block.addr()).cast::<Record>() };
    // SAFETY: as above, in memory that is never unmapped.
    let key = unsafe { (*record).key.load(Ordering::Relaxed) };
    desk.bias.begin();
    let slot = desk.slot(key);
    // SAFETY: as in `take`; a record with a key that has a tray is a Slab, whole as long as a block of it is live.
    let done = unsafe {
        let shown = (*slot).shown.load(Ordering::Acquire);
        if shown == key {
            (*(*slot).tray).push(record.cast(), block)
        } else if shown ^ key == LARGE_KEY {
            // Such a key is a Large's.
            (*(*slot).tray).push_large(&mut *desk.large.get(), record.cast())
        } else {
            false
        }
    };
    desk.bias.leave();
    done
}

impl Tray {
    /// # Safety
    /// The caller is inside the bias of the tray's desk.
    #[inline(always)]
    unsafe fn pop(&mut self, class: usize, size: usize) -> *mut u8 {
        // SAFETY: a class is below COUNT.
        let bin = unsafe { self.bins.get_unchecked_mut(class) };
        // SAFETY: a top points to an entry; the one at the bottom has no block and is not popped.
        unsafe {
            let e = *bin.ready;
            if !e.block.is_null() {
                bin.ready = bin.ready.sub(1);
                // SAFETY (cont.): the mark of a block that is free and ours; records are never unmapped.
                (*e.mark).store(size as u16, Ordering::Relaxed);
            }
            e.block
        }
    }

    /// # Safety
    /// As [`pop`](Self::pop).
    #[inline(always)]
    unsafe fn pop_or_swap(&mut self, class: usize, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { self.pop(class, size) };
        if block.is_null() {
            // SAFETY: as above.
            return unsafe { self.swap_and_pop(class, size) };
        }
        block
    }

    /// # Safety
    /// As [`pop`](Self::pop).
    #[cold]
    #[inline(never)]
    unsafe fn swap_and_pop(&mut self, class: usize, size: usize) -> *mut u8 {
        self.swap(class);
        // SAFETY: the caller's promise.
        unsafe { self.pop(class, size) }
    }

    /// # Safety
    /// As [`pop`](Self::pop); `slab` is whole, of this tray's heap, and `block` is a block of it.
    #[inline(always)]
    unsafe fn push(&mut self, slab: *const Slab, block: *mut u8) -> bool {
        // SAFETY: what is read of the slab does not change while it has blocks.
        let (class, mark) = unsafe { ((*slab).class, (*slab).mark_at(block.addr())) };
        // SAFETY: the mark of a block; a class is below COUNT.
        let (bin, live) = unsafe { (self.bins.get_unchecked_mut(class), (*mark).load(Ordering::Relaxed)) };
        if bin.freed == bin.freed_end || live == 0 {
            return false;
        }
        // SAFETY: the stack has room for one more entry.
        unsafe {
            (*mark).store(0, Ordering::Relaxed);
            bin.freed = bin.freed.add(1);
            *bin.freed = Entry { block, mark };
        }
        true
    }

    /// # Safety
    /// As [`pop`](Self::pop).
    #[inline(always)]
    unsafe fn pop_large(&mut self, keep: &mut Keep, size: usize) -> *mut u8 {
        let page = page_size();
        let len = (size + (page - 1)) & !(page - 1);
        for (have, large) in &mut self.larges {
            if *have == len {
                *have = 0;
                keep.held -= len;
                // SAFETY: a kept block's record is whole, and this thread's alone.
                return ptr::with_exposed_provenance_mut(unsafe { (**large).wake(size) });
            }
        }
        ptr::null_mut()
    }

    /// # Safety
    /// As [`pop`](Self::pop); `large` is a live block of the tray's heap that the caller gives up if this is true.
    #[inline(always)]
    unsafe fn push_large(&mut self, keep: &mut Keep, large: *mut Large) -> bool {
        // SAFETY: the caller's promise.
        let l = unsafe { &mut *large };
        let len = l.usable.load(Ordering::Relaxed);
        if keep.held + len > keep.leave || l.requested.load(Ordering::Relaxed) == 0 || !l.can_be_kept() {
            return false;
        }
        for slot in &mut self.larges {
            if slot.0 == 0 {
                *slot = (len, large);
                keep.held += len;
                l.sleep();
                return true;
            }
        }
        false
    }

    /// Takes out a large block, whichever is there.
    fn take_large(&mut self, keep: &mut Keep) -> *mut Large {
        for slot in &mut self.larges {
            if slot.0 != 0 {
                keep.held -= slot.0;
                slot.0 = 0;
                return slot.1;
            }
        }
        ptr::null_mut()
    }

    /// Sets the stacks of a class up.
    fn prepare(&mut self, class: usize) {
        let bottom: *mut Entry = &mut self.entries[0];
        if self.bins[class].ready_end != bottom {
            return;
        }
        let n = capacity(class);
        let first = LAYOUT.0[class];
        let base = self.entries.as_mut_ptr().wrapping_add(first);
        let second = base.wrapping_add(n + 1);
        let none = Entry { block: ptr::null_mut(), mark: ptr::null() };
        self.entries[first] = none;
        self.entries[first + n + 1] = none;
        self.bins[class] = Bin {
            ready: base,
            ready_end: base.wrapping_add(n),
            freed: second,
            freed_end: second.wrapping_add(n),
        };
    }

    fn swap(&mut self, class: usize) {
        let b = &mut self.bins[class];
        core::mem::swap(&mut b.ready, &mut b.freed);
        core::mem::swap(&mut b.ready_end, &mut b.freed_end);
    }

    /// Takes the lower half of `freed` out: what was freed longest ago.
    fn take_half(&mut self, class: usize, out: &mut Batch) {
        let n = capacity(class);
        let b = &mut self.bins[class];
        let bottom = b.freed_end.wrapping_sub(n);
        // SAFETY: `freed` has n entries above its bottom, since it is full; both ends are in the tray.
        unsafe {
            let half = n.div_ceil(2);
            for i in 1..=half {
                out.push((*bottom.add(i)).block);
            }
            ptr::copy(bottom.add(1 + half), bottom.add(1), n - half);
            b.freed = bottom.add(n - half);
        }
    }

    /// Takes entries out until there are none (false) or `out` is full (true).
    fn take_all(&mut self, out: &mut Batch) -> bool {
        for b in &mut self.bins {
            for top in [&mut b.ready, &mut b.freed] {
                // SAFETY: a top points to an entry, the bottom one of which has no block.
                unsafe {
                    while !(**top).block.is_null() {
                        if out.is_full() {
                            return true;
                        }
                        out.push((**top).block);
                        *top = top.sub(1);
                    }
                }
            }
        }
        false
    }
}

/// Blocks on their way between a tray and their heap.
pub(super) struct Batch {
    blocks: [*mut u8; MOST],
    n: usize,
}

impl Batch {
    pub(super) const fn new() -> Self {
        Self { blocks: [ptr::null_mut(); MOST], n: 0 }
    }

    pub(super) fn push(&mut self, block: *mut u8) {
        self.blocks[self.n] = block;
        self.n += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.n == MOST
    }

    pub(super) fn as_slice(&self) -> &[*mut u8] {
        &self.blocks[..self.n]
    }

    fn clear(&mut self) {
        self.n = 0;
    }
}

/// The calling thread's desk, if it can have one.
fn mine() -> Option<&'static Desk> {
    // SAFETY: desks are never freed.
    unsafe { desk().as_ref() }.or_else(enlist)
}

#[cold]
fn enlist() -> Option<&'static Desk> {
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
fn end() {
    // SAFETY: desks are never freed.
    let Some(d) = (unsafe { desk().as_ref() }) else { return };
    tls::set(ptr::null());
    let mut out = Removed(ptr::null_mut());
    {
        let _door = DOOR.lock();
        // SAFETY: this thread's desk, which nobody revokes while the door is held.
        unsafe {
            for i in 0..SLOTS {
                clear_slot(&mut (*d.slots.get())[i], &mut *d.large.get(), true, &mut out);
            }
            end_leave(&mut *d.large.get());
        }
        d.taken.store(false, Ordering::Release);
    }
    out.release();
}

/// Large blocks that were taken out of their heaps under the door, to be released after it is let go: that may take
/// calls.
struct Removed(*mut Large);

impl Removed {
    fn add(&mut self, heap: &Heap, large: *mut Large) {
        // SAFETY: a kept block's record is whole, and the caller's alone.
        unsafe {
            heap.take_out(large);
            (*large).next = self.0;
        }
        self.0 = large;
    }

    fn release(self) {
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
fn end_leave(keep: &mut Keep) {
    if keep.held == 0 {
        cache::end_leave(keep.leave);
        keep.leave = 0;
    }
}

/// Gives what is in a slot's tray back to the slabs, and ends the tray if `end` says so.
///
/// # Safety
/// The caller is the only one who can reach the desk, and holds the door.
unsafe fn clear_slot(slot: &mut Slot, keep: &mut Keep, end: bool, out: &mut Removed) {
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
fn discard(tray: *mut Tray) {
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

impl Heap {
    /// Runs `f` with the calling thread's tray for this heap, which is made if need be. `None` if it can have none, or not
    /// now: nobody waits for a trim, the heap itself serves meanwhile.
    ///
    /// `f` runs inside the bias: no lock, no call.
    fn with_tray<R>(&'static self, f: impl FnOnce(&mut Keep, &mut Tray) -> R) -> Option<R> {
        let key = self.key();
        if key == 0 {
            return None;
        }
        let desk = mine()?;
        if !desk.bias.enter() {
            return None;
        }
        let slot = desk.slot(key);
        // SAFETY: inside the bias until it is left.
        unsafe {
            if (*slot).shown.load(Ordering::Acquire) == key {
                let r = f(&mut *desk.large.get(), &mut *(*slot).tray);
                desk.bias.leave();
                return Some(r);
            }
        }
        desk.bias.leave();
        self.settle(); // in the child of a fork, slabs whose lock is lost must say so first
        let tray = self.new_tray(key)?;
        if !desk.bias.enter() {
            discard(tray);
            return None;
        }
        // SAFETY: as above. The slot may hold another heap's tray, whose place this one takes.
        let (r, old) = unsafe {
            let old = (*slot).replace(tray);
            if let Some(o) = old.as_mut() {
                (*desk.large.get()).held -= o.larges.iter().map(|l| l.0).sum::<usize>();
            }
            (f(&mut *desk.large.get(), &mut *tray), old)
        };
        // Whoever closes a heap first says so and then empties all desks: either it finds this tray or this finds it.
        if self.key() != key {
            // SAFETY: as above.
            let tray = unsafe {
                (*desk.large.get()).held -= (*tray).larges.iter().map(|l| l.0).sum::<usize>();
                (*slot).replace(ptr::null_mut())
            };
            desk.bias.leave();
            discard(tray);
        } else {
            desk.bias.leave();
        }
        discard(old);
        Some(r)
    }

    fn new_tray(&self, key: u64) -> Option<*mut Tray> {
        let t = meta::alloc(size_of::<Tray>(), Use::Tray).ok()?.cast::<Tray>().as_ptr();
        self.trays.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the piece is large and aligned enough and nobody else's; every bin is set before it is a Tray. The
        // other entries are written before they are read.
        unsafe {
            let bottom = (&raw mut (*t).entries).cast::<Entry>();
            bottom.write(Entry { block: ptr::null_mut(), mark: ptr::null() });
            (*t).heap = self;
            (*t).key = key;
            (*t).larges = [(0, ptr::null_mut()); LARGES];
            (*t).oldest = 0;
            for c in 0..class::COUNT {
                let bin = (&raw mut (*t).bins).cast::<Bin>().add(c);
                bin.write(Bin { ready: bottom, freed: bottom, freed_end: bottom, ready_end: bottom });
            }
        }
        Some(t)
    }

    /// A block from the calling thread's tray, also one that it freed itself; if there is none, how many to draw.
    pub(super) fn take_local(&'static self, class: usize, size: usize) -> Result<NonNull<u8>, usize> {
        let p = self.with_tray(|_, t| {
            t.prepare(class);
            // SAFETY: inside the bias.
            unsafe { t.pop_or_swap(class, size) }
        });
        let most = if p.is_none() { 1 } else { capacity(class) };
        p.and_then(NonNull::new).ok_or(most)
    }

    /// Puts blocks that were taken from their slabs, and are free, into the calling thread's tray; back to the slabs with
    /// those that do not fit.
    pub(super) fn stock(&'static self, class: usize, blocks: &[*mut u8]) {
        let put = self.with_tray(|_, t| {
            t.prepare(class);
            let b = &mut t.bins[class];
            let mut n = 0;
            // The last ones first, so that the lowest is handed out next.
            for &block in blocks.iter().rev() {
                if b.ready == b.ready_end {
                    break;
                }
                let slab = map::get(block.addr()).cast::<Slab>();
                // SAFETY: a block's slab is whole; the stack has room for one more entry.
                unsafe {
                    b.ready = b.ready.add(1);
                    *b.ready = Entry { block, mark: (*slab).mark_at(block.addr()) };
                }
                n += 1;
            }
            n
        });
        let rest = blocks.len() - put.unwrap_or(0);
        if rest != 0 {
            self.give_back(&blocks[..rest]);
        }
    }

    /// Takes back a live block of a slab of this heap; its mark says its size until here.
    pub(super) fn free_small(&'static self, slab: *const Slab, block: *mut u8) {
        // SAFETY: the slab of a live block is whole, and the mark its own.
        let mark = unsafe { &*(*slab).mark_at(block.addr()) };
        if mark.swap(0, Ordering::Relaxed) == 0 {
            return; // freed twice at once by two threads: the first one did it
        }
        // SAFETY: as above.
        let kept = unsafe { (*slab).record.key.load(Ordering::Relaxed) } == self.record_key();
        let mut out = Batch::new();
        let pushed = kept
            && self
                .with_tray(|_, t| {
                    // SAFETY: as above.
                    let class = unsafe { (*slab).class };
                    t.prepare(class);
                    let full = t.bins[class].freed == t.bins[class].freed_end;
                    // SAFETY: a top points to an entry.
                    if full && unsafe { (*t.bins[class].ready).block.is_null() } {
                        t.swap(class);
                    } else if full {
                        t.take_half(class, &mut out);
                    }
                    let b = &mut t.bins[class];
                    // SAFETY: there is room for one more entry now.
                    unsafe {
                        b.freed = b.freed.add(1);
                        *b.freed = Entry { block, mark };
                    }
                })
                .is_some();
        if !pushed {
            out.push(block);
        }
        if !out.as_slice().is_empty() {
            self.give_back(out.as_slice());
        }
    }

    /// A block with pages of its own from the calling thread's tray.
    pub(super) fn take_large_local(&'static self, size: usize) -> Option<NonNull<u8>> {
        // SAFETY: inside the bias.
        let p = self.with_tray(|keep, t| unsafe { t.pop_large(keep, size) })?;
        NonNull::new(p)
    }

    /// Keeps a freed block with pages of its own in the calling thread's tray. False if that is not possible.
    pub(super) fn keep_large_local(&'static self, large: *mut Large) -> bool {
        // SAFETY: the record of a live block is whole.
        let l = unsafe { &*large };
        let key = l.record.key.load(Ordering::Relaxed);
        if key == 0 || key != self.large_key() || l.usable.load(Ordering::Relaxed) > cache::limit() {
            return false;
        }
        let mut evicted: *mut Large = ptr::null_mut();
        let kept = self.with_tray(|keep, t| {
            // SAFETY: inside the bias; a live block of this heap.
            if unsafe { t.push_large(keep, large) } {
                return true;
            }
            let len = l.usable.load(Ordering::Relaxed);
            let more = (keep.held + len).saturating_sub(keep.leave);
            if more != 0 {
                if !cache::ask_leave(more) {
                    return false;
                }
                keep.leave += more;
            }
            if t.larges.iter().all(|s| s.0 != 0) {
                let slot = &mut t.larges[t.oldest];
                t.oldest = (t.oldest + 1) % LARGES;
                keep.held -= slot.0;
                slot.0 = 0;
                evicted = slot.1;
            }
            // SAFETY: as above.
            unsafe { t.push_large(keep, large) }
        });
        if !evicted.is_null() {
            self.release_large(evicted);
        }
        kept == Some(true)
    }

    /// No thread keeps blocks of this heap from now on: what they have goes back to the slabs.
    pub(crate) fn close(&'static self) {
        let key = self.swap_key(0);
        if key != 0 && self.trays.load(Ordering::SeqCst) != 0 {
            empty_desks(Some(key));
        }
    }
}

fn each_desk(mut f: impl FnMut(&'static Desk)) {
    let mut p = DESKS.load(Ordering::Acquire);
    // SAFETY: desks in the list are whole and never freed.
    while let Some(d) = unsafe { p.as_ref() } {
        f(d);
        p = d.next.load(Ordering::Acquire);
    }
}

/// Revokes every desk. The caller holds the door.
fn revoke_all() {
    let mine = desk();
    let mut others = false;
    each_desk(|d| {
        d.bias.revoke();
        others |= d.taken.load(Ordering::Relaxed) && !ptr::eq(d, mine);
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
pub(super) fn empty_desks(key: Option<u64>) {
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
    let Some(d) = (unsafe { desk().as_ref() }) else { return };
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
    let mine = desk();
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
                batch.as_slice().iter().for_each(|&b| give(heap, b));
                batch.clear();
                if !more {
                    break;
                }
            }
            // The tray is lost, a piece of 64 KiB: the lock of the records' memory is held.
            heap.trays.fetch_sub(1, Ordering::SeqCst);
            slot.replace(ptr::null_mut());
        }
        d.taken.store(ptr::eq(ptr::from_ref(d), mine), Ordering::Relaxed);
        d.bias.reset();
        // SAFETY: as above. Kept large blocks are known by their records, which say that nobody has them.
        unsafe { *d.large.get() = Keep { held: 0, leave: 0 } };
    });
    cache::no_leave();
    barrier::after_fork();
    // SAFETY: the caller's promise.
    unsafe { DOOR.raw_unlock() };
}
