//! An origin with snapshots as the subject of a seed: many lives, with crashes at every step.
//!
//! ```text
//!   ┌─▶ restart ─▶ open all ─▶ read all of them back ─▶ maybe take another snapshot, or merge one
//!   │                                                 ─▶ requests to all of them … ─▶ power cut or kill ─┐
//!   └────────────────────────────────────────────────────────────────────────────────────────────────────┘
//!   last life: disks healed ─▶ read back ─▶ merged to the end ─▶ the origin's disk is checked
//! ```
//!
//! Each view of the data has a [`Model`](crate::check::Model) of its own, which begins as that of the
//! origin was when the snapshot was taken. A merge makes the snapshot's model the origin's.
//!
//! Invariants:
//! - I1: everything read from any view at any time is what its model allows.
//! - I2: a snapshot is lost only when its store is full, or after a fault; lost once, it is lost in
//!   every later life. The origin never is.
//! - I3: nothing but a lost or full snapshot fails a request without a fault.
//! - I4: whatever of a store counts as used when it opens is used.

mod life;
mod run;
mod swarm;
mod tiny;
mod views;

use crate::only::How;
use crate::run::Outcome;

use self::run::Run;
use self::swarm::Swarm;

pub use self::tiny::tiny;

/// Runs one seed of snapshots with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    Run::new(seed, swarm, world, requests).all_lives()
}

#[cfg(test)]
mod tests {
    use super::run_seed;
    use crate::only::How;

    #[test]
    fn seeds_pass_and_repeat_themselves() {
        for seed in 0..40 {
            let outcome = run_seed(seed, 300, &How::default());
            assert_eq!(outcome.failure, None, "seed {seed}");
            if seed % 10 == 0 {
                assert_eq!(outcome.digest, run_seed(seed, 300, &How::default()).digest, "seed {seed}");
            }
        }
    }
}
