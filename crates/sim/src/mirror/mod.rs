//! The mirror as the subject of a seed.
//!
//! Legs fail once and for good, the log device too; processes are killed and power is cut at any step,
//! in the middle of a resync as well. What is read is what may have survived, at any time; legs are
//! compared while requests go on; in the end all legs are equal.

mod subject;
mod swarm;

use forebay_target::mirror::log::format::{Header, Image};
use forebay_target::mirror::options::Features;

use crate::check::{Model, stamp};
use crate::enumerate::{OPERATIONS, SEED, Tiny};
use crate::only::How;
use crate::run::{Outcome, Stage, run};

use subject::MirrorSubject;
use swarm::Swarm;

/// Runs one seed of the mirror with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    run(seed, stage(seed, how), requests)
}

/// The mirror of a seed.
pub(crate) fn stage(seed: u64, how: &How) -> Stage {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    if !swarm.initial_zeroes {
        world.preset(swarm.first_leg(), |bytes| stamp(bytes, seed, 0, 0));
    }
    let model = Model::new(seed, swarm.sectors, swarm.initial_zeroes);
    let (load, faults) = (swarm.load.clone(), swarm.faults);
    Stage { world, subject: Box::new(MirrorSubject::new(swarm)), load, model, faults }
}

/// A tiny mirror: legs, sectors of a region, features, whether the last leg has flushes, and whether it begins in sync.
type Shape = (usize, u64, Features, bool, bool);

const KEEP: Features = Features { handle_errors: true, keep_log: true, resync_rate: 0 };

/// Variants of a tiny mirror.
const TINY: [Shape; 4] = [
    (2, 2, KEEP, true, false),
    (2, 2, KEEP, true, true),
    (3, 4, Features { keep_log: false, ..KEEP }, true, true),
    (2, 4, Features { handle_errors: false, ..KEEP }, false, true),
];

/// A mirror of eight sectors, in its variant number `variant`.
#[must_use]
pub fn tiny(variant: usize) -> Option<Tiny> {
    let &(legs, region, features, flushes, in_sync) = TINY.get(variant)?;
    let swarm = Swarm::tiny(legs, region, features, flushes);
    let model = Model::new(SEED, swarm.sectors, false);
    let shape = swarm.clone();
    let world = move || {
        let world = shape.world(SEED, false);
        for leg in 0..legs {
            let version = if in_sync { SEED } else { SEED + leg as u64 };
            world.preset(shape.first_leg() + leg, |bytes| stamp(bytes, version, 0, 0));
        }
        if in_sync {
            let mut log = Image::new(shape.sectors as u64 / region, 512);
            log.adopt(&Header { regions: 0, behind: None }, &[], true);
            world.preset(shape.log(), |bytes| bytes.copy_from_slice(log.bytes()));
        }
        world
    };
    let operations = OPERATIONS.to_vec();
    let (subject, drained_again) = (Box::new(MirrorSubject::new(swarm)), false);
    Some(Tiny { world: Box::new(world), subject, model, block_sectors: 1, operations, drained_again })
}
