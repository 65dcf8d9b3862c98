//! A pool of pinned memory, and who serves when it is used up: a second pool, then ordinary memory.
//!
//! `cargo run --release --example pool_fallback`

use pinned_alloc::traits::Fallback;
use pinned_alloc::{Error, PinnedAlloc};
use std::alloc::Layout;

fn main() {
    if let Err(e) = run() {
        println!("{e}"); // by Display; the Debug form that a Result of main prints is for programmers
    }
}

fn run() -> Result<(), Error> {
    // pool ──full or over the lock limit──> spill ──the same──> ordinary memory
    let spill = PinnedAlloc::builder().pool_size(32 << 10).fallback(Fallback::DefaultMem).build()?;
    let pool = PinnedAlloc::builder().pool_size(64 << 10).fallback_to(&spill).build()?;

    let layout = Layout::from_size_align(16 << 10, 64).unwrap();
    let mut blocks = Vec::new();
    for i in 0..8 {
        let block = pool.allocate(layout)?.cast::<u8>();
        let info = pool.info(block).expect("a live block");
        let who = match info.served_by {
            h if h == pool.handle() => "the pool",
            h if h == spill.handle() => "the spill pool",
            _ => "ordinary memory",
        };
        println!("block {i}: served by {who:<15} pinned: {}", info.is_pinned());
        blocks.push(block);
    }
    let s = pool.stats();
    println!(
        "{} blocks asked of the pool, {} served by others, {} bytes locked",
        s.live_blocks, s.fallback_blocks, s.locked
    );
    for b in blocks {
        // SAFETY: live, of this allocator and layout, not used again. Whoever served it: its own allocator frees it.
        unsafe { pool.deallocate(b, layout) };
    }

    // What an error tells: a pool without fallback.
    let strict = PinnedAlloc::builder().pool_size(1000).build()?;
    match strict.allocate(layout) {
        Err(e) => println!("without a fallback: {e}"),
        Ok(_) => unreachable!("a pool of 1000 bytes cannot serve 16 KiB"),
    }
    Ok(())
}
