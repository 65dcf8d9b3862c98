//! The typed way to an allocator.

use super::PinnedAlloc;
use crate::omp::table::{self, Allocator};
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
    /// OpenMP's defaults: the default memory space, **not pinned**, `default_mem_fb`. [`PinnedAlloc::builder`] begins
    /// with pinned memory.
    ///
    /// ```
    /// let alloc = pinned_alloc::AllocatorBuilder::new().build()?;
    /// assert!(!alloc.traits().pinned);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// From traits that were resolved elsewhere, for instance by [`Traits::from_raw`].
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, MemSpace, Traits, traits::{Alignment, key}};
    ///
    /// let traits = Traits::from_raw([(key::ALIGNMENT, 64)]).unwrap();
    /// let alloc = AllocatorBuilder::from_traits(MemSpace::Default, traits).build()?;
    /// assert_eq!(alloc.traits().alignment, Alignment::new(64).unwrap());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn from_traits(space: MemSpace, traits: Traits) -> Self {
        Self { space, traits, policy: Policy::DEFAULT }
    }

    /// The memory space: the kind of memory, as OpenMP names it, from which blocks come (see [`space`](crate::space)).
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, MemSpace};
    ///
    /// let alloc = AllocatorBuilder::new().mem_space(MemSpace::LowLat).build()?;
    /// assert_eq!(alloc.mem_space(), MemSpace::LowLat);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn mem_space(mut self, space: MemSpace) -> Self {
        self.space = space;
        self
    }

    /// `pinned`: whether blocks are resident and locked when they are handed out. What cannot be locked is a failed
    /// request, which the `fallback` deals with.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().pinned(true).build()?;
    /// assert!(alloc.traits().pinned);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn pinned(mut self, yes: bool) -> Self {
        self.traits.pinned = yes;
        self
    }

    /// `alignment` of every block, in bytes. [`Alignment::new`] checks it.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Alignment};
    /// use std::alloc::Layout;
    ///
    /// let alloc = AllocatorBuilder::new().alignment(Alignment::new(4096).unwrap()).build()?;
    /// let block = alloc.allocate(Layout::new::<u64>())?;
    /// assert_eq!(block.cast::<u8>().addr().get() % 4096, 0);
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), Layout::new::<u64>()) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn alignment(mut self, a: Alignment) -> Self {
        self.traits.alignment = a;
        self
    }

    /// `pool_size`: cap on the requested bytes of all live blocks. 0 is refused by `build`.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = AllocatorBuilder::new().pool_size(1000).fallback(Fallback::Null).build()?;
    /// assert!(alloc.allocate(Layout::new::<[u8; 1001]>()).is_err());
    /// assert!(AllocatorBuilder::new().pool_size(0).build().is_err());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn pool_size(mut self, bytes: usize) -> Self {
        self.traits.pool_size = Some(bytes);
        self
    }

    /// `fallback`: what happens when the allocator cannot serve, because its pool is full or memory cannot be had or
    /// locked; `fb_data` is inside.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Fallback};
    ///
    /// let alloc = AllocatorBuilder::new().fallback(Fallback::Null).build()?;
    /// assert_eq!(alloc.traits().fallback, Fallback::Null);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn fallback(mut self, f: Fallback) -> Self {
        self.traits.fallback = f;
        self
    }

    /// `fallback` `allocator_fb` with this allocator as `fb_data`. The chain does not keep it alive: once it is
    /// gone, the fallback fails.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, PinnedAlloc};
    /// use std::alloc::Layout;
    ///
    /// let second = AllocatorBuilder::new().build()?;
    /// let first = PinnedAlloc::builder().pool_size(100).fallback_to(&second).build()?;
    /// let layout = Layout::new::<[u8; 200]>();
    /// let block = first.allocate(layout)?;
    /// assert_eq!(first.info(block.cast()).unwrap().served_by, second.handle());
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { first.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn fallback_to(mut self, other: &PinnedAlloc) -> Self {
        self.traits.fallback = Fallback::Allocator(other.handle());
        self
    }

    /// `sync_hint`: how many threads are expected to ask at once. A hint: every value is safe with any number of them.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::SyncHint};
    ///
    /// let alloc = AllocatorBuilder::new().sync_hint(SyncHint::Private).build()?;
    /// assert_eq!(alloc.traits().sync_hint, SyncHint::Private);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn sync_hint(mut self, s: SyncHint) -> Self {
        self.traits.sync_hint = s;
        self
    }

    /// `access`: which threads touch the memory. For `Thread`, `pool_size` is counted for each thread.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Access};
    ///
    /// let alloc = AllocatorBuilder::new().access(Access::Thread).pool_size(4096).build()?;
    /// assert_eq!(alloc.traits().access, Access::Thread);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn access(mut self, a: Access) -> Self {
        self.traits.access = a;
        self
    }

    /// `partition`: how one block is spread over the NUMA nodes of its memory space. Without effect on a machine with one.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Partition};
    ///
    /// let alloc = AllocatorBuilder::new().partition(Partition::Interleaved).build()?;
    /// assert_eq!(alloc.traits().partition, Partition::Interleaved);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn partition(mut self, p: Partition) -> Self {
        self.traits.partition = p;
        self
    }

    /// `part_size` of an interleaved partition, in bytes; rounded up to pages. 0 is refused by `build`.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::Partition};
    ///
    /// let alloc = AllocatorBuilder::new().partition(Partition::Interleaved).part_size(64 << 10).build()?;
    /// assert_eq!(alloc.traits().part_size, Some(65536));
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn part_size(mut self, bytes: usize) -> Self {
        self.traits.part_size = Some(bytes);
        self
    }

    /// `partitioner_arg`: handed to the partitioner unread.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().partitioner_arg(7).build()?;
    /// assert_eq!(alloc.traits().partitioner_arg, 7);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn partitioner_arg(mut self, arg: usize) -> Self {
        self.traits.partitioner_arg = arg;
        self
    }

    /// `pin_device`: -1 or 0, the host. Others are refused by `build`.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().pin_device(-1).build()?;
    /// assert!(AllocatorBuilder::new().pin_device(1).build().is_err());
    /// # drop(alloc);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn pin_device(mut self, device: i32) -> Self {
        self.traits.pin_device = Some(device);
        self
    }

    /// `preferred_device`: -1 or 0, the host. Others are refused by `build`.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().preferred_device(0).build()?;
    /// assert!(AllocatorBuilder::new().preferred_device(5).build().is_err());
    /// # drop(alloc);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn preferred_device(mut self, device: i32) -> Self {
        self.traits.preferred_device = Some(device);
        self
    }

    /// `target_access`: whether accesses of several devices may interleave. Kept and reported; a host allocator has one.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::TargetAccess};
    ///
    /// let alloc = AllocatorBuilder::new().target_access(TargetAccess::Multiple).build()?;
    /// assert_eq!(alloc.traits().target_access, TargetAccess::Multiple);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn target_access(mut self, a: TargetAccess) -> Self {
        self.traits.target_access = a;
        self
    }

    /// `atomic_scope`: across which devices atomics hold. Kept and reported; a host allocator has one.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, traits::AtomicScope};
    ///
    /// let alloc = AllocatorBuilder::new().atomic_scope(AtomicScope::All).build()?;
    /// assert_eq!(alloc.traits().atomic_scope, AtomicScope::All);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn atomic_scope(mut self, a: AtomicScope) -> Self {
        self.traits.atomic_scope = a;
        self
    }

    /// Whether blocks may move when they are resized by those that do not say: collections, the OpenMP routine
    /// ([`routines::realloc`](crate::routines::realloc)). [`PinnedAlloc::realloc`] is told by its caller, and that counts.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, ReallocPolicy};
    ///
    /// let alloc = AllocatorBuilder::new().realloc_policy(ReallocPolicy::Fixed).build()?;
    /// assert_eq!(alloc.policy().realloc, ReallocPolicy::Fixed);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn realloc_policy(mut self, p: ReallocPolicy) -> Self {
        self.policy.realloc = p;
        self
    }

    /// Address space kept behind each block for growth in place.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, Reserve};
    /// use std::alloc::Layout;
    ///
    /// let alloc = AllocatorBuilder::new().reserve(Reserve::Bytes(1 << 20)).build()?;
    /// let layout = Layout::new::<[u8; 8192]>();
    /// let block = alloc.allocate(layout)?;
    /// assert!(alloc.info(block.cast()).unwrap().capacity >= 1 << 20);
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn reserve(mut self, r: Reserve) -> Self {
        self.policy.reserve = Some(r);
        self
    }

    /// Bytes that a block growing in place may lock ahead of its size (at most an eighth of it), so that growth
    /// by small steps costs few system calls. Counted in [`Stats::slack`](crate::Stats).
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().lock_ahead(1 << 20).build()?;
    /// assert_eq!(alloc.policy().lock_ahead, 1 << 20);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn lock_ahead(mut self, bytes: usize) -> Self {
        self.policy.lock_ahead = bytes;
        self
    }

    /// What a child process gets of the memory.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, ForkPolicy};
    ///
    /// let alloc = AllocatorBuilder::new().fork_policy(ForkPolicy::DontFork).build()?;
    /// assert_eq!(alloc.policy().fork, ForkPolicy::DontFork);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn fork_policy(mut self, p: ForkPolicy) -> Self {
        self.policy.fork = p;
        self
    }

    /// Huge pages for blocks of 2 MiB and more.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, HugePages};
    ///
    /// let alloc = AllocatorBuilder::new().huge_pages(HugePages::Never).build()?;
    /// assert_eq!(alloc.policy().huge_pages, HugePages::Never);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn huge_pages(mut self, h: HugePages) -> Self {
        self.policy.huge_pages = h;
        self
    }

    /// Whether the memory is part of core dumps; true by default.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().dump(false).build()?;
    /// assert!(!alloc.policy().dump);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn dump(mut self, yes: bool) -> Self {
        self.policy.dump = yes;
        self
    }

    /// Threads that populate a new block of 64 MiB and more; below 1 is 1, above 64 is 64. They are plain POSIX threads that live for
    /// the call, with all signals blocked.
    ///
    /// ```
    /// use pinned_alloc::AllocatorBuilder;
    ///
    /// let alloc = AllocatorBuilder::new().populate_threads(4).build()?;
    /// assert_eq!(alloc.policy().populate_threads, 4);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn populate_threads(mut self, n: u8) -> Self {
        self.policy.populate_threads = n.clamp(1, 64);
        self
    }

    /// The traits so far.
    ///
    /// ```
    /// let builder = pinned_alloc::PinnedAlloc::builder();
    /// assert!(builder.traits().pinned);
    /// ```
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.traits
    }

    /// Makes the allocator.
    ///
    /// # Errors
    /// [`Error::Traits`] for what the types do not rule out, [`Error::TooMany`], or [`Error::Pages`] if there is
    /// no memory for its record. Nothing is pinned yet.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, Error, TraitError, traits::{Partition, key}};
    ///
    /// let refused = AllocatorBuilder::new().part_size(0).build();
    /// assert!(matches!(refused, Err(Error::Traits(TraitError::Value { key: key::PART_SIZE, value: 0 }))));
    /// ```
    pub fn build(self) -> Result<PinnedAlloc, Error> {
        PinnedAlloc::from_parts(self.space, self.traits, self.policy)
    }

    /// Makes the allocator and gives its handle alone, as `omp_init_allocator` does. It lives until
    /// [`routines::destroy_allocator`](crate::routines::destroy_allocator).
    ///
    /// # Errors
    /// As [`build`](Self::build).
    ///
    /// ```
    /// use pinned_alloc::{AllocatorBuilder, routines};
    ///
    /// let h = AllocatorBuilder::new().pinned(true).into_handle()?;
    /// let p = routines::alloc(100, h)?;
    /// // SAFETY: a live block, freed once.
    /// unsafe { routines::free(p, h)? };
    /// routines::destroy_allocator(h);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn into_handle(self) -> Result<AllocatorHandle, Error> {
        table::create(self.space, self.traits, self.policy).map(Allocator::give_handle)
    }
}
