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

use super::desk;
use super::large::Large;
use super::slab::Slab;
use super::tray::{self, Batch, Entry, Keep, Tray};
use super::{Heap, LARGE_KEY, Record, class};
use crate::pages::meta::Use;
use crate::pages::{cache, map, meta};
use core::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

/// A block of `size` bytes from the calling thread's tray of the heap with that key; null if there is none.
///
/// The alignment is 16.
#[inline(always)]
pub(crate) fn take(key: u64, size: usize) -> *mut u8 {
    let Some(class) = class::index_checked(size) else { return ptr::null_mut() };
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk::mine().as_ref() }) else { return ptr::null_mut() };
    desk.bias.begin();
    let slot = desk.slot(key);
    // SAFETY: while the key is shown, inside the bias, the slot is this thread's, and its tray whole.
    let block = unsafe {
        if (*slot).shown.load(Ordering::Acquire) == key {
            (*(*slot).tray).pop(class, size)
        } else {
            ptr::null_mut()
        }
    };
    desk.bias.leave();
    block
}

/// As [`take`], also of those that came back to the thread since; the next step where [`take`] finds none.
#[inline(never)]
pub(crate) fn take_back(key: u64, size: usize) -> *mut u8 {
    let Some(class) = class::index_checked(size) else { return take_large(key, size) };
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk::mine().as_ref() }) else { return ptr::null_mut() };
    desk.bias.begin();
    let slot = desk.slot(key);
    // SAFETY: as in `take`.
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
fn take_large(key: u64, size: usize) -> *mut u8 {
    // SAFETY: desks are never freed.
    let Some(desk) = (unsafe { desk::mine().as_ref() }) else { return ptr::null_mut() };
    // No bytes are no block; and beyond isize::MAX nothing can be rounded up.
    if size == 0 || size > isize::MAX as usize {
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
    let Some(desk) = (unsafe { desk::mine().as_ref() }) else { return false };
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
        let desk = desk::obtain()?;
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
            desk::discard(tray);
            return None;
        }
        // SAFETY: as above. The slot may hold another heap's tray, whose place this one takes.
        let (r, old) = unsafe {
            let old = (*slot).replace(tray);
            if let Some(o) = old.as_mut() {
                (*desk.large.get()).held -= o.large_bytes();
            }
            (f(&mut *desk.large.get(), &mut *tray), old)
        };
        // Whoever closes a heap first says so and then empties all desks: either it finds this tray or this finds it.
        if self.key() != key {
            // SAFETY: as above.
            let tray = unsafe {
                (*desk.large.get()).held -= (*tray).large_bytes();
                (*slot).replace(ptr::null_mut())
            };
            desk.bias.leave();
            desk::discard(tray);
        } else {
            desk.bias.leave();
        }
        desk::discard(old);
        Some(r)
    }

    fn new_tray(&self, key: u64) -> Option<*mut Tray> {
        let t = meta::alloc(size_of::<Tray>(), Use::Tray).ok()?.cast::<Tray>().as_ptr();
        self.trays.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the piece is large and aligned enough and nobody else's.
        unsafe { Tray::write(t, self, key) };
        Some(t)
    }

    /// A block from the calling thread's tray, also one that it freed itself; if there is none, how many to draw.
    pub(super) fn take_local(&'static self, class: usize, size: usize) -> Result<NonNull<u8>, usize> {
        let p = self.with_tray(|_, t| {
            t.prepare(class);
            // SAFETY: inside the bias.
            unsafe { t.pop_or_swap(class, size) }
        });
        let most = if p.is_none() { 1 } else { tray::capacity(class) };
        p.and_then(NonNull::new).ok_or(most)
    }

    /// Puts blocks that were taken from their slabs, and are free, into the calling thread's tray; back to the slabs with
    /// those that do not fit.
    pub(super) fn stock(&'static self, class: usize, blocks: &[Entry]) {
        let put = self.with_tray(|_, t| {
            t.prepare(class);
            let mut n = 0;
            // The last ones first, so that the lowest is handed out next.
            for &e in blocks.iter().rev() {
                if !t.add_ready(class, e) {
                    break;
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
                    t.add_freed(class, Entry { block, mark }, &mut out);
                })
                .is_some();
        if !pushed {
            out.push(Entry { block, mark });
        }
        if !out.is_empty() {
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
            evicted = t.evict_large(keep);
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
            desk::empty_all(Some(key));
        }
    }
}
