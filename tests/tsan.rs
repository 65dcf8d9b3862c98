//! A stress for ThreadSanitizer (and without it): threads that allocate, resize, free and pass on blocks of shared
//! allocators, while allocators come and go and idle memory is given back.
//!
//! A plain `main`, a lock of its own and POSIX threads: libtest's channels, std's mutex where it is contended and the
//! reference counts of its threads are compiled without the sanitizer's instrumentation and give false alarms.

use pinned_alloc::traits::Fallback;
use pinned_alloc::{
    AllocatorBuilder, AllocatorHandle, PinnedAlloc, ReallocPolicy, Reserve, os::procfs, process_stats,
    routines, trim,
};
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

struct Block(NonNull<u8>, Layout, u8);
// SAFETY: a block may be used and freed by any thread; it has one owner at a time.
unsafe impl Send for Block {}

/// Blocks on their way from one thread to another.
struct Post {
    busy: AtomicBool,
    blocks: UnsafeCell<Vec<(usize, Block)>>,
}
// SAFETY: `with` lets one thread in at a time.
unsafe impl Sync for Post {}

impl Post {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<(usize, Block)>) -> R) -> R {
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: `busy` was taken by this thread.
        let r = f(unsafe { &mut *self.blocks.get() });
        self.busy.store(false, Ordering::Release);
        r
    }
}

/// Runs `f(0)` .. `f(n - 1)`, a thread each, and waits for them.
fn in_threads<F: Fn(usize) + Sync>(n: usize, f: &F) {
    extern "C" fn start<F: Fn(usize)>(arg: *mut c_void) -> *mut c_void {
        // SAFETY: the pair lives until this thread has been joined.
        let (f, i) = unsafe { &*arg.cast::<(&F, usize)>() };
        f(*i);
        std::ptr::null_mut()
    }
    let args: Vec<(&F, usize)> = (0..n).map(|i| (f, i)).collect();
    let mut ids = vec![0; n];
    for (id, arg) in ids.iter_mut().zip(&args) {
        // SAFETY: `start` gets what it expects, alive until the join below.
        let r = unsafe {
            libc::pthread_create(id, std::ptr::null(), start::<F>, (&raw const *arg).cast_mut().cast())
        };
        assert_eq!(r, 0);
    }
    for id in ids {
        // SAFETY: created above, joined once.
        assert_eq!(unsafe { libc::pthread_join(id, std::ptr::null_mut()) }, 0);
    }
}

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

impl Block {
    fn fill(&self) {
        for i in (0..self.1.size()).step_by(509) {
            // SAFETY: within the block.
            unsafe { self.0.as_ptr().add(i).write(self.2) };
        }
    }

    fn check(&self, upto: usize) {
        for i in (0..upto.min(self.1.size())).step_by(509) {
            // SAFETY: within the block.
            assert_eq!(unsafe { self.0.as_ptr().add(i).read() }, self.2);
        }
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

fn work(n: usize, rounds: usize, allocators: &[PinnedAlloc], post: &Post) {
    let mut r = Rng(0x9e37_79b9_7f4a_7c15 ^ (n as u64 + 1) << 32);
    let mut mine: Vec<(usize, Block)> = Vec::new();
    let free = |(a, b): (usize, Block)| {
        b.check(usize::MAX);
        // SAFETY: live, of this allocator and layout, not used again.
        unsafe { allocators[a].deallocate(b.0, b.1) };
    };
    for _ in 0..rounds {
        match r.below(10) {
            0..4 => {
                let a = r.below(allocators.len());
                let l = layout([1 + r.below(200), 1 + r.below(9000), 1 + r.below(120_000)][r.below(3)]);
                if let Ok(p) = allocators[a].allocate(l) {
                    let b = Block(p.cast(), l, r.below(256) as u8);
                    b.fill();
                    mine.push((a, b));
                }
            }
            4..6 if !mine.is_empty() => {
                let i = r.below(mine.len());
                let size = 1 + r.below(100_000);
                let policy = if r.below(3) == 0 { ReallocPolicy::Fixed } else { ReallocPolicy::MayMove };
                let (a, b) = &mut mine[i];
                // SAFETY: a live block of this allocator and layout.
                if let Ok(p) = unsafe { allocators[*a].realloc(b.0, b.1, size, policy) } {
                    let old = b.1.size();
                    (b.0, b.1) = (p.cast(), layout(size));
                    b.check(old);
                    b.fill();
                }
            }
            6 if !mine.is_empty() => {
                let b = mine.swap_remove(r.below(mine.len()));
                post.with(|p| p.push(b));
            }
            7 => {
                let b = post.with(Vec::pop);
                b.into_iter().for_each(free);
            }
            8 => match r.below(20) {
                0 => drop(trim(r.below(2) * 100_000)),
                1 => assert!(process_stats().allocators >= allocators.len()),
                2 => {
                    let h = AllocatorBuilder::new().pinned(true).into_handle().unwrap();
                    let p = routines::alloc(64, h).unwrap_or(std::ptr::null_mut());
                    routines::destroy_allocator(h);
                    // SAFETY: null or a live block; its allocator's end does not end it.
                    unsafe { routines::free(p, AllocatorHandle::NULL).unwrap() };
                }
                _ => {}
            },
            _ if !mine.is_empty() => free(mine.swap_remove(r.below(mine.len()))),
            _ => {}
        }
    }
    mine.into_iter().for_each(free);
}

/// Short-lived allocators of all kinds, whose heaps pass from one to the next while others ask for figures.
fn come_and_go(n: usize, rounds: usize) {
    for i in 0..rounds {
        if n < 2 {
            let b = AllocatorBuilder::new().pinned((i + n).is_multiple_of(2)).fallback(Fallback::DefaultMem);
            let b = if i.is_multiple_of(3) { b.pool_size(100_000) } else { b };
            let a = b.build().unwrap();
            let p = a.allocate(layout(64)).unwrap().cast();
            assert!(a.info(p).unwrap().pool_used >= 64);
            // SAFETY: live, of this allocator and layout, not used again.
            unsafe { a.deallocate(p, layout(64)) };
        } else {
            assert!(process_stats().lock_calls > 0);
        }
    }
}

fn main() {
    let rounds = std::env::var("ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(4000);
    let base = procfs::vm_locked().unwrap();
    for _ in 0..3 {
        let build = |b: AllocatorBuilder| b.fallback(Fallback::DefaultMem).build().unwrap();
        let allocators = [
            build(PinnedAlloc::builder()),
            build(AllocatorBuilder::new()),
            build(PinnedAlloc::builder().pool_size(200_000)),
            build(PinnedAlloc::builder().reserve(Reserve::Times(4)).lock_ahead(16 << 10)),
        ];
        let post = Post { busy: AtomicBool::new(false), blocks: UnsafeCell::new(Vec::new()) };
        in_threads(4, &|n| work(n, rounds, &allocators, &post));
        for (a, b) in post.blocks.into_inner() {
            b.check(usize::MAX);
            // SAFETY: live, of this allocator and layout, not used again.
            unsafe { allocators[a].deallocate(b.0, b.1) };
        }
        drop(allocators);
        trim(0);
        let s = process_stats();
        assert_eq!((s.locked, s.mapped, s.live_blocks), (0, 0, 0));
        assert_eq!(procfs::vm_locked().unwrap(), base);
    }
    in_threads(4, &|n| come_and_go(n, rounds / 4));
    println!("test result: ok. 1 passed; 0 failed (stress of 4 threads, {rounds} rounds each)");
}
