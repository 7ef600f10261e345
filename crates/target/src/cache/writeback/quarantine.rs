//! Blocks whose copy home failed: they stay cached, are left alone for a while, and tried again.
//!
//! Ranges are kept in order and joined with their neighbours, so that an origin that is gone costs
//! a few entries and not one for each block.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::LockRange;

/// First wait before a block is tried again; doubles up to the maximum.
pub(in super::super) const WAIT_MIN: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_mins(1);
/// After so many failures in a row a failed run is not taken apart any more: the origin is gone.
const FAILURES_MAX: u32 = 8;

#[derive(Clone, Copy)]
struct Held {
    count: u64,
    until: Duration,
    wait: Duration,
}

/// The blocks left alone, by their first block.
#[derive(Default)]
pub(in super::super) struct Quarantine {
    ranges: BTreeMap<u64, Held>,
    failures: u32,
    told: u64,
}

impl Quarantine {
    /// Whether a failed run should be tried again in parts.
    pub(in super::super) fn may_split(&self) -> bool {
        self.failures < FAILURES_MAX
    }

    /// Puts `range` away at `now`; longer than before where part of it had been here already.
    pub(in super::super) fn put(&mut self, range: LockRange, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        let before = self.take(range);
        let wait = before.map_or(WAIT_MIN, |wait| (wait * 2).min(WAIT_MAX));
        let (mut start, mut held) = (range.start(), Held { count: range.count(), until: now + wait, wait });
        if let Some((&last, earlier)) = self.ranges.range(..start).next_back()
            && last + earlier.count == start
            && earlier.wait == wait
        {
            held.count += earlier.count;
            start = last;
        }
        self.ranges.insert(start, held);
        self.told += u64::from(before.is_none());
        if before.is_none() && (self.told <= 8 || self.told.is_power_of_two()) {
            tracing::warn!(
                "write cache: {} blocks from block {} on cannot be written to the origin; they stay cached and are tried again \
                 ({} such so far)",
                range.count(),
                range.start(),
                self.told
            );
        }
    }

    /// A copy of `range` succeeded.
    pub(in super::super) fn release(&mut self, range: LockRange) {
        self.failures = 0;
        if !self.ranges.is_empty() {
            self.take(range);
        }
    }

    /// Cuts `range` out; the longest wait that was there.
    fn take(&mut self, range: LockRange) -> Option<Duration> {
        let mut longest = None;
        while let Some((&start, &held)) = self.ranges.range(..range.end()).next_back()
            && start + held.count > range.start()
        {
            self.ranges.remove(&start);
            longest = longest.max(Some(held.wait));
            let end = start + held.count;
            if start < range.start() {
                self.ranges.insert(start, Held { count: range.start() - start, ..held });
            }
            if end > range.end() {
                self.ranges.insert(range.end(), Held { count: end - range.end(), ..held });
            }
        }
        longest
    }

    /// Whether a block of `range` is to be left alone at `now`.
    pub(in super::super) fn holds(&self, range: LockRange, now: Duration) -> bool {
        let overlapping = self.ranges.range(..range.end()).rev().take_while(|(start, held)| *start + held.count > range.start());
        overlapping.into_iter().any(|(_, held)| held.until > now)
    }

    /// Lets every block be tried again at once; those that fail again wait longer than before.
    pub(in super::super) fn try_now(&mut self) {
        self.failures = 0;
        for held in self.ranges.values_mut() {
            held.until = Duration::ZERO;
        }
    }

    /// When the next block may be tried again.
    pub(in super::super) fn next(&self) -> Option<Duration> {
        self.ranges.values().map(|held| held.until).min()
    }

    /// Blocks left alone.
    pub(in super::super) fn blocks(&self) -> u64 {
        self.ranges.values().map(|held| held.count).sum()
    }

    /// Bytes taken, about.
    pub(in super::super) fn memory_bytes(&self) -> usize {
        self.ranges.len() * (size_of::<u64>() + size_of::<Held>()) * 3 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn neighbours_join_and_successes_cut_them_out() {
        let mut quarantine = Quarantine::default();
        for block in 0..10_000 {
            quarantine.put(LockRange::new(block, 1), SECOND);
        }
        assert_eq!((quarantine.ranges.len(), quarantine.blocks()), (1, 10_000));
        quarantine.release(LockRange::new(5000, 10));
        assert_eq!((quarantine.ranges.len(), quarantine.blocks()), (2, 9990));
        assert!(!quarantine.holds(LockRange::new(5000, 10), SECOND));
        assert!(quarantine.holds(LockRange::new(4990, 11), SECOND));
        assert!(!quarantine.holds(LockRange::new(0, 1), SECOND * 3));
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_a_minute() {
        let mut quarantine = Quarantine::default();
        let range = LockRange::new(7, 1);
        let mut now = Duration::ZERO;
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            quarantine.put(range, now);
            assert_eq!(quarantine.next(), Some(now + SECOND * expected));
            now += SECOND * expected;
        }
    }

    #[test]
    fn runs_are_not_taken_apart_while_everything_fails() {
        let mut quarantine = Quarantine::default();
        for block in 0..8 {
            assert!(quarantine.may_split());
            quarantine.put(LockRange::new(block * 2, 1), SECOND);
        }
        assert!(!quarantine.may_split());
        quarantine.release(LockRange::new(100, 1));
        assert!(quarantine.may_split());
    }
}
