//! One request to several legs at once, and which of them failed.
//!
//! Invariant: a fan is used by one job at a time, and again only after its last request ended.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, End, Status};

use crate::mirror::who::legs::LegSet;

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::mirror) struct Fanned {
    /// Legs that failed.
    pub(in crate::mirror) failed: LegSet,
    /// The first error.
    pub(in crate::mirror) status: Status,
}

/// Collects the ends of one request to each of some legs.
#[derive(Default)]
pub(in crate::mirror) struct Fan {
    left: Cell<u32>,
    fanned: Cell<Fanned>,
    waker: Cell<Option<Waker>>,
}

impl End for Fan {
    fn bio_ended(&self, bio: Bio, leg: u64) {
        let status = bio.status();
        drop(bio);
        if !status.is_ok() {
            let mut fanned = self.fanned.get();
            fanned.failed = fanned.failed.with(LegSet::only(usize::try_from(leg).expect("tokens are legs")));
            fanned.status = fanned.status.and(status);
            self.fanned.set(fanned);
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// Fans that are used again.
#[derive(Default)]
pub(in crate::mirror) struct Fans(RefCell<Vec<Rc<Fan>>>);

impl Fans {
    /// Sends what `make` makes to each of `legs` with `send`, and waits for all.
    pub(in crate::mirror) async fn send(&self, legs: LegSet, make: impl Fn(usize) -> Bio, send: impl Fn(usize, Bio)) -> Fanned {
        let fan = self.0.borrow_mut().pop().unwrap_or_default();
        fan.left.set(legs.len());
        fan.fanned.set(Fanned::default());
        for leg in legs.iter() {
            send(leg, make(leg).on_end(Rc::clone(&fan) as Rc<dyn End>, leg as u64));
        }
        if planted(Bug::M10SharedRequest) {
            self.0.borrow_mut().push(Rc::clone(&fan));
        }
        poll_fn(|cx| {
            if fan.left.get() == 0 {
                return Poll::Ready(());
            }
            fan.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
        let fanned = fan.fanned.get();
        fan.waker.take();
        self.0.borrow_mut().push(fan);
        fanned
    }
}
