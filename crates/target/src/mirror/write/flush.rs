//! Flushes of all legs, one after the other; those who ask meanwhile share the next.
//!
//! ```text
//!   ask ─▶ is one on its way? ── no ──▶ flush all legs ─▶ what a failure means ─▶ all who share it
//!                └─ yes ─▶ wait for it, then the same, for all who asked meanwhile
//! ```
//!
//! One after the other, because a leg that failed a flush forgets what it should have kept, and a later flush of
//! it must not be believed before that is known.

use std::cell::Cell;

use forebay_block::{Bio, Status, pass_flush};

use crate::event::Event;
use crate::mirror::Mirror;
use crate::mirror::who::Verdict;

/// Flushes begun and over.
#[derive(Default)]
pub(in crate::mirror) struct Flushes {
    begun: Cell<u64>,
    over: Cell<u64>,
    /// What became of the last. An error is for good, so it is also that of all later ones.
    verdict: Cell<Verdict>,
    event: Event,
}

impl Mirror {
    /// Flushes all legs that are alive: everything that ended before the call is durable after it.
    pub(in crate::mirror) async fn flush_legs(&self) -> Verdict {
        let flushes = &self.flushes;
        let wanted = flushes.begun.get() + 1;
        while flushes.over.get() < wanted {
            if flushes.begun.get() > flushes.over.get() {
                let seen = flushes.event.count();
                flushes.event.after(seen, None).await;
                continue;
            }
            flushes.begun.set(flushes.begun.get() + 1);
            flushes.verdict.set(self.flush_once().await);
            flushes.over.set(flushes.begun.get());
            flushes.event.raise();
        }
        flushes.verdict.get()
    }

    /// Sends a flush to every leg that is alive; what the failures mean.
    async fn flush_once(&self) -> Verdict {
        if self.broken.get() {
            return Verdict { status: Status::IoError, ..Verdict::default() };
        }
        let time = self.log.time();
        let sent = self.state.borrow().legs.alive();
        let fanned = self.fans.send(sent, |_| Bio::flush(), |leg, bio| pass_flush(&*self.legs[leg].target, bio)).await;
        if fanned.failed.is_empty() && sent == self.state.borrow().legs.all() {
            self.log.legs_flushed(time);
            if !self.log.is_kept() {
                self.log.clean(time, |region| self.has_all(region));
            }
            return Verdict::default();
        }
        let dirty = if fanned.failed.is_empty() { Vec::new() } else { self.log.dirty() };
        let verdict = self.state.borrow_mut().flushed(&dirty, sent, fanned.failed);
        if !verdict.status.is_ok() {
            tracing::error!("mirror: the last leg that has everything failed a flush; no write is taken any more");
            self.broken.set(true);
        }
        self.remember(verdict).await
    }
}
