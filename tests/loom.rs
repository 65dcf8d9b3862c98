//! The lock that is biased to one thread, in every order of execution that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom` (under that flag the library itself is empty). The barrier
//! in every thread, `membarrier`, is modelled by what it amounts to: a fence on both sides.
#![cfg(loom)]
#![allow(missing_docs, dead_code)]

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, Ordering};

    pub(super) fn owner_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(super) fn barrier_everywhere() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(super) fn pause(_: u32) {
        loom::thread::yield_now();
    }
}

#[path = "../src/heap/bias.rs"]
mod bias;

use bias::Bias;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const KEY: u32 = 7;
const HIDDEN: u32 = 0;

/// A desk with one slot: what `src/heap/desk.rs` does, and nothing else. loom sees to it that nobody reaches `tray` while
/// another changes it.
struct Desk {
    bias: Bias,
    shown: AtomicU32,
    tray: UnsafeCell<u32>,
    door: Mutex<()>,
}

impl Desk {
    fn new(shown: u32) -> Arc<Self> {
        Arc::new(Desk {
            bias: Bias::new(),
            shown: AtomicU32::new(shown),
            tray: UnsafeCell::new(0),
            door: Mutex::new(()),
        })
    }

    /// The fast way: looks at the key alone.
    fn fast(&self) -> bool {
        self.bias.begin();
        let found = self.shown.load(Ordering::Acquire) == KEY;
        if found {
            self.tray.with_mut(|t| unsafe { *t += 1 });
        }
        self.bias.leave();
        found
    }

    /// The slow way, which puts a tray there.
    fn install(&self) -> bool {
        if !self.bias.enter() {
            return false;
        }
        self.tray.with_mut(|t| unsafe { *t += 1 });
        self.shown.store(KEY, Ordering::Relaxed);
        self.bias.leave();
        true
    }

    /// What a trim does. Gives what was in the tray.
    fn empty(&self) -> u32 {
        let _door = self.door.lock().unwrap();
        self.bias.revoke();
        Bias::barrier();
        self.bias.wait();
        let was = self.shown.load(Ordering::Relaxed);
        self.shown.store(HIDDEN, Ordering::Release);
        Bias::barrier();
        self.bias.wait();
        let n = self.tray.with_mut(|t| unsafe { std::mem::take(&mut *t) });
        self.shown.store(was, Ordering::Release);
        self.bias.restore();
        n
    }
}

#[test]
fn the_fast_way_and_a_trim_exclude_each_other() {
    loom::model(|| {
        let d = Desk::new(KEY);
        let other = d.clone();
        let trim = thread::spawn(move || other.empty());
        let put: u32 = (0..2).map(|_| u32::from(d.fast())).sum();
        let taken = trim.join().unwrap();
        let left = d.tray.with(|t| unsafe { *t });
        assert_eq!(put, taken + left, "nothing is lost, nothing appears");
    });
}

#[test]
fn a_tray_that_is_put_there_meanwhile_is_safe() {
    loom::model(|| {
        let d = Desk::new(HIDDEN);
        let other = d.clone();
        let trim = thread::spawn(move || other.empty());
        let put = u32::from(d.install()) + u32::from(d.fast());
        let taken = trim.join().unwrap();
        let left = d.tray.with(|t| unsafe { *t });
        assert_eq!(put, taken + left);
    });
}

#[test]
fn two_trims_take_turns() {
    loom::model(|| {
        let d = Desk::new(KEY);
        let (one, two) = (d.clone(), d.clone());
        let a = thread::spawn(move || one.empty());
        let b = thread::spawn(move || two.empty());
        let put = u32::from(d.fast());
        let taken = a.join().unwrap() + b.join().unwrap();
        let left = d.tray.with(|t| unsafe { *t });
        assert_eq!(put, taken + left);
    });
}
