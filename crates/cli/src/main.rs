//! `forebay`: serve block devices, look at them, mend and empty caches.
//!
//! ```text
//!   flags ─▶ serve/ ─ config, embedded        one process, one reactor
//!        ├─▶ control/ ─ status                asks a running server
//!        ├─▶ copy/                            files and devices through the copy engine
//!        ├─▶ offline/                         works on a cache that nobody serves
//!        └─▶ pages                            completions and man pages
//! ```
//!
//! 1. Every failure is one sentence on standard error: what, which file or argument, what to do.
//! 2. The exit status is 0 for success, 2 for wrong usage, 1 for everything else; `cache check` and
//!    `compare` have their own meanings.
#![forbid(unsafe_code)]

mod advise;
mod bench;
mod config;
mod control;
mod copy;
mod embedded;
mod failure;
mod figures;
mod flags;
mod offline;
mod pages;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Outcome;
use crate::flags::{CacheCommand, Command, Flags, ZramCommand};

fn main() -> ExitCode {
    abort_on_panic();
    let flags = Flags::parse();
    log_to_stderr(flags.verbose);
    run(flags.command).unwrap_or_else(|failure| failure.report())
}

/// A panic is a bug, and a process with a bug stops at once: what was flushed survives that, and
/// nothing that follows from the bug is written.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Serve(flags) => serve::run(flags),
        Command::Status(flags) => control::status(&flags),
        Command::Message(flags) => control::message(&flags),
        Command::Wait(flags) => control::wait(&flags),
        Command::Suspend(flags) => control::suspend(&flags),
        Command::Resume(flags) => control::resume(&flags),
        Command::Copy(flags) => copy::run(&flags),
        Command::Compare(flags) => copy::compare(&flags),
        Command::Cache { command } => match command {
            CacheCommand::Dump(flags) => offline::dump(&flags),
            CacheCommand::Check(flags) => offline::check(&flags),
            CacheCommand::Flush(flags) => offline::flush(&flags),
        },
        Command::Zram { command } => match command {
            ZramCommand::Status(flags) => control::zram_status(&flags),
            ZramCommand::Advise { files } => advise::run(&files),
            ZramCommand::Get(flags) => control::zram_get(&flags),
            ZramCommand::Set(flags) => control::zram_set(&flags),
            ZramCommand::Save(flags) => control::zram_save(&flags),
            ZramCommand::Restore(flags) => control::zram_restore(&flags),
        },
        Command::Bench { command } => bench::run(&command),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { folder } => pages::man(&folder),
    }
}

/// Sends log lines to standard error: warnings, or what `-v` and `RUST_LOG` ask for.
fn log_to_stderr(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .compact()
        .with_target(false)
        .without_time()
        .with_ansi(terminal)
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .init();
}
