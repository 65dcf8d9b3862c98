//! `pool_size`: an exact count of live requested bytes.
//!
//! A request is charged by compare-and-swap, so a request that does not fit disturbs no other: the pool is never
//! exceeded, and never refuses while there is room. What the user asked for is what counts, not what the block
//! or its bookkeeping takes: a pool of N bytes serves one block of N bytes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

pub(crate) struct Pool {
    /// `usize::MAX`: none.
    limit: AtomicUsize,
    /// False for a pool without a limit that all threads share: nobody needs the count, and what is in use is known from
    /// the blocks.
    counts: AtomicBool,
    used: AtomicUsize,
}

impl Pool {
    pub(crate) const fn new(limit: usize, counts: bool) -> Self {
        Self { limit: AtomicUsize::new(limit), counts: AtomicBool::new(counts), used: AtomicUsize::new(0) }
    }

    pub(crate) fn counts(&self) -> bool {
        self.counts.load(Relaxed)
    }

    /// # Errors
    /// `(limit, used)` at the time of the refusal.
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), (usize, usize)> {
        let limit = self.limit.load(Relaxed);
        if !self.counts() {
            return Ok(());
        }
        let mut used = self.used.load(Relaxed);
        loop {
            let now = match used.checked_add(bytes) {
                Some(n) if n <= limit => n,
                _ => return Err((limit, used)),
            };
            match self.used.compare_exchange_weak(used, now, Relaxed, Relaxed) {
                Ok(_) => return Ok(()),
                Err(u) => used = u,
            }
        }
    }

    pub(crate) fn uncharge(&self, bytes: usize) {
        if !self.counts() {
            return;
        }
        let before = self.used.fetch_sub(bytes, Relaxed);
        debug_assert!(before >= bytes);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// For another owner, once nothing is charged.
    pub(crate) fn reset(&self, limit: usize, counts: bool) {
        self.limit.store(limit, Relaxed);
        self.counts.store(counts, Relaxed);
        self.used.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_at_the_edge_and_on_overflow() {
        let p = Pool::new(100, true);
        assert_eq!(p.charge(100), Ok(()));
        assert_eq!(p.charge(1), Err((100, 100)));
        assert_eq!(p.charge(usize::MAX), Err((100, 100)));
        p.uncharge(40);
        assert_eq!(p.charge(41), Err((100, 60)));
        assert_eq!(p.charge(40), Ok(()));
        assert_eq!(p.used(), 100);
    }

    #[test]
    fn a_large_refusal_never_hurts_a_small_request() {
        let p = Pool::new(1000, true);
        std::thread::scope(|s| {
            s.spawn(|| (0..100_000).for_each(|_| assert!(p.charge(1001).is_err())));
            s.spawn(|| {
                for _ in 0..100_000 {
                    p.charge(1000).unwrap();
                    p.uncharge(1000);
                }
            });
        });
        assert_eq!(p.used(), 0);
    }
}
