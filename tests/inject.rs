//! Each of the first 200 system calls of each kind is made to fail in turn, in a fixed program of operations.
//!
//! After every operation: each live block has its address, size, contents and (if it says so) its lock; `VmLck` is
//! what the crate reports; a failed `realloc` left its block as it was; a failed allocation left nothing. After the
//! program everything is freed, and nothing is locked, mapped or stranded.

mod common;

use common::{alone, room};
use pinned_alloc::os::{Call, fault, procfs};
use pinned_alloc::traits::{Alignment, Fallback};
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, Error, ForkPolicy, HugePages, PinnedAlloc, ReallocPolicy, Reserve,
    process_stats, routines, set_cache_limit, trim,
};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

struct Live {
    ptr: *mut u8,
    size: usize,
    seed: u8,
    pinned: bool,
}

/// The offsets of a block that carry its pattern: both ends and the edges of pages.
fn marks(size: usize) -> impl Iterator<Item = usize> {
    let step = if size > 64 * PAGE { 16 * PAGE } else { PAGE };
    (0..size).step_by(step).chain((0..size).step_by(step).skip(1).map(|i| i - 1)).chain([size - 1])
}

impl Live {
    fn fill(&self) {
        for i in marks(self.size) {
            // SAFETY: within the block.
            unsafe { self.ptr.add(i).write(self.seed ^ (i / PAGE) as u8) };
        }
    }

    fn check(&self, upto: usize, what: &str) {
        for i in marks(self.size).filter(|&i| i < upto) {
            // SAFETY: within the block.
            assert_eq!(unsafe { self.ptr.add(i).read() }, self.seed ^ (i / PAGE) as u8, "{what}: byte {i}");
        }
    }
}

struct World {
    base: u64,
    allocators: Vec<AllocatorHandle>,
    blocks: Vec<Option<Live>>,
    failed: usize,
    verified: std::cell::Cell<usize>,
}

/// What the tests can say of any block: found by its address, of the size it was given, as pinned as it says.
fn info(p: *mut u8) -> pinned_alloc::BlockInfo {
    let any = PinnedAlloc::from_handle(AllocatorHandle::DEFAULT_MEM).unwrap();
    any.info(std::ptr::NonNull::new(p).unwrap()).expect("a live block is known by its address")
}

impl World {
    fn verify(&self, what: &str) {
        assert_eq!(procfs::vm_locked().unwrap() - self.base, process_stats().locked as u64, "{what}: VmLck");
        for b in self.blocks.iter().flatten() {
            let i = info(b.ptr);
            assert_eq!((i.requested, i.is_pinned()), (b.size, b.pinned), "{what}");
        }
        // Contents take the time: the latest block each time, all of them at every eighth.
        let n = self.verified.replace(self.verified.get() + 1);
        for b in self.blocks.iter().flatten().rev().take(if n.is_multiple_of(8) { usize::MAX } else { 1 }) {
            b.check(b.size, what);
        }
    }

    fn allocator(&mut self, b: AllocatorBuilder) {
        // No memory for its record is the only reason to fail; operations on the null handle then use the default.
        match b.into_handle() {
            Ok(h) => self.allocators.push(h),
            Err(e) => {
                assert!(matches!(e, Error::Pages(_)), "{e}");
                self.failed += 1;
                self.allocators.push(AllocatorHandle::DEFAULT_MEM);
            }
        }
    }

    fn alloc(&mut self, a: usize, align: usize, size: usize, zero: bool) {
        let h = self.allocators[a];
        let what = format!("alloc {size} of allocator {a}");
        let r = if zero {
            routines::aligned_calloc(align, 1, size, h)
        } else {
            routines::aligned_alloc(align, size, h)
        };
        let live = match r {
            Ok(ptr) => {
                assert!(ptr.addr().is_multiple_of(align.max(16)), "{what}");
                if zero {
                    // SAFETY: the block has that many bytes.
                    assert!(marks(size).all(|i| unsafe { ptr.add(i).read() } == 0), "{what}: zero");
                }
                let live =
                    Live { ptr, size, seed: self.blocks.len() as u8 | 1, pinned: info(ptr).is_pinned() };
                live.fill();
                Some(live)
            }
            Err(e) => {
                assert!(
                    matches!(e, Error::Pages(_) | Error::Pool { .. } | Error::FallbackCycle),
                    "{what}: {e}"
                );
                self.failed += 1;
                None
            }
        };
        self.blocks.push(live);
        self.verify(&what);
    }

    fn realloc(&mut self, b: usize, size: usize, policy: ReallocPolicy) {
        let Some(mut live) = self.blocks[b].take() else { return };
        let what = format!("realloc block {b} from {} to {size} under {policy:?}", live.size);
        let before = info(live.ptr);
        // SAFETY: a live block of this crate.
        let r = unsafe {
            routines::realloc_with(live.ptr, size, AllocatorHandle::NULL, AllocatorHandle::NULL, Some(policy))
        };
        match r {
            Ok(p) => {
                assert!(policy == ReallocPolicy::MayMove || p == live.ptr, "{what}: moved");
                live.ptr = p;
                let kept = live.size.min(size);
                live.size = size;
                // What was marked below `kept` in the old size: check with the old marks that still exist.
                for i in marks(before.requested).filter(|&i| i < kept) {
                    // SAFETY: within the block.
                    assert_eq!(unsafe { p.add(i).read() }, live.seed ^ (i / PAGE) as u8, "{what}: byte {i}");
                }
                live.pinned = info(p).is_pinned();
                live.fill();
            }
            Err(e) => {
                assert!(
                    matches!(e, Error::Pages(_) | Error::NoRoom { .. } | Error::Pool { .. }),
                    "{what}: {e}"
                );
                assert_eq!(info(live.ptr), before, "{what}: the block is as it was");
                self.failed += 1;
            }
        }
        self.blocks[b] = Some(live);
        self.verify(&what);
    }

    fn free(&mut self, b: usize) {
        if let Some(live) = self.blocks[b].take() {
            live.check(live.size, "free");
            // SAFETY: a live block of this crate, not used again.
            unsafe { routines::free(live.ptr, AllocatorHandle::NULL) }.unwrap();
        }
        self.verify(&format!("free block {b}"));
    }
}

/// The program. Returns how many operations failed.
fn program(base: u64, fork: ForkPolicy) -> usize {
    use ReallocPolicy::{Fixed, MayMove};
    let mut w =
        World { base, allocators: Vec::new(), blocks: Vec::new(), failed: 0, verified: Default::default() };
    let pinned = || AllocatorBuilder::new().pinned(true).fallback(Fallback::Null).fork_policy(fork);
    w.allocator(pinned()); // 0
    w.allocator(AllocatorBuilder::new().fork_policy(fork)); // 1: ordinary memory
    w.allocator(pinned().realloc_policy(Fixed).reserve(Reserve::Bytes(MIB))); // 2
    w.allocator(pinned().fallback(Fallback::DefaultMem).pool_size(256 << 10)); // 3
    let last = w.allocators[1];
    w.allocator(pinned().fallback(Fallback::Allocator(last)).alignment(Alignment::new(256).unwrap())); // 4
    w.allocator(pinned().lock_ahead(64 << 10).reserve(Reserve::Times(8)).dump(false)); // 5
    w.allocator(pinned().huge_pages(HugePages::Never).populate_threads(2)); // 6
    for size in [1, 16, 100, 1000, 4096, 5000, 9000, 16384] {
        w.alloc(0, 1, size, false);
        w.alloc(1, 1, size, true);
        w.alloc(4, 1, size, true);
    }
    for size in [16385, 20 << 10, 64 << 10, 300_000] {
        w.alloc(0, 4096, size, false);
        w.alloc(1, 1, size, true);
        w.alloc(3, 1, size, true); // the last one is more than the pool has
    }
    w.alloc(0, 2 * MIB, 2 * MIB, true);
    w.alloc(0, 2 * MIB, 3 * MIB + PAGE, false);
    w.alloc(6, 1, 2 * MIB, false);
    w.alloc(2, 1, 8192, true);
    w.alloc(5, 1, 20_000, false);
    w.alloc(1, 8192, 100, false);
    let n = w.blocks.len();
    // In place inside a reservation, beyond it, and down again.
    for size in [12_288, 100_000, MIB, 2 * MIB, 40_000, 5000, 100, 9000] {
        w.realloc(n - 3, size, Fixed);
    }
    // Small steps with lock-ahead.
    for i in 0..12 {
        w.realloc(n - 2, 20_000 + i * PAGE, MayMove);
    }
    w.realloc(n - 2, 200_000, Fixed);
    // Through slabs, copies, spans, moves of one, two and three segments, and back.
    for b in [0, 1, 2, 24, 26] {
        for size in [40, 3000, 17_000, 70_000, 600_000, 5 * MIB, 6 * MIB, 50_000, 100, 40_000] {
            w.realloc(b, size, MayMove);
        }
        w.free(b);
    }
    w.realloc(n - 6, 5 * MIB, MayMove); // huge pages, 2 MiB aligned
    w.realloc(n - 5, 3 * MIB + 2 * PAGE, Fixed);
    w.realloc(n - 4, 3 * MIB, MayMove);
    for b in (3..n).step_by(3) {
        w.free(b);
    }
    // From the cache, and around it.
    w.alloc(0, 1, 64 << 10, true);
    w.alloc(0, 1, 60 << 10, true);
    trim(100 << 10);
    w.verify("trim");
    set_cache_limit(1 << 20);
    w.verify("cache limit");
    for b in (4..n).step_by(3) {
        w.free(b);
    }
    // Allocators end while their blocks live on.
    for i in [0, 4, 1] {
        if w.allocators[i] != AllocatorHandle::DEFAULT_MEM {
            routines::destroy_allocator(w.allocators[i]);
        }
    }
    w.verify("destroy");
    for b in 0..w.blocks.len() {
        w.free(b);
    }
    for &h in &w.allocators {
        routines::destroy_allocator(h);
    }
    let failed = w.failed;
    drop(w);
    failed
}

fn nothing_is_left(base: u64, what: &str) {
    fault::disarm();
    set_cache_limit(64 << 20);
    trim(0);
    // A range that could not be unmapped is tried again by each trim.
    trim(0);
    let s = process_stats();
    assert_eq!((s.locked, s.mapped, s.stranded, s.live_blocks), (0, 0, 0, 0), "{what}");
    assert_eq!(procfs::vm_locked().unwrap(), base, "{what}: VmLck");
}

fn sweep(name: &str, fork: ForkPolicy, faults: &[(Call, i32, u64)]) {
    alone(name, || {
        let base = procfs::vm_locked().unwrap();
        let failed = program(base, fork);
        nothing_is_left(base, "without a fault");
        // Two operations are refused by design: growth beyond a reservation, at least.
        assert!(failed <= 4 || room() < 32 << 20, "{failed} operations failed without a fault");
        for &(call, errno, times) in faults {
            let mut n = 1;
            while n <= 200 {
                let seen = fault::seen(call);
                let what = format!("{} number {n} (x{times}) fails with errno {errno}", call.name());
                fault::arm(call, n, times, errno);
                // The panic message of a failed check has to say which fault it was.
                let run = std::panic::catch_unwind(|| program(base, fork));
                let made = fault::seen(call) - seen;
                if let Err(e) = run {
                    eprintln!("with {what}");
                    std::panic::resume_unwind(e);
                }
                nothing_is_left(base, &what);
                if made < n {
                    break;
                }
                n += 1;
            }
            println!("{} errno {errno} x{times}: {} faults", call.name(), n - 1);
        }
    });
}

const ONCE: [(Call, i32, u64); 11] = [
    (Call::Mmap, libc::ENOMEM, 1),
    (Call::Munmap, libc::ENOMEM, 1),
    (Call::Mprotect, libc::ENOMEM, 1),
    (Call::Mlock, libc::ENOMEM, 1),
    (Call::Mlock, libc::EAGAIN, 1),
    (Call::Munlock, libc::ENOMEM, 1),
    (Call::Mremap, libc::ENOMEM, 1),
    (Call::Mremap, libc::EAGAIN, 1),
    (Call::Madvise, libc::ENOMEM, 1),
    (Call::Madvise, libc::EINVAL, 1),
    (Call::PthreadCreate, libc::EAGAIN, 1),
];

#[test]
fn every_call_fails_in_turn() {
    sweep("every_call_fails_in_turn", ForkPolicy::Keep, &ONCE);
}

#[test]
fn every_call_fails_in_turn_dontfork() {
    sweep("every_call_fails_in_turn_dontfork", ForkPolicy::DontFork, &ONCE);
}

#[test]
fn three_calls_in_a_row_fail() {
    let thrice = ONCE.map(|(c, e, _)| (c, e, 3));
    sweep("three_calls_in_a_row_fail", ForkPolicy::Keep, &thrice);
}
