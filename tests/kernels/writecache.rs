//! The kernel's dm-writecache and Forebay open each other's caches, clean and crashed, and see the same device.
//!
//! Three opinions are compared for every pair of images: the kernel's, Forebay's, and that of `writecache::image`,
//! which knows the format on its own. Crashed guests lose what they did not flush, as in a power cut.
#![forbid(unsafe_code)]

use forebay_tests::nbd::Client;
use forebay_tests::pattern::{self, SECTOR};
use forebay_tests::server::flushes;
use forebay_tests::writecache::image::Cache;
use forebay_tests::writecache::powercut::{self, Log};
use forebay_tests::writecache::{CACHE_BYTES, Case};
use forebay_tests::{Guest, Scratch, Server, guest, require, run};
use std::path::Path;
use std::time::Duration;

/// Rounds that a guest must have flushed, for every case, before it is killed.
const ROUNDS_BEFORE_CRASH: u64 = 3;

/// Power cuts made from each recorded load.
const CUTS_PER_LOG: u64 = 2;

/// A scratch folder with the load program and a pair of files for each case.
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

fn script(cases: &[Case], lines: impl Fn(usize, &Case) -> String) -> String {
    cases.iter().enumerate().map(|(slot, case)| lines(slot, case)).collect()
}

/// What a kernel sees in copies of the pairs; the originals stay as they are.
fn seen_by_the_kernel(cases: &[Case], from: &Scratch) -> String {
    let copies = Scratch::in_memory();
    for case in cases {
        case.copy(from, &copies);
    }
    Guest::new(copies.path()).run(&script(cases, |slot, case| case.attach(slot) + &case.hash()))
}

/// What `image` sees: the bytes of the whole device, and their hash.
fn seen_by_the_reader(case: &Case, scratch: &Scratch) -> (Vec<u8>, String) {
    let whole = Cache::read(&case.cache(scratch), case.start_sector).over(&case.origin(scratch));
    let path = scratch.write("reader.whole", &whole);
    (whole, run::sha256(Path::new(&path)))
}

/// Forebay's server over the originals.
fn serve(case: &Case, scratch: &Scratch) -> Server {
    let table = case.table(&case.origin(scratch), &case.cache(scratch));
    let export = format!("nbd+unix:///{}?socket={}", case.name, scratch.file("nbd.sock"));
    Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export])
}

/// The case's load through NBD: so many rounds, with a flush after each but the last.
fn write_rounds(case: &Case, server: &Server, rounds: u64) {
    let mut client = Client::connect(server.uri()).expect("the server takes a client");
    for round in 1..=rounds {
        for write in case.churn().round(round) {
            client.write(write.start * SECTOR as u64, &pattern::of(&write, round), 0).expect("a write");
        }
        if round < rounds {
            client.flush().expect("a flush");
        }
    }
}

/// What Forebay serves from the originals.
fn seen_here(case: &Case, scratch: &Scratch) -> String {
    if std::env::var("LAB_TRIAL").is_ok() {
        return seen_by_the_reader(case, scratch).1;
    }
    require(&["nbdcopy"]);
    let server = serve(case, scratch);
    let whole = scratch.file("served.whole");
    run::ok(60, &["nbdcopy", server.uri(), &whole]);
    server.stop();
    run::sha256(Path::new(&whole))
}

#[test]
fn caches_that_the_kernel_left_cleanly_open_here() {
    let cases = Case::matrix(1);
    let scratch = prepare(&cases);
    let body = script(&cases, |slot, case| case.attach(slot) + &case.load(6) + &case.hash());
    let output = Guest::new(scratch.path()).run(&(body + &script(&cases, |_, case| case.detach()) + "wait\n"));
    for case in &cases {
        let kernel = case.hash_in(&output);
        assert_eq!(case.error_in(&output), "0", "{}: error of the kernel's device", case.name);
        let (whole, reader) = seen_by_the_reader(case, &scratch);
        case.judge(&whole, 6, 6);
        assert_eq!(reader, kernel, "{}: the format as read by hand, and the kernel", case.name);
        assert_eq!(seen_here(case, &scratch), kernel, "{}: Forebay and the kernel", case.name);
    }
}

#[test]
fn caches_of_a_crashed_kernel_open_here() {
    let cases = Case::matrix(2);
    let scratch = prepare(&cases);
    let mut body = script(&cases, |slot, case| case.attach(slot));
    body += &script(&cases, |_, case| format!("{} &\n", case.load(0).trim_end()));
    body += "wait\n";
    let mut guest = Guest::new(scratch.path()).start(&body);
    guest.wait_until("a few rounds of every case", |output| {
        cases.iter().all(|case| case.round_in(output, "flushed") >= ROUNDS_BEFORE_CRASH)
    });
    run::pause(Duration::from_millis(fastrand::u64(0..300)));
    let output = guest.crash();
    let recovered = seen_by_the_kernel(&cases, &scratch);
    for case in &cases {
        let kernel = case.hash_in(&recovered);
        let (whole, reader) = seen_by_the_reader(case, &scratch);
        case.judge(&whole, case.round_in(&output, "flushed"), case.round_in(&output, "started"));
        assert_eq!(reader, kernel, "{}: recovery by hand, and the kernel's", case.name);
        assert_eq!(seen_here(case, &scratch), kernel, "{}: Forebay's recovery and the kernel's", case.name);
    }
}

#[test]
fn caches_of_a_kernel_whose_power_was_cut_open_here() {
    let cases: Vec<Case> = Case::matrix(3).into_iter().step_by(2).collect();
    let recorded = Scratch::in_memory();
    copy_load(&recorded);
    for case in &cases {
        powercut::make(case, &recorded);
    }
    let marks = |case: &Case| format!("GUEST_LOAD_MARKS={}-log ", case.name);
    let body = script(&cases, |slot, case| powercut::attach(case, slot) + &marks(case) + &case.load(8));
    let _output = Guest::new(recorded.path()).run(&(body + &script(&cases, |_, case| powercut::detach(case)) + "wait\n"));
    let logs: Vec<Log> = cases.iter().map(|case| Log::read(case, &recorded)).collect();
    let scratch = Scratch::in_memory();
    let mut cuts = Vec::new();
    for (case, log) in cases.iter().zip(&logs) {
        for number in 0..CUTS_PER_LOG {
            let case = Case { name: format!("{}c{number}", case.name), ..case.clone() };
            let moment = fastrand::Rng::with_seed(case.seed + number).usize(log.len() / 8..log.len());
            let cut = log.cut(moment, number);
            cut.leave(&case, &scratch);
            cuts.push((case, cut));
        }
    }
    assert!(cuts.iter().any(|(_, cut)| cut.lost > 0), "the cuts lost nothing, so they prove nothing");
    let cases: Vec<Case> = cuts.iter().map(|(case, _)| case.clone()).collect();
    let recovered = seen_by_the_kernel(&cases, &scratch);
    for (case, cut) in &cuts {
        let kernel = case.hash_in(&recovered);
        let (whole, reader) = seen_by_the_reader(case, &scratch);
        case.judge(&whole, cut.flushed, cut.started);
        assert_eq!(reader, kernel, "{}: recovery by hand, and the kernel's", case.name);
        assert_eq!(seen_here(case, &scratch), kernel, "{}: Forebay's recovery and the kernel's", case.name);
    }
}

#[test]
fn caches_made_here_open_in_the_kernel_after_a_clean_stop_and_after_a_kill() {
    let cases = Case::matrix(4);
    let scratch = Scratch::in_memory();
    for (number, case) in cases.iter().enumerate() {
        case.make(&scratch);
        let server = serve(case, &scratch);
        write_rounds(case, &server, 6);
        if number % 2 == 0 {
            server.stop();
        } else {
            server.kill();
        }
    }
    let seen = seen_by_the_kernel(&cases, &scratch);
    for (number, case) in cases.iter().enumerate() {
        let kernel = case.hash_in(&seen);
        let (whole, reader) = seen_by_the_reader(case, &scratch);
        case.judge(&whole, if number % 2 == 0 { 6 } else { 5 }, 6);
        assert_eq!(reader, kernel, "{}: the format as read by hand, and the kernel", case.name);
        assert_eq!(case.error_in(&seen), "0", "{}: error of the kernel's device", case.name);
        assert_eq!(seen_here(case, &scratch), kernel, "{}: Forebay and the kernel", case.name);
    }
}

/// The newer kernel gets four pairs that were made here, and makes four pairs of its own.
#[test]
fn a_newer_kernel_and_forebay_open_each_others_caches() {
    let cases: Vec<Case> =
        Case::matrix(6).into_iter().enumerate().filter(|(number, _)| number % 3 != 0).map(|(_, case)| case).collect();
    let (ours, theirs) = cases.split_at(4);
    let (scratch, copies) = (Scratch::new(), Scratch::new());
    for case in &cases {
        case.make(&scratch);
    }
    for case in ours {
        let server = serve(case, &scratch);
        write_rounds(case, &server, 4);
        server.stop();
        case.copy(&scratch, &copies);
    }
    let mut images = Vec::new();
    let mut body = String::new();
    for (slot, case) in (0_u8..).zip(&cases) {
        let device = |number| format!("/dev/vd{}", char::from(b'a' + 2 * slot + number));
        body += &case.create(&device(0), &device(1));
        if slot >= 4 {
            body += &case.load(4);
        }
        body += &case.hash();
        let pair = if slot < 4 { &copies } else { &scratch };
        images.extend([case.origin(pair), case.cache(pair)]);
    }
    body += &script(&cases, |_, case| case.detach());
    // One more disk is served by us: what its guest makes durable must arrive here as flushes.
    let (control, export) = (scratch.file("control.sock"), format!("nbd+unix:///?socket={}", scratch.file("nbd.sock")));
    let words = ["--table", "0 8192 linear ram:4M 0", "--export", &export, "--control", &control];
    let counting = Server::start(&scratch.file("counting"), 1, &words);
    images.push(counting.uri().to_owned());
    body += "guest-load counted /dev/vdq 1 8192 8 40\n";
    let output = guest::run_in_newer_kernel(&scratch, env!("CARGO_BIN_EXE_guest-load"), &images, &(body + "wait\nsync\n"));
    let rounds = output.lines().filter(|line| line.starts_with("counted flushed ")).count();
    let arrived = flushes(&control, 0);
    assert!(rounds == 39 && arrived >= 39, "{arrived} flushes arrived of {rounds} that the guest's kernel said were done");
    counting.stop();
    for case in ours.iter().chain(theirs) {
        let kernel = case.hash_in(&output);
        assert_eq!(case.error_in(&output), "0", "{}: error of the kernel's device", case.name);
        let (whole, reader) = seen_by_the_reader(case, &scratch);
        case.judge(&whole, 4, 4);
        assert_eq!(reader, kernel, "{}: the format as read by hand, and the kernel", case.name);
        assert_eq!(seen_here(case, &scratch), kernel, "{}: Forebay and the kernel", case.name);
    }
}

#[test]
fn a_fresh_cache_is_the_same_byte_for_byte() {
    let cases = Case::matrix(5);
    let (kernels, ours) = (prepare(&cases), prepare(&cases));
    let body = script(&cases, |slot, case| case.attach(slot)) + &script(&cases, |_, case| case.detach());
    let _output = Guest::new(kernels.path()).run(&(body + "wait\n"));
    for case in &cases {
        serve(case, &ours).stop();
        let by_hand = Cache::fresh(CACHE_BYTES, case.block_size, case.start_sector, 0);
        let metadata = by_hand.layout.superblock_at()..by_hand.layout.entry_at(by_hand.layout.blocks);
        for (whose, scratch) in [("the kernel's", &kernels), ("ours", &ours)] {
            let bytes = std::fs::read(case.cache(scratch)).expect("the cache was made");
            assert!(bytes[metadata.clone()] == by_hand.bytes()[metadata.clone()], "{}: {whose} fresh metadata", case.name);
        }
    }
}
