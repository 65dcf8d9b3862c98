//! One span: made, locked, checked, given back.
//!
//! The order of the steps matters and is the same for every span: address space, advice over the whole of it,
//! placement (a policy moves nothing that is populated already), access, lock. `mlock` is the only step that
//! takes long, and the only one that reports whether the pages are there: `MAP_LOCKED`, `MAP_POPULATE` and a
//! growing `mremap` all swallow a failed population. On failure everything is unmapped before the cause is
//! looked for, so that the limits are read as the caller will find them.

use super::spec::{ForkPolicy, HugePages, Part, Place, SpanSpec};
use super::{PagesError, account};
use crate::os::limits::{self, Thp};
use crate::os::topology::NodeSet;
use crate::os::{HUGE, OsError, fork, mem, numa, page_size, thread};
use std::sync::atomic::{AtomicU8, Ordering};

/// Mappings a span may consist of before a move copies instead; see `resize`.
pub(super) const MAX_SEGMENTS: usize = 8;

/// Most parts that a striped allocation is cut into.
const MAX_STRIPES: usize = 256;

/// Where population by several threads begins to pay.
pub(super) const PARALLEL_FROM: usize = 64 << 20;

/// A run of pages with its record. See the drawing in [`super`].
///
/// All fields are bytes or addresses, and multiples of the page size.
#[derive(Debug)]
pub(crate) struct Span {
    pub(super) base: usize,
    pub(super) reserved: usize,
    pub(super) start: usize,
    pub(super) len: usize,
    /// Bytes from `start` that are locked; 0 if the span is not pinned.
    pub(super) locked: usize,
    pub(super) opened: usize,
    pub(super) align: usize,
    /// Lengths of the mappings that hold the live bytes, in address order.
    pub(super) segments: [usize; MAX_SEGMENTS],
    pub(super) segment_count: usize,
    pub(super) spec: SpanSpec,
    pub(super) epoch: u32,
    /// Some byte may be other than zero.
    pub(super) dirty: bool,
}

fn thp() -> Thp {
    static MODE: AtomicU8 = AtomicU8::new(0);
    match MODE.load(Ordering::Relaxed) {
        1 => Thp::Always,
        2 => Thp::Madvise,
        3 => Thp::Never,
        4 => Thp::Unknown,
        _ => {
            let t = limits::thp_mode();
            let n = match t {
                Thp::Always => 1,
                Thp::Madvise => 2,
                Thp::Never => 3,
                Thp::Unknown => 4,
            };
            MODE.store(n, Ordering::Relaxed);
            t
        }
    }
}

/// Whether a span of `len` bytes is to be of huge pages.
pub(super) fn is_big(spec: &SpanSpec, len: usize) -> bool {
    len >= HUGE && spec.huge == HugePages::Auto && matches!(thp(), Thp::Always | Thp::Madvise)
}

/// Advice over a whole mapping, before anything in it is populated.
pub(super) fn advise(spec: &SpanSpec, base: usize, len: usize, big: bool) -> Result<(), OsError> {
    match spec.fork {
        ForkPolicy::Keep => {}
        ForkPolicy::DontFork => mem::advise(base, len, libc::MADV_DONTFORK)?,
        ForkPolicy::WipeOnFork => mem::advise(base, len, libc::MADV_WIPEONFORK)?,
    }
    if !spec.dump {
        mem::advise(base, len, libc::MADV_DONTDUMP)?;
    }
    // What follows is about speed and about frames that stay put; a kernel built without THP or KSM answers
    // EINVAL and does neither to us.
    if big {
        let _ = mem::advise(base, len, libc::MADV_HUGEPAGE);
    } else if thp() == Thp::Always || (spec.huge == HugePages::Never && len >= HUGE) {
        let _ = mem::advise(base, len, libc::MADV_NOHUGEPAGE);
    }
    if spec.pinned && mem::merging() {
        let _ = mem::advise(base, len, libc::MADV_UNMERGEABLE);
    }
    Ok(())
}

/// Gives the range its memory policy, before it is populated.
///
/// Where a memory space or the nearest node is only *preferred*, a refusal (a container's seccomp filter) leaves
/// the system's own choice. A partition that was asked for must be had.
pub(super) fn place(spec: &SpanSpec, at: usize, len: usize, parts: &[Part]) -> Result<(), OsError> {
    if len == 0 || !numa::several() {
        return Ok(());
    }
    let near = numa::here();
    match spec.place {
        // Any explicit policy also keeps automatic NUMA balancing away from the pages.
        Place::Any if spec.pinned => {
            let _ = NodeSet::single(near).map(|n| numa::prefer(at, len, n, near));
        }
        Place::Any => {}
        Place::Prefer(nodes) => {
            let _ = numa::prefer(at, len, nodes, near);
        }
        Place::Interleave(nodes) => numa::interleave(at, len, nodes)?,
        Place::Striped(nodes, part) => {
            // A mapping a part: a long allocation gets larger parts, as OpenMP allows.
            let part = part.max(len.div_ceil(MAX_STRIPES).next_multiple_of(page_size()));
            let mut from = 0;
            while from < len {
                for n in nodes.iter() {
                    let l = part.min(len - from);
                    if l == 0 {
                        break;
                    }
                    place_part(at + from, l, n)?;
                    from += l;
                }
            }
        }
        Place::Blocked(nodes) => {
            let part = len.div_ceil(nodes.len().max(1)).next_multiple_of(page_size());
            let mut from = 0;
            for n in nodes.iter() {
                let l = part.min(len - from);
                if l == 0 {
                    break;
                }
                place_part(at + from, l, n)?;
                from += l;
            }
        }
        Place::Listed => {
            let mut from = 0;
            for p in parts {
                let l = p.len.next_multiple_of(page_size()).min(len - from);
                if l == 0 {
                    break;
                }
                place_part(at + from, l, p.node)?;
                from += l;
            }
            // What a grown block has beyond its parts goes where the last part went.
            if let Some(last) = parts.last().filter(|_| from < len) {
                place_part(at + from, len - from, last.node)?;
            }
        }
    }
    Ok(())
}

fn place_part(at: usize, len: usize, node: u8) -> Result<(), OsError> {
    match NodeSet::single(node) {
        Some(n) => numa::prefer(at, len, n, node),
        None => Ok(()),
    }
}

/// Locks `[at, at + len)`; resident when it returns. Counts nothing and undoes nothing.
pub(super) fn lock(spec: &SpanSpec, at: usize, len: usize) -> Result<(), OsError> {
    // Several threads populate what is marked locked already: so the limit has its say before the work, and no page has
    // to be moved to the unevictable list afterwards (that alone took a quarter of the time).
    let r = if spec.threads > 1 && len >= PARALLEL_FROM && mem::lock_on_fault(at, len).is_ok() {
        thread::lock_parallel(at, len, spec.threads as usize)
    } else {
        mem::lock(at, len)
    };
    account::count_lock(r.is_ok());
    r
}

/// Address space of one new span: where it begins, how much of it there is, where the user's part begins.
struct Ground {
    base: usize,
    reserved: usize,
    start: usize,
}

/// Maps `len` open bytes aligned to `align`, exactly.
fn exact_ground(len: usize, align: usize) -> Result<Ground, OsError> {
    let base = mem::map(len)?;
    if base % align == 0 {
        return Ok(Ground { base, reserved: len, start: base });
    }
    mem::unmap(base, len)?;
    let total = len.checked_add(align).ok_or(OsError::new(crate::os::Call::Mmap, libc::ENOMEM, 0, len))?;
    let base = mem::map(total)?;
    let start = base.next_multiple_of(align);
    let mut g = Ground { base, reserved: total, start };
    // Both cuts may fail (vm.max_map_count); then the slack stays ours: unpopulated, unlocked, and unmapped
    // with the rest.
    let head = start - base;
    if head != 0 && mem::unmap(base, head).is_ok() {
        g.base = start;
        g.reserved -= head;
    }
    let tail = g.base + g.reserved - (start + len);
    if tail != 0 && mem::unmap(start + len, tail).is_ok() {
        g.reserved -= tail;
    }
    Ok(g)
}

/// Reserves `total` bytes without access, `phase` bytes after a multiple of `align`.
pub(super) fn reserved_ground(
    total: usize,
    align: usize,
    phase: usize,
) -> Result<(usize, usize, usize), OsError> {
    let slack = if align > page_size() { align } else { 0 };
    let all = total.checked_add(slack).ok_or(OsError::new(crate::os::Call::Mmap, libc::ENOMEM, 0, total))?;
    let base = mem::reserve(all)?;
    let mut start = base.next_multiple_of(align.max(1));
    if slack != 0 {
        // The first address of that phase at or after base.
        start = (base - base % align) + phase;
        if start < base {
            start += align;
        }
    }
    Ok((base, all, start))
}

impl Span {
    /// Maps, advises, places and (if `spec` says so) locks `len` bytes aligned to `align`.
    ///
    /// `reserve` above `len` keeps that much address space for growth in place. `parts` is read only for
    /// [`Place::Listed`]. `len` is a non-zero multiple of the page size, `align` a power of two.
    ///
    /// # Errors
    /// Whatever failed; nothing stays behind.
    pub(crate) fn new(
        spec: SpanSpec,
        len: usize,
        align: usize,
        reserve: usize,
        parts: &[Part],
    ) -> Result<Span, PagesError> {
        debug_assert!(len != 0 && len.is_multiple_of(page_size()) && align.is_power_of_two());
        let big = is_big(&spec, len);
        let align = align.max(if big { HUGE } else { page_size() });
        let err = |e| PagesError::diagnose(len, e);
        let g = if reserve > len {
            let (base, reserved, start) = reserved_ground(reserve, align, 0).map_err(err)?;
            Ground { base, reserved, start }
        } else {
            exact_ground(len, align).map_err(err)?
        };
        let whole = g.base + g.reserved - g.start;
        let ready = || -> Result<(), OsError> {
            advise(&spec, g.base, g.reserved, big)?;
            place(&spec, g.start, if spec.place.by_size() { len } else { whole }, parts)?;
            if reserve > len {
                mem::open(g.start, len)?;
            }
            if spec.pinned { lock(&spec, g.start, len) } else { Ok(()) }
        };
        if let Err(e) = ready() {
            discard(g.base, g.reserved);
            return Err(err(e));
        }
        let mut span = Span {
            base: g.base,
            reserved: g.reserved,
            start: g.start,
            len,
            locked: if spec.pinned { len } else { 0 },
            opened: len,
            align,
            segments: [0; MAX_SEGMENTS],
            segment_count: 1,
            spec,
            epoch: fork::epoch(),
            dirty: false,
        };
        span.segments[0] = len;
        account::add_mapped(len);
        account::add_locked(span.locked);
        Ok(span)
    }

    /// Reserves `size` bytes, aligned to `align`, of which nothing is open yet: pieces of it are opened and
    /// closed by [`open_piece`](Self::open_piece) and [`close_piece`](Self::close_piece).
    pub(crate) fn reserve(spec: SpanSpec, size: usize, align: usize) -> Result<Span, PagesError> {
        let err = |e| PagesError::diagnose(size, e);
        let (base, reserved, start) = reserved_ground(size, align, 0).map_err(err)?;
        let ready = advise(&spec, base, reserved, false).and_then(|()| place(&spec, start, size, &[]));
        if let Err(e) = ready {
            discard(base, reserved);
            return Err(err(e));
        }
        Ok(Span {
            base,
            reserved,
            start,
            len: 0,
            locked: 0,
            opened: 0,
            align,
            segments: [0; MAX_SEGMENTS],
            segment_count: 0,
            spec,
            epoch: fork::epoch(),
            dirty: false,
        })
    }

    /// Opens (and locks) `[at, at + len)` of a reservation made by [`reserve`](Self::reserve). Zero when `Ok`.
    pub(crate) fn open_piece(&self, at: usize, len: usize) -> Result<(), PagesError> {
        mem::open(at, len).map_err(|e| PagesError::diagnose(len, e))?;
        if self.spec.pinned {
            if let Err(e) = lock(&self.spec, at, len) {
                // Whatever part was locked; if even that fails, opening the piece again locks it again.
                let _ = mem::close(at, len, true);
                return Err(PagesError::diagnose(len, e));
            }
            account::add_locked(len);
        }
        account::add_mapped(len);
        Ok(())
    }

    /// Closes what [`open_piece`](Self::open_piece) opened in epoch `epoch`. False if the kernel refused (too
    /// many mappings): the piece is then open and locked as before.
    #[must_use]
    pub(crate) fn close_piece(&self, at: usize, len: usize, epoch: u32) -> bool {
        if self.foreign() {
            account::sub_mapped(len);
            return true;
        }
        let locked = if self.spec.pinned && epoch == fork::epoch() { len } else { 0 };
        account::unlocking(locked);
        if !give_back(at, len, if self.spec.pinned { len } else { 0 }) {
            account::keep_locked(locked);
            return false;
        }
        account::sub_mapped(len);
        account::note_reusable();
        true
    }

    /// Locks an open piece again in the child of a fork.
    pub(crate) fn relock_piece(&self, at: usize, len: usize) -> Result<(), PagesError> {
        if let Err(e) = lock(&self.spec, at, len) {
            let _ = mem::unlock(at, len);
            return Err(PagesError::diagnose(len, e));
        }
        account::add_locked(len);
        Ok(())
    }

    /// Whether the range belongs to the parent alone: this is a child, and it was not given the pages.
    pub(crate) fn foreign(&self) -> bool {
        self.spec.fork == ForkPolicy::DontFork && self.epoch != fork::epoch()
    }

    /// In a child that was not given the span: takes its addresses, without access. Where that fails, another fork
    /// handler has them.
    pub(crate) fn claim(&self) {
        if self.foreign() {
            let _ = mem::reserve_at(self.base, self.reserved);
        }
    }

    /// The first usable byte.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Usable bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that are locked now: at least `len` for a pinned span, and 0 in the child of a fork.
    pub(crate) fn locked_now(&self) -> usize {
        if self.is_current() { self.locked } else { 0 }
    }

    /// Locked bytes beyond the usable ones.
    pub(crate) fn slack(&self) -> usize {
        self.locked_now().saturating_sub(self.len)
    }

    /// Whether what the record says of locks still holds: not so in the child of a fork.
    pub(crate) fn is_current(&self) -> bool {
        self.epoch == fork::epoch()
    }

    /// The epoch in which every byte is locked; 0 if the span is not pinned.
    pub(crate) fn pinned_epoch(&self) -> u32 {
        if self.spec.pinned { self.epoch } else { 0 }
    }

    /// Whether it is what a new one of its length would be: current, exact, in one piece, placed without regard to size.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_current()
            && !self.spec.place.by_size()
            && self.locked_now() <= self.len
            && self.opened == self.len
            && self.capacity() == self.len
            && self.segment_count == 1
    }

    pub(crate) fn spec(&self) -> &SpanSpec {
        &self.spec
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(crate) fn set_dirty(&mut self) {
        self.dirty = true;
    }

    /// Bytes the span can have without leaving its reservation.
    pub(crate) fn capacity(&self) -> usize {
        self.base + self.reserved - self.start
    }

    /// Locks the span again in the child of a fork.
    pub(crate) fn relock(&mut self) -> Result<(), PagesError> {
        if self.is_current() || self.foreign() {
            return Ok(());
        }
        if self.spec.pinned {
            if let Err(e) = lock(&self.spec, self.start, self.len) {
                let _ = mem::unlock(self.start, self.len);
                return Err(PagesError::diagnose(self.len, e));
            }
            self.locked = self.len;
            self.cut_segments(self.len);
            account::add_locked(self.len);
        }
        self.epoch = fork::epoch();
        Ok(())
    }

    /// Gives everything back: memory, lock and address space.
    pub(crate) fn release(self) {
        account::sub_mapped(self.opened);
        if self.foreign() {
            return;
        }
        account::unlocking(self.locked_now());
        discard(self.base, self.reserved);
        account::note_reusable();
    }
}

/// Closes a part of a span, the first `locked` bytes of which are locked. False if the kernel would not take the lock
/// off or the memory back: the part is then open and locked as before, and what is in it is not known.
pub(super) fn give_back(at: usize, len: usize, locked: usize) -> bool {
    match mem::close(at, len, locked != 0) {
        Ok(()) => true,
        Err(_) => {
            // Its pages may be gone; what stays locked has to be resident.
            let _ = mem::lock(at, locked);
            false
        }
    }
}

/// Unmaps a range; where the kernel refuses, takes lock and memory from it and keeps the address space for a
/// later try, so that nothing is lost.
pub(super) fn discard(base: usize, len: usize) {
    if mem::unmap(base, len).is_err() {
        let _ = mem::drop_pages(base, len);
        let _ = mem::unlock(base, len);
        super::cache::strand(base, len);
    }
}
