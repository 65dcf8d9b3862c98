//! Threads: numbers for them that are never used twice, and helpers that populate memory.

use super::call::{Call, OsError, injected};
use super::mem;
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

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
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// What is to be run when a thread ends that has a number and whose end is told; at most one function.
static AT_END: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Has `f` run in each such thread when it ends, while its thread-local data can still be read.
pub(crate) fn at_end(f: fn()) {
    AT_END.store(f as *mut (), Ordering::Release);
}

/// Whether the end of the calling thread will be told.
pub(crate) fn end_is_told() -> bool {
    !matches!(number(), 0 | u64::MAX) && TOLD.try_with(Cell::get).unwrap_or(false)
}

/// Takes note of a thread's end; `slot` is the number of its slot, plus one.
fn ended(slot: *mut c_void) {
    let f = AT_END.load(Ordering::Acquire);
    if !f.is_null() {
        // SAFETY: only `at_end` writes it, and only functions of this type.
        unsafe { core::mem::transmute::<*mut (), fn()>(f)() };
    }
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
    let _ = TOLD.try_with(|t| t.set(told));
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

/// A range whose end several threads populate, a piece at a time, while one locks it from its beginning:
///
/// ```text
///   addr                                                          addr + len
///   | locked by the caller ----->            <----- | piece | piece | piece |
/// ```
///
/// `mlock` walks over what is there already in a tenth of the time that it takes to make a page, so the caller's one
/// call is also the check that every page is there and locked, and nothing has to be done again after the others.
struct Work {
    addr: usize,
    len: usize,
    /// Bytes at the end that are taken.
    taken: AtomicUsize,
    done: AtomicBool,
}

/// Bytes a helper takes at a time: the huge page, so that none is split between two.
const PIECE: usize = super::HUGE;

impl Work {
    fn help(&self) {
        while !self.done.load(Ordering::Acquire) {
            let from_end = self.taken.fetch_add(PIECE, Ordering::Relaxed);
            if from_end >= self.len {
                return;
            }
            // Pieces are cut at multiples of the huge page in the address space.
            let end = self.addr + self.len - from_end;
            let end = if from_end == 0 { end } else { end.next_multiple_of(PIECE).min(self.addr + self.len) };
            let start = (end - 1 - (end - 1) % PIECE).max(self.addr);
            // What cannot be had here, the caller's mlock reports.
            if mem::populate(start, end - start).is_err() {
                return;
            }
        }
    }
}

extern "C" fn populate_some(arg: *mut c_void) -> *mut c_void {
    // SAFETY: `lock_parallel` passes a Work that outlives the join of this thread.
    unsafe { &*arg.cast::<Work>() }.help();
    ptr::null_mut()
}

/// As [`mem::lock`], by `threads` threads at once (the caller is one of them, at most 64).
///
/// All signals are blocked in the helpers. Where one cannot be started the others do its work. Allocates nothing from
/// the Rust heap.
pub(crate) fn lock_parallel(addr: usize, len: usize, threads: usize) -> Result<(), OsError> {
    let work = Work { addr, len, taken: AtomicUsize::new(0), done: AtomicBool::new(false) };
    let mut ids: [Option<libc::pthread_t>; 63] = [None; 63];
    // SAFETY: sigset_t is plain data that sigfillset and pthread_sigmask fill; the old mask is restored below.
    let old = unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        let mut old = MaybeUninit::<libc::sigset_t>::zeroed().assume_init();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    };
    for slot in ids.iter_mut().take(threads.saturating_sub(1)) {
        if injected(Call::PthreadCreate, 0, 0).is_err() {
            continue;
        }
        let mut id: libc::pthread_t = 0;
        let arg = (&raw const work).cast_mut().cast::<c_void>();
        // SAFETY: `work` outlives the thread, which is joined before this function returns.
        if unsafe { libc::pthread_create(&mut id, ptr::null(), populate_some, arg) } == 0 {
            *slot = Some(id);
        }
    }
    // SAFETY: `old` was filled by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, ptr::null_mut()) };
    let r = mem::lock(addr, len);
    work.done.store(true, Ordering::Release);
    for id in ids.iter().flatten() {
        // SAFETY: a joinable thread that was created above and is joined once.
        unsafe { libc::pthread_join(*id, ptr::null_mut()) };
    }
    r
}
