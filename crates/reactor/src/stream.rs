//! Steps on streams as futures: receive, send, wait until readable.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::request::{Kind, Part, Reply, Stream};
use crate::turn::Reactor;

/// Future of one step on a stream. Dropping it leaves the step running; its result is lost, and
/// its memory stays with the request until the backend is done with it.
pub struct Step(Rc<Reply>);

impl Future for Step {
    type Output = (io::Result<usize>, Vec<Part>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some((result, parts)) = self.0.result.take() {
            let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            return Poll::Ready((result, parts));
        }
        self.0.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.0.abandoned.set(true);
        self.0.result.set(None);
    }
}

/// Replies of this thread's steps, used again once both sides have let go of them.
#[derive(Default)]
pub(crate) struct Replies(RefCell<VecDeque<Rc<Reply>>>);

/// Replies looked at for one to use again: more than are added, so that the list stays short.
const REPLY_LOOKS: usize = 2;

impl Replies {
    pub(crate) fn take(&self) -> Rc<Reply> {
        let mut list = self.0.borrow_mut();
        for _ in 0..REPLY_LOOKS.min(list.len()) {
            list.rotate_left(1);
            if let Some(reply) = list.back().filter(|reply| Rc::strong_count(reply) == 1) {
                reply.abandoned.set(false);
                reply.waker.set(None);
                return Rc::clone(reply);
            }
        }
        let reply = Rc::<Reply>::default();
        list.push_back(Rc::clone(&reply));
        reply
    }
}

impl Reactor {
    fn step(&self, kind: Kind, file: &Rc<OwnedFd>, parts: Vec<Part>) -> Step {
        let reply = self.reply();
        self.submit_stream(kind, Stream { file: Rc::clone(file), parts, reply: Rc::clone(&reply) });
        Step(reply)
    }

    /// Receives into `parts`, in order. The result is the byte count, 0 at the end of the stream;
    /// the parts come back with it.
    #[must_use]
    pub fn receive(&self, file: &Rc<OwnedFd>, parts: Vec<Part>) -> Step {
        self.step(Kind::Receive, file, parts)
    }

    /// Sends `parts`, in order; may send fewer bytes than given.
    #[must_use]
    pub fn send(&self, file: &Rc<OwnedFd>, parts: Vec<Part>) -> Step {
        self.step(Kind::Send, file, parts)
    }

    /// Waits until `file` is readable: a listening socket has a connection, an eventfd an event.
    #[must_use]
    pub fn readable(&self, file: &Rc<OwnedFd>) -> Step {
        self.step(Kind::Readable, file, Vec::new())
    }
}
