//! Chunks of a store that nothing names although later ones are in use.
//!
//! ```text
//!   header │ area │ ■ ■ □ ■ □ □ ■ │ next …        □ was given out, and a crash came before its entry
//! ```
//!
//! Chunks are given out in order, and their entries become durable in the order in which the copies end. Who begins
//! behind the highest chunk that is named would lose the others for as long as the store lives.
//!
//! Units: chunks of the store.

use std::ops::Range;

use super::disk::format::FIRST_DATA;
use super::disk::{Exception, Layout};

/// How far chunks are given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The next one behind all that are named.
    pub(super) next: u64,
    /// As in [`Holes`].
    pub(super) at: (usize, u64),
    /// As in [`Holes`].
    pub(super) left: u64,
}

/// The holes of a store.
#[derive(Debug, Default)]
pub(super) struct Holes {
    /// In order, areas included.
    ranges: Vec<Range<u64>>,
    /// The present range, and how much of it is passed.
    pub(super) at: (usize, u64),
    /// Chunks in them that hold no area and are not given out.
    pub(super) left: u64,
}

impl Holes {
    /// What `entries` leave unused in front of the highest chunk that they name, on a device of `chunks`. Where that is
    /// the last chunk of an area behind which no other one fits, one hole is kept, so that the area is never full: who
    /// reads a full area goes on with the next.
    pub(super) fn between(entries: &[Exception], layout: Layout, chunks: u64) -> Self {
        let mut used: Vec<u64> = entries.iter().map(|entry| entry.new).collect();
        used.sort_unstable();
        let (mut ranges, mut left, mut from) = (Vec::new(), 0, FIRST_DATA);
        for &chunk in &used {
            let unused = (chunk - from) - (areas_below(layout, chunk) - areas_below(layout, from));
            if unused > 0 {
                ranges.push(from..chunk);
                left += unused;
            }
            from = chunk + 1;
        }
        let closed = used.last().is_some_and(|last| last + 1 == chunks) && layout.is_metadata(chunks);
        Self { ranges, at: (0, 0), left: left.saturating_sub(u64::from(closed)) }
    }

    /// Gives out the first one.
    pub(super) fn take(&mut self, layout: Layout) -> Option<u64> {
        while self.left > 0 {
            let (number, passed) = self.at;
            let range = self.ranges.get(number)?;
            let chunk = layout.data_from(range.start + passed);
            if chunk < range.end {
                (self.at.1, self.left) = (chunk + 1 - range.start, self.left - 1);
                return Some(chunk);
            }
            self.at = (number + 1, 0);
        }
        None
    }
}

/// Areas in front of `chunk`.
fn areas_below(layout: Layout, chunk: u64) -> u64 {
    let first = layout.area_chunk(0);
    if chunk <= first { 0 } else { (chunk - first - 1) / (layout.area_entries() + 1) + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(used: &[u64], chunks: u64) -> (u64, Vec<u64>) {
        let layout = Layout::new(1);
        let entries: Vec<Exception> = (0..).zip(used).map(|(old, &new)| Exception { old, new }).collect();
        let mut holes = Holes::between(&entries, layout, chunks);
        (holes.left, std::iter::from_fn(|| holes.take(layout)).collect())
    }

    #[test]
    fn every_chunk_that_nobody_names_is_given_out_once_and_areas_are_not() {
        assert_eq!(holes(&[], 100), (0, vec![]));
        assert_eq!(holes(&[2, 3, 4], 100), (0, vec![]));
        assert_eq!(holes(&[6, 3], 100), (3, vec![2, 4, 5]));
        // An area has 32 entries: the second one is chunk 34.
        let all: Vec<u64> = (2..36).filter(|&chunk| chunk != 34).collect();
        assert_eq!(holes(&[36], 100), (33, all));
        assert_eq!(holes(&[33, 35], 100), (31, (2..33).collect()));
    }

    #[test]
    fn an_area_that_is_the_last_is_not_filled() {
        assert_eq!(holes(&[33, 30], 34), (29, (2..30).chain([31]).collect()));
        assert_eq!(holes(&[33], 35).0, 31);
    }

    #[test]
    fn a_store_of_any_size_with_one_entry_takes_no_memory() {
        let layout = Layout::new(1);
        let holes = Holes::between(&[Exception { old: 0, new: 1 << 50 }], layout, 1 << 51);
        assert_eq!(holes.ranges.len(), 1);
        assert!(holes.left > 1 << 49);
    }
}
