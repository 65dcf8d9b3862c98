//! Figures: of a block, an allocator, the process. Snapshots; nothing is counted on their account.

use super::pool_used;
use crate::heap::{self, HeapStats};
use crate::omp::AllocatorHandle;
use crate::omp::table::{self, Allocator};
use crate::pages::{account, cache};
use core::ptr::NonNull;
use std::sync::atomic::Ordering;

/// How a block is pinned right now.
///
/// ```
/// use pinned_alloc::{Pin, PinnedAlloc, traits::Fallback};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
/// let layout = Layout::new::<[u8; 1000]>();
/// let block = alloc.allocate(layout)?;
/// match alloc.info(block.cast()).unwrap().pin {
///     Pin::Locked => println!("locked"),
///     _ => println!("not pinned"),
/// }
/// // SAFETY: the block came from this allocator with this layout, and is not used again.
/// unsafe { alloc.deallocate(block.cast(), layout) };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pin {
    /// Not at all: ordinary memory, or a lock that a fork took.
    No,
    /// By `mlock`: every page resident, none swapped or reclaimed, the address fixed. The frames may still move
    /// (compaction, NUMA migration).
    Locked,
}

/// What is known of one block.
///
/// ```
/// use pinned_alloc::{PinnedAlloc, traits::Fallback};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
/// let layout = Layout::new::<[u8; 1000]>();
/// let block = alloc.allocate(layout)?;
/// let i = alloc.info(block.cast()).unwrap();
/// assert!(i.requested <= i.usable && i.usable <= i.capacity);
/// assert_eq!(i.asked_of, alloc.handle());
/// // SAFETY: the block came from this allocator with this layout, and is not used again.
/// unsafe { alloc.deallocate(block.cast(), layout) };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Bytes that were asked for.
    pub requested: usize,
    /// Bytes the block has.
    pub usable: usize,
    /// Bytes it can have where it is, as far as address space goes.
    pub capacity: usize,
    /// How it is pinned right now, the whole of it.
    pub pin: Pin,
    /// The allocator it was asked of; its handle may be dead.
    pub asked_of: AllocatorHandle,
    /// The allocator that serves it: another one if it came through a fallback.
    pub served_by: AllocatorHandle,
    /// Bytes in use of the pool it is charged to.
    pub pool_used: usize,
}

impl BlockInfo {
    /// Whether every byte of it is locked and resident right now.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// let info = alloc.info(block.cast()).unwrap();
    /// assert_eq!(info.is_pinned(), alloc.is_pinned(block.cast()));
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pin != Pin::No
    }
}

pub(super) fn info(ptr: NonNull<u8>) -> Option<BlockInfo> {
    let b = heap::find(ptr.as_ptr().addr())?;
    let tag = b.heap().tag();
    let handle = |i| table::slot(i).map_or(AllocatorHandle::NULL, Allocator::handle);
    Some(BlockInfo {
        requested: b.requested(),
        usable: b.usable(),
        capacity: b.capacity(),
        pin: if b.is_pinned() { Pin::Locked } else { Pin::No },
        asked_of: handle(tag.origin),
        served_by: handle(tag.server),
        pool_used: pool_used(&b),
    })
}

/// Figures of one allocator, by [`PinnedAlloc::stats`](crate::PinnedAlloc::stats): the blocks that were asked of it, whoever served them. Bytes unless said otherwise.
///
/// ```
/// use pinned_alloc::{PinnedAlloc, traits::Fallback};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
/// let layout = Layout::new::<[u8; 1000]>();
/// let block = alloc.allocate(layout)?;
/// let s = alloc.stats();
/// println!("{} bytes in {} blocks, {} locked", s.requested, s.live_blocks, s.locked);
/// assert_eq!(s.failures, 0);
/// // SAFETY: the block came from this allocator with this layout, and is not used again.
/// unsafe { alloc.deallocate(block.cast(), layout) };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Number of live blocks.
    pub live_blocks: usize,
    /// Bytes asked for in live blocks.
    pub requested: usize,
    /// The highest `requested` so far.
    pub requested_peak: usize,
    /// Bytes locked for this allocator: live blocks, rounding, slack and idle slabs.
    pub locked: usize,
    /// Bytes locked ahead of growing blocks (`lock_ahead`); part of `locked`.
    pub slack: usize,
    /// Open bytes without a live block, kept for reuse; part of `locked` if the allocator is pinned.
    pub idle: usize,
    /// Live blocks that a fallback served.
    pub fallback_blocks: usize,
    /// Bytes asked for in them.
    pub fallback_requested: usize,
    /// Number of requests that a fallback served so far.
    pub fallbacks: u64,
    /// Number of requests that failed so far, fallback included.
    pub failures: u64,
}

pub(super) fn of(a: &'static Allocator) -> Stats {
    let mut s = Stats::default();
    a.each_heap(|h| {
        let HeapStats { live_blocks, requested, requested_peak, locked, server, slack, idle, kept: _ } =
            h.stats();
        s.live_blocks += live_blocks;
        s.requested += requested;
        s.requested_peak += requested_peak;
        s.locked += locked;
        s.slack += slack;
        s.idle += idle;
        if server != a.index() {
            s.fallback_blocks += live_blocks;
            s.fallback_requested += requested;
        }
    });
    s.fallbacks = a.counts.fallbacks.load(Ordering::Relaxed);
    s.failures = a.counts.failures.load(Ordering::Relaxed);
    s
}

/// Figures of the process, as far as this crate is concerned. Bytes unless said otherwise.
///
/// ```
/// let before = pinned_alloc::process_stats();
/// assert!(before.locked_peak >= before.locked);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ProcessStats {
    /// Bytes this crate has locked: what it adds to the kernel's `VmLck`, page for page.
    pub locked: usize,
    /// The highest `locked` so far.
    pub locked_peak: usize,
    /// Bytes this crate has open, locked or not, without its own records.
    pub mapped: usize,
    /// Bytes of freed large blocks that wait for reuse.
    pub cached: usize,
    /// Bytes of address space (without memory) that the kernel refused to take back so far.
    pub stranded: usize,
    /// Number of live blocks of all allocators.
    pub live_blocks: usize,
    /// Bytes asked for in them.
    pub requested: usize,
    /// Number of allocators that are alive or have live blocks.
    pub allocators: usize,
    /// Calls of `mlock`, and those that failed.
    pub lock_calls: u64,
    /// See `lock_calls`.
    pub lock_failures: u64,
    /// Blocks moved by their page tables.
    pub moves: u64,
}

/// Figures of the process.
///
/// ```
/// let s = pinned_alloc::process_stats();
/// println!("{} bytes locked, {} of them waiting for reuse", s.locked, s.cached);
/// assert!(s.locked <= s.locked_peak);
/// ```
#[must_use]
pub fn process_stats() -> ProcessStats {
    let mut s = ProcessStats {
        locked: account::locked(),
        locked_peak: account::locked_peak(),
        mapped: account::mapped(),
        cached: cache::bytes() + heap::kept(),
        stranded: account::stranded(),
        lock_calls: account::lock_calls(),
        lock_failures: account::lock_failures(),
        moves: account::moves(),
        ..ProcessStats::default()
    };
    table::each(|a| {
        let of = of(a);
        s.allocators += 1;
        s.live_blocks += of.live_blocks;
        s.requested += of.requested;
    });
    s
}
