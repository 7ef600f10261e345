//! The net catches fish: bugs that other storage systems have had are planted, and a seed finds each.
//!
//! A seed that found its bug once may not find it after a change of what is drawn, or of how long something takes;
//! then the ones behind it are tried, up to the thousand that must find it. Without the bug the seed passes.
//!
//! Built with the feature `replant` only: `cargo test --release -p forebay-sim --features replant --test replant`.
#![allow(clippy::disallowed_methods, reason = "a test starts the simulator as a process of its own")]

use std::process::{Command, Output};

/// Seeds that must find a bug.
const SEEDS: usize = 1000;

fn simulate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-sim")).args(words).output().expect("the simulator was built")
}

fn run(subject: &str, seed: u64, bug: &[&str]) -> Output {
    let seed = seed.to_string();
    simulate(&[&[subject, "--seed", &seed], bug].concat())
}

/// The seed that finds `bug`: `seed`, which did when this was written, or one behind it.
fn finder(bug: &str, subject: &str, seed: u64) -> u64 {
    let finds = |seed: &u64| !run(subject, *seed, &["--replant", bug]).status.success();
    // A page of a clone's metadata is torn in large ones only, of which one in so many seeds has one.
    let step = if bug == "M9" { 8 } else { 1 };
    (seed..).step_by(step).take(SEEDS).find(finds).unwrap_or_else(|| panic!("{bug} escaped from {SEEDS} seeds"))
}

/// Finds `bug`; without it the same seed passes.
fn found(bug: &str, subject: &str, seed: u64) {
    let finder = finder(bug, subject, seed);
    let sound = run(subject, finder, &[]);
    assert!(sound.status.success(), "seed {finder} fails without {bug}: {}", String::from_utf8_lossy(&sound.stdout));
}

macro_rules! bugs {
    ($($test:ident: $bug:literal in $subject:literal by $seed:literal;)*) => { $(
        #[test]
        fn $test() {
            found($bug, $subject, $seed);
        }
    )* };
}

bugs! {
    a_commit_without_the_flush_before_it_is_found: "M1" in "cache" by 0;
    metadata_read_before_its_writer_had_settled_is_found: "M2" in "cache" by 29;
    a_block_that_is_dirty_before_its_data_is_there_is_found: "M3" in "cache" by 0;
    dirty_data_lost_at_a_restart_are_found: "M4" in "cache" by 0;
    space_that_a_crash_leaves_unused_for_good_is_found: "M5" in "snapshot" by 6;
    a_header_damaged_by_an_invalidation_is_found: "M6" in "snapshot" by 0;
    a_metadata_area_that_is_not_loaded_is_found: "M7" in "snapshot" by 61;
    a_page_changed_on_its_way_out_is_found: "M8" in "zram" by 0;
    an_overwritten_live_copy_of_metadata_is_found: "M9" in "clone" by 92;
    memory_shared_by_nested_requests_is_found: "M10" in "mirror" by 0;
    a_dropped_read_error_is_found: "M11" in "copy" by 5;
    a_second_leg_without_data_is_found: "M13" in "copy" by 0;
    a_forgotten_flush_error_is_found: "M14" in "cache" by 12;
    a_short_transfer_taken_as_a_full_one_is_found: "M15" in "cache" by 1;
    metadata_committed_before_copied_data_is_found: "M16" in "clone" by 0;
}

#[test]
fn a_failing_seed_shrinks_to_at_most_twenty_operations_that_fail_as_well() {
    for (bug, subject, seed) in [("M1", "cache", 0), ("M6", "snapshot", 0), ("M8", "zram", 0), ("M16", "clone", 0)] {
        let seed = finder(bug, subject, seed);
        let shrunk = run(subject, seed, &["--replant", bug, "--shrink"]);
        let text = String::from_utf8_lossy(&shrunk.stdout);
        let left = text.lines().next().and_then(|line| line.split_once(" are ")?.1.split(' ').next()?.parse::<u32>().ok());
        assert!(left.is_some_and(|left| left <= 20), "{bug}: {text}");
        let replay = text.lines().find_map(|line| line.trim().strip_prefix("replay: cargo xtask sim "));
        let words: Vec<&str> = replay.unwrap_or_default().split(' ').map(|word| word.trim_matches('\'')).collect();
        assert_eq!(simulate(&words).status.code(), Some(1), "{bug}: {words:?}");
    }
}

/// Who looks for these in other binaries would find them.
#[test]
fn a_binary_with_planted_bugs_can_be_told() {
    let bytes = std::fs::read(env!("CARGO_BIN_EXE_forebay-sim")).expect("the simulator was built");
    for mark in ["dm-writecache aa9509209c5a", "CVE-2022-0485", "Open CAS #832"] {
        assert!(bytes.windows(mark.len()).any(|window| window == mark.as_bytes()), "{mark}");
    }
}

#[test]
fn only_known_bugs_can_be_planted() {
    for bug in ["M12", "M17", "m1"] {
        assert_eq!(run("cache", 0, &["--replant", bug]).status.code(), Some(2), "{bug}");
    }
}
