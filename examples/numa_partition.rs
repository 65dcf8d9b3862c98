//! Blocks spread over the nodes of a NUMA machine: blocked, interleaved, and as a partitioner of the program decides.
//!
//! `cargo run --release --example numa_partition`

use pinned_alloc::os::procfs;
use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
use pinned_alloc::traits::{Fallback, Partition};
use pinned_alloc::{Error, HugePages, MemSpace, PinnedAlloc};
use std::alloc::Layout;
use std::collections::BTreeMap;

/// A quarter on the last node, the rest on the first: a halo that another device reads often, say.
fn quarter_last(_space: MemSpace, size: usize, _arg: usize, parts: &mut MemPartition) {
    let last = (size / 4) & !4095;
    if last != 0 && parts.init(2, 0).is_ok() {
        // A part that a resource cannot have leaves the partition incomplete: the request then falls back.
        let _ = parts.set_part(0, 0, size - last);
        let _ = parts.set_part(1, parts.resources() - 1, last);
    }
}

fn main() {
    if let Err(e) = run() {
        println!("{e}");
    }
}

fn run() -> Result<(), Error> {
    let nodes = MemSpace::Default.nodes();
    println!("memory nodes: {nodes}");
    if nodes.len() == 1 {
        println!("one node: everything lies on it, whatever is asked for");
    }
    let custom = MemPartitioner::new(Lifetime::Allocator, quarter_last, None)?;
    let layout = Layout::from_size_align(4 << 20, 4096).unwrap();
    for (name, partition) in [
        ("environment", Partition::Environment),
        ("nearest", Partition::Nearest),
        ("blocked", Partition::Blocked),
        ("interleaved", Partition::Interleaved),
        ("partitioner", Partition::Partitioner(custom)),
    ] {
        let alloc = PinnedAlloc::builder()
            .partition(partition)
            .huge_pages(HugePages::Never)
            .fallback(Fallback::DefaultMem)
            .build()?;
        let block = alloc.allocate_zeroed(layout)?.cast::<u8>();
        // Where it is not pinned (the lock limit), pages come at first touch.
        // SAFETY: the block has that many bytes.
        unsafe { block.as_ptr().write_bytes(0, layout.size()) };
        let mut pages: BTreeMap<i32, usize> = BTreeMap::new();
        let at = block.as_ptr() as usize;
        let asked =
            procfs::page_nodes(at, layout.size(), &mut |_, node| *pages.entry(node).or_default() += 1);
        match asked {
            Ok(()) => println!("{name:<12} pinned: {:<5} pages by node: {pages:?}", alloc.is_pinned(block)),
            Err(errno) => println!("{name:<12} the kernel does not tell where pages are (errno {errno})"),
        }
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { alloc.deallocate(block, layout) };
    }
    custom.destroy();
    Ok(())
}
