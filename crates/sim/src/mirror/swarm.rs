//! A seed's world: legs, log, regions, features, faults and load, each drawn so that corners come
//! together.
//!
//! A log in memory knows nothing after a crash, and everything is copied from the first leg: there, as
//! with the kernel's, no failure of the first leg can be survived, so it fails at reads only.

use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Ability, Limits};
use forebay_target::mirror::options::Features;

use crate::draw::{self, choose};
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Names of the disks; legs come first, the log is the one behind the last leg.
const NAMES: [&str; 5] = ["leg 0", "leg 1", "leg 2", "leg 3", "log"];

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Swarm {
    pub(super) sectors: usize,
    /// Size of a region.
    pub(super) region: u64,
    /// Where the mirror begins on each leg.
    pub(super) offsets: Vec<u64>,
    /// A log on a disk of its own.
    pub(super) disk_log: bool,
    pub(super) features: Features,
    pub(super) initial_zeroes: bool,
    /// Legs are compared as soon as it is open, wherever they are to be equal.
    pub(super) compare: bool,
    /// Longest time that bringing a healthy mirror up to date may take.
    pub(super) sync_max: Duration,
    pub(super) faults: bool,
    pub(super) load: Load,
    disks: Vec<DiskOptions>,
    yield_always: bool,
    early_effect: bool,
}

impl Swarm {
    /// Draws everything.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let logical: u32 = if rng.u32(0..4) == 0 { 4096 } else { 512 };
        let grain = logical as usize / 512;
        let legs = choose(rng, &[2, 2, 2, 3, 3, 4]);
        let sectors = (1 << rng.usize(6..=11)) + rng.usize(0..64);
        let sectors = sectors.next_multiple_of(grain);
        let least = (grain as u64).max(2).trailing_zeros();
        let region = 1 << rng.u32(least..=(sectors as u64).ilog2());
        let disk_log = rng.u32(0..5) > 0;
        let faults = rng.u32(0..3) > 0;
        let handle_errors = rng.u32(0..4) > 0;
        let keep_log = handle_errors && rng.u32(0..4) > 0;
        let resync_rate = if rng.u32(0..6) == 0 { 1 << rng.u32(17..24) } else { 0 };
        let offset = |rng: &mut Rng, leg| if leg == 0 || rng.bool() { 0 } else { rng.u64(0..5) * grain as u64 };
        let offsets: Vec<u64> = (0..legs).map(|leg| offset(rng, leg)).collect();
        let leg = |rng: &mut Rng, at: usize| {
            let mut disk = disk(NAMES[at], offsets[at] + sectors as u64, logical, faults, rng);
            if at == 0 && !disk_log {
                let FaultOptions { read_error, short, again, stuck, unreadable, .. } = disk.faults;
                disk.faults = FaultOptions { read_error, short, again, stuck, unreadable, ..FaultOptions::default() };
            }
            disk
        };
        let mut disks: Vec<DiskOptions> = (0..legs).map(|at| leg(rng, at)).collect();
        let log_block = choose(rng, &[512, 512, 4096]);
        let log_bytes = forebay_target::mirror::log::format::log_bytes((sectors as u64).div_ceil(region), log_block);
        disks.push(disk(NAMES[4], log_bytes / 512, log_block, faults && rng.bool(), rng));
        let block = choose(rng, &[8, 8, 64]).max(grain);
        Self {
            sectors,
            region,
            offsets,
            disk_log,
            features: Features { handle_errors, keep_log, resync_rate },
            initial_zeroes: rng.u32(0..4) == 0,
            compare: false,
            sync_max: Duration::from_mins(5),
            faults,
            load: Load::draw(rng, sectors, block, grain),
            disks,
            yield_always: rng.bool(),
            early_effect: rng.bool(),
        }
    }

    /// A mirror of eight sectors, without faults, on disks that take the same time for all; the last leg has no flush
    /// where not `flushes`.
    pub(super) fn tiny(legs: usize, region: u64, features: Features, flushes: bool) -> Self {
        let sectors = 8;
        let disk = |name, sectors, flushes| DiskOptions {
            name,
            sectors,
            limits: Limits {
                memory_align: 512,
                flush: if flushes { Ability::Native } else { Ability::No },
                ..Limits::unlimited()
            },
            latency_ns: (10_000, 10_000),
            tear_bytes: 512,
            faults: FaultOptions::default(),
        };
        let mut disks: Vec<_> = (0..legs).map(|leg| disk(NAMES[leg], sectors as u64, flushes || leg + 1 < legs)).collect();
        let log_bytes = forebay_target::mirror::log::format::log_bytes(sectors as u64 / region, 512);
        disks.push(disk(NAMES[4], log_bytes / 512, true));
        Self {
            sectors,
            region,
            offsets: vec![0; legs],
            disk_log: true,
            features,
            initial_zeroes: false,
            compare: true,
            sync_max: Duration::from_secs(10),
            faults: false,
            load: Load::draw(&mut Rng::with_seed(0), sectors, 1, 1),
            disks,
            yield_always: false,
            early_effect: false,
        }
    }

    /// Number of the log's disk.
    pub(super) fn log(&self) -> usize {
        self.offsets.len()
    }

    /// Number of the first leg's disk; the others follow.
    pub(super) fn first_leg(&self) -> usize {
        debug_assert!(self.offsets[0] == 0, "what lies there is compared with the model");
        0
    }

    /// The world of this seed.
    pub(super) fn world(&self, seed: u64, trace: bool) -> World {
        World::new(WorldOptions {
            seed,
            disks: self.disks.clone(),
            yield_always: self.yield_always,
            early_effect: self.early_effect,
            trace,
        })
    }
}

fn disk(name: &'static str, sectors: u64, logical_bytes: u32, faults: bool, rng: &mut Rng) -> DiskOptions {
    let unit = logical_bytes / 512;
    let ability = |rng: &mut Rng| if rng.u32(0..4) == 0 { Ability::No } else { Ability::Native };
    let limits = Limits {
        logical_bytes,
        physical_bytes: logical_bytes.max(choose(rng, &[512, 4096])),
        memory_align: 512,
        max_sectors: unit * choose(rng, &[8, 64, 256, 2048]),
        max_segments: choose(rng, &[1, 4, 128]),
        write_zeroes: ability(rng),
        flush: ability(rng),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    DiskOptions {
        name,
        sectors,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..22))),
        tear_bytes: choose(rng, &[512, 512, 4096]),
        faults: if faults { draw::faults(rng, sectors, false, true) } else { FaultOptions::default() },
    }
}
