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
use crate::run::{Outcome, run};

use subject::CloneSubject;
use swarm::{DESTINATION, SOURCE, Swarm};

/// Runs one seed of a clone with so many requests; `trace` prints every event.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, trace: bool) -> Outcome {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, trace);
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
    run(seed, world, &CloneSubject::new(swarm, original), load, model, faults, requests)
}

#[cfg(test)]
mod tests {
    use super::run_seed;

    #[test]
    fn seeds_pass_and_repeat_themselves() {
        for seed in 0..20 {
            let outcome = run_seed(seed, 300, false);
            assert_eq!(outcome.failure, None, "seed {seed}");
            if seed % 10 == 0 {
                assert_eq!(outcome.digest, run_seed(seed, 300, false).digest, "seed {seed}");
            }
        }
    }
}
