//! What is under the server of a seed, who comes, and how its lives end.

use std::time::Duration;

use fastrand::Rng;
use forebay_export::serve::ServeLimits;

use super::disk::DiskSubject;
use crate::check::Model;
use crate::draw::choose;
use crate::nbd;
use crate::only::How;
use crate::run::Stage;
use crate::world::{Cut, Moment};
use crate::{cache, clone, mirror};

/// Lives for a thousand requests, about.
const LIVES: u64 = 20;

/// What is under the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Below {
    Disk,
    Cache,
    Mirror,
    Clone,
}

/// What a seed is made of, beside its stage.
#[derive(Clone, Debug)]
pub(super) struct Swarm {
    pub(super) people: nbd::Swarm,
    /// Who comes while it is away waits, as with a socket that a service manager holds; else it is turned away.
    pub(super) keeps_listening: bool,
    /// Longest time for which it is away, milliseconds.
    away_max_ms: u64,
    /// Disturbances among a thousand requests.
    pub(super) disturb_per_mille: u32,
}

/// What a life does, decided when it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Requests until a cut is set.
    pub(super) requests: u64,
    pub(super) moment: Moment,
    pub(super) cut: Cut,
    /// The cut may already strike while it recovers.
    pub(super) cut_in_recovery: bool,
    /// It ends in order instead, and the cut comes afterwards.
    pub(super) leave: bool,
    /// How long it takes until the next one begins.
    pub(super) away: Duration,
    /// The last one: everything healthy.
    pub(super) last: bool,
}

impl Swarm {
    /// Draws everything; `stage` is what is under the server.
    pub(super) fn draw(seed: u64, how: &How) -> (Self, Stage) {
        let rng = &mut Rng::with_seed(seed ^ 0x5E7_7ED0);
        let below = choose(rng, &[Below::Disk, Below::Cache, Below::Cache, Below::Mirror, Below::Clone]);
        let mut people = nbd::Swarm::draw(seed);
        let stage = match below {
            Below::Disk => {
                people.promise_flushes();
                let world = people.world(seed, how.trace);
                world.select(how.only.clone());
                let model = Model::new(seed, people.sectors, true);
                Stage { world, subject: Box::new(DiskSubject), load: people.load.clone(), model, faults: people.faults }
            }
            Below::Cache => cache::stage(seed, how),
            Below::Mirror => mirror::stage(seed, how),
            Below::Clone => clone::stage(seed, how),
        };
        people.crashes = true;
        people.sectors = stage.model.len();
        people.faults = stage.faults;
        people.load = stage.load.clone();
        people.load.pause_max_ms = people.load.pause_max_ms.min(50);
        if people.device.is_some() && below != Below::Disk {
            // What is cut off is sent again before the server is sure to have finished it.
            people.cut_every = 0;
        }
        let away_max_ms = choose(rng, &[1, 100, 3_000, 3_000, 60_000]);
        people.stays_away = away_max_ms > 20_000;
        let (keeps_listening, disturb_per_mille) = (rng.bool(), stage.load.disturb_per_mille);
        (Self { people, keeps_listening, away_max_ms, disturb_per_mille }, stage)
    }

    /// What clients may use up in one life of the server.
    pub(super) fn limits(rng: &mut Rng) -> ServeLimits {
        ServeLimits {
            annexes_max: 0,
            requests_max: choose(rng, &[1, 4, 128, 128]),
            payload_bytes_max: choose(rng, &[4 << 10, 1 << 20, 64 << 20]),
            ..ServeLimits::default()
        }
    }

    /// What the next life does; `delicate` is the disk whose flushes are worth a crash.
    pub(super) fn plan(&self, rng: &mut Rng, requests: u64, delicate: Option<usize>) -> Plan {
        Plan {
            requests: rng.u64(0..=2 * (requests / LIVES)),
            moment: Moment::draw_near(rng, delicate),
            cut: if rng.u32(0..4) > 0 { Cut::Power } else { Cut::Kill },
            cut_in_recovery: rng.u32(0..5) == 0,
            leave: rng.u32(0..6) == 0,
            away: Duration::from_micros(rng.u64(0..=self.away_max_ms * 1000)),
            last: false,
        }
    }
}
