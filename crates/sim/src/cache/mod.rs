//! The write cache as the subject of a seed.

mod subject;
mod swarm;

use crate::check::{Model, stamp};
use crate::enumerate::{OPERATIONS, SEED, Tiny};
use crate::only::How;
use crate::run::{Outcome, Stage, run};

use subject::CacheSubject;
use swarm::{ORIGIN, Swarm};

/// Runs one seed of the write cache with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    run(seed, stage(seed, how), requests)
}

/// The write cache of a seed.
pub(crate) fn stage(seed: u64, how: &How) -> Stage {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    if !swarm.initial_zeroes {
        world.preset(ORIGIN, |bytes| stamp(bytes, seed, 0, 0));
    }
    let model = Model::new(seed, swarm.sectors, swarm.initial_zeroes);
    let (load, faults) = (swarm.load.clone(), swarm.faults);
    Stage { world, subject: Box::new(CacheSubject::new(seed, swarm)), load, model, faults }
}

/// Variants of a tiny write cache: block size, and options.
const TINY: [(u32, &str); 4] = [
    (512, ""),
    (512, "overwrite new"),
    (4096, "high_watermark 50 low_watermark 0 autocommit_blocks 2"),
    (4096, "overwrite new writeback_jobs 1 autocommit_time 1"),
];

/// A write cache of four blocks before a device of eight, in its variant number `variant`.
#[must_use]
pub fn tiny(variant: usize) -> Option<Tiny> {
    let &(block_bytes, words) = TINY.get(variant)?;
    let swarm = Swarm::tiny(block_bytes, words.split_whitespace());
    let (model, block_sectors) = (Model::new(SEED, swarm.sectors, false), block_bytes as usize / 512);
    let shape = swarm.clone();
    let world = move || {
        let world = shape.world(SEED, false);
        world.preset(ORIGIN, |bytes| stamp(bytes, SEED, 0, 0));
        world
    };
    Some(Tiny {
        world: Box::new(world),
        subject: Box::new(CacheSubject::new(SEED, swarm)),
        model,
        block_sectors,
        operations: OPERATIONS.to_vec(),
        drained_again: false,
    })
}
