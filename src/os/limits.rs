//! What the kernel allows this process: locked memory, mappings, huge pages, the memory cgroup.
//!
//! Nothing here decides anything: whether memory can be locked is for `mlock` to say. These
//! figures explain a refusal after the fact (the same shortage of RLIMIT_MEMLOCK shows up as
//! ENOMEM, EAGAIN or EPERM, see mlock(2)), and let a caller ask for a sensible amount beforehand.
//!
//! Each function reads its file anew, takes about 10 microseconds (more where it says so), does not
//! allocate, and answers "unknown" instead of failing. The `parse_*` functions are the pure parts.

use super::files::{StackPath, for_each_line, parse_hex, parse_kib, parse_u64, read_into, read_u64};
use super::page_size;
use core::ffi::CStr;
use core::fmt;
use core::ops::ControlFlow;

/// `CAP_IPC_LOCK` of `linux/capability.h`: the number of its bit.
const CAP_IPC_LOCK: u32 = 14;

/// Inode of the initial user namespace in nsfs (`PROC_USER_INIT_INO`, fixed since Linux 3.8).
const INIT_USER_NS: u64 = 0xEFFF_FFFD;

/// What limits locked memory, as seen by the calling thread.
///
/// ```
/// use pinned_alloc::os::limits::Limits;
///
/// let l = Limits::read();
/// println!("{:?} bytes may be locked, {} are", l.memlock_soft, l.vm_locked);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Soft RLIMIT_MEMLOCK in bytes, the one that is enforced; `None` is unlimited.
    pub memlock_soft: Option<u64>,
    /// Hard RLIMIT_MEMLOCK in bytes: how far the process may raise the soft one by itself; `None`
    /// is unlimited.
    pub memlock_hard: Option<u64>,
    /// Whether the calling thread is exempt from RLIMIT_MEMLOCK: it has CAP_IPC_LOCK in its
    /// effective set **and** lives in the initial user namespace. In any other user namespace
    /// (rootless containers) the kernel does not count the capability for `mlock`.
    pub has_ipc_lock: bool,
    /// Bytes in locked mappings of the process now (VmLck, touched or not); 0 when unknown.
    pub vm_locked: u64,
    /// Size of a page in bytes; the limit counts whole pages.
    pub page_size: usize,
}

impl Limits {
    /// Reads them: `getrlimit(2)` and one pass over `/proc/thread-self/status`; `capget(2)` where
    /// there is no `/proc`. About 30 microseconds. What cannot be read is taken as "no limit".
    ///
    /// ```
    /// use pinned_alloc::os::limits::Limits;
    ///
    /// let l = Limits::read();
    /// assert!(l.memlock_hard.is_none() || l.memlock_soft <= l.memlock_hard);
    /// ```
    pub fn read() -> Self {
        let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK)
            .unwrap_or((libc::RLIM_INFINITY, libc::RLIM_INFINITY));
        let status = read_status(|s| s.vm_locked.is_some() && s.cap_effective.is_some());
        let caps = status.cap_effective.or_else(capget_effective).unwrap_or(0);
        Self {
            memlock_soft: limit(soft),
            memlock_hard: limit(hard),
            has_ipc_lock: caps & (1 << CAP_IPC_LOCK) != 0 && in_initial_user_ns(),
            vm_locked: status.vm_locked.unwrap_or(0),
            page_size: page_size(),
        }
    }

    /// How many bytes can still be locked: the soft limit in whole pages less what is locked;
    /// `None` is unlimited. 0 with a soft limit of 0, where `mlock` answers EPERM, not ENOMEM.
    ///
    /// ```
    /// match pinned_alloc::os::limits::Limits::read().headroom() {
    ///     Some(bytes) => println!("{bytes} more bytes can be locked"),
    ///     None => println!("no limit"),
    /// }
    /// ```
    pub const fn headroom(&self) -> Option<u64> {
        if self.has_ipc_lock {
            return None;
        }
        match self.memlock_soft {
            None => None,
            Some(soft) => {
                let part = match soft.checked_rem(self.page_size as u64) {
                    Some(part) => part,
                    None => 0,
                };
                Some(soft.saturating_sub(part).saturating_sub(self.vm_locked))
            }
        }
    }
}

/// One line for error messages, sizes in bytes.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RLIMIT_MEMLOCK ")?;
        write_limit(f, self.memlock_soft)?;
        f.write_str(" (hard ")?;
        write_limit(f, self.memlock_hard)?;
        let held = if self.has_ipc_lock { "held" } else { "not held" };
        write!(f, "), locked now {}, CAP_IPC_LOCK {held}", self.vm_locked)
    }
}

fn write_limit(f: &mut fmt::Formatter<'_>, limit: Option<u64>) -> fmt::Result {
    match limit {
        Some(bytes) => write!(f, "{bytes}"),
        None => f.write_str("unlimited"),
    }
}

/// A resource limit in our notation.
fn limit(value: libc::rlim_t) -> Option<u64> {
    // rlim_t has 64 bits or 32, by target.
    #[allow(clippy::useless_conversion)]
    (value != libc::RLIM_INFINITY).then(|| u64::from(value))
}

/// The lines of `/proc/PID/status` that matter here.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// `VmLck` in bytes.
    pub vm_locked: Option<u64>,
    /// `CapEff`: bit n is capability n.
    pub cap_effective: Option<u64>,
}

impl Status {
    /// Takes one line in.
    fn line(&mut self, line: &[u8]) {
        if let Some(text) = line.strip_prefix(b"VmLck:") {
            self.vm_locked = parse_kib(text);
        } else if let Some(text) = line.strip_prefix(b"CapEff:") {
            self.cap_effective = parse_hex(text.trim_ascii());
        }
    }
}

/// Parses the text of `/proc/PID/status`.
#[doc(hidden)]
pub fn parse_status(text: &[u8]) -> Status {
    let mut status = Status::default();
    text.split(|&b| b == b'\n').for_each(|l| status.line(l));
    status
}

/// Reads the calling thread's status until `enough`.
///
/// `thread-self`, because capabilities belong to a thread, and because `/proc/self` of a process
/// whose first thread has ended no longer shows any memory.
pub(super) fn read_status(enough: impl Fn(&Status) -> bool) -> Status {
    let mut status = Status::default();
    let files = [c"/proc/thread-self/status", c"/proc/self/status"];
    let _ = for_each_line(&files, |line| {
        status.line(line);
        if enough(&status) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    status
}

/// The calling thread's effective capabilities by `capget(2)`.
fn capget_effective() -> Option<u64> {
    /// `struct __user_cap_header_struct`.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// `struct __user_cap_data_struct`.
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3`, with two `Data`: bits 0 to 31, bits 32 to 63.
    const VERSION_3: u32 = 0x2008_0522;

    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: capget(2) of version 3 reads and writes one header and writes two data structures;
    // both are live, laid out as the kernel's and ours alone. pid 0 is the calling thread.
    let rc = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    let [low, high] = data;
    (rc == 0).then(|| u64::from(low.effective) | u64::from(high.effective) << 32)
}

/// Whether the calling thread is in the initial user namespace. A kernel without user namespaces,
/// or no `/proc`, counts as yes: then nothing says otherwise.
fn in_initial_user_ns() -> bool {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path is NUL-terminated and `stat` has room for what stat(2) writes.
    let rc = unsafe { libc::stat(c"/proc/thread-self/ns/user".as_ptr(), stat.as_mut_ptr()) };
    if rc != 0 {
        return true;
    }
    // SAFETY: stat(2) returned 0, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    // ino_t has 64 bits or 32, by target.
    #[allow(clippy::useless_conversion)]
    let inode = u64::from(stat.st_ino);
    inode == INIT_USER_NS
}

/// How many mappings a process may have (`vm.max_map_count`, 65530 by default).
///
/// ```
/// use pinned_alloc::os::limits;
///
/// assert!(limits::max_map_count().is_none_or(|n| n > 0));
/// ```
pub fn max_map_count() -> Option<u64> {
    read_u64(c"/proc/sys/vm/max_map_count")
}

/// How many mappings this process has now, as [`max_map_count`] counts them.
///
/// Counts the lines of `/proc/thread-self/maps`: about a microsecond a mapping. Mappings made
/// and removed by other threads meanwhile may be missed or counted.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// println!("{:?} of {:?} mappings", limits::map_count(), limits::max_map_count());
/// ```
pub fn map_count() -> Option<u64> {
    let mut count = 0u64;
    for_each_line(&[c"/proc/thread-self/maps", c"/proc/self/maps"], |line| {
        // The gate page is shown, but is no mapping of the process and is not counted.
        if !line.ends_with(b"[vsyscall]") && !line.ends_with(b"[vectors]") {
            count = count.saturating_add(1);
        }
        ControlFlow::Continue(())
    })
    .ok()?;
    Some(count)
}

/// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never (then MAP_NORESERVE is ignored and
/// reservations count). See `Documentation/mm/overcommit-accounting.rst`.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// assert!(limits::overcommit_memory().is_none_or(|m| m <= 2));
/// ```
pub fn overcommit_memory() -> Option<u8> {
    u8::try_from(read_u64(c"/proc/sys/vm/overcommit_memory")?).ok()
}

/// When the kernel gives transparent huge pages to anonymous memory.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// if limits::thp_mode() == limits::Thp::Never {
///     println!("no huge pages here");
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Thp {
    /// Wherever they fit.
    Always,
    /// Where `MADV_HUGEPAGE` asks for them.
    Madvise,
    /// Never.
    Never,
    /// Not built in, or not readable.
    Unknown,
}

/// The machine's mode, `/sys/kernel/mm/transparent_hugepage/enabled`; a process may have switched
/// them off for itself (`PR_SET_THP_DISABLE`). See `Documentation/admin-guide/mm/transhuge.rst`.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// println!("{:?}", limits::thp_mode());
/// ```
pub fn thp_mode() -> Thp {
    let mut buf = [0; 128];
    match read_into(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buf) {
        Ok(n) => parse_thp(buf.get(..n).unwrap_or_default()),
        Err(_) => Thp::Unknown,
    }
}

/// Parses `always [madvise] never`.
#[doc(hidden)]
pub fn parse_thp(text: &[u8]) -> Thp {
    let mut words = text.split(u8::is_ascii_whitespace);
    match words.find(|w| w.starts_with(b"[")) {
        Some(b"[always]") => Thp::Always,
        Some(b"[madvise]") => Thp::Madvise,
        Some(b"[never]") => Thp::Never,
        _ => Thp::Unknown,
    }
}

/// The size of a transparent huge page in bytes (2 MiB on x86-64); `None` when not built in.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// assert!(limits::thp_size().is_none_or(usize::is_power_of_two));
/// ```
pub fn thp_size() -> Option<usize> {
    let size = read_u64(c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?;
    usize::try_from(size).ok().filter(|s| s.is_power_of_two())
}

/// The pool of huge pages of one size, over all nodes.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// for p in limits::hugetlb_pools().as_slice() {
///     println!("{} of {} pages of {} bytes are free", p.free, p.total, p.page_size);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct HugetlbPool {
    /// Bytes of one page.
    pub page_size: u64,
    /// Pages in the pool (`nr_hugepages`).
    pub total: u64,
    /// Of these, pages that are not in use (`free_hugepages`).
    pub free: u64,
    /// Of the free ones, pages promised to a mapping that has not touched them yet
    /// (`resv_hugepages`). A new mapping can have `free - reserved`.
    pub reserved: u64,
}

/// The hugetlb pools of the machine, smallest page first; at most eight.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// let pools = limits::hugetlb_pools();
/// assert!(pools.as_slice().is_sorted_by_key(|p| p.page_size));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugetlbPools {
    pools: [HugetlbPool; 8],
    len: usize,
}

impl HugetlbPools {
    /// The pools.
    ///
    /// ```
    /// use pinned_alloc::os::limits;
    ///
    /// assert!(limits::hugetlb_pools().as_slice().len() <= 8);
    /// ```
    pub fn as_slice(&self) -> &[HugetlbPool] {
        self.pools.get(..self.len).unwrap_or_default()
    }

    /// The pool of pages of `page_size` bytes.
    ///
    /// ```
    /// use pinned_alloc::os::limits;
    ///
    /// if let Some(p) = limits::hugetlb_pools().of_size(2 << 20) {
    ///     println!("{} pages of 2 MiB", p.total);
    /// }
    /// ```
    pub fn of_size(&self, page_size: u64) -> Option<&HugetlbPool> {
        self.as_slice().iter().find(|p| p.page_size == page_size)
    }
}

/// Reads the hugetlb pools from `/sys/kernel/mm/hugepages`; empty when hugetlb is not built in.
/// See `Documentation/admin-guide/mm/hugetlbpage.rst`. About 150 microseconds.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// println!("{:?}", limits::hugetlb_pools());
/// ```
pub fn hugetlb_pools() -> HugetlbPools {
    hugetlb_pools_in(c"/sys/kernel/mm/hugepages")
}

/// [`hugetlb_pools`] of another directory.
#[doc(hidden)]
pub fn hugetlb_pools_in(root: &CStr) -> HugetlbPools {
    let mut found = HugetlbPools::default();
    // All sizes are powers of two; trying those from 8 KiB to 1 TiB needs no listing, which
    // would need a heap.
    for shift in 13..=40 {
        let size = 1u64 << shift;
        if let (Some(pool), Some(slot)) = (read_pool(root, size), found.pools.get_mut(found.len)) {
            *slot = pool;
            found.len = found.len.saturating_add(1);
        }
    }
    found
}

fn read_pool(root: &CStr, page_size: u64) -> Option<HugetlbPool> {
    let mut path = StackPath::<256>::new();
    path.push(root.to_bytes())?;
    path.push(b"/hugepages-")?;
    path.push_decimal(page_size >> 10)?;
    path.push(b"kB/")?;
    let base = path.as_bytes().len();
    let mut figure = |name| {
        path.truncate(base);
        path.push(name)?;
        read_u64(path.as_cstr())
    };
    Some(HugetlbPool {
        page_size,
        total: figure(b"nr_hugepages".as_slice())?,
        free: figure(b"free_hugepages")?,
        reserved: figure(b"resv_hugepages").unwrap_or(0),
    })
}

/// The memory cgroup that limits this process.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// if let Some(c) = limits::cgroup_memory() {
///     println!("version {}, limit {:?}", c.version, c.limit);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CgroupMemory {
    /// Version of the hierarchy that has the memory controller, 1 or 2.
    pub version: u8,
    /// The smallest limit in bytes among the process's cgroup and those above it that can be seen
    /// from here (`memory.max`, `memory.limit_in_bytes`); `None` when there is none. Memory beyond
    /// it is not refused: the kernel reclaims, then kills, inside `mlock` too.
    pub limit: Option<u64>,
    /// Bytes charged to the cgroup that has this limit, page cache included; without a limit, to
    /// the process's own cgroup.
    pub usage: u64,
}

/// Finds the memory cgroup of this process through `/proc/self/cgroup` and the place where
/// `/proc/self/mountinfo` says that its hierarchy is mounted (cgroups(7), proc_pid_mountinfo(5)).
///
/// `None` without a memory controller, in the root cgroup of version 2, and where the hierarchy is
/// not mounted. About 150 microseconds, more with many mounts.
///
/// ```
/// use pinned_alloc::os::limits;
///
/// println!("{:?}", limits::cgroup_memory());
/// ```
pub fn cgroup_memory() -> Option<CgroupMemory> {
    cgroup_memory_from(c"/proc/self/cgroup", c"/proc/self/mountinfo")
}

/// [`cgroup_memory`] from other files.
#[doc(hidden)]
pub fn cgroup_memory_from(cgroup: &CStr, mountinfo: &CStr) -> Option<CgroupMemory> {
    // The process's cgroup inside the hierarchy: the memory controller of version 1 if there is
    // one (a hybrid set-up lists version 2 as well, without controllers), else version 2.
    let mut own = StackPath::<1024>::new();
    let mut version = 0;
    for_each_line(&[cgroup], |line| {
        if let Some((v, path)) = parse_cgroup(line).filter(|&(v, _)| version != 1 || v == 1) {
            own.truncate(0);
            // A name that does not fit: the mount point itself will do.
            let _ = own.push(path);
            version = v;
        }
        ControlFlow::Continue(())
    })
    .ok()?;

    let mut dir = StackPath::<1536>::new();
    let mut top = None;
    // A failure leaves `top` as it is; the usual place is tried then.
    let _ = for_each_line(&[mountinfo], |line| {
        let Some(mount) = parse_mountinfo(line).filter(|m| m.has_memory(version)) else {
            return ControlFlow::Continue(());
        };
        let inside = below(own.as_bytes(), mount.root);
        // The first mount is kept in case none shows our cgroup.
        if top.is_some() && inside.is_none() {
            return ControlFlow::Continue(());
        }
        dir.truncate(0);
        top = unescaped(mount.mount_point).try_for_each(|b| dir.push(&[b])).map(|()| dir.as_bytes().len());
        match (top, inside) {
            (Some(_), Some(path)) => {
                let _ = dir.push(path);
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    });
    let top = match top {
        Some(len) => len,
        None => {
            dir.truncate(0);
            dir.push(match version {
                1 => b"/sys/fs/cgroup/memory".as_slice(),
                2 => b"/sys/fs/cgroup",
                _ => return None,
            })?;
            let len = dir.as_bytes().len();
            let _ = below(own.as_bytes(), b"/").and_then(|path| dir.push(path));
            len
        }
    };
    tightest(&mut dir, top, version)
}

/// Walks from the cgroup `dir` up to the mount point, the first `top` bytes of it.
fn tightest(dir: &mut StackPath<1536>, top: usize, version: u8) -> Option<CgroupMemory> {
    let (limit_file, usage_file) = if version == 1 {
        (b"/memory.limit_in_bytes".as_slice(), b"/memory.usage_in_bytes".as_slice())
    } else {
        (b"/memory.max".as_slice(), b"/memory.current".as_slice())
    };
    let mut found: Option<CgroupMemory> = None;
    loop {
        let len = dir.as_bytes().len();
        let mut read = |name: &[u8]| {
            let value = dir.push(name).and_then(|()| {
                let mut buf = [0; 64];
                let n = read_into(dir.as_cstr(), &mut buf).ok()?;
                parse_cgroup_value(buf.get(..n)?)
            });
            dir.truncate(len);
            value
        };
        if let Some(usage) = read(usage_file).flatten() {
            let limit = read(limit_file).flatten();
            // On a tie the cgroup nearer to the process stays.
            let tighter = match (limit, found.and_then(|f| f.limit)) {
                (_, _) if found.is_none() => true,
                (Some(new), Some(old)) => new < old,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if tighter {
                found = Some(CgroupMemory { version, limit, usage });
            }
        }
        if len <= top {
            return found;
        }
        // Each round is shorter: the slash is before `len`.
        let slash = dir.as_bytes().iter().rposition(|&b| b == b'/');
        dir.truncate(slash.unwrap_or(0).max(top));
    }
}

/// Parses a line of `/proc/PID/cgroup`, `4:memory:/path` or `0::/path`, into version and path;
/// `None` for the other controllers.
#[doc(hidden)]
pub fn parse_cgroup(line: &[u8]) -> Option<(u8, &[u8])> {
    let mut fields = line.splitn(3, |&b| b == b':');
    let id = fields.next()?;
    let controllers = fields.next()?;
    let path = fields.next().filter(|p| p.starts_with(b"/"))?;
    if id == b"0" && controllers.is_empty() {
        Some((2, path))
    } else if controllers.split(|&b| b == b',').any(|c| c == b"memory") {
        Some((1, path))
    } else {
        None
    }
}

/// Parses a figure of a memory cgroup in bytes: the inner `None` is "no limit", which is `max` in
/// version 2 and the largest multiple of the page size below 2^63 in version 1.
#[doc(hidden)]
pub fn parse_cgroup_value(text: &[u8]) -> Option<Option<u64>> {
    /// 2^63 less the largest page of a Linux kernel, 256 KiB.
    const NO_LIMIT: u64 = (1 << 63) - (256 << 10);
    if text.trim_ascii_end() == b"max" {
        return Some(None);
    }
    parse_u64(text).map(|n| Some(n).filter(|&n| n < NO_LIMIT))
}

/// The fields of a line of `/proc/PID/mountinfo` that matter here, white space still escaped.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mount<'a> {
    /// The directory of the file system that is mounted.
    pub root: &'a [u8],
    /// Where it is mounted.
    pub mount_point: &'a [u8],
    /// File system type.
    pub fs_type: &'a [u8],
    /// Options of the file system, comma between them.
    pub super_options: &'a [u8],
}

impl Mount<'_> {
    /// Whether this is the cgroup hierarchy of `version` that has the memory controller.
    fn has_memory(&self, version: u8) -> bool {
        match version {
            1 => {
                let mut options = self.super_options.split(|&b| b == b',');
                self.fs_type == b"cgroup" && options.any(|o| o == b"memory")
            }
            2 => self.fs_type == b"cgroup2",
            _ => false,
        }
    }
}

/// Parses a line of `/proc/PID/mountinfo`:
/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext4 /dev/sda rw,errors=continue`.
#[doc(hidden)]
pub fn parse_mountinfo(line: &[u8]) -> Option<Mount<'_>> {
    let mut words = line.split(|&b| b == b' ');
    let root = words.nth(3)?;
    let mount_point = words.next()?;
    // Options, then any number of optional fields, then a hyphen.
    words.find(|&w| w == b"-")?;
    let fs_type = words.next()?;
    let _source = words.next()?;
    let super_options = words.next()?;
    (root.starts_with(b"/") && mount_point.starts_with(b"/")).then_some(Mount {
        root,
        mount_point,
        fs_type,
        super_options,
    })
}

/// The bytes behind the octal escapes (`\040`) of `mountinfo`; anything else stands for itself.
fn unescaped(mut text: &[u8]) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || {
        let (&first, rest) = text.split_first()?;
        if let (b'\\', Some((digits, after))) = (first, rest.split_first_chunk::<3>()) {
            let value = digits.iter().try_fold(0u32, |n, &d| Some((n << 3) | char::from(d).to_digit(8)?));
            if let Some(byte) = value.and_then(|v| u8::try_from(v).ok()) {
                text = after;
                return Some(byte);
            }
        }
        text = rest;
        Some(first)
    })
}

/// What of the cgroup `path` is below the mounted directory `root` (escaped): empty, or with a
/// slash in front. `None` when `path` is elsewhere, or outside the cgroup namespace (`/../x`).
fn below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    let mut rest = path;
    if root != b"/" {
        for byte in unescaped(root) {
            rest = rest.strip_prefix(&[byte])?;
        }
    }
    match rest {
        b"" | b"/" => Some(b""),
        b"/.." => None,
        _ if rest.starts_with(b"/../") => None,
        _ if rest.starts_with(b"/") => Some(rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
