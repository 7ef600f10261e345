//! The lives of one server, one after the other, and its clients, who see all of them.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_nbd::uri::{Endpoint, Uri};
use forebay_reactor::BufferPool;
use rustix::net::listen;

use super::life::Life;
use super::swarm::{Plan, Swarm};
use crate::nbd::Town;
use crate::only::How;
use crate::run::{Ledger, Outcome, Stage, Subject, Totals};
use crate::world::{Cut, Stop, World, listener, take_turns};

/// Lives of one seed at most, those that end while they recover included.
const LIVES_MAX: u64 = 400;
/// Clients that may wait for the server.
const QUEUE: i32 = 64;
/// Simulated time in which everybody has to have noticed that the server ended.
const NOTICE_MAX: Duration = Duration::from_mins(5);

/// A seed's run in the making.
pub(super) struct Run {
    swarm: Swarm,
    server: World,
    subject: Box<dyn Subject>,
    town: Rc<Town>,
    /// The clients that are not through.
    busy: Rc<Cell<usize>>,
    /// Memory of the present life; what was in flight when one is cut off is never given back.
    pool: BufferPool,
    listener: OwnedFd,
    rng: Rng,
    requests: u64,
    crashes: u64,
}

impl Run {
    /// Everybody is there, and no server yet.
    pub(super) fn new(seed: u64, requests: u64, how: &How) -> Self {
        let (swarm, stage) = Swarm::draw(seed, how);
        let Stage { world: server, subject, model, .. } = stage;
        let clients = server.beside(!seed, how.trace);
        clients.select(how.only.clone());
        clients.note(&[], || format!("{swarm:#?}"));
        let ledger = Rc::new(Ledger::new(seed, model));
        let (listener, address) = listener().expect("the system gives out sockets");
        let name = [&b"\0"[..], address.abstract_name().unwrap_or_default()].concat();
        let uri = Uri { endpoint: Endpoint::Unix(path_of(&name)), export: String::new() };
        let reactor = clients.restart();
        // The clients have one life.
        clients.begin_life();
        let town = Rc::new(Town::new(&clients, &reactor, &ledger, swarm.people.clone(), address));
        let busy = Town::open(&town, &uri, requests);
        // Connections are cut at the clients' ends.
        clients.cut_streams(swarm.people.cut_every);
        server.cut_streams(0);
        let (rng, pool) = (Rng::with_seed(seed ^ 0x5E7_71FE), BufferPool::default());
        Self { swarm, server, subject, town, busy, pool, listener, rng, requests, crashes: 0 }
    }

    fn ledger(&self) -> &Rc<Ledger> {
        &self.town.ledger
    }

    /// Runs everything.
    pub(super) fn all_lives(mut self) -> Outcome {
        let mut lives = 0;
        while self.ledger().requests.get() < self.requests && !self.ledger().failed() {
            lives += 1;
            if lives > LIVES_MAX {
                self.ledger().fail(format!("{LIVES_MAX} lives were not enough for {} requests", self.requests));
            }
            let plan = self.plan();
            self.live(plan);
        }
        if !self.ledger().failed() {
            self.server.heal();
            self.town.world.cut_streams(0);
            let plan = Plan { last: true, leave: true, cut_in_recovery: false, ..self.plan() };
            self.live(plan);
        }
        self.outcome()
    }

    fn plan(&mut self) -> Plan {
        self.swarm.plan(&mut self.rng, self.requests, self.subject.delicate())
    }

    /// One life of the server, and the time until the next.
    fn live(&mut self, plan: Plan) {
        let Ok(listener) = self.listener.try_clone() else { return self.ledger().fail("there are no descriptors".to_owned()) };
        let _ = listen(&self.listener, QUEUE);
        self.pool = BufferPool::default();
        self.server.begin_life();
        let reactor = self.server.restart();
        self.server.note(&[5], || format!("---- a life begins: {plan:?}"));
        self.server.set_faults(false);
        if plan.cut_in_recovery {
            self.server.cut_at(plan.cut, plan.moment);
        }
        self.town.world.go_on();
        let over = Rc::new(Cell::new(false));
        let life = Life {
            world: self.server.clone(),
            reactor: reactor.clone(),
            pool: self.pool.clone(),
            town: Rc::clone(&self.town),
            busy: Rc::clone(&self.busy),
            requests: self.requests,
            bottom: self.subject.bottom(),
            disturb_per_mille: self.swarm.disturb_per_mille,
            limits: Swarm::limits(&mut self.rng),
            rng: self.rng.fork(),
            faults: self.swarm.people.faults,
            plan,
        };
        let opening = self.subject.open(&self.server, &reactor, &self.pool);
        let end = Rc::clone(&over);
        reactor.spawn(async move {
            Box::pin(life.live(opening, listener)).await;
            end.set(true);
        });
        let failed = || self.town.ledger.failed();
        take_turns(&[(&self.server, &reactor), (&self.town.world, &self.town.reactor)], || over.get() || failed());
        reactor.clear();
        drop(reactor);
        self.server.hang_up();
        match (self.server.stop(), self.town.world.stop()) {
            (None, None) if over.get() || self.ledger().failed() => {}
            (Some(Stop::Cut(cut)), None) => self.crashed(cut, plan.away),
            (server, clients) => self.ledger().fail(format!("server: {server:?}, clients: {clients:?}")),
        }
    }

    /// The server has ended. What it had answered reaches the clients; everything else is sent again or was for nothing.
    fn crashed(&mut self, cut: Cut, away: Duration) {
        self.crashes += 1;
        let town = &self.town;
        if !self.swarm.keeps_listening {
            // Who comes while it is away is turned away, but for one.
            let _ = listen(&self.listener, 0);
        }
        let connected = || town.device.borrow().as_ref().is_some_and(|(device, _)| device.connections() > 0);
        if !self.clients_alone(NOTICE_MAX, || town.inside.get() == 0 && !connected()) {
            return self.ledger().fail("somebody does not notice that the server has ended".to_owned());
        }
        if let Some((_, client)) = &*town.device.borrow() {
            client.server_ended();
        }
        town.unanswered.take();
        town.ledger.model.borrow_mut().cut_but(cut, &town.sent_again());
        self.clients_alone(away, || false);
    }

    /// Lets clients be alone for a time, or until something comes true; whether it did.
    fn clients_alone(&self, time: Duration, until: impl Fn() -> bool) -> bool {
        let town = &self.town;
        let late = Rc::new(Cell::new(false));
        let (timer, over) = (town.reactor.sleep(time), Rc::clone(&late));
        town.reactor.spawn(async move {
            timer.await;
            over.set(true);
        });
        town.world.go_on();
        take_turns(&[(&town.world, &town.reactor)], || until() || late.get() || town.ledger.failed());
        if let Some(stop) = town.world.stop() {
            town.ledger.fail(format!("clients: {stop:?}"));
        }
        until() || town.ledger.failed()
    }

    fn outcome(self) -> Outcome {
        let Self { server, town, pool, crashes, .. } = self;
        let (world, ledger, other) = (town.world.clone(), Rc::clone(&town.ledger), town.pool.clone());
        town.reactor.clear();
        drop(town);
        let left = pool.bytes_out() + other.bytes_out();
        if !ledger.failed() && left > 0 {
            ledger.fail(format!("{left} bytes of memory were not given back"));
        }
        world.note(&[server.digest().0], String::new);
        let (disks, streams) = (server.counts(), world.counts());
        let totals = Totals {
            seeds: 1,
            requests: ledger.requests.get(),
            crashes,
            device_ios: disks.requests,
            faults: disks.faults + streams.faults,
            checks: ledger.checks.get(),
            detected: 0,
        };
        Outcome { totals, digest: world.digest(), failure: ledger.failure.take(), drawn: world.drawn() }
    }
}

/// A name of an abstract socket, as a URI has it.
fn path_of(name: &[u8]) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::OsStr::from_bytes(name).into()
}
