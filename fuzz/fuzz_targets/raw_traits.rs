//! Raw `(key, value)` pairs, as a C caller passes them: [`Traits::from_raw`] and `init_allocator` agree with each
//! other and with a table of what each trait may be; what is accepted makes an allocator that serves, grows and
//! frees a block as its traits say.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
use pinned_alloc::traits::{Fallback, Partition, value};
use pinned_alloc::{AllocatorHandle, Error, MemSpace, TraitError, Traits, process_stats, routines, trim};
use pinned_alloc_fuzz::Bytes;
use std::sync::OnceLock;

/// A partitioner that gives everything to the first resource.
fn whole(_: MemSpace, size: usize, _: usize, p: &mut MemPartition) {
    p.init(1, 0).expect("one part");
    p.set_part(0, 0, size).expect("a space has a resource");
}

fn partitioner() -> MemPartitioner {
    static P: OnceLock<MemPartitioner> = OnceLock::new();
    *P.get_or_init(|| MemPartitioner::new(Lifetime::Allocator, whole, None).expect("the first one"))
}

fn pair(b: &mut Bytes) -> (i32, usize) {
    let key = match b.byte() {
        k @ 0..=19 => i32::from(k),
        20 => b.word() as i32,
        k => i32::from(k % 16) + 1,
    };
    let value = match b.byte() {
        v @ 0..=30 => usize::from(v),
        31..=60 => 1 << b.below(64),
        61..=70 => b.half(),
        71..=75 => partitioner().raw(),
        76..=80 => AllocatorHandle::GNU_PINNED_MEM.raw(),
        81..=100 => value::DEFAULT,
        101..=104 => 0xffff_ffff,
        105..=140 => b.word(),
        v => usize::from(v % 24),
    };
    (key, value)
}

/// Whether the trait may have the value, from the tables of the specification.
fn may_be(key: i32, v: usize) -> bool {
    if v == value::DEFAULT {
        return (1..=16).contains(&key);
    }
    match key {
        1 => (3..=6).contains(&v),
        2 => v.is_power_of_two() && v <= 1 << 30,
        3 => matches!(v, 7..=10 | 19 | 22),
        4 | 14 => v != 0,
        5 => (11..=14).contains(&v),
        6 | 11 | 16 => true,
        7 => v <= 1,
        8 => matches!(v, 15..=18 | 23),
        9 | 10 => v == 0 || v == 0xffff_ffff,
        12 => v == 20 || v == 21,
        13 => v == 7 || v == 19,
        15 => v == partitioner().raw(),
        _ => false,
    }
}

/// The last value of a key, unless it is the default.
fn last(pairs: &[(i32, usize)], key: i32) -> Option<usize> {
    pairs.iter().rev().find(|p| p.0 == key).map(|p| p.1).filter(|&v| v != value::DEFAULT)
}

fn expected(pairs: &[(i32, usize)]) -> Result<(), TraitError> {
    for &(key, value) in pairs {
        if !may_be(key, value) {
            let known = (1..=16).contains(&key);
            return Err(if known { TraitError::Value { key, value } } else { TraitError::Key { key } });
        }
    }
    if last(pairs, 5) == Some(value::ALLOCATOR_FB) && last(pairs, 6).is_none() {
        return Err(TraitError::MissingFbData);
    }
    if last(pairs, 8) == Some(value::PARTITIONER) && last(pairs, 15).is_none() {
        return Err(TraitError::MissingPartitioner);
    }
    Ok(())
}

/// The order of pairs with different keys means nothing, and of pairs with one key the last one counts.
fn check_order(pairs: &[(i32, usize)], t: &Traits) {
    let mut once: Vec<(i32, usize)> = Vec::new();
    for &(k, v) in pairs.iter().rev() {
        if once.iter().all(|p| p.0 != k) {
            once.push((k, v));
        }
    }
    assert_eq!(Traits::from_raw(once.iter().copied()), Ok(*t));
    once.reverse();
    assert_eq!(Traits::from_raw(once.iter().copied()), Ok(*t));
    // Everything to its default.
    let all = once.iter().copied().chain((1..=16).map(|k| (k, value::DEFAULT)));
    assert_eq!(Traits::from_raw(all), Ok(Traits::default()));
}

/// A block's life under `t`. `size` and `more` are below 1 MiB and not 0.
fn serve(h: AllocatorHandle, t: &Traits, size: usize, more: usize) {
    let pool = t.pool_size.unwrap_or(usize::MAX);
    // Under abort_fb only what is certain to be served may be asked.
    if t.fallback == Fallback::Abort && size.max(more) > pool {
        return;
    }
    let fits = |n: usize| n <= pool;
    let p = match routines::alloc(size, h) {
        Ok(p) => p,
        Err(e) => {
            assert!(!fits(size) && !matches!(t.fallback, Fallback::DefaultMem), "{e}");
            match t.fallback {
                Fallback::Null => {
                    assert_eq!(e, Error::Pool { pool_size: pool, used: 0, asked: size });
                }
                // A handle that nobody has, or (by a guess) its own.
                Fallback::Allocator(f) if f == h => assert_eq!(e, Error::FallbackCycle),
                Fallback::Allocator(f) => assert_eq!(e, Error::FallbackGone { handle: f }),
                _ => panic!("{e}"),
            }
            return;
        }
    };
    let aligned = t.alignment.get().max(16);
    let info = |p: *mut u8| pinned_alloc::PinnedAlloc::from_handle(h).unwrap().info(p.try_into_nn()).unwrap();
    let i = info(p);
    assert_eq!((p.addr() % aligned, i.requested, i.asked_of), (0, size, h));
    assert_eq!(i.served_by == h, fits(size));
    assert!(i.served_by != h || i.is_pinned() == t.pinned);
    // SAFETY: the block has `size` bytes, is live and ours.
    unsafe { p.write_bytes(0x5a, size) };
    // SAFETY: as above; what comes back replaces it.
    match unsafe { routines::realloc(p, more, AllocatorHandle::NULL, h) } {
        Ok(q) => {
            let i = info(q);
            assert_eq!((q.addr() % aligned, i.requested, i.asked_of), (0, more, h));
            assert_eq!(i.served_by == h, fits(more));
            // SAFETY: the block has `more` bytes, is live and ours; freed once.
            unsafe {
                for n in [0, size.min(more) / 2, size.min(more) - 1] {
                    assert_eq!(q.add(n).read(), 0x5a);
                }
                routines::free(q, AllocatorHandle::NULL).unwrap();
            }
        }
        Err(e) => {
            assert!(!fits(more), "{e}");
            // SAFETY: a failed realloc leaves the block.
            unsafe { routines::free(p, h).unwrap() };
        }
    }
}

trait TryIntoNn {
    fn try_into_nn(self) -> std::ptr::NonNull<u8>;
}

impl TryIntoNn for *mut u8 {
    fn try_into_nn(self) -> std::ptr::NonNull<u8> {
        std::ptr::NonNull::new(self).expect("a block")
    }
}

fuzz_target!(|data: &[u8]| {
    let mut b = Bytes(data);
    let space = MemSpace::from_raw(b.below(5)).expect("a predefined space");
    let (size, more) = (1 + b.half() * b.below(16), 1 + b.half() * b.below(16));
    let mut pairs = Vec::new();
    while !b.is_empty() && pairs.len() < 40 {
        pairs.push(pair(&mut b));
    }
    let t = Traits::from_raw(pairs.iter().copied());
    assert_eq!(t.err(), expected(&pairs).err(), "{pairs:?}");
    let made = routines::init_allocator(space, pairs.iter().copied());
    let (t, h) = match (t, made) {
        (Ok(t), Ok(h)) => (t, h),
        (Err(e), Err(m)) => return assert_eq!(m, Error::Traits(e)),
        (t, m) => panic!("{t:?} {m:?} {pairs:?}"),
    };
    check_order(&pairs, &t);
    assert_eq!(matches!(t.partition, Partition::Partitioner(_)), last(&pairs, 8) == Some(value::PARTITIONER));
    serve(h, &t, size, more);
    routines::destroy_allocator(h);
    assert_eq!(routines::alloc(1, h), Err(Error::Handle { handle: h }));
    trim(0);
    let s = process_stats();
    assert_eq!((s.live_blocks, s.requested, s.locked, s.mapped, s.cached), (0, 0, 0, 0, 0));
});
