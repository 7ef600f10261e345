//! Delay: bios wait for a set time before they go on below.
//!
//! ```text
//!   submit ──▶ due now? ── yes ─────────────────────────▶ below
//!                  └─ no ─▶ heap by (due, number) ─ timer ─▶ below
//! ```
//!
//! Invariants:
//! - I1: bios with equal delays go on in the order in which they came.
//! - I2: a bio without delay goes on at once and overtakes those that wait.
//! - I3: when the target is gone, what waits ends with
//!   [`Status::Aborted`](forebay_block::Status::Aborted).
//!
//! Reads, writes (with discards and zeroes) and flushes have their own delay and may have their own
//! target, as in the kernel's `delay` target; source:
//! `Documentation/admin-guide/device-mapper/delay.rst`. Or a function says how long each bio waits,
//! which makes a disk whose regions differ in speed.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, SectorCount, Target};
use forebay_reactor::{Reactor, Sleep};

use crate::below::BuildError;

/// Where bios of one class go, and how long they wait before.
#[derive(Clone)]
pub struct Leg {
    /// The target below; put a [`Linear`](crate::linear::Linear) in between for an offset.
    pub below: Rc<dyn Target>,
    /// How long they wait.
    pub delay: Duration,
}

/// The three classes of bios.
#[derive(Clone)]
pub struct Legs {
    /// Reads.
    pub read: Leg,
    /// Writes, discards and zeroes.
    pub write: Leg,
    /// Flushes.
    pub flush: Leg,
}

impl Legs {
    /// The same target and delay for all classes.
    #[must_use]
    pub fn all(leg: Leg) -> Self {
        Self { read: leg.clone(), write: leg.clone(), flush: leg }
    }

    fn of(&self, op: Op) -> &Leg {
        match op {
            Op::Read => &self.read,
            Op::Flush => &self.flush,
            Op::Write | Op::Discard | Op::WriteZeroes => &self.write,
        }
    }
}

/// Says how long a bio over an extent waits; flushes come with an empty one.
pub type DelayBy = Box<dyn Fn(Op, Extent) -> Duration>;

struct Waiting {
    due: Duration,
    number: u64,
    bio: Bio,
}

impl Waiting {
    fn key(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

struct Inner {
    reactor: Reactor,
    legs: Legs,
    by: Option<DelayBy>,
    heap: RefCell<BinaryHeap<Reverse<Waiting>>>,
    numbers: Cell<u64>,
    /// Rouses the task that sends on what is due.
    sender: Cell<Option<Waker>>,
}

impl Inner {
    fn next_due(&self) -> Option<Duration> {
        self.heap.borrow().peek().map(|Reverse(first)| first.due)
    }

    fn take_due(&self) -> Option<Bio> {
        let mut heap = self.heap.borrow_mut();
        let due = heap.peek().is_some_and(|Reverse(first)| first.due <= self.reactor.now());
        if due { heap.pop().map(|Reverse(first)| first.bio) } else { None }
    }

    fn rouse(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    /// Sends on what is due, and arms `timer` for what is due next.
    fn poll(&self, timer: &mut Option<Sleep>, cx: &mut Context<'_>) {
        loop {
            while let Some(bio) = self.take_due() {
                self.legs.of(bio.op()).below.submit(bio);
            }
            self.sender.set(Some(cx.waker().clone()));
            *timer = self.next_due().map(|due| self.reactor.sleep_until(due));
            let over = timer.as_mut().is_some_and(|timer| Pin::new(timer).poll(cx).is_ready());
            if !over {
                return;
            }
        }
    }
}

/// A target that lets bios wait.
pub struct Delay {
    inner: Rc<Inner>,
}

impl Delay {
    /// Lets each class of bios wait for its own time.
    ///
    /// # Errors
    /// When the targets of the three classes differ in size, or the reactor has too many tasks.
    pub fn new(reactor: Reactor, legs: Legs) -> Result<Self, BuildError> {
        Self::make(reactor, legs, None)
    }

    /// Lets each bio wait for as long as `by` says.
    ///
    /// # Errors
    /// When the reactor has too many tasks.
    pub fn by(reactor: Reactor, below: Rc<dyn Target>, by: DelayBy) -> Result<Self, BuildError> {
        Self::make(reactor, Legs::all(Leg { below, delay: Duration::ZERO }), Some(by))
    }

    fn make(reactor: Reactor, legs: Legs, by: Option<DelayBy>) -> Result<Self, BuildError> {
        let sectors = legs.read.below.sectors().0;
        for leg in [&legs.write, &legs.flush] {
            let below = leg.below.sectors().0;
            if below != sectors {
                return Err(BuildError::Outside { kind: "delay", start: 0, count: sectors, below });
            }
        }
        let inner =
            Rc::new(Inner { reactor, legs, by, heap: RefCell::default(), numbers: Cell::default(), sender: Cell::default() });
        if !inner.reactor.spawn(send_on(Rc::downgrade(&inner))) {
            return Err(BuildError::TooManyTasks { kind: "delay" });
        }
        Ok(Self { inner })
    }

    /// Bios that wait right now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.heap.borrow().len()
    }

    fn delay_of(&self, bio: &Bio) -> Duration {
        match &self.inner.by {
            Some(by) => by(bio.op(), bio.extent()),
            None => self.inner.legs.of(bio.op()).delay,
        }
    }
}

/// Sends bios on when they are due, as long as the target is there.
async fn send_on(inner: Weak<Inner>) {
    let mut timer = None;
    poll_fn(|cx| match inner.upgrade() {
        Some(inner) => {
            inner.poll(&mut timer, cx);
            Poll::Pending
        }
        None => Poll::Ready(()),
    })
    .await;
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.inner.rouse();
    }
}

impl Target for Delay {
    fn kind(&self) -> &'static str {
        "delay"
    }

    fn limits(&self) -> Limits {
        let legs = &self.inner.legs;
        let flush = legs.flush.below.limits();
        Limits { flush: flush.flush, ..legs.read.below.limits().stack(legs.write.below.limits()).stack(flush) }
    }

    fn sectors(&self) -> SectorCount {
        self.inner.legs.read.below.sectors()
    }

    fn submit(&self, bio: Bio) {
        let delay = self.delay_of(&bio);
        if delay.is_zero() {
            return self.inner.legs.of(bio.op()).below.submit(bio);
        }
        let due = self.inner.reactor.now().saturating_add(delay);
        let number = self.inner.numbers.get();
        self.inner.numbers.set(number + 1);
        let first = self.inner.next_due().is_none_or(|next| due < next);
        self.inner.heap.borrow_mut().push(Reverse(Waiting { due, number, bio }));
        if first {
            self.inner.rouse();
        }
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.below(&*self.inner.legs.read.below, extent);
    }
}

#[cfg(test)]
mod tests;
