//! `Allocator` at work: allocator-api2's `Vec` and `Box`, hashbrown's maps.

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use hashbrown::{DefaultHashBuilder, HashMap};
use pinned_alloc::traits::Fallback;
use pinned_alloc::{PinnedAlloc, ReallocPolicy, Reserve};
use std::alloc::Layout;
use std::ptr::NonNull;

/// Pinned as far as the lock limit goes.
fn prefer() -> PinnedAlloc {
    PinnedAlloc::builder().fallback(Fallback::DefaultMem).build().unwrap()
}

#[test]
fn a_vec_grows_shrinks_and_is_freed() {
    let a = prefer();
    let mut v = Vec::new_in(a.clone());
    v.extend(0..100_000u64);
    assert!(v.iter().copied().eq(0..100_000));
    assert_eq!(a.info(NonNull::from(&mut v[0]).cast()).unwrap().requested, v.capacity() * 8);
    v.truncate(10);
    v.shrink_to_fit();
    assert_eq!((v.capacity(), a.stats().requested), (10, 80));
    assert_eq!(v, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let mut w = v.clone();
    w.push(10);
    assert_eq!(a.stats().live_blocks, 2);
    drop((v, w));
    assert_eq!((a.stats().live_blocks, a.stats().requested), (0, 0));
}

#[test]
fn a_fixed_vec_stays_where_it_is_or_says_that_it_cannot_grow() {
    let a = PinnedAlloc::builder()
        .pinned(false)
        .realloc_policy(ReallocPolicy::Fixed)
        .reserve(Reserve::Bytes(1 << 20))
        .build()
        .unwrap();
    let mut v: Vec<u8, _> = Vec::with_capacity_in(5000, a);
    let at = v.as_ptr();
    while v.try_reserve(v.capacity() + 1).is_ok() {
        v.resize(v.capacity(), 1);
        assert_eq!(v.as_ptr(), at);
    }
    assert!(v.len() > 500_000 && v.iter().all(|&b| b == 1));
}

#[test]
fn boxes_and_blocks_of_no_bytes() {
    let a = prefer();
    let b = Box::new_in([7u64; 1000], a.clone());
    assert!(b.iter().all(|&x| x == 7));
    let z = Box::new_in((), a.clone());
    assert_eq!(a.stats().live_blocks, 1);
    drop((b, z));
    // SAFETY: the trait's own contract, step by step: each block is live, of this allocator, and of that layout.
    unsafe {
        let (none, some) = (Layout::new::<()>(), Layout::new::<[u32; 1000]>());
        let p = Allocator::allocate(&a, none).unwrap();
        let q = a.grow_zeroed(p.cast(), none, some).unwrap();
        assert!((0..4000).all(|i| q.cast::<u8>().as_ptr().add(i).read() == 0));
        let r = a.shrink(q.cast(), some, none).unwrap();
        assert_eq!((r.len(), a.stats().live_blocks), (0, 0));
        Allocator::deallocate(&a, r.cast(), none);
    }
}

#[test]
fn clones_are_equivalent_and_blocks_outlive_them() {
    let a = prefer();
    let l = Layout::from_size_align(1000, 64).unwrap();
    let p = Allocator::allocate(&a, l).unwrap().cast::<u8>();
    let b = a.clone();
    assert_eq!(a, b);
    drop(a);
    // SAFETY: a live block of an equivalent allocator, of that layout.
    unsafe {
        let bigger = Layout::from_size_align(90_000, 64).unwrap();
        let q = b.grow(p, l, bigger).unwrap().cast::<u8>();
        b.deallocate(q, bigger);
    }
}

#[test]
fn a_hash_map_of_strings() {
    let a = prefer();
    let mut m: HashMap<u64, u64, DefaultHashBuilder, _> = HashMap::new_in(a.clone());
    for i in 0..20_000 {
        m.insert(i, i * i);
    }
    m.retain(|k, _| k % 7 == 0);
    m.shrink_to_fit();
    assert!(m.iter().all(|(k, v)| k * k == *v) && m.len() == 2858);
    assert_eq!(a.stats().live_blocks, 1);
    drop(m);
    assert_eq!(a.stats().live_blocks, 0);
}

#[cfg(feature = "allocator-api2-04")]
#[test]
fn the_other_line_of_allocator_api2() {
    use allocator_api2_04::vec::Vec;
    let a = prefer();
    let mut v = Vec::new_in(a.clone());
    v.extend(0..50_000u32);
    v.shrink_to(100);
    assert!(v.iter().copied().eq(0..50_000) && a.stats().live_blocks == 1);
    drop(v);
    assert_eq!(a.stats().live_blocks, 0);
}
