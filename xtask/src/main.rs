//! The project's own chores: `cargo xtask check | tidy | test | nightly | sim | replant | torture | fuzz |
//! miri | coverage | mutants`.
//!
//! ```text
//!  main ──▶ check (fmt, clippy, tidy, tests, 200 seeds, docs)      before a commit
//!      ├──▶ suite (tools ▶ cargo test ▶ real tools ▶ sim ▶ fuzz)   what continuous integration runs
//!      ├──▶ tidy  (style as a program)
//!      ├──▶ coverage (instrumented tests ▶ lines by group)         what tests do not run
//!      └──▶ fuzz, sim, replant, torture, miri, mutants
//! ```
//!
//! Exit status: 0 when everything passed, 1 when something failed, 2 for wrong arguments.
#![forbid(unsafe_code)]

mod check;
mod fuzz;
mod miri;
mod proof;
mod step;
mod suite;
mod tidy;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND
  check             fmt, clippy, tidy, unit tests, 200 simulator seeds, docs
  tidy              style rules that no other tool checks
  test              set up what the tests need, run all of them, end with the count
  nightly           the long forms of all this, several hours
  sim --seeds A..B  run the simulator over a range of seeds (more arguments are passed on)
  replant [BUG...]  how many of 1,000 seeds find each planted bug; fails where none does
  torture --hours N  kill servers under file systems for N hours (also --minutes N)
  fuzz [--seconds N]  run every fuzz target, N seconds of processor time in all (default 120)
  miri              interpret the crates with raw memory on a nightly compiler, minutes
  coverage          lines that tests run, by group; fails where a group is below its floor
  mutants [K/N]     change code in small ways, the K-th of N shares; fails where tests notice too few";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["check"] => check::run(),
        ["tidy"] => tidy::run(&root()),
        ["test"] => suite::run(),
        ["nightly"] => suite::nightly(),
        ["sim", rest @ ..] if !rest.is_empty() => suite::simulate(rest),
        ["replant", bugs @ ..] => suite::simulate(&[&["hunt"], bugs].concat()),
        ["torture", unit @ ("--hours" | "--minutes"), n] => match n.parse::<u32>() {
            Ok(count) => suite::torture(count.saturating_mul(if *unit == "--hours" { 3600 } else { 60 })),
            Err(_) => return usage(&format!("{unit} wants a whole number, not \"{n}\"")),
        },
        ["fuzz"] => fuzz::run(120),
        ["miri"] => miri::run(),
        ["coverage"] => proof::coverage::run(),
        ["mutants"] => proof::mutants::run("0/1"),
        ["mutants", share] if share.contains('/') => proof::mutants::run(share),
        ["fuzz", "--seconds", n] => match n.parse() {
            Ok(seconds) => fuzz::run(seconds),
            Err(_) => return usage(&format!("--seconds wants a whole number, not \"{n}\"")),
        },
        _ => return usage(&format!("not a command: \"{}\"", words.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn usage(reason: &str) -> ExitCode {
    eprintln!("xtask: {reason}\n{USAGE}");
    ExitCode::from(2)
}

/// The repository's root: the folder above this package, where cargo runs it from.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.join("..")
}
