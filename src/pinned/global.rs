//! A `#[global_allocator]` of pinned memory.

use crate::heap;
use crate::omp::allocator::say;
use crate::omp::table::{self, Allocator};
use crate::omp::traits::{Fallback, Traits};
use crate::omp::{Error, MemSpace, Policy, ReallocPolicy, Resize, last, reallocate};
use crate::{ForkPolicy, Stats};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The whole heap of a Rust program, pinned.
///
/// [`require`](Self::require): every byte handed out is locked, or the allocation fails (which ends most programs
/// with the standard library's message). [`prefer`](Self::prefer): what cannot be locked is ordinary memory, and
/// counted. Either takes a cap on the bytes it pins. Why a request failed is in [`last_error`](crate::last_error).
///
/// It works before `main`, in thread-local destructors and in the child of a fork, where new blocks are locked
/// under the child's own limit. It never allocates through itself.
///
/// ```
/// use pinned_alloc::PinnedGlobal;
///
/// #[global_allocator]
/// static HEAP: PinnedGlobal = PinnedGlobal::prefer().cap(64 << 20);
///
/// let v = vec![1u8; 100_000];
/// println!("{} bytes locked, {} requests fell back", HEAP.stats().locked, HEAP.stats().fallbacks);
/// # drop(v);
/// ```
#[derive(Debug)]
pub struct PinnedGlobal {
    fallback: Fallback,
    cap: usize,
    fork: ForkPolicy,
    explain: bool,
    allocator: AtomicPtr<Allocator>,
}

impl PinnedGlobal {
    const fn with(fallback: Fallback) -> Self {
        Self {
            fallback,
            cap: 0,
            fork: ForkPolicy::Keep,
            explain: false,
            allocator: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// No unpinned byte: out of budget is an allocation failure.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// static HEAP: PinnedGlobal = PinnedGlobal::require();
    /// let layout = Layout::new::<[u8; 64]>();
    /// // SAFETY: a layout of some bytes.
    /// let p = unsafe { HEAP.alloc(layout) };
    /// if p.is_null() {
    ///     println!("may not lock 64 bytes");
    /// } else {
    ///     assert!(HEAP.is_pinned(p));
    ///     // SAFETY: the block came from this allocator with this layout, and is not used again.
    ///     unsafe { HEAP.dealloc(p, layout) };
    /// }
    /// ```
    #[must_use]
    pub const fn require() -> Self {
        Self::with(Fallback::Null)
    }

    /// Pinned while the limits last, ordinary memory after that; [`Stats::fallbacks`] counts.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    /// use std::alloc::{GlobalAlloc, Layout};
    ///
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer().cap(1000);
    /// let layout = Layout::new::<[u8; 2000]>();
    /// // SAFETY: a layout of some bytes.
    /// let p = unsafe { HEAP.alloc(layout) };
    /// assert!(!p.is_null() && !HEAP.is_pinned(p)); // above the cap
    /// assert_eq!(HEAP.stats().fallbacks, 1);
    /// // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// unsafe { HEAP.dealloc(p, layout) };
    /// ```
    #[must_use]
    pub const fn prefer() -> Self {
        Self::with(Fallback::DefaultMem)
    }

    /// Pins at most `bytes` bytes of live blocks (the OpenMP trait `pool_size`). 0 is no cap.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    ///
    /// #[global_allocator]
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer().cap(4 << 20);
    /// ```
    #[must_use]
    pub const fn cap(mut self, bytes: usize) -> Self {
        self.cap = bytes;
        self
    }

    /// What a child process gets of the heap. The default, [`ForkPolicy::Keep`], is the only one under which a
    /// child can go on using it.
    ///
    /// ```
    /// use pinned_alloc::{ForkPolicy, PinnedGlobal};
    ///
    /// // A program that only ever forks to exec.
    /// static HEAP: PinnedGlobal = PinnedGlobal::require().fork_policy(ForkPolicy::DontFork);
    /// ```
    #[must_use]
    pub const fn fork_policy(mut self, f: ForkPolicy) -> Self {
        self.fork = f;
        self
    }

    /// Has the first request that fails in this process write cause and cure to standard error: the standard library's
    /// own message, which follows, names the size only.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    ///
    /// #[global_allocator]
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer().explain();
    /// ```
    #[must_use]
    pub const fn explain(mut self) -> Self {
        self.explain = true;
        self
    }

    fn get(&self) -> Option<&'static Allocator> {
        // SAFETY: set once, to a record that is never freed.
        match unsafe { self.allocator.load(Ordering::Acquire).as_ref() } {
            Some(a) => Some(a),
            None => self.make(),
        }
    }

    #[cold]
    fn make(&self) -> Option<&'static Allocator> {
        let mut traits = Traits::DEFAULT;
        traits.pinned = true;
        traits.fallback = self.fallback;
        traits.pool_size = (self.cap != 0).then_some(self.cap);
        let policy = Policy { fork: self.fork, ..Policy::DEFAULT };
        let a = table::create(MemSpace::Default, traits, policy).ok()?;
        let p = (&raw const *a).cast_mut();
        match self.allocator.compare_exchange(ptr::null_mut(), p, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(a),
            Err(other) => {
                a.destroy();
                a.exit();
                // SAFETY: as in `get`.
                unsafe { other.as_ref() }
            }
        }
    }

    /// A block of the calling thread's own; null if it has none ready.
    #[inline(always)]
    fn take(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `get`.
        match unsafe { self.allocator.load(Ordering::Acquire).as_ref() } {
            Some(a) if layout.align() <= 16 => a.take(layout.size()),
            _ => ptr::null_mut(),
        }
    }

    #[inline(never)]
    pub(super) fn request(&self, layout: Layout, zero: bool) -> Option<NonNull<u8>> {
        // SAFETY: as in `get`.
        if let Some(a) = unsafe { self.allocator.load(Ordering::Acquire).as_ref() }
            && layout.align() <= 16
            && let Some(p) = NonNull::new(a.take_back(layout.size()))
        {
            if zero {
                // SAFETY: a block that was just handed out, of that size.
                unsafe { p.as_ptr().write_bytes(0, layout.size()) };
            }
            return Some(p);
        }
        match self.get()?.allocate(layout.size(), layout.align(), zero) {
            Ok(g) => Some(g.ptr),
            Err(e) => self.fail(e),
        }
    }

    /// # Safety
    /// `ptr` is a live block of this allocator; dead after `Some`, unless the address is the same.
    pub(super) unsafe fn resize(
        &self,
        ptr: NonNull<u8>,
        new: Layout,
        policy: ReallocPolicy,
    ) -> Option<NonNull<u8>> {
        let block = heap::find(ptr.as_ptr().addr())?;
        let r = Resize { size: new.size(), align: new.align(), policy, zero: false };
        // SAFETY: the caller's promise.
        match unsafe { reallocate(block, ptr, self.get()?, r) } {
            Ok(g) => Some(g.ptr),
            Err(e) => self.fail(e),
        }
    }

    /// Takes note of why a request fails, and says so if that was asked for.
    #[cold]
    fn fail(&self, e: Error) -> Option<NonNull<u8>> {
        last::note(e);
        static SAID: AtomicBool = AtomicBool::new(false);
        if self.explain && !SAID.swap(true, Ordering::Relaxed) {
            say(&e);
        }
        None
    }

    /// Whether the live block at `ptr` is locked and resident right now, whole.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    ///
    /// #[global_allocator]
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer();
    ///
    /// let b = Box::new([0u8; 100]);
    /// println!("pinned: {}", HEAP.is_pinned(&raw const *b));
    /// assert!(!HEAP.is_pinned(&raw const HEAP)); // not of the heap
    /// ```
    #[must_use]
    pub fn is_pinned<T: ?Sized>(&self, ptr: *const T) -> bool {
        heap::find(ptr.addr()).is_some_and(|b| b.is_pinned())
    }

    /// Figures of this heap.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    ///
    /// #[global_allocator]
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer();
    ///
    /// let v = vec![0u8; 5000];
    /// assert!(HEAP.stats().requested >= 5000);
    /// # drop(v);
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.get().map(super::stats::of).unwrap_or_default()
    }

    /// Gives idle memory of the whole process back to the system. Returns the bytes given back.
    ///
    /// ```
    /// use pinned_alloc::PinnedGlobal;
    ///
    /// #[global_allocator]
    /// static HEAP: PinnedGlobal = PinnedGlobal::prefer();
    ///
    /// drop(vec![0u8; 1 << 20]);
    /// assert!(HEAP.trim() >= 1 << 20);
    /// ```
    pub fn trim(&self) -> usize {
        crate::trim(0)
    }
}

// SAFETY: blocks are as large and aligned as asked, apart from each other, and stay until freed; nothing here
// unwinds; layouts are not trusted for more than size and alignment.
unsafe impl GlobalAlloc for PinnedGlobal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let p = self.take(layout);
        if !p.is_null() {
            return p;
        }
        self.request(layout, false).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let p = self.take(layout);
        if !p.is_null() {
            // SAFETY: a block that was just handed out, of that size.
            unsafe { p.write_bytes(0, layout.size()) };
            return p;
        }
        self.request(layout, true).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        // SAFETY: a live block that the caller gives up.
        if !unsafe { heap::give(ptr) } {
            // SAFETY: as above.
            unsafe { give_slowly(ptr) };
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(new_size, layout.align()) else { return ptr::null_mut() };
        let Some(p) = NonNull::new(ptr) else { return ptr::null_mut() };
        // SAFETY: a live block of this allocator.
        unsafe { self.resize(p, new, ReallocPolicy::MayMove) }.map_or(ptr::null_mut(), NonNull::as_ptr)
    }
}

/// # Safety
/// `ptr` is a live block that the caller gives up.
#[cold]
#[inline(never)]
unsafe fn give_slowly(ptr: *mut u8) {
    // SAFETY: the caller's promise.
    let _ = unsafe { crate::routines::free(ptr, crate::AllocatorHandle::NULL) };
}
