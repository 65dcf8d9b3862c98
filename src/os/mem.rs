//! Address space and pages: reserve, map, open, close, lock, move, advise.
//!
//! Every range is page-aligned in address and length, and belongs to the caller. Addresses are `usize`: these
//! are ranges, not pointers to anything until the floors above hand them out.

use super::call::{Call, OsError, injected};
use core::ffi::c_void;
use core::num::NonZeroUsize;
use core::ptr::{self, NonNull};
use nix::sys::mman::{self, MapFlags, ProtFlags};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

const MADV_DONTNEED_LOCKED: i32 = 24; // Linux 5.18; not in every libc crate.

fn err(call: Call, e: nix::Error, addr: usize, len: usize) -> OsError {
    OsError::new(call, e as i32, addr, len)
}

fn nn(addr: usize) -> NonNull<c_void> {
    // Ranges come from the kernel, which never hands out page 0; a zero here becomes EINVAL or ENOMEM below.
    NonNull::new(ptr::with_exposed_provenance_mut(addr)).unwrap_or(NonNull::dangling())
}

fn mmap(at: Option<usize>, len: usize, prot: ProtFlags, flags: MapFlags) -> Result<usize, OsError> {
    let a = at.unwrap_or(0);
    injected(Call::Mmap, a, len)?;
    let Some(l) = NonZeroUsize::new(len) else {
        return Err(OsError::new(Call::Mmap, libc::EINVAL, a, len));
    };
    let flags = flags | MapFlags::MAP_PRIVATE;
    // SAFETY: an anonymous private mapping; without MAP_FIXED it replaces nothing.
    let r = unsafe { mman::mmap_anonymous(at.and_then(NonZeroUsize::new), l, prot, flags) };
    r.map(|p| p.as_ptr().expose_provenance()).map_err(|e| err(Call::Mmap, e, a, len))
}

/// Reserves `len` bytes of address space: no access, no memory, no commit charge. What is opened of it later is charged
/// then, and refused if it is more than the machine has: so not with `MAP_NORESERVE`, which would take the kernel's
/// word away and leave it to the OOM killer.
///
/// After `mlockall(MCL_FUTURE)` by the host program the kernel counts such a range as locked; it is unlocked at
/// once, so that a reservation never costs head-room.
pub(crate) fn reserve(len: usize) -> Result<usize, OsError> {
    let a = mmap(None, len, ProtFlags::PROT_NONE, MapFlags::empty())?;
    // A failure leaves the range counted, which the caller can do nothing about; the lock of a range without
    // access has no other effect.
    let _ = unlock(a, len);
    Ok(a)
}

/// As [`reserve`], at `addr` and only if nothing is mapped there (`EEXIST` otherwise).
pub(crate) fn reserve_at(addr: usize, len: usize) -> Result<(), OsError> {
    let a = mmap(Some(addr), len, ProtFlags::PROT_NONE, MapFlags::MAP_FIXED_NOREPLACE)?;
    if a != addr {
        // Kernels before 4.17 take the flag for a hint.
        let _ = unmap(a, len);
        return Err(OsError::new(Call::Mmap, libc::EEXIST, addr, len));
    }
    let _ = unlock(a, len);
    Ok(())
}

/// Maps `len` bytes, open and zero.
pub(crate) fn map(len: usize) -> Result<usize, OsError> {
    mmap(None, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::empty())
}

/// Gives the range back to the system: address space, memory and lock.
///
/// Fails with `ENOMEM` where it would split a mapping and the process is at `vm.max_map_count`; the range is
/// then as it was.
pub(crate) fn unmap(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Munmap, addr, len)?;
    // SAFETY: the caller owns the range and nothing refers to it any more.
    unsafe { mman::munmap(nn(addr), len) }.map_err(|e| err(Call::Munmap, e, addr, len))
}

/// Opens a part of a reservation for reading and writing.
pub(crate) fn open(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Mprotect, addr, len)?;
    // SAFETY: the range is a reservation of the caller; giving access to it invalidates nothing.
    unsafe { mman::mprotect(nn(addr), len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }
        .map_err(|e| err(Call::Mprotect, e, addr, len))
}

/// Turns an open (or, if `locked`, locked) part of a reservation back into reserved address space: memory and
/// lock are gone, advice and memory policy stay.
///
/// An error means that the lock could not be taken off (too many mappings, or no memory to split one), or that the
/// memory could not be given back: the range is then still open, but its pages or its lock may be gone, and the caller
/// locks it again if that is to hold. After `Ok` it is zero when it is opened again.
pub(crate) fn close(addr: usize, len: usize, locked: bool) -> Result<(), OsError> {
    if locked && unlock(addr, len).is_err() {
        // Unlocking may split a mapping, which takes memory: in a full memory cgroup it failed until the pages
        // had been given back.
        let _ = drop_pages(addr, len);
        unlock(addr, len)?;
    }
    drop_pages(addr, len)?;
    // Where access cannot be taken the range is empty and unlocked all the same, and opening it again works.
    let _ = shut(addr, len);
    Ok(())
}

fn shut(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Mprotect, addr, len)?;
    // SAFETY: the range is the caller's, and nobody refers to it any more.
    unsafe { mman::mprotect(nn(addr), len, ProtFlags::PROT_NONE) }
        .map_err(|e| err(Call::Mprotect, e, addr, len))
}

/// Gives the memory of the range back and keeps its mapping. After an error some of it may be there still.
pub(crate) fn drop_pages(addr: usize, len: usize) -> Result<(), OsError> {
    // Before 5.18 there is no such advice, and EINVAL; the other one is refused for locked memory.
    advise(addr, len, MADV_DONTNEED_LOCKED).or_else(|_| advise(addr, len, libc::MADV_DONTNEED))
}

/// Locks the range: every page is resident when this returns `Ok`.
///
/// On failure any part may be locked; the caller closes or unmaps the range.
pub(crate) fn lock(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Mlock, addr, len)?;
    // SAFETY: mlock reads nothing and writes nothing the program can see; bad ranges are answered by an errno.
    let r = unsafe { libc::syscall(libc::SYS_mlock, addr, len) };
    if r == 0 { Ok(()) } else { Err(OsError::last(Call::Mlock, addr, len)) }
}

/// Marks the range locked without populating it (`MLOCK_ONFAULT`, Linux 4.4): the limit is checked and charged, and
/// pages that come are locked as they come. [`lock`] afterwards brings the rest.
pub(crate) fn lock_on_fault(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Mlock, addr, len)?;
    // SAFETY: as for `lock`.
    let r = unsafe { libc::syscall(libc::SYS_mlock2, addr, len, libc::MLOCK_ONFAULT) };
    if r == 0 { Ok(()) } else { Err(OsError::last(Call::Mlock, addr, len)) }
}

/// Unlocks the range; its pages stay where they are.
pub(crate) fn unlock(addr: usize, len: usize) -> Result<(), OsError> {
    injected(Call::Munlock, addr, len)?;
    // SAFETY: as for `lock`.
    let r = unsafe { libc::syscall(libc::SYS_munlock, addr, len) };
    if r == 0 { Ok(()) } else { Err(OsError::last(Call::Munlock, addr, len)) }
}

/// Grows or shrinks the mapping of `[addr, addr + old)` to `new` bytes in place; never moves it.
///
/// The range must lie in one mapping (`EFAULT` otherwise). What is added of a locked mapping is counted as
/// locked but populated only as far as that went well: the caller locks it again to know.
pub(crate) fn resize(addr: usize, old: usize, new: usize) -> Result<(), OsError> {
    remap(addr, old, new, 0, 0).map(drop)
}

/// Moves the page tables of `[from, from + len)` to `to`, replacing what is mapped there.
///
/// Both ranges belong to the caller and do not overlap; the source must lie in one mapping (`EFAULT`). Contents,
/// lock, charge and frames come along; the source is unmapped afterwards.
pub(crate) fn relocate(from: usize, len: usize, to: usize) -> Result<(), OsError> {
    remap(from, len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to).map(drop)
}

fn remap(addr: usize, old: usize, new: usize, flags: i32, to: usize) -> Result<usize, OsError> {
    injected(Call::Mremap, addr, new)?;
    // SAFETY: the caller owns the source range, and the destination where one is given. By number: see `os`.
    let r = unsafe { libc::syscall(libc::SYS_mremap, addr, old, new, flags as usize, to) };
    if r == -1 { Err(OsError::last(Call::Mremap, addr, new)) } else { Ok(r as usize) }
}

/// `madvise`; whether a failure matters is the caller's to say.
pub(crate) fn advise(addr: usize, len: usize, advice: i32) -> Result<(), OsError> {
    injected(Call::Madvise, addr, len)?;
    // SAFETY: the range is the caller's, and the advices this crate gives either keep contents or are given
    // only to ranges whose contents nobody needs.
    let r = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(addr), len, advice) };
    if r == 0 { Ok(()) } else { Err(OsError::last(Call::Madvise, addr, len)) }
}

/// Populates the range for writing without locking it (Linux 5.14).
pub(crate) fn populate(addr: usize, len: usize) -> Result<(), OsError> {
    advise(addr, len, libc::MADV_POPULATE_WRITE)
}

/// Whether the process has asked for its anonymous memory to be merged by KSM (`PR_SET_MEMORY_MERGE`, 6.4). A process
/// asks once, most often before it starts; so the kernel is asked at every 64th call only.
pub(crate) fn merging() -> bool {
    const PR_GET_MEMORY_MERGE: i32 = 68;
    static CALLS: AtomicU32 = AtomicU32::new(0);
    static MERGING: AtomicBool = AtomicBool::new(false);
    if CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(64) {
        // SAFETY: a query that writes nothing; EINVAL (-1) on older kernels.
        MERGING.store(unsafe { libc::prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1 }, Ordering::Relaxed);
    }
    MERGING.load(Ordering::Relaxed)
}
