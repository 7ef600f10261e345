//! Merging a snapshot back into its origin: `snapshot-merge`, a view of the snapshot while that happens.
//!
//! ```text
//!   entries  ■■■■■■■■■■■■■■■│■■■■■■■│     ① the last ones: new writes to their chunks wait
//!                           └───────┘     ② other snapshots keep what the origin has there
//!                               │         ③ copied to the origin, sorted, all runs side by side
//!                               ▼         ④ one flush of the origin
//!   entries  ■■■■■■■■■■■■■■■│□□□□□□□│     ⑤ cleared on disk, with FUA; ⑥ writes go on, to the origin
//! ```
//!
//! Invariants:
//! - I1: an entry is cleared only when its content is durable on the origin; a chunk is written on the
//!   origin by others only when its entry is durably cleared. A crash at any step leaves entries that
//!   are copied once more, which changes nothing.
//! - I2: entries are cleared from the end of the list, so what is left is a list.
//! - I3: nothing is written to a chunk of the store while it is being copied.
//! - I4: a flush that failed ends the merging, and no later one succeeds: what it should have made
//!   durable may be gone. Flushes of a device go one after the other, and a write with FUA is one.
//! - I5: any other error ends the merging, and requests go on: to the store where a chunk still has an entry.
//! - I6: where clearing entries failed, nobody knows which of them are still there. Writes to their chunks
//!   go to the store and to the origin, which hold the same by then: what is opened next finds them anyway.
//!
//! A step begins when the rate allows it, and later while requests take longer than they should; nothing waits for
//! it before.
//!
//! Units: sectors of 512 bytes, chunks of the snapshot.

mod status;

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Ability, Bio, End, Extent, Flags, Limits, Op, Sector, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use super::disk::{Exception, Layout};
use super::flushes::Flushes;
use super::map::{ExceptionMap, Stretch};
use super::origin::{Tracked, all};
use super::store::{Loaded, Store};
use super::{Origin, SnapshotError, chunk_for};
use crate::below::{Parked, check_fit};
use crate::copy::pace::Pace;
use crate::copy::{How, Leg};
use crate::event::Event;

pub use self::status::{MergeCondition, MergeStatus};

/// Entries that are merged under one flush.
const STEP_ENTRIES: usize = 2048;
/// Bytes that are merged under one flush, but at least one chunk.
const STEP_BYTES: u64 = 8 << 20;
/// Steps into which what may be merged in a second is cut at least.
const STEPS_A_SECOND: u64 = 8;
/// What requests may take before steps begin later, as in a mirror.
const FOREGROUND: Duration = Duration::from_millis(10);
/// Writes that wait for a step at once; more wait in front.
const REQUESTS_MAX: usize = 256;

/// What is merged.
pub struct MergeSetup {
    /// Where it goes.
    pub origin: Rc<Origin>,
    /// Where the store is, which no snapshot uses.
    pub cow: Rc<dyn Target>,
    /// Size, sectors; at most that of the origin.
    pub sectors: SectorCount,
    /// Size of a chunk, sectors; 0 for the default. What a store on the device says wins.
    pub chunk_sectors: u64,
    /// Most bytes per second that are merged; `None` for no limit.
    pub rate: Option<NonZeroU64>,
}

/// A snapshot that goes back into its [`Origin`].
pub struct Merge {
    this: Weak<Self>,
    origin: Rc<Origin>,
    cow: Rc<dyn Target>,
    sectors: SectorCount,
    store: Store,
    map: RefCell<ExceptionMap>,
    /// In the order in which they stand on disk.
    entries: RefCell<Vec<Exception>>,
    /// What the present step copies.
    step: RefCell<Vec<Extent>>,
    /// Chunks whose entries may be there or not (I6).
    torn: RefCell<Vec<Extent>>,
    condition: Cell<MergeCondition>,
    steps: Cell<u64>,
    reactor: Reactor,
    pace: Pace,
    /// Most bytes of a step, but for one chunk.
    step_bytes: u64,
    /// Reads and writes, with when they came.
    timed: Parked<Duration>,
    begun: Cell<bool>,
    closed: Cell<bool>,
    /// The task has ended.
    over: Cell<bool>,
    /// Writes to chunks of the store.
    writes: Tracked,
    /// Of the origin; those of the store are its own.
    flushes: Flushes,
    /// A flush failed.
    in_doubt: Cell<bool>,
    /// A step ended, or the merge is closed.
    progress: Event,
    events: Rc<Event>,
    jobs: JobPool<(Rc<Self>, Bio)>,
}

/// Opens the store on `cow`. It is merged from [`Merge::begin`] on.
///
/// # Errors
/// [`SnapshotError`], one sentence.
pub async fn merge(reactor: &Reactor, pool: &BufferPool, setup: MergeSetup) -> Result<Rc<Merge>, SnapshotError> {
    let MergeSetup { origin, cow, sectors, chunk_sectors, rate } = setup;
    check_fit("snapshot-merge", &**origin.device(), Sector(0), sectors)?;
    origin.check_free(&cow)?;
    origin.check_mergeable(&cow)?;
    let chunk_sectors = chunk_for("snapshot-merge", chunk_sectors, &origin, &*cow)?;
    let Loaded { store, valid, entries } = Box::pin(Store::open(Rc::clone(&cow), pool, chunk_sectors)).await?;
    chunk_for("snapshot-merge", store.layout().chunk_sectors(), &origin, &*cow)?;
    // What the origin does not reach any more has nowhere to go.
    let chunks = origin.device().sectors().0.div_ceil(store.layout().chunk_sectors());
    if let Some(entry) = entries.iter().find(|entry| entry.old >= chunks) {
        return Err(SnapshotError::BeyondOrigin { chunk: entry.old, last: chunks - 1 });
    }
    let mut map = ExceptionMap::default();
    for &entry in &entries {
        map.insert(entry);
    }
    let condition = if valid { MergeCondition::Active } else { MergeCondition::Invalid };
    let merge = Rc::new_cyclic(|this| Merge {
        this: this.clone(),
        origin: Rc::clone(&origin),
        cow,
        sectors,
        store,
        map: RefCell::new(map),
        entries: RefCell::new(entries),
        step: RefCell::default(),
        torn: RefCell::default(),
        condition: Cell::new(condition),
        steps: Cell::new(0),
        reactor: reactor.clone(),
        pace: Pace::new(rate, Some(FOREGROUND)),
        step_bytes: rate.map_or(STEP_BYTES, |rate| STEP_BYTES.min(rate.get() / STEPS_A_SECOND)),
        timed: Parked::default(),
        begun: Cell::new(false),
        closed: Cell::new(false),
        over: Cell::new(false),
        writes: Tracked::default(),
        flushes: Flushes::of(origin.device()),
        in_doubt: Cell::new(false),
        progress: Event::default(),
        events: Rc::default(),
        jobs: reactor.job_pool(REQUESTS_MAX, |(merge, bio): (Rc<Merge>, Bio)| merge.later(bio)),
    });
    origin.merged_by(&merge);
    Ok(merge)
}

impl Merge {
    /// Begins to change the origin. All its other snapshots must be open by now: what they lack is
    /// saved only for those that are. Later calls do nothing.
    ///
    /// # Panics
    /// Never: whoever calls holds it.
    pub fn begin(&self) {
        let merge = self.this.upgrade().expect("whoever calls holds it");
        if !self.begun.replace(true) && !self.reactor.spawn(merge.run()) {
            tracing::error!("snapshot-merge: this thread has too many tasks: use fewer devices on it");
            self.condition.set(MergeCondition::Failed);
            self.over.set(true);
        }
    }

    /// What it tells about itself.
    #[must_use]
    pub fn status(&self) -> MergeStatus {
        let left = self.entries.borrow().len() as u64;
        MergeStatus { condition: self.condition.get(), usage: self.store.usage(), left, steps: self.steps.get() }
    }

    /// What people wait for: it has ended, because all is merged or because something failed.
    #[must_use]
    pub fn events(&self) -> Rc<Event> {
        Rc::clone(&self.events)
    }

    /// Waits until nothing is left to be merged, or an error ended it. It must have begun.
    pub async fn done(&self) {
        while !self.over.get() {
            self.progress.after(self.progress.count(), None).await;
        }
    }

    /// Ends after the present step. What is left is merged by who opens the store next; until then its
    /// origin is not shown to anybody.
    pub async fn close(&self) {
        self.closed.set(true);
        self.progress.raise();
        if self.begun.get() {
            self.done().await;
        }
    }

    /// Ends, since a snapshot of the same origin does.
    pub(super) async fn stop(&self) {
        if !self.closed.get() && !self.entries.borrow().is_empty() {
            tracing::warn!("snapshot-merge: it stops, because another snapshot that it saves for is closed: load both again");
        }
        self.close().await;
    }

    pub(super) fn cow(&self) -> &Rc<dyn Target> {
        &self.cow
    }

    fn layout(&self) -> Layout {
        self.store.layout()
    }

    /// The task that merges step by step.
    async fn run(self: Rc<Self>) {
        while !self.closed.get() && self.condition.get() == MergeCondition::Active && !self.entries.borrow().is_empty() {
            // Before anything waits for the step.
            self.wait_for_turn().await;
            if self.closed.get() {
                break;
            }
            let left = self.next_step();
            self.pace.begin((self.entries.borrow().len() - left) as u64 * self.layout().chunk_bytes(), self.reactor.now());
            let status = Box::pin(self.merge_from(left)).await;
            if status.is_ok() {
                self.steps.set(self.steps.get() + 1);
            } else {
                tracing::error!(
                    "snapshot-merge: merging ended with {status:?}; requests go on: mend the device and load it again"
                );
                self.condition.set(MergeCondition::Failed);
            }
            self.step.borrow_mut().clear();
            self.progress.raise();
        }
        self.over.set(true);
        self.progress.raise();
        if self.entries.borrow().is_empty() || self.condition.get() == MergeCondition::Failed {
            self.events.raise();
        }
    }

    /// Waits until the next step may begin, or the merge is closed.
    async fn wait_for_turn(&self) {
        loop {
            let (seen, now) = (self.progress.count(), self.reactor.now());
            let turn = self.pace.turn(now);
            if self.closed.get() || turn <= now {
                return;
            }
            self.progress.after(seen, Some(self.reactor.sleep_until(turn))).await;
        }
    }

    /// How many entries are left behind the next step.
    fn next_step(&self) -> usize {
        let most = usize::try_from((self.step_bytes / self.layout().chunk_bytes()).max(1)).unwrap_or(1);
        let entries = self.entries.borrow().len();
        entries - entries.min(most.min(STEP_ENTRIES))
    }

    /// The runs of the entries from `left` on: extents of the origin and where they are kept.
    fn runs(&self, left: usize) -> Vec<(Extent, Sector)> {
        let mut entries = self.entries.borrow()[left..].to_vec();
        entries.sort_unstable();
        let (chunk, end) = (self.layout().chunk_sectors(), self.origin.device().sectors().0);
        let mut runs: Vec<(Extent, Sector)> = Vec::new();
        for Exception { old, new } in entries {
            let start = old * chunk;
            let count = SectorCount(chunk.min(end - start));
            match runs.last_mut() {
                Some((extent, place)) if extent.end().0 == start && place.0 + extent.count.0 == new * chunk => {
                    extent.count = extent.count + count;
                }
                _ => runs.push((Extent::new(Sector(start), count), Sector(new * chunk))),
            }
        }
        runs
    }

    /// One step: everything from entry `left` on.
    async fn merge_from(&self, left: usize) -> Status {
        let runs = self.runs(left);
        *self.step.borrow_mut() = runs.iter().map(|(extent, _)| *extent).collect();
        for (extent, _) in &runs {
            self.writes.clear_of(*extent).await;
        }
        all(runs.iter().map(|(extent, _)| self.origin.save(*extent, None))).await;
        let how = How::default();
        let copy = |(extent, place): &(Extent, Sector)| {
            let from = Leg::new(Rc::clone(&self.cow), *place);
            let to = [Leg::new(Rc::clone(self.origin.device()), extent.start)];
            let (count, how) = (extent.count, &how);
            async move { self.origin.engine().copy(&from, &to, count, how).await }
        };
        let outcomes = all(runs.iter().map(copy)).await;
        let mut status = outcomes.iter().fold(Status::Ok, |status, outcome| status.and(outcome.status()));
        if status.is_ok() {
            status = self.flushes.flush().await;
            if !status.is_ok() {
                self.in_doubt.set(true);
            }
        }
        if self.in_doubt.get() {
            status = status.and(Status::IoError);
        }
        if status.is_ok() {
            let kept = self.entries.borrow()[..left].to_vec();
            status = self.store.forget(&kept).await;
            if !status.is_ok() {
                self.in_doubt.set(true);
                self.torn.replace(self.step.take());
            }
        }
        if status.is_ok() {
            let gone = self.entries.borrow_mut().split_off(left);
            let mut map = self.map.borrow_mut();
            for exception in gone {
                map.remove(exception.old);
            }
        }
        status
    }

    /// What `extent` is made of, as extents of the origin and where they are kept.
    fn layers(&self, extent: Extent) -> Vec<(Extent, Option<Sector>)> {
        if self.condition.get() == MergeCondition::Invalid {
            return vec![(extent, None)];
        }
        let chunk = self.layout().chunk_sectors();
        let layer = |stretch: Stretch| {
            let start = (stretch.old.start * chunk).max(extent.start.0);
            let end = (stretch.old.end * chunk).min(extent.end().0);
            let place = stretch.new.map(|new| Sector(new * chunk + (start - stretch.old.start * chunk)));
            (Extent::new(Sector(start), SectorCount(end - start)), place)
        };
        let chunks = extent.start.0 / chunk..extent.end().0.div_ceil(chunk);
        self.map.borrow().stretches(chunks).map(layer).collect()
    }

    /// Does a request of a client, whose time counts.
    fn pass(&self, bio: Bio, request: impl FnOnce(Bio)) {
        let end = self.this.upgrade().expect("whoever sends a request holds it") as Rc<dyn End>;
        self.timed.pass_with(bio, self.reactor.now(), end, request);
    }

    fn read(&self, bio: Bio) {
        let extent = bio.extent();
        match self.layers(extent).as_slice() {
            [(_, None)] => self.origin.device().submit(bio),
            [(_, Some(place))] => self.cow.submit(bio.remap(*place)),
            layers => {
                for (part, place) in layers {
                    let piece = piece_of(&bio, *part);
                    match place {
                        Some(place) => self.cow.submit(piece.remap(*place)),
                        None => self.origin.device().submit(piece),
                    }
                }
                bio.end_after_parts();
            }
        }
    }

    fn write(&self, bio: Bio) {
        match self.layers(bio.extent()).as_slice() {
            [(_, None)] if !bio.flags().fua => self.origin.change(bio),
            _ => self.start(bio),
        }
    }

    fn start(&self, bio: Bio) {
        self.jobs.start((self.this.upgrade().expect("whoever sends a request holds it"), bio));
    }

    async fn later(self: Rc<Self>, bio: Bio) {
        if bio.op() == Op::Flush {
            let status = self.flush().await;
            return bio.end(status);
        }
        self.write_later(bio).await;
    }

    /// A write of which a part may go to the store (I3).
    async fn write_later(&self, bio: Bio) {
        let extent = bio.extent();
        while self.step.borrow().iter().any(|step| step.overlaps(extent)) {
            self.progress.after(self.progress.count(), None).await;
        }
        let slot = self.writes.begin(extent);
        for (part, place) in self.layers(extent) {
            if let Some(place) = place {
                self.cow.submit(piece_of(&bio, part).remap(place));
            }
            if place.is_none() || self.torn.borrow().iter().any(|torn| torn.overlaps(part)) {
                self.origin.change(piece_of(&bio, part));
            }
        }
        let mut status = bio.parts_done().await;
        self.writes.end(slot);
        if bio.flags().fua {
            let flushed = self.flush().await;
            status = status.and(flushed);
            self.in_doubt.set(self.in_doubt.get() | !status.is_ok());
        }
        bio.end(status);
    }

    /// Flushes both devices (I4).
    async fn flush(&self) -> Status {
        let flush = |cow: bool| async move { if cow { self.store.flush().await } else { self.flushes.flush().await } };
        let status = all([true, false].into_iter().map(flush)).await.into_iter().fold(Status::Ok, Status::and);
        self.in_doubt.set(self.in_doubt.get() | !status.is_ok());
        if self.in_doubt.get() { status.and(Status::IoError) } else { status }
    }
}

impl Drop for Merge {
    fn drop(&mut self) {
        if self.condition.get() != MergeCondition::Invalid && !self.entries.borrow().is_empty() {
            self.origin.left_unfinished(&self.cow);
        }
    }
}

impl End for Merge {
    /// A read or a write ended.
    fn bio_ended(&self, part: Bio, token: u64) {
        let (bio, began) = self.timed.take(token);
        let (status, now) = (part.status(), self.reactor.now());
        drop(part);
        self.pace.request_ended(now.saturating_sub(began), now);
        bio.end(status);
    }
}

/// The part of `bio` that is over `part`, an extent inside of its own; not durable at once, which a flush makes of all.
fn piece_of(bio: &Bio, part: Extent) -> Bio {
    let flags = Flags { fua: false, ..bio.flags() };
    bio.part(part.start.since(bio.sector()).expect("inside").to_bytes(), part.count.to_bytes()).with(flags)
}

impl Target for Merge {
    fn kind(&self) -> &'static str {
        "snapshot-merge"
    }

    fn limits(&self) -> Limits {
        let limits = self.cow.limits().stack(self.origin.device().limits());
        Limits { discard: Ability::No, discard_grain_bytes: 0, write_zeroes: Ability::No, ..limits }
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        match bio.op() {
            Op::Read => self.pass(bio, |bio| self.read(bio)),
            Op::Write => self.pass(bio, |bio| self.write(bio)),
            Op::Flush => self.start(bio),
            Op::Discard | Op::WriteZeroes => bio.end(Status::Unsupported),
        }
    }
}
