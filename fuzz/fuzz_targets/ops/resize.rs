//! Realloc, by routine and by face, under both policies.

use crate::machine::{Machine, nn};
use crate::model::{ABSURD, Ask, Block, Can, End};
use core::alloc::Layout;
use pinned_alloc::{AllocatorHandle, BlockInfo, Error, ReallocPolicy, routines};
use pinned_alloc_fuzz::Bytes;

/// What the model says of a realloc.
enum Plan {
    /// In place: `None` if the block may not stay.
    Fixed(Option<Can>),
    Chain {
        target: usize,
        chain: Vec<usize>,
        end: End,
        can: Vec<Can>,
        home: bool,
    },
}

impl Machine {
    pub(crate) fn realloc(&mut self, b: &mut Bytes) {
        let Some(block) = self.any_block(b) else { return };
        let (by, anew) = (b.size(), b.flag());
        let by = if by >= ABSURD { by } else { by / 4 };
        let size = if anew { b.size() } else { block.size.saturating_add(by) };
        if !self.affordable(size) {
            return;
        }
        let how = b.byte() % 8;
        let given = b.pick(&[None, Some(ReallocPolicy::MayMove), Some(ReallocPolicy::Fixed)]);
        if how >= 4 {
            return self.realloc_by_face(b, block, size, how, given.unwrap_or(ReallocPolicy::MayMove));
        }
        let h = if how == 0 { self.any_handle(b) } else { AllocatorHandle::NULL };
        let free_handle = self.any_handle(b);
        let target = if h == AllocatorHandle::NULL { Some(block.asked_of) } else { self.m.lookup(h) };
        let policy = target.map(|t| self.m.policy(t, given));
        let align = target.map_or(1, |t| self.m.allocs[t].traits.alignment.get().max(16));
        let before = self.info(block.addr).expect("a live block");
        if self.trace {
            eprintln!("  {block:?} to {size}, handle {:#x}, target {target:?}, {policy:?}", h.raw());
        }
        let plan = target
            .filter(|_| size != 0)
            .map(|t| self.plan(&block, t, size, align, policy.expect("of the target"), before.capacity));
        let p = nn(block.addr).as_ptr();
        // SAFETY: a live block of the model, which is told of the outcome.
        let got = unsafe {
            match given {
                None => routines::realloc(p, size, h, free_handle),
                _ => routines::realloc_with(p, size, h, free_handle, given),
            }
        };
        match (got, plan) {
            (Ok(q), None) => {
                assert!(size == 0 && q.is_null());
                self.m.blocks.remove(&block.addr);
                assert!(self.info(block.addr).is_none());
            }
            (Err(e), None) => {
                assert_eq!(e, Error::Handle { handle: h });
                self.unchanged(&block, &before);
            }
            (got, Some(plan)) => {
                self.settle(block, before, got.map(|q| q.addr()), size, align, plan, None);
            }
        }
    }

    fn realloc_by_face(
        &mut self,
        b: &mut Bytes,
        block: Block,
        size: usize,
        how: u8,
        policy: ReallocPolicy,
    ) {
        let Some((target, face)) = self.face(self.m.allocs[block.asked_of].handle) else { return };
        if target != block.asked_of {
            return;
        }
        let layout = Layout::from_size_align(block.size, block.align).expect("its layout");
        let new_align = if how == 7 { b.align() } else { block.align };
        if !new_align.is_power_of_two() {
            return;
        }
        let align = new_align.max(self.m.allocs[target].traits.alignment.get());
        let before = self.info(block.addr).expect("a live block");
        let plan = (size != 0).then(|| self.plan(&block, target, size, align, policy, before.capacity));
        if self.trace {
            eprintln!("  {block:?} to {size}, aligned {align}, by face ({how}), {policy:?}");
        }
        let p = nn(block.addr);
        // SAFETY: a live block of the model, of that allocator; the model is told of the outcome.
        let got = unsafe {
            match how {
                4 => face.realloc(p, layout, size, policy),
                5 | 6 => face.realloc_zeroed(p, layout, size, policy),
                _ => match Layout::from_size_align(size, new_align) {
                    Ok(new) => face.realloc_aligned(p, layout, new, policy),
                    Err(_) => return,
                },
            }
        };
        let Some(plan) = plan else {
            assert_eq!(got.map(|q| q.len()), Ok(0));
            self.m.blocks.remove(&block.addr);
            assert!(self.info(block.addr).is_none());
            return;
        };
        let zero = matches!(how, 5 | 6).then_some(block.size);
        let got = got.map(|q| {
            assert_eq!(q.len(), size);
            q.cast::<u8>().addr().get()
        });
        self.settle(block, before, got, size, new_align, plan, zero);
    }

    fn plan(
        &mut self,
        b: &Block,
        target: usize,
        size: usize,
        align: usize,
        policy: ReallocPolicy,
        capacity: usize,
    ) -> Plan {
        let fits = b.addr.is_multiple_of(align);
        if policy == ReallocPolicy::Fixed {
            let can = if size > isize::MAX as usize || b.asked_of != target || !fits {
                None
            } else {
                Some(self.m.resized(b, size, true, capacity))
            };
            return Plan::Fixed(can);
        }
        let (chain, end) = self.m.chain(target);
        let ask = Ask { size, align, thread: 0 };
        let can = chain
            .iter()
            .map(|&s| {
                if target == b.asked_of && s == b.served_by && fits {
                    self.m.resized(b, size, false, capacity)
                } else {
                    self.m.fresh(target, s, ask, Some(b))
                }
            })
            .collect();
        Plan::Chain { target, chain, end, can, home: target == b.asked_of && fits }
    }

    /// A failed call has changed nothing.
    fn unchanged(&self, b: &Block, before: &BlockInfo) {
        let now = self.info(b.addr).expect("a failed call leaves the block");
        assert_eq!(now, *before);
        assert_eq!((now.requested, now.pool_used), (b.size, self.m.used(b.served_by, b.group)));
        Self::check_contents(b, b.addr, b.size);
    }

    #[allow(clippy::too_many_arguments)]
    fn settle(
        &mut self,
        b: Block,
        before: BlockInfo,
        got: Result<usize, Error>,
        size: usize,
        align: usize,
        plan: Plan,
        zero: Option<usize>,
    ) {
        let addr = match got {
            Ok(a) => a,
            Err(e) => {
                match plan {
                    Plan::Fixed(None) => assert!(matches!(e, Error::NoRoom { .. } | Error::Size), "{e}"),
                    Plan::Fixed(Some(can)) => self.m.check_failure(&[can], End::Last, &e),
                    Plan::Chain { end, can, .. } => match size {
                        0..=0x7fff_ffff_ffff_ffff => self.m.check_failure(&can, end, &e),
                        _ => assert_eq!(e, Error::Size),
                    },
                }
                return self.unchanged(&b, &before);
            }
        };
        Self::check_contents(&b, addr, b.size.min(size));
        self.m.blocks.remove(&b.addr);
        let i = self.info(addr).expect("the block that comes of a realloc");
        let (origin, server) = (self.m.named(i.asked_of), self.m.named(i.served_by));
        let group = match plan {
            Plan::Fixed(can) => {
                assert!(matches!(can, Some(Can::Yes | Can::Maybe)), "{can:?}");
                assert_eq!((addr, origin, server), (b.addr, b.asked_of, b.served_by), "Fixed never moves");
                b.group
            }
            Plan::Chain { target, chain, can, home, .. } => {
                assert_eq!(origin, target);
                self.m.check_server(&chain, &can, server);
                if home && server == b.served_by { b.group } else { self.m.group(server, 0) }
            }
        };
        assert!(addr == b.addr || self.info(b.addr).is_none(), "the old address is dead");
        self.take(addr, size, align, origin, server, group, zero.map_or(size, |z| z.min(size)));
    }
}
