//! Range locks: whoever changes a run of blocks over several awaits holds it alone meanwhile.
//!
//! ```text
//!   held      ███████           ████
//!   waiting       ░░░░░░░░         ░░░   ← waits for the holder it overlaps
//!   waiting            ░░░░               ← overlaps no holder, but an earlier waiter: waits too
//! ```
//!
//! Invariants:
//! - I1: two held ranges never share a block.
//! - I2: a range is granted as soon as nothing that came earlier, held or waiting, overlaps it: first
//!   come, first served among ranges that overlap, and no wait at all among those that do not.
//! - I3: a guard that is dropped, and a waiter that is dropped, let through whoever waited only for it.
//! - I4: once its vectors have grown to the number of ranges in use, nothing is allocated.
//!
//! Ranges are counted in whatever unit the owner chose for the whole structure (cache blocks,
//! sectors); the structure only compares numbers. It belongs to one thread. A look-up walks all
//! ranges in use, of which there are at most as many as jobs. Locks held by one job while it waits
//! for another can deadlock as everywhere: take one range, or take them in ascending order.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A run of blocks, `start..start + count`; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockRange {
    start: u64,
    count: u64,
}

impl LockRange {
    /// The `count` blocks from `start` on.
    ///
    /// # Panics
    /// When `count` is 0, or the end of the range does not fit 64 bits.
    #[must_use]
    pub fn new(start: u64, count: u64) -> Self {
        assert!(count > 0, "an empty range locks nothing");
        assert!(start.checked_add(count).is_some(), "a range of blocks ends within 64 bits");
        Self { start, count }
    }

    /// First block.
    #[must_use]
    pub fn start(self) -> u64 {
        self.start
    }

    /// Number of blocks; at least 1.
    #[must_use]
    pub fn count(self) -> u64 {
        self.count
    }

    /// The block behind the last.
    #[must_use]
    pub fn end(self) -> u64 {
        self.start + self.count
    }

    /// Whether the two share a block.
    #[must_use]
    pub fn overlaps(self, other: LockRange) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// Number of one use of the locks; grows with each, so it also tells who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u64);

struct Place {
    turn: Turn,
    range: LockRange,
    held: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Line {
    /// Holders and waiters in the order in which they came, so ascending by turn.
    places: Vec<Place>,
    waiting: usize,
    next: u64,
    /// Kept for its capacity (I4); empty between calls.
    granted: Vec<Waker>,
}

impl Line {
    fn join(&mut self, range: LockRange, held: bool) -> Turn {
        let turn = Turn(self.next);
        self.next += 1;
        self.waiting += usize::from(!held);
        self.places.push(Place { turn, range, held, waker: None });
        turn
    }

    fn overlaps_any(&self, range: LockRange) -> bool {
        self.places.iter().any(|place| place.range.overlaps(range))
    }

    fn position(&self, turn: Turn) -> usize {
        self.places
            .binary_search_by_key(&turn, |place| place.turn)
            .expect("a guard or waiter keeps its place until it is dropped")
    }

    /// Takes `turn` out of the line and grants what only waited for it; the wakers of these.
    fn leave(&mut self, turn: Turn) -> Vec<Waker> {
        let at = self.position(turn);
        let left = self.places.remove(at);
        self.waiting -= usize::from(!left.held);
        let mut granted = std::mem::take(&mut self.granted);
        if self.waiting == 0 {
            return granted;
        }
        for index in at..self.places.len() {
            let (earlier, rest) = self.places.split_at_mut(index);
            let place = &mut rest[0];
            let waited = !place.held && place.range.overlaps(left.range);
            if waited && !earlier.iter().any(|other| other.range.overlaps(place.range)) {
                place.held = true;
                self.waiting -= 1;
                granted.extend(place.waker.take());
            }
        }
        granted
    }
}

/// The range locks of one target. Clones share the same locks.
#[derive(Clone, Default)]
pub struct RangeLocks(Rc<RefCell<Line>>);

impl RangeLocks {
    /// No range locked.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks `range` if nothing that overlaps it is held or waited for.
    #[must_use]
    pub fn try_lock(&self, range: LockRange) -> Option<Guard> {
        let mut line = self.0.borrow_mut();
        if line.overlaps_any(range) {
            return None;
        }
        let turn = line.join(range, true);
        Some(Guard { line: Rc::clone(&self.0), turn, range })
    }

    /// Waits for `range`. The place in the line is taken by this call, not by the first poll, so
    /// the order of calls is the order of service (I2). Dropping the future gives the place up.
    #[must_use = "the range is locked once this was awaited"]
    pub fn lock(&self, range: LockRange) -> Lock {
        let mut line = self.0.borrow_mut();
        let held = !line.overlaps_any(range);
        let turn = line.join(range, held);
        Lock(Some(Guard { line: Rc::clone(&self.0), turn, range }))
    }

    /// Whether a block of `range` is held or waited for, so that [`RangeLocks::try_lock`] would fail.
    #[must_use]
    pub fn is_locked(&self, range: LockRange) -> bool {
        self.0.borrow().overlaps_any(range)
    }

    /// Ranges held and ranges waiting.
    #[must_use]
    pub fn in_use(&self) -> (usize, usize) {
        let line = self.0.borrow();
        (line.places.len() - line.waiting, line.waiting)
    }
}

/// A locked range; dropping it unlocks (I3).
#[must_use = "dropping a guard unlocks its range at once"]
pub struct Guard {
    line: Rc<RefCell<Line>>,
    turn: Turn,
    range: LockRange,
}

impl Guard {
    /// What is locked.
    #[must_use]
    pub fn range(&self) -> LockRange {
        self.range
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut granted = self.line.borrow_mut().leave(self.turn);
        // Woken outside the borrow: a waker may look at the locks.
        for waker in granted.drain(..) {
            waker.wake();
        }
        self.line.borrow_mut().granted = granted;
    }
}

/// Future of [`RangeLocks::lock`]; its guard stands in the line, held or not yet.
pub struct Lock(Option<Guard>);

impl Future for Lock {
    type Output = Guard;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Guard> {
        let guard = self.0.as_ref().expect("a lock is not polled after it was given");
        let mut line = guard.line.borrow_mut();
        let at = line.position(guard.turn);
        let place = &mut line.places[at];
        if !place.held {
            place.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(line);
        Poll::Ready(self.0.take().expect("looked at just above"))
    }
}

#[cfg(test)]
mod tests;
