//! `cargo xtask test`: everything that must pass, ending with one line of totals.
//!
//! 1. what the tests need is present, or is installed, or is named and the run fails;
//! 2. unit, property and documentation tests of every crate, and the binary against real tools and real kernels (package
//!    `forebay-tests`);
//! 3. bugs that others have had, planted in the simulator, which must find them;
//! 4. 2,000 seeds of the simulator for the cache and the compressed RAM disk, 600, 500, 400 and 400 for snapshots, mirrors, clones and copies,
//!    150 for the NBD server and client, 150 for servers that end, and every crash and every error of short scripts;
//! 5. every fuzz target, 120 seconds of processor time in all.
//!
//! Fuzz targets are built beside the tests, which leave a part of the processors idle.
//!
//! The limits add up to more than the run takes: on 2 cores it is meant to stay below 20 minutes.

use crate::step::{Count, Step};

/// Runs the whole suite.
///
/// # Errors
/// Says what was missing, or that something failed.
pub fn run() -> Result<(), String> {
    crate::tools::provide()?;
    let mut count = std::thread::scope(|threads| {
        threads.spawn(crate::fuzz::build_beside);
        all_tests()
    })?;
    let replant = ["cargo", "test", "--release", "-p", "forebay-sim", "--features", "replant", "--test", "replant"];
    count.add(Step::new("planted bugs are found", 1200, &replant).run_counting());
    count.add(simulator(600, &["--seeds", "0..2000"]).run_as_one());
    count.add(simulator(600, &["zram", "--seeds", "0..2000"]).run_as_one());
    count.add(simulator(600, &["snapshot", "--seeds", "0..600"]).run_as_one());
    count.add(simulator(600, &["mirror", "--seeds", "0..500"]).run_as_one());
    count.add(simulator(600, &["clone", "--seeds", "0..400"]).run_as_one());
    count.add(simulator(900, &["enumerate"]).run_as_one());
    count.add(simulator(600, &["copy", "--seeds", "0..400"]).run_as_one());
    count.add(simulator(900, &["nbd", "--seeds", "0..150", "--requests", "400"]).run_as_one());
    count.add(simulator(900, &["served", "--seeds", "0..150", "--requests", "400"]).run_as_one());
    count.add(crate::fuzz::count(120, Some(1)));
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed == 0 { Ok(()) } else { Err("the suite failed; see the lines marked FAILED above".to_owned()) }
}

/// Unit, property and documentation tests of every crate.
pub fn unit_tests() -> Count {
    let words = ["cargo", "test", "--release", "--workspace", "--exclude", "forebay-tests", "--no-fail-fast"];
    Step::new("unit, property and documentation tests", 900, &words).run_counting()
}

/// The tests of every package. One command builds them and the binary that the real tools meet, so that nothing is
/// compiled twice because packages ask for different features of their dependencies.
fn all_tests() -> Result<Count, String> {
    let me = std::env::current_exe().map_err(|error| format!("this program does not know where it is: {error}"))?;
    let binary = me.with_file_name("forebay");
    let binary = binary.to_str().ok_or("the path of the target folder is not text")?;
    let words = ["cargo", "test", "--release", "--workspace", "--no-fail-fast"];
    let step = Step::new("unit, property and documentation tests, real clients and real kernels", 1800, &words);
    Ok(step.env("FOREBAY_BIN", binary).run_counting())
}

/// Runs the simulator with the given arguments, for as long as they ask. It is always built with the feature
/// `replant`, so that it is compiled once.
///
/// # Errors
/// When a seed failed or the simulator could not be built.
pub fn simulate(args: &[&str]) -> Result<(), String> {
    let week_s = 7 * 24 * 60 * 60; // long ranges are run by hand
    if simulator(week_s, args).run() { Ok(()) } else { Err("the simulator failed".to_owned()) }
}

/// The long forms of what a test run does in short, several hours: seeds, scripts, planted bugs, kills, fuzzing,
/// Miri, and which lines tests run.
///
/// # Errors
/// Says that something failed; everything is run all the same.
pub fn nightly() -> Result<(), String> {
    let hours_s = 4 * 60 * 60;
    let mut count = Count::one(torture(hours_s / 4).is_ok());
    for (subject, seeds) in [("cache", "0..200000"), ("zram", "0..100000"), ("snapshot", "0..50000"), ("mirror", "0..50000")] {
        count.add(simulator(hours_s, &[subject, "--seeds", seeds]).run_as_one());
    }
    for (subject, seeds) in [("clone", "0..50000"), ("copy", "0..30000"), ("nbd", "0..20000"), ("served", "0..20000")] {
        count.add(simulator(hours_s, &[subject, "--seeds", seeds]).run_as_one());
    }
    count.add(simulator(hours_s, &["enumerate", "--length", "3"]).run_as_one());
    count.add(simulator(hours_s, &["hunt"]).run_as_one());
    count.add(crate::fuzz::count(hours_s / 2, None));
    count.add(crate::miri::count());
    let coverage = crate::proof::coverage::run();
    count.add(Count::one(coverage.map_err(|reason| eprintln!("xtask: {reason}")).is_ok()));
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed == 0 { Ok(()) } else { Err("the night found something; see the lines marked FAILED above".to_owned()) }
}

/// Kills servers under file systems for `seconds`, and ends with the file system under test.
///
/// # Errors
/// When something was lost, or the tests could not be built.
pub fn torture(seconds: u32) -> Result<(), String> {
    crate::tools::provide()?;
    let seconds_word = seconds.to_string();
    let words = ["cargo", "run", "--release", "-p", "forebay-tests", "--bin", "torture", "--", &seconds_word];
    let spare_s = 3600; // builds, and the end of what is under way
    if Step::new("torture", seconds.saturating_add(spare_s), &words).run() {
        Ok(())
    } else {
        Err("something was lost".to_owned())
    }
}

fn simulator(limit_s: u32, args: &[&str]) -> Step {
    let mut words = vec!["cargo", "run", "--release", "--quiet", "-p", "forebay-sim", "--features", "replant"];
    words.extend(["--bin", "forebay-sim", "--"]);
    words.extend(args);
    Step::new("simulator", limit_s, &words)
}
