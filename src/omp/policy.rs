//! What an allocator does beyond OpenMP's traits.

use crate::pages::{ForkPolicy, HugePages};

/// Whether `realloc` may give a block another address.
///
/// OpenMP's `omp_realloc` ends the lifetime of the old block and starts that of a new one, so a move breaks no
/// promise of `pinned`; a program that has given the address away (to a device, to a ring of an asynchronous
/// interface, to another thread) needs `Fixed`.
///
/// ```
/// use pinned_alloc::{PinnedAlloc, ReallocPolicy, Reserve, traits::Fallback};
/// use std::alloc::Layout;
///
/// // Pinned, or ordinary memory where the lock limit says no.
/// let alloc = PinnedAlloc::builder().reserve(Reserve::Times(16)).fallback(Fallback::DefaultMem).build()?;
/// let layout = Layout::new::<[u8; 10_000]>();
/// let block = alloc.allocate(layout)?;
/// // SAFETY: a live block of this allocator and layout.
/// let now = match unsafe { alloc.realloc(block.cast(), layout, 160_000, ReallocPolicy::Fixed) } {
///     Ok(grown) => {
///         assert_eq!(grown.cast::<u8>(), block.cast::<u8>(), "it never moves");
///         Layout::new::<[u8; 160_000]>()
///     }
///     Err(e) => {
///         println!("{e}"); // the lock limit, or no room: the block is as it was
///         layout
///     }
/// };
/// // SAFETY: as above, of the layout it has now; not used again.
/// unsafe { alloc.deallocate(block.cast(), now) };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReallocPolicy {
    /// Grow in place where that is possible, else move: page tables move, bytes do not. The default.
    #[default]
    MayMove,
    /// Grow and shrink in place, or fail with the block untouched.
    Fixed,
}

/// Address space kept behind a block, so that it can grow in place. Costs no memory and no lock limit.
///
/// ```
/// use pinned_alloc::{PinnedAlloc, Reserve};
///
/// let alloc = PinnedAlloc::builder().reserve(Reserve::Times(8)).build()?;
/// assert_eq!(alloc.policy().reserve, Some(Reserve::Times(8)));
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// So many bytes in all.
    Bytes(usize),
    /// So many times the size asked for.
    Times(u32),
}

impl Reserve {
    /// Bytes to keep for a block of `size` bytes. Saturates: a reservation that cannot be had is an error of the
    /// allocation.
    pub(crate) fn bytes(self, size: usize) -> usize {
        match self {
            Reserve::Bytes(b) => b,
            Reserve::Times(n) => size.saturating_mul(n as usize),
        }
    }
}

/// What an allocator does beyond its OpenMP traits.
///
/// ```
/// use pinned_alloc::{Policy, PinnedAlloc};
///
/// assert_eq!(*PinnedAlloc::new()?.policy(), Policy::default());
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// What `realloc` does when the call does not say.
    pub realloc: ReallocPolicy,
    /// Address space kept behind each block for growth in place.
    pub reserve: Option<Reserve>,
    /// Bytes that a growing block may lock ahead of its size, at most an eighth of it; 0, the default, is exact.
    pub lock_ahead: usize,
    /// What a child process gets of the memory.
    pub fork: ForkPolicy,
    /// Huge pages for blocks of 2 MiB and more.
    pub huge_pages: HugePages,
    /// Whether the memory is part of core dumps.
    pub dump: bool,
    /// Threads that populate a new block of 64 MiB and more; 1, the default, is the caller alone.
    pub populate_threads: u8,
}

impl Policy {
    pub(crate) const DEFAULT: Policy = Policy {
        realloc: ReallocPolicy::MayMove,
        reserve: None,
        lock_ahead: 0,
        fork: ForkPolicy::Keep,
        huge_pages: HugePages::Auto,
        dump: true,
        populate_threads: 1,
    };
}

impl Default for Policy {
    fn default() -> Self {
        Self::DEFAULT
    }
}
