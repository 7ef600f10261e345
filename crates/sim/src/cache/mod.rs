//! The write cache as the subject of a seed.

mod subject;
mod swarm;

use crate::check::{Model, stamp};
use crate::run::{Outcome, run};

use subject::CacheSubject;
use swarm::{ORIGIN, Swarm};

/// Runs one seed of the write cache with so many requests; `trace` prints every event.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, trace: bool) -> Outcome {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, trace);
    world.note(&[], || format!("{swarm:#?}"));
    if !swarm.initial_zeroes {
        world.preset(ORIGIN, |bytes| stamp(bytes, seed, 0, 0));
    }
    let model = Model::new(seed, swarm.sectors, swarm.initial_zeroes);
    let (load, faults) = (swarm.load.clone(), swarm.faults);
    run(seed, world, &CacheSubject::new(swarm), load, model, faults, requests)
}
