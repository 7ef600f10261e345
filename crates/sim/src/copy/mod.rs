//! A copy that can be resumed as the subject of a seed: cut off again and again, at any device step.
//!
//! ```text
//!   ┌─▶ restart ─▶ is what the journal says durable? ─▶ resume ─▶ power cut, kill, or an error ─┐
//!   └───────────────────────────────────────────────────────────────────────────────────────────┘
//!   arrived ─▶ everything is the same ─▶ another source, another journal ─▶ …  the last one: healed
//! ```
//!
//! Invariants:
//! - I1: after a crash every destination holds what the journal calls settled.
//! - I2: a copy that says that all has arrived is the same as its source, at every destination, once
//!   flushed, and stays so after a power cut.
//! - I3: without a crash and without a fault a copy arrives.

mod swarm;
mod tiny;

use std::ops::Range;
use std::rc::Rc;

use fastrand::Rng;
use forebay_block::{Bio, Flags, HeapMemory, Sector, SectorCount, Segments, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::copy::{Engine, Found, JOURNAL_BYTES, Journal, Leg, Settled, Watch, Zeroes};

use self::swarm::{JOURNAL, SOURCE, Swarm};
pub use self::tiny::tiny;
use crate::only::How;
use crate::run::{Outcome, Totals};
use crate::world::{Cut, Moment, World};

/// Crashes of a seed.
const CRASHES: u64 = 16;
/// Lives after which a seed is over whatever the faults let through.
const LIVES_MAX: u64 = 200;

/// Runs one seed of a resumable copy with so many slices.
#[must_use]
pub fn run_seed(seed: u64, requests: u64, how: &How) -> Outcome {
    let swarm = Swarm::draw(seed, requests);
    let world = swarm.world(seed, how.trace);
    world.select(how.only.clone());
    world.note(&[], || format!("{swarm:#?}"));
    let rng = Rng::with_seed(seed ^ 0xC0_9E);
    let mut seed = Seed { swarm, world, rng, copy: 0, fresh: true, zero: true, slices: 0, checks: 0 };
    let failure = seed.live().err();
    let counts = seed.world.counts();
    let totals = Totals {
        seeds: 1,
        requests: seed.slices,
        crashes: counts.cuts,
        device_ios: counts.requests,
        faults: counts.faults,
        checks: seed.checks,
        detected: 0,
    };
    Outcome { totals, digest: seed.world.digest(), failure, drawn: seed.world.drawn() }
}

struct Seed {
    swarm: Swarm,
    world: World,
    rng: Rng,
    /// Number of the source's content.
    copy: u64,
    /// The journal is to be emptied: another copy begins.
    fresh: bool,
    /// The destinations were zero when this copy began.
    zero: bool,
    slices: u64,
    checks: u64,
}

/// How a life ended.
enum Life {
    /// Everything arrived and is durable.
    Arrived,
    /// By a fault, or at the journal.
    Failed(String),
}

impl Seed {
    fn live(&mut self) -> Result<(), String> {
        self.next_copy();
        for _ in 0..LIVES_MAX {
            let last = self.world.counts().cuts >= CRASHES || self.world.is_over();
            if !last && !self.world.begin_life() {
                continue;
            }
            if last {
                self.world.heal();
            }
            self.journal_is_true()?;
            let reactor = self.world.restart();
            self.world.set_faults(!last && self.swarm.faults && self.rng.bool());
            if !last && self.rng.u32(0..8) > 0 {
                let cut = if self.rng.bool() { Cut::Power } else { Cut::Kill };
                self.world.cut_at(cut, Moment::Step(self.rng.u64(0..self.swarm.steps_max)));
            }
            let faults = self.world.counts().faults;
            let pool = BufferPool::default();
            let ended = reactor.run(Box::pin(self.life(&reactor, &pool)));
            reactor.clear();
            match (self.world.stop(), ended) {
                (Some(crate::world::Stop::Cut(_)), _) => {}
                (Some(stop), _) => return Err(format!("{stop:?}")),
                (None, Err(error)) => return Err(error.to_string()),
                (None, Ok(Life::Arrived)) => {
                    self.arrived()?;
                    if last {
                        return Ok(());
                    }
                    self.next_copy();
                }
                (None, Ok(Life::Failed(reason))) => {
                    if self.world.counts().faults == faults {
                        return Err(format!("failed without a fault: {reason}"));
                    }
                }
            }
        }
        Err("no end in sight".to_owned())
    }

    /// Another content for the source, and no journal.
    fn next_copy(&mut self) {
        self.zero = self.copy == 0;
        self.copy += 1;
        self.fresh = true;
        let content = self.swarm.content(&mut self.rng);
        self.world.preset(SOURCE, |bytes| bytes.copy_from_slice(&content));
    }

    /// I1: what the journal says, every destination holds.
    fn journal_is_true(&mut self) -> Result<(), String> {
        if self.fresh {
            return Ok(());
        }
        let settled = settled_by(self.world.look(JOURNAL, Found::decode), self.copy)?;
        self.same(settled, "settled")
    }

    fn same(&mut self, bytes: u64, what: &str) -> Result<(), String> {
        if let Some((number, place)) = first_difference(&self.world, self.swarm.destinations(), bytes) {
            return Err(format!("disk {number} differs at byte {place} of the {bytes} that are {what}"));
        }
        self.checks += bytes / 512;
        Ok(())
    }

    /// I2: everything is the same, and stays so when the power goes.
    fn arrived(&mut self) -> Result<(), String> {
        let all = self.world.look(SOURCE, <[u8]>::len) as u64;
        self.same(all, "copied")?;
        if self.rng.bool() {
            let reactor = self.world.restart();
            self.world.cut_now(Cut::Power);
            // It ends at once: nothing runs.
            let _ = reactor.turn(true);
            reactor.clear();
            self.same(all, "copied and flushed")?;
        }
        Ok(())
    }

    async fn life(&mut self, reactor: &Reactor, pool: &BufferPool) -> Life {
        let disk = |number| self.world.disk(reactor, number) as Rc<dyn Target>;
        let sectors = SectorCount(self.swarm.sectors);
        let from = Leg::new(disk(SOURCE), Sector(0));
        let to: Vec<Leg> = self.swarm.destinations().map(|number| Leg::new(disk(number), Sector(0))).collect();
        let target = disk(JOURNAL);
        let journal = match self.journal(target).await {
            Ok(journal) => journal,
            Err(reason) => return Life::Failed(reason),
        };
        let engine = Engine::new(reactor, pool, &self.swarm.settings(&mut self.rng));
        let zeroes = if journal.state().zero { Zeroes::Skip } else { Zeroes::Unmap };
        let how = self.swarm.how(&mut self.rng, zeroes, Rc::new(Watch::default()));
        let every = self.swarm.every(&mut self.rng);
        let outcome = engine.copy_noting(&from, &to, sectors, &how, &journal, every).await;
        self.slices += engine.slices();
        match outcome {
            Err(status) => return Life::Failed(format!("the journal was not kept: {status:?}")),
            Ok(outcome) if !outcome.is_ok() => return Life::Failed(format!("{outcome:?}")),
            Ok(_) => {}
        }
        for leg in &to {
            let status = call(&*leg.target, Bio::flush()).await.status();
            if !status.is_ok() {
                return Life::Failed(format!("the last flush: {status:?}"));
            }
        }
        Life::Arrived
    }

    /// The journal of this copy, begun anew where it is another one's.
    async fn journal(&mut self, target: Rc<dyn Target>) -> Result<Journal, String> {
        if self.fresh {
            let bytes = u32::try_from(JOURNAL_BYTES).expect("two blocks");
            let zeroes = Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).expect("not empty");
            let write = Bio::write(Sector(0), zeroes, 0, bytes).with(Flags { fua: true, ..Flags::default() });
            let status = call(&*target, write).await.status();
            if !status.is_ok() {
                return Err(format!("emptying the journal: {status:?}"));
            }
            self.fresh = false;
        }
        journal_on(target, self.copy, self.swarm.sectors, self.zero).await
    }
}

/// The journal of copy number `copy` on `target`, begun where there is none.
async fn journal_on(target: Rc<dyn Target>, copy: u64, sectors: u64, zero: bool) -> Result<Journal, String> {
    match Journal::find(&*target).await {
        Ok(Found::Journal(state)) => Ok(Journal::resume(target, state)),
        Ok(Found::Nothing) => {
            let state = Settled { copy, bytes: sectors * 512, zero, ..Settled::default() };
            Journal::begin(target, state).await.map_err(|status| format!("beginning the journal: {status:?}"))
        }
        other => Err(format!("{other:?}")),
    }
}

/// Bytes that are settled by what was found in the place of the journal of copy number `copy`.
fn settled_by(found: Found, copy: u64) -> Result<u64, String> {
    match found {
        Found::Journal(state) if state.copy == copy => Ok(state.settled),
        // A crash came before the first slot.
        Found::Nothing => Ok(0),
        other => Err(format!("the journal is lost: {other:?}")),
    }
}

/// The first destination that is not as the source in its first `bytes` bytes, and where it differs.
fn first_difference(world: &World, mut destinations: Range<usize>, bytes: u64) -> Option<(usize, usize)> {
    let bytes = usize::try_from(bytes).expect("a simulated disk fits in memory");
    let expected = world.look(SOURCE, |source| source[..bytes].to_vec());
    destinations.find_map(|number| {
        let place = world.look(number, |to| expected.iter().zip(to).position(|(a, b)| a != b))?;
        Some((number, place))
    })
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
        assert!(crashes >= 20 * super::CRASHES, "{crashes}");
    }
}
