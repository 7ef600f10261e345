//! One connection to a server: what waits to be sent on it, and what waits for its reply.
//!
//! ```text
//!   push ─▶ queue ─▶ sender: one call for all that is there ─▶ in flight, by slot ─▶ receiver ─▶ ended
//!                                                                │
//!   sever(why) ─▶ both tasks end ─▶ the keeper takes out what is left
//! ```
//!
//! Invariants:
//! - I1: memory of a request is given back only when no step on the socket works on it: a reply that comes
//!   before its request was sent in full waits for that, and a severed connection is taken apart only when
//!   both tasks have ended.
//! - I2: the clock of a request begins when it was sent in full, and the call that sends it has a clock of
//!   its own: one after the other they cover all that was taken off the queue, replied to early or not.
//! - I3: at most [`FLYING_MAX`] requests, and [`FLYING_BYTES_MAX`] bytes of payload beside a single larger
//!   one, are in flight: what a server takes from every client.

mod receive;
mod send;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_nbd::client::{Ask, Ended, Session};
use forebay_reactor::Reactor;
use rustix::net::{SendFlags, Shutdown, shutdown};

use super::dial::Dialled;
use super::error::Broken;
use super::remote::Remote;
use super::work::Work;

/// Most requests in flight on one connection.
const FLYING_MAX: usize = 128;
/// Most bytes of payload in flight on one connection.
const FLYING_BYTES_MAX: u64 = 64 << 20;
/// Payloads from this size on, bytes, are received straight to where they belong.
const LARGE_BYTES: u64 = 32 << 10;
/// `NBD_ESHUTDOWN`.
const SHUTTING_DOWN: u32 = 108;

/// One connection.
pub(super) struct Link {
    socket: Rc<OwnedFd>,
    session: RefCell<Session>,
    /// In flight, by slot of the session.
    works: RefCell<Vec<Option<Work>>>,
    queue: RefCell<VecDeque<Work>>,
    flying: Cell<usize>,
    flying_bytes: Cell<u64>,
    /// Large reads in flight.
    large: Cell<usize>,
    sender: Cell<Option<Waker>>,
    broken: RefCell<Option<Broken>>,
    /// Tasks that have not ended.
    tasks: Cell<usize>,
    /// Number of the batch that is being sent, and of the last one that was.
    batch: Cell<u64>,
    sent: Cell<u64>,
    /// Since when it is being sent.
    sending: Cell<Option<Duration>>,
    /// Replied to before they were sent in full (I1).
    early: RefCell<Vec<(Work, Ended)>>,
}

/// What is left of a connection.
#[derive(Default)]
pub(super) struct Remains {
    /// In flight without a reply.
    pub(super) sent: Vec<Work>,
    /// Never sent.
    pub(super) unsent: Vec<Work>,
    /// Replied to.
    pub(super) ended: Vec<(Work, Ended)>,
}

impl Link {
    /// Starts both tasks of a new connection; `None` when the reactor has too many.
    pub(super) fn start(remote: &Rc<Remote>, reactor: &Reactor, dialled: Dialled) -> Option<Rc<Self>> {
        let link = Rc::new(Self {
            socket: dialled.socket,
            session: RefCell::new(Session::new(&dialled.entered)),
            works: RefCell::default(),
            queue: RefCell::default(),
            flying: Cell::new(0),
            flying_bytes: Cell::new(0),
            large: Cell::new(0),
            sender: Cell::new(None),
            broken: RefCell::new(None),
            tasks: Cell::new(0),
            batch: Cell::new(0),
            sent: Cell::new(0),
            sending: Cell::new(None),
            early: RefCell::default(),
        });
        let sender = send::Sender::new(Rc::clone(remote), Rc::clone(&link));
        let receiver = receive::Receiver::new(Rc::clone(remote), Rc::clone(&link), &dialled.rest);
        for task in [reactor.spawn(sender.run()), reactor.spawn(receiver.run())] {
            if !task {
                link.sever(Broken::Lost("there are too many tasks".to_owned()));
                return None;
            }
            link.tasks.set(link.tasks.get() + 1);
        }
        Some(link)
    }

    /// Sends `work` as soon as there is room.
    pub(super) fn push(&self, work: Work) {
        self.queue.borrow_mut().push_back(work);
        self.wake_sender();
    }

    /// How much it has to do: requests in flight and waiting.
    pub(super) fn load(&self) -> usize {
        self.flying.get() + self.queue.borrow().len() + self.early.borrow().len()
    }

    /// Ends the connection, for the first reason that is given.
    pub(super) fn sever(&self, why: Broken) {
        self.broken.borrow_mut().get_or_insert(why);
        // A socket whose other end is gone has nothing to shut down.
        let _ = shutdown(&*self.socket, Shutdown::Both);
        self.wake_sender();
    }

    /// Why it ended, if it did.
    pub(super) fn broken(&self) -> Option<Broken> {
        self.broken.borrow().clone()
    }

    fn is_broken(&self) -> bool {
        self.broken.borrow().is_some()
    }

    /// Whether its tasks have ended.
    pub(super) fn is_over(&self) -> bool {
        self.tasks.get() == 0
    }

    /// Says goodbye where nothing is in flight; what the socket does not take at once is left out.
    pub(super) fn say_goodbye(&self) {
        if self.load() == 0 && !self.is_broken() {
            let mut words = Vec::new();
            self.session.borrow().put_disconnect(&mut words);
            let _ = rustix::net::send(&*self.socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Since when the server owes something: a reply, or that it takes what is being sent (I2).
    pub(super) fn oldest(&self) -> Option<Duration> {
        let works = self.works.borrow();
        let replies = works.iter().flatten().filter(|work| work.batch <= self.sent.get()).map(|work| work.started);
        replies.chain(self.sending.get()).min()
    }

    /// Takes out everything that is left, once it is over.
    pub(super) fn take_apart(&self) -> Remains {
        assert!(self.is_over(), "the memory of requests is not in use any more (I1)");
        let mut remains = Remains {
            sent: self.works.take().into_iter().flatten().collect(),
            unsent: self.queue.take().into(),
            ended: Vec::new(),
        };
        for (work, ended) in self.early.take() {
            if ended.error == Some(SHUTTING_DOWN) { remains.sent.push(work) } else { remains.ended.push((work, ended)) }
        }
        remains
    }

    fn wake_sender(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    /// Whether the next in the queue may leave now (I3).
    fn may_send(&self) -> bool {
        let queue = self.queue.borrow();
        let Some(next) = queue.front() else { return false };
        let bytes = self.flying_bytes.get() + next.payload_bytes();
        self.flying.get() == 0 || (self.flying.get() < FLYING_MAX && bytes <= FLYING_BYTES_MAX)
    }

    /// Waits until something may be sent; false when nothing ever will.
    async fn send_due(&self) -> bool {
        poll_fn(|cx| {
            if self.is_broken() {
                return Poll::Ready(false);
            }
            if self.may_send() {
                return Poll::Ready(true);
            }
            self.sender.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Puts the next of the queue into flight: its header goes to `heads`. Returns its slot.
    fn take_off(&self, covers: u64, heads: &mut Vec<u8>) -> Option<usize> {
        if !self.may_send() {
            return None;
        }
        let mut work = self.queue.borrow_mut().pop_front()?;
        let (offset, bytes) = if work.ask == Ask::Flush { (0, 0) } else { (work.offset, work.bytes) };
        let slot = self.session.borrow_mut().start(work.ask, offset, bytes, heads);
        work.started = Duration::MAX;
        work.batch = self.batch.get();
        work.covers = covers;
        self.flying.set(self.flying.get() + 1);
        self.flying_bytes.set(self.flying_bytes.get() + work.payload_bytes());
        self.large.set(self.large.get() + usize::from(is_large(&work)));
        let mut works = self.works.borrow_mut();
        if works.len() <= slot {
            works.resize_with(slot + 1, || None);
        }
        works[slot] = Some(work);
        Some(slot)
    }

    /// The work in `slot`.
    fn with<R>(&self, slot: usize, look: impl FnOnce(&Work) -> R) -> R {
        let works = self.works.borrow();
        look(works[slot].as_ref().expect("a slot of the session in use has its work"))
    }

    /// A batch is about to be sent.
    fn batch_begins(&self, remote: &Remote) {
        self.batch.set(self.batch.get() + 1);
        self.sending.set(Some(remote.now()));
    }

    /// A batch, the requests in `slots`, was sent in full: their time begins, and replies that waited for that
    /// count now.
    fn batch_sent(&self, remote: &Remote, slots: &[usize]) {
        let batch = self.batch.get();
        self.sent.set(batch);
        self.sending.set(None);
        for &slot in slots {
            if let Some(work) = self.works.borrow_mut()[slot].as_mut().filter(|work| work.batch == batch) {
                work.started = remote.now();
            }
        }
        for (work, ended) in self.early.take() {
            self.reply(remote, work, ended);
        }
    }

    /// A request has its reply.
    fn ended(&self, remote: &Remote, ended: Ended) {
        let work = self.works.borrow_mut()[ended.slot].take().expect("a slot of the session in use has its work");
        self.flying.set(self.flying.get() - 1);
        self.flying_bytes.set(self.flying_bytes.get() - work.payload_bytes());
        self.large.set(self.large.get() - usize::from(is_large(&work)));
        if work.has_payload() && work.batch > self.sent.get() {
            self.early.borrow_mut().push((work, ended));
        } else {
            self.reply(remote, work, ended);
        }
        if !self.queue.borrow().is_empty() {
            self.wake_sender();
        }
    }

    fn reply(&self, remote: &Remote, mut work: Work, ended: Ended) {
        if ended.error == Some(SHUTTING_DOWN) {
            // It was not carried out: whoever comes back after the server may do it.
            work.losses += 1;
            self.queue.borrow_mut().push_front(work);
            self.sever(Broken::ShuttingDown);
        } else {
            remote.ended(work, ended.error, ended.extents);
        }
    }

    /// One of its tasks ended.
    fn task_over(&self, remote: &Remote) {
        self.tasks.set(self.tasks.get() - 1);
        remote.wake_keeper();
    }
}

fn is_large(work: &Work) -> bool {
    work.ask == Ask::Read && work.bytes >= LARGE_BYTES
}
