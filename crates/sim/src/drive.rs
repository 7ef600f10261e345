//! Many seeds on several processors: chunks of them in child processes, so that one that aborts or
//! hangs names itself and stops no other.
//!
//! ```text
//!   parent ── "--child --seeds A..B" ──▶ child     child's lines:  B seed            begins
//!          ◀───────── lines ───────────                            D seed numbers…   done
//!                                                                  F seed reason     failed
//! ```

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_sim::only::How;
use forebay_sim::run::Totals;

use crate::job::Job;
use crate::shrink;

/// Seeds that one child process runs.
const CHUNK: u64 = 50;
/// A seed that takes longer hangs.
const SEED_MAX: Duration = Duration::from_secs(30);
/// One in so many seeds runs twice and must end with the same digest.
const TWICE: u64 = 100;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Runs seeds in this process and reports them line by line.
pub fn run_here(job: &Job, seeds: Range<u64>) {
    for seed in seeds {
        say(&format!("B {seed}"));
        let outcome = job.run_seed(seed, &How::default());
        let again = seed.is_multiple_of(TWICE).then(|| job.run_seed(seed, &How::default()).digest);
        let differs = again.is_some_and(|digest| digest != outcome.digest);
        let twice = differs.then(|| "two runs ended with different digests".to_owned());
        if let Some(reason) = outcome.failure.or(twice) {
            say(&format!("F {seed} {}", reason.replace('\n', " | ")));
        }
        let Totals { requests, crashes, device_ios, faults, checks, detected, .. } = outcome.totals;
        say(&format!("D {seed} {requests} {crashes} {device_ios} {faults} {checks} {detected}"));
    }
}

fn say(line: &str) {
    println!("{line}");
    // Nobody listens any more: the next line ends this process.
    let _ = std::io::stdout().flush();
}

/// What all workers share.
struct Board {
    next: u64,
    totals: Totals,
    failed: Vec<u64>,
    told: Instant,
}

/// A range of seeds to be run by several child processes at once.
pub struct Drive {
    job: Job,
    seeds: Range<u64>,
    jobs: usize,
    /// Nothing is told: failing seeds are only counted.
    quiet: bool,
    began: Instant,
    board: Mutex<Board>,
}

impl Drive {
    /// Plans to run `seeds` in `jobs` processes.
    #[expect(clippy::disallowed_methods, reason = "how long the real run takes is measured on the real clock")]
    pub fn new(job: Job, seeds: Range<u64>, jobs: usize) -> Self {
        let began = Instant::now();
        let board = Board { next: seeds.start, totals: Totals::default(), failed: Vec::new(), told: began };
        Self { job, seeds, jobs, quiet: false, began, board: Mutex::new(board) }
    }

    /// Runs them all without a word; the seeds that failed.
    pub fn failing(mut self) -> Vec<u64> {
        self.quiet = true;
        self.work_all();
        self.board.into_inner().unwrap_or_else(PoisonError::into_inner).failed
    }

    fn work_all(&self) {
        std::thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| self.work());
            }
        });
    }

    /// Runs them all; true when none failed.
    pub fn run(self) -> bool {
        self.work_all();
        let seconds = self.began.elapsed().as_secs_f64();
        let board = self.board.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Totals { seeds, requests, crashes, device_ios, faults, checks, detected } = board.totals;
        println!(
            "{seeds} seeds, {requests} requests, {crashes} crashes, {device_ios} device I/Os, {faults} faults, \
             {checks} sectors checked, {detected} damaged pages detected, {} failed, {seconds:.1} seconds",
            board.failed.len()
        );
        if !board.failed.is_empty() {
            shrink::run(&self.job, &board.failed);
        }
        board.failed.is_empty()
    }

    fn with<T>(&self, change: impl FnOnce(&mut Board) -> T) -> T {
        change(&mut self.board.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes chunks until none is left.
    fn work(&self) {
        loop {
            let chunk = self.with(|board| {
                let start = board.next;
                board.next = (start + CHUNK).min(self.seeds.end);
                start..board.next
            });
            if chunk.is_empty() {
                return;
            }
            let mut start = chunk.start;
            while start < chunk.end {
                start = self.run_child(start..chunk.end);
            }
        }
    }

    /// Runs a child over `seeds` until it ends or a seed breaks it; the seed to go on with.
    fn run_child(&self, seeds: Range<u64>) -> u64 {
        let mut child = match self.spawn(&seeds) {
            Ok(child) => child,
            Err(error) => {
                self.fail(seeds.start, &format!("no child process could be started: {error}"));
                return seeds.end;
            }
        };
        let lines = read_lines(&mut child);
        let mut running = None;
        loop {
            match lines.recv_timeout(SEED_MAX) {
                Ok(line) => self.take(&line, &mut running),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A child that ended meanwhile cannot be killed, which is as well.
                    let _ = child.kill();
                    break;
                }
            }
        }
        let status = child.wait();
        match (running, status) {
            (Some(seed), Ok(status)) => {
                self.fail(seed, &format!("the process ended with {status}, or took longer than {SEED_MAX:?}"));
                seed + 1
            }
            (_, Ok(status)) if status.success() => seeds.end,
            (seed, status) => {
                self.fail(seed.unwrap_or(seeds.start), &format!("the child process was lost: {status:?}"));
                seeds.end
            }
        }
    }

    fn spawn(&self, seeds: &Range<u64>) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(self.job.words()).args(["--child", "--seeds", &format!("{}..{}", seeds.start, seeds.end)]);
        let errors = if self.quiet { Stdio::null() } else { Stdio::inherit() };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).spawn()
    }

    /// Takes one line of a child.
    fn take(&self, line: &str, running: &mut Option<u64>) {
        let mut words = line.splitn(3, ' ');
        let (kind, seed, rest) = (words.next(), words.next().and_then(|word| word.parse().ok()), words.next());
        match (kind, seed) {
            (Some("B"), Some(seed)) => *running = Some(seed),
            (Some("F"), Some(seed)) => self.fail(seed, rest.unwrap_or("without a reason")),
            (Some("D"), Some(_)) => {
                *running = None;
                self.count(rest.unwrap_or(""));
            }
            _ => eprintln!("{line}"),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "progress is told on the real clock")]
    fn count(&self, numbers: &str) {
        let numbers: Vec<u64> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
        let &[requests, crashes, device_ios, faults, checks, detected] = numbers.as_slice() else { return };
        self.with(|board| {
            board.totals.add(Totals { seeds: 1, requests, crashes, device_ios, faults, checks, detected });
            if board.told.elapsed() > PROGRESS && !self.quiet {
                board.told = Instant::now();
                eprintln!("{} of {} seeds, {} failed", board.totals.seeds, self.seeds.end - self.seeds.start, board.failed.len());
            }
        });
    }

    fn fail(&self, seed: u64, reason: &str) {
        if !self.quiet {
            println!("seed {seed} FAILED: {reason}\n  replay: cargo xtask sim {} --seed {seed}", self.job.words().join(" "));
        }
        self.with(|board| board.failed.push(seed));
    }
}

/// A thread that hands on a child's lines, so that waiting for one can have an end.
fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        let pass_on = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        #[expect(clippy::disallowed_methods, reason = "a thread that waits for a child, outside of every reactor")]
        std::thread::spawn(pass_on);
    }
    receiver
}
