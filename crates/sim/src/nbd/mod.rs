//! The NBD server and the NBD client as the subject of a seed: real connections, every step of which is simulated.
//!
//! ```text
//!   peers: batches, wrong ones, half ones, noise ─┐ bytes, in pieces,    ┌────────┐
//!                                                 ├──── cut anywhere ────┤ Server ├─▶ disk with faults
//!   NbdDevice: several connections, sent again ───┘                      └────────┘
//! ```
//!
//! Invariants:
//! - I1: every answered read returns what the model allows; a request fails only where the disk or a cut may be why.
//! - I2: every reply belongs to its request, and a wrong request is refused.
//! - I3: of a write that was not sent to its end, no byte is ever found.
//! - I4: in the end a client that does nothing wrong is served, the server leaves in time, and all memory is given
//!   back.
//!
//! A server that outlives a connection may carry out what it had received on it later than what was sent again: the
//! protocol has no means against that. Here nobody is let in before that is over.

mod device;
mod peer;
mod swarm;
mod wire;

use std::rc::Rc;
use std::time::Duration;

use forebay_block::Target;
use forebay_export::serve::{Listen, Offer, ServeLimits, Server};
use forebay_reactor::{BufferPool, Reactor};

pub(crate) use self::peer::{Peer, Town};
pub(crate) use self::swarm::Swarm;
use crate::check::Model;
use crate::only::How;
use crate::run::{Ledger, Outcome, Totals};
use crate::world::{World, listener};

/// Simulated time in which everybody has to be gone.
const LEAVE_MAX: Duration = Duration::from_mins(5);
/// Requests of the client that comes last.
const LAST_BATCHES: u32 = 8;

/// Runs one seed of the NBD server and client with so many requests.
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
    let ended = reactor.run(Box::pin(live(swarm, world.clone(), reactor.clone(), Rc::clone(&ledger), pool.clone(), requests)));
    if let Some(stop) = world.stop() {
        ledger.fail(format!("{stop:?}"));
    } else if ended.is_err() {
        ledger.fail("the reactor gave up without a reason".to_owned());
    }
    reactor.clear();
    if !ledger.failed() && pool.bytes_out() > 0 {
        ledger.fail(format!("{} bytes of memory were not given back", pool.bytes_out()));
    }
    let (counts, requests, checks) = (world.counts(), ledger.requests.get(), ledger.checks.get());
    let totals =
        Totals { seeds: 1, requests, crashes: 0, device_ios: counts.requests, faults: counts.faults, checks, detected: 0 };
    Outcome { totals, digest: world.digest(), failure: ledger.failure.take(), drawn: world.drawn() }
}

/// Starts the server, lets everybody come, and looks at what is left.
async fn live(swarm: Swarm, world: World, reactor: Reactor, ledger: Rc<Ledger>, pool: BufferPool, requests: u64) {
    let disk = world.disk(&reactor, 0);
    let server = Server::new(&reactor, &pool, ServeLimits { annexes_max: 0, ..ServeLimits::default() });
    let (socket, address) = listener().expect("the system gives out sockets");
    let offered = server.add_export(&Offer::new("disk").as_default(), Rc::clone(&disk) as Rc<dyn Target>);
    let uri = match offered.and_then(|()| server.listen(Listen::Inherited(socket))) {
        Ok(uri) => uri,
        Err(error) => return ledger.fail(error.to_string()),
    };
    world.set_faults(swarm.faults);
    world.cut_streams(swarm.cut_every);
    let town = Rc::new(Town { pool: pool.clone(), ..Town::new(&world, &reactor, &ledger, swarm, address) });
    let busy = Town::open(&town, &uri, requests);
    while busy.get() > 0 && !ledger.failed() && ledger.requests.get() < requests {
        reactor.sleep(Duration::from_millis(1)).await;
    }
    until(&town, "the clients", || busy.get() == 0).await;
    world.heal();
    world.cut_streams(0);
    until(&town, "the connections", || server.counts().iter().all(|(_, counts)| counts.connections == 0)).await;
    for op in town.unanswered.take() {
        ledger.model.borrow_mut().end(op, false);
    }
    if ledger.failed() {
        return;
    }
    let healthy = Rc::new(Town::healthy(&town));
    Box::pin(Peer::new(&healthy, 99).visit(LAST_BATCHES, false)).await;
    if !server.shutdown().await {
        ledger.fail("the server did not leave in time".to_owned());
    }
    let sectors = healthy.swarm.sectors;
    let checked = world.look(0, |bytes| ledger.model.borrow().check_idle(0, &bytes[..sectors * 512]));
    if let Err(violation) = checked {
        ledger.fail(format!("in the end: {violation}"));
    }
    // The tasks of what was dropped need a few turns.
    reactor.sleep(Duration::from_millis(10)).await;
}

/// Waits for something that has to come.
async fn until(town: &Town, what: &str, is: impl Fn() -> bool) {
    let end = town.reactor.now() + LEAVE_MAX;
    while !is() && !town.ledger.failed() {
        if town.reactor.now() > end {
            return town.ledger.fail(format!("{what} did not come to an end"));
        }
        town.reactor.sleep(Duration::from_millis(1)).await;
    }
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
