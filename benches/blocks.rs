//! Pairs of allocation and free, with one block kept so that nothing is opened and closed; and the peers of that.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pinned_alloc::PinnedAlloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

fn pairs(c: &mut Criterion) {
    let a = PinnedAlloc::new().unwrap();
    let mut g = c.benchmark_group("pair");
    for size in [16usize, 64, 256, 1024, 4096, 16_384, 65_536, 1 << 20] {
        let l = Layout::from_size_align(size, 8).unwrap();
        let Ok(kept) = a.allocate(l) else { continue };
        g.bench_with_input(BenchmarkId::new("pinned", size), &l, |b, &l| {
            b.iter(|| {
                let p = black_box(a.allocate(l).unwrap());
                // SAFETY: live, of this layout, not used again.
                unsafe { a.deallocate(p.cast(), l) };
            });
        });
        g.bench_with_input(BenchmarkId::new("malloc, not pinned", size), &l, |b, &l| {
            b.iter(|| {
                // SAFETY: the layout is not empty; freed once.
                unsafe {
                    let p = black_box(System.alloc(l));
                    System.dealloc(p, l);
                }
            });
        });
        // SAFETY: live, of this layout, not used again.
        unsafe { a.deallocate(kept.cast(), l) };
    }
    g.finish();
}

criterion_group!(benches, pairs);
criterion_main!(benches);
