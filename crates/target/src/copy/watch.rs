//! Watching a copy from outside: how far it is, how long it will take, and stopping it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Duration;

use forebay_block::{Extent, SectorCount};

/// How far a copy is. Shared between the copy and whoever watches it, on one thread; for one copy at a
/// time.
#[derive(Default)]
pub struct Watch {
    cancelled: Cell<bool>,
    seen: Cell<Progress>,
    /// Slices begun and not done, by their first sector: those that failed stay.
    open: RefCell<BTreeSet<u64>>,
    /// All before it has been begun, sectors.
    begun: Cell<u64>,
}

/// What a copy did so far, in bytes of its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What is over, one way or another.
    pub done: u64,
    /// Read from the source.
    pub read: u64,
    /// Written as data, once for each destination.
    pub written: u64,
    /// Zeroed without being written, once for each destination.
    pub zeroed: u64,
    /// Left alone since it is zero already, once for each destination.
    pub skipped: u64,
}

impl Watch {
    /// Begins nothing more. What is in flight still ends.
    pub fn cancel(&self) {
        self.cancelled.set(true);
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    /// What was done so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.seen.get()
    }

    /// Everything before this many sectors from the start has arrived everywhere, though it is not durable.
    #[must_use]
    pub fn settled(&self) -> SectorCount {
        SectorCount(self.open.borrow().first().copied().unwrap_or(self.begun.get()))
    }

    pub(super) fn begin(&self, slice: Extent) {
        self.open.borrow_mut().insert(slice.start.0);
        self.begun.set(self.begun.get().max(slice.end().0));
    }

    /// A slice is over; `clean` when it arrived everywhere.
    pub(super) fn end(&self, slice: Extent, clean: bool) {
        if clean {
            self.open.borrow_mut().remove(&slice.start.0);
        }
        self.add(|seen| seen.done += slice.count.to_bytes());
    }

    pub(super) fn add(&self, change: impl FnOnce(&mut Progress)) {
        let mut seen = self.seen.get();
        change(&mut seen);
        self.seen.set(seen);
    }
}

/// Time that is left when `done` of `total` bytes took `elapsed`; `None` before anything is done.
#[must_use]
pub fn time_left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let nanos = elapsed.as_nanos().checked_mul(u128::from(total.saturating_sub(done)))?.checked_div(u128::from(done))?;
    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::extent;

    #[test]
    fn what_is_settled_ends_at_the_first_slice_that_is_not_over_or_failed() {
        let watch = Watch::default();
        for slice in [extent(0, 8), extent(8, 8), extent(16, 8)] {
            watch.begin(slice);
        }
        watch.end(extent(8, 8), true);
        assert_eq!(watch.settled(), SectorCount(0));
        watch.end(extent(0, 8), true);
        assert_eq!(watch.settled(), SectorCount(16));
        watch.end(extent(16, 8), false);
        assert_eq!((watch.settled(), watch.progress().done), (SectorCount(16), 24 * 512));
    }

    #[test]
    fn time_left_follows_from_the_speed_so_far() {
        assert_eq!(time_left(0, 100, Duration::from_secs(1)), None);
        assert_eq!(time_left(25, 100, Duration::from_secs(1)), Some(Duration::from_secs(3)));
        assert_eq!(time_left(200, 100, Duration::from_secs(1)), Some(Duration::ZERO));
        assert_eq!(time_left(1, u64::MAX, Duration::MAX), None);
    }
}
