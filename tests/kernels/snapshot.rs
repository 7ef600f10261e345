//! The kernel's dm-snapshot and Forebay open each other's stores, clean and crashed, see the same origin and the same
//! snapshot, and merge each other's snapshots.
//!
//! What an origin began with is known, and so are the writes of both sides: a third opinion beside the two.
#![forbid(unsafe_code)]

use forebay_tests::nbd::Client;
use forebay_tests::pattern::{self, Churn, SECTOR};
use forebay_tests::server::forebay;
use forebay_tests::{Guest, Scratch, Server, require, run};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Size of every origin.
const ORIGIN_SECTORS: u64 = 8192;
/// Size of every store: room for all chunks of the origin and their entries.
const STORE_BYTES: u64 = 6 << 20;
/// The version that every sector of an origin has when its snapshot is taken.
const BEFORE: u64 = 1 << 40;
/// Rounds that a guest must have flushed, for every device, before it is killed.
const ROUNDS_BEFORE_CRASH: u64 = 2;

/// An origin with a snapshot.
#[derive(Clone, Copy)]
struct Case {
    chunk: u64,
    store: &'static str,
    seed: u64,
}

impl Case {
    /// Five sizes of chunks with both kinds of stores.
    fn matrix(seed: u64) -> Vec<Self> {
        let chunks = [4, 8, 16, 64, 128];
        let case = |number: u64, chunk, store| Self { chunk, store, seed: seed * 100 + number };
        let stores = ["P", "PO"].into_iter().flat_map(|store| chunks.map(|chunk| (chunk, store)));
        (0..).zip(stores).map(|(number, (chunk, store))| case(number, chunk, store)).collect()
    }

    fn name(self) -> String {
        format!("{}{}", self.store.to_lowercase(), self.chunk)
    }

    fn origin(self, scratch: &Scratch) -> String {
        scratch.file(&format!("{}.origin", self.name()))
    }

    fn store(self, scratch: &Scratch) -> String {
        scratch.file(&format!("{}.store", self.name()))
    }

    /// Makes an origin whose content says what it is, and a store of zeroes.
    fn make(self, scratch: &Scratch) {
        scratch.write(&format!("{}.origin", self.name()), &pattern::of(&(0..ORIGIN_SECTORS), BEFORE));
        scratch.sparse(&format!("{}.store", self.name()), STORE_BYTES);
    }

    /// What is written to the origin (`o`) or to the snapshot (`s`).
    fn churn(self, side: char) -> Churn {
        Churn { seed: self.seed * 2 + u64::from(side == 's'), sectors: ORIGIN_SECTORS, grain: 8 }
    }

    /// The table line of one side, over devices as whoever reads it names them.
    fn table(self, side: char, origin: &str, store: &str) -> String {
        let end = match side {
            'o' => format!("snapshot-origin {origin}"),
            's' => format!("snapshot {origin} {store} {} {}", self.store, self.chunk),
            _ => format!("snapshot-merge {origin} {store} {} {}", self.store, self.chunk),
        };
        format!("0 {ORIGIN_SECTORS} {end}")
    }

    /// Guest script: the files on loop devices `2 × slot` and `2 × slot + 1`.
    fn loops(self, slot: usize) -> String {
        let (name, origin, store) = (self.name(), 2 * slot, 2 * slot + 1);
        format!("losetup /dev/loop{origin} /mnt/{name}.origin\nlosetup /dev/loop{store} /mnt/{name}.store\n")
    }

    /// Guest script: makes the device of one side.
    fn create(self, slot: usize, side: char) -> String {
        let table = self.table(side, &format!("/dev/loop{}", 2 * slot), &format!("/dev/loop{}", 2 * slot + 1));
        let name = self.name();
        format!("echo '{table}' | dmsetup create {name}{side} --noudevsync\ndmsetup mknodes {name}{side}\n")
    }

    /// Guest script: the load of one side, `rounds` rounds of it or (0) until it is killed.
    fn load(self, side: char, rounds: u64) -> String {
        let Churn { seed, sectors, grain } = self.churn(side);
        format!("guest-load {0}{side} /dev/mapper/{0}{side} {seed} {sectors} {grain} {rounds}", self.name())
    }

    /// Guest script: prints the hash of one side, and its status.
    fn hash(self, side: char) -> String {
        format!("echo {0}{side} hash $(sha256sum </dev/mapper/{0}{side})\ndmsetup status {0}{side}\n", self.name())
    }

    fn hash_in(self, side: char, output: &str) -> String {
        let start = format!("{}{side} hash ", self.name());
        let line = output.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in\n{output}")).chars().take(64).collect()
    }

    fn round_in(self, side: char, output: &str, word: &str) -> u64 {
        let start = format!("{}{side} {word} ", self.name());
        output.lines().filter_map(|line| line.strip_prefix(&start)?.parse().ok()).max().unwrap_or(0)
    }

    /// Panics unless every sector of one side holds its last flushed version or a later one.
    fn judge(self, side: char, whole: &[u8], flushed: u64, started: u64) {
        let allowed = self.churn(side).allowed(flushed, started);
        assert_eq!(whole.len(), allowed.len() * SECTOR, "{}{side}: size", self.name());
        for ((sector, bytes), allowed) in (0_u64..).zip(whole.chunks_exact(SECTOR)).zip(&allowed) {
            let found = pattern::version_of(bytes, sector).map(|version| if version == BEFORE { 0 } else { version });
            assert!(
                found.is_some_and(|version| allowed.contains(&version)),
                "{}{side}: sector {sector} holds {found:?} and may hold {allowed:?}",
                self.name()
            );
        }
    }
}

fn prepare(cases: &[Case]) -> Scratch {
    let scratch = Scratch::in_memory();
    copy_load(&scratch);
    for case in cases {
        case.make(&scratch);
    }
    scratch
}

fn copy_load(scratch: &Scratch) {
    std::fs::copy(env!("CARGO_BIN_EXE_guest-load"), scratch.file("guest-load")).expect("the load program was built");
}

fn script(cases: &[Case], lines: impl Fn(usize, Case) -> String) -> String {
    cases.iter().enumerate().map(|(slot, case)| lines(slot, *case)).collect()
}

/// Guest script: both sides of every case.
fn attach(cases: &[Case]) -> String {
    script(cases, |slot, case| case.loops(slot) + &case.create(slot, 's') + &case.create(slot, 'o'))
}

fn hashes(cases: &[Case]) -> String {
    script(cases, |_, case| case.hash('o') + &case.hash('s'))
}

fn detach(cases: &[Case]) -> String {
    script(cases, |_, case| format!("dmsetup remove {0}o --noudevsync\ndmsetup remove {0}s --noudevsync\n", case.name()))
}

/// What a kernel sees in copies of the files; the originals stay as they are.
fn seen_by_the_kernel(cases: &[Case], from: &Scratch) -> String {
    let copies = Scratch::in_memory();
    for case in cases {
        run::ok(60, &["cp", "--sparse=always", &case.origin(from), &case.store(from), &copies.file("")]);
    }
    Guest::new(copies.path()).run(&(attach(cases) + &hashes(cases)))
}

/// One server for these sides of every case.
fn serve(cases: &[Case], scratch: &Scratch, sides: &[char]) -> Server {
    let socket = scratch.file("nbd.sock");
    let mut config = format!("control = \"{}\"\n", scratch.file("control.sock"));
    for case in cases {
        for side in sides {
            let (name, table) = (case.name(), case.table(*side, &case.origin(scratch), &case.store(scratch)));
            let uri = format!("nbd+unix:///{name}{side}?socket={socket}");
            let _ = write!(config, "[[device]]\nname = \"{name}{side}\"\ntable = \"{table}\"\nexport = [\"{uri}\"]\n");
        }
    }
    let config = scratch.write("server.toml", config.as_bytes());
    Server::start(&scratch.file("server"), cases.len() * sides.len(), &["--config", &config])
}

fn uri(case: Case, side: char, scratch: &Scratch) -> String {
    format!("nbd+unix:///{}{side}?socket={}", case.name(), scratch.file("nbd.sock"))
}

/// What Forebay serves of one side: its bytes, and their hash.
fn seen_here(case: Case, side: char, scratch: &Scratch) -> (Vec<u8>, String) {
    let whole = scratch.file("served.whole");
    run::ok(60, &["nbdcopy", &uri(case, side, scratch), &whole]);
    (std::fs::read(&whole).expect("nbdcopy wrote it"), run::sha256(Path::new(&whole)))
}

/// Holds what Forebay serves of both sides against what the kernel said and what was written.
fn compare(cases: &[Case], scratch: &Scratch, kernel: &str, rounds: impl Fn(Case, char) -> (u64, u64)) {
    let server = serve(cases, scratch, &['o', 's']);
    for case in cases {
        for side in ['o', 's'] {
            let (whole, hash) = seen_here(*case, side, scratch);
            let (flushed, started) = rounds(*case, side);
            case.judge(side, &whole, flushed, started);
            assert_eq!(hash, case.hash_in(side, kernel), "{}{side}: Forebay and the kernel", case.name());
        }
    }
    server.stop();
}

#[test]
fn stores_that_the_kernel_left_cleanly_open_here_and_merge() {
    require(&["nbdcopy"]);
    let cases = Case::matrix(1);
    let scratch = prepare(&cases);
    let load = script(&cases, |_, case| case.load('o', 4) + "\n" + &case.load('s', 4) + "\n");
    let output = Guest::new(scratch.path()).run(&(attach(&cases) + &load + &hashes(&cases) + &detach(&cases)));
    assert!(!output.contains("Invalid") && !output.contains("Overflow"), "{output}");
    compare(&cases, &scratch, &output, |_, _| (4, 4));
    let server = serve(&cases, &scratch, &['m']);
    let done = || {
        let ended = forebay(&["status", "--json", "--control", &scratch.file("control.sock")]);
        let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("status is JSON");
        let lines = report["devices"].as_array().expect("a list").iter().map(|device| &device["table"][0]["status"]);
        let over = |line: &serde_json::Value| {
            let (used, metadata) = line.as_str()?.split_once(' ')?;
            Some(used.split_once('/')?.0 == metadata)
        };
        lines.map(over).all(|over| over == Some(true)).then_some(())
    };
    run::wait_for("the merges to end", Duration::from_mins(1), done);
    server.stop();
    for case in &cases {
        let merged = run::sha256(Path::new(&case.origin(&scratch)));
        assert_eq!(merged, case.hash_in('s', &output), "{}: the origin is what the snapshot was", case.name());
    }
}

#[test]
fn stores_of_a_crashed_kernel_open_here() {
    require(&["nbdcopy"]);
    let cases = Case::matrix(2);
    let scratch = prepare(&cases);
    let load = script(&cases, |_, case| case.load('o', 0) + " &\n" + &case.load('s', 0) + " &\n");
    let mut guest = Guest::new(scratch.path()).start(&(attach(&cases) + &load + "wait\n"));
    guest.wait_until("a few rounds of every device", |output| {
        let far = |case: &Case, side| case.round_in(side, output, "flushed") >= ROUNDS_BEFORE_CRASH;
        cases.iter().all(|case| far(case, 'o') && far(case, 's'))
    });
    let output = guest.crash();
    let kernel = seen_by_the_kernel(&cases, &scratch);
    let rounds = |case: Case, side| (case.round_in(side, &output, "flushed"), case.round_in(side, &output, "started"));
    compare(&cases, &scratch, &kernel, rounds);
}

/// Half of them are left cleanly, half by a killed server; the kernel also merges them.
#[test]
fn stores_made_here_open_in_the_kernel_and_merge() {
    require(&["nbdcopy"]);
    let cases = Case::matrix(3);
    let scratch = prepare(&cases);
    let (clean, killed) = cases.split_at(cases.len() / 2);
    for half in [clean, killed] {
        let server = serve(half, &scratch, &['o', 's']);
        for case in half {
            for side in ['o', 's'] {
                let mut client = Client::connect(&uri(*case, side, &scratch)).expect("the server takes a client");
                for round in 1..=4 {
                    for write in case.churn(side).round(round) {
                        client.write(write.start * SECTOR as u64, &pattern::of(&write, round), 0).expect("a write");
                    }
                    if round < 4 {
                        client.flush().expect("a flush");
                    }
                }
            }
        }
        if half[0].seed == clean[0].seed { server.stop() } else { server.kill() }
    }
    let kernel = seen_by_the_kernel(&cases, &scratch);
    assert!(!kernel.contains("Invalid") && !kernel.contains("Overflow"), "{kernel}");
    compare(&cases, &scratch, &kernel, |_, _| (4, 4));
    let merge = |slot, case: Case| {
        let name = case.name();
        let numbers = format!("dmsetup status {name}m | sed 's,/[0-9]*,,'");
        let wait = format!("while {numbers} | awk '{{ exit $4 == $5 }}'; do sleep 0.1; done\n");
        let status = format!("dmsetup status {name}m\ndmsetup remove {name}m --noudevsync\n");
        case.loops(slot) + &case.create(slot, 'm') + &wait + &status
    };
    let output = Guest::new(scratch.path()).run(&script(&cases, merge));
    assert!(!output.contains("failed"), "{output}");
    for case in &cases {
        let merged = run::sha256(Path::new(&case.origin(&scratch)));
        assert_eq!(merged, case.hash_in('s', &kernel), "{}: the origin is what the snapshot was", case.name());
    }
}
