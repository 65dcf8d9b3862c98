//! Random programs of OpenMP's routines over random traits, against a plain model.
//!
//! The model knows of each allocator its traits and the bytes charged to its pool, and of each block its size, its
//! contents, whom it was asked of and who serves it. It predicts every answer: which allocator of the fallback chain
//! serves, or that none does. The one thing it leaves open is whether a *pinned* attempt succeeds under a lock limit:
//! it takes what happened and goes on from there; with the right to lock without limit it insists on success.

mod common;

use common::{alone, room};
use pinned_alloc::os::procfs;
use pinned_alloc::traits::{Access, Alignment, Fallback, Partition, SyncHint};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, BlockInfo, Error, ForkPolicy, HugePages, PinnedAlloc, ReallocPolicy,
    Reserve, process_stats, routines, trim,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::ptr::NonNull;
use std::sync::Mutex;

const PAGE: usize = 4096;

#[derive(Debug, Clone)]
struct Kind {
    pinned: bool,
    align_shift: u32,
    pool: Option<usize>,
    /// 0 null, 1 default, 2.. another allocator
    fallback: usize,
    sync: bool,
    thread: bool,
    partition: u8,
    fixed: bool,
    reserve: u8,
    ahead: bool,
    fork: u8,
    huge: bool,
}

#[derive(Debug, Clone)]
enum Op {
    Init(Kind),
    Destroy(usize),
    Alloc { a: usize, align_shift: u32, size: usize, zero: bool },
    Realloc { b: usize, size: usize, to: Option<usize>, fixed: Option<bool> },
    Free(usize),
    Trim(usize),
    Absurd { a: usize, which: u8 },
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        8 => 1usize..300,
        6 => 300usize..20_000,
        3 => 20_000usize..200_000,
        1 => 1_000_000usize..3_000_000,
        2 => (0usize..60, 0usize..3).prop_map(|(p, d)| (p * PAGE + d).saturating_sub(1)),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    (
        (
            any::<bool>(),
            prop_oneof![3 => 0u32..8, 1 => 8u32..22],
            prop::option::of(prop_oneof![1usize..5000, 5000usize..500_000]),
        ),
        (0usize..8, any::<bool>(), any::<bool>(), 0u8..4),
        (any::<bool>(), 0u8..4, any::<bool>(), 0u8..3, any::<bool>()),
    )
        .prop_map(
            |(
                (pinned, align_shift, pool),
                (fallback, sync, thread, partition),
                (fixed, reserve, ahead, fork, huge),
            )| Kind {
                pinned,
                align_shift,
                pool,
                fallback,
                sync,
                thread,
                partition,
                fixed,
                reserve,
                ahead,
                fork,
                huge,
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => kind().prop_map(Op::Init),
        1 => any::<usize>().prop_map(Op::Destroy),
        10 => (any::<usize>(), prop_oneof![4 => Just(0u32), 3 => 0u32..13, 1 => 13u32..22], size(), any::<bool>())
            .prop_map(|(a, align_shift, size, zero)| Op::Alloc { a, align_shift, size, zero }),
        8 => (any::<usize>(), size(), prop::option::weighted(0.3, any::<usize>()), prop::option::of(any::<bool>()))
            .prop_map(|(b, size, to, fixed)| Op::Realloc { b, size, to, fixed }),
        5 => any::<usize>().prop_map(Op::Free),
        1 => (0usize..3).prop_map(|n| Op::Trim(n * 100_000)),
        1 => (any::<usize>(), 0u8..6).prop_map(|(a, which)| Op::Absurd { a, which }),
    ]
}

struct ModelAllocator {
    handle: AllocatorHandle,
    pinned: bool,
    align: usize,
    pool: usize,
    used: usize,
    /// Index of the next one in the chain; `Err(())` is the null fallback, 0 is the default allocator.
    next: Result<usize, ()>,
    alive: bool,
    fixed: bool,
}

struct ModelBlock {
    ptr: *mut u8,
    size: usize,
    seed: u8,
    origin: usize,
    server: usize,
    pinned: bool,
}

fn marks(size: usize) -> impl Iterator<Item = usize> {
    let step = if size > 8 * PAGE { PAGE } else { 13 };
    (0..size).step_by(step).chain((0..size).step_by(step).skip(1).map(|i| i - 1)).chain([size - 1])
}

fn pattern(seed: u8, i: usize) -> u8 {
    seed.wrapping_mul(31) ^ (i ^ (i >> 8)) as u8
}

/// # Safety
/// `[p, p + size)` is the caller's.
unsafe fn fill(p: *mut u8, size: usize, seed: u8) {
    for i in marks(size) {
        // SAFETY: within the block.
        unsafe { p.add(i).write(pattern(seed, i)) };
    }
}

/// # Safety
/// `[p, p + size)` is the caller's, and was filled for `filled` bytes.
unsafe fn check(p: *mut u8, filled: usize, upto: usize, seed: u8) {
    for i in marks(filled).filter(|&i| i < upto) {
        // SAFETY: within the block.
        assert_eq!(unsafe { p.add(i).read() }, pattern(seed, i), "byte {i} of {filled}");
    }
}

struct World {
    any: PinnedAlloc,
    allocators: Vec<ModelAllocator>,
    blocks: Vec<ModelBlock>,
    unlimited: bool,
    seed: u8,
    /// What a failed case before this one left behind: nothing, unless a check failed.
    base: (usize, usize, usize),
}

/// Who serves, as the model sees it.
enum Prediction {
    /// This one, for certain.
    By(usize),
    /// Nobody.
    Nobody,
    /// A pinned one, if the lock limit lets it; else what the rest of the chain gives.
    Maybe(usize, Box<Prediction>),
}

impl Prediction {
    fn allows(&self, server: Option<usize>) -> bool {
        match self {
            Prediction::By(i) => server == Some(*i),
            Prediction::Nobody => server.is_none(),
            Prediction::Maybe(i, rest) => server == Some(*i) || rest.allows(server),
        }
    }
}

impl World {
    fn new() -> Self {
        let any = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
        let probe = routines::alloc(1, AllocatorHandle::DEFAULT_MEM).unwrap();
        let used = any.info(NonNull::new(probe).unwrap()).unwrap().pool_used - 1;
        // SAFETY: a live block, not used again.
        unsafe { routines::free(probe, AllocatorHandle::NULL).unwrap() };
        trim(0);
        let default = ModelAllocator {
            handle: AllocatorHandle::DEFAULT_MEM,
            pinned: false,
            align: 1,
            pool: usize::MAX,
            used,
            next: Err(()),
            alive: true,
            fixed: false,
        };
        World {
            any,
            allocators: vec![default],
            blocks: Vec::new(),
            unlimited: room() == u64::MAX,
            seed: 0,
            base: World::left(),
        }
    }

    fn left() -> (usize, usize, usize) {
        let s = process_stats();
        (s.locked, s.mapped, s.live_blocks)
    }

    fn info(&self, p: *mut u8) -> BlockInfo {
        self.any.info(NonNull::new(p).unwrap()).expect("a live block is known by its address")
    }

    /// `need(server)` is what a request charges to that server's pool.
    fn predict(&self, first: usize, need: impl Fn(usize) -> usize) -> Prediction {
        self.predict_from(first, &need, &mut Vec::new())
    }

    fn predict_from(&self, at: usize, need: &impl Fn(usize) -> usize, asked: &mut Vec<usize>) -> Prediction {
        let a = &self.allocators[at];
        let fits = a.used.checked_add(need(at)).is_some_and(|n| n <= a.pool);
        asked.push(at);
        if fits && (!a.pinned || self.unlimited) {
            return Prediction::By(at);
        }
        let rest = match a.next {
            Ok(n) if self.allocators[n].alive && !asked.contains(&n) => self.predict_from(n, need, asked),
            _ => Prediction::Nobody,
        };
        if fits { Prediction::Maybe(at, Box::new(rest)) } else { rest }
    }

    fn index(&self, h: AllocatorHandle) -> usize {
        self.allocators.iter().rposition(|a| a.handle == h).expect("served by an allocator that was made")
    }

    /// The allocator of a block, by the record it has (its handle may be dead, its number in the model is not).
    fn server_of(&self, p: *mut u8) -> usize {
        self.index(self.info(p).served_by)
    }

    fn init(&mut self, k: &Kind) {
        let next = match k.fallback {
            0 => Err(()),
            1 => Ok(0),
            n if n == self.allocators.len() => Err(()), // itself comes to be only now
            n => Ok(n % self.allocators.len()),
        };
        let fallback = match next {
            Err(()) => Fallback::Null,
            Ok(0) if k.fallback == 1 => Fallback::DefaultMem,
            Ok(n) => Fallback::Allocator(self.allocators[n].handle),
        };
        let mut b = AllocatorBuilder::new()
            .pinned(k.pinned)
            .alignment(Alignment::new(1 << k.align_shift).unwrap())
            .fallback(fallback)
            .sync_hint(if k.sync { SyncHint::Serialized } else { SyncHint::Contended })
            .access(if k.thread { Access::Thread } else { Access::MemSpace })
            .partition(
                [Partition::Environment, Partition::Nearest, Partition::Blocked, Partition::Interleaved]
                    [k.partition as usize],
            )
            .realloc_policy(if k.fixed { ReallocPolicy::Fixed } else { ReallocPolicy::MayMove })
            .fork_policy([ForkPolicy::Keep, ForkPolicy::DontFork, ForkPolicy::WipeOnFork][k.fork as usize])
            .huge_pages(if k.huge { HugePages::Auto } else { HugePages::Never })
            .lock_ahead(if k.ahead { 10 * PAGE } else { 0 });
        if let Some(p) = k.pool {
            b = b.pool_size(p);
        }
        match k.reserve {
            1 => b = b.reserve(Reserve::Bytes(300_000)),
            2 => b = b.reserve(Reserve::Times(4)),
            _ => {}
        }
        let handle = b.into_handle().unwrap();
        self.allocators.push(ModelAllocator {
            handle,
            pinned: k.pinned,
            align: 1 << k.align_shift,
            pool: k.pool.unwrap_or(usize::MAX),
            used: 0,
            next,
            alive: true,
            fixed: k.fixed,
        });
    }

    /// A live allocator near number `a`.
    fn pick(&self, a: usize) -> usize {
        let n = self.allocators.len();
        (0..n).map(|i| (a % n + i) % n).find(|&i| self.allocators[i].alive).unwrap()
    }

    fn no_overlap(&self, p: *mut u8, usable: usize, but: Option<usize>) {
        let (from, to) = (p as usize, p as usize + usable);
        for (i, b) in self.blocks.iter().enumerate() {
            let (f, t) = (b.ptr as usize, b.ptr as usize + b.size);
            assert!(Some(i) == but || to <= f || t <= from, "two live blocks overlap");
        }
    }

    fn alloc(&mut self, a: usize, align: usize, size: usize, zero: bool) {
        let origin = self.pick(a);
        let h = self.allocators[origin].handle;
        let r = if zero {
            routines::aligned_calloc(align, size, 1, h)
        } else {
            routines::aligned_alloc(align, size, h)
        };
        if size == 0 {
            assert_eq!(r, Ok(std::ptr::null_mut()));
            return;
        }
        let expected = self.predict(origin, |_| size);
        let ptr = match r {
            Err(e) => {
                assert!(expected.allows(None), "{size} bytes of {origin}: {e}");
                return;
            }
            Ok(p) => p,
        };
        let server = self.server_of(ptr);
        assert!(expected.allows(Some(server)), "served by {server}");
        let i = self.info(ptr);
        assert_eq!((i.requested, i.asked_of), (size, h));
        assert_eq!(i.is_pinned(), self.allocators[server].pinned);
        assert!(i.usable >= size);
        let align = align.max(16).max(self.allocators[origin].align).max(self.allocators[server].align);
        assert!((ptr as usize).is_multiple_of(align));
        self.no_overlap(ptr, i.usable, None);
        if zero {
            // SAFETY: within the block.
            assert!(marks(size).all(|i| unsafe { ptr.add(i).read() } == 0));
        }
        self.seed = self.seed.wrapping_add(1);
        // SAFETY: a new block of this program.
        unsafe { fill(ptr, size, self.seed) };
        self.allocators[server].used += size;
        assert_eq!(i.pool_used, self.allocators[server].used, "the pool counts what was asked for");
        self.blocks.push(ModelBlock { ptr, size, seed: self.seed, origin, server, pinned: i.is_pinned() });
    }

    fn realloc(&mut self, b: usize, size: usize, to: Option<usize>, fixed: Option<bool>) {
        if self.blocks.is_empty() {
            return;
        }
        let n = b % self.blocks.len();
        if size == 0 {
            // SAFETY: a live block, which this frees.
            let r = unsafe {
                routines::realloc(self.blocks[n].ptr, 0, AllocatorHandle::NULL, AllocatorHandle::NULL)
            };
            assert_eq!(r, Ok(std::ptr::null_mut()));
            let b = self.blocks.swap_remove(n);
            self.allocators[b.server].used -= b.size;
            return;
        }
        let ModelBlock { ptr, size: old, seed, origin, server: home, pinned } = self.blocks[n];
        let target = to.map_or(origin, |t| self.pick(t));
        let handle = to.map_or(AllocatorHandle::NULL, |_| self.allocators[target].handle);
        let policy = fixed.map(|f| if f { ReallocPolicy::Fixed } else { ReallocPolicy::MayMove });
        let is_fixed = fixed.unwrap_or(self.allocators[target].fixed);
        let aligned = (ptr as usize).is_multiple_of(self.allocators[target].align.max(16));
        let same = target == origin && aligned;
        let grows = size.saturating_sub(old);
        let before = self.info(ptr);
        // SAFETY: a live block; what comes back stands for it.
        let r = unsafe { routines::realloc_with(ptr, size, handle, AllocatorHandle::NULL, policy) };
        // Within one pool the charge passes over to the new block, whoever it is asked of.
        let expected = self.predict(target, |s| if s == home { grows } else { size });
        let now = match r {
            Err(e) => {
                let after = self.info(ptr);
                assert_eq!(after, before, "a failed realloc changes nothing");
                // SAFETY: the block is as it was.
                unsafe { check(ptr, old, old, seed) };
                if is_fixed {
                    let room = self.allocators[home]
                        .used
                        .checked_add(grows)
                        .is_some_and(|n| n <= self.allocators[home].pool);
                    let inside = same && room && size <= before.capacity;
                    assert!(!inside || (pinned && !self.unlimited), "Fixed inside the capacity: {e}");
                    assert!(size > old || !same, "a shrink fails: {e}");
                } else {
                    assert!(expected.allows(None), "{size} bytes of {target}: {e}");
                }
                return;
            }
            Ok(p) => p,
        };
        let i = self.info(now);
        let server = self.server_of(now);
        if is_fixed {
            assert!(now == ptr && same && server == home);
        } else {
            assert!(expected.allows(Some(server)), "served by {server}");
        }
        assert_eq!((i.requested, i.is_pinned()), (size, self.allocators[server].pinned));
        assert_eq!(i.asked_of, self.allocators[target].handle);
        assert!((now as usize).is_multiple_of(self.allocators[target].align.max(16)));
        self.no_overlap(now, i.usable, Some(n));
        // SAFETY: a live block of `size` bytes.
        unsafe {
            check(now, old, old.min(size), seed);
            fill(now, size, seed);
        }
        self.allocators[home].used -= old;
        self.allocators[server].used += size;
        assert_eq!(i.pool_used, self.allocators[server].used);
        self.blocks[n] = ModelBlock { ptr: now, size, seed, origin: target, server, pinned: i.is_pinned() };
    }

    fn free(&mut self, b: usize) {
        if self.blocks.is_empty() {
            return;
        }
        let b = self.blocks.swap_remove(b % self.blocks.len());
        // SAFETY: a live block, not used again.
        unsafe {
            check(b.ptr, b.size, b.size, b.seed);
            routines::free(b.ptr, AllocatorHandle::NULL).unwrap();
        }
        self.allocators[b.server].used -= b.size;
    }

    fn absurd(&mut self, a: usize, which: u8) {
        let h = self.allocators[self.pick(a)].handle;
        let r = match which {
            0 => routines::aligned_alloc(24, 100, h),
            1 => routines::aligned_alloc(1 << 31, 100, h),
            2 => routines::alloc(usize::MAX, h),
            3 => routines::calloc(usize::MAX / 2, 3, h),
            4 => routines::alloc(100, AllocatorHandle::from_raw(h.raw() ^ 0x5555_0000_0000_0000)),
            _ => routines::alloc(isize::MAX as usize - 5, h),
        };
        assert!(r.is_err(), "{which}: {r:?}");
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Init(ref k) => self.init(k),
            Op::Destroy(a) => {
                let i = a % self.allocators.len();
                routines::destroy_allocator(self.allocators[i].handle);
                if i != 0 {
                    self.allocators[i].alive = false;
                    let e = routines::alloc(1, self.allocators[i].handle);
                    assert!(matches!(e, Err(Error::Handle { .. })));
                }
            }
            Op::Alloc { a, align_shift, size, zero } => self.alloc(a, 1 << align_shift, size, zero),
            Op::Realloc { b, size, to, fixed } => self.realloc(b, size, to, fixed),
            Op::Free(b) => self.free(b),
            Op::Trim(n) => {
                trim(n);
            }
            Op::Absurd { a, which } => self.absurd(a, which),
        }
    }

    fn end(mut self) {
        assert_eq!(procfs::vm_locked().unwrap(), process_stats().locked as u64);
        assert_eq!(process_stats().live_blocks, self.base.2 + self.blocks.len());
        while !self.blocks.is_empty() {
            self.free(0);
        }
        for a in &self.allocators[1..] {
            assert_eq!(a.used, 0);
            routines::destroy_allocator(a.handle);
        }
        trim(0);
        let s = process_stats();
        assert_eq!((World::left(), s.stranded), (self.base, 0));
        assert!(s.allocators <= 2 + self.base.2, "{} allocators are left", s.allocators);
        assert_eq!(procfs::vm_locked(), Some(s.locked as u64));
    }
}

impl Drop for World {
    /// After a failed case: the next one, a shrunken one, must not find what this one left.
    fn drop(&mut self) {
        for b in self.blocks.drain(..) {
            // SAFETY: a live block, not used again.
            let _ = unsafe { routines::free(b.ptr, AllocatorHandle::NULL) };
        }
        for a in &self.allocators {
            routines::destroy_allocator(a.handle);
        }
        trim(0);
    }
}

fn config(cases: u32) -> Config {
    let default = Config { failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() { default } else { Config { cases, ..default } }
}

#[test]
fn random_programs_do_as_the_model_says() {
    alone("random_programs_do_as_the_model_says", || {
        let program = prop::collection::vec(op(), 1..60);
        let r = TestRunner::new(config(2000)).run(&program, |ops| {
            let mut w = World::new();
            ops.iter().for_each(|o| w.run(o));
            w.end();
            Ok(())
        });
        if let Err(e) = r {
            panic!("{e}");
        }
    });
}

/// Blocks on their way from one thread to another.
struct Parcel(*mut u8, usize, u8);
// SAFETY: a block may be used and freed by any thread; a parcel has one owner at a time.
unsafe impl Send for Parcel {}

/// One thread of the program below: its own blocks, shared allocators, and blocks taken from and given to others.
fn thread_program(ops: &[Op], allocators: &[(AllocatorHandle, usize)], post: &Mutex<Vec<Parcel>>, seed: u8) {
    let any = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
    let mut mine: Vec<Parcel> = Vec::new();
    let free = |p: Parcel| {
        // SAFETY: a live block of this thread's, not used again.
        unsafe {
            check(p.0, p.1, p.1, p.2);
            routines::free(p.0, AllocatorHandle::NULL).unwrap();
        }
    };
    for (n, op) in ops.iter().enumerate() {
        match *op {
            Op::Alloc { a, align_shift, size, zero } => {
                let (h, pool) = allocators[a % allocators.len()];
                let align = 1usize << align_shift;
                let r = if zero {
                    routines::aligned_calloc(align, 1, size, h)
                } else {
                    routines::aligned_alloc(align, size, h)
                };
                let Ok(p) = r else { continue };
                if size == 0 {
                    continue;
                }
                let i = any.info(NonNull::new(p).unwrap()).unwrap();
                assert!(i.served_by != h || i.pool_used <= pool, "{} of {pool} bytes", i.pool_used);
                assert!((p as usize).is_multiple_of(align));
                let seed = seed.wrapping_add(n as u8);
                // SAFETY: a new block of this thread's.
                unsafe { fill(p, size, seed) };
                mine.push(Parcel(p, size, seed));
            }
            Op::Realloc { b, size, to, fixed } if !mine.is_empty() && size != 0 => {
                let n = b % mine.len();
                let h = to.map_or(AllocatorHandle::NULL, |t| allocators[t % allocators.len()].0);
                let policy = fixed.map(|f| if f { ReallocPolicy::Fixed } else { ReallocPolicy::MayMove });
                let Parcel(p, old, seed) = mine[n];
                // SAFETY: a live block of this thread's.
                unsafe {
                    if let Ok(q) = routines::realloc_with(p, size, h, AllocatorHandle::NULL, policy) {
                        check(q, old, old.min(size), seed);
                        fill(q, size, seed);
                        mine[n] = Parcel(q, size, seed);
                    }
                }
            }
            Op::Free(b) if !mine.is_empty() => {
                let p = mine.swap_remove(b % mine.len());
                // Every other block is freed by whoever comes next.
                if b % 2 == 0 { post.lock().unwrap().push(p) } else { free(p) }
            }
            Op::Destroy(_) => {
                let p = post.lock().unwrap().pop();
                if let Some(p) = p {
                    free(p);
                }
            }
            Op::Trim(n) => {
                trim(n);
            }
            Op::Init(ref k) => {
                let own = AllocatorBuilder::new()
                    .pinned(k.pinned)
                    .fallback(Fallback::DefaultMem)
                    .into_handle()
                    .unwrap();
                if let Ok(p) = routines::alloc(100, own) {
                    // SAFETY: a new block of this thread's.
                    unsafe { fill(p, 100, seed) };
                    mine.push(Parcel(p, 100, seed));
                }
                routines::destroy_allocator(own);
            }
            _ => {}
        }
    }
    mine.into_iter().for_each(free);
}

#[test]
fn random_programs_of_several_threads_leave_nothing() {
    alone("random_programs_of_several_threads_leave_nothing", || {
        let programs = prop::collection::vec(prop::collection::vec(op(), 1..80), 2..5);
        let cases = config(250).cases.min(250);
        let r = TestRunner::new(Config { cases, ..config(250) }).run(&programs, |programs| {
            let pools = [usize::MAX, 50_000, 400_000, 3000];
            let allocators: Vec<_> = pools
                .iter()
                .enumerate()
                .map(|(i, &pool)| {
                    let b = AllocatorBuilder::new().pinned(i != 3).pool_size(pool);
                    let b = b.fallback(if i == 1 { Fallback::Null } else { Fallback::DefaultMem });
                    (b.into_handle().unwrap(), pool)
                })
                .collect();
            let post = Mutex::new(Vec::new());
            std::thread::scope(|s| {
                for (n, ops) in programs.iter().enumerate() {
                    let (allocators, post) = (&allocators, &post);
                    s.spawn(move || thread_program(ops, allocators, post, n as u8 * 64));
                }
            });
            for p in post.into_inner().unwrap() {
                // SAFETY: nobody else's any more.
                unsafe {
                    check(p.0, p.1, p.1, p.2);
                    routines::free(p.0, AllocatorHandle::NULL).unwrap();
                }
            }
            for (h, _) in allocators {
                routines::destroy_allocator(h);
            }
            trim(0);
            let s = process_stats();
            assert_eq!((s.locked, s.mapped, s.live_blocks, s.requested), (0, 0, 0, 0));
            assert_eq!(procfs::vm_locked(), Some(0));
            Ok(())
        });
        if let Err(e) = r {
            panic!("{e}");
        }
    });
}
