//! What a cache tells about itself: the kernel's fourteen numbers, and what batching saved.

use std::fmt::Write as _;

use super::super::Cache;
use super::super::index::age::AgeQueue;
use super::super::metadata::Metadata;
use super::super::state::{Action, Planned};

/// A snapshot of a cache; blocks unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// An error latched: the cache serves reads only.
    pub failed: bool,
    /// Size of a block, bytes.
    pub block_bytes: u32,
    /// Blocks of the cache.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks in writeback.
    pub writeback: u64,
    /// Blocks in the cache, not yet home.
    pub dirty: u64,
    /// Blocks whose copy failed and is tried again later.
    pub quarantined: u64,
    /// Blocks read, and those of them found in the cache.
    pub reads: u64,
    /// See `reads`.
    pub read_hits: u64,
    /// Blocks written.
    pub writes: u64,
    /// Blocks overwritten before they were committed.
    pub hit_uncommitted: u64,
    /// Blocks overwritten after they were committed.
    pub hit_committed: u64,
    /// Blocks sent past the cache.
    pub around: u64,
    /// Blocks given a fresh slot.
    pub allocated: u64,
    /// Times a writer waited for a free slot.
    pub blocked: u64,
    /// Flushes asked.
    pub flushes: u64,
    /// Discards asked.
    pub discards: u64,
    /// Blocks discarded.
    pub discarded: u64,
    /// Requests over blocks that were not committed: a run counts once.
    pub hit_uncommitted_runs: u64,
    /// Requests over committed blocks.
    pub hit_committed_runs: u64,
    /// Requests that writes sent to the fast device.
    pub write_requests: u64,
    /// Free runs of slots, and the longest.
    pub free_runs: u64,
    /// See `free_runs`.
    pub free_longest: u64,
    /// Commit rounds done.
    pub commits: u64,
    /// Memory of the index and everything else that grows with the cache, bytes.
    pub memory_bytes: u64,
}

impl CacheStatus {
    /// The kernel's status line: `err blocks free writeback` and ten counters. They count blocks, but
    /// for the overwrites, of which a request over consecutive slots is one, the waits and the flushes.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = String::new();
        let numbers = [
            u64::from(self.failed),
            self.blocks,
            self.free,
            self.writeback,
            self.reads,
            self.read_hits,
            self.writes,
            self.hit_uncommitted_runs,
            self.hit_committed_runs,
            self.around,
            self.allocated,
            self.blocked,
            self.flushes,
            self.discarded,
        ];
        for (at, number) in numbers.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(line, "{space}{number}").expect("writing to a string does not fail");
        }
        line
    }
}

impl Cache {
    /// A snapshot.
    #[must_use]
    pub fn status(&self) -> CacheStatus {
        let state = self.state.borrow();
        let metadata = self.metadata.take();
        let metadata_bytes = metadata.as_ref().map_or(0, Metadata::memory_bytes);
        self.metadata.set(metadata);
        let age_bytes = self.age.borrow().as_ref().map_or(0, AgeQueue::memory_bytes);
        let memory = state.memory_bytes()
            + metadata_bytes
            + self.scratch_bytes.get()
            + age_bytes
            + self.quarantine.borrow().memory_bytes();
        let counts = &self.counts;
        CacheStatus {
            failed: self.failed.get(),
            block_bytes: self.geometry.block_bytes(),
            blocks: u64::from(self.geometry.blocks()),
            free: u64::from(state.free.free_blocks()),
            writeback: self.busy_blocks.get(),
            dirty: state.map.used_blocks(),
            quarantined: self.quarantine.borrow().blocks(),
            reads: counts.reads.get(),
            read_hits: counts.read_hits.get(),
            writes: counts.writes.get(),
            hit_uncommitted: counts.hit_open.get(),
            hit_committed: counts.hit_committed.get(),
            around: counts.around.get(),
            allocated: counts.allocated.get(),
            blocked: counts.blocked.get(),
            flushes: counts.flushes.get(),
            discards: counts.discards.get(),
            discarded: counts.discarded.get(),
            hit_uncommitted_runs: counts.open_runs.get(),
            hit_committed_runs: counts.committed_runs.get(),
            write_requests: counts.runs.get(),
            free_runs: u64::from(state.free.runs()),
            free_longest: u64::from(state.free.longest()),
            commits: self.rounds_done.get(),
            memory_bytes: memory as u64,
        }
    }

    /// Sets the ten counters of the status line to zero.
    pub(super) fn clear_counts(&self) {
        let counts = &self.counts;
        for count in [
            &counts.reads,
            &counts.read_hits,
            &counts.writes,
            &counts.hit_open,
            &counts.hit_committed,
            &counts.around,
            &counts.allocated,
            &counts.blocked,
            &counts.flushes,
            &counts.discards,
            &counts.discarded,
            &counts.open_runs,
            &counts.committed_runs,
            &counts.runs,
        ] {
            count.set(0);
        }
    }

    pub(in super::super) fn count_planned(&self, planned: &Planned) {
        let counts = &self.counts;
        let blocks = u64::from(planned.count);
        add(&counts.writes, blocks);
        match planned.action {
            Action::InPlace { open: true, .. } => {
                add(&counts.hit_open, blocks);
                add(&counts.open_runs, 1);
            }
            Action::InPlace { open: false, .. } => {
                add(&counts.hit_committed, blocks);
                add(&counts.committed_runs, 1);
            }
            Action::Fresh { .. } => add(&counts.allocated, blocks),
            Action::Bypass => return add(&counts.around, blocks),
        }
        add(&counts.runs, 1);
    }

    pub(in super::super) fn count_discard(&self, blocks: u64) {
        add(&self.counts.discards, 1);
        add(&self.counts.discarded, blocks);
    }

    pub(in super::super) fn count_read(&self, hit: bool, blocks: u64) {
        add(&self.counts.reads, blocks);
        if hit {
            add(&self.counts.read_hits, blocks);
        }
    }
}

fn add(counter: &std::cell::Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}
