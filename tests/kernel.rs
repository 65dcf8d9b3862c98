//! The kernel agrees: `VmLck`, smaps and `mincore` match what the crate reports, for every size from 1 byte to 256 MiB.
//!
//! Where the lock limit leaves no room for a block, the request must fail with an error that names the limit.

mod common;

use common::{alone, room};
use pinned_alloc::os::limits::{Thp, thp_mode};
use pinned_alloc::os::procfs;
use pinned_alloc::{HugePages, PinnedAlloc, process_stats, set_cache_limit, trim};
use std::alloc::Layout;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// The pages of a block as the kernel sees them: all resident, all in locked mappings.
fn is_locked(p: NonNull<u8>, size: usize) {
    let from = p.as_ptr() as usize / PAGE * PAGE;
    let to = (p.as_ptr() as usize + size).next_multiple_of(PAGE);
    let facts = procfs::smaps_range(from, to - from).unwrap();
    assert_eq!(facts.lo_flag_bytes, (to - from) as u64, "{size} bytes lie in locked mappings");
    assert_eq!(
        procfs::resident_pages(from, to - from),
        Ok(((to - from) / PAGE) as u64),
        "{size} bytes are resident"
    );
    if facts.exact {
        assert_eq!(facts.locked, (to - from) as u64);
    }
}

fn sizes() -> Vec<usize> {
    let mut s: Vec<usize> = (0..=28).flat_map(|i| [(1 << i) - 1, 1 << i, (1 << i) + 1]).collect();
    s.extend([
        3,
        100,
        1000,
        5000,
        12_288,
        12_289,
        20_000,
        3 * PAGE + 17,
        3 * MIB + PAGE,
        5 * MIB + 1,
        100 * MIB + 7,
    ]);
    s.retain(|&n| n != 0 && n <= 256 * MIB);
    s.sort_unstable();
    s.dedup();
    s
}

/// Bytes that the whole process may still lock, for a block of its own pages.
fn fits(bytes: usize) -> bool {
    room() >= bytes as u64
}

#[test]
fn every_size_is_locked_and_counted() {
    alone("every_size_is_locked_and_counted", || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        let base = procfs::vm_locked().unwrap();
        for size in sizes() {
            for (align, zero) in [(1, false), (64, true), (4096, false), (2 * MIB, true)] {
                if size > 32 * MIB && align != 4096 && size % 2 == 0 {
                    continue; // the largest ones once a size: it is their memory that takes the time
                }
                let l = layout(size, align);
                let got = if zero { a.allocate_zeroed(l) } else { a.allocate(l) };
                let p = match got {
                    Ok(b) => b.cast::<u8>(),
                    Err(e) => {
                        assert!(e.is_lock_limit(), "{size}/{align}: {e}");
                        assert!(!fits(size.next_multiple_of(PAGE)), "{size}/{align}: {e}, but there is room");
                        assert_eq!(procfs::vm_locked().unwrap() - base, process_stats().locked as u64);
                        continue;
                    }
                };
                assert!((p.as_ptr() as usize).is_multiple_of(align.max(16)));
                assert!(a.is_pinned(p));
                is_locked(p, size);
                let (locked, stats) = (procfs::vm_locked().unwrap() - base, process_stats());
                assert_eq!(locked, stats.locked as u64, "{size}/{align}");
                assert_eq!(a.stats().locked, stats.locked);
                assert_eq!((a.stats().live_blocks, a.stats().requested), (1, size));
                if size >= PAGE && align == 4096 {
                    // Exact to the page, whatever else the class rounds to.
                    let most = if size > 16 << 10 {
                        size.next_multiple_of(PAGE)
                    } else {
                        (size + size / 8).next_multiple_of(PAGE)
                    };
                    assert!(locked as usize <= most, "{size} bytes lock {locked}");
                }
                if zero {
                    let all = size.min(64 << 10);
                    // SAFETY: within the block.
                    assert!((0..all).all(|i| unsafe { p.as_ptr().add(i).read() } == 0));
                }
                // SAFETY: within the block; live, of this layout, not used again.
                unsafe {
                    p.as_ptr().write_bytes(0xa5, size.min(MIB));
                    p.as_ptr().add(size - 1).write(1);
                    a.deallocate(p, l);
                }
                trim(0);
                assert_eq!(procfs::vm_locked().unwrap(), base, "{size}/{align}");
                assert_eq!((process_stats().locked, process_stats().mapped), (0, 0));
            }
        }
    });
}

#[test]
fn a_page_is_a_page() {
    alone("a_page_is_a_page", || {
        let a = PinnedAlloc::new().unwrap();
        let base = procfs::vm_locked().unwrap();
        match a.allocate(layout(4096, 4096)) {
            Ok(b) => {
                assert_eq!(procfs::vm_locked().unwrap() - base, 4096);
                // SAFETY: live, of this layout, not used again.
                unsafe { a.deallocate(b.cast(), layout(4096, 4096)) };
            }
            Err(e) => assert!(e.is_lock_limit() && !fits(4096)),
        }
    });
}

#[test]
fn a_thousand_small_blocks_share_pages() {
    alone("a_thousand_small_blocks_share_pages", || {
        let a = PinnedAlloc::new().unwrap();
        let base = procfs::vm_locked().unwrap();
        let l = layout(64, 8);
        let mut blocks = Vec::new();
        for _ in 0..1000 {
            match a.allocate(l) {
                Ok(b) => blocks.push(b.cast::<u8>()),
                Err(e) => {
                    assert!(e.is_lock_limit() && !fits(PAGE), "{e}");
                    break;
                }
            }
        }
        let pages = (procfs::vm_locked().unwrap() - base) / PAGE as u64;
        println!("{} blocks of 64 bytes lock {pages} pages", blocks.len());
        assert!(blocks.len() == 1000 || !fits(PAGE));
        assert!(pages <= 32 && pages as usize * PAGE >= blocks.len() * 64);
        let mut at: Vec<_> = blocks.iter().map(|p| p.as_ptr() as usize).collect();
        at.sort_unstable();
        assert!(at.windows(2).all(|w| w[1] - w[0] >= 64), "no two overlap");
        for b in blocks {
            // SAFETY: live, of this layout, not used again.
            unsafe { a.deallocate(b, l) };
        }
        trim(0);
        assert_eq!(procfs::vm_locked().unwrap(), base);
    });
}

#[test]
fn large_blocks_are_huge_where_the_kernel_allows_it() {
    alone("large_blocks_are_huge_where_the_kernel_allows_it", || {
        let l = layout(8 * MIB, 1);
        for (policy, huge) in [(HugePages::Auto, thp_mode() != Thp::Never), (HugePages::Never, false)] {
            let a = PinnedAlloc::builder().huge_pages(policy).build().unwrap();
            match a.allocate(l) {
                Ok(b) => {
                    let at = b.cast::<u8>().as_ptr() as usize;
                    let got = procfs::smaps_range(at, 8 * MIB).unwrap().huge_bytes;
                    if huge {
                        assert!(at.is_multiple_of(2 * MIB) && got > 0, "{got} bytes are huge");
                    } else {
                        assert_eq!(got, 0);
                    }
                    // SAFETY: live, of this layout, not used again.
                    unsafe { a.deallocate(b.cast(), l) };
                }
                Err(e) => assert!(e.is_lock_limit() && !fits(8 * MIB)),
            }
            trim(0);
        }
    });
}

#[test]
fn population_by_several_threads_locks_the_same() {
    alone("population_by_several_threads_locks_the_same", || {
        let size = 80 * MIB + PAGE;
        let a = PinnedAlloc::builder().populate_threads(4).build().unwrap();
        match a.allocate(layout(size, 1)) {
            Ok(b) => {
                is_locked(b.cast(), size);
                assert_eq!(procfs::vm_locked().unwrap(), process_stats().locked as u64);
                // SAFETY: live, of this layout, not used again.
                unsafe { a.deallocate(b.cast(), layout(size, 1)) };
            }
            Err(e) => assert!(e.is_lock_limit() && !fits(size)),
        }
        trim(0);
        assert_eq!(procfs::vm_locked(), Some(0));
    });
}

#[test]
fn blocks_of_their_own_pages_lock_exactly_those() {
    alone("blocks_of_their_own_pages_lock_exactly_those", || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        for pages in [5, 6, 7, 13, 16, 33, 511, 512, 513, 1025] {
            for size in [pages * PAGE - 1, pages * PAGE, (pages - 1) * PAGE + 1] {
                for align in [1, 16, 256, 4096, 64 << 10, 2 * MIB] {
                    match a.allocate(layout(size, align)) {
                        Ok(b) => {
                            let p = b.cast::<u8>();
                            assert!((p.as_ptr() as usize).is_multiple_of(align));
                            assert_eq!(procfs::vm_locked(), Some((pages * PAGE) as u64), "{size}/{align}");
                            assert_eq!(process_stats().locked, pages * PAGE);
                            assert_eq!(process_stats().mapped, pages * PAGE);
                            is_locked(p, size);
                            // SAFETY: live, of this layout, not used again.
                            unsafe { a.deallocate(p, layout(size, align)) };
                        }
                        Err(e) => assert!(e.is_lock_limit() && !fits(pages * PAGE), "{size}/{align}: {e}"),
                    }
                    assert_eq!((procfs::vm_locked(), process_stats().mapped), (Some(0), 0));
                }
            }
        }
    });
}

#[test]
fn blocks_of_all_kinds_at_once_are_apart_and_add_up() {
    alone("blocks_of_all_kinds_at_once_are_apart_and_add_up", || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        let mut all = Vec::new();
        let (mut x, mut requested, mut refused) = (1usize, 0, 0);
        for i in 0..3000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size = 1 + (x >> 33) % [64, 500, 5000, 40_000][i % 4];
            let align = [1, 8, 64, 512, 4096, 64 << 10][(x >> 20) % 6];
            match a.allocate(layout(size, align)) {
                Ok(b) => {
                    all.push((b.cast::<u8>(), layout(size, align)));
                    requested += size;
                }
                Err(e) => {
                    assert!(e.is_lock_limit(), "{e}");
                    refused += 1;
                }
            }
        }
        assert!(refused == 0 || !fits(16 * MIB));
        all.sort_by_key(|b| b.0);
        for w in all.windows(2) {
            let end = w[0].0.as_ptr() as usize + a.usable_size(w[0].0);
            assert!(end <= w[1].0.as_ptr() as usize, "usable bytes of one block end before the next begins");
        }
        let s = a.stats();
        assert_eq!((s.live_blocks, s.requested, s.requested_peak), (all.len(), requested, requested));
        let locked = procfs::vm_locked().unwrap() as usize;
        assert_eq!((process_stats().locked, s.locked), (locked, locked));
        assert!(process_stats().locked_peak >= locked && locked >= requested);
        for &(p, l) in &all {
            assert!(a.is_pinned(p) && a.usable_size(p) >= l.size());
            assert!((p.as_ptr() as usize).is_multiple_of(l.align()));
        }
        for (p, l) in all {
            // SAFETY: live, of this layout, not used again.
            unsafe { a.deallocate(p, l) };
        }
        let (s, peak) = (a.stats(), process_stats().locked_peak);
        assert_eq!((s.live_blocks, s.requested, s.requested_peak), (0, 0, requested), "the peak stays");
        trim(0);
        assert_eq!((procfs::vm_locked(), process_stats().mapped), (Some(0), 0));
        assert_eq!(process_stats().locked_peak, peak);
    });
}
