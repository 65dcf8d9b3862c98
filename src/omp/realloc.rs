//! Realloc: another size for a block, under a policy.
//!
//! ```text
//!             same allocator serves                         another one does
//!   Fixed     in place, or an error                         an error
//!   MayMove   in place ─> page tables move ─> copy          copy
//!                └──────── all fail ────────> the allocator's fallback: copy from there
//! ```
//!
//! Pools are charged with the difference only, before anything is done, and get it back when nothing was. A copy
//! needs both blocks for a moment, in memory and lock limit but not in the pool.

use super::allocator::pool_of;
use super::error::Error;
use super::policy::ReallocPolicy;
use super::table::{self, Allocator};
use crate::heap::{self, Block, Grant, Growth, Request};
use crate::os::page_size;
use crate::pages::NoGrowth;
use core::ptr::{self, NonNull};

/// What is asked of [`reallocate`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resize {
    /// Bytes, not 0.
    pub(crate) size: usize,
    /// Alignment of the result, a power of two; the block's own where nothing more is asked.
    pub(crate) align: usize,
    pub(crate) policy: ReallocPolicy,
    /// Bytes beyond the old requested size are to be zero.
    pub(crate) zero: bool,
}

/// Resizes a live block, as a request to `target`.
///
/// # Safety
/// The caller owns `block`, and takes the result for it on success: the old address is dead unless it is the same.
///
/// # Errors
/// The block is as it was: address, size, contents, lock and charge.
pub(crate) unsafe fn reallocate(
    block: Block,
    addr: NonNull<u8>,
    target: &'static Allocator,
    r: Resize,
) -> Result<Grant, Error> {
    if r.size > isize::MAX as usize {
        return Err(Error::Size);
    }
    if block.is_foreign() {
        return Err(Error::NotABlock { addr: addr.as_ptr().addr() });
    }
    let old = block.requested();
    let tag = block.heap().tag();
    let home = table::slot(tag.server).ok_or(Error::NotABlock { addr: addr.as_ptr().addr() })?;
    let fits = (addr.as_ptr().addr() & (r.align - 1)) == 0;
    // SAFETY: for all calls below: the caller owns the block.
    let grant = unsafe {
        match r.policy {
            ReallocPolicy::Fixed => {
                if tag.origin != target.index() || !fits {
                    Err(Error::NoRoom { asked: r.size, capacity: block.usable() })
                } else {
                    in_place(block, addr, home, r.size)
                }
            }
            ReallocPolicy::MayMove => target.chain(r.size, |server| {
                if tag.origin == target.index() && tag.server == server.index() && fits {
                    at_home(block, addr, home, &r)
                } else {
                    elsewhere(block, addr, target, server, &r)
                }
            }),
        }
    }?;
    if r.zero && r.size > old {
        // SAFETY: the block has r.size bytes now and is the caller's.
        unsafe { ptr::write_bytes(grant.ptr.as_ptr().add(old), 0, r.size - old) };
    }
    Ok(grant)
}

/// Without moving.
///
/// # Safety
/// As [`reallocate`].
unsafe fn in_place(
    block: Block,
    addr: NonNull<u8>,
    home: &'static Allocator,
    size: usize,
) -> Result<Grant, Error> {
    let old = block.requested();
    let policy = &home.core().policy;
    let pool = pool_of(block.heap());
    if size > old {
        let asked = size - old;
        pool.charge(asked).map_err(|(pool_size, used)| Error::Pool { pool_size, used, asked })?;
    }
    let r = grow_or_shrink(block, home, size, policy.realloc == ReallocPolicy::Fixed);
    match r {
        Ok(()) => {
            if size < old {
                pool.uncharge(old - size);
            }
            Ok(Grant { ptr: addr, usable: block.usable() })
        }
        Err(e) => {
            if size > old {
                pool.uncharge(size - old);
            }
            Err(match e {
                NoGrowth::Failed(p) => Error::Pages(p),
                NoGrowth::NoRoom => Error::NoRoom { asked: size, capacity: block.capacity() },
            })
        }
    }
}

fn grow_or_shrink(block: Block, home: &'static Allocator, size: usize, keep: bool) -> Result<(), NoGrowth> {
    let ahead = home.core().policy.lock_ahead.min(size / 8) & !(page_size() - 1);
    let attempt = || {
        let how = Growth { ahead, keep, parts: &[] };
        if size <= block.usable() || !block.has_own_pages() {
            // SAFETY: the block is the caller's caller's own.
            return unsafe { block.resize(size, &how) };
        }
        // A partitioner cuts what is added; what is there stays where it is.
        let r = home.with_parts(size - block.usable(), |parts| {
            // SAFETY: as above.
            Ok(unsafe { block.resize(size, &Growth { parts, ..how }) })
        });
        r.unwrap_or(Err(NoGrowth::NoRoom))
    };
    match attempt() {
        // Idle memory of others first, before growth fails.
        Err(NoGrowth::Failed(e)) if e.is_shortage() && heap::reclaim_idle() != 0 => attempt(),
        r => r,
    }
}

/// Served by the same allocator as before: in place, by moving page tables, or by a copy within the pool.
///
/// # Safety
/// As [`reallocate`].
unsafe fn at_home(
    block: Block,
    addr: NonNull<u8>,
    home: &'static Allocator,
    r: &Resize,
) -> Result<Grant, Error> {
    let old = block.requested();
    if r.size <= old && !block.has_own_pages() && r.size <= block.usable() / 2 {
        // A smaller class saves locked memory. The pool holds enough for both sizes already.
        if let Ok(g) = copy(block, addr, r, r.align) {
            pool_of(block.heap()).uncharge(old - r.size);
            return Ok(g);
        }
    }
    // SAFETY: the caller's promise.
    let e = match unsafe { in_place(block, addr, home, r.size) } {
        Ok(g) => return Ok(g),
        Err(e @ Error::Pool { .. }) => return Err(e),
        Err(e) => e,
    };
    let pool = pool_of(block.heap());
    let more = r.size - old; // in place, a shrink does not fail
    pool.charge(more).map_err(|(pool_size, used)| Error::Pool { pool_size, used, asked: more })?;
    if matches!(e, Error::NoRoom { .. }) && block.can_move() {
        // SAFETY: the caller's promise.
        let moved = || unsafe { block.move_to_grow(r.size, headroom(r.size), r.align) };
        let got = match moved() {
            Err(e) if e.is_shortage() && heap::reclaim_idle() != 0 => moved(),
            got => got,
        };
        match got {
            Ok(p) => return Ok(Grant { ptr: p, usable: block.usable() }),
            // A copy would need all of it anew: no way round a shortage.
            Err(e) if e.is_shortage() => {
                pool.uncharge(more);
                return Err(e.into());
            }
            Err(_) => {}
        }
    } else if matches!(e, Error::Pages(p) if p.is_shortage()) {
        pool.uncharge(more);
        return Err(e);
    }
    copy(block, addr, r, r.align.max(block.alignment())).inspect_err(|_| pool.uncharge(more))
}

/// Address space to take along on a move, so that the next growth is in place: it costs nothing but addresses.
fn headroom(size: usize) -> usize {
    const GIB: usize = 1 << 30;
    if size < GIB { size.saturating_mul(16).min(4 * GIB) } else { size.saturating_mul(2) }
}

/// A new block of the block's own heap, for `r.size` bytes that are charged already; the old one is gone after.
fn copy(block: Block, addr: NonNull<u8>, r: &Resize, align: usize) -> Result<Grant, Error> {
    let heap = block.heap();
    let tag = heap.tag();
    let home = table::slot(tag.server).ok_or(Error::NotABlock { addr: addr.as_ptr().addr() })?;
    let align = align.max(home.core().traits.alignment.get()).max(16);
    let serve = |parts: &[crate::pages::Part]| {
        let rq = Request { size: r.size, align, zero: false, reserve: home.core().reserve(r.size), parts };
        heap.alloc(&rq).map_err(Error::from)
    };
    let g = if r.size <= page_size() { serve(&[]) } else { home.with_parts(r.size, serve) }?;
    // SAFETY: both blocks are live, apart, and have that many bytes; the old one is the caller's to free.
    unsafe {
        ptr::copy_nonoverlapping(addr.as_ptr(), g.ptr.as_ptr(), block.requested().min(r.size));
        block.free();
    }
    Ok(g)
}

/// Served by another allocator than before: a new block, a copy, the old one freed.
///
/// # Safety
/// As [`reallocate`].
unsafe fn elsewhere(
    block: Block,
    addr: NonNull<u8>,
    target: &'static Allocator,
    server: &'static Allocator,
    r: &Resize,
) -> Result<Grant, Error> {
    let old = block.requested();
    let (g, kept) = target.serve(server, r.size, r.align, false, Some((pool_of(block.heap()), old)))?;
    // SAFETY: both blocks are live, apart, and have that many bytes; the old one is the caller's to free.
    unsafe {
        ptr::copy_nonoverlapping(addr.as_ptr(), g.ptr.as_ptr(), old.min(r.size));
        give_up(block, old - kept);
    }
    Ok(g)
}

/// Frees a block and what goes with it: its charge, and its allocator where that was waiting.
///
/// # Safety
/// The caller owns the block, and nobody uses it after this.
pub(crate) unsafe fn release(block: Block) {
    // SAFETY: the caller's promise.
    unsafe { give_up(block, block.requested()) };
}

/// As [`release`]; only `charge` bytes of its charge go with it.
///
/// # Safety
/// As [`release`].
unsafe fn give_up(block: Block, charge: usize) {
    let heap = block.heap();
    let origin = heap.tag().origin;
    // The charge goes first: a pool may be another's once its last block is gone.
    pool_of(heap).uncharge(charge);
    // SAFETY: the caller's promise.
    unsafe { block.free() };
    table::after_free(heap, origin);
}
