//! Makes a failing seed small: few lives, few operations, still failing.
//!
//! ```text
//!   fewer requests? ─▶ fewer lives ─▶ fewer operations ─▶ fewer lives again ─▶ what is left, and its events
//!                      each time: leave a part out ─ fails? ─ yes ─▶ it stays out
//!                                                     └─ no ─▶ with other times and cuts? ─▶ a smaller part
//! ```
//!
//! Where several seeds failed and the first one does not get small enough, the next ones are tried.
//!
//! Every attempt is a process of its own, so that panics and aborts are failures like any other.
//!
//! Units: real time.

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_sim::only::Only;

use crate::job::{Job, REQUESTS};

/// Longest time for all attempts: many times what they take, which is seconds.
const TIME_MAX: Duration = Duration::from_mins(5);
/// Longest time for one attempt, seconds, and how `timeout` says that it was not enough.
const ATTEMPT_MAX: &str = "60";
const TIMED_OUT: [i32; 2] = [124, 137];
/// Requests that a seed is tried with before the ones that were asked for.
const FEWER: [u64; 6] = [10, 20, 50, 100, 200, 500];
/// Other times and cuts that are tried for an attempt that does not fail: the more it leaves out, the more.
const SALTS_MIN: usize = 4;
/// How much more each time that everything was tried and too many operations are left.
const SALTS_MORE: usize = 4;
/// As many as for one that left out everything.
const SALTS_MAX: usize = 64;
/// Failing seeds that are tried at most, as long as none gets small enough.
const SEEDS_MAX: usize = 5;
/// Operations that are few enough.
const ENOUGH: usize = 20;

/// A failing seed that gets smaller.
struct Shrinking {
    job: Job,
    seed: u64,
    only: Only,
    /// Lives and operations at first.
    before: (usize, usize),
    began: Instant,
    limit: Duration,
    attempts: u32,
    salts_min: usize,
    /// The seed fails by taking no end.
    endless: bool,
}

/// Shrinks failing seeds until one is small enough, and tells what is left of the smallest; whether any failed at all.
pub fn run(job: &Job, seeds: &[u64]) -> bool {
    let Some(mut shrinking) = smallest(job, seeds) else {
        println!("seed {} does not fail", seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
        return false;
    };
    let only = &shrinking.only;
    println!(
        "seed {}, after {} attempts: {} operations in {} lives are {} in {} now",
        shrinking.seed,
        shrinking.attempts,
        shrinking.before.1,
        shrinking.before.0,
        only.operations(),
        only.lives.len()
    );
    let words = shrinking.job.words().join(" ");
    println!("  replay: cargo xtask sim {words} --seed {} --only '{only}' --verbose", shrinking.seed);
    shrinking.tell();
    true
}

/// How many operations are left of the failing seed that gets smallest; `None` where none fails.
pub fn operations(job: &Job, seeds: &[u64]) -> Option<usize> {
    smallest(job, seeds).map(|shrinking| shrinking.only.operations())
}

/// Shrinks one seed after the other, for a while each, until one is small enough; the one that got smallest.
fn smallest(job: &Job, seeds: &[u64]) -> Option<Shrinking> {
    let mut seeds = seeds.to_vec();
    seeds.sort_unstable();
    seeds.truncate(SEEDS_MAX);
    let limit = TIME_MAX / u32::try_from(seeds.len()).unwrap_or(1).max(1);
    let mut smallest: Option<Shrinking> = None;
    for seed in seeds {
        let Some(mut shrinking) = Shrinking::begin(job.clone(), seed, limit) else { continue };
        shrinking.leave_out();
        if smallest.as_ref().is_none_or(|other| shrinking.only.operations() < other.only.operations()) {
            smallest = Some(shrinking);
        }
        if smallest.as_ref().is_some_and(|smallest| smallest.only.operations() <= ENOUGH) {
            break;
        }
    }
    smallest
}

impl Shrinking {
    /// Finds the fewest requests with which the seed fails, and everything that is drawn then.
    #[expect(clippy::disallowed_methods, reason = "how long attempts take is measured on the real clock")]
    fn begin(job: Job, seed: u64, limit: Duration) -> Option<Self> {
        let began = Instant::now();
        let asked = job.requests;
        let (only, before) = (Only::default(), (0, 0));
        let mut shrinking = Self { job, seed, only, before, began, limit, attempts: 0, salts_min: SALTS_MIN, endless: true };
        for requests in FEWER.into_iter().filter(|&fewer| fewer < asked.min(REQUESTS)).chain([asked]) {
            shrinking.job.requests = requests;
            let output = shrinking.attempt(None, false);
            if shrinking.fails(&output) {
                shrinking.only = drawn(&output);
                shrinking.before = (shrinking.only.lives.len(), shrinking.only.operations());
                shrinking.endless = timed_out(&output);
                return Some(shrinking);
            }
        }
        None
    }

    /// Runs a part of the seed, or all of it.
    fn attempt(&mut self, only: Option<&Only>, verbose: bool) -> Output {
        self.attempts += 1;
        let program = std::env::current_exe().expect("a running program has a path");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=1", ATTEMPT_MAX]).arg(program).args(self.job.words()).args([
            "--child",
            "--seed",
            &self.seed.to_string(),
        ]);
        if let Some(only) = only {
            command.args(["--only", &only.to_string()]);
        }
        if verbose {
            command.arg("--verbose");
        }
        command.stdin(Stdio::null()).output().expect("processes can be started, as this one was")
    }

    /// Whether `only` fails as well, at once or with another salt; takes it then.
    fn accept(&mut self, only: &Only) -> bool {
        let parts = |only: &Only| only.lives.len() + only.operations();
        let (left, before) = (parts(only), parts(&self.only).max(1));
        let salts = (SALTS_MAX * before.saturating_sub(left) / before).max(self.salts_min) as u64;
        for salt in [only.salt].into_iter().chain(0..salts) {
            if self.began.elapsed() > self.limit {
                return false;
            }
            let only = Only { salt, ..only.clone() };
            let output = self.attempt(Some(&only), false);
            if self.fails(&output) {
                self.only = only;
                return true;
            }
        }
        false
    }

    /// Whether a run was a failure: wrong words are none, and neither is a slow machine.
    fn fails(&self, output: &Output) -> bool {
        !output.status.success() && output.status.code() != Some(2) && (self.endless || !timed_out(output))
    }

    fn leave_out(&mut self) {
        loop {
            self.leave_out_lives();
            self.leave_out_operations();
            self.leave_out_lives();
            if self.only.operations() <= ENOUGH || self.began.elapsed() > self.limit {
                return;
            }
            self.salts_min *= SALTS_MORE;
        }
    }

    fn leave_out_lives(&mut self) {
        let all: Vec<u32> = self.only.lives.keys().copied().collect();
        leave_out(all, &mut |left| {
            let mut only = self.only.clone();
            only.lives.retain(|life, _| left.contains(life));
            self.accept(&only)
        });
    }

    fn leave_out_operations(&mut self) {
        let lives = self.only.lives.iter();
        let all: Vec<(u32, u32)> = lives.flat_map(|(&life, all)| all.iter().map(move |&operation| (life, operation))).collect();
        leave_out(all, &mut |left| {
            let mut only = self.only.clone();
            for (life, operations) in &mut only.lives {
                *operations = left.iter().filter(|(of, _)| of == life).map(|(_, operation)| *operation).collect();
            }
            self.accept(&only)
        });
    }

    /// Prints what happens in what is left.
    fn tell(&mut self) {
        let only = self.only.clone();
        let output = self.attempt(Some(&only), true);
        let text = String::from_utf8_lossy(&output.stdout);
        let told =
            ["---- a life begins", "client: v", "disturbed", "command:", "====", "FAILED", "snapshot in place", "is merged"];
        let few = only.operations() <= ENOUGH;
        for line in text.lines().filter(|line| few && told.iter().any(|word| line.contains(word))) {
            println!("{line}");
        }
        for line in String::from_utf8_lossy(&output.stderr).lines().take(3) {
            println!("{line}");
        }
    }
}

fn timed_out(output: &Output) -> bool {
    output.status.code().is_none_or(|code| TIMED_OUT.contains(&code))
}

/// What a run says that was drawn; where it was cut short, what could have been.
fn drawn(output: &Output) -> Only {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("drawn "));
    let counts: Vec<u32> = match line {
        Some(line) => line.split(' ').filter_map(|count| count.parse().ok()).collect(),
        None => vec![200; 40],
    };
    let lives = (0..).zip(counts).map(|(life, count)| (life, (0..count).collect::<BTreeSet<u32>>()));
    Only { lives: lives.collect(), salt: 0 }
}

/// Leaves parts of `all` out, large ones first, as long as `accepts` what is left.
fn leave_out<T: Copy>(mut all: Vec<T>, accepts: &mut impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut part = all.len().div_ceil(2);
    while !all.is_empty() && part > 0 {
        let (mut at, mut changed) = (0, false);
        while at < all.len() {
            let end = (at + part).min(all.len());
            let left: Vec<T> = all[..at].iter().chain(&all[end..]).copied().collect();
            if accepts(&left) {
                (all, changed) = (left, true);
            } else {
                at = end;
            }
        }
        if part == 1 && !changed {
            break;
        }
        part = if part == 1 { 1 } else { part.div_ceil(2) };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_stay_stays_and_everything_else_goes() {
        let needed = [3, 41, 42, 97];
        let mut attempts = 0;
        let left = leave_out((0..100).collect(), &mut |left: &[i32]| {
            attempts += 1;
            needed.iter().all(|needed| left.contains(needed))
        });
        assert_eq!(left, needed);
        assert!(attempts < 120, "{attempts}");
        assert!(leave_out((0..9).collect(), &mut |_: &[i32]| true).is_empty());
        assert_eq!(leave_out(vec![1], &mut |_: &[i32]| false), [1]);
    }
}
