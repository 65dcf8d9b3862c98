//! What is not about blocks: ends of allocators, wild addresses, trim, threads, limits, failures, figures.

use crate::ground::{LOCK_LIMIT, soft_limit};
use crate::machine::{Machine, nn};
use crate::model::Ask;
use pinned_alloc::os::{Call, fault};
use pinned_alloc::{AllocatorHandle, Error, PinnedAlloc, process_stats, routines, set_cache_limit, trim};
use pinned_alloc_fuzz::Bytes;

impl Machine {
    pub(crate) fn destroy(&mut self, b: &mut Bytes) {
        let h = self.any_handle(b);
        if self.trace {
            eprintln!("  {:#x}", h.raw());
        }
        if let Some(i) = self.m.allocs.iter().position(|a| a.handle == h && a.face.is_some()) {
            // The last owner ends it.
            self.m.allocs[i].face = None;
            self.m.allocs[i].alive = false;
        } else {
            routines::destroy_allocator(h);
            if let Some(i) = self.m.lookup(h).filter(|&i| i >= 9) {
                self.m.allocs[i].alive = false;
            }
        }
        let dead = self.m.lookup(h).is_none() && h != AllocatorHandle::NULL;
        if dead {
            assert_eq!(routines::alloc(1, h), Err(Error::Handle { handle: h }));
            assert!(PinnedAlloc::from_handle(h).is_err());
        }
    }

    /// Addresses and handles that are none: answered, and nothing happens.
    pub(crate) fn wild(&mut self, b: &mut Bytes) {
        let addr = match b.byte() % 4 {
            0 => b.word(),
            1 => b.size(),
            _ => match self.any_block(b) {
                Some(k) => k.addr.wrapping_add(b.size() % (k.usable + 64)).wrapping_sub(b.below(64)),
                None => return,
            },
        };
        let known = self.m.blocks.contains_key(&addr);
        let i = self.info(addr);
        assert_eq!(i.is_some(), known, "{addr:#x}");
        if known || addr == 0 {
            return;
        }
        let p = nn(addr);
        assert!(!self.eye.is_pinned(p) && self.eye.usable_size(p) == 0);
        let h = self.any_handle(b);
        let size = 1 + b.below(200);
        // SAFETY: no block begins there: refused by the documented error, and nothing done.
        unsafe {
            assert_eq!(routines::free(p.as_ptr(), h), Err(Error::NotABlock { addr }));
            let e = routines::realloc(p.as_ptr(), size, AllocatorHandle::NULL, h);
            assert_eq!(e, Err(Error::NotABlock { addr }));
        }
    }

    pub(crate) fn trim(&mut self, b: &mut Bytes) {
        match b.byte() % 4 {
            0 => {
                trim(0);
                assert_eq!(process_stats().cached, 0);
            }
            1 => {
                let n = b.half() << 8;
                trim(n);
                assert!(process_stats().cached <= n);
            }
            2 => {
                let n = b.half() << 10;
                set_cache_limit(n);
                assert!(process_stats().cached <= n);
            }
            _ => {
                if let Some((_, face)) = self.face(self.any_handle(b)) {
                    face.trim();
                    assert!(self.m.faults || face.stats().idle == 0);
                    assert!(self.m.faults || face.relock() == Ok(0));
                }
            }
        }
    }

    /// A thread asks for a block and ends; another one frees it.
    pub(crate) fn by_thread(&mut self, b: &mut Bytes) {
        let (h, size) = (self.any_handle(b), b.size());
        let Some(origin) = self.m.lookup(h).filter(|_| size != 0 && self.affordable(size)) else { return };
        self.threads += 1;
        let ask = Ask { size, align: 1, thread: self.threads };
        let (chain, end, can) = self.forecast(origin, ask);
        match std::thread::spawn(move || routines::alloc(size, h).map(|p| p.addr())).join().expect("no panic")
        {
            Ok(a) => self.adopt(a, ask, chain, can, false),
            Err(e) => self.m.check_failure(&can, end, &e),
        }
    }

    /// Keeps a face of an allocator beyond its handle, or lets the face go.
    pub(crate) fn hold(&mut self, b: &mut Bytes) {
        let h = self.any_handle(b);
        let Some(i) = self.m.lookup(h).filter(|&i| i >= 9 && self.m.allocs[i].face.is_none()) else { return };
        // A clone of a face that owns nothing: the allocator is destroyed by its handle, and serves on.
        let Ok(face) = PinnedAlloc::from_handle(h) else { panic!("alive") };
        routines::destroy_allocator(h);
        self.m.allocs[i].alive = false;
        self.m.allocs[i].face = Some(face);
    }

    /// Changes the lock limit, or makes system calls fail, if the run is of that kind.
    pub(crate) fn disturb(&mut self, b: &mut Bytes) {
        match self.mode {
            2 => {
                let n = b.pick(&[0, 4096, 65_536, 200_000, 1 << 20, 8 << 20, LOCK_LIMIT]);
                self.m.limit = soft_limit(n);
                self.m.tight = true;
            }
            3 => {
                fault::disarm();
                self.m.faults = true;
                let call = b.pick(&Call::ALL);
                let errno = b.pick(&[libc::ENOMEM, libc::EAGAIN, libc::EPERM, libc::EINVAL]);
                // Moving back after a failed move must not fail as well: the process would have to end.
                let times = if call == Call::Mremap { 1 } else { b.pick(&[1, 2, 3, 40]) };
                fault::arm(call, 1 + b.below(9) as u64, times, errno);
            }
            _ => {}
        }
    }

    pub(crate) fn stats(&mut self) {
        for i in 0..self.m.allocs.len() {
            let Some((_, face)) = self.face(self.m.allocs[i].handle).filter(|f| f.0 == i) else { continue };
            let s = face.stats();
            let mine = || self.m.blocks.values().filter(|b| b.asked_of == i);
            let others = || mine().filter(|b| b.served_by != i);
            assert_eq!(s.live_blocks, mine().count());
            assert_eq!(s.requested, mine().map(|b| b.size).sum::<usize>());
            assert_eq!(s.fallback_blocks, others().count());
            assert_eq!(s.fallback_requested, others().map(|b| b.size).sum::<usize>());
            assert!(s.requested_peak >= s.requested && s.slack <= s.locked, "{s:?}");
            let pinned = mine().filter(|b| self.m.allocs[b.served_by].traits.pinned);
            assert!(s.locked >= pinned.map(|b| b.size).sum::<usize>(), "{s:?}");
        }
    }
}
