//! What can go wrong with a request, and the seeded choice of when.
//!
//! Units: rates are per million requests of the kind; sectors are 512 bytes.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use forebay_reactor::Kind;

/// The end of time for a request that is stuck: the longest that it takes.
const STUCK_MAX_MS: u64 = 20_000;

/// The kernel's numbers for the errors that disks report.
pub(crate) const EIO: i32 = 5;
const EINTR: i32 = 4;
const EAGAIN: i32 = 11;

/// How often a disk misbehaves, and where it always does.
#[derive(Clone, Debug, Default)]
pub struct FaultOptions {
    /// Reads that fail, per million.
    pub read_error: u32,
    /// Writes (and write-zeroes) that fail, per million; any part of them may have happened.
    pub write_error: u32,
    /// Flushes that fail, per million; what they should have made durable may never become so.
    pub flush_error: u32,
    /// Discards that fail, per million.
    pub discard_error: u32,
    /// Reads and writes that move fewer bytes than asked, per million.
    pub short: u32,
    /// Requests refused for now, per million.
    pub again: u32,
    /// Requests that take up to 20 seconds, per million.
    pub stuck: u32,
    /// The one request of this disk, counted from 0, that fails.
    pub fail_at: Option<u64>,
    /// The first request of this disk, counted from 0, from which on all fail.
    pub fail_from: Option<u64>,
    /// Sectors that cannot be read.
    pub unreadable: Vec<Range<u64>>,
    /// Sectors that cannot be written.
    pub unwritable: Vec<Range<u64>>,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All of it is done.
    Whole,
    /// Only so many bytes are moved.
    Short(u64),
    /// It fails with this number; `partly` is whether some of it happens nevertheless.
    Error { errno: i32, partly: bool },
}

/// The faults of one disk.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) options: FaultOptions,
    /// Off while the world heals.
    pub(crate) on: bool,
    pub(crate) seen: u64,
    /// How many were injected so far.
    pub(crate) injected: u64,
}

impl Faults {
    pub(crate) fn new(options: FaultOptions) -> Self {
        Self { options, on: true, seen: 0, injected: 0 }
    }

    /// Repairs the disk for good.
    pub(crate) fn heal(&mut self) {
        self.options.unreadable.clear();
        self.options.unwritable.clear();
        self.options.fail_at = None;
        self.options.fail_from = None;
        self.on = false;
    }

    /// Decides about a request over `sectors`, and how much longer than usual it takes.
    pub(crate) fn decide(&mut self, rng: &mut Rng, kind: Kind, sectors: &Range<u64>, grain: u64) -> (Fate, Duration) {
        let number = self.seen;
        self.seen += 1;
        if !self.on {
            return (Fate::Whole, Duration::ZERO);
        }
        let mut delay = Duration::ZERO;
        if hit(rng, self.options.stuck) {
            delay = Duration::from_millis(rng.u64(100..STUCK_MAX_MS));
            self.injected += 1;
        }
        let fate = self.fate(rng, kind, sectors, grain, number);
        self.injected += u64::from(fate != Fate::Whole);
        (fate, delay)
    }

    fn fate(&self, rng: &mut Rng, kind: Kind, sectors: &Range<u64>, grain: u64, number: u64) -> Fate {
        let options = &self.options;
        let (rate, bad) = match kind {
            Kind::Read => (options.read_error, options.unreadable.as_slice()),
            Kind::Write { .. } | Kind::WriteZeroes { .. } => (options.write_error, options.unwritable.as_slice()),
            Kind::Flush => (options.flush_error, [].as_slice()),
            Kind::Discard | Kind::Receive | Kind::Send | Kind::Readable => (options.discard_error, [].as_slice()),
        };
        let bad = bad.iter().any(|range| range.start < sectors.end && sectors.start < range.end);
        let chosen = options.fail_at == Some(number) || options.fail_from.is_some_and(|from| number >= from);
        if bad || chosen || hit(rng, rate) {
            return Fate::Error { errno: EIO, partly: true };
        }
        if hit(rng, options.again) {
            return Fate::Error { errno: if rng.bool() { EAGAIN } else { EINTR }, partly: false };
        }
        let moves = matches!(kind, Kind::Read | Kind::Write { .. });
        let pieces = (sectors.end - sectors.start) * 512 / grain;
        if moves && pieces > 1 && hit(rng, options.short) {
            return Fate::Short(rng.u64(1..pieces) * grain);
        }
        Fate::Whole
    }
}

/// True with a probability of `rate` in a million; asks the generator only where that is above 0.
pub(crate) fn hit(rng: &mut Rng, rate: u32) -> bool {
    rate > 0 && rng.u32(0..1_000_000) < rate
}
