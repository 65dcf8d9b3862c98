//! Memory for records: slabs' bitmaps, spans' descriptions, allocators.
//!
//! It comes from mappings of its own, is zero when handed out, is never locked and never given back to the system.
//! Pieces are powers of two from 64 bytes; freed ones wait in a list by size and [`Use`]: what was a record of one
//! kind is only ever a record of that kind again, and is linked by its *last* word, so that a stale pointer to a
//! record finds a record.
//!
//! ```text
//!   1 MiB mapping:  |used|used|free ->|used|      not cut yet       |
//! ```

use super::PagesError;
use crate::os::lock::Lock;
use crate::os::{Call, OsError, mem};
use core::ptr::{self, NonNull};

const MIN_SHIFT: u32 = 6;
const CLASSES: usize = 12; // 64 bytes .. 128 KiB
const ARENA: usize = 1 << 20;

/// What a piece is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Other = 0,
    Slab = 1,
    Large = 2,
    Tray = 3,
}

struct Meta {
    free: [[*mut u8; CLASSES]; 4], // each free piece ends with the address of the next
    at: usize,
    end: usize,
}

// SAFETY: the pointers lead to memory that only the holder of the lock touches.
unsafe impl Send for Meta {}

static META: Lock<Meta> = Lock::new(Meta { free: [[ptr::null_mut(); CLASSES]; 4], at: 0, end: 0 });

fn class(bytes: usize) -> Option<usize> {
    let shift = bytes.max(1).checked_next_power_of_two()?.trailing_zeros().max(MIN_SHIFT);
    let c = (shift - MIN_SHIFT) as usize;
    (c < CLASSES).then_some(c)
}

/// Where the link of a free piece of `size` bytes is.
fn link(p: *mut u8, size: usize) -> *mut *mut u8 {
    // The last word of the piece; never out of bounds, since pieces have 64 bytes at least.
    p.wrapping_add(size - size_of::<*mut u8>()).cast()
}

/// A zeroed piece of at least `bytes` bytes, aligned to its size rounded up to a power of two (at most 4096). A
/// record (any other `Use` than `Other`) comes as it was left, but for its last word.
pub(crate) fn alloc(bytes: usize, what: Use) -> Result<NonNull<u8>, PagesError> {
    let Some(c) = class(bytes) else {
        let len = super::page_up(bytes).ok_or(PagesError::overflow(bytes))?;
        let p = mem::map(len).map_err(|e| PagesError::diagnose(len, e))?;
        return nonnull(p);
    };
    let size = 1usize << (MIN_SHIFT as usize + c);
    let mut m = META.lock();
    if let Some(p) = NonNull::new(m.free[what as usize][c]) {
        // SAFETY: a piece in the list was freed by `free`, which wrote the next pointer at its end.
        m.free[what as usize][c] = unsafe { link(p.as_ptr(), size).read() };
        drop(m);
        // SAFETY: the piece has `size` bytes and belongs to this caller now.
        unsafe {
            match what {
                Use::Other => ptr::write_bytes(p.as_ptr(), 0, size),
                Use::Slab | Use::Large | Use::Tray => link(p.as_ptr(), size).write(ptr::null_mut()),
            }
        }
        return Ok(p);
    }
    loop {
        let at = m.at.next_multiple_of(size.min(4096));
        if m.at != 0 && m.end.saturating_sub(at) >= size {
            m.at = at + size;
            return nonnull(at);
        }
        drop(m); // No lock across the system call.
        let a = mem::map(ARENA).map_err(|e| PagesError::diagnose(ARENA, e))?;
        m = META.lock();
        if m.at != 0 && m.end.saturating_sub(m.at.next_multiple_of(size.min(4096))) >= size {
            // Another thread was faster; its arena serves.
            let _ = mem::unmap(a, ARENA);
        } else {
            m.at = a;
            m.end = a + ARENA;
        }
    }
}

fn nonnull(addr: usize) -> Result<NonNull<u8>, PagesError> {
    NonNull::new(ptr::with_exposed_provenance_mut(addr))
        .ok_or(PagesError::diagnose(0, OsError::new(Call::Mmap, libc::EINVAL, 0, 0)))
}

/// Takes a piece back.
///
/// # Safety
/// `p` came from [`alloc`] with the same arguments, and nobody uses it any more.
pub(crate) unsafe fn free(p: NonNull<u8>, bytes: usize, what: Use) {
    let Some(c) = class(bytes) else {
        if let Some(len) = super::page_up(bytes) {
            let _ = mem::unmap(p.as_ptr().addr(), len);
        }
        return;
    };
    let mut m = META.lock();
    // SAFETY: the piece is at least 64 bytes, aligned, and the caller gave it up.
    unsafe { link(p.as_ptr(), 1 << (MIN_SHIFT as usize + c)).write(m.free[what as usize][c]) };
    m.free[what as usize][c] = p.as_ptr();
}

/// For the fork handlers.
pub(crate) fn raw_lock() {
    META.raw_lock();
}

/// # Safety
/// After [`raw_lock`] of this thread or of the thread it was forked from.
pub(crate) unsafe fn raw_unlock() {
    // SAFETY: as the caller promises.
    unsafe { META.raw_unlock() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_aligned_and_apart() {
        let mut got: Vec<(usize, usize)> = Vec::new();
        for round in 0..3 {
            for bytes in [1, 64, 65, 200, 4096, 5000, 65536, 65537, 300_000] {
                let p = alloc(bytes, Use::Other).unwrap();
                let a = p.as_ptr().addr();
                assert_eq!(a % bytes.next_power_of_two().clamp(64, 4096), 0, "round {round} size {bytes}");
                for &(b, n) in &got {
                    assert!(a + bytes <= b || b + n <= a);
                }
                // SAFETY: the piece has `bytes` bytes.
                unsafe {
                    assert!((0..bytes).all(|i| p.as_ptr().add(i).read() == 0));
                    ptr::write_bytes(p.as_ptr(), 0xee, bytes);
                }
                got.push((a, bytes));
            }
            if round == 1 {
                for (a, n) in got.drain(..) {
                    // SAFETY: allocated above with this size.
                    unsafe {
                        free(NonNull::new(ptr::with_exposed_provenance_mut(a)).unwrap(), n, Use::Other)
                    };
                }
            }
        }
        assert!(alloc(usize::MAX, Use::Other).is_err());
    }
}
