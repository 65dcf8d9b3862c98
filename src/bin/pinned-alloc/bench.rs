//! `bench`: quick ratios of this machine, ours to a peer in the same round, the median over rounds.

use crate::report::{bytes, heading, nanoseconds, progress};
use crate::verify::layout;
use anstyle::AnsiColor;
use pinned_alloc::{Error, PinnedAlloc, ReallocPolicy, Reserve, set_cache_limit, trim};
use serde::Serialize;
use std::alloc::{GlobalAlloc, System};
use std::io::{self, Write};
use std::process::ExitCode;
use std::ptr::{self, NonNull};
use std::time::Instant;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

#[derive(Debug, Serialize)]
struct Row {
    group: &'static str,
    case: String,
    peer: &'static str,
    /// Medians; nothing where the limits do not allow the case.
    ours_ns: Option<f64>,
    peer_ns: Option<f64>,
    /// Median of the rounds' ratios, below 1 is faster than the peer.
    ratio: Option<f64>,
    note: Option<String>,
}

/// What could not be measured, and why.
type Timed = Result<f64, String>;

fn timed(n: usize, mut f: impl FnMut() -> Result<(), String>) -> Timed {
    let t = Instant::now();
    for _ in 0..n {
        f()?;
    }
    Ok(t.elapsed().as_nanos() as f64 / n as f64)
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn text(e: Error) -> String {
    if e.is_lock_limit() { LIMITED.to_owned() } else { e.to_string() }
}

/// The note of a row that needs more lock limit; the cure follows once.
const LIMITED: &str = "more than the lock limit";
/// Lock limit that the largest rows need, in KiB: 256 MiB twice, while a block is copied, and some for the rest.
const NEEDED_KIB: usize = (2 * 256 + 16) * 1024;

/// Maps and locks by hand what our block is measured against.
fn raw_pin(size: usize, huge: bool) -> Result<usize, String> {
    // SAFETY: a fresh mapping of this function's own; mlock by number, as the library does it.
    unsafe {
        let p = libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().to_string());
        }
        if huge {
            libc::madvise(p, size, libc::MADV_HUGEPAGE);
        }
        if libc::syscall(libc::SYS_mlock, p, size) != 0 {
            let e = io::Error::last_os_error();
            libc::munmap(p, size);
            return Err(match e.raw_os_error() {
                Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => LIMITED.to_owned(),
                _ => format!("mlock: {e}"),
            });
        }
        Ok(p as usize)
    }
}

fn raw_unpin(at: usize, size: usize) {
    // SAFETY: a mapping of `raw_pin`'s, not used again.
    unsafe { libc::munmap(at as *mut _, size) };
}

fn pair(a: &PinnedAlloc, size: usize) -> Result<(), String> {
    let l = layout(size, 1);
    let b = a.allocate(l).map_err(text)?;
    // SAFETY: within the block; live, of this layout, not used again.
    unsafe {
        b.cast::<u8>().as_ptr().write_volatile(1);
        a.deallocate(b.cast(), l);
    }
    Ok(())
}

fn raw_pair(size: usize) -> Result<(), String> {
    let p = raw_pin(size, size >= 2 * MIB)?;
    raw_unpin(p, size);
    Ok(())
}

fn system_pair(size: usize) -> Result<(), String> {
    let l = layout(size, 16);
    // SAFETY: the layout is not empty; the block is written inside and freed once.
    unsafe {
        let p = System.alloc(l);
        if p.is_null() {
            return Err("malloc failed".to_owned());
        }
        p.write_volatile(1);
        System.dealloc(p, l);
    }
    Ok(())
}

/// Grows one block from `from` to `to` by `step`, then frees it.
fn grow(
    a: &PinnedAlloc,
    from: usize,
    to: usize,
    policy: ReallocPolicy,
    step: impl Fn(usize) -> usize,
) -> Result<(), String> {
    let mut l = layout(from, 1);
    let mut p: NonNull<u8> = a.allocate(l).map_err(text)?.cast();
    let mut r = Ok(());
    while l.size() < to {
        // SAFETY: a live block of this allocator and layout.
        match unsafe { a.realloc(p, l, step(l.size()), policy) } {
            Ok(q) => (p, l) = (q.cast(), layout(step(l.size()), 1)),
            Err(e) => {
                r = Err(text(e));
                break;
            }
        }
    }
    // SAFETY: live, of this layout, not used again.
    unsafe { a.deallocate(p, l) };
    r
}

fn grow_by_copy(from: usize, to: usize) -> Result<(), String> {
    let (mut n, mut p) = (from, raw_pin(from, false)?);
    while n < to {
        let q = raw_pin(2 * n, 2 * n >= 2 * MIB)?;
        // SAFETY: both mappings have `n` bytes and are apart.
        unsafe { ptr::copy_nonoverlapping(p as *const u8, q as *mut u8, n) };
        raw_unpin(p, n);
        (n, p) = (2 * n, q);
    }
    raw_unpin(p, n);
    Ok(())
}

fn grow_by_mremap(from: usize, to: usize, step: impl Fn(usize) -> usize) -> Result<(), String> {
    let (mut n, mut p) = (from, raw_pin(from, false)?);
    while n < to {
        // SAFETY: a mapping of this function's own; by number, with all five arguments.
        let q = unsafe { libc::syscall(libc::SYS_mremap, p, n, step(n), libc::MREMAP_MAYMOVE, 0) };
        if q == -1 {
            let e = io::Error::last_os_error();
            raw_unpin(p, n);
            return Err(match e.raw_os_error() {
                Some(libc::EAGAIN) => LIMITED.to_owned(),
                _ => format!("mremap: {e}"),
            });
        }
        (n, p) = (step(n), q as usize);
    }
    raw_unpin(p, n);
    Ok(())
}

struct Bench<'a> {
    rounds: usize,
    rows: Vec<Row>,
    bar: &'a indicatif::ProgressBar,
}

impl Bench<'_> {
    /// One row: ours and the peer in turn, the other one first in every other round.
    fn row(
        &mut self,
        group: &'static str,
        case: String,
        peer: &'static str,
        ours: impl Fn() -> Timed,
        theirs: impl Fn() -> Timed,
    ) {
        let run = || -> Result<(f64, f64, f64), String> {
            let (mut o, mut t, mut q) = (Vec::new(), Vec::new(), Vec::new());
            ours()?; // memory that is new to the machine is slow, for whoever comes first
            for round in 0..self.rounds {
                let (a, b) = if round % 2 == 0 {
                    let a = ours()?;
                    (a, theirs()?)
                } else {
                    let b = theirs()?;
                    (ours()?, b)
                };
                o.push(a);
                t.push(b);
                q.push(a / b);
            }
            Ok((median(o), median(t), median(q)))
        };
        let (m, note) = match run() {
            Ok(m) => (Some(m), None),
            Err(e) => (None, Some(e)),
        };
        let (ours_ns, peer_ns, ratio) = (m.map(|m| m.0), m.map(|m| m.1), m.map(|m| m.2));
        self.rows.push(Row { group, case, peer, ours_ns, peer_ns, ratio, note });
        self.bar.inc(1);
        trim(0);
    }

    fn all(&mut self) -> Result<(), Error> {
        use ReallocPolicy::{Fixed, MayMove};
        let a = PinnedAlloc::new()?;
        // A block of each kind stays live, so that a pair does not open and close a slab.
        const RAW: &str = "mmap+mlock+munmap";
        for size in [16, 256, 4096] {
            let keep = a.allocate(layout(size, 1));
            let n = 4000;
            let name = format!("pair of {}", bytes(size as u64));
            self.row(
                "small blocks, pinned",
                name.clone(),
                RAW,
                || timed(n, || pair(&a, size)),
                || timed(n / 20, || raw_pair(size)),
            );
            self.row(
                "small blocks, pinned",
                name,
                "malloc (not pinned)",
                || timed(n, || pair(&a, size)),
                || timed(n, || system_pair(size)),
            );
            if let Ok(k) = keep {
                // SAFETY: live, of this layout, not used again.
                unsafe { a.deallocate(k.cast(), layout(size, 1)) };
            }
        }
        set_cache_limit(0);
        for size in [32 * KIB, 256 * KIB, MIB, 2 * MIB, 16 * MIB] {
            let n = (8 * MIB / size).max(1);
            let peer = if size >= 2 * MIB { "the same, huge pages" } else { RAW };
            self.row(
                "new memory, pinned",
                bytes(size as u64),
                peer,
                || timed(n, || pair(&a, size)),
                || timed(n, || raw_pair(size)),
            );
        }
        set_cache_limit(64 * MIB);
        for size in [MIB, 16 * MIB] {
            self.row(
                "freed and asked for again",
                bytes(size as u64),
                RAW,
                || timed(100, || pair(&a, size)),
                || timed(2, || raw_pair(size)),
            );
        }
        set_cache_limit(0);
        let top = 256 * MIB;
        let fixed = PinnedAlloc::builder().realloc_policy(Fixed).reserve(Reserve::Bytes(top)).build()?;
        let once = || timed(1, || raw_pair(top));
        let double = |n: usize| 2 * n;
        const GROWTH: &str = "growth 4 KiB to 256 MiB, doubling";
        self.row(
            GROWTH,
            "MayMove".into(),
            "pinned once",
            || timed(1, || grow(&a, 4096, top, MayMove, double)),
            once,
        );
        self.row(
            GROWTH,
            "Fixed, reserved".into(),
            "pinned once",
            || timed(1, || grow(&fixed, 4096, top, Fixed, double)),
            once,
        );
        let copy = || timed(1, || grow_by_copy(4096, top));
        self.row(
            GROWTH,
            "MayMove".into(),
            "alloc, copy, free",
            || timed(1, || grow(&a, 4096, top, MayMove, double)),
            copy,
        );
        let page = |n: usize| n + 4096;
        let to = 16 * MIB;
        let raw = || timed(1, || grow_by_mremap(4096, to, page));
        const PAGES: &str = "growth to 16 MiB, page by page";
        self.row(PAGES, "MayMove".into(), "mremap", || timed(1, || grow(&a, 4096, to, MayMove, page)), raw);
        self.row(
            PAGES,
            "Fixed, reserved".into(),
            "mremap",
            || timed(1, || grow(&fixed, 4096, to, Fixed, page)),
            raw,
        );
        let ahead = PinnedAlloc::builder().lock_ahead(MIB).reserve(Reserve::Bytes(to)).build()?;
        self.row(
            PAGES,
            "locking ahead".into(),
            "mremap",
            || timed(1, || grow(&ahead, 4096, to, MayMove, page)),
            raw,
        );
        Ok(())
    }
}

/// Measures and prints. Ends 0 unless the report cannot be written.
pub(crate) fn run(rounds: usize, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let bar = progress(19, "measuring");
    let mut b = Bench { rounds, rows: Vec::new(), bar: &bar };
    let r = b.all();
    bar.finish_and_clear();
    if let Err(e) = r {
        eprintln!("pinned-alloc: {e}");
        return Ok(ExitCode::FAILURE);
    }
    if json {
        writeln!(out, "{:#}", serde_json::json!({ "rounds": rounds, "rows": b.rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut group = "";
    for r in &b.rows {
        if r.group != group {
            group = r.group;
            heading(out, group)?;
        }
        match (r.ours_ns, r.peer_ns, r.ratio) {
            (Some(o), Some(p), Some(q)) => {
                let style = if q <= 1.05 { AnsiColor::Green } else { AnsiColor::Yellow }.on_default();
                let times = format!("{} to {}", nanoseconds(o), nanoseconds(p));
                let digits = if q < 0.1 { 4 } else { 2 };
                writeln!(out, "  {:<18} {style}{q:>7.digits$}{style:#} x {:<22} {times}", r.case, r.peer)?;
            }
            _ => writeln!(out, "  {:<18}       - not measured: {}", r.case, r.note.as_deref().unwrap_or(""))?,
        }
    }
    heading(out, "reading")?;
    writeln!(
        out,
        "  medians of {rounds} ratios, ours to the peer in the same round; below 1 is faster than the peer"
    )?;
    writeln!(out, "  times are the medians of each side by itself: they need not divide to the ratio")?;
    if b.rows.iter().any(|r| r.note.as_deref() == Some(LIMITED)) {
        writeln!(out, "  the rows not measured need `ulimit -l {NEEDED_KIB}` (KiB), or CAP_IPC_LOCK")?;
    }
    Ok(ExitCode::SUCCESS)
}
