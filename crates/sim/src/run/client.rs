//! The client of one life: sends requests, and holds every answer against the model.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use forebay_block::{Ability, Bio, End, Extent, Flags, Op, Sector, SectorCount, Status, Target};
use forebay_reactor::{Buffer, BufferPool};

use super::load::Ask;
use crate::check::{Act, Model, OpId, POISON, SECTOR, Tick, stamp};
use crate::world::World;

/// Longest time from a request to its answer in a healthy world, seconds of simulated time.
const ANSWER_MAX_S: u64 = 120;

/// Ends of a server that a request outlives; after that it may be what ends it.
const ENDS_MAX: u32 = 6;

struct Asked {
    op: OpId,
    ask: Ask,
    sectors: Range<usize>,
    buffer: Option<Buffer>,
    at_s: u64,
    /// How often what it was sent to had ended before.
    ends: u32,
}

/// What outlives a client: the model, and what was counted.
pub(crate) struct Ledger {
    pub(crate) seed: u64,
    pub(crate) model: RefCell<Model>,
    pub(crate) failure: RefCell<Option<String>>,
    pub(crate) checks: Cell<u64>,
    pub(crate) requests: Cell<u64>,
}

impl Ledger {
    /// An empty one for a seed whose requests are held against `model`.
    pub(crate) fn new(seed: u64, model: Model) -> Self {
        Self { seed, model: RefCell::new(model), failure: RefCell::default(), checks: Cell::default(), requests: Cell::default() }
    }

    /// Remembers the first failure.
    pub(crate) fn fail(&self, reason: String) {
        self.failure.borrow_mut().get_or_insert(reason);
    }

    pub(crate) fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Counts a request that is not sent.
    pub(crate) fn pass_over(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    pub(crate) fn count_checks(&self, sectors: usize) {
        self.checks.set(self.checks.get() + sectors as u64);
    }
}

/// Sends requests to a target and checks what comes back.
pub(crate) struct Client {
    world: World,
    ledger: Rc<Ledger>,
    pool: BufferPool,
    asked: RefCell<Vec<Option<Asked>>>,
    in_flight: Cell<usize>,
    changes: Cell<u64>,
    waker: Cell<Option<Waker>>,
    /// Answers after the end of this life count for nothing.
    dead: Cell<bool>,
    /// A fault may have been injected in this life, so that errors are no failures.
    faulty: Cell<bool>,
    /// What failed may still happen.
    late: Cell<bool>,
    /// Errors since the last success.
    pub(crate) errors: Cell<u32>,
    /// What was acknowledged to somebody who outlives what he talks to.
    survivor: Option<Survivor>,
}

/// What somebody knows who outlives what he talks to.
#[derive(Default)]
struct Survivor {
    /// Everything that he sent.
    sent: RefCell<BTreeSet<u32>>,
    /// When a flush failed for the last time: what was acknowledged before is in doubt, and he knows it.
    told: Cell<Tick>,
    /// Something was lost that he does not know of.
    lost: Cell<bool>,
    /// How often what he talks to has ended.
    ends: Cell<u32>,
}

impl Client {
    /// Somebody who outlives what he talks to: a flush of his may fail, and has to where acknowledged changes were lost.
    pub(crate) fn survivor(world: &World, ledger: &Rc<Ledger>, pool: &BufferPool) -> Rc<Self> {
        let client = Rc::into_inner(Self::new(world, ledger, pool)).expect("it was made just now");
        Rc::new(Self { survivor: Some(Survivor::default()), ..client })
    }

    /// What has no answer.
    pub(crate) fn open(&self) -> Vec<OpId> {
        self.asked.borrow().iter().flatten().map(|asked| asked.op).collect()
    }

    /// What he talks to has ended.
    pub(crate) fn server_ended(&self) {
        if let Some(survivor) = &self.survivor {
            survivor.ends.set(survivor.ends.get() + 1);
        }
    }

    fn ends(&self) -> u32 {
        self.survivor.as_ref().map_or(0, |survivor| survivor.ends.get())
    }

    /// Whether a request may fail though nothing is wrong with the world: a flush of a survivor, and what was with his
    /// server when that ended, again and again.
    fn may_fail(&self, ask: Ask, ends: u32) -> bool {
        self.survivor.is_some() && (ask == Ask::Flush || self.ends() - ends >= ENDS_MAX)
    }

    /// Everything was read back after a power cut, and nothing is settled.
    pub(crate) fn look_for_losses(&self) {
        if let Some(survivor) = &self.survivor
            && self.ledger.model.borrow().has_lost(&survivor.sent.borrow(), survivor.told.get())
        {
            survivor.lost.set(true);
        }
    }

    /// Holds the end of a flush against what was lost.
    fn flushed(&self, survivor: &Survivor, ok: bool) {
        if !ok {
            survivor.told.set(self.ledger.model.borrow().now());
            survivor.lost.set(false);
        } else if survivor.lost.get() {
            self.ledger.fail("a flush succeeded though what was acknowledged before is lost, which no flush had said".to_owned());
        }
    }

    pub(crate) fn new(world: &World, ledger: &Rc<Ledger>, pool: &BufferPool) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            ledger: Rc::clone(ledger),
            pool: pool.clone(),
            asked: RefCell::default(),
            in_flight: Cell::new(0),
            changes: Cell::new(0),
            waker: Cell::new(None),
            dead: Cell::new(false),
            faulty: Cell::new(false),
            late: Cell::new(false),
            errors: Cell::new(0),
            survivor: None,
        })
    }

    pub(crate) fn die(&self) {
        self.dead.set(true);
    }

    pub(crate) fn expect_errors(&self) {
        self.faulty.set(true);
    }

    /// What fails may still happen, at any time: it goes to somebody who may be at work on it unseen.
    pub(crate) fn expect_late_effects(&self) {
        self.late.set(true);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Waits until something was answered.
    pub(crate) async fn change(&self) {
        let before = self.changes.get();
        poll_fn(|cx| {
            if self.changes.get() != before || self.in_flight.get() == 0 {
                return Poll::Ready(());
            }
            self.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Waits until everything was answered.
    pub(crate) async fn idle(&self) {
        while self.in_flight.get() > 0 {
            self.change().await;
        }
    }

    /// Sends a request.
    pub(crate) fn send(self: &Rc<Self>, target: &dyn Target, ask: Ask, sectors: Range<usize>) {
        let limits = target.limits();
        let ask = match ask {
            Ask::Trim if limits.discard == Ability::No => Ask::Write,
            Ask::Zeroes if limits.write_zeroes == Ability::No => Ask::Write,
            ask => ask,
        };
        let act = match ask {
            Ask::Read => Act::Read,
            Ask::Write => Act::Write { fua: false },
            Ask::WriteFua => Act::Write { fua: true },
            Ask::Zeroes => Act::Zeroes,
            Ask::Trim => Act::Trim,
            Ask::Flush => Act::Flush,
        };
        let sectors = if ask == Ask::Flush { 0..0 } else { sectors };
        let op = self.ledger.model.borrow_mut().begin(act, sectors.clone());
        if let Some(survivor) = &self.survivor {
            survivor.sent.borrow_mut().insert(op.0);
        }
        self.ledger.requests.set(self.ledger.requests.get() + 1);
        let (start, count) = (sectors.start as u64, sectors.len() as u64);
        self.world.note(&[3, ask as u64, start, count], || format!("client: v{} {ask:?} {start}+{count}", op.0));
        let extent = Extent::new(Sector(start), SectorCount(count));
        let (bio, buffer) = match ask {
            Ask::Flush => (Bio::flush(), None),
            Ask::Trim => (Bio::discard(extent), None),
            Ask::Zeroes => (Bio::write_zeroes(extent), None),
            Ask::Read | Ask::Write | Ask::WriteFua => self.with_payload(ask, op, &sectors),
        };
        let at_s = self.world.now().as_secs();
        let token = self.enter(Asked { op, ask, sectors, buffer, at_s, ends: self.ends() });
        target.submit(bio.on_end(Rc::clone(self) as Rc<dyn End>, token));
    }

    fn with_payload(&self, ask: Ask, op: OpId, sectors: &Range<usize>) -> (Bio, Option<Buffer>) {
        let bytes = sectors.len() * SECTOR;
        let length = u32::try_from(bytes).expect("requests are at most 1 MiB");
        let start = Sector(sectors.start as u64);
        let mut buffer = self.pool.take(bytes);
        if ask == Ask::Read {
            for sector in buffer.bytes_mut()[..bytes].chunks_exact_mut(SECTOR) {
                sector[..64].fill(POISON);
            }
            return (Bio::read(start, Rc::clone(buffer.segments()), 0, length), Some(buffer));
        }
        let version = self.ledger.model.borrow().version_of(op);
        stamp(&mut buffer.bytes_mut()[..bytes], self.ledger.seed, start.0, version);
        let flags = Flags { fua: ask == Ask::WriteFua, ..Flags::default() };
        (Bio::write(start, Rc::clone(buffer.segments()), 0, length).with(flags), Some(buffer))
    }

    fn enter(&self, asked: Asked) -> u64 {
        self.in_flight.set(self.in_flight.get() + 1);
        let mut list = self.asked.borrow_mut();
        let slot = list.iter().position(Option::is_none).unwrap_or(list.len());
        if slot == list.len() {
            list.push(None);
        }
        list[slot] = Some(asked);
        slot as u64
    }

    fn answered(&self, asked: Asked, status: Status) {
        let Asked { op, ask, sectors, buffer, at_s, ends } = asked;
        self.world.note(&[4, u64::from(op.0), status as u64], || format!("client: v{} answered {status:?}", op.0));
        let mut model = self.ledger.model.borrow_mut();
        if status.is_ok() {
            self.errors.set(0);
            if ask == Ask::Read {
                self.ledger.count_checks(sectors.len());
                let mut buffer = buffer.expect("a read has a buffer");
                let checked = model.check_read(op, &buffer.bytes_mut()[..sectors.len() * SECTOR]);
                if let Err(violation) = checked {
                    self.ledger.fail(format!("v{}: {violation}", op.0));
                }
            }
        } else {
            self.errors.set(self.errors.get() + 1);
            if !self.faulty.get() && !self.may_fail(ask, ends) {
                self.ledger.fail(format!("v{} {ask:?} {sectors:?} failed with {status:?} in a healthy world", op.0));
            }
        }
        let took_s = self.world.now().as_secs() - at_s;
        if took_s > ANSWER_MAX_S && !self.faulty.get() {
            self.ledger.fail(format!("v{} {ask:?} {sectors:?} took {took_s} s in a healthy world", op.0));
        }
        if status.is_ok() || !self.late.get() {
            model.end(op, status.is_ok());
        }
        drop(model);
        if let Some(survivor) = self.survivor.as_ref().filter(|_| ask == Ask::Flush) {
            self.flushed(survivor, status.is_ok());
        }
    }
}

impl End for Client {
    fn bio_ended(&self, bio: Bio, token: u64) {
        let status = bio.status();
        let wrong_op = bio.op();
        drop(bio);
        let slot = usize::try_from(token).expect("tokens are slots");
        let asked = self.asked.borrow_mut()[slot].take();
        self.in_flight.set(self.in_flight.get() - 1);
        if self.dead.get() {
            return;
        }
        match asked {
            Some(asked) => {
                let same = matches!(
                    (asked.ask, wrong_op),
                    (Ask::Read, Op::Read)
                        | (Ask::Write | Ask::WriteFua, Op::Write)
                        | (Ask::Zeroes, Op::WriteZeroes)
                        | (Ask::Trim, Op::Discard)
                        | (Ask::Flush, Op::Flush)
                );
                if !same {
                    self.ledger.fail(format!("v{} {:?} came back as {wrong_op:?}", asked.op.0, asked.ask));
                }
                self.answered(asked, status);
            }
            None => self.ledger.fail("a request was answered that nobody sent".to_owned()),
        }
        self.changes.set(self.changes.get() + 1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
