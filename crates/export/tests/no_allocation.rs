//! Warm requests allocate nothing: hundreds of thousands of reads and writes of 4 KiB, one at a time
//! and many at once. On `io_uring`; the backend on threads makes a list each time it sleeps.
//!
//! Warm is what has seen its fullest turn. When that comes is up to the scheduler, so requests are sent
//! in several phases, and one of them must be without any allocation.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use allocation_counter::measure;
use common::client::{Client, Framing, READ, WRITE};
use common::{Bed, Engine};
use forebay_block::{Bio, HeapMemory, Sector, SectorCount, Segments, Status, call};
use forebay_device::{NbdDevice, NbdOptions, RamDevice};
use forebay_export::serve::{Listen, Offer, Server};
use forebay_reactor::mailbox::Mailbox;
use forebay_reactor::{BufferPool, Reactor, Uring};

/// Sends `together` requests at once and takes their answers, `rounds` times, without allocating
/// itself: every request is the same.
fn exchange(stream: &mut UnixStream, request: &[u8], answer: &mut [u8], rounds: u32) {
    for _ in 0..rounds {
        stream.write_all(request).unwrap();
        stream.read_exact(answer).unwrap();
    }
}

/// Phases of which one must be quiet.
const PHASES: u32 = 6;

/// Answers a client until it posts that it has come to the next point; gives the allocations.
fn serve(reactor: &Reactor, points: &mut Mailbox<()>) -> u64 {
    measure(|| assert!(reactor.run(points.receive()).unwrap().is_some())).count_total
}

#[test]
fn warm_requests_allocate_nothing() {
    let directory = common::directory();
    let path = directory.join("nbd.sock");
    let reactor = Reactor::new(Box::new(Uring::new().unwrap()));
    let pool = BufferPool::new(&reactor);
    let server = Server::new(&reactor, &pool, common::limits());
    let device = RamDevice::new(&reactor, SectorCount(16 << 11)).unwrap();
    server.add_export(&Offer::new("").as_default(), device).unwrap();
    server.listen(Listen::Unix(path.clone())).unwrap();
    let (post, mut points) = Mailbox::<()>::new(&reactor, 4).unwrap();
    for (command, together) in [(READ, 1), (WRITE, 1), (READ, 32), (WRITE, 32)] {
        let (path, post) = (path.clone(), post.clone());
        let client = std::thread::spawn(move || {
            let stream = common::client::connect(&path);
            let mut raw = stream.try_clone().unwrap();
            let mut client = Client::over(Box::new(stream), "", Framing::Simple, true).unwrap();
            let mut request = Vec::new();
            for at in 0..together {
                request.extend(client.header(command, 0, at * 8192, 4096).0);
                request.extend(if command == WRITE { &[1; 4096][..] } else { &[] });
            }
            let answer = if command == READ { 16 + 4096 } else { 16 };
            let mut answer = vec![0; answer * usize::try_from(together).unwrap()];
            for rounds in [200].into_iter().chain([2500; PHASES as usize]) {
                exchange(&mut raw, &request, &mut answer, rounds);
                assert!(post.post(()).is_ok());
            }
        });
        serve(&reactor, &mut points);
        let made: Vec<u64> = (0..PHASES).map(|_| serve(&reactor, &mut points)).collect();
        client.join().unwrap();
        // Running the reactor makes one.
        assert!(
            made.iter().any(|&made| made <= 1),
            "{made:?} allocations in 2500 rounds of {together} requests of kind {command}"
        );
    }
    assert!(reactor.run(server.shutdown()).unwrap());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_warm_client_allocates_nothing() {
    let bed = Bed::new(Engine::Uring, |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(16 << 11)).unwrap();
        server.add_export(&Offer::new("").as_default(), device).unwrap();
    });
    let reactor = Reactor::new(Engine::Uring.backend());
    let pool = BufferPool::new(&reactor);
    let uri = bed.uri.parse().unwrap();
    let device = reactor.run(NbdDevice::connect(&reactor, &pool, &uri, NbdOptions::default())).unwrap().unwrap();
    let all = async {
        while device.connections() < 4 {
            reactor.sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    reactor.run(all).unwrap();
    let payload = Segments::whole(Box::new(HeapMemory::new(4096, 4096)), 4096).unwrap();
    let mut calls = Vec::with_capacity(32);
    let mut work = |write: bool, together: u64, rounds: u32| {
        let run = reactor.run(async {
            for _ in 0..rounds {
                for at in 0..together {
                    let make = if write { Bio::write } else { Bio::read };
                    calls.push(call(&*device, make(Sector(at * 16), Rc::clone(&payload), 0, 4096)));
                }
                for call in calls.drain(..) {
                    assert_eq!(call.await.status(), Status::Ok);
                }
            }
        });
        run.unwrap();
    };
    for (write, together) in [(false, 1), (true, 1), (false, 32), (true, 32)] {
        work(write, together, 200);
        let made: Vec<u64> = (0..PHASES).map(|_| measure(|| work(write, together, 1000)).count_total).collect();
        // Running the reactor makes one, and so does looking at the clock now and then.
        assert!(
            made.iter().any(|&made| made <= 4),
            "{made:?} allocations in 1000 rounds of {together} requests, writing: {write}"
        );
    }
}
