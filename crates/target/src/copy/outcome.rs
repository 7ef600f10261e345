//! What became of a copy: what could not be read, what could not be written, and where exactly.
//!
//! Units: extents are sectors counted from the start of the copy, whatever its ends call them.

use std::cell::{Cell, RefCell};

use forebay_block::{Extent, Status};

/// What a destination did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// Which destination, by its place in the list that was given.
    pub leg: usize,
    /// The first error.
    pub status: Status,
    /// What was not written for certain, in order, without overlaps.
    pub ranges: Vec<Extent>,
}

/// What became of a copy. The default is: all of it was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// It was cancelled, or the engine was closed: what was not begun by then is in no list.
    pub cancelled: bool,
    /// What could not be read, to the logical block, in order, without overlaps. No destination was
    /// touched there.
    pub unread: Vec<Extent>,
    /// The destinations that failed, by their place.
    pub unwritten: Vec<Unwritten>,
}

impl Outcome {
    /// Whether every sector arrived at every destination.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.cancelled && self.unread.is_empty() && self.unwritten.is_empty()
    }

    /// What destination `leg` did not take; `None` where it took all that was read.
    #[must_use]
    pub fn leg(&self, leg: usize) -> Option<&Unwritten> {
        self.unwritten.iter().find(|unwritten| unwritten.leg == leg)
    }

    /// The first error as a bio would report it.
    #[must_use]
    pub fn status(&self) -> Status {
        let written = self.unwritten.first().map_or(Status::Ok, |unwritten| unwritten.status);
        let read = if self.unread.is_empty() { Status::Ok } else { Status::IoError };
        let begun = if self.cancelled { Status::Aborted } else { Status::Ok };
        read.and(written).and(begun)
    }
}

/// An outcome in the making, and whether anything more is to be begun.
#[derive(Default)]
pub(super) struct Tally {
    outcome: RefCell<Outcome>,
    stopped: Cell<bool>,
}

impl Tally {
    /// Nothing more is begun.
    pub(super) fn stop(&self) {
        self.stopped.set(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    pub(super) fn cancelled(&self) {
        self.outcome.borrow_mut().cancelled = true;
        self.stop();
    }

    pub(super) fn unread(&self, extent: Extent) {
        insert(&mut self.outcome.borrow_mut().unread, extent);
    }

    pub(super) fn unwritten(&self, leg: usize, extent: Extent, status: Status) {
        let mut outcome = self.outcome.borrow_mut();
        let place = outcome.unwritten.partition_point(|unwritten| unwritten.leg < leg);
        if outcome.unwritten.get(place).is_none_or(|unwritten| unwritten.leg != leg) {
            outcome.unwritten.insert(place, Unwritten { leg, status, ranges: Vec::new() });
        }
        insert(&mut outcome.unwritten[place].ranges, extent);
    }

    pub(super) fn take(&self) -> Outcome {
        self.outcome.take()
    }
}

/// Adds `extent` to ranges in order, joining what it touches.
fn insert(ranges: &mut Vec<Extent>, extent: Extent) {
    let from = ranges.partition_point(|range| range.end() < extent.start);
    let to = ranges.partition_point(|range| range.start <= extent.end());
    let Some(first) = ranges.get(from).filter(|_| from < to) else { return ranges.insert(from, extent) };
    let start = first.start.min(extent.start);
    let end = ranges[to - 1].end().max(extent.end());
    let count = end.since(start).expect("the later end lies behind the earlier start");
    ranges.splice(from..to, [Extent::new(start, count)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::extent;

    #[test]
    fn ranges_join_with_what_they_touch_and_stay_in_order() {
        let mut ranges = Vec::new();
        for (start, count) in [(8, 8), (32, 8), (0, 4), (16, 4), (4, 4), (48, 8), (20, 28)] {
            insert(&mut ranges, extent(start, count));
        }
        assert_eq!(ranges, [extent(0, 56)]);
        insert(&mut ranges, extent(100, 1));
        insert(&mut ranges, extent(80, 1));
        assert_eq!(ranges, [extent(0, 56), extent(80, 1), extent(100, 1)]);
    }
}
