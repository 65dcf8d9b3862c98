//! Why pages could not be had: what was asked, which limit or errno stopped it, and the cure.
//!
//! One shortage shows as three errnos (`mlock` over the limit: ENOMEM; a locked mapping over the limit: EAGAIN;
//! a limit of 0: EPERM), and one errno, ENOMEM, stands for a full machine, the lock limit and too many mappings.
//! So the errno is never reported alone: the limits are read and compared first, and blamed only if the numbers
//! say so.

use crate::os::limits::{self, Limits};
use crate::os::{Call, OsError};
use core::fmt;

/// What stood in the way, established by reading the limits at the time of the failure.
///
/// ```
/// use pinned_alloc::Cause;
/// use pinned_alloc::{Error, PinnedAlloc};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::new()?;
/// // Half of the address space: more than there is.
/// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
/// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
/// match e.cause {
///     Cause::LockLimit { limit, locked } => println!("{locked} of {limit} bytes used"),
///     other => println!("{other:?}"),
/// }
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// `RLIMIT_MEMLOCK` is 0 and the process lacks `CAP_IPC_LOCK`: it may not lock memory at all.
    NotPermitted,
    /// `RLIMIT_MEMLOCK` leaves no room.
    LockLimit {
        /// The soft limit, in bytes.
        limit: u64,
        /// Bytes the process had locked, by this crate or otherwise (`VmLck`).
        locked: u64,
    },
    /// The process has as many mappings as `vm.max_map_count` allows.
    MapCount {
        /// `vm.max_map_count`.
        max: u64,
    },
    /// The machine, its memory cgroup or the address space is out of memory.
    Memory {
        /// The memory cgroup's limit in bytes, if it has one.
        cgroup_limit: Option<u64>,
    },
    /// Something else; the errno says what.
    Other,
}

/// Pages could not be mapped, locked or placed. Nothing was changed.
///
/// ```
/// use pinned_alloc::{Error, PinnedAlloc};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::new()?;
/// // Half of the address space: more than there is.
/// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
/// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
/// assert!(e.asked >= 1 << 62);
/// println!("{e}");
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagesError {
    /// Bytes that were asked of the system: of a block that is to grow, what would have been added.
    pub asked: usize,
    /// The call that failed.
    pub os: OsError,
    /// Why.
    pub cause: Cause,
}

impl PagesError {
    /// Finds the cause. Reads `/proc`; costs some ten microseconds, on failure only.
    #[cold]
    pub(crate) fn diagnose(asked: usize, os: OsError) -> Self {
        Self { asked, os, cause: Self::cause(os) }
    }

    /// A failure that is not the kernel's: the arithmetic overflowed.
    pub(crate) fn overflow(asked: usize) -> Self {
        let os = OsError::new(Call::Mmap, libc::ENOMEM, 0, asked);
        Self { asked, os, cause: Cause::Memory { cgroup_limit: None } }
    }

    fn cause(os: OsError) -> Cause {
        if !matches!(os.errno, libc::ENOMEM | libc::EAGAIN | libc::EPERM) {
            return Cause::Other;
        }
        let mut l = Limits::read();
        // Where /proc cannot be read (no descriptor is left), what this crate locked is known all the same.
        l.vm_locked = l.vm_locked.max(super::account::locked() as u64);
        // The failed range was given back before this, so the kernel's figure is what the caller will find.
        // `mlock` answers ENOMEM or EPERM; a mapping that would be locked, by growing or by `mlockall(MCL_FUTURE)`,
        // EAGAIN. So ENOMEM from the latter is something else, however long the range.
        let may_be_limit = match os.call {
            Call::Mlock => true,
            Call::Mremap | Call::Mmap => os.errno == libc::EAGAIN,
            _ => false,
        };
        match l.memlock_soft {
            Some(0) if os.call == Call::Mlock && !l.has_ipc_lock => return Cause::NotPermitted,
            Some(limit)
                if may_be_limit && !l.has_ipc_lock && os.len as u64 > limit.saturating_sub(l.vm_locked) =>
            {
                return Cause::LockLimit { limit, locked: l.vm_locked };
            }
            _ => {}
        }
        if os.errno == libc::EPERM {
            return Cause::Other;
        }
        // Two mappings short of the limit is where calls that split one begin to fail.
        if let (Some(max), Some(n)) = (limits::max_map_count(), limits::map_count())
            && n + 4 >= max
        {
            return Cause::MapCount { max };
        }
        // Of a range that is mapped, `mlock` says ENOMEM for these two and EAGAIN where there is no memory
        // (`man 2 mlock`): another thread has given back, since, what stood in the way.
        if let (Call::Mlock, libc::ENOMEM, Some(limit), false) =
            (os.call, os.errno, l.memlock_soft, l.has_ipc_lock)
        {
            return Cause::LockLimit { limit, locked: l.vm_locked };
        }
        Cause::Memory { cgroup_limit: limits::cgroup_memory().and_then(|c| c.limit) }
    }

    /// Whether asking again may help once locked memory has been given back.
    pub(crate) fn is_shortage(&self) -> bool {
        !matches!(self.cause, Cause::Other)
    }

    /// Whether the lock limit, or the lack of the right to lock, stood in the way.
    ///
    /// ```
    /// use pinned_alloc::{Error, PinnedAlloc};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// // Half of the address space: more than there is.
    /// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
    /// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
    /// println!("lock limit: {}", e.is_lock_limit());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn is_lock_limit(&self) -> bool {
        matches!(self.cause, Cause::NotPermitted | Cause::LockLimit { .. })
    }

    /// What the user can do, for a shell, a systemd unit and a container.
    ///
    /// ```
    /// use pinned_alloc::{Error, PinnedAlloc};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// // Half of the address space: more than there is.
    /// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
    /// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
    /// println!("{}", e.cure());
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn cure(&self) -> Cure {
        Cure { cause: self.cause, asked: self.asked }
    }

    /// The errno of the failed call.
    ///
    /// ```
    /// use pinned_alloc::{Error, PinnedAlloc};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// // Half of the address space: more than there is.
    /// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
    /// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
    /// assert_ne!(e.raw_os_error(), 0);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.os.errno
    }
}

/// Bytes for people.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if b >> shift != 0 {
                let tenths = ((b as u128 * 10) >> shift) as u64;
                return if tenths.is_multiple_of(10) {
                    write!(f, "{} {unit}", tenths / 10)
                } else {
                    write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
                };
            }
        }
        write!(f, "{b} bytes")
    }
}

impl fmt::Display for PagesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = Bytes(self.asked as u64);
        match self.cause {
            Cause::NotPermitted => write!(
                f,
                "cannot pin {asked}: RLIMIT_MEMLOCK is 0 and the process has no CAP_IPC_LOCK: raise it with \
                 `ulimit -l`, LimitMEMLOCK= or --ulimit memlock="
            ),
            Cause::LockLimit { limit, locked } => write!(
                f,
                "cannot pin {asked}: RLIMIT_MEMLOCK is {}, {} used: raise it with `ulimit -l`, LimitMEMLOCK= or \
                 --ulimit memlock=",
                Bytes(limit),
                Bytes(locked)
            ),
            Cause::MapCount { max } => write!(
                f,
                "cannot map {asked}: the process has as many mappings as vm.max_map_count ({max}) allows: raise it \
                 with `sysctl vm.max_map_count`"
            ),
            Cause::Memory { cgroup_limit: Some(l) } => {
                write!(
                    f,
                    "cannot get {asked}: out of memory ({}; the memory cgroup's limit is {})",
                    self.os,
                    Bytes(l)
                )
            }
            Cause::Memory { cgroup_limit: None } => {
                write!(f, "cannot get {asked}: out of memory ({})", self.os)
            }
            Cause::Other => write!(f, "cannot get {asked}: {}", self.os),
        }
    }
}

impl core::error::Error for PagesError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.os)
    }
}

/// The cure of a [`PagesError`], a line each for a shell, a systemd unit and a container.
///
/// ```
/// use pinned_alloc::{Error, PinnedAlloc};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::new()?;
/// // Half of the address space: more than there is.
/// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
/// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
/// let lines = e.cure().to_string();
/// println!("{lines}");
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Cure {
    cause: Cause,
    asked: usize,
}

impl Cure {
    pub(crate) fn new(cause: Cause, asked: usize) -> Self {
        Self { cause, asked }
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = |locked: u64| (locked + self.asked as u64).div_ceil(1024).max(64);
        let lock = |f: &mut fmt::Formatter<'_>, kib: u64| {
            writeln!(
                f,
                "shell:     ulimit -l {kib}   (KiB; the hard limit in /etc/security/limits.conf: memlock)"
            )?;
            writeln!(f, "systemd:   LimitMEMLOCK={kib}K   in the unit's [Service] section")?;
            writeln!(
                f,
                "container: docker run --ulimit memlock={}   (or --cap-add IPC_LOCK as root)",
                kib * 1024
            )
        };
        match self.cause {
            Cause::NotPermitted => lock(f, more(0)),
            Cause::LockLimit { locked, .. } => lock(f, more(locked)),
            Cause::MapCount { max } => {
                let n = max.saturating_mul(4);
                writeln!(f, "shell:     sysctl -w vm.max_map_count={n}   (as root)")?;
                writeln!(f, "systemd:   vm.max_map_count={n}   in /etc/sysctl.d/")?;
                writeln!(f, "container: set it on the host; it is not namespaced")
            }
            Cause::Memory { cgroup_limit: Some(_) } => {
                writeln!(f, "shell:     raise memory.max of the cgroup in /proc/self/cgroup")?;
                writeln!(f, "systemd:   MemoryMax= in the unit's [Service] section")?;
                writeln!(f, "container: docker run --memory=")
            }
            Cause::Memory { cgroup_limit: None } => {
                writeln!(f, "free memory on the machine, or ask for less")
            }
            Cause::Other => writeln!(f, "see the errno"),
        }
    }
}
