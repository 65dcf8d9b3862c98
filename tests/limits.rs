//! Limits: what a shortage says, what the fallbacks make of it, and that nothing of a failed call stays behind.
//!
//! Each test runs in processes without capabilities, under lock limits of its own; where the test process has a
//! tighter limit, under that one. The bodies ask what the limit is and never assume it.

mod common;

use common::tracked::{MIB, PAGE, Tracked, agree, layout};
use common::{Situation, alone_in, is_child, room, spare_address_space, spawn};
use pinned_alloc::os::Call;
use pinned_alloc::os::limits::{Limits, map_count, max_map_count};
use pinned_alloc::traits::Fallback;
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Cause, Error, ForkPolicy, PagesError, PinnedAlloc, PinnedGlobal,
    ReallocPolicy, Reserve, process_stats, set_cache_limit, trim,
};
use std::alloc::GlobalAlloc;
use std::os::unix::process::ExitStatusExt;
use std::sync::Barrier;

/// In bytes: the default since Linux 5.16, the default before, a page, none.
const LIMITS: [u64; 4] = [8 << 20, 64 << 10, 4 << 10, 0];

/// Runs `body` once under each lock limit, without capabilities.
#[track_caller]
fn under_each_limit(name: &str, body: fn()) {
    if is_child(name) {
        return body();
    }
    for n in LIMITS {
        alone_in(name, Situation::limited(n), || unreachable!());
    }
}

/// The soft limit, in whole pages.
fn limit() -> usize {
    let l = Limits::read();
    assert!(!l.has_ipc_lock, "the child has no capability");
    l.memlock_soft.expect("the child has a limit") as usize / PAGE * PAGE
}

/// Sets the soft limit; the hard one stays.
fn set_soft(bytes: usize) {
    let hard = Limits::read().memlock_hard.expect("the child has a limit");
    let l = libc::rlimit { rlim_cur: bytes as u64, rlim_max: hard };
    // SAFETY: a plain call on a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &l) }, 0);
}

#[track_caller]
fn pages(e: Error) -> PagesError {
    match e {
        Error::Pages(p) => p,
        e => panic!("not about pages: {e}"),
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
fn a_shortage_says_cause_and_numbers_and_cure() {
    under_each_limit("a_shortage_says_cause_and_numbers_and_cure", || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        let limit = limit();
        // A second block of the same kind, so that `locked` is a figure too.
        let held = Tracked::new(&a, layout(PAGE, PAGE)).ok();
        assert_eq!(held.is_some(), limit >= PAGE);
        let locked = agree();
        let mut maps = None;
        for size in [limit + PAGE, limit + 1, 2 * limit + 5 * PAGE, 64 * MIB] {
            for zero in [false, true] {
                let l = layout(size, 64);
                let e = if zero { a.allocate_zeroed(l) } else { a.allocate(l) }.unwrap_err();
                assert!(e.is_lock_limit(), "{e}");
                let p = pages(e);
                if limit == 0 {
                    assert_eq!(
                        (p.cause, p.os.call, p.os.errno),
                        (Cause::NotPermitted, Call::Mlock, libc::EPERM)
                    );
                    assert!(
                        p.to_string().contains("RLIMIT_MEMLOCK is 0 and the process has no CAP_IPC_LOCK"),
                        "{p}"
                    );
                } else {
                    assert_eq!(p.cause, Cause::LockLimit { limit: limit as u64, locked });
                    assert_eq!((p.os.call, e.raw_os_error()), (Call::Mlock, Some(libc::ENOMEM)));
                    let says = format!("RLIMIT_MEMLOCK is {}", pinned_alloc_bytes(limit));
                    assert!(p.to_string().contains(&says), "{p}: {says}");
                }
                // Small requests open a piece of a slab, larger ones lock what they need and no more.
                assert!(
                    p.asked >= size.min(PAGE) && p.asked <= (size + size / 8).next_multiple_of(PAGE) + PAGE,
                    "{p:?}"
                );
                let cure = e.cure().unwrap().to_string();
                let kib = (p.asked + locked as usize).div_ceil(1024).max(64);
                for line in [
                    format!("shell:     ulimit -l {kib} "),
                    format!("systemd:   LimitMEMLOCK={kib}K "),
                    format!("container: docker run --ulimit memlock={} ", kib * 1024),
                ] {
                    assert!(cure.contains(&line), "{cure}\n{line}");
                }
                // Nothing of it stays: no lock, no mapping.
                assert_eq!(agree(), locked);
                let now = map_count().unwrap();
                assert!(now <= *maps.get_or_insert(now), "mappings stay behind: {maps:?} to {now}");
            }
        }
        assert_eq!(a.stats().failures, 8 + u64::from(held.is_none()));
        if let Some(b) = held {
            b.free();
        }
        nothing_left();
    });
}

/// A size as the messages print it.
fn pinned_alloc_bytes(n: usize) -> String {
    match n {
        n if n >= MIB && n.is_multiple_of(MIB) => format!("{} MiB", n / MIB),
        n => format!("{} KiB", n / 1024),
    }
}

#[test]
fn the_whole_limit_can_be_used() {
    under_each_limit("the_whole_limit_can_be_used", || {
        set_cache_limit(0);
        // No multiple of anything that slabs are opened by.
        set_soft(limit() / PAGE * 2 / 3 * PAGE);
        for size in [16, 1000, 4096, 5000, 16_384, 5 * PAGE, 100 * PAGE] {
            let a = PinnedAlloc::new().unwrap();
            let mut all = Vec::new();
            let e = loop {
                match a.allocate(layout(size, 16)) {
                    Ok(b) => all.push(b.cast::<u8>()),
                    Err(e) => break e,
                }
            };
            assert!(e.is_lock_limit(), "{e}");
            // A block of the class needs at most so many pages.
            let need = (size + size / 8).div_ceil(PAGE) * PAGE + if size % PAGE == 0 { 0 } else { PAGE };
            assert!(room() < need as u64, "{size}: refused with {} bytes of room", room());
            assert!(agree() as usize <= limit());
            for p in all {
                // SAFETY: live, of this layout, not used again.
                unsafe { a.deallocate(p, layout(size, 16)) };
            }
            nothing_left();
        }
    });
}

#[test]
fn default_mem_serves_what_cannot_be_pinned() {
    under_each_limit("default_mem_serves_what_cannot_be_pinned", || {
        set_cache_limit(0);
        let a = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap();
        let limit = limit();
        for size in [1, PAGE, limit + PAGE, 3 * MIB, 16 * MIB] {
            let before = a.stats();
            let b = Tracked::new(&a, layout(size, 64)).expect("the default memory serves");
            let (info, after) = (b.info(), a.stats());
            assert_eq!(info.asked_of, a.handle());
            if size.next_multiple_of(PAGE) > limit {
                assert!(!info.is_pinned());
                assert_eq!(info.served_by, AllocatorHandle::DEFAULT_MEM);
                assert_eq!(after.fallbacks, before.fallbacks + 1);
                assert_eq!((after.fallback_blocks, after.fallback_requested), (1, size));
            } else {
                assert!(info.is_pinned());
                assert_eq!((info.served_by, after.fallbacks), (a.handle(), before.fallbacks));
            }
            b.free();
        }
        assert_eq!(a.stats().failures, 0);
        drop(a);
        nothing_left();
    });
}

#[test]
fn an_unpinned_pool_serves_what_cannot_be_pinned() {
    under_each_limit("an_unpinned_pool_serves_what_cannot_be_pinned", || {
        set_cache_limit(0);
        let size = limit() + PAGE;
        let pool = AllocatorBuilder::new().pool_size(2 * size).fallback(Fallback::Null).build().unwrap();
        let a = PinnedAlloc::builder().fallback_to(&pool).build().unwrap();
        let l = layout(size, 64);
        let (b, c) = (Tracked::new(&a, l).unwrap(), Tracked::new(&a, l).unwrap());
        for x in [&b, &c] {
            assert!(!x.pinned());
            assert_eq!((x.info().asked_of, x.info().served_by), (a.handle(), pool.handle()));
            assert_eq!(x.info().pool_used, 2 * size);
        }
        // Exactly full: the chain ends with the pool's own answer.
        let e = a.allocate(l).unwrap_err();
        assert_eq!(e, Error::Pool { pool_size: 2 * size, used: 2 * size, asked: size });
        assert_eq!((a.stats().fallbacks, a.stats().failures), (2, 1));
        b.free();
        Tracked::new(&a, l).unwrap().free();
        c.free();
        drop((a, pool));
        nothing_left();
    });
}

#[test]
fn abort_ends_the_process_with_a_message() {
    const NAME: &str = "abort_ends_the_process_with_a_message";
    const SIZE: usize = 16 * MIB + 5;
    if is_child(NAME) {
        let a = PinnedAlloc::builder().fallback(Fallback::Abort).build().unwrap();
        let served = a.allocate(layout(SIZE, 8));
        panic!("{SIZE} bytes were to be impossible: {served:?}");
    }
    for n in LIMITS {
        let out = spawn(NAME, Situation::limited(n));
        let says = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{} {says}", out.status);
        let line = says.lines().find(|l| l.starts_with("pinned-alloc: ")).expect("a line of the crate's own");
        for part in [&format!("cannot allocate {SIZE} bytes"), "abort_fb", "RLIMIT_MEMLOCK is "] {
            assert!(line.contains(part), "{line}");
        }
        assert!(!says.contains("panicked"), "{says}");
    }
}

#[test]
fn a_raised_limit_counts_at_once() {
    under_each_limit("a_raised_limit_counts_at_once", || {
        set_cache_limit(0);
        let top = limit();
        set_soft(top / 2);
        let size = top / 2 + PAGE;
        let a = PinnedAlloc::new().unwrap();
        let soft = PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap();
        let l = layout(size, 64);
        assert!(Tracked::new(&a, l).unwrap_err_is_limit());
        let b = Tracked::new(&soft, l).unwrap();
        assert!(!b.pinned());
        b.free();
        set_soft(top);
        let fits = size <= top;
        match Tracked::new(&a, l) {
            Ok(b) => {
                assert!(fits && b.pinned());
                b.free();
            }
            Err(e) => assert!(!fits && e.is_lock_limit(), "{e}"),
        }
        // With a fallback at hand an attempt that failed is not repeated each time; but it is, before long.
        let tries = (0..257).take_while(|_| {
            let b = Tracked::new(&soft, l).unwrap();
            let pinned = b.pinned();
            b.free();
            !pinned
        });
        assert_eq!(tries.count() < 257, fits);
        drop((a, soft));
        nothing_left();
    });
}

trait IsLimit {
    fn unwrap_err_is_limit(self) -> bool;
}

impl IsLimit for Result<Tracked, Error> {
    fn unwrap_err_is_limit(self) -> bool {
        self.is_err_and(|e| e.is_lock_limit())
    }
}

#[test]
fn a_limit_below_what_is_locked() {
    under_each_limit("a_limit_below_what_is_locked", || {
        set_cache_limit(0);
        let a = PinnedAlloc::builder().reserve(Reserve::Bytes(MIB)).build().unwrap();
        let size = limit() / 2 / PAGE * PAGE;
        if size < 2 * PAGE {
            // A page or none: nothing to stand below.
            assert_eq!(a.allocate(layout(2 * PAGE, 8)).is_err(), limit() < 2 * PAGE);
            return nothing_left();
        }
        let mut b = Tracked::new(&a, layout(size, 64)).unwrap();
        set_soft(PAGE);
        let cause = Cause::LockLimit { limit: PAGE as u64, locked: size as u64 };
        assert_eq!(pages(a.allocate(layout(1, 1)).unwrap_err()).cause, cause);
        for policy in [ReallocPolicy::MayMove, ReallocPolicy::Fixed] {
            assert_eq!(pages(b.realloc(size + 1, policy).unwrap_err()).cause, cause);
        }
        assert!(b.pinned());
        b.realloc(size / 2, ReallocPolicy::Fixed).unwrap();
        b.realloc(1, ReallocPolicy::MayMove).unwrap();
        assert_eq!(agree(), PAGE as u64);
        b.free();
        Tracked::new(&a, layout(PAGE, 8)).unwrap().free();
        nothing_left();
    });
}

#[test]
fn idle_memory_of_others_serves_before_a_request_fails() {
    under_each_limit("idle_memory_of_others_serves_before_a_request_fails", || {
        let limit = limit();
        let a = PinnedAlloc::new().unwrap();
        // Another kind of memory, so that no span of one fits the other.
        let b = PinnedAlloc::builder().fork_policy(ForkPolicy::DontFork).build().unwrap();
        let fill = |x: &PinnedAlloc| {
            let mut all = Vec::new();
            for size in [5 * PAGE, PAGE, 64, 2000] {
                while let Ok(t) = Tracked::new(x, layout(size, 16)) {
                    all.push(t);
                    if all.len() > 100 {
                        break;
                    }
                }
            }
            all.into_iter().for_each(Tracked::free);
        };
        fill(&a);
        let idle = agree();
        assert!(idle != 0 || limit == 0, "freed blocks wait for the next one");
        // All of the limit, in one block and in small ones, by the other one, and back.
        for x in [&b, &a] {
            for size in [limit, limit / 2, PAGE, 100] {
                if size == 0 || limit == 0 {
                    continue;
                }
                let t = Tracked::new(x, layout(size, 16));
                t.unwrap_or_else(|e| panic!("{size} of {limit} bytes: {e}, {:?}", process_stats())).free();
                fill(x);
            }
        }
        drop((a, b));
        nothing_left();
    });
}

#[test]
fn threads_at_the_limit() {
    under_each_limit("threads_at_the_limit", || {
        set_cache_limit(0);
        let a = PinnedAlloc::new().unwrap();
        let start = Barrier::new(4);
        std::thread::scope(|s| {
            for t in 0..4usize {
                let (a, start) = (a.clone(), &start);
                s.spawn(move || {
                    start.wait();
                    let mut held = Vec::new();
                    for i in 0..2000 {
                        let l = layout([64, 1000, PAGE, 3 * PAGE, 5 * PAGE, 2 * MIB][(i * 7 + t) % 6], 16);
                        match a.allocate(l) {
                            Ok(b) => {
                                // SAFETY: the block's first and last byte.
                                unsafe {
                                    b.cast::<u8>().write(t as u8);
                                    b.cast::<u8>().add(l.size() - 1).write(t as u8);
                                }
                                held.push((b.cast::<u8>(), l));
                            }
                            Err(e) => assert!(e.is_lock_limit(), "{e}"),
                        }
                        if held.len() > 8 || i % 5 == 0 {
                            for (p, l) in held.drain(held.len() / 2..) {
                                // SAFETY: live, of this layout, not used again.
                                unsafe {
                                    assert_eq!((p.read(), p.add(l.size() - 1).read()), (t as u8, t as u8));
                                    a.deallocate(p, l);
                                }
                            }
                        }
                    }
                    for (p, l) in held {
                        // SAFETY: as above.
                        unsafe { a.deallocate(p, l) };
                    }
                });
            }
        });
        assert_eq!(a.stats().live_blocks, 0);
        nothing_left();
    });
}

/// Takes mappings until the kernel gives no more, and gives them all back when dropped.
struct Eater {
    at: *mut libc::c_void,
    len: usize,
    last: *mut libc::c_void,
}

impl Eater {
    fn new() -> Self {
        let len = 2 * (max_map_count().unwrap() as usize + 10) * PAGE;
        let map = |len, prot| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping.
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) }
        };
        let at = map(len, libc::PROT_NONE);
        assert_ne!(at, libc::MAP_FAILED);
        let every_second = (PAGE..len).step_by(2 * PAGE);
        // SAFETY: pages of the mapping above, which nobody uses.
        let n =
            every_second.take_while(|&i| unsafe { libc::mprotect(at.add(i), PAGE, libc::PROT_READ) } == 0);
        assert!(n.count() < len / PAGE / 2, "the limit was reached");
        // No mapping can be split any more, but one more can be made.
        let last = map(PAGE, libc::PROT_READ | libc::PROT_EXEC);
        Self { at, len, last }
    }
}

impl Drop for Eater {
    fn drop(&mut self) {
        // SAFETY: this object's own mappings.
        unsafe {
            libc::munmap(self.at, self.len);
            if self.last != libc::MAP_FAILED {
                libc::munmap(self.last, PAGE);
            }
        }
    }
}

#[test]
fn too_many_mappings_are_recognised() {
    alone_in("too_many_mappings_are_recognised", Situation::limited(LIMITS[0]), || {
        set_cache_limit(0);
        let max = max_map_count().unwrap();
        let a = PinnedAlloc::builder().reserve(Reserve::Times(4)).build().unwrap();
        let u = AllocatorBuilder::new().fallback(Fallback::Null).build().unwrap();
        let mut held = Vec::new();
        for (x, size) in [(&a, 64), (&a, 5 * PAGE), (&u, 5 * PAGE)] {
            held.extend(Tracked::new(x, layout(size, 16)).ok());
        }
        assert!(held.len() == 3 || limit() < 4 * 5 * PAGE);
        let eater = Eater::new();
        let locked = agree();
        for x in [&a, &u] {
            for size in [200, 6000, 5 * PAGE, 3 * MIB] {
                let e = x.allocate(layout(size, 16)).unwrap_err();
                assert_eq!(pages(e).cause, Cause::MapCount { max }, "{size}: {e}");
                assert!(e.to_string().contains(&format!("vm.max_map_count ({max})")), "{e}");
                assert!(e.cure().unwrap().to_string().contains("sysctl -w vm.max_map_count="));
                assert!(!e.is_lock_limit());
            }
        }
        assert_eq!(agree(), locked);
        // Blocks that are there stay whole, grow or say why not, shrink, and can be freed.
        for b in &mut held {
            for size in [b.size() + PAGE, b.size() * 9, 100] {
                if let Err(e) = b.realloc(size, ReallocPolicy::MayMove) {
                    let cause = pages(e).cause;
                    assert!(cause == Cause::MapCount { max } || e.is_lock_limit(), "{size}: {e}");
                }
            }
        }
        held.into_iter().for_each(Tracked::free);
        drop(eater);
        drop((a, u));
        nothing_left();
    });
}

#[test]
fn address_space_is_not_the_lock_limit() {
    const NAME: &str = "address_space_is_not_the_lock_limit";
    let body = || {
        // From here on: a sanitizer's runtime has taken terabytes of addresses by now.
        spare_address_space(4 << 30);
        for a in
            [PinnedAlloc::new().unwrap(), AllocatorBuilder::new().fallback(Fallback::Null).build().unwrap()]
        {
            let e = a.allocate(layout(8 << 30, 8)).unwrap_err();
            let p = pages(e);
            assert!(matches!(p.cause, Cause::Memory { .. }), "{e}");
            assert_eq!((p.os.call, p.os.errno, p.asked), (Call::Mmap, libc::ENOMEM, 8 << 30));
            assert!(e.to_string().starts_with("cannot get 8 GiB: out of memory"), "{e}");
        }
        nothing_left();
    };
    if is_child(NAME) {
        return body();
    }
    for memlock in [None, Some(8 << 20), Some(0)] {
        let s = Situation { unprivileged: memlock.is_some(), memlock };
        alone_in(NAME, s, || unreachable!());
    }
}

static PREFER: PinnedGlobal = PinnedGlobal::prefer();
static REQUIRE: PinnedGlobal = PinnedGlobal::require();
static CAPPED: PinnedGlobal = PinnedGlobal::prefer().cap(3000);
static CAPPED_HARD: PinnedGlobal = PinnedGlobal::require().cap(3000);

#[test]
fn a_global_heap_under_limits() {
    under_each_limit("a_global_heap_under_limits", || {
        let limit = limit();
        let (small, large) = (layout(1000, 8), layout(limit + PAGE, 8));
        // SAFETY: blocks are freed with the layout they were asked with, once.
        unsafe {
            for (heap, serves) in [(&PREFER, true), (&REQUIRE, false)] {
                let p = heap.alloc(small);
                assert_eq!(heap.is_pinned(p), limit != 0);
                assert_eq!(p.is_null(), !serves && limit == 0);
                let q = heap.alloc_zeroed(large);
                assert_eq!(q.is_null(), !serves);
                if !q.is_null() {
                    assert!(!heap.is_pinned(q));
                    assert!(std::slice::from_raw_parts(q, large.size()).iter().all(|&b| b == 0));
                    heap.dealloc(q, large);
                }
                if !p.is_null() {
                    p.write_bytes(7, 1000);
                    let q = heap.realloc(p, small, large.size());
                    assert_eq!(q.is_null(), !serves);
                    let (at, l) = if q.is_null() { (p, small) } else { (q, large) };
                    assert!(std::slice::from_raw_parts(at, 1000).iter().all(|&b| b == 7));
                    heap.dealloc(at, l);
                }
                let s = heap.stats();
                assert_eq!((s.live_blocks, s.fallbacks != 0, s.failures != 0), (0, serves, !serves), "{s:?}");
            }
            for (heap, serves) in [(&CAPPED, true), (&CAPPED_HARD, false)] {
                let all: Vec<*mut u8> = (0..5).map(|_| heap.alloc(small)).collect();
                let pinned = all.iter().filter(|&&p| heap.is_pinned(p)).count();
                assert_eq!(pinned, if limit == 0 { 0 } else { 3 }, "3000 bytes are three blocks");
                assert_eq!(all.iter().filter(|p| p.is_null()).count(), if serves { 0 } else { 5 - pinned });
                assert_eq!(heap.stats().fallbacks, if serves { 5 - pinned as u64 } else { 0 });
                all.into_iter().filter(|p| !p.is_null()).for_each(|p| heap.dealloc(p, small));
            }
        }
        nothing_left();
    });
}
