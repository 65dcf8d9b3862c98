//! `Allocator` for collections: allocator-api2's 0.2 and 0.4 lines, and std's own under `nightly`.
//!
//! The three traits are alike in words and different in type, so one macro writes all of them. Clones of a
//! [`PinnedAlloc`] are equivalent allocators; memory stays valid until freed, whatever happens to the clones.
//! `grow` and `shrink` follow the allocator's own [`ReallocPolicy`](crate::ReallocPolicy): under `Fixed` a
//! collection that cannot grow in place fails to grow (its `try_reserve` says so, its `push` aborts). Why is in
//! [`last_error`](crate::last_error).

use super::{PinnedAlloc, PinnedGlobal, dangling};
use crate::ReallocPolicy;
use crate::omp::last::note;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Grows or shrinks a block that a collection owns.
///
/// # Safety
/// `ptr` is a live block of `a` that `old` fits; dead after `Ok`.
unsafe fn regrow(
    a: &PinnedAlloc,
    ptr: NonNull<u8>,
    old: Layout,
    new: Layout,
    zero: bool,
) -> Option<NonNull<[u8]>> {
    let policy = a.policy().realloc;
    // SAFETY: the caller's promise.
    unsafe { a.resize(ptr, old, new.size(), new.align(), policy, zero) }.map_err(note).ok()
}

macro_rules! implement {
    ($($krate:ident)::+, $feature:literal) => {
        #[cfg(feature = $feature)]
        const _: () = {
            use $($krate)::+::{AllocError, Allocator};

            // SAFETY: blocks stay valid and where they are until they are freed or resized; clones share one
            // allocator, so a block of one may be passed to another; moving a handle moves no block.
            unsafe impl Allocator for PinnedAlloc {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    PinnedAlloc::allocate(self, layout).map_err(note).map_err(|()| AllocError)
                }

                fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    PinnedAlloc::allocate_zeroed(self, layout).map_err(note).map_err(|()| AllocError)
                }

                unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
                    // SAFETY: the caller's promise is the one asked for.
                    unsafe { PinnedAlloc::deallocate(self, ptr, layout) }
                }

                unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    // SAFETY: as above.
                    unsafe { regrow(self, p, old, new, false) }.ok_or(AllocError)
                }

                unsafe fn grow_zeroed(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    // SAFETY: as above.
                    unsafe { regrow(self, p, old, new, true) }.ok_or(AllocError)
                }

                unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    // SAFETY: as above.
                    unsafe { regrow(self, p, old, new, false) }.ok_or(AllocError)
                }
            }

            // SAFETY: as above; a PinnedGlobal lives for the program, and its copies by reference are one.
            unsafe impl Allocator for &'static PinnedGlobal {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    if layout.size() == 0 {
                        return Ok(NonNull::slice_from_raw_parts(dangling(layout), 0));
                    }
                    let p = self.request(layout, false).ok_or(AllocError)?;
                    Ok(NonNull::slice_from_raw_parts(p, layout.size()))
                }

                unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
                    if layout.size() != 0 {
                        // SAFETY: the caller's promise.
                        let _ = unsafe { crate::routines::free(ptr.as_ptr(), crate::AllocatorHandle::NULL) };
                    }
                }

                unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                    if old.size() == 0 {
                        return self.allocate(new);
                    }
                    // SAFETY: the caller's promise.
                    let q = unsafe { self.resize(p, new, ReallocPolicy::MayMove) }.ok_or(AllocError)?;
                    Ok(NonNull::slice_from_raw_parts(q, new.size()))
                }
            }
        };
    };
}

implement!(allocator_api2::alloc, "allocator-api2");
implement!(allocator_api2_04::alloc, "allocator-api2-04");
implement!(std::alloc, "nightly");
