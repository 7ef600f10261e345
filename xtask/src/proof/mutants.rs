//! `cargo xtask mutants`: changes the code of formats, recovery and protocols, one small thing at a time, and asks whether a
//! test notices.
//!
//! 1. Only the crate's own tests judge: what only the simulator or a kernel would notice counts as missed.
//! 2. A change that does not compile counts for nothing; one that runs into the time limit was noticed.
//! 3. A share `K/N` takes every N-th change from the K-th on, the same ones each time for the same code.

use super::groups::{self, GROUPS};
use crate::step::Step;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// Of a hundred changes so many must be noticed.
const FLOOR_PERCENT: u64 = 90;
/// A day: all changes take many hours, which is why there are shares.
const LIMIT_S: u32 = 24 * 60 * 60;
/// What the tests of one change may take, seconds. Without a change it is a few.
const TIMEOUT_S: &str = "120";

/// The crates whose code is changed, and the tests of each that judge.
const CRATES: [(&str, &str, &[&str]); 3] = [
    ("forebay-nbd", "crates/nbd/", &["--lib"]),
    ("forebay-block", "crates/block/", &["--lib"]),
    ("forebay-target", "crates/target/", &["--lib", "--test", "behaviours", "--test", "requirements", "--test", "snapshot"]),
];

/// What became of the changes in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    caught: u64,
    missed: u64,
}

/// Tries the changes of `share`, `K/N` with K from 0, and prints how many were noticed in each group.
///
/// # Errors
/// Says what is missing, that the tests fail without any change, or that too many changes were missed.
pub fn run(share: &str) -> Result<(), String> {
    if !crate::tools::cargo_has("mutants") {
        Step::new("install cargo-mutants", 900, &["cargo", "install", "cargo-mutants", "--locked"]).run();
    }
    if !crate::tools::cargo_has("mutants") {
        return Err("mutants need cargo-mutants: cargo install cargo-mutants --locked".to_owned());
    }
    let mut sums = BTreeMap::new();
    for (package, folder, tests) in CRATES {
        let kept = format!("target/mutants/{package}");
        let out = crate::root().join(&kept);
        std::fs::create_dir_all(&out).map_err(|error| format!("{kept} cannot be made: {error}"))?;
        let outcomes = out.join("mutants.out");
        if outcomes.exists() {
            std::fs::remove_dir_all(&outcomes).map_err(|error| format!("{kept}/mutants.out cannot be removed: {error}"))?;
        }
        // Its exit status is that of the changes, which are counted here.
        let words = words(package, folder, tests, share, &kept);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Step::new(&format!("change {package}"), LIMIT_S, &words).run();
        count(&outcomes, &mut sums)
            .map_err(|reason| format!("the tests of {package} must pass before changes mean anything: {reason}"))?;
    }
    print!("{}", table(&sums));
    verdict(&sums)
}

/// A run of cargo-mutants over the files of one crate.
fn words(package: &str, folder: &str, tests: &[&str], share: &str, out: &str) -> Vec<String> {
    let how = ["cargo", "mutants", "--profile", "mutants", "--sharding", "round-robin", "--shard", share];
    let what = ["--timeout", TIMEOUT_S, "--colors", "never", "-o", out, "-p", package];
    let mut words: Vec<String> = how.iter().chain(&what).map(|word| (*word).to_owned()).collect();
    for path in GROUPS.iter().filter(|group| group.mutated).flat_map(|group| group.paths) {
        if path.starts_with(folder) {
            words.push(format!("--file={path}{}", if path.ends_with('/') { "**" } else { "" }));
        }
    }
    // Of cargo itself, so that no other tests are built.
    words.extend(tests.iter().map(|word| format!("--cargo-arg={word}")));
    words
}

/// Adds what cargo-mutants noted in `folder`, and prints what was missed.
fn count(folder: &Path, sums: &mut BTreeMap<&'static str, Sum>) -> Result<(), String> {
    for (name, caught) in [("caught.txt", true), ("timeout.txt", true), ("missed.txt", false)] {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        for line in text.lines() {
            let group = line.split(':').next().and_then(groups::of).map_or("", |group| group.name);
            let sum = sums.entry(group).or_default();
            *if caught { &mut sum.caught } else { &mut sum.missed } += 1;
            if !caught {
                println!("missed: {line}");
            }
        }
    }
    Ok(())
}

fn table(sums: &BTreeMap<&'static str, Sum>) -> String {
    let mut text = "| group | changes | caught | % |\n|---|---|---|---|\n".to_owned();
    let all =
        sums.values().fold(Sum::default(), |all, sum| Sum { caught: all.caught + sum.caught, missed: all.missed + sum.missed });
    for (name, sum) in sums.iter().chain([(&"all", &all)]) {
        let changes = sum.caught + sum.missed;
        let share = (sum.caught * 100).checked_div(changes).unwrap_or(0);
        let _ = writeln!(text, "| {name} | {changes} | {} | {share} |", sum.caught);
    }
    text
}

fn verdict(sums: &BTreeMap<&'static str, Sum>) -> Result<(), String> {
    let caught: u64 = sums.values().map(|sum| sum.caught).sum();
    let missed: u64 = sums.values().map(|sum| sum.missed).sum();
    if caught > 0 && caught * 100 >= (caught + missed) * FLOOR_PERCENT {
        return Ok(());
    }
    Err(format!(
        "tests noticed {caught} of {} changes, and {FLOOR_PERCENT} % are wanted; see the lines \"missed\" above",
        caught + missed
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_crate_are_changed_and_only_its_tests_judge() {
        let words = words("forebay-nbd", "crates/nbd/", &["--lib"], "0/8", "target/mutants/forebay-nbd");
        let files: Vec<&str> = words.iter().filter_map(|word| word.strip_prefix("--file=")).collect();
        assert_eq!(files, ["crates/nbd/src/**"]);
        assert!(words.ends_with(&["--cargo-arg=--lib".to_owned()]), "{words:?}");
    }

    #[test]
    fn every_changed_group_is_in_a_crate_whose_tests_judge() {
        for path in GROUPS.iter().filter(|group| group.mutated).flat_map(|group| group.paths) {
            assert!(CRATES.iter().any(|(_, folder, _)| path.starts_with(folder)), "{path}");
        }
    }

    #[test]
    fn too_many_missed_changes_and_none_at_all_fail() {
        let sums = |caught, missed| BTreeMap::from([("block", Sum { caught, missed })]);
        assert_eq!(verdict(&sums(9, 1)), Ok(()));
        assert!(verdict(&sums(8, 1)).is_err_and(|reason| reason.contains("8 of 9")));
        assert!(verdict(&BTreeMap::new()).is_err());
        assert!(table(&sums(8, 1)).ends_with("| block | 9 | 8 | 88 |\n| all | 9 | 8 | 88 |\n"));
    }
}
