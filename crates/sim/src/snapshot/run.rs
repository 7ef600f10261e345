//! The lives of one seed, one after the other, and what is known between them.

use std::rc::Rc;

use fastrand::Rng;
use forebay_reactor::BufferPool;
use forebay_target::snapshot::options::StoreKind;
use forebay_target::snapshot::{Condition, Snapshot};

use super::life::Life;
use super::swarm::Swarm;
use crate::check::Model;
use crate::run::{Ledger, Outcome, Totals};
use crate::world::{Cut, Moment, Stop, World};

/// Lives for a thousand requests, about.
const LIVES: u64 = 20;
/// Lives of one seed at most, those that end while they open included.
const LIVES_MAX: u64 = 400;

/// What a life does, decided when it begins.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
pub(super) struct Plan {
    /// Faults may happen while everything opens and is read back.
    pub(super) faults_in_recovery: bool,
    /// Faults may happen at all.
    pub(super) faults: bool,
    /// Requests until a cut is set.
    pub(super) requests: u64,
    /// The cut comes so long after that.
    pub(super) moment: Moment,
    pub(super) cut: Cut,
    /// The cut may already strike while everything opens.
    pub(super) cut_in_recovery: bool,
    /// The last one: everything healthy, merged in the end.
    pub(super) last: bool,
}

/// What is known of everything between two lives.
pub(super) struct Book {
    pub(super) seed: u64,
    /// The origin, or the snapshot that is merged into it.
    pub(super) top: Rc<Ledger>,
    /// The snapshots, by their places.
    pub(super) snapshots: Vec<Option<Rc<Ledger>>>,
    /// Whether a snapshot was lost because its store was full: a later life may find it lost.
    pub(super) lost: Vec<bool>,
    /// The place of the snapshot that is merged.
    pub(super) merging: Option<usize>,
    /// The merge is done.
    pub(super) merged: bool,
    /// Every ledger that there was.
    pub(super) ledgers: Vec<Rc<Ledger>>,
}

impl Book {
    fn new(seed: u64, swarm: &Swarm) -> Self {
        let top = ledger(seed, Model::new(seed, swarm.sectors, false));
        let (snapshots, lost) = (vec![None; swarm.places.len()], vec![false; swarm.places.len()]);
        Self { seed, top: Rc::clone(&top), snapshots, lost, merging: None, merged: false, ledgers: vec![top] }
    }

    /// A snapshot is taken: it is what the origin is now.
    pub(super) fn branch(&mut self, place: usize) -> Rc<Ledger> {
        let number = u32::try_from(self.ledgers.len()).expect("a few ledgers");
        let branch = ledger(self.seed, self.top.model.borrow().branch(number));
        self.ledgers.push(Rc::clone(&branch));
        self.snapshots[place] = Some(Rc::clone(&branch));
        self.lost[place] = false;
        branch
    }

    /// Ledgers of what there is now.
    pub(super) fn live(&self) -> impl Iterator<Item = &Rc<Ledger>> {
        std::iter::once(&self.top).chain(self.snapshots.iter().flatten())
    }

    pub(super) fn requests(&self) -> u64 {
        self.ledgers.iter().map(|ledger| ledger.requests.get()).sum()
    }

    pub(super) fn fail(&self, reason: String) {
        self.ledgers[0].fail(reason);
    }

    pub(super) fn failed(&self) -> bool {
        self.ledgers.iter().any(|ledger| ledger.failed())
    }
}

fn ledger(seed: u64, model: Model) -> Rc<Ledger> {
    Rc::new(Ledger::new(seed, model))
}

/// A seed's run in the making.
pub(super) struct Run {
    swarm: Swarm,
    world: World,
    book: Book,
    pool: BufferPool,
    rng: Rng,
    requests: u64,
    crashes: u64,
}

impl Run {
    pub(super) fn new(seed: u64, swarm: Swarm, world: World, requests: u64) -> Self {
        let book = Book::new(seed, &swarm);
        world.preset(super::swarm::ORIGIN, |bytes| crate::check::stamp(bytes, seed, 0, 0));
        Self { swarm, world, book, pool: BufferPool::default(), rng: Rng::with_seed(seed ^ 0x5A4B), requests, crashes: 0 }
    }

    /// Runs everything.
    pub(super) fn all_lives(mut self) -> Outcome {
        let mut lives = 0;
        while self.book.requests() < self.requests && !self.book.failed() && !self.world.is_over() {
            lives += 1;
            if lives > LIVES_MAX {
                self.book.fail(format!("{LIVES_MAX} lives were not enough for {} requests", self.requests));
            }
            let plan = self.plan();
            if self.world.begin_life() {
                self.live(plan);
            } else {
                // As its life would.
                let _ = self.rng.fork();
            }
        }
        for _ in 0..2 {
            if !self.book.failed() {
                self.world.heal();
                let plan = Plan { faults_in_recovery: false, faults: false, last: true, cut: Cut::Power, ..self.plan() };
                self.live(plan);
            }
        }
        let counts = self.world.counts();
        let failure = self.book.ledgers.iter().find_map(|ledger| ledger.failure.take());
        Outcome {
            totals: Totals {
                seeds: 1,
                requests: self.book.requests(),
                crashes: self.crashes,
                device_ios: counts.requests,
                faults: counts.faults,
                checks: self.book.ledgers.iter().map(|ledger| ledger.checks.get()).sum(),
                detected: 0,
            },
            digest: self.world.digest(),
            failure,
            drawn: self.world.drawn(),
        }
    }

    fn plan(&mut self) -> Plan {
        let (rng, faults) = (&mut self.rng, self.swarm.faults);
        let within = 1 << rng.u64(0..8);
        let moment = if rng.u32(0..3) == 0 { Moment::Flush(rng.u64(0..8)) } else { Moment::Step(rng.u64(0..=within)) };
        Plan {
            faults: faults && rng.u32(0..4) > 0,
            faults_in_recovery: faults && rng.u32(0..4) == 0,
            requests: rng.u64(0..=2 * (self.requests / LIVES)),
            moment,
            cut: if rng.u32(0..4) > 0 { Cut::Power } else { Cut::Kill },
            cut_in_recovery: rng.u32(0..5) == 0,
            last: false,
        }
    }

    /// One life, from opening to the cut.
    fn live(&mut self, plan: Plan) {
        self.begin_merge(plan);
        let reactor = self.world.restart();
        self.world.note(&[5], || format!("---- a life begins: {plan:?}"));
        self.world.set_faults(plan.faults_in_recovery);
        if plan.cut_in_recovery && !plan.last {
            self.world.cut_at(plan.cut, plan.moment);
        }
        for (ledger, place) in self.book.snapshots.iter_mut().zip(&self.swarm.places) {
            if place.store == StoreKind::Transient {
                *ledger = None;
            }
        }
        let (rng, left) = (self.rng.fork(), self.requests);
        let mut life = Life::new(&self.swarm, &self.world, &reactor, &self.pool, plan, rng, left);
        let result = reactor.run(life.live(&mut self.book));
        life.die();
        let (snapshots, merged) = (life.snapshots(), life.is_merged());
        drop(life);
        match self.world.stop() {
            Some(Stop::Cut(cut)) => {
                self.crashes += 1;
                self.book.live().for_each(|ledger| ledger.model.borrow_mut().cut(cut));
            }
            Some(stop) => self.book.fail(format!("{stop:?}")),
            None if result.is_ok() => {}
            None => self.book.fail("the reactor gave up without a reason".to_owned()),
        }
        let faulty = plan.faults || plan.faults_in_recovery;
        for (place, snapshot) in snapshots {
            self.account(place, &snapshot, faulty);
        }
        self.book.merged = merged;
        reactor.clear();
    }

    /// Notes what became of a snapshot (I2 of the parent).
    fn account(&mut self, place: usize, snapshot: &Rc<Snapshot>, faulty: bool) {
        let status = snapshot.status();
        let usage = status.usage;
        if status.condition == Condition::Active {
            return;
        }
        // A write that does not fit takes nothing of the store: the largest one lacks whatever is not kept.
        let chunk = status.chunk_sectors;
        let lacking = (self.swarm.sectors as u64).div_ceil(chunk).saturating_sub(status.exceptions);
        let areas = lacking.div_ceil(32 * chunk) + 1;
        let full = usage.used + (lacking + areas + 1) * chunk > usage.total;
        if !faulty && !full && !self.book.lost[place] {
            self.book.fail(format!("the snapshot in place {place} is {:?} without a reason: {status:?}", status.condition));
        }
        if status.condition == Condition::Invalid {
            self.book.lost[place] = true;
            if faulty {
                self.book.snapshots[place] = None;
            }
        }
    }

    /// Decides whether a snapshot is merged from now on, or the merged one is the origin from now on.
    fn begin_merge(&mut self, plan: Plan) {
        if self.book.merging.is_some() {
            if self.book.merged {
                (self.book.merging, self.book.merged) = (None, false);
            }
            return;
        }
        if !plan.last && self.rng.u32(0..100) >= self.swarm.merge_percent {
            return;
        }
        let may = |&place: &usize| {
            let whole = self.book.snapshots[place].is_some() && !self.book.lost[place];
            whole && self.swarm.places[place].store != StoreKind::Transient
        };
        let Some(place) = (0..self.swarm.places.len()).find(may) else { return };
        self.world.note(&[12, place as u64], || format!("the snapshot in place {place} is merged"));
        self.book.top = self.book.snapshots[place].take().expect("looked at just above");
        self.book.merging = Some(place);
    }
}
