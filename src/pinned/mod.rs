//! The Rust face: [`PinnedAlloc`] with `realloc` at its centre, `Allocator` for collections, and a global allocator.

#[cfg(any(feature = "allocator-api2", feature = "allocator-api2-04", feature = "nightly"))]
mod allocator_api;
mod builder;
mod global;
mod stats;

pub use builder::AllocatorBuilder;
pub use global::PinnedGlobal;
pub use stats::{BlockInfo, Pin, ProcessStats, Stats, process_stats};

use crate::heap::{self, Block};
use crate::omp::allocator::pool_of;
use crate::omp::table::{self, Allocator};
use crate::omp::traits::Fallback;
use crate::omp::{AllocatorHandle, Error, MemSpace, Policy, ReallocPolicy, Resize, Traits, reallocate};
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// An allocator of pinned memory: resident and locked when a block is handed out, or the allocator's fallback
/// applies, and either way the block tells.
///
/// A cheap handle: clones share one allocator and are equivalent (a block of one can be resized and freed through
/// any other). The last clone ends the allocator; blocks that are still live stay valid and can be freed through
/// [`routines::free`](crate::routines::free).
///
/// # Threads, fork
/// `Send + Sync`; any thread may allocate, resize and free. After `fork` nothing is locked in the child: see
/// [`ForkPolicy`](crate::ForkPolicy) and [`relock`](Self::relock).
///
/// ```
/// use pinned_alloc::{Error, PinnedAlloc, ReallocPolicy, Reserve};
/// use std::alloc::Layout;
///
/// // Blocks that never move, with address space to grow to 1 MiB in place.
/// let alloc = PinnedAlloc::builder().realloc_policy(ReallocPolicy::Fixed).reserve(Reserve::Bytes(1 << 20)).build()?;
/// let small = Layout::from_size_align(8192, 4096).unwrap();
/// match alloc.allocate(small) {
///     Ok(block) => {
///         assert!(alloc.is_pinned(block.cast()));
///         // SAFETY: the block is live, of this allocator, and has this layout.
///         match unsafe { alloc.realloc(block.cast(), small, 65536, ReallocPolicy::Fixed) } {
///             Ok(grown) => {
///                 assert_eq!(grown.cast::<u8>(), block.cast::<u8>());
///                 let layout = Layout::from_size_align(65536, 4096).unwrap();
///                 // SAFETY: as above; not used again.
///                 unsafe { alloc.deallocate(grown.cast(), layout) };
///             }
///             Err(e) => {
///                 println!("{e}"); // the lock limit, say; the block is as it was
///                 // SAFETY: as above; not used again.
///                 unsafe { alloc.deallocate(block.cast(), small) };
///             }
///         }
///     }
///     Err(e) => println!("{e}\n{}", e.cure().unwrap()),
/// }
/// # Ok::<(), Error>(())
/// ```
pub struct PinnedAlloc {
    allocator: &'static Allocator,
    owner: bool,
}

/// A slice pointer for a block that was just granted.
fn slice(ptr: NonNull<u8>, len: usize) -> NonNull<[u8]> {
    NonNull::slice_from_raw_parts(ptr, len)
}

/// What stands for a block of no bytes: an aligned address that is never read.
pub(crate) fn dangling(layout: Layout) -> NonNull<u8> {
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

impl PinnedAlloc {
    /// Pinned memory of the default space, or an error: `pinned`, `null_fb`, [`ReallocPolicy::MayMove`].
    ///
    /// # Errors
    /// [`Error::TooMany`], or [`Error::Pages`] if there is no memory for the record. Nothing is pinned yet.
    ///
    /// ```
    /// let alloc = pinned_alloc::PinnedAlloc::new()?;
    /// assert!(alloc.traits().pinned);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// A builder that starts with `pinned` and `null_fb`: no unpinned byte unless a fallback is asked for.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    ///
    /// let alloc = PinnedAlloc::builder().pool_size(1 << 20).build()?;
    /// assert!(alloc.traits().pinned && alloc.traits().fallback == Fallback::Null);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn builder() -> AllocatorBuilder {
        AllocatorBuilder::new().pinned(true).fallback(Fallback::Null)
    }

    pub(crate) fn from_parts(space: MemSpace, traits: Traits, policy: Policy) -> Result<Self, Error> {
        let allocator = table::create(space, traits, policy)?;
        allocator.own();
        Ok(Self { allocator, owner: true })
    }

    /// The allocator of a handle, which may be a predefined one. It is not destroyed with the result; once it is
    /// destroyed by its handle, the result serves on.
    ///
    /// # Errors
    /// [`Error::Handle`] if there is none. The null handle stands for the default allocator.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorHandle, PinnedAlloc};
    ///
    /// let alloc = PinnedAlloc::from_handle(AllocatorHandle::LARGE_CAP_MEM)?;
    /// assert!(!alloc.traits().pinned);
    /// assert!(PinnedAlloc::from_handle(AllocatorHandle::from_raw(12345)).is_err());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn from_handle(handle: AllocatorHandle) -> Result<Self, Error> {
        let h =
            if handle == AllocatorHandle::NULL { crate::routines::get_default_allocator() } else { handle };
        Ok(Self { allocator: table::enter(h)?, owner: false })
    }

    /// The handle, for OpenMP's routines. Dead once the last clone is gone.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, routines};
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// routines::set_default_allocator(alloc.handle());
    /// assert_eq!(routines::get_default_allocator(), alloc.handle());
    /// # routines::set_default_allocator(pinned_alloc::AllocatorHandle::NULL);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn handle(&self) -> AllocatorHandle {
        self.allocator.handle()
    }

    /// Its traits.
    ///
    /// ```
    /// let alloc = pinned_alloc::PinnedAlloc::builder().pool_size(4096).build()?;
    /// assert_eq!(alloc.traits().pool_size, Some(4096));
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn traits(&self) -> &Traits {
        &self.allocator.core().traits
    }

    /// What it does beyond its traits.
    ///
    /// ```
    /// let alloc = pinned_alloc::PinnedAlloc::builder().lock_ahead(65536).build()?;
    /// assert_eq!(alloc.policy().lock_ahead, 65536);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.allocator.core().policy
    }

    /// Its memory space.
    ///
    /// ```
    /// use pinned_alloc::{MemSpace, PinnedAlloc};
    ///
    /// assert_eq!(PinnedAlloc::new()?.mem_space(), MemSpace::Default);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn mem_space(&self) -> MemSpace {
        self.allocator.core().space
    }

    /// Allocates. The slice has exactly `layout.size()` bytes; a size of 0 gives a dangling pointer.
    ///
    /// # Errors
    /// After the fallback; nothing was gained or lost.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::from_size_align(1000, 64).unwrap();
    /// let block = alloc.allocate(layout)?;
    /// assert_eq!(block.len(), 1000);
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, Error> {
        self.request(layout, false)
    }

    /// As [`allocate`](Self::allocate), all bytes zero.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate_zeroed(layout)?;
    /// // SAFETY: a live block of 1000 bytes that nobody else uses.
    /// assert!(unsafe { block.as_ref() }.iter().all(|&b| b == 0));
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, Error> {
        self.request(layout, true)
    }

    fn request(&self, layout: Layout, zero: bool) -> Result<NonNull<[u8]>, Error> {
        if layout.align() <= 16
            && let Some(p) = NonNull::new(self.allocator.take(layout.size()))
        {
            if zero {
                // SAFETY: a block that was just handed out, of that size.
                unsafe { p.as_ptr().write_bytes(0, layout.size()) };
            }
            return Ok(slice(p, layout.size()));
        }
        self.request_slowly(layout, zero)
    }

    #[inline(never)]
    fn request_slowly(&self, layout: Layout, zero: bool) -> Result<NonNull<[u8]>, Error> {
        if layout.align() <= 16
            && let Some(p) = NonNull::new(self.allocator.take_back(layout.size()))
        {
            if zero {
                // SAFETY: as in `request`.
                unsafe { p.as_ptr().write_bytes(0, layout.size()) };
            }
            return Ok(slice(p, layout.size()));
        }
        if layout.size() == 0 {
            return Ok(slice(dangling(layout), 0));
        }
        let g = self.allocator.allocate(layout.size(), layout.align(), zero)?;
        debug_assert!(g.usable >= layout.size());
        Ok(slice(g.ptr, layout.size()))
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `ptr` is a live block of this allocator or a clone of it, `layout` fits it (the size it has now, an alignment
    /// it was given), and it is not used after this.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// assert!(alloc.info(block.cast()).is_none());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
        // SAFETY: a block of some bytes is live, as the caller promises.
        if layout.size() == 0 || unsafe { heap::give(ptr.as_ptr()) } {
            return;
        }
        // SAFETY: the caller's promise.
        let r = unsafe { crate::routines::free(ptr.as_ptr(), AllocatorHandle::NULL) };
        debug_assert!(r.is_ok(), "not a live block: {ptr:?}");
    }

    /// Makes a block `new_size` bytes long, under `policy`; this is the centre of the crate.
    ///
    /// - [`ReallocPolicy::MayMove`]: in place where possible; else, for blocks with pages of their own, by moving
    ///   page tables (`mremap`), with what is added locked before anything moves; else by a copy. If the allocator
    ///   cannot serve, its fallback is asked.
    /// - [`ReallocPolicy::Fixed`]: at the same address, or an error; no fallback. It is certain to succeed, as far
    ///   as address space goes, inside the reservation made at allocation ([`Reserve`](crate::Reserve)).
    ///
    /// Contents up to the smaller of both sizes stay; what is added has unspecified contents. The alignment of
    /// `layout` is kept under both. On a page boundary a shrink gives the pages and their lock back.
    ///
    /// A `new_size` of 0 frees the block; a block of no bytes is allocated.
    ///
    /// # Safety
    /// `ptr` is a live block of this allocator or a clone and `layout` fits it. After `Ok`, `ptr` is dead unless the
    /// result has the same address.
    ///
    /// # Errors
    /// The block is exactly as it was: address, size, contents, lock, pool charge.
    /// [`Error::NoRoom`] under `Fixed`; [`Error::Pages`] and [`Error::Pool`] under both.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, ReallocPolicy, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 8192]>();
    /// let block = alloc.allocate(layout)?;
    /// // SAFETY: a live block of this allocator and layout.
    /// let block = match unsafe { alloc.realloc(block.cast(), layout, 1 << 20, ReallocPolicy::Fixed) } {
    ///     Ok(same_place) => same_place,
    ///     // SAFETY: as above; the failed call changed nothing.
    ///     Err(_) => unsafe { alloc.realloc(block.cast(), layout, 1 << 20, ReallocPolicy::MayMove)? },
    /// };
    /// let layout = Layout::new::<[u8; 1 << 20]>();
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        layout: Layout,
        new_size: usize,
        policy: ReallocPolicy,
    ) -> Result<NonNull<[u8]>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.resize(ptr, layout, new_size, layout.align(), policy, false) }
    }

    /// As [`realloc`](Self::realloc); what is added is zero.
    ///
    /// # Safety
    /// As [`realloc`](Self::realloc).
    ///
    /// # Errors
    /// As [`realloc`](Self::realloc).
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, ReallocPolicy, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// // SAFETY: a live block of this allocator and layout.
    /// let block = unsafe { alloc.realloc_zeroed(block.cast(), layout, 5000, ReallocPolicy::MayMove)? };
    /// // SAFETY: a live block of 5000 bytes that nobody else uses.
    /// assert!(unsafe { block.as_ref() }[1000..].iter().all(|&b| b == 0));
    /// let layout = Layout::new::<[u8; 5000]>();
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub unsafe fn realloc_zeroed(
        &self,
        ptr: NonNull<u8>,
        layout: Layout,
        new_size: usize,
        policy: ReallocPolicy,
    ) -> Result<NonNull<[u8]>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.resize(ptr, layout, new_size, layout.align(), policy, true) }
    }

    /// Another size and another alignment. Under `Fixed` the block must have the alignment already.
    ///
    /// # Safety
    /// As [`realloc`](Self::realloc).
    ///
    /// # Errors
    /// As [`realloc`](Self::realloc).
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, ReallocPolicy, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// let new = Layout::from_size_align(1000, 4096).unwrap();
    /// // SAFETY: a live block of this allocator and layout.
    /// let block = unsafe { alloc.realloc_aligned(block.cast(), layout, new, ReallocPolicy::MayMove)? };
    /// assert_eq!(block.cast::<u8>().addr().get() % 4096, 0);
    /// // SAFETY: the block came from this allocator with the new layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), new) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub unsafe fn realloc_aligned(
        &self,
        ptr: NonNull<u8>,
        layout: Layout,
        new: Layout,
        policy: ReallocPolicy,
    ) -> Result<NonNull<[u8]>, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.resize(ptr, layout, new.size(), new.align(), policy, false) }
    }

    unsafe fn resize(
        &self,
        ptr: NonNull<u8>,
        layout: Layout,
        size: usize,
        align: usize,
        policy: ReallocPolicy,
        zero: bool,
    ) -> Result<NonNull<[u8]>, Error> {
        if layout.size() == 0 || size == 0 {
            let new = Layout::from_size_align(size, align).map_err(|_| Error::Size)?;
            let r = self.request(new, zero)?;
            // SAFETY: the caller's promise.
            unsafe { self.deallocate(ptr, layout) };
            return Ok(r);
        }
        let addr = ptr.as_ptr().addr();
        let block = heap::find(addr).ok_or(Error::NotABlock { addr })?;
        // The traits hold for the new block as they did for the old one.
        let align = align.max(self.traits().alignment.get());
        let r = Resize { size, align, policy, zero };
        // SAFETY: a live block that the caller owns.
        unsafe { reallocate(block, ptr, self.allocator, r) }.map(|g| slice(g.ptr, size))
    }

    /// What is known of the live block that begins at `ptr`; `None` if none does.
    ///
    /// Any address is answered. While another thread resizes or frees that very block, the answer may be a
    /// moment old.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// let info = alloc.info(block.cast()).unwrap();
    /// assert_eq!(info.requested, 1000);
    /// println!("{info:?}");
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn info(&self, ptr: NonNull<u8>) -> Option<BlockInfo> {
        stats::info(ptr)
    }

    /// Whether the live block at `ptr` is locked and resident right now, whole. False for foreign addresses, for
    /// blocks that an unpinned fallback served, and in the child of a fork until [`relock`](Self::relock).
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// println!("{}", if alloc.is_pinned(block.cast()) { "locked" } else { "the limit did not allow it" });
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn is_pinned(&self, ptr: NonNull<u8>) -> bool {
        heap::find(ptr.as_ptr().addr()).is_some_and(|b| b.is_pinned())
    }

    /// Bytes that the block at `ptr` could hold without a system call; 0 for foreign addresses.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// assert!(alloc.usable_size(block.cast()) >= 1000);
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn usable_size(&self, ptr: NonNull<u8>) -> usize {
        heap::find(ptr.as_ptr().addr()).map_or(0, |b: Block| b.usable())
    }

    /// Figures of this allocator.
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// assert_eq!((alloc.stats().live_blocks, alloc.stats().requested), (1, 1000));
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        stats::of(self.allocator)
    }

    /// Gives this allocator's idle memory back to the system; live blocks stay. Returns the bytes given back.
    /// Freed large blocks wait in a cache of the whole process: see [`trim`](crate::trim).
    ///
    /// ```
    /// use pinned_alloc::{PinnedAlloc, traits::Fallback};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build()?;
    /// let layout = Layout::new::<[u8; 1000]>();
    /// let block = alloc.allocate(layout)?;
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { alloc.deallocate(block.cast(), layout) };
    /// alloc.trim();
    /// assert_eq!(alloc.stats().idle, 0);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn trim(&self) -> usize {
        self.allocator.release_idle()
    }

    /// In the child of a fork: locks what was locked in the parent (fork policy `Keep`). Returns the bytes locked.
    ///
    /// # Errors
    /// The first failure, for instance the child's own lock limit; what was locked before stays so.
    ///
    /// ```
    /// let alloc = pinned_alloc::PinnedAlloc::new()?;
    /// // In a child: what of its blocks is not locked is locked now. Here nothing was lost.
    /// assert_eq!(alloc.relock()?, 0);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn relock(&self) -> Result<usize, Error> {
        self.allocator.relock()
    }
}

impl Clone for PinnedAlloc {
    /// One reference more; never fails, never unwinds.
    fn clone(&self) -> Self {
        self.allocator.enter_again();
        if self.owner {
            self.allocator.own();
        }
        Self { allocator: self.allocator, owner: self.owner }
    }
}

impl Drop for PinnedAlloc {
    fn drop(&mut self) {
        if self.owner {
            self.allocator.disown();
        }
        self.allocator.exit();
    }
}

impl fmt::Debug for PinnedAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedAlloc")
            .field("handle", &self.handle())
            .field("traits", self.traits())
            .field("policy", self.policy())
            .finish()
    }
}

impl PartialEq for PinnedAlloc {
    /// Whether both are the same allocator.
    fn eq(&self, other: &Self) -> bool {
        self.allocator.index() == other.allocator.index()
    }
}

impl Eq for PinnedAlloc {}

/// Bytes in use of the pool a block is charged to.
pub(crate) fn pool_used(b: &Block) -> usize {
    let heap = b.heap();
    // A pool without a limit does not count.
    if heap.tag().charged { pool_of(heap).used() } else { heap::requested_of_pool(heap.tag().pool) }
}
