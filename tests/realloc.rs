//! Realloc under both policies: every mix of sizes, alignments, kinds of memory and ways to grow.
//!
//! [`Tracked`] checks each step: contents byte for byte, address under `Fixed`, alignment, figures, `VmLck`; and after
//! each failure that nothing has changed. Where the lock limit leaves no room, the error must say so and the block
//! must be as it was.

mod common;

use common::tracked::{MIB, PAGE, Tracked, Wall, agree, layout, vm_flags};
use common::{Situation, alone, alone_in, room, spare_address_space};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Error, ForkPolicy, HugePages, PinnedAlloc, ReallocPolicy, Reserve,
    process_stats, routines, set_cache_limit, traits::Fallback, trim,
};
use std::ptr::NonNull;

use ReallocPolicy::{Fixed, MayMove};

/// Five pages: the least that has pages of its own.
const SMALL: usize = 5 * PAGE;

fn pinned() -> PinnedAlloc {
    set_cache_limit(0);
    PinnedAlloc::new().unwrap()
}

/// `e` names the lock limit, and there was less than `needed` bytes of room.
#[track_caller]
fn limited(e: Error, needed: usize) {
    assert!(e.is_lock_limit(), "{e}");
    assert!(room() < needed as u64, "{e}: but {} bytes of room for {needed}", room());
}

/// Most bytes that a new block of this size may have to lock: class, page and one step of its slab.
fn cost(size: usize) -> usize {
    (size + size / 8).next_multiple_of(PAGE) + PAGE
}

/// A block of `size` bytes, or the assertion that the limit forbids it.
#[track_caller]
fn block(a: &PinnedAlloc, size: usize, align: usize) -> Option<Tracked> {
    match Tracked::new(a, layout(size, align)) {
        Ok(b) => {
            assert!(b.pinned());
            Some(b)
        }
        Err(e) => {
            limited(e, cost(size));
            None
        }
    }
}

#[track_caller]
fn nothing_left() {
    trim(0);
    assert_eq!(agree(), 0);
    let s = process_stats();
    assert_eq!((s.mapped, s.live_blocks, s.requested, s.stranded), (0, 0, 0, 0));
}

#[test]
fn sizes_up_and_down_at_every_alignment() {
    alone("sizes_up_and_down_at_every_alignment", || {
        let a = pinned();
        let sizes = [
            1,
            15,
            16,
            17,
            112,
            113,
            128,
            129,
            1000,
            4095,
            4096,
            4097,
            8192,
            16_383,
            16_384,
            16_385,
            20_481,
            65_536,
            70_000,
            MIB - 1,
            MIB,
            2 * MIB,
            2 * MIB + 1,
            5 * MIB + 1,
            9 * MIB,
        ];
        for align in [1, 64, 4096, 65_536, 2 * MIB] {
            let Some(mut b) = block(&a, 1, align) else { continue };
            for &size in sizes.iter().chain(sizes.iter().rev()) {
                if let Err(e) = b.realloc(size, MayMove) {
                    limited(e, cost(size));
                }
                assert!(b.pinned());
            }
            // From each size to each other one, for pairs that cross every boundary.
            for from in [1, 100, 4096, 16_384, 16_385, 70_000, 2 * MIB] {
                for to in [1, 17, 4097, 16_384, 16_385, 69_632, 3 * MIB] {
                    for size in [from, to] {
                        if let Err(e) = b.realloc(size, MayMove) {
                            limited(e, cost(size));
                        }
                    }
                }
            }
            b.free();
            nothing_left();
        }
    });
}

#[test]
fn shrinking_gives_pages_and_locks_back() {
    alone("shrinking_gives_pages_and_locks_back", || {
        for policy in [MayMove, Fixed] {
            for size in [SMALL, 12 * PAGE, 3 * MIB, 8 * MIB + 5 * PAGE] {
                let a = PinnedAlloc::builder().realloc_policy(policy).build().unwrap();
                set_cache_limit(0);
                let Some(mut b) = block(&a, size, 4096) else { continue };
                let at = b.addr();
                for new in [size - 1, size - PAGE, size / 2 + 1, PAGE + 1, PAGE, 100, 1] {
                    b.realloc(new, policy).expect("a shrink does not fail");
                    assert_eq!(b.addr(), at, "a shrink of whole pages is in place");
                    assert_eq!(
                        agree(),
                        new.next_multiple_of(PAGE) as u64,
                        "{size} to {new} under {policy:?}"
                    );
                    assert!(b.pinned());
                }
                if policy == Fixed {
                    // The address space has been kept, so all of it can come back.
                    assert!(b.info().capacity >= size);
                    b.realloc(size, Fixed).expect("what was given back fits again");
                    assert_eq!(agree(), size.next_multiple_of(PAGE) as u64);
                }
                b.free();
                nothing_left();
            }
        }
    });
}

#[test]
fn within_and_beyond_a_class() {
    alone("within_and_beyond_a_class", || {
        let a = pinned();
        let Some(mut b) = block(&a, 100, 8) else { return };
        // The class has 112 bytes.
        assert_eq!((b.info().usable, b.info().capacity), (112, 112));
        let locked = agree();
        b.realloc(112, Fixed).unwrap();
        assert_eq!(b.realloc(113, Fixed), Err(Error::NoRoom { asked: 113, capacity: 112 }));
        b.realloc(1, Fixed).unwrap();
        b.realloc(100, MayMove).unwrap();
        assert_eq!(agree(), locked);
        match b.realloc(113, MayMove) {
            Ok(()) => assert!(b.info().usable == 120 || b.info().usable == 128),
            Err(e) => limited(e, cost(113)),
        }
        b.free();
        nothing_left();
    });
}

#[test]
fn in_place_exactly_where_the_neighbour_is_free() {
    alone("in_place_exactly_where_the_neighbour_is_free", || {
        let a = pinned();
        let Some(mut b) = block(&a, SMALL, 4096) else { return };
        let end = b.addr() + SMALL;
        let wall = Wall::at(end);
        // Whoever built it: something is behind the block now.
        match b.realloc(SMALL + PAGE, Fixed) {
            Err(Error::NoRoom { asked, capacity }) => {
                assert_eq!((asked, capacity), (SMALL + PAGE, SMALL));
            }
            other => panic!("a wall behind the block: {other:?}"),
        }
        if wall.is_some() {
            drop(wall);
            assert!(Wall::none_in(end, PAGE));
            match b.realloc(SMALL + PAGE, Fixed) {
                Ok(()) => assert_eq!(agree(), (SMALL + PAGE) as u64),
                Err(e) => limited(e, PAGE),
            }
        }
        b.free();
        nothing_left();
    });
}

#[test]
fn growth_into_the_place_of_a_freed_neighbour() {
    alone("growth_into_the_place_of_a_freed_neighbour", || {
        let a = pinned();
        let mut all = Vec::new();
        let pair = loop {
            let Some(b) = block(&a, SMALL, 4096) else { break None };
            all.push(b);
            all.sort_by_key(Tracked::addr);
            if let Some(i) = all.windows(2).position(|w| w[0].addr() + SMALL == w[1].addr()) {
                break Some(i);
            }
            assert!(all.len() < 64, "the kernel maps blocks next to each other");
        };
        if let Some(i) = pair {
            all.remove(i + 1).free();
            let b = &mut all[i];
            // Across the end of its span, page by page, then past what is free.
            for pages in 1..=5 {
                b.realloc(SMALL + pages * PAGE, Fixed).unwrap();
            }
            b.realloc(2 * SMALL - 1, MayMove).unwrap();
            let wall = Wall::at(b.addr() + 2 * SMALL);
            let at = b.addr();
            assert!(matches!(b.realloc(2 * SMALL + 1, Fixed), Err(Error::NoRoom { .. })));
            match b.realloc(2 * SMALL + 1, MayMove) {
                Ok(()) => assert_ne!(b.addr(), at),
                Err(e) => limited(e, PAGE),
            }
            drop(wall);
        }
        all.into_iter().for_each(Tracked::free);
        nothing_left();
    });
}

#[test]
fn inside_and_beyond_a_reservation() {
    alone("inside_and_beyond_a_reservation", || {
        set_cache_limit(0);
        for (reserve, from, capacity) in [
            (Reserve::Bytes(MIB), SMALL, MIB),
            (Reserve::Bytes(MIB), 100, MIB),
            (Reserve::Times(64), SMALL, 64 * SMALL),
            (Reserve::Bytes(64 * MIB), 3 * MIB, 64 * MIB),
            (Reserve::Bytes(1 << 40), PAGE, 1 << 40),
        ] {
            for policy in [Fixed, MayMove] {
                let a = PinnedAlloc::builder().realloc_policy(policy).reserve(reserve).build().unwrap();
                let Some(mut b) = block(&a, from, 64) else { continue };
                let (at, moves) = (b.addr(), process_stats().moves);
                assert!(b.info().capacity >= capacity, "{:?}", b.info());
                assert_eq!(agree(), from.next_multiple_of(PAGE) as u64, "a reservation locks nothing");
                let top = capacity.min(16 * MIB);
                for size in [from + 1, from + PAGE, top / 2, top - 1, top, from, top / 4 + 5, 1, top] {
                    match b.realloc(size, policy) {
                        Ok(()) => assert_eq!(agree(), size.next_multiple_of(PAGE) as u64),
                        Err(e) => limited(e, size.next_multiple_of(PAGE)),
                    }
                    assert_eq!(b.addr(), at, "nothing moves inside the reservation");
                }
                assert_eq!(process_stats().moves, moves);
                if top == capacity {
                    // Beyond: under Fixed there may be room by chance, but never a move.
                    let more = b.info().capacity + 1;
                    match b.realloc(more, policy) {
                        Ok(()) => assert!(policy == MayMove || b.addr() == at),
                        Err(Error::NoRoom { asked, capacity: c }) => {
                            assert!(policy == Fixed && asked == more && c >= capacity);
                        }
                        Err(e) => limited(e, more),
                    }
                }
                b.free();
                nothing_left();
            }
        }
    });
}

#[test]
fn a_reservation_that_cannot_be_had_is_an_error() {
    alone("a_reservation_that_cannot_be_had_is_an_error", || {
        let a = PinnedAlloc::builder().reserve(Reserve::Bytes(1 << 50)).build().unwrap();
        let e = a.allocate(layout(PAGE, 8)).unwrap_err();
        assert!(!e.is_lock_limit() && e.raw_os_error() == Some(libc::ENOMEM), "{e}");
        let a = PinnedAlloc::builder().reserve(Reserve::Times(u32::MAX)).build().unwrap();
        assert!(a.allocate(layout(1 << 40, 8)).is_err());
        nothing_left();
    });
}

#[test]
fn alignment_is_kept_and_changed() {
    alone("alignment_is_kept_and_changed", || {
        let a = pinned();
        for from in [16, 4096, 65_536, 2 * MIB] {
            for to in [1, 16, 4096, 65_536, 2 * MIB] {
                for (old, new) in
                    [(100, 200), (SMALL, 100), (100, SMALL), (SMALL, 3 * SMALL), (3 * MIB, 5 * MIB)]
                {
                    let Some(mut b) = block(&a, old, from) else { continue };
                    let (at, fits) = (b.addr(), b.addr().is_multiple_of(to));
                    match b.realloc_to(layout(new, to), Fixed) {
                        Ok(()) => assert!(fits && b.addr() == at),
                        Err(Error::NoRoom { asked, .. }) => assert_eq!(asked, new),
                        Err(e) => limited(e, cost(new)),
                    }
                    if let Err(e) = b.realloc_to(layout(new, to), MayMove) {
                        limited(e, cost(new));
                    }
                    b.free();
                }
            }
        }
        nothing_left();
    });
}

#[test]
fn moves_keep_two_mebibytes_of_alignment() {
    alone("moves_keep_two_mebibytes_of_alignment", || {
        let a = pinned();
        let Some(mut b) = block(&a, SMALL, 2 * MIB) else { return };
        let mut moved = 0;
        for i in 1..40 {
            // What lies behind is occupied, so that each step has to move or to use what a move brought along.
            let wall = Wall::at(b.addr() + b.info().capacity);
            let at = b.addr();
            let size = b.info().capacity.min(48 * MIB) + PAGE * (i % 3) + 1;
            match b.realloc(size, MayMove) {
                Ok(()) => moved += usize::from(b.addr() != at),
                Err(e) => limited(e, size),
            }
            drop(wall);
            // Down again, so that 1.5 GiB are never asked for.
            b.realloc(SMALL, MayMove).unwrap();
        }
        assert!(moved > 0 || room() < (8 * MIB) as u64, "{moved} moves");
        b.free();
        nothing_left();
    });
}

#[test]
fn doubling_to_256_mib() {
    alone("doubling_to_256_mib", || {
        let a = pinned();
        let Some(mut b) = block(&a, PAGE, 4096) else { return };
        let mut size = PAGE;
        while size < 256 * MIB {
            size *= 2;
            match b.realloc(size, MayMove) {
                Ok(()) => assert_eq!(agree() as usize, size + a.stats().idle),
                Err(e) => {
                    // A small block is copied, and needs both for a moment.
                    limited(e, size);
                    break;
                }
            }
        }
        let s = process_stats();
        assert!(s.locked_peak >= b.size() && s.locked_peak <= b.size() + 8 * PAGE, "{s:?}");
        assert!(s.moves <= 8, "address space comes along on each move: {}", s.moves);
        b.free();
        nothing_left();
    });
}

#[test]
fn a_block_of_many_moved_parts() {
    alone("a_block_of_many_moved_parts", || {
        let a = pinned();
        let Some(mut b) = block(&a, 10 * PAGE, 4096) else { return };
        // Too little address space to take room along: each growth past a wall is a move, and the ninth a copy.
        spare_address_space(600 << 10);
        let mut moved = 0;
        for pages in 11..40 {
            let wall = Wall::at(b.addr() + b.info().capacity);
            let at = b.addr();
            match b.realloc(pages * PAGE, MayMove) {
                Ok(()) => {
                    moved += usize::from(b.addr() != at);
                    assert_eq!(agree(), (pages * PAGE) as u64);
                }
                Err(e) => {
                    // As a copy it needs both.
                    limited(e, pages * PAGE);
                    break;
                }
            }
            drop(wall);
        }
        let limit = room() < (40 * PAGE) as u64;
        assert!(
            limit || (moved == 29 && process_stats().moves >= 21),
            "{moved} times, {:?}",
            process_stats()
        );
        // Through the parts again: a shrink inside each of them, then growth.
        for pages in [33, 20, 15, 11, 9, 12, 1, 10] {
            if let Err(e) = b.realloc(pages * PAGE - 7, MayMove) {
                limited(e, pages * PAGE);
            }
        }
        b.free();
        nothing_left();
    });
}

#[test]
fn zeroed_growth() {
    alone("zeroed_growth", || {
        set_cache_limit(0);
        for policy in [MayMove, Fixed] {
            let mut builder = PinnedAlloc::builder().realloc_policy(policy);
            if policy == Fixed {
                builder = builder.reserve(Reserve::Bytes(4 * MIB));
            }
            let a = builder.build().unwrap();
            let sizes = [10, 100, 3, 112, 50, 5000, 4097, 9000, 100, 70_000, 20_000, 70_001, 3 * MIB, 5, MIB];
            let first = layout(1, 8);
            let (mut p, mut l) = match a.allocate_zeroed(first) {
                Ok(b) => (b.cast::<u8>(), first),
                Err(e) => return limited(e, cost(1)),
            };
            for size in sizes {
                // SAFETY: a live block of this layout; the result takes its place.
                match unsafe { a.realloc_zeroed(p, l, size, policy) } {
                    Ok(b) => {
                        let old = l.size();
                        (p, l) = (b.cast(), layout(size, 8));
                        // SAFETY: the block has `size` bytes.
                        let all = unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), size) };
                        assert!(all.iter().skip(old).all(|&x| x == 0), "{old} to {size} under {policy:?}");
                        all.fill(0xff);
                    }
                    Err(e) => limited(e, cost(size)),
                }
            }
            // SAFETY: live, of this layout, not used again.
            unsafe { a.deallocate(p, l) };
            nothing_left();
        }
    });
}

/// `omp_realloc` of a block to another allocator (or the null handle: the one it was asked of).
#[track_caller]
fn to(p: *mut u8, size: usize, h: AllocatorHandle, policy: Option<ReallocPolicy>) -> Result<*mut u8, Error> {
    // SAFETY: the callers pass live blocks of their own and go on with the result.
    unsafe { routines::realloc_with(p, size, h, AllocatorHandle::NULL, policy) }
}

#[test]
fn between_pinned_and_unpinned_memory() {
    alone("between_pinned_and_unpinned_memory", || {
        set_cache_limit(0);
        let p = PinnedAlloc::new().unwrap();
        let q = PinnedAlloc::builder()
            .alignment(pinned_alloc::traits::Alignment::new(256).unwrap())
            .build()
            .unwrap();
        let u = AllocatorBuilder::new().build().unwrap();
        let sizes = [1, 100, 5000, 16_385, 70_000, 2 * MIB + 5];
        for (from, target) in [(&p, &u), (&u, &p), (&p, &q), (&q, &p), (&u, &u), (&u, &q)] {
            for old in sizes {
                for new in sizes {
                    let b = match Tracked::new(from, layout(old, 1)) {
                        Ok(b) => b,
                        Err(e) => {
                            limited(e, cost(old));
                            continue;
                        }
                    };
                    let (at, handle) = (b.ptr.as_ptr(), target.handle());
                    if from != target {
                        let e = to(at, new, handle, Some(Fixed)).unwrap_err();
                        assert!(matches!(e, Error::NoRoom { asked, .. } if asked == new), "{e}");
                        b.check();
                    }
                    match to(at, new, handle, None) {
                        Ok(x) => {
                            let info = target.info(NonNull::new(x).unwrap()).unwrap();
                            assert_eq!((info.asked_of, info.served_by), (handle, handle));
                            assert_eq!((info.requested, info.is_pinned()), (new, target.traits().pinned));
                            assert!(x.addr().is_multiple_of(target.traits().alignment.get().max(16)));
                            // SAFETY: the new block has these bytes, filled by `Tracked`; then it is given up.
                            unsafe {
                                common::tracked::check(x, old.min(new), 0x31);
                                routines::free(x, AllocatorHandle::NULL).unwrap();
                            }
                        }
                        Err(e) => {
                            limited(e, cost(new));
                            b.free();
                        }
                    }
                    agree();
                    trim(0);
                    assert_eq!(agree(), 0);
                }
            }
        }
        drop((p, q, u));
        nothing_left();
    });
}

const TIGHT: u64 = 64 << 10;

#[test]
fn a_failed_growth_leaves_everything() {
    alone_in("a_failed_growth_leaves_everything", Situation::limited(TIGHT), || {
        set_cache_limit(0);
        for (policy, reserve) in [(MayMove, 0), (Fixed, 32 * MIB), (MayMove, 32 * MIB)] {
            let mut builder = PinnedAlloc::builder().realloc_policy(policy).pool_size(20 * MIB);
            if reserve != 0 {
                builder = builder.reserve(Reserve::Bytes(reserve));
            }
            let a = builder.build().unwrap();
            for size in [100, PAGE, SMALL, 10 * PAGE] {
                let Some(mut b) = block(&a, size, 64) else { continue };
                for new in [TIGHT as usize + 1, MIB, 3 * MIB, 20 * MIB] {
                    // Tracked compares everything with what it was, the pool's charge too.
                    let e = b.realloc(new, policy).unwrap_err();
                    if policy == Fixed && reserve == 0 {
                        assert!(matches!(e, Error::NoRoom { .. }));
                    } else {
                        limited(e, new);
                    }
                    assert!(b.pinned());
                }
                let used = b.info().pool_used;
                let e = b.realloc(20 * MIB + 1, policy).unwrap_err();
                assert_eq!(e, Error::Pool { pool_size: 20 * MIB, used, asked: 20 * MIB + 1 - size });
                b.free();
                nothing_left();
            }
        }
    });
}

#[test]
fn absurd_sizes_are_answered() {
    alone("absurd_sizes_are_answered", || {
        set_cache_limit(0);
        for a in
            [PinnedAlloc::new().unwrap(), AllocatorBuilder::new().fallback(Fallback::Null).build().unwrap()]
        {
            for start in [100, SMALL] {
                let Ok(mut b) = Tracked::new(&a, layout(start, 8)) else {
                    assert!(room() < cost(start) as u64);
                    continue;
                };
                for size in [isize::MAX as usize - 7, isize::MAX as usize - PAGE, 1 << 50] {
                    for policy in [MayMove, Fixed] {
                        b.realloc(size, policy).unwrap_err();
                    }
                }
                for size in [usize::MAX, usize::MAX - PAGE, isize::MAX as usize + 1] {
                    let e = to(b.ptr.as_ptr(), size, a.handle(), Some(MayMove)).unwrap_err();
                    assert_eq!(e, Error::Size);
                }
                b.free();
            }
        }
        nothing_left();
    });
}

#[test]
fn the_fallback_is_asked_only_if_it_says_so() {
    alone_in("the_fallback_is_asked_only_if_it_says_so", Situation::limited(TIGHT), || {
        set_cache_limit(0);
        for start in [100, SMALL] {
            let none = PinnedAlloc::new().unwrap();
            if let Some(mut b) = block(&none, start, 8) {
                limited(b.realloc(MIB, MayMove).unwrap_err(), MIB);
                assert!(b.pinned());
                b.free();
            }
            nothing_left();

            let a = PinnedAlloc::builder()
                .fallback(Fallback::DefaultMem)
                .reserve(Reserve::Bytes(4 * MIB))
                .build()
                .unwrap();
            let mut b = Tracked::new(&a, layout(start, 8)).unwrap();
            let was_pinned = b.pinned();
            assert!(was_pinned || room() < cost(start) as u64);
            if was_pinned {
                // Fixed asks nobody else.
                limited(b.realloc(MIB, Fixed).unwrap_err(), MIB);
                assert_eq!(a.stats().fallbacks, 0);
            }
            b.realloc(MIB, MayMove).unwrap();
            let info = b.info();
            assert!(!info.is_pinned());
            assert_eq!((info.asked_of, info.served_by), (a.handle(), AllocatorHandle::DEFAULT_MEM));
            assert_eq!((a.stats().fallback_blocks, a.stats().fallback_requested), (1, MIB));
            assert_eq!(a.stats().fallbacks, if was_pinned { 1 } else { 2 });
            // A smaller block is asked of the allocator itself again.
            b.realloc(start, MayMove).unwrap();
            assert_eq!(b.pinned(), was_pinned);
            b.free();
            drop((a, none));
            nothing_left();
        }
    });
}

#[test]
fn page_steps_with_lock_ahead() {
    alone("page_steps_with_lock_ahead", || {
        set_cache_limit(0);
        const AHEAD: usize = 256 << 10;
        let steps = |ahead: usize| {
            let a = PinnedAlloc::builder()
                .realloc_policy(Fixed)
                .reserve(Reserve::Bytes(8 * MIB))
                .huge_pages(HugePages::Never)
                .lock_ahead(ahead)
                .build()
                .unwrap();
            let Some(mut b) = block(&a, SMALL, 4096) else { return (0, 0) };
            let calls = process_stats().lock_calls;
            let mut done = 0;
            for pages in 6..1024 {
                if let Err(e) = b.realloc(pages * PAGE, Fixed) {
                    limited(e, PAGE);
                    break;
                }
                done += 1;
                let s = a.stats();
                assert_eq!(agree(), s.locked as u64);
                assert_eq!(s.slack, s.locked - pages * PAGE, "slack is what is locked ahead");
                assert!(
                    s.slack <= ahead && s.slack <= pages * PAGE / 8,
                    "{} ahead of {pages} pages",
                    s.slack
                );
            }
            // A shrink gives the slack back.
            b.realloc(SMALL, Fixed).unwrap();
            assert_eq!((a.stats().slack, agree()), (0, SMALL as u64));
            let calls = process_stats().lock_calls - calls;
            b.free();
            nothing_left();
            (done, calls)
        };
        let (done, calls) = steps(0);
        assert_eq!(
            done,
            calls - u64::from(done < 1018 && done != 0),
            "one call a step, and the one that failed"
        );
        let (ahead_done, fewer) = steps(AHEAD);
        assert_eq!(ahead_done, done, "lock-ahead never costs a step");
        assert!(done < 1018 || fewer < done / 8, "{fewer} calls for {done} steps");
    });
}

#[test]
fn growth_keeps_the_fork_policy() {
    alone("growth_keeps_the_fork_policy", || {
        set_cache_limit(0);
        for (policy, flag) in [(ForkPolicy::DontFork, " dc "), (ForkPolicy::WipeOnFork, " wf ")] {
            for reserve in [0, MIB] {
                let mut builder = PinnedAlloc::builder().fork_policy(policy);
                if reserve != 0 {
                    builder = builder.reserve(Reserve::Bytes(reserve));
                }
                let a = builder.build().unwrap();
                let Some(mut b) = block(&a, 100, 8) else { continue };
                let has_it = |b: &Tracked| {
                    let flags = vm_flags(b.addr(), b.size());
                    assert!(!flags.is_empty() && flags.iter().all(|f| f.contains(flag)), "{flag}: {flags:?}");
                };
                has_it(&b);
                for size in [
                    5000,
                    SMALL,
                    SMALL + 1,
                    9 * PAGE,
                    12 * PAGE,
                    2 * PAGE,
                    MIB,
                    MIB + 1,
                    3 * MIB,
                    SMALL,
                    5 * MIB,
                ] {
                    let wall = Wall::at(b.addr() + b.info().capacity);
                    if let Err(e) = b.realloc(size, MayMove) {
                        limited(e, cost(size));
                    }
                    has_it(&b);
                    drop(wall);
                }
                b.free();
                nothing_left();
            }
        }
    });
}

#[test]
fn nothing_becomes_something_and_back() {
    alone("nothing_becomes_something_and_back", || {
        let a = pinned();
        let none = layout(0, 64);
        let empty = a.allocate(none).unwrap();
        assert_eq!((empty.len(), agree()), (0, 0));
        // SAFETY: a block of no bytes, then what has taken its place.
        match unsafe { a.realloc(empty.cast(), none, 100, MayMove) } {
            Ok(b) => {
                assert!(a.is_pinned(b.cast()) && b.len() == 100);
                // SAFETY: live, of this layout; nothing is left of it.
                let gone = unsafe { a.realloc(b.cast(), layout(100, 64), 0, MayMove) }.unwrap();
                assert_eq!((gone.len(), a.stats().live_blocks), (0, 0));
                // SAFETY: a block of no bytes.
                unsafe { a.deallocate(gone.cast(), none) };
            }
            Err(e) => limited(e, cost(100)),
        }
        nothing_left();
    });
}
