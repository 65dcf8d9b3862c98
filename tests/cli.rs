//! The command line: `check` ends 0 under every lock limit, says what is limited and how to cure it, and speaks JSON.

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

/// Runs the program with at most `memlock` bytes to lock, and without capabilities as far as this process may say so.
fn run(args: &[&str], memlock: Option<u64>) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_pinned-alloc"));
    c.args(args).stdin(Stdio::null());
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        c.pre_exec(move || {
            let Some(n) = memlock else { return Ok(()) };
            let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut now);
            let n = n.min(now.rlim_max);
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &libc::rlimit { rlim_cur: n, rlim_max: n });
            // Another user has no capabilities after exec. Whoever may not change has none to lose.
            libc::setgid(65534);
            libc::setuid(65534);
            Ok(())
        });
    }
    c.output().unwrap()
}

fn text(o: &Output) -> String {
    String::from_utf8(o.stdout.clone()).unwrap()
}

#[test]
fn check_ends_well_under_every_limit() {
    let readable = Command::new("setpriv")
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--",
            env!("CARGO_BIN_EXE_pinned-alloc"),
            "--version",
        ])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|o| o.status.success());
    // A build in a directory that only root may enter cannot be run as somebody else: then the limits of this process
    // are all there is.
    // SAFETY: a plain query.
    let root = unsafe { libc::geteuid() } == 0;
    for kib in [8192u64, 64, 0] {
        let limit = (readable || !root).then_some(kib * 1024);
        let out = run(&["check", "--max-size", "16"], limit);
        let said = text(&out);
        assert!(out.status.success(), "ulimit -l {kib}: {}\n{said}", out.status);
        assert!(said.contains("0 broken"), "{said}");
        if limit.is_some() {
            assert!(said.contains("limited  cannot pin"), "{said}");
            for cure in ["ulimit -l ", "LimitMEMLOCK=", "--ulimit memlock="] {
                assert!(said.contains(cure), "ulimit -l {kib}, {cure}\n{said}");
            }
        }
        assert!(!said.contains('\u{1b}'), "no colour where nobody looks");
        assert!(said.lines().all(|l| l.chars().count() <= 140));
    }
}

#[test]
fn json_says_the_same() {
    let out = run(&["check", "--quick", "--json"], None);
    let all: Value = serde_json::from_str(&text(&out)).unwrap();
    assert_eq!(out.status.code(), Some(0));
    let lines = all["report"]["lines"].as_array().unwrap();
    let count = |v: &str| lines.iter().filter(|l| l["verdict"] == v).count() as u64;
    for (verdict, key) in [("ok", "ok"), ("limited", "limited"), ("broken", "broken")] {
        assert_eq!(all["summary"][key], count(verdict));
    }
    assert_eq!(all["summary"]["broken"], 0);
    assert!(lines.len() > 30 && !all["machine"]["nodes"].as_array().unwrap().is_empty());
}

#[test]
fn a_reader_that_goes_away_and_wrong_words() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_pinned-alloc"))
        .args(["check", "--quick"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    for wrong in [&["chek"][..], &["check", "--max-size", "0"], &["bench", "--rounds", "x"], &[]] {
        assert_eq!(run(wrong, None).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn bench_prints_ratios_or_why_not() {
    let out = run(&["bench", "--rounds", "3", "--json"], None);
    assert!(out.status.success());
    let all: Value = serde_json::from_str(&text(&out)).unwrap();
    let rows = all["rows"].as_array().unwrap();
    assert!(rows.len() >= 15);
    for r in rows {
        assert!(r["ratio"].as_f64().is_some_and(|q| q > 0.0) != r["note"].is_string(), "{r}");
    }
}
