//! Memory partitioners and partitions (OpenMP 6.0, sections 8.2 and 27.5 to 27.10).
//!
//! A partitioner is a pair of callbacks that cut one allocation into parts and say which storage resource of the
//! memory space (here: which NUMA node) each part is to come from. Every part then gets a memory policy of its
//! own. When the callback runs is the partitioner's lifetime: for every allocation, once an allocator and size,
//! or once a size and space.
//!
//! ```
//! use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
//! use pinned_alloc::{AllocatorBuilder, MemSpace, traits::Partition};
//! use std::alloc::Layout;
//!
//! /// All of it on the last node of the space.
//! fn last(_space: MemSpace, size: usize, _arg: usize, parts: &mut MemPartition) {
//!     if parts.init(1, 0).is_ok() {
//!         let _ = parts.set_part(0, parts.resources() - 1, size);
//!     }
//! }
//!
//! let partitioner = MemPartitioner::new(Lifetime::Allocator, last, None)?;
//! let alloc = AllocatorBuilder::new().partition(Partition::Partitioner(partitioner)).build()?;
//! let layout = Layout::new::<[u8; 100_000]>();
//! let block = alloc.allocate(layout)?;
//! // SAFETY: the block came from this allocator with this layout, and is not used again.
//! unsafe { alloc.deallocate(block.cast(), layout) };
//! drop(alloc);
//! partitioner.destroy();
//! # Ok::<(), pinned_alloc::Error>(())
//! ```

use super::error::Error;
use super::space::MemSpace;
use super::table;
use crate::os::lock::Lock;
use crate::os::page_size;
use crate::pages::Part;

/// Most parts of one partition; a partitioner that asks for more is refused.
pub const MAX_PARTS: usize = 256;

/// How long a computed partition may be used again (`omp_mempartitioner_lifetime_t`).
///
/// ```
/// use pinned_alloc::partition::Lifetime;
///
/// assert_eq!(Lifetime::Dynamic as i32, 3); // omp_dynamic_mempartition
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// For every allocation of the same size in the same space (`omp_static_mempartition`).
    Static = 1,
    /// For every allocation of the same size by the same allocator (`omp_allocator_mempartition`).
    Allocator = 2,
    /// For one allocation (`omp_dynamic_mempartition`).
    Dynamic = 3,
}

/// Cuts an allocation: is given the space, the size in bytes (whole pages), the `partitioner_arg` trait, and the
/// partition to fill by [`MemPartition::init`] and [`MemPartition::set_part`].
///
/// It is called by allocating threads, possibly several at once, and must not allocate through the allocator it
/// partitions for. A panic in it is a failed allocation, which falls back.
///
/// ```
/// use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
/// use pinned_alloc::MemSpace;
///
/// fn whole(_space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
///     if parts.init(1, arg).is_ok() {
///         let _ = parts.set_part(0, 0, size);
///     }
/// }
///
/// let partitioner = MemPartitioner::new(Lifetime::Dynamic, whole, None)?;
/// partitioner.destroy();
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub type ComputeProc = fn(MemSpace, usize, usize, &mut MemPartition);

/// Told that a partition is not needed any more; called once for each partition that was computed, at the latest when
/// its partitioner is destroyed. A panic in it has no consequence but its message.
///
/// ```
/// use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
/// use pinned_alloc::MemSpace;
///
/// fn whole(_space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
///     if parts.init(1, arg).is_ok() {
///         let _ = parts.set_part(0, 0, size);
///     }
/// }
/// fn done(parts: &mut MemPartition) {
///     println!("done with the partition {}", parts.user_data());
/// }
///
/// let partitioner = MemPartitioner::new(Lifetime::Dynamic, whole, Some(done))?;
/// partitioner.destroy();
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
pub type ReleaseProc = fn(&mut MemPartition);

/// A partition of one allocation (`omp_mempartition_t`), filled by a partitioner's callback.
///
/// See the example of [the module](self).
#[derive(Debug)]
pub struct MemPartition {
    space: MemSpace,
    parts: [Part; MAX_PARTS],
    set: usize,
    count: usize,
    user_data: usize,
}

impl MemPartition {
    const fn new(space: MemSpace) -> Self {
        Self { space, parts: [Part { node: 0, len: 0 }; MAX_PARTS], set: 0, count: 0, user_data: 0 }
    }

    /// Sets the number of parts, and a word for the callbacks' own use (`omp_init_mempartition`).
    ///
    /// # Errors
    /// [`Error::Partition`] for none or more than [`MAX_PARTS`].
    ///
    /// ```
    /// use pinned_alloc::MemSpace;
    /// use pinned_alloc::partition::MemPartition;
    ///
    /// /// Two halves, on the first and the last node.
    /// fn halves(_space: MemSpace, size: usize, _arg: usize, parts: &mut MemPartition) {
    ///     let half = (size / 2).next_multiple_of(4096);
    ///     if half < size && parts.init(2, 0).is_ok() {
    ///         let _ = parts.set_part(0, 0, half);
    ///         let _ = parts.set_part(1, parts.resources() - 1, size - half);
    ///     } else if parts.init(1, 0).is_ok() {
    ///         let _ = parts.set_part(0, 0, size);
    ///     }
    /// }
    /// # use pinned_alloc::{AllocatorBuilder, partition::*, traits::Partition};
    /// # let p = MemPartitioner::new(Lifetime::Dynamic, halves, None)?;
    /// # let a = AllocatorBuilder::new().partition(Partition::Partitioner(p)).build()?;
    /// # let layout = std::alloc::Layout::new::<[u8; 100_000]>();
    /// # let block = a.allocate(layout)?;
    /// # // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// # unsafe { a.deallocate(block.cast(), layout) };
    /// # p.destroy();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn init(&mut self, parts: usize, user_data: usize) -> Result<(), Error> {
        if parts == 0 || parts > MAX_PARTS {
            return Err(Error::Partition);
        }
        self.count = parts;
        self.set = 0;
        self.parts = [Part { node: 0, len: 0 }; MAX_PARTS];
        self.user_data = user_data;
        Ok(())
    }

    /// Part `part` is `size` bytes from storage resource `resource` of the space (`omp_mempartition_set_part`).
    ///
    /// # Errors
    /// [`Error::Partition`] where the routine returns -1: no such part or resource, or a size that is not whole
    /// pages for any part but the last.
    ///
    /// ```
    /// use pinned_alloc::MemSpace;
    /// use pinned_alloc::partition::MemPartition;
    ///
    /// /// Two halves, on the first and the last node.
    /// fn halves(_space: MemSpace, size: usize, _arg: usize, parts: &mut MemPartition) {
    ///     let half = (size / 2).next_multiple_of(4096);
    ///     if half < size && parts.init(2, 0).is_ok() {
    ///         let _ = parts.set_part(0, 0, half);
    ///         let _ = parts.set_part(1, parts.resources() - 1, size - half);
    ///     } else if parts.init(1, 0).is_ok() {
    ///         let _ = parts.set_part(0, 0, size);
    ///     }
    /// }
    /// # use pinned_alloc::{AllocatorBuilder, partition::*, traits::Partition};
    /// # let p = MemPartitioner::new(Lifetime::Dynamic, halves, None)?;
    /// # let a = AllocatorBuilder::new().partition(Partition::Partitioner(p)).build()?;
    /// # let layout = std::alloc::Layout::new::<[u8; 100_000]>();
    /// # let block = a.allocate(layout)?;
    /// # // SAFETY: the block came from this allocator with this layout, and is not used again.
    /// # unsafe { a.deallocate(block.cast(), layout) };
    /// # p.destroy();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn set_part(&mut self, part: usize, resource: usize, size: usize) -> Result<(), Error> {
        let node = self.space.resource(resource).ok_or(Error::Partition)?;
        let last = part == self.count.wrapping_sub(1);
        if part >= self.count || size == 0 || (!last && !size.is_multiple_of(page_size())) {
            return Err(Error::Partition);
        }
        if self.parts[part].len == 0 {
            self.set += 1;
        }
        self.parts[part] = Part { node, len: size };
        Ok(())
    }

    /// The word given to [`init`](Self::init) (`omp_mempartition_get_user_data`).
    ///
    /// ```
    /// use pinned_alloc::partition::MemPartition;
    ///
    /// fn release(parts: &mut MemPartition) {
    ///     println!("the word of this partition was {}", parts.user_data());
    /// }
    /// # let _: pinned_alloc::partition::ReleaseProc = release;
    /// ```
    #[must_use]
    pub fn user_data(&self) -> usize {
        self.user_data
    }

    /// The number of storage resources of the space.
    ///
    /// ```
    /// use pinned_alloc::{MemSpace, partition::MemPartition};
    ///
    /// fn compute(space: MemSpace, _size: usize, _arg: usize, parts: &mut MemPartition) {
    ///     assert_eq!(parts.resources(), space.num_resources());
    /// }
    /// # let _: pinned_alloc::partition::ComputeProc = compute;
    /// ```
    #[must_use]
    pub fn resources(&self) -> usize {
        self.space.num_resources()
    }

    fn check(&self, size: usize) -> Result<(), Error> {
        let sum = self.parts[..self.count].iter().try_fold(0usize, |s, p| s.checked_add(p.len));
        if self.count != 0 && self.set == self.count && sum == Some(size) {
            Ok(())
        } else {
            Err(Error::Partition)
        }
    }
}

/// A memory partitioner (`omp_mempartitioner_t`): a number that is checked where it is used.
///
/// See the example of [the module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemPartitioner(usize);

const BASE: usize = 0x2000;
const SLOTS: usize = 64;

#[derive(Clone, Copy)]
struct Slot {
    generation: u32,
    procs: Option<(Lifetime, ComputeProc, Option<ReleaseProc>)>,
}

/// The owner of a partition that any allocator may use again.
const OWNED_BY_ALL: usize = usize::MAX;

struct Kept {
    of: usize,    // the partitioner's number, 0: empty
    owner: usize, // an allocator's handle, or OWNED_BY_ALL
    size: usize,
    partition: MemPartition,
}

struct State {
    slots: [Slot; SLOTS],
    kept: [Kept; 4],
    next: usize,
}

static STATE: Lock<State> = Lock::new(State {
    slots: [Slot { generation: 0, procs: None }; SLOTS],
    kept: [const { Kept { of: 0, owner: 0, size: 0, partition: MemPartition::new(MemSpace::Default) } }; 4],
    next: 0,
});

impl MemPartitioner {
    /// Makes a partitioner (`omp_init_mempartitioner`).
    ///
    /// # Errors
    /// [`Error::TooMany`]: 64 exist.
    ///
    /// ```
    /// use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
    /// use pinned_alloc::MemSpace;
    ///
    /// fn whole(_space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
    ///     if parts.init(1, arg).is_ok() {
    ///         let _ = parts.set_part(0, 0, size);
    ///     }
    /// }
    ///
    /// let partitioner = MemPartitioner::new(Lifetime::Static, whole, None)?;
    /// partitioner.destroy();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn new(
        lifetime: Lifetime,
        compute: ComputeProc,
        release: Option<ReleaseProc>,
    ) -> Result<Self, Error> {
        let mut s = STATE.lock();
        let i = s.slots.iter().position(|s| s.procs.is_none()).ok_or(Error::TooMany)?;
        let slot = &mut s.slots[i];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.procs = Some((lifetime, compute, release));
        Ok(Self((slot.generation as usize) << 32 | (BASE + i)))
    }

    /// Destroys it (`omp_destroy_mempartitioner`); partitions kept for reuse are released. Allocators that use it
    /// cannot partition any more: their requests fail and fall back.
    ///
    /// ```
    /// use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
    /// use pinned_alloc::MemSpace;
    ///
    /// fn whole(_space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
    ///     if parts.init(1, arg).is_ok() {
    ///         let _ = parts.set_part(0, 0, size);
    ///     }
    /// }
    ///
    /// let partitioner = MemPartitioner::new(Lifetime::Static, whole, None)?;
    /// partitioner.destroy();
    /// assert!(MemPartitioner::from_raw(partitioner.raw()).is_none());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn destroy(self) {
        let mut release = None;
        {
            let mut s = STATE.lock();
            if let Some(slot) =
                self.slot().and_then(|(i, g)| s.slots.get_mut(i).filter(|s| s.generation == g))
            {
                release = slot.procs.take().and_then(|p| p.2);
            }
        }
        for i in 0..4 {
            let mut dead = None;
            {
                let mut s = STATE.lock();
                if s.kept[i].of == self.0 {
                    s.kept[i].of = 0;
                    dead = Some(core::mem::replace(
                        &mut s.kept[i].partition,
                        MemPartition::new(MemSpace::Default),
                    ));
                }
            }
            if let (Some(mut p), Some(r)) = (dead, release) {
                guarded(|| r(&mut p));
            }
        }
    }

    /// From its number, if such a partitioner exists.
    ///
    /// ```
    /// use pinned_alloc::partition::MemPartitioner;
    ///
    /// assert!(MemPartitioner::from_raw(0).is_none());
    /// ```
    #[must_use]
    pub fn from_raw(raw: usize) -> Option<Self> {
        let p = Self(raw);
        let (i, g) = p.slot()?;
        let s = STATE.lock();
        s.slots.get(i).filter(|s| s.generation == g && s.procs.is_some()).map(|_| p)
    }

    /// Its number.
    ///
    /// ```
    /// use pinned_alloc::partition::{Lifetime, MemPartition, MemPartitioner};
    /// use pinned_alloc::MemSpace;
    ///
    /// fn whole(_space: MemSpace, size: usize, arg: usize, parts: &mut MemPartition) {
    ///     if parts.init(1, arg).is_ok() {
    ///         let _ = parts.set_part(0, 0, size);
    ///     }
    /// }
    ///
    /// let partitioner = MemPartitioner::new(Lifetime::Static, whole, None)?;
    /// assert_eq!(MemPartitioner::from_raw(partitioner.raw()), Some(partitioner));
    /// partitioner.destroy();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub const fn raw(self) -> usize {
        self.0
    }

    const fn slot(self) -> Option<(usize, u32)> {
        let low = self.0 & 0xffff_ffff;
        if low < BASE || low - BASE >= SLOTS { None } else { Some((low - BASE, (self.0 >> 32) as u32)) }
    }

    /// Computes (or finds) the parts of an allocation of `size` bytes and hands them to `with`.
    pub(crate) fn parts<R>(
        self,
        space: MemSpace,
        size: usize,
        arg: usize,
        allocator: &table::Allocator,
        with: impl FnOnce(&[Part]) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (i, g) = self.slot().ok_or(Error::Partition)?;
        let owner_of = |l: Lifetime| match l {
            Lifetime::Static => OWNED_BY_ALL,
            // The handle, not the slot: the next allocator of the slot is another one.
            Lifetime::Allocator | Lifetime::Dynamic => allocator.handle().raw(),
        };
        let (lifetime, compute, release) = {
            let s = STATE.lock();
            let procs = s.slots.get(i).filter(|s| s.generation == g).and_then(|s| s.procs);
            let procs = procs.ok_or(Error::Partition)?;
            let hit = s.kept.iter().find(|k| {
                k.of == self.0 && k.size == size && k.owner == owner_of(procs.0) && k.partition.space == space
            });
            if let Some(k) = hit.filter(|_| procs.0 != Lifetime::Dynamic) {
                let (parts, n) = (k.partition.parts, k.partition.count);
                drop(s);
                return with(&parts[..n]);
            }
            procs
        };
        // The callback is the user's: no lock is held.
        let mut p = MemPartition::new(space);
        let ran = guarded(|| compute(space, size, arg, &mut p));
        let r = if ran { p.check(size) } else { Err(Error::Partition) };
        let r = r.and_then(|()| with(&p.parts[..p.count]));
        let mut old = Some(p);
        let mut s = STATE.lock();
        // Nothing is kept for a partitioner that was destroyed meanwhile: nobody would release it.
        let alive = s.slots.get(i).is_some_and(|s| s.generation == g && s.procs.is_some());
        if r.is_ok() && lifetime != Lifetime::Dynamic && alive {
            let n = s.next % 4;
            s.next += 1;
            let kept = &mut s.kept[n];
            let was =
                (kept.of, core::mem::replace(&mut kept.partition, MemPartition::new(MemSpace::Default)));
            if let Some(p) = old.take() {
                (kept.of, kept.owner, kept.size, kept.partition) = (self.0, owner_of(lifetime), size, p);
            }
            // The one that made room is released by its own partitioner's procedure.
            let its =
                Self(was.0).slot().and_then(|(i, g)| s.slots.get(i).filter(|s| s.generation == g)?.procs);
            drop(s);
            if let Some((_, _, Some(r))) = its {
                let mut dead = was.1;
                guarded(|| r(&mut dead));
            }
        } else {
            drop(s);
        }
        if let (Some(mut p), Some(r)) = (old, release) {
            guarded(|| r(&mut p));
        }
        r
    }
}

/// Runs a callback of the user's; false if it panicked. What it was called for is half done then, and no panic may take
/// a charge or a block along.
fn guarded(f: impl FnOnce()) -> bool {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(()) => true,
        Err(payload) => {
            // Dropping it is the user's code once more.
            core::mem::forget(payload);
            false
        }
    }
}

/// For the fork handlers.
pub(crate) fn raw_lock() {
    STATE.raw_lock();
}

/// # Safety
/// After [`raw_lock`] of this thread or of the thread it was forked from.
pub(crate) unsafe fn raw_unlock() {
    // SAFETY: as the caller promises.
    unsafe { STATE.raw_unlock() };
}
