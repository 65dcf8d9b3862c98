//! What the fuzz targets found (see `fuzz/`), each as the shortest program that shows it.

mod common;

use common::{Situation, alone, alone_in, room};
use pinned_alloc::os::{Call, fault, procfs};
use pinned_alloc::traits::{Access, Fallback};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Error, PinnedAlloc, ReallocPolicy, process_stats, routines, trim,
};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Frees a block.
fn free(p: *mut u8) {
    // SAFETY: every block of these tests is freed once, by this, and not used again.
    unsafe { routines::free(p, AllocatorHandle::NULL).expect("a live block") };
}

/// Whether the block is locked, by the library's word.
fn is_pinned(p: *mut u8) -> bool {
    let eye = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
    eye.is_pinned(NonNull::new(p).unwrap())
}

/// A pinned allocator that falls back to ordinary memory.
fn pinned_or_not() -> AllocatorHandle {
    AllocatorBuilder::new().pinned(true).into_handle().unwrap()
}

/// After a shortage, free places in open pinned slabs were not used until something was unlocked.
#[test]
fn after_a_shortage_what_is_open_serves() {
    alone_in("after_a_shortage_what_is_open_serves", Situation::limited(1 << 20), || {
        let (h, possible) = (pinned_or_not(), room() >= 32_768);
        let mut blocks = Vec::new();
        loop {
            let p = routines::alloc(64, h).unwrap();
            blocks.push(p);
            if !is_pinned(p) {
                break;
            }
        }
        // Where nothing can be locked, the first one fell back, and so do all others.
        assert_eq!(blocks.len() > 1, possible);
        if possible {
            // Not the last one of its page: nothing is given back to the system.
            free(blocks.remove(0));
            let p = routines::alloc(64, h).unwrap();
            assert!(is_pinned(p), "the place of the block that was freed");
            blocks.push(p);
        }
        let p = routines::alloc(64, h).unwrap();
        assert!(!is_pinned(p));
        blocks.push(p);
        blocks.into_iter().for_each(free);
    });
}

/// After a shortage, freed large blocks that wait for reuse, locked, were not reused.
#[test]
fn after_a_shortage_what_is_cached_serves() {
    alone_in("after_a_shortage_what_is_cached_serves", Situation::limited(1 << 20), || {
        let h = pinned_or_not();
        // More than half of what there is: two of them do not fit.
        let size = (room() as usize / 8 * 5).next_multiple_of(4096).max(32_768);
        let possible = room() as usize >= size;
        let p = routines::alloc(size, h).unwrap();
        let q = routines::alloc(size, h).unwrap();
        assert_eq!((is_pinned(p), is_pinned(q)), (possible, false));
        free(p);
        let p = routines::alloc(size, h).unwrap();
        assert_eq!(is_pinned(p), possible);
        free(p);
        free(q);
    });
}

/// A thread that came to an allocator by a fallback took over the pool of a thread that had ended, though it had
/// one of its own: twice the pool.
#[test]
fn a_thread_has_one_pool_however_it_comes() {
    let own = AllocatorBuilder::new().access(Access::Thread).pool_size(1000).fallback(Fallback::Null);
    let own = own.into_handle().unwrap();
    let other =
        AllocatorBuilder::new().pool_size(1).fallback(Fallback::Allocator(own)).into_handle().unwrap();
    let p = routines::alloc(600, own).unwrap();
    std::thread::spawn(move || free(routines::alloc(1000, own).unwrap())).join().unwrap();
    let refused = Err(Error::Pool { pool_size: 1000, used: 600, asked: 401 });
    assert_eq!(routines::alloc(401, other), refused);
    let q = routines::alloc(400, other).unwrap();
    assert_eq!(routines::alloc(1, own), Err(Error::Pool { pool_size: 1000, used: 1000, asked: 1 }));
    free(p);
    free(q);
    routines::destroy_allocator(other);
    routines::destroy_allocator(own);
}

/// A block that was aligned by chance only, and asked for that alignment later, lost it in a move.
#[test]
fn a_move_keeps_an_alignment_that_came_with_a_resize() {
    const ALIGN: usize = 8192;
    let alloc = PinnedAlloc::builder().pinned(false).build().unwrap();
    let plain = Layout::from_size_align(20_480, 4096).unwrap();
    let blocks: Vec<_> = (0..40).map(|_| alloc.allocate(plain).unwrap().cast::<u8>()).collect();
    let (mut aligned, aligned_then) = (Vec::new(), Layout::from_size_align(20_480, ALIGN).unwrap());
    for p in blocks {
        let fits = p.addr().get().is_multiple_of(ALIGN);
        // SAFETY: a live block with this layout; the result replaces it.
        let q = unsafe { alloc.realloc_aligned(p, plain, aligned_then, ReallocPolicy::MayMove) }
            .unwrap()
            .cast::<u8>();
        assert!(q.addr().get().is_multiple_of(ALIGN) && (!fits || q == p));
        aligned.push(q);
    }
    for p in aligned {
        // SAFETY: as above.
        let q =
            unsafe { alloc.realloc(p, aligned_then, 200_000, ReallocPolicy::MayMove) }.unwrap().cast::<u8>();
        assert!(q.addr().get().is_multiple_of(ALIGN), "{p:?} moved to {q:?}");
        // SAFETY: a live block with this layout; not used again.
        unsafe { alloc.deallocate(q, Layout::from_size_align(200_000, ALIGN).unwrap()) };
    }
}

/// A block that passed from one allocator to another within one pool was charged twice for a moment, and refused
/// though there was room.
#[test]
fn a_pool_has_room_for_the_difference() {
    let pool = AllocatorBuilder::new().pool_size(1000).fallback(Fallback::Null).into_handle().unwrap();
    let other =
        AllocatorBuilder::new().pool_size(1).fallback(Fallback::Allocator(pool)).into_handle().unwrap();
    let p = routines::alloc(800, other).unwrap();
    let used = |p| PinnedAlloc::from_handle(pool).unwrap().info(NonNull::new(p).unwrap()).unwrap().pool_used;
    let to = |p, size, h| {
        // SAFETY: a live block; the result replaces it, an error leaves it.
        unsafe { routines::realloc(p, size, h, other) }
    };
    assert_eq!(used(p), 800);
    assert_eq!(to(p, 1001, pool), Err(Error::Pool { pool_size: 1000, used: 800, asked: 201 }));
    let p = to(p, 1000, pool).unwrap();
    assert_eq!(used(p), 1000);
    let p = to(p, 700, other).unwrap();
    assert_eq!(used(p), 700);
    let q = routines::alloc(300, pool).unwrap();
    assert_eq!(used(q), 1000);
    free(p);
    assert_eq!(used(q), 300);
    free(q);
    routines::destroy_allocator(other);
    routines::destroy_allocator(pool);
}

/// Where the kernel refused to take memory back, a closed slab kept its contents, and the next one in its place
/// handed them out as zero.
#[test]
fn what_could_not_be_given_back_is_not_taken_for_zero() {
    alone("what_could_not_be_given_back_is_not_taken_for_zero", || {
        for pinned in [false, true] {
            let h = AllocatorBuilder::new().pinned(pinned).into_handle().unwrap();
            // One that stays keeps the address space of all of them.
            let stays = routines::alloc(4096, h).unwrap();
            let blocks: Vec<_> = (0..255).map(|_| routines::alloc(4096, h).unwrap()).collect();
            for &p in &blocks {
                // SAFETY: a live block of that size.
                unsafe { p.write_bytes(0xff, 4096) };
            }
            fault::arm(Call::Madvise, 1, 1000, libc::EINVAL);
            blocks.into_iter().for_each(free);
            trim(0);
            fault::disarm();
            let blocks: Vec<_> = (0..255).map(|_| routines::calloc(1, 4096, h).unwrap()).collect();
            for &p in &blocks {
                // SAFETY: a live block of that size, all of which has been written.
                assert!(unsafe { std::slice::from_raw_parts(p, 4096) }.iter().all(|&b| b == 0));
            }
            blocks.into_iter().for_each(free);
            free(stays);
            routines::destroy_allocator(h);
            trim(0);
            let s = process_stats();
            assert_eq!((s.mapped, s.locked, s.live_blocks), (0, 0, 0));
            assert_eq!(procfs::vm_locked(), Some(0));
        }
    });
}

/// A shrink that the kernel refused left the record of an unpinned block behind its size; growth to something in between
/// ended in an overflow, and a move would have carried the rest over the new part.
#[test]
fn a_block_grows_again_after_a_refused_shrink() {
    alone("a_block_grows_again_after_a_refused_shrink", || {
        for pinned in [false, true] {
            let h = AllocatorBuilder::new().pinned(pinned).into_handle().unwrap();
            let resize = |p, size| {
                // SAFETY: a live block, which the result stands for.
                unsafe { routines::realloc(p, size, h, AllocatorHandle::NULL) }.unwrap()
            };
            let p = routines::alloc(40_000, h).unwrap();
            // SAFETY: a live block of that size.
            unsafe { p.write_bytes(7, 40_000) };
            // Two segments at least, and address space behind them.
            let p = resize(resize(p, 400_000), 900_000);
            fault::arm(Call::Madvise, 1, 1000, libc::ENOMEM);
            let p = resize(p, 30_000);
            fault::disarm();
            let mut p = p;
            for size in [35_000, 100_000, 1_000_000, 30_000] {
                p = resize(p, size);
                // SAFETY: a live block of that size.
                unsafe {
                    assert!(std::slice::from_raw_parts(p, 30_000).iter().all(|&b| b == 7), "{size}");
                    p.add(30_000).write_bytes(1, size - 30_000);
                }
                assert_eq!(procfs::vm_locked().unwrap(), process_stats().locked as u64);
            }
            free(p);
            routines::destroy_allocator(h);
            trim(0);
            let s = process_stats();
            assert_eq!((s.mapped, s.locked, s.live_blocks), (0, 0, 0));
        }
    });
}

/// Two threads with a pool each, without a limit, were told of one pool.
#[test]
fn pools_without_a_limit_are_one_for_each_thread_too() {
    let h = AllocatorBuilder::new().access(Access::Thread).into_handle().unwrap();
    let eye = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
    let one = || {
        let p = routines::alloc(100_000, h).unwrap();
        (p as usize, eye.info(NonNull::new(p).unwrap()).unwrap().pool_used)
    };
    for _ in 0..2 {
        let (p, used) = std::thread::scope(|s| s.spawn(one).join().unwrap());
        assert_eq!(used, 100_000);
        free(p as *mut u8);
    }
    let live: Vec<_> = (0..2).map(|_| std::thread::scope(|s| s.spawn(one).join().unwrap())).collect();
    assert!(live.iter().all(|l| l.1 == 100_000));
    live.into_iter().for_each(|l| free(l.0 as *mut u8));
    routines::destroy_allocator(h);
}

/// A dead allocator that was still used, by a thread after another had ended, was never given up.
#[test]
fn a_dead_allocator_of_threads_is_recycled() {
    alone("a_dead_allocator_of_threads_is_recycled", || {
        let a = AllocatorBuilder::new().access(Access::Thread).build().unwrap();
        let one = |a: &PinnedAlloc| {
            let a = a.clone();
            let l = Layout::new::<[u8; 100]>();
            let p = std::thread::spawn(move || a.allocate(l).unwrap().cast::<u8>().as_ptr() as usize);
            p.join().unwrap() as *mut u8
        };
        free(one(&a));
        routines::destroy_allocator(a.handle());
        let p = one(&a);
        drop(a);
        free(p);
        assert_eq!((process_stats().live_blocks, process_stats().allocators), (0, 0));
    });
}
