//! The routines of the specification, on handles (OpenMP 6.0 chapter 27, 5.2 section 18.13).
//!
//! Names drop the `omp_` prefix. Each answers any handle, size and alignment. `Ok(null)` is what the
//! specification answers with a null pointer without calling it a failure (size 0); an `Err` stands for the null
//! pointer after the allocator's fallback has had its turn. They may be called from any thread, from thread-local
//! destructors and before `main`; after `fork`, see [`ForkPolicy`](crate::ForkPolicy).
//!
//! ```
//! use pinned_alloc::{AllocatorHandle, Error, MemSpace, routines, traits::{key, value}};
//!
//! let traits = [(key::POOL_SIZE, 4096), (key::ALIGNMENT, 64), (key::FALLBACK, value::NULL_FB)];
//! let h = routines::init_allocator(MemSpace::Default, traits)?;
//! let p = routines::alloc(4096, h)?;
//! assert_eq!(p.addr() % 64, 0);
//! // The pool is exact, and its fallback is null.
//! assert!(matches!(routines::alloc(1, h), Err(Error::Pool { pool_size: 4096, used: 4096, asked: 1 })));
//! routines::destroy_allocator(h); // the block lives on
//! // SAFETY: a live block, freed once; any handle will do.
//! unsafe { routines::free(p, AllocatorHandle::NULL)? };
//! # Ok::<(), Error>(())
//! ```

use super::error::Error;
use super::handle::AllocatorHandle;
use super::policy::{Policy, ReallocPolicy};
use super::space::MemSpace;
use super::table::{self, Allocator};
use super::traits::Traits;
use super::{Resize, default, realloc, reallocate};
use crate::heap;
use core::ptr::{self, NonNull};

/// `omp_init_allocator`: an allocator over `space` with raw traits.
///
/// # Errors
/// Where the specification answers with `omp_null_allocator`.
///
/// ```
/// use pinned_alloc::{MemSpace, routines, traits::{key, value}};
///
/// let h = routines::init_allocator(MemSpace::Default, [(key::PINNED, value::TRUE)])?;
/// routines::destroy_allocator(h);
/// assert!(routines::init_allocator(MemSpace::Default, [(key::ALIGNMENT, 3)]).is_err());
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn init_allocator(
    space: MemSpace,
    traits: impl IntoIterator<Item = (i32, usize)>,
) -> Result<AllocatorHandle, Error> {
    table::create(space, Traits::from_raw(traits)?, Policy::DEFAULT).map(Allocator::give_handle)
}

/// `omp_destroy_allocator`: the handle is dead afterwards; live blocks stay valid until they are freed. Predefined
/// and unknown handles, and the null handle, are ignored.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, MemSpace, routines};
///
/// let h = routines::init_allocator(MemSpace::Default, [])?;
/// let p = routines::alloc(100, h)?;
/// routines::destroy_allocator(h);
/// assert!(routines::alloc(100, h).is_err());
/// // SAFETY: still a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn destroy_allocator(handle: AllocatorHandle) {
    if let Ok(a) = table::enter(handle) {
        a.destroy();
        a.exit();
    }
}

/// `omp_set_default_allocator`, for the calling thread. The null handle stands for `omp_default_mem_alloc`.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// routines::set_default_allocator(AllocatorHandle::LARGE_CAP_MEM);
/// let p = routines::alloc(100, AllocatorHandle::NULL)?; // of large_cap
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # routines::set_default_allocator(AllocatorHandle::NULL);
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn set_default_allocator(handle: AllocatorHandle) {
    default::set(handle);
}

/// `omp_get_default_allocator`, of the calling thread. Never the null handle.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// routines::set_default_allocator(AllocatorHandle::NULL);
/// assert_eq!(routines::get_default_allocator(), AllocatorHandle::DEFAULT_MEM);
/// ```
#[must_use]
pub fn get_default_allocator() -> AllocatorHandle {
    default::get()
}

struct User(&'static Allocator);

impl Drop for User {
    fn drop(&mut self) {
        self.0.exit();
    }
}

fn enter(handle: AllocatorHandle) -> Result<User, Error> {
    let h = if handle == AllocatorHandle::NULL { default::get() } else { handle };
    table::enter(h).map(User)
}

fn request(align: usize, size: usize, handle: AllocatorHandle, zero: bool) -> Result<*mut u8, Error> {
    if size == 0 {
        return Ok(ptr::null_mut());
    }
    // 0 asks for nothing; what is no power of two cannot be given, and is never given wrongly.
    let align = align.max(1);
    if !align.is_power_of_two() {
        return Err(Error::Alignment { align });
    }
    let user = enter(handle)?;
    user.0.allocate(size, align, zero).map(|g| g.ptr.as_ptr())
}

/// `omp_alloc`: `size` bytes, aligned to the allocator's trait and 16.
///
/// # Errors
/// After the fallback.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::alloc(100, AllocatorHandle::DEFAULT_MEM)?;
/// assert_eq!(p.addr() % 16, 0);
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// assert!(routines::alloc(0, AllocatorHandle::DEFAULT_MEM)?.is_null());
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn alloc(size: usize, handle: AllocatorHandle) -> Result<*mut u8, Error> {
    request(1, size, handle, false)
}

/// `omp_aligned_alloc`: aligned to `align` too. `size` need not be a multiple of it.
///
/// # Errors
/// [`Error::Alignment`] for an alignment that is no power of two, or above 1 GiB; else after the fallback.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::aligned_alloc(4096, 100, AllocatorHandle::DEFAULT_MEM)?;
/// assert_eq!(p.addr() % 4096, 0);
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn aligned_alloc(align: usize, size: usize, handle: AllocatorHandle) -> Result<*mut u8, Error> {
    request(align, size, handle, false)
}

/// `omp_calloc`: `count * size` zero bytes.
///
/// # Errors
/// A product that overflows is a failed allocation; else as [`alloc`].
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::calloc(10, 8, AllocatorHandle::DEFAULT_MEM)?;
/// // SAFETY: 80 bytes that are live and ours.
/// assert_eq!(unsafe { p.cast::<u64>().read() }, 0);
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// assert!(routines::calloc(usize::MAX, 2, AllocatorHandle::DEFAULT_MEM).is_err());
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn calloc(count: usize, size: usize, handle: AllocatorHandle) -> Result<*mut u8, Error> {
    aligned_calloc(1, count, size, handle)
}

/// `omp_aligned_calloc`.
///
/// # Errors
/// As [`calloc`] and [`aligned_alloc`].
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::aligned_calloc(64, 10, 8, AllocatorHandle::DEFAULT_MEM)?;
/// assert_eq!(p.addr() % 64, 0);
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub fn aligned_calloc(
    align: usize,
    count: usize,
    size: usize,
    handle: AllocatorHandle,
) -> Result<*mut u8, Error> {
    // A product that overflows is larger than any allocator can serve: it fails there, and falls back.
    request(align, count.saturating_mul(size), handle, true)
}

/// `omp_free`: any handle will do, since the block says whose it is. A null pointer is ignored.
///
/// # Safety
/// `ptr` is null or a live block of this crate, and is not used after this.
///
/// # Errors
/// [`Error::NotABlock`] for an address where no live block of this crate begins; nothing is done then.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::alloc(100, AllocatorHandle::DEFAULT_MEM)?;
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// // SAFETY: null is ignored.
/// unsafe { routines::free(std::ptr::null_mut(), AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub unsafe fn free(ptr: *mut u8, _handle: AllocatorHandle) -> Result<(), Error> {
    if ptr.is_null() {
        return Ok(());
    }
    let block = heap::find(ptr.addr()).ok_or(Error::NotABlock { addr: ptr.addr() })?;
    // SAFETY: a live block, which the caller gives up.
    unsafe {
        if !heap::give(ptr) {
            realloc::release(block);
        }
    }
    Ok(())
}

/// `omp_realloc`, under the allocator's own [`ReallocPolicy`].
///
/// A null `handle` is the allocator that `ptr` was asked of. `free_handle` is determined from the block.
///
/// # Safety
/// As [`free`] where the result is `Ok`; where it is `Err` the block is as it was.
///
/// # Errors
/// [`Error::NotABlock`]; else after the fallback.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::alloc(100, AllocatorHandle::DEFAULT_MEM)?;
/// // SAFETY: a live block.
/// let p = unsafe { routines::realloc(p, 10_000, AllocatorHandle::NULL, AllocatorHandle::NULL)? };
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub unsafe fn realloc(
    ptr: *mut u8,
    size: usize,
    handle: AllocatorHandle,
    free_handle: AllocatorHandle,
) -> Result<*mut u8, Error> {
    // SAFETY: the caller's promise.
    unsafe { realloc_with(ptr, size, handle, free_handle, None) }
}

/// [`realloc`] with a policy of the call's own.
///
/// # Safety
/// As [`realloc`].
///
/// # Errors
/// As [`realloc`]; under `Fixed` also [`Error::NoRoom`], for which no fallback is asked.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, ReallocPolicy, routines};
///
/// const NULL: AllocatorHandle = AllocatorHandle::NULL;
/// let p = routines::alloc(100, AllocatorHandle::DEFAULT_MEM)?;
/// // SAFETY: a live block.
/// let q = unsafe { routines::realloc_with(p, 50, NULL, NULL, Some(ReallocPolicy::Fixed))? };
/// assert_eq!(p, q);
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(q, NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub unsafe fn realloc_with(
    ptr: *mut u8,
    size: usize,
    handle: AllocatorHandle,
    free_handle: AllocatorHandle,
    policy: Option<ReallocPolicy>,
) -> Result<*mut u8, Error> {
    let Some(addr) = NonNull::new(ptr) else { return alloc(size, handle) };
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { free(ptr, free_handle)? };
        return Ok(ptr::null_mut());
    }
    let block = heap::find(ptr.addr()).ok_or(Error::NotABlock { addr: ptr.addr() })?;
    let origin = table::slot(block.heap().tag().origin).ok_or(Error::NotABlock { addr: ptr.addr() })?;
    // The block's own allocator serves on even if its handle is dead: its record lives while the block does.
    let user = if handle == AllocatorHandle::NULL { None } else { Some(enter(handle)?) };
    let target = user.as_ref().map_or(origin, |u| u.0);
    if user.is_none() {
        target.enter_by_block();
    }
    let policy = policy.unwrap_or(target.core().policy.realloc);
    let align = target.core().traits.alignment.get().max(16);
    // SAFETY: a live block of the caller's.
    let r = unsafe { reallocate(block, addr, target, Resize { size, align, policy, zero: false }) };
    if user.is_none() {
        target.exit();
    }
    r.map(|g| g.ptr.as_ptr())
}
