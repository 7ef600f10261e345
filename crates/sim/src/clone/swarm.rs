//! A seed's world: sizes, options, faults and load, each drawn so that corners come together.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Ability, Limits};

use crate::draw::{self, choose};
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Numbers of the disks.
pub(super) const METADATA: usize = 0;
pub(super) const DESTINATION: usize = 1;
pub(super) const SOURCE: usize = 2;
/// Largest clone, sectors, but for one region.
const SECTORS_MAX: usize = 4096;
/// Sectors of the metadata of a clone of one page.
const METADATA_SECTORS: u64 = 32;

/// One seed in so many has a clone with twice as many regions as a sector of its metadata has bits, so that a page
/// of it can be torn.
const LARGE_EVERY: u64 = 8;
/// Regions of such a clone, and some more.
const LARGE_REGIONS: usize = 6000;

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Swarm {
    pub(super) region_sectors: usize,
    /// Size of the clone.
    pub(super) sectors: usize,
    /// The options, as words of a table line.
    pub(super) words: String,
    /// Where the source has holes, in order.
    pub(super) holes: Vec<Range<usize>>,
    /// The destination holds in the beginning what nobody may read.
    pub(super) secrets: bool,
    /// Longest hydration of a healthy world.
    pub(super) hydration_max: Duration,
    pub(super) faults: bool,
    pub(super) load: Load,
    disks: [DiskOptions; 3],
    yield_always: bool,
    early_effect: bool,
    /// Each life has other options.
    anew: bool,
    large: bool,
}

impl Swarm {
    /// Draws everything.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let region = 8 << choose(rng, &[0, 0, 0, 1, 2, 3, 5]);
        let most = 1 << rng.usize(1..10);
        let regions = rng.usize(1..=(SECTORS_MAX / region).min(most));
        let large = seed % LARGE_EVERY == LARGE_EVERY / 2;
        let (region, regions) = if large { (8, LARGE_REGIONS + regions) } else { (region, regions) };
        let logical = |rng: &mut Rng| if rng.u32(0..4) == 0 { 4096 } else { 512 };
        let (destination_logical, source_logical) = (logical(rng), logical(rng));
        let grain = destination_logical.max(source_logical) as usize / 512;
        // The last region is often a part of one.
        let sectors = regions * region - if rng.bool() { rng.usize(0..region / grain) * grain } else { 0 };
        let faults = rng.bool();
        let size = |rng: &mut Rng, logical: u32| (sectors as u64 + rng.u64(0..64)).next_multiple_of(u64::from(logical / 512));
        let (destination_sectors, source_sectors) = (size(rng, destination_logical), size(rng, source_logical));
        let metadata_logical = logical(rng);
        let metadata_sectors = METADATA_SECTORS + 8 * rng.u64(0..3);
        let mut disks = [
            disk("metadata", metadata_sectors, metadata_logical, faults, rng),
            disk("destination", destination_sectors, destination_logical, faults, rng),
            disk("source", source_sectors, source_logical, faults, rng),
        ];
        if large {
            // What can be torn is.
            disks[METADATA].tear_bytes = 512;
            disks[METADATA].limits.flush = Ability::Native;
        }
        let mut load = Load::draw(rng, sectors, region, grain);
        let secrets = rng.bool();
        if secrets {
            // What is trimmed shows what the destination has.
            load.weights[4] = 0;
        }
        Self {
            region_sectors: region,
            sectors,
            words: words(rng, large),
            holes: if rng.u32(0..3) == 0 { holes(rng, sectors, source_logical as usize / 512) } else { Vec::new() },
            secrets,
            hydration_max: Duration::from_secs(500),
            faults,
            load,
            disks,
            yield_always: rng.bool(),
            early_effect: rng.bool(),
            anew: rng.bool(),
            large,
        }
    }

    /// The options of a life, where each has its own.
    pub(super) fn words_of(&self, seed: u64, life: u64) -> String {
        let rng = &mut Rng::with_seed(seed ^ life.rotate_left(32));
        if self.anew && life > 1 { words(rng, self.large) } else { self.words.clone() }
    }

    /// A clone of four regions, without faults, on disks that take the same time for all; the destination has no flush
    /// where not `flushes`.
    pub(super) fn tiny(words: &str, secrets: bool, flushes: bool) -> Self {
        let (region_sectors, sectors) = (8, 32);
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
        Self {
            region_sectors,
            sectors,
            words: words.to_owned(),
            holes: Vec::new(),
            secrets,
            hydration_max: Duration::from_secs(20),
            faults: false,
            load: Load::draw(&mut Rng::with_seed(0), sectors, region_sectors, 1),
            disks: [
                disk("metadata", METADATA_SECTORS, true),
                disk("destination", sectors as u64, flushes),
                disk("source", sectors as u64, true),
            ],
            yield_always: false,
            early_effect: false,
            anew: false,
            large: false,
        }
    }

    /// The world of this seed.
    pub(super) fn world(&self, seed: u64, trace: bool) -> World {
        World::new(WorldOptions {
            seed,
            disks: self.disks.to_vec(),
            yield_always: self.yield_always,
            early_effect: self.early_effect,
            trace,
        })
    }
}

/// The options of the table line; a large clone is mostly hydrated by writes, so that there is something to commit for
/// long.
fn words(rng: &mut Rng, large: bool) -> String {
    let mut features = Vec::new();
    for (feature, one_in) in [("no_hydration", if large { 1 } else { 4 }), ("no_discard_passdown", 5), ("hydrate_on_read", 3)] {
        if rng.u32(0..one_in) == 0 {
            features.push(feature);
        }
    }
    let (threshold, batch) = (choose(rng, &[1, 1, 2, 8, 64]), choose(rng, &[1, 1, 2, 7, 64]));
    let (rate, latency) = (choose(rng, &[0, 0, 0, 1 << 20]), choose(rng, &[0, 100, 5000]));
    format!(
        "{} {} 8 hydration_threshold {threshold} hydration_batch_size {batch} hydration_rate {rate} hydration_latency_us {latency}",
        features.len(),
        features.join(" ")
    )
}

/// Some holes, on logical blocks of the source.
fn holes(rng: &mut Rng, sectors: usize, grain: usize) -> Vec<Range<usize>> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < sectors {
        let start = at + rng.usize(0..=sectors / 4) / grain * grain;
        let end = (start + rng.usize(1..=sectors.div_ceil(2)).next_multiple_of(grain)).min(sectors / grain * grain);
        if start < end {
            holes.push(start..end);
        }
        at = end.max(start + grain);
    }
    holes
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
        discard: ability(rng),
        write_zeroes: ability(rng),
        flush: ability(rng),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    DiskOptions {
        name,
        sectors,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..=23))),
        tear_bytes: choose(rng, &[512, 512, 4096]),
        faults: if faults { draw::faults(rng, sectors, true, true) } else { FaultOptions::default() },
    }
}
