//! The kernel's dm-mirror and Forebay open each other's mirrors, clean and crashed, and see the same device.
//!
//! The log is read by hand, too: where it calls a region clean, all legs are equal, whoever wrote it and however it ended.
//! A guest's crash loses nothing that reached the host, and everything that had not.
#![forbid(unsafe_code)]

use forebay_tests::mirror::{Log, Mirror};
use forebay_tests::nbd::Client;
use forebay_tests::pattern::{self, SECTOR};
use forebay_tests::server::forebay;
use forebay_tests::{Guest, Scratch, Server, require, run};
use std::fs;
use std::path::Path;
use std::time::Duration;

const MODULES: [&str; 3] = ["dm-log", "dm-region-hash", "dm-mirror"];
/// Rounds that a guest must have flushed, for every mirror, before it is killed.
const ROUNDS_BEFORE_CRASH: u64 = 3;
/// Longest wait for all regions to be in sync.
const SYNC_LIMIT: Duration = Duration::from_mins(1);

fn prepare(mirrors: &[Mirror]) -> Scratch {
    let scratch = Scratch::in_memory();
    fs::copy(env!("CARGO_BIN_EXE_guest-load"), scratch.file("guest-load")).expect("the load program was built");
    for mirror in mirrors {
        mirror.make(&scratch);
    }
    scratch
}

fn guest(scratch: &Scratch) -> Guest {
    Guest::new(scratch.path()).with(&MODULES)
}

fn script(mirrors: &[Mirror], lines: impl Fn(usize, &Mirror) -> String) -> String {
    mirrors.iter().enumerate().map(|(slot, mirror)| lines(slot, mirror)).collect()
}

/// What a kernel sees in copies of the files, once it has brought all legs up to date.
fn seen_by_the_kernel(mirrors: &[Mirror], from: &Scratch) -> String {
    let copies = Scratch::in_memory();
    for mirror in mirrors {
        mirror.copy(from, &copies);
    }
    let body = script(mirrors, |slot, mirror| mirror.attach(slot, "") + &mirror.status());
    let output = guest(&copies).run(&(body + &script(mirrors, |_, mirror| mirror.synced() + &mirror.hash() + &mirror.detach())));
    for mirror in mirrors {
        assert_legs_equal(mirror, &copies);
    }
    output
}

fn assert_legs_equal(mirror: &Mirror, scratch: &Scratch) {
    let legs: Vec<Vec<u8>> = mirror.files(scratch).0.iter().map(|leg| fs::read(leg).expect("a leg")).collect();
    assert!(legs.iter().all(|leg| *leg == legs[0]), "{}: the legs differ", mirror.name);
}

/// A server over the originals.
struct Served {
    server: Server,
    control: String,
}

impl Served {
    fn start(mirror: &Mirror, scratch: &Scratch, sync: &str) -> Self {
        let (legs, log) = mirror.files(scratch);
        let table = mirror.table(&legs, &log, sync);
        let export = format!("nbd+unix:///{}?socket={}", mirror.name, scratch.file("nbd.sock"));
        let control = scratch.file("control.sock");
        let args = ["--table", &table, "--export", &export, "--control", &control];
        Self { server: Server::start(&scratch.file("server"), 1, &args), control }
    }

    /// Waits until all regions are in sync.
    fn synced(&self, mirror: &Mirror) {
        let all = format!(" {0}/{0} ", mirror.regions());
        run::wait_for("all regions in sync", SYNC_LIMIT, || {
            let ended = forebay(&["status", "--line", "--control", &self.control]);
            assert_eq!(ended.code, 0, "{}", ended.stderr);
            ended.stdout.contains(&all).then_some(())
        });
    }

    /// The mirror's load: so many rounds, with a flush after each but the last.
    fn write_rounds(&self, mirror: &Mirror, rounds: u64) {
        let mut client = Client::connect(self.server.uri()).expect("the server takes a client");
        for round in 1..=rounds {
            for write in mirror.churn().round(round) {
                client.write(write.start * SECTOR as u64, &pattern::of(&write, round), 0).expect("a write");
            }
            if round < rounds {
                client.flush().expect("a flush");
            }
        }
    }
}

/// What Forebay serves from the originals, which it leaves with equal legs and a log in which all is clean.
fn seen_here(mirror: &Mirror, scratch: &Scratch) -> String {
    require(&["nbdcopy"]);
    let served = Served::start(mirror, scratch, "");
    let whole = scratch.file("served.whole");
    run::ok(60, &["nbdcopy", served.server.uri(), &whole]);
    served.synced(mirror);
    served.server.stop();
    assert_legs_equal(mirror, scratch);
    let log = Log::read(&mirror.files(scratch).1);
    assert_eq!((log.regions, log.clean()), (mirror.regions(), mirror.regions()), "{}: the log", mirror.name);
    run::sha256(Path::new(&whole))
}

#[test]
fn mirrors_that_the_kernel_left_cleanly_open_here() {
    let mirrors = Mirror::matrix(1);
    let scratch = prepare(&mirrors);
    let body = script(&mirrors, |slot, mirror| mirror.attach(slot, "nosync") + &mirror.load(4) + &mirror.hash());
    let output = guest(&scratch).run(&(body + &script(&mirrors, |_, mirror| mirror.detach())));
    for mirror in &mirrors {
        let kernel = mirror.hash_in(&output);
        mirror.judge(&mirror.read(&scratch), 4, 4);
        assert_eq!(seen_here(mirror, &scratch), kernel, "{}: Forebay and the kernel", mirror.name);
    }
}

#[test]
fn mirrors_of_a_crashed_kernel_open_here() {
    let mirrors = Mirror::matrix(2);
    let scratch = prepare(&mirrors);
    let mut body = script(&mirrors, |slot, mirror| mirror.attach(slot, "nosync"));
    body += &script(&mirrors, |_, mirror| format!("{} &\n", mirror.load(0).trim_end()));
    let mut guest = guest(&scratch).start(&(body + "wait\n"));
    guest.wait_until("a few rounds of every mirror", |output| {
        mirrors.iter().all(|mirror| mirror.round_in(output, "flushed") >= ROUNDS_BEFORE_CRASH)
    });
    let output = guest.crash();
    let recovered = seen_by_the_kernel(&mirrors, &scratch);
    for mirror in &mirrors {
        let first_leg = mirror.read(&scratch);
        mirror.judge(&first_leg, mirror.round_in(&output, "flushed"), mirror.round_in(&output, "started"));
        let kernel = mirror.hash_in(&recovered);
        assert_eq!(seen_here(mirror, &scratch), kernel, "{}: Forebay's recovery and the kernel's", mirror.name);
        assert_eq!(fs::read(&mirror.files(&scratch).0[0]).expect("a leg"), first_leg, "{}: the source changed", mirror.name);
    }
}

#[test]
fn mirrors_made_here_open_in_the_kernel_after_a_clean_stop_and_after_a_kill() {
    let mirrors = Mirror::matrix(3);
    let scratch = prepare(&mirrors);
    for (number, mirror) in mirrors.iter().enumerate() {
        let served = Served::start(mirror, &scratch, "nosync");
        served.write_rounds(mirror, 5);
        if number % 2 == 0 {
            served.server.stop();
            assert_legs_equal(mirror, &scratch);
            assert_eq!(Log::read(&mirror.files(&scratch).1).clean(), mirror.regions(), "{}: all is clean", mirror.name);
        } else {
            served.server.kill();
        }
    }
    let seen = seen_by_the_kernel(&mirrors, &scratch);
    for (number, mirror) in mirrors.iter().enumerate() {
        mirror.judge(&mirror.read(&scratch), if number % 2 == 0 { 5 } else { 4 }, 5);
        if number % 2 == 0 {
            let start = format!("{}: 0 8192 mirror {} ", mirror.name, mirror.legs);
            let line = seen.lines().find(|line| line.starts_with(&start)).expect("a status line");
            assert!(line.contains(&format!(" {0}/{0} 1 ", mirror.regions())), "nothing is copied: {line}");
        }
        assert_eq!(seen_here(mirror, &scratch), mirror.hash_in(&seen), "{}: Forebay and the kernel", mirror.name);
    }
}

/// The kernel takes a log that counts a region too many, keeps the bytes that the format leaves undefined, and counts right
/// again: what the record of Forebay relies on.
#[test]
fn the_kernel_takes_a_log_with_a_record_and_makes_it_void() {
    let mirrors: Vec<Mirror> = Mirror::matrix(4).into_iter().take(2).collect();
    let scratch = prepare(&mirrors);
    let mut logs = Vec::new();
    for mirror in &mirrors {
        let regions = mirror.regions();
        let mut log = vec![0; 16 << 10];
        log[..8].copy_from_slice(b"rRiM\x02\0\0\0");
        log[8..16].copy_from_slice(&(regions + 1).to_le_bytes());
        log[64..92].copy_from_slice(b"FBMIRROR and whatever follow");
        let bytes = usize::try_from(regions / 8).expect("a small mirror");
        log[1024..1024 + bytes].fill(0xFF);
        logs.push(scratch.write(&format!("{}.log", mirror.name), &log));
    }
    let body = script(&mirrors, |slot, mirror| mirror.attach(slot, "") + &mirror.status() + &mirror.detach());
    let output = guest(&scratch).run(&body);
    for (mirror, log) in mirrors.iter().zip(&logs) {
        assert!(output.contains(&format!(" {0}/{0} 1 AA 3 disk ", mirror.regions())), "nothing is copied:\n{output}");
        assert_eq!(Log::read(log).regions, mirror.regions());
        assert_eq!(fs::read(log).expect("a log")[64..92], *b"FBMIRROR and whatever follow");
    }
}
