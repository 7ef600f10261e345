//! Commits: what is hydrated becomes durable, first on the destination, then in the metadata.
//!
//! ```text
//!   ① flush the destination
//!   ② write the first copies of the pages that changed
//!   ③ flush the metadata ─▶ who waits is answered
//!   ④ write the second copies
//!   ⑤ flush the metadata ─▶ the next commit may begin
//!
//!   power goes in ①: nothing has changed    ②③: first copies torn, second ones whole and of the commit before
//!                 ④⑤: the other way round
//! ```
//!
//! 1. A commit covers the regions that were hydrated when it began: ① came after their data.
//! 2. One commit at a time. Who asks while one is under way is answered by the next.
//! 3. There is one flush of the destination at a time, and each is one of these: of two side by side the
//!    one could fail and lose what the other then calls durable. After one that failed none is tried:
//!    what was written before may be lost whatever a later one says.
//! 4. Pages are written when a second has passed since the first of them changed, or earlier where a
//!    change was acknowledged that depends on them. Else a commit is ① only: hydration alone owes
//!    nobody anything.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Status, flush};

use super::CloneTarget;
use super::format::Place;
use crate::event::Event;

/// Longest time that a region stays hydrated without a commit.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// Who waits for a commit, and why there must be one.
#[derive(Default)]
pub(super) struct Commits {
    /// Flushes and durable writes that the next commit answers.
    waiting: RefCell<Vec<Bio>>,
    /// An acknowledged change depends on a region that no commit has taken.
    owed: Cell<bool>,
    /// When a region became hydrated that no commit has taken, the first.
    dirty_since: Cell<Option<Duration>>,
    /// A flush of the destination failed.
    lost: Cell<bool>,
    /// Commits that wrote pages.
    done: Cell<u64>,
    /// One is under way.
    busy: Cell<bool>,
    due: Event,
    /// Nothing more is to come: what is there is committed, and that is the end.
    closing: Cell<bool>,
}

impl Commits {
    /// An acknowledged change depends on a region that is not committed.
    pub(super) fn owe(&self) {
        self.owed.set(true);
    }

    pub(super) fn done(&self) -> u64 {
        self.done.get()
    }

    /// Whether one is under way, if only to write the second copies.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Lets the committer commit what is there, and end.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.due.raise();
    }
}

impl CloneTarget {
    /// A region became hydrated.
    pub(super) fn note_dirty(&self) {
        if self.commits.dirty_since.get().is_none() {
            self.commits.dirty_since.set(Some(self.reactor.now()));
            self.commits.due.raise();
        }
    }

    /// Ends `bio`, a flush or a write that is done, with the next commit.
    pub(super) fn end_with_commit(&self, bio: Bio) {
        if self.commits.closing.get() {
            return bio.end(Status::Aborted);
        }
        self.commits.waiting.borrow_mut().push(bio);
        self.commits.due.raise();
    }

    /// The task that commits, until the clone is closed.
    pub(super) async fn committer(&self) {
        loop {
            let seen = self.commits.due.count();
            let since = self.commits.dirty_since.get().filter(|_| !self.latched.get());
            let due = since.map(|since| since + COMMIT_EVERY);
            let asked = !self.commits.waiting.borrow().is_empty();
            let closing = self.commits.closing.get();
            let write = due.is_some_and(|due| due <= self.reactor.now());
            if closing {
                // Also where nothing is to be written: what went to the destination becomes durable.
                self.commit(true).await;
                return self.task_left();
            }
            if asked || write {
                self.commits.busy.set(true);
                self.commit(write).await;
                self.commits.busy.set(false);
            } else {
                self.commits.due.after(seen, due.map(|due| self.reactor.sleep_until(due))).await;
            }
        }
    }

    /// One commit; with `write`, of pages that nobody asked for, too.
    async fn commit(&self, write: bool) {
        let commits = &self.commits;
        let waiting = commits.waiting.take();
        let owed = commits.owed.take();
        let mut pages = Vec::new();
        if (owed || write) && !self.latched.get() {
            commits.dirty_since.set(None);
            pages = self.regions.borrow_mut().take_dirty();
        }
        let unable = commits.lost.get() || (owed && self.latched.get());
        let status = if unable { Status::IoError } else { self.make_durable(&pages).await };
        if owed && !status.is_ok() {
            commits.owe();
        }
        let written = status.is_ok() && !pages.is_empty();
        if written {
            let mut regions = self.regions.borrow_mut();
            for (page, bits) in &pages {
                regions.committed(*page, bits);
            }
            commits.done.set(commits.done.get() + 1);
        }
        for bio in waiting {
            bio.end(status);
        }
        if written {
            let second = self.metadata.write_durably(&pages, Place::Second).await;
            if !second.is_ok() {
                self.latch("a write of metadata");
            }
        }
        if written && self.regions.borrow().is_settled() {
            self.hydration.set_over();
            tracing::info!("clone: every region is hydrated: the source is not needed any more");
            self.events.raise();
        }
    }

    /// Steps ① to ③; the first only, where there are no pages.
    async fn make_durable(&self, pages: &[(u32, Vec<u64>)]) -> Status {
        let early = planted(Bug::M16MetadataBeforeData);
        let flushed = if early { Status::Ok } else { flush(&*self.destination.target).await.status() };
        if !flushed.is_ok() {
            self.commits.lost.set(true);
            self.latch("a flush of the destination");
            return flushed;
        }
        if pages.is_empty() {
            return Status::Ok;
        }
        self.metadata.next_commit();
        let status = self.metadata.write_durably(pages, Place::First).await;
        if !status.is_ok() {
            self.latch("a write of metadata");
        }
        status
    }
}
