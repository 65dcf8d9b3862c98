//! Small files of `/proc` and `/sys`, read without touching the heap.
//!
//! This code runs below a global allocator: a `String`, a `Vec` or `std::fs` here would call the
//! allocator from inside the allocator. So paths are put together in a fixed buffer ([`StackPath`]),
//! a file of one value is read into the caller's buffer ([`read_into`]), and a file of any length
//! is passed line by line through one 4 KiB buffer ([`for_each_line`]). No buffer lives longer
//! than the call.
//!
//! The text comes from the kernel, but it is parsed as if it did not (it may come from a
//! container's idea of `/proc`): numbers are checked for overflow, a list is refused as a whole
//! when any part of it is not a number, and nothing here can panic.

use core::ffi::{CStr, c_int};
use core::ops::ControlFlow;

/// Bytes of the buffer behind [`for_each_line`], and so the longest line it passes whole.
pub(crate) const LINE_MAX: usize = 4096;

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    // Does not allocate: an OS code is stored in the pointer itself.
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A file descriptor opened for reading; closed on drop.
#[derive(Debug)]
struct Fd(c_int);

impl Fd {
    /// `open(2)`, repeated on EINTR. `O_NONBLOCK` has no effect on `/proc` and `/sys`, and keeps
    /// a FIFO in an invented tree from blocking the caller for ever.
    fn open(path: &CStr) -> Result<Self, i32> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
        loop {
            // SAFETY: `path` is NUL-terminated (CStr's invariant) and open(2) only reads it;
            // without O_CREAT there is no third argument.
            let fd = unsafe { libc::open(path.as_ptr(), flags) };
            if fd >= 0 {
                return Ok(Self(fd));
            }
            match errno() {
                libc::EINTR => {}
                e => return Err(e),
            }
        }
    }

    /// `read(2)` at the file's position, repeated on EINTR. `Ok(0)` is the end of the file.
    fn read(&self, buf: &mut [u8]) -> Result<usize, i32> {
        loop {
            // SAFETY: `buf` is valid for writes of `buf.len()` bytes for the duration of the call
            // and read(2) writes at most that many; `self.0` is open for as long as `self` lives.
            let n = unsafe { libc::read(self.0, buf.as_mut_ptr().cast(), buf.len()) };
            match usize::try_from(n) {
                Ok(n) => return Ok(n.min(buf.len())),
                Err(_) => match errno() {
                    libc::EINTR => {}
                    e => return Err(e),
                },
            }
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone and is not used after this. Not repeated on EINTR:
        // Linux has freed the descriptor by then (close(2), "Dealing with error returns").
        let _ = unsafe { libc::close(self.0) };
    }
}

/// Opens the first of `paths` that can be opened.
fn open_first(paths: &[&CStr]) -> Result<Fd, i32> {
    let mut last = libc::ENOENT;
    for path in paths {
        match Fd::open(path) {
            Ok(fd) => return Ok(fd),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Reads a file from its start until it ends or `buf` is full.
///
/// Returns the number of bytes read; `buf.len()` means that there may be more.
///
/// # Errors
///
/// The errno of `open(2)` or `read(2)`; EINTR and short reads are dealt with here.
pub(crate) fn read_into(path: &CStr, buf: &mut [u8]) -> Result<usize, i32> {
    let fd = Fd::open(path)?;
    let mut used = 0;
    while let Some(rest) = buf.get_mut(used..).filter(|r| !r.is_empty()) {
        match fd.read(rest)? {
            0 => break,
            n => used += n,
        }
    }
    Ok(used)
}

/// Reads a file that holds one decimal number, such as `/proc/sys/vm/max_map_count`.
///
/// `None` when it cannot be read, or holds anything else.
pub(crate) fn read_u64(path: &CStr) -> Option<u64> {
    let mut buf = [0; 64];
    let n = read_into(path, &mut buf).ok()?;
    // A full buffer may hold the head of a longer text: u64 has at most 20 digits.
    parse_u64(buf.get(..n).filter(|b| b.len() < 64)?)
}

/// Calls `line` for each line of the first of `paths` that opens, without the newline; a last line
/// that lacks its newline counts. A line longer than [`LINE_MAX`] bytes is cut to that length.
/// `line` ends the reading early with `ControlFlow::Break`.
///
/// # Errors
///
/// The errno of the last `open(2)`, or of `read(2)`; lines before the failed read have been passed.
pub(crate) fn for_each_line(paths: &[&CStr], line: impl FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), i32> {
    let fd = open_first(paths)?;
    split_lines(|buf| fd.read(buf), line)
}

/// The line splitter of [`for_each_line`] over any source of bytes; `read` answers as `read(2)`.
fn split_lines(
    mut read: impl FnMut(&mut [u8]) -> Result<usize, i32>,
    mut line: impl FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<(), i32> {
    let mut buf = [0u8; LINE_MAX];
    // Bytes `buf[..used]` are the beginning of a line whose end has not been seen yet.
    let mut used = 0;
    // The line in hand has been passed (cut): drop what comes up to its newline.
    let mut cut = false;
    loop {
        let n = match buf.get_mut(used..) {
            Some(rest) => read(rest)?,
            None => 0,
        };
        if n == 0 {
            if used > 0 && !cut {
                let _ = line(buf.get(..used).unwrap_or_default());
            }
            return Ok(());
        }
        let filled = used.saturating_add(n).min(LINE_MAX);
        let mut rest = buf.get(..filled).unwrap_or_default();
        while let Some(end) = rest.iter().position(|&b| b == b'\n') {
            let (head, tail) = rest.split_at(end);
            rest = tail.get(1..).unwrap_or_default();
            if !core::mem::take(&mut cut) && line(head).is_break() {
                return Ok(());
            }
        }
        used = rest.len();
        let start = filled.saturating_sub(used);
        if start > 0 {
            buf.copy_within(start..filled, 0);
        } else if used == LINE_MAX {
            if !core::mem::replace(&mut cut, true) && line(&buf).is_break() {
                return Ok(());
            }
            used = 0;
        }
        if cut {
            used = 0;
        }
    }
}

/// A path under construction in `N` bytes on the stack, always NUL-terminated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackPath<const N: usize> {
    /// `buf[..len]` holds no NUL and `buf[len]` is NUL; so `len < N`.
    buf: [u8; N],
    len: usize,
}

impl<const N: usize> StackPath<N> {
    /// The empty path.
    pub(crate) const fn new() -> Self {
        const { assert!(N > 0) };
        Self { buf: [0; N], len: 0 }
    }

    /// Appends `bytes`. `None`, and nothing appended, when they do not fit or hold a NUL.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.contains(&0) {
            return None;
        }
        let end = self.len.checked_add(bytes.len()).filter(|&e| e < N)?;
        self.buf.get_mut(self.len..end)?.copy_from_slice(bytes);
        *self.buf.get_mut(end)? = 0;
        self.len = end;
        Some(())
    }

    /// Appends `n` in decimal. `None`, and nothing appended, when it does not fit.
    pub(crate) fn push_decimal(&mut self, mut n: u64) -> Option<()> {
        let mut digits = [0u8; 20];
        let mut used = 0;
        for slot in digits.iter_mut().rev() {
            *slot = b'0' + (n % 10) as u8;
            n /= 10;
            used += 1;
            if n == 0 {
                break;
            }
        }
        self.push(digits.get(digits.len().checked_sub(used)?..)?)
    }

    /// Cuts the path to its first `len` bytes; does nothing when it is that short already.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len
            && let Some(end) = self.buf.get_mut(len)
        {
            *end = 0;
            self.len = len;
        }
    }

    /// The bytes so far, without the NUL.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.buf.get(..self.len).unwrap_or_default()
    }

    /// The path for a system call.
    pub(crate) fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.buf).unwrap_or_default()
    }
}

/// A decimal number with nothing before it and at most white space (a newline) behind it.
pub(crate) fn parse_u64(text: &[u8]) -> Option<u64> {
    digits(text.trim_ascii_end(), 10)
}

/// A hexadecimal number without a prefix, nothing before it, at most white space behind it.
pub(crate) fn parse_hex(text: &[u8]) -> Option<u64> {
    digits(text.trim_ascii_end(), 16)
}

/// The digits of `text`, at least one and nothing else, as a number in `radix` (10 or 16).
fn digits(text: &[u8], radix: u32) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |n, &b| {
        let digit = char::from(b).to_digit(radix)?;
        n.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))
    })
}

/// A size as `/proc` and `/sys` print it after a field's name, `   1234 kB`, in bytes.
pub(crate) fn parse_kib(text: &[u8]) -> Option<u64> {
    let number = text.trim_ascii().strip_suffix(b"kB")?;
    parse_u64(number)?.checked_mul(1024)
}

/// A list of numbers and ranges as the kernel prints sets of CPUs and nodes, `0-3,7,9-11`; white
/// space around it is allowed, an empty list is a list.
///
/// `item` gets each range, both ends included, in the order of the text. It is called only if the
/// whole list is well-formed; `None` (and no call) otherwise. A range may be as large as
/// `0-18446744073709551615`: `item` must not walk it without a bound.
pub(crate) fn parse_list(text: &[u8], mut item: impl FnMut(u64, u64)) -> Option<()> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(());
    }
    let ranges = || {
        text.split(|&b| b == b',').map(|part| {
            let mut ends = part.splitn(2, |&b| b == b'-');
            let low = digits(ends.next()?, 10)?;
            let high = ends.next().map_or(Some(low), |h| digits(h, 10))?;
            (low <= high).then_some((low, high))
        })
    };
    if ranges().any(|r| r.is_none()) {
        return None;
    }
    ranges().flatten().for_each(|(low, high)| item(low, high));
    Some(())
}

#[cfg(test)]
pub(crate) mod testing {
    //! A directory of invented `/sys` and `/proc` files for the tests of this layer.

    use std::ffi::CString;
    use std::path::PathBuf;

    /// A directory under the temporary directory; removed on drop.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        /// An empty directory, named after the process and `test`.
        pub(crate) fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pinned-{}-{test}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        /// Writes `text` to `path` inside the directory, with the directories on the way.
        pub(crate) fn file(&self, path: &str, text: impl AsRef<[u8]>) -> &Self {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            self
        }

        /// The absolute name of `path` inside the directory (`""`: the directory itself).
        pub(crate) fn path(&self, path: &str) -> CString {
            let full = if path.is_empty() { self.0.clone() } else { self.0.join(path) };
            CString::new(full.to_str().unwrap()).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Tree;
    use super::*;

    #[test]
    fn numbers_are_strict() {
        assert_eq!(parse_u64(b"42\n"), Some(42));
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        for bad in [
            &b""[..],
            b"\n",
            b" 1",
            b"+1",
            b"-1",
            b"1 2",
            b"0x1",
            b"18446744073709551616",
            b"99999999999999999999999",
            b"1\xff",
            b"1\0",
        ] {
            assert_eq!(parse_u64(bad), None, "{bad:?}");
        }
        assert_eq!(parse_hex(b"000001fffeffffff\n"), Some(0x1ff_feff_ffff));
        assert_eq!(parse_hex(b"fffffffffffffffff"), None);
        assert_eq!(parse_hex(b"0x1"), None);
        assert_eq!(parse_kib(b"\t       8 kB"), Some(8192));
        assert_eq!(parse_kib(b"8"), None);
        assert_eq!(parse_kib(b"18446744073709551615 kB"), None);
    }

    fn list(text: &[u8]) -> Option<Vec<(u64, u64)>> {
        let mut out = Vec::new();
        let answer = parse_list(text, |a, b| out.push((a, b)));
        assert!(answer.is_some() || out.is_empty(), "called on a malformed list");
        answer.map(|()| out)
    }

    #[test]
    fn lists_are_all_or_nothing() {
        assert_eq!(list(b"0-3,7,9-11\n"), Some(vec![(0, 3), (7, 7), (9, 11)]));
        assert_eq!(list(b"\n"), Some(vec![]));
        assert_eq!(list(b"0"), Some(vec![(0, 0)]));
        assert_eq!(
            list(b"0-18446744073709551615"),
            Some(vec![(0, u64::MAX)]),
            "the largest range is passed on, not walked"
        );
        for bad in [
            &b"3-1"[..],
            b"0,",
            b",0",
            b"0--1",
            b"0-",
            b"-3",
            b"0-3-5",
            b"0 1",
            b"a",
            b"0-3,x",
            b"0-18446744073709551616",
            b"0-31:2/4",
        ] {
            assert_eq!(list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn paths_hold_what_fits() {
        let mut path = StackPath::<16>::new();
        assert_eq!(path.as_cstr(), c"");
        path.push(b"/node").unwrap();
        path.push_decimal(1023).unwrap();
        assert_eq!(path.as_cstr(), c"/node1023");
        assert_eq!(path.push(b"/meminfo"), None, "17 bytes with the NUL");
        assert_eq!(path.push(b"a\0b"), None);
        assert_eq!(path.as_cstr(), c"/node1023", "a refused push changes nothing");
        path.push(b"/memin").unwrap();
        assert_eq!(path.as_bytes().len(), 15);
        assert_eq!(path.push_decimal(0), None);
        path.truncate(5);
        path.truncate(9);
        assert_eq!(path.as_cstr(), c"/node");
        let mut path = StackPath::<21>::new();
        path.push_decimal(u64::MAX).unwrap();
        assert_eq!(path.as_cstr(), c"18446744073709551615");
        path.truncate(0);
        path.push_decimal(0).unwrap();
        assert_eq!(path.as_cstr(), c"0");
    }

    /// The lines of `text` when read in pieces of `step` bytes.
    fn lines(text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut at = 0;
        let mut out = Vec::new();
        split_lines(
            |buf| {
                let n = step.min(buf.len()).min(text.len() - at);
                buf[..n].copy_from_slice(&text[at..at + n]);
                at += n;
                Ok(n)
            },
            |line| {
                out.push(line.to_vec());
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        out
    }

    #[test]
    fn lines_come_whole_whatever_the_reads() {
        let mut text = b"one\n\nthree\n".to_vec();
        text.extend(std::iter::repeat_n(b'x', 3000));
        text.push(b'\n');
        text.extend(std::iter::repeat_n(b'y', 3000));
        text.extend(b"\nlast without newline");
        let expect: Vec<Vec<u8>> = text.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
        for step in [1, 2, 3, 7, 1000, 4095, 4096, 100_000] {
            assert_eq!(lines(&text, step), expect, "step {step}");
        }
        assert!(lines(b"", 10).is_empty());
        assert_eq!(lines(b"\n", 10), [b""]);
    }

    #[test]
    fn long_lines_are_cut_and_the_next_is_whole() {
        for long in [LINE_MAX - 1, LINE_MAX, LINE_MAX + 1, 3 * LINE_MAX] {
            let mut text = vec![b'x'; long];
            text.extend(b"\nnext\n");
            for step in [1, 100, 4096] {
                let got = lines(&text, step);
                assert_eq!(got.len(), 2, "{long} {step}");
                assert_eq!(got[0].len(), long.min(LINE_MAX), "{long} {step}");
                assert_eq!(got[1], b"next");
            }
            assert_eq!(lines(&text[..long], 100).len(), 1, "without a newline");
        }
    }

    #[test]
    fn break_ends_the_reading() {
        let mut seen = 0;
        let answer = for_each_line(&[c"/no/such/file", c"/proc/self/status"], |_| {
            seen += 1;
            ControlFlow::Break(())
        });
        assert_eq!((answer, seen), (Ok(()), 1));
        let answer = for_each_line(&[c"/no/such/file"], |_| ControlFlow::Continue(()));
        assert_eq!(answer, Err(libc::ENOENT));
        assert_eq!(for_each_line(&[], |_| ControlFlow::Continue(())), Err(libc::ENOENT));
    }

    #[test]
    fn read_into_fills_or_ends() {
        let tree = Tree::new("read_into");
        tree.file("f", b"123456\n").file("big", [b'1'; 64]);
        let mut buf = [0; 16];
        assert_eq!(read_into(&tree.path("f"), &mut buf), Ok(7));
        assert_eq!(&buf[..7], b"123456\n");
        assert_eq!(read_into(&tree.path("f"), &mut buf[..3]), Ok(3));
        assert_eq!(read_into(&tree.path("f"), &mut []), Ok(0));
        assert_eq!(read_into(&tree.path("none"), &mut buf), Err(libc::ENOENT));
        assert_eq!(read_into(&tree.path(""), &mut buf), Err(libc::EISDIR));
        assert_eq!(read_u64(&tree.path("f")), Some(123_456));
        assert_eq!(read_u64(&tree.path("big")), None);
        assert_eq!(read_u64(&tree.path("none")), None);
    }
}
