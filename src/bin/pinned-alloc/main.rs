//! The command line `pinned-alloc`: what this machine allows, whether every promise holds on it, and how fast it is.
//!
//! `check` ends 0 if every promise held, and 1 if one was broken; what the limits do not allow is reported with its
//! cure and is not a failure. `bench` prints ratios. Wrong usage ends 2.
#![deny(missing_docs)]

mod bench;
mod check;
mod machine;
mod report;
mod verify;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Pinned memory: what this machine allows, whether it holds, and how fast it is
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// When to use colour
    #[arg(long, value_enum, default_value = "auto", global = true)]
    color: Color,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Subcommand)]
enum Command {
    /// Examine the machine, then verify every promise against the kernel
    Check {
        /// Print one JSON document instead of a table
        #[arg(long)]
        json: bool,
        /// Blocks of at most 1 MiB
        #[arg(long)]
        quick: bool,
        /// The largest block, in MiB (1 to 4096)
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
        max_size: u64,
    },
    /// Quick side-by-side figures of this machine, as ratios
    Bench {
        /// Print one JSON document instead of a table
        #[arg(long)]
        json: bool,
        /// Rounds; each figure is the median of so many ratios (3 to 99)
        #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(3..=99))]
        rounds: u64,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.color {
        Color::Auto => {}
        Color::Always => anstream::ColorChoice::Always.write_global(),
        Color::Never => anstream::ColorChoice::Never.write_global(),
    }
    let mut out = anstream::AutoStream::auto(io::stdout());
    let r = match cli.command {
        Command::Check { json, quick, max_size } => {
            let max = if quick { 1 << 20 } else { (max_size as usize) << 20 };
            check::run(max, json, &mut out)
        }
        Command::Bench { json, rounds } => bench::run(rounds as usize, json, &mut out),
    };
    match r.and_then(|code| out.flush().map(|()| code)) {
        Ok(code) => code,
        // The reader has gone: nothing is left to say, and nobody to say it to.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pinned-alloc: {e}");
            ExitCode::from(2)
        }
    }
}
