//! The lives of one seed, one after the other, and what happens in each.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Bio, Sector, Target, call};
use forebay_reactor::{BufferPool, Reactor};

use super::client::{Client, Ledger};
use super::load::{Ask, Load};
use super::{Disturbed, Opened, Outcome, Stage, Subject, Totals};
use crate::check::{Act, POISON, SECTOR};
use crate::world::{Cut, Moment, Stop, World};

/// Lives for a thousand requests, about.
const LIVES: u64 = 20;
/// Sectors read at once when everything is read back.
const READ_BACK: usize = 512;
/// Lives of one seed at most, those that end while they recover included.
const LIVES_MAX: u64 = 400;
/// Seconds of simulated time after which a life with faults is ended: where a disk is broken for
/// good, requests may wait for ever.
const FAULTY_MAX_S: u64 = 600;
/// Errors in a row after which a life is ended.
const ERRORS_MAX: u32 = 12;

/// A seed's run in the making.
struct Run<'a> {
    world: World,
    subject: &'a dyn Subject,
    load: Load,
    faults: bool,
    ledger: Rc<Ledger>,
    pool: BufferPool,
    rng: Rng,
    requests: u64,
    crashes: u64,
    /// The life before was to be killed: what it left is there, and nothing has made it durable.
    unsettled: bool,
}

/// What goes on when a cut strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// Requests as ever.
    Load,
    /// The target is being disturbed.
    Disturbance,
    /// Everything was answered and flushed; only the target itself is at work.
    Silence,
}

/// What a life does, decided when it begins.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, each drawn for itself")]
struct Plan {
    /// Faults may happen while it opens and reads back.
    faults_in_recovery: bool,
    /// Faults may happen at all.
    faults: bool,
    /// Requests until a cut is set.
    requests: u64,
    /// The cut comes so long after that.
    moment: Moment,
    cut: Cut,
    /// The cut may already strike while it recovers.
    cut_in_recovery: bool,
    /// What goes on when the cut strikes.
    scene: Scene,
    /// It ends in order instead, and the cut comes afterwards.
    leave: bool,
    /// The last one: everything healthy, drained in the end.
    last: bool,
}

/// Runs `requests` requests on `stage`.
#[must_use]
pub fn run(seed: u64, stage: Stage, requests: u64) -> Outcome {
    let Stage { world, subject, load, model, faults } = stage;
    let ledger = Rc::new(Ledger::new(seed, model));
    let (rng, pool) = (Rng::with_seed(seed ^ 0x11FE), BufferPool::default());
    let mut run = Run { world, subject: &*subject, load, faults, ledger, pool, rng, requests, crashes: 0, unsettled: false };
    run.lives();
    let counts = run.world.counts();
    Outcome {
        totals: Totals {
            seeds: 1,
            requests: run.ledger.requests.get(),
            crashes: run.crashes,
            device_ios: counts.requests,
            faults: counts.faults,
            checks: run.ledger.checks.get(),
            detected: 0,
        },
        digest: run.world.digest(),
        failure: run.ledger.failure.take(),
        drawn: run.world.drawn(),
    }
}

impl Run<'_> {
    fn lives(&mut self) {
        let mut lives = 0;
        while self.ledger.requests.get() < self.requests && !self.ledger.failed() && !self.world.is_over() {
            lives += 1;
            if lives > LIVES_MAX {
                return self.ledger.fail(format!("{LIVES_MAX} lives were not enough for {} requests", self.requests));
            }
            let plan = self.plan();
            if self.world.begin_life() {
                self.live(plan);
            } else {
                // As its life would.
                let _ = self.rng.fork();
            }
        }
        let last = Plan { faults_in_recovery: false, faults: false, last: true, leave: true, cut: Cut::Power, ..self.plan() };
        for _ in 0..2 {
            if !self.ledger.failed() {
                self.world.heal();
                self.live(last);
            }
        }
    }

    fn plan(&mut self) -> Plan {
        let rng = &mut self.rng;
        // What a killed process left is at stake where the power goes soon after.
        let at_stake = rng.u32(0..3) > 0 && self.unsettled;
        let requests = rng.u64(0..=if at_stake { 40 } else { 2 * (self.requests / LIVES) });
        let power = rng.u32(0..4) > 0 || at_stake;
        self.unsettled = !power;
        Plan {
            faults: self.faults && rng.u32(0..4) > 0,
            faults_in_recovery: self.faults && rng.u32(0..4) == 0,
            requests,
            moment: Moment::draw_near(rng, self.subject.delicate()),
            cut: if power { Cut::Power } else { Cut::Kill },
            cut_in_recovery: rng.u32(0..5) == 0,
            scene: [Scene::Load, Scene::Disturbance, Scene::Silence][rng.usize(0..3)],
            leave: rng.u32(0..12) == 0,
            last: false,
        }
    }

    /// One life, from opening to the cut.
    fn live(&mut self, plan: Plan) {
        let reactor = self.world.restart();
        let client = Client::new(&self.world, &self.ledger, &self.pool);
        self.world.note(&[5], || format!("---- a life begins: {plan:?}"));
        self.world.set_faults(plan.faults_in_recovery);
        if plan.faults_in_recovery {
            client.expect_errors();
        }
        if plan.cut_in_recovery && !plan.last {
            self.world.cut_at(plan.cut, plan.moment);
        }
        let mut life = Life {
            world: self.world.clone(),
            reactor: reactor.clone(),
            ledger: Rc::clone(&self.ledger),
            client: Rc::clone(&client),
            pool: self.pool.clone(),
            load: self.load.clone(),
            rng: self.rng.fork(),
            requests: self.requests,
            plan,
        };
        let opened = Rc::new(RefCell::new(None));
        let place = Rc::clone(&opened);
        let opening = self.subject.open(&self.world, &reactor, &self.pool);
        let bottom = self.subject.bottom();
        let root = async move {
            let target = match opening.await {
                Ok(target) => target,
                Err(reason) => return life.did_not_open(&reason).await,
            };
            *place.borrow_mut() = Some(Rc::clone(&target));
            life.live(&*target, bottom).await;
        };
        let result = reactor.run(root);
        client.die();
        let opened = opened.take();
        self.account(result.is_ok(), opened.as_ref());
        reactor.clear();
    }

    /// Notes how a life ended.
    fn account(&mut self, came_to_end: bool, opened: Option<&Rc<dyn Opened>>) {
        match self.world.stop() {
            Some(Stop::Cut(cut)) => {
                self.crashes += 1;
                let mut model = self.ledger.model.borrow_mut();
                if let Some(target) = opened {
                    model.set_atomic(target.atomic_block_sectors());
                }
                model.cut(cut);
            }
            Some(stop) => self.ledger.fail(format!("{stop:?}")),
            None if came_to_end => {}
            None => self.ledger.fail("the reactor gave up without a reason".to_owned()),
        }
    }
}

/// One life: what its root future needs.
struct Life {
    world: World,
    reactor: Reactor,
    ledger: Rc<Ledger>,
    client: Rc<Client>,
    pool: BufferPool,
    load: Load,
    rng: Rng,
    requests: u64,
    plan: Plan,
}

impl Life {
    async fn did_not_open(&self, reason: &str) {
        self.world.note(&[6], || format!("did not open: {reason}"));
        if !self.plan.faults_in_recovery {
            return self.ledger.fail(format!("a healthy world did not open: {reason}"));
        }
        self.end_now().await;
    }

    /// Ends the life at once.
    async fn end_now(&self) {
        self.world.cut_now(self.plan.cut);
        pending::<()>().await;
    }

    async fn live(&mut self, opened: &dyn Opened, bottom: Option<usize>) {
        if !self.read_back(opened).await {
            if self.ledger.failed() {
                return;
            }
            return self.end_now().await;
        }
        if !self.plan.last {
            self.world.set_faults(self.plan.faults);
            if self.plan.faults {
                self.client.expect_errors();
                self.end_in_time();
            }
            self.load(opened).await;
        }
        if self.ledger.failed() {
            return;
        }
        if self.plan.last {
            self.drain(opened, bottom).await;
        }
        if self.plan.leave {
            self.client.idle().await;
            self.leave(opened).await;
        }
        if !self.ledger.failed() {
            self.end_now().await;
        }
    }

    /// Ends the life when somebody waits for a disk that never recovers.
    fn end_in_time(&self) {
        let (world, cut) = (self.world.clone(), self.plan.cut);
        let time = self.reactor.sleep(Duration::from_secs(FAULTY_MAX_S));
        self.reactor.spawn(async move {
            time.await;
            world.cut_now(cut);
        });
    }

    /// Reads the whole device and holds it against what may have survived. False where that was
    /// not possible, because of a fault or a failure.
    async fn read_back(&mut self, opened: &dyn Opened) -> bool {
        if let Err(reason) = read_back(&self.ledger, &self.pool, opened.target()).await {
            if !self.plan.faults_in_recovery {
                self.ledger.fail(reason);
            }
            return false;
        }
        if self.ledger.failed() {
            return false;
        }
        self.world.note(&[7], || "everything read back".to_owned());
        if let Err(violation) = self.ledger.model.borrow_mut().settle() {
            self.ledger.fail(violation.to_string());
            return false;
        }
        true
    }

    /// Sends requests until the life's cut has struck or enough were sent.
    async fn load(&mut self, opened: &dyn Opened) {
        let end = (self.ledger.requests.get() + self.plan.requests).min(self.requests);
        let mut last = 0;
        let mut armed = self.plan.leave;
        while !self.ledger.failed() && self.ledger.requests.get() < self.requests {
            if self.ledger.requests.get() >= end && !armed {
                armed = true;
                self.before_the_cut(opened).await;
            }
            if self.plan.leave && self.ledger.requests.get() >= end {
                return;
            }
            if self.client.errors.get() > ERRORS_MAX && opened.is_latched() {
                return;
            }
            self.maybe_pause().await;
            if self.rng.u32(0..1000) < self.load.disturb_per_mille {
                if self.world.takes() {
                    self.disturb(opened).await;
                }
                continue;
            }
            if self.client.in_flight() >= self.load.depth {
                self.client.change().await;
                continue;
            }
            let ask = self.load.ask(&mut self.rng);
            let sectors = self.load.sectors(&mut self.rng, last);
            last = sectors.end;
            if self.world.takes() {
                self.client.send(opened.target(), ask, sectors);
            } else {
                self.ledger.pass_over();
            }
        }
        if !self.ledger.failed() {
            self.client.idle().await;
        }
    }

    /// Sets the scene for the cut, and the cut itself.
    async fn before_the_cut(&mut self, opened: &dyn Opened) {
        if self.plan.scene == Scene::Silence {
            self.client.send(opened.target(), Ask::Flush, 0..0);
            self.client.idle().await;
        }
        self.world.cut_at(self.plan.cut, self.plan.moment);
        match self.plan.scene {
            Scene::Load => {}
            Scene::Disturbance => self.disturb(opened).await,
            Scene::Silence => self.reactor.sleep(Duration::from_millis(self.rng.u64(1..3_000))).await,
        }
    }

    async fn maybe_pause(&mut self) {
        if self.rng.u32(0..1000) < self.load.pauses_per_mille {
            let time = Duration::from_micros(self.rng.u64(0..self.load.pause_max_ms * 1000));
            self.reactor.sleep(time).await;
        }
    }

    async fn disturb(&mut self, opened: &dyn Opened) {
        let number = self.rng.u64(..);
        let op = self.ledger.model.borrow_mut().begin(Act::Flush, 0..0);
        let result = opened.disturb(number).await;
        self.world.note(&[8, number, u64::from(result.is_ok())], || format!("disturbed: {result:?}"));
        if let Err(reason) = &result
            && !self.plan.faults
            && !self.plan.faults_in_recovery
        {
            self.ledger.fail(format!("a healthy target did not let itself be disturbed: {reason}"));
        }
        self.ledger.model.borrow_mut().end(op, result == Ok(Disturbed::Flushed));
    }

    async fn leave(&mut self, opened: &dyn Opened) {
        let op = self.ledger.model.borrow_mut().begin(Act::Flush, 0..0);
        let result = opened.leave().await;
        self.world.note(&[9, u64::from(result.is_ok())], || format!("left in order: {result:?}"));
        if let Err(reason) = &result
            && !self.plan.faults
            && !self.plan.faults_in_recovery
        {
            self.ledger.fail(format!("a healthy target did not stop: {reason}"));
        }
        self.ledger.model.borrow_mut().end(op, result.is_ok());
    }

    /// With all disks healthy: everything gets to the bottom disk, and is right there.
    async fn drain(&mut self, opened: &dyn Opened, bottom: Option<usize>) {
        let begin = self.world.now();
        if let Err(reason) = opened.drain().await {
            return self.ledger.fail(format!("a healthy target did not drain: {reason}"));
        }
        let took = self.world.now().saturating_sub(begin);
        self.world.note(&[10], || format!("drained in {took:?}"));
        if took.as_secs() > 600 {
            self.ledger.fail(format!("draining took {took:?}"));
        }
        let Some(bottom) = bottom else { return };
        let model = self.ledger.model.borrow();
        let checked = self.world.look(bottom, |bytes| model.check_idle(0, &bytes[..model.len() * SECTOR]));
        self.ledger.count_checks(model.len());
        if let Err(violation) = checked {
            self.ledger.fail(format!("on the bottom disk after draining: {violation}"));
        }
    }
}

/// Reads a whole device back and holds it against what may have survived, unless a read fails.
pub(crate) async fn read_back(ledger: &Ledger, pool: &BufferPool, target: &dyn Target) -> Result<(), String> {
    let sectors = ledger.model.borrow().len();
    let mut first = 0;
    while first < sectors && !ledger.failed() {
        let count = READ_BACK.min(sectors - first);
        let bytes = count * SECTOR;
        let mut buffer = pool.take(bytes);
        buffer.bytes_mut()[..bytes].fill(POISON);
        let length = u32::try_from(bytes).expect("a piece of the device is small");
        let bio = Bio::read(Sector(first as u64), Rc::clone(buffer.segments()), 0, length);
        let status = call(target, bio).await.status();
        if !status.is_ok() {
            return Err(format!("reading back {first}+{count} failed with {status:?} in a healthy world"));
        }
        ledger.count_checks(count);
        let observed = ledger.model.borrow_mut().observe(first, &buffer.bytes_mut()[..bytes]);
        if let Err(violation) = observed {
            ledger.fail(violation.to_string());
        }
        first += count;
    }
    Ok(())
}
