//! A `#[global_allocator]` that requires pinned memory: every heap byte of a program lies in locked, resident pages.
//!
//! A plain `main`, started again as the program under test: under a lock limit of 0 such a program cannot even start,
//! which only its parent can tell. The parent uses the system's allocator.

use pinned_alloc::os::limits::Limits;
use pinned_alloc::os::procfs;
use pinned_alloc::{PinnedGlobal, process_stats};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

static REQUIRE: PinnedGlobal = PinnedGlobal::require();
static CAPPED: PinnedGlobal = PinnedGlobal::require().cap(1 << 20);
static PREFER: PinnedGlobal = PinnedGlobal::prefer().cap(256 << 10);

/// Which heap this process has: decided by the first allocation, from the environment, without allocating.
struct Chosen;

static WHICH: AtomicU8 = AtomicU8::new(0);

/// Addresses and sizes of live blocks, so that the program can walk its heap. Open addressing; 0 is empty, 1 deleted.
const SLOTS: usize = 1 << 16;
static ADDRESS: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];
static SIZE: [AtomicUsize; SLOTS] = [const { AtomicUsize::new(0) }; SLOTS];

fn slots(p: usize) -> impl Iterator<Item = usize> {
    let start = (p >> 4).wrapping_mul(0x9e37_79b9) % SLOTS;
    (0..SLOTS).map(move |i| (start + i) % SLOTS)
}

fn remember(p: usize, size: usize) {
    for i in slots(p) {
        for was in [0, 1] {
            if ADDRESS[i].compare_exchange(was, p, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                SIZE[i].store(size, Ordering::Release);
                return;
            }
        }
    }
    panic!("more live blocks than slots");
}

fn forget(p: usize) {
    if let Some(i) = slots(p).find(|&i| ADDRESS[i].load(Ordering::Acquire) == p) {
        ADDRESS[i].store(1, Ordering::Release);
    }
}

fn which() -> u8 {
    match WHICH.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: the environment is not changed by this program.
            let v = unsafe { libc::getenv(c"PINNED_GLOBAL_TEST".as_ptr()) };
            // SAFETY: a NUL-terminated string of the environment.
            let w = if v.is_null() { b's' } else { unsafe { *v.cast::<u8>() } };
            WHICH.store(w, Ordering::Relaxed);
            w
        }
        w => w,
    }
}

// SAFETY: hands on to allocators that keep the contract; each block goes back to the one it came from, since the
// choice does not change.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one asked for.
        let p = unsafe {
            match which() {
                b'r' => REQUIRE.alloc(l),
                b'c' => CAPPED.alloc(l),
                b'p' => PREFER.alloc(l),
                _ => return System.alloc(l),
            }
        };
        if !p.is_null() {
            remember(p.addr(), l.size());
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        // SAFETY: as above.
        unsafe {
            match which() {
                b'r' | b'c' | b'p' => forget(p.addr()),
                _ => return System.dealloc(p, l),
            }
            REQUIRE.dealloc(p, l); // any of them: the block says whose it is
        }
    }

    unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
        if which() == b's' {
            // SAFETY: as above.
            return unsafe { System.realloc(p, l, size) };
        }
        forget(p.addr());
        // SAFETY: as above.
        let q = unsafe {
            match which() {
                b'r' => REQUIRE.realloc(p, l, size),
                b'c' => CAPPED.realloc(p, l, size),
                _ => PREFER.realloc(p, l, size),
            }
        };
        if q.is_null() {
            remember(p.addr(), l.size())
        } else {
            remember(q.addr(), size)
        }
        q
    }
}

#[global_allocator]
static HEAP: Chosen = Chosen;

/// Something a program would do: several threads, std's collections, strings, growth and shrinkage.
fn work(seed: usize) -> BTreeMap<String, Vec<u64>> {
    let mut map = BTreeMap::new();
    let mut index: HashMap<u64, Box<[u8]>> = HashMap::new();
    let mut x = seed as u64 | 1;
    for i in 0..2000u64 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
        map.entry(format!("key {}", x % 257)).or_insert_with(Vec::new).push(x);
        index.insert(x % 100, vec![i as u8; (x % 3000) as usize].into());
    }
    map.retain(|_, v| v.len() % 3 != 0);
    map.values_mut().for_each(Vec::shrink_to_fit);
    map
}

/// The program under test.
fn program() {
    let threads: Vec<_> = (0..4).map(|i| std::thread::spawn(move || work(i))).collect();
    let maps: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let large = vec![7u8; 300_000];
    let (mut blocks, mut bytes, mut locked) = (0, 0, 0);
    for i in 0..SLOTS {
        let p = ADDRESS[i].load(Ordering::Acquire);
        if p <= 1 {
            continue;
        }
        let size = SIZE[i].load(Ordering::Acquire);
        let from = p / 4096 * 4096;
        let to = (p + size).next_multiple_of(4096);
        let facts = procfs::smaps_range(from, to - from).unwrap();
        assert!(facts.mapped as usize == to - from, "a block in memory that is not mapped");
        let is = facts.lo_flag_bytes as usize == to - from
            && procfs::resident_pages(from, to - from) == Ok(((to - from) / 4096) as u64);
        assert_eq!(is, REQUIRE.is_pinned(p as *const u8), "what is said of a block of {size} bytes");
        blocks += 1;
        bytes += size;
        locked += if is { size } else { 0 };
    }
    println!(
        "{blocks} live blocks, {bytes} bytes, {locked} of them locked and resident; VmLck {}",
        process_stats().locked
    );
    assert!(blocks > 100 && bytes > large.len() && maps.len() == 4);
    if which() == b'p' {
        // The cap is 256 KiB: more was asked for, and is there, not pinned and counted.
        assert!(locked < bytes && PREFER.stats().fallbacks > 0 && PREFER.stats().fallback_requested > 0);
    } else {
        assert_eq!(locked, bytes, "every heap byte is locked");
    }
    assert_eq!(procfs::vm_locked().unwrap(), process_stats().locked as u64);
    // A child process: fork and exec with this heap.
    assert!(Command::new("/bin/true").status().unwrap().success());
}

/// Asks for more than the cap.
fn beyond_the_cap() {
    let v = vec![1u8; 600_000];
    let mut w: Vec<u8> = Vec::new();
    assert!(w.try_reserve_exact(600_000).is_err(), "the cap is 1 MiB");
    assert!(w.try_reserve_exact(100_000).is_ok());
    println!("{} bytes within the cap", v.len() + w.capacity());
}

fn run(which: &str) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .env("PINNED_GLOBAL_TEST", which)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn main() {
    match which() {
        b'r' | b'p' => return program(),
        b'c' => return beyond_the_cap(),
        _ => {}
    }
    let room = Limits::read().headroom().unwrap_or(u64::MAX);
    for (which, need) in [("require", 2 << 20), ("capped", 1 << 20), ("prefer", 0)] {
        let out = run(which);
        let (said, told) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        println!(
            "{which}: {}{}",
            said.trim(),
            if out.status.success() { "" } else { " (stopped by the lock limit)" }
        );
        if room >= need || out.status.success() {
            // Where nothing can be locked, `prefer` says so of every block.
            let no_room = which == "prefer" && room < 300 << 10;
            assert!(out.status.success() || no_room, "{which}: {}\n{said}\n{told}", out.status);
        } else {
            // Out of budget is an allocation failure: std says so and ends the program.
            assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{which}: {}\n{said}\n{told}", out.status);
            assert!(told.contains("memory allocation of") || told.is_empty(), "{told}");
        }
    }
    println!("test result: ok. 3 passed; 0 failed");
}
