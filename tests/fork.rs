//! Fork: what a child has, what is said of it, and that no lock stays behind.

mod common;

use common::{alone, room};
use pinned_alloc::os::procfs;
use pinned_alloc::{
    AllocatorHandle, ForkPolicy, PinnedAlloc, process_stats, routines, traits::Fallback, trim,
};
use std::alloc::Layout;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const PAGE: usize = 4096;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// [`alone`], without the block that was made before `main`.
#[track_caller]
fn lone(name: &str, f: impl FnOnce()) {
    alone(name, || {
        // SAFETY: a live block, not used again.
        unsafe { routines::free(BEFORE_MAIN.swap(0, Ordering::Relaxed) as *mut u8, AllocatorHandle::NULL) }
            .unwrap();
        trim(0);
        f();
    });
}

/// Runs `f` in a forked child, which exits with what it returns; gives the exit code.
fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs `f`, which allocates through the allocator under test, whose locks are whole in the child,
    // and ends by _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            // A panic must not run the parent's test harness on.
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(99);
            libc::_exit(code);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
    }
}

/// A small and a large block with contents, pinned as far as the limit goes.
fn blocks(a: &PinnedAlloc) -> Vec<(NonNull<u8>, usize)> {
    [100, 5000, 10 * PAGE]
        .map(|size| {
            let p = a.allocate(layout(size)).unwrap().cast::<u8>();
            // SAFETY: within the block.
            unsafe { p.as_ptr().write_bytes(size as u8, size) };
            (p, size)
        })
        .to_vec()
}

fn free(a: &PinnedAlloc, all: Vec<(NonNull<u8>, usize)>) {
    for (p, size) in all {
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { a.deallocate(p, layout(size)) };
    }
}

#[test]
fn a_child_has_a_copy_that_is_not_pinned_until_it_locks_again() {
    lone("a_child_has_a_copy_that_is_not_pinned_until_it_locks_again", || {
        let a = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap();
        let all = blocks(&a);
        let pinned: Vec<_> = all.iter().map(|b| a.is_pinned(b.0)).collect();
        let locked = procfs::vm_locked().unwrap();
        assert_eq!(locked, process_stats().locked as u64);
        let code = in_child(|| {
            assert_eq!((process_stats().locked, procfs::vm_locked()), (0, Some(0)));
            assert_eq!((a.stats().locked, a.stats().live_blocks), (0, 3));
            for &(p, size) in &all {
                assert!(!a.is_pinned(p), "no lock is inherited");
                // SAFETY: the child's copy of a live block.
                assert!((0..size).all(|i| unsafe { p.as_ptr().add(i).read() } == size as u8));
            }
            // New blocks are pinned here as they were there, under this process's own limit.
            let new = blocks(&a);
            assert_eq!(new.iter().map(|b| a.is_pinned(b.0)).collect::<Vec<_>>(), pinned);
            assert_eq!(procfs::vm_locked().unwrap(), process_stats().locked as u64);
            free(&a, new);
            trim(0);
            assert_eq!(procfs::vm_locked(), Some(0));
            // What was inherited can be locked again, and counts.
            let again = a.relock().unwrap() as u64;
            assert_eq!((procfs::vm_locked().unwrap(), process_stats().locked as u64), (again, again));
            assert_eq!(all.iter().map(|b| a.is_pinned(b.0)).collect::<Vec<_>>(), pinned);
            free(&a, all.clone());
            trim(0);
            assert_eq!((procfs::vm_locked(), process_stats().locked), (Some(0), 0));
            assert_eq!(process_stats().live_blocks, 0);
            0
        });
        assert_eq!(code, 0);
        assert_eq!(procfs::vm_locked().unwrap(), locked, "the parent's locks are its own");
        free(&a, all);
        trim(0);
        assert_eq!(procfs::vm_locked(), Some(0));
    });
}

#[test]
fn inherited_blocks_are_freed_without_a_lock_too() {
    lone("inherited_blocks_are_freed_without_a_lock_too", || {
        for policy in [ForkPolicy::Keep, ForkPolicy::WipeOnFork, ForkPolicy::DontFork] {
            let b = PinnedAlloc::builder().fallback(Fallback::DefaultMem).fork_policy(policy);
            let a = b.build().unwrap();
            let all = blocks(&a);
            let pinned: Vec<_> = all.iter().map(|b| a.is_pinned(b.0)).collect();
            let mut ends = [0; 2];
            // SAFETY: a plain call on a local; a pipe, since what is written to it is read for sure.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            let sink = ends[1];
            let code = in_child(|| {
                for (&(p, size), &pinned) in all.iter().zip(&pinned) {
                    // The fallback that served where the limit ended has the default policy.
                    let policy = if pinned { policy } else { ForkPolicy::Keep };
                    // Its addresses are kept from others, without access: write(2) finds nothing to read there.
                    // SAFETY: any address may be passed; a pipe takes a byte at once.
                    let readable = unsafe { libc::write(sink, p.as_ptr().cast(), 1) } == 1;
                    match policy {
                        // SAFETY: the child's copy of a live block.
                        ForkPolicy::Keep => assert!(unsafe { p.as_ptr().read() } == size as u8),
                        // SAFETY: as above.
                        ForkPolicy::WipeOnFork => assert!(unsafe { p.as_ptr().read() } == 0, "zeros"),
                        ForkPolicy::DontFork => assert!(!readable, "the child has no such memory"),
                    }
                }
                let before = process_stats().live_blocks;
                free(&a, all.clone());
                assert_eq!(process_stats().live_blocks, before - 3);
                // And goes on, with memory of its own.
                let new = blocks(&a);
                free(&a, new);
                trim(0);
                assert_eq!((procfs::vm_locked(), process_stats().locked), (Some(0), 0));
                0
            });
            assert_eq!(code, 0, "{policy:?}");
            for &(p, size) in &all {
                // SAFETY: a live block of the parent's.
                assert!((0..size).all(|i| unsafe { p.as_ptr().add(i).read() } == size as u8));
            }
            free(&a, all);
            trim(0);
            assert_eq!(procfs::vm_locked(), Some(0));
        }
    });
}

#[test]
fn growth_in_the_child_locks_what_it_keeps() {
    lone("growth_in_the_child_locks_what_it_keeps", || {
        let a = PinnedAlloc::new().unwrap();
        let size = 10 * PAGE;
        let Ok(p) = a.allocate(layout(size)) else { return assert!(room() < size as u64) };
        let p = p.cast::<u8>();
        // SAFETY: within the block.
        unsafe { p.as_ptr().write_bytes(7, size) };
        let code = in_child(|| {
            // SAFETY: the child's copy of a live block of this allocator.
            match unsafe { a.realloc(p, layout(size), 3 * size, pinned_alloc::ReallocPolicy::MayMove) } {
                Ok(q) => {
                    let q = q.cast::<u8>();
                    assert!(a.is_pinned(q));
                    // SAFETY: within the block.
                    assert!((0..size).all(|i| unsafe { q.as_ptr().add(i).read() } == 7));
                    // SAFETY: live, of this layout, not used again.
                    unsafe { a.deallocate(q, layout(3 * size)) };
                }
                Err(e) => {
                    assert!(e.is_lock_limit(), "{e}");
                    // SAFETY: as above; the failed call left it.
                    unsafe { a.deallocate(p, layout(size)) };
                }
            }
            trim(0);
            assert_eq!((procfs::vm_locked(), process_stats().locked), (Some(0), 0));
            0
        });
        assert_eq!(code, 0);
        // SAFETY: live, of this layout, not used again.
        unsafe { a.deallocate(p, layout(size)) };
    });
}

#[test]
fn forks_among_busy_threads_never_hang() {
    lone("forks_among_busy_threads_never_hang", || {
        let a = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for n in 0..3 {
                let (a, stop) = (&a, &stop);
                s.spawn(move || {
                    let mut x = 12345usize + n;
                    while !stop.load(Ordering::Relaxed) {
                        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let size = 1 + (x >> 33) % 40_000;
                        if let Ok(p) = a.allocate(layout(size)) {
                            // SAFETY: live, of this allocator and layout, not used again.
                            unsafe { a.deallocate(p.cast(), layout(size)) };
                        }
                        if x.is_multiple_of(64) {
                            drop(PinnedAlloc::new());
                            trim(0);
                        }
                    }
                });
            }
            for i in 0..200 {
                // Only this thread exists in the child; it must not touch std's own locks, so nothing is asserted.
                let code = in_child(|| {
                    for size in [16, 3000, 30_000] {
                        let Ok(p) = a.allocate(layout(size)) else { return 2 };
                        // SAFETY: live, of this allocator and layout, not used again.
                        unsafe {
                            p.cast::<u8>().as_ptr().write_bytes(1, size);
                            a.deallocate(p.cast(), layout(size));
                        }
                    }
                    trim(0);
                    if process_stats().locked == 0 { 0 } else { 3 }
                });
                assert_eq!(code, 0, "fork {i}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        trim(0);
        assert_eq!((procfs::vm_locked(), process_stats().locked), (Some(0), 0));
    });
}

struct AtExit(PinnedAlloc);
static FREED_LATE: AtomicUsize = AtomicUsize::new(0);

impl Drop for AtExit {
    fn drop(&mut self) {
        // Thread-locals are going; the allocator does not need any.
        let p = self.0.allocate(layout(500)).unwrap();
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { self.0.deallocate(p.cast(), layout(500)) };
        FREED_LATE.fetch_add(1, Ordering::Relaxed);
    }
}

thread_local! {
    static LATE: RefCell<Option<AtExit>> = const { RefCell::new(None) };
}

#[test]
fn thread_exit_and_thread_local_destructors() {
    lone("thread_exit_and_thread_local_destructors", || {
        use pinned_alloc::traits::Access;
        let b = PinnedAlloc::builder().fallback(Fallback::DefaultMem);
        for a in [b.build().unwrap(), b.access(Access::Thread).pool_size(1 << 20).build().unwrap()] {
            for _ in 0..50 {
                let mine = a.clone();
                let p = std::thread::spawn(move || {
                    LATE.set(Some(AtExit(mine.clone())));
                    mine.allocate(layout(300)).unwrap().cast::<u8>().as_ptr() as usize
                });
                // The thread is gone; its block is not, and anybody may free it.
                let p = NonNull::new(p.join().unwrap() as *mut u8).unwrap();
                // SAFETY: live, of this allocator and layout, not used again.
                unsafe { a.deallocate(p, layout(300)) };
            }
        }
        assert_eq!(FREED_LATE.load(Ordering::Relaxed), 100);
        trim(0);
        assert_eq!((process_stats().live_blocks, process_stats().mapped), (0, 0));
    });
}

static BEFORE_MAIN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn before_main() {
    let p = routines::alloc(64, AllocatorHandle::GNU_PINNED_MEM)
        .or_else(|_| routines::alloc(64, AllocatorHandle::DEFAULT_MEM));
    BEFORE_MAIN.store(p.map_or(1, |p| p as usize), Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = before_main;

#[test]
fn it_works_before_main() {
    let p = BEFORE_MAIN.load(Ordering::Relaxed) as *mut u8;
    assert!(p.addr() > 1);
    let any = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
    assert_eq!(any.info(NonNull::new(p).unwrap()).unwrap().requested, 64);
}
