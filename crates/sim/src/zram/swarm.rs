//! A seed's disk, backing device, options and load, each drawn so that corners come together.

use std::rc::Rc;

use fastrand::Rng;
use forebay_block::{Limits, SectorCount};
use forebay_target::zram::{Algorithm, BackingOptions, BackingSetup, CodecParams, Packers, RecompressSetup, Rules, Setup};

use crate::draw::choose;
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Sectors of a page.
const PAGE_SECTORS: usize = 8;

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Swarm {
    pub(super) sectors: usize,
    /// Pages of the backing device; none without one.
    pub(super) blocks: usize,
    pub(super) faults: bool,
    /// Blocks are damaged now and then.
    pub(super) damage: bool,
    /// Every block is damaged in the end, where none was before.
    pub(super) damage_last: bool,
    pub(super) load: Load,
    /// Commands among a thousand requests.
    pub(super) commands_per_mille: u32,
    mem_limit: u64,
    algorithm: Algorithm,
    pub(super) backing: BackingOptions,
    seconds: &'static [Algorithm],
    recompress_after_s: Option<u32>,
    /// Large writes are compressed by several.
    pub(super) packers: bool,
    disk: DiskOptions,
    yield_always: bool,
    early_effect: bool,
}

impl Swarm {
    /// Draws everything.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let pages = 1 << rng.usize(2..=9);
        let pages = pages + rng.usize(0..pages);
        let blocks = if rng.u32(0..8) == 0 { 0 } else { (pages / 4 + rng.usize(1..=pages * 2)).max(2) };
        let faults = blocks > 0 && rng.u32(0..3) == 0;
        let sectors = pages * PAGE_SECTORS;
        let limited = rng.u32(0..4) == 0;
        Self {
            sectors,
            blocks,
            faults,
            damage: blocks > 0 && rng.u32(0..4) == 0,
            damage_last: blocks > 0 && rng.bool(),
            load: Load::draw(rng, sectors, PAGE_SECTORS, 1),
            commands_per_mille: choose(rng, &[10, 40, 120]),
            mem_limit: if limited { rng.u64(1..=pages as u64) * 4096 } else { 0 },
            algorithm: choose(rng, &[Algorithm::Lz4, Algorithm::Lz4, Algorithm::Zstd, Algorithm::Deflate, Algorithm::Store]),
            backing: backing(rng),
            seconds: choose(rng, &[&[], &[Algorithm::Zstd], &[Algorithm::Deflate, Algorithm::Zstd], &[Algorithm::Lz4; 3]]),
            packers: rng.u32(0..3) > 0,
            recompress_after_s: choose(rng, &[None, None, Some(1), Some(2)]),
            disk: disk(rng, blocks, faults),
            yield_always: rng.bool(),
            early_effect: rng.bool(),
        }
    }

    /// The world of this seed.
    pub(super) fn world(&self, seed: u64, trace: bool) -> World {
        let (yield_always, early_effect) = (self.yield_always, self.early_effect);
        World::new(WorldOptions { seed, disks: vec![self.disk.clone()], yield_always, early_effect, trace })
    }

    /// What the disk is made of.
    pub(super) fn setup(&self, backing: Option<BackingSetup>, packers: Option<Rc<dyn Packers>>) -> Setup {
        let codec = |algorithm| CodecParams { algorithm, ..CodecParams::default() };
        let seconds = self.seconds.iter().copied().map(codec).collect();
        Setup {
            sectors: SectorCount(self.sectors as u64),
            codec: codec(self.algorithm),
            mem_limit: self.mem_limit,
            backing,
            recompression: RecompressSetup { codecs: seconds, after_s: self.recompress_after_s },
            packers,
        }
    }

    /// Whether a request may fail although all is well.
    pub(super) fn expects_errors(&self) -> bool {
        self.faults || self.damage || self.mem_limit > 0
    }
}

/// How the backing device is used; with rules one time of four.
fn backing(rng: &mut Rng) -> BackingOptions {
    let range_pages = choose(rng, &[None, Some(1), Some(2), Some(7), Some(32), Some(256)]);
    let mut rules = Rules::default();
    if rng.u32(0..4) == 0 {
        rules.idle_after_s = rng.bool().then(|| rng.u32(1..4));
        rules.spill_percent = rng.bool().then(|| rng.u32(11..=100));
        rules.rate_bytes = rng.bool().then(|| rng.u64(1..100) * 4096);
        rules.daily_bytes = rng.bool().then(|| rng.u64(1..1000) * 4096);
    }
    BackingOptions { range_pages, packed: rng.bool(), promote: rng.u32(0..3) == 0, keep_freed: rng.bool(), rules }
}

fn disk(rng: &mut Rng, blocks: usize, faults: bool) -> DiskOptions {
    let logical_bytes = choose(rng, &[512, 4096]);
    let limits = Limits {
        logical_bytes,
        physical_bytes: 4096,
        memory_align: 512,
        max_sectors: choose(rng, &[8, 64, 2048]),
        max_segments: choose(rng, &[1, 4, 128]),
        preferred_bytes: choose(rng, &[0, 65_536, 1 << 20]),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    let rate = |rng: &mut Rng| if rng.bool() { choose(rng, &[3_000, 30_000, 200_000]) } else { 0 };
    let options = FaultOptions {
        read_error: rate(rng) / 10,
        write_error: rate(rng),
        short: rate(rng),
        again: rate(rng),
        fail_at: rng.bool().then(|| rng.u64(0..200)),
        ..FaultOptions::default()
    };
    DiskOptions {
        name: "backing",
        sectors: (blocks.max(1) * PAGE_SECTORS) as u64,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..=22))),
        tear_bytes: 512,
        faults: if faults { options } else { FaultOptions::default() },
    }
}
