//! One client in the transmission phase: its requests in flight, each in a slot.
//!
//! ```text
//!   receive ── take a slot ──▶ submit ──▶ target
//!      ▲                                    │ bio ends
//!      └── slot free ◀── reply ◀── done ◀───┘
//! ```
//!
//! Invariants:
//! - I1: a request has a slot from its header until its reply was handed to the socket, so slots
//!   bound the requests in flight and the replies that wait alike.
//! - I2: payload in flight is at most the client's limit, or one request's.
//! - I3: no cell is borrowed while a bio is submitted or a buffer is given back.
//! - I4: the receiving and the sending task are woken through a [`Bell`] each and through nothing
//!   else.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

use forebay_block::{Limits, Target};
use forebay_reactor::{Buffer, BufferPool, JobPool, Reactor};
use rustix::net::{Shutdown, shutdown};

use super::counts::{Counters, ExportCounts};
use super::submit::tell_status;
use super::unaligned::{Gate, Work};
use super::{STATUS_JOBS, ServeLimits};
use crate::nbd::server::{Command, Request, Session};
use crate::nbd::{StatusExtent, WireError};

/// Index of a slot.
pub(super) type SlotId = u32;

/// What is served under one name.
pub(super) struct Served {
    pub(super) target: Rc<dyn Target>,
    pub(super) limits: Limits,
    pub(super) gate: Rc<Gate>,
    pub(super) counts: Arc<Counters>,
    /// What other threads count.
    pub(super) elsewhere: RefCell<Vec<Arc<Counters>>>,
    pub(super) jobs: JobPool<Work>,
    /// Block status requests.
    pub(super) questions: JobPool<(Rc<Connection>, SlotId)>,
}

impl Served {
    /// `target`, served on the thread of `reactor`; changes pass `gate`.
    pub(super) fn new(
        reactor: &Reactor,
        target: Rc<dyn Target>,
        gate: Rc<Gate>,
        counts: Arc<Counters>,
        jobs: JobPool<Work>,
    ) -> Self {
        let questions = reactor.job_pool(STATUS_JOBS, tell_status);
        Self { limits: target.limits(), target, gate, counts, elsewhere: RefCell::default(), jobs, questions }
    }

    /// What was counted, on whatever thread.
    pub(super) fn counted(&self) -> ExportCounts {
        let mut sum = ExportCounts::default();
        self.counts.add_to(&mut sum);
        for counts in self.elsewhere.borrow().iter() {
            counts.add_to(&mut sum);
        }
        sum
    }
}

/// Wakes one waiting task.
#[derive(Default)]
pub(super) struct Bell(Cell<Option<Waker>>);

impl Bell {
    pub(super) fn ring(&self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }

    /// Waits until `ready`; asked anew each time the bell rings.
    pub(super) async fn wait(&self, ready: impl Fn() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            self.listen(cx.waker());
            Poll::Pending
        })
        .await;
    }

    pub(super) fn listen(&self, waker: &Waker) {
        self.0.set(Some(waker.clone()));
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was carried out.
    Done,
    /// It concerned no bytes.
    Empty,
    /// It failed or was refused, with the reason for people.
    Failed(WireError, &'static str),
}

/// A request in flight.
#[derive(Default)]
pub(super) struct Slot {
    /// The request; `None` in a free slot.
    pub(super) request: Option<Request>,
    /// Payload; the data of the request begins `skip` bytes into it.
    pub(super) buffer: Option<Buffer>,
    pub(super) skip: u32,
    /// Bytes counted against the client's limit.
    pub(super) charge: u64,
    /// A flush must follow before the reply.
    pub(super) flush_after: bool,
    /// It counts as a change in the gate.
    pub(super) gated: bool,
    pub(super) outcome: Option<Outcome>,
    /// What block status tells.
    pub(super) extents: Vec<StatusExtent>,
}

impl Slot {
    /// Bytes of payload that wait to be sent.
    fn unsent(&self) -> u64 {
        match self.request {
            Some(Request { command: Command::Read { .. }, length, .. }) if self.outcome == Some(Outcome::Done) => length,
            _ => 0,
        }
    }
}

/// Replies of reads that wait to be sent, bytes, from which on no more requests come in: the socket
/// is slower than the target then, and what is read now would have left the processor's cache
/// before it is sent.
const UNSENT_BYTES_MAX: u64 = 2 << 20;

/// One client in the transmission phase.
pub(super) struct Connection {
    /// Itself, for bios that end here.
    me: Weak<Self>,
    pub(super) reactor: Reactor,
    pub(super) pool: BufferPool,
    pub(super) socket: Rc<OwnedFd>,
    pub(super) session: Session,
    pub(super) served: Rc<Served>,
    limits: ServeLimits,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<SlotId>>,
    done: RefCell<VecDeque<SlotId>>,
    payload_bytes: Cell<u64>,
    /// Bytes of reads that are done and not sent.
    unsent_bytes: Cell<u64>,
    /// Rings for the receiving task: a slot or payload bytes became free.
    room: Bell,
    /// Rings for the sending task: a reply is ready, or there will be none.
    work: Bell,
    /// No more requests come in.
    input_over: Cell<bool>,
    /// The client is gone: replies have nobody to go to.
    gone: Cell<bool>,
    /// The server shuts down: new requests are refused.
    closing: Rc<Cell<bool>>,
}

impl Connection {
    pub(super) fn new(
        reactor: &Reactor,
        pool: &BufferPool,
        socket: Rc<OwnedFd>,
        session: Session,
        served: Rc<Served>,
        limits: ServeLimits,
        closing: Rc<Cell<bool>>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            reactor: reactor.clone(),
            pool: pool.clone(),
            socket,
            session,
            served,
            limits,
            slots: RefCell::default(),
            free: RefCell::default(),
            done: RefCell::default(),
            payload_bytes: Cell::new(0),
            unsent_bytes: Cell::new(0),
            room: Bell::default(),
            work: Bell::default(),
            input_over: Cell::new(false),
            gone: Cell::new(false),
            closing,
        })
    }

    /// Itself, as those that outlive a call keep it.
    pub(super) fn me(&self) -> Rc<Self> {
        self.me.upgrade().expect("a connection in use is kept by whoever uses it")
    }

    /// Whether a request with `charge` bytes of payload may come in now.
    fn has_room(&self, charge: u64) -> bool {
        let in_flight = self.payload_bytes.get();
        let fits = in_flight == 0
            || (in_flight.saturating_add(charge) <= self.limits.payload_bytes_max && self.unsent_bytes.get() < UNSENT_BYTES_MAX);
        let made = self.slots.borrow().len();
        fits && (made < self.limits.requests_max as usize || !self.free.borrow().is_empty())
    }

    /// Takes a slot for `request`, or `None` when the client has too much in flight.
    pub(super) fn take_slot(&self, request: Request, charge: u64) -> Option<SlotId> {
        if !self.has_room(charge) {
            return None;
        }
        let mut slots = self.slots.borrow_mut();
        let id = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot::default());
            SlotId::try_from(slots.len() - 1).expect("there are far fewer than 2^32 slots")
        });
        let slot = &mut slots[id as usize];
        assert!(slot.request.is_none() && slot.buffer.is_none(), "a free slot holds nothing");
        *slot = Slot { request: Some(request), charge, ..Slot::default() };
        self.payload_bytes.set(self.payload_bytes.get() + charge);
        Some(id)
    }

    /// Waits until a request with `charge` bytes of payload may come in.
    pub(super) async fn room(&self, charge: u64) {
        self.room.wait(|| self.has_room(charge)).await;
    }

    /// Looks at a slot. The closure must neither submit nor drop a buffer (I3).
    pub(super) fn with<R>(&self, id: SlotId, look: impl FnOnce(&mut Slot) -> R) -> R {
        look(&mut self.slots.borrow_mut()[id as usize])
    }

    /// The request of a slot in use.
    pub(super) fn request(&self, id: SlotId) -> Request {
        self.slots.borrow()[id as usize].request.expect("a slot in use has its request")
    }

    /// Empties a slot and makes it free.
    pub(super) fn free_slot(&self, id: SlotId) {
        let slot = self.with(id, std::mem::take);
        self.payload_bytes.set(self.payload_bytes.get() - slot.charge);
        self.unsent_bytes.set(self.unsent_bytes.get() - slot.unsent());
        self.free.borrow_mut().push(id);
        drop(slot);
        self.room.ring();
    }

    /// The request in this slot has ended: its reply is due.
    pub(super) fn finish(&self, id: SlotId, outcome: Outcome) {
        let gated = self.with(id, |slot| {
            assert!(slot.outcome.is_none(), "a request ends once");
            slot.outcome = Some(outcome);
            self.unsent_bytes.set(self.unsent_bytes.get() + slot.unsent());
            slot.gated
        });
        self.done.borrow_mut().push_back(id);
        self.work.ring();
        if gated {
            self.served.gate.leave();
        }
    }

    /// The next slot whose reply is due.
    pub(super) fn next_done(&self) -> Option<SlotId> {
        self.done.borrow_mut().pop_front()
    }

    /// Waits until a reply is due; false when there will be none any more.
    pub(super) async fn replies_due(&self) -> bool {
        let idle = || self.free.borrow().len() == self.slots.borrow().len();
        self.work.wait(|| !self.done.borrow().is_empty() || (self.input_over.get() && idle())).await;
        !self.done.borrow().is_empty()
    }

    /// No more requests come in; what is in flight is still answered.
    pub(super) fn input_over(&self) {
        self.input_over.set(true);
        self.work.ring();
    }

    /// The client is gone, or must go: nothing is sent any more, nothing is received.
    pub(super) fn hang_up(&self) {
        self.gone.set(true);
        // The other end may have closed it already.
        let _ = shutdown(&*self.socket, Shutdown::Both);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Counts a request that was taken in.
    pub(super) fn count(&self, request: &Request) {
        let counts = &self.served.counts;
        match request.command {
            Command::Read { .. } => counts.reads.add(1),
            Command::Write => {
                counts.writes.add(1);
                counts.bytes_written.add(request.length);
            }
            Command::Flush => counts.flushes.add(1),
            Command::Trim => counts.trims.add(1),
            Command::WriteZeroes { .. } => counts.zeroes.add(1),
            Command::Cache | Command::BlockStatus { .. } => counts.others.add(1),
        }
    }
}
