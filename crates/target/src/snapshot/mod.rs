//! Snapshots: a second view of a device as it was, which keeps what either side overwrites in a store.
//!
//! ```text
//!   snapshot-origin           snapshot                      snapshot
//!        │ changes: save first    │ reads: store, else origin   │ writes: into the store only
//!        ▼                        ▼                             ▼
//!     Origin ── chunks of old content ──▶ store A     store B ◀── …      one origin, any number of snapshots
//! ```
//!
//! | part | what it does |
//! |---|---|
//! | [`options`] | the words of a table line |
//! | [`disk`] | the store as bytes, pure |
//! | [`map`] | which chunk is kept where, pure |
//! | `store` | gives out chunks, commits, loads; `flushes`: its device's, one at a time |
//! | `origin` | what a change of the origin saves, for all snapshots at once |
//! | `request` | what requests to a snapshot do |
//! | `merge` | a snapshot goes back into its origin |
//!
//! Invariants:
//! - I1: a chunk is in the map only when its entry and its data are durable. A crash before that is as
//!   if it had never been copied, which is right: nothing has changed the origin yet.
//! - I2: a chunk is either in the map, pending, or neither; who makes it pending sees to it that it
//!   gets in, or gives it up.
//! - I3: commits come in groups: what was copied while one was under way is in the next, and its data is
//!   durable by the flush of the one before.
//! - I4: a snapshot that has lost something is invalid for ever, and says so on disk before the origin
//!   changes what it lacks. Every request to it fails.
//! - I5: so has one whose store failed a flush, whoever asked for it: what waits for a commit may be gone by
//!   then, and another flush that succeeds says nothing about that. So there is one at a time, and a write with
//!   FUA, which may be a flush on the way down, is a write and one of these.
//! - I6: a snapshot that is only full (store `PO`) can still be read, and fails every change.
//!
//! Units: sectors of 512 bytes, chunks of the snapshot.
//!
//! Sources: the observable behaviour of the `snapshot` target 1.16.0.

pub mod disk;
mod error;
mod flushes;
mod holes;
pub mod map;
mod merge;
pub mod options;
mod origin;
mod request;
mod store;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Ability, Bio, Extent, Limits, Op, Sector, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use self::disk::Exception;
use self::map::ExceptionMap;
use self::options::{Discards, StoreKind};
use self::origin::Run;
use self::store::{Loaded, Store};
use crate::below::{BuildError, Parked, check_fit, check_multiple};
use crate::event::Event;

pub use self::error::SnapshotError;
pub use self::merge::{Merge, MergeCondition, MergeSetup, MergeStatus, merge};
pub use self::origin::{Origin, OriginFront};
pub use self::store::Usage;

/// Requests that wait for a commit at once; more wait in front.
const REQUESTS_MAX: usize = 256;
/// Chunks in copy for one snapshot, beyond which changes wait: the kernel's number.
const COPIES_MAX: usize = 2048;
/// The default of a chunk, sectors.
const CHUNK_DEFAULT: u64 = 32;
/// How often the mark of an invalid store is tried before the origin goes on without it.
const MARK_TRIES: u32 = 3;
/// When it is tried again then, and again.
const MARK_AGAIN: Duration = Duration::from_secs(10);

/// What a snapshot is made of.
pub struct Setup {
    /// What it is of.
    pub origin: Rc<Origin>,
    /// Where its store is; another device than the origin's.
    pub cow: Rc<dyn Target>,
    /// Size, sectors; at most that of the origin.
    pub sectors: SectorCount,
    /// What keeps the chunks.
    pub store: StoreKind,
    /// Size of a chunk, sectors; 0 for the default. What a store on the device says wins.
    pub chunk_sectors: u64,
    /// What a discard does.
    pub discards: Discards,
    /// Whether neighbouring chunks are copied together. Off is for measuring what that saves.
    pub coalesce: bool,
}

/// How a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// It works.
    #[default]
    Active,
    /// Its store is full: it can be read, and not be changed.
    Overflowed,
    /// It has lost something, for ever.
    Invalid,
}

/// What a snapshot tells about itself; printed as the kernel's status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// How it is.
    pub condition: Condition,
    /// What its store has given out.
    pub usage: Usage,
    /// Chunks that are kept.
    pub exceptions: u64,
    /// Size of a chunk, sectors.
    pub chunk_sectors: u64,
    /// Commits so far.
    pub commits: u64,
}

impl fmt::Display for SnapshotStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { used, total, metadata } = self.usage;
        match self.condition {
            Condition::Active => write!(f, "{used}/{total} {metadata}"),
            Condition::Overflowed => f.write_str("Overflow"),
            Condition::Invalid => f.write_str("Invalid"),
        }
    }
}

/// A snapshot of an [`Origin`].
pub struct Snapshot {
    this: Weak<Self>,
    origin: Rc<Origin>,
    cow: Rc<dyn Target>,
    sectors: SectorCount,
    kind: StoreKind,
    discards: Discards,
    coalesce: bool,
    store: Store,
    map: RefCell<ExceptionMap>,
    /// Chunks of the origin that have a place in the store and are not durable there (I2).
    pending: RefCell<BTreeSet<u64>>,
    /// Those of them whose data is written, with the flushes that were begun by then; `None` where it is durable.
    ready: RefCell<Vec<(Exception, Option<u64>)>>,
    condition: Cell<Condition>,
    /// The store is still to be marked as invalid (I4).
    mark_due: Cell<bool>,
    /// It could not be, and the origin has gone on: it is tried now and then.
    unmarked: Cell<bool>,
    closed: Cell<bool>,
    commits: Cell<u64>,
    /// The committer has something to do.
    work: Event,
    /// Chunks came into the map, or were given up; or the store is marked.
    settled: Event,
    events: Rc<Event>,
    /// Reads that went to the origin, by their numbers.
    parked: Parked<usize>,
    jobs: JobPool<(Rc<Self>, Bio)>,
}

/// Opens a snapshot: loads its store, or makes one. From here on its origin saves for it.
///
/// # Errors
/// [`SnapshotError`], one sentence.
pub async fn open(reactor: &Reactor, pool: &BufferPool, setup: Setup) -> Result<Rc<Snapshot>, SnapshotError> {
    let Setup { origin, cow, sectors, store: kind, chunk_sectors, discards, coalesce } = setup;
    check_fit("snapshot", &**origin.device(), Sector(0), sectors)?;
    origin.check_free(&cow)?;
    let chunk_sectors = chunk_for("snapshot", chunk_sectors, &origin, &*cow)?;
    let Loaded { store, valid, entries } = match kind {
        StoreKind::Persistent { .. } => Box::pin(Store::open(Rc::clone(&cow), pool, chunk_sectors)).await?,
        StoreKind::Transient => {
            Loaded { store: Store::transient(Rc::clone(&cow), pool, chunk_sectors), valid: true, entries: Vec::new() }
        }
    };
    chunk_for("snapshot", store.layout().chunk_sectors(), &origin, &*cow)?;
    let mut map = ExceptionMap::default();
    for entry in entries {
        map.insert(entry);
    }
    let snapshot = Rc::new_cyclic(|this| Snapshot {
        this: this.clone(),
        origin: Rc::clone(&origin),
        cow,
        sectors,
        kind,
        discards,
        coalesce,
        store,
        map: RefCell::new(map),
        pending: RefCell::default(),
        ready: RefCell::default(),
        condition: Cell::new(if valid { Condition::Active } else { Condition::Invalid }),
        mark_due: Cell::new(false),
        unmarked: Cell::new(false),
        closed: Cell::new(false),
        commits: Cell::new(0),
        work: Event::default(),
        settled: Event::default(),
        events: Rc::default(),
        parked: Parked::default(),
        jobs: reactor.job_pool(REQUESTS_MAX, |(snapshot, bio): (Rc<Snapshot>, Bio)| snapshot.later(bio)),
    });
    if !reactor.spawn(Rc::clone(&snapshot).committer(reactor.clone())) {
        return Err(BuildError::TooManyTasks { kind: "snapshot" }.into());
    }
    origin.join(&snapshot);
    Ok(snapshot)
}

/// The size of a chunk, sectors: what is asked for, or the default, if that fits both devices.
fn chunk_for(kind: &'static str, asked: u64, origin: &Origin, cow: &dyn Target) -> Result<u64, BuildError> {
    let block = |target: &dyn Target| u64::from(target.limits().logical_bytes / 512);
    let chunk = if asked == 0 { CHUNK_DEFAULT.max(block(cow)) } else { asked };
    check_multiple(kind, "chunk", chunk, block(cow))?;
    check_multiple(kind, "chunk", chunk, block(&**origin.device()))?;
    Ok(chunk)
}

impl Snapshot {
    /// What it is of.
    #[must_use]
    pub fn origin(&self) -> &Rc<Origin> {
        &self.origin
    }

    /// The letters of its store, as in a table line.
    #[must_use]
    pub fn store_word(&self) -> &'static str {
        self.kind.word()
    }

    /// What it tells about itself.
    #[must_use]
    pub fn status(&self) -> SnapshotStatus {
        SnapshotStatus {
            condition: self.condition.get(),
            usage: self.store.usage(),
            exceptions: self.map.borrow().len(),
            chunk_sectors: self.chunk(),
            commits: self.commits.get(),
        }
    }

    /// What people wait for: it became invalid, or full.
    #[must_use]
    pub fn events(&self) -> Rc<Event> {
        Rc::clone(&self.events)
    }

    /// Waits until all that was begun is durable, and ends: its origin saves nothing for it any more, so a
    /// merge into the origin ends, too. The last thing done, once nobody sends requests to it or to its origin.
    pub async fn close(&self) {
        if let Some(merge) = self.origin.merging().filter(|_| self.outlives() && !self.is_invalid()) {
            merge.stop().await;
        }
        self.origin.quiet().await;
        while !self.pending.borrow().is_empty() || self.mark_due.get() {
            self.settled.after(self.settled.count(), None).await;
            self.origin.quiet().await;
        }
        self.mark_once().await;
        self.closed.set(true);
        self.work.raise();
        self.origin.leave(self);
    }

    /// Size of a chunk, sectors.
    fn chunk(&self) -> u64 {
        self.store.layout().chunk_sectors()
    }

    /// Whether what it keeps outlives the process.
    fn outlives(&self) -> bool {
        self.kind != StoreKind::Transient
    }

    fn cow(&self) -> &Rc<dyn Target> {
        &self.cow
    }

    fn is_invalid(&self) -> bool {
        self.condition.get() == Condition::Invalid
    }

    /// The chunks that `extent` touches, as far as the snapshot reaches.
    fn chunks(&self, extent: Extent) -> Range<u64> {
        let end = extent.end().0.min(self.sectors.0);
        let (first, end) = (extent.start.0 / self.chunk(), end.div_ceil(self.chunk()));
        first..end.max(first)
    }

    /// Whether the origin may change `extent` as far as this snapshot is concerned.
    fn has(&self, extent: Extent) -> bool {
        if self.is_invalid() { !self.mark_due.get() } else { self.map.borrow().covers(self.chunks(extent)) }
    }

    /// Whether so many copies are under way that another one should wait.
    fn copies_enough(&self, extent: Extent) -> bool {
        !self.is_invalid() && self.pending.borrow().len() > COPIES_MAX && !self.has(extent)
    }

    /// Waits until something settles in a snapshot.
    async fn settles(who: Option<Rc<Self>>) {
        if let Some(snapshot) = who {
            snapshot.settled.after(snapshot.settled.count(), None).await;
        }
    }

    /// Whether a chunk of `chunks` is pending.
    fn is_pending(&self, chunks: Range<u64>) -> bool {
        self.pending.borrow().range(chunks).next().is_some()
    }

    /// Takes every chunk of `extent` that is lacking and not pending for the caller, who copies it. A
    /// store without room is lost, even where a write of its own would only make it full (I4).
    fn claim(&self, extent: Extent, runs: &mut Vec<Run>) {
        if self.is_invalid() {
            return;
        }
        let missing: Vec<Range<u64>> = {
            let map = self.map.borrow();
            map.stretches(self.chunks(extent)).filter(|stretch| stretch.new.is_none()).map(|stretch| stretch.old).collect()
        };
        for old in missing.into_iter().flatten() {
            if self.pending.borrow().contains(&old) {
                continue;
            }
            let Some(new) = self.store.allocate() else {
                return self.invalidate("its store is full, and the origin changes");
            };
            self.pending.borrow_mut().insert(old);
            self.push_run(runs, old, new);
        }
    }

    /// Adds a chunk to the last run where it continues that, else as a run of its own.
    fn push_run(&self, runs: &mut Vec<Run>, old: u64, new: u64) {
        match runs.last_mut() {
            Some(run)
                if self.coalesce
                    && std::ptr::eq(Rc::as_ptr(&run.snapshot), self)
                    && run.old + run.count == old
                    && run.new + run.count == new =>
            {
                run.count += 1;
            }
            _ => runs.push(Run { snapshot: self.this.upgrade().expect("whoever asks holds it"), old, new, count: 1 }),
        }
    }

    /// The data of pending chunks is written: they are in the next commit.
    fn copied(&self, exceptions: impl Iterator<Item = Exception>, durable: bool) {
        if !self.is_invalid() {
            let begun = (!durable).then(|| self.store.flushes_begun());
            self.ready.borrow_mut().extend(exceptions.map(|exception| (exception, begun)));
            self.work.raise();
        }
    }

    /// Gives up pending chunks.
    fn give_up(&self, chunks: impl Iterator<Item = u64>) {
        let mut pending = self.pending.borrow_mut();
        for chunk in chunks {
            pending.remove(&chunk);
        }
        drop(pending);
        self.settled.raise();
    }

    /// The snapshot has lost something (I4).
    fn invalidate(&self, why: &str) {
        if self.is_invalid() {
            return;
        }
        tracing::error!("snapshot: {why}; it is invalid from now on, and all its requests fail: remove it");
        self.condition.set(Condition::Invalid);
        self.mark_due.set(true);
        self.pending.borrow_mut().clear();
        self.ready.borrow_mut().clear();
        self.work.raise();
        self.settled.raise();
        self.events.raise();
    }

    /// A write of the snapshot's own found no room.
    fn overflow(&self) {
        if self.kind == (StoreKind::Persistent { overflow: true }) {
            tracing::error!("snapshot: its store is full; it can be read, and not be changed any more");
            self.condition.set(Condition::Overflowed);
            self.events.raise();
        } else {
            self.invalidate("its store is full");
        }
    }

    /// The task that makes groups of chunks durable, one at a time, until the snapshot closes (I3).
    async fn committer(self: Rc<Self>, reactor: Reactor) {
        while !self.closed.get() {
            let seen = self.work.count();
            if self.mark_due.get() {
                self.mark().await;
                continue;
            }
            if self.ready.borrow().is_empty() {
                self.work.after(seen, self.unmarked.get().then(|| reactor.sleep(MARK_AGAIN))).await;
                self.mark_once().await;
                continue;
            }
            let mut batch: Vec<Exception> = self.durable_data();
            batch.sort_unstable_by_key(|exception| exception.new);
            let status = if batch.is_empty() { self.store.flush().await } else { self.store.commit(&batch).await };
            if self.is_invalid() {
                continue;
            }
            if !status.is_ok() {
                self.invalidate("its metadata could not be written");
                continue;
            }
            self.commits.set(self.commits.get() + u64::from(!batch.is_empty()));
            let mut map = self.map.borrow_mut();
            for &exception in &batch {
                map.insert(exception);
            }
            drop(map);
            self.give_up(batch.iter().map(|exception| exception.old));
        }
    }

    /// Takes out of what is ready that of which the data is durable: under load the flush of one commit
    /// makes it so for the next.
    fn durable_data(&self) -> Vec<Exception> {
        let mut ready = self.ready.borrow_mut();
        let durable = ready.extract_if(.., |(_, begun)| begun.is_none_or(|begun| self.store.is_flushed(begun)));
        durable.map(|(exception, _)| exception).collect()
    }

    /// Marks the store as invalid, if that is possible now.
    async fn mark(&self) {
        self.unmarked.set(true);
        for _ in 0..MARK_TRIES {
            self.mark_once().await;
        }
        if self.unmarked.get() {
            tracing::error!("snapshot: its store could not be marked as invalid, which is tried on: do not use it again");
        }
        self.mark_due.set(false);
        self.settled.raise();
    }

    async fn mark_once(&self) {
        if self.unmarked.get() && self.store.invalidate().await.is_ok() {
            self.unmarked.set(false);
            tracing::info!("snapshot: its store is marked as invalid");
        }
    }
}

impl Target for Snapshot {
    fn kind(&self) -> &'static str {
        "snapshot"
    }

    fn limits(&self) -> Limits {
        let limits = self.cow.limits().stack(self.origin.device().limits());
        let (discard, grain) = match self.discards {
            Discards::Refused => (Ability::No, 0),
            _ => (Ability::Native, u32::try_from(self.chunk() * 512).unwrap_or(u32::MAX)),
        };
        let (flush, fua) = (self.cow.limits().flush, self.cow.limits().fua);
        Limits { discard, discard_grain_bytes: grain, write_zeroes: Ability::No, flush, fua, ..limits }
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        match bio.op() {
            Op::Flush => self.in_steps(bio),
            Op::WriteZeroes => bio.end(Status::Unsupported),
            Op::Discard if self.discards == Discards::Refused => bio.end(Status::Unsupported),
            _ if self.is_invalid() => bio.end(Status::IoError),
            Op::Read => self.read(bio),
            Op::Write | Op::Discard if self.condition.get() != Condition::Active => bio.end(Status::IoError),
            Op::Write => self.write(bio),
            Op::Discard => self.in_steps(bio),
        }
    }
}
