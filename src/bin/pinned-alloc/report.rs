//! Lines of a report: units and verdicts for people, and the same as JSON.

use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// How a promise fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It held.
    Ok,
    /// The limits of this process do not allow the case; the crate said so, as documented.
    Limited,
    /// It did not hold.
    Broken,
}

/// One case.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    group: &'static str,
    case: String,
    verdict: Verdict,
    detail: String,
}

/// Everything a check found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    lines: Vec<Line>,
    /// Cures by what stood in the way, each for the largest request that it stopped.
    cures: BTreeMap<String, Remedy>,
}

/// What helps against one cause.
#[derive(Debug, Default, Serialize)]
struct Remedy {
    asked: usize,
    lines: Vec<String>,
}

/// A failed case: limited, with its error, or broken.
#[derive(Debug)]
pub(crate) enum Failure {
    Limited(pinned_alloc::Error),
    Broken(String),
}

impl From<String> for Failure {
    fn from(s: String) -> Self {
        Failure::Broken(s)
    }
}

impl Report {
    /// Takes down how one case went.
    pub(crate) fn add(&mut self, group: &'static str, case: impl Into<String>, r: Result<String, Failure>) {
        let (verdict, detail) = match r {
            Ok(d) => (Verdict::Ok, d),
            Err(Failure::Broken(d)) => (Verdict::Broken, d),
            Err(Failure::Limited(e)) => {
                let text = e.to_string();
                // The sentence ends in the cure, which is printed once below.
                let cause = text.split(": raise it").next().unwrap_or(&text).to_owned();
                if let Some(c) = e.cure() {
                    let key = cause.split_once(": ").map_or(cause.as_str(), |(_, c)| c);
                    let key = key.split(',').next().unwrap_or(key).to_owned();
                    let asked = match e {
                        pinned_alloc::Error::Pages(p) => p.asked,
                        _ => 0,
                    };
                    let known = self.cures.entry(key).or_default();
                    if asked >= known.asked {
                        *known = Remedy { asked, lines: c.to_string().lines().map(str::to_owned).collect() };
                    }
                }
                (Verdict::Limited, cause)
            }
        };
        self.lines.push(Line { group, case: case.into(), verdict, detail });
    }

    pub(crate) fn count(&self, v: Verdict) -> usize {
        self.lines.iter().filter(|l| l.verdict == v).count()
    }

    /// Prints the lines, a heading a group.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mut group = "";
        for l in &self.lines {
            if l.group != group {
                group = l.group;
                heading(out, group)?;
            }
            let (style, word) = match l.verdict {
                Verdict::Ok => (AnsiColor::Green.on_default(), "ok"),
                Verdict::Limited => (AnsiColor::Yellow.on_default(), "limited"),
                Verdict::Broken => (AnsiColor::Red.on_default().bold(), "BROKEN"),
            };
            writeln!(out, "  {:<38} {style}{word:<8}{style:#} {}", l.case, l.detail)?;
        }
        for (cause, cure) in &self.cures {
            heading(out, &format!("cure for: {cause}"))?;
            for c in &cure.lines {
                writeln!(out, "  {c}")?;
            }
        }
        Ok(())
    }
}

/// A heading.
pub(crate) fn heading(out: &mut impl Write, text: &str) -> io::Result<()> {
    let bold = Style::new().bold();
    writeln!(out, "\n{bold}{text}{bold:#}")
}

/// Bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if n >> shift != 0 {
            let v = n as f64 / (1u64 << shift) as f64;
            return match n & ((1 << shift) - 1) {
                0 => format!("{v:.0} {unit}"),
                rest if shift > 10 && rest < 1024 => format!("{:.0} {unit} + {rest} B", v.floor()),
                _ if shift == 10 && n < 10_000 => format!("{n} B"),
                _ => format!("{v:.1} {unit}"),
            };
        }
    }
    format!("{n} B")
}

/// A span of time for people.
pub(crate) fn nanoseconds(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A progress bar on standard error, on a terminal only, that shows itself after a second.
pub(crate) fn progress(steps: u64, what: &'static str) -> indicatif::ProgressBar {
    use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
    use std::io::IsTerminal;
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
    let style =
        ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}").unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_message(what);
    if io::stderr().is_terminal() {
        let shown = bar.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_secs(1));
            if !shown.is_finished() {
                shown.set_draw_target(ProgressDrawTarget::stderr());
            }
        });
    }
    bar
}
