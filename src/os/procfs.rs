//! Asking the kernel what is true of a range of memory: mapped, resident, locked, on which node.
//!
//! An allocator's own counters say what it believes. These functions say what the kernel did, for
//! self-checks, tests and reports: VmLck for the process, `/proc/PID/smaps` for a range
//! (proc_pid_smaps(5)), mincore(2) for residency and move_pages(2) for placement.
//!
//! They look and never touch: no page is faulted in, no memory is read through the addresses, so
//! any address may be asked about. The answer is that of the moment of asking; other threads may
//! change it before it arrives. None of them allocates.

use super::files::{errno, for_each_line, parse_hex, parse_kib};
use super::limits::read_status;
use super::page_size;
use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::ops::ControlFlow;
use core::ptr;

/// Bytes in locked mappings of this process, touched or not: VmLck of `/proc/PID/status`, what
/// RLIMIT_MEMLOCK is compared with. hugetlb pages are not in it. 10 to 20 microseconds.
///
/// `None` without `/proc`.
///
/// ```
/// println!("{:?} bytes are locked", pinned_alloc::os::procfs::vm_locked());
/// ```
pub fn vm_locked() -> Option<u64> {
    read_status(|s| s.vm_locked.is_some()).vm_locked
}

/// What `/proc/PID/smaps` says about a range; see [`smaps_range`]. All but `vmas` in bytes.
///
/// ```
/// use pinned_alloc::os::procfs::smaps_range;
///
/// let v = vec![1u8; 100_000];
/// if let Some(facts) = smaps_range(v.as_ptr().addr(), v.len()) {
///     assert_eq!(facts.mapped, 100_000);
///     println!("{} bytes resident, {} locked", facts.rss, facts.locked);
/// }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RangeFacts {
    /// Bytes of the range that are mapped, accessible or not.
    pub mapped: u64,
    /// Resident bytes of the range (`Rss`). hugetlb pages are not in it.
    pub rss: u64,
    /// Bytes of the range that are resident in mappings flagged `lo`, and so cannot be reclaimed.
    ///
    /// Not taken from the field `Locked`, which divides a page by the number of its users: after
    /// a fork it shows half of what is locked. In a private mapping of one process they agree.
    pub locked: u64,
    /// Bytes of the range that lie in mappings flagged `lo`, resident or not: the range's share
    /// of VmLck.
    pub lo_flag_bytes: u64,
    /// Bytes of the range that are transparent huge pages (`AnonHugePages`).
    pub huge_bytes: u64,
    /// Mappings that the range touches.
    pub vmas: u32,
    /// Whether `rss`, `locked` and `huge_bytes` are exact. They are not when a mapping sticks out
    /// of the range and is only partly resident (or huge): smaps does not say which part, and the
    /// smallest amount that must lie inside is counted. `mapped`, `lo_flag_bytes` and `vmas` are
    /// always exact.
    pub exact: bool,
}

impl RangeFacts {
    /// Nothing mapped.
    const NONE: Self =
        Self { mapped: 0, rss: 0, locked: 0, lo_flag_bytes: 0, huge_bytes: 0, vmas: 0, exact: true };
}

/// What the kernel says about `len` bytes from `start` on.
///
/// Streams `/proc/thread-self/smaps` up to the end of the range. The kernel walks the page tables
/// of every mapping on the way, so this costs microseconds a mapping and 20 to 30 ms for each
/// GiB that is resident in small pages. `None` when the file cannot be read.
///
/// ```
/// use pinned_alloc::os::procfs::smaps_range;
///
/// let v = vec![1u8; 100_000];
/// if let Some(facts) = smaps_range(v.as_ptr().addr(), v.len()) {
///     assert_eq!(facts.mapped, 100_000);
///     println!("{} bytes resident, {} locked", facts.rss, facts.locked);
/// }
/// ```
pub fn smaps_range(start: usize, len: usize) -> Option<RangeFacts> {
    let mut scan = SmapsScan::new(start, len);
    let files = [c"/proc/thread-self/smaps", c"/proc/self/smaps"];
    for_each_line(&files, |line| scan.line(line)).ok()?;
    Some(scan.finish())
}

/// [`smaps_range`] of a given text.
#[doc(hidden)]
pub fn parse_smaps(text: &[u8], start: usize, len: usize) -> RangeFacts {
    let mut scan = SmapsScan::new(start, len);
    for line in text.split(|&b| b == b'\n') {
        if scan.line(line).is_break() {
            break;
        }
    }
    scan.finish()
}

/// The entry of smaps being read.
#[derive(Clone, Copy)]
struct Vma {
    /// `end > start`.
    start: u64,
    end: u64,
    rss: u64,
    huge: u64,
    locked: bool,
}

/// Adds up the entries of smaps that meet a range.
struct SmapsScan {
    start: u64,
    end: u64,
    vma: Option<Vma>,
    sum: RangeFacts,
}

impl SmapsScan {
    /// A scan for `len` bytes from `start` on, cut at the end of the address space.
    fn new(start: usize, len: usize) -> Self {
        Self { start: start as u64, end: start.saturating_add(len) as u64, vma: None, sum: RangeFacts::NONE }
    }

    /// Takes one line in. Breaks when everything that follows lies behind the range: mappings
    /// come in ascending order.
    fn line(&mut self, line: &[u8]) -> ControlFlow<()> {
        if let Some((start, end)) = parse_vma(line) {
            self.close();
            if start >= self.end {
                return ControlFlow::Break(());
            }
            self.vma = Some(Vma { start, end, rss: 0, huge: 0, locked: false });
        } else if let Some(vma) = &mut self.vma {
            if let Some(text) = line.strip_prefix(b"Rss:") {
                vma.rss = parse_kib(text).unwrap_or(0);
            } else if let Some(text) = line.strip_prefix(b"AnonHugePages:") {
                vma.huge = parse_kib(text).unwrap_or(0);
            } else if let Some(text) = line.strip_prefix(b"VmFlags:") {
                vma.locked = text.split(|&b| b == b' ').any(|flag| flag == b"lo");
            }
        }
        ControlFlow::Continue(())
    }

    /// Adds the entry in hand to the sum.
    fn close(&mut self) {
        let Some(vma) = self.vma.take() else {
            return;
        };
        let inside = vma.end.min(self.end).saturating_sub(vma.start.max(self.start));
        if inside == 0 {
            return;
        }
        // What of the mapping lies outside the range; 0 when it is inside as a whole.
        let outside = (vma.end - vma.start).saturating_sub(inside);
        // Of `amount` bytes somewhere in the mapping at least this much is inside; it is exact
        // when the amount is nothing, everything, or the mapping does not stick out.
        let at_least = |amount: u64| amount.saturating_sub(outside).min(inside);
        let certain = |amount: u64| outside == 0 || amount == 0 || amount == vma.end - vma.start;
        let rss = at_least(vma.rss);
        let sum = &mut self.sum;
        let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
        add(&mut sum.mapped, inside);
        add(&mut sum.rss, rss);
        add(&mut sum.huge_bytes, at_least(vma.huge));
        if vma.locked {
            add(&mut sum.locked, rss);
            add(&mut sum.lo_flag_bytes, inside);
        }
        sum.vmas = sum.vmas.saturating_add(1);
        sum.exact &= certain(vma.rss) && certain(vma.huge);
    }

    /// The sum.
    fn finish(mut self) -> RangeFacts {
        self.close();
        self.sum
    }
}

/// The bounds in the first line of an entry, `7f00-7f80 rw-p 00000000 00:00 0  [heap]`; `None`
/// for every other line.
fn parse_vma(line: &[u8]) -> Option<(u64, u64)> {
    let range = line.split(|&b| b == b' ').next()?;
    let mut ends = range.splitn(2, |&b| b == b'-');
    let start = parse_hex(ends.next()?)?;
    let end = parse_hex(ends.next()?)?;
    (start < end).then_some((start, end))
}

/// The pages that `len` bytes from `start` on touch: the address of the first, and their number.
///
/// # Errors
///
/// EINVAL when the range, rounded to pages, goes beyond the address space.
fn pages(start: usize, len: usize, page: usize) -> Result<(usize, usize), i32> {
    let first = start & !page.saturating_sub(1);
    if len == 0 {
        return Ok((first, 0));
    }
    let end = start.checked_add(len).and_then(|e| e.checked_next_multiple_of(page)).ok_or(libc::EINVAL)?;
    let bytes = end.saturating_sub(first);
    Ok((first, bytes.checked_div(page).ok_or(libc::EINVAL)?))
}

/// How many pages of the range are resident, by mincore(2): about 1 ms/GiB of small pages.
///
/// The pages are those that the range touches. In anonymous memory a page that was only read (the
/// shared zero page) counts, and a page in the swap cache may; for a shared file mapping the page
/// cache is meant, and where the process could not write the file all pages count (mincore(2),
/// since 5.2). hugetlb pages count. Nothing is said about locks.
///
/// # Errors
///
/// ENOMEM when a page of the range is not mapped, EINVAL when the range leaves the address space,
/// EAGAIN when the kernel is short of memory for the moment, ENOSYS or EPERM under a filter.
///
/// ```
/// use pinned_alloc::os::procfs::resident_pages;
///
/// let v = vec![1u8; 100_000];
/// assert!(resident_pages(v.as_ptr().addr(), v.len()).unwrap() >= 25); // all of them have been written
/// ```
pub fn resident_pages(start: usize, len: usize) -> Result<u64, i32> {
    const BATCH: usize = 1024;
    let page = page_size();
    let (mut address, mut left) = pages(start, len, page)?;
    let mut states = [0u8; BATCH];
    let mut resident = 0u64;
    while left > 0 {
        let count = left.min(BATCH);
        let bytes = count.saturating_mul(page);
        // SAFETY: mincore(2) writes one byte for each of `count` pages, and `states` has room for
        // BATCH. The address is only looked up in the page tables: any value may be passed.
        let rc = unsafe {
            libc::mincore(ptr::without_provenance_mut::<c_void>(address), bytes, states.as_mut_ptr().cast())
        };
        if rc != 0 {
            return Err(errno());
        }
        // The low bit is residency, the others are reserved.
        let batch = states.iter().take(count).filter(|&&s| s & 1 != 0).count();
        resident = resident.saturating_add(batch as u64);
        address = address.saturating_add(bytes);
        left = left.saturating_sub(count);
    }
    Ok(resident)
}

/// Calls `f` for each page of the range with its index (0 is the page of `start`) and the NUMA
/// node it is on, by move_pages(2) without target nodes: 0.25 to 0.4 microseconds a page.
///
/// Instead of a node there is a negative errno where there is none to name: `-ENOENT` no page is
/// present, `-EFAULT` not mapped, or the shared zero page. The pages are those that the range
/// touches. hugetlb and transparent huge pages are reported once for each small page.
///
/// # Errors
///
/// EINVAL when the range leaves the address space; ENOSYS in a kernel without NUMA; EPERM under a
/// filter (some container runtimes). `f` may have been called for earlier pages.
///
/// ```
/// use pinned_alloc::os::procfs::page_nodes;
///
/// let v = vec![1u8; 100_000];
/// let _ = page_nodes(v.as_ptr().addr(), v.len(), &mut |page, node| {
///     println!("page {page} is on node {node}");
/// });
/// ```
pub fn page_nodes(start: usize, len: usize, f: &mut dyn FnMut(usize, i32)) -> Result<(), i32> {
    const BATCH: usize = 256;
    let page = page_size();
    let (first, total) = pages(start, len, page)?;
    let mut addresses = [ptr::null::<c_void>(); BATCH];
    let mut done = 0usize;
    while done < total {
        let count = total.saturating_sub(done).min(BATCH);
        for (i, slot) in (done..).zip(addresses.iter_mut().take(count)) {
            // Does not wrap: `pages` has checked the end of the range.
            *slot = ptr::without_provenance(first.wrapping_add(i.wrapping_mul(page)));
        }
        let mut status = [-libc::ENOENT; BATCH];
        let none: c_long = 0;
        // SAFETY: move_pages(2) reads `count` addresses and writes as many status words, and both
        // arrays have BATCH >= count elements. With a null `nodes` no page is moved, the
        // addresses are only looked up. Every argument has the width of a register.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                none,
                count as c_ulong,
                addresses.as_ptr(),
                ptr::null::<c_int>(),
                status.as_mut_ptr(),
                none,
            )
        };
        if rc < 0 {
            return Err(errno());
        }
        for (i, &node) in (done..).zip(status.iter().take(count)) {
            f(i, node);
        }
        done = done.saturating_add(count);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `pages` accessible pages between two that are not, so that the kernel cannot merge the
    /// mapping with a neighbour of the same kind. Unmapped on drop.
    struct Area {
        base: *mut c_void,
        pages: usize,
    }

    impl Area {
        fn new(pages: usize) -> Self {
            let ps = page_size();
            // SAFETY: a new anonymous mapping, then the protection of a part of it.
            let base = unsafe {
                let base = libc::mmap(
                    ptr::null_mut(),
                    (pages + 2) * ps,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                    -1,
                    0,
                );
                assert_ne!(base, libc::MAP_FAILED);
                let inner = base.byte_add(ps);
                let rw = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(libc::mprotect(inner, pages * ps, rw), 0);
                // Not built in: EINVAL, and just as well.
                libc::madvise(inner, pages * ps, libc::MADV_NOHUGEPAGE);
                base
            };
            Self { base, pages }
        }

        fn start(&self) -> usize {
            self.base.addr() + page_size()
        }

        fn len(&self) -> usize {
            self.pages * page_size()
        }

        fn touch(&self, pages: std::ops::Range<usize>) {
            for i in pages {
                assert!(i < self.pages);
                // SAFETY: inside the accessible part of the mapping, which nobody else uses.
                unsafe {
                    let byte = self.base.byte_add((i + 1) * page_size()).cast::<u8>();
                    byte.write_volatile(1);
                }
            }
        }

        /// Locks the first `pages` pages; false when the process may not (ENOMEM: over the limit;
        /// EPERM: limit 0). By number: the sanitizers make libc's mlock do nothing.
        fn lock(&self, pages: usize) -> bool {
            // SAFETY: the pages are inside our mapping; locking changes no contents.
            let rc = unsafe { libc::syscall(libc::SYS_mlock, self.start(), pages * page_size()) };
            if rc == 0 {
                return true;
            }
            let e = errno();
            assert!(e == libc::ENOMEM || e == libc::EPERM, "mlock: errno {e}");
            false
        }
    }

    impl Drop for Area {
        fn drop(&mut self) {
            // SAFETY: the whole mapping, made by `new`, with no reference into it.
            unsafe { libc::munmap(self.base, (self.pages + 2) * page_size()) };
        }
    }

    #[test]
    fn touched_and_locked() {
        let ps = page_size() as u64;
        let area = Area::new(16);
        let none = RangeFacts::NONE;
        let facts = || smaps_range(area.start(), area.len()).unwrap();
        let mapped = RangeFacts { mapped: 16 * ps, vmas: 1, ..none };
        assert_eq!(facts(), mapped);
        assert_eq!(resident_pages(area.start(), area.len()), Ok(0));
        area.touch(0..4);
        let rss = 4 * ps;
        assert_eq!(facts(), RangeFacts { rss, ..mapped });
        assert_eq!(resident_pages(area.start(), area.len()), Ok(4));

        if !area.lock(8) {
            assert_eq!(facts(), RangeFacts { rss, ..mapped }, "nothing is locked");
            return;
        }
        // Locked pages 0 to 7 are populated and form a mapping of their own.
        let expect = RangeFacts { rss: 8 * ps, locked: 8 * ps, lo_flag_bytes: 8 * ps, vmas: 2, ..mapped };
        assert_eq!(facts(), expect);
        assert_eq!(resident_pages(area.start(), area.len()), Ok(8));
        assert!(vm_locked().unwrap() >= 8 * ps);

        // Parts: 2 pages in the middle of the locked mapping, which is resident as a whole.
        let part = smaps_range(area.start() + 3 * page_size(), 2 * page_size()).unwrap();
        let expect = RangeFacts {
            mapped: 2 * ps,
            rss: 2 * ps,
            locked: 2 * ps,
            lo_flag_bytes: 2 * ps,
            vmas: 1,
            ..none
        };
        assert_eq!(part, expect);
    }

    #[test]
    fn a_part_of_a_partly_resident_mapping_is_a_lower_bound() {
        let ps = page_size() as u64;
        let area = Area::new(10);
        area.touch(0..7);
        let f = smaps_range(area.start(), 8 * page_size()).unwrap();
        assert_eq!((f.mapped, f.rss, f.exact), (8 * ps, 5 * ps, false));
        let f = smaps_range(area.start(), 2 * page_size()).unwrap();
        assert_eq!((f.mapped, f.rss, f.exact), (2 * ps, 0, false));
        let f = smaps_range(area.start(), area.len()).unwrap();
        assert_eq!((f.rss, f.exact), (7 * ps, true));
    }

    #[test]
    fn ranges_of_nothing() {
        assert_eq!(smaps_range(0, 4096), Some(RangeFacts::NONE));
        assert_eq!(smaps_range(usize::MAX, usize::MAX), Some(RangeFacts::NONE));
        let area = Area::new(1);
        assert_eq!(smaps_range(area.start(), 0), Some(RangeFacts::NONE));
        assert_eq!(resident_pages(area.start(), 0), Ok(0));
        assert_eq!(resident_pages(0, 1), Err(libc::ENOMEM));
        assert_eq!(resident_pages(usize::MAX, 1), Err(libc::EINVAL));
        assert_eq!(resident_pages(usize::MAX - 5, 2), Err(libc::EINVAL));
        assert_eq!(page_nodes(usize::MAX, 2, &mut |_, _| unreachable!()), Err(libc::EINVAL));
        assert_eq!(page_nodes(0, 0, &mut |_, _| unreachable!()), Ok(()));
        // The whole address space: unlocked parts of it are certain, the rest adds up.
        let all = smaps_range(0, usize::MAX).unwrap();
        assert!(all.exact && all.rss > 0 && all.vmas > 5 && all.mapped >= all.rss);
    }

    #[test]
    fn batches_join() {
        let area = Area::new(2500);
        area.touch(0..1);
        area.touch(255..257);
        area.touch(1023..1025);
        area.touch(2499..2500);
        assert_eq!(resident_pages(area.start(), area.len()), Ok(6));
        // One byte on either side of a page boundary touches two pages.
        let at = area.start() + 1024 * page_size();
        assert_eq!(resident_pages(at - 1, 2), Ok(2));
        let mut seen = Vec::new();
        match page_nodes(area.start(), area.len(), &mut |i, node| seen.push((i, node))) {
            Ok(()) => {
                assert!(seen.iter().enumerate().all(|(k, &(i, _))| k == i));
                assert_eq!(seen.len(), 2500);
                let there: Vec<usize> = seen.iter().filter(|s| s.1 >= 0).map(|s| s.0).collect();
                assert_eq!(there, [0, 255, 256, 1023, 1024, 2499]);
                let absent = |n: i32| n == -libc::ENOENT || n == -libc::EFAULT;
                assert!(seen.iter().all(|s| (0..1024).contains(&s.1) || absent(s.1)));
            }
            // No NUMA in the kernel, or a container's filter.
            Err(e) => assert!(e == libc::ENOSYS || e == libc::EPERM, "move_pages: {e}"),
        }
    }

    #[test]
    fn unmapped_pages_have_no_node() {
        let address = {
            let area = Area::new(4);
            area.start()
        };
        // The addresses may have been used again by another thread by now: only look.
        let _ = page_nodes(address, 1, &mut |i, node| {
            assert_eq!(i, 0);
            assert!(node > -4096);
        });
    }

    const SMAPS: &[u8] = b"1000-3000 rw-p 00000000 00:00 0 \n\
        Size:                  8 kB\nRss:                   8 kB\nLocked:                4 kB\n\
        AnonHugePages:         0 kB\nVmFlags: rd wr mr mw me lo ac \n\
        3000-5000 rw-p 00000000 00:00 0 [x y-z]\n\
        Size:                  8 kB\nRss:                   4 kB\nLocked:                0 kB\n\
        VmFlags: rd wr lolo xlo \n\
        8000-9000 ---p 00000000 00:00 0\nRss: 0 kB\n\
        a00000-c00000 rw-p 00000000 00:00 0\nRss: 2048 kB\nAnonHugePages: 2048 kB\nVmFlags: lo";

    #[test]
    fn smaps_text() {
        let ask = |start, end: usize| parse_smaps(SMAPS, start, end - start);
        let expect = RangeFacts {
            mapped: 0x2000 + 0x2000 + 0x1000 + (2 << 20),
            rss: 0x2000 + 0x1000 + (2 << 20),
            locked: 0x2000 + (2 << 20),
            lo_flag_bytes: 0x2000 + (2 << 20),
            huge_bytes: 2 << 20,
            vmas: 4,
            exact: true,
        };
        assert_eq!(ask(0, usize::MAX), expect);
        let f = ask(0x2000, 0x4000);
        assert_eq!((f.mapped, f.rss, f.locked, f.vmas), (0x2000, 0x1000, 0x1000, 2));
        assert!(!f.exact, "4 of 8 kB are resident, somewhere");
        let f = ask(0xb0_0000, 0xb1_0000);
        assert_eq!((f.huge_bytes, f.locked, f.exact), (0x1_0000, 0x1_0000, true));
        assert_eq!(ask(0x5000, 0x8000), RangeFacts::NONE);
        assert_eq!(ask(0xc0_0000, usize::MAX), RangeFacts::NONE);
        let f = ask(0x7fff, 0x8001);
        assert_eq!((f.mapped, f.rss, f.vmas, f.exact), (1, 0, 1, true));
    }

    #[test]
    fn smaps_garbage() {
        for text in [
            &b""[..],
            b"\n\n",
            b"Rss: 4 kB\nVmFlags: lo",
            b"-",
            b"5000-1000 rw-p",
            b"1000-1000 rw-p",
            b"zz-zz",
            b"10000000000000000-10000000000000001",
            b"\xff-\xff\nRss: \xff kB",
        ] {
            assert_eq!(parse_smaps(text, 0, usize::MAX), RangeFacts::NONE);
        }
        // Figures larger than the mapping, and out of order.
        let text = b"0-ffffffffffffffff r\nRss: 18014398509481983 kB\nVmFlags: lo\n0-2 r\nRss: 9 kB";
        let f = parse_smaps(text, 0, 10);
        assert!(f.rss <= 12 && f.mapped == 12 && f.vmas == 2);
    }
}
