//! One step of a chore: a command that is announced, limited in time, and counted.
//!
//! Invariants
//! 1. A step never outlives its limit: `timeout` from coreutils ends its whole process group.
//! 2. A cargo test step counts what cargo's own `test result:` lines say; any other step counts as one.
//! 3. An ignored test counts as failed: nothing is skipped silently.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Passed and failed, summed over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tests, or whole steps, that passed.
    pub passed: u64,
    /// Tests, or whole steps, that failed.
    pub failed: u64,
}

impl Count {
    /// One step that passed or failed as a whole.
    pub fn one(passed: bool) -> Self {
        Self { passed: u64::from(passed), failed: u64::from(!passed) }
    }

    /// Adds another count to this one.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// A command to run from the repository's root.
pub struct Step {
    name: String,
    command: Command,
}

impl Step {
    /// `words` is a program and its arguments; `limit_s` is the time it may take, in seconds.
    ///
    /// # Panics
    /// When `words` is empty.
    pub fn new(name: &str, limit_s: u32, words: &[&str]) -> Self {
        assert!(!words.is_empty(), "a step has a program");
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(limit_s.to_string()).args(words).current_dir(crate::root());
        Self { name: name.to_owned(), command }
    }

    /// Sets an environment variable of the command.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs the command with its output passed through; true when it exited with 0.
    pub fn run(mut self) -> bool {
        let started = self.announce();
        let ok = self.command.status().is_ok_and(|status| status.success());
        self.conclude(started, ok)
    }

    /// Runs the command as one test.
    pub fn run_as_one(self) -> Count {
        Count::one(self.run())
    }

    /// Runs a `cargo test` command, passes its output through and counts its tests.
    pub fn run_counting(mut self) -> Count {
        let started = self.announce();
        self.command.stdout(Stdio::piped());
        let Ok(mut child) = self.command.spawn() else {
            self.conclude(started, false);
            return Count::one(false);
        };
        let mut count = Count::default();
        if let Some(out) = child.stdout.take() {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                count.add(count_line(&line));
            }
        }
        let ok = child.wait().is_ok_and(|status| status.success());
        if !ok && count.failed == 0 {
            count.failed = 1; // it did not compile, crashed, or ran out of time
        }
        self.conclude(started, ok && count.failed == 0);
        count
    }

    #[expect(clippy::disallowed_methods, reason = "a chore measures real time for its reader")]
    fn announce(&self) -> Instant {
        println!("==> {}", self.name);
        Instant::now()
    }

    fn conclude(&self, started: Instant, ok: bool) -> bool {
        let verdict = if ok { "passed" } else { "FAILED" };
        println!("==> {}: {verdict} after {:.1} s", self.name, started.elapsed().as_secs_f64());
        ok
    }
}

/// What one line of cargo's output adds to the count; most lines add nothing.
///
/// A line with tests filtered out comes from a test that starts itself again for one case: the whole run filters nothing.
fn count_line(line: &str) -> Count {
    let Some(rest) = line.strip_prefix("test result: ") else {
        return Count::default();
    };
    if !rest.contains(" 0 filtered out") {
        return Count::default();
    }
    let mut count = Count::default();
    for part in rest.split(['.', ';']) {
        let mut words = part.split_whitespace();
        let Some(Ok(n)) = words.next().map(str::parse::<u64>) else { continue };
        match words.next() {
            Some("passed") => count.passed += n,
            Some("failed" | "ignored") => count.failed += n,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted_and_ignored_tests_fail() {
        let ok = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(count_line(ok), Count { passed: 12, failed: 0 });
        let nested = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 10 filtered out; finished in 0.01s";
        assert_eq!(count_line(nested), Count::default());
        let bad = "test result: FAILED. 1 passed; 2 failed; 3 ignored; 0 measured; 0 filtered out; finished in 1s";
        assert_eq!(count_line(bad), Count { passed: 1, failed: 5 });
        assert_eq!(count_line("test x ... ok"), Count::default());
    }

    #[test]
    fn a_command_that_cannot_start_or_fails_counts_as_failed() {
        assert_eq!(Step::new("false", 5, &["false"]).run_counting(), Count::one(false));
        assert_eq!(Step::new("none", 5, &["/nonexistent/program"]).run_as_one(), Count::one(false));
        assert_eq!(Step::new("true", 5, &["true"]).run_as_one(), Count::one(true));
    }

    #[test]
    fn a_step_is_ended_at_its_limit() {
        assert!(!Step::new("sleep", 1, &["sleep", "20"]).run());
    }
}
