//! `forebay-sim`: runs seeds of the simulator.
//!
//! ```text
//!   forebay-sim [SUBJECT] --seeds A..B [--jobs N] [--requests R]    child processes run chunks of seeds
//!   forebay-sim [SUBJECT] --seed N [--verbose] [--requests R]       one seed, here, with every event
//!   forebay-sim enumerate [--length L]                                 every crash of every short script
//! ```
//!
//! Exit status: 0 when every seed passed, 1 when one failed, 2 for wrong arguments.
#![forbid(unsafe_code)]

mod drive;

use std::ops::Range;
use std::process::ExitCode;

use forebay_sim::enumerate::{self, Enumerable, SUBJECTS};
use forebay_sim::run::Outcome;
use forebay_sim::{cache, clone, copy, mirror, snapshot, zram};

use drive::{Drive, run_here};

/// Requests of a seed unless told otherwise.
const REQUESTS: u64 = 1000;
const USAGE: &str = "\
usage: forebay-sim [SUBJECT] --seeds A..B [--jobs N] [--requests R]
       forebay-sim [SUBJECT] --seed N [--verbose] [--requests R]
       forebay-sim enumerate [--length L]
  cache, clone, copy, mirror, snapshot, zram   what is put to the test (default cache)
  --seeds A..B   run seeds A to B - 1, in N processes (default 2)
  --seed N       run one seed; --verbose prints every event
  --requests R   requests of each seed (default 1000)
  enumerate      every crash of every script of up to L operations (default 3 or 2) on tiny targets";

/// What is put to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Cache,
    Snapshot,
    Mirror,
    Clone,
    Zram,
    Copy,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Snapshot => "snapshot",
            Self::Mirror => "mirror",
            Self::Clone => "clone",
            Self::Zram => "zram",
            Self::Copy => "copy",
        }
    }

    fn run_seed(self, seed: u64, requests: u64, trace: bool) -> Outcome {
        match self {
            Self::Cache => cache::run_seed(seed, requests, trace),
            Self::Snapshot => snapshot::run_seed(seed, requests, trace),
            Self::Mirror => mirror::run_seed(seed, requests, trace),
            Self::Clone => clone::run_seed(seed, requests, trace),
            Self::Zram => zram::run_seed(seed, requests, trace),
            Self::Copy => copy::run_seed(seed, requests, trace),
        }
    }
}

/// What was asked on the command line.
struct Asked {
    subject: Subject,
    seeds: Range<u64>,
    single: bool,
    jobs: usize,
    requests: u64,
    verbose: bool,
    child: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "enumerate") {
        return enumerate_all(&words[1..]);
    }
    let asked = match parse(&words) {
        Ok(asked) => asked,
        Err(reason) => {
            eprintln!("forebay-sim: {reason}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let passed = if asked.child {
        run_here(asked.subject, asked.seeds, asked.requests);
        true
    } else if asked.single {
        single(asked.subject, asked.seeds.start, asked.requests, asked.verbose)
    } else {
        Drive::new(asked.subject, asked.seeds, asked.jobs, asked.requests).run()
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries every crash of every script of up to so many operations.
fn enumerate_all(words: &[String]) -> ExitCode {
    let length = match words {
        [] => Ok(None),
        [option, value] if option == "--length" => number(value).map(Some),
        _ => Err(String::new()),
    };
    let Ok(Ok(length)) = length.map(|length| length.map(u32::try_from).transpose()) else {
        eprintln!("forebay-sim: enumerate takes --length L, a small number\n{USAGE}");
        return ExitCode::from(2);
    };
    let failed: u64 = SUBJECTS.iter().map(|subject| enumerate_one(subject, length.unwrap_or(subject.length))).sum();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many crashes and errors of one subject were not survived.
fn enumerate_one(subject: &Enumerable, length: u32) -> u64 {
    let (&Enumerable { name, make, .. }, mut failed) = (subject, 0);
    for (variant, tally) in (0..).map_while(|variant| Some((variant, enumerate::run(make, variant, length, 2)?))) {
        println!(
            "{name}, variant {variant}, up to {length} operations: {} runs, {} crash points, {} states, {} distinct, {} failed",
            tally.runs, tally.points, tally.states, tally.distinct, tally.failed
        );
        failed += tally.failed;
    }
    // One operation less: each of these runs has an error, and most another one while that is recovered.
    let length = length.saturating_sub(1);
    for (variant, swept) in (0..).map_while(|variant| Some((variant, enumerate::sweep(make, variant, length, 2)?))) {
        println!(
            "{name}, variant {variant}, up to {length} operations: {} runs with errors, {} of them with another in recovery, \
             {} failed",
            swept.runs, swept.again, swept.failed
        );
        failed += swept.failed;
    }
    failed
}

fn parse(words: &[String]) -> Result<Asked, String> {
    let subject = Subject::Cache;
    let mut asked = Asked { subject, seeds: 0..0, single: false, jobs: 2, requests: REQUESTS, verbose: false, child: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "cache" => asked.subject = Subject::Cache,
            "snapshot" => asked.subject = Subject::Snapshot,
            "mirror" => asked.subject = Subject::Mirror,
            "clone" => asked.subject = Subject::Clone,
            "zram" => asked.subject = Subject::Zram,
            "copy" => asked.subject = Subject::Copy,
            "--seeds" => asked.seeds = range(value()?)?,
            "--seed" => {
                let seed = number(value()?)?;
                (asked.seeds, asked.single) = (seed..seed + 1, true);
            }
            "--jobs" => asked.jobs = usize::try_from(number(value()?)?).unwrap_or(1).clamp(1, 1024),
            "--requests" => asked.requests = number(value()?)?.max(1),
            "--verbose" => asked.verbose = true,
            "--child" => asked.child = true,
            other => return Err(format!("\"{other}\" is not known")),
        }
    }
    if asked.seeds.is_empty() { Err("no seeds were named".to_owned()) } else { Ok(asked) }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("\"{word}\" is not a whole number"))
}

fn range(word: &str) -> Result<Range<u64>, String> {
    let (from, to) = word.split_once("..").ok_or_else(|| format!("\"{word}\" is not a range like 0..2000"))?;
    Ok(number(from)?..number(to)?)
}

/// Runs one seed in this process.
fn single(subject: Subject, seed: u64, requests: u64, verbose: bool) -> bool {
    let outcome = subject.run_seed(seed, requests, verbose);
    println!("seed {seed}: {:?}, digest {}", outcome.totals, outcome.digest);
    match outcome.failure {
        None => true,
        Some(reason) => {
            println!("seed {seed} FAILED: {reason}");
            false
        }
    }
}
