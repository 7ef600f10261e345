//! One simulated disk: what is durable, what a power cut may take, and what reads see.
//!
//! ```text
//!            effect                    flush, FUA                power cut
//!   write ──▶ newest (what reads see)
//!        └──▶ unflushed ───────────────▶ durable ◀── any subset ─── unflushed, in flight
//! ```
//!
//! Invariants:
//! - I1: `newest` is `durable` with every unflushed write on top, in the order of their effects.
//! - I2: a sector's durable content never gets older: it changes only to a write of a higher order.
//! - I3: a flush makes durable every write that was done before the flush was submitted; on a disk without flushes a
//!   write is durable when it is done.
//!
//! Units: sectors of 512 bytes, as `usize` because they index memory.

use fastrand::Rng;
use forebay_block::{Ability, Limits};

use super::fault::{FaultOptions, Faults};
use super::remains::{Pending, Remains};

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
/// Unflushed bytes beyond which the disk makes its oldest done writes durable by itself.
const UNFLUSHED_MAX_BYTES: usize = 8 << 20;

/// A disk to be made.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// For traces.
    pub name: &'static str,
    /// Size in sectors of 512 bytes.
    pub sectors: u64,
    /// What it accepts.
    pub limits: Limits,
    /// Shortest and longest time of a request that nothing delays, nanoseconds.
    pub latency_ns: (u64, u64),
    /// What a power cut leaves whole: 512 or 4096 bytes.
    pub tear_bytes: u32,
    /// How it misbehaves.
    pub faults: FaultOptions,
}

/// How much of what was not flushed survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survival {
    Nothing,
    Everything,
    /// Each write whole or not at all.
    Writes,
    /// Each torn unit of each write for itself.
    Units,
    /// Of each write a front part, a back part, all or nothing.
    Parts,
}

impl Survival {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        match rng.u32(0..10) {
            0 => Self::Nothing,
            1 => Self::Everything,
            2..5 => Self::Writes,
            5..8 => Self::Units,
            _ => Self::Parts,
        }
    }
}

/// A write that took effect and is not known to be durable.
struct Unflushed {
    order: u64,
    sector: usize,
    data: Vec<u8>,
    /// How many requests of the world were done when this one was; `None` while in flight.
    done: Option<u64>,
    /// A failed flush was to make it durable: no later one does.
    forgotten: bool,
}

/// A simulated disk.
pub(crate) struct Disk {
    pub(crate) options: DiskOptions,
    pub(crate) faults: Faults,
    durable: Vec<u8>,
    newest: Vec<u8>,
    durable_order: Vec<u64>,
    unflushed: Vec<Unflushed>,
    unflushed_bytes: usize,
    orders: u64,
    spare: Vec<Vec<u8>>,
}

impl Disk {
    pub(crate) fn new(options: DiskOptions) -> Self {
        let sectors = usize::try_from(options.sectors).expect("a simulated disk fits in memory");
        let faults = Faults::new(options.faults.clone());
        Self {
            options,
            faults,
            durable: vec![0; sectors * SECTOR],
            newest: vec![0; sectors * SECTOR],
            durable_order: vec![0; sectors],
            unflushed: Vec::new(),
            unflushed_bytes: 0,
            orders: 0,
            spare: Vec::new(),
        }
    }

    /// Puts content on the disk before the world starts.
    pub(crate) fn preset(&mut self, fill: impl FnOnce(&mut [u8])) {
        fill(&mut self.durable);
        self.newest.copy_from_slice(&self.durable);
    }

    /// Changes what reads see, as no request does.
    pub(crate) fn damage(&mut self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.newest);
    }

    /// What reads see.
    pub(crate) fn newest(&self) -> &[u8] {
        &self.newest
    }

    /// An empty list of bytes to fill for [`Disk::write`].
    pub(crate) fn take_spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn keep_spare(&mut self, mut data: Vec<u8>) {
        data.clear();
        self.spare.push(data);
    }

    /// A write takes effect: reads see it from now on. Returns its order, the name under which
    /// [`Disk::write_done`] knows it.
    pub(crate) fn write(&mut self, sector: usize, data: Vec<u8>) -> u64 {
        let at = sector * SECTOR;
        self.newest[at..at + data.len()].copy_from_slice(&data);
        self.orders += 1;
        self.unflushed_bytes += data.len();
        self.unflushed.push(Unflushed { order: self.orders, sector, data, done: None, forgotten: false });
        self.orders
    }

    /// A write is reported done; `clock` counts done requests. With `fua`, and on a disk without flushes,
    /// it is durable now.
    pub(crate) fn write_done(&mut self, order: u64, fua: bool, clock: u64) {
        let Ok(at) = self.unflushed.binary_search_by_key(&order, |write| write.order) else { return };
        self.unflushed[at].done = Some(clock);
        if fua || self.keeps_all() {
            let write = self.unflushed.remove(at);
            self.make_durable(write);
        }
        while self.unflushed_bytes > UNFLUSHED_MAX_BYTES && self.unflushed.first().is_some_and(|write| write.done.is_some()) {
            let write = self.unflushed.remove(0);
            self.make_durable(write);
        }
    }

    /// Whether it has no flush, and what is done is durable.
    fn keeps_all(&self) -> bool {
        self.options.limits.flush == Ability::No
    }

    fn make_durable(&mut self, write: Unflushed) {
        self.unflushed_bytes -= write.data.len();
        for (at, bytes) in write.data.chunks_exact(SECTOR).enumerate() {
            self.settle(write.sector + at, write.order, bytes);
        }
        self.keep_spare(write.data);
    }

    /// Makes one sector durable, unless it is already newer (I2).
    fn settle(&mut self, sector: usize, order: u64, bytes: &[u8]) {
        if order > self.durable_order[sector] {
            self.durable_order[sector] = order;
            self.durable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(bytes);
        }
    }

    /// A flush takes effect that was submitted when `floor` requests were done (I3).
    pub(crate) fn flush(&mut self, floor: u64) {
        for write in std::mem::take(&mut self.unflushed) {
            if write.done.is_some_and(|done| done <= floor) && !write.forgotten {
                self.make_durable(write);
            } else {
                self.unflushed.push(write);
            }
        }
    }

    /// A flush fails: each write that it covers may be forgotten, so that no later flush saves it.
    pub(crate) fn flush_failed(&mut self, rng: &mut Rng, floor: u64) {
        let all = rng.bool();
        for write in &mut self.unflushed {
            if write.done.is_some_and(|done| done <= floor) && (all || rng.bool()) {
                write.forgotten = true;
            }
        }
    }

    /// The power goes: of what was unflushed or in flight, a seeded subset survives.
    pub(crate) fn power_cut(&mut self, rng: &mut Rng, in_flight: Vec<(usize, Vec<u8>)>) {
        let survival = Survival::draw(rng);
        for (sector, data) in in_flight {
            self.write(sector, data);
        }
        for write in std::mem::take(&mut self.unflushed) {
            let units = self.surviving(rng, survival, &write);
            self.settle_units(&write, units);
            self.keep_spare(write.data);
        }
        self.unflushed_bytes = 0;
        self.newest.copy_from_slice(&self.durable);
    }

    /// What a power cut would find now, with `in_flight` as what no request has reported yet.
    pub(crate) fn remains(&self, in_flight: Vec<(usize, Vec<u8>)>) -> Remains {
        let unflushed = self.unflushed.iter();
        let mut pending: Vec<_> =
            unflushed.map(|write| Pending { order: write.order, sector: write.sector, data: write.data.clone() }).collect();
        for (order, (sector, data)) in (self.orders + 1..).zip(in_flight) {
            pending.push(Pending { order, sector, data });
        }
        let tear_sectors = self.options.tear_bytes as usize / SECTOR;
        Remains { durable: self.durable.clone(), durable_order: self.durable_order.clone(), tear_sectors, pending }
    }

    fn settle_units(&mut self, write: &Unflushed, units: impl Fn(usize) -> bool) {
        let tear = self.options.tear_bytes as usize / SECTOR;
        for (at, bytes) in write.data.chunks_exact(SECTOR).enumerate() {
            let sector = write.sector + at;
            if units(sector / tear - write.sector / tear) {
                self.settle(sector, write.order, bytes);
            }
        }
    }

    /// Which torn units of a write survive: a question that can be asked for each.
    fn surviving(&self, rng: &mut Rng, survival: Survival, write: &Unflushed) -> impl Fn(usize) -> bool + use<> {
        let tear = self.options.tear_bytes as usize / SECTOR;
        let units = (write.sector + write.data.len() / SECTOR).div_ceil(tear) - write.sector / tear;
        let (mut from, mut to, mut mask_seed) = (0, 0, None);
        match survival {
            Survival::Nothing => {}
            Survival::Everything => to = units,
            Survival::Writes => to = if rng.bool() { units } else { 0 },
            Survival::Units => mask_seed = Some(rng.u64(..)),
            Survival::Parts => match rng.u32(0..4) {
                0 => to = units,
                1 => {}
                2 => to = rng.usize(0..=units),
                _ => (from, to) = (rng.usize(0..=units), units),
            },
        }
        move |unit| match mask_seed {
            Some(seed) => (seed ^ unit as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1,
            None => (from..to).contains(&unit),
        }
    }

    /// The process dies, the disk does not: what was done stays to be read, and of what was in
    /// flight a seeded part still lands. What a failed flush forgot is remembered again, because
    /// nobody who comes after can know of it.
    pub(crate) fn process_killed(&mut self, rng: &mut Rng, in_flight: Vec<(usize, Vec<u8>)>, clock: u64) {
        for (sector, mut data) in in_flight {
            match rng.u32(0..4) {
                0 => continue,
                1 => data.truncate(rng.usize(0..=data.len() / SECTOR) * SECTOR),
                _ => {}
            }
            if !data.is_empty() {
                self.write(sector, data);
            }
        }
        for write in &mut self.unflushed {
            write.done.get_or_insert(clock);
            write.forgotten = false;
        }
        if self.keeps_all() {
            for write in std::mem::take(&mut self.unflushed) {
                self.make_durable(write);
            }
        }
    }
}
