//! Runs operations on the library and on the model, and compares.

use crate::ground::{CACHE_LIMIT, COMPUTED, LOCK_LIMIT, RELEASED, good, none, release, short, soft_limit};
use crate::model::{ABSURD, Alloc, Ask, Block, Can, End, Model, Parts, pattern, sampled};
use core::alloc::Layout;
use core::ptr::NonNull;
use pinned_alloc::os::{fault, procfs};
use pinned_alloc::partition::{Lifetime, MemPartitioner};
use pinned_alloc::traits::{Access, Alignment, Fallback, Partition, SyncHint};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, BlockInfo, Error, ForkPolicy, HugePages, MemSpace, PinnedAlloc,
    ReallocPolicy, Reserve, process_stats, routines, set_cache_limit, trim,
};
use pinned_alloc_fuzz::Bytes;
use std::sync::atomic::Ordering::Relaxed;

/// Requested bytes that may live at once.
const LIVE_MAX: usize = 24 << 20;
static ZEROS: [u8; 4096] = [0; 4096];

/// The library, and the model beside it.
pub struct Machine {
    pub(crate) m: Model,
    /// 2: the lock limit changes; 3: system calls fail.
    pub(crate) mode: u8,
    pub(crate) partitioners: Vec<MemPartitioner>,
    /// An allocator to look at things with.
    pub(crate) eye: PinnedAlloc,
    /// Threads of this run so far.
    pub(crate) threads: usize,
    pub(crate) seed: u8,
    /// `VmLck` before the run.
    pub(crate) base: u64,
    /// `FUZZ_TRACE` is set: say what is done.
    pub(crate) trace: bool,
}

pub(crate) fn nn(addr: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).expect("not null")
}

impl Machine {
    pub fn new(mode: u8) -> Self {
        let eye = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).expect("predefined");
        COMPUTED.store(0, Relaxed);
        RELEASED.store(0, Relaxed);
        let s = process_stats();
        assert_eq!((s.locked, s.mapped, s.live_blocks), (0, 0, 0));
        let base = procfs::vm_locked().expect("/proc");
        let trace = std::env::var_os("FUZZ_TRACE").is_some();
        let m = Model::new(soft_limit(LOCK_LIMIT));
        Self { m, mode, partitioners: Vec::new(), eye, threads: 0, seed: 0, base, trace }
    }

    pub fn step(&mut self, b: &mut Bytes) {
        let op = b.byte() % 32;
        if self.trace {
            let name = match op {
                0..=3 => "init",
                4..=10 => "alloc",
                11..=18 => "realloc",
                19..=22 => "free",
                23 => "destroy",
                24 => "wild",
                25 => "trim",
                26 => "partitioner",
                27 => "by_thread",
                28 => "hold",
                29 => "disturb",
                30 => "set_default",
                _ => "stats",
            };
            eprintln!("{name} {:?}", &b.0[..b.0.len().min(16)]);
        }
        match op {
            0..=3 => self.init(b),
            4..=10 => self.alloc(b),
            11..=18 => self.realloc(b),
            19..=22 => self.free(b),
            23 => self.destroy(b),
            24 => self.wild(b),
            25 => self.trim(b),
            26 => self.partitioner(b),
            27 => self.by_thread(b),
            28 => self.hold(b),
            29 => self.disturb(b),
            30 => {
                let h = self.any_handle(b);
                routines::set_default_allocator(h);
                self.m.default = if h == AllocatorHandle::NULL { AllocatorHandle::DEFAULT_MEM } else { h };
                assert_eq!(routines::get_default_allocator(), self.m.default);
            }
            _ => self.stats(),
        }
    }

    pub(crate) fn info(&self, addr: usize) -> Option<BlockInfo> {
        self.eye.info(NonNull::new(std::ptr::without_provenance_mut(addr))?)
    }

    /// The handle of some allocator, dead or alive, or a number that is none.
    pub(crate) fn any_handle(&self, b: &mut Bytes) -> AllocatorHandle {
        match b.byte() {
            0..=9 => AllocatorHandle::NULL,
            10 => AllocatorHandle::from_raw(b.word()),
            11 => AllocatorHandle::LLVM_TARGET_HOST_MEM,
            // The next one in the slot of the last one, perhaps.
            12 => {
                let last = self.m.allocs[self.m.allocs.len() - 1].handle.raw();
                AllocatorHandle::from_raw(last.wrapping_add(1 << 32))
            }
            n => self.m.allocs[usize::from(n) % self.m.allocs.len()].handle,
        }
    }

    /// A block, if there is one.
    pub(crate) fn any_block(&self, b: &mut Bytes) -> Option<Block> {
        let n = b.byte();
        let i = usize::from(n).checked_rem(self.m.blocks.len())?;
        self.m.blocks.values().nth(i).cloned()
    }

    pub(crate) fn init(&mut self, b: &mut Bytes) {
        if self.m.allocs.len() > 40 {
            return;
        }
        let space = b.pick(&[
            MemSpace::Default,
            MemSpace::LargeCap,
            MemSpace::HighBw,
            MemSpace::LowLat,
            MemSpace::Null,
            MemSpace::Nodes(pinned_alloc::os::topology::NodeSet::from_bits(5)),
        ]);
        let mut a = AllocatorBuilder::new().mem_space(space);
        let what = b.byte();
        a = a.pinned(what & 1 != 0);
        if what & 2 != 0 {
            a = a.alignment(Alignment::new(1 << (b.byte() % 16)).expect("a power of two"));
        }
        if what & 4 != 0 {
            a = a.pool_size(b.size().max(1));
        }
        a = a.fallback(match b.byte() % 8 {
            0 | 1 => Fallback::DefaultMem,
            2..=4 => Fallback::Null,
            _ => Fallback::Allocator(self.any_handle(b)),
        });
        let mut parts = Parts::None;
        if what & 8 != 0 {
            let partition = match b.byte() % 6 {
                0 => Partition::Nearest,
                1 => Partition::Blocked,
                2 => Partition::Interleaved,
                _ => match usize::from(b.byte()).checked_rem(self.partitioners.len()) {
                    Some(i) => {
                        parts = Parts::Of(i);
                        Partition::Partitioner(self.partitioners[i])
                    }
                    None => Partition::Environment,
                },
            };
            a = a.partition(partition).partitioner_arg(b.below(220)).part_size(1 + b.half());
        }
        if what & 16 != 0 {
            use Access::*;
            a = a.access(b.pick(&[Thread, Thread, All, MemSpace, Device, CGroup, PTeam]));
            a = a.sync_hint(b.pick(&[SyncHint::Private, SyncHint::Serialized, SyncHint::Uncontended]));
        }
        if what & 32 != 0 {
            a = a.reserve(match b.byte() % 4 {
                0 => Reserve::Times(b.pick(&[0, 1, 2, 3, 16, u32::MAX])),
                _ => Reserve::Bytes(b.size()),
            });
            a = a.realloc_policy(b.pick(&[ReallocPolicy::Fixed, ReallocPolicy::MayMove]));
        }
        if what & 64 != 0 {
            a = a.lock_ahead(b.size().min(8 << 20));
        }
        if what & 128 != 0 {
            a = a.fork_policy(b.pick(&[ForkPolicy::DontFork, ForkPolicy::WipeOnFork, ForkPolicy::Keep]));
            a = a.huge_pages(b.pick(&[HugePages::Never, HugePages::Auto])).dump(b.flag());
        }
        let own = b.flag();
        let made = if own { a.build() } else { a.into_handle().and_then(PinnedAlloc::from_handle) };
        match made {
            Ok(face) => {
                if self.trace {
                    eprintln!("  {}: {face:?}", self.m.allocs.len());
                }
                let (handle, traits, policy) = (face.handle(), *face.traits(), *face.policy());
                assert_eq!(traits, *a.traits());
                assert!(self.m.allocs.iter().all(|a| a.handle != handle), "a handle that was another's");
                self.m.allocs.push(Alloc {
                    handle,
                    alive: true,
                    face: own.then_some(face),
                    traits,
                    policy,
                    parts,
                });
            }
            Err(e) => assert!(self.m.faults, "{e}"),
        }
    }

    pub(crate) fn partitioner(&mut self, b: &mut Bytes) {
        if b.flag()
            && let Some(i) = usize::from(b.byte()).checked_rem(self.partitioners.len())
        {
            self.partitioners[i].destroy();
            self.m.partitioners[i] = false;
            assert!(MemPartitioner::from_raw(self.partitioners[i].raw()).is_none());
        } else if self.partitioners.len() < 12 {
            let life = b.pick(&[Lifetime::Static, Lifetime::Allocator, Lifetime::Dynamic]);
            let kind = b.below(5);
            let p = MemPartitioner::new(life, [good, good, good, short, none][kind], Some(release));
            self.partitioners.push(p.expect("fewer than 64"));
            self.m.partitioners.push(kind < 3);
        }
    }

    /// Whether `size` bytes more are within what a run may have.
    pub(crate) fn affordable(&self, size: usize) -> bool {
        size >= ABSURD || self.m.live() + size <= LIVE_MAX && self.m.blocks.len() < 200
    }

    /// What the model says of a request to `origin`.
    pub(crate) fn forecast(&mut self, origin: usize, ask: Ask) -> (Vec<usize>, End, Vec<Can>) {
        let (chain, end) = self.m.chain(origin);
        let can = chain.iter().map(|&s| self.m.fresh(origin, s, ask, None)).collect();
        (chain, end, can)
    }

    pub(crate) fn alloc(&mut self, b: &mut Bytes) {
        let (size, how) = (b.size(), b.byte() % 8);
        if !self.affordable(size) {
            return;
        }
        let h = self.any_handle(b);
        if how >= 5 {
            return self.alloc_by_face(b, h, size, how == 5);
        }
        let align = if how < 2 { 1 } else { b.align() };
        let legal = align == 0 || align.is_power_of_two();
        let zero = how % 2 == 1;
        let count = if zero { b.below(4) + 1 } else { 1 };
        let bytes = size.saturating_mul(count);
        if !self.affordable(bytes) {
            return;
        }
        let origin = self.m.target(h);
        let ask = Ask { size: bytes, align: align.max(1), thread: 0 };
        if self.trace {
            eprintln!("  alloc {bytes} aligned {align} of {origin:?} {:#x}", h.raw());
        }
        let cast = origin.filter(|_| legal && bytes != 0).map(|o| self.forecast(o, ask));
        let got = match how {
            0 => routines::alloc(size, h),
            1 => routines::calloc(count, size, h),
            2 | 4 => routines::aligned_alloc(align, size, h),
            _ => routines::aligned_calloc(align, count, size, h),
        };
        let Some((chain, end, can)) = cast else {
            match got {
                Ok(p) => assert!(p.is_null() && bytes == 0),
                Err(e) if !legal => assert_eq!(e, Error::Alignment { align }),
                Err(e) => {
                    let h = if h == AllocatorHandle::NULL { self.m.default } else { h };
                    assert_eq!(e, Error::Handle { handle: h });
                }
            }
            return;
        };
        match got {
            Ok(p) => self.adopt(p.addr(), ask, chain, can, zero),
            Err(e) => self.m.check_failure(&can, end, &e),
        }
    }

    /// A face of the allocator of `h`, or of one that is dead and whose face was kept.
    pub(crate) fn face(&self, h: AllocatorHandle) -> Option<(usize, PinnedAlloc)> {
        if let Some(i) = self.m.allocs.iter().position(|a| a.handle == h && a.face.is_some()) {
            return self.m.allocs[i].face.clone().map(|f| (i, f));
        }
        Some((self.m.target(h)?, PinnedAlloc::from_handle(h).ok()?))
    }

    pub(crate) fn alloc_by_face(&mut self, b: &mut Bytes, h: AllocatorHandle, size: usize, zero: bool) {
        let Ok(layout) = Layout::from_size_align(size, b.align()) else { return };
        let Some((origin, face)) = self.face(h) else { return };
        let ask = Ask { size, align: layout.align(), thread: 0 };
        if self.trace {
            eprintln!("  alloc {layout:?} of {origin} by face");
        }
        let (chain, end, can) = self.forecast(origin, ask);
        match if zero { face.allocate_zeroed(layout) } else { face.allocate(layout) } {
            Ok(p) => {
                assert_eq!((p.len(), p.cast::<u8>().addr().get() % layout.align()), (size, 0));
                if size != 0 {
                    self.adopt(p.cast::<u8>().addr().get(), ask, chain, can, zero);
                }
            }
            Err(e) => self.m.check_failure(&can, end, &e),
        }
    }

    /// Takes in a block that was just handed out to a request to the first of `chain`.
    pub(crate) fn adopt(&mut self, addr: usize, ask: Ask, chain: Vec<usize>, can: Vec<Can>, zero: bool) {
        let i = self.info(addr).expect("a block that was just handed out");
        let (origin, served_by) = (self.m.named(i.asked_of), self.m.named(i.served_by));
        assert_eq!(origin, chain[0]);
        self.m.check_server(&chain, &can, served_by);
        let group = self.m.group(served_by, ask.thread);
        self.take(addr, ask.size, ask.align, origin, served_by, group, if zero { 0 } else { ask.size });
    }

    /// Checks a block and takes it in. Bytes from `zero_from` on have to be zero.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn take(
        &mut self,
        addr: usize,
        size: usize,
        align: usize,
        origin: usize,
        server: usize,
        group: usize,
        zero_from: usize,
    ) {
        let i = self.info(addr).expect("a live block");
        let (o, s) = (&self.m.allocs[origin].traits, &self.m.allocs[server].traits);
        for a in [16, align, o.alignment.get(), s.alignment.get()] {
            assert_eq!(addr % a, 0, "{addr:#x} is not aligned to {a}");
        }
        assert_eq!((i.requested, i.is_pinned()), (size, s.pinned));
        assert!(i.usable >= size && i.capacity >= i.usable, "{i:?}");
        assert!(self.eye.is_pinned(nn(addr)) == s.pinned && self.eye.usable_size(nn(addr)) == i.usable);
        if s.pool_size.is_some_and(|n| i.pool_used > n) {
            panic!("{i:?} exceeds its pool");
        }
        if zero_from < size {
            // SAFETY: the block has `size` bytes and is live.
            let bytes =
                unsafe { std::slice::from_raw_parts(nn(addr).as_ptr().add(zero_from), size - zero_from) };
            assert!(bytes.chunks(ZEROS.len()).all(|c| c == &ZEROS[..c.len()]), "not zero");
        }
        self.seed = self.seed.wrapping_add(37);
        let block = Block {
            addr,
            size,
            usable: i.usable,
            align,
            asked_of: origin,
            served_by: server,
            group,
            seed: self.seed,
        };
        for r in sampled(size, size) {
            let bytes = pattern(block.seed, r.clone());
            // SAFETY: within the block, which is live and nobody else's.
            unsafe { nn(addr).as_ptr().add(r.start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        if self.trace {
            eprintln!("  -> {block:?} {i:?}");
        }
        self.m.insert(block);
        assert_eq!(i.pool_used, self.m.used(server, group));
    }

    /// Checks the first `upto` bytes of what was written to `b`, at `addr`.
    pub(crate) fn check_contents(b: &Block, addr: usize, upto: usize) {
        for r in sampled(b.size, upto) {
            let want = pattern(b.seed, r.clone());
            // SAFETY: within a live block.
            let is = unsafe { std::slice::from_raw_parts(nn(addr).as_ptr().add(r.start), r.len()) };
            assert!(is == want, "bytes {r:?} of {b:?} at {addr:#x}");
        }
    }

    pub(crate) fn free(&mut self, b: &mut Bytes) {
        let Some(block) = self.any_block(b) else { return };
        Self::check_contents(&block, block.addr, block.size);
        self.m.blocks.remove(&block.addr);
        let h = self.any_handle(b);
        let by_face = b.flag().then(|| self.face(self.m.allocs[block.asked_of].handle)).flatten();
        let p = nn(block.addr);
        match by_face {
            Some((i, face)) if i == block.asked_of => {
                let layout = Layout::from_size_align(block.size, block.align).expect("its layout");
                // SAFETY: a live block of the model, of that allocator, and forgotten.
                unsafe { face.deallocate(p, layout) };
            }
            // SAFETY: a live block of the model, which has forgotten it.
            _ => unsafe { routines::free(p.as_ptr(), h).expect("a live block") },
        }
        assert!(self.info(block.addr).is_none());
        // SAFETY: no block begins there any more: answered, not dereferenced.
        assert!(unsafe { routines::free(p.as_ptr(), h) }.is_err());
    }

    pub fn check_totals(&self) {
        let s = process_stats();
        assert_eq!((s.live_blocks, s.requested), (self.m.blocks.len(), self.m.live()));
        assert!(s.locked <= LOCK_LIMIT as usize && s.locked <= s.locked_peak);
    }

    pub(crate) fn check_kernel(&self) {
        let locked = procfs::vm_locked().expect("/proc") - self.base;
        assert_eq!(locked, process_stats().locked as u64, "VmLck");
    }

    pub fn finish(mut self) {
        fault::disarm();
        self.check_kernel();
        self.stats();
        soft_limit(LOCK_LIMIT);
        routines::set_default_allocator(AllocatorHandle::NULL);
        for (i, block) in std::mem::take(&mut self.m.blocks).into_values().enumerate() {
            Self::check_contents(&block, block.addr, block.size);
            if i % 3 == 1 {
                let a = &mut self.m.allocs[block.asked_of];
                a.face = None;
                if i % 2 == 1 {
                    routines::destroy_allocator(a.handle);
                }
            }
            // SAFETY: a live block, freed once.
            unsafe { routines::free(nn(block.addr).as_ptr(), AllocatorHandle::NULL).expect("a live block") };
        }
        for a in self.m.allocs.drain(..).rev() {
            drop(a.face);
            routines::destroy_allocator(a.handle);
        }
        for p in &self.partitioners {
            p.destroy();
        }
        assert_eq!(COMPUTED.load(Relaxed), RELEASED.load(Relaxed), "partitions computed and released");
        set_cache_limit(CACHE_LIMIT);
        trim(0);
        let s = process_stats();
        assert_eq!(
            (s.live_blocks, s.requested, s.locked, s.mapped, s.cached, s.stranded),
            (0, 0, 0, 0, 0, 0)
        );
        assert!(s.allocators <= 9, "{s:?}");
        self.check_kernel();
    }
}
