//! Clone: a source that is only read, and a destination that becomes a copy of it while it is in use.
//!
//! ```text
//!   read   hydrated? ─ yes ─▶ destination                    ┌─ source ─┐
//!             └────── no ──▶ source                           ▼          │ hydrate.rs: batches, within a budget
//!   write  hydrated? ─ yes ─▶ destination      region: cold ─▶ hydrated ─┘
//!             └────── no ──▶ the rest of its regions is copied first, then as above
//!   flush  destination, then metadata: which regions are hydrated     commit.rs
//! ```
//!
//! A *region* is a power of two of sectors, the unit of all this; one that is not hydrated is *cold*.
//!
//! Invariants:
//! - I1: the source is never written.
//! - I2: a cold region of the destination is never read.
//! - I3: what the metadata calls hydrated is durable on the destination: it was flushed before.
//! - I4: a flush ends after the regions of every change that had ended before are durably hydrated.
//! - I5: who makes a region hydrated holds its lock, and looks again once he has it. Nobody makes one
//!   cold again.
//! - I6: the memory of all copies is bounded by the two engines; a copy that a write waits for never
//!   stands behind hydration that nobody waits for.
//!
//! A failed write or flush of metadata, and a failed flush of the destination, latch the clone: it is
//! read-only from then on but for regions that are hydrated, and the next opening finds what was
//! committed. Flushes fail where they would have to commit, and all do after one of the destination.
//!
//! The words of the table line are in [`options`], the format of the metadata in [`mod@format`] and in
//! `docs/format.md`. Everything of a clone lives on one thread.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Ability, Allocation, Bio, End, Extent, Limits, Op, Sector, SectorCount, Target};
use forebay_reactor::{JobPool, Reactor};

use crate::below::Parked;
use crate::copy::{Engine, Leg};
use crate::event::Event;
use crate::lock::RangeLocks;

mod admin;
mod commit;
pub mod format;
mod hydrate;
mod metadata;
pub mod options;
mod regions;
mod request;

use commit::Commits;
use format::Geometry;
use hydrate::{Batch, Hydration};
use metadata::Metadata;
use options::CloneOptions;
use regions::Regions;

pub use admin::{CloneStatus, MessageError, Mode, OpenError, Setup, open};
pub use hydrate::HydrationCounts;

/// Writes, zeroes and discards of cold regions at once.
const CHANGES_MAX: usize = 64;

/// A clone over three targets.
pub struct CloneTarget {
    this: Weak<CloneTarget>,
    reactor: Reactor,
    source: Leg,
    destination: Leg,
    geometry: Geometry,
    metadata: Metadata,
    options: Cell<CloneOptions>,
    regions: RefCell<Regions>,
    /// By region (I5).
    locks: RangeLocks,
    commits: Commits,
    hydration: Hydration,
    /// Copies that somebody waits for.
    foreground: Engine,
    changes: OnceCell<JobPool<(Rc<CloneTarget>, Bio)>>,
    batches: OnceCell<JobPool<(Rc<CloneTarget>, Batch)>>,
    /// Requests that were passed on and are not over, each with when it began where its time is taken.
    below: Parked<Option<Duration>>,
    suspended: Cell<bool>,
    /// Requests that came while it was suspended.
    waiting: RefCell<VecDeque<Bio>>,
    latched: Cell<bool>,
    closed: Cell<bool>,
    /// Tasks that run.
    tasks: Cell<u32>,
    /// One has ended.
    left: Event,
    events: Rc<Event>,
}

impl CloneTarget {
    fn me(&self) -> Rc<Self> {
        self.this.upgrade().expect("a target is held by whoever submits to it")
    }

    /// The regions that `extent`, which is not empty, touches.
    fn touched(&self, extent: Extent) -> Range<u32> {
        let region = u64::from(self.geometry.region_sectors());
        narrow(extent.start.0 / region)..narrow(extent.end().0.div_ceil(region))
    }

    /// The regions that `extent` covers to their ends.
    fn covered(&self, extent: Extent) -> Range<u32> {
        let region = u64::from(self.geometry.region_sectors());
        let first = narrow(extent.start.0.div_ceil(region));
        let at_end = extent.end().0 == self.geometry.sectors().0;
        let end = if at_end { self.geometry.regions() } else { narrow(extent.end().0 / region) };
        first..end.max(first)
    }

    /// The sectors of some regions.
    fn extent(&self, regions: &Range<u32>) -> Extent {
        let region = u64::from(self.geometry.region_sectors());
        let (start, end) = (u64::from(regions.start) * region, u64::from(regions.end) * region);
        Extent::new(Sector(start), SectorCount(end.min(self.geometry.sectors().0) - start))
    }

    /// Some regions are hydrated now; whoever says so holds their locks.
    fn mark(&self, regions: Range<u32>) {
        self.hydration.forget_failures(&regions);
        let mut state = self.regions.borrow_mut();
        state.mark(regions);
        let (dirty, complete) = (state.is_dirty(), state.is_complete());
        drop(state);
        if dirty {
            self.note_dirty();
        }
        if complete {
            self.hydration.work.raise();
        }
    }

    /// Gives up changing anything but what is hydrated.
    fn latch(&self, what: &str) {
        if !self.latched.replace(true) {
            tracing::error!("clone: {what} failed: regions that are not hydrated take no writes until the clone is opened again");
            self.events.raise();
        }
    }

    /// Whether discards go on to the destination.
    fn passes_discards(&self) -> bool {
        self.options.get().discard_passdown && self.destination.target.limits().discard != Ability::No
    }

    fn task_left(&self) {
        self.tasks.set(self.tasks.get() - 1);
        self.left.raise();
    }

    /// Serves a request.
    fn serve(&self, bio: Bio) {
        match bio.op() {
            Op::Read => self.read(bio),
            Op::Write | Op::WriteZeroes => self.write(bio),
            Op::Discard => self.discard(bio),
            Op::Flush => self.end_with_commit(bio),
        }
    }

    fn start(&self, bio: Bio) {
        self.changes.get().expect("jobs are made when the clone opens").start((self.me(), bio));
    }

    /// Sends a request down as it is. While there is something to hydrate its time is taken, so that
    /// hydration can step back.
    fn pass(&self, bio: Bio, below: &Leg) {
        let began = (!self.hydration.is_over()).then(|| self.reactor.now());
        self.below.pass(bio, began, self.me() as Rc<dyn End>, &*below.target);
    }

    /// Has `submit` send a request down, whose time does not count.
    fn pass_untimed(&self, bio: Bio, submit: impl FnOnce(Bio)) {
        self.below.pass_with(bio, None, self.me() as Rc<dyn End>, submit);
    }
}

impl End for CloneTarget {
    fn bio_ended(&self, part: Bio, token: u64) {
        let (bio, began) = self.below.take(token);
        let status = part.status();
        drop(part);
        if let Some(began) = began {
            let now = self.reactor.now();
            self.hydration.request_ended(now.saturating_sub(began), now);
        }
        bio.end(status);
    }
}

impl Target for CloneTarget {
    fn kind(&self) -> &'static str {
        "clone"
    }

    fn limits(&self) -> Limits {
        let destination = self.destination.target.limits();
        let region_bytes = self.geometry.region_sectors() * 512;
        let grain = if self.passes_discards() { destination.discard_grain_bytes } else { region_bytes };
        Limits {
            discard: Ability::Native,
            discard_grain_bytes: grain,
            write_zeroes: destination.write_zeroes,
            flush: Ability::Native,
            fua: destination.fua,
            ..destination.stack(self.source.target.limits())
        }
    }

    fn sectors(&self) -> SectorCount {
        self.geometry.sectors()
    }

    fn submit(&self, bio: Bio) {
        if self.suspended.get() {
            return self.waiting.borrow_mut().push_back(bio);
        }
        self.serve(bio);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        if extent.count.0 == 0 {
            return;
        }
        let Range { mut start, end } = self.touched(extent);
        while start < end && !out.is_full() {
            let (hydrated, run_end) = self.regions.borrow().run(start..end);
            let below = if hydrated { &self.destination } else { &self.source };
            out.below(&*below.target, common(self.extent(&(start..run_end)), extent));
            start = run_end;
        }
    }
}

/// What two extents that overlap have in common.
fn common(one: Extent, other: Extent) -> Extent {
    let (start, end) = (one.start.max(other.start), one.end().min(other.end()));
    Extent::new(start, end.since(start).expect("they overlap"))
}

fn narrow(region: u64) -> u32 {
    u32::try_from(region).expect("a clone has at most 2^31 regions")
}
