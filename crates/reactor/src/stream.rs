//! Steps on streams as futures: receive, send, wait until readable.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::request::{Kind, Part, Reply, Stream};
use crate::turn::Reactor;

/// One side's hold on a [`Reply`]: the future has one, the request the other. The second to let go
/// gives the reply back to be used again.
pub(crate) struct Held {
    reply: Rc<Reply>,
    home: Rc<Replies>,
}

impl Deref for Held {
    type Target = Reply;

    fn deref(&self) -> &Reply {
        &self.reply
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if Rc::strong_count(&self.reply) == 1 {
            self.reply.result.set(None);
            self.reply.waker.set(None);
            self.reply.abandoned.set(false);
            self.home.free.borrow_mut().push(Rc::clone(&self.reply));
        }
    }
}

/// Replies of this thread's steps that nobody holds: as many as were ever held at once, less those
/// held now.
#[derive(Default)]
pub(crate) struct Replies {
    free: RefCell<Vec<Rc<Reply>>>,
}

impl Replies {
    /// The two holds on an empty reply.
    fn take(self: &Rc<Self>) -> [Held; 2] {
        let reply = self.free.borrow_mut().pop().unwrap_or_default();
        [Held { reply: Rc::clone(&reply), home: Rc::clone(self) }, Held { reply, home: Rc::clone(self) }]
    }
}

/// Future of one step on a stream. Dropping it leaves the step running; its result is lost, and
/// its memory stays with the request until the backend is done with it.
pub struct Step(Held);

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

impl Reactor {
    fn step(&self, kind: Kind, file: &Rc<OwnedFd>, parts: Vec<Part>) -> Step {
        let [mine, reply] = self.replies().take();
        self.submit_stream(kind, Stream { file: Rc::clone(file), parts, reply });
        Step(mine)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_many_as_were_ever_in_use_at_once() {
        let replies = Rc::<Replies>::default();
        let _listening = replies.take();
        let _receiving = replies.take();
        for _ in 0..10_000 {
            drop(replies.take());
        }
        assert_eq!(replies.free.borrow().len(), 1);
    }
}
