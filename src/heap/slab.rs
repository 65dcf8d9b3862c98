//! Slabs: runs of blocks of one class, opened and locked a step at a time.
//!
//! ```text
//!  chunk (1 MiB reserved, no access)
//!  | slab 0: blocks, locked ...|--- not opened ---| slab 1 ... | ... |
//!                              ^ opened: grows by steps, so a first small block locks one page
//!
//!  Slab record (in `pages::meta`):  | Slab | free bitmap | requested size of each block |
//! ```
//!
//! A block's requested size, its mark, is 0 while it is free: that is how a double free and a wild pointer are seen. All
//! of a slab but the marks is touched under its heap's lock only. A block that a thread keeps ready is taken as far as
//! the bitmap goes, and not live.

use super::tray::Entry;
use super::{Heap, Kind, Record, class};
use crate::os::page_size;
use crate::pages::{PagesError, Span, meta};
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Bytes reserved for a chunk.
pub(super) const CHUNK: usize = 1 << 20;
/// Most slabs a chunk has.
pub(super) const CHUNK_SLABS: usize = 16;

/// Bytes of a slab of blocks of this size.
pub(super) fn slab_bytes(block: usize) -> usize {
    if block <= 2048 { CHUNK / CHUNK_SLABS } else { CHUNK / 4 }
}

/// A reservation divided into slabs of one size.
pub(super) struct Chunk {
    pub(super) span: Span,
    pub(super) slab_bytes: usize,
    /// Slots taken; a slot may be taken while its slab is being set up or closed.
    pub(super) taken: u32,
    pub(super) slabs: [*mut Slab; CHUNK_SLABS],
    /// The parent's, in a child that has no such pages: not to be used for new slabs.
    pub(super) stale: bool,
    pub(super) next: *mut Chunk,
}

impl Chunk {
    pub(super) fn slots(&self) -> usize {
        CHUNK / self.slab_bytes
    }

    pub(super) fn free_slot(&self) -> Option<usize> {
        let slot = (!self.taken).trailing_zeros() as usize;
        (!self.stale && slot < self.slots()).then_some(slot)
    }

    pub(super) fn slab_base(&self, slot: usize) -> usize {
        self.span.start() + slot * self.slab_bytes
    }
}

/// What a slab is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// In its class's list: it has a free block.
    Listed,
    /// Every open block is taken.
    Full,
    /// It has no block, and is open and in the list of such.
    Idle,
    /// A thread is opening more of it, outside the lock.
    Opening,
    /// It has no block left, and a thread is giving it back, outside the lock.
    Closing,
    /// Its lock was lost in a fork (or its pages were): blocks can be freed, none is handed out.
    Stale,
}

#[repr(C)]
pub(super) struct Slab {
    pub(super) record: Record,
    pub(super) base: usize,
    pub(super) block: usize,
    /// 2^32 / block, rounded up: division by multiplication, exact for offsets below 2^18.
    reciprocal: u64,
    pub(super) class: usize,
    pub(super) chunk: *mut Chunk,
    pub(super) slot: usize,
    /// Bytes opened, from `base`.
    pub(super) opened: usize,
    /// Blocks that lie wholly in the opened part, and that the whole slab can hold.
    pub(super) ready: usize,
    pub(super) total: usize,
    pub(super) used: usize,
    pub(super) state: State,
    pub(super) epoch: u32,
    pub(super) prev: *mut Slab,
    pub(super) next: *mut Slab,
    /// In the chain of its class's slabs that can be opened further.
    pub(super) growing: bool,
    pub(super) grow_next: *mut Slab,
    /// Bit w: word w of the bitmap has a bit set.
    summary: u64,
    bitmap: *mut u64,
    requested: *const AtomicU16,
}

fn record_bytes(total: usize) -> (usize, usize, usize) {
    let words = size_of::<Slab>().next_multiple_of(8);
    let sizes = words + total.div_ceil(64) * 8;
    (words, sizes, sizes + total * 2)
}

impl Slab {
    /// A record for a slab of `class` at `base`; nothing is opened yet.
    pub(super) fn create(
        heap: *const Heap,
        key: u64,
        class: usize,
        chunk: *mut Chunk,
        slot: usize,
        base: usize,
        epoch: u32,
    ) -> Result<NonNull<Slab>, PagesError> {
        let block = class::bytes(class);
        let total = slab_bytes(block) / block;
        let (words, sizes, all) = record_bytes(total);
        let p = meta::alloc(all, meta::Use::Slab)?;
        let slab = p.cast::<Slab>();
        // SAFETY: the piece has `all` bytes, is aligned to at least 64 and belongs to nobody else; bitmap and
        // sizes lie behind the Slab as `record_bytes` laid them out, and zero is a valid state of both. A record
        // that is used again was left by a slab without blocks, whose sizes are zero but whose bitmap is not.
        unsafe {
            ptr::write_bytes(p.add(words).as_ptr(), 0, all - words);
            slab.write(Slab {
                record: Record { key: AtomicU64::new(key), kind: Kind::Slab, heap },
                base,
                block,
                reciprocal: (1u64 << 32).div_ceil(block as u64),
                class,
                chunk,
                slot,
                opened: 0,
                ready: 0,
                total,
                used: 0,
                state: State::Opening,
                epoch,
                prev: ptr::null_mut(),
                next: ptr::null_mut(),
                growing: false,
                grow_next: ptr::null_mut(),
                summary: 0,
                bitmap: p.add(words).cast::<u64>().as_ptr(),
                requested: p.add(sizes).cast::<AtomicU16>().as_ptr(),
            });
        }
        Ok(slab)
    }

    /// # Safety
    /// The slab came from [`create`](Self::create) and is in no list and no map any more.
    pub(super) unsafe fn destroy(slab: NonNull<Slab>) {
        // SAFETY: the record is whole until here, and was allocated with this size.
        unsafe {
            let all = record_bytes(slab.as_ref().total).2;
            meta::free(slab.cast(), all, meta::Use::Slab);
        }
    }

    /// Bytes to open next: enough for one more block, and about an eighth of what the class has.
    pub(super) fn next_step(&self, class_opened: usize) -> usize {
        let page = page_size();
        let need = (self.ready + 1) * self.block - self.opened.min((self.ready + 1) * self.block);
        let step = need.next_multiple_of(page).max((class_opened / 8).min(64 << 10) / page * page);
        // Not beyond the last block: the rest of the slab holds none.
        let end = (self.total * self.block).next_multiple_of(page);
        step.min(end - self.opened)
    }

    /// Takes note of `bytes` more that are open.
    pub(super) fn add_opened(&mut self, bytes: usize) {
        self.opened += bytes;
        let ready = (self.opened / self.block).min(self.total);
        for i in self.ready..ready {
            self.set_free(i);
        }
        self.ready = ready;
    }

    fn set_free(&mut self, i: usize) {
        // SAFETY: i < total, and the bitmap has a bit for each of them.
        unsafe { *self.bitmap.add(i / 64) |= 1 << (i % 64) };
        self.summary |= 1 << (i / 64);
    }

    pub(super) fn has_free(&self) -> bool {
        self.summary != 0
    }

    pub(super) fn can_open(&self) -> bool {
        self.ready < self.total
    }

    /// Takes the lowest free block, with its mark, which stays 0.
    pub(super) fn take(&mut self) -> Option<Entry> {
        if self.summary == 0 {
            return None;
        }
        let w = self.summary.trailing_zeros() as usize;
        // SAFETY: a set summary bit stands for a word of the bitmap.
        let word = unsafe { &mut *self.bitmap.add(w) };
        let i = w * 64 + word.trailing_zeros() as usize;
        *word &= *word - 1;
        if *word == 0 {
            self.summary &= !(1 << w);
        }
        self.used += 1;
        let block = ptr::with_exposed_provenance_mut(self.base + i * self.block);
        // SAFETY: there are as many marks as blocks.
        Some(Entry { block, mark: unsafe { self.requested.add(i) } })
    }

    /// Gives the block at `addr`, whose mark is 0, back.
    pub(super) fn give(&mut self, addr: usize) {
        let i = self.index(addr);
        debug_assert!(i < self.total && self.size_of(i).load(Ordering::Relaxed) == 0);
        self.used -= 1;
        self.set_free(i);
    }

    /// The index of the block that `addr` lies in.
    #[inline(always)]
    fn index(&self, addr: usize) -> usize {
        ((addr.wrapping_sub(self.base) as u64).wrapping_mul(self.reciprocal) >> 32) as usize
    }

    /// The mark of the block at `addr`: its requested size, 0 while it is free.
    ///
    /// # Safety
    /// A block of this slab begins at `addr`.
    #[inline(always)]
    pub(super) unsafe fn mark_at(&self, addr: usize) -> *const AtomicU16 {
        // SAFETY: there are as many marks behind the record as there are blocks.
        unsafe { self.requested.add(self.index(addr)) }
    }

    /// Blocks that are live, and the bytes asked for in them.
    pub(super) fn live(&self) -> (usize, usize) {
        let sizes = (0..self.ready).map(|i| self.size_of(i).load(Ordering::Relaxed) as usize);
        sizes.fold((0, 0), |(n, b), s| (n + usize::from(s != 0), b + s))
    }

    /// The requested size of block `i`: 0 while it is free.
    pub(super) fn size_of(&self, i: usize) -> &AtomicU16 {
        debug_assert!(i < self.total);
        // SAFETY: there are `total` sizes behind the record, zeroed at creation.
        unsafe { &*self.requested.add(i) }
    }

    /// The index of the block that begins at `addr`, if one does and it is handed out.
    pub(super) fn index_of(&self, addr: usize) -> Option<usize> {
        let i = self.index(addr);
        let begins = addr >= self.base && i < self.total && self.base + i * self.block == addr;
        (begins && self.size_of(i).load(Ordering::Relaxed) != 0).then_some(i)
    }
}
