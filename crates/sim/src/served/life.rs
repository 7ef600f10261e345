//! One process of the server: opened, read back, served, and cut off.

use std::cell::Cell;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Allocation, Bio, Extent, Limits, SectorCount, Target};
use forebay_export::serve::{Listen, Offer, ServeLimits, Server};
use forebay_reactor::{BufferPool, Reactor};

use super::swarm::Plan;
use crate::check::{Act, SECTOR};
use crate::nbd::{Peer, Town};
use crate::run::{Disturbed, Later, Opened, read_back};
use crate::world::World;

/// How often is looked at how far everybody is.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// Simulated time after which a life ends in which nobody comes forward.
const LIFE_MAX: Duration = Duration::from_mins(2);
/// Simulated time in which everything is answered once all disks are healthy.
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// Simulated time in which everybody has to be gone then.
const LEAVE_MAX: Duration = Duration::from_mins(10);
/// Requests of the client that comes last.
const LAST_BATCHES: u32 = 8;

/// What a life needs.
pub(super) struct Life {
    pub(super) world: World,
    pub(super) reactor: Reactor,
    pub(super) pool: BufferPool,
    pub(super) town: Rc<Town>,
    /// The clients that are not through.
    pub(super) busy: Rc<Cell<usize>>,
    pub(super) requests: u64,
    pub(super) bottom: Option<usize>,
    pub(super) disturb_per_mille: u32,
    pub(super) limits: ServeLimits,
    pub(super) rng: Rng,
    pub(super) faults: bool,
    pub(super) plan: Plan,
}

/// What is opened as something that can be served.
struct Front(Rc<dyn Opened>);

impl Target for Front {
    fn kind(&self) -> &'static str {
        self.0.target().kind()
    }

    fn limits(&self) -> Limits {
        self.0.target().limits()
    }

    fn sectors(&self) -> SectorCount {
        self.0.target().sectors()
    }

    fn submit(&self, bio: Bio) {
        self.0.target().submit(bio);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        self.0.target().allocation(extent, out);
    }
}

impl Life {
    fn fail(&self, reason: String) {
        self.town.ledger.fail(reason);
    }

    /// Lives until the cut, or to the end.
    pub(super) async fn live(mut self, opening: Later<Rc<dyn Opened>>, listener: OwnedFd) {
        let opened = match opening.await {
            Ok(opened) => opened,
            Err(reason) => return self.fail(format!("a healthy world did not open: {reason}")),
        };
        if let Err(reason) = read_back(&self.town.ledger, &self.pool, opened.target()).await {
            return self.fail(reason);
        }
        if self.town.ledger.failed() || !self.settle() {
            return;
        }
        self.world.set_faults(self.faults && !self.plan.last);
        let server = Server::new(&self.reactor, &self.pool, self.limits);
        let front = Rc::new(Front(Rc::clone(&opened)));
        let offered = server.add_export(&Offer::new("disk").as_default(), front);
        if let Err(error) = offered.and_then(|()| server.listen(Listen::Inherited(listener))) {
            return self.fail(error.to_string());
        }
        if self.plan.last { self.last(&server, &*opened).await } else { self.load(&server, &*opened).await }
    }

    /// Everything was read back: that is what there is from now on.
    fn settle(&self) -> bool {
        let town = &self.town;
        self.world.note(&[7], || "everything read back".to_owned());
        if let Some((_, client)) = &*town.device.borrow() {
            client.look_for_losses();
        }
        let settled = town.ledger.model.borrow_mut().settle_but(&town.sent_again());
        settled.inspect_err(|violation| self.fail(violation.to_string())).is_ok()
    }

    /// Serves until the cut.
    async fn load(&mut self, server: &Server, opened: &dyn Opened) {
        let ledger = Rc::clone(&self.town.ledger);
        let end = (ledger.requests.get() + self.plan.requests).min(self.requests);
        let late = self.reactor.now() + LIFE_MAX;
        while ledger.requests.get() < end && self.reactor.now() < late {
            self.reactor.sleep(LOOK_EVERY).await;
            if self.rng.u32(0..1000) < self.disturb_per_mille {
                self.disturb(opened).await;
            }
        }
        if self.plan.leave {
            server.shutdown().await;
            self.leave(opened).await;
        } else {
            self.world.cut_at(self.plan.cut, self.plan.moment);
            self.reactor.sleep(Duration::from_micros(self.rng.u64(0..3_000_000))).await;
        }
        self.world.cut_now(self.plan.cut);
        pending::<()>().await;
    }

    async fn disturb(&mut self, opened: &dyn Opened) {
        let number = self.rng.u64(..);
        let op = self.town.ledger.model.borrow_mut().begin(Act::Flush, 0..0);
        let result = opened.disturb(number).await;
        self.world.note(&[8, number, u64::from(result.is_ok())], || format!("disturbed: {result:?}"));
        if let Err(reason) = &result
            && !self.faults
        {
            self.fail(format!("a healthy target did not let itself be disturbed: {reason}"));
        }
        self.town.ledger.model.borrow_mut().end(op, result == Ok(Disturbed::Flushed));
    }

    async fn leave(&self, opened: &dyn Opened) {
        let op = self.town.ledger.model.borrow_mut().begin(Act::Flush, 0..0);
        let result = opened.leave().await;
        self.world.note(&[9, u64::from(result.is_ok())], || format!("left in order: {result:?}"));
        if let Err(reason) = &result
            && (self.plan.last || !self.faults)
        {
            self.fail(format!("a healthy target did not stop: {reason}"));
        }
        self.town.ledger.model.borrow_mut().end(op, result.is_ok());
    }

    /// With all disks healthy: everybody is served, and everything gets to the bottom disk.
    async fn last(&self, server: &Server, opened: &dyn Opened) {
        let town = &self.town;
        let waiting = town.sent_again();
        self.until("an answer", ANSWER_MAX, || town.sent_again().iter().all(|op| !waiting.contains(op))).await;
        self.until("the clients", LEAVE_MAX, || self.busy.get() == 0).await;
        let gone = || server.counts().iter().all(|(_, counts)| counts.connections == 0);
        self.until("the connections", LEAVE_MAX, gone).await;
        for op in town.unanswered.take() {
            town.ledger.model.borrow_mut().end(op, false);
        }
        if town.ledger.failed() {
            return;
        }
        let (healthy, done) = (Rc::new(Town::healthy(town)), Rc::new(Cell::new(false)));
        let (mut visitor, over) = (Peer::new(&healthy, 99), Rc::clone(&done));
        town.reactor.spawn(async move {
            Box::pin(visitor.visit(LAST_BATCHES, false)).await;
            over.set(true);
        });
        drop(healthy);
        self.until("the last client", LEAVE_MAX, || done.get()).await;
        if !server.shutdown().await {
            self.fail("the server did not leave in time".to_owned());
        }
        if let Err(reason) = opened.drain().await {
            self.fail(format!("a healthy target did not drain: {reason}"));
        }
        if let Some(bottom) = self.bottom.filter(|_| !town.ledger.failed()) {
            let model = town.ledger.model.borrow();
            let checked = self.world.look(bottom, |bytes| model.check_idle(0, &bytes[..model.len() * SECTOR]));
            if let Err(violation) = checked {
                town.ledger.fail(format!("on the bottom disk in the end: {violation}"));
            }
        }
        self.leave(opened).await;
        // The tasks of what was dropped need a few turns.
        self.reactor.sleep(Duration::from_millis(10)).await;
    }

    /// Waits for something that has to come.
    async fn until(&self, what: &str, longest: Duration, is: impl Fn() -> bool) {
        let end = self.reactor.now() + longest;
        while !is() && !self.town.ledger.failed() {
            if self.reactor.now() > end {
                return self.fail(format!("{what} did not come within {longest:?}"));
            }
            self.reactor.sleep(LOOK_EVERY).await;
        }
    }
}
