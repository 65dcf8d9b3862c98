//! A `Vec` in pinned memory that grows in place: its address is given away once and stays good.
//!
//! `cargo run --release --example pinned_vec`

use allocator_api2::vec::Vec;
use pinned_alloc::{Error, PinnedAlloc, ReallocPolicy, Reserve, last_error, process_stats, traits::Fallback};

/// Says why a collection could not have memory, and what can be done about it.
fn explain() {
    if let Some(e) = last_error() {
        println!("{e}");
        if let Some(cure) = e.cure() {
            println!("{cure}");
        }
    }
}

fn main() {
    if let Err(e) = run() {
        println!("{e}");
    }
}

fn run() -> Result<(), Error> {
    // Blocks never move, and have 64 MiB of address space to grow into. A new block that cannot be locked is ordinary
    // memory and says so; without the fallback it would be an error. One that is pinned grows pinned, or not at all.
    let alloc = PinnedAlloc::builder()
        .realloc_policy(ReallocPolicy::Fixed)
        .reserve(Reserve::Bytes(64 << 20))
        .fallback(Fallback::DefaultMem)
        .build()?;

    let mut samples: Vec<f32, _> = Vec::new_in(alloc.clone());
    if samples.try_reserve(1000).is_err() {
        println!("no memory for 1000 samples:");
        explain();
        return Ok(());
    }
    let address = samples.as_ptr();
    let block = core::ptr::NonNull::from(&mut samples.spare_capacity_mut()[0]).cast();
    println!("1000 samples at {address:?}, pinned: {}", alloc.is_pinned(block));

    for step in 1..=8 {
        // Under `Fixed` a Vec that cannot grow where it is says so here, and keeps what it has.
        if samples.try_reserve(samples.capacity() * 2).is_err() {
            println!("step {step}: cannot grow; {} samples stay:", samples.len());
            explain();
            break;
        }
        samples.resize(samples.capacity(), step as f32);
        assert_eq!(samples.as_ptr(), address, "it never moves");
        println!(
            "{:>9} samples at the same address, {:>9} bytes locked",
            samples.len(),
            process_stats().locked
        );
    }
    Ok(())
}
