//! Where a bio meets those who wait for it: the future that awaits its end, and its parts.
//!
//! Invariants:
//! - I1: waiting for a bio and waiting for its parts are two things that may go on at once: the
//!   caller awaits the bio, while the target that serves it awaits the parts. Each has its place
//!   here, so a bio that only waits for its parts is never taken for an ended one.
//! - I2: nobody else is called while a bio stands between two places.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{Bio, Status};
use crate::target::Target;

#[derive(Default)]
pub(super) struct Meet {
    /// The ended bio, until its future takes it.
    ended: Cell<Option<Bio>>,
    /// Who awaits the end.
    waiter: Cell<Option<Waker>>,
    /// The future was dropped: nobody takes the ended bio.
    abandoned: Cell<bool>,
    /// The bio, while it ends with its last part.
    parked: Cell<Option<Bio>>,
    /// Who awaits the parts.
    parts_waiter: Cell<Option<Waker>>,
    /// Parts that have not ended.
    children: Cell<u32>,
    /// First error of the parts that have.
    status: Cell<Status>,
}

impl Meet {
    pub(super) fn child_made(&self) {
        self.children.set(self.children.get() + 1);
    }

    pub(super) fn child_ended(self: Rc<Self>, status: Status) {
        self.status.set(self.status.get().and(status));
        let left = self.children.get().checked_sub(1).expect("a part ends once");
        self.children.set(left);
        if left > 0 {
            return;
        }
        if let Some(parent) = self.parked.take() {
            let status = self.status.take();
            drop(self);
            parent.end(status);
        } else if let Some(waker) = self.parts_waiter.take() {
            waker.wake();
        }
    }

    /// The first error of all parts, once none is left; asks anew from there on.
    pub(super) fn take_if_none_left(&self) -> Option<Status> {
        (self.children.get() == 0).then(|| self.status.take())
    }

    /// Keeps `bio` until its last part has ended.
    pub(super) fn park(&self, bio: Bio) {
        assert!(self.children.get() > 0, "a bio without parts ends at once");
        self.parked.set(Some(bio));
    }

    pub(super) fn was_abandoned(&self) -> bool {
        self.abandoned.replace(false)
    }

    /// Hands the ended bio to the future that awaits it.
    pub(super) fn give_back(&self, bio: Bio) {
        self.ended.set(Some(bio));
        if let Some(waker) = self.waiter.take() {
            waker.wake();
        }
    }

    /// Makes the place ready for its bio's next use.
    pub(super) fn reset(&self) {
        self.waiter.take();
        self.parts_waiter.take();
        self.status.set(Status::Ok);
    }
}

/// Future of [`Bio::parts_done`].
pub struct PartsDone<'a>(&'a Rc<Meet>);

impl<'a> PartsDone<'a> {
    pub(super) fn new(meet: &'a Rc<Meet>) -> Self {
        Self(meet)
    }
}

impl Future for PartsDone<'_> {
    type Output = Status;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Status> {
        if let Some(status) = self.0.take_if_none_left() {
            return Poll::Ready(status);
        }
        self.0.parts_waiter.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Future of [`call`].
pub struct Call(Option<Rc<Meet>>);

/// Submits `bio` at once and returns a future that gives it back when it ended. Look at
/// [`Bio::status`] then. Dropping the future leaves the bio running; its result is lost.
///
/// # Panics
/// When the bio already ends for somebody else: call with a part of it then, which no longer
/// counts as a part of its parent.
pub fn call(target: &dyn Target, bio: Bio) -> Call {
    call_with(bio, |bio| target.submit(bio))
}

/// As [`call`], for anything that takes a bio.
///
/// # Panics
/// As [`call`].
pub fn call_with(mut bio: Bio, submit: impl FnOnce(Bio)) -> Call {
    bio.leave_parent();
    bio.inner_mut().awaited = true;
    let meet = Rc::clone(&bio.inner().meet);
    submit(bio);
    Call(Some(meet))
}

impl Future for Call {
    type Output = Bio;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Bio> {
        let meet = self.0.as_ref().expect("a call is not polled after it gave its bio back");
        if let Some(bio) = meet.ended.take() {
            self.0 = None;
            return Poll::Ready(bio);
        }
        meet.waiter.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(meet) = self.0.take() else { return };
        let ended = meet.ended.take();
        meet.abandoned.set(ended.is_none());
        // The bio goes back to the pool only when nobody else holds its meeting place.
        drop(meet);
        drop(ended);
    }
}
