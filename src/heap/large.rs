//! Large blocks: a span each, exact to the page.

use super::{Heap, Kind, Record};
use crate::os::page_size;
use crate::pages::{PagesError, Span, map, meta};
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[repr(C)]
pub(super) struct Large {
    pub(super) record: Record,
    /// Touched by the block's owner (who holds `busy` while resizing), and by a relock under `busy`.
    pub(super) span: ManuallyDrop<Span>,
    /// 0 while a thread keeps it ready.
    pub(super) requested: AtomicUsize,
    /// What queries by address read, which may come from anyone: start (0 while a thread keeps it ready), length, and the epoch in which it is
    /// locked (0 if it is not pinned).
    pub(super) start: AtomicUsize,
    pub(super) usable: AtomicUsize,
    pub(super) pinned: AtomicU32,
    /// What the block was asked to be aligned to, at least a page.
    pub(super) align: usize,
    pub(super) busy: AtomicBool,
    pub(super) prev: *mut Large,
    pub(super) next: *mut Large,
}

impl Large {
    /// Puts a span under a record and makes it known to the page map. On error the span is given back.
    pub(super) fn create(
        heap: &Heap,
        span: Span,
        requested: usize,
        align: usize,
    ) -> Result<NonNull<Large>, PagesError> {
        let p = match meta::alloc(size_of::<Large>(), meta::Use::Large) {
            Ok(p) => p.cast::<Large>(),
            Err(e) => {
                span.release();
                return Err(e);
            }
        };
        let (start, usable, pinned) = (span.start(), span.len(), span.pinned_epoch());
        // SAFETY: the piece is large and aligned enough (64 bytes at least), and nobody else's.
        unsafe {
            p.write(Large {
                record: Record { key: AtomicU64::new(heap.large_key()), kind: Kind::Large, heap },
                span: ManuallyDrop::new(span),
                requested: AtomicUsize::new(requested),
                start: AtomicUsize::new(start),
                usable: AtomicUsize::new(usable),
                pinned: AtomicU32::new(pinned),
                align,
                busy: AtomicBool::new(false),
                prev: ptr::null_mut(),
                next: ptr::null_mut(),
            });
        }
        if let Err(e) = map::set(start, 1, p.as_ptr().cast()) {
            // SAFETY: just written, and known to nobody.
            unsafe { Self::destroy(p) }.release();
            return Err(e);
        }
        Ok(p)
    }

    /// Frees the record and hands its span out.
    ///
    /// # Safety
    /// The record came from [`create`](Self::create) and is in no list; nobody uses it after this.
    pub(super) unsafe fn destroy(p: NonNull<Large>) -> Span {
        // SAFETY: the span is taken once, since the record ends here.
        unsafe {
            let span = ManuallyDrop::take(&mut (*p.as_ptr()).span);
            map::clear(span.start(), 1);
            meta::free(p.cast(), size_of::<Large>(), meta::Use::Large);
            span
        }
    }

    /// Whether it can be handed out again as it is: a whole span, exact, that nobody has a claim on.
    pub(super) fn can_be_kept(&self) -> bool {
        self.span.is_plain() && !self.busy.load(Ordering::Acquire)
    }

    /// Hands a kept one out again: its address.
    pub(super) fn wake(&mut self, requested: usize) -> usize {
        let start = self.span.start();
        self.align = page_size();
        self.requested.store(requested, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        start
    }

    /// Makes a live one a kept one.
    pub(super) fn sleep(&mut self) {
        self.start.store(0, Ordering::Relaxed);
        self.requested.store(0, Ordering::Relaxed);
    }

    /// Waits for the right to change the span.
    pub(super) fn claim(&self) {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Ends [`claim`](Self::claim).
    pub(super) fn unclaim(&self) {
        self.start.store(self.span.start(), Ordering::Relaxed);
        self.usable.store(self.span.len(), Ordering::Relaxed);
        self.pinned.store(self.span.pinned_epoch(), Ordering::Relaxed);
        self.busy.store(false, Ordering::Release);
    }
}
