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

mod peer;
mod swarm;
mod wire;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::Target;
use forebay_device::{NbdDevice, NbdOptions};
use forebay_export::serve::{Listen, Offer, ServeLimits, Server};
use forebay_reactor::{BufferPool, Reactor};

use self::peer::{Peer, Town};
use self::swarm::Swarm;
use crate::check::Model;
use crate::only::How;
use crate::run::{Client, Ledger, Outcome, Totals};
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
    let town = Rc::new(Town {
        world: world.clone(),
        reactor: reactor.clone(),
        pool: pool.clone(),
        ledger: Rc::clone(&ledger),
        swarm,
        address,
        unanswered: RefCell::default(),
    });
    let busy = Rc::new(Cell::new(town.swarm.peers));
    for number in 0..town.swarm.peers {
        let (peer, busy) = (Peer::new(&town, number as u64), Rc::clone(&busy));
        let run = async move {
            Box::pin(peer.run(requests)).await;
            busy.set(busy.get() - 1);
        };
        assert!(reactor.spawn(run), "there is room for a few tasks");
    }
    if let Some(connections) = town.swarm.device {
        Box::pin(use_device(&town, &uri, connections, requests)).await;
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

/// Sends requests through our own client.
async fn use_device(town: &Rc<Town>, uri: &forebay_nbd::uri::Uri, connections: usize, requests: u64) {
    let options = NbdOptions { connections, ..NbdOptions::default() };
    let mut attempts = 0;
    let device = loop {
        attempts += 1;
        match NbdDevice::connect(&town.reactor, &town.pool, uri, options.clone()).await {
            Ok(device) => break device,
            // Cut in the handshake.
            Err(_) if town.swarm.cut_every > 0 && attempts < 20 => {}
            Err(_) if town.swarm.cut_every > 0 => return,
            Err(error) => return town.ledger.fail(error.to_string()),
        }
    };
    let client = Client::new(&town.world, &town.ledger, &town.pool);
    if town.swarm.expects_errors() {
        client.expect_errors();
        // A request that was cut off too often fails, while the server may be at work on the last it heard of it.
        client.expect_late_effects();
    }
    let mut rng = Rng::with_seed(town.ledger.seed ^ 0xDE71);
    let (load, mut last) = (&town.swarm.load, 0);
    while !town.ledger.failed() && town.ledger.requests.get() < requests {
        if rng.u32(0..1000) < load.pauses_per_mille {
            town.reactor.sleep(Duration::from_micros(rng.u64(0..load.pause_max_ms * 1000))).await;
        }
        while client.in_flight() >= load.depth {
            client.change().await;
        }
        let ask = load.ask(&mut rng);
        let sectors = load.sectors(&mut rng, last);
        last = sectors.end;
        if town.world.takes() {
            client.send(&*device, ask, sectors);
        } else {
            town.ledger.pass_over();
        }
    }
    client.idle().await;
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
