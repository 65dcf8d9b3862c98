//! What this crate has locked and mapped, in bytes, exact at every moment no call is under way.
//!
//! `locked` is compared page for page with the kernel's `VmLck` by the tests. Counters are plain atomics: they
//! change only together with a system call, so they cost the fast paths nothing.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

static LOCKED: AtomicUsize = AtomicUsize::new(0);
static LOCKED_PEAK: AtomicUsize = AtomicUsize::new(0);
static MAPPED: AtomicUsize = AtomicUsize::new(0);
static STRANDED: AtomicUsize = AtomicUsize::new(0);
static LOCK_CALLS: AtomicU64 = AtomicU64::new(0);
static LOCK_FAILURES: AtomicU64 = AtomicU64::new(0);
static MOVES: AtomicU64 = AtomicU64::new(0);
static RELEASES: AtomicU64 = AtomicU64::new(0);

pub(crate) fn locked() -> usize {
    LOCKED.load(Relaxed)
}
pub(crate) fn locked_peak() -> usize {
    LOCKED_PEAK.load(Relaxed)
}
pub(crate) fn mapped() -> usize {
    MAPPED.load(Relaxed)
}
/// Bytes whose `munmap` failed and is tried again at the next trim; they are part of `mapped`.
pub(crate) fn stranded() -> usize {
    STRANDED.load(Relaxed)
}
pub(crate) fn lock_calls() -> u64 {
    LOCK_CALLS.load(Relaxed)
}
pub(crate) fn lock_failures() -> u64 {
    LOCK_FAILURES.load(Relaxed)
}
/// Blocks moved by their page tables so far.
pub(crate) fn moves() -> u64 {
    MOVES.load(Relaxed)
}
/// Grows whenever locked bytes are given back or kept for reuse: "it may be worth asking again".
pub(crate) fn releases() -> u64 {
    RELEASES.load(Relaxed)
}

pub(super) fn add_locked(bytes: usize) {
    let now = LOCKED.fetch_add(bytes, Relaxed) + bytes;
    LOCKED_PEAK.fetch_max(now, Relaxed);
}
/// To be called *before* bytes are unlocked, so that the count, and its peak, never exceed the kernel's while other
/// threads lock what becomes free; then [`note_reusable`], or [`keep_locked`] if the kernel refused.
pub(super) fn unlocking(bytes: usize) {
    LOCKED.fetch_sub(bytes, Relaxed);
}
/// Takes [`unlocking`] back.
pub(super) fn keep_locked(bytes: usize) {
    LOCKED.fetch_add(bytes, Relaxed);
}
/// Takes note of locked bytes that wait for another user.
pub(crate) fn note_reusable() {
    RELEASES.fetch_add(1, Relaxed);
}
pub(super) fn add_mapped(bytes: usize) {
    MAPPED.fetch_add(bytes, Relaxed);
}
pub(super) fn sub_mapped(bytes: usize) {
    MAPPED.fetch_sub(bytes, Relaxed);
}
pub(super) fn add_stranded(bytes: usize) {
    STRANDED.fetch_add(bytes, Relaxed);
}
pub(super) fn sub_stranded(bytes: usize) {
    STRANDED.fetch_sub(bytes, Relaxed);
}
pub(super) fn count_move() {
    MOVES.fetch_add(1, Relaxed);
}
pub(super) fn count_lock(ok: bool) {
    LOCK_CALLS.fetch_add(1, Relaxed);
    if !ok {
        LOCK_FAILURES.fetch_add(1, Relaxed);
    }
}

/// In the child of a fork nothing is locked.
pub(crate) fn after_fork() {
    LOCKED.store(0, Relaxed);
    LOCKED_PEAK.store(0, Relaxed);
}
