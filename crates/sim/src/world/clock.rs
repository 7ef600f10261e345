//! The virtual clock and the list of what is due on it.
//!
//! Time moves in two ways: a little with every turn, as a processor's work would move it, and in
//! one jump to whatever is due next when the reactor has nothing to do. Things due at the same
//! nanosecond happen in the order in which they were planned.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_reactor::Tag;

/// When a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// With the device step that follows after so many others.
    Step(u64),
    /// When the flush is submitted that follows after so many others: the moment at which most is
    /// done that nothing has made durable.
    Flush(u64),
    /// The same for the flushes of one disk, by its number.
    FlushOf(usize, u64),
}

impl Moment {
    /// Any step, near ones more often, or a flush.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        if rng.u32(0..3) == 0 {
            return Self::Flush(rng.u64(0..8));
        }
        let within = 1 << rng.u64(0..8);
        Self::Step(rng.u64(0..=within))
    }

    /// As [`Moment::draw`], or one time in three at a flush of `disk`, if there is one that is worth it.
    pub(crate) fn draw_near(rng: &mut Rng, disk: Option<usize>) -> Self {
        match disk {
            Some(disk) if rng.u32(0..3) == 0 => Self::FlushOf(disk, rng.u64(0..4)),
            _ => Self::draw(rng),
        }
    }
}

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
    now: Rc<Cell<Duration>>,
    due: BinaryHeap<Reverse<Due>>,
    planned: u64,
}

impl Clock {
    /// The same time for another process, which has plans of its own.
    pub(crate) fn shared(&self) -> Self {
        Self { now: Rc::clone(&self.now), ..Self::default() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }

    /// Lets a processor's time pass.
    pub(crate) fn pass(&self, time: Duration) {
        self.now.set(self.now() + time);
    }

    /// Jumps ahead; a time that has passed already changes nothing.
    pub(crate) fn jump_to(&self, time: Duration) {
        self.now.set(self.now().max(time));
    }

    pub(crate) fn plan(&mut self, after: Duration, tag: Tag, step: Step) {
        let at = self.now() + after;
        self.due.push(Reverse(Due { at, number: self.planned, tag, step }));
        self.planned += 1;
    }

    /// When the next thing is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.due.peek().map(|Reverse(due)| due.at)
    }

    /// Takes what is due by now, earliest first.
    pub(crate) fn take_due(&mut self) -> Option<(Tag, Step)> {
        if self.next()? > self.now() {
            return None;
        }
        self.due.pop().map(|Reverse(due)| (due.tag, due.step))
    }

    /// Forgets what was planned: the world it was planned for has ended. Time goes on.
    pub(crate) fn forget(&mut self) {
        self.due.clear();
    }
}
