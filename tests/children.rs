//! Beyond `fork.rs`: what several processes and threads do to each other's blocks. Locking again to the byte, addresses
//! that a child must not use, children of children, ordinary memory beside busy threads, ends of threads.
//!
//! Each test is a process of its own that forks for real. A forked child runs a closure and leaves by `_exit`: 0, or
//! 1 after printing what was wrong. It uses nothing of the test harness.

mod common;

use common::tracked::{MIB, PAGE, Tracked, agree, layout};
use common::{Situation, alone, alone_in, room};
use pinned_alloc::os::limits::Limits;
use pinned_alloc::os::procfs;
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, ForkPolicy, PinnedAlloc, PinnedGlobal, ReallocPolicy, process_stats,
    routines, set_cache_limit, trim,
};
use std::alloc::GlobalAlloc;
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SMALL: usize = 100;
const LARGE: usize = 5 * PAGE;

/// Runs `child` in a forked process and waits for its good end, a minute at most.
#[track_caller]
fn in_child(child: impl FnOnce()) {
    // SAFETY: the child runs the closure and leaves by `_exit`; of the harness it has copies that it never touches.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends this process at once, without destructors.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let end = Instant::now() + Duration::from_secs(60);
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    while unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: the child that was forked above, not waited for yet.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            panic!("the child hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
}

/// Small and large blocks of one allocator, as many as the limit leaves room for.
fn blocks(a: &PinnedAlloc) -> Vec<Tracked> {
    let mut all = Vec::new();
    for size in [SMALL, 5000, LARGE, SMALL] {
        match Tracked::new(a, layout(size, 16)) {
            Ok(b) => all.push(b),
            Err(e) => assert!(e.is_lock_limit() && room() < (size + 2 * PAGE) as u64, "{e}"),
        }
    }
    all
}

/// Whether this process can read there, found out without doing it.
fn is_readable(p: *const u8) -> bool {
    let mut pipe = [0; 2];
    // SAFETY: plain calls on descriptors of their own; write(2) answers EFAULT for memory that is not readable.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let n = libc::write(pipe[1], p.cast(), 1);
        let e = std::io::Error::last_os_error().raw_os_error();
        libc::close(pipe[0]);
        libc::close(pipe[1]);
        assert!(n == 1 || e == Some(libc::EFAULT));
        n == 1
    }
}

/// New blocks are locked here, in this process, under its own limit.
fn serves_here(a: &PinnedAlloc) {
    let before = agree();
    for size in [SMALL, LARGE] {
        match Tracked::new(a, layout(size, 16)) {
            Ok(b) => {
                assert!(b.pinned() && agree() >= before.max(PAGE as u64));
                b.free();
            }
            Err(e) => assert!(e.is_lock_limit() && room() < (size + 2 * PAGE) as u64, "{e}"),
        }
    }
}

#[test]
fn relock_in_the_child() {
    let body = || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        let all = blocks(&a);
        let locked = agree() as usize;
        in_child(|| {
            assert_eq!(agree(), 0);
            // The limit is the same, and nothing else is locked here: all of it fits.
            assert_eq!(a.relock().unwrap(), locked);
            assert_eq!((agree() as usize, a.stats().locked), (locked, locked));
            for b in &all {
                b.check();
                assert!(b.pinned());
            }
            assert_eq!(a.relock().unwrap(), 0, "once is enough");
            serves_here(&a);
            all.clone().into_iter().for_each(Tracked::free);
            trim(0);
            assert_eq!(agree(), 0);
        });
        // Under a limit of less than that, the error says so, and what it says is counted.
        in_child(|| {
            let l = Limits::read();
            if l.has_ipc_lock || locked == 0 {
                return;
            }
            let none = libc::rlimit { rlim_cur: PAGE as u64, rlim_max: PAGE as u64 };
            // SAFETY: a plain call on a local.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &none) }, 0);
            match a.relock() {
                Ok(n) => assert_eq!(n, locked),
                Err(e) => assert!(e.is_lock_limit() && locked > PAGE, "{e}"),
            }
            assert!(agree() <= PAGE as u64);
            all.iter().for_each(Tracked::check);
        });
        all.into_iter().for_each(Tracked::free);
    };
    alone_in("relock_in_the_child", Situation::limited(64 << 10), body);
}

#[test]
fn dontfork_is_the_parents_alone() {
    alone("dontfork_is_the_parents_alone", || {
        set_cache_limit(0);
        let a = PinnedAlloc::builder().fork_policy(ForkPolicy::DontFork).build().unwrap();
        let all = blocks(&a);
        let locked = agree();
        in_child(|| {
            assert_eq!(agree(), 0);
            for b in &all {
                assert!(!is_readable(b.ptr.as_ptr()), "the child has no such memory");
                assert!(!b.pinned());
                assert_eq!(b.info().requested, b.size());
            }
            assert_eq!(a.relock().unwrap(), 0);
            // New blocks never come to lie on the parent's slabs.
            serves_here(&a);
            // Nothing else comes to lie where the parent's pointers lead: freeing them frees nothing of this process.
            let mine: Vec<Tracked> = (0..40).flat_map(|_| blocks(&a)).collect();
            let others: Vec<_> = (0..40).map(|_| Box::new([1u8; 1 << 18])).collect();
            for b in &all {
                assert!(!is_readable(b.ptr.as_ptr()), "and nothing else is there");
                // SAFETY: a live block of this allocator, given up once.
                unsafe { a.deallocate(b.ptr, b.layout) };
            }
            assert_eq!(a.stats().live_blocks, mine.len());
            mine.into_iter().for_each(Tracked::free);
            trim(0);
            assert!(others.iter().all(|b| b.iter().all(|&x| x == 1)));
            assert_eq!((agree(), a.stats().live_blocks), (0, 0));
            serves_here(&a);
        });
        assert_eq!(agree(), locked);
        all.into_iter().for_each(Tracked::free);
        trim(0);
        assert_eq!(agree(), 0);
    });
}

#[test]
fn generations_of_children() {
    alone("generations_of_children", || {
        let a = PinnedAlloc::new().unwrap();
        let all = blocks(&a);
        in_child(|| {
            let mine = blocks(&a);
            in_child(|| {
                assert_eq!(agree(), 0);
                for b in all.iter().chain(&mine) {
                    b.check();
                    assert!(!b.pinned());
                }
                serves_here(&a);
                mine.clone().into_iter().chain(all.clone()).for_each(Tracked::free);
                trim(0);
                assert_eq!(agree(), 0);
            });
        });
        all.into_iter().for_each(Tracked::free);
    });
}

#[test]
fn unpinned_memory_goes_on_in_the_child() {
    alone("unpinned_memory_goes_on_in_the_child", || {
        let a = AllocatorBuilder::new().build().unwrap();
        let all = blocks(&a);
        assert_eq!(all.len(), 4);
        in_child(|| {
            let again = blocks(&a);
            all.clone().into_iter().chain(again).for_each(Tracked::free);
            trim(0);
            assert_eq!((process_stats().live_blocks, process_stats().locked), (0, 0));
        });
        all.into_iter().for_each(Tracked::free);
    });
}

#[test]
fn forks_beside_busy_threads_never_hang() {
    alone("forks_beside_busy_threads_never_hang", || {
        let pinned = PinnedAlloc::new().unwrap();
        let plain = AllocatorBuilder::new().build().unwrap();
        let stop = AtomicBool::new(false);
        let turns = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for t in 0..2usize {
                let (pinned, plain, stop, turns) = (&pinned, &plain, &stop, &turns);
                s.spawn(move || {
                    let mut i = t;
                    while !stop.load(Ordering::Relaxed) {
                        i += 1;
                        let a = if i % 2 == 0 { pinned } else { plain };
                        let l = layout([40, 3000, LARGE, 200][i % 4], 16);
                        if let Ok(b) = a.allocate(l) {
                            // SAFETY: live, of this layout; grown, or as it was, then given up.
                            unsafe {
                                match a.realloc(b.cast(), l, l.size() * 2, ReallocPolicy::MayMove) {
                                    Ok(c) => a.deallocate(c.cast(), layout(l.size() * 2, 16)),
                                    Err(_) => a.deallocate(b.cast(), l),
                                }
                            }
                        }
                        if i % 64 == 0 {
                            // Allocators come and go, and idle memory is given back.
                            drop(PinnedAlloc::new().unwrap());
                            trim(0);
                        }
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            while turns.load(Ordering::Relaxed) < 100 {
                std::thread::yield_now();
            }
            for i in 0..100 {
                in_child(|| {
                    for a in [&pinned, &plain] {
                        for size in [40, 3000, LARGE] {
                            let l = layout(size, 16);
                            match a.allocate(l) {
                                // SAFETY: live, of this layout, given up.
                                Ok(b) => unsafe {
                                    assert_eq!(a.is_pinned(b.cast()), a == &pinned);
                                    b.cast::<u8>().write(1);
                                    a.deallocate(b.cast(), l);
                                },
                                Err(e) => assert!(a == &pinned && e.is_lock_limit(), "{e}"),
                            }
                        }
                    }
                    if i % 10 == 0 {
                        drop(PinnedAlloc::new().unwrap());
                        trim(0);
                    }
                    assert_eq!(procfs::vm_locked(), Some(process_stats().locked as u64));
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((pinned.stats().live_blocks, plain.stats().live_blocks), (0, 0));
        trim(0);
        assert_eq!(agree(), 0);
    });
}

#[test]
fn fork_and_exec_leave_the_parent_as_it_was() {
    alone("fork_and_exec_leave_the_parent_as_it_was", || {
        let policies = [ForkPolicy::Keep, ForkPolicy::DontFork, ForkPolicy::WipeOnFork];
        let allocators = policies.map(|p| PinnedAlloc::builder().fork_policy(p).build().unwrap());
        let all: Vec<Tracked> = allocators.iter().flat_map(blocks).collect();
        let locked = agree();
        for _ in 0..5 {
            let out = std::process::Command::new("/proc/self/exe").arg("--list").output().unwrap();
            assert!(out.status.success() && !out.stdout.is_empty());
        }
        assert_eq!(agree(), locked);
        for b in all {
            assert!(b.pinned());
            b.free();
        }
    });
}

static HEAP: PinnedGlobal = PinnedGlobal::prefer();

/// A block of [`HEAP`], freed when its thread's local variables are destroyed.
struct Late {
    block: *mut u8,
    freed: &'static AtomicUsize,
}

impl Drop for Late {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout, is alive, and is resized and given up here.
        unsafe {
            let p = HEAP.realloc(self.block, layout(64, 8), 3000);
            assert!(!p.is_null());
            HEAP.dealloc(p, layout(3000, 8));
            // A new one, this late.
            let p = HEAP.alloc(layout(10_000, 8));
            p.write_bytes(1, 10_000);
            HEAP.dealloc(p, layout(10_000, 8));
        }
        // The default allocator of a thread that has lost its variables is the process's.
        assert_ne!(routines::get_default_allocator(), AllocatorHandle::NULL);
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}

thread_local! {
    static LATE: RefCell<Vec<Late>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn in_destructors_of_thread_locals() {
    alone("in_destructors_of_thread_locals", || {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        for _ in 0..8 {
            let t = std::thread::spawn(|| {
                for _ in 0..10 {
                    // SAFETY: freed by `Late`.
                    let block = unsafe { HEAP.alloc_zeroed(layout(64, 8)) };
                    LATE.with_borrow_mut(|v| v.push(Late { block, freed: &FREED }));
                }
            });
            t.join().unwrap();
        }
        assert_eq!((FREED.load(Ordering::SeqCst), HEAP.stats().live_blocks), (80, 0));
        trim(0);
        assert_eq!(agree(), 0);
    });
}

#[test]
fn blocks_outlive_their_threads_and_are_freed_by_others() {
    alone("blocks_outlive_their_threads_and_are_freed_by_others", || {
        let a = AllocatorBuilder::new().pinned(true).build().unwrap(); // what cannot be pinned is ordinary memory
        let per_thread = AllocatorBuilder::new()
            .pinned(true)
            .access(pinned_alloc::traits::Access::Thread)
            .pool_size(MIB)
            .build()
            .unwrap();
        for _ in 0..20 {
            let made: Vec<(usize, usize)> = std::thread::scope(|s| {
                let threads: Vec<_> = [&a, &per_thread]
                    .into_iter()
                    .map(|a| {
                        s.spawn(move || {
                            let one = |i: usize| {
                                let size = 1 + i * 997 % 30_000;
                                let p = a.allocate(layout(size, 16)).unwrap().cast::<u8>();
                                // SAFETY: within the block.
                                unsafe { p.as_ptr().write_bytes(i as u8, size) };
                                (p.as_ptr() as usize, size)
                            };
                            (0..40).map(one).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
            });
            assert_eq!(a.stats().live_blocks + per_thread.stats().live_blocks, 80);
            std::thread::scope(|s| {
                for half in made.chunks(40) {
                    s.spawn(move || {
                        for (i, &(p, size)) in half.iter().enumerate() {
                            let p = p as *mut u8;
                            // SAFETY: a live block of these many bytes, given up here and nowhere else.
                            unsafe {
                                assert!(std::slice::from_raw_parts(p, size).iter().all(|&b| b == i as u8));
                                routines::free(p, AllocatorHandle::NULL).unwrap();
                            }
                        }
                    });
                }
            });
        }
        assert_eq!((a.stats().live_blocks, per_thread.stats().live_blocks), (0, 0));
        trim(0);
        assert_eq!(agree(), 0);
    });
}
