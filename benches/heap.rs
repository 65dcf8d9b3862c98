//! Small and large blocks against the best general allocators, in one process: ours pinned, theirs not.
//!
//! `cargo bench --bench heap --features peers` prints the table; `-- --check` exits 1 if a floor is missed. `ROUNDS=n`
//! sets the rounds. With `--features peers,peers-mimalloc-v2` mimalloc's second line stands for its third. Needs a C
//! compiler, the right to lock 1 GiB and a machine with nothing else to do.

mod common;

use pinned_alloc::{PinnedGlobal, process_stats, set_cache_limit, trim};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Instant;

static OURS: PinnedGlobal = PinnedGlobal::require();

/// Ours first.
const NAMES: [&str; 4] = ["pinned", "mimalloc", "jemalloc", "glibc"];

/// An allocator by number: a call through a table for each, so that none is inlined and all pay the same.
#[derive(Clone, Copy)]
struct Alloc(usize);

impl Alloc {
    fn all() -> [Alloc; 4] {
        [Alloc(0), Alloc(1), Alloc(2), Alloc(3)]
    }
}

/// Runs `f` with the allocator as a type of its own.
macro_rules! with {
    ($a:expr, $f:ident($($x:expr),*)) => {
        match $a.0 {
            0 => $f(&OURS, $($x),*),
            1 => $f(&mimalloc::MiMalloc, $($x),*),
            2 => $f(&tikv_jemallocator::Jemalloc, $($x),*),
            _ => $f(&System, $($x),*),
        }
    };
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn take<A: GlobalAlloc>(a: &A, size: usize) -> *mut u8 {
    // SAFETY: the layout is not empty; the first byte is inside.
    unsafe {
        let p = a.alloc(layout(size));
        assert!(!p.is_null(), "no memory, or not the right to lock it");
        p.write(1);
        p
    }
}

fn give<A: GlobalAlloc>(a: &A, p: *mut u8, size: usize) {
    // SAFETY: every block is given up once, with the layout it was asked with.
    unsafe { a.dealloc(p, layout(size)) };
}

/// A generator of numbers that differ and repeat (xorshift64*).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize
    }

    fn size(&mut self, from: usize, to: usize) -> usize {
        from + self.next() % (to - from + 1)
    }
}

#[inline(never)]
fn pairs<A: GlobalAlloc>(a: &A, size: usize, n: usize) -> f64 {
    let t = Instant::now();
    for _ in 0..n {
        let p = black_box(take(a, black_box(size)));
        give(a, p, black_box(size));
    }
    t.elapsed().as_nanos() as f64 / n as f64
}

/// 10,000 blocks of 16 to 1024 bytes, freed in random order; per block.
fn batch<A: GlobalAlloc>(a: &A, seed: u64) -> f64 {
    const N: usize = 10_000;
    let mut r = Random(seed | 1);
    let sizes: Vec<usize> = (0..N).map(|_| r.size(16, 1024)).collect();
    let mut order: Vec<usize> = (0..N).collect();
    for i in (1..N).rev() {
        order.swap(i, r.next() % (i + 1));
    }
    let mut blocks = vec![std::ptr::null_mut(); N];
    let t = Instant::now();
    for (b, &s) in blocks.iter_mut().zip(&sizes) {
        *b = take(a, s);
    }
    for &i in &order {
        give(a, blocks[i], sizes[i]);
    }
    t.elapsed().as_nanos() as f64 / N as f64
}

/// Replaces blocks at random in a table; per replacement.
fn replace<A: GlobalAlloc>(a: &A, table: &mut [(*mut u8, usize)], r: &mut Random, n: usize) {
    for _ in 0..n {
        let i = r.next() % table.len();
        let (p, s) = table[i];
        if !p.is_null() {
            give(a, p, s);
        }
        let s = r.size(16, 1024);
        table[i] = (take(a, s), s);
    }
}

fn clear<A: GlobalAlloc>(a: &A, table: &[(*mut u8, usize)]) {
    table.iter().filter(|b| !b.0.is_null()).for_each(|&(p, s)| give(a, p, s));
}

struct Sent<T>(T);
// SAFETY: blocks may be used and freed by any thread.
unsafe impl<T> Send for Sent<T> {}

fn two_threads<A: GlobalAlloc + Sync>(a: &A, seed: u64) -> f64 {
    const N: usize = 100_000;
    let t = Instant::now();
    std::thread::scope(|s| {
        for n in 0..2 {
            s.spawn(move || {
                let mut table = vec![(std::ptr::null_mut(), 0); 1000];
                replace(a, &mut table, &mut Random(seed * 2 + n + 1), N);
                clear(a, &table);
            });
        }
    });
    t.elapsed().as_nanos() as f64 / (2 * N) as f64
}

/// One thread asks, another frees what it is sent, 100 at a time; per block.
fn producer_consumer<A: GlobalAlloc + Sync>(a: &A, seed: u64) -> f64 {
    const N: usize = 2000;
    let (to, from) = mpsc::sync_channel::<Sent<Vec<(*mut u8, usize)>>>(8);
    let t = Instant::now();
    std::thread::scope(|s| {
        s.spawn(move || {
            for Sent(blocks) in from {
                clear(a, &blocks);
            }
        });
        let mut r = Random(seed | 1);
        for _ in 0..N {
            let blocks = (0..100).map(|_| {
                let s = r.size(16, 1024);
                (take(a, s), s)
            });
            to.send(Sent(blocks.collect())).unwrap();
        }
        drop(to);
    });
    t.elapsed().as_nanos() as f64 / (N * 100) as f64
}

/// Threads that end and leave their blocks to the next ones (after Larson and Krishnan); per replacement.
fn churn<A: GlobalAlloc + Sync>(a: &A, seed: u64) -> f64 {
    const N: usize = 5000;
    let mut tables: Vec<_> = (0..2).map(|_| Sent(vec![(std::ptr::null_mut(), 0); 1000])).collect();
    let t = Instant::now();
    for round in 0..10 {
        std::thread::scope(|s| {
            let threads: Vec<_> = tables
                .drain(..)
                .enumerate()
                .map(|(n, table)| {
                    s.spawn(move || {
                        let mut table = table;
                        replace(a, &mut table.0, &mut Random(seed + 10 * round + n as u64 + 1), N);
                        table
                    })
                })
                .collect();
            tables = threads.into_iter().map(|t| t.join().unwrap()).collect();
        });
        tables.rotate_left(1);
    }
    let ns = t.elapsed().as_nanos() as f64 / (2 * 10 * N) as f64;
    tables.iter().for_each(|t| clear(a, &t.0));
    ns
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

struct Report {
    rounds: usize,
    missed: usize,
}

impl Report {
    fn heading(&self, text: &str) {
        println!(
            "\n{text} (ns, medians of {} rounds; ratio: ours to the fastest peer of the round)",
            self.rounds
        );
        print!("{:<22} {:>8} {:>8}", "", "ratio", "floor");
        NAMES.iter().for_each(|n| print!(" {n:>10}"));
        println!();
    }

    /// One row; `run` times one allocator in one round.
    fn row(&mut self, name: &str, floor: f64, run: impl Fn(Alloc, u64) -> f64) -> f64 {
        for a in Alloc::all() {
            run(a, 1); // memory that is new to the machine is slow for whoever comes first
        }
        let mut times = [const { Vec::new() }; 4];
        let mut ratios = Vec::new();
        for round in 0..self.rounds {
            let mut now = [0.0; 4];
            for i in 0..4 {
                let a = Alloc((i + round) % 4);
                now[a.0] = run(a, round as u64 + 2);
                times[a.0].push(now[a.0]);
            }
            ratios.push(now[0] / now[1].min(now[2]).min(now[3]));
        }
        let ratio = median(ratios);
        let missed = ratio > floor;
        self.missed += usize::from(missed);
        print!("{name:<22} {ratio:>8.2} {floor:>8.2}");
        times.into_iter().for_each(|t| print!(" {:>10.1}", median(t)));
        println!("{}", if missed { "  MISSED" } else { "" });
        ratio
    }

    fn bytes(&mut self, name: &str, floor: f64, n: usize, from: usize, to: usize) {
        trim(0);
        let before = process_stats().locked;
        let mut r = Random(7);
        let blocks: Vec<_> = (0..n).map(|_| r.size(from, to)).map(|s| (take(&OURS, s), s)).collect();
        let live: usize = blocks.iter().map(|b| b.1).sum();
        let ratio = (process_stats().locked - before) as f64 / live as f64;
        let missed = ratio > floor;
        self.missed += usize::from(missed);
        clear(&OURS, &blocks);
        trim(0);
        let left = process_stats().locked;
        self.missed += usize::from(left != 0);
        let mark = if missed || left != 0 { "  MISSED" } else { "" };
        println!("{name:<44} {ratio:>6.3} of {floor:.2}; after trim(0): {left}{mark}");
    }
}

fn main() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(15);
    let mut r = Report { rounds, missed: 0 };
    set_cache_limit(1 << 30);
    r.heading("alloc, write a byte, free");
    for size in [16, 64, 256, 1024] {
        r.row(&format!("{size} B"), 1.0, |a, _| with!(a, pairs(size, 20_000)));
    }
    for (size, name) in [
        (4 << 10, "4 KiB"),
        (16 << 10, "16 KiB"),
        (64 << 10, "64 KiB"),
        (256 << 10, "256 KiB"),
        (1 << 20, "1 MiB"),
        (16 << 20, "16 MiB"),
        (256 << 20, "256 MiB"),
    ] {
        r.row(name, 1.0, |a, _| with!(a, pairs(size, 2000)));
    }
    r.heading("many blocks of 16 to 1024 B");
    let mut product = 1.0;
    product *= r.row("batch, random order", 1.25, |a, n| with!(a, batch(n)));
    product *= r.row("two threads, random", 1.25, |a, n| with!(a, two_threads(n)));
    product *= r.row("producer, consumer", 1.25, |a, n| with!(a, producer_consumer(n)));
    product *= r.row("threads that end", 1.25, |a, n| with!(a, churn(n)));
    let mean = f64::powf(product, 0.25);
    r.missed += usize::from(mean > 1.0);
    println!("{:<22} {mean:>8.2} {:>8.2}{}", "geometric mean", 1.0, if mean > 1.0 { "  MISSED" } else { "" });
    println!("\nlocked bytes to live bytes");
    r.bytes("10,000 blocks of 16 to 1024 B", 1.15, 10_000, 16, 1024);
    r.bytes("1,000 blocks of 4 to 64 KiB", 1.10, 1000, 4 << 10, 64 << 10);
    common::finish(r.missed);
}
