//! One allocator: its traits, resolved once, and a request's way through it.
//!
//! Blocks that A asked for and B serves (because A's fallback led there) live in a heap of their own, "A served
//! by B". So a block knows both without a word of its own: the pool of B is charged, and a later `realloc`
//! without an allocator asks A again.
//!
//! Where `access` gives each thread (team, contention group) its own pool, each group has its own heap as well,
//! and `nearest` has one a node.

use super::error::Error;
use super::policy::Policy;
use super::pool::Pool;
use super::space::MemSpace;
use super::table::{self, Allocator};
use super::traits::{Access, Fallback, Partition, Traits};
use crate::heap::{Grant, Heap, Request, Tag};
use crate::os::topology::NodeSet;
use crate::os::{numa, page_size, thread};
use crate::pages::{Part, Place, SpanSpec, meta, page_up};
use core::fmt::Write;
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// Everything of an allocator that does not change.
pub(crate) struct Core {
    pub(crate) space: MemSpace,
    pub(crate) traits: Traits,
    pub(crate) policy: Policy,
    spec: SpanSpec,
}

/// Counters of one allocator.
pub(crate) struct Counts {
    pub(crate) fallbacks: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(super) recycled: AtomicBool,
}

impl Counts {
    pub(super) const fn new() -> Self {
        Self { fallbacks: AtomicU64::new(0), failures: AtomicU64::new(0), recycled: AtomicBool::new(false) }
    }

    pub(super) fn clear(&self) {
        self.fallbacks.store(0, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }
}

/// A pool of one access group.
pub(crate) struct PoolCell {
    pub(super) pool: Pool,
    pub(super) group: AtomicU64,
    pub(super) next: AtomicPtr<PoolCell>,
}

/// A heap of one allocator: for one server, one access group, one node.
pub(crate) struct SubHeap {
    heap: AtomicPtr<Heap>,
    server: AtomicU32,
    node: AtomicU32,
    group: AtomicU64,
    pub(super) next: AtomicPtr<SubHeap>,
}

impl SubHeap {
    pub(super) fn heap(&self) -> &'static Heap {
        // SAFETY: set when the record is made, to a heap, which is never freed.
        unsafe { &*self.heap.load(Ordering::Acquire) }
    }

    pub(super) fn server(&self) -> u32 {
        self.server.load(Ordering::Relaxed)
    }
}

impl Core {
    pub(super) const EMPTY: Core = Core {
        space: MemSpace::Default,
        traits: Traits::DEFAULT,
        policy: Policy::DEFAULT,
        spec: SpanSpec::PLAIN,
    };

    pub(super) fn new(space: MemSpace, traits: Traits, policy: Policy) -> Core {
        let spec = SpanSpec {
            pinned: traits.pinned,
            fork: policy.fork,
            dump: policy.dump,
            huge: policy.huge_pages,
            place: Self::place(space, &traits),
            threads: policy.populate_threads.max(1),
        };
        Core { space, traits, policy, spec }
    }

    fn place(space: MemSpace, traits: &Traits) -> Place {
        if let Partition::Partitioner(_) = traits.partition {
            return Place::Listed;
        }
        if !numa::several() {
            return Place::Any;
        }
        let nodes = space.nodes();
        match traits.partition {
            Partition::Environment if space.is_open() => Place::Any,
            Partition::Environment | Partition::Nearest | Partition::Partitioner(_) => Place::Prefer(nodes),
            Partition::Blocked => Place::Blocked(nodes),
            Partition::Interleaved => match traits.part_size.and_then(page_up) {
                Some(p) if p > page_size() => Place::Striped(nodes, p),
                _ => Place::Interleave(nodes),
            },
        }
    }

    /// The demands on pages for a request of `size` bytes from a thread on `node`.
    fn spec_for(&self, node: u32) -> SpanSpec {
        let mut s = self.spec;
        if self.traits.partition == Partition::Nearest && numa::several() {
            let one = numa::topology().nearest(node as u8, self.space.nodes()).and_then(NodeSet::single);
            s.place = Place::Prefer(one.unwrap_or(self.space.nodes()));
        }
        s
    }

    /// Address space to keep behind a block of `size` bytes.
    pub(crate) fn reserve(&self, size: usize) -> usize {
        self.policy.reserve.map_or(0, |r| r.bytes(size))
    }
}

/// Where cgroup and pteam groups come from, if an OpenMP runtime tells; else the process is one group.
fn group(access: Access) -> u64 {
    match access {
        Access::All | Access::MemSpace | Access::Device | Access::CGroup | Access::PTeam => 0,
        Access::Thread => thread::number(),
    }
}

impl Allocator {
    /// Serves a request to this allocator, by itself or through its fallback.
    ///
    /// `size` is not 0; `align` is a power of two.
    ///
    /// # Errors
    /// The last allocator of the chain could not serve, and its fallback is `null_fb`.
    pub(crate) fn allocate(&'static self, size: usize, align: usize, zero: bool) -> Result<Grant, Error> {
        self.chain(size, |server| self.serve(server, size, align, zero, None).map(|(g, _)| g))
    }

    /// Walks the fallback chain: this allocator, then whom its fallback names, each once. `attempt` is made for
    /// each until it succeeds.
    pub(crate) fn chain<R>(
        &'static self,
        size: usize,
        mut attempt: impl FnMut(&'static Allocator) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut asked = [0u32; 64];
        let mut n = 0;
        let mut server = self;
        loop {
            let e = match attempt(server) {
                Ok(r) => {
                    if n != 0 {
                        self.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
                        server.exit();
                    }
                    return Ok(r);
                }
                Err(e) => e,
            };
            asked[n] = server.index();
            let fallback = server.core().traits.fallback;
            if n != 0 {
                server.exit();
            }
            n += 1;
            let next = match fallback {
                Fallback::Null => Err(e),
                Fallback::Abort => give_up(size, &e),
                Fallback::DefaultMem => table::default_mem(),
                Fallback::Allocator(h) => table::enter(h).map_err(|_| Error::FallbackGone { handle: h }),
            };
            server = match next {
                Ok(s) if n < asked.len() && !asked[..n].contains(&s.index()) => s,
                Ok(s) => {
                    s.exit();
                    self.counts.failures.fetch_add(1, Ordering::Relaxed);
                    return Err(if matches!(fallback, Fallback::DefaultMem) {
                        e
                    } else {
                        Error::FallbackCycle
                    });
                }
                Err(e) => {
                    self.counts.failures.fetch_add(1, Ordering::Relaxed);
                    return Err(e);
                }
            };
        }
    }

    /// One attempt: a block that was asked of `self`, from `server`'s pool and in `server`'s kind of memory.
    ///
    /// `given_up` is a pool and bytes charged to it that the caller gives up for the new block. If it is the same
    /// pool, the charge passes over to the block as far as it goes, and how far that was comes back as well: so a
    /// pool has to have room for the difference only.
    pub(crate) fn serve(
        &'static self,
        server: &'static Allocator,
        size: usize,
        align: usize,
        zero: bool,
        given_up: Option<(&'static Pool, usize)>,
    ) -> Result<(Grant, usize), Error> {
        if size > isize::MAX as usize {
            return Err(Error::Size);
        }
        // The traits of both hold: the stronger promise breaks none.
        let (mine, core) = (self.core(), server.core());
        let align = align.max(mine.traits.alignment.get()).max(core.traits.alignment.get()).max(16);
        if align > super::traits::Alignment::MAX {
            return Err(Error::Alignment { align });
        }
        let (heap, pool) = self.heap_for(server)?;
        let hopeless = core.traits.pinned
            && !matches!(core.traits.fallback, Fallback::Null | Fallback::Abort)
            && heap.skip(size);
        let kept = given_up.filter(|g| ptr::eq(g.0, pool)).map_or(0, |g| g.1.min(size));
        let asked = size - kept;
        if asked != 0 {
            pool.charge(asked).map_err(|(pool_size, used)| Error::Pool { pool_size, used, asked })?;
        }
        let reserve = core.reserve(size);
        let got = if hopeless {
            // No page can be had; a place in one that is open can.
            heap.alloc_ready(&Request { size, align, zero, reserve, parts: &[] }).ok_or(Error::Exhausted)
        } else if size <= page_size() {
            heap.alloc(&Request { size, align, zero, reserve, parts: &[] }).map_err(Error::from)
        } else {
            server.with_parts(size, |parts| {
                heap.alloc(&Request { size, align, zero, reserve, parts }).map_err(Error::from)
            })
        };
        match got {
            Ok(g) => Ok((g, kept)),
            Err(e) => {
                pool.uncharge(asked);
                Err(e)
            }
        }
    }

    /// Runs `with` with the parts that a partitioner gives for `size` bytes; with none where there is none.
    pub(crate) fn with_parts<R>(
        &self,
        size: usize,
        with: impl FnOnce(&[Part]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let core = self.core();
        match core.traits.partition {
            Partition::Partitioner(p) => {
                let whole = page_up(size).ok_or(Error::Size)?;
                p.parts(core.space, whole, core.traits.partitioner_arg, self, with)
            }
            _ => with(&[]),
        }
    }

    /// The heap for blocks that are asked of `self` and served by `server` for the calling thread.
    fn heap_for(&'static self, server: &'static Allocator) -> Result<(&'static Heap, &'static Pool), Error> {
        let core = server.core();
        let g = group(core.traits.access);
        let node = if core.traits.partition == Partition::Nearest && numa::several() {
            numa::here() as u32
        } else {
            0
        };
        let mut p = self.heaps.load(Ordering::Acquire);
        // SAFETY: sub-heaps are never freed, and leave this list only when the allocator has no users.
        while let Some(h) = unsafe { p.as_ref() } {
            if h.server() == server.index()
                && h.group.load(Ordering::Relaxed) == g
                && h.node.load(Ordering::Relaxed) == node
            {
                let heap = h.heap();
                return Ok((heap, pool_of(heap)));
            }
            p = h.next.load(Ordering::Acquire);
        }
        self.new_heap(server, g, node)
    }

    #[cold]
    fn new_heap(
        &'static self,
        server: &'static Allocator,
        g: u64,
        node: u32,
    ) -> Result<(&'static Heap, &'static Pool), Error> {
        let spec = server.core().spec_for(node);
        let mut spare = table::LISTS.lock();
        // Another thread may have been faster.
        let mut p = self.heaps.load(Ordering::Acquire);
        // SAFETY: as in `heap_for`.
        while let Some(h) = unsafe { p.as_ref() } {
            let same = h.server() == server.index() && h.node.load(Ordering::Relaxed) == node;
            let owner = h.group.load(Ordering::Relaxed);
            if same && owner == g {
                return Ok((h.heap(), pool_of(h.heap())));
            }
            // A thread that has ended leaves its heap, and its pool once nothing is charged to it, to the next.
            let ended = same && owner != 0 && g != 0 && !thread::may_run(owner) && h.heap().is_empty();
            if ended && pool_of(h.heap()).used() == 0 {
                let cell = server.pool_cell(&mut spare, g)?;
                let tag = self.tag(server, cell);
                // SAFETY: the heap is empty, and only its thread, which has ended, used it.
                if unsafe { h.heap().reset(spec, tag) } {
                    h.group.store(g, Ordering::Relaxed);
                    self.close_if_dead(h.heap());
                    return Ok((h.heap(), &cell.pool));
                }
            }
            p = h.next.load(Ordering::Acquire);
        }
        let cell = server.pool_cell(&mut spare, g)?;
        let tag = self.tag(server, cell);
        let sub = if let Some(s) = spare.take_heap(|h| {
            // SAFETY: a spare heap is empty and nobody's.
            unsafe { h.reset(spec, tag) }
        }) {
            s
        } else {
            let heap = Heap::create(spec, tag)?;
            let p = meta::alloc(size_of::<SubHeap>(), meta::Use::Other)?.cast::<SubHeap>();
            // SAFETY: the piece is large and aligned enough, nobody else's and never freed.
            unsafe {
                p.write(SubHeap {
                    heap: AtomicPtr::new((&raw const *heap).cast_mut()),
                    server: AtomicU32::new(0),
                    node: AtomicU32::new(0),
                    group: AtomicU64::new(0),
                    next: AtomicPtr::new(ptr::null_mut()),
                });
                &*p.as_ptr()
            }
        };
        if server.index() != self.index() {
            server.lend();
        }
        sub.server.store(server.index(), Ordering::Relaxed);
        sub.node.store(node, Ordering::Relaxed);
        sub.group.store(g, Ordering::Relaxed);
        sub.next.store(self.heaps.load(Ordering::Relaxed), Ordering::Relaxed);
        self.heaps.store((&raw const *sub).cast_mut(), Ordering::Release);
        let t = &server.core().traits;
        let plain = t.pool_size.is_none() && t.partition != Partition::Nearest && t.alignment.get() <= 16;
        if server.index() == self.index() && g == 0 && plain && server.core().policy.reserve.is_none() {
            self.fast_key.store(sub.heap().key(), Ordering::Release);
        }
        self.close_if_dead(sub.heap());
        Ok((sub.heap(), &cell.pool))
    }

    /// A heap that came to an allocator as or after it was destroyed: the one who did that may not have seen it.
    fn close_if_dead(&self, heap: &'static Heap) {
        fence(Ordering::SeqCst);
        if !self.is_alive() {
            self.fast_key.store(0, Ordering::Relaxed);
            heap.close();
        }
    }

    fn tag(&self, server: &Allocator, cell: &PoolCell) -> Tag {
        Tag {
            origin: self.index(),
            server: server.index(),
            pool: (&raw const cell.pool).cast(),
            charged: cell.pool.counts(),
        }
    }

    fn pool_cell(&self, spare: &mut table::Spare, g: u64) -> Result<&'static PoolCell, Error> {
        let mut ended = None;
        let mut p = self.pools.load(Ordering::Acquire);
        // SAFETY: pools are never freed, and leave this list only when the allocator has no users.
        while let Some(c) = unsafe { p.as_ref() } {
            let owner = c.group.load(Ordering::Relaxed);
            if owner == g {
                return Ok(c);
            }
            if ended.is_none() && owner != 0 && g != 0 && c.pool.used() == 0 && !thread::may_run(owner) {
                ended = Some(c);
            }
            p = c.next.load(Ordering::Acquire);
        }
        // One of a thread that has ended, but only if this thread has none: a second one would double its pool.
        if let Some(c) = ended {
            c.group.store(g, Ordering::Relaxed);
            return Ok(c);
        }
        let limit = self.core().traits.pool_size;
        let c = table::take_pool(spare, limit.unwrap_or(usize::MAX), limit.is_some() || g != 0)?;
        c.group.store(g, Ordering::Relaxed);
        c.next.store(self.pools.load(Ordering::Relaxed), Ordering::Relaxed);
        self.pools.store((&raw const *c).cast_mut(), Ordering::Release);
        Ok(c)
    }

    /// Locks again, in a child, what was locked in its parent. Bytes locked.
    pub(crate) fn relock(&self) -> Result<usize, Error> {
        let mut done = 0;
        let mut p = self.heaps.load(Ordering::Acquire);
        // SAFETY: as in `heap_for`.
        while let Some(h) = unsafe { p.as_ref() } {
            done += h.heap().relock()?;
            p = h.next.load(Ordering::Acquire);
        }
        Ok(done)
    }

    /// Gives back the idle memory of this allocator. Bytes given back.
    pub(crate) fn release_idle(&self) -> usize {
        let mut done = 0;
        self.each_heap(|h| done += h.trim());
        done
    }

    pub(crate) fn each_heap(&self, mut f: impl FnMut(&'static Heap)) {
        let mut p = self.heaps.load(Ordering::Acquire);
        // SAFETY: as in `heap_for`.
        while let Some(h) = unsafe { p.as_ref() } {
            f(h.heap());
            p = h.next.load(Ordering::Acquire);
        }
    }
}

/// The pool that a heap's blocks are charged to.
pub(crate) fn pool_of(heap: &Heap) -> &'static Pool {
    // SAFETY: every heap of this layer is made with a pool, and pools are never freed.
    unsafe { &*heap.tag().pool.cast::<Pool>() }
}

/// `abort_fb`: a message, and the end of the program.
#[cold]
fn give_up(size: usize, e: &Error) -> ! {
    let mut t = Text::new();
    // Both writes stop at the buffer's end; a cut message is better than none.
    let _ = writeln!(t, "pinned-alloc: cannot allocate {size} bytes, and the fallback is abort_fb: {e}");
    crate::os::die(&[t.as_str()])
}

/// Writes an error and its cure to standard error, without the heap.
#[cold]
pub(crate) fn say(e: &Error) {
    let mut t = Text::new();
    let _ = writeln!(t, "pinned-alloc: {e}");
    crate::os::say(&[t.as_str()]);
    if let Some(c) = e.cure() {
        let mut t = Text::new();
        let _ = write!(t, "{c}");
        crate::os::say(&[t.as_str().trim_end(), "\n"]);
    }
}

/// A line of text without the heap.
pub(super) struct Text {
    buf: [u8; 512],
    len: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Self { buf: [0; 512], len: 0 }
    }

    pub(super) fn as_str(&self) -> &str {
        core::str::from_utf8(&self.buf[..self.len]).unwrap_or("pinned-alloc: an error\n")
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        for c in s.chars() {
            let n = c.len_utf8();
            let Some(to) = self.buf.get_mut(self.len..self.len + n) else { return Err(core::fmt::Error) };
            c.encode_utf8(to);
            self.len += n;
        }
        Ok(())
    }
}
