//! `forebay-sim`: runs seeds of the simulator.
//!
//! ```text
//!   forebay-sim [SUBJECT] --seeds A..B [--jobs N] [--requests R]    child processes run chunks of seeds
//!   forebay-sim [SUBJECT] --seed N [--verbose] [--requests R]       one seed, here, with every event
//!   forebay-sim [SUBJECT] --seed N --shrink                         few operations of it that fail as well
//!   forebay-sim enumerate [--length L]                                 every crash of every short script
//!   forebay-sim hunt [BUG…] [--jobs N]                                 how many seeds it takes to find planted bugs
//! ```
//!
//! Exit status: 0 when every seed passed, 1 when one failed, 2 for wrong arguments.
#![forbid(unsafe_code)]

mod drive;
mod hunt;
mod job;
mod shrink;

use std::ops::Range;
use std::process::ExitCode;

use forebay_block::replant;
use forebay_sim::enumerate::{self, Enumerable, SUBJECTS};
use forebay_sim::only::How;

use drive::{Drive, run_here};
use job::{Job, REQUESTS, Subject};

const USAGE: &str = "\
usage: forebay-sim [SUBJECT] --seeds A..B [--jobs N] [--requests R]
       forebay-sim [SUBJECT] --seed N [--verbose] [--requests R] [--shrink | --only PART]
       forebay-sim enumerate [--length L]
       forebay-sim hunt [BUG...] [--jobs N]
  cache, clone, copy, mirror, nbd, served, snapshot, zram   what is put to the test (default cache)
  --seeds A..B   run seeds A to B - 1, in N processes (default 2)
  --seed N       run one seed; --verbose prints every event
  --requests R   requests of each seed (default 1000)
  --shrink       make the seed, which fails, as small as it gets; a range shrinks the first that fails
  --only PART    a part of the seed only, as --shrink tells it
  --replant BUG  plant a known bug, M1 to M16, in a build with --features replant
  enumerate      every crash of every script of up to L operations (default 3 or 2) on tiny targets
  hunt           how many of 1,000 seeds find each bug that can be planted";

/// What was asked on the command line.
struct Asked {
    job: Job,
    seeds: Range<u64>,
    single: bool,
    jobs: usize,
    how: How,
    shrink: bool,
    child: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "enumerate") {
        return enumerate_all(&words[1..]);
    }
    let done = if words.first().is_some_and(|word| word == "hunt") { hunt(&words[1..]) } else { parse(&words).and_then(run) };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("forebay-sim: {reason}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Does what was asked; whether all seeds passed.
fn run(asked: Asked) -> Result<bool, String> {
    if let Some(bug) = &asked.job.bug {
        replant::plant(bug)?;
    }
    if asked.shrink && asked.single {
        return Ok(!shrink::run(&asked.job, &[asked.seeds.start]));
    }
    if asked.child && !asked.single {
        run_here(&asked.job, asked.seeds);
        return Ok(true);
    }
    if asked.single {
        return Ok(single(&asked));
    }
    Ok(Drive::new(asked.job, asked.seeds, asked.jobs).run())
}

/// Hunts planted bugs.
fn hunt(words: &[String]) -> Result<bool, String> {
    match words {
        [names @ .., option, jobs] if option == "--jobs" => hunt::run(names, processes(jobs)?),
        names => hunt::run(names, 2),
    }
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
    let job = Job { subject: Subject::Cache, requests: REQUESTS, bug: None };
    let mut asked = Asked { job, seeds: 0..0, single: false, jobs: 2, how: How::default(), shrink: false, child: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match word.as_str() {
            "--seeds" => asked.seeds = range(value()?)?,
            "--seed" => {
                let seed = number(value()?)?;
                (asked.seeds, asked.single) = (seed..seed + 1, true);
            }
            "--jobs" => asked.jobs = processes(value()?)?,
            "--requests" => asked.job.requests = number(value()?)?.max(1),
            "--replant" => asked.job.bug = Some(value()?.clone()),
            "--verbose" => asked.how.trace = true,
            "--only" => asked.how.only = Some(value()?.parse()?),
            "--shrink" => asked.shrink = true,
            "--child" => asked.child = true,
            other => asked.job.subject = Subject::find(other).ok_or_else(|| format!("\"{other}\" is not known"))?,
        }
    }
    if asked.seeds.is_empty() { Err("no seeds were named".to_owned()) } else { Ok(asked) }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("\"{word}\" is not a whole number"))
}

fn processes(word: &str) -> Result<usize, String> {
    Ok(usize::try_from(number(word)?).unwrap_or(1).clamp(1, 1024))
}

fn range(word: &str) -> Result<Range<u64>, String> {
    let (from, to) = word.split_once("..").ok_or_else(|| format!("\"{word}\" is not a range like 0..2000"))?;
    Ok(number(from)?..number(to)?)
}

/// Runs one seed in this process.
fn single(asked: &Asked) -> bool {
    let seed = asked.seeds.start;
    let outcome = asked.job.run_seed(seed, &asked.how);
    if asked.child {
        let drawn: Vec<String> = outcome.drawn.iter().map(u32::to_string).collect();
        println!("drawn {}", drawn.join(" "));
    }
    println!("seed {seed}: {:?}, digest {}", outcome.totals, outcome.digest);
    match outcome.failure {
        None => true,
        Some(reason) => {
            println!("seed {seed} FAILED: {reason}");
            false
        }
    }
}
