//! Writes, zeroes and flushes: to every leg, after the log knows.
//!
//! Discards are written as zeroes: what a device gives back after a discard is its own affair, and
//! legs must not differ.

mod fan;
mod flush;

use std::rc::Rc;

use forebay_block::{Bio, Flags, Op, Status};

use super::Mirror;
use super::who::Verdict;
use crate::lock::LockRange;
pub(super) use fan::Fans;
pub(super) use flush::Flushes;

impl Mirror {
    /// Serves everything but reads.
    pub(super) async fn change(self: Rc<Self>, bio: Bio) {
        let began = self.reactor.now();
        let verdict = if self.broken.get() {
            Verdict { status: Status::IoError, ..Verdict::default() }
        } else if bio.op() == Op::Flush {
            self.flush_legs().await
        } else {
            self.write(&bio).await
        };
        self.foreground(began);
        if !verdict.status.is_ok() {
            // What it left different is copied.
            self.work.raise();
        }
        // It may have become known while the log was told.
        let hold = verdict.hold && self.features.hold() && !self.state.borrow().legs.unaccepted().is_empty();
        if verdict.status.is_ok() && hold && !self.closed.get() {
            return self.held.borrow_mut().push_back(bio);
        }
        bio.end(verdict.status);
    }

    async fn write(&self, bio: &Bio) -> Verdict {
        let extent = bio.extent();
        let guard = self.locks.lock(LockRange::new(extent.start.0, extent.count.0)).await;
        let regions = self.regions_of(extent);
        let round = self.log.write_begins(regions.clone());
        let failed = Verdict { status: Status::IoError, ..Verdict::default() };
        let verdict = if self.log.settled(round).await && !self.broken.get() { self.send(bio).await } else { failed };
        self.log.write_ended(regions);
        self.written.raise();
        drop(guard);
        verdict
    }

    /// Sends `bio` to every leg that is alive.
    async fn send(&self, bio: &Bio) -> Verdict {
        let regions = self.regions_of(bio.extent());
        // Half a write cannot be taken back: nothing below may say that it would rather not wait.
        let flags = Flags { no_wait: false, ..bio.flags() };
        let make = |_| match bio.op() {
            Op::Write => bio.part(0, bio.bytes()).with(flags),
            _ => Bio::write_zeroes(bio.extent()).with(flags),
        };
        let sent = self.state.borrow().legs.alive();
        let fanned = self.fans.send(sent, make, |leg, part| self.legs[leg].target.submit(part)).await;
        let verdict = self.state.borrow_mut().wrote(&regions, sent, fanned.failed, fanned.status);
        self.remember(verdict).await
    }
}
