//! Blocks from spans: small ones from slabs of their size class, larger ones a span each.
//!
//! A [`Heap`] serves blocks of one kind: the same demands on their pages ([`SpanSpec`]) and the same owner
//! ([`Tag`]). Which heap a block belongs to, how large it is and whether it is pinned is found from its address
//! alone, through the page map; nothing is kept in the user's pages, so a page-sized, page-aligned block takes
//! one page.
//!
//! ```text
//!   address ──page map──> Slab or Large record ──> Heap ──> Tag (who asked, who serves, whose pool)
//! ```
//!
//! Small blocks come and go through what each thread keeps ready ([`local`]), without a lock; the heap itself
//! ([`small`]) is asked for many at a time. It has one lock, never held across a system call: a slab that is opened
//! further leaves its list for that time, and other threads use another. Heaps live in memory that is never freed and
//! are used again.

mod bias;
mod block;
mod class;
mod desk;
mod large;
mod local;
mod slab;
mod small;
mod sweep;
mod tray;

/// What [`bias`] is made of.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};

    /// The owner's writes and reads stay in order as far as the compiler is concerned.
    #[inline(always)]
    pub(super) fn owner_fence() {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn barrier_everywhere() {
        crate::os::barrier::everywhere();
    }

    /// While another thread is about to leave. It may have been taken off its processor, by this thread if that one is
    /// of a real-time priority: so sleep after a while.
    pub(super) fn pause(n: u32) {
        match n {
            0..64 => std::hint::spin_loop(),
            64..128 => std::thread::yield_now(),
            _ => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
}

pub(crate) use block::{Block, Growth, find};
pub(crate) use local::{give, take, take_back};
pub(crate) use small::on_late_return;
pub(crate) use sweep::{
    claim_all, kept, lock_all, reclaim_idle, release_kept, requested_of_pool, unlock_all,
};

use crate::os::lock::{Guard, Lock};
use crate::os::{fork, page_size};
use crate::pages::{PagesError, Part, Span, SpanSpec, account, cache, meta, meta::Use, page_up};
use core::ptr::{self, NonNull};
use large::Large;
use slab::{Chunk, Slab, State};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// What the first bytes of every record in the page map say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Slab = 1,
    Large = 2,
}

#[repr(C)]
struct Record {
    /// The heap's key, under which threads keep blocks of a slab; 0 where they may not.
    key: AtomicU64,
    kind: Kind,
    heap: *const Heap,
}

/// The bit of a record's key that says that it is a large block's. Bit 0 says that its pool counts.
const LARGE_KEY: u64 = 2;

/// Whose blocks a heap holds; numbers and a pointer that only the layer above reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The allocator the requests were made to.
    pub(crate) origin: u32,
    /// The allocator that serves them: another one for blocks that came through a fallback.
    pub(crate) server: u32,
    /// The pool they are charged to.
    pub(crate) pool: *const (),
    /// Whether that pool counts: a free must not pass it by.
    pub(crate) charged: bool,
}

/// A request for a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Bytes, at least 1.
    pub(crate) size: usize,
    /// A power of two.
    pub(crate) align: usize,
    pub(crate) zero: bool,
    /// Address space to keep for growth in place, in bytes; 0 for none.
    pub(crate) reserve: usize,
    /// For [`crate::pages::Place::Listed`].
    pub(crate) parts: &'a [Part],
}

/// A block that was handed out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) ptr: NonNull<u8>,
    /// Bytes the block has, at least what was asked for.
    pub(crate) usable: usize,
}

/// Figures of one heap, in bytes and blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeapStats {
    pub(crate) live_blocks: usize,
    pub(crate) requested: usize,
    pub(crate) requested_peak: usize,
    pub(crate) locked: usize,
    /// [`Tag::server`].
    pub(crate) server: u32,
    /// Locked ahead of growing blocks.
    pub(crate) slack: usize,
    /// Open bytes without a live block.
    pub(crate) idle: usize,
    /// Of these, bytes of freed large blocks.
    pub(crate) kept: usize,
}

struct Class {
    /// Slabs with a free block.
    head: *mut Slab,
    /// Slabs with more to open.
    growing: *mut Slab,
    /// Open bytes of the class's slabs, idle ones not among them.
    opened: usize,
}

struct Inner {
    epoch: u32,
    classes: [Class; class::COUNT],
    /// Slabs without a block, by their size; see [`small`].
    idle_slabs: [*mut Slab; 2],
    chunks: *mut Chunk,
    larges: *mut Large,
    /// Blocks of slabs that are live or kept ready by a thread.
    out: usize,
    /// Blocks in `larges`, live or kept ready by a thread, and their bytes.
    larges_out: usize,
    large_bytes: usize,
    /// Blocks that a thread kept which does not exist in this process, to be released.
    orphans: *mut Large,
    requested_peak: usize,
    /// How many bytes were out or open when what is live was last added up.
    seen_at: usize,
    slab_opened: usize,
    large_locked: usize,
    slack: usize,
    idle: usize,
    /// Threads that freed a block and are still giving back its slab.
    busy: usize,
    /// Threads that are giving back idle slabs.
    closing: usize,
}

impl Inner {
    /// Small blocks that are live, the bytes asked for in them, and the open bytes of slabs without any. Takes a walk over
    /// all marks.
    fn small_live(&self) -> (usize, usize, usize) {
        let (mut blocks, mut bytes, mut idle) = (0, 0, 0);
        let mut chunk = self.chunks;
        // SAFETY: chunks and slabs of this heap are whole, under its lock.
        unsafe {
            while let Some(c) = chunk.as_ref() {
                for s in c.slabs {
                    let Some(s) = s.as_ref() else { continue };
                    let (n, b) = s.live();
                    blocks += n;
                    bytes += b;
                    if n == 0 && s.state != State::Stale {
                        idle += s.opened;
                    }
                }
                chunk = c.next;
            }
        }
        (blocks, bytes, idle)
    }

    /// Adds up what is live.
    fn see(&mut self) -> Seen {
        let (blocks, bytes, idle) = self.small_live();
        let mut seen = Seen { blocks, bytes, idle, kept: 0 };
        let mut large = self.larges;
        // SAFETY: records in the list are whole, under the lock.
        while let Some(l) = unsafe { large.as_ref() } {
            match l.requested.load(Ordering::Relaxed) {
                0 => seen.kept += l.usable.load(Ordering::Relaxed),
                n => {
                    seen.blocks += 1;
                    seen.bytes += n;
                }
            }
            large = l.next;
        }
        seen.idle += seen.kept;
        self.seen_at = self.slab_opened + self.large_bytes;
        self.requested_peak = self.requested_peak.max(seen.bytes);
        seen
    }

    /// For the peak: adds up each time an eighth more is out.
    fn look(&mut self) {
        if self.slab_opened + self.large_bytes > self.seen_at + self.seen_at / 8 {
            self.see();
        }
    }

    /// Takes a record out of the list.
    fn remove_large(&mut self, l: &mut Large) {
        // SAFETY: list neighbours are whole, under the lock.
        unsafe {
            match l.prev.as_mut() {
                Some(p) => p.next = l.next,
                None => self.larges = l.next,
            }
            if let Some(n) = l.next.as_mut() {
                n.prev = l.prev;
            }
        }
        self.larges_out -= 1;
        self.large_bytes -= l.usable.load(Ordering::Relaxed);
        self.large_locked = self.large_locked.saturating_sub(l.span.locked_now());
        self.slack = self.slack.saturating_sub(l.span.slack());
    }
}

/// What is live in a heap, and what is not: blocks, bytes asked for in them, open bytes without a live block, and of
/// these the bytes of freed large blocks.
#[derive(Clone, Copy)]
struct Seen {
    blocks: usize,
    bytes: usize,
    idle: usize,
    kept: usize,
}

/// See the module.
pub(crate) struct Heap {
    /// It and `tag` are written by `reset` only, under the lock and while no block is out: who has a block or makes a
    /// request reads them as they are, all others (figures, fork) under the lock.
    spec: core::cell::UnsafeCell<SpanSpec>,
    tag: core::cell::UnsafeCell<Tag>,
    inner: Lock<Inner>,
    next: AtomicPtr<Heap>,
    /// [`account::releases`] at the last shortage; see `skip`.
    short_at: AtomicU64,
    /// Under which threads keep blocks of it; 0: they may not.
    key: AtomicU64,
    /// How many threads keep blocks of it, or are about to.
    trays: AtomicUsize,
    /// The smallest size that failed then.
    short_size: AtomicUsize,
    skipped: AtomicUsize,
}

// SAFETY: everything mutable is behind the lock or atomic, but `spec` and `tag`: see there.
unsafe impl Sync for Heap {}
// SAFETY: Inner's pointers lead to records that belong to this heap and are touched under its lock.
unsafe impl Send for Inner {}

static HEAPS: Lock<()> = Lock::new(());
static FIRST: AtomicPtr<Heap> = AtomicPtr::new(ptr::null_mut());

impl Heap {
    /// A new heap, in memory that is never freed.
    pub(crate) fn create(spec: SpanSpec, tag: Tag) -> Result<&'static Heap, PagesError> {
        let p = meta::alloc(size_of::<Heap>(), Use::Other)?.cast::<Heap>();
        let inner = Inner {
            epoch: fork::epoch(),
            classes: [const { Class { head: ptr::null_mut(), growing: ptr::null_mut(), opened: 0 } };
                class::COUNT],
            idle_slabs: [ptr::null_mut(); 2],
            chunks: ptr::null_mut(),
            larges: ptr::null_mut(),
            out: 0,
            larges_out: 0,
            large_bytes: 0,
            orphans: ptr::null_mut(),
            requested_peak: 0,
            seen_at: 0,
            slab_opened: 0,
            large_locked: 0,
            slack: 0,
            idle: 0,
            busy: 0,
            closing: 0,
        };
        // SAFETY: the piece is large and aligned enough, and nobody else's.
        let heap: &'static Heap = unsafe {
            p.write(Heap {
                spec: core::cell::UnsafeCell::new(spec),
                tag: core::cell::UnsafeCell::new(tag),
                inner: Lock::new(inner),
                next: AtomicPtr::new(ptr::null_mut()),
                short_at: AtomicU64::new(u64::MAX),
                key: AtomicU64::new(desk::new_key()),
                trays: AtomicUsize::new(0),
                short_size: AtomicUsize::new(usize::MAX),
                skipped: AtomicUsize::new(0),
            });
            &*p.as_ptr()
        };
        let _g = HEAPS.lock();
        heap.next.store(FIRST.load(Ordering::Relaxed), Ordering::Relaxed);
        FIRST.store(p.as_ptr(), Ordering::Release);
        Ok(heap)
    }

    /// Gives an empty heap to another owner. False, and nothing is changed, if not all of its pages could be given
    /// back: they are of the old owner's kind.
    ///
    /// # Safety
    /// No block of it is live, and no thread asks it for one or will before this returns.
    #[must_use]
    pub(crate) unsafe fn reset(&self, spec: SpanSpec, tag: Tag) -> bool {
        self.release_idle();
        let mut g = self.lock();
        while g.closing != 0 {
            // Somebody who trims is giving back the last of them.
            drop(g);
            std::thread::yield_now();
            g = self.lock();
        }
        if !g.chunks.is_null() {
            return false;
        }
        // SAFETY: no block is out and nobody asks for one, as the caller promises; all others read under the lock.
        unsafe {
            *self.spec.get() = spec;
            *self.tag.get() = tag;
        }
        drop(g);
        self.short_at.store(u64::MAX, Ordering::Relaxed);
        self.key.store(desk::new_key(), Ordering::SeqCst);
        true
    }

    /// The key under which threads keep blocks of it; 0 once it is closed.
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::SeqCst)
    }

    pub(crate) fn spec(&self) -> &SpanSpec {
        // SAFETY: written only by `reset`, which no reader meets: see the field.
        unsafe { &*self.spec.get() }
    }

    pub(crate) fn tag(&self) -> Tag {
        // SAFETY: as for `spec`.
        unsafe { *self.tag.get() }
    }

    fn lock(&self) -> Guard<'_, Inner> {
        let mut g = self.inner.lock();
        if g.epoch != fork::epoch() {
            self.after_fork(&mut g);
        }
        g
    }

    /// Whether no block is live and no thread is still busy with one that was. Of a heap that is not closed, blocks that
    /// threads keep ready count as live.
    pub(crate) fn is_empty(&self) -> bool {
        let g = self.lock();
        g.out == 0 && g.larges_out == 0 && g.busy == 0
    }

    /// What the records of its slabs say: the key, or one that no slot has where a free must go the long way.
    fn record_key(&self) -> u64 {
        match self.key() {
            0 => 0,
            k => k | u64::from(self.tag().charged),
        }
    }

    /// As [`record_key`](Self::record_key), for large blocks.
    fn large_key(&self) -> u64 {
        match self.record_key() {
            0 => 0,
            k => k | LARGE_KEY,
        }
    }

    fn swap_key(&self, key: u64) -> u64 {
        self.key.swap(key, Ordering::SeqCst)
    }

    /// Sets the heap right if this is the child of a fork.
    fn settle(&self) {
        drop(self.lock());
    }

    pub(crate) fn stats(&self) -> HeapStats {
        let mut g = self.lock();
        let seen = g.see();
        HeapStats {
            live_blocks: seen.blocks,
            requested: seen.bytes,
            requested_peak: g.requested_peak,
            slack: g.slack,
            server: self.tag().server,
            locked: if self.spec().pinned { g.slab_opened + g.large_locked } else { 0 },
            idle: seen.idle,
            kept: seen.kept,
        }
    }

    /// Bytes asked for in its live blocks if they are charged to that pool.
    fn requested_of(&self, pool: *const ()) -> usize {
        let mut g = self.lock();
        if self.tag().pool == pool { g.see().bytes } else { 0 }
    }

    /// Whether to skip an attempt that is bound to fail: a request of at most this size ran into the lock limit and
    /// nothing has been given back since. Every 256th is made all the same, since others may have unlocked memory, or
    /// the limit may have been raised. Only for callers with a fallback.
    pub(crate) fn skip(&self, size: usize) -> bool {
        let short = || {
            self.short_at.load(Ordering::Relaxed) == account::releases()
                && size >= self.short_size.load(Ordering::Relaxed)
        };
        if !short() {
            return false;
        }
        // What this thread has freed since may make up a page.
        desk::empty_mine();
        short() && self.skipped.fetch_add(1, Ordering::Relaxed) % 256 != 255
    }

    fn note_shortage(&self, size: usize) {
        let now = account::releases();
        if self.short_at.swap(now, Ordering::Relaxed) == now {
            self.short_size.fetch_min(size, Ordering::Relaxed);
        } else {
            self.short_size.store(size, Ordering::Relaxed);
        }
    }

    /// Serves a request.
    ///
    /// # Errors
    /// The pages could not be had, also after every idle span of the process was given back.
    pub(crate) fn alloc(&'static self, r: &Request<'_>) -> Result<Grant, PagesError> {
        match self.alloc_once(r) {
            Err(e) if e.is_shortage() => {
                let r2 = if reclaim_idle() != 0 { self.alloc_once(r) } else { Err(e) };
                if r2.is_err()
                    && let Some(g) = self.alloc_wider(r)
                {
                    return Ok(g);
                }
                if matches!(r2, Err(e) if e.is_lock_limit()) {
                    self.note_shortage(r.size);
                }
                r2
            }
            r => r,
        }
    }

    /// Serves a small request from what is open already; no system call.
    pub(crate) fn alloc_ready(&'static self, r: &Request<'_>) -> Option<Grant> {
        let class = self.class_for(r)?;
        match self.take_local(class, r.size).ok().or_else(|| self.draw_one(class, r.size)) {
            Some(p) => Some(Self::finish(p, class, r)),
            None => self.alloc_wider(r),
        }
    }

    /// Where no page can be had: a free block of another class, of at most twice the size.
    fn alloc_wider(&'static self, r: &Request<'_>) -> Option<Grant> {
        let class = self.class_for(r)?;
        let most = 2 * class::bytes(class);
        let mut wider = (class + 1..class::COUNT).take_while(|&c| class::bytes(c) <= most);
        let fits = |c: usize| class::bytes(c).is_multiple_of(r.align.max(16));
        wider.find_map(|c| {
            let p = if fits(c) { self.draw_one(c, r.size) } else { None }?;
            Some(Self::finish(p, c, r))
        })
    }

    fn alloc_once(&'static self, r: &Request<'_>) -> Result<Grant, PagesError> {
        match self.class_for(r) {
            Some(class) => {
                let p = match self.take_local(class, r.size) {
                    Ok(p) => p,
                    Err(most) => self.draw(class, r.size, most)?,
                };
                Ok(Self::finish(p, class, r))
            }
            None => {
                if r.align <= page_size()
                    && r.reserve <= r.size
                    && let Some(ptr) = self.take_large_local(r.size)
                {
                    if r.zero {
                        // SAFETY: the block was just handed out and has that many bytes.
                        unsafe { ptr::write_bytes(ptr.as_ptr(), 0, r.size) };
                    }
                    let usable = page_up(r.size).unwrap_or(r.size);
                    return Ok(Grant { ptr, usable });
                }
                self.alloc_large(r)
            }
        }
    }

    fn finish(ptr: NonNull<u8>, class: usize, r: &Request<'_>) -> Grant {
        if r.zero {
            // SAFETY: the block was just handed out and has that many bytes.
            unsafe { ptr::write_bytes(ptr.as_ptr(), 0, r.size) };
        }
        Grant { ptr, usable: class::bytes(class) }
    }

    /// The class of a request that slabs can serve. Reservations up to a page are met by the class; partitioned
    /// blocks of more than a page have pages of their own.
    fn class_for(&self, r: &Request<'_>) -> Option<usize> {
        let page = page_size();
        if (r.reserve > page && r.reserve > r.size) || (self.spec().place.by_size() && r.size > page) {
            return None;
        }
        class::find(r.size.max(r.reserve), r.align)
    }

    fn alloc_large(&self, r: &Request<'_>) -> Result<Grant, PagesError> {
        let spec = self.spec();
        let len = page_up(r.size).ok_or(PagesError::overflow(r.size))?;
        let reserve = page_up(r.reserve).ok_or(PagesError::overflow(r.reserve))?;
        if len > isize::MAX as usize {
            return Err(PagesError::overflow(r.size));
        }
        let cached =
            if reserve <= len && !spec.place.by_size() { cache::get(spec, len, r.align) } else { None };
        let mut span = match cached {
            Some(s) => s,
            None => Span::new(*spec, len, r.align, reserve, r.parts)?,
        };
        if r.zero && span.is_dirty() {
            // SAFETY: the span is open for `len` bytes and belongs to this request alone.
            unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(span.start()), 0, len) };
        }
        span.set_dirty();
        let (start, locked) = (span.start(), span.locked_now());
        let p = Large::create(self, span, r.size, r.align.max(page_size()))?;
        let mut g = self.lock();
        // SAFETY: the record is whole and ours; list neighbours are, under the lock.
        unsafe {
            (*p.as_ptr()).next = g.larges;
            if let Some(n) = g.larges.as_mut() {
                n.prev = p.as_ptr();
            }
        }
        g.larges = p.as_ptr();
        g.larges_out += 1;
        g.large_bytes += len;
        g.large_locked += locked;
        g.look();
        drop(g);
        match NonNull::new(ptr::with_exposed_provenance_mut(start)) {
            Some(ptr) => Ok(Grant { ptr, usable: len }),
            None => Err(PagesError::overflow(r.size)), // unreachable: the kernel does not map page 0
        }
    }
}
