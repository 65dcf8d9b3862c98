//! What the oracle knows: allocators, blocks, and from both which allocator has to serve a request.

use pinned_alloc::traits::{Access, Fallback};
use pinned_alloc::{
    AllocatorHandle, Error, ForkPolicy, PinnedAlloc, Policy, ReallocPolicy, Traits, process_stats,
};
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub const PAGE: usize = 4096;

/// The length of what [`pattern`] repeats.
const PERIOD: usize = 31 * PAGE;

/// Sizes from here on can be had nowhere: they are beyond the address space.
pub const ABSURD: usize = 1 << 47;

/// One allocator, dead ones too: their blocks live on.
pub struct Alloc {
    pub handle: AllocatorHandle,
    pub alive: bool,
    /// Whoever holds one may go on asking when the handle is dead.
    pub face: Option<PinnedAlloc>,
    pub traits: Traits,
    pub policy: Policy,
    /// Whether its partitioner, if it has one, gives parts that add up.
    pub parts: Parts,
}

/// What comes of an allocator's partitioner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// It has none.
    None,
    /// That one of the list.
    Of(usize),
}

/// One live block.
#[derive(Clone, Debug)]
pub struct Block {
    pub addr: usize,
    pub size: usize,
    pub usable: usize,
    /// The alignment of its layout.
    pub align: usize,
    pub asked_of: usize,
    pub served_by: usize,
    /// Which pool of `served_by`: 0, or the thread's number.
    pub group: usize,
    pub seed: u8,
}

/// Whether a server can serve.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Can {
    Yes,
    /// Depends on memory, limits, or failures that were ordered.
    Maybe,
    No(Why),
}

/// Why one cannot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Why {
    /// Its pool: what the error has to say.
    Pool(Error),
    Other,
}

/// How a chain of allocators ends that could none of them serve.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    /// With the last one's own error.
    Last,
    Dead(AllocatorHandle),
    Cycle,
}

pub struct Model {
    pub allocs: Vec<Alloc>,
    pub blocks: BTreeMap<usize, Block>,
    /// Whether partitioner `i` is alive and gives parts that add up.
    pub partitioners: Vec<bool>,
    /// Failures have been ordered.
    pub faults: bool,
    /// The lock limit was, or may have been, in the way.
    pub tight: bool,
    /// `RLIMIT_MEMLOCK` in bytes.
    pub limit: usize,
    pub default: AllocatorHandle,
}

/// What is asked of a server.
#[derive(Clone, Copy)]
pub struct Ask {
    pub size: usize,
    pub align: usize,
    /// The calling thread: 0, or its number.
    pub thread: usize,
}

impl Model {
    pub fn new(limit: usize) -> Self {
        let mut allocs = Vec::new();
        for raw in [1, 2, 3, 4, 5, 6, 7, 8, 200] {
            let face = PinnedAlloc::from_handle(AllocatorHandle::from_raw(raw)).expect("a predefined one");
            let (traits, policy) = (*face.traits(), *face.policy());
            assert_eq!(face.handle().raw(), raw);
            let handle = face.handle();
            allocs.push(Alloc { handle, alive: true, face: None, traits, policy, parts: Parts::None });
        }
        Self {
            allocs,
            blocks: BTreeMap::new(),
            partitioners: Vec::new(),
            faults: false,
            tight: false,
            limit,
            default: AllocatorHandle::DEFAULT_MEM,
        }
    }

    /// The allocator a handle reaches now.
    pub fn lookup(&self, h: AllocatorHandle) -> Option<usize> {
        // Two vendors' names for one allocator.
        let h = if h.raw() == 100 { AllocatorHandle::GNU_PINNED_MEM } else { h };
        self.allocs.iter().position(|a| a.alive && a.handle == h)
    }

    /// As `lookup`, for a request: the null handle is the default allocator.
    pub fn target(&self, h: AllocatorHandle) -> Option<usize> {
        self.lookup(if h == AllocatorHandle::NULL { self.default } else { h })
    }

    /// The allocator that `info` names: dead ones keep their handles as long as they have blocks.
    pub fn named(&self, h: AllocatorHandle) -> usize {
        self.allocs.iter().position(|a| a.handle == h).expect("an allocator of this run")
    }

    pub fn group(&self, server: usize, thread: usize) -> usize {
        if self.allocs[server].traits.access == Access::Thread { thread } else { 0 }
    }

    /// Requested bytes charged to a pool.
    pub fn used(&self, server: usize, group: usize) -> usize {
        let mine = |b: &&Block| b.served_by == server && b.group == group;
        self.blocks.values().filter(mine).map(|b| b.size).sum()
    }

    pub fn live(&self) -> usize {
        self.blocks.values().map(|b| b.size).sum()
    }

    fn pool(&self, server: usize, group: usize, more: usize, less: usize) -> Option<Why> {
        let pool_size = self.allocs[server].traits.pool_size?;
        let used = self.used(server, group);
        let asked = more.saturating_sub(less);
        (used.saturating_add(asked) > pool_size && asked != 0).then_some(Why::Pool(Error::Pool {
            pool_size,
            used,
            asked,
        }))
    }

    /// Whether pages for `size` bytes can be had, `reserve` bytes of addresses behind them.
    fn pages(&mut self, server: usize, size: usize, reserve: usize) -> Can {
        let a = &self.allocs[server];
        if size >= ABSURD || (reserve > size && reserve >= ABSURD) {
            return Can::No(Why::Other);
        }
        if size > PAGE && self.parts_fail(server) {
            return Can::No(Why::Other);
        }
        if a.traits.pinned {
            let ahead = a.policy.lock_ahead.min(size);
            if process_stats().locked + 2 * size + ahead + (2 << 20) > self.limit {
                self.tight = true;
            }
            if self.tight {
                return Can::Maybe;
            }
        }
        if self.faults || reserve > 1 << 28 { Can::Maybe } else { Can::Yes }
    }

    fn parts_fail(&self, server: usize) -> bool {
        matches!(self.allocs[server].parts, Parts::Of(p) if !self.partitioners[p])
    }

    fn reserve(&self, server: usize, size: usize) -> usize {
        use pinned_alloc::Reserve;
        match self.allocs[server].policy.reserve {
            None => 0,
            Some(Reserve::Bytes(b)) => b,
            Some(Reserve::Times(n)) => size.saturating_mul(n as usize),
        }
    }

    /// Whether `server` can make a new block for a request to `origin`. `old` is a block that is given up for it.
    pub fn fresh(&mut self, origin: usize, server: usize, ask: Ask, old: Option<&Block>) -> Can {
        let Ask { size, align, thread } = ask;
        let (o, s) = (&self.allocs[origin].traits, &self.allocs[server].traits);
        let align = align.max(o.alignment.get()).max(s.alignment.get());
        if size > isize::MAX as usize || align > 1 << 30 {
            return Can::No(Why::Other);
        }
        let group = self.group(server, thread);
        let less = old.filter(|b| b.served_by == server && b.group == group).map_or(0, |b| b.size);
        if let Some(why) = self.pool(server, group, size, less) {
            // A run under failures may fail before the pool is asked.
            return Can::No(if self.faults || self.tight { Why::Other } else { why });
        }
        match self.pages(server, size, self.reserve(server, size)) {
            Can::Yes if align > 1 << 24 => Can::Maybe,
            c => c,
        }
    }

    /// Whether a block can be `size` bytes long while its allocator stays the same. `fixed`: where it is.
    pub fn resized(&mut self, b: &Block, size: usize, fixed: bool, capacity: usize) -> Can {
        if size > isize::MAX as usize {
            return Can::No(Why::Other);
        }
        if let Some(why) = self.pool(b.served_by, b.group, size, b.size) {
            return Can::No(why);
        }
        if size <= b.usable {
            return Can::Yes;
        }
        let reserve = self.reserve(b.served_by, size);
        match self.pages(b.served_by, size, 0) {
            Can::Yes if fixed && size > capacity => Can::Maybe,
            // A copy would need a reservation, a move would not.
            Can::Yes if !fixed && reserve > 1 << 28 => Can::Maybe,
            c => c,
        }
    }

    /// The allocators that a request to `origin` goes through if none can serve, and what comes after them.
    pub fn chain(&self, origin: usize) -> (Vec<usize>, End) {
        let mut asked = vec![origin];
        loop {
            let last = asked[asked.len() - 1];
            let next = match self.allocs[last].traits.fallback {
                Fallback::Null => return (asked, End::Last),
                Fallback::Abort => unreachable!("no allocator of these programs may end the process"),
                Fallback::DefaultMem => 0,
                Fallback::Allocator(h) => match self.lookup(h) {
                    Some(i) => i,
                    None => return (asked, End::Dead(h)),
                },
            };
            if asked.contains(&next) {
                let default = self.allocs[last].traits.fallback == Fallback::DefaultMem;
                return (asked, if default { End::Last } else { End::Cycle });
            }
            asked.push(next);
        }
    }

    /// Checks who served: the first of the chain that could. `can` says what is known of each.
    pub fn check_server(&self, chain: &[usize], can: &[Can], served_by: usize) {
        let at = chain.iter().position(|&s| s == served_by).expect("a server of the chain");
        assert!(!matches!(can[at], Can::No(_)), "served by {at} of {can:?}");
        assert!(can[..at].iter().all(|c| *c != Can::Yes), "served by {at} of {can:?}");
    }

    /// Checks that nobody could have served, and the error that says so.
    pub fn check_failure(&self, can: &[Can], end: End, e: &Error) {
        assert!(can.iter().all(|c| *c != Can::Yes), "{e}: {can:?}");
        if let Error::Pool { pool_size, used, asked } = e {
            assert!(used.saturating_add(*asked) > *pool_size, "{e}");
        }
        match (end, can.last()) {
            (End::Last, Some(Can::No(Why::Pool(p)))) => assert_eq!(e, p),
            (End::Last, _) => {}
            (End::Dead(handle), _) => assert_eq!(*e, Error::FallbackGone { handle }),
            (End::Cycle, _) => assert_eq!(*e, Error::FallbackCycle),
        }
    }

    /// Takes a new block in: it overlaps no other, and shares no page with one of other attributes.
    pub fn insert(&mut self, b: Block) {
        let end = b.addr.checked_add(b.usable.max(1)).expect("a block within the address space");
        let kind = |b: &Block| {
            let a = &self.allocs[b.served_by];
            (a.traits.pinned, a.policy.fork == ForkPolicy::Keep, a.policy.dump)
        };
        if let Some((_, p)) = self.blocks.range(..b.addr).next_back() {
            assert!(p.addr + p.usable <= b.addr, "{p:?} overlaps {b:?}");
            let page = (p.addr + p.usable - 1) / PAGE;
            assert!(page != b.addr / PAGE || kind(p) == kind(&b), "{p:?} shares a page with {b:?}");
        }
        if let Some((_, n)) = self.blocks.range(b.addr..).next() {
            assert!(end <= n.addr, "{b:?} overlaps {n:?}");
            assert!(
                (end - 1) / PAGE != n.addr / PAGE || kind(n) == kind(&b),
                "{b:?} shares a page with {n:?}"
            );
        }
        self.blocks.insert(b.addr, b);
    }

    /// The policy of a call without one.
    pub fn policy(&self, target: usize, given: Option<ReallocPolicy>) -> ReallocPolicy {
        given.unwrap_or(self.allocs[target].policy.realloc)
    }
}

/// The parts of a block whose contents are checked: all of a small one, samples of every page of a large one.
pub fn sampled(size: usize, upto: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let step = if size <= 16 * PAGE { size.max(1) } else { PAGE };
    let len = if size <= 16 * PAGE { size } else { 32 };
    let last = size.saturating_sub(32)..size;
    (0..size).step_by(step).map(move |at| at..(at + len).min(size)).chain(Some(last)).filter_map(move |r| {
        let end = r.end.min(upto);
        (r.start < end).then_some(r.start..end)
    })
}

/// What a block holds in `r`, which [`sampled`] gave: whole slices, for the sake of speed.
pub fn pattern(seed: u8, r: std::ops::Range<usize>) -> &'static [u8] {
    static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut x = 1u32;
        let numbers = std::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        });
        let once: Vec<u8> = numbers.take(PERIOD).collect();
        once.iter().chain(&once[..17 * PAGE]).copied().collect()
    });
    let from = (r.start + usize::from(seed) * 71) % PERIOD;
    &TABLE[from..from + r.len()]
}
