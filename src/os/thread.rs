//! Threads: numbers for them that are never used twice, and helpers that populate memory.

use super::call::{Call, OsError, injected};
use super::mem;
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// How many threads may be told apart as "still running" at once; further ones count as running for ever.
const TRACKED: usize = 4096;
/// In a slot: a thread whose end nobody will tell.
const UNTRACKED: u64 = u64::MAX - 1;
static RUNNING: [AtomicU64; TRACKED] = [const { AtomicU64::new(0) }; TRACKED];
static NEXT: AtomicU64 = AtomicU64::new(1);
static HINT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // No destructor: a Cell is readable as long as the thread runs, and std allocates for destructors.
    static ME: Cell<u64> = const { Cell::new(0) };
}

/// Takes note of a thread's end; `slot` is the number of its slot, plus one.
fn ended(slot: *mut c_void) {
    if let Some(s) = slot.addr().checked_sub(1).and_then(|i| RUNNING.get(i)) {
        s.store(0, Ordering::Release);
    }
    let _ = ME.try_with(|m| m.set(u64::MAX));
}

/// The key whose destructor tells of a thread's end, plus one; 0 before there is one.
fn key() -> Option<libc::pthread_key_t> {
    static KEY: AtomicUsize = AtomicUsize::new(0);
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return Some((known - 1) as libc::pthread_key_t);
    }
    let mut k: libc::pthread_key_t = 0;
    // SAFETY: the out-pointer is valid, and the destructor lives as long as the program.
    if unsafe { libc::pthread_key_create(&mut k, Some(destructor)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(0, k as usize + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(k),
        Err(other) => {
            // SAFETY: made above, used by nobody.
            unsafe { libc::pthread_key_delete(k) };
            Some((other - 1) as libc::pthread_key_t)
        }
    }
}

/// As [`ended`], in the form that pthread wants.
unsafe extern "C" fn destructor(slot: *mut c_void) {
    ended(slot);
}

/// The calling thread's number: never 0, never used by another thread before or after. In a thread that is past
/// its end (late destructors) it is `u64::MAX`, the same for all such threads.
pub(crate) fn number() -> u64 {
    let n = ME.try_with(Cell::get).unwrap_or(u64::MAX);
    if n != 0 { n } else { enlist() }
}

#[cold]
fn enlist() -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let start = HINT.fetch_add(1, Ordering::Relaxed);
    let free = (0..TRACKED)
        .map(|i| start.wrapping_add(i) % TRACKED)
        .find(|&i| RUNNING[i].compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed).is_ok());
    let told = free.zip(key()).is_some_and(|(slot, key)| {
        // SAFETY: a key that is never deleted; the value is a number, not a pointer to anything.
        unsafe { libc::pthread_setspecific(key, ptr::without_provenance(slot + 1)) == 0 }
    });
    if let (false, Some(slot)) = (told, free) {
        // Its end would go unnoticed: count it among the untracked.
        RUNNING[slot].store(UNTRACKED, Ordering::Release);
    }
    let _ = ME.try_with(|m| m.set(number));
    number
}

/// Whether the thread of that number may still run. False is certain, true is not (more than 4096 threads).
pub(crate) fn may_run(number: u64) -> bool {
    // The slot is not part of the number; the walk happens only where thread-private pools are set up.
    number == u64::MAX
        || RUNNING.iter().any(|s| s.load(Ordering::Acquire) == number)
        || RUNNING.iter().any(|s| s.load(Ordering::Relaxed) == UNTRACKED)
        || RUNNING.iter().all(|s| s.load(Ordering::Relaxed) != 0)
}

struct Share {
    addr: usize,
    len: usize,
    errno: AtomicI32,
}

extern "C" fn populate_share(arg: *mut c_void) -> *mut c_void {
    // SAFETY: `populate_parallel` passes a Share that outlives the join of this thread.
    let s = unsafe { &*arg.cast::<Share>() };
    if let Err(e) = mem::populate(s.addr, s.len) {
        s.errno.store(e.errno, Ordering::Relaxed);
    }
    ptr::null_mut()
}

/// Populates `[addr, addr + len)` by `threads` threads at once (the caller is one of them, at most 64).
///
/// Cuts lie on multiples of 2 MiB, so that no huge page is split between two. All signals are blocked in the
/// helpers. A helper that cannot be started is replaced by the caller. An error means that some page is missing;
/// nothing is locked either way. Allocates nothing from the Rust heap.
pub(crate) fn populate_parallel(addr: usize, len: usize, threads: usize) -> Result<(), OsError> {
    const MAX: usize = 64;
    let threads = threads.clamp(1, MAX);
    let part = (len / threads).next_multiple_of(super::HUGE);
    let shares: [Share; MAX] = core::array::from_fn(|i| {
        let from = (addr + part * i).min(addr + len);
        let to = (from + part).min(addr + len);
        Share { addr: from, len: to - from, errno: AtomicI32::new(0) }
    });
    let mut ids: [Option<libc::pthread_t>; MAX] = [None; MAX];
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill; the old mask is restored below.
    let old = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    for i in 1..threads {
        if shares[i].len == 0 || injected(Call::PthreadCreate, 0, 0).is_err() {
            continue;
        }
        let mut id: libc::pthread_t = 0;
        let arg = (&raw const shares[i]).cast_mut().cast::<c_void>();
        // SAFETY: the share outlives the thread, which is joined before this function returns.
        if unsafe { libc::pthread_create(&mut id, ptr::null(), populate_share, arg) } == 0 {
            ids[i] = Some(id);
        }
    }
    // SAFETY: `old` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, ptr::null_mut()) };
    for i in 0..threads {
        if ids[i].is_none() && shares[i].len != 0 {
            populate_share((&raw const shares[i]).cast_mut().cast());
        }
    }
    for id in ids.iter().flatten() {
        // SAFETY: a joinable thread that was created above and is joined once.
        unsafe { libc::pthread_join(*id, ptr::null_mut()) };
    }
    match shares.iter().find(|s| s.errno.load(Ordering::Relaxed) != 0) {
        None => Ok(()),
        Some(s) => Err(OsError::new(Call::Madvise, s.errno.load(Ordering::Relaxed), s.addr, s.len)),
    }
}
