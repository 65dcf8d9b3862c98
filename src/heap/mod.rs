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
//! One lock a heap, never held across a system call: a slab that is opened further leaves its list for that
//! time, and other threads use another. Heaps live in memory that is never freed and are used again.

mod block;
mod class;
mod large;
mod slab;
mod sweep;

pub(crate) use block::{Block, Growth, find};
pub(crate) use sweep::{claim_all, lock_all, reclaim_idle, unlock_all};

use crate::os::lock::{Guard, Lock};
use crate::os::{fork, page_size};
use crate::pages::{PagesError, Part, Span, SpanSpec, account, cache, map, meta, meta::Use, page_up};
use core::ptr::{self, NonNull};
use large::Large;
use slab::{CHUNK, CHUNK_SLABS, Chunk, Slab, State};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// What the first bytes of every record in the page map say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Slab = 1,
    Large = 2,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Record {
    kind: Kind,
    heap: *const Heap,
}

/// Whose blocks a heap holds; numbers and a pointer that only the layer above reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The allocator the requests were made to.
    pub(crate) origin: u32,
    /// The allocator that serves them: another one for blocks that came through a fallback.
    pub(crate) server: u32,
    /// The pool they are charged to.
    pub(crate) pool: *const (),
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
    /// Locked ahead of growing blocks.
    pub(crate) slack: usize,
    /// Open bytes of empty slabs.
    pub(crate) idle: usize,
}

struct Class {
    head: *mut Slab,
    opened: usize,
}

struct Inner {
    epoch: u32,
    classes: [Class; class::COUNT],
    chunks: *mut Chunk,
    larges: *mut Large,
    live_blocks: usize,
    requested: usize,
    requested_peak: usize,
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
    /// One block more, of so many requested bytes.
    fn count(&mut self, requested: usize) {
        self.live_blocks += 1;
        self.requested += requested;
        self.requested_peak = self.requested_peak.max(self.requested);
    }
}

/// See the module.
pub(crate) struct Heap {
    spec: core::cell::UnsafeCell<SpanSpec>, // written by `reset` only, while no block and no user exists
    tag: core::cell::UnsafeCell<Tag>,
    inner: Lock<Inner>,
    next: AtomicPtr<Heap>,
    /// [`account::releases`] at the last shortage; see `skip`.
    short_at: AtomicU64,
    /// The smallest size that failed then.
    short_size: AtomicUsize,
    skipped: AtomicUsize,
}

// SAFETY: everything mutable is behind the lock or atomic, but `spec` and `tag`, which change only in `reset`.
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
            classes: [const { Class { head: ptr::null_mut(), opened: 0 } }; class::COUNT],
            chunks: ptr::null_mut(),
            larges: ptr::null_mut(),
            live_blocks: 0,
            requested: 0,
            requested_peak: 0,
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
        loop {
            let g = self.lock();
            if g.closing == 0 {
                if !g.chunks.is_null() {
                    return false;
                }
                break;
            }
            // Somebody who trims is giving back the last of them.
            drop(g);
            std::thread::yield_now();
        }
        // SAFETY: nobody else is here, as the caller promises.
        unsafe {
            *self.spec.get() = spec;
            *self.tag.get() = tag;
        }
        self.short_at.store(u64::MAX, Ordering::Relaxed);
        true
    }

    pub(crate) fn spec(&self) -> &SpanSpec {
        // SAFETY: written only by `reset`, whose contract excludes readers.
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

    /// Whether no block is live and no thread is still busy with one that was.
    pub(crate) fn is_empty(&self) -> bool {
        let g = self.lock();
        g.live_blocks == 0 && g.busy == 0
    }

    pub(crate) fn stats(&self) -> HeapStats {
        let g = self.lock();
        HeapStats {
            live_blocks: g.live_blocks,
            requested: g.requested,
            requested_peak: g.requested_peak,
            slack: g.slack,
            locked: if self.spec().pinned { g.slab_opened + g.large_locked } else { 0 },
            idle: g.idle,
        }
    }

    /// Whether to skip an attempt that is bound to fail: a request of at most this size ran into the lock limit and
    /// nothing has been given back since. Every 256th is made all the same, since others may have unlocked memory, or
    /// the limit may have been raised. Only for callers with a fallback.
    pub(crate) fn skip(&self, size: usize) -> bool {
        self.short_at.load(Ordering::Relaxed) == account::releases()
            && size >= self.short_size.load(Ordering::Relaxed)
            && self.skipped.fetch_add(1, Ordering::Relaxed) % 256 != 255
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
    pub(crate) fn alloc(&self, r: &Request<'_>) -> Result<Grant, PagesError> {
        if let Some(g) = self.alloc_ready(r) {
            return Ok(g);
        }
        match self.alloc_once(r) {
            Err(e) if e.is_shortage() => {
                let r2 = if reclaim_idle() != 0 { self.alloc_once(r) } else { Err(e) };
                if matches!(r2, Err(e) if e.is_lock_limit()) {
                    self.note_shortage(r.size);
                }
                r2
            }
            r => r,
        }
    }

    /// Serves a small request from what is open already; no system call.
    pub(crate) fn alloc_ready(&self, r: &Request<'_>) -> Option<Grant> {
        let class = self.class_for(r)?;
        let mut g = self.lock();
        let slab = g.classes[class].head;
        if slab.is_null() {
            return None;
        }
        // SAFETY: slabs in a list are whole, and touched under this lock only.
        let s = unsafe { &mut *slab };
        if !s.has_free() {
            return None;
        }
        let grant = Self::take(&mut g, s, r.size)?;
        drop(g);
        Some(Self::finish(grant, r))
    }

    fn alloc_once(&self, r: &Request<'_>) -> Result<Grant, PagesError> {
        match self.class_for(r) {
            Some(class) => self.alloc_small(class, r),
            None => self.alloc_large(r),
        }
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

    fn finish((ptr, usable, zero): (NonNull<u8>, usize, bool), r: &Request<'_>) -> Grant {
        if r.zero && !zero {
            // SAFETY: the block was just handed out and has `usable` bytes.
            unsafe { ptr::write_bytes(ptr.as_ptr(), 0, usable) };
        }
        Grant { ptr, usable }
    }

    /// Takes a block of a listed slab; the slab leaves its list when it has no more to give.
    fn take(g: &mut Inner, s: &mut Slab, size: usize) -> Option<(NonNull<u8>, usize, bool)> {
        if s.used == 0 {
            g.idle -= s.opened;
        }
        let (i, zero) = s.take(size)?;
        g.count(size);
        if !s.has_free() && !s.can_open() {
            Self::unlist(g, s, State::Full);
        }
        let addr = s.base + i * s.block;
        Some((NonNull::new(ptr::with_exposed_provenance_mut(addr))?, s.block, zero))
    }

    fn unlist(g: &mut Inner, s: &mut Slab, state: State) {
        debug_assert_eq!(s.state, State::Listed);
        // SAFETY: neighbours in a list are whole slabs of the same heap, under the lock `g` stands for.
        unsafe {
            match s.prev.as_mut() {
                Some(p) => p.next = s.next,
                None => g.classes[s.class].head = s.next,
            }
            if let Some(n) = s.next.as_mut() {
                n.prev = s.prev;
            }
        }
        s.prev = ptr::null_mut();
        s.next = ptr::null_mut();
        s.state = state;
    }

    fn list(g: &mut Inner, s: &mut Slab) {
        debug_assert_ne!(s.state, State::Listed);
        let head = g.classes[s.class].head;
        s.prev = ptr::null_mut();
        s.next = head;
        // SAFETY: as in `unlist`.
        if let Some(h) = unsafe { head.as_mut() } {
            h.prev = s;
        }
        g.classes[s.class].head = s;
        s.state = State::Listed;
    }

    fn alloc_small(&self, class: usize, r: &Request<'_>) -> Result<Grant, PagesError> {
        loop {
            let mut g = self.lock();
            let head = g.classes[class].head;
            // SAFETY: a listed slab is whole, and touched under this lock only.
            let slab = match unsafe { head.as_mut() } {
                Some(s) if s.has_free() => {
                    if let Some(b) = Self::take(&mut g, s, r.size) {
                        drop(g);
                        return Ok(Self::finish(b, r));
                    }
                    continue;
                }
                Some(s) => {
                    Self::unlist(&mut g, s, State::Opening);
                    drop(g);
                    s
                }
                None => {
                    drop(g);
                    // SAFETY: a new slab in state Opening belongs to this thread until it is listed.
                    unsafe { &mut *self.new_slab(class)?.as_ptr() }
                }
            };
            self.open_more(slab)?;
        }
    }

    /// Opens the next step of a slab in state Opening, which this thread owns, and lists it.
    fn open_more(&self, slab: &mut Slab) -> Result<(), PagesError> {
        let mut step = slab.next_step(self.lock().classes[slab.class].opened);
        let at = slab.base + slab.opened;
        // SAFETY: the chunk of a slab lives as long as the slab; its span is not changed by opening pieces.
        let span = unsafe { &(*slab.chunk).span };
        let mut opened = span.open_piece(at, step);
        // What is left of a limit may hold one more block, if not a whole step.
        let least = slab.next_step(0);
        if least < step && opened.is_err_and(|e| e.is_shortage()) {
            step = least;
            opened = span.open_piece(at, step);
        }
        let mut g = self.lock();
        match opened {
            Ok(()) => {
                slab.add_opened(step);
                // New, or freed whole while it was being opened.
                if slab.used == 0 {
                    g.idle += slab.opened;
                }
                g.classes[slab.class].opened += step;
                g.slab_opened += step;
                Self::list(&mut g, slab);
                Ok(())
            }
            Err(e) => {
                // The slab stays, for a smaller step or a better time, unless it has nothing at all.
                if slab.has_free() || slab.can_open() && slab.opened != 0 {
                    if slab.used == 0 {
                        g.idle += slab.opened;
                    }
                    Self::list(&mut g, slab);
                    drop(g);
                } else if slab.opened != 0 {
                    slab.state = State::Full;
                    drop(g);
                } else {
                    drop(g);
                    self.drop_slab(slab);
                }
                Err(e)
            }
        }
    }

    /// A slab in state Opening with nothing open, from a chunk with room or a new one.
    fn new_slab(&self, class: usize) -> Result<NonNull<Slab>, PagesError> {
        let bytes = slab::slab_bytes(class::bytes(class));
        let (chunk, slot) = loop {
            let mut g = self.lock();
            let mut c = g.chunks;
            // SAFETY: chunks in the list are whole and touched under this lock only.
            let found = unsafe {
                loop {
                    match c.as_mut() {
                        None => break None,
                        Some(k) if k.slab_bytes == bytes => match k.free_slot() {
                            Some(slot) => {
                                k.taken |= 1 << slot;
                                break Some((c, slot));
                            }
                            None => c = k.next,
                        },
                        Some(k) => c = k.next,
                    }
                }
            };
            drop(g);
            if let Some(f) = found {
                break f;
            }
            let span = Span::reserve(*self.spec(), CHUNK, page_size())?;
            let p = match meta::alloc(size_of::<Chunk>(), Use::Other) {
                Ok(p) => p.cast::<Chunk>(),
                Err(e) => {
                    span.release();
                    return Err(e);
                }
            };
            g = self.lock();
            // SAFETY: the piece is large and aligned enough and nobody else's.
            unsafe {
                p.write(Chunk {
                    span,
                    slab_bytes: bytes,
                    taken: 0,
                    slabs: [ptr::null_mut(); CHUNK_SLABS],
                    stale: false,
                    next: g.chunks,
                });
            }
            g.chunks = p.as_ptr();
        };
        // SAFETY: the slot is taken, so the chunk stays; its span does not change.
        let (base, epoch) = unsafe { ((*chunk).slab_base(slot), fork::epoch()) };
        let made = Slab::create(self, class, chunk, slot, base, epoch).and_then(|s| {
            match map::set(base, bytes, s.as_ptr().cast()) {
                Ok(()) => Ok(s),
                Err(e) => {
                    // SAFETY: just made, known to nobody.
                    unsafe { Slab::destroy(s) };
                    Err(e)
                }
            }
        });
        let g = self.lock();
        // SAFETY: as above; under the lock.
        let c = unsafe { &mut *chunk };
        match made {
            Ok(s) => {
                c.slabs[slot] = s.as_ptr();
                Ok(s)
            }
            Err(e) => {
                c.taken &= !(1 << slot);
                self.drop_chunk_if_empty(g, chunk);
                Err(e)
            }
        }
    }

    /// Ends a slab without blocks that is in no list; its pages go back. If the kernel will not take them, the
    /// slab is listed again.
    fn drop_slab(&self, slab: &mut Slab) {
        debug_assert_eq!(slab.used, 0);
        let bytes = slab::slab_bytes(slab.block);
        let (chunk, slot, opened) = (slab.chunk, slab.slot, slab.opened);
        map::clear(slab.base, bytes);
        // SAFETY: the slab's slot is taken, so its chunk stays.
        let closed = opened == 0 || unsafe { &(*chunk).span }.close_piece(slab.base, opened, slab.epoch);
        if !closed {
            // Its leaf of the page map exists, so this cannot fail.
            let _ = map::set(slab.base, bytes, (&raw mut *slab).cast());
            let mut g = self.lock();
            slab.fresh = slab.total; // never zero any more
            if slab.epoch == g.epoch {
                g.idle += opened;
                Self::list(&mut g, slab);
            } else {
                slab.state = State::Stale;
            }
            return;
        }
        let mut g = self.lock();
        if slab.epoch == g.epoch {
            g.slab_opened -= opened;
            g.classes[slab.class].opened -= opened;
        }
        // SAFETY: in no list, no map, no block handed out; the chunk forgets it under the lock.
        unsafe {
            (*chunk).slabs[slot] = ptr::null_mut();
            (*chunk).taken &= !(1 << slot);
            Slab::destroy(NonNull::from(slab));
        }
        self.drop_chunk_if_empty(g, chunk);
    }

    /// Releases a chunk without slabs. One that is empty is kept as long as it is the only one of its kind: it
    /// costs address space and nothing else.
    fn drop_chunk_if_empty(&self, mut g: Guard<'_, Inner>, chunk: *mut Chunk) {
        // SAFETY: the chunk is in the list of this heap, under the lock.
        unsafe {
            if (*chunk).taken != 0 {
                return;
            }
            let mut link: *mut *mut Chunk = &mut g.chunks;
            while !(*link).is_null() && *link != chunk {
                link = &mut (**link).next;
            }
            if (*link).is_null() {
                return;
            }
            *link = (*chunk).next;
            drop(g);
            let span = ptr::read(&raw const (*chunk).span);
            span.release();
            if let Some(p) = NonNull::new(chunk) {
                meta::free(p.cast(), size_of::<Chunk>(), Use::Other);
            }
        }
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
        g.count(r.size);
        g.large_locked += locked;
        drop(g);
        match NonNull::new(ptr::with_exposed_provenance_mut(start)) {
            Some(ptr) => Ok(Grant { ptr, usable: len }),
            None => Err(PagesError::overflow(r.size)), // unreachable: the kernel does not map page 0
        }
    }
}
