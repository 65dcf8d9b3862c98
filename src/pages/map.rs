//! The page map: from the address of a page to the record of what is there.
//!
//! ```text
//!   address: | 17 bits root | 18 bits leaf | 12 bits in the page |
//!            ROOT[2^17] ----> leaf[2^18] ----> record
//! ```
//!
//! Two loads answer for any address at all, also one that was never ours. Covered is what `mmap` gives out unless it is
//! asked for more: 47 bits on x86-64, 48 elsewhere (a root of twice the size). Larger addresses have no record. A leaf covers 1 GiB and is 2 MiB of untouched zero pages until used: the
//! map costs 8 bytes for a page of ours. Leaves are never freed.

use super::PagesError;
use crate::os::mem;
use core::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

const PAGE_SHIFT: u32 = 12;
const LEAF_BITS: u32 = 18;
const ADDRESS_BITS: u32 = if cfg!(target_arch = "x86_64") { 47 } else { 48 };
const ROOT_BITS: u32 = ADDRESS_BITS - PAGE_SHIFT - LEAF_BITS;
const LEAF_LEN: usize = 1 << LEAF_BITS;

type Leaf = [AtomicPtr<()>; LEAF_LEN];

static ROOT: [AtomicPtr<Leaf>; 1 << ROOT_BITS] = [const { AtomicPtr::new(ptr::null_mut()) }; 1 << ROOT_BITS];

#[inline]
fn split(addr: usize) -> (usize, usize) {
    (addr >> (PAGE_SHIFT + LEAF_BITS), (addr >> PAGE_SHIFT) & (LEAF_LEN - 1))
}

/// The record of the page that `addr` lies in, or null.
#[inline]
pub(crate) fn get(addr: usize) -> *mut () {
    let (r, l) = split(addr);
    let Some(slot) = ROOT.get(r) else { return ptr::null_mut() };
    let leaf = slot.load(Ordering::Acquire);
    if leaf.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a published leaf is a zeroed mapping of the size of Leaf that is never unmapped; l is in range.
    unsafe { (&*leaf)[l].load(Ordering::Acquire) }
}

/// As [`get`].
///
/// # Safety
/// [`set`] has been called for that page.
#[inline(always)]
pub(crate) unsafe fn get_known(addr: usize) -> *mut () {
    let (r, l) = split(addr);
    // SAFETY: the page is covered, and its leaf is there: `set` has seen to both.
    unsafe { (*ROOT.get_unchecked(r).load(Ordering::Acquire)).get_unchecked(l).load(Ordering::Acquire) }
}

fn leaf(r: usize) -> Result<&'static Leaf, PagesError> {
    let bytes = size_of::<Leaf>();
    let slot = ROOT.get(r).ok_or(PagesError::overflow(0))?;
    let mut p = slot.load(Ordering::Acquire);
    if p.is_null() {
        let a = mem::map(bytes).map_err(|e| PagesError::diagnose(bytes, e))?;
        let fresh: *mut Leaf = ptr::with_exposed_provenance_mut(a);
        match slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => p = fresh,
            Err(other) => {
                let _ = mem::unmap(a, bytes);
                p = other;
            }
        }
    }
    // SAFETY: as in `get`.
    Ok(unsafe { &*p })
}

/// Writes `record` for every page of `[addr, addr + len)`. On error nothing is written.
pub(crate) fn set(addr: usize, len: usize, record: *mut ()) -> Result<(), PagesError> {
    let (first, last) = (addr >> PAGE_SHIFT, (addr + len.max(1) - 1) >> PAGE_SHIFT);
    for r in (first >> LEAF_BITS)..=(last >> LEAF_BITS) {
        leaf(r)?;
    }
    for p in first..=last {
        leaf(p >> LEAF_BITS)?[p & (LEAF_LEN - 1)].store(record, Ordering::Release);
    }
    Ok(())
}

/// Forgets every page of the range.
pub(crate) fn clear(addr: usize, len: usize) {
    // The leaves exist, since `set` made them; so this cannot fail.
    let _ = set(addr, len, ptr::null_mut());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_is_answered() {
        for a in [0, 1, 4095, 1 << 46, (1 << 47) - 1, 1 << ADDRESS_BITS, 1 << 63, usize::MAX] {
            assert!(get(a).is_null(), "{a:#x}");
        }
        let rec: *mut () = ptr::dangling_mut::<u64>().cast();
        let base = (3usize << 30) - 8192; // across two leaves
        set(base, 4 * 4096, rec).unwrap();
        assert!(get(base - 1).is_null());
        assert_eq!(get(base), rec);
        assert_eq!(get(base + 4 * 4096 - 1), rec);
        assert!(get(base + 4 * 4096).is_null());
        clear(base, 4 * 4096);
        assert!(get(base).is_null());
        assert!(set(1 << ADDRESS_BITS, 4096, rec).is_err());
        let last = (1 << ADDRESS_BITS) - 4096; // the highest page is covered
        set(last, 4096, rec).unwrap();
        assert_eq!(get(last + 1), rec);
        clear(last, 4096);
    }
}
