//! Flushes of one device, one after the other; those who ask meanwhile share the next.
//!
//! Invariants:
//! - I1: there is one flush at a time. Of two side by side the one could fail and lose what the other, which
//!   began as early and succeeded, then calls durable.
//! - I2: after one that failed none is tried: what was written before may be lost whatever a later one says.
//! - I3: who asks is answered by a flush that begins after that.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Status, Target, flush};

use crate::event::Event;

/// The flushes of a device.
pub(super) struct Flushes {
    device: Rc<dyn Target>,
    begun: Cell<u64>,
    over: Cell<u64>,
    /// The last that succeeded.
    succeeded: Cell<u64>,
    status: Cell<Status>,
    changed: Event,
}

impl Flushes {
    pub(super) fn of(device: &Rc<dyn Target>) -> Self {
        Self {
            device: Rc::clone(device),
            begun: Cell::default(),
            over: Cell::default(),
            succeeded: Cell::default(),
            status: Cell::default(),
            changed: Event::default(),
        }
    }

    /// How many were begun: what is written now is durable when a later one has succeeded.
    pub(super) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Whether what had been written when `begun` were begun is durable.
    pub(super) fn covered(&self, begun: u64) -> bool {
        self.succeeded.get() > begun
    }

    /// Makes everything durable that ended before.
    pub(super) async fn flush(&self) -> Status {
        let wanted = self.begun.get() + 1;
        while self.over.get() < wanted && self.status.get().is_ok() {
            let seen = self.changed.count();
            if self.begun.get() > self.over.get() {
                self.changed.after(seen, None).await;
                continue;
            }
            self.begun.set(self.begun.get() + 1);
            let status = flush(&*self.device).await.status();
            self.status.set(status);
            self.over.set(self.begun.get());
            if status.is_ok() {
                self.succeeded.set(self.over.get());
            }
            self.changed.raise();
        }
        self.status.get()
    }

    /// Waits until none is under way.
    pub(super) async fn idle(&self) {
        while self.begun.get() > self.over.get() {
            self.changed.after(self.changed.count(), None).await;
        }
    }
}
