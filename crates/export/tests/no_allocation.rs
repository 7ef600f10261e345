//! Warm requests allocate nothing: hundreds of thousands of reads and writes of 4 KiB, one at a time
//! and many at once. On `io_uring`; the backend on threads makes a list each time it sleeps.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use allocation_counter::measure;
use common::client::{Client, Framing, READ, WRITE};
use forebay_block::SectorCount;
use forebay_device::RamDevice;
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
            for rounds in [200, 5000] {
                exchange(&mut raw, &request, &mut answer, rounds);
                assert!(post.post(()).is_ok());
            }
        });
        serve(&reactor, &mut points);
        let made = serve(&reactor, &mut points);
        client.join().unwrap();
        // Running the reactor makes one; a list may grow when a turn is fuller than any before.
        assert!(made <= 4, "{made} allocations in 5000 rounds of {together} requests of kind {command}");
    }
    assert!(reactor.run(server.shutdown()).unwrap());
    std::fs::remove_dir_all(directory).unwrap();
}
