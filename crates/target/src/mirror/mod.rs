//! Mirror: the same content on several legs, each of which can serve alone.
//!
//! ```text
//!   write ─▶ lock ─▶ log.rs: regions dirty, durably ─▶ all legs ─▶ who.rs: what did an error mean ─▶ end
//!   read  ─▶ the leg with the fewest reads in flight of those that have it ─ error ─▶ another
//!   resync ─▶ regions that a leg lacks: one read, a write to each leg that lacks them
//! ```
//!
//! As the kernel's `mirror` target: its table line ([`options`]), its log on disk ([`log::format`]),
//! its status line. What differs is told in `docs/mirror.md`.
//!
//! Invariants:
//! - I1: a write is acknowledged when every leg that is not known to lack its regions has it.
//! - I2: overlapping writes pass one after the other, so all legs get them in the same order.
//! - I3: a region is copied in pieces that no write overlaps meanwhile; writes go to all legs, so
//!   what has been copied stays equal.
//! - I4: copied regions count only after a flush of all legs.
//! - I5: there is always a leg, the source, that has everything acknowledged; nothing else is read
//!   where legs may differ.
//!
//! Follow a write: `write.rs`, then `log/mod.rs`, then `who/mod.rs`. Sectors are of 512 bytes.

pub mod log;
mod open;
pub mod options;
mod resync;
mod scrub;
mod status;
#[cfg(test)]
mod tests;
pub mod who;
mod write;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Ability, Allocation, Bio, Extent, Limits, Op, SectorCount, Status, Target, call};
use forebay_reactor::{BufferPool, JobPool, Reactor};

pub use self::open::{LogSetup, OpenError, Setup, open};
pub use self::scrub::ScrubReport;
pub use self::status::{LegStatus, MirrorStatus};

use self::log::DirtyLog;
use self::options::Features;
use self::who::State;
use self::who::legs::{LegSet, Trouble};
use self::write::{Fans, Flushes};
use crate::copy::Engine;
use crate::event::Event;
use crate::lock::RangeLocks;

/// Requests of each kind at work at once; more wait.
const JOBS: usize = 256;

/// A device below, and what it is called.
struct Leg {
    name: String,
    target: Rc<dyn Target>,
}

/// The same content on several legs.
pub struct Mirror {
    me: Weak<Mirror>,
    reactor: Reactor,
    pool: BufferPool,
    legs: Vec<Leg>,
    /// Of the log device.
    log_name: Option<String>,
    sectors: SectorCount,
    limits: Limits,
    features: Features,
    state: RefCell<State>,
    log: DirtyLog,
    locks: RangeLocks,
    fans: Fans,
    reads: JobPool<(Rc<Mirror>, Bio)>,
    changes: JobPool<(Rc<Mirror>, Bio)>,
    pieces: JobPool<(Rc<Mirror>, resync::Piece)>,
    engine: Engine,
    /// Writes that are done but wait until somebody knows of a leg's failure.
    held: RefCell<VecDeque<Bio>>,
    suspended: Cell<bool>,
    /// Requests that came while it was suspended.
    waiting: RefCell<VecDeque<Bio>>,
    /// The last full leg failed a flush: nothing can be promised any more.
    broken: Cell<bool>,
    closed: Cell<bool>,
    /// The round of the log that says what the source is.
    recorded: Cell<u64>,
    /// Raised when there may be something to copy, and by the end.
    work: Event,
    /// Raised when it was resumed, and by the end.
    resumed: Event,
    /// Raised when a piece was copied.
    copied: Event,
    /// Raised when a write ended, for the cleaner.
    written: Event,
    flushes: Flushes,
    /// Pieces under way, and those that have begun to be copied or compared.
    copying: Cell<usize>,
    begun: Cell<usize>,
    /// Runs of which something could be read nowhere in the last pass.
    unread: RefCell<Vec<Range<u64>>>,
    scrubbed: RefCell<Option<ScrubReport>>,
}

impl Mirror {
    fn me(&self) -> Rc<Mirror> {
        self.me.upgrade().expect("it is in use")
    }

    fn regions_of(&self, extent: Extent) -> Range<u64> {
        self.state.borrow().regions.of(extent)
    }

    async fn read(self: Rc<Self>, bio: Bio) {
        let began = self.reactor.now();
        let regions = self.regions_of(bio.extent());
        let (start, end) = (bio.sector().0, bio.extent().end().0);
        let mut tried = LegSet::NONE;
        let status = loop {
            let Some(leg) = self.state.borrow().reader(&regions, tried, start) else { break Status::IoError };
            self.state.borrow_mut().legs.read_begins(leg, end);
            let status = call(&*self.legs[leg].target, bio.part(0, bio.bytes())).await.status();
            let mut state = self.state.borrow_mut();
            state.legs.read_ended(leg);
            if status.is_ok() || status == Status::Again {
                break status;
            }
            state.trouble(leg, Trouble::Read);
            tried = tried.with(LegSet::only(leg));
        };
        self.foreground(began);
        bio.end(status);
    }

    /// A request of a client ended that began at `began`: the copies below must know.
    fn foreground(&self, began: Duration) {
        self.engine.foreground_ended(self.reactor.now().saturating_sub(began));
    }

    /// What people wait for: a leg or the log failed, or all regions came in sync.
    #[must_use]
    pub fn events(&self) -> Rc<Event> {
        Rc::clone(&self.state.borrow().events)
    }

    /// Makes the log know a new source before anybody relies on it.
    async fn remember(&self, verdict: who::Verdict) -> who::Verdict {
        if !verdict.missed || !self.log.is_kept() {
            return verdict;
        }
        if verdict.source_moved {
            let of = u16::try_from(self.legs.len()).expect("there are at most 9 legs");
            let legs = self.state.borrow().behind();
            self.recorded.set(self.log.record(Some(log::format::Behind { legs, of })));
        }
        let known = self.log.settled(self.recorded.get()).await;
        let status = if known { verdict.status } else { verdict.status.and(Status::IoError) };
        who::Verdict { status, ..verdict }
    }

    /// Legs that had troubles are tried again, and all are brought up to date. As after a start.
    pub fn revive(&self) {
        self.state.borrow_mut().legs.revive();
        self.work.raise();
        self.written.raise();
    }

    /// It is known which legs are out: writes that were held back because of them are acknowledged,
    /// and no more are held for these.
    pub fn release(&self) {
        self.state.borrow_mut().legs.accept();
        let held = self.held.take();
        for bio in held {
            bio.end(Status::Ok);
        }
    }

    /// Whether no leg lacks anything.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let state = self.state.borrow();
        state.regions.full() == state.legs.all()
    }

    /// Makes everything durable and stops. Requests must not follow.
    pub async fn close(&self) -> Status {
        self.closed.set(true);
        self.work.raise();
        self.resumed.raise();
        self.written.raise();
        self.engine.close().await;
        while self.copying.get() > 0 {
            let seen = self.copied.count();
            self.copied.after(seen, None).await;
        }
        // The piece of a scrub, whose repair is to be known by the log.
        while self.begun.get() > 0 {
            self.reactor.sleep(Duration::from_millis(1)).await;
        }
        for bio in self.held.take() {
            bio.end(Status::IoError);
        }
        for bio in self.waiting.take() {
            bio.end(Status::Aborted);
        }
        let status = self.flush_legs().await.status;
        let mut round = self.log.clean(u64::MAX, |region| self.has_all(region));
        let clean = self.is_in_sync() && self.state.borrow().legs.alive() == self.state.borrow().legs.all();
        if clean && status.is_ok() && self.log.is_flushed(self.log.time()) {
            round = self.log.record(None);
        }
        let logged = self.log.settled(round).await;
        self.log.close();
        if logged { status } else { status.and(Status::IoError) }
    }

    /// Holds new requests back, waits for those under way and for what is being copied, and makes everything durable.
    /// Nothing is copied until it is resumed.
    pub async fn suspend(&self) -> Status {
        self.suspended.set(true);
        while self.reads.running() + self.changes.running() + self.begun.get() > 0 {
            self.reactor.sleep(Duration::from_millis(1)).await;
        }
        let flushed = self.flush_legs().await.status;
        let round = self.log.clean(u64::MAX, |region| self.has_all(region));
        if self.log.settled(round).await { flushed } else { flushed.and(Status::IoError) }
    }

    /// Lets requests in again.
    pub fn resume(&self) {
        self.suspended.set(false);
        for bio in self.waiting.take() {
            self.start(bio);
        }
        self.resumed.raise();
    }

    fn start(&self, bio: Bio) {
        match bio.op() {
            Op::Read => self.reads.start((self.me(), bio)),
            _ => self.changes.start((self.me(), bio)),
        }
    }

    /// Whether `region` is in sync.
    fn has_all(&self, region: u64) -> bool {
        let state = self.state.borrow();
        state.regions.having(&(region..region + 1)) == state.legs.all()
    }
}

impl Target for Mirror {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if bio.op() == Op::Discard && self.limits.discard == Ability::No {
            return bio.end(Status::Unsupported);
        }
        if self.suspended.get() {
            return self.waiting.borrow_mut().push_back(bio);
        }
        self.start(bio);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let source = self.state.borrow().source;
        out.below(&*self.legs[source].target, extent);
    }
}
