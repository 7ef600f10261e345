//! The simulated world: disks, faults, power and time behind the one seam that a reactor has.
//!
//! ```text
//!   Reactor ── enter(batch) ──▶ SimBackend ─▶ fate, latency ─▶ Clock ─▶ effect ─▶ done
//!                                   │                             │
//!                                   └── every step may be the one at which the power goes
//! ```
//!
//! Invariants:
//! - I1: everything follows from the seed: one generator, one thread, no wall clock.
//! - I2: time jumps only when the reactor has nothing to do.
//! - I3: once a life has ended ([`World::stop`]), nothing reaches a disk until [`World::restart`].
//!
//! A *life* is the time of one [`Reactor`]: from [`World::restart`] to the end of the process, a
//! kill or a power cut. Disks outlive it. Steps are counted in device steps: a request submitted,
//! taking effect, or done.

mod clock;
mod digest;
mod disk;
mod fault;
mod flight;
mod remains;
mod streams;
mod target;

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_reactor::{Backend, DeviceId, Done, Reactor, Requests, Tag, Wait};

use clock::Clock;
use disk::Disk;
use flight::Flight;
use streams::{Next, Streams};

use crate::only::{Only, Selection};

pub use clock::Moment;
pub use digest::Digest;
pub use disk::DiskOptions;
pub use fault::FaultOptions;
pub use remains::{Pending, Remains};
pub use streams::{listener, take_turns};
pub use target::SimDisk;

/// Turns in a row in which nothing happens and no time passes, after which a reactor is taken to be
/// caught in a loop.
const IDLE_TURNS_MAX: u64 = 100_000;
/// Simulated time of one life after which whoever waits is taken to wait for ever.
const LIFE_MAX: Duration = Duration::from_hours(1);

/// How a life ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Everything that is not durable may be lost.
    Power,
    /// The process dies; the disks keep what they had done.
    Kill,
}

/// Why a reactor was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// As planned with [`World::cut_at`].
    Cut(Cut),
    /// Nothing is in flight, no timer is set, and somebody still waits.
    Deadlock,
    /// The reactor is busy for ever without coming to an end.
    Runaway,
    /// The layers above asked a disk for what no layer may ask.
    Misuse(String),
}

/// What a world counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorldCounts {
    /// Requests that reached a disk.
    pub requests: u64,
    /// Faults injected.
    pub faults: u64,
    /// Power cuts and kills.
    pub cuts: u64,
}

/// A world to be made.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Where all chance comes from.
    pub seed: u64,
    /// The disks, in the order of their numbers.
    pub disks: Vec<DiskOptions>,
    /// Deliver completions one by one, so that every step of every job meets every other.
    pub yield_always: bool,
    /// Let requests take effect some time before they are done.
    pub early_effect: bool,
    /// Print every event.
    pub trace: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub(crate) struct State {
    rng: Rng,
    seed: u64,
    selection: Selection,
    salt: u64,
    clock: Clock,
    disks: Vec<Disk>,
    routes: Vec<usize>,
    attaching: usize,
    flights: Vec<Option<Flight>>,
    pub(crate) streams: Streams,
    done_requests: u64,
    cut: Option<(Cut, Moment)>,
    cut_now: Option<Cut>,
    stop: Option<Stop>,
    idle_turns: u64,
    life_began: Duration,
    counts: WorldCounts,
    digest: Digest,
    yield_always: bool,
    early_effect: bool,
    trace: bool,
    observer: Option<Observer>,
    /// There is another process; and what this one has to do.
    paired: bool,
    next: Next,
}

/// Is shown, at every device step, what a power cut would find on each disk.
pub type Observer = Box<dyn FnMut(Vec<Remains>)>;

/// The world; clones are the same world.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

impl World {
    /// A world whose disks hold zeroes.
    #[must_use]
    pub fn new(options: WorldOptions) -> Self {
        Self(Rc::new(RefCell::new(State {
            rng: Rng::with_seed(options.seed),
            seed: options.seed,
            selection: Selection::default(),
            salt: 0,
            clock: Clock::default(),
            disks: options.disks.into_iter().map(Disk::new).collect(),
            routes: Vec::new(),
            attaching: 0,
            flights: Vec::new(),
            streams: Streams::default(),
            done_requests: 0,
            cut: None,
            cut_now: None,
            stop: None,
            idle_turns: 0,
            life_began: Duration::ZERO,
            counts: WorldCounts::default(),
            digest: Digest::default(),
            yield_always: options.yield_always,
            early_effect: options.early_effect,
            trace: options.trace,
            observer: None,
            paired: false,
            next: Next::Now,
        })))
    }

    /// Begins a life: an engine over the disks as they are now.
    #[must_use]
    pub fn restart(&self) -> Reactor {
        let mut state = self.0.borrow_mut();
        state.stop = None;
        state.cut = None;
        state.cut_now = None;
        state.routes.clear();
        state.streams.forget();
        state.idle_turns = 0;
        state.life_began = state.clock.now();
        drop(state);
        Reactor::new(Box::new(SimBackend(self.clone())))
    }

    /// Attaches disk number `at` to a reactor of this world.
    ///
    /// # Panics
    /// When there is no such disk.
    #[must_use]
    pub fn disk(&self, reactor: &Reactor, at: usize) -> Rc<SimDisk> {
        let options = {
            let mut state = self.0.borrow_mut();
            state.attaching = at;
            state.disks[at].options.clone()
        };
        Rc::new(SimDisk::attach(reactor, &options))
    }

    /// Ends the life at the given moment, counted from now; the step concerned still happens.
    pub fn cut_at(&self, cut: Cut, moment: Moment) {
        let mut state = self.0.borrow_mut();
        let near = if let Moment::FlushOf(disk, _) = moment { Some(disk) } else { None };
        let moment = if state.salt == 0 { moment } else { Moment::draw_near(&mut state.rng, near) };
        state.cut = Some((cut, moment));
    }

    /// Carries out a part of the seed only, if that is asked for.
    pub(crate) fn select(&self, only: Option<Only>) {
        let mut state = self.0.borrow_mut();
        state.salt = only.as_ref().map_or(0, |only| only.salt);
        if state.salt != 0 {
            state.rng = Rng::with_seed(state.seed.rotate_left(32) ^ state.salt);
        }
        state.selection = Selection::new(only);
    }

    /// Counts a life; whether it is lived.
    pub(crate) fn begin_life(&self) -> bool {
        self.0.borrow_mut().selection.begin_life()
    }

    /// Lives that were begun or left out so far.
    pub(crate) fn lives(&self) -> u64 {
        self.0.borrow().selection.drawn().len() as u64
    }

    /// Counts an operation of this life; whether it is carried out.
    pub(crate) fn takes(&self) -> bool {
        self.0.borrow_mut().selection.takes()
    }

    /// Whether no further life is to be lived but the last ones.
    pub(crate) fn is_over(&self) -> bool {
        self.0.borrow().selection.is_over()
    }

    /// Operations drawn in each life.
    pub(crate) fn drawn(&self) -> Vec<u32> {
        self.0.borrow().selection.drawn().to_vec()
    }

    /// Ends the life as soon as its reactor has nothing more to do at once.
    pub fn cut_now(&self, cut: Cut) {
        self.0.borrow_mut().cut_now = Some(cut);
    }

    /// Shows `observer` what a power cut would find, at every device step from now on. It must not touch this world.
    pub fn observe(&self, observer: Observer) {
        self.0.borrow_mut().observer = Some(observer);
    }

    /// Why the life ended, if the world ended it.
    #[must_use]
    pub fn stop(&self) -> Option<Stop> {
        self.0.borrow().stop.clone()
    }

    /// Puts content on a disk before anything runs.
    pub fn preset(&self, disk: usize, fill: impl FnOnce(&mut [u8])) {
        self.0.borrow_mut().disks[disk].preset(fill);
    }

    /// Looks at what a read of a whole disk would return now.
    pub fn look<T>(&self, disk: usize, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.0.borrow().disks[disk].newest())
    }

    /// Damages what is on a disk, behind everybody's back.
    pub fn damage(&self, disk: usize, change: impl FnOnce(&mut [u8])) {
        self.0.borrow_mut().disks[disk].damage(change);
    }

    /// Switches the faults of all disks on or off.
    pub fn set_faults(&self, on: bool) {
        for disk in &mut self.0.borrow_mut().disks {
            disk.faults.on = on;
        }
    }

    /// Lets the request of a disk fail that follows after so many others; with `for_good` all later ones, too.
    pub fn fail(&self, disk: usize, after: u64, for_good: bool) {
        let faults = &mut self.0.borrow_mut().disks[disk].faults;
        let at = Some(faults.seen + after);
        (faults.options.fail_at, faults.options.fail_from, faults.on) = (at, at.filter(|_| for_good), true);
    }

    /// How many requests a disk has seen.
    #[must_use]
    pub fn requests_of(&self, disk: usize) -> u64 {
        self.0.borrow().disks[disk].faults.seen
    }

    /// Number of disks.
    #[must_use]
    pub fn disks(&self) -> usize {
        self.0.borrow().disks.len()
    }

    /// Repairs all disks: no faults any more.
    pub fn heal(&self) {
        for disk in &mut self.0.borrow_mut().disks {
            disk.faults.heal();
        }
    }

    /// Simulated time since the world began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.borrow().clock.now()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> WorldCounts {
        let state = self.0.borrow();
        let faults = state.disks.iter().map(|disk| disk.faults.injected).sum::<u64>() + state.streams.cuts;
        WorldCounts { faults, ..state.counts }
    }

    /// The fingerprint of all events so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.0.borrow().digest
    }

    /// Adds something that happened above the disks to the fingerprint, and to the trace.
    pub fn note(&self, numbers: &[u64], text: impl FnOnce() -> String) {
        self.0.borrow_mut().note(numbers, text);
    }
}

impl State {
    pub(crate) fn note(&mut self, numbers: &[u64], text: impl FnOnce() -> String) {
        for &number in numbers {
            self.digest.add(number);
        }
        if self.trace {
            println!("{:>14.6} {}", self.clock.now().as_secs_f64() * 1e3, text());
        }
    }

    /// Counts a device step, which may submit a flush to `flushed`; how the life ends when it is the last.
    fn step(&mut self, requests: &Requests, flushed: Option<usize>) -> Option<Cut> {
        self.idle_turns = 0;
        if let Some(mut observer) = self.observer.take() {
            let in_flight = self.writes_in_flight(requests);
            observer(self.disks.iter().zip(in_flight).map(|(disk, writes)| disk.remains(writes)).collect());
            self.observer = Some(observer);
        }
        let (cut, moment) = self.cut.as_mut()?;
        match moment {
            Moment::Flush(_) if flushed.is_none() => None,
            Moment::FlushOf(disk, _) if flushed != Some(*disk) => None,
            Moment::Step(0) | Moment::Flush(0) | Moment::FlushOf(_, 0) => Some(*cut),
            Moment::Step(left) | Moment::Flush(left) | Moment::FlushOf(_, left) => {
                *left -= 1;
                None
            }
        }
    }

    fn end_life(&mut self, requests: &Requests, cut: Cut) {
        let in_flight = self.writes_in_flight(requests);
        self.note(&[0xC07, cut as u64], || format!("==== {cut:?} ===="));
        self.counts.cuts += 1;
        for (disk, writes) in self.disks.iter_mut().zip(in_flight) {
            match cut {
                Cut::Power => disk.power_cut(&mut self.rng, writes),
                Cut::Kill => disk.process_killed(&mut self.rng, writes, self.done_requests),
            }
        }
        self.flights.clear();
        self.clock.forget();
        self.stop = Some(Stop::Cut(cut));
    }

    fn stopped(&self) -> io::Result<()> {
        match &self.stop {
            None => Ok(()),
            Some(stop) => Err(io::Error::other(format!("{stop:?}"))),
        }
    }

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        self.stopped()?;
        self.idle_turns += 1;
        if self.idle_turns > IDLE_TURNS_MAX || self.clock.now() > self.life_began + LIFE_MAX {
            self.stop = Some(Stop::Runaway);
        }
        for &tag in batch {
            self.submit(requests, tag);
            self.stopped()?;
        }
        if let Some(cut) = self.cut_now {
            self.end_life(requests, cut);
        }
        self.stopped()?;
        let nanoseconds = self.rng.u64(200..5_000);
        self.clock.pass(Duration::from_nanos(nanoseconds));
        self.deliver(requests, done)?;
        let Wait::Until(deadline) = wait else { return Ok(()) };
        if self.paired && done.is_empty() {
            self.idle_turns = 0;
            self.next = self.clock.next().into_iter().chain(deadline).min().map_or(Next::Never, Next::At);
            return Ok(());
        }
        while done.is_empty() {
            match (self.clock.next(), deadline) {
                (None, None) => {
                    self.stop = Some(Stop::Deadlock);
                    return self.stopped();
                }
                (Some(next), deadline) if deadline.is_none_or(|deadline| next <= deadline) => self.clock.jump_to(next),
                (_, Some(deadline)) => {
                    self.idle_turns = 0;
                    self.clock.jump_to(deadline);
                    return Ok(());
                }
                (Some(_), None) => {}
            }
            self.deliver(requests, done)?;
        }
        Ok(())
    }

    /// Does what is due by now; one completion at most where everything is to interleave.
    fn deliver(&mut self, requests: &Requests, done: &mut Vec<Done>) -> io::Result<()> {
        self.wake_streams(requests);
        while !self.yield_always || done.is_empty() {
            let Some((tag, step)) = self.clock.take_due() else { break };
            self.happen(requests, tag, step, done);
            self.stopped()?;
        }
        Ok(())
    }
}

/// The world as a reactor sees it.
struct SimBackend(World);

impl Backend for SimBackend {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn attach(&mut self, device: DeviceId, _file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut state = self.0.0.borrow_mut();
        let disk = state.attaching;
        if state.routes.len() != usize::from(device.0) {
            return Err(io::Error::other("devices of a simulated reactor are attached in order"));
        }
        state.routes.push(disk);
        Ok(())
    }

    fn offer_memory(&mut self, _base: usize, _bytes: usize) {}

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        self.0.0.borrow_mut().enter(requests, batch, done, wait)
    }
}

#[cfg(test)]
mod tests;
