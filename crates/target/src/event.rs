//! Events inside one thread: somebody raises, everybody who waits looks again.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use forebay_reactor::Sleep;

/// Something that can happen again and again. Waiting is by count, so that nothing that happened
/// between looking and waiting is missed.
#[derive(Default)]
pub struct Event {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Event {
    /// How often it has happened.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// It happens now.
    pub fn raise(&self) {
        self.count.set(self.count.get() + 1);
        // A woken task may wait again at once: then for the next time.
        let mut woken = self.waiting.take();
        woken.drain(..).for_each(Waker::wake);
        // The list keeps its memory.
        let mut waiting = self.waiting.borrow_mut();
        woken.append(&mut waiting);
        *waiting = woken;
    }

    /// Waits until it has happened more than `seen` times, or `sleep` is over.
    pub async fn after(&self, seen: u64, sleep: Option<Sleep>) {
        let mut sleep = pin!(sleep);
        poll_fn(|cx| {
            let over = sleep.as_mut().as_pin_mut().is_some_and(|sleep| sleep.poll(cx).is_ready());
            if over || self.count.get() > seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}
