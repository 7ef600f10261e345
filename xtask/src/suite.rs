//! `cargo xtask test`: everything that must pass, ending with one line of totals.
//!
//! 1. what the tests need is present, or is installed, or is named and the run fails;
//! 2. unit, property and documentation tests of every crate;
//! 3. the binary against real tools and real kernels (package `forebay-tests`);
//! 4. bugs that others have had, planted in the simulator, which must find them;
//! 5. 2,000 seeds of the simulator for the cache and the compressed RAM disk, 500 each for snapshots, mirrors and clones,
//!    150 for the NBD server and client, and every crash and every error of short scripts;
//! 6. every fuzz target, 60 seconds in all.
//!
//! The limits add up to more than the run takes: on 2 cores it is meant to stay below 15 minutes.

use crate::step::{Count, Step};

/// Runs the whole suite.
///
/// # Errors
/// Says what was missing, or that something failed.
pub fn run() -> Result<(), String> {
    crate::tools::provide()?;
    let mut count = unit_tests();
    let binary = ["cargo", "build", "--release", "-p", "forebay-cli"];
    if Step::new("build the binary", 600, &binary).run() {
        count.add(real_tools());
    } else {
        count.add(Count::one(false));
    }
    let replant = ["cargo", "test", "--release", "-p", "forebay-sim", "--features", "replant", "--test", "replant"];
    count.add(Step::new("planted bugs are found", 600, &replant).run_counting());
    count.add(simulator(600, &["--seeds", "0..2000"]).run_as_one());
    count.add(simulator(600, &["zram", "--seeds", "0..2000"]).run_as_one());
    count.add(simulator(600, &["snapshot", "--seeds", "0..500"]).run_as_one());
    count.add(simulator(600, &["mirror", "--seeds", "0..500"]).run_as_one());
    count.add(simulator(600, &["clone", "--seeds", "0..500"]).run_as_one());
    count.add(simulator(600, &["enumerate"]).run_as_one());
    count.add(simulator(300, &["copy", "--seeds", "0..300"]).run_as_one());
    count.add(simulator(300, &["nbd", "--seeds", "0..150", "--requests", "400"]).run_as_one());
    count.add(crate::fuzz::count(60));
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed == 0 { Ok(()) } else { Err("the suite failed; see the lines marked FAILED above".to_owned()) }
}

/// Unit, property and documentation tests of every crate.
pub fn unit_tests() -> Count {
    let words = ["cargo", "test", "--release", "--workspace", "--exclude", "forebay-tests", "--no-fail-fast"];
    Step::new("unit, property and documentation tests", 900, &words).run_counting()
}

fn real_tools() -> Count {
    let words = ["cargo", "test", "--release", "-p", "forebay-tests", "--no-fail-fast"];
    Step::new("real clients and real kernels", 900, &words).run_counting()
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
