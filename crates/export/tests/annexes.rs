//! Clients on threads of their own: what they do to one target stays right.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::client::{Client, FLUSH, Framing, READ, WRITE};
use common::targets::Memory;
use common::{Bed, Engine, LONG, limits};
use forebay_block::SectorCount;
use forebay_device::RamDevice;
use forebay_export::serve::{Offer, ServeLimits};
use forebay_reactor::{Backend, DeviceId, Done, Requests, Tag, Uring, Wait};

const MIB: u64 = 1 << 20;

/// One test at a time: they look at the threads of the process.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ram(engine: Engine) -> Bed {
    Bed::new(engine, |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(64 * MIB / 512)).unwrap();
        server.add_export(&Offer::new("").as_default(), device).unwrap();
    })
}

/// Processor time of each thread that serves clients beside a server's own, in clock ticks.
fn annexes() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let used = |stat: &String| {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    stats.filter(|stat| stat.contains("(forebay-annex)")).filter_map(|stat| used(&stat)).collect()
}

#[test]
fn threads_come_with_clients_and_go_with_the_server() {
    let _turn = turn();
    let bed = ram(Engine::Annexes);
    assert_eq!(annexes().len(), 0);
    let mut clients: Vec<Client> = (0..5).map(|_| Client::enter(&bed.path, "", Framing::Structured, true)).collect();
    bed.until("there are as many threads as allowed", |_| annexes().len() == 2);
    // A client that may send parts of blocks is served at home.
    let mut bytewise = Client::enter(&bed.path, "", Framing::Simple, false);
    bytewise.write(40 * MIB + 1000, b"part of a block");
    for (client, at) in clients.iter_mut().zip(0..) {
        client.write(at * MIB, &[7; 8192]);
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).error, 0);
    }
    assert!(clients[4].read(0, 8192) == [7; 8192]);
    assert_eq!(&clients[3].read(40 * MIB, 8192)[1000..1015], b"part of a block");
    let counts = bed.counts(0);
    assert_eq!((counts.connections, counts.connections_total), (6, 6));
    assert_eq!((counts.writes, counts.flushes, counts.reads, counts.unaligned, counts.errors), (6, 5, 2, 1, 0));
    assert_eq!((counts.bytes_written, counts.bytes_read), (5 * 8192 + 15, 2 * 8192));
    drop((clients, bytewise));
    bed.until_left(0);
    drop(bed);
    assert_eq!(annexes().len(), 0);
}

#[test]
fn the_first_client_stays_at_home_and_the_second_gets_a_thread() {
    let _turn = turn();
    let bed = ram(Engine::Shared);
    let first = Client::enter(&bed.path, "", Framing::Structured, true);
    assert_eq!(annexes().len(), 0);
    let second = Client::enter(&bed.path, "", Framing::Structured, true);
    bed.until("there is a thread for it", |_| annexes().len() == 1);
    drop((first, second));
    bed.until_left(0);
    let _alone = Client::enter(&bed.path, "", Framing::Structured, true);
    bed.until("a thread without clients uses no processor time", |_| {
        let before = annexes();
        std::thread::sleep(Duration::from_millis(300));
        annexes() == before
    });
}

#[test]
fn a_busy_client_keeps_its_own_thread_busy() {
    let _turn = turn();
    let bed = ram(Engine::Annexes);
    let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
    let started = Instant::now();
    while annexes() < vec![20] {
        for _ in 0..8 {
            client.send(READ, 0, 0, 8 * MIB, &[]);
        }
        for _ in 0..8 {
            assert_eq!(client.answer().unwrap().data.len(), 8 << 20);
        }
        assert!(started.elapsed() < LONG, "{:?} ticks", annexes());
    }
}

/// A ring that breaks when it is told to.
struct Fragile {
    ring: Uring,
    broken: Arc<AtomicBool>,
}

impl Backend for Fragile {
    fn name(&self) -> &'static str {
        "fragile"
    }
    fn now(&self) -> Duration {
        self.ring.now()
    }
    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.ring.attach(device, file)
    }
    fn offer_memory(&mut self, base: usize, bytes: usize) {
        self.ring.offer_memory(base, bytes);
    }
    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        self.ring.enter(requests, batch, done, wait)?;
        if self.broken.load(Ordering::Relaxed) { Err(io::Error::other("it is broken")) } else { Ok(()) }
    }
}

#[test]
fn a_thread_that_breaks_cuts_its_clients_off_and_nobody_else() {
    let _turn = turn();
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&broken);
    let bed = Bed::new(Engine::Shared, move |reactor, server| {
        let mut memory = Memory::new(16 << 20);
        memory.slow = Some((reactor.clone(), Duration::from_millis(300)));
        server.add_export(&Offer::new("").as_default(), Rc::new(memory)).unwrap();
        server.use_threads(Arc::new(move || Ok(Box::new(Fragile { ring: Uring::new()?, broken: Arc::clone(&breaks) }))));
    });
    let mut first = Client::enter(&bed.path, "", Framing::Structured, true);
    let mut second = Client::enter(&bed.path, "", Framing::Structured, true);
    second.write(0, &[7; 8192]);
    // One request is at home and one on its way when it breaks.
    second.send(READ, 0, 0, MIB, &[]);
    bed.until("it is in flight", |bed| bed.counts(0).reads == 1);
    broken.store(true, Ordering::Relaxed);
    second.send(READ, 0, 0, MIB, &[]);
    // A machine that is slow has answered the first of them.
    while second.answer().is_ok() {}
    assert!(second.is_at_end());
    bed.until("its place is free", |bed| bed.counts(0).connections == 1);
    assert_eq!(first.read(0, 8192), [7; 8192]);
    broken.store(false, Ordering::Relaxed);
    let mut third = Client::enter(&bed.path, "", Framing::Structured, true);
    assert_eq!(third.read(0, 8192), [7; 8192]);
    assert_eq!(annexes().len(), 1, "another thread took its place");
    assert!(bed.shutdown().recv_timeout(LONG).unwrap());
}

#[test]
fn more_requests_than_may_be_at_home_wait_and_are_all_answered() {
    let _turn = turn();
    let limits = ServeLimits { requests_max: 3000, ..limits() };
    let bed = Bed::with(Engine::Annexes, limits, |reactor, server| {
        let mut memory = Memory::new(16 << 20);
        memory.slow = Some((reactor.clone(), Duration::from_millis(20)));
        server.add_export(&Offer::new("").as_default(), Rc::new(memory)).unwrap();
    });
    let mut client = Client::enter(&bed.path, "", Framing::Structured, true);
    for at in 0..2500_u64 {
        let fill = u8::try_from(at % 251).unwrap();
        client.send(WRITE, 0, at * 512, 512, &[fill; 512]);
    }
    for _ in 0..2500 {
        assert_eq!(client.answer().unwrap().error, 0);
    }
    for at in [0, 1023, 1024, 2047, 2499_u64] {
        assert_eq!(client.read(at * 512, 512), [u8::try_from(at % 251).unwrap(); 512], "{at}");
    }
}
