//! What the parts of an NBD device share: the connections, the requests that wait for one, and what is
//! known about the durability of what was written.
//!
//! ```text
//!   carry(request) ─▶ up? ─ yes ─▶ the connection with the least to do
//!                      └─ no ─▶ waiting ──── the keeper, once there are connections again ───▶ ┘
//! ```
//!
//! Invariants:
//! - I1: after a loss, no request leaves that overlaps an earlier change which was there then and has no
//!   reply yet: what was never acknowledged takes effect before whatever comes later, and in the order in
//!   which it arrived.
//! - I2: a flush succeeds only if the server that acknowledged the changes before it also acknowledged the
//!   flush: changes that were acknowledged and not flushed when all connections ended may be lost with the
//!   server's memory, and so may what a flush that failed was to cover. Each such loss is counted, and told to
//!   every user by his flushes ([`super::flushes`]), never by those that are made here for a write with FUA.
//! - I3: every request ends: with its reply, or with an error when the time is up.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use forebay_block::{HeapMemory, Segments};
use forebay_nbd::client::{Ask, Ended, Entered};
use forebay_nbd::uri::Uri;
use forebay_nbd::{StatusExtent, TransmissionFlags};
use forebay_reactor::{BufferPool, Carrier, Kind, Part, Reactor, Request, Tag, WeakReactor};
use rustix::io::Errno;

use super::NbdOptions;
use super::dial::{Resolver, resolver};
use super::link::Link;
use super::work::{StatusAnswer, Whom, Work};

/// How long requests fail at once after an attempt to reach the server failed, when it was away before.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// Size of the zeroes that are sent again and again, bytes.
const ZEROES_BYTES: u32 = 64 << 10;
/// Lists of parts that are kept for reuse.
const SPARE_MAX: usize = 256;

/// How it stands with the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// There are connections.
    Up,
    /// There are none; requests wait.
    Down,
    /// There were none for too long: requests fail unless the attempt that they cause succeeds.
    Away {
        /// When the last attempt failed.
        tried: Duration,
    },
    /// The device is not used any more.
    Closed,
}

/// What the parts of a device share.
pub(super) struct Remote {
    reactor: WeakReactor,
    pool: BufferPool,
    pub(super) uri: Uri,
    pub(super) options: NbdOptions,
    pub(super) names: Resolver,
    /// What the server offered at first, and must offer as long as the device is in use.
    pub(super) offer: Entered,
    pub(super) standing: Cell<Standing>,
    pub(super) links: RefCell<Vec<Rc<Link>>>,
    waiting: RefCell<VecDeque<Work>>,
    /// Changes that were there at the last loss and have no reply: arrival, first byte, end (I1).
    replaying: RefCell<Vec<(u64, u64, u64)>>,
    arrivals: Cell<u64>,
    /// Changes that were acknowledged and are not durable by themselves; and how many of them a flush covers.
    acknowledged: Cell<u64>,
    flushed: Cell<u64>,
    /// How often changes that had been acknowledged may have been lost (I2).
    losses: Cell<u64>,
    keeper: Cell<Option<Waker>>,
    /// Connections in a row that brought no reply.
    pub(super) fruitless: Cell<u32>,
    /// One connection at most, whatever the server offers.
    pub(super) single: Cell<bool>,
    /// Whether the keeper looks at the clock.
    pub(super) watched: Cell<bool>,
    spare: RefCell<Vec<Vec<Part>>>,
    /// What a server without write-zeroes is sent instead.
    zeroes: OnceCell<Rc<Segments>>,
}

impl Remote {
    pub(super) fn new(reactor: &Reactor, pool: &BufferPool, uri: &Uri, options: NbdOptions, offer: Entered) -> Rc<Self> {
        Rc::new(Self {
            reactor: reactor.downgrade(),
            pool: pool.clone(),
            uri: uri.clone(),
            options,
            names: resolver(),
            offer,
            standing: Cell::new(Standing::Down),
            links: RefCell::default(),
            waiting: RefCell::default(),
            replaying: RefCell::default(),
            arrivals: Cell::new(0),
            acknowledged: Cell::new(0),
            flushed: Cell::new(0),
            losses: Cell::new(0),
            keeper: Cell::new(None),
            fruitless: Cell::new(0),
            single: Cell::new(false),
            watched: Cell::new(false),
            spare: RefCell::default(),
            zeroes: OnceCell::new(),
        })
    }

    /// The engine, unless it is gone.
    pub(super) fn reactor(&self) -> Option<Reactor> {
        self.reactor.upgrade()
    }

    pub(super) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(super) fn now(&self) -> Duration {
        self.reactor().map_or(Duration::MAX, |reactor| reactor.now())
    }

    /// Whether the server offers all of `flags`.
    pub(super) fn offers(&self, flags: TransmissionFlags) -> bool {
        self.offer.flags.contains(flags)
    }

    /// How many changes were acknowledged so far that a flush makes durable.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.get()
    }

    /// How often changes that had been acknowledged may have been lost.
    pub(super) fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// Changes that had been acknowledged may be lost.
    fn count_loss(&self) {
        self.losses.set(self.losses.get() + 1);
    }

    /// Remembers who keeps the connections, to be woken.
    pub(super) fn set_keeper(&self, waker: Waker) {
        self.keeper.set(Some(waker));
    }

    pub(super) fn wake_keeper(&self) {
        if let Some(waker) = self.keeper.take() {
            waker.wake();
        }
    }

    /// Nobody uses the device any more.
    pub(super) fn close(&self) {
        for link in self.links.borrow().iter() {
            link.say_goodbye();
        }
        self.standing.set(Standing::Closed);
        self.wake_keeper();
    }

    /// Whether requests wait.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// A request for whom `whom` waits.
    fn work(&self, whom: Whom, ask: Ask, offset: u64, bytes: u64) -> Work {
        let arrived = self.arrivals.get();
        self.arrivals.set(arrived + 1);
        let parts = self.spare.borrow_mut().pop().unwrap_or_default();
        let started = Duration::MAX;
        Work {
            whom,
            ask,
            offset,
            bytes,
            parts,
            arrived,
            started,
            batch: 0,
            covers: 0,
            losses: 0,
            then_flush: false,
            replayed: false,
        }
    }

    /// Asks for the block status of a range.
    pub(super) fn ask_status(&self, offset: u64, bytes: u64) -> Rc<StatusAnswer> {
        let answer = Rc::<StatusAnswer>::default();
        let work = self.work(Whom::Status(Rc::clone(&answer)), Ask::Status, offset, bytes);
        self.put(work);
        answer
    }

    /// Sends `work`, or lets it wait.
    fn put(&self, work: Work) {
        if let Standing::Away { tried } = self.standing.get()
            && self.now() < tried.saturating_add(AWAY_PAUSE)
        {
            return self.finish(work, Errno::NOTCONN);
        }
        if self.standing.get() == Standing::Closed {
            return self.finish(work, Errno::SHUTDOWN);
        }
        if self.standing.get() == Standing::Up && !self.must_wait(&work) {
            self.send(work);
        } else {
            self.waiting.borrow_mut().push_back(work);
        }
        if !self.watched.get() {
            self.wake_keeper();
        }
    }

    /// Gives `work` to the connection with the least to do.
    fn send(&self, work: Work) {
        let links = self.links.borrow();
        let least = links.iter().min_by_key(|link| link.load()).expect("there are connections while it is up");
        least.push(work);
    }

    /// Whether `work` overlaps an earlier change that was there at the last loss (I1).
    fn must_wait(&self, work: &Work) -> bool {
        let replaying = self.replaying.borrow();
        replaying.iter().any(|&(arrived, start, end)| arrived < work.arrived && work.overlaps(start, end))
    }

    /// Sends what waits and may leave.
    pub(super) fn send_waiting(&self) {
        let mut waiting = self.waiting.take();
        while let Some(work) = waiting.pop_front() {
            if self.standing.get() == Standing::Up && !self.must_wait(&work) {
                self.send(work);
            } else {
                self.waiting.borrow_mut().push_back(work);
            }
        }
    }

    /// Takes in what was left of all connections, to be sent again in order of arrival.
    pub(super) fn lose(&self, mut all: Vec<Work>) {
        let lost = self.acknowledged.get() > self.flushed.get();
        if lost {
            self.count_loss();
            self.flushed.set(self.acknowledged.get());
        }
        all.extend(self.waiting.take());
        for work in &mut all {
            // The flush of a write with FUA is of no use without the write before it.
            if work.then_flush {
                work.ask = Ask::Write { fua: false };
            }
            work.replayed |= work.changes();
        }
        all.sort_unstable_by_key(|work| work.arrived);
        // Flushes that are under way were to cover what may be lost now.
        if lost {
            let (flushes, rest): (Vec<Work>, Vec<Work>) = all.into_iter().partition(|work| work.ask == Ask::Flush);
            all = rest;
            for work in flushes {
                self.finish(work, Errno::IO);
            }
        }
        let range = |work: &Work| (work.arrived, work.offset, work.end());
        *self.replaying.borrow_mut() = all.iter().filter(|work| work.replayed).map(range).collect();
        *self.waiting.borrow_mut() = all.into();
    }

    /// Everything that waits fails.
    pub(super) fn fail_waiting(&self, error: Errno) {
        for work in self.waiting.take() {
            self.finish(work, error);
        }
    }

    /// A request has its reply.
    pub(super) fn ended(&self, mut work: Work, error: Option<u32>, extents: Vec<StatusExtent>) {
        self.fruitless.set(0);
        match (work.ask, error) {
            (Ask::Flush, None) => self.flushed.set(self.flushed.get().max(work.covers)),
            // The server need not say it again, and whoever hears it now need not be who has to.
            (Ask::Flush, Some(_)) => self.count_loss(),
            (Ask::Write { fua: true }, _) | (_, Some(_)) => {}
            (_, None) if work.changes() && !work.then_flush => self.acknowledged.set(self.acknowledged.get() + 1),
            (_, None) => {}
        }
        self.replay_over(&work);
        if error.is_none() && work.then_flush && work.changes() {
            work.ask = Ask::Flush;
            self.put_flush(work);
        } else if let Some(code) = error {
            self.finish(work, errno(code));
        } else {
            self.answer(work, extents);
        }
    }

    /// A request will have no reply.
    pub(super) fn finish(&self, work: Work, error: Errno) {
        self.replay_over(&work);
        match work.whom {
            Whom::Reactor(tag) => {
                if let Some(reactor) = self.reactor() {
                    reactor.carried(tag, -error.raw_os_error());
                }
            }
            Whom::Status(answer) => answer.give(Vec::new()),
        }
        self.keep_parts(work.parts);
    }

    fn answer(&self, work: Work, extents: Vec<StatusExtent>) {
        match work.whom {
            Whom::Reactor(tag) => {
                let moved = i32::try_from(work.bytes).expect("requests are cut below 2 GiB");
                if let Some(reactor) = self.reactor() {
                    reactor.carried(tag, moved);
                }
            }
            Whom::Status(answer) => answer.give(extents),
        }
        self.keep_parts(work.parts);
    }

    fn keep_parts(&self, mut parts: Vec<Part>) {
        parts.clear();
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX {
            spare.push(parts);
        }
    }

    /// What waited for this change may leave.
    fn replay_over(&self, work: &Work) {
        if work.replayed {
            self.replaying.borrow_mut().retain(|&(arrived, ..)| arrived != work.arrived);
            if self.standing.get() == Standing::Up {
                self.send_waiting();
            }
        }
    }

    /// Sends a flush where the server has any.
    fn put_flush(&self, mut work: Work) {
        work.replayed = false;
        if self.offers(TransmissionFlags::SEND_FLUSH) {
            self.put(work);
        } else {
            self.flushed.set(self.acknowledged.get());
            self.answer(work, Vec::new());
        }
    }

    /// Lists `bytes` bytes of zeroes as the payload of a write.
    fn fill_with_zeroes(&self, bytes: u64, parts: &mut Vec<Part>) {
        let make =
            || Segments::whole(Box::new(HeapMemory::new(ZEROES_BYTES as usize, 4096)), ZEROES_BYTES).expect("it has bytes");
        let zeroes = self.zeroes.get_or_init(make);
        let mut left = bytes;
        while left > 0 {
            let bytes = u32::try_from(left).map_or(ZEROES_BYTES, |left| left.min(ZEROES_BYTES));
            parts.push(Part { segments: Rc::clone(zeroes), skip: 0, bytes });
            left -= u64::from(bytes);
        }
    }

    /// Replies that came before their requests were sent in full.
    pub(super) fn ended_early(&self, early: Vec<(Work, Ended)>) {
        for (work, ended) in early {
            self.ended(work, ended.error, ended.extents);
        }
    }
}

impl Carrier for Remote {
    fn carry(&self, tag: Tag, request: &Request) {
        let (ask, then_flush) = match request.kind {
            Kind::Read => (Ask::Read, false),
            Kind::Write { fua: true } if self.offers(TransmissionFlags::SEND_FUA) => (Ask::Write { fua: true }, false),
            Kind::Write { fua } => (Ask::Write { fua: false }, fua),
            Kind::Flush => (Ask::Flush, false),
            Kind::Discard => (Ask::Trim, false),
            Kind::WriteZeroes { no_unmap } if self.offers(TransmissionFlags::SEND_WRITE_ZEROES) => {
                (Ask::WriteZeroes { no_hole: no_unmap }, false)
            }
            Kind::WriteZeroes { .. } => (Ask::Write { fua: false }, false),
            Kind::Receive | Kind::Send | Kind::Readable => unreachable!("streams are not carried"),
        };
        let mut work = self.work(Whom::Reactor(tag), ask, request.offset, request.bytes);
        work.then_flush = then_flush;
        for bio in &request.bios {
            if let Some(segments) = bio.segments() {
                let bytes = u32::try_from(bio.bytes()).expect("payloads are far below 4 GiB");
                work.parts.push(Part { segments: Rc::clone(segments), skip: bio.iter().skip(segments), bytes });
            }
        }
        if work.has_payload() && work.parts.is_empty() {
            self.fill_with_zeroes(work.bytes, &mut work.parts);
        }
        if work.ask == Ask::Flush { self.put_flush(work) } else { self.put(work) }
    }
}

/// What an error number of the protocol is to the system.
fn errno(code: u32) -> Errno {
    match code {
        1 => Errno::PERM,
        28 => Errno::NOSPC,
        95 => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}
