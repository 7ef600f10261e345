//! Warm requests allocate nothing: 100,000 of 4 KiB at depth 32, in memory and on a file.

#![expect(unsafe_code, reason = "a counting allocator is a GlobalAlloc")]
#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::TempFile;
use common::load::Load;
use forebay_block::{SectorCount, Target};
use forebay_device::{FileDevice, FileOptions, RamDevice};
use forebay_reactor::{Reactor, Uring};

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
    assert!(enters <= 1.0, "{enters} enters a request: a batch leaves with one call");
}
