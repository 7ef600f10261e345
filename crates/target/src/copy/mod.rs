//! The copy engine: extents copied from one target to any number of others, or zeroed.
//!
//! ```text
//!   copy(from, to…, count, how) ─▶ run.rs: slices ─▶ piece.rs: pace ─▶ room ─▶ read ─▶ write to all
//!                              └─ one slice: at once ─▶ …                │
//!                                                        plug of the reactor: sorted, merged, once a turn
//! ```
//!
//! What one turn asks for leaves together: copies of small chunks that adjoin become large requests, on
//! both ends, whatever number of destinations there is. Nothing here waits for company.
//!
//! Invariants:
//! - I1: bytes in flight are bounded by [`Settings::in_flight_bytes`], and one slice always gets
//!   through, from a buffer in reserve.
//! - I2: what could not be read is not written, and is told to the logical block.
//! - I3: a copy ends after everything of it has ended: nothing touches its ends later.
//! - I4: nothing is flushed: durability is the caller's.
//! - I5: copies of one slice to one destination allocate nothing once warm.
//!
//! Errors are in the [`Outcome`], by destination. A rate and the governor delay the beginning of slices,
//! never the end of anything.

mod journal;
mod outcome;
pub(crate) mod pace;
pub(crate) mod piece;
mod room;
mod run;
#[cfg(test)]
mod tests;
mod watch;

use std::cell::{Cell, OnceCell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::bio::call;
use forebay_block::{Ability, Bio, Extent, Flags, HeapMemory, Sector, SectorCount, Segments, Status, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use self::pace::{Bucket, Governor};
use self::piece::{Sent, Span, Work};
use self::room::{Room, Rooms};
use self::run::Run;
use crate::event::Event;

pub use self::journal::{Found, JOURNAL_BYTES, Journal, NotNoted, Settled};
pub use self::outcome::{Outcome, Unwritten};
pub use self::watch::{Progress, Watch, time_left};

/// Most slices in flight, whatever their size.
const WIDTH_MAX: u64 = 256;
/// Zeroes that are written where a destination has no other way, bytes.
const ZERO_BYTES: u32 = 1 << 20;
/// Longest sleep before a slice looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What an engine may use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest slice, bytes; a multiple of 4,096, at most 1 GiB.
    pub piece_bytes: u32,
    /// Most bytes in flight, over all copies; at least one slice whatever is given.
    pub in_flight_bytes: u64,
    /// Bytes that the pool may have lent to all its users when the engine takes more; beyond that,
    /// one slice at a time is copied from a buffer in reserve.
    pub pool_bytes_max: usize,
    /// Most bytes per second that begin; `None` for no limit. Zeroes that are written count as what was read does; those
    /// that destinations make by themselves do not.
    pub rate: Option<NonZeroU64>,
    /// What foreground I/O may take before copies step back; `None` for no rule. See
    /// [`Engine::foreground_ended`].
    ///
    /// For copies that nobody waits for, as mirrors and clones make them in the background. Copies that a snapshot makes
    /// before its origin is written are what the foreground waits for itself, so that to hold them back would slow it
    /// down; a merge uses their engine, and waits before each of its steps. The write cache's writeback makes room for the foreground, and has limits of
    /// its own. `forebay copy` has no foreground.
    pub foreground: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { piece_bytes: 512 << 10, in_flight_bytes: 16 << 20, pool_bytes_max: usize::MAX, rate: None, foreground: None }
    }
}

/// One end of a copy: a target, and the sector of it where the copy starts.
#[derive(Clone)]
pub struct Leg {
    /// Whose sectors.
    pub target: Rc<dyn Target>,
    /// The first.
    pub sector: Sector,
}

impl Leg {
    /// The sectors of `target` from `sector` on.
    #[must_use]
    pub fn new(target: Rc<dyn Target>, sector: Sector) -> Self {
        Self { target, sector }
    }
}

/// What is done where zeroes are to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Zeroes {
    /// Zeroed, and the space may be given back: by a hole where the destination makes holes.
    #[default]
    Unmap,
    /// Zeroed, with the space kept allocated.
    Keep,
    /// Nothing: the destination is known to be zero there.
    Skip,
}

/// How to copy.
#[derive(Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each asked for by itself")]
pub struct How {
    /// Writes are submitted in the order of their sectors, as zoned devices and streams need them. The
    /// first error ends such a copy.
    pub sequential: bool,
    /// Goes on after errors; else what is under way is finished, and nothing more begins.
    pub keep_going: bool,
    /// Asks the source for its holes and does not read them.
    pub holes: bool,
    /// Looks for zeroes in what was read, in stretches of this many bytes, a multiple of 512; 0 for
    /// not at all.
    pub detect_bytes: u32,
    /// What is done about holes and zeroes that were found.
    pub zeroes: Zeroes,
    /// Data is written with FUA: what arrived is durable. Zeroes that a destination makes by itself are not.
    pub durable: bool,
    /// Who watches, and may cancel.
    pub watch: Option<Rc<Watch>>,
}

struct Inner {
    reactor: Reactor,
    rooms: Rooms,
    piece: SectorCount,
    /// Jobs at once.
    width: usize,
    /// Made with the first copy of several slices.
    jobs: OnceCell<JobPool<(Engine, Rc<Run>)>>,
    bucket: Cell<Bucket>,
    governor: Cell<Governor>,
    closed: Cell<bool>,
    /// Copies under way.
    copies: Cell<u64>,
    /// Slices that are over.
    slices: Cell<u64>,
    idle: Event,
    zeroes: OnceCell<Rc<Segments>>,
    /// Lists that are used again.
    spans: RefCell<Vec<Vec<Span>>>,
    sent: RefCell<Vec<Vec<Sent>>>,
}

/// A copy engine of one thread; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    inner: Rc<Inner>,
}

impl Inner {
    fn start(self: &Rc<Self>, run: &Rc<Run>) {
        let jobs = || self.reactor.job_pool(self.width, |(engine, run): (Engine, Rc<Run>)| run.job(engine));
        self.jobs.get_or_init(jobs).start((Engine { inner: Rc::clone(self) }, Rc::clone(run)));
    }
}

impl Engine {
    /// An engine that takes its buffers from `pool`.
    ///
    /// # Panics
    /// When the size of a slice is 0, not a multiple of 4,096, or more than 1 GiB.
    #[must_use]
    pub fn new(reactor: &Reactor, pool: &BufferPool, settings: &Settings) -> Self {
        let piece = settings.piece_bytes;
        assert!(piece > 0 && piece.is_multiple_of(4096), "a slice is a multiple of 4,096 bytes");
        assert!(piece <= 1 << 30, "a slice is at most 1 GiB");
        let width = (settings.in_flight_bytes / u64::from(piece)).clamp(1, WIDTH_MAX);
        let width = usize::try_from(width).expect("at most WIDTH_MAX");
        Self {
            inner: Rc::new(Inner {
                reactor: reactor.clone(),
                rooms: Rooms::new(pool, piece as usize, settings.in_flight_bytes, settings.pool_bytes_max),
                piece: SectorCount(u64::from(piece / 512)),
                width,
                jobs: OnceCell::new(),
                bucket: Cell::new(Bucket::new(settings.rate)),
                governor: Cell::new(Governor::new(settings.foreground)),
                closed: Cell::default(),
                copies: Cell::default(),
                slices: Cell::default(),
                idle: Event::default(),
                zeroes: OnceCell::new(),
                spans: RefCell::default(),
                sent: RefCell::default(),
            }),
        }
    }

    /// Copies `count` sectors from `from` to all of `to`, which must not overlap it. All ends begin on
    /// logical blocks of each other, and `count` and [`Settings::piece_bytes`] are whole ones of all, or the devices
    /// report errors.
    ///
    /// The future must be polled to its end, or stay where it is: it is not cancelled by dropping it, but
    /// by [`Watch::cancel`].
    pub async fn copy(&self, from: &Leg, to: &[Leg], count: SectorCount, how: &How) -> Outcome {
        if count.0 == 0 || self.inner.closed.get() {
            return Outcome { cancelled: count.0 > 0, ..Outcome::default() };
        }
        let _under_way = UnderWay::new(self);
        if count <= self.inner.piece && !how.holes {
            return self.copy_slice(from, to, count, how, false).await;
        }
        let run = Rc::new(Run::new(from, to, how));
        run.feed(self, count).await;
        run.tally.take()
    }

    /// As [`Engine::copy`] of one slice whose holes are not asked for, which begins at once: who copies it has waited
    /// with [`Engine::ready`].
    ///
    /// # Panics
    /// When it is more than a slice.
    pub async fn copy_now(&self, from: &Leg, to: &[Leg], count: SectorCount, how: &How) -> Outcome {
        assert!(count <= self.inner.piece && !how.holes, "one slice");
        if count.0 == 0 || self.inner.closed.get() {
            return Outcome { cancelled: count.0 > 0, ..Outcome::default() };
        }
        let _under_way = UnderWay::new(self);
        self.copy_slice(from, to, count, how, true).await
    }

    async fn copy_slice(&self, from: &Leg, to: &[Leg], count: SectorCount, how: &How, ready: bool) -> Outcome {
        let tally = outcome::Tally::default();
        let work = Work { from, to, how, tally: &tally, order: None, ready };
        work.copy(self, Extent::new(Sector(0), count)).await;
        tally.take()
    }

    /// Reads `parts` of `from`, one behind the other, into one buffer, from which they can be written as
    /// one extent. All together are one slice at most.
    ///
    /// # Errors
    /// The first of the reads.
    ///
    /// # Panics
    /// When the parts are empty, or more than a slice.
    pub async fn gather<I>(&self, from: &dyn Target, parts: I) -> Result<Gathered<'_>, Status>
    where
        I: Iterator<Item = Extent> + Clone,
    {
        let bytes: u64 = parts.clone().map(|part| part.count.to_bytes()).sum();
        let room = self.inner.rooms.take(usize::try_from(bytes).expect("a slice fits memory")).await;
        let bytes = u32::try_from(bytes).expect("a slice has at most 1 GiB");
        let whole = Bio::read(Sector(0), Rc::clone(room.segments()), 0, bytes);
        let mut skip = 0;
        for part in parts {
            from.submit(whole.part(skip, part.count.to_bytes()).remap(part.start));
            skip += part.count.to_bytes();
        }
        let status = whole.parts_done().await;
        whole.end(status);
        if status.is_ok() { Ok(Gathered { engine: self, room, bytes }) } else { Err(status) }
    }

    /// Makes `count` sectors of all of `to` zeroes. Of `how` what is to be done about zeroes counts, and
    /// the watch.
    pub async fn zero(&self, to: &[Leg], count: SectorCount, how: &How) -> Outcome {
        let Some(first) = to.first().filter(|_| count.0 > 0 && !self.inner.closed.get()) else {
            return Outcome { cancelled: count.0 > 0 && self.inner.closed.get(), ..Outcome::default() };
        };
        let _under_way = UnderWay::new(self);
        let tally = outcome::Tally::default();
        Work { from: first, to, how, tally: &tally, order: None, ready: false }.zero(self, Extent::new(Sector(0), count)).await;
        tally.take()
    }

    /// Begins nothing more, and waits until nothing is under way. Copies that were not over report that
    /// they were cancelled, and so do those that are asked for from now on.
    pub async fn close(&self) {
        self.inner.closed.set(true);
        while self.inner.copies.get() > 0 {
            let seen = self.inner.idle.count();
            self.inner.idle.after(seen, None).await;
        }
    }

    /// Changes the limit in bytes per second. What waits already is not called back.
    pub fn set_rate(&self, rate: Option<NonZeroU64>) {
        self.inner.bucket.set(Bucket::new(rate));
    }

    /// Tells the engine that a request of the foreground ended, and what it took: while that is more
    /// than [`Settings::foreground`], slices begin later.
    pub fn foreground_ended(&self, latency: Duration) {
        let mut governor = self.inner.governor.get();
        governor.note(latency, self.inner.reactor.now());
        self.inner.governor.set(governor);
    }

    /// Bytes in flight.
    #[must_use]
    pub fn in_flight_bytes(&self) -> u64 {
        self.inner.rooms.taken()
    }

    /// Slices that were copied so far.
    #[must_use]
    pub fn slices(&self) -> u64 {
        self.inner.slices.get()
    }

    /// Waits until a slice of `bytes` may begin, or the engine is closed: for copies that hold a lock and are not to
    /// hold it meanwhile. See [`Engine::copy_now`].
    pub async fn ready(&self, bytes: u64) {
        self.pace(bytes, &How::default()).await;
    }

    /// Waits until a slice of `bytes` may begin, or its copy is cancelled.
    async fn pace(&self, bytes: u64, how: &How) {
        let inner = &*self.inner;
        let mut governor = inner.governor.get();
        let held = governor.delay(inner.reactor.now());
        inner.governor.set(governor);
        self.sleep_until(inner.reactor.now() + held, how).await;
        let mut bucket = inner.bucket.get();
        let start = bucket.start(bytes, inner.reactor.now());
        inner.bucket.set(bucket);
        self.sleep_until(start, how).await;
    }

    async fn sleep_until(&self, time: Duration, how: &How) {
        let reactor = &self.inner.reactor;
        while reactor.now() < time && !self.inner.closed.get() && !how.watch.as_ref().is_some_and(|watch| watch.is_cancelled()) {
            reactor.sleep_until(time.min(reactor.now() + LOOK_EVERY)).await;
        }
    }

    /// A request that zeroes `extent` of the copy at `leg`.
    #[expect(clippy::unused_self, reason = "requests are the engine's")]
    fn bio_zeroes(&self, leg: &Leg, extent: Extent, how: &How) -> Bio {
        let extent = Extent::new(leg.sector + SectorCount(extent.start.0), extent.count);
        Bio::write_zeroes(extent).with(Flags { no_unmap: how.zeroes == Zeroes::Keep, ..Flags::default() })
    }

    /// Zeroes `extent` of the copy at `leg`: without a payload where that is possible. What is written counts for the rate,
    /// once for all destinations: in front of `counted` it has been.
    async fn zero_leg(&self, leg: &Leg, extent: Extent, how: &How, counted: &mut Sector) -> Status {
        let mut status = Status::Unsupported;
        if leg.target.limits().write_zeroes != Ability::No {
            status = call(&*leg.target, self.bio_zeroes(leg, extent, how)).await.status();
        }
        if status != Status::Unsupported {
            if let Some(watch) = how.watch.as_ref().filter(|_| status.is_ok()) {
                watch.add(|seen| seen.zeroed += extent.count.to_bytes());
            }
            return status;
        }
        let memory = || {
            let memory = HeapMemory::new(ZERO_BYTES as usize, 4096);
            Segments::whole(Box::new(memory), ZERO_BYTES).expect("the zeroes are not empty")
        };
        let zeroes = self.inner.zeroes.get_or_init(memory);
        let mut at = extent.start;
        while at < extent.end() {
            let left = extent.end().since(at).expect("looked at in the line before").to_bytes();
            let bytes = u32::try_from(left).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            let next = at + SectorCount(u64::from(bytes / 512));
            if at >= *counted {
                self.pace(u64::from(bytes), how).await;
                *counted = next;
            }
            let write = Bio::write(leg.sector + SectorCount(at.0), Rc::clone(zeroes), 0, bytes);
            let status = call(&*leg.target, write).await.status();
            if !status.is_ok() {
                return status;
            }
            if let Some(watch) = &how.watch {
                watch.add(|seen| seen.written += u64::from(bytes));
            }
            at = next;
        }
        Status::Ok
    }
}

/// What was read from several places, in memory.
pub struct Gathered<'a> {
    engine: &'a Engine,
    room: Room<'a>,
    bytes: u32,
}

impl Gathered<'_> {
    /// Writes all of it to `to`, from `sector` on, with one request.
    pub async fn write(self, to: &dyn Target, sector: Sector) -> Status {
        let status = call(to, Bio::write(sector, Rc::clone(self.room.segments()), 0, self.bytes)).await.status();
        self.engine.inner.slices.set(self.engine.inner.slices.get() + 1);
        status
    }
}

/// Counts a copy as long as it is under way.
struct UnderWay<'a>(&'a Inner);

impl<'a> UnderWay<'a> {
    fn new(engine: &'a Engine) -> Self {
        engine.inner.copies.set(engine.inner.copies.get() + 1);
        Self(&engine.inner)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.copies.set(self.0.copies.get() - 1);
        self.0.idle.raise();
    }
}
