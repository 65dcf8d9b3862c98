//! The OpenMP model: predefined allocators, handles, pools, fallback, the default allocator, partitioners.
//!
//! Tests named `point_N_...` show the reading taken of the open point N in section 8 of SPEC_NOTES.md.

mod common;

use common::{Situation, alone, is_child, room, spawn_with};
use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
use pinned_alloc::routines::*;
use pinned_alloc::traits::{Access, Alignment, Fallback, Partition, key, value};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle as H, BlockInfo, Error, MemSpace, PinnedAlloc, ReallocPolicy,
    TraitError, process_stats, trim,
};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

fn info(p: *mut u8) -> BlockInfo {
    PinnedAlloc::from_handle(H::DEFAULT_MEM).unwrap().info(NonNull::new(p).unwrap()).unwrap()
}

fn release(p: *mut u8) {
    // SAFETY: the tests pass live blocks of their own, and do not use them again.
    unsafe { free(p, H::NULL) }.unwrap();
}

/// # Safety
/// As `realloc`.
unsafe fn resize(p: *mut u8, size: usize, h: H) -> Result<*mut u8, Error> {
    // SAFETY: the caller's promise.
    unsafe { realloc(p, size, h, H::NULL) }
}

fn init(traits: &[(i32, usize)]) -> Result<H, Error> {
    init_allocator(MemSpace::Default, traits.iter().copied())
}

/// An unpinned allocator with a pool.
fn pool(bytes: usize, fallback: usize, fb_data: H) -> H {
    init(&[(key::POOL_SIZE, bytes), (key::FALLBACK, fallback), (key::FB_DATA, fb_data.raw())]).unwrap()
}

#[test]
fn predefined_allocators_serve() {
    for n in 1..=8 {
        let h = H::from_raw(n);
        let p = alloc(100, h).unwrap();
        assert_eq!((info(p).asked_of, info(p).is_pinned()), (h, false));
        release(p);
        destroy_allocator(h); // ignored
        release(alloc(1, h).unwrap());
    }
    for vendor in [H::GNU_PINNED_MEM, H::LLVM_TARGET_HOST_MEM] {
        match alloc(100, vendor) {
            Ok(p) => {
                assert!(info(p).is_pinned());
                release(p);
            }
            // Pinned, with null_fb: never silently unpinned.
            Err(e) => assert!(e.is_lock_limit() && room() < 4096, "{e}"),
        }
    }
}

#[test]
fn forged_handles_are_answered() {
    let dead = init(&[]).unwrap();
    destroy_allocator(dead);
    let raw = dead.raw();
    for h in [
        9,
        50,
        99,
        101,
        102,
        201,
        1024,
        4096,
        0x1000_0000,
        raw,
        raw + 1,
        raw ^ (1 << 40),
        usize::MAX,
        usize::MAX - 1,
    ]
    .map(H::from_raw)
    {
        assert_eq!(alloc(10, h), Err(Error::Handle { handle: h }));
        assert_eq!(calloc(1, 10, h), Err(Error::Handle { handle: h }));
        destroy_allocator(h);
        let p = alloc(10, H::DEFAULT_MEM).unwrap();
        // SAFETY: a live block; a bad handle leaves it so.
        assert!(unsafe { resize(p, 20, h) }.is_err());
        // SAFETY: a live block, not used again; the handle given to free is not read.
        unsafe { free(p, h) }.unwrap();
        assert!(PinnedAlloc::from_handle(h).is_err());
    }
    // Addresses that are no blocks.
    let p = alloc(1000, H::DEFAULT_MEM).unwrap();
    let mut local = 0u8;
    for q in [
        p.wrapping_add(1),
        p.wrapping_add(512),
        &raw mut local,
        ptr::without_provenance_mut(1),
        ptr::without_provenance_mut(usize::MAX),
    ] {
        // SAFETY: an address where no block begins is answered, and nothing is done.
        assert_eq!(unsafe { free(q, H::NULL) }, Err(Error::NotABlock { addr: q.addr() }));
    }
    release(p);
    // SAFETY: as above: the block is gone.
    assert!(unsafe { free(p, H::NULL) }.is_err(), "freed twice");
}

#[test]
fn point_1_default_mem_fb_keeps_the_alignment() {
    let h = init(&[(key::ALIGNMENT, 4096), (key::POOL_SIZE, 10)]).unwrap();
    let p = alloc(100, h).unwrap();
    assert_eq!(info(p).served_by, H::DEFAULT_MEM);
    assert!(p.addr().is_multiple_of(4096));
    release(p);
    destroy_allocator(h);
}

#[test]
fn point_2_allocator_fb_keeps_both_alignments() {
    let next = init(&[(key::ALIGNMENT, 256)]).unwrap();
    for (mine, both) in [(64, 256), (1024, 1024)] {
        let h = init(&[
            (key::ALIGNMENT, mine),
            (key::POOL_SIZE, 10),
            (key::FALLBACK, value::ALLOCATOR_FB),
            (key::FB_DATA, next.raw()),
        ]);
        let p = alloc(100, h.unwrap()).unwrap();
        assert!(p.addr().is_multiple_of(both));
        release(p);
        destroy_allocator(h.unwrap());
    }
    destroy_allocator(next);
}

#[test]
fn point_3_a_block_knows_whom_it_was_asked_of_and_who_serves_it() {
    let h = pool(100, value::DEFAULT_MEM_FB, H::NULL);
    let p = alloc(90, h).unwrap();
    let q = alloc(50, h).unwrap();
    assert_eq!((info(p).asked_of, info(p).served_by), (h, h));
    assert_eq!((info(q).asked_of, info(q).served_by), (h, H::DEFAULT_MEM));
    release(p);
    // Without an allocator it is a request to the one that was asked first, which has room again.
    // SAFETY: a live block.
    let q = unsafe { resize(q, 60, H::NULL) }.unwrap();
    assert_eq!((info(q).asked_of, info(q).served_by, info(q).pool_used), (h, h, 60));
    release(q);
    destroy_allocator(h);
}

#[test]
fn point_4_free_accepts_the_allocator_that_was_asked() {
    let h = pool(1, value::DEFAULT_MEM_FB, H::NULL);
    let p = alloc(50, h).unwrap();
    // SAFETY: a live block, not used again.
    assert_eq!(unsafe { free(p, h) }, Ok(()));
    destroy_allocator(h);
}

#[test]
fn point_5_failure_to_pin_is_an_allocation_failure() {
    alone("point_5_failure_to_pin_is_an_allocation_failure", || {
        let strict = init(&[(key::PINNED, 1), (key::FALLBACK, value::NULL_FB)]).unwrap();
        // More than any limit but none.
        match alloc(1 << 30, strict) {
            Ok(p) => {
                assert!(info(p).is_pinned());
                release(p);
            }
            Err(e) => assert!(e.is_lock_limit() && room() < 1 << 30, "{e}"),
        }
    });
}

#[test]
fn point_6_the_fallback_of_a_pinned_allocator_is_not_pinned_and_says_so() {
    let h = init(&[(key::PINNED, 1), (key::POOL_SIZE, 10)]).unwrap();
    let p = alloc(100, h).unwrap();
    assert!(!info(p).is_pinned());
    let a = PinnedAlloc::from_handle(h).unwrap();
    assert_eq!((a.stats().fallbacks, a.stats().fallback_blocks, a.stats().fallback_requested), (1, 1, 100));
    release(p);
    destroy_allocator(h);
}

#[test]
fn point_9_a_pool_counts_what_was_asked_for() {
    for n in [1, 100, 4096, 65_537] {
        let h = pool(n, value::NULL_FB, H::NULL);
        let p = alloc(n, h).unwrap();
        assert_eq!(alloc(1, h), Err(Error::Pool { pool_size: n, used: n, asked: 1 }));
        release(p);
        let q = aligned_alloc(4096, n, h).unwrap();
        release(q);
        destroy_allocator(h);
    }
}

#[test]
fn point_10_access_thread_has_a_pool_for_each_thread() {
    let h = init(&[(key::ACCESS, value::THREAD), (key::POOL_SIZE, 1000), (key::FALLBACK, value::NULL_FB)])
        .unwrap();
    let p = alloc(1000, h).unwrap();
    assert!(alloc(1, h).is_err());
    for _ in 0..20 {
        std::thread::spawn(move || {
            let p = alloc(1000, h).unwrap();
            assert!(alloc(1, h).is_err());
            release(p);
        })
        .join()
        .unwrap();
    }
    assert!(alloc(1, h).is_err(), "others have pools of their own");
    release(p);
    destroy_allocator(h);
}

#[test]
fn point_11_a_pool_is_exact_under_contention() {
    const POOL: usize = 100_000;
    let h = pool(POOL, value::NULL_FB, H::NULL);
    std::thread::scope(|s| {
        for n in 0..8 {
            s.spawn(move || {
                for i in 0..3000 {
                    // Large requests fail for ever, small ones of 1/8 of the pool must always succeed.
                    if n == 0 {
                        assert!(alloc(POOL + 1, h).is_err());
                        continue;
                    }
                    let p = alloc(1 + (i * 37 + n) % (POOL / 8), h).unwrap();
                    assert!(info(p).pool_used <= POOL);
                    release(p);
                }
            });
        }
    });
    release(alloc(POOL, h).unwrap());
    destroy_allocator(h);
}

#[test]
fn points_12_to_15_what_cannot_be_met_is_no_allocator() {
    assert!(matches!(init(&[(key::POOL_SIZE, 0)]), Err(Error::Traits(TraitError::Value { .. }))));
    release(alloc(1 << 20, init(&[(key::POOL_SIZE, value::DEFAULT)]).unwrap()).unwrap());
    for bad in [(77, 1), (0, 0), (-1, 5), (key::ALIGNMENT, 3), (key::FALLBACK, 99), (key::PINNED, 2)] {
        assert!(init(&[bad]).is_err(), "{bad:?}");
    }
    // The last of two counts.
    let h = init(&[(key::POOL_SIZE, 10), (key::POOL_SIZE, 1000), (key::FALLBACK, value::NULL_FB)]).unwrap();
    release(alloc(1000, h).unwrap());
    assert_eq!(init(&[(key::FALLBACK, value::ALLOCATOR_FB)]), Err(Error::Traits(TraitError::MissingFbData)));
}

#[test]
fn point_16_fallback_cycles_end() {
    // A to B to A, by way of a slot that is used again: B's fb_data is A's handle.
    let a_next = |next: H| {
        AllocatorBuilder::new().pool_size(10).fallback(Fallback::Allocator(next)).into_handle().unwrap()
    };
    let a = a_next(H::from_raw(4242));
    assert_eq!(alloc(100, a), Err(Error::FallbackGone { handle: H::from_raw(4242) }));
    let b = a_next(a);
    let c = a_next(b);
    assert!(alloc(100, c).is_err());
    // One that names itself: the next handle of a slot can be foretold, since generations count up.
    let probe = init(&[]).unwrap();
    destroy_allocator(probe);
    let itself = a_next(H::from_raw(probe.raw() + (1 << 32)));
    if itself.raw() == probe.raw() + (1 << 32) {
        assert_eq!(alloc(100, itself), Err(Error::FallbackCycle));
    }
    for h in [a, b, c, itself] {
        destroy_allocator(h);
    }
}

#[test]
fn point_17_fb_data_of_a_destroyed_allocator_is_null() {
    let next = init(&[]).unwrap();
    let h = pool(10, value::ALLOCATOR_FB, next);
    release(alloc(100, h).unwrap());
    destroy_allocator(next);
    assert_eq!(alloc(100, h), Err(Error::FallbackGone { handle: next }));
    destroy_allocator(h);
}

#[test]
fn points_18_to_23_sizes_and_alignments() {
    for (n, size) in [(usize::MAX, 2), (1 << 33, 1 << 33), (3, usize::MAX / 2)] {
        assert!(calloc(n, size, H::DEFAULT_MEM).is_err(), "{n} x {size}"); // 18
    }
    for size in [usize::MAX, usize::MAX - 16, usize::MAX - 40, isize::MAX as usize, isize::MAX as usize + 1] {
        assert!(alloc(size, H::DEFAULT_MEM).is_err());
        assert!(aligned_alloc(1 << 30, size, H::DEFAULT_MEM).is_err());
    }
    let p = aligned_alloc(64, 100, H::DEFAULT_MEM).unwrap(); // 19
    assert!(p.addr().is_multiple_of(64));
    release(p);
    for align in [3, 24, (1 << 30) + 1, 1 << 31, usize::MAX] {
        assert!(matches!(aligned_alloc(align, 8, H::DEFAULT_MEM), Err(Error::Alignment { .. })), "{align}"); // 20
    }
    release(aligned_alloc(0, 8, H::DEFAULT_MEM).unwrap()); // 21
    let all: Vec<_> = (1..64).map(|n| alloc(n, H::DEFAULT_MEM).unwrap()).collect();
    assert!(all.iter().all(|p| p.addr().is_multiple_of(16))); // 22
    all.into_iter().for_each(release);
    let aborts = init(&[(key::FALLBACK, value::ABORT_FB)]).unwrap(); // 23
    assert_eq!(alloc(0, aborts), Ok(ptr::null_mut()));
    assert_eq!(calloc(0, 8, aborts), Ok(ptr::null_mut()));
    destroy_allocator(aborts);
}

#[test]
fn point_25_the_null_handle_as_default_is_the_default_mem_allocator() {
    std::thread::spawn(|| {
        set_default_allocator(H::NULL);
        assert_eq!(get_default_allocator(), H::DEFAULT_MEM);
    })
    .join()
    .unwrap();
}

#[test]
fn points_26_and_27_blocks_outlive_their_allocator() {
    alone("points_26_and_27_blocks_outlive_their_allocator", || {
        set_default_allocator(init(&[]).unwrap());
        let h = get_default_allocator();
        let (p, q) = (alloc(100, h).unwrap(), alloc(100_000, h).unwrap());
        destroy_allocator(h);
        assert!(alloc(1, H::NULL).is_err(), "the default allocator is gone, and that is answered");
        // SAFETY: blocks are live until they are freed.
        let p = unsafe {
            p.write_bytes(1, 100);
            q.write_bytes(2, 100_000);
            resize(p, 5000, H::NULL).unwrap()
        };
        release(p);
        release(q);
        trim(0);
        assert_eq!((process_stats().live_blocks, process_stats().mapped), (0, 0));
        // Slots and records are used again: nothing grows, and stale handles stay dead.
        let rss = || {
            std::fs::read_to_string("/proc/self/statm")
                .unwrap()
                .split(' ')
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        let mut before = 0;
        for i in 0..100_000 {
            let h = init(&[(key::POOL_SIZE, 1000)]).unwrap();
            let p = alloc(10, h).unwrap();
            destroy_allocator(h);
            assert!(alloc(1, h).is_err());
            release(p);
            if i == 1000 {
                before = rss();
            }
        }
        assert!(rss() <= before + 64, "{before} pages, then {}", rss());
        assert!(process_stats().allocators <= 2);
    });
}

#[test]
fn point_28_every_encoding_of_the_default_space() {
    for raw in [0, 99, usize::MAX] {
        let h = init_allocator(MemSpace::from_raw(raw).unwrap(), []).unwrap();
        release(alloc(10, h).unwrap());
        destroy_allocator(h);
    }
}

#[test]
fn points_31_to_34_access_device_access_and_pinned_false() {
    for access in [value::ALL, value::MEMSPACE, value::DEVICE, value::DEFAULT] {
        release(alloc(10, init(&[(key::ACCESS, access)]).unwrap()).unwrap());
    }
    release(alloc(10, init(&[(key::DEVICE_ACCESS, 12345)]).unwrap()).unwrap()); // 32
    for v in [value::FALSE, value::DEFAULT] {
        let h = init(&[(key::PINNED, v)]).unwrap(); // 34
        let p = alloc(10, h).unwrap();
        assert!(!info(p).is_pinned());
        release(p);
        destroy_allocator(h);
    }
}

#[test]
fn point_35_calloc_zeroes_what_is_used_again() {
    for h in [H::DEFAULT_MEM, H::GNU_PINNED_MEM] {
        for size in [16, 1000, 20_000, 300_000] {
            let Ok(p) = alloc(size, h) else { continue }; // over the lock limit
            // SAFETY: within the block.
            unsafe { p.write_bytes(0xff, size) };
            release(p);
            let p = calloc(1, size, h).unwrap();
            // SAFETY: within the block.
            assert!((0..size).all(|i| unsafe { p.add(i).read() } == 0));
            release(p);
        }
    }
}

#[test]
fn realloc_by_the_table() {
    // A null pointer allocates; size 0 frees.
    // SAFETY: null, then a live block each time.
    unsafe {
        assert_eq!(resize(ptr::null_mut(), 0, H::DEFAULT_MEM), Ok(ptr::null_mut()));
        let p = resize(ptr::null_mut(), 100, H::DEFAULT_MEM).unwrap();
        assert_eq!(resize(p, 0, H::NULL), Ok(ptr::null_mut()));
        assert!(free(p, H::NULL).is_err(), "it is gone");
        // Growth is charged with the difference: 2000 to 3500 fits a pool of 4096.
        let h = pool(4096, value::NULL_FB, H::NULL);
        let p = alloc(2000, h).unwrap();
        let p = resize(p, 3500, H::NULL).unwrap();
        assert_eq!(info(p).pool_used, 3500);
        assert_eq!(resize(p, 5000, H::NULL), Err(Error::Pool { pool_size: 4096, used: 3500, asked: 1500 }));
        assert_eq!(info(p).requested, 3500, "as it was");
        // To another allocator and back; the pools follow.
        let q = resize(p, 10_000, H::DEFAULT_MEM).unwrap();
        assert_eq!((info(q).asked_of, info(q).requested), (H::DEFAULT_MEM, 10_000));
        assert!(alloc(4096, h).is_ok_and(|p| free(p, H::NULL).is_ok()));
        // Fixed to another allocator would be a move.
        let r = realloc_with(q, 100, h, H::NULL, Some(ReallocPolicy::Fixed));
        assert!(matches!(r, Err(Error::NoRoom { .. })));
        release(q);
        destroy_allocator(h);
    }
}

/// Pinned realloc that grows in place, then other allocations: libgomp 16.2 hands out overlapping blocks there.
#[test]
fn realloc_in_place_never_overlaps_what_comes_next() {
    let h = AllocatorBuilder::new().pinned(true).into_handle().unwrap();
    let mut all: Vec<(*mut u8, usize)> = (0..64).map(|_| (alloc(128, h).unwrap(), 128)).collect();
    let (p, _) = all.swap_remove(0);
    all.drain(..).for_each(|b| release(b.0));
    // SAFETY: a live block.
    let p = unsafe { resize(p, 600, H::NULL) }.unwrap();
    all.push((p, 600));
    all.extend((0..200).map(|i| (alloc(100 + i % 40, h).unwrap(), 100 + i % 40)));
    all.sort();
    assert!(all.windows(2).all(|w| w[0].0.addr() + w[0].1 <= w[1].0.addr()));
    all.into_iter().for_each(|b| release(b.0));
    destroy_allocator(h);
}

#[test]
fn every_thread_has_its_default_allocator() {
    std::thread::spawn(|| {
        let h = pool(1000, value::NULL_FB, H::NULL);
        set_default_allocator(h);
        assert_eq!(get_default_allocator(), h);
        let p = alloc(10, H::NULL).unwrap();
        assert_eq!(info(p).asked_of, h);
        release(p);
        std::thread::spawn(move || assert_ne!(get_default_allocator(), h)).join().unwrap();
        destroy_allocator(h);
    })
    .join()
    .unwrap();
}

#[test]
fn omp_allocator_from_the_environment() {
    const NAME: &str = "omp_allocator_from_the_environment";
    if is_child(NAME) {
        let h = get_default_allocator();
        let p = alloc(3000, H::NULL).unwrap_or(ptr::null_mut());
        let served = if p.is_null() { "nobody".to_owned() } else { format!("{:?}", info(p).served_by == h) };
        println!("default {} aligned {} served by it: {served};", h.raw(), p.addr().is_multiple_of(512));
        return;
    }
    let run = |v: &str| {
        let out = spawn_with(NAME, Situation::default(), |c| {
            c.env("OMP_ALLOCATOR", v);
        });
        assert!(out.status.success());
        (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (said, told) = run(" OMP_Large_Cap_Mem_Alloc ");
    assert!(said.contains("default 2 ") && told.is_empty(), "{said} {told}");
    let (said, _) = run("omp_default_mem_space : alignment = 512, pool_size=1000000, fallback=null_fb");
    assert!(said.contains("aligned true served by it: true") && !said.contains("default 1 "), "{said}");
    let (said, _) =
        run("omp_default_mem_space:pool_size=100,fallback=allocator_fb,fb_data=omp_default_mem_alloc");
    assert!(said.contains("served by it: false"), "{said}");
    for bad in [
        "omp_no_mem_alloc",
        "omp_default_mem_space:pool_size=",
        "omp_default_mem_space:alignment=3",
        "\u{fffd}",
    ] {
        let (said, told) = run(bad);
        assert!(said.contains("default 1 ") && told.contains("OMP_ALLOCATOR"), "{bad}: {said} {told}");
    }
}

static COMPUTED: AtomicUsize = AtomicUsize::new(0);
static RELEASED: AtomicUsize = AtomicUsize::new(0);

fn halves(_: MemSpace, size: usize, arg: usize, p: &mut MemPartition) {
    COMPUTED.fetch_add(1, Relaxed);
    assert_eq!((arg, size % 4096), (77, 0));
    let half = (size / 2).next_multiple_of(4096);
    p.init(2, 5).unwrap();
    assert_eq!(p.user_data(), 5);
    assert!(
        p.set_part(0, 0, half + 1).is_err()
            && p.set_part(2, 0, half).is_err()
            && p.set_part(0, 999, half).is_err()
    );
    p.set_part(0, 0, half).unwrap();
    p.set_part(1, p.resources() - 1, size - half).unwrap();
}

fn released(_: &mut MemPartition) {
    RELEASED.fetch_add(1, Relaxed);
}

fn too_little(_: MemSpace, _: usize, _: usize, p: &mut MemPartition) {
    p.init(1, 0).unwrap();
    p.set_part(0, 0, 4096).unwrap();
}

#[test]
fn partitioners_compute_as_often_as_their_lifetime_says() {
    alone("partitioners_compute_as_often_as_their_lifetime_says", || {
        for (lifetime, times) in [(Lifetime::Dynamic, 6), (Lifetime::Allocator, 2), (Lifetime::Static, 1)] {
            COMPUTED.store(0, Relaxed);
            RELEASED.store(0, Relaxed);
            let m = MemPartitioner::new(lifetime, halves, Some(released)).unwrap();
            assert_eq!(MemPartitioner::from_raw(m.raw()), Some(m));
            for _ in 0..2 {
                let b = AllocatorBuilder::new().partition(Partition::Partitioner(m)).partitioner_arg(77);
                let h = b.fallback(Fallback::Null).into_handle().unwrap();
                for _ in 0..3 {
                    release(alloc(100_000, h).unwrap());
                }
                destroy_allocator(h);
            }
            assert_eq!(COMPUTED.load(Relaxed), times, "{lifetime:?}");
            m.destroy();
            assert_eq!(RELEASED.load(Relaxed), times, "{lifetime:?}: each once, in the end");
            assert_eq!(MemPartitioner::from_raw(m.raw()), None);
        }
        let m = MemPartitioner::new(Lifetime::Dynamic, too_little, None).unwrap();
        let h = AllocatorBuilder::new()
            .partition(Partition::Partitioner(m))
            .fallback(Fallback::Null)
            .into_handle()
            .unwrap();
        assert_eq!(alloc(100_000, h), Err(Error::Partition), "parts that do not add up");
        m.destroy();
        assert_eq!(alloc(100_000, h), Err(Error::Partition), "its partitioner is gone");
        destroy_allocator(h);
    });
}

#[test]
fn alignment_traits_hold_in_every_size() {
    for shift in [4, 6, 9, 12, 13, 16, 21] {
        let h = AllocatorBuilder::new().alignment(Alignment::new(1 << shift).unwrap()).into_handle().unwrap();
        for size in [1, 100, 5000, 70_000] {
            let p = alloc(size, h).unwrap();
            assert!(p.addr().is_multiple_of(1 << shift));
            // SAFETY: a live block.
            let p = unsafe { resize(p, size * 5, H::NULL) }.unwrap();
            assert!(p.addr().is_multiple_of(1 << shift));
            release(p);
        }
        destroy_allocator(h);
    }
    let a = PinnedAlloc::builder().pinned(false).access(Access::CGroup).build().unwrap();
    assert_eq!(a.traits().access, Access::CGroup);
}
