//! Mailboxes: the only way from another thread into a reactor.
//!
//! ```text
//!   any thread: post(message) ──▶ bounded queue ──▶ eventfd rouses the ring ──▶ receive().await
//! ```
//!
//! A device that finishes on a thread of its own (a worker pool, a client library) posts its
//! completion; nothing else in the stack can tell. Messages of one sender keep their order. Posts to
//! a reactor that was rung and has not looked yet cost no system call.
//!
//! That no message is left lying is checked with every order in which threads can meet: what rings and
//! what hears is written for any event and any flag, and the tests put those of a model checker there.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::turn::Reactor;

/// Why a message was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum PostError<T> {
    /// The queue is full; the message comes back.
    Full(T),
    /// The reactor is gone; the message comes back.
    Gone(T),
}

/// Something that can be waited for from when it is raised until it is emptied.
pub(crate) trait Event {
    fn raise(&self);
    fn empty(&self);
}

impl Event for OwnedFd {
    fn raise(&self) {
        // A counter that is already at its maximum rings just as well.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn empty(&self) {
        let _ = rustix::io::read(self, &mut [0u8; 8]);
    }
}

/// A bit that is exchanged, and orders what stands around that.
trait Flag {
    fn exchange(&self, value: bool) -> bool;
}

impl Flag for AtomicBool {
    fn exchange(&self, value: bool) -> bool {
        self.swap(value, Ordering::AcqRel)
    }
}

/// An event that rouses the reactor, and whether it is on its way.
struct Ringing<E = OwnedFd, F = AtomicBool> {
    event: E,
    /// It rang and was not heard yet: to ring once more would be a system call for nothing.
    rung: F,
}

impl<E: Event, F: Flag> Ringing<E, F> {
    fn ring(&self) {
        if !self.rung.exchange(true) {
            self.event.raise();
        }
    }

    /// Whoever rang is heard: what it queued before is seen now, and whatever is queued from now on
    /// rings again. The event is emptied first: a ring that falls between is not lost, because
    /// the queue is looked at afterwards.
    fn hear(&self) {
        self.event.empty();
        self.rung.exchange(false);
    }
}

/// What rouses the reactor. It rings as well when a sender goes, so that the end of the last one is
/// noticed.
#[derive(Clone)]
struct Bell(Arc<Ringing>);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// The sending end, for any thread.
pub struct Post<T> {
    queue: SyncSender<T>,
    /// Dropped after the queue's end: whoever hears it finds the sender gone.
    bell: Bell,
}

impl<T> Clone for Post<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), bell: self.bell.clone() }
    }
}

impl<T: Send> Post<T> {
    /// Puts a message into the box and rouses its reactor. Never blocks.
    ///
    /// # Errors
    /// [`PostError`] gives the message back when the box is full or its reactor is gone.
    pub fn post(&self, message: T) -> Result<(), PostError<T>> {
        self.queue.try_send(message).map_err(|error| match error {
            TrySendError::Full(message) => PostError::Full(message),
            TrySendError::Disconnected(message) => PostError::Gone(message),
        })?;
        self.bell.0.ring();
        Ok(())
    }
}

/// The receiving end, on its reactor's thread.
pub struct Mailbox<T> {
    queue: Receiver<T>,
    ringing: Arc<Ringing>,
    /// The event, to wait for.
    event: Rc<OwnedFd>,
    reactor: Reactor,
}

impl<T: Send> Mailbox<T> {
    /// Makes a box for at most `depth` messages at once.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(reactor: &Reactor, depth: usize) -> io::Result<(Post<T>, Self)> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, queue) = sync_channel(depth);
        let ringing = Arc::new(Ringing { event: event.try_clone()?, rung: AtomicBool::new(false) });
        let post = Post { queue: sender, bell: Bell(Arc::clone(&ringing)) };
        Ok((post, Self { queue, ringing, event: Rc::new(event), reactor: reactor.clone() }))
    }

    /// The next message, or `None` when every sender is gone.
    pub async fn receive(&mut self) -> Option<T> {
        loop {
            match self.queue.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let (ready, _) = self.reactor.readable(&self.event).await;
            if ready.is_err() {
                return None;
            }
            self.ringing.hear();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
