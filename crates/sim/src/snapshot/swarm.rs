//! A seed's disks, snapshots and load, each drawn so that corners come together.

use fastrand::Rng;
use forebay_block::{Ability, Limits};
use forebay_target::snapshot::options::{Discards, StoreKind};

use crate::draw::{choose, rate};
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Number of the origin's disk; the stores' follow.
pub(super) const ORIGIN: usize = 0;

/// A place for a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) store: StoreKind,
    pub(super) chunk_sectors: u64,
    pub(super) discards: Discards,
}

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Swarm {
    pub(super) sectors: usize,
    pub(super) places: Vec<Place>,
    pub(super) faults: bool,
    pub(super) load: Load,
    /// Percent of requests that go to the origin.
    pub(super) origin_percent: u32,
    /// Lives of a hundred in which a merge begins, where none is under way.
    pub(super) merge_percent: u32,
    pub(super) coalesce: bool,
    disks: Vec<DiskOptions>,
    yield_always: bool,
    early_effect: bool,
}

impl Swarm {
    /// Draws everything.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let logical_bytes = choose(rng, &[512, 512, 4096]);
        let grain = logical_bytes as usize / 512;
        // Slices from 256 KiB on are copied in another way.
        let large = rng.u32(0..16) == 0;
        let sectors = (if large { 2048 + rng.usize(0..4096) } else { 64 + rng.usize(0..700) }).next_multiple_of(grain);
        let faults = rng.u32(0..3) == 0;
        let places: Vec<Place> = (0..rng.usize(1..=3)).map(|_| place(rng, grain as u64)).collect();
        let mut disks = vec![disk(rng, "origin", sectors as u64, logical_bytes, faults)];
        for (number, place) in places.iter().enumerate() {
            let name = ["store 1", "store 2", "store 3"][number];
            let room = store_sectors(rng, place, sectors as u64);
            disks.push(disk(rng, name, room, logical_bytes, faults));
        }
        let block = usize::try_from(places[0].chunk_sectors).expect("chunks are small");
        let mut load = Load::draw(rng, sectors, block.min(sectors), grain);
        // Small requests and a few large ones, up to a quarter of the device.
        load.sizes[3] = if large { 3 * load.sizes.iter().sum::<u32>() } else { load.sizes[3].min(1) };
        Self {
            sectors,
            places,
            faults,
            load,
            origin_percent: choose(rng, &[20, 50, 80, 100]),
            merge_percent: choose(rng, &[0, 5, 20]),
            coalesce: rng.u32(0..4) > 0,
            disks,
            yield_always: rng.bool(),
            early_effect: rng.bool(),
        }
    }

    /// The world of this seed.
    pub(super) fn world(&self, seed: u64, trace: bool) -> World {
        let (yield_always, early_effect) = (self.yield_always, self.early_effect);
        World::new(WorldOptions { seed, disks: self.disks.clone(), yield_always, early_effect, trace })
    }
}

fn place(rng: &mut Rng, grain: u64) -> Place {
    let stores = [
        StoreKind::Persistent { overflow: false },
        StoreKind::Persistent { overflow: false },
        StoreKind::Persistent { overflow: true },
        StoreKind::Transient,
    ];
    Place {
        store: choose(rng, &stores),
        chunk_sectors: choose(rng, &[1, 2, 8, 8, 16, 64]).max(grain),
        discards: choose(rng, &[Discards::Refused, Discards::ZeroCow]),
    }
}

/// Room for everything several times over, or for a part of it.
fn store_sectors(rng: &mut Rng, place: &Place, origin: u64) -> u64 {
    let chunks = origin.div_ceil(place.chunk_sectors);
    let data = if rng.u32(0..4) == 0 { rng.u64(1..=chunks) } else { chunks * 4 + 300 };
    let entries = place.chunk_sectors * 32;
    (data + data.div_ceil(entries) + 3) * place.chunk_sectors
}

fn disk(rng: &mut Rng, name: &'static str, sectors: u64, logical_bytes: u32, faults: bool) -> DiskOptions {
    let able = |rng: &mut Rng| choose(rng, &[Ability::No, Ability::Native]);
    let limits = Limits {
        logical_bytes,
        physical_bytes: 4096,
        memory_align: 512,
        max_sectors: choose(rng, &[8, 64, 2048]),
        max_segments: choose(rng, &[1, 4, 128]),
        discard: able(rng),
        write_zeroes: able(rng),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    let mut options = FaultOptions {
        read_error: rate(rng),
        write_error: rate(rng),
        flush_error: rate(rng),
        short: rate(rng),
        again: rate(rng),
        fail_at: rng.bool().then(|| rng.u64(0..600)),
        ..FaultOptions::default()
    };
    if name == "origin" {
        // What passes through makes no promise about a flush that succeeds after one that failed.
        (options.flush_error, options.fail_at) = (0, None);
    }
    DiskOptions {
        name,
        sectors,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..=22))),
        tear_bytes: logical_bytes,
        faults: if faults { options } else { FaultOptions::default() },
    }
}
