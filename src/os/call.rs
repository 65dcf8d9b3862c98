//! Names of the system calls, the error they give, and the switch that makes them fail.

use core::fmt;
use nix::errno::Errno;

/// A kind of system call made by this crate.
///
/// ```
/// assert_eq!(pinned_alloc::os::Call::Mlock.name(), "mlock");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
#[allow(missing_docs)] // Each is the call of that name.
pub enum Call {
    Mmap,
    Munmap,
    Mprotect,
    Mlock,
    Munlock,
    Mremap,
    Madvise,
    Mbind,
    PthreadCreate,
    PthreadAtfork,
}

impl Call {
    /// Every kind, in a fixed order.
    pub const ALL: [Call; 10] = [
        Call::Mmap,
        Call::Munmap,
        Call::Mprotect,
        Call::Mlock,
        Call::Munlock,
        Call::Mremap,
        Call::Madvise,
        Call::Mbind,
        Call::PthreadCreate,
        Call::PthreadAtfork,
    ];

    /// The name as in its man page.
    ///
    /// ```
    /// use pinned_alloc::os::Call;
    ///
    /// assert_eq!(Call::ALL.map(Call::name)[0], "mmap");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Call::Mmap => "mmap",
            Call::Munmap => "munmap",
            Call::Mprotect => "mprotect",
            Call::Mlock => "mlock",
            Call::Munlock => "munlock",
            Call::Mremap => "mremap",
            Call::Madvise => "madvise",
            Call::Mbind => "mbind",
            Call::PthreadCreate => "pthread_create",
            Call::PthreadAtfork => "pthread_atfork",
        }
    }
}

/// A system call that failed: which, on what range, with which errno.
///
/// ```
/// use pinned_alloc::{Error, PinnedAlloc};
/// use std::alloc::Layout;
///
/// let alloc = PinnedAlloc::new()?;
/// // Half of the address space: more than there is.
/// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
/// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
/// println!("{} on {} bytes: errno {}", e.os.call.name(), e.os.len, e.os.errno);
/// # Ok::<(), pinned_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OsError {
    /// The call.
    pub call: Call,
    /// Its errno.
    pub errno: i32,
    /// The address it was given; 0 where the kernel was to choose.
    pub addr: usize,
    /// The length it was given, in bytes.
    pub len: usize,
}

impl OsError {
    pub(crate) fn new(call: Call, errno: i32, addr: usize, len: usize) -> Self {
        Self { call, errno, addr, len }
    }

    /// From the calling thread's `errno`.
    pub(crate) fn last(call: Call, addr: usize, len: usize) -> Self {
        Self::new(call, Errno::last_raw(), addr, len)
    }

    /// The errno.
    ///
    /// ```
    /// use pinned_alloc::{Error, PinnedAlloc};
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// // Half of the address space: more than there is.
    /// let layout = Layout::from_size_align(1 << 62, 8).unwrap();
    /// let Err(Error::Pages(e)) = alloc.allocate(layout) else { panic!() };
    /// assert_eq!(e.os.raw_os_error(), e.os.errno);
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        self.errno
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = Errno::from_raw(self.errno);
        write!(f, "{} of {} bytes failed: {}", self.call.name(), self.len, e.desc())
    }
}

impl core::error::Error for OsError {}

/// Whether `call` is to fail now by order of a test; always `None` without the feature.
#[inline]
pub(crate) fn injected(call: Call, addr: usize, len: usize) -> Result<(), OsError> {
    #[cfg(any(test, feature = "fault-injection"))]
    if let Some(errno) = fault::next(call) {
        return Err(OsError::new(call, errno, addr, len));
    }
    let _ = (call, addr, len);
    Ok(())
}

/// Failure on demand, for tests (feature `fault-injection`). Process-wide: use it in a process of its own.
#[cfg(any(test, feature = "fault-injection"))]
pub mod fault {
    use super::Call;
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

    struct Slot {
        seen: AtomicU64,
        first: AtomicU64, // 0: disarmed
        last: AtomicU64,
        errno: AtomicI32,
    }

    static SLOTS: [Slot; Call::ALL.len()] = [const {
        Slot {
            seen: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            errno: AtomicI32::new(0),
        }
    }; Call::ALL.len()];

    /// From now on the `nth` call of this kind (1 is the next) and the `times - 1` after it fail with `errno`
    /// without reaching the kernel.
    ///
    /// ```
    /// use pinned_alloc::os::{Call, fault};
    /// use pinned_alloc::PinnedAlloc;
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// fault::arm(Call::Mmap, 1, u64::MAX, libc::ENOMEM); // every mmap from now on
    /// assert!(alloc.allocate(Layout::new::<[u8; 100_000]>()).is_err());
    /// fault::disarm();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn arm(call: Call, nth: u64, times: u64, errno: i32) {
        let s = &SLOTS[call as usize];
        s.first.store(0, SeqCst);
        s.errno.store(errno, SeqCst);
        let base = s.seen.load(SeqCst);
        s.last.store(base.saturating_add(nth).saturating_add(times).saturating_sub(1), SeqCst);
        s.first.store(base.saturating_add(nth), SeqCst);
    }

    /// No call fails on demand any more.
    ///
    /// ```
    /// use pinned_alloc::os::{Call, fault};
    /// use pinned_alloc::PinnedAlloc;
    /// use std::alloc::Layout;
    ///
    /// let alloc = PinnedAlloc::new()?;
    /// fault::arm(Call::Mmap, 1, u64::MAX, libc::ENOMEM); // every mmap from now on
    /// assert!(alloc.allocate(Layout::new::<[u8; 100_000]>()).is_err());
    /// fault::disarm();
    /// # Ok::<(), pinned_alloc::Error>(())
    /// ```
    pub fn disarm() {
        for s in &SLOTS {
            s.first.store(0, SeqCst);
        }
    }

    /// How many calls of this kind were made or made to fail so far.
    ///
    /// ```
    /// use pinned_alloc::os::{Call, fault};
    ///
    /// let before = fault::seen(Call::Mmap);
    /// let _ = pinned_alloc::routines::alloc(100, pinned_alloc::AllocatorHandle::DEFAULT_MEM);
    /// assert!(fault::seen(Call::Mmap) > before);
    /// ```
    pub fn seen(call: Call) -> u64 {
        SLOTS[call as usize].seen.load(SeqCst)
    }

    pub(super) fn next(call: Call) -> Option<i32> {
        let s = &SLOTS[call as usize];
        let n = s.seen.fetch_add(1, SeqCst) + 1;
        let first = s.first.load(SeqCst);
        (first != 0 && n >= first && n <= s.last.load(SeqCst)).then(|| s.errno.load(SeqCst))
    }
}
