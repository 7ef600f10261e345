//! A seed's world: sizes, options, faults and load, each drawn so that corners come together.
//!
//! Every option is absent in some seeds and extreme in others, so that each feature meets each
//! other one switched on and off.

use fastrand::Rng;
use forebay_block::{Ability, Limits};

use crate::draw::{self, choose};
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Number of the fast disk.
pub(super) const FAST: usize = 0;
/// Number of the origin.
pub(super) const ORIGIN: usize = 1;
/// Largest cache and largest cached device, bytes, but for one block size each.
const BYTES_MAX: usize = 1 << 20;

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Swarm {
    pub(super) block_bytes: u32,
    /// Size of the cached device.
    pub(super) sectors: usize,
    /// The options, as words of a table line.
    words: Vec<String>,
    /// One request over consecutive slots.
    extend: bool,
    /// A side file beside the cache.
    side: bool,
    pub(super) initial_zeroes: bool,
    pub(super) faults: bool,
    pub(super) load: Load,
    disks: [DiskOptions; 2],
    yield_always: bool,
    early_effect: bool,
    /// Each life has other options.
    anew: bool,
    blocks: usize,
    start_sector: u64,
}

/// What one life is opened with.
pub(super) struct Configuration {
    /// The options, as words of a table line.
    pub(super) words: Vec<String>,
    /// One request over consecutive slots.
    pub(super) extend: bool,
    /// A side file beside the cache.
    pub(super) side: bool,
}

impl Swarm {
    /// Draws everything.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let block_bytes = 512 << choose(rng, &[0, 0, 1, 2, 3, 3, 3, 3, 4, 5, 6, 7]);
        let block = block_bytes as usize;
        let blocks = (1 << rng.usize(2..=11)).min(BYTES_MAX / block).max(4) + rng.usize(0..4);
        let cached = (blocks / 4 + rng.usize(1..=blocks * 2)).min(2 * BYTES_MAX / block).max(4);
        let sectors = cached * block / 512;
        let logical = |rng: &mut Rng| if block_bytes >= 4096 && rng.u32(0..4) == 0 { 4096 } else { 512 };
        let (fast_logical, origin_logical) = (logical(rng), logical(rng));
        let grain = u64::from(fast_logical / 512);
        let start_sector = if rng.bool() { 0 } else { rng.u64(0..40) * grain };
        let metadata = (64 + 16 * blocks).next_multiple_of(block);
        let fast_sectors = start_sector + ((metadata + blocks * block) / 512) as u64 + rng.u64(0..=block as u64 / 512);
        let faults = rng.bool();
        let fast = disk("fast", fast_sectors.next_multiple_of(grain), fast_logical, faults, rng);
        let origin_sectors = (sectors as u64 + rng.u64(0..64)).next_multiple_of(u64::from(origin_logical / 512));
        let origin = disk("origin", origin_sectors, origin_logical, faults, rng);
        let request_grain = fast_logical.max(origin_logical) as usize / 512;
        Self {
            block_bytes,
            sectors,
            words: words(rng, blocks, start_sector),
            extend: rng.u32(0..5) > 0,
            initial_zeroes: rng.u32(0..4) == 0,
            faults,
            load: Load::draw(rng, sectors, block / 512, request_grain),
            disks: [fast, origin],
            yield_always: rng.bool(),
            early_effect: rng.bool(),
            side: rng.bool(),
            anew: rng.bool(),
            blocks,
            start_sector,
        }
    }

    /// What a life is opened with: options, and whether there is a side file, which may come later than the cache.
    pub(super) fn life(&self, seed: u64, life: u64) -> Configuration {
        if !self.anew || life < 2 {
            return Configuration { words: self.words.clone(), extend: self.extend, side: self.side && !self.anew };
        }
        let rng = &mut Rng::with_seed(seed ^ life.rotate_left(32));
        let words = words(rng, self.blocks, self.start_sector);
        Configuration { words, extend: rng.u32(0..5) > 0, side: self.side && life > 3 }
    }

    /// A cache of four blocks before a device of eight, without faults, on disks that take the same time for all.
    pub(super) fn tiny<'a>(block_bytes: u32, words: impl Iterator<Item = &'a str>) -> Self {
        let block = block_bytes as usize;
        let sectors = 8 * block / 512;
        let fast = (64 + 16 * 4_usize).next_multiple_of(block) + 4 * block;
        let limits = Limits { memory_align: 512, discard: Ability::Native, write_zeroes: Ability::Native, ..Limits::unlimited() };
        let disk = |name, sectors: usize| DiskOptions {
            name,
            sectors: sectors as u64,
            limits,
            latency_ns: (10_000, 10_000),
            tear_bytes: 512,
            faults: FaultOptions::default(),
        };
        Self {
            block_bytes,
            sectors,
            words: words.map(str::to_owned).collect(),
            extend: true,
            initial_zeroes: false,
            faults: false,
            load: Load::draw(&mut Rng::with_seed(0), sectors, block / 512, 1),
            disks: [disk("fast", fast / 512), disk("origin", sectors)],
            yield_always: false,
            early_effect: false,
            side: false,
            anew: false,
            blocks: 4,
            start_sector: 0,
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

/// The options of the table line, each given or not.
fn words(rng: &mut Rng, blocks: usize, start_sector: u64) -> Vec<String> {
    let mut words = Vec::new();
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if start_sector > 0 {
        option("start_sector", start_sector.to_string());
    }
    match rng.u32(0..4) {
        0 => {}
        1 => {
            option("low_watermark", "0".to_owned());
            option("high_watermark", rng.u32(0..=100).to_string());
        }
        _ => {
            let low = rng.u32(0..=100);
            option("low_watermark", low.to_string());
            option("high_watermark", rng.u32(low..=100).to_string());
        }
    }
    let numbers: [(&str, &[usize]); 5] = [
        ("writeback_jobs", &[0, 1, 2, blocks]),
        ("autocommit_blocks", &[0, 1, 2, 8, blocks / 2]),
        ("autocommit_time", &[0, 1, 20, 1000]),
        ("max_age", &[0, 1, 50, 2000]),
        ("pause_writeback", &[0, 0, 10, 3000]),
    ];
    for (name, values) in numbers {
        if rng.bool() {
            option(name, choose(rng, values).to_string());
        }
    }
    if rng.u32(0..5) < 2 {
        option("overwrite", "new".to_owned());
    }
    if rng.bool() {
        option("order", choose(rng, &["fifo", "sweep"]).to_owned());
    }
    if rng.u32(0..5) < 2 {
        option("full", "wait".to_owned());
    }
    for flag in ["cleaner", "metadata_only"] {
        if rng.u32(0..25) == 0 {
            words.push(flag.to_owned());
        }
    }
    words
}

fn disk(name: &'static str, sectors: u64, logical_bytes: u32, faults: bool, rng: &mut Rng) -> DiskOptions {
    let unit = logical_bytes / 512;
    let slow = if name == "origin" { 20 } else { 17 };
    let ability = |rng: &mut Rng| if rng.u32(0..4) == 0 { Ability::No } else { Ability::Native };
    let limits = Limits {
        logical_bytes,
        physical_bytes: logical_bytes.max(choose(rng, &[512, 4096])),
        memory_align: 512,
        max_sectors: unit * choose(rng, &[8, 64, 256, 2048]),
        max_segments: choose(rng, &[1, 4, 128]),
        preferred_bytes: choose(rng, &[0, 0, 65_536, 1 << 20]),
        discard: ability(rng),
        write_zeroes: ability(rng),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    DiskOptions {
        name,
        sectors,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..=slow + 4))),
        tear_bytes: choose(rng, &[512, 512, 4096]),
        faults: if faults { draw::faults(rng, sectors, true, false) } else { FaultOptions::default() },
    }
}
