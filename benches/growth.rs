//! Growth of one pinned block: by doubling to 1 GiB, and page by page to 64 MiB.
//!
//! `cargo bench --bench growth -- --check` exits 1 if a floor is missed. Wants a machine with nothing else to do, the
//! right to lock 1 GiB, and 3 GiB of memory.

mod common;

use common::{GIB, MIB, PAGE, Table, finish, raw_mremap, raw_pin, raw_pin_with_room, raw_unpin, time};
use pinned_alloc::{PinnedAlloc, ReallocPolicy, Reserve, process_stats, set_cache_limit, trim};
use std::alloc::Layout;
use std::ptr::NonNull;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// The time to grow a block from a page to `to`; allocation and release are not in it.
fn grow(a: &PinnedAlloc, to: usize, policy: ReallocPolicy, step: impl Fn(usize) -> usize) -> f64 {
    let mut l = layout(PAGE);
    let first: NonNull<u8> = a.allocate(l).unwrap().cast();
    let mut p = first;
    let t = time(1, || {
        while l.size() < to {
            // SAFETY: a live block of this allocator and layout.
            p = unsafe { a.realloc(p, l, step(l.size()), policy) }.unwrap().cast();
            l = layout(step(l.size()));
        }
    });
    assert!(policy == ReallocPolicy::MayMove || p == first, "Fixed moved");
    assert!(a.is_pinned(p));
    // SAFETY: live, of this layout, not used again.
    unsafe { a.deallocate(p, l) };
    trim(0);
    t
}

fn once(size: usize, huge: bool) -> f64 {
    let mut p = 0;
    let t = time(1, || p = raw_pin(size, huge));
    raw_unpin(p, size);
    t
}

/// What `mremap` by hand begins with.
#[derive(Clone, Copy, PartialEq)]
enum Start {
    /// A page, wherever the kernel puts it.
    Page,
    /// A page with room behind it for all that is to come: steps that never move.
    PageWithRoom,
    /// A mapping of 2 MiB that is huge stays so; from a page on there is nothing to advise.
    Huge,
}

fn by_mremap(to: usize, step: impl Fn(usize) -> usize, start: Start) -> f64 {
    let (first, mut n) = match start {
        Start::Page => (raw_pin(PAGE, false), PAGE),
        Start::PageWithRoom => (raw_pin_with_room(to), PAGE),
        Start::Huge => (raw_pin(2 * MIB, true), 2 * MIB),
    };
    let mut p = first;
    let t = time(1, || {
        while n < to {
            p = raw_mremap(p, n, step(n));
            n = step(n);
            assert!(start != Start::PageWithRoom || p == first, "moved in spite of the room");
        }
    });
    raw_unpin(p, n);
    t
}

fn by_copy(to: usize) -> f64 {
    let mut n = PAGE;
    let mut p = raw_pin(n, false);
    let t = time(1, || {
        while n < to {
            let q = raw_pin(2 * n, 2 * n >= 2 * MIB);
            // SAFETY: both have `n` bytes and are apart.
            unsafe { std::ptr::copy_nonoverlapping(p as *const u8, q as *mut u8, n) };
            raw_unpin(p, n);
            (n, p) = (2 * n, q);
        }
    });
    raw_unpin(p, n);
    t
}

fn main() {
    set_cache_limit(0);
    let may = PinnedAlloc::new().unwrap();
    let fixed = |n| {
        PinnedAlloc::builder()
            .realloc_policy(ReallocPolicy::Fixed)
            .reserve(Reserve::Bytes(n))
            .build()
            .unwrap()
    };
    let (double, page) = (|n: usize| 2 * n, |n: usize| n + PAGE);
    let mut missed = 0;

    let mut t = Table::new("4 KiB to 1 GiB by doubling");
    let f = fixed(GIB);
    // The fastest way to pin 1 GiB once: huge pages.
    let best = || once(GIB, true);
    let may_double = || grow(&may, GIB, ReallocPolicy::MayMove, double);
    t.row("MayMove / 1 GiB pinned once, huge pages", Some(1.15), may_double, best);
    t.row(
        "Fixed in a reservation / the same",
        Some(1.15),
        || grow(&f, GIB, ReallocPolicy::Fixed, double),
        best,
    );
    t.row("4 KiB pages once / the same", None, || once(GIB, false), best);
    t.row("MayMove / mremap by hand from 2 MiB on, huge", None, may_double, || {
        by_mremap(GIB, double, Start::Huge)
    });
    t.row("MayMove / alloc, copy, free", None, may_double, || by_copy(GIB));
    missed += t.end();

    let mut t = Table::new("4 KiB to 64 MiB, page by page");
    let (n, f) = (64 * MIB, fixed(64 * MIB));
    let may_page = || grow(&may, n, ReallocPolicy::MayMove, page);
    let fixed_page = || grow(&f, n, ReallocPolicy::Fixed, page);
    let (placed, room) = (|| by_mremap(n, page, Start::Page), || by_mremap(n, page, Start::PageWithRoom));
    t.row("MayMove / mremap by hand, placed by the kernel", Some(1.0), may_page, placed);
    t.row("MayMove / mremap by hand with room behind", Some(1.0), may_page, room);
    t.row("Fixed in a reservation / mremap by hand, placed", Some(1.0), fixed_page, placed);
    t.row("Fixed in a reservation / with room behind", Some(1.0), fixed_page, room);
    let ahead = PinnedAlloc::builder().lock_ahead(4 * MIB).build().unwrap();
    let ahead_fixed = PinnedAlloc::builder().lock_ahead(4 * MIB).reserve(Reserve::Bytes(n)).build().unwrap();
    let pin = || once(n, false);
    t.row(
        "MayMove, locking ahead / 64 MiB pinned once",
        Some(1.3),
        || grow(&ahead, n, ReallocPolicy::MayMove, page),
        pin,
    );
    t.row(
        "Fixed, locking ahead / 64 MiB pinned once",
        Some(1.3),
        || grow(&ahead_fixed, n, ReallocPolicy::Fixed, page),
        pin,
    );
    missed += t.end();
    println!("\n{} moves in all, none under Fixed", process_stats().moves);
    finish(missed)
}
