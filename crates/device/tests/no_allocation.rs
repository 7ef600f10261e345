//! Warm requests allocate nothing: 100,000 of 4 KiB at depth 32, in memory and on a file.

#![expect(unsafe_code, reason = "a counting allocator is a GlobalAlloc")]
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::TempFile;
use common::load::Load;
use forebay_block::{SectorCount, Target};
use forebay_device::{FileDevice, FileOptions, RamDevice};
use forebay_reactor::{Part, Reactor, Uring};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is done by the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, which is the system allocator's own.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const REQUESTS: u64 = 100_000;

/// Runs the requests and gives the allocations made and the requests per call into the backend.
fn measure(reactor: &Reactor, target: Rc<dyn Target>) -> (u64, f64) {
    let load = Load::new(reactor, target, 32);
    load.run(reactor, 2000);
    let (allocations, counts) = (ALLOCATIONS.load(Ordering::Relaxed), reactor.counts());
    load.run(reactor, REQUESTS);
    let made = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
    let enters = reactor.counts().enters - counts.enters;
    (made, enters as f64 / REQUESTS as f64)
}

/// Sends and receives that many messages of two parts over a socket pair; gives the allocations.
fn messages(reactor: &Reactor, count: u64) -> u64 {
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("a process has descriptors");
    let (near, far): (Rc<OwnedFd>, Rc<OwnedFd>) = (Rc::new(near.into()), Rc::new(far.into()));
    let part = |skip, bytes| Part { segments: common::memory(4096), skip, bytes };
    let (mut out, mut back) = (vec![part(0, 28), part(512, 1024)], vec![part(0, 28), part(512, 1024)]);
    let exchange = async {
        let mut before = 0;
        for number in 0..count + 100 {
            if number == 100 {
                before = ALLOCATIONS.load(Ordering::Relaxed);
            }
            let receiving = reactor.receive(&far, back);
            let sent;
            (sent, out) = reactor.send(&near, out).await;
            let received;
            (received, back) = receiving.await;
            assert_eq!((sent.ok(), received.ok()), (Some(1052), Some(1052)));
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    reactor.run(exchange).expect("the ring works")
}

/// One test, because the counter counts for the whole process.
#[test]
fn a_hundred_thousand_warm_requests_allocate_nothing() {
    let reactor = Reactor::new(Box::new(Uring::new().unwrap()));
    let ram = RamDevice::new(&reactor, SectorCount(1 << 15)).unwrap();
    let (allocations, enters) = measure(&reactor, ram);
    println!("ram: {enters:.3} enters a request");
    assert_eq!((allocations, enters), (0, 0.0), "memory needs no system call either");

    let temp = TempFile::new("no-allocation", 64 << 20);
    let file = FileDevice::open(&reactor, &temp.0, &FileOptions::default()).unwrap();
    let (allocations, enters) = measure(&reactor, file);
    println!("file: {enters:.3} enters a request");
    assert_eq!(allocations, 0);
    assert_eq!(messages(&reactor, 10_000), 0);
    assert!(enters <= 1.0, "{enters} enters a request: a batch leaves with one call");
}
