//! Mailboxes: the only way from another thread into a reactor.
//!
//! ```text
//!   any thread: post(message) ──▶ bounded queue ──▶ eventfd rouses the ring ──▶ receive().await
//! ```
//!
//! A device that finishes on a thread of its own (a worker pool, a client library) posts its
//! completion; nothing else in the stack can tell. Messages of one sender keep their order.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
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

/// What rouses the reactor. It rings as well when a sender goes, so that the end of the last one is
/// noticed.
#[derive(Clone)]
struct Bell(Arc<OwnedFd>);

impl Bell {
    fn ring(&self) {
        // A counter that is already at its maximum rings just as well.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        self.ring();
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
        self.bell.ring();
        Ok(())
    }
}

/// The receiving end, on its reactor's thread.
pub struct Mailbox<T> {
    queue: Receiver<T>,
    bell: Rc<OwnedFd>,
    reactor: Reactor,
}

impl<T: Send> Mailbox<T> {
    /// Makes a box for at most `depth` messages at once.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(reactor: &Reactor, depth: usize) -> io::Result<(Post<T>, Self)> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, queue) = sync_channel(depth);
        let post = Post { queue: sender, bell: Bell(Arc::new(bell.try_clone()?)) };
        Ok((post, Self { queue, bell: Rc::new(bell), reactor: reactor.clone() }))
    }

    /// The next message, or `None` when every sender is gone.
    pub async fn receive(&mut self) -> Option<T> {
        loop {
            match self.queue.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => {}
            }
            let (ready, _) = self.reactor.readable(&self.bell).await;
            if ready.is_err() {
                return None;
            }
            // Whoever rang is heard now; an empty bell is no error.
            let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
        }
    }
}
