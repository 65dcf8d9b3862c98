//! Allocator traits of OpenMP 5.0 to 6.0: their names, numbers, defaults and validation.
//!
//! Two ways lead to one [`Traits`] value, and nothing else in the crate looks at numbers again:
//!
//! ```text
//!   AllocatorBuilder (typed, Rust) ──┐
//!                                    ├──> Traits (resolved, Copy) ──> Allocator
//!   from_raw(&[(key, value)])  ──────┘
//!     C callers, OMP_ALLOCATOR
//! ```
//!
//! Keys and values are those of the 6.0 specification (sections 8.2 and 20.8) where the shipping
//! headers agree with it. Where they do not (`omp_atv_all` is 7 in 5.x and 19 in 6.0, where 7 is
//! `device`) both numbers are accepted: on a host allocator they mean the same set of threads.
//!
//! ```
//! use pinned_alloc::traits::{Fallback, Traits, key, value};
//! use pinned_alloc::{AllocatorBuilder, MemSpace, TraitError};
//!
//! let t = Traits::from_raw([(key::PINNED, value::TRUE), (key::POOL_SIZE, 1 << 20)])?;
//! assert!(t.pinned && t.fallback == Fallback::DefaultMem);
//! assert_eq!(Traits::from_raw([(key::ALIGNMENT, 3)]), Err(TraitError::Value { key: key::ALIGNMENT, value: 3 }));
//! let alloc = AllocatorBuilder::from_traits(MemSpace::Default, t).build();
//! # assert!(alloc.is_ok());
//! # Ok::<(), TraitError>(())
//! ```

use super::error::TraitError;
use super::handle::AllocatorHandle;
use super::partition::MemPartitioner;

/// Trait keys (`omp_alloctrait_key_t`), OpenMP 6.0 section 20.8.
#[allow(missing_docs)] // The names are the documentation: each is the constant of the same name in `omp.h`.
pub mod key {
    pub const SYNC_HINT: i32 = 1;
    pub const ALIGNMENT: i32 = 2;
    pub const ACCESS: i32 = 3;
    pub const POOL_SIZE: i32 = 4;
    pub const FALLBACK: i32 = 5;
    pub const FB_DATA: i32 = 6;
    pub const PINNED: i32 = 7;
    pub const PARTITION: i32 = 8;
    pub const PIN_DEVICE: i32 = 9;
    pub const PREFERRED_DEVICE: i32 = 10;
    pub const DEVICE_ACCESS: i32 = 11;
    pub const TARGET_ACCESS: i32 = 12;
    pub const ATOMIC_SCOPE: i32 = 13;
    pub const PART_SIZE: i32 = 14;
    pub const PARTITIONER: i32 = 15;
    pub const PARTITIONER_ARG: i32 = 16;

    /// The name of the trait with that key.
    pub(crate) fn name(key: i32) -> Option<&'static str> {
        const NAMES: [&str; 16] = [
            "sync_hint",
            "alignment",
            "access",
            "pool_size",
            "fallback",
            "fb_data",
            "pinned",
            "partition",
            "pin_device",
            "preferred_device",
            "device_access",
            "target_access",
            "atomic_scope",
            "part_size",
            "partitioner",
            "partitioner_arg",
        ];
        NAMES.get(usize::try_from(key).ok()?.checked_sub(1)?).copied()
    }
}

/// Trait values (`omp_alloctrait_value_t`), OpenMP 6.0 section 20.8.
#[allow(missing_docs)] // As for `key`.
pub mod value {
    pub const FALSE: usize = 0;
    pub const TRUE: usize = 1;
    pub const CONTENDED: usize = 3;
    pub const UNCONTENDED: usize = 4;
    pub const SERIALIZED: usize = 5;
    pub const PRIVATE: usize = 6;
    /// `omp_atv_device` of 6.0; the same number was `omp_atv_all` in 5.x.
    pub const DEVICE: usize = 7;
    pub const THREAD: usize = 8;
    pub const PTEAM: usize = 9;
    pub const CGROUP: usize = 10;
    pub const DEFAULT_MEM_FB: usize = 11;
    pub const NULL_FB: usize = 12;
    pub const ABORT_FB: usize = 13;
    pub const ALLOCATOR_FB: usize = 14;
    pub const ENVIRONMENT: usize = 15;
    pub const NEAREST: usize = 16;
    pub const BLOCKED: usize = 17;
    pub const INTERLEAVED: usize = 18;
    pub const ALL: usize = 19;
    pub const SINGLE: usize = 20;
    pub const MULTIPLE: usize = 21;
    pub const MEMSPACE: usize = 22;
    pub const PARTITIONER: usize = 23;
    /// `omp_atv_default`: the default of the trait's table row.
    pub const DEFAULT: usize = usize::MAX;
}

/// `sync_hint`: how many threads ask the allocator at once (OpenMP 6.0, Table 8.2).
///
/// ```
/// use pinned_alloc::traits::SyncHint;
///
/// assert_eq!(SyncHint::default(), SyncHint::Contended);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SyncHint {
    /// Many threads at once. The default.
    #[default]
    Contended,
    /// Few at once.
    Uncontended,
    /// Never two at once; two simultaneous requests are unspecified behaviour in OpenMP (here: still safe).
    Serialized,
    /// One thread only; requests of a second are unspecified behaviour in OpenMP (here: still safe).
    Private,
}

/// `access`: which threads touch the memory (OpenMP 6.0, Table 8.2).
///
/// ```
/// use pinned_alloc::traits::Access;
///
/// assert_eq!(Access::default(), Access::MemSpace);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// Tasks of all devices (6.0); every thread of the device (5.x, where it is the default).
    All,
    /// Tasks of all devices of the memory space. The default since 6.0; on a host allocator the same as `All`.
    #[default]
    MemSpace,
    /// Tasks of the requesting device.
    Device,
    /// The contention group of the requesting thread; `pool_size` is counted for each.
    CGroup,
    /// The parallel team of the requesting thread; `pool_size` is counted for each.
    PTeam,
    /// The requesting thread only; `pool_size` is counted for each thread.
    Thread,
}

/// `fallback`: what happens when the allocator cannot serve (OpenMP 6.0, Table 8.2).
///
/// ```
/// use pinned_alloc::traits::Fallback;
///
/// assert_eq!(Fallback::default(), Fallback::DefaultMem);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fallback {
    /// A second try in the default memory space with default traits: ordinary, unpinned memory. The default.
    #[default]
    DefaultMem,
    /// The call fails.
    Null,
    /// The process ends with a message.
    Abort,
    /// Another allocator is asked; this value carries the `fb_data` trait.
    Allocator(AllocatorHandle),
}

/// `partition`: how one allocation is spread over the nodes of its memory space (OpenMP 6.0, Table 8.2).
///
/// ```
/// use pinned_alloc::traits::Partition;
///
/// assert_eq!(Partition::default(), Partition::Environment);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Partition {
    /// As the memory space has it. The default.
    #[default]
    Environment,
    /// The node nearest to the requesting thread.
    Nearest,
    /// One part a node, parts of about the same size.
    Blocked,
    /// Parts of `part_size` bytes dealt round robin.
    Interleaved,
    /// A memory partitioner decides (6.0).
    Partitioner(MemPartitioner),
}

/// `target_access` (6.0): kept and reported; a host allocator has one device, so both values hold.
///
/// ```
/// use pinned_alloc::traits::TargetAccess;
///
/// assert_eq!(TargetAccess::default(), TargetAccess::Single);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TargetAccess {
    /// Accesses of different devices are ordered by the program. The default.
    #[default]
    Single,
    /// They may interleave.
    Multiple,
}

/// `atomic_scope` (6.0): kept and reported; a host allocator has one device, so both values hold.
///
/// ```
/// use pinned_alloc::traits::AtomicScope;
///
/// assert_eq!(AtomicScope::default(), AtomicScope::Device);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AtomicScope {
    /// Atomics hold across all devices of the allocator.
    All,
    /// Atomics hold on the device that executes them. The default.
    #[default]
    Device,
}

/// Every trait of one allocator, resolved: what [`AllocatorBuilder`](crate::AllocatorBuilder) and the
/// raw constructor both produce.
///
/// Sizes and alignments are bytes.
///
/// ```
/// use pinned_alloc::{AllocatorBuilder, MemSpace, Traits};
///
/// let alloc = AllocatorBuilder::from_traits(MemSpace::Default, Traits::DEFAULT).build()?;
/// assert_eq!(*alloc.traits(), Traits::DEFAULT);
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traits {
    /// `sync_hint`.
    pub sync_hint: SyncHint,
    /// `alignment`: a power of two; blocks are aligned to the larger of this and 16.
    pub alignment: Alignment,
    /// `access`.
    pub access: Access,
    /// `pool_size`: cap on live requested bytes; `None` is unlimited, the default.
    pub pool_size: Option<usize>,
    /// `fallback`, with `fb_data` inside.
    pub fallback: Fallback,
    /// `pinned`.
    pub pinned: bool,
    /// `partition`, with `partitioner` inside.
    pub partition: Partition,
    /// `pin_device` (6.0): the host is -1 (`omp_initial_device`) or 0.
    pub pin_device: Option<i32>,
    /// `preferred_device` (6.0): as `pin_device`.
    pub preferred_device: Option<i32>,
    /// `target_access` (6.0).
    pub target_access: TargetAccess,
    /// `atomic_scope` (6.0).
    pub atomic_scope: AtomicScope,
    /// `part_size` (6.0): bytes a part of `interleaved`; rounded up to whole pages; `None` is one page.
    pub part_size: Option<usize>,
    /// `partitioner_arg` (6.0): handed to the partitioner unread.
    pub partitioner_arg: usize,
}

/// A checked alignment: a power of two, at most 1 GiB (`isize` and reservation arithmetic stay safe below it).
///
/// ```
/// use pinned_alloc::traits::Alignment;
///
/// assert_eq!(Alignment::new(64).map(Alignment::get), Some(64));
/// assert_eq!(Alignment::new(48), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alignment(usize); // Invariant: a power of two, 1 ..= Alignment::MAX.

impl Alignment {
    /// The largest alignment served: 1 GiB.
    pub const MAX: usize = 1 << 30;
    /// No demand: one byte.
    pub const ONE: Alignment = Alignment(1);

    /// Checks `bytes`; `None` if it is no power of two or above [`Alignment::MAX`].
    ///
    /// ```
    /// use pinned_alloc::traits::Alignment;
    ///
    /// assert!(Alignment::new(Alignment::MAX).is_some());
    /// assert!(Alignment::new(2 * Alignment::MAX).is_none());
    /// ```
    #[must_use]
    pub const fn new(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes <= Self::MAX { Some(Self(bytes)) } else { None }
    }

    /// The alignment in bytes.
    ///
    /// ```
    /// assert_eq!(pinned_alloc::traits::Alignment::ONE.get(), 1);
    /// ```
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

impl Default for Alignment {
    fn default() -> Self {
        Self::ONE
    }
}

impl Default for Traits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Traits {
    /// The default of every trait.
    pub const DEFAULT: Traits = Traits {
        sync_hint: SyncHint::Contended,
        alignment: Alignment::ONE,
        access: Access::MemSpace,
        pool_size: None,
        fallback: Fallback::DefaultMem,
        pinned: false,
        partition: Partition::Environment,
        pin_device: None,
        preferred_device: None,
        target_access: TargetAccess::Single,
        atomic_scope: AtomicScope::Device,
        part_size: None,
        partitioner_arg: 0,
    };

    /// Builds traits from raw `(key, value)` pairs as an `omp_init_allocator` caller passes them.
    ///
    /// A key given twice: the last one counts. `value::DEFAULT` is the default of that trait. `alignment` 0 is
    /// refused, `pool_size` 0 too (both are outside "positive integer"). `device_access` (key 11), which 6.0
    /// numbers but does not define, is accepted and ignored.
    ///
    /// # Errors
    /// [`TraitError`] names the pair that cannot be met: unknown key or value, `allocator_fb` without `fb_data`,
    /// a device that is not the host, a `partitioner` partition without a partitioner.
    ///
    /// ```
    /// use pinned_alloc::{Traits, traits::{key, value}};
    ///
    /// let t = Traits::from_raw([(key::PINNED, value::TRUE), (key::POOL_SIZE, 1 << 20)])?;
    /// assert!(t.pinned && t.pool_size == Some(1 << 20));
    /// assert!(Traits::from_raw([(key::FALLBACK, value::ALLOCATOR_FB)]).is_err()); // no fb_data
    /// # Ok::<(), pinned_alloc::TraitError>(())
    /// ```
    pub fn from_raw<I: IntoIterator<Item = (i32, usize)>>(pairs: I) -> Result<Self, TraitError> {
        let mut t = Traits::default();
        let (mut fb, mut fb_data) = (value::DEFAULT_MEM_FB, None);
        let (mut partition, mut partitioner) = (value::ENVIRONMENT, None);
        for (k, v) in pairs {
            let bad = TraitError::Value { key: k, value: v };
            let default = v == value::DEFAULT;
            match k {
                key::SYNC_HINT => {
                    t.sync_hint = match v {
                        value::DEFAULT | value::CONTENDED => SyncHint::Contended,
                        value::UNCONTENDED => SyncHint::Uncontended,
                        value::SERIALIZED => SyncHint::Serialized,
                        value::PRIVATE => SyncHint::Private,
                        _ => return Err(bad),
                    }
                }
                key::ALIGNMENT if default => t.alignment = Alignment::ONE,
                key::ALIGNMENT => t.alignment = Alignment::new(v).ok_or(bad)?,
                key::ACCESS => {
                    t.access = match v {
                        value::ALL => Access::All,
                        value::DEFAULT | value::MEMSPACE => Access::MemSpace,
                        value::DEVICE => Access::Device,
                        value::CGROUP => Access::CGroup,
                        value::PTEAM => Access::PTeam,
                        value::THREAD => Access::Thread,
                        _ => return Err(bad),
                    }
                }
                key::POOL_SIZE if default => t.pool_size = None,
                key::POOL_SIZE if v == 0 => return Err(bad),
                key::POOL_SIZE => t.pool_size = Some(v),
                key::FALLBACK => {
                    fb = match v {
                        value::DEFAULT => value::DEFAULT_MEM_FB,
                        value::DEFAULT_MEM_FB | value::NULL_FB | value::ABORT_FB | value::ALLOCATOR_FB => v,
                        _ => return Err(bad),
                    }
                }
                key::FB_DATA => fb_data = if default { None } else { Some(v) },
                key::PINNED => {
                    t.pinned = match v {
                        value::TRUE => true,
                        value::FALSE | value::DEFAULT => false,
                        _ => return Err(bad),
                    }
                }
                key::PARTITION => {
                    partition = match v {
                        value::DEFAULT => value::ENVIRONMENT,
                        value::ENVIRONMENT
                        | value::NEAREST
                        | value::BLOCKED
                        | value::INTERLEAVED
                        | value::PARTITIONER => v,
                        _ => return Err(bad),
                    }
                }
                key::PIN_DEVICE => t.pin_device = device(v).ok_or(bad)?,
                key::PREFERRED_DEVICE => t.preferred_device = device(v).ok_or(bad)?,
                key::DEVICE_ACCESS => {}
                key::TARGET_ACCESS => {
                    t.target_access = match v {
                        value::SINGLE | value::DEFAULT => TargetAccess::Single,
                        value::MULTIPLE => TargetAccess::Multiple,
                        _ => return Err(bad),
                    }
                }
                key::ATOMIC_SCOPE => {
                    t.atomic_scope = match v {
                        value::ALL => AtomicScope::All,
                        value::DEVICE | value::DEFAULT => AtomicScope::Device,
                        _ => return Err(bad),
                    }
                }
                key::PART_SIZE if default => t.part_size = None,
                key::PART_SIZE if v == 0 => return Err(bad),
                key::PART_SIZE => t.part_size = Some(v),
                key::PARTITIONER if default => partitioner = None,
                key::PARTITIONER => partitioner = Some(MemPartitioner::from_raw(v).ok_or(bad)?),
                key::PARTITIONER_ARG => t.partitioner_arg = if default { 0 } else { v },
                _ => return Err(TraitError::Key { key: k }),
            }
        }
        t.fallback = match fb {
            value::DEFAULT_MEM_FB => Fallback::DefaultMem,
            value::NULL_FB => Fallback::Null,
            value::ABORT_FB => Fallback::Abort,
            _ => {
                let h = fb_data.ok_or(TraitError::MissingFbData)?;
                Fallback::Allocator(AllocatorHandle::from_raw(h))
            }
        };
        t.partition = match partition {
            value::ENVIRONMENT => Partition::Environment,
            value::NEAREST => Partition::Nearest,
            value::BLOCKED => Partition::Blocked,
            value::INTERLEAVED => Partition::Interleaved,
            _ => Partition::Partitioner(partitioner.ok_or(TraitError::MissingPartitioner)?),
        };
        Ok(t)
    }

    /// Checks what the typed builder cannot rule out by its types.
    pub(crate) fn validate(&self) -> Result<(), TraitError> {
        let host = |d: Option<i32>| d.is_none_or(|d| d == -1 || d == 0);
        if !host(self.pin_device) {
            return Err(TraitError::Value {
                key: key::PIN_DEVICE,
                value: self.pin_device.unwrap_or(0) as usize,
            });
        }
        if !host(self.preferred_device) {
            let v = self.preferred_device.unwrap_or(0) as usize;
            return Err(TraitError::Value { key: key::PREFERRED_DEVICE, value: v });
        }
        if self.pool_size == Some(0) {
            return Err(TraitError::Value { key: key::POOL_SIZE, value: 0 });
        }
        if self.part_size == Some(0) {
            return Err(TraitError::Value { key: key::PART_SIZE, value: 0 });
        }
        Ok(())
    }
}

/// A conforming device number of a machine without devices: `omp_initial_device` (-1, however the caller
/// widened it, except that the full-width -1 is `omp_atv_default`, which means "none" here) or the host, 0.
fn device(v: usize) -> Option<Option<i32>> {
    match v {
        value::DEFAULT => Some(None),
        0 => Some(Some(0)),
        0xffff_ffff => Some(Some(-1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_table() {
        let t = Traits::from_raw([]).unwrap();
        assert_eq!(t, Traits::default());
        assert_eq!((t.alignment.get(), t.pool_size, t.pinned), (1, None, false));
        assert_eq!((t.fallback, t.access), (Fallback::DefaultMem, Access::MemSpace));
        let all: Vec<_> = (1..=16).map(|k| (k, value::DEFAULT)).collect();
        assert_eq!(Traits::from_raw(all).unwrap(), t);
    }

    #[test]
    fn the_last_of_two_pairs_counts() {
        let t = Traits::from_raw([(key::PINNED, 1), (key::ALIGNMENT, 64), (key::PINNED, 0)]).unwrap();
        assert!(!t.pinned);
        assert_eq!(t.alignment.get(), 64);
    }

    #[test]
    fn what_cannot_be_met_is_named() {
        for (k, v) in [
            (key::ALIGNMENT, 3),
            (key::ALIGNMENT, 0),
            (key::ALIGNMENT, 1 << 31),
            (key::POOL_SIZE, 0),
            (key::PART_SIZE, 0),
            (key::PINNED, 2),
            (key::ACCESS, 11),
            (key::SYNC_HINT, 7),
            (key::FALLBACK, 10),
            (key::PARTITION, 14),
            (key::PIN_DEVICE, 5),
            (key::PREFERRED_DEVICE, 1),
            (key::TARGET_ACCESS, 19),
            (key::ATOMIC_SCOPE, 20),
            (key::PARTITIONER, 77),
        ] {
            assert_eq!(Traits::from_raw([(k, v)]), Err(TraitError::Value { key: k, value: v }), "{k} {v}");
        }
        assert_eq!(Traits::from_raw([(0, 1)]), Err(TraitError::Key { key: 0 }));
        assert_eq!(Traits::from_raw([(17, 1)]), Err(TraitError::Key { key: 17 }));
        assert_eq!(Traits::from_raw([(key::FALLBACK, value::ALLOCATOR_FB)]), Err(TraitError::MissingFbData));
        let p = [(key::PARTITION, value::PARTITIONER)];
        assert_eq!(Traits::from_raw(p), Err(TraitError::MissingPartitioner));
    }

    #[test]
    fn old_and_new_numbers_of_all() {
        let t = |v| Traits::from_raw([(key::ACCESS, v)]).unwrap().access;
        assert_eq!(t(7), Access::Device);
        assert_eq!(t(19), Access::All);
        assert_eq!(t(22), Access::MemSpace);
    }
}
