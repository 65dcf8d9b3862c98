//! Freed spans kept for reuse, and address space the kernel would not take back.
//!
//! A locked span costs some hundred microseconds a MiB to make, so a freed one waits here for a request of the
//! same demands. The cache is bounded in number and in bytes; what is over the bound is released, oldest first.
//! System calls happen outside the lock.

use super::{Span, SpanSpec, account};
use crate::os::lock::Lock;
use crate::os::{mem, page_size};
use std::sync::atomic::{AtomicUsize, Ordering};

const SLOTS: usize = 64;
const STRANDED: usize = 256;
const DEFAULT_LIMIT: usize = 64 << 20;

struct Cache {
    spans: [Option<Span>; SLOTS], // oldest first, no gaps
    count: usize,
    bytes: usize,
    limit: usize,
    stranded: [(usize, usize); STRANDED],
    stranded_count: usize,
}

static CACHE: Lock<Cache> = Lock::new(Cache {
    spans: [const { None }; SLOTS],
    count: 0,
    bytes: 0,
    limit: DEFAULT_LIMIT,
    stranded: [(0, 0); STRANDED],
    stranded_count: 0,
});

impl Cache {
    fn take(&mut self, i: usize) -> Option<Span> {
        let s = self.spans.get_mut(i)?.take()?;
        self.spans[i..self.count].rotate_left(1);
        self.count -= 1;
        self.bytes -= s.len();
        Some(s)
    }
}

/// A span of these demands with `len` bytes, aligned to `align`, if one waits. It is dirty.
pub(crate) fn get(spec: &SpanSpec, len: usize, align: usize) -> Option<Span> {
    let mut c = CACHE.lock();
    let fits = |s: &Span| {
        s.spec() == spec
            && s.is_current()
            && s.start().is_multiple_of(align)
            && s.len() >= len
            && s.len() - len <= len / 8
    };
    let best = (0..c.count)
        .filter(|&i| c.spans[i].as_ref().is_some_and(fits))
        .min_by_key(|&i| c.spans[i].as_ref().map_or(usize::MAX, Span::len))?;
    let mut s = c.take(best)?;
    drop(c);
    if s.len() > len {
        s.shrink(len, false);
    }
    Some(s)
}

/// Keeps a freed span, or releases it if it is of no use to others or too large.
pub(crate) fn put(mut span: Span) {
    span.set_dirty();
    let plain = span.is_plain();
    let mut rejected = Some(span);
    if plain {
        loop {
            let mut c = CACHE.lock();
            let (len, limit) = (rejected.as_ref().map_or(0, Span::len), c.limit);
            if len > limit {
                break;
            }
            if c.count < SLOTS && c.bytes + len + KEPT.load(Ordering::Relaxed) <= limit {
                let n = c.count;
                c.bytes += len;
                c.spans[n] = rejected.take();
                c.count += 1;
                drop(c);
                account::note_reusable();
                return;
            }
            let oldest = c.take(0);
            drop(c);
            match oldest {
                Some(s) => s.release(),
                None => break,
            }
        }
    }
    if let Some(s) = rejected {
        s.release();
    }
}

/// Releases cached spans, oldest first, until at most `target` bytes are kept, and tries stranded ranges again.
/// Returns the bytes released.
pub(crate) fn trim(target: usize) -> usize {
    let mut freed = 0;
    loop {
        let s = {
            let mut c = CACHE.lock();
            if c.bytes <= target { None } else { c.take(0) }
        };
        match s {
            Some(s) => {
                freed += s.len();
                s.release();
            }
            None => break,
        }
    }
    retry_stranded();
    freed
}

/// Bytes of freed large blocks that threads keep or have leave to keep; they count against the same bound.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Leave for a thread to keep `len` bytes more of freed blocks. It is for good, until [`end_leave`].
pub(crate) fn ask_leave(len: usize) -> bool {
    let limit = limit();
    let more = |kept: usize| kept.checked_add(len).filter(|&n| n <= limit);
    KEPT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

/// Takes back the leave to keep `len` bytes.
pub(crate) fn end_leave(len: usize) {
    KEPT.fetch_sub(len, Ordering::Relaxed);
}

/// How many bytes threads have leave to keep.
pub(crate) fn leave() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// In the child of a fork: no thread has leave to keep anything.
pub(crate) fn no_leave() {
    KEPT.store(0, Ordering::Relaxed);
}

/// Sets the bound in bytes.
pub(crate) fn set_limit(bytes: usize) {
    CACHE.lock().limit = bytes;
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// The bound in bytes.
pub(crate) fn limit() -> usize {
    LIMIT.load(Ordering::Relaxed)
}

/// As in [`Cache`], to be read without its lock.
static LIMIT: AtomicUsize = AtomicUsize::new(DEFAULT_LIMIT);

/// Bytes kept.
pub(crate) fn bytes() -> usize {
    CACHE.lock().bytes
}

/// Remembers address space that could not be unmapped. Its memory and lock are gone already.
pub(super) fn strand(base: usize, len: usize) {
    let mut c = CACHE.lock();
    let n = c.stranded_count;
    if let Some(slot) = c.stranded.get_mut(n) {
        *slot = (base, len);
        c.stranded_count += 1;
        account::add_stranded(len);
    }
    debug_assert!(base.is_multiple_of(page_size()));
}

fn retry_stranded() {
    let n = CACHE.lock().stranded_count;
    for _ in 0..n {
        let one = {
            let mut c = CACHE.lock();
            match c.stranded_count.checked_sub(1) {
                Some(last) => {
                    c.stranded_count = last;
                    c.stranded[last]
                }
                None => return,
            }
        };
        account::sub_stranded(one.1);
        if mem::unmap(one.0, one.1).is_err() {
            strand(one.0, one.1);
            return;
        }
    }
}

/// For the fork handlers.
pub(crate) fn raw_lock() {
    CACHE.raw_lock();
}

/// # Safety
/// After [`raw_lock`] of this thread or of the thread it was forked from.
pub(crate) unsafe fn raw_unlock() {
    // SAFETY: as the caller promises.
    unsafe { CACHE.raw_unlock() };
}
