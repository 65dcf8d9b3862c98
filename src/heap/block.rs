//! A live block, found from its address.

use super::large::Large;
use super::slab::Slab;
use super::{Heap, Kind, Record};
use crate::os::{fork, page_size};
use crate::pages::{ForkPolicy, PagesError, Part, map, page_up};
use core::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

pub(crate) use crate::pages::NoGrowth;

/// A live block.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    at: At,
}

#[derive(Clone, Copy)]
enum At {
    Slab(*mut Slab, usize),
    Large(*mut Large),
}

/// The block that begins at `addr`, if there is one: any address is answered.
#[inline]
pub(crate) fn find(addr: usize) -> Option<Block> {
    let rec = map::get(addr).cast::<Record>();
    // SAFETY: a record in the page map is a Slab or a Large, both of which begin with a Record, and lies in
    // memory that is never unmapped.
    let kind = unsafe { rec.as_ref()? }.kind;
    match kind {
        Kind::Slab => {
            let slab = rec.cast::<Slab>();
            // SAFETY: base, block, total and the sizes are constant while the slab is in the map.
            let i = unsafe { (*slab).index_of(addr) }?;
            Some(Block { at: At::Slab(slab, i) })
        }
        Kind::Large => {
            let large = rec.cast::<Large>();
            // SAFETY: a Large record stays one, and this word of it is atomic.
            let start = unsafe { &(*large).start }.load(Ordering::Relaxed);
            (start == addr).then_some(Block { at: At::Large(large) })
        }
    }
}

/// How to grow a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Growth<'a> {
    /// Bytes to lock ahead of what is asked.
    pub(crate) ahead: usize,
    /// Keep the address space of what is cut off.
    pub(crate) keep: bool,
    pub(crate) parts: &'a [Part],
}

impl Block {
    pub(crate) fn heap(&self) -> &'static Heap {
        // SAFETY: records of a live block are whole; heaps are never freed.
        unsafe {
            match self.at {
                At::Slab(s, _) => &*(*s).record.heap,
                At::Large(l) => &*(*l).record.heap,
            }
        }
    }

    /// Bytes that were asked for.
    pub(crate) fn requested(&self) -> usize {
        // SAFETY: the records of a live block are whole.
        unsafe {
            match self.at {
                At::Slab(s, i) => (*s).size_of(i).load(Ordering::Relaxed) as usize,
                At::Large(l) => (*l).requested.load(Ordering::Relaxed),
            }
        }
    }

    /// Bytes the block has.
    pub(crate) fn usable(&self) -> usize {
        // SAFETY: as above; the span is the owner's, who is the caller.
        unsafe {
            match self.at {
                At::Slab(s, _) => (*s).block,
                At::Large(l) => (*l).usable.load(Ordering::Relaxed),
            }
        }
    }

    /// Whether every byte is locked right now.
    pub(crate) fn is_pinned(&self) -> bool {
        // SAFETY: as above.
        unsafe {
            match self.at {
                At::Slab(s, _) => (*(*s).record.heap).spec().pinned && (*s).epoch == fork::epoch(),
                At::Large(l) => (*l).pinned.load(Ordering::Relaxed) == fork::epoch(),
            }
        }
    }

    /// Whether this is a child of a fork that was not given the memory.
    pub(crate) fn is_foreign(&self) -> bool {
        // SAFETY: as above.
        unsafe {
            match self.at {
                At::Slab(s, _) => {
                    (*(*s).record.heap).spec().fork == ForkPolicy::DontFork && (*s).epoch != fork::epoch()
                }
                At::Large(l) => (*l).span.foreign(),
            }
        }
    }

    /// Whether the block has pages of its own.
    pub(crate) fn has_own_pages(&self) -> bool {
        matches!(self.at, At::Large(_))
    }

    /// Bytes it can grow to in place for certain, as far as address space goes.
    pub(crate) fn capacity(&self) -> usize {
        // SAFETY: as above.
        unsafe {
            match self.at {
                At::Slab(s, _) => (*s).block,
                At::Large(l) => (*l).span.capacity(),
            }
        }
    }

    /// The alignment a move has to keep, as far as it is known here: small blocks do not remember what was asked, and
    /// to keep what their address happens to have would make a page of every first block of a slab that grows.
    pub(crate) fn alignment(&self) -> usize {
        match self.at {
            At::Slab(..) => 1,
            // SAFETY: as above.
            At::Large(l) => unsafe { (*l).align },
        }
    }

    /// Takes the block back.
    ///
    /// # Safety
    /// The caller owns the block, and nobody uses it after this.
    pub(crate) unsafe fn free(self) {
        let heap = self.heap();
        match self.at {
            At::Slab(slab, i) => {
                // SAFETY: as above.
                let s = unsafe { &*slab };
                heap.free_small(slab, ptr::with_exposed_provenance_mut(s.base + i * s.block));
            }
            At::Large(large) => heap.free_large(large),
        }
    }

    /// Makes the block `new` bytes long (at least 1) where it is.
    ///
    /// # Safety
    /// The caller owns the block.
    ///
    /// # Errors
    /// The block is then as it was. A shrink never fails.
    pub(crate) unsafe fn resize(&self, new: usize, how: &Growth<'_>) -> Result<(), NoGrowth> {
        match self.at {
            At::Slab(slab, i) => {
                // SAFETY: the block is live, so its slab is whole.
                let s = unsafe { &*slab };
                if new > s.block {
                    return Err(NoGrowth::NoRoom);
                }
                s.size_of(i).store(new as u16, Ordering::Relaxed);
                Ok(())
            }
            At::Large(large) => {
                let len = page_up(new).ok_or(NoGrowth::Failed(PagesError::overflow(new)))?;
                // SAFETY: the block is live, so its record is whole; the claim below makes this the only user.
                let l = unsafe { &mut *large };
                l.claim();
                let before = (l.span.locked_now(), l.span.slack());
                let r = if len < l.span.len() {
                    l.span.shrink(len, how.keep);
                    Ok(())
                } else if len == l.span.len() {
                    Ok(())
                } else {
                    l.span.grow(len, how.ahead, how.parts)
                };
                self.account(l, before, if r.is_ok() { Some(new) } else { None });
                l.unclaim();
                r
            }
        }
    }

    /// Whether [`move_to_grow`](Self::move_to_grow) can serve.
    pub(crate) fn can_move(&self) -> bool {
        // SAFETY: as above.
        matches!(self.at, At::Large(l) if unsafe { &(*l).span }.can_move())
    }

    /// Grows a block with pages of its own by moving its page tables; gives its new address. That is a multiple of
    /// `align`, as the old one has to be.
    ///
    /// # Safety
    /// The caller owns the block; its old address is dead after success.
    ///
    /// # Errors
    /// The block is then as and where it was.
    pub(crate) unsafe fn move_to_grow(
        &self,
        new: usize,
        reserve: usize,
        align: usize,
    ) -> Result<NonNull<u8>, PagesError> {
        let At::Large(large) = self.at else { return Err(PagesError::overflow(new)) };
        let len = page_up(new).ok_or(PagesError::overflow(new))?;
        let reserve = page_up(reserve).unwrap_or(len);
        // SAFETY: as in `resize`.
        let l = unsafe { &mut *large };
        l.claim();
        let before = (l.span.locked_now(), l.span.slack());
        // The span may be aligned by chance: it was made for another block, or the demand came with a resize.
        let align = l.align.max(align);
        let r = l.span.move_to_grow(len, reserve, align, large.cast());
        if r.is_ok() {
            l.align = align;
        }
        self.account(l, before, if r.is_ok() { Some(new) } else { None });
        let start = l.span.start();
        l.unclaim();
        r?;
        NonNull::new(ptr::with_exposed_provenance_mut(start)).ok_or(PagesError::overflow(new))
    }

    fn account(&self, l: &Large, before: (usize, usize), new: Option<usize>) {
        let mut g = self.heap().lock();
        g.large_locked = (g.large_locked + l.span.locked_now()).saturating_sub(before.0);
        g.slack = (g.slack + l.span.slack()).saturating_sub(before.1);
        g.large_bytes = g.large_bytes - l.usable.load(Ordering::Relaxed) + l.span.len();
        l.usable.store(l.span.len(), Ordering::Relaxed);
        if let Some(new) = new {
            l.requested.store(new, Ordering::Relaxed);
            g.look();
        }
    }
}

impl Heap {
    /// Takes back a live block with pages of its own: to be kept by this thread, or to the spans of the process.
    fn free_large(&'static self, large: *mut Large) {
        if self.keep_large_local(large) {
            return;
        }
        self.release_large(large);
    }

    /// Takes a record out of the heap's list.
    pub(super) fn take_out(&self, large: *mut Large) {
        // SAFETY: the record of a block that is the caller's is whole; under the lock.
        unsafe { self.lock().remove_large(&mut *large) };
    }

    /// Ends a large block; its span goes to the spans of the process.
    pub(super) fn release_large(&self, large: *mut Large) {
        let Some(p) = NonNull::new(large) else { return };
        // SAFETY: the record of a block that is the caller's is whole, and nobody else's once it is out of the list.
        let span = unsafe {
            self.lock().remove_large(&mut *large);
            Large::destroy(p)
        };
        debug_assert!(span.len() >= page_size());
        crate::pages::cache::put(span);
    }
}
