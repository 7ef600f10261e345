//! Warm requests allocate nothing: 100,000 of 4 KiB at depth 32, in memory and on a file.

#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

mod common;

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use allocation_counter::measure;
use common::TempFile;
use common::load::Load;
use forebay_block::{Bio, Limits, SectorCount, Target};
use forebay_device::{FileDevice, FileOptions, RamDevice};
use forebay_reactor::{Attachment, Backend, DeviceId, Done, Part, Reactor, Requests, Tag, Uring, Wait};

const REQUESTS: u64 = 100_000;

/// Phases of which one must be quiet: lists grow once more when a turn is fuller than any before, and when
/// that happens is up to the scheduler.
const PHASES: u64 = 4;

/// The allocations of the quietest of several phases of `work`.
fn quietest(mut work: impl FnMut()) -> u64 {
    (0..PHASES).map(|_| measure(&mut work).count_total).min().expect("there are phases")
}

/// Runs the requests and gives the allocations made and the calls into the backend per request.
fn requests(reactor: &Reactor, target: Rc<dyn Target>) -> (u64, f64) {
    let load = Load::new(reactor, target, 32);
    load.run(reactor, 2000);
    let before = reactor.counts().enters;
    let made = quietest(|| load.run(reactor, REQUESTS / PHASES));
    let enters = reactor.counts().enters - before;
    (made, enters as f64 / REQUESTS as f64)
}

/// Sends and receives `count` messages of two parts over a socket pair; gives the allocations beyond those
/// of running the reactor.
fn messages(reactor: &Reactor, count: u64) -> u64 {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a process has descriptors");
    let (near, far): (Rc<OwnedFd>, Rc<OwnedFd>) = (Rc::new(near.into()), Rc::new(far.into()));
    let part = |skip, bytes| Part { segments: common::memory(4096), skip, bytes };
    let (mut out, mut back) = (vec![part(0, 28), part(512, 1024)], vec![part(0, 28), part(512, 1024)]);
    let mut allocations = |count| {
        let exchange = async {
            for _ in 0..count {
                let receiving = reactor.receive(&far, std::mem::take(&mut back));
                let sent;
                (sent, out) = reactor.send(&near, std::mem::take(&mut out)).await;
                let received;
                (received, back) = receiving.await;
                assert_eq!((sent.ok(), received.ok()), (Some(1052), Some(1052)));
            }
        };
        measure(|| reactor.run(exchange).expect("the ring works")).count_total
    };
    allocations(100);
    let running = allocations(0);
    (0..PHASES).map(|_| allocations(count / PHASES) - running).min().expect("there are phases")
}

#[test]
fn a_hundred_thousand_warm_requests_allocate_nothing() {
    let reactor = Reactor::new(Box::new(Uring::new().unwrap()));
    let ram = RamDevice::new(&reactor, SectorCount(1 << 15)).unwrap();
    let (allocations, enters) = requests(&reactor, ram);
    println!("ram: {enters:.3} enters a request");
    assert_eq!((allocations, enters), (0, 0.0), "memory needs no system call either");

    let temp = TempFile::new("no-allocation", 64 << 20);
    let file = FileDevice::open(&reactor, &temp.0, &FileOptions::default()).unwrap();
    let (allocations, enters) = requests(&reactor, file);
    println!("file: {enters:.3} enters a request");
    assert_eq!(allocations, 0);
    assert_eq!(messages(&reactor, 10_000), 0);
    assert!(enters <= 1.0, "{enters} enters a request: a batch leaves with one call");
}

/// A world that carries out nothing, and says so about at most `burst` requests a turn.
struct Trickle {
    burst: Rc<Cell<usize>>,
    kept: Vec<Tag>,
}

impl Backend for Trickle {
    fn name(&self) -> &'static str {
        "trickle"
    }
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn attach(&mut self, _device: DeviceId, _file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        Ok(())
    }
    fn offer_memory(&mut self, _base: usize, _bytes: usize) {}

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, _wait: Wait) -> io::Result<()> {
        self.kept.extend(batch);
        let count = self.burst.get().min(self.kept.len());
        let answer = |tag| Done { tag, result: i32::try_from(requests.get(tag).bytes).expect("4 KiB") };
        done.extend(self.kept.drain(..count).map(answer));
        Ok(())
    }
}

struct Bare {
    reactor: Reactor,
    id: DeviceId,
}

impl Target for Bare {
    fn kind(&self) -> &'static str {
        "bare"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(1 << 17)
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
}

#[test]
fn completions_that_came_singly_may_come_all_at_once() {
    let burst = Rc::new(Cell::new(1));
    let reactor = Reactor::new(Box::new(Trickle { burst: Rc::clone(&burst), kept: Vec::with_capacity(64) }));
    let attachment = Attachment { name: "bare".into(), limits: Limits::unlimited(), file: None, inline: None, merging: true };
    let id = reactor.attach(attachment).unwrap();
    let load = Load::new(&reactor, Rc::new(Bare { reactor: reactor.clone(), id }), 32);
    load.run(&reactor, 2000);
    burst.set(usize::MAX);
    assert_eq!(measure(|| load.run(&reactor, 2000)).count_total, 0);
}
