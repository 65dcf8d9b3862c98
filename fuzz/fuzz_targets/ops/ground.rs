//! What the programs run on: the process's lock limit, and the partitioners they use.

use pinned_alloc::MemSpace;
use pinned_alloc::partition::MemPartition;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// `RLIMIT_MEMLOCK`, in bytes.
pub(crate) const LOCK_LIMIT: u64 = 48 << 20;
pub(crate) const CACHE_LIMIT: usize = 64 << 20;

/// From the start the lock limit counts, also for root, and is low.
pub fn give_up_ipc_lock() {
    #[repr(C)]
    struct Header(u32, i32);
    const IPC_LOCK: u32 = 1 << 14;
    let header = Header(0x2008_0522, 0);
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: capget(2) and capset(2) of version 3 read a header and read or write two structures of three words.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw const header, sets.as_mut_ptr()), 0);
        sets[0][0] &= !IPC_LOCK;
        sets[0][1] &= !IPC_LOCK;
        assert_eq!(libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()), 0);
    }
    let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls on a local.
    unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut l);
        l.rlim_max = l.rlim_max.min(LOCK_LIMIT);
        l.rlim_cur = l.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &l), 0);
    }
}

/// Sets the soft limit, as far as the hard one goes; gives what it is now.
pub(crate) fn soft_limit(bytes: u64) -> usize {
    let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls on a local.
    unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut l);
        l.rlim_cur = bytes.min(l.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &l), 0);
    }
    l.rlim_cur as usize
}

pub(crate) static COMPUTED: AtomicUsize = AtomicUsize::new(0);
pub(crate) static RELEASED: AtomicUsize = AtomicUsize::new(0);

/// Up to `arg` parts of about the same size.
pub(crate) fn good(_: MemSpace, size: usize, arg: usize, p: &mut MemPartition) {
    COMPUTED.fetch_add(1, Relaxed);
    let pages = size / 4096;
    let n = arg.clamp(1, 200).min(pages);
    p.init(n, arg).expect("a number of parts that is allowed");
    for i in 0..n {
        let len = if i + 1 == n { pages - i * (pages / n) } else { pages / n };
        p.set_part(i, i % p.resources(), len * 4096).expect("a part of whole pages");
    }
    assert_eq!(p.user_data(), arg);
}

/// Parts that are a page too few.
pub(crate) fn short(_: MemSpace, size: usize, _: usize, p: &mut MemPartition) {
    COMPUTED.fetch_add(1, Relaxed);
    p.init(1, 0).expect("one part");
    assert!(p.set_part(1, 0, 4096).is_err() && p.set_part(0, 1 << 20, 4096).is_err());
    // Of a single page nothing is left, and a part of nothing is refused.
    assert_eq!(p.set_part(0, 0, size - 4096).is_ok(), size > 4096);
}

/// No parts.
pub(crate) fn none(_: MemSpace, _: usize, _: usize, p: &mut MemPartition) {
    COMPUTED.fetch_add(1, Relaxed);
    assert!(p.init(0, 0).is_err() && p.init(257, 0).is_err());
}

pub(crate) fn release(_: &mut MemPartition) {
    RELEASED.fetch_add(1, Relaxed);
}
