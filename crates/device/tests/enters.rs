//! Calls into the system for each request: batches grow with the load, and nobody waits for company.

#![expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]

mod common;

use common::TempFile;
use common::load::Load;
use forebay_device::{Direct, FileDevice, FileOptions};
use forebay_reactor::{Reactor, Uring};

#[test]
fn a_device_that_completes_at_once_takes_few_calls_and_a_lone_request_one() {
    // In the page cache after the first round; the kernel then answers reads before it returns.
    let file = TempFile::new("enters", 16 << 20);
    let options = FileOptions { direct: Direct::Off, ..FileOptions::default() };
    for (depth, most) in [(1, 1.0), (32, 0.04), (128, 0.01)] {
        let reactor = Reactor::new(Box::new(Uring::new().unwrap()));
        let device = FileDevice::open(&reactor, &file.0, &options).unwrap();
        let load = Load::reading(&reactor, device, depth);
        load.run(&reactor, 10_000);
        let before = reactor.counts();
        load.run(&reactor, 100_000);
        let counts = reactor.counts();
        assert_eq!(counts.requests - before.requests, 100_000, "nothing was merged");
        let enters = (counts.enters - before.enters) as f64 / 100_000.0;
        println!("depth {depth}: {enters:.4} calls a request");
        assert!(enters <= most, "{enters} calls a request at depth {depth}");
    }
}
