//! Warm requests allocate nothing: hundreds of thousands of reads and writes of 4 KiB, one at a time
//! and many at once. On `io_uring`; the backend on threads makes a list each time it sleeps.
#![expect(unsafe_code, reason = "a counting allocator is a GlobalAlloc")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests start servers on threads and wait for them")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use common::client::{Client, Framing, READ, WRITE};
use common::{Bed, Engine};
use forebay_block::SectorCount;
use forebay_device::RamDevice;
use forebay_export::serve::Offer;

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is done by the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

/// Allocations of the server's thread so far.
fn allocations(bed: &Bed) -> u64 {
    bed.ask(|_, _, _| ALLOCATIONS.get())
}

/// Sends `together` requests at once and takes their answers, `rounds` times, without allocating
/// itself: every request is the same.
fn exchange(stream: &mut UnixStream, request: &[u8], answer: &mut [u8], rounds: u32) {
    for _ in 0..rounds {
        stream.write_all(request).unwrap();
        stream.read_exact(answer).unwrap();
    }
}

#[test]
fn warm_requests_allocate_nothing() {
    let bed = Bed::new(Engine::Uring, |reactor, server| {
        let device = RamDevice::new(reactor, SectorCount(16 << 11)).unwrap();
        server.add_export(&Offer::new("").as_default(), device).unwrap();
    });
    for (command, together) in [(READ, 1), (WRITE, 1), (READ, 32), (WRITE, 32)] {
        let stream = common::client::connect(&bed.path);
        let mut raw = stream.try_clone().unwrap();
        let mut client = Client::over(Box::new(stream), "", Framing::Simple, true).unwrap();
        let mut request = Vec::new();
        for at in 0..together {
            request.extend(client.header(command, 0, at * 8192, 4096).0);
            request.extend(if command == WRITE { &[1; 4096][..] } else { &[] });
        }
        let answer = if command == READ { 16 + 4096 } else { 16 };
        let mut answer = vec![0; answer * usize::try_from(together).unwrap()];
        exchange(&mut raw, &request, &mut answer, 200);
        let before = allocations(&bed);
        exchange(&mut raw, &request, &mut answer, 5000);
        let made = allocations(&bed) - before;
        // The question itself makes some.
        assert!(made < 20, "{made} allocations in 5000 rounds of {together} requests of kind {command}");
    }
}
