//! A tray: the small blocks, class by class, and the few large ones that a thread keeps of one heap.
//!
//! ```text
//!   bin of a class     ready: | - |x|x|x|      the top is handed out; "-" is the bottom, which has no block
//!                      freed: | - |x|x|x|x|    blocks that came back; full at 32 KiB of them, at 4 or at 64
//! ```
//!
//! An entry is a block and its mark. Everything here belongs to whoever is inside the bias of the tray's desk.

use super::large::Large;
use super::slab::Slab;
use super::{Heap, class};
use crate::os::page_size;
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::atomic::{AtomicU16, Ordering};

/// A block that is free, and its mark.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Entry {
    pub(super) block: *mut u8,
    pub(super) mark: *const AtomicU16,
}

/// Two stacks that grow upwards. Each top points to the topmost entry; at the bottom lies one whose block is null.
#[repr(C)]
pub(super) struct Bin {
    pub(super) ready: *mut Entry,
    pub(super) freed: *mut Entry,
    pub(super) freed_end: *mut Entry,
    pub(super) ready_end: *mut Entry,
}

/// Most entries of a stack of class `c`.
pub(super) const fn capacity(c: usize) -> usize {
    let n = KEPT / class::bytes(c);
    if n < LEAST {
        LEAST
    } else if n > MOST {
        MOST
    } else {
        n
    }
}

/// Bytes of blocks that a stack is to hold, and how many at least.
const KEPT: usize = 32 << 10;
const LEAST: usize = 4;
/// Most entries of any stack.
pub(super) const MOST: usize = 64;

/// Where the stacks of each class begin among the entries, and how many entries there are.
pub(super) const LAYOUT: ([usize; class::COUNT], usize) = {
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
pub(super) struct Tray {
    pub(super) bins: [Bin; class::COUNT],
    pub(super) heap: *const Heap,
    pub(super) key: u64,
    /// Freed blocks with pages of their own, each with its length in bytes; 0 where there is none.
    pub(super) larges: [(usize, *mut Large); LARGES],
    /// Which of them was put there longest ago, more or less.
    pub(super) oldest: usize,
    pub(super) entries: [Entry; LAYOUT.1],
}

/// Large blocks a thread keeps of a heap.
pub(super) const LARGES: usize = 4;

#[derive(Clone, Copy)]
pub(super) struct Keep {
    pub(super) held: usize,
    pub(super) leave: usize,
}

impl Tray {
    /// Makes an empty tray.
    ///
    /// # Safety
    /// `t` has room for one, and is nobody else's.
    pub(super) unsafe fn write(t: *mut Tray, heap: *const Heap, key: u64) {
        // SAFETY: the caller's promise. Every field is written but the entries, which are written before they are read.
        unsafe {
            let bottom = (&raw mut (*t).entries).cast::<Entry>();
            bottom.write(Entry { block: ptr::null_mut(), mark: ptr::null() });
            (*t).heap = heap;
            (*t).key = key;
            (*t).larges = [(0, ptr::null_mut()); LARGES];
            (*t).oldest = 0;
            for c in 0..class::COUNT {
                let bin = (&raw mut (*t).bins).cast::<Bin>().add(c);
                bin.write(Bin { ready: bottom, freed: bottom, freed_end: bottom, ready_end: bottom });
            }
        }
    }

    /// Adds a block to those that are ready. False if there is no room.
    pub(super) fn add_ready(&mut self, class: usize, e: Entry) -> bool {
        let b = &mut self.bins[class];
        if b.ready == b.ready_end {
            return false;
        }
        // SAFETY: the stack has room for one more entry.
        unsafe {
            b.ready = b.ready.add(1);
            *b.ready = e;
        }
        true
    }

    /// Adds a block to those that came back; others that make room for it go to `out`.
    pub(super) fn add_freed(&mut self, class: usize, e: Entry, out: &mut Batch) {
        self.prepare(class);
        let full = self.bins[class].freed == self.bins[class].freed_end;
        // SAFETY: a top points to an entry.
        if full && unsafe { (*self.bins[class].ready).block.is_null() } {
            self.swap(class);
        } else if full {
            self.take_half(class, out);
        }
        let b = &mut self.bins[class];
        // SAFETY: there is room for one more entry now.
        unsafe {
            b.freed = b.freed.add(1);
            *b.freed = e;
        }
    }

    /// Bytes of its large blocks.
    pub(super) fn large_bytes(&self) -> usize {
        self.larges.iter().map(|l| l.0).sum()
    }

    /// If there is no room for one more large block, takes out an old one.
    pub(super) fn evict_large(&mut self, keep: &mut Keep) -> *mut Large {
        if self.larges.iter().any(|s| s.0 == 0) {
            return ptr::null_mut();
        }
        let slot = &mut self.larges[self.oldest];
        self.oldest = (self.oldest + 1) % LARGES;
        keep.held -= slot.0;
        slot.0 = 0;
        slot.1
    }

    /// # Safety
    /// The caller is inside the bias of the tray's desk.
    #[inline(always)]
    pub(super) unsafe fn pop(&mut self, class: usize, size: usize) -> *mut u8 {
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
    pub(super) unsafe fn pop_or_swap(&mut self, class: usize, size: usize) -> *mut u8 {
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
    pub(super) unsafe fn swap_and_pop(&mut self, class: usize, size: usize) -> *mut u8 {
        self.swap(class);
        // SAFETY: the caller's promise.
        unsafe { self.pop(class, size) }
    }

    /// # Safety
    /// As [`pop`](Self::pop); `slab` is whole, of this tray's heap, and `block` is a block of it.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, slab: *const Slab, block: *mut u8) -> bool {
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
    pub(super) unsafe fn pop_large(&mut self, keep: &mut Keep, size: usize) -> *mut u8 {
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
    pub(super) unsafe fn push_large(&mut self, keep: &mut Keep, large: *mut Large) -> bool {
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
    pub(super) fn take_large(&mut self, keep: &mut Keep) -> *mut Large {
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
    pub(super) fn prepare(&mut self, class: usize) {
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

    pub(super) fn swap(&mut self, class: usize) {
        let b = &mut self.bins[class];
        core::mem::swap(&mut b.ready, &mut b.freed);
        core::mem::swap(&mut b.ready_end, &mut b.freed_end);
    }

    /// Takes the lower half of `freed` out: what was freed longest ago.
    pub(super) fn take_half(&mut self, class: usize, out: &mut Batch) {
        let n = capacity(class);
        let b = &mut self.bins[class];
        let bottom = b.freed_end.wrapping_sub(n);
        // SAFETY: `freed` has n entries above its bottom, since it is full; both ends are in the tray.
        unsafe {
            let half = n.div_ceil(2);
            for i in 1..=half {
                out.push(*bottom.add(i));
            }
            ptr::copy(bottom.add(1 + half), bottom.add(1), n - half);
            b.freed = bottom.add(n - half);
        }
    }

    /// Takes entries out until there are none (false) or `out` is full (true).
    pub(super) fn take_all(&mut self, out: &mut Batch) -> bool {
        for b in &mut self.bins {
            for top in [&mut b.ready, &mut b.freed] {
                // SAFETY: a top points to an entry, the bottom one of which has no block.
                unsafe {
                    while !(**top).block.is_null() {
                        if out.is_full() {
                            return true;
                        }
                        out.push(**top);
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
    entries: [MaybeUninit<Entry>; MOST],
    n: usize,
}

impl Batch {
    pub(super) const fn new() -> Self {
        Self { entries: [const { MaybeUninit::uninit() }; MOST], n: 0 }
    }

    pub(super) fn push(&mut self, e: Entry) {
        self.entries[self.n].write(e);
        self.n += 1;
    }

    pub(super) fn is_full(&self) -> bool {
        self.n == MOST
    }

    pub(super) fn is_empty(&self) -> bool {
        self.n == 0
    }

    pub(super) fn as_slice(&self) -> &[Entry] {
        // SAFETY: the first n entries have been written.
        unsafe { core::slice::from_raw_parts(self.entries.as_ptr().cast(), self.n) }
    }

    pub(super) fn clear(&mut self) {
        self.n = 0;
    }
}
