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
pub fn max_map_count() -> Option<u64> {
    read_u64(c"/proc/sys/vm/max_map_count")
}

/// How many mappings this process has now, as [`max_map_count`] counts them.
///
/// Counts the lines of `/proc/thread-self/maps`: about a microsecond a mapping. Mappings made
/// and removed by other threads meanwhile may be missed or counted.
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
pub fn overcommit_memory() -> Option<u8> {
    u8::try_from(read_u64(c"/proc/sys/vm/overcommit_memory")?).ok()
}

/// When the kernel gives transparent huge pages to anonymous memory.
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
pub fn thp_size() -> Option<usize> {
    let size = read_u64(c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?;
    usize::try_from(size).ok().filter(|s| s.is_power_of_two())
}

/// The pool of huge pages of one size, over all nodes.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HugetlbPools {
    pools: [HugetlbPool; 8],
    len: usize,
}

impl HugetlbPools {
    /// The pools.
    pub fn as_slice(&self) -> &[HugetlbPool] {
        self.pools.get(..self.len).unwrap_or_default()
    }

    /// The pool of pages of `page_size` bytes.
    pub fn of_size(&self, page_size: u64) -> Option<&HugetlbPool> {
        self.as_slice().iter().find(|p| p.page_size == page_size)
    }
}

/// Reads the hugetlb pools from `/sys/kernel/mm/hugepages`; empty when hugetlb is not built in.
/// See `Documentation/admin-guide/mm/hugetlbpage.rst`. About 150 microseconds.
pub fn hugetlb_pools() -> HugetlbPools {
    hugetlb_pools_in(c"/sys/kernel/mm/hugepages")
}

/// [`hugetlb_pools`] of another directory.
fn hugetlb_pools_in(root: &CStr) -> HugetlbPools {
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
pub fn cgroup_memory() -> Option<CgroupMemory> {
    cgroup_memory_from(c"/proc/self/cgroup", c"/proc/self/mountinfo")
}

/// [`cgroup_memory`] from other files.
fn cgroup_memory_from(cgroup: &CStr, mountinfo: &CStr) -> Option<CgroupMemory> {
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
mod tests {
    use super::super::files::testing::Tree;
    use super::*;

    const STATUS: &[u8] = b"Name:\tx\nGroups:\t0 1 2\nVmPeak:\t 3060 kB\nVmLck:\t      12 kB\n\
        VmPin:\t 0 kB\nCapInh:\t0000000000000000\nCapEff:\t000001fffeffffff\nCapBnd:\t0\n";

    #[test]
    fn status() {
        let s = parse_status(STATUS);
        assert_eq!(s.vm_locked, Some(12 << 10));
        assert_eq!(s.cap_effective, Some(0x1ff_feff_ffff));
        for bad in [
            &b""[..],
            b"\n\n\n",
            b"VmLck:\nCapEff:\n",
            b"VmLck: -1 kB\nCapEff: xyz",
            b"VmLck: 99999999999999999999 kB\nCapEff: 11111111111111111",
            b"VmLck: 18446744073709551615 kB\n",
            b"VmLck: 12\n",
            b"\xff\x00\xfe",
        ] {
            assert_eq!(parse_status(bad), Status::default(), "{bad:?}");
        }
    }

    #[test]
    fn this_process() {
        let l = Limits::read();
        assert_eq!(l.page_size, page_size());
        if let (Some(soft), Some(hard)) = (l.memlock_soft, l.memlock_hard) {
            assert!(soft <= hard);
        }
        let status = read_status(|_| false);
        assert_eq!(status.cap_effective, capget_effective(), "two ways to ask");
        assert!(status.vm_locked.is_some());
        assert!(!l.to_string().is_empty());
        let maps = map_count().unwrap();
        assert!(maps > 5 && maps < max_map_count().unwrap_or(u64::MAX));
        assert!(overcommit_memory().is_none_or(|m| m <= 2));
        assert_eq!(thp_mode() == Thp::Unknown, thp_size().is_none());
        assert!(hugetlb_pools().as_slice().iter().all(|p| p.free <= p.total && p.page_size > 4096));
        // Whether there is one depends on the machine.
        if let Some(c) = cgroup_memory() {
            assert!(matches!(c.version, 1 | 2));
            assert!(c.usage > 0);
        }
    }

    #[test]
    fn threads_other_than_the_first_see_the_same() {
        let here = Limits::read();
        let there = std::thread::spawn(Limits::read).join().unwrap();
        assert_eq!(here.has_ipc_lock, there.has_ipc_lock);
        assert_eq!(here.memlock_soft, there.memlock_soft);
    }

    #[test]
    fn headroom() {
        let mut l = Limits {
            memlock_soft: Some(65_536 + 4095),
            memlock_hard: None,
            has_ipc_lock: false,
            vm_locked: 16_384,
            page_size: 4096,
        };
        assert_eq!(l.headroom(), Some(49_152), "whole pages only");
        assert_eq!(
            l.to_string(),
            "RLIMIT_MEMLOCK 69631 (hard unlimited), locked now 16384, CAP_IPC_LOCK not held"
        );
        l.vm_locked = 1 << 30;
        assert_eq!(l.headroom(), Some(0), "the limit was lowered");
        l.memlock_soft = Some(u64::MAX - 1);
        assert!(l.headroom() > Some(1 << 60));
        l.has_ipc_lock = true;
        assert_eq!(l.headroom(), None);
        l.has_ipc_lock = false;
        l.memlock_soft = None;
        assert_eq!(l.headroom(), None);
        l.page_size = 0;
        l.memlock_soft = Some(1);
        l.vm_locked = 0;
        assert_eq!(l.headroom(), Some(1), "no division by a garbage page size");
        assert_eq!(limit(libc::RLIM_INFINITY), None);
        assert_eq!(limit(0), Some(0));
    }

    #[test]
    fn thp() {
        assert_eq!(parse_thp(b"[always] madvise never\n"), Thp::Always);
        assert_eq!(parse_thp(b"always [madvise] never\n"), Thp::Madvise);
        assert_eq!(parse_thp(b"always madvise [never]\n"), Thp::Never);
        for bad in [&b""[..], b"always", b"[", b"[inherit]", b"\xff[never]"] {
            assert_eq!(parse_thp(bad), Thp::Unknown, "{bad:?}");
        }
    }

    #[test]
    fn pools() {
        let tree = Tree::new("pools");
        for (size, [total, free, reserved]) in [
            ("2048", ["7", "5", "2"]),
            ("1048576", ["1", "0", "0"]),
            ("64", ["x", "1", "1"]),
            ("3", ["1", "1", "1"]),
        ] {
            tree.file(&format!("hugepages-{size}kB/nr_hugepages"), total)
                .file(&format!("hugepages-{size}kB/free_hugepages"), free)
                .file(&format!("hugepages-{size}kB/resv_hugepages"), reserved);
        }
        let pools = hugetlb_pools_in(&tree.path(""));
        assert_eq!(pools.as_slice().len(), 2);
        let two = pools.of_size(2 << 20).unwrap();
        assert_eq!((two.total, two.free, two.reserved), (7, 5, 2));
        assert_eq!(pools.as_slice()[1].page_size, 1 << 30);
        assert_eq!(pools.of_size(65_536), None);
        for shift in 13..=40 {
            let dir = format!("hugepages-{}kB", (1u64 << shift) >> 10);
            tree.file(&format!("{dir}/nr_hugepages"), "1").file(&format!("{dir}/free_hugepages"), "1");
        }
        assert_eq!(hugetlb_pools_in(&tree.path("")).as_slice().len(), 8);
        assert_eq!(hugetlb_pools_in(c"/no/such").as_slice(), []);
    }

    #[test]
    fn cgroup_lines() {
        assert_eq!(parse_cgroup(b"0::/a:b"), Some((2, &b"/a:b"[..])));
        assert_eq!(parse_cgroup(b"4:memory:/x"), Some((1, &b"/x"[..])));
        assert_eq!(parse_cgroup(b"4:cpu,memory:/"), Some((1, &b"/"[..])));
        for other in [&b"1:cpu:/x"[..], b"", b"0:", b"0::", b"0::x", b"memory", b"3:memory2:/"] {
            assert_eq!(parse_cgroup(other), None, "{other:?}");
        }
        assert_eq!(parse_cgroup_value(b"max\n"), Some(None));
        assert_eq!(parse_cgroup_value(b"4096\n"), Some(Some(4096)));
        for no_limit in [&b"9223372036854771712\n"[..], b"9223372036854710272", b"18446744073709551615"] {
            assert_eq!(parse_cgroup_value(no_limit), Some(None));
        }
        for bad in [&b""[..], b"-1", b"maximum", b"18446744073709551616"] {
            assert_eq!(parse_cgroup_value(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn mounts() {
        let m = parse_mountinfo(
            b"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup c rw,memory",
        )
        .unwrap();
        assert_eq!((m.root, m.mount_point), (&b"/"[..], &b"/sys/fs/cgroup/memory"[..]));
        assert!(m.has_memory(1) && !m.has_memory(2) && !m.has_memory(0));
        for bad in [
            &b""[..],
            b"35 31 0:32",
            b"35 31 0:32 / /x rw cgroup c rw",
            b"35 31 0:32 / /x rw - cgroup",
            b"35 31 0:32 root /x rw - cgroup c rw",
            b"- - - - - - -",
        ] {
            assert_eq!(parse_mountinfo(bad), None, "{bad:?}");
        }
        let text = |t: &[u8]| unescaped(t).collect::<Vec<_>>();
        assert_eq!(text(b"/a\\040b\\134"), b"/a b\\");
        assert_eq!(text(b"\\04"), b"\\04");
        assert_eq!(text(b"\\777\\9"), b"\\777\\9", "not a byte");
        assert_eq!(below(b"/", b"/"), Some(&b""[..]));
        assert_eq!(below(b"/a/b", b"/"), Some(&b"/a/b"[..]));
        assert_eq!(below(b"/a/b", b"/a"), Some(&b"/b"[..]));
        assert_eq!(below(b"/a b", b"/a\\040b"), Some(&b""[..]));
        for (path, root) in [
            (&b"/ab"[..], &b"/a"[..]),
            (b"/a", b"/a/b"),
            (b"/../x", b"/"),
            (b"/..", b"/"),
            (b"/a/../b", b"/a"),
        ] {
            assert_eq!(below(path, root), None, "{path:?} {root:?}");
        }
    }

    /// Writes `cgroup` and `mountinfo`, mounts at `mount` inside the tree, and asks.
    fn ask(tree: &Tree, cgroup: &str, mounts: &[(&str, &str, &str)]) -> Option<CgroupMemory> {
        let lines: String = mounts
            .iter()
            .map(|(root, at, fs)| {
                let at = tree.path(at);
                format!("35 31 0:32 {root} {} rw - {fs}\n", at.to_str().unwrap())
            })
            .collect();
        tree.file("cgroup", cgroup).file("mountinfo", format!("1 0 0:1 / / rw - ext4 d rw\n{lines}"));
        cgroup_memory_from(&tree.path("cgroup"), &tree.path("mountinfo"))
    }

    fn answer(version: u8, limit: Option<u64>, usage: u64) -> Option<CgroupMemory> {
        Some(CgroupMemory { version, limit, usage })
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_up() {
        let tree = Tree::new("cgroup2");
        let v2 = [("/", "m", "cgroup2 cgroup2 rw")];
        assert_eq!(ask(&tree, "0::/a/b\n", &v2), None, "no files: no controller");
        tree.file("m/a/b/memory.max", "max\n").file("m/a/b/memory.current", "10\n");
        assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, None, 10));
        tree.file("m/a/memory.max", "1000\n").file("m/a/memory.current", "70\n");
        assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 70));
        tree.file("m/a/b/memory.max", "1000\n");
        assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 10));
        tree.file("m/a/b/memory.max", "2000\n");
        assert_eq!(ask(&tree, "0::/a/b\n", &v2), answer(2, Some(1000), 70));
        // The group is gone, or threaded and without memory files: those above still count.
        assert_eq!(ask(&tree, "0::/a/gone/x (deleted)\n", &v2), answer(2, Some(1000), 70));
        tree.file("m/a/memory.max", "garbage");
        assert_eq!(ask(&tree, "0::/a\n", &v2), answer(2, None, 70));
        tree.file("m/a/memory.current", "garbage");
        assert_eq!(ask(&tree, "0::/a\n", &v2), None);
    }

    #[test]
    fn version_1_wins_where_it_has_the_controller() {
        let tree = Tree::new("cgroup1");
        let mounts = [
            ("/", "cpu", "cgroup c rw,cpu"),
            ("/", "unified", "cgroup2 c rw"),
            ("/docker/x", "memory", "cgroup c rw,memory"),
        ];
        tree.file("memory/memory.limit_in_bytes", "9223372036854771712\n")
            .file("memory/memory.usage_in_bytes", "5\n")
            .file("memory/in/memory.limit_in_bytes", "4096\n")
            .file("memory/in/memory.usage_in_bytes", "6\n");
        for text in ["9:pids:/\n4:memory:/docker/x/in\n0::/\n", "0::/\n4:memory:/docker/x/in\n"] {
            assert_eq!(ask(&tree, text, &mounts), answer(1, Some(4096), 6));
        }
        assert_eq!(ask(&tree, "4:memory:/docker/x\n", &mounts), answer(1, None, 5));
        assert_eq!(
            ask(&tree, "4:memory:/elsewhere\n", &mounts),
            answer(1, None, 5),
            "not below the mount: the mount itself"
        );
        assert_eq!(ask(&tree, "4:memory:/../../other\n", &mounts), answer(1, None, 5));
        // A second mount shows more of our path than the first.
        let mounts = [("/y", "other", "cgroup c rw,memory"), ("/docker", "memory", "cgroup c rw,memory")];
        assert_eq!(ask(&tree, "4:memory:/docker/in\n", &mounts), answer(1, Some(4096), 6));
    }

    #[test]
    fn mount_points_with_blanks() {
        let tree = Tree::new("blanks");
        tree.file("a b/g/memory.max", "77\n").file("a b/g/memory.current", "7\n");
        assert_eq!(ask(&tree, "0::/g\n", &[("/", "a\\040b", "cgroup2 c rw")]), answer(2, Some(77), 7));
    }

    #[test]
    fn cgroup_garbage() {
        let tree = Tree::new("cgroup_garbage");
        for text in ["", "\n\n", "::::", "0", "4:memory:"] {
            assert_eq!(ask(&tree, text, &[]), None, "{text:?}");
        }
        let long = format!("0::/{}\n", "x/".repeat(1500));
        tree.file("m/memory.max", "5").file("m/memory.current", "4");
        assert_eq!(
            ask(&tree, &long, &[("/", "m", "cgroup2 c rw")]),
            answer(2, Some(5), 4),
            "a path too long: the mount itself"
        );
        assert_eq!(cgroup_memory_from(c"/no/such", c"/no/such"), None);
    }
}
