//! Which chunks of the origin are kept in the store, as runs.
//!
//! ```text
//!   origin   0 1 2 3 4 5 6 7 8 9
//!   store      7 8 9     2       run 1..4 → 7.., run 6..7 → 2..
//! ```
//!
//! 1. A chunk is in at most one run; runs that continue each other on both sides are one.
//! 2. An exception that is in stays what it is until it is removed.
//!
//! Units: chunks. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::disk::Exception;

/// Neighbouring chunks of the origin that are kept in neighbouring chunks of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    new: u64,
    count: u64,
}

/// A stretch of the origin in which all chunks are in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Chunks of the origin.
    pub old: Range<u64>,
    /// The store's chunk of the first; `None` where they are not kept.
    pub new: Option<u64>,
}

/// The exceptions of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct ExceptionMap {
    runs: BTreeMap<u64, Run>,
    chunks: u64,
}

impl ExceptionMap {
    /// Exceptions in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.chunks
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// The run that holds chunk `old`, and its first chunk.
    fn run_at(&self, old: u64) -> Option<(u64, Run)> {
        let (&first, &run) = self.runs.range(..=old).next_back()?;
        (old - first < run.count).then_some((first, run))
    }

    /// Where a chunk is kept.
    #[must_use]
    pub fn get(&self, old: u64) -> Option<u64> {
        self.run_at(old).map(|(first, run)| run.new + (old - first))
    }

    /// Takes an exception in; false when its chunk has one already.
    pub fn insert(&mut self, exception: Exception) -> bool {
        let Exception { old, new } = exception;
        if self.get(old).is_some() {
            return false;
        }
        self.chunks += 1;
        let before = old.checked_sub(1).and_then(|before| self.run_at(before));
        let before = before.filter(|(first, run)| run.new + (old - first) == new);
        let after = old.checked_add(1).and_then(|after| Some((after, *self.runs.get(&after)?)));
        let after = after.filter(|(_, run)| new.checked_add(1) == Some(run.new));
        let (first, mut run) = before.unwrap_or((old, Run { new, count: 0 }));
        run.count += 1;
        if let Some((after, behind)) = after {
            self.runs.remove(&after);
            run.count += behind.count;
        }
        self.runs.insert(first, run);
        true
    }

    /// Removes the exception of a chunk, if it has one.
    pub fn remove(&mut self, old: u64) {
        let Some((first, run)) = self.run_at(old) else { return };
        self.chunks -= 1;
        self.runs.remove(&first);
        let inside = old - first;
        if inside > 0 {
            self.runs.insert(first, Run { new: run.new, count: inside });
        }
        if run.count > inside + 1 {
            self.runs.insert(old + 1, Run { new: run.new + inside + 1, count: run.count - inside - 1 });
        }
    }

    /// Cuts `chunks` into stretches, in order and without a gap.
    pub fn stretches(&self, chunks: Range<u64>) -> impl Iterator<Item = Stretch> + '_ {
        let mut at = chunks.start;
        std::iter::from_fn(move || {
            if at >= chunks.end {
                return None;
            }
            let start = at;
            let new = if let Some((first, run)) = self.run_at(at) {
                at = (first + run.count).min(chunks.end);
                Some(run.new + (start - first))
            } else {
                at = self.runs.range(at..chunks.end).next().map_or(chunks.end, |(&next, _)| next);
                None
            };
            Some(Stretch { old: start..at, new })
        })
    }

    /// Whether every one of `chunks` is kept.
    #[must_use]
    pub fn covers(&self, chunks: Range<u64>) -> bool {
        self.stretches(chunks).all(|stretch| stretch.new.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(exceptions: &[(u64, u64)]) -> ExceptionMap {
        let mut map = ExceptionMap::default();
        for &(old, new) in exceptions {
            assert!(map.insert(Exception { old, new }));
        }
        map
    }

    #[test]
    fn neighbours_on_both_sides_are_one_run() {
        let map = map(&[(1, 7), (3, 9), (6, 2), (2, 8)]);
        assert_eq!((map.runs.len(), map.len()), (2, 4));
        let stretches: Vec<_> = map.stretches(0..8).map(|stretch| (stretch.old, stretch.new)).collect();
        assert_eq!(stretches, [(0..1, None), (1..4, Some(7)), (4..6, None), (6..7, Some(2)), (7..8, None)]);
        assert!(map.covers(1..4) && !map.covers(0..2) && map.covers(5..5));
    }

    #[test]
    fn it_agrees_with_a_plain_table() {
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut map, mut plain) = (ExceptionMap::default(), vec![None; 64]);
        for step in 0..20_000 {
            let old = rng.usize(0..64);
            if rng.u32(0..3) == 0 {
                map.remove(old as u64);
                plain[old] = None;
            } else {
                let new = 2 + rng.u64(0..4) * 64 + old as u64;
                assert_eq!(map.insert(Exception { old: old as u64, new }), plain[old].is_none(), "step {step}");
                plain[old] = plain[old].or(Some(new));
            }
            assert_eq!(map.len(), plain.iter().flatten().count() as u64);
            let range = rng.u64(0..64)..64;
            let seen: Vec<_> = map
                .stretches(range.clone())
                .flat_map(|stretch| {
                    let first = stretch.old.start;
                    stretch.old.map(move |old| stretch.new.map(|new| new + (old - first))).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(seen, plain[usize::try_from(range.start).unwrap()..], "step {step}");
        }
    }
}
