//! Small blocks as a heap sees them: slabs by class, opened a step at a time, and those without a block.
//!
//! ```text
//!   class ──> listed: slabs with a free block        idle (by size of slab): open, locked, without a block;
//!         └─> growing: slabs with more to open             the next class that needs a slab has them
//! ```
//!
//! Blocks are drawn and returned many at a time. What is open comes first: a listed slab, then an idle one, whatever
//! its class was; then a growing one is opened further, by no more than an eighth of what its class has; then a new
//! one is begun. Idle slabs are kept up to half of the limit of [`cache`](crate::pages::cache), over all heaps.

use super::slab::{self, CHUNK, CHUNK_SLABS, Chunk, Slab, State};
use super::tray::{Batch, Entry};
use super::{Heap, Inner, class};
use crate::os::lock::Guard;
use crate::os::{fork, page_size};
use crate::pages::meta::Use;
use crate::pages::{PagesError, Span, account, cache, map, meta};
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Open bytes of idle slabs of all heaps.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// Told of a closed heap that got its last block back from a thread's tray, where no call of the layer above is under
/// way that would look.
static LATE: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// What [`on_late_return`] takes: the heap, and the `origin` of the tag it had while its last block was out.
type Late = fn(&'static Heap, u32);

/// Sets what is called, without a lock held, when a closed heap has become empty by other means than a free.
pub(crate) fn on_late_return(f: Late) {
    LATE.store(f as *mut (), Ordering::Release);
}

/// Which list of idle slabs is for slabs of this many bytes.
fn kind(slab_bytes: usize) -> usize {
    usize::from(slab_bytes != slab::slab_bytes(16))
}

impl Inner {
    fn list_head(&mut self, s: &Slab) -> &mut *mut Slab {
        match s.state {
            State::Idle => &mut self.idle_slabs[kind(slab::slab_bytes(s.block))],
            _ => &mut self.classes[s.class].head,
        }
    }

    /// Puts a slab at the head of its class's list, or of the idle ones.
    fn link(&mut self, s: &mut Slab, state: State) {
        s.state = state;
        let head = self.list_head(s);
        s.prev = ptr::null_mut();
        s.next = *head;
        // SAFETY: neighbours in a list are whole slabs of the same heap, under the lock that `self` is behind.
        if let Some(h) = unsafe { s.next.as_mut() } {
            h.prev = s;
        }
        *head = s;
    }

    /// Takes it out of the list it is in.
    fn unlink(&mut self, s: &mut Slab, state: State) {
        debug_assert!(matches!(s.state, State::Listed | State::Idle));
        let (prev, next) = (s.prev, s.next);
        // SAFETY: as above.
        unsafe {
            match prev.as_mut() {
                Some(p) => p.next = next,
                None => *self.list_head(s) = next,
            }
            if let Some(n) = next.as_mut() {
                n.prev = prev;
            }
        }
        s.prev = ptr::null_mut();
        s.next = ptr::null_mut();
        s.state = state;
    }

    /// A slab that can be opened further waits for that.
    fn add_growing(&mut self, s: &mut Slab) {
        if s.can_open() && !s.growing {
            s.growing = true;
            s.grow_next = self.classes[s.class].growing;
            self.classes[s.class].growing = s;
        }
    }

    fn remove_growing(&mut self, s: &mut Slab) {
        let this: *mut Slab = s;
        let mut link: *mut *mut Slab = &mut self.classes[s.class].growing;
        // SAFETY: slabs in the chain are whole, under the lock.
        unsafe {
            while !(*link).is_null() {
                if *link == this {
                    *link = s.grow_next;
                    break;
                }
                link = &mut (**link).grow_next;
            }
        }
        s.growing = false;
        s.grow_next = ptr::null_mut();
    }

    /// A slab without a block, which is in no list, becomes idle.
    pub(super) fn add_idle(&mut self, s: &mut Slab) {
        debug_assert!(s.used == 0 && s.opened != 0);
        if s.growing {
            self.remove_growing(s);
        }
        self.classes[s.class].opened -= s.opened;
        self.idle += s.opened;
        IDLE.fetch_add(s.opened, Ordering::Relaxed);
        self.link(s, State::Idle);
        account::note_reusable();
    }

    /// Takes an idle slab of that kind; it is in no list then.
    pub(super) fn take_idle(&mut self, kind: usize, state: State) -> Option<NonNull<Slab>> {
        let s = NonNull::new(self.idle_slabs[kind])?;
        // SAFETY: a slab in a list is whole, under the lock.
        let slab = unsafe { &mut *s.as_ptr() };
        self.unlink(slab, state);
        self.idle -= slab.opened;
        IDLE.fetch_sub(slab.opened, Ordering::Relaxed);
        Some(s)
    }

    /// Puts a slab of this process back to use whose list is not known: after a fork, or a lock regained.
    pub(super) fn sort_in(&mut self, s: &mut Slab) {
        self.classes[s.class].opened += s.opened;
        self.slab_opened += s.opened;
        s.state = State::Full;
        if s.used == 0 && s.opened != 0 {
            self.add_idle(s);
            return;
        }
        if s.has_free() {
            self.link(s, State::Listed);
        }
        self.add_growing(s);
    }

    /// Forgets all lists: after a fork.
    pub(super) fn forget_lists(&mut self) {
        for c in &mut self.classes {
            c.head = ptr::null_mut();
            c.growing = ptr::null_mut();
            c.opened = 0;
        }
        IDLE.fetch_sub(self.idle.min(IDLE.load(Ordering::Relaxed)), Ordering::Relaxed);
        self.idle_slabs = [ptr::null_mut(); 2];
        self.idle = 0;
        self.slab_opened = 0;
    }

    /// Up to `most` blocks of the class from listed slabs. A slab leaves its list with its last one.
    fn draw_listed(&mut self, class: usize, most: usize, out: &mut Batch) {
        let mut n = 0;
        while n < most {
            // SAFETY: a slab in a list is whole, under the lock.
            let Some(s) = (unsafe { self.classes[class].head.as_mut() }) else { break };
            while n < most
                && let Some(e) = s.take()
            {
                out.push(e);
                n += 1;
            }
            if !s.has_free() {
                self.unlink(s, State::Full);
            }
        }
        self.out += n;
    }

    /// Takes back one block. The slab comes back if it has to be closed; it is in no list then.
    fn give(&mut self, block: *mut u8, keep: usize) -> Option<NonNull<Slab>> {
        let slab = map::get(block.addr()).cast::<Slab>();
        // SAFETY: the slab of a block that is out is whole; under the lock.
        let s = unsafe { slab.as_mut()? };
        s.give(block.addr());
        self.out -= 1;
        match s.state {
            State::Full => self.link(s, State::Listed),
            State::Listed | State::Opening | State::Stale | State::Closing | State::Idle => {}
        }
        if s.used != 0 || s.state == State::Opening {
            return None;
        }
        if s.state == State::Stale {
            s.state = State::Closing;
            return NonNull::new(slab);
        }
        self.unlink(s, State::Full);
        if IDLE.load(Ordering::Relaxed) + s.opened <= keep {
            self.add_idle(s);
            return None;
        }
        if s.growing {
            self.remove_growing(s);
        }
        self.classes[s.class].opened -= s.opened;
        s.state = State::Closing;
        NonNull::new(slab)
    }
}

impl Heap {
    /// One block of what is open; no system call.
    pub(super) fn draw_one(&'static self, class: usize, size: usize) -> Option<NonNull<u8>> {
        let mut out = Batch::new();
        self.lock().draw_listed(class, 1, &mut out);
        self.hand_out(class, size, &out)
    }

    /// Marks the first block of the batch live, and keeps the others ready.
    fn hand_out(&'static self, class: usize, size: usize, out: &Batch) -> Option<NonNull<u8>> {
        let (&first, others) = out.as_slice().split_first()?;
        // SAFETY: the mark of a block that is out; records are never unmapped.
        unsafe { (*first.mark).store(size as u16, Ordering::Relaxed) };
        if !others.is_empty() {
            self.stock(class, others);
        }
        NonNull::new(first.block)
    }

    /// A block of the class; of what else is open, up to `most` in all are kept ready by the calling thread.
    ///
    /// # Errors
    /// No page could be had.
    pub(super) fn draw(
        &'static self,
        class: usize,
        size: usize,
        most: usize,
    ) -> Result<NonNull<u8>, PagesError> {
        let slab_bytes = slab::slab_bytes(class::bytes(class));
        let mut try_idle = true;
        let mut out = Batch::new();
        loop {
            let mut g = self.lock();
            g.draw_listed(class, most, &mut out);
            if !out.is_empty() {
                drop(g);
            } else if let Some(s) = try_idle.then(|| g.take_idle(kind(slab_bytes), State::Opening)).flatten()
            {
                drop(g);
                try_idle = self.adopt(s, class, most, &mut out)?;
            } else if let Some(s) = NonNull::new(g.classes[class].growing) {
                // SAFETY: a growing slab is whole, under the lock; in state Opening it is this thread's.
                let s = unsafe { &mut *s.as_ptr() };
                g.remove_growing(s);
                if s.state == State::Listed {
                    g.unlink(s, State::Opening);
                }
                s.state = State::Opening;
                drop(g);
                self.open_more(s, most, &mut out)?;
            } else {
                drop(g);
                // SAFETY: a new slab in state Opening belongs to this thread until it is listed.
                let s = unsafe { &mut *self.new_slab(class)?.as_ptr() };
                self.open_more(s, most, &mut out)?;
            }
            if let Some(p) = self.hand_out(class, size, &out) {
                return Ok(p);
            }
        }
    }

    /// Makes an idle slab, in state Opening, one of `class`, opens it further if it has no room for one, lists it and
    /// draws from it. False if there is no memory for its record.
    fn adopt(
        &self,
        slab: NonNull<Slab>,
        class: usize,
        most: usize,
        out: &mut Batch,
    ) -> Result<bool, PagesError> {
        // SAFETY: in state Opening it is this thread's.
        let s = unsafe { &mut *slab.as_ptr() };
        if s.class != class {
            let made = Slab::create(self, self.record_key(), class, s.chunk, s.slot, s.base, s.epoch);
            let mut g = self.lock();
            let Ok(new) = made else {
                g.classes[s.class].opened += s.opened;
                g.add_idle(s);
                return Ok(false);
            };
            // SAFETY: a new record that nobody knows; the old one has no block and is in no list, and its chunk stays as
            // long as its slot is taken. The leaves of the map exist, so that setting it cannot fail.
            let n = unsafe {
                let n = &mut *new.as_ptr();
                n.add_opened(s.opened);
                let _ = map::set(s.base, slab::slab_bytes(s.block), new.as_ptr().cast());
                (*s.chunk).slabs[s.slot] = new.as_ptr();
                Slab::destroy(slab);
                n
            };
            g.classes[class].opened += n.opened;
            return self.enter_class(g, n, most, out);
        }
        let mut g = self.lock();
        g.classes[class].opened += s.opened;
        self.enter_class(g, s, most, out)
    }

    fn enter_class(
        &self,
        mut g: Guard<'_, Inner>,
        s: &mut Slab,
        most: usize,
        out: &mut Batch,
    ) -> Result<bool, PagesError> {
        if !s.has_free() {
            drop(g);
            return self.open_more(s, most, out).map(|()| true);
        }
        g.link(s, State::Listed);
        g.add_growing(s);
        g.draw_listed(s.class, most, out);
        Ok(true)
    }

    /// Opens the next step of a slab in state Opening, which this thread owns, lists it and draws from it.
    fn open_more(&self, slab: &mut Slab, most: usize, out: &mut Batch) -> Result<(), PagesError> {
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
        if opened.is_ok() {
            slab.add_opened(step);
            g.classes[slab.class].opened += step;
            g.slab_opened += step;
            g.look();
        }
        if slab.has_free() {
            let class = slab.class;
            g.link(slab, State::Listed);
            g.add_growing(slab);
            // At least one, from this one: so none stays listed without a block.
            g.draw_listed(class, most, out);
            return Ok(());
        }
        if slab.opened != 0 {
            // For a smaller step, or a better time.
            slab.state = State::Full;
            if slab.used == 0 {
                g.add_idle(slab);
            } else {
                g.add_growing(slab);
            }
        } else {
            drop(g);
            self.drop_slab(slab);
        }
        opened
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
        let made = Slab::create(self, self.record_key(), class, chunk, slot, base, epoch).and_then(|s| {
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
    /// slab is idle again.
    pub(super) fn drop_slab(&self, slab: &mut Slab) {
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
            if slab.epoch == g.epoch {
                g.classes[slab.class].opened += opened;
                g.add_idle(slab);
            } else {
                slab.state = State::Stale;
            }
            return;
        }
        let mut g = self.lock();
        if slab.epoch == g.epoch {
            g.slab_opened -= opened;
        }
        // SAFETY: in no list, no map, no block handed out; the chunk forgets it under the lock.
        unsafe {
            (*chunk).slabs[slot] = ptr::null_mut();
            (*chunk).taken &= !(1 << slot);
            Slab::destroy(NonNull::from(slab));
        }
        self.drop_chunk_if_empty(g, chunk);
    }

    /// Releases a chunk without slabs.
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

    /// Takes back blocks that are free and out, of any slabs of this heap. Slabs that become empty are kept up to the
    /// bound, and closed beyond it.
    pub(super) fn give_back(&'static self, blocks: &[Entry]) {
        let keep = cache::limit() / 2;
        let mut dead: *mut Slab = ptr::null_mut();
        let origin;
        {
            let mut g = self.lock();
            origin = self.tag().origin;
            for e in blocks {
                if let Some(s) = g.give(e.block, keep) {
                    // SAFETY: in state Closing, this thread's alone; `next` is free for use.
                    unsafe { (*s.as_ptr()).next = dead };
                    dead = s.as_ptr();
                }
            }
            if !dead.is_null() {
                g.busy += 1;
            }
        }
        if !dead.is_null() {
            // SAFETY: as above.
            while let Some(s) = unsafe { dead.as_mut() } {
                dead = core::mem::replace(&mut s.next, ptr::null_mut());
                self.drop_slab(s);
            }
            self.lock().busy -= 1;
        }
        let late = LATE.load(Ordering::Acquire);
        if !blocks.is_empty() && self.key() == 0 && !late.is_null() && self.is_empty() {
            // SAFETY: only `on_late_return` writes it, and only functions of this type.
            unsafe { core::mem::transmute::<*mut (), Late>(late)(self, origin) };
        }
    }

    /// As [`give_back`](Self::give_back), but makes no call: empty slabs stay idle, for whoever goes on to close them.
    pub(super) fn give_back_quietly(&self, blocks: &[Entry]) {
        let mut g = self.lock();
        for e in blocks {
            if let Some(s) = g.give(e.block, usize::MAX) {
                // Stale, in the child of a fork: its pages are not worth a call here. It stays in its chunk.
                // SAFETY: in state Closing, this thread's alone.
                unsafe { (*s.as_ptr()).state = State::Stale };
            }
        }
    }
}
