//! Tests in processes of their own.
//!
//! `cargo test` runs the tests of one file as threads of one process, where `VmLck`, limits, fork and injected
//! failures belong to all of them. [`alone`] runs a test's body in a child: the same program, started again for that
//! one test. The parent only watches it.
#![allow(dead_code)] // Each test file uses its own part of this.

pub(crate) mod tracked;

use pinned_alloc::os::limits::Limits;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const CHILD: &str = "PINNED_ALLOC_TEST_CHILD";

/// What to change before the child runs. Nothing here gives a privilege: where the test process has less than is
/// asked for, the child has that less, and the body finds out by [`room`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Situation {
    /// Give up `CAP_IPC_LOCK` (and every other capability).
    pub(crate) unprivileged: bool,
    /// `RLIMIT_MEMLOCK`, soft and hard, in bytes; with `unprivileged` or the limit means nothing.
    pub(crate) memlock: Option<u64>,
}

impl Situation {
    /// Without capabilities and with that lock limit, in bytes.
    pub(crate) fn limited(memlock: u64) -> Self {
        Self { unprivileged: true, memlock: Some(memlock) }
    }
}

/// Bytes that this process may still lock.
pub(crate) fn room() -> u64 {
    Limits::read().headroom().unwrap_or(u64::MAX)
}

/// Runs `body` in a process of its own. `name` is the test's path as libtest prints it.
#[track_caller]
pub(crate) fn alone(name: &str, body: impl FnOnce()) {
    alone_in(name, Situation::default(), body);
}

/// As [`alone`], in a situation.
#[track_caller]
pub(crate) fn alone_in(name: &str, situation: Situation, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some_and(|v| v == name) {
        return body();
    }
    let out = spawn(name, situation);
    assert!(
        out.status.success(),
        "{name} failed in its own process ({}):\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// Whether this is the child that is to run `name`'s body; for tests that look at how the child ends.
pub(crate) fn is_child(name: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|v| v == name)
}

/// Runs the test `name` in a process of its own and gives its end and its output. A child that takes longer than ten
/// minutes hangs: it is killed, which its status shows.
#[track_caller]
pub(crate) fn spawn(name: &str, s: Situation) -> Output {
    spawn_with(name, s, |_| {})
}

/// As [`spawn`]; `more` changes the command.
#[track_caller]
pub(crate) fn spawn_with(name: &str, s: Situation, more: impl FnOnce(&mut Command)) -> Output {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, name);
    more(&mut c);
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        c.pre_exec(move || {
            if let Some(n) = s.memlock {
                limit(libc::RLIMIT_MEMLOCK, n)?;
            }
            if s.unprivileged {
                drop_capabilities()?;
            }
            Ok(())
        });
    }
    let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut o, mut e) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = o.read_to_end(&mut all);
        all
    });
    let read_err = std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = e.read_to_end(&mut all);
        all
    });
    let end = Instant::now() + Duration::from_secs(600);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                let _ = child.kill();
                break child.wait().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Output { status, stdout: read.join().unwrap(), stderr: read_err.join().unwrap() }
}

/// Lowers a limit; the tighter of the present hard limit and `n`.
fn limit(which: libc::__rlimit_resource_t, n: u64) -> std::io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls on a local.
    unsafe {
        libc::getrlimit(which, &mut now);
        let n = n.min(now.rlim_max);
        let new = libc::rlimit { rlim_cur: n, rlim_max: n };
        if libc::setrlimit(which, &new) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Gives up every capability of this thread, for good: also across exec, for root too (securebits), so that files
/// stay readable as they were.
fn drop_capabilities() -> std::io::Result<()> {
    #[repr(C)]
    struct Header(u32, i32);
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data(u32, u32, u32);
    const VERSION_3: u32 = 0x2008_0522;
    // NOROOT and its lock: exec as root gives no capabilities back. Refused to those who have none anyway.
    const SECBIT_NOROOT_LOCKED: libc::c_ulong = 0b11;
    // SAFETY: plain calls on locals; both structures have the layout of capset(2).
    unsafe {
        libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NOROOT_LOCKED);
        let (header, none) = (Header(VERSION_3, 0), [Data(0, 0, 0); 2]);
        if libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Lowers `RLIMIT_AS` to what is in use and `spare` bytes.
pub(crate) fn spare_address_space(spare: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmSize:")).unwrap();
    let used = kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    let l = libc::rlimit { rlim_cur: used + spare, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a plain call on a local.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &l) }, 0);
}
