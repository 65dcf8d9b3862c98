//! What outside attempts to break the crate found, each as a short program.

mod common;

use common::{Situation, alone, alone_in, is_child, room, spawn};
use pinned_alloc::os::{limits, procfs};
use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
use pinned_alloc::traits::{Access, Fallback, Partition};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Error, ForkPolicy, MemSpace, PinnedAlloc, PinnedGlobal, ReallocPolicy,
    Reserve, last_error, process_stats, routines, trim,
};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// Allocates and frees.
fn pair(a: &PinnedAlloc, size: usize) {
    let b = a.allocate(layout(size)).unwrap();
    // SAFETY: just allocated with this layout, not used again.
    unsafe { a.deallocate(b.cast(), layout(size)) };
}

/// A heap that went from one allocator to another kept pages of the first one's kind, when a trim was giving them back
/// meanwhile: blocks said to be pinned were not.
#[test]
fn a_trim_during_recycling_mixes_no_kinds() {
    alone("a_trim_during_recycling_mixes_no_kinds", || {
        if room() < 65_536 {
            // Nothing can be pinned for long; the kinds that can be told apart need two pages.
            assert!(PinnedAlloc::new().is_ok());
            return;
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Relaxed) {
                        trim(0);
                    }
                });
            }
            for _ in 0..30_000 {
                pair(&AllocatorBuilder::new().build().unwrap(), 2000);
                let p = PinnedAlloc::new().unwrap();
                let b = p.allocate(layout(2000)).unwrap();
                // Never touched: a locked page is resident, another one is not.
                let resident = procfs::resident_pages(b.cast::<u8>().addr().get(), 2000).unwrap() != 0;
                let said = p.is_pinned(b.cast());
                // SAFETY: just allocated with this layout, not used again.
                unsafe { p.deallocate(b.cast(), layout(2000)) };
                if !resident || !said {
                    stop.store(true, Relaxed);
                    panic!("said to be pinned: {said}, resident: {resident}");
                }
            }
            stop.store(true, Relaxed);
        });
        trim(0);
        assert_eq!(process_stats().locked, 0);
    });
}

/// Each ended thread left a heap with a locked page where an `access: thread` allocator served through a fallback.
#[test]
fn heaps_of_ended_threads_are_used_again_through_a_fallback() {
    alone("heaps_of_ended_threads_are_used_again_through_a_fallback", || {
        let b = AllocatorBuilder::new().access(Access::Thread).pinned(true).build().unwrap();
        let a = AllocatorBuilder::new().pool_size(1).fallback_to(&b).build().unwrap();
        for _ in 0..50 {
            // Joined by its handle: a scope does not wait for what a thread does at its very end.
            let a = a.clone();
            std::thread::spawn(move || pair(&a, 100)).join().unwrap();
        }
        assert!(process_stats().mapped <= 4 * 4096, "{:?}", process_stats());
    });
}

/// Once a request had failed, later ones were not tried although a slab had become empty since.
#[test]
fn an_empty_slab_ends_a_shortage() {
    alone_in("an_empty_slab_ends_a_shortage", Situation::limited(64 << 10), || {
        let possible = room() >= 65_536;
        let a = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap();
        let mut blocks = Vec::new();
        loop {
            blocks.push(a.allocate(layout(1024)).unwrap());
            if !a.is_pinned(blocks[blocks.len() - 1].cast()) {
                break;
            }
        }
        pair(&a, 3000);
        for b in blocks {
            // SAFETY: allocated above with this layout, not used again.
            unsafe { a.deallocate(b.cast(), layout(1024)) };
        }
        let b = a.allocate(layout(3000)).unwrap();
        assert_eq!(a.is_pinned(b.cast()), possible, "nothing else is live");
        // SAFETY: as above.
        unsafe { a.deallocate(b.cast(), layout(3000)) };
    });
}

/// A handle that somebody guessed and destroyed while its allocator was being made gave its slot to two owners.
#[test]
fn a_guessed_handle_cannot_end_an_allocator_in_the_making() {
    alone("a_guessed_handle_cannot_end_an_allocator_in_the_making", || {
        let (stop, last) =
            (AtomicBool::new(false), AtomicUsize::new(PinnedAlloc::new().unwrap().handle().raw()));
        let wrong = |want: bool| {
            let a = AllocatorBuilder::new().pinned(want).build().unwrap();
            last.store(a.handle().raw(), Relaxed);
            (0..10).any(|_| a.traits().pinned != want)
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Relaxed) {
                    routines::destroy_allocator(AllocatorHandle::from_raw(last.load(Relaxed) + (1 << 32)));
                }
            });
            let other = s.spawn(|| (0..200_000).any(|_| wrong(false)));
            let mine = (0..200_000).any(|_| wrong(true));
            let other = other.join().unwrap();
            stop.store(true, Relaxed);
            assert!(!mine && !other, "two allocators in one slot");
        });
    });
}

fn whole(_: MemSpace, size: usize, _: usize, parts: &mut MemPartition) {
    // An absurd part is answered.
    if parts.init(1, 0).is_ok() && parts.set_part(usize::MAX, 0, size) == Err(Error::Partition) {
        let _ = parts.set_part(0, 0, size);
    }
}

/// A panic in a callback took the pool's charge, or the block, along.
#[test]
fn a_panicking_partitioner_is_a_failed_allocation() {
    static PANIC: AtomicBool = AtomicBool::new(true);
    fn compute(space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
        assert!(!PANIC.load(Relaxed), "for the test");
        whole(space, size, arg, parts);
    }
    fn release(_: &mut MemPartition) {
        panic!("for the test");
    }
    alone("a_panicking_partitioner_is_a_failed_allocation", || {
        let p = MemPartitioner::new(Lifetime::Dynamic, compute, Some(release)).unwrap();
        let a = AllocatorBuilder::new()
            .partition(Partition::Partitioner(p))
            .pool_size(200_000)
            .fallback(Fallback::Null)
            .build()
            .unwrap();
        assert_eq!(a.allocate(layout(100_000)), Err(Error::Partition));
        PANIC.store(false, Relaxed);
        pair(&a, 200_000);
        assert_eq!(a.stats().requested, 0);
        p.destroy();
    });
}

/// A partition that was computed while its partitioner was destroyed was never released.
#[test]
fn a_partition_computed_too_late_is_released() {
    static SELF: AtomicUsize = AtomicUsize::new(0);
    static RELEASED: AtomicUsize = AtomicUsize::new(0);
    fn compute(space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
        if let Some(p) = MemPartitioner::from_raw(SELF.load(Relaxed)) {
            p.destroy();
        }
        whole(space, size, arg, parts);
    }
    fn release(_: &mut MemPartition) {
        RELEASED.fetch_add(1, Relaxed);
    }
    let p = MemPartitioner::new(Lifetime::Static, compute, Some(release)).unwrap();
    SELF.store(p.raw(), Relaxed);
    let a = AllocatorBuilder::new()
        .partition(Partition::Partitioner(p))
        .fallback(Fallback::Null)
        .build()
        .unwrap();
    pair(&a, 100_000);
    assert_eq!(RELEASED.load(Relaxed), 1);
    assert_eq!(a.allocate(layout(100_000)), Err(Error::Partition));
}

/// A realloc in the child of a fork copied from memory that the child was not given.
#[test]
fn realloc_of_a_block_the_child_does_not_have_is_an_error() {
    alone("realloc_of_a_block_the_child_does_not_have_is_an_error", || {
        let a = AllocatorBuilder::new().fork_policy(ForkPolicy::DontFork).build().unwrap();
        for size in [100, 10_000, 1 << 20] {
            let b = a.allocate(layout(size)).unwrap();
            // SAFETY: the child calls the library, which is whole after fork, and _exit.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: a block that is live in the parent; the call has to find out that it is not here.
                let r = unsafe { a.realloc(b.cast(), layout(size), size * 50, ReallocPolicy::MayMove) };
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!matches!(r, Err(Error::NotABlock { .. })))) };
            }
            let mut status = 0;
            // SAFETY: the child just made.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            assert_eq!(status, 0, "size {size}");
            // SAFETY: live in this process, of this layout, not used again.
            unsafe { a.deallocate(b.cast(), layout(size)) };
        }
    });
}

/// Clones that are forgotten by the thousand million wrapped the count of users. As many as a test can make must at
/// least not change the handle; the bound itself is tested beside the code.
#[test]
fn forgotten_clones_keep_the_allocator() {
    let a = PinnedAlloc::new().unwrap();
    let h = a.handle();
    for _ in 0..1_000_000 {
        std::mem::forget(a.clone());
    }
    drop(a);
    let again = PinnedAlloc::from_handle(h).unwrap();
    assert_eq!(again.handle(), h);
    routines::destroy_allocator(h);
}

/// More than the machine has was refused by a plain allocation only; a growth, or a reservation, was begun and ended by
/// the OOM killer.
#[test]
fn more_than_the_machine_has_is_an_error_on_every_way() {
    alone("more_than_the_machine_has_is_an_error_on_every_way", || {
        if limits::overcommit_memory() == Some(1) {
            return; // the machine's owner has asked for no such check
        }
        let too_much = 1 << 44;
        for reserve in [None, Some(Reserve::Times(2))] {
            let mut b = AllocatorBuilder::new().fallback(Fallback::Null);
            if let Some(r) = reserve {
                b = b.reserve(r);
            }
            let a = b.build().unwrap();
            assert!(a.allocate(layout(too_much)).is_err());
            let p = a.allocate(layout(20_000)).unwrap();
            for policy in [ReallocPolicy::MayMove, ReallocPolicy::Fixed] {
                // SAFETY: a live block of this allocator and layout.
                assert!(unsafe { a.realloc(p.cast(), layout(20_000), too_much, policy) }.is_err());
            }
            // SAFETY: as above; not used again.
            unsafe { a.deallocate(p.cast(), layout(20_000)) };
        }
    });
}

/// The global allocator failed without a word on why.
#[test]
fn a_failing_global_allocator_can_explain_itself() {
    static SILENT: PinnedGlobal = PinnedGlobal::require().cap(1000);
    static HEAP: PinnedGlobal = PinnedGlobal::require().cap(1000).explain();
    const NAME: &str = "a_failing_global_allocator_can_explain_itself";
    if is_child(NAME) {
        for heap in [&SILENT, &HEAP, &HEAP] {
            // SAFETY: a layout of some bytes.
            assert!(unsafe { heap.alloc(layout(2000)) }.is_null());
        }
        assert_eq!(last_error(), Some(Error::Pool { pool_size: 1000, used: 0, asked: 2000 }));
        return;
    }
    let out = spawn(NAME, Situation::default());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert_eq!(said.matches("pinned-alloc: the pool").count(), 1, "once, and not by the silent one: {said}");
}
