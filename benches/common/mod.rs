//! Ratios that can be trusted on a noisy machine: ours and the peer in turn within one round, the other one first in
//! every other round, the median of the rounds' ratios.
#![allow(dead_code)] // Each bench uses its own part of this.

use std::time::Instant;

pub(crate) const PAGE: usize = 4096;
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

/// Nanoseconds of one run of `f`, the mean of `n`.
pub(crate) fn time(n: usize, mut f: impl FnMut()) -> f64 {
    let t = Instant::now();
    for _ in 0..n {
        f();
    }
    t.elapsed().as_nanos() as f64 / n as f64
}

fn median(v: &mut [f64]) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// Floors that were missed.
pub(crate) struct Table {
    rounds: usize,
    missed: usize,
}

impl Table {
    pub(crate) fn new(title: &str) -> Self {
        let rounds = std::env::var("ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(21);
        println!("\n{title} (medians of {rounds} ratios)");
        println!("{:<52} {:>8} {:>10} {:>12} {:>12}", "", "ratio", "floor", "ours", "peer");
        Table { rounds, missed: 0 }
    }

    /// One row: the ratio of `ours` to `peer`, which must be at most `floor`.
    pub(crate) fn row(
        &mut self,
        name: &str,
        floor: Option<f64>,
        mut ours: impl FnMut() -> f64,
        mut peer: impl FnMut() -> f64,
    ) -> f64 {
        // Memory that is new to the machine is slow for whoever touches it first.
        ours();
        peer();
        let (mut o, mut p, mut q) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let _other_layout = Neighbours::new(round % 16);
            let (a, b) = if round % 2 == 0 {
                let a = ours();
                (a, peer())
            } else {
                let b = peer();
                (ours(), b)
            };
            o.push(a);
            p.push(b);
            q.push(a / b);
        }
        let (ratio, o, p) = (median(&mut q), median(&mut o), median(&mut p));
        let missed = floor.is_some_and(|f| ratio > f);
        self.missed += usize::from(missed);
        let floor = floor.map_or(String::new(), |f| format!("<= {f:.3}"));
        println!(
            "{name:<52} {ratio:>8.3} {floor:>10} {:>12} {:>12}{}",
            ns(o),
            ns(p),
            if missed { "  MISSED" } else { "" }
        );
        ratio
    }

    /// Exits 1 if a floor was missed and `--check` was given.
    pub(crate) fn end(self) -> usize {
        self.missed
    }
}

fn ns(n: f64) -> String {
    match n {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// Ends the program: 1 if floors were missed and `--check` was given.
pub(crate) fn finish(missed: usize) -> ! {
    println!("\n{missed} floors missed");
    std::process::exit(i32::from(missed != 0 && std::env::args().any(|a| a == "--check")))
}

/// `mmap` and `mlock` by hand, with `MADV_HUGEPAGE` if `huge`.
pub(crate) fn raw_pin(size: usize, huge: bool) -> usize {
    let p = raw_map(size, libc::PROT_READ | libc::PROT_WRITE);
    if huge {
        // SAFETY: a fresh mapping of this size.
        unsafe { libc::madvise(p as *mut _, size, libc::MADV_HUGEPAGE) };
    }
    raw_lock(p, size);
    p
}

/// One pinned page with nothing mapped behind it for `room` bytes, so that `mremap` need not move it on its way there.
pub(crate) fn raw_pin_with_room(room: usize) -> usize {
    let p = raw_map(room, libc::PROT_READ | libc::PROT_WRITE);
    raw_unpin(p + PAGE, room - PAGE);
    raw_lock(p, PAGE);
    p
}

pub(crate) fn raw_unpin(at: usize, size: usize) {
    // SAFETY: pages of `raw_map`'s, not used again.
    unsafe { libc::munmap(at as *mut _, size) };
}

fn raw_map(size: usize, access: i32) -> usize {
    // SAFETY: a fresh mapping.
    let p = unsafe {
        libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(p, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    p as usize
}

fn raw_lock(at: usize, size: usize) {
    // SAFETY: mlock by number, of pages of `raw_map`'s.
    let e = unsafe { libc::syscall(libc::SYS_mlock, at, size) };
    assert_eq!(e, 0, "these benches need the right to lock 1 GiB: {}", std::io::Error::last_os_error());
}

/// `mremap` with all five arguments.
pub(crate) fn raw_mremap(at: usize, old: usize, new: usize) -> usize {
    // SAFETY: a mapping of the caller's.
    let r = unsafe { libc::syscall(libc::SYS_mremap, at, old, new, libc::MREMAP_MAYMOVE, 0) };
    assert_ne!(r, -1, "{}", std::io::Error::last_os_error());
    r as usize
}

/// Mappings that are there for one round only. The kernel keeps a process's mappings in a tree of nodes with 16 slots;
/// a step that moves the border of two mappings takes twice as long where they happen to lie in two nodes. Whose do is
/// chance, stays so for a whole process, and is different with another number of mappings around.
pub(crate) struct Neighbours(Vec<usize>);

impl Neighbours {
    pub(crate) fn new(n: usize) -> Self {
        // Access differs from one to the next, or they would be one.
        let access = |i: usize| if i.is_multiple_of(2) { libc::PROT_READ } else { libc::PROT_NONE };
        Neighbours((0..n).map(|i| raw_map(PAGE, access(i))).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for &p in &self.0 {
            raw_unpin(p, PAGE);
        }
    }
}
