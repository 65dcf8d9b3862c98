//! A block under observation: every byte of it is known, and each step is compared with the kernel.

use pinned_alloc::os::procfs;
use pinned_alloc::{Error, PinnedAlloc, ReallocPolicy, process_stats};
use std::alloc::Layout;
use std::ptr::NonNull;

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;

/// A layout that is known to be valid.
#[track_caller]
pub(crate) fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// `VmLck`, which must be what the crate reports; for processes that lock nothing on their own account.
#[track_caller]
pub(crate) fn agree() -> u64 {
    let locked = procfs::vm_locked().unwrap();
    assert_eq!(locked, process_stats().locked as u64, "VmLck and process_stats().locked");
    locked
}

/// The `VmFlags` of each mapping that meets `[start, start + len)`.
pub(crate) fn vm_flags(start: usize, len: usize) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/thread-self/smaps").unwrap();
    let (mut inside, mut all) = (false, Vec::new());
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside {
                all.push(format!(" {} ", flags.trim()));
            }
        } else if let Some((from, to)) = line.split(' ').next().and_then(|r| r.split_once('-'))
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = from < start + len && to > start;
        }
    }
    all
}

/// The pattern that belongs to `seed`, a page at a time: no two pages, and no two seeds, are alike.
fn pages(seed: u8, size: usize) -> impl Iterator<Item = ([u8; PAGE], usize, usize)> {
    let mut base = [0u8; PAGE];
    for (i, x) in base.iter_mut().enumerate() {
        *x = seed.wrapping_add((i as u8).wrapping_mul(7)) ^ (i >> 8) as u8;
    }
    (0..size.div_ceil(PAGE)).map(move |page| {
        let mut b = base;
        for (x, n) in b.iter_mut().zip(page.to_le_bytes()) {
            *x ^= n;
        }
        (b, page * PAGE, PAGE.min(size - page * PAGE))
    })
}

/// Writes the pattern over `size` bytes from `p` on.
///
/// # Safety
/// They are the caller's.
pub(crate) unsafe fn fill(p: *mut u8, size: usize, seed: u8) {
    for (b, at, n) in pages(seed, size) {
        // SAFETY: within the caller's bytes.
        unsafe { p.add(at).copy_from_nonoverlapping(b.as_ptr(), n) };
    }
}

/// Compares `size` bytes from `p` on with the pattern, every byte.
///
/// # Safety
/// They are the caller's, and initialised.
#[track_caller]
pub(crate) unsafe fn check(p: *const u8, size: usize, seed: u8) {
    for (b, at, n) in pages(seed, size) {
        // SAFETY: within the caller's bytes.
        let is = unsafe { std::slice::from_raw_parts(p.add(at), n) };
        assert!(is == &b[..n], "bytes {at} to {} of {size} have changed", at + n);
    }
}

/// A live block of `alloc` that is checked at each step: contents, address, alignment, figures, `VmLck`.
///
/// A clone stands for the same block: it is for the child of a fork, which has its own.
#[derive(Clone)]
pub(crate) struct Tracked {
    pub(crate) alloc: PinnedAlloc,
    pub(crate) ptr: NonNull<u8>,
    pub(crate) layout: Layout,
    seed: u8,
}

impl Tracked {
    /// Allocates and fills a block.
    #[track_caller]
    pub(crate) fn new(alloc: &PinnedAlloc, layout: Layout) -> Result<Self, Error> {
        let before = agree();
        let got = alloc.allocate(layout);
        let after = agree();
        let ptr = match got {
            Ok(b) => b.cast::<u8>(),
            Err(e) => {
                assert!(after <= before, "a failed allocation locks nothing: {before} to {after}");
                return Err(e);
            }
        };
        let b = Self { alloc: alloc.clone(), ptr, layout, seed: 0x31 };
        b.is_whole();
        b.fill();
        Ok(b)
    }

    pub(crate) fn addr(&self) -> usize {
        self.ptr.as_ptr() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn pinned(&self) -> bool {
        self.alloc.is_pinned(self.ptr)
    }

    pub(crate) fn info(&self) -> pinned_alloc::BlockInfo {
        self.alloc.info(self.ptr).expect("a live block is known")
    }

    fn fill(&self) {
        // SAFETY: the block is this object's alone.
        unsafe { fill(self.ptr.as_ptr(), self.size(), self.seed) };
    }

    /// Every byte is as it was written.
    #[track_caller]
    pub(crate) fn check(&self) {
        // SAFETY: the block is this object's alone, and was filled.
        unsafe { check(self.ptr.as_ptr(), self.size(), self.seed) };
    }

    /// Address, size and lock are what the crate and the kernel say.
    #[track_caller]
    fn is_whole(&self) {
        let info = self.info();
        assert!(self.addr().is_multiple_of(self.layout.align().max(16)));
        assert_eq!(info.requested, self.size());
        assert!(info.usable >= self.size() && info.capacity >= info.usable);
        let from = self.addr() / PAGE * PAGE;
        let len = (self.addr() + self.size()).next_multiple_of(PAGE) - from;
        let locked = procfs::smaps_range(from, len).unwrap().lo_flag_bytes;
        if info.is_pinned() {
            assert_eq!(locked, len as u64, "a pinned block lies in locked mappings");
            assert_eq!(procfs::resident_pages(from, len), Ok((len / PAGE) as u64));
        } else {
            assert_eq!(locked, 0, "an unpinned block shares no page with a pinned one");
        }
        agree();
    }

    /// Resizes. After a success everything is checked and the block is filled anew; after a failure everything is as
    /// it was.
    #[track_caller]
    pub(crate) fn realloc(&mut self, size: usize, policy: ReallocPolicy) -> Result<(), Error> {
        self.realloc_to(Layout::from_size_align(size, self.layout.align()).unwrap(), policy)
    }

    /// As [`realloc`](Self::realloc), to another alignment too.
    #[track_caller]
    pub(crate) fn realloc_to(&mut self, new: Layout, policy: ReallocPolicy) -> Result<(), Error> {
        let before = (self.info(), agree(), self.alloc.stats());
        // SAFETY: the block is this object's alone, of this layout; the result takes its place.
        let got = unsafe { self.alloc.realloc_aligned(self.ptr, self.layout, new, policy) };
        match got {
            Ok(b) => {
                let at = b.cast::<u8>();
                assert_eq!(b.len(), new.size());
                assert!(policy == ReallocPolicy::MayMove || at == self.ptr, "Fixed never moves");
                // SAFETY: the block has these bytes now, and they were filled.
                unsafe { check(at.as_ptr(), new.size().min(self.size()), self.seed) };
                let requested = self.alloc.stats().requested;
                assert_eq!(requested, before.2.requested - self.size() + new.size());
                (self.ptr, self.layout) = (at, new);
                self.seed = self.seed.wrapping_add(41);
                self.is_whole();
                self.fill();
                Ok(())
            }
            Err(e) => {
                assert_eq!(self.info(), before.0, "a failed realloc leaves the block as it was: {e}");
                assert!(agree() <= before.1, "a failed realloc locks nothing: {e}");
                let after = self.alloc.stats();
                assert_eq!(
                    (after.live_blocks, after.requested, after.slack),
                    (before.2.live_blocks, before.2.requested, before.2.slack)
                );
                self.check();
                self.is_whole();
                Err(e)
            }
        }
    }

    /// Checks and frees.
    #[track_caller]
    pub(crate) fn free(self) {
        self.check();
        // SAFETY: the block is this object's alone, of this layout, and the object ends here.
        unsafe { self.alloc.deallocate(self.ptr, self.layout) };
        agree();
    }
}

/// An occupied piece of address space, so that what lies before it cannot grow in place.
pub(crate) struct Wall(usize);

impl Wall {
    /// Builds one at `at`, unless something is there.
    pub(crate) fn at(at: usize) -> Option<Self> {
        // SAFETY: a new mapping without access that replaces nothing.
        let p = unsafe {
            libc::mmap(
                at as *mut _,
                PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        (p as usize == at).then(|| Self(at))
    }

    /// Whether nothing is mapped in `[at, at + len)`.
    pub(crate) fn none_in(at: usize, len: usize) -> bool {
        (0..len).step_by(PAGE).all(|i| Self::at(at + i).is_some())
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping.
        unsafe { libc::munmap(self.0 as *mut _, PAGE) };
    }
}
