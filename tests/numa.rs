//! Where pages lie, by `move_pages`, on any machine.
//!
//! With one node, every space is the default one and every page lies on it. With several, each space lies where the
//! kernel's HMAT figures say, partitions have the right pages a node, and growth keeps both. `.ci/run numa` runs this
//! file on an emulated machine with four nodes (built statically, since nothing else is on it).

use pinned_alloc::os::limits::Limits;
use pinned_alloc::os::procfs;
use pinned_alloc::os::topology::{NodeSet, Topology};
use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
use pinned_alloc::traits::Partition;
use pinned_alloc::{AllocatorBuilder, HugePages, MemSpace, PinnedAlloc, ReallocPolicy, Reserve};
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr::NonNull;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, PAGE).unwrap()
}

/// An allocator of 4 KiB pages, so that counts are exact: pinned if the limit has room for the largest block here.
fn build(f: impl FnOnce(AllocatorBuilder) -> AllocatorBuilder) -> PinnedAlloc {
    let pinned = Limits::read().headroom().is_none_or(|h| h >= 40 * MIB as u64);
    f(AllocatorBuilder::new().pinned(pinned).huge_pages(HugePages::Never)).build().unwrap()
}

fn touch(p: NonNull<u8>, size: usize) {
    for i in (0..size).step_by(PAGE) {
        // SAFETY: within the block.
        unsafe { p.as_ptr().add(i).write(1) };
    }
}

fn by_node(p: NonNull<u8>, size: usize) -> BTreeMap<i32, usize> {
    let mut count = BTreeMap::new();
    procfs::page_nodes(p.as_ptr() as usize, size, &mut |_, n| *count.entry(n).or_insert(0) += 1).unwrap();
    count
}

/// Pages of `[from, from + len)` by node, in order of address, as runs.
fn runs(p: NonNull<u8>, size: usize) -> Vec<(i32, usize)> {
    let mut r: Vec<(i32, usize)> = Vec::new();
    procfs::page_nodes(p.as_ptr() as usize, size, &mut |_, n| match r.last_mut() {
        Some((m, c)) if *m == n => *c += 1,
        _ => r.push((n, 1)),
    })
    .unwrap();
    r
}

fn nodes(s: NodeSet) -> Vec<i32> {
    s.iter().map(i32::from).collect()
}

/// A block, handed to `check` when new and after growth: in a reservation under Fixed, and without one under MayMove.
fn grown(
    what: &str,
    make: impl Fn(AllocatorBuilder) -> AllocatorBuilder,
    check: impl Fn(NonNull<u8>, usize, &str),
) {
    let (small, large) = (4 * MIB, 16 * MIB);
    for policy in [ReallocPolicy::Fixed, ReallocPolicy::MayMove] {
        let a = build(|b| {
            let b = make(b);
            if policy == ReallocPolicy::Fixed { b.reserve(Reserve::Bytes(large)) } else { b }
        });
        let p = a.allocate(layout(small)).unwrap().cast::<u8>();
        touch(p, small);
        println!("{what}: {:?}", by_node(p, small));
        check(p, small, what);
        // SAFETY: a live block of this allocator and layout.
        let q = unsafe { a.realloc(p, layout(small), large, policy) }.unwrap().cast::<u8>();
        touch(q, large);
        println!(
            "{what}, grown under {policy:?} ({}): {:?}",
            if p == q { "in place" } else { "moved" },
            by_node(q, large)
        );
        check(q, large, what);
        // SAFETY: live, of this layout, not used again.
        unsafe { a.deallocate(q, layout(large)) };
    }
}

#[test]
fn spaces_lie_where_hmat_says() {
    let t = Topology::read(c"/sys");
    let all = t.memory_nodes();
    let best = |f: &dyn Fn(u8) -> Option<u64>, largest: bool| -> Vec<i32> {
        let figures: Vec<_> = all.iter().filter_map(|n| Some((n, f(n)?))).collect();
        let top = figures.iter().map(|x| x.1).reduce(|a, b| if largest { a.max(b) } else { a.min(b) });
        match top {
            Some(top) => figures.iter().filter(|x| x.1 == top).map(|x| i32::from(x.0)).collect(),
            None => nodes(all),
        }
    };
    let node = |n: u8| t.node(n).unwrap();
    let bandwidth = best(&|n| node(n).read_bandwidth_mib, true);
    let latency = best(&|n| node(n).read_latency_ns, false);
    for (space, wanted) in [(MemSpace::HighBw, bandwidth), (MemSpace::LowLat, latency)] {
        assert_eq!(nodes(space.nodes()), wanted, "{space:?}");
    }
    for space in [MemSpace::HighBw, MemSpace::LowLat, MemSpace::LargeCap, MemSpace::Default, MemSpace::Const]
    {
        let wanted = nodes(space.nodes());
        grown(
            &format!("{space:?}"),
            |b| b.mem_space(space),
            |p, size, what| {
                let got = by_node(p, size);
                assert!(got.keys().all(|n| wanted.contains(n)), "{what}: {got:?}, wanted {wanted:?}");
            },
        );
        // Small blocks of slabs.
        let a = build(|b| b.mem_space(space));
        let p = a.allocate(Layout::new::<[u8; 100]>()).unwrap().cast::<u8>();
        touch(p, 100);
        assert!(by_node(p, 100).keys().all(|n| wanted.contains(n)));
        // SAFETY: live, of this layout, not used again.
        unsafe { a.deallocate(p, Layout::new::<[u8; 100]>()) };
    }
}

#[test]
fn a_space_is_preferred_and_not_required() {
    let t = Topology::read(c"/sys");
    let space = MemSpace::HighBw;
    let room: u64 = space.nodes().iter().map(|n| t.node(n).unwrap().memory_bytes).sum();
    let others: u64 = t.nodes().map(|n| n.memory_bytes).sum::<u64>() - room;
    // More than the space has, where the rest of the machine has plenty; on other machines an ordinary block.
    let size = if others > 2 * room && room < 1 << 30 { room as usize + 32 * MIB } else { MIB };
    let size = size.next_multiple_of(PAGE);
    let a = build(|b| b.mem_space(space).pinned(Limits::read().headroom().is_none()));
    let p = a.allocate(layout(size)).unwrap().cast::<u8>();
    touch(p, size);
    let got = by_node(p, size);
    println!("{} MiB in a space of {} MiB: {got:?}", size / MIB, room >> 20);
    assert_eq!(got.values().sum::<usize>(), size / PAGE);
    assert!(size == MIB || got.len() > 1, "it spills");
    // SAFETY: live, of this layout, not used again.
    unsafe { a.deallocate(p, layout(size)) };
    pinned_alloc::trim(0);
}

/// Each node has its share, give or take `grain` pages a run of growth.
fn even(got: &BTreeMap<i32, usize>, size: usize, grain: usize, what: &str) {
    let all = nodes(Topology::read(c"/sys").memory_nodes());
    let share = size / PAGE / all.len();
    assert_eq!(got.keys().copied().collect::<Vec<_>>(), all, "{what}: {got:?}");
    assert!(got.values().all(|&c| c + grain >= share && c <= share + grain), "{what}: {got:?}");
}

#[test]
fn interleaved_and_blocked_have_the_right_pages() {
    grown(
        "interleaved",
        |b| b.partition(Partition::Interleaved),
        |p, size, what| {
            even(&by_node(p, size), size, 2, what);
        },
    );
    let part = 16 * PAGE;
    let name = "interleaved, part_size 64 KiB";
    grown(
        name,
        |b| b.partition(Partition::Interleaved).part_size(part),
        |p, size, what| {
            even(&by_node(p, size), size, 32, what);
            let r = runs(p, size);
            // Parts are made larger where there would be more than 256; a part beside one of the same node doubles it.
            let n = Topology::read(c"/sys").memory_nodes().len();
            let least = part.max(size.div_ceil(256)) / PAGE;
            assert!(
                n == 1 || r[..r.len() - 1].iter().all(|&(_, c)| c % 16 == 0 && c <= 2 * least),
                "{what}: {r:?}"
            );
        },
    );
    grown(
        "blocked",
        |b| b.partition(Partition::Blocked),
        |p, size, what| even(&by_node(p, size), size, 2, what),
    );
    // A new block is in as many runs as there are nodes.
    let a = build(|b| b.partition(Partition::Blocked));
    let p = a.allocate(layout(4 * MIB)).unwrap().cast::<u8>();
    touch(p, 4 * MIB);
    assert_eq!(runs(p, 4 * MIB).len(), Topology::read(c"/sys").memory_nodes().len());
    // SAFETY: live, of this layout, not used again.
    unsafe { a.deallocate(p, layout(4 * MIB)) };
}

#[test]
fn nearest_is_where_the_thread_runs() {
    let t = Topology::read(c"/sys");
    // Bound to one CPU after the other, so that "here" does not change under way.
    let mut old = zeroed_set();
    let mut asked = 0;
    // SAFETY: the sets are plain data of the size that is told.
    unsafe {
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut old), 0);
        for cpu in (0..64).filter(|&c| libc::CPU_ISSET(c, &old)).take(8) {
            let mut one = zeroed_set();
            libc::CPU_SET(cpu, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one), 0);
            let here = t.cpu_to_node(cpu).unwrap_or(0);
            let wanted = t.nearest(here, t.memory_nodes()).unwrap();
            let a = build(|b| b.partition(Partition::Nearest));
            for size in [100, MIB] {
                let p = a.allocate(layout(size)).unwrap().cast::<u8>();
                touch(p, size);
                let got = by_node(p, size);
                println!("nearest, CPU {cpu} of node {here}: {got:?}");
                assert_eq!(got.keys().copied().collect::<Vec<_>>(), [i32::from(wanted)]);
                a.deallocate(p, layout(size));
            }
            asked += 1;
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &old);
    }
    assert!(asked != 0);
}

fn zeroed_set() -> libc::cpu_set_t {
    // SAFETY: a cpu_set_t is an array of bits.
    unsafe { std::mem::zeroed() }
}

/// Three quarters on the first resource, one on the last.
fn lopsided(_: MemSpace, size: usize, _: usize, p: &mut MemPartition) {
    let first = (size / 4 * 3).next_multiple_of(PAGE);
    if p.init(2, 0).is_ok() {
        let last = p.resources() - 1;
        let _ = p.set_part(0, 0, first);
        let _ = p.set_part(1, last, size - first);
    }
}

#[test]
fn a_partitioner_decides() {
    let m = MemPartitioner::new(Lifetime::Dynamic, lopsided, None).unwrap();
    let all = nodes(Topology::read(c"/sys").memory_nodes());
    grown(
        "partitioner",
        |b| b.partition(Partition::Partitioner(m)),
        |p, size, what| {
            let got = by_node(p, size);
            assert!(got.keys().all(|n| [all[0], all[all.len() - 1]].contains(n)), "{what}: {got:?}");
            if all.len() > 1 && size == 4 * MIB {
                assert_eq!(runs(p, size), [(all[0], 768), (all[all.len() - 1], 256)]);
            }
        },
    );
    m.destroy();
}
