//! `check`: every promise, on this machine, against the kernel.

use crate::machine::Machine;
use crate::report::{Failure, Report, Verdict, bytes, heading, progress};
use crate::verify::{Held, accounts, failure, layout, others};
use anstyle::AnsiColor;
use pinned_alloc::os::limits::cgroup_memory;
use pinned_alloc::os::procfs;
use pinned_alloc::os::topology::{NodeSet, Topology};
use pinned_alloc::traits::{Alignment, Fallback, Partition};
use pinned_alloc::{
    AllocatorBuilder, Error, ForkPolicy, HugePages, MemSpace, PinnedAlloc, ReallocPolicy, Reserve,
    process_stats, set_cache_limit, trim,
};
use std::io::{self, Write};
use std::process::ExitCode;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
type Case = Result<String, Failure>;

/// Runs everything and prints it. The exit code is 1 if a promise was broken.
pub(crate) fn run(max: usize, json: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let machine = Machine::examine();
    if !json {
        machine.print(out)?;
        out.flush()?;
    }
    others();
    let mut r = Report::default();
    let max = max.min(affordable());
    // A pass over everything takes a second or two; longer where memory is touched for the first time.
    let bar = progress(7, "verifying");
    for part in [sizes, alignments, traits, realloc, pools, placement] {
        part(&mut r, max);
        bar.inc(1);
    }
    end(&mut r);
    bar.finish_and_clear();
    let (ok, limited, broken) = (r.count(Verdict::Ok), r.count(Verdict::Limited), r.count(Verdict::Broken));
    if json {
        let all = serde_json::json!({
            "machine": machine, "report": r,
            "summary": { "ok": ok, "limited": limited, "broken": broken },
        });
        writeln!(out, "{all:#}")?;
    } else {
        r.print(out)?;
        heading(out, "summary")?;
        let (style, word) = match (broken, limited) {
            (0, 0) => (AnsiColor::Green.on_default().bold(), "every promise held"),
            (0, _) => (AnsiColor::Yellow.on_default().bold(), "every promise held, as far as the limits go"),
            _ => (AnsiColor::Red.on_default().bold(), "a promise was BROKEN"),
        };
        writeln!(out, "  {ok} ok, {limited} limited, {broken} broken: {style}{word}{style:#}")?;
    }
    Ok(if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The largest block that does not crowd the machine: an eighth of its memory, or of what the cgroup leaves.
fn affordable() -> usize {
    let machine: u64 = Topology::read(c"/sys").nodes().map(|n| n.memory_bytes).sum();
    let cgroup = cgroup_memory().and_then(|c| c.limit.map(|l| l.saturating_sub(c.usage)));
    let room = [Some(machine).filter(|&m| m != 0), cgroup].into_iter().flatten().min().unwrap_or(4 << 30);
    (room / 8).max(MIB as u64) as usize
}

/// A pinned allocator without fallback, or one made from it.
fn pinned(f: impl FnOnce(AllocatorBuilder) -> AllocatorBuilder) -> Result<PinnedAlloc, Failure> {
    f(PinnedAlloc::builder()).build().map_err(|e| Failure::Broken(e.to_string()))
}

/// One block: allocated, held against the kernel, written, freed.
fn one(alloc: &PinnedAlloc, size: usize, align: usize) -> Case {
    let b = Held::new(alloc, size, align)?;
    let found = b.verify()?;
    b.fill();
    b.kept(size, size)?;
    Ok(found)
}

fn sizes(r: &mut Report, max: usize) {
    let all = [
        1,
        64,
        100,
        1000,
        4096,
        4097,
        12_288,
        16 * KIB,
        64 * KIB,
        MIB,
        2 * MIB,
        16 * MIB + 1,
        64 * MIB,
        256 * MIB,
    ];
    let largest = if all.contains(&max) { None } else { Some(max) };
    for size in all.into_iter().chain(largest).filter(|&s| s <= max) {
        r.add("sizes: pinned, null_fb", bytes(size as u64), pinned(|b| b).and_then(|a| one(&a, size, 1)));
        trim(0);
    }
    let thousand = || -> Case {
        let a = pinned(|b| b)?;
        let before = process_stats().locked;
        let blocks = (0..1000).map(|_| Held::new(&a, 64, 8)).collect::<Result<Vec<_>, _>>()?;
        accounts()?;
        let pages = (process_stats().locked - before) / 4096;
        drop(blocks);
        if pages > 32 {
            Err(format!("{pages} pages").into())
        } else {
            Ok(format!("{pages} pages for all of them"))
        }
    };
    r.add("sizes: pinned, null_fb", "1000 blocks of 64 B", thousand());
}

fn alignments(r: &mut Report, max: usize) {
    for (size, align) in
        [(1, 64), (100, 4096), (4096, 4096), (5000, 64 * KIB), (2 * MIB, 2 * MIB), (3 * MIB, 2 * MIB)]
    {
        if size <= max {
            let case = format!("{} aligned to {}", bytes(size as u64), bytes(align as u64));
            r.add("alignment", case, pinned(|b| b).and_then(|a| one(&a, size, align)));
        }
        trim(0);
    }
    let by_trait = pinned(|b| b.alignment(Alignment::new(1024).unwrap_or_default())).and_then(|a| {
        let b = Held::new(&a, 10, 1)?;
        if (b.ptr.as_ptr() as usize).is_multiple_of(1024) {
            b.verify()
        } else {
            Err("not aligned".to_owned().into())
        }
    });
    r.add("alignment", "10 B, trait alignment 1024", by_trait);
    let bad = pinned(|b| b).and_then(|a| match a.allocate(layout(1, 1 << 31)) {
        Err(Error::Alignment { .. }) => Ok("refused".to_owned()),
        x => Err(format!("{x:?}").into()),
    });
    r.add("alignment", "of 2 GiB, above the largest (1 GiB)", bad);
}

fn traits(r: &mut Report, max: usize) {
    const G: &str = "traits";
    let size = 64 * KIB;
    r.add(
        G,
        "pinned, default_mem_fb",
        pinned(|b| b.fallback(Fallback::DefaultMem)).and_then(|a| one(&a, size, 1)),
    );
    r.add(G, "not pinned", pinned(|b| b.pinned(false)).and_then(|a| one(&a, size, 1)));
    let chain = pinned(|b| b.pinned(false)).and_then(|plain| {
        let a = pinned(|b| b.pool_size(10).fallback_to(&plain))?;
        let b = Held::new(&a, 100, 1)?;
        match a.info(b.ptr) {
            Some(i) if i.served_by == plain.handle() && !i.is_pinned() => {
                Ok("served by the next, and says so".to_owned())
            }
            i => Err(format!("{i:?}").into()),
        }
    });
    r.add(G, "allocator_fb, pool too small", chain);
    let zeroed = pinned(|b| b.fallback(Fallback::DefaultMem)).and_then(|a| {
        let l = layout(40_000, 1);
        drop(Held::new(&a, 40_000, 1).map(|b| b.fill()));
        let p = a.allocate_zeroed(l).map_err(|e| failure(e, 40_000))?;
        // SAFETY: the block has that many bytes; live, of this layout, not used again.
        let zero = unsafe { (0..40_000).all(|i| p.cast::<u8>().as_ptr().add(i).read() == 0) };
        // SAFETY: as above.
        unsafe { a.deallocate(p.cast(), l) };
        if zero { Ok("zero, reused or not".to_owned()) } else { Err("not zero".to_owned().into()) }
    });
    r.add(G, "zeroed", zeroed);
    for f in [ForkPolicy::Keep, ForkPolicy::DontFork, ForkPolicy::WipeOnFork] {
        r.add(G, format!("fork policy {f:?}"), pinned(|b| b.fork_policy(f)).and_then(|a| one(&a, size, 1)));
    }
    r.add(G, "left out of core dumps", pinned(|b| b.dump(false)).and_then(|a| one(&a, size, 1)));
    if max >= 4 * MIB {
        r.add(
            G,
            "4 MiB without huge pages",
            pinned(|b| b.huge_pages(HugePages::Never)).and_then(|a| one(&a, 4 * MIB, 1)),
        );
    }
    if max >= 64 * MIB {
        r.add(
            G,
            "64 MiB populated by 2 threads",
            pinned(|b| b.populate_threads(2)).and_then(|a| one(&a, 64 * MIB, 1)),
        );
    }
    for p in [Partition::Nearest, Partition::Blocked, Partition::Interleaved] {
        r.add(G, format!("partition {p:?}"), pinned(|b| b.partition(p)).and_then(|a| one(&a, 256 * KIB, 1)));
    }
    trim(0);
}

/// A block resized through `steps`; each step is verified. What a step may do is the policy's.
fn resized(a: &PinnedAlloc, from: usize, align: usize, policy: ReallocPolicy, steps: &[usize]) -> Case {
    let mut b = Held::new(a, from, align)?;
    let (mut moved, mut found) = (0, b.verify()?);
    for &to in steps {
        let (old, at) = (b.layout.size(), b.ptr);
        b.fill();
        let before = a.info(at);
        // SAFETY: a live block of this allocator and layout.
        match unsafe { a.realloc(at, b.layout, to, policy) } {
            Ok(p) => {
                moved += usize::from(p.cast::<u8>() != at);
                (b.ptr, b.layout) = (p.cast(), layout(to, align));
                b.kept(old, old.min(to))?;
                found = b.verify()?;
            }
            Err(e) => {
                if a.info(at) != before {
                    return Err(format!("to {to}: failed, and the block has changed").into());
                }
                b.kept(old, old)?;
                b.verify()?;
                return match e {
                    Error::NoRoom { .. } if policy == ReallocPolicy::Fixed => {
                        Ok(format!("no room for {} in place; the block is as it was", bytes(to as u64)))
                    }
                    e => Err(failure(e, to.saturating_sub(old))),
                };
            }
        }
    }
    if moved != 0 && policy == ReallocPolicy::Fixed {
        return Err("a Fixed block moved".to_owned().into());
    }
    Ok(format!("{found}; {moved} of {} steps moved it", steps.len()))
}

fn realloc(r: &mut Report, max: usize) {
    use ReallocPolicy::{Fixed, MayMove};
    const G: &str = "realloc";
    let doubling = |from: usize, to: usize| -> Vec<usize> {
        std::iter::successors(Some(from * 2), |n| Some(n * 2)).take_while(|&n| n <= to).collect()
    };
    let top = max.min(64 * MIB);
    let up = doubling(4096, top);
    let reserve = |n: usize| pinned(move |b| b.realloc_policy(Fixed).reserve(Reserve::Bytes(n)));
    let name = |what: &str, n: usize| format!("{what} {}", bytes(n as u64));
    for to in [64 * KIB, top] {
        let steps = doubling(4096, to);
        r.add(
            G,
            name("MayMove, 4 KiB to", to),
            pinned(|b| b).and_then(|a| resized(&a, 4096, 1, MayMove, &steps)),
        );
        trim(0);
        r.add(
            G,
            name("Fixed, reserved, 4 KiB to", to),
            reserve(to).and_then(|a| resized(&a, 4096, 1, Fixed, &steps)),
        );
        trim(0);
    }
    r.add(
        G,
        "Fixed beyond its reservation",
        reserve(64 * KIB).and_then(|a| resized(&a, 8192, 1, Fixed, &[64 * KIB, 65 * KIB])),
    );
    r.add(
        G,
        "Fixed without a reservation",
        pinned(|b| b).and_then(|a| resized(&a, 32 * KIB, 1, Fixed, &up[4..6])),
    );
    let down = [20 * KIB, 5000, 4096, 100, 1];
    r.add(
        G,
        "MayMove, 40 KiB down to 1 B",
        pinned(|b| b).and_then(|a| resized(&a, 40 * KIB, 1, MayMove, &down)),
    );
    r.add(
        G,
        "Fixed, 40 KiB down and up again",
        reserve(40 * KIB).and_then(|a| resized(&a, 40 * KIB, 1, Fixed, &[100, 40 * KIB])),
    );
    r.add(
        G,
        "MayMove through small classes",
        pinned(|b| b).and_then(|a| resized(&a, 1, 1, MayMove, &[17, 200, 3000, 9000, 40])),
    );
    if max >= 8 * MIB {
        r.add(
            G,
            "MayMove keeps 2 MiB alignment",
            pinned(|b| b).and_then(|a| resized(&a, 2 * MIB, 2 * MIB, MayMove, &[4 * MIB, 7 * MIB, 3 * MIB])),
        );
    }
    let ahead = pinned(|b| b.lock_ahead(64 * KIB)).and_then(|a| {
        let steps: Vec<_> = (9..40).map(|i| i * 4096).collect();
        let found = resized(&a, 8 * 4096, 1, MayMove, &steps)?;
        Ok(format!("{found}; {} calls of mlock so far", process_stats().lock_calls))
    });
    r.add(G, "page by page, locking ahead", ahead);
    trim(0);
}

fn pools(r: &mut Report, _max: usize) {
    const G: &str = "pool_size";
    let exact = pinned(|b| b.pinned(false).pool_size(4096)).and_then(|a| {
        let b = Held::new(&a, 4096, 1)?;
        match a.allocate(layout(1, 1)) {
            Err(Error::Pool { pool_size: 4096, used: 4096, asked: 1 }) => {}
            x => return Err(format!("one byte more: {x:?}").into()),
        }
        drop(b);
        Held::new(&a, 4096, 1).map(|_| "serves 4096 bytes, then none, then again".to_owned())
    });
    r.add(G, "a pool of 4096 B", exact);
    let threads = pinned(|b| b.pinned(false).pool_size(100_000)).and_then(|a| {
        let worst = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let a = a.clone();
                    s.spawn(move || {
                        let mut worst = 0;
                        for i in 0..5000usize {
                            if let Ok(b) = Held::new(&a, 1 + i * 7919 % 40_000, 1) {
                                worst = worst.max(a.info(b.ptr).map_or(usize::MAX, |i| i.pool_used));
                            }
                        }
                        worst
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap_or(usize::MAX)).max().unwrap_or(0)
        });
        if worst > 100_000 || a.stats().requested != 0 {
            Err(format!("{worst} bytes of 100000").into())
        } else {
            Ok(format!("at most {worst} bytes in use"))
        }
    });
    r.add(G, "100000 B under 4 threads", threads);
}

/// Pages of a block by node.
fn by_node(b: &Held<'_>) -> Vec<(i32, usize)> {
    let mut count = std::collections::BTreeMap::new();
    let _ = procfs::page_nodes(b.ptr.as_ptr() as usize, b.layout.size(), &mut |_, n| {
        *count.entry(n).or_insert(0) += 1
    });
    count.into_iter().collect()
}

fn shares(b: &Held<'_>) -> String {
    let all: Vec<_> = by_node(b).iter().map(|(n, c)| format!("node {n}: {c}")).collect();
    all.join(", ")
}

/// All pages lie on `nodes`.
fn lies_on(b: &Held<'_>, nodes: NodeSet) -> Case {
    let stray = by_node(b).iter().any(|&(n, _)| !u8::try_from(n).is_ok_and(|n| nodes.contains(n)));
    if stray { Err(format!("wanted {nodes}: {}", shares(b)).into()) } else { Ok(shares(b)) }
}

/// Every node has its part, give or take `grain` pages.
fn spread(b: &Held<'_>, nodes: NodeSet, grain: usize) -> Case {
    let part = b.layout.size() / 4096 / nodes.len().max(1);
    let even = |&(_, c): &(i32, usize)| c + grain >= part && c <= part + grain;
    let got = by_node(b);
    if got.len() == nodes.len() && got.iter().all(even) {
        Ok(shares(b))
    } else {
        Err(format!("wanted {part} each: {}", shares(b)).into())
    }
}

fn placement(r: &mut Report, max: usize) {
    const G: &str = "placement (pages by node)";
    if Topology::read(c"/sys").memory_nodes().len() < 2 {
        r.add(G, "one node", Ok("every memory space is the default one".to_owned()));
        return;
    }
    let (small, large) = (MIB, (16 * MIB).min(max));
    let build =
        |s: MemSpace, p: Partition| pinned(move |b| b.mem_space(s).partition(p).huge_pages(HugePages::Never));
    for (name, s) in
        [("high_bw", MemSpace::HighBw), ("low_lat", MemSpace::LowLat), ("large_cap", MemSpace::LargeCap)]
    {
        let a = build(s, Partition::Environment);
        r.add(G, name, a.and_then(|a| lies_on(&Held::new(&a, large, 1)?, s.nodes())));
        for policy in [ReallocPolicy::MayMove, ReallocPolicy::Fixed] {
            let grown =
                pinned(|b| b.mem_space(s).reserve(Reserve::Bytes(large)).huge_pages(HugePages::Never));
            let grown = grown.and_then(|a| lies_on(&grow(&a, small, large, policy)?, s.nodes()));
            r.add(G, format!("{name}, grown under {policy:?}"), grown);
        }
    }
    let nodes = MemSpace::Default.nodes();
    for (p, name) in [(Partition::Interleaved, "interleaved"), (Partition::Blocked, "blocked")] {
        r.add(G, name, build(MemSpace::Default, p).and_then(|a| spread(&Held::new(&a, large, 1)?, nodes, 1)));
        for policy in [ReallocPolicy::MayMove, ReallocPolicy::Fixed] {
            let a = pinned(|b| b.partition(p).reserve(Reserve::Bytes(large)).huge_pages(HugePages::Never));
            let grown = a.and_then(|a| spread(&grow(&a, small, large, policy)?, nodes, 2));
            r.add(G, format!("{name}, grown under {policy:?}"), grown);
        }
    }
    let a = pinned(|b| b.partition(Partition::Interleaved).part_size(64 * KIB).huge_pages(HugePages::Never));
    r.add(G, "interleaved, part_size 64 KiB", a.and_then(|a| spread(&Held::new(&a, large, 1)?, nodes, 16)));
    trim(0);
}

/// A block of `from` bytes, grown to `to`.
fn grow<'a>(a: &'a PinnedAlloc, from: usize, to: usize, policy: ReallocPolicy) -> Result<Held<'a>, Failure> {
    let mut b = Held::new(a, from, 1)?;
    // SAFETY: a live block of this allocator and layout.
    match unsafe { a.realloc(b.ptr, b.layout, to, policy) } {
        Ok(p) => (b.ptr, b.layout) = (p.cast(), layout(to, 1)),
        Err(e) => return Err(failure(e, to - from)),
    }
    Ok(b)
}

fn end(r: &mut Report) {
    trim(0);
    let s = process_stats();
    let left = match accounts() {
        Ok(0) if s.live_blocks == 0 && s.mapped == 0 => {
            Ok("nothing of the crate is locked or mapped".to_owned())
        }
        Ok(n) => Err(Failure::Broken(format!("{n} bytes are still locked, {} mapped", s.mapped))),
        Err(e) => Err(e),
    };
    r.add("at the end", "all freed, trim(0)", left);
    r.add("at the end", "most locked at once", Ok(bytes(s.locked_peak as u64)));
    set_cache_limit(64 * MIB);
}
