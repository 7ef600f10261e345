//! Calls into the system for each request: batches grow with the load, and nobody waits for company.

#![expect(clippy::cast_precision_loss, clippy::unwrap_used, reason = "counts far below 2^52; a test that cannot go on ends")]

mod common;

use std::process::Command;

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

/// What a process of this test does, with its name in the environment.
const LOAD: &str = "FOREBAY_TEST_LOAD";
const DEPTH: usize = 32;

/// Calls of `io_uring_enter` that a command makes, with its threads and children.
fn calls(command: &mut Command) -> u64 {
    let output = command.output().expect("strace(1) is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
    // % time, seconds, usecs/call, calls, errors (may be missing), name
    let line = text.lines().find(|line| line.ends_with("io_uring_enter"));
    let calls = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    calls.unwrap_or_else(|| panic!("strace counted nothing: {text}"))
}

fn traced() -> Command {
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--summary-only", "--trace=io_uring_enter"]);
    strace
}

/// Calls of `requests` random reads of 4 KiB through this project, without those of starting.
fn ours(file: &TempFile, requests: u64) -> f64 {
    let run = |requests: u64| {
        let mut again = traced();
        again.arg(std::env::current_exe().unwrap()).args(["--exact", "on_a_disk_a_request_takes_no_more_calls_than_with_fio"]);
        calls(again.env(LOAD, format!("{requests} {}", file.0.display())))
    };
    (run(2 * requests) - run(requests)) as f64 / requests as f64
}

/// The same through fio, which submits in batches of 32 and takes as many completions as there are.
fn fio(file: &TempFile, requests: u64) -> f64 {
    let mut fio = traced();
    fio.args([
        "fio",
        "--name=r",
        "--ioengine=io_uring",
        "--direct=1",
        "--rw=randread",
        "--bs=4k",
        "--size=64m",
        "--time_based=0",
    ]);
    fio.args(["--fixedbufs=1", "--registerfiles=1", "--iodepth=32", "--iodepth_batch_submit=32"]);
    fio.args(["--iodepth_batch_complete_min=1", "--iodepth_batch_complete_max=32", "--norandommap", "--thread"]);
    fio.arg(format!("--filename={}", file.0.display())).arg(format!("--number_ios={requests}"));
    calls(&mut fio) as f64 / requests as f64
}

#[test]
fn on_a_disk_a_request_takes_no_more_calls_than_with_fio() {
    if let Ok(what) = std::env::var(LOAD) {
        let (requests, path) = what.split_once(' ').unwrap();
        let reactor = Reactor::new(Box::new(Uring::new().unwrap()));
        let device = FileDevice::open(&reactor, path.as_ref(), &FileOptions::default()).unwrap();
        assert!(device.is_direct());
        return Load::reading(&reactor, device, DEPTH).run(&reactor, requests.parse().unwrap());
    }
    let file = TempFile::new("calls", 64 << 20);
    std::fs::write(&file.0, vec![1; 64 << 20]).unwrap();
    // fio makes a file of 64 MiB into 16,384 requests of 4 KiB at most.
    let no_more = || {
        let pairs = (0..5).map(|_| (self::ours(&file, 16_000), fio(&file, 16_000)));
        let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        println!("calls a request: {ours:.3?}, fio {theirs:.3?}");
        ours[2] <= theirs[2]
    };
    // How many requests end together is up to the disk and to what else the machine does.
    assert!((0..3).any(|_| no_more()), "the calls are printed above");
}
