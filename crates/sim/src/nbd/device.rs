//! Our own client among those of a server: it connects again, and sends again what was cut off.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_device::{NbdDevice, NbdOptions};
use forebay_nbd::uri::Uri;

use super::peer::Town;
use crate::run::Client;

/// Pause before the first connection is tried again.
const AWAY: Duration = Duration::from_millis(200);

/// Sends requests through our own client.
pub(super) async fn use_device(town: &Rc<Town>, uri: &Uri, connections: usize, requests: u64) {
    let options = NbdOptions { connections, ..NbdOptions::default() };
    let mut attempts = 0;
    let device = loop {
        attempts += 1;
        match NbdDevice::connect(&town.reactor, &town.pool, uri, options.clone()).await {
            Ok(device) => break device,
            // The server is away.
            Err(_) if town.swarm.crashes => {
                town.reactor.sleep(AWAY).await;
                if town.ledger.failed() || town.ledger.requests.get() >= requests {
                    return;
                }
            }
            // Cut in the handshake.
            Err(_) if town.swarm.cut_every > 0 && attempts < 20 => {}
            Err(_) if town.swarm.cut_every > 0 => return,
            Err(error) => return town.ledger.fail(error.to_string()),
        }
    };
    let make = if town.swarm.crashes { Client::survivor } else { Client::new };
    let client = make(&town.world, &town.ledger, &town.pool);
    town.device.replace(Some((Rc::clone(&device), Rc::clone(&client))));
    if town.swarm.expects_errors() {
        client.expect_errors();
    }
    if town.swarm.expects_errors() || town.swarm.crashes {
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
    town.device.take();
}
