//! Timers of one reactor, on its backend's clock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Deadlines in order; the number keeps equal deadlines apart, in order of their creation.
#[derive(Default)]
pub(crate) struct Timers {
    waiting: RefCell<BTreeMap<(Duration, u64), Waker>>,
    created: Cell<u64>,
}

impl Timers {
    pub(crate) fn next(&self) -> Option<Duration> {
        self.waiting.borrow().first_key_value().map(|(&(deadline, _), _)| deadline)
    }

    /// Wakes everything whose deadline has passed at `now`.
    pub(crate) fn fire(&self, now: Duration) {
        while self.next().is_some_and(|deadline| deadline <= now) {
            let first = self.waiting.borrow_mut().pop_first();
            if let Some((_, waker)) = first {
                waker.wake();
            }
        }
    }

    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
    }
}

/// Future that is ready once its deadline has passed. Dropping it cancels the timer.
pub struct Sleep {
    timers: Rc<Timers>,
    now: Rc<Cell<Duration>>,
    key: (Duration, u64),
}

impl Sleep {
    pub(crate) fn new(timers: Rc<Timers>, now: Rc<Cell<Duration>>, deadline: Duration) -> Self {
        let number = timers.created.get();
        timers.created.set(number + 1);
        Self { timers, now, key: (deadline, number) }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.key.0 <= self.now.get() {
            return Poll::Ready(());
        }
        self.timers.waiting.borrow_mut().insert(self.key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.timers.waiting.borrow_mut().remove(&self.key);
    }
}
