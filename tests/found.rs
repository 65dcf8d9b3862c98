//! What the fuzz targets found (see `fuzz/`), each as the shortest program that shows it.

use pinned_alloc::traits::{Access, Fallback};
use pinned_alloc::{AllocatorBuilder, AllocatorHandle, Error, routines};

/// Frees a block.
fn free(p: *mut u8) {
    // SAFETY: every block of these tests is freed once, by this, and not used again.
    unsafe { routines::free(p, AllocatorHandle::NULL).expect("a live block") };
}

/// A thread that came to an allocator by a fallback took over the pool of a thread that had ended, though it had
/// one of its own: twice the pool.
#[test]
fn a_thread_has_one_pool_however_it_comes() {
    let own = AllocatorBuilder::new().access(Access::Thread).pool_size(1000).fallback(Fallback::Null);
    let own = own.into_handle().unwrap();
    let other =
        AllocatorBuilder::new().pool_size(1).fallback(Fallback::Allocator(own)).into_handle().unwrap();
    let p = routines::alloc(600, own).unwrap();
    std::thread::spawn(move || free(routines::alloc(1000, own).unwrap())).join().unwrap();
    let refused = Err(Error::Pool { pool_size: 1000, used: 600, asked: 401 });
    assert_eq!(routines::alloc(401, other), refused);
    let q = routines::alloc(400, other).unwrap();
    assert_eq!(routines::alloc(1, own), Err(Error::Pool { pool_size: 1000, used: 1000, asked: 1 }));
    free(p);
    free(q);
    routines::destroy_allocator(other);
    routines::destroy_allocator(own);
}
