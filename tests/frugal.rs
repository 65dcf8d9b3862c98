//! How much of a lock limit reaches the user.

mod common;

use common::{Situation, alone, alone_in, room};
use pinned_alloc::{Error, PinnedAlloc, process_stats, trim};
use std::alloc::Layout;
use std::ptr::NonNull;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Sizes that differ and repeat.
fn sizes(from: usize, to: usize) -> impl Iterator<Item = usize> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    std::iter::repeat_with(move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        from + (x >> 20) as usize % (to - from + 1)
    })
}

/// Allocates until it fails, or `most` blocks; gives blocks, the bytes asked for, and the error.
#[allow(clippy::type_complexity)]
fn fill(
    a: &PinnedAlloc,
    sizes: impl Iterator<Item = usize>,
    most: usize,
) -> (Vec<(NonNull<u8>, usize)>, usize, Option<Error>) {
    let (mut blocks, mut live) = (Vec::new(), 0);
    for size in sizes.take(most) {
        match a.allocate(layout(size)) {
            Ok(b) => {
                blocks.push((b.cast(), size));
                live += size;
            }
            Err(e) => return (blocks, live, Some(e)),
        }
    }
    (blocks, live, None)
}

fn clear(a: &PinnedAlloc, blocks: Vec<(NonNull<u8>, usize)>) {
    for (p, size) in blocks {
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { a.deallocate(p, layout(size)) };
    }
}

#[test]
fn the_default_limit_is_used_to_95_percent() {
    alone_in("the_default_limit_is_used_to_95_percent", Situation::limited(8 << 20), || {
        let a = PinnedAlloc::new().unwrap();
        let room = room() as usize;
        for (from, to) in [(64, 64), (256, 256), (16, 1024), (4096, 4096)] {
            let (blocks, live, e) = fill(&a, sizes(from, to), usize::MAX);
            assert!(e.is_some_and(|e| e.is_lock_limit()), "{e:?}");
            assert!(live <= room);
            // Of a limit of a few pages, classes that differ can use a part only.
            let floor = if room >= 8 << 20 { room / 100 * 95 } else { 0 };
            assert!(live >= floor, "{live} of {room} bytes in blocks of {from} to {to}");
            assert!(blocks.iter().all(|b| a.is_pinned(b.0)));
            clear(&a, blocks);
            // Each from the start: slabs that are open already are not divided among classes as well as new ones.
            trim(0);
        }
        drop(a);
        trim(0);
        assert_eq!(process_stats().locked, 0);
    });
}

#[test]
fn what_is_locked_is_little_more_than_what_is_asked_for() {
    alone("what_is_locked_is_little_more_than_what_is_asked_for", || {
        let a = PinnedAlloc::new().unwrap();
        match a.allocate(layout(16)) {
            Ok(b) => {
                assert_eq!(process_stats().locked, 4096, "a first small block");
                clear(&a, vec![(b.cast(), 16)]);
                trim(0);
            }
            Err(e) => assert!(e.is_lock_limit(), "{e}"),
        }
        for (n, from, to, percent) in [(10_000, 16, 1024, 115), (1000, 4 << 10, 64 << 10, 110)] {
            let (blocks, live, e) = fill(&a, sizes(from, to), n);
            if e.is_none() {
                let locked = process_stats().locked;
                assert!(locked * 100 <= live * percent, "{locked} bytes locked for {live}");
            } else {
                assert!(e.is_some_and(|e| e.is_lock_limit()), "{e:?}");
            }
            clear(&a, blocks);
            trim(0);
            assert_eq!(process_stats().locked, 0);
        }
    });
}
