//! A server and what is under it, killed and cut off while its clients live on.
//!
//! ```text
//!   peers, NbdDevice ── streams ──▶ Server ─▶ disk, write cache, mirror or clone ─▶ disks with faults
//!   one process, for ever           another one: power cut, kill or orderly end at any step, and the next ─▶ …
//! ```
//!
//! A life is one process of the server: it opens its target, reads everything back, and listens. What clients were
//! answered before the end, whenever that reached them, was answered; then it is decided what may be there.
//!
//! Invariants:
//! - I1: what was flushed, or written with FUA, over whatever connection, is there in the next life; of everything else
//!   each sector is as some write left it that may have happened.
//! - I2: our own client sends again what had no answer. Nothing but flushes of its user fails because a server ended,
//!   and where something is lost that had been acknowledged to him, a flush of his fails before one succeeds.
//! - I3: in the end, with healthy disks, everything is answered within a minute, the server leaves in time, the bottom
//!   disk holds everything, and all memory has been given back.

mod disk;
mod life;
mod run;
mod swarm;

use crate::only::How;
use crate::run::Outcome;

/// Runs one seed with so many requests.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    run::Run::new(seed, requests, how).all_lives()
}

#[cfg(test)]
mod tests {
    use super::run_seed;
    use crate::only::How;

    #[test]
    fn seeds_pass_and_repeat_themselves() {
        let mut crashes = 0;
        for seed in 0..20 {
            let outcome = run_seed(seed, 300, &How::default());
            assert_eq!(outcome.failure, None, "seed {seed}");
            crashes += outcome.totals.crashes;
            if seed % 10 == 0 {
                assert_eq!(outcome.digest, run_seed(seed, 300, &How::default()).digest, "seed {seed}");
            }
        }
        assert!(crashes > 40, "{crashes} crashes");
    }
}
