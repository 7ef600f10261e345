//! A seed's disks, content and settings, each drawn so that corners come together.

use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Ability, Limits};
use forebay_target::copy::{How, JOURNAL_BYTES, Settings, Watch, Zeroes};

use crate::draw::{choose, rate};
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Numbers of the disks; destinations from the last one on.
pub(super) const SOURCE: usize = 0;
pub(super) const JOURNAL: usize = 1;
pub(super) const DESTINATIONS: usize = 2;

/// What a seed is made of.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    /// Size of the source and of all destinations.
    pub(super) sectors: u64,
    pub(super) faults: bool,
    /// A life is cut off before so many device steps.
    pub(super) steps_max: u64,
    piece_bytes: u32,
    disks: Vec<DiskOptions>,
    yield_always: bool,
    early_effect: bool,
}

impl Swarm {
    /// Draws everything, for about so many slices.
    pub(super) fn draw(seed: u64, slices: u64) -> Self {
        let rng = &mut Rng::with_seed(seed);
        let piece_bytes = choose(rng, &[4096, 4096, 8192, 32_768]);
        // The slices of a seed are those of several copies, each cut off a few times.
        let sectors = (slices * u64::from(piece_bytes) / 512 / 4).clamp(64, 4096);
        let sectors = (sectors - rng.u64(0..sectors / 4)).next_multiple_of(8);
        let faults = rng.bool();
        let mut disks = vec![disk(rng, "source", sectors, faults), disk(rng, "journal", JOURNAL_BYTES / 512, faults)];
        for name in ["first", "second", "third"].into_iter().take(rng.usize(1..=3)) {
            let more = 8 * rng.u64(0..4);
            disks.push(disk(rng, name, sectors + more, faults));
        }
        let steps_max = sectors * 1024 / u64::from(piece_bytes) * disks.len() as u64 * choose(rng, &[1, 2, 4]) / 2 + 20;
        let (yield_always, early_effect) = (rng.bool(), rng.bool());
        Self { sectors, faults, steps_max, piece_bytes, disks, yield_always, early_effect }
    }

    /// The world of this seed.
    pub(super) fn world(&self, seed: u64, trace: bool) -> World {
        let (yield_always, early_effect) = (self.yield_always, self.early_effect);
        World::new(WorldOptions { seed, disks: self.disks.clone(), yield_always, early_effect, trace })
    }

    /// Numbers of the destinations.
    pub(super) fn destinations(&self) -> Range<usize> {
        DESTINATIONS..self.disks.len()
    }

    /// What the source holds: data with stretches of zeroes.
    pub(super) fn content(&self, rng: &mut Rng) -> Vec<u8> {
        let mut content = Vec::new();
        while (content.len() as u64) < self.sectors * 512 {
            let bytes = 4096 * rng.usize(1..12);
            let begun = content.len();
            content.resize(begun + bytes, 0);
            if rng.u32(0..3) > 0 {
                rng.fill(&mut content[begun..]);
            }
        }
        content.truncate(usize::try_from(self.sectors * 512).expect("a simulated disk fits in memory"));
        content
    }

    pub(super) fn settings(&self, rng: &mut Rng) -> Settings {
        Settings {
            piece_bytes: self.piece_bytes,
            in_flight_bytes: u64::from(self.piece_bytes) * choose(rng, &[1, 4, 16]),
            pool_bytes_max: choose(rng, &[0, usize::MAX, usize::MAX]),
            rate: choose(rng, &[None, None, NonZeroU64::new(50 << 20)]),
            ..Settings::default()
        }
    }

    #[expect(clippy::unused_self, reason = "beside the other draws")]
    pub(super) fn how(&self, rng: &mut Rng, zeroes: Zeroes, watch: Rc<Watch>) -> How {
        How {
            sequential: rng.u32(0..4) == 0,
            keep_going: rng.bool(),
            holes: rng.bool(),
            detect_bytes: choose(rng, &[0, 4096, 4096]),
            zeroes,
            durable: false,
            watch: Some(watch),
        }
    }

    /// Time between two notes in the journal.
    #[expect(clippy::unused_self, reason = "beside the other draws")]
    pub(super) fn every(&self, rng: &mut Rng) -> Duration {
        Duration::from_micros(choose(rng, &[50, 500, 5000, 50_000]))
    }
}

fn disk(rng: &mut Rng, name: &'static str, sectors: u64, faults: bool) -> DiskOptions {
    let ability = |rng: &mut Rng| if rng.u32(0..4) == 0 { Ability::No } else { Ability::Native };
    let limits = Limits {
        logical_bytes: choose(rng, &[512, 512, 4096]),
        physical_bytes: 4096,
        memory_align: 512,
        max_sectors: choose(rng, &[8, 64, 2048]),
        max_segments: choose(rng, &[1, 4, 128]),
        write_zeroes: ability(rng),
        ..Limits::unlimited()
    };
    let shortest = 1 << rng.u32(10..16);
    let options = FaultOptions {
        read_error: rate(rng),
        write_error: rate(rng),
        flush_error: rate(rng),
        short: rate(rng),
        again: rate(rng),
        fail_at: (rng.u32(0..3) == 0).then(|| rng.u64(0..1_000)),
        fail_from: (rng.u32(0..6) == 0).then(|| rng.u64(0..2_000)),
        ..FaultOptions::default()
    };
    DiskOptions {
        name,
        sectors,
        limits,
        latency_ns: (shortest, shortest + (1 << rng.u32(10..=20))),
        tear_bytes: choose(rng, &[512, 512, 4096]),
        faults: if faults { options } else { FaultOptions::default() },
    }
}
