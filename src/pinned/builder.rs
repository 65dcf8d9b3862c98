//! The typed way to an allocator.

use super::PinnedAlloc;
use crate::omp::table;
use crate::omp::traits::{
    Access, Alignment, AtomicScope, Fallback, Partition, SyncHint, TargetAccess, Traits,
};
use crate::omp::{AllocatorHandle, Error, MemSpace, Policy, ReallocPolicy, Reserve};
use crate::pages::{ForkPolicy, HugePages};

/// Makes allocators: OpenMP's traits, a memory space, and the [`Policy`] beyond them.
///
/// [`PinnedAlloc::builder`] starts with `pinned` and `null_fb`, so that nothing is unpinned by accident;
/// [`AllocatorBuilder::new`] starts with OpenMP's defaults.
///
/// ```
/// use pinned_alloc::{AllocatorBuilder, traits::Fallback};
///
/// // Pinned while the lock limit lasts, ordinary memory after that; the block tells which.
/// let alloc = AllocatorBuilder::new().pinned(true).fallback(Fallback::DefaultMem).pool_size(1 << 20).build()?;
/// let layout = std::alloc::Layout::new::<[u8; 256]>();
/// let block = alloc.allocate(layout)?;
/// println!("pinned: {}", alloc.is_pinned(block.cast()));
/// // SAFETY: the block came from this allocator with this layout, and is not used again.
/// unsafe { alloc.deallocate(block.cast(), layout) };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "a builder makes nothing until `build`"]
pub struct AllocatorBuilder {
    space: MemSpace,
    traits: Traits,
    policy: Policy,
}

impl AllocatorBuilder {
    /// OpenMP's defaults: the default memory space, not pinned, `default_mem_fb`.
    pub fn new() -> Self {
        Self::default()
    }

    /// From traits that were resolved elsewhere, for instance by [`Traits::from_raw`].
    pub fn from_traits(space: MemSpace, traits: Traits) -> Self {
        Self { space, traits, policy: Policy::DEFAULT }
    }

    /// The memory space.
    pub fn mem_space(mut self, space: MemSpace) -> Self {
        self.space = space;
        self
    }

    /// `pinned`.
    pub fn pinned(mut self, yes: bool) -> Self {
        self.traits.pinned = yes;
        self
    }

    /// `alignment` of every block, in bytes. [`Alignment::new`] checks it.
    pub fn alignment(mut self, a: Alignment) -> Self {
        self.traits.alignment = a;
        self
    }

    /// `pool_size`: cap on the requested bytes of all live blocks. 0 is refused by `build`.
    pub fn pool_size(mut self, bytes: usize) -> Self {
        self.traits.pool_size = Some(bytes);
        self
    }

    /// `fallback`, with `fb_data` inside.
    pub fn fallback(mut self, f: Fallback) -> Self {
        self.traits.fallback = f;
        self
    }

    /// `fallback` `allocator_fb` with this allocator as `fb_data`. The chain does not keep it alive: once it is
    /// gone, the fallback fails.
    pub fn fallback_to(mut self, other: &PinnedAlloc) -> Self {
        self.traits.fallback = Fallback::Allocator(other.handle());
        self
    }

    /// `sync_hint`.
    pub fn sync_hint(mut self, s: SyncHint) -> Self {
        self.traits.sync_hint = s;
        self
    }

    /// `access`. For `Thread`, `pool_size` is counted for each thread.
    pub fn access(mut self, a: Access) -> Self {
        self.traits.access = a;
        self
    }

    /// `partition`.
    pub fn partition(mut self, p: Partition) -> Self {
        self.traits.partition = p;
        self
    }

    /// `part_size` of an interleaved partition, in bytes; rounded up to pages. 0 is refused by `build`.
    pub fn part_size(mut self, bytes: usize) -> Self {
        self.traits.part_size = Some(bytes);
        self
    }

    /// `partitioner_arg`: handed to the partitioner unread.
    pub fn partitioner_arg(mut self, arg: usize) -> Self {
        self.traits.partitioner_arg = arg;
        self
    }

    /// `pin_device`: -1 or 0, the host. Others are refused by `build`.
    pub fn pin_device(mut self, device: i32) -> Self {
        self.traits.pin_device = Some(device);
        self
    }

    /// `preferred_device`: -1 or 0, the host. Others are refused by `build`.
    pub fn preferred_device(mut self, device: i32) -> Self {
        self.traits.preferred_device = Some(device);
        self
    }

    /// `target_access`.
    pub fn target_access(mut self, a: TargetAccess) -> Self {
        self.traits.target_access = a;
        self
    }

    /// `atomic_scope`.
    pub fn atomic_scope(mut self, a: AtomicScope) -> Self {
        self.traits.atomic_scope = a;
        self
    }

    /// What `realloc` does when the call does not say.
    pub fn realloc_policy(mut self, p: ReallocPolicy) -> Self {
        self.policy.realloc = p;
        self
    }

    /// Address space kept behind each block for growth in place.
    pub fn reserve(mut self, r: Reserve) -> Self {
        self.policy.reserve = Some(r);
        self
    }

    /// Bytes that a block growing in place may lock ahead of its size (at most an eighth of it), so that growth
    /// by small steps costs few system calls. Counted in [`Stats::slack`](crate::Stats).
    pub fn lock_ahead(mut self, bytes: usize) -> Self {
        self.policy.lock_ahead = bytes;
        self
    }

    /// What a child process gets of the memory.
    pub fn fork_policy(mut self, p: ForkPolicy) -> Self {
        self.policy.fork = p;
        self
    }

    /// Huge pages for blocks of 2 MiB and more.
    pub fn huge_pages(mut self, h: HugePages) -> Self {
        self.policy.huge_pages = h;
        self
    }

    /// Whether the memory is part of core dumps; true by default.
    pub fn dump(mut self, yes: bool) -> Self {
        self.policy.dump = yes;
        self
    }

    /// Threads that populate a new block of 64 MiB and more (1 to 64). They are plain POSIX threads that live for
    /// the call, with all signals blocked.
    pub fn populate_threads(mut self, n: u8) -> Self {
        self.policy.populate_threads = n.clamp(1, 64);
        self
    }

    /// The traits so far.
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Makes the allocator.
    ///
    /// # Errors
    /// [`Error::Traits`] for what the types do not rule out, [`Error::TooMany`], or [`Error::Pages`] if there is
    /// no memory for its record. Nothing is pinned yet.
    pub fn build(self) -> Result<PinnedAlloc, Error> {
        PinnedAlloc::from_parts(self.space, self.traits, self.policy)
    }

    /// Makes the allocator and gives its handle alone, as `omp_init_allocator` does. It lives until
    /// [`routines::destroy_allocator`](crate::routines::destroy_allocator).
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn into_handle(self) -> Result<AllocatorHandle, Error> {
        table::create(self.space, self.traits, self.policy).map(|a| a.handle())
    }
}
