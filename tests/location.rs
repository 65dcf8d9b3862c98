//! What the kernel does with locked pages, as SPEC_NOTES.md tells it: what `mremap` keeps and what it swallows, and
//! what moves a locked page's frame.
//!
//! Frames are read from `/proc/self/pagemap`, which shows them to `CAP_SYS_ADMIN` only; without it the tests assert
//! that they are hidden and check the rest.

mod common;

use common::{alone, room};
use pinned_alloc::{AllocatorBuilder, ForkPolicy, PinnedAlloc, ReallocPolicy, os, process_stats, trim};
use std::alloc::Layout;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

const PAGE: usize = 4096;

fn mlock(at: usize, len: usize) -> Result<(), i32> {
    // SAFETY: mlock changes nothing the program can see. By number: sanitizers replace the wrapper by a no-op.
    let r = unsafe { libc::syscall(libc::SYS_mlock, at, len) };
    if r == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}

fn mremap(at: usize, old: usize, new: usize) -> Result<usize, i32> {
    // SAFETY: the tests pass mappings of their own.
    let r = unsafe { libc::syscall(libc::SYS_mremap, at, old, new, libc::MREMAP_MAYMOVE, 0) };
    if r == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(r as usize) }
}

/// The frame of the page at `addr`, or `None` where the kernel hides frames. Opens the file anew: an inherited
/// descriptor shows the parent.
fn frame(addr: usize) -> Option<u64> {
    let mut entry = [0u8; 8];
    File::open("/proc/self/pagemap").ok()?.read_exact_at(&mut entry, (addr / PAGE * 8) as u64).ok()?;
    let pfn = u64::from_le_bytes(entry) & ((1 << 55) - 1);
    (pfn != 0).then_some(pfn)
}

fn frames_are_shown() -> bool {
    let probe = Box::new(1u8);
    frame(&raw const *probe as usize).is_some()
}

/// Two pages of a file that has one: the second cannot be made resident. The first is locked. `None` if even that
/// is more than the limit allows.
fn short_file() -> Option<usize> {
    // SAFETY: a fresh memory file, mapped where the kernel likes.
    unsafe {
        let fd = libc::memfd_create(c"short".as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, PAGE as i64) == 0);
        let p =
            libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE, fd, 0);
        assert_ne!(p, libc::MAP_FAILED);
        match mlock(p as usize, PAGE) {
            Ok(()) => Some(p as usize),
            Err(e) => {
                assert!(room() < PAGE as u64, "errno {e} with head-room {}", room());
                None
            }
        }
    }
}

#[test]
fn a_growing_mremap_swallows_a_failed_population() {
    alone("a_growing_mremap_swallows_a_failed_population", || {
        let Some(p) = short_file() else { return };
        let before = os::procfs::vm_locked().unwrap();
        match mremap(p, PAGE, 2 * PAGE) {
            Ok(p) => {
                // Success, and the new page is charged as locked; but it is not there.
                assert_eq!(os::procfs::vm_locked().unwrap(), before + PAGE as u64);
                assert_eq!(os::procfs::resident_pages(p, 2 * PAGE), Ok(1));
            }
            Err(e) => assert!(e == libc::EAGAIN && room() < PAGE as u64, "errno {e}, head-room {}", room()),
        }
    });
}

#[test]
fn mlock_reports_what_mremap_swallowed() {
    alone("mlock_reports_what_mremap_swallowed", || {
        let Some(p) = short_file() else { return };
        let Ok(p) = mremap(p, PAGE, 2 * PAGE) else { return assert!(room() < PAGE as u64) };
        assert_eq!(mlock(p + PAGE, PAGE), Err(libc::ENOMEM));
        // And on what is resident already, it is a cheap "yes".
        assert_eq!(mlock(p, PAGE), Ok(()));
    });
}

#[test]
fn a_move_keeps_frames_lock_and_contents() {
    alone("a_move_keeps_frames_lock_and_contents", || {
        let a = PinnedAlloc::new().unwrap();
        let old = Layout::from_size_align(8 * PAGE, PAGE).unwrap();
        let block = match a.allocate(old) {
            Ok(b) => b.cast::<u8>(),
            Err(e) => return assert!(e.is_lock_limit() && room() < 8 * PAGE as u64),
        };
        let at = block.as_ptr() as usize;
        for i in 0..8 * PAGE {
            // SAFETY: within the block.
            unsafe { block.as_ptr().add(i).write(i as u8) };
        }
        let before: Vec<_> = (0..8).map(|i| frame(at + i * PAGE)).collect();
        let moves = process_stats().moves;
        // SAFETY: a live block of this allocator and layout.
        let grown = match unsafe { a.realloc(block, old, 64 * PAGE, ReallocPolicy::MayMove) } {
            Ok(g) => g.cast::<u8>(),
            Err(e) => {
                assert!(e.is_lock_limit() && room() < 56 * PAGE as u64, "{e}");
                assert!(a.is_pinned(block));
                // SAFETY: the failed call left the block live.
                return unsafe { a.deallocate(block, old) };
            }
        };
        let now = grown.as_ptr() as usize;
        let after: Vec<_> = (0..8).map(|i| frame(now + i * PAGE)).collect();
        assert_eq!(before, after, "page tables move, frames do not");
        assert_eq!(before[0].is_some(), frames_are_shown());
        assert!(now == at || process_stats().moves == moves + 1);
        assert_eq!(os::procfs::resident_pages(now, 64 * PAGE), Ok(64));
        assert_eq!(process_stats().locked as u64, os::procfs::vm_locked().unwrap());
        for i in 0..8 * PAGE {
            // SAFETY: within the block.
            assert_eq!(unsafe { grown.as_ptr().add(i).read() }, i as u8);
        }
        // SAFETY: a live block of this allocator and layout, not used again.
        unsafe { a.deallocate(grown, Layout::from_size_align(64 * PAGE, PAGE).unwrap()) };
        trim(0);
        assert_eq!(os::procfs::vm_locked(), Some(0));
    });
}

/// Forks; the child sleeps on a pipe while `f` runs in the parent.
fn with_child<R>(f: impl FnOnce() -> R) -> R {
    let mut pipe = [0; 2];
    // SAFETY: plain POSIX; the child makes async-signal-safe calls only.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::close(pipe[1]);
            let mut b = 0u8;
            libc::read(pipe[0], (&raw mut b).cast(), 1);
            libc::_exit(0);
        }
        let r = f();
        libc::close(pipe[1]);
        libc::close(pipe[0]);
        assert_eq!(libc::waitpid(pid, ptr::null_mut(), 0), pid);
        r
    }
}

#[test]
fn fork_moves_the_parents_frames_unless_told_not_to() {
    alone("fork_moves_the_parents_frames_unless_told_not_to", || {
        for (policy, moves) in
            [(ForkPolicy::Keep, true), (ForkPolicy::DontFork, false), (ForkPolicy::WipeOnFork, false)]
        {
            let a = AllocatorBuilder::new().pinned(true).fork_policy(policy).build().unwrap();
            let layout = Layout::from_size_align(PAGE, PAGE).unwrap();
            let p = a.allocate(layout).unwrap().cast::<u8>(); // unpinned where the limit says so; the same to a fork
            let pinned = a.is_pinned(p);
            // SAFETY: within the block.
            unsafe { p.as_ptr().write(1) };
            let (before, after) = with_child(|| {
                let before = frame(p.as_ptr() as usize);
                // SAFETY: within the block.
                unsafe { p.as_ptr().write(2) };
                (before, frame(p.as_ptr() as usize))
            });
            if frames_are_shown() {
                // The fallback of an allocator that could not pin has the default fork policy.
                assert_eq!(before != after, moves || !pinned, "{policy:?}");
            } else {
                assert_eq!((before, after), (None, None));
            }
            assert_eq!(a.is_pinned(p), pinned, "a fork does not unlock the parent");
            if pinned {
                assert_eq!(os::procfs::resident_pages(p.as_ptr() as usize, PAGE), Ok(1));
            }
            // SAFETY: live, of this layout, not used again.
            unsafe { a.deallocate(p, layout) };
        }
    });
}

/// Migrating pages is what compaction, balancing and hot-remove do. `move_pages` to the node a page is on already
/// moves nothing, so on a machine with one node the frame is moved by the one mover that can be provoked anywhere:
/// collapse of a locked range that its owner allowed to become huge.
#[test]
fn locked_frames_are_not_promised() {
    alone("locked_frames_are_not_promised", || {
        const HUGE: usize = 2 << 20;
        const MADV_COLLAPSE: i32 = 25;
        // SAFETY: a mapping of the test's own, locked in 4 KiB pages, then collapsed.
        unsafe {
            let raw =
                libc::mmap(ptr::null_mut(), 2 * HUGE, 3, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(raw, libc::MAP_FAILED);
            let at = (raw as usize).next_multiple_of(HUGE);
            libc::madvise(at as *mut _, HUGE, libc::MADV_NOHUGEPAGE);
            if let Err(e) = mlock(at, HUGE) {
                assert!(room() < HUGE as u64, "errno {e}");
                return;
            }
            let before = frame(at + PAGE);
            libc::madvise(at as *mut _, HUGE, libc::MADV_HUGEPAGE);
            let collapsed = libc::madvise(at as *mut _, HUGE, MADV_COLLAPSE) == 0;
            let after = frame(at + PAGE);
            let facts = os::procfs::smaps_range(at, HUGE).unwrap();
            assert_eq!(facts.lo_flag_bytes, HUGE as u64, "still locked");
            if collapsed && frames_are_shown() {
                assert_ne!(before, after, "the page is locked all the time, and its frame is another");
            } else {
                assert_eq!(before, after);
            }
        }
    });
}
