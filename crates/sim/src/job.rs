//! What is put to the test, and how: the same for every seed of a run, and for every process of it.

use forebay_sim::only::How;
use forebay_sim::run::Outcome;
use forebay_sim::{cache, clone, copy, mirror, nbd, served, snapshot, zram};

/// Requests of a seed unless told otherwise.
pub const REQUESTS: u64 = 1000;

/// What is put to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Cache,
    Snapshot,
    Mirror,
    Clone,
    Zram,
    Copy,
    Nbd,
    Served,
}

impl Subject {
    /// All of them.
    const ALL: [Self; 8] =
        [Self::Cache, Self::Snapshot, Self::Mirror, Self::Clone, Self::Zram, Self::Copy, Self::Nbd, Self::Served];

    /// Its word on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Snapshot => "snapshot",
            Self::Mirror => "mirror",
            Self::Clone => "clone",
            Self::Zram => "zram",
            Self::Copy => "copy",
            Self::Nbd => "nbd",
            Self::Served => "served",
        }
    }

    /// The subject of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == name)
    }
}

/// What every seed of a run has in common.
#[derive(Clone, Debug)]
pub struct Job {
    pub subject: Subject,
    /// Requests of each seed.
    pub requests: u64,
    /// The name of the bug that is planted.
    pub bug: Option<String>,
}

impl Job {
    /// The words that make another process do the same.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![self.subject.name().to_owned()];
        if self.requests != REQUESTS {
            words.extend(["--requests".to_owned(), self.requests.to_string()]);
        }
        if let Some(bug) = &self.bug {
            words.extend(["--replant".to_owned(), bug.clone()]);
        }
        words
    }

    /// Runs one seed in this thread.
    pub fn run_seed(&self, seed: u64, how: &How) -> Outcome {
        match self.subject {
            Subject::Cache => cache::run_seed(seed, self.requests, how),
            Subject::Snapshot => snapshot::run_seed(seed, self.requests, how),
            Subject::Mirror => mirror::run_seed(seed, self.requests, how),
            Subject::Clone => clone::run_seed(seed, self.requests, how),
            Subject::Zram => zram::run_seed(seed, self.requests, how),
            Subject::Copy => copy::run_seed(seed, self.requests, how),
            Subject::Nbd => nbd::run_seed(seed, self.requests, how),
            Subject::Served => served::run_seed(seed, self.requests, how),
        }
    }
}
