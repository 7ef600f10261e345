//! The origin of snapshots: a change first saves what it would overwrite to every snapshot that lacks it.
//!
//! ```text
//!   change ─▶ which chunks does who lack ─▶ copy once, to all of them ─▶ their stores commit
//!                                                       ─▶ their reads of the old content end ─▶ the change
//! ```
//!
//! Invariants:
//! - I1: a change reaches the device only when every usable snapshot that reaches so far has each of
//!   its chunks durably, and every other one is durably marked as lost.
//! - I2: it also waits for reads of snapshots that went to the device before they had the chunk.
//! - I3: a chunk that several snapshots lack is read once.
//! - I4: reads and flushes pass on at once, and so do changes of which nothing must be saved.
//! - I5: while changes wait here, no snapshot leaves: they would no longer be saved for it.
//! - I6: while a merge that was opened is not open any more and not at its end, the device is neither what
//!   it was nor what it will be, and is not shown.
//!
//! Whatever becomes of a snapshot, the change goes on: the origin is worth more.

mod copy;
mod front;
mod tracked;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_block::{Bio, Extent, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use self::copy::copy;
use super::merge::Merge;
use super::{Snapshot, SnapshotError};
use crate::copy::{Engine, Settings};
use crate::event::Event;

pub(super) use self::copy::{Run, all, copy as copy_runs};
pub use self::front::OriginFront;
pub(super) use self::tracked::Tracked;

/// Changes that are saved for at once; more wait.
const CHANGES_MAX: usize = 256;

/// A device that snapshots are taken of.
pub struct Origin {
    this: Weak<Self>,
    device: Rc<dyn Target>,
    engine: Engine,
    /// Those with the largest chunks first.
    snapshots: RefCell<Vec<Weak<Snapshot>>>,
    /// The snapshot that is merged into it.
    merge: RefCell<Weak<Merge>>,
    /// The store of one that was begun and is not open (I6).
    unfinished: RefCell<Option<Rc<dyn Target>>>,
    /// Fronts of it that are open.
    fronts: Cell<u64>,
    pub(super) reads: Tracked,
    changes: JobPool<(Rc<Self>, Bio)>,
    /// Changes that wait until something is saved (I5).
    waiting: Cell<u64>,
    /// None does any more.
    quiet: Event,
}

impl Origin {
    /// The origin on `device`, without snapshots.
    #[must_use]
    pub fn new(reactor: &Reactor, pool: &BufferPool, device: Rc<dyn Target>) -> Rc<Self> {
        let changes = reactor.job_pool(CHANGES_MAX, |(origin, bio): (Rc<Self>, Bio)| origin.change_later(bio));
        Rc::new_cyclic(|this| Self {
            this: this.clone(),
            device,
            engine: Engine::new(reactor, pool, &Settings::default()),
            snapshots: RefCell::default(),
            merge: RefCell::new(Weak::new()),
            unfinished: RefCell::default(),
            fronts: Cell::default(),
            reads: Tracked::default(),
            changes,
            waiting: Cell::default(),
            quiet: Event::default(),
        })
    }

    /// What it is on.
    #[must_use]
    pub fn device(&self) -> &Rc<dyn Target> {
        &self.device
    }

    /// What copies from it and to it.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Snapshots of it that are open.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Rc<Snapshot>> {
        self.snapshots.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether nobody who belongs to this origin has a store on `cow`.
    pub(super) fn check_free(&self, cow: &Rc<dyn Target>) -> Result<(), SnapshotError> {
        let same = |other: &Rc<dyn Target>| std::ptr::addr_eq(Rc::as_ptr(other), Rc::as_ptr(cow));
        let merged = self.merge.borrow().upgrade().is_some_and(|merge| same(merge.cow()));
        let free = !merged && !same(&self.device) && self.all(None, |snapshot| !same(snapshot.cow()));
        if free { Ok(()) } else { Err(SnapshotError::InUse) }
    }

    /// The snapshot that is merged into it.
    pub(super) fn merging(&self) -> Option<Rc<Merge>> {
        self.merge.borrow().upgrade()
    }

    /// Whether the store on `cow` may be merged into it: no other one is, or was before its end.
    pub(super) fn check_mergeable(&self, cow: &Rc<dyn Target>) -> Result<(), SnapshotError> {
        let other = |store: &Rc<dyn Target>| !std::ptr::addr_eq(Rc::as_ptr(store), Rc::as_ptr(cow));
        let busy = self.merging().is_some() || self.unfinished.borrow().as_ref().is_some_and(other);
        let (own, limits) = (self.device.limits(), cow.limits());
        let coarse = limits.logical_bytes > own.logical_bytes || limits.memory_align > own.memory_align;
        match (busy, coarse && self.fronts.get() > 0) {
            (true, _) => Err(SnapshotError::Merging),
            (false, true) => Err(SnapshotError::Fronted),
            (false, false) => Ok(()),
        }
    }

    pub(super) fn merged_by(&self, merge: &Rc<Merge>) {
        *self.merge.borrow_mut() = Rc::downgrade(merge);
        self.unfinished.take();
    }

    /// A merge went away before its end (I6).
    pub(super) fn left_unfinished(&self, cow: &Rc<dyn Target>) {
        *self.unfinished.borrow_mut() = Some(Rc::clone(cow));
    }

    /// A snapshot begins to be saved for.
    pub(super) fn join(&self, snapshot: &Rc<Snapshot>) {
        let mut snapshots = self.snapshots.borrow_mut();
        snapshots.retain(|other| other.strong_count() > 0);
        let larger = |other: &Weak<Snapshot>| other.upgrade().is_some_and(|other| other.chunk() >= snapshot.chunk());
        let at = snapshots.iter().position(|other| !larger(other)).unwrap_or(snapshots.len());
        snapshots.insert(at, Rc::downgrade(snapshot));
    }

    /// Nothing is saved for a snapshot any more.
    pub(super) fn leave(&self, snapshot: &Snapshot) {
        self.snapshots.borrow_mut().retain(|other| !std::ptr::eq(other.as_ptr(), snapshot));
    }

    /// Calls `look` for every open snapshot but one; whether all answers were yes.
    fn all(&self, but: Option<&Snapshot>, look: impl Fn(&Rc<Snapshot>) -> bool) -> bool {
        let but = but.map(std::ptr::from_ref);
        let snapshots = self.snapshots.borrow();
        let mut others = snapshots.iter().filter_map(Weak::upgrade).filter(|other| Some(Rc::as_ptr(other)) != but);
        others.all(|snapshot| look(&snapshot))
    }

    /// Changes the device as `bio` says, once everything is saved (I1, I2).
    pub(super) fn change(&self, bio: Bio) {
        let extent = bio.extent();
        if !self.reads.overlaps(extent) && self.all(None, |snapshot| snapshot.has(extent)) {
            return self.device.submit(bio);
        }
        self.wait_more();
        self.changes.start((self.this.upgrade().expect("whoever sends a change holds the origin"), bio));
    }

    async fn change_later(self: Rc<Self>, bio: Bio) {
        self.save(bio.extent(), None).await;
        self.device.submit(bio);
        self.wait_less();
    }

    /// A change begins to wait (I5).
    pub(super) fn wait_more(&self) {
        self.waiting.set(self.waiting.get() + 1);
    }

    /// A change has gone on to the device.
    pub(super) fn wait_less(&self) {
        self.waiting.set(self.waiting.get() - 1);
        if self.waiting.get() == 0 {
            self.quiet.raise();
        }
    }

    /// Waits until no change waits (I5).
    pub(super) async fn quiet(&self) {
        while self.waiting.get() > 0 {
            self.quiet.after(self.quiet.count(), None).await;
        }
    }

    /// Returns when `extent` may be changed: every snapshot `but` one has it, and nobody reads it any
    /// more on behalf of one (I1, I2).
    pub(super) async fn save(&self, extent: Extent, but: Option<&Snapshot>) {
        loop {
            let busy = RefCell::new(None);
            let wait_for = |snapshot: &Rc<Snapshot>| {
                *busy.borrow_mut() = Some(Rc::clone(snapshot));
                false
            };
            if !self.all(but, |snapshot| !snapshot.copies_enough(extent) || wait_for(snapshot)) {
                Snapshot::settles(busy.take()).await;
                continue;
            }
            let runs = self.claim(extent, but);
            if !runs.is_empty() {
                copy(&self.engine, &self.device, &runs).await;
                continue;
            }
            if self.all(but, |snapshot| snapshot.has(extent) || wait_for(snapshot)) {
                break;
            }
            Snapshot::settles(busy.take()).await;
        }
        self.reads.clear_of(extent).await;
    }

    /// Gives every chunk of `extent` that a snapshot lacks, and nobody copies, a place in its store.
    fn claim(&self, extent: Extent, but: Option<&Snapshot>) -> Vec<Run> {
        let runs = RefCell::new(Vec::new());
        self.all(but, |snapshot| {
            snapshot.claim(extent, &mut runs.borrow_mut());
            true
        });
        runs.into_inner()
    }
}
