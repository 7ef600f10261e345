//! The virtual clock and the list of what is due on it.
//!
//! Time moves in two ways: a little with every turn, as a processor's work would move it, and in
//! one jump to whatever is due next when the reactor has nothing to do. Things due at the same
//! nanosecond happen in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use forebay_reactor::Tag;

/// What happens to a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// Its bytes move: a read takes them from the disk, a write puts them there.
    Effect,
    /// The backend reports it done.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Duration,
    number: u64,
    tag: Tag,
    step: Step,
}

/// Simulated time.
#[derive(Default)]
pub(crate) struct Clock {
    now: Duration,
    due: BinaryHeap<Reverse<Due>>,
    planned: u64,
}

impl Clock {
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Lets a processor's time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Jumps ahead; a time that has passed already changes nothing.
    pub(crate) fn jump_to(&mut self, time: Duration) {
        self.now = self.now.max(time);
    }

    pub(crate) fn plan(&mut self, after: Duration, tag: Tag, step: Step) {
        let at = self.now + after;
        self.due.push(Reverse(Due { at, number: self.planned, tag, step }));
        self.planned += 1;
    }

    /// When the next thing is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// Takes what is due by now, earliest first.
    pub(crate) fn take_due(&mut self) -> Option<(Tag, Step)> {
        if self.next()? > self.now {
            return None;
        }
        self.due.pop().map(|Reverse(due)| (due.tag, due.step))
    }

    /// Forgets what was planned: the world it was planned for has ended. Time goes on.
    pub(crate) fn forget(&mut self) {
        self.due.clear();
    }
}
