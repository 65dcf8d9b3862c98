//! Allocator handles: numbers that are looked up and checked, never pointers that are trusted.
//!
//! ```text
//!   user allocator:  | generation, 32 bits | 0x1000 + slot, 32 bits |
//!   predefined:      0 .. 8 as in every runtime; 100 and 200, vendors' names for pinned host memory
//! ```
//!
//! A slot gets a new generation each time it is used again, so the handle of a destroyed allocator is never the
//! handle of its successor (before four billion of them in one slot).

/// `omp_allocator_handle_t`.
///
/// ```
/// use pinned_alloc::{AllocatorHandle, routines};
///
/// let p = routines::alloc(100, AllocatorHandle::DEFAULT_MEM)?;
/// // SAFETY: a live block, freed once.
/// unsafe { routines::free(p, AllocatorHandle::NULL)? };
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct AllocatorHandle(usize);

const BASE: usize = 0x1000;

impl AllocatorHandle {
    /// `omp_null_allocator`: the default allocator, or "find out".
    pub const NULL: Self = Self(0);
    /// `omp_default_mem_alloc`: the default memory space, `fallback` is `null_fb`.
    pub const DEFAULT_MEM: Self = Self(1);
    /// `omp_large_cap_mem_alloc`.
    pub const LARGE_CAP_MEM: Self = Self(2);
    /// `omp_const_mem_alloc`.
    pub const CONST_MEM: Self = Self(3);
    /// `omp_high_bw_mem_alloc`.
    pub const HIGH_BW_MEM: Self = Self(4);
    /// `omp_low_lat_mem_alloc`.
    pub const LOW_LAT_MEM: Self = Self(5);
    /// `omp_cgroup_mem_alloc`: `access` is `cgroup`.
    pub const CGROUP_MEM: Self = Self(6);
    /// `omp_pteam_mem_alloc`: `access` is `pteam`.
    pub const PTEAM_MEM: Self = Self(7);
    /// `omp_thread_mem_alloc`: `access` is `thread`.
    pub const THREAD_MEM: Self = Self(8);
    /// `llvm_omp_target_host_mem_alloc` (LLVM's): pinned host memory, `fallback` is `null_fb`.
    pub const LLVM_TARGET_HOST_MEM: Self = Self(100);
    /// `ompx_gnu_pinned_mem_alloc` (GCC's): pinned host memory, `fallback` is `null_fb`.
    pub const GNU_PINNED_MEM: Self = Self(200);

    /// A handle from its number; any number may be one, and is checked where it is used.
    ///
    /// ```
    /// use pinned_alloc::{AllocatorHandle, routines};
    ///
    /// assert_eq!(AllocatorHandle::from_raw(1), AllocatorHandle::DEFAULT_MEM);
    /// assert!(routines::alloc(100, AllocatorHandle::from_raw(0xdead_beef)).is_err()); // checked, not trusted
    /// ```
    #[must_use]
    pub const fn from_raw(raw: usize) -> Self {
        Self(raw)
    }

    /// The number.
    ///
    /// ```
    /// assert_eq!(pinned_alloc::AllocatorHandle::GNU_PINNED_MEM.raw(), 200);
    /// ```
    #[must_use]
    pub const fn raw(self) -> usize {
        self.0
    }

    pub(super) const fn user(slot: u32, generation: u32) -> Self {
        Self((generation as usize) << 32 | (BASE + slot as usize))
    }

    /// Slot and generation, if it has the form of a user allocator's handle.
    pub(super) const fn split(self) -> Option<(u32, u32)> {
        let (g, low) = (self.0 >> 32, self.0 & 0xffff_ffff);
        if g != 0 && low >= BASE && low - BASE < super::table::SLOTS {
            Some(((low - BASE) as u32, g as u32))
        } else {
            None
        }
    }
}

#[cfg(target_pointer_width = "32")]
compile_error!("pinned-alloc needs 64-bit handles and addresses");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_handles_come_apart_again_and_stay_clear_of_vendors() {
        for (slot, g) in [(16, 1), (65_535, u32::MAX), (20, 7)] {
            let h = AllocatorHandle::user(slot, g);
            assert_eq!(h.split(), Some((slot, g)));
            assert!(h.raw() > 1024);
        }
        for raw in [0, 1, 8, 100, 200, 201, 1024, 0x1000, usize::MAX, 1 << 32, (1 << 32) | 0xfff] {
            assert_eq!(AllocatorHandle::from_raw(raw).split(), None, "{raw:#x}");
        }
    }
}
