//! The mirror as the subject of a seed.
//!
//! Legs fail once and for good, the log device too; processes are killed and power is cut at any step,
//! in the middle of a resync as well. What is read is what may have survived, at any time; legs are
//! compared while requests go on; in the end all legs are equal.

mod subject;
mod swarm;

use crate::check::{Model, stamp};
use crate::run::{Outcome, run};

use subject::MirrorSubject;
use swarm::Swarm;

/// Runs one seed of the mirror with so many requests; `trace` prints every event.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, trace: bool) -> Outcome {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, trace);
    world.note(&[], || format!("{swarm:#?}"));
    if !swarm.initial_zeroes {
        world.preset(swarm.first_leg(), |bytes| stamp(bytes, seed, 0, 0));
    }
    let model = Model::new(seed, swarm.sectors, swarm.initial_zeroes);
    let (load, faults) = (swarm.load.clone(), swarm.faults);
    run(seed, world, &MirrorSubject::new(swarm), load, model, faults, requests)
}
