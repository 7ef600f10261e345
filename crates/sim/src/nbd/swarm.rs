//! A seed's world: the disk, its faults, who comes, what they ask, and how often they are cut off.

use fastrand::Rng;
use forebay_block::{Ability, Limits};

use crate::draw::{bad_sectors, choose, rate};
use crate::run::Load;
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// What a seed is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(crate) struct Swarm {
    pub(crate) sectors: usize,
    /// The disk fails requests.
    pub(crate) faults: bool,
    /// Bytes between two cuts on average; 0 for none.
    pub(crate) cut_every: u64,
    /// The server ends, and comes back.
    pub(crate) crashes: bool,
    /// It is away for longer than our own client waits.
    pub(crate) stays_away: bool,
    /// Clients that speak the protocol by themselves.
    pub(crate) peers: usize,
    /// Most requests that one of them sends at once.
    pub(crate) batch: usize,
    /// Requests of a thousand that are wrong.
    pub(crate) wrong_per_mille: u32,
    /// Visits of a hundred that end in the middle of a request.
    pub(crate) torn_percent: u32,
    /// Visits of a hundred of somebody who sends anything.
    pub(crate) noise_percent: u32,
    /// Our own client is there, too; and its connections at most.
    pub(crate) device: Option<usize>,
    pub(crate) load: Load,
    disk: DiskOptions,
    yield_always: bool,
    early_effect: bool,
}

impl Swarm {
    /// Draws everything.
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::with_seed(seed ^ 0x6E62_6400);
        let logical: u32 = if rng.u32(0..4) == 0 { 4096 } else { 512 };
        let grain = logical as usize / 512;
        let sectors = ((1 << rng.usize(6..=11)) + rng.usize(0..64)).next_multiple_of(grain);
        let device = rng.bool().then(|| choose(rng, &[1, 2, 4]));
        let peers = if device.is_some() { rng.usize(0..3) } else { rng.usize(1..5) };
        let faults = rng.bool();
        let ability = |rng: &mut Rng| choose(rng, &[Ability::Native, Ability::Native, Ability::No]);
        let limits = Limits {
            logical_bytes: logical,
            physical_bytes: logical,
            max_sectors: choose(rng, &[8, 64, 2048]),
            discard: ability(rng),
            discard_grain_bytes: logical,
            write_zeroes: choose(rng, &[Ability::Native, Ability::Emulate]),
            flush: Ability::Native,
            fua: choose(rng, &[Ability::Native, Ability::Emulate]),
            ..Limits::unlimited()
        };
        let disk = DiskOptions {
            name: "disk",
            sectors: sectors as u64,
            limits,
            latency_ns: choose(rng, &[(1_000, 2_000), (2_000, 80_000), (50_000, 3_000_000)]),
            tear_bytes: 512,
            faults: if faults { draw_faults(rng, sectors as u64, device.is_some()) } else { FaultOptions::default() },
        };
        let block = choose(rng, &[8, 8, 64]).max(grain);
        let mut load = Load::draw(rng, sectors, block, grain);
        load.pause_max_ms = load.pause_max_ms.min(50);
        Self {
            sectors,
            faults,
            cut_every: choose(
                rng,
                if device.is_some() { &[0, 50_000, 300_000, 3_000_000] } else { &[0, 2_000, 20_000, 200_000] },
            ),
            crashes: false,
            stays_away: false,
            peers,
            batch: choose(rng, &[1, 4, 16]),
            wrong_per_mille: choose(rng, &[0, 20, 200]),
            torn_percent: choose(rng, &[0, 10, 60]),
            noise_percent: choose(rng, &[0, 10, 30]),
            device,
            load,
            disk,
            yield_always: rng.bool(),
            early_effect: rng.bool(),
        }
    }

    /// The world of this seed.
    pub(crate) fn world(&self, seed: u64, trace: bool) -> World {
        let disks = vec![self.disk.clone()];
        World::new(WorldOptions { seed, disks, yield_always: self.yield_always, early_effect: self.early_effect, trace })
    }

    /// Lets no flush of the disk fail: what passes through makes no promise about one that succeeds after one that
    /// failed.
    pub(crate) fn promise_flushes(&mut self) {
        self.disk.faults.flush_error = 0;
    }

    /// The same where nothing goes wrong any more, for somebody who does nothing wrong.
    pub(crate) fn healthy(&self) -> Self {
        Self { faults: false, cut_every: 0, crashes: false, wrong_per_mille: 0, ..self.clone() }
    }

    /// Whether requests of somebody who is cut off, or whose disk fails, may fail.
    pub(crate) fn expects_errors(&self) -> bool {
        self.faults || self.cut_every > 0 || self.stays_away
    }

    /// Whether a client may lose its connection.
    pub(crate) fn may_hang_up(&self) -> bool {
        self.cut_every > 0 || self.crashes
    }
}

/// Nothing gets stuck where requests are sent again: what was given up might be carried out later than that.
fn draw_faults(rng: &mut Rng, sectors: u64, device: bool) -> FaultOptions {
    FaultOptions {
        read_error: rate(rng),
        write_error: rate(rng),
        flush_error: rate(rng),
        discard_error: rate(rng),
        short: rate(rng),
        again: rate(rng),
        stuck: if device { 0 } else { rate(rng) / 10 },
        unreadable: bad_sectors(rng, sectors),
        unwritable: bad_sectors(rng, sectors),
        ..FaultOptions::default()
    }
}
