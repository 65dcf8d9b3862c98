//! Spans that grow, shrink and move.
//!
//! In place, growth opens and locks the tail of the span's own reservation, or extends its last mapping where
//! the neighbouring address space is free. A move is all or nothing, address included:
//!
//! ```text
//!   1  reserve a destination of the same phase inside 2 MiB (huge pages move as such only then)
//!   2  open and lock the *new* tail there: all that can fail for want of memory or limit fails here
//!   3  move the page tables of the old part in front of it: nothing is copied, populated or counted anew
//!
//!      old:  [AAAA]                      dest:  [....][TTT]|reserved|
//!                \______ mremap _____________->  [AAAA][TTT]|reserved|
//! ```
//!
//! The kernel does not merge the two parts (a moved mapping keeps its old page offset), and refuses to move two
//! mappings at once before 6.17; so the span remembers its segments, and the destination is reserved with room
//! ahead, so that moves are few. `MREMAP_DONTUNMAP` is not used: on 6.18 it counts locked memory twice.

use super::spec::{HugePages, Part};
use super::{PagesError, Span, account, map};
use crate::os::{Call, HUGE, OsError, fork, mem, page_size};
use core::ptr;

/// Why a span did not grow in place.
#[derive(Debug)]
pub(crate) enum NoGrowth {
    /// There is no room behind it: neither reserved nor free.
    NoRoom,
    /// There is room, but no memory or no head-room for it.
    Failed(PagesError),
}

impl Span {
    /// Bytes that a move must carry: everything that may hold data or a lock, also what a shrink had to leave.
    fn live(&self) -> usize {
        self.segments[..self.segment_count].iter().sum()
    }

    /// Takes note that nothing beyond `live` bytes is to be carried any more.
    pub(super) fn cut_segments(&mut self, live: usize) {
        let mut left = live;
        for (i, s) in self.segments[..self.segment_count].iter_mut().enumerate() {
            *s = (*s).min(left);
            left -= *s;
            if left == 0 {
                self.segment_count = i + 1;
                break;
            }
        }
    }

    /// Grows to `new` bytes without moving. `ahead` further bytes are locked with it where that is possible.
    ///
    /// # Errors
    /// The span is then exactly as it was.
    pub(crate) fn grow(&mut self, new: usize, ahead: usize, parts: &[Part]) -> Result<(), NoGrowth> {
        debug_assert!(new >= self.len && new.is_multiple_of(page_size()));
        self.relock().map_err(NoGrowth::Failed)?;
        if !self.is_current() {
            return Err(NoGrowth::NoRoom);
        }
        // Locked ahead, or left by a shrink that the kernel refused.
        if new <= if self.spec.pinned { self.locked } else { self.live() } {
            self.len = new;
            return Ok(());
        }
        let room = self.capacity();
        if new <= room {
            let more = ahead.min(room - new);
            if more != 0 && self.grow_reserved(new + more, parts).is_ok() {
                self.len = new;
                return Ok(());
            }
            return self.grow_reserved(new, parts).map_err(NoGrowth::Failed);
        }
        // The last mapping can be extended only if it ends where the span's address space ends.
        if self.opened == room && self.live() == self.opened {
            return self.grow_mapping(new, parts);
        }
        Err(NoGrowth::NoRoom)
    }

    fn grow_reserved(&mut self, new: usize, parts: &[Part]) -> Result<(), PagesError> {
        let asked = new - self.len;
        let err = |e| PagesError::diagnose(asked, e);
        let old_opened = self.opened;
        if new > self.opened {
            // Access is opened ahead of the lock, in steps that grow with the span: a page at a time would
            // cost a second system call each. What is open and not locked is empty.
            let ahead =
                if self.spec.place.by_size() { 0 } else { (self.opened / 4).next_multiple_of(page_size()) };
            let to = new.max(self.opened + ahead).min(self.capacity());
            let at = self.start + self.opened;
            if self.spec.place.by_size() {
                super::span::place(&self.spec, at, to - self.opened, parts).map_err(err)?;
            }
            if new - self.opened >= HUGE && self.spec.huge == HugePages::Auto {
                // A reservation made for a small block was not advised; a large tail may be huge. The advice is
                // given to the whole, so that the mapping stays one.
                let _ = mem::advise(self.base, self.reserved, libc::MADV_HUGEPAGE);
            }
            mem::open(at, to - self.opened).map_err(err)?;
            account::add_mapped(to - self.opened);
            self.opened = to;
        }
        if self.spec.pinned {
            let at = self.start + self.locked;
            let tail = new - self.locked;
            if let Err(e) = super::span::lock(&self.spec, at, tail) {
                self.undo_tail(at, tail, old_opened);
                return Err(err(e));
            }
            self.locked = new;
            account::add_locked(tail);
        }
        self.extend_last(new);
        self.len = new;
        Ok(())
    }

    /// After a failed lock of `[at, at + tail)`: nothing of it stays locked or populated, and what was opened for
    /// it is closed.
    fn undo_tail(&mut self, at: usize, tail: usize, opened: usize) {
        if mem::close(at, tail, true).is_err() {
            return;
        }
        // The whole of what was not open before, and what was: open, empty and unlocked.
        let end = self.start + self.opened;
        let before = self.start + opened;
        if self.opened > opened && mem::close(before, end - before, false).is_ok() {
            account::sub_mapped(self.opened - opened);
            self.opened = opened;
        }
        let before = self.start + self.opened;
        if at < before {
            let _ = mem::open(at, before - at);
        }
    }

    fn grow_mapping(&mut self, new: usize, parts: &[Part]) -> Result<(), NoGrowth> {
        let page = page_size();
        let end = self.start + self.opened;
        let tail = new - self.opened;
        // The last page alone is in one mapping for certain, and growing it grows that mapping.
        match mem::resize(end - page, page, page + tail) {
            Ok(()) => {}
            Err(e) if matches!(e.errno, libc::ENOMEM | libc::EFAULT | libc::EINVAL) => {
                return Err(NoGrowth::NoRoom);
            }
            // EAGAIN: the lock limit.
            Err(e) => return Err(NoGrowth::Failed(PagesError::diagnose(tail, e))),
        }
        let ready = if self.spec.place.by_size() {
            // The part that was populated by the growth is placed anew below, so it has to go first.
            let _ = mem::drop_pages(end, tail);
            super::span::place(&self.spec, end, tail, parts)
        } else {
            Ok(())
        };
        let ready = ready
            .and_then(|()| if self.spec.pinned { super::span::lock(&self.spec, end, tail) } else { Ok(()) });
        if let Err(e) = ready {
            let _ = mem::drop_pages(end, tail);
            super::span::discard(end, tail);
            return Err(NoGrowth::Failed(PagesError::diagnose(tail, e)));
        }
        self.reserved += tail;
        self.opened = new;
        account::add_mapped(tail);
        if self.spec.pinned {
            self.locked = new;
            account::add_locked(tail);
        }
        self.extend_last(new);
        self.len = new;
        Ok(())
    }

    fn extend_last(&mut self, live: usize) {
        let (last, before) = match self.segments[..self.segment_count].split_last_mut() {
            Some(x) => x,
            None => return,
        };
        *last = live - before.iter().sum::<usize>();
    }

    /// Shrinks to `new` bytes (at least a page), in place. With `keep` the address space stays reserved, so that
    /// the span can grow again where it is. Cannot fail: what the kernel will not take back stays ours, locked
    /// and counted.
    pub(crate) fn shrink(&mut self, new: usize, keep: bool) {
        debug_assert!(new != 0 && new <= self.len && new.is_multiple_of(page_size()));
        self.len = new;
        if self.foreign_or_same(new) {
            return;
        }
        let at = self.start + new;
        let gone = self.opened - new;
        let had_reserve = self.capacity() > self.opened;
        let unlocked = self.locked_now().saturating_sub(new);
        account::unlocking(unlocked);
        let cut = !keep && !had_reserve && mem::unmap(at, gone).is_ok();
        if cut {
            self.reserved = new + (self.start - self.base);
        } else if !super::span::give_back(at, gone, self.locked.saturating_sub(new)) {
            account::keep_locked(unlocked);
            return;
        }
        account::sub_mapped(gone);
        account::note_reusable();
        self.opened = new;
        self.locked = self.locked.min(new);
        self.cut_segments(new);
    }

    fn foreign_or_same(&self, new: usize) -> bool {
        self.opened <= new || (self.spec.fork == super::ForkPolicy::DontFork && !self.is_current())
    }

    /// Whether [`move_to_grow`](Self::move_to_grow) can serve: not for parts with policies of their own, too many
    /// segments, or memory whose lock a fork took.
    pub(crate) fn can_move(&self) -> bool {
        !self.spec.place.by_size() && self.is_current() && self.segment_count < super::span::MAX_SEGMENTS
    }

    /// Grows to `new` bytes at another address, by moving page tables; contents and alignment stay, `reserve`
    /// bytes of address space come with it. The page map's entry `record` of the first page moves along.
    ///
    /// `align` is a power of two that the address is a multiple of now, and stays one of.
    ///
    /// # Errors
    /// The span is then exactly as it was.
    pub(crate) fn move_to_grow(
        &mut self,
        new: usize,
        reserve: usize,
        align: usize,
        record: *mut (),
    ) -> Result<(), PagesError> {
        debug_assert!(new > self.live() && self.can_move() && self.start.is_multiple_of(align));
        let live = self.live();
        let tail = new - live;
        let err = |e| PagesError::diagnose(new - self.len, e);
        let align = self.align.max(align).max(if new >= HUGE { HUGE } else { page_size() });
        let phase = self.start % align;
        let (base, reserved, dest) = super::span::reserved_ground(reserve.max(new), align, phase)
            .or_else(|_| super::span::reserved_ground(new, align, phase))
            .map_err(err)?;
        let big = super::span::is_big(&self.spec, new);
        if let Err(e) = map::set(dest, 1, record) {
            super::span::discard(base, reserved);
            return Err(e);
        }
        // An address that has been given up may be somebody else's a moment later, with an entry of its own: so
        // the entries change while both places are ours.
        map::clear(self.start, 1);
        let ready = || -> Result<(), OsError> {
            super::span::advise(&self.spec, base, reserved, big)?;
            super::span::place(&self.spec, dest, base + reserved - dest, &[])?;
            mem::open(dest + live, tail)?;
            if self.spec.pinned {
                super::span::lock(&self.spec, dest + live, tail)?;
            }
            self.carry(dest)
        };
        if let Err(e) = ready() {
            map::clear(dest, 1);
            let _ = map::set(self.start, 1, record); // its leaf exists: cannot fail
            super::span::discard(base, reserved);
            return Err(err(e));
        }
        // The moved part is gone from the old place; what surrounded it there is not.
        let old_end = self.base + self.reserved;
        if self.start > self.base {
            super::span::discard(self.base, self.start - self.base);
        }
        if old_end > self.start + live {
            super::span::discard(self.start + live, old_end - (self.start + live));
        }
        account::sub_mapped(self.opened - live);
        account::add_mapped(tail);
        if self.spec.pinned {
            account::add_locked(tail);
            self.locked = new;
        }
        account::count_move();
        self.base = base;
        self.reserved = reserved;
        self.start = dest;
        self.opened = new;
        self.len = new;
        self.segments[self.segment_count] = tail;
        self.segment_count += 1;
        self.epoch = fork::epoch();
        Ok(())
    }

    /// Moves every segment to `dest`. On error all of them are where they were.
    fn carry(&self, dest: usize) -> Result<(), OsError> {
        let mut at = 0;
        for (i, &len) in self.segments[..self.segment_count].iter().enumerate() {
            if let Err(e) = mem::relocate(self.start + at, len, dest + at) {
                // The first ones are there already. Bytes can follow where page tables do not; only if that fails
                // as well are they brought back.
                if i != 0 && self.copy_rest(at, dest).is_ok() {
                    return Ok(());
                }
                self.carry_back(i, dest);
                return Err(e);
            }
            at += len;
        }
        Ok(())
    }

    /// Copies the live bytes from `at` on to `dest`, in new pages, and gives the old ones back. On error nothing has
    /// changed.
    fn copy_rest(&self, at: usize, dest: usize) -> Result<(), OsError> {
        let len = self.live() - at;
        let ready = mem::open(dest + at, len).and_then(|()| {
            if self.spec.pinned { super::span::lock(&self.spec, dest + at, len) } else { Ok(()) }
        });
        if let Err(e) = ready {
            let _ = mem::close(dest + at, len, self.spec.pinned);
            return Err(e);
        }
        let (from, to) = (self.start + at, dest + at);
        // SAFETY: both ranges are open, this span's, and apart: `dest` is a reservation of its own.
        unsafe {
            ptr::copy_nonoverlapping::<u8>(
                ptr::with_exposed_provenance(from),
                ptr::with_exposed_provenance_mut(to),
                len,
            );
        }
        super::span::discard(from, len);
        Ok(())
    }

    /// Brings the first `count` segments back after a later one could not be moved.
    ///
    /// Their old addresses have been free since; each is claimed before it is used, so that nobody else's
    /// mapping is ever replaced.
    fn carry_back(&self, count: usize, dest: usize) {
        let mut at = 0;
        for &len in &self.segments[..count] {
            let home = self.start + at;
            let back = mem::reserve_at(home, len).and_then(|()| mem::relocate(dest + at, len, home));
            if back.is_err() {
                // A second move failed, the memory for a copy was not to be had, and the way back is barred: another
                // thread mapped these very addresses within the last microseconds, or the kernel refuses back what
                // it has just moved forth. The block is in two places, and there is no address to report: going on
                // would hand out broken memory.
                crate::os::die(&[
                    "pinned-alloc: a block is split between two addresses after a failed ",
                    Call::Mremap.name(),
                    "; stopping\n",
                ]);
            }
            at += len;
        }
    }
}
