//! The dirty log: which regions were being written when everything stopped.
//!
//! ```text
//!   write begins ─▶ region dirty already? ── yes ─────────────────────────▶ may pass
//!                        └─ no ─▶ bit 0, wanted ─▶ next round: changed blocks, flush ─▶ may pass
//!   write ends … nothing for a while … legs flushed ─▶ bit 1, with some later round
//! ```
//!
//! A *round* writes the blocks of the log that changed; marks that come meanwhile wait for the next.
//!
//! Invariants:
//! - I1: no write passes before its regions are dirty on the log device, durably.
//! - I2: a region becomes clean only after every leg was flushed since the last write to it ended,
//!   and never while one is in flight.
//! - I3: once a round failed, none follows: what is on the log device may be anything between.
//!
//! A log in memory (`core`) is the same without rounds.

mod cleaner;
pub mod format;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Ability, Bio, Flags, Sector, Status, Target, call, flush};
use forebay_reactor::BufferPool;

use self::format::{Behind, Image};
use crate::event::Event;

/// Most bytes of a request to the log device.
pub(super) const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How the log device does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogState {
    /// Well.
    #[default]
    Alive,
    /// It failed a write.
    WriteFailed,
    /// It failed a flush.
    FlushFailed,
}

impl LogState {
    /// Its letter in the kernel's status line.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Alive => 'A',
            Self::WriteFailed => 'D',
            Self::FlushFailed => 'F',
        }
    }
}

/// A region that is dirty while it is in sync.
#[derive(Clone, Copy, Default)]
struct Active {
    /// Writes in flight.
    pending: u32,
    /// The round that makes it dirty on the device.
    round: u64,
    /// When its last write ended.
    ended: u64,
}

/// Where a log is kept.
pub(super) struct LogDevice {
    pub(super) target: Rc<dyn Target>,
    pub(super) pool: BufferPool,
}

/// The dirty log of a mirror.
pub(super) struct DirtyLog {
    device: Option<LogDevice>,
    image: RefCell<Image>,
    active: RefCell<BTreeMap<u64, Active>>,
    /// Counts writes that ended: the clock of this module.
    ended: Cell<u64>,
    /// Every leg was flushed since the write of this number ended.
    flushed: Cell<u64>,
    /// Rounds begun, and rounds over.
    rounds: Cell<(u64, u64)>,
    /// Raised when a round is wanted, and when the log is closed.
    wanted: Event,
    /// Raised when a round is over.
    over: Event,
    state: Cell<LogState>,
    closed: Cell<bool>,
    /// Blocks of the log that were written, and flushes of it.
    pub(super) writes: Cell<u64>,
}

impl DirtyLog {
    pub(super) fn new(image: Image, device: Option<LogDevice>) -> Self {
        Self {
            device,
            image: RefCell::new(image),
            active: RefCell::default(),
            ended: Cell::new(0),
            flushed: Cell::new(0),
            rounds: Cell::new((0, 0)),
            wanted: Event::default(),
            over: Event::default(),
            state: Cell::default(),
            closed: Cell::new(false),
            writes: Cell::new(0),
        }
    }

    /// Whether it is on a device.
    pub(super) fn is_kept(&self) -> bool {
        self.device.is_some()
    }

    pub(super) fn state(&self) -> LogState {
        self.state.get()
    }

    /// The round that carries what changes now.
    fn next_round(&self) -> u64 {
        if self.device.is_none() {
            return 0;
        }
        self.wanted.raise();
        self.rounds.get().0 + 1
    }

    /// The round that writes what is in memory when the log is opened.
    pub(super) fn first_round(&self) -> u64 {
        self.next_round()
    }

    /// A write to `regions` begins; the round after which it may pass ([`DirtyLog::settled`]).
    pub(super) fn write_begins(&self, regions: Range<u64>) -> u64 {
        let mut active = self.active.borrow_mut();
        let mut image = self.image.borrow_mut();
        let mut last = 0;
        for region in regions {
            let known = active.entry(region).or_default();
            known.pending += 1;
            if image.is_clean(region) {
                image.set(region, false);
                known.round = self.next_round();
            }
            last = last.max(known.round);
        }
        last
    }

    /// A write to `regions` ended, whether it passed or not.
    pub(super) fn write_ended(&self, regions: Range<u64>) {
        self.ended.set(self.ended.get() + 1);
        let mut active = self.active.borrow_mut();
        for region in regions {
            let known = active.get_mut(&region).expect("a write in flight keeps its regions active");
            known.pending -= 1;
            known.ended = self.ended.get();
        }
    }

    /// `regions` were copied and are in sync: they can become clean.
    pub(super) fn copied(&self, regions: Range<u64>) {
        self.ended.set(self.ended.get() + 1);
        let mut active = self.active.borrow_mut();
        for region in regions {
            active.entry(region).or_default().ended = self.ended.get();
        }
    }

    /// Waits until `round` is over; false when the log has failed.
    pub(super) async fn settled(&self, round: u64) -> bool {
        while self.rounds.get().1 < round && self.state.get() == LogState::Alive && !self.closed.get() {
            let seen = self.over.count();
            self.over.after(seen, None).await;
        }
        self.state.get() == LogState::Alive && self.rounds.get().1 >= round
    }

    /// Says which legs lack something; the round that makes it durable.
    pub(super) fn record(&self, behind: Option<Behind>) -> u64 {
        self.image.borrow_mut().record(behind);
        self.next_round()
    }

    /// The time, for [`DirtyLog::legs_flushed`].
    pub(super) fn time(&self) -> u64 {
        self.ended.get()
    }

    /// Every leg was flushed by flushes that began at `time`.
    pub(super) fn legs_flushed(&self, time: u64) {
        self.flushed.set(self.flushed.get().max(time));
    }

    /// Whether every leg was flushed since `time`.
    pub(super) fn is_flushed(&self, time: u64) -> bool {
        self.flushed.get() >= time
    }

    /// Runs of regions that are dirty.
    pub(super) fn dirty(&self) -> Vec<Range<u64>> {
        self.image.borrow().dirty().collect()
    }

    /// Whether a region could become clean that has not been written since `quiet`, and the time of
    /// the last write to one of these.
    pub(super) fn cleanable(&self, quiet: u64, in_sync: impl Fn(u64) -> bool) -> Option<u64> {
        let active = self.active.borrow();
        let idle = active.iter().filter(|(_, known)| known.pending == 0 && known.ended <= quiet);
        idle.filter(|(region, _)| in_sync(**region)).map(|(_, known)| known.ended).max()
    }

    /// Whether a region waits to become clean.
    pub(super) fn has_active(&self) -> bool {
        !self.active.borrow().is_empty()
    }

    /// Makes regions clean that are in sync, have not been written since `quiet`, and were flushed
    /// since (I2); the round that says so on the device.
    pub(super) fn clean(&self, quiet: u64, in_sync: impl Fn(u64) -> bool) -> u64 {
        let mut image = self.image.borrow_mut();
        let flushed = self.flushed.get().min(quiet);
        let mut changed = false;
        self.active.borrow_mut().retain(|&region, known| {
            if known.pending > 0 || known.ended > flushed {
                return true;
            }
            if in_sync(region) {
                image.set(region, true);
                changed = true;
            }
            false
        });
        drop(image);
        if changed { self.next_round() } else { 0 }
    }

    /// Writes rounds until the log is closed, or fails.
    pub(super) async fn write_rounds(&self) {
        let Some(device) = &self.device else { return };
        loop {
            let seen = self.wanted.count();
            if !self.image.borrow().is_changed() {
                if self.closed.get() {
                    return;
                }
                self.wanted.after(seen, None).await;
                continue;
            }
            let round = self.rounds.get().0 + 1;
            self.rounds.set((round, self.rounds.get().1));
            let state = self.write_changed(device).await;
            if state == LogState::Alive {
                self.rounds.set((round, round));
            } else {
                tracing::error!("mirror: the log device failed; no write can be acknowledged any more");
                self.state.set(state);
            }
            self.over.raise();
            if state != LogState::Alive {
                return;
            }
        }
    }

    /// One round: what changed, durably.
    async fn write_changed(&self, device: &LogDevice) -> LogState {
        let mut parts = Vec::new();
        self.image.borrow_mut().take_changed(REQUEST_BYTES_MAX, |at, bytes| {
            let mut buffer = device.pool.take(bytes.len());
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            parts.push((at, buffer, bytes.len()));
        });
        self.writes.set(self.writes.get() + parts.len() as u64);
        let limits = device.target.limits();
        let fua = parts.len() == 1 && limits.fua != Ability::No;
        let calls: Vec<_> = parts
            .iter()
            .map(|(at, buffer, bytes)| {
                let length = u32::try_from(*bytes).expect("at most REQUEST_BYTES_MAX");
                let write = Bio::write(Sector(*at as u64 / 512), Rc::clone(buffer.segments()), 0, length);
                call(&*device.target, write.with(Flags { fua, ..Flags::default() }))
            })
            .collect();
        let mut status = Status::Ok;
        for call in calls {
            status = status.and(call.await.status());
        }
        if !status.is_ok() {
            return LogState::WriteFailed;
        }
        if !fua && !flush(&*device.target).await.status().is_ok() {
            return LogState::FlushFailed;
        }
        LogState::Alive
    }

    /// Ends the rounds once nothing is left to be written.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.wanted.raise();
        self.over.raise();
    }
}
