//! A clone as the subject of a seed.
//!
//! ```text
//!   requests ─┐
//!   messages ─┼─▶ clone ─▶ destination (with faults; full of what nobody may see)
//!   crashes  ─┘     ├────▶ metadata (with faults)
//!                   └────▶ source (with faults; some of it holes) ── in the end: what it was
//! ```
//!
//! Invariants:
//! - I1: after every crash a healthy world opens: torn metadata is mended, never refused.
//! - I2: what was flushed is there; everything else is as it was written, or as the source has it.
//! - I3: once hydrated the destination alone holds everything, and the source is what it was.

mod source;
mod subject;
mod swarm;

use crate::check::{Model, stamp};
use crate::enumerate::{OPERATIONS, Operation, SEED, Tiny};
use crate::only::How;
use crate::run::{Ask, Outcome, Stage, run};

use subject::CloneSubject;
use swarm::{DESTINATION, SOURCE, Swarm};

/// Runs one seed of a clone with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    run(seed, stage(seed, how), requests)
}

/// The clone of a seed.
pub(crate) fn stage(seed: u64, how: &How) -> Stage {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    world.preset(SOURCE, |bytes| {
        stamp(bytes, seed, 0, 0);
        for hole in &swarm.holes {
            bytes[hole.start * 512..hole.end * 512].fill(0);
        }
    });
    if swarm.secrets {
        world.preset(DESTINATION, |bytes| stamp(bytes, !seed, 0, 0));
    }
    let model = Model::new(seed, swarm.sectors, !swarm.holes.is_empty());
    let (load, faults) = (swarm.load.clone(), swarm.faults);
    let original = world.look(SOURCE, <[u8]>::to_vec);
    Stage { world, subject: Box::new(CloneSubject::new(seed, swarm, original)), load, model, faults }
}

/// Variants of a tiny clone: its options, whether the destination holds what nobody may read, and whether it has
/// flushes.
const TINY: [(&str, bool, bool); 3] = [
    ("1 no_hydration", true, true),
    ("0 4 hydration_threshold 2 hydration_batch_size 2", false, true),
    ("2 no_hydration hydrate_on_read", true, false),
];

/// A clone of eight half regions, in its variant number `variant`.
#[must_use]
pub fn tiny(variant: usize) -> Option<Tiny> {
    let &(words, secrets, flushes) = TINY.get(variant)?;
    let swarm = Swarm::tiny(words, secrets, flushes);
    let model = Model::new(SEED, swarm.sectors, false);
    let shape = swarm.clone();
    let world = move || {
        let world = shape.world(SEED, false);
        world.preset(SOURCE, |bytes| stamp(bytes, SEED, 0, 0));
        if secrets {
            world.preset(DESTINATION, |bytes| stamp(bytes, !SEED, 0, 0));
        }
        world
    };
    let original = world().look(SOURCE, <[u8]>::to_vec);
    // What is trimmed shows what the destination has.
    let shown = |operation: &Operation| secrets && matches!(operation, Operation::Send(Ask::Trim, ..));
    let operations = OPERATIONS.into_iter().filter(|operation| !shown(operation)).collect();
    let subject = Box::new(CloneSubject::new(SEED, swarm, original));
    Some(Tiny { world: Box::new(world), subject, model, block_sectors: 4, operations, drained_again: false })
}

#[cfg(test)]
mod tests {
    use super::run_seed;
    use crate::only::How;

    #[test]
    fn seeds_pass_and_repeat_themselves() {
        for seed in 0..20 {
            let outcome = run_seed(seed, 300, &How::default());
            assert_eq!(outcome.failure, None, "seed {seed}");
            if seed % 10 == 0 {
                assert_eq!(outcome.digest, run_seed(seed, 300, &How::default()).digest, "seed {seed}");
            }
        }
    }
}
