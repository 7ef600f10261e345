//! What a mirror decides: who has what, who can be relied on, and what an error means. Pure, but for a line in the
//! log and an event when a leg fails.
//!
//! ```text
//!   write failed on some legs ─▶ is there a full leg that took it?
//!        yes ─▶ the others lack these regions and are out; if the source is one of them, another
//!               full leg becomes the source, which the log must know before the write is acknowledged
//!        no  ─▶ the write fails; the source's content is what counts, whatever it is
//! ```
//!
//! Invariants:
//! - I1: the source is full: it has every acknowledged write.
//! - I2: after a crash, the first leg that the log's record does not name was the source.
//! - I3: nothing that the source of the log's record missed is acknowledged before a new record is
//!   durable.
//! - I4: a region that is being brought up to date is up to date at the end only on legs that
//!   failed nothing in it meanwhile.

pub mod legs;
pub mod regions;

use std::ops::Range;
use std::rc::Rc;

use forebay_block::Status;

use legs::{LegSet, Legs, Trouble};
use regions::Regions;

use crate::event::Event;

/// A run of regions that is being copied to legs that lack it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) regions: Range<u64>,
    /// Legs that it is copied to and that failed nothing so far.
    pub(super) legs: LegSet,
    /// Pieces that are not copied yet.
    pub(super) left: u64,
    /// A part of it could be read nowhere.
    pub(super) unread: bool,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// What the client is told, once the rest is done.
    pub(super) status: Status,
    /// The source changed: the log must say so first.
    pub(super) source_moved: bool,
    /// A leg missed it: if the log is just being told of a new source, the client is told later.
    pub(super) missed: bool,
    /// Somebody must know of the legs that are out before the client is told.
    pub(super) hold: bool,
}

pub(super) struct State {
    pub(super) legs: Legs,
    pub(super) regions: Regions,
    /// The leg that is copied from.
    pub(super) source: usize,
    pub(super) runs: Vec<Run>,
    /// Raised when a leg fails at something for the first time, and by whoever has more to tell people.
    pub(super) events: Rc<Event>,
}

impl State {
    pub(super) fn new(legs: Legs, regions: Regions, source: usize) -> Self {
        Self { legs, regions, source, runs: Vec::new(), events: Rc::default() }
    }

    /// Legs other than `leg`.
    pub(super) fn others(&self, leg: usize) -> LegSet {
        self.legs.all().without(LegSet::only(leg))
    }

    /// Legs that do not have everything, or will soon lack something.
    pub(super) fn behind(&self) -> LegSet {
        self.legs.all().without(self.regions.full().and(self.legs.alive()))
    }

    /// `leg` failed at something.
    pub(super) fn trouble(&mut self, leg: usize, trouble: Trouble) {
        if self.legs.note(leg, trouble) {
            tracing::warn!("mirror: leg {leg} failed: {trouble:?}");
            self.events.raise();
        }
    }

    /// `legs` get no more requests. What is being copied to them does not count: they miss flushes from now on, also
    /// when they are revived before it is over.
    pub(super) fn put_out(&mut self, legs: LegSet) {
        self.spoil(legs, &(0..self.regions.count()));
        for leg in legs.iter() {
            self.legs.put_out(leg);
        }
    }

    /// `legs` do not get what runs over `regions` copy.
    fn spoil(&mut self, legs: LegSet, regions: &Range<u64>) {
        for run in &mut self.runs {
            if run.regions.start < regions.end && regions.start < run.regions.end {
                run.legs = run.legs.without(legs);
            }
        }
    }

    /// `legs` lack `regions`; those that did not before.
    pub(super) fn lose(&mut self, legs: LegSet, regions: &Range<u64>) -> LegSet {
        self.spoil(legs, regions);
        self.regions.lose(legs, regions)
    }

    /// A write to `regions` was sent to `sent` and failed on `failed` of them.
    pub(super) fn wrote(&mut self, regions: &Range<u64>, sent: LegSet, failed: LegSet, status: Status) -> Verdict {
        let took = sent.without(failed);
        let missed = self.legs.all().without(took);
        if missed.is_empty() {
            return Verdict::default();
        }
        if status != Status::Unsupported {
            failed.iter().for_each(|leg| self.trouble(leg, Trouble::Write));
        }
        let Some(next) = self.regions.full().and(took).first() else {
            let others = self.others(self.source);
            self.lose(others, regions);
            if status != Status::Unsupported {
                self.put_out(failed.and(others));
            }
            return Verdict { status: status.and(Status::IoError), ..Verdict::default() };
        };
        if status == Status::Unsupported {
            let others = self.others(self.source);
            self.lose(others, regions);
            return Verdict { status, ..Verdict::default() };
        }
        let new = self.lose(missed, regions);
        self.put_out(failed);
        let hold = !new.and(self.legs.unaccepted()).is_empty();
        let source_moved = missed.contains(self.source);
        if source_moved {
            self.source = next;
        }
        Verdict { status: Status::Ok, source_moved, missed: true, hold }
    }

    /// A flush was sent to `sent` and failed on `failed` of them: what was written since the flush
    /// before, in the regions of `dirty`, is lost there. Fails when no full leg is left.
    pub(super) fn flushed(&mut self, dirty: &[Range<u64>], sent: LegSet, failed: LegSet) -> Verdict {
        let missed = sent.without(failed) != self.legs.all();
        if failed.is_empty() {
            return Verdict { missed, ..Verdict::default() };
        }
        failed.iter().for_each(|leg| self.trouble(leg, Trouble::Flush));
        let Some(next) = self.regions.full().and(sent.without(failed)).first() else {
            return Verdict { status: Status::IoError, ..Verdict::default() };
        };
        // Copies may have read from these legs what they had forgotten.
        self.spoil(self.legs.all(), &(0..self.regions.count()));
        let mut new = LegSet::NONE;
        for regions in dirty {
            new = new.with(self.regions.lose(failed, regions));
        }
        self.put_out(failed);
        let source_moved = failed.contains(self.source);
        if source_moved {
            self.source = next;
        }
        Verdict { status: Status::Ok, source_moved, missed, hold: !new.and(self.legs.unaccepted()).is_empty() }
    }

    /// The leg that reads `regions` from sector `start` on, of those that were not `tried`.
    pub(super) fn reader(&self, regions: &Range<u64>, tried: LegSet, start: u64) -> Option<usize> {
        self.legs.choose(self.regions.having(regions).without(tried), start)
    }

    /// Legs that are copied from, best first.
    pub(super) fn sources(&self) -> impl Iterator<Item = usize> + use<> {
        let full = self.regions.full();
        let healthy = full.and(self.legs.healthy());
        let first = if healthy.is_empty() || healthy.contains(self.source) { LegSet::only(self.source) } else { healthy };
        first.iter().chain(full.without(first).iter())
    }
}

#[cfg(test)]
mod tests;
