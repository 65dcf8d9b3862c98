//! What can go wrong in the model: one type, and a part of it for traits.

use super::handle::AllocatorHandle;
use super::traits::key;
use crate::pages::{Cure, PagesError};
use core::fmt;

/// A trait that cannot be met; `omp_init_allocator` answers it with `omp_null_allocator`.
///
/// ```
/// use pinned_alloc::{TraitError, Traits, traits::key};
///
/// let e = Traits::from_raw([(key::ALIGNMENT, 3)]).unwrap_err();
/// assert_eq!(e, TraitError::Value { key: key::ALIGNMENT, value: 3 });
/// assert_eq!(e.to_string(), "the allocator trait alignment cannot be 3");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraitError {
    /// No trait has this key.
    Key {
        /// The key.
        key: i32,
    },
    /// The trait does not have this value, or no allocator here can have it.
    Value {
        /// The key.
        key: i32,
        /// The value.
        value: usize,
    },
    /// `fallback` is `allocator_fb` and there is no `fb_data`.
    MissingFbData,
    /// `partition` is `partitioner` and there is no `partitioner`.
    MissingPartitioner,
}

impl fmt::Display for TraitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraitError::Key { key } => write!(f, "no allocator trait has the key {key}"),
            TraitError::Value { key, value } => match key::name(*key) {
                Some(name) => write!(f, "the allocator trait {name} cannot be {value}"),
                None => write!(f, "the allocator trait {key} cannot be {value}"),
            },
            TraitError::MissingFbData => write!(f, "fallback is allocator_fb, and there is no fb_data"),
            TraitError::MissingPartitioner => {
                write!(f, "partition is partitioner, and there is no partitioner")
            }
        }
    }
}

impl core::error::Error for TraitError {}

/// Why an allocator could not be made, or could not serve.
///
/// Nothing has changed when one is returned: no block, charge or lock was gained or lost.
///
/// ```
/// use pinned_alloc::{Error, PinnedAlloc};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::builder().pool_size(1000).build()?;
/// match alloc.allocate(Layout::new::<[u8; 2000]>()) {
///     Err(e @ Error::Pool { pool_size: 1000, used: 0, asked: 2000 }) => println!("{e}"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The pages could not be had or locked.
    Pages(PagesError),
    /// The pool has no room.
    Pool {
        /// `pool_size`, in bytes.
        pool_size: usize,
        /// Bytes of it in use when the request came.
        used: usize,
        /// Bytes asked for.
        asked: usize,
    },
    /// The alignment is no power of two, or above 1 GiB.
    Alignment {
        /// The alignment asked for, in bytes.
        align: usize,
    },
    /// The size is above `isize::MAX`, or a product or sum of sizes overflowed.
    Size,
    /// A block cannot grow to that size where it is, and may not move ([`ReallocPolicy::Fixed`](crate::ReallocPolicy)).
    NoRoom {
        /// Bytes asked for.
        asked: usize,
        /// Bytes the block can have where it is.
        capacity: usize,
    },
    /// No allocator has this handle: it was never given out, or its allocator has been destroyed.
    Handle {
        /// The handle.
        handle: AllocatorHandle,
    },
    /// The pool was full, or the memory not to be had, and the allocator that was to serve instead has been destroyed: a
    /// fallback does not keep its allocator alive.
    FallbackGone {
        /// The `fb_data` of the allocator that was asked.
        handle: AllocatorHandle,
    },
    /// The address is not the beginning of a live block of this crate, or this is a child of a fork that was not given
    /// the block's memory ([`ForkPolicy::DontFork`](crate::ForkPolicy)).
    NotABlock {
        /// The address.
        addr: usize,
    },
    /// Every allocator of the fallback chain has been asked.
    FallbackCycle,
    /// The traits cannot be met.
    Traits(TraitError),
    /// A memory partitioner gave parts that do not add up to the allocation, or name a resource that is not there.
    Partition,
    /// There are as many allocators (or partitioners) as this crate can keep, 65,520.
    TooMany,
    /// An attempt that was bound to fail was not made, because a fallback was there to serve.
    Exhausted,
}

impl Error {
    /// What the user can do about a shortage, for a shell, a systemd unit and a container.
    ///
    /// ```
    /// use pinned_alloc::PinnedAlloc;
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// let layout = Layout::new::<[u8; 4096]>();
    /// match alloc.allocate(layout) {
    ///     // SAFETY: the block came from this allocator with this layout, and is not used again.
    ///     Ok(block) => unsafe { alloc.deallocate(block.cast(), layout) },
    ///     Err(e) => println!("{e}\n{}", e.cure().unwrap()),
    /// }
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn cure(&self) -> Option<Cure> {
        match self {
            Error::Pages(p) => Some(Cure::new(p.cause, p.asked)),
            _ => None,
        }
    }

    /// The errno of the system call that failed, if one did.
    ///
    /// ```
    /// use pinned_alloc::PinnedAlloc;
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// let layout = Layout::new::<[u8; 4096]>();
    /// match alloc.allocate(layout) {
    ///     // SAFETY: the block came from this allocator with this layout, and is not used again.
    ///     Ok(block) => unsafe { alloc.deallocate(block.cast(), layout) },
    ///     Err(e) => println!("errno {:?}", e.raw_os_error()),
    /// }
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Pages(p) => Some(p.raw_os_error()),
            _ => None,
        }
    }

    /// Whether the lock limit (or the lack of the right to lock) stood in the way.
    ///
    /// ```
    /// use pinned_alloc::PinnedAlloc;
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// let layout = Layout::new::<[u8; 4096]>();
    /// match alloc.allocate(layout) {
    ///     // SAFETY: the block came from this allocator with this layout, and is not used again.
    ///     Ok(block) => unsafe { alloc.deallocate(block.cast(), layout) },
    ///     Err(e) => assert!(e.is_lock_limit(), "{e}"),
    /// }
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn is_lock_limit(&self) -> bool {
        matches!(self, Error::Pages(p) if p.is_lock_limit())
    }
}

impl From<PagesError> for Error {
    fn from(e: PagesError) -> Self {
        Error::Pages(e)
    }
}

impl From<TraitError> for Error {
    fn from(e: TraitError) -> Self {
        Error::Traits(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Pages(p) => p.fmt(f),
            Error::Pool { pool_size, used, asked } => {
                write!(f, "the pool has no room: pool_size is {pool_size} bytes, {used} used, asked {asked}")
            }
            Error::Alignment { align } => write!(f, "alignment {align} is no power of two up to 1 GiB"),
            Error::Size => write!(f, "the size is larger than an object can be"),
            Error::NoRoom { asked, capacity } => {
                write!(
                    f,
                    "the block may not move and cannot have {asked} bytes where it is, {capacity} at most"
                )
            }
            Error::FallbackGone { handle } => write!(
                f,
                "the allocator cannot serve, and its fallback, the allocator {:#x}, has been destroyed",
                handle.raw()
            ),
            Error::Handle { handle } => write!(f, "no allocator has the handle {:#x}", handle.raw()),
            Error::NotABlock { addr } => write!(f, "no live block begins at {addr:#x}"),
            Error::FallbackCycle => write!(f, "every allocator of the fallback chain has been asked"),
            Error::Traits(t) => t.fmt(f),
            Error::Partition => write!(f, "the memory partitioner's parts do not make up the allocation"),
            Error::TooMany => write!(f, "there are as many allocators as can be kept"),
            Error::Exhausted => write!(f, "the lock limit is used up"),
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Error::Pages(p) => Some(p),
            Error::Traits(t) => Some(t),
            _ => None,
        }
    }
}
