//! The compressed RAM disk as the subject of a seed: one life, since nothing of it outlives one.
//!
//! ```text
//!   requests ─┐
//!   commands ─┼─▶ disk ─▶ backing device with faults, and blocks that somebody damages
//!             │
//!             └─▶ in the end: healed, everything read, everything counted, every block damaged and every
//!                 page that is away read once more, everything discarded
//! ```
//!
//! Invariants:
//! - I1: every read returns what the model allows, or an error where a fault or damage may be why.
//! - I2: what the limit lost is what was written, at every command.
//! - I3: in the end the blocks in use are those of the pages that are away, and after a discard of everything
//!   neither memory nor blocks are in use.
//! - I4: of pages whose block was rotten, torn, misdirected or stale, every one is refused.

mod command;
mod crew;
mod damage;
mod life;
mod swarm;

use std::rc::Rc;

use forebay_reactor::BufferPool;

use self::life::Life;
use self::swarm::Swarm;
use crate::check::Model;
use crate::only::How;
use crate::run::{Client, Ledger, Outcome, Totals};

/// Runs one seed of the compressed RAM disk with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    let swarm = Swarm::draw(seed);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    let ledger = Rc::new(Ledger::new(seed, Model::new(seed, swarm.sectors, true)));
    let pool = BufferPool::default();
    let reactor = world.restart();
    // The one life there is.
    world.begin_life();
    let client = Client::new(&world, &ledger, &pool);
    let life = Life::new(swarm, world.clone(), reactor.clone(), Rc::clone(&ledger), Rc::clone(&client), pool, requests);
    let detected = life.detected();
    let ended = reactor.run(life.live());
    client.die();
    if let Some(stop) = world.stop() {
        ledger.fail(format!("{stop:?}"));
    } else if ended.is_err() {
        ledger.fail("the reactor gave up without a reason".to_owned());
    }
    reactor.clear();
    let counts = world.counts();
    let (requests, checks) = (ledger.requests.get(), ledger.checks.get());
    let totals = Totals {
        seeds: 1,
        requests,
        crashes: 0,
        device_ios: counts.requests,
        faults: counts.faults,
        checks,
        detected: detected.get(),
    };
    Outcome { totals, digest: world.digest(), failure: ledger.failure.take(), drawn: world.drawn() }
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
