//! One block, held against the kernel: smaps, `mincore`, `VmLck`.

use crate::report::{Failure, bytes};
use pinned_alloc::os::limits::Limits;
use pinned_alloc::os::procfs;
use pinned_alloc::{Error, PinnedAlloc, process_stats};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Bytes locked in this process by others than this crate, once and for all.
pub(crate) fn others() -> u64 {
    use std::sync::OnceLock;
    static OTHERS: OnceLock<u64> = OnceLock::new();
    *OTHERS.get_or_init(|| procfs::vm_locked().unwrap_or(0).saturating_sub(process_stats().locked as u64))
}

/// `VmLck` is what the crate reports, page for page.
pub(crate) fn accounts() -> Result<u64, Failure> {
    let ours = process_stats().locked as u64;
    match procfs::vm_locked() {
        Some(v) if v == others() + ours => Ok(ours),
        Some(v) => Err(format!("VmLck says {v} bytes, the crate {ours}, others {}", others()).into()),
        None => Err("no VmLck in /proc/self/status".to_owned().into()),
    }
}

/// A request that failed: by the limit, if there really is no room for it; else broken.
pub(crate) fn failure(e: Error, need: usize) -> Failure {
    let room = Limits::read().headroom().unwrap_or(u64::MAX);
    let need = need.next_multiple_of(pinned_alloc::os::page_size()) as u64;
    if e.is_lock_limit() && room < need {
        Failure::Limited(e)
    } else {
        Failure::Broken(format!("{e}, with room for {}", bytes(room)))
    }
}

/// A layout; the cases are all valid.
pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap_or(Layout::new::<u8>())
}

/// A live block of a case, freed with it.
pub(crate) struct Held<'a> {
    pub(crate) alloc: &'a PinnedAlloc,
    pub(crate) ptr: NonNull<u8>,
    pub(crate) layout: Layout,
}

impl<'a> Held<'a> {
    /// Allocates.
    pub(crate) fn new(alloc: &'a PinnedAlloc, size: usize, align: usize) -> Result<Self, Failure> {
        let layout = layout(size, align);
        match alloc.allocate(layout) {
            Ok(b) => Ok(Held { alloc, ptr: b.cast(), layout }),
            Err(e) => Err(failure(e, size)),
        }
    }

    fn mark(&self, i: usize) -> u8 {
        (i / 4096 + i) as u8 | 1
    }

    fn marks(&self, size: usize) -> impl Iterator<Item = usize> {
        (0..size).step_by(4096).chain([size - 1])
    }

    /// Writes a pattern.
    pub(crate) fn fill(&self) {
        for i in self.marks(self.layout.size()) {
            // SAFETY: within the block, which is this value's own.
            unsafe { self.ptr.as_ptr().add(i).write(self.mark(i)) };
        }
    }

    /// The first `size` bytes still have the pattern of a block of `filled` bytes.
    pub(crate) fn kept(&self, filled: usize, size: usize) -> Result<(), Failure> {
        for i in self.marks(filled).filter(|&i| i < size) {
            // SAFETY: as above.
            if unsafe { self.ptr.as_ptr().add(i).read() } != self.mark(i) {
                return Err(format!("byte {i} was lost").into());
            }
        }
        Ok(())
    }

    /// The block is aligned, and as pinned as it says, by the kernel's account. Gives what it found.
    pub(crate) fn verify(&self) -> Result<String, Failure> {
        let (at, size) = (self.ptr.as_ptr() as usize, self.layout.size());
        if !at.is_multiple_of(self.layout.align()) {
            return Err(format!("at {at:#x}: not aligned to {}", self.layout.align()).into());
        }
        let page = pinned_alloc::os::page_size();
        let from = at / page * page;
        let len = (at + size).next_multiple_of(page) - from;
        let Some(facts) = procfs::smaps_range(from, len) else {
            return Err("no /proc/self/smaps".to_owned().into());
        };
        let resident = procfs::resident_pages(from, len).unwrap_or(0) as usize * page;
        accounts()?;
        let says = self.alloc.is_pinned(self.ptr);
        if says && (facts.lo_flag_bytes as usize != len || resident != len) {
            let (lo, res) = (bytes(facts.lo_flag_bytes), bytes(resident as u64));
            return Err(format!(
                "said to be pinned, but of {} {lo} are locked, {res} resident",
                bytes(len as u64)
            )
            .into());
        }
        if !says && facts.lo_flag_bytes != 0 {
            return Err("locked, but not said to be pinned".to_owned().into());
        }
        let pages = len / page;
        let huge =
            if facts.huge_bytes == 0 { String::new() } else { format!(", {} huge", bytes(facts.huge_bytes)) };
        let how = if says { "locked and resident" } else { "not pinned, as it says" };
        Ok(format!("{how}: {} {}{huge}", pages, if pages == 1 { "page" } else { "pages" }))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { self.alloc.deallocate(self.ptr, self.layout) };
    }
}
