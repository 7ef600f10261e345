//! `cargo xtask fuzz`: every fuzz target for its share of a time budget.
//!
//! cargo-fuzz wants a nightly compiler only for its flags; `RUSTC_BOOTSTRAP` lets the stable one take them.
//! A test run tries much the same inputs each time, so that what it finds, it finds again; longer runs try others.

use crate::step::{Count, Step};
use std::process::Command;

/// Building all targets with the address sanitizer takes a minute or two on two cores; this is many times that.
const BUILD_LIMIT_S: u32 = 900;

/// Targets that run at once: each has one thread.
const AT_ONCE: usize = 2;

/// Runs every target, `seconds` of processor time in all.
///
/// # Errors
/// Says how many targets failed.
pub fn run(seconds: u32) -> Result<(), String> {
    match count(seconds, None).failed {
        0 => Ok(()),
        n => Err(format!("{n} fuzz targets failed; each printed the input that reproduces it")),
    }
}

/// Builds all targets with what nobody else needs of the processors, for a [`count`] that comes later and judges.
pub fn build_beside() {
    if is_provided() {
        let words = ["nice", "-n", "19", "cargo", "+stable", "fuzz", "build"];
        Step::new("build fuzz targets beside the tests", 2 * BUILD_LIMIT_S, &words).env("RUSTC_BOOTSTRAP", "1").run();
    }
}

fn is_provided() -> bool {
    let words = ["nice", "-n", "19", "cargo", "install", "cargo-fuzz", "--locked"];
    crate::tools::cargo_has("fuzz") || Step::new("install cargo-fuzz", BUILD_LIMIT_S, &words).run()
}

/// Runs every target, `seconds` in all, and counts each as one test. All chance comes from `seed`, if there is one. No
/// targets, or no cargo-fuzz, is a failure.
pub fn count(seconds: u32, seed: Option<u32>) -> Count {
    if !is_provided() {
        return Count::one(false);
    }
    let targets = targets();
    let Ok(share) = u32::try_from(targets.len()).map(|n| seconds.checked_div(n).unwrap_or(0).max(1)) else {
        return Count::one(false);
    };
    if targets.is_empty() {
        eprintln!("xtask: fuzz/Cargo.toml names no fuzz targets");
        return Count::one(false);
    }
    if !fuzz("build fuzz targets", BUILD_LIMIT_S, &["build"]).run() {
        return Count::one(false);
    }
    let mut count = Count::default();
    std::thread::scope(|threads| {
        let part = targets.len().div_ceil(AT_ONCE);
        let run_part = |targets: &[String]| targets.iter().map(|target| run_one(target, share, seed)).collect::<Vec<_>>();
        let parts: Vec<_> = targets.chunks(part).map(|targets| threads.spawn(move || run_part(targets))).collect();
        for part in parts {
            let counts = part.join().unwrap_or_else(|_| vec![Count::one(false)]);
            for one in counts {
                count.add(one);
            }
        }
    });
    count
}

/// Runs one target for `seconds`.
fn run_one(target: &str, seconds: u32, seed: Option<u32>) -> Count {
    // 0 is any.
    let seed = format!("-seed={}", seed.unwrap_or(0));
    let time = format!("-max_total_time={seconds}");
    // New inputs go to the first folder, outside the tree; the ones to keep are picked by hand.
    let (fresh, kept) = (format!("target/fuzz-corpus/{target}"), format!("fuzz/corpus/{target}"));
    if std::fs::create_dir_all(crate::root().join(&fresh)).is_err() {
        return Count::one(false);
    }
    // Seconds for one input: more than any machine stands still.
    let limits = ["-timeout=100", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"];
    let words = [["run", target, &fresh, &kept, "--", &time, &seed].as_slice(), &limits].concat();
    fuzz(&format!("fuzz {target}"), seconds + 300, &words).run_as_one()
}

fn fuzz(name: &str, limit_s: u32, words: &[&str]) -> Step {
    let mut all = vec!["cargo", "+stable", "fuzz"];
    all.extend(words);
    Step::new(name, limit_s, &all).env("RUSTC_BOOTSTRAP", "1")
}

fn targets() -> Vec<String> {
    let out = Command::new("cargo").args(["fuzz", "list"]).current_dir(crate::root()).output();
    let Ok(out) = out else { return Vec::new() };
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}
