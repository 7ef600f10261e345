//! A running server asked and told things: status, messages, suspend and resume, several devices, signals.
#![forbid(unsafe_code)]

use forebay_tests::nbd::command::WRITE;
use forebay_tests::nbd::{Client, FUA};
use forebay_tests::run::Ended;
use forebay_tests::server::forebay;
use forebay_tests::writecache::image::Layout;
use forebay_tests::{Scratch, Server, pattern, run};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A server over a cached pair, with a control socket.
struct Served {
    server: Server,
    origin: String,
    control: String,
}

fn serve(scratch: &Scratch, options: &str) -> Served {
    let origin = scratch.sparse("origin.img", 64 * MIB);
    let cache = scratch.sparse("cache.img", 16 * MIB);
    let control = scratch.file("control.sock");
    let table = format!("0 131072 writecache s {origin} {cache} 4096 {options}");
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let args = ["--table", &table, "--export", &export, "--control", &control, "--name", "vol"];
    Served { server: Server::start(&scratch.file("server"), 1, &args), origin, control }
}

impl Served {
    fn ask(&self, words: &[&str]) -> Ended {
        forebay(&[words, &["--control", &self.control]].concat())
    }

    fn told(&self, words: &[&str]) {
        let ended = self.ask(words);
        assert_eq!(ended.code, 0, "{words:?}: {}", ended.stderr);
    }

    /// The numbers of the kernel's status line: error, blocks, free, in writeback, and ten counters.
    fn line(&self) -> Vec<u64> {
        let ended = self.ask(&["status", "vol", "--line"]);
        let numbers = ended.stdout.strip_prefix("0 131072 writecache ").expect("start, length and target");
        let numbers: Vec<u64> = numbers.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        assert_eq!(numbers.len(), 14, "{}", ended.stdout);
        numbers
    }

    fn client(&self) -> Client {
        Client::connect(self.server.uri()).expect("a client is taken")
    }
}

fn write(client: &mut Client, sectors: std::ops::Range<u64>, version: u64) {
    client.write(sectors.start * 512, &pattern::of(&sectors, version), 0).expect("a write");
}

#[test]
fn status_counts_blocks_in_words_in_json_and_in_the_kernels_line() {
    let scratch = Scratch::new();
    let served = serve(&scratch, "2 autocommit_time 3600000");
    let mode = fs::metadata(&served.control).expect("the control socket exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = served.client();
    write(&mut client, 0..1024, 1); // 128 blocks
    write(&mut client, 0..64, 2); // 8 of them again
    client.flush().expect("a flush");
    client.read(0, 4096).expect("a read");
    client.read(32 * MIB, 8192).expect("a read");
    let line = served.line();
    let blocks = line[1];
    assert_eq!(blocks, Layout::of_fresh(16 * MIB, 4096, 0).blocks);
    assert_eq!(line[..4], [0, blocks, blocks - 128, 0], "error, blocks, free, in writeback");
    assert_eq!(line[4..6], [3, 1], "reads, read hits");
    assert_eq!((line[6], line[10], line[12]), (136, 128, 1), "writes, allocated, flushes");
    let json: Value = serde_json::from_str(&served.ask(&["status", "--json"]).stdout).expect("JSON");
    let cache = &json["devices"][0]["caches"][0];
    assert_eq!(json["devices"][0]["name"], "vol");
    assert_eq!((&cache["blocks"], &cache["dirty_blocks"]), (&blocks.into(), &128.into()));
    let disks = json["devices"][0]["disks"].as_array().expect("a list of disks");
    assert!(disks.iter().all(|disk| disk["requests_in"].is_u64() && disk["requests_out"].is_u64()), "{json}");
    let words = served.ask(&["status", "vol"]).stdout;
    assert!(words.contains("128 dirty") && words.contains(served.server.uri()), "{words}");
    served.told(&["message", "vol", "clear_stats"]);
    assert_eq!(served.line()[4..], [0; 10]);
    served.server.stop();
}

#[test]
fn the_message_flush_leaves_the_origin_alone_with_everything() {
    let scratch = Scratch::new();
    let served = serve(&scratch, "0");
    let mut client = served.client();
    for mib in 0..6 {
        write(&mut client, mib * 2048..mib * 2048 + 2048, mib + 1);
    }
    served.told(&["message", "vol", "flush"]);
    let line = served.line();
    assert_eq!((line[0], line[2]), (0, line[1]), "no error, everything free");
    let origin = fs::read(&served.origin).expect("the origin is readable");
    for (mib, bytes) in (0_u64..6).zip(origin.chunks_exact(1 << 20)) {
        assert!(bytes == pattern::of(&(mib * 2048..mib * 2048 + 2048), mib + 1), "MiB {mib}");
    }
    served.server.stop();
}

#[test]
fn with_the_cleaner_new_sectors_go_past_the_cache() {
    let scratch = Scratch::new();
    let served = serve(&scratch, "0");
    served.told(&["message", "vol", "cleaner"]);
    let mut client = served.client();
    write(&mut client, 80..160, 3);
    let line = served.line();
    assert_eq!((line[2], line[9]), (line[1], 10), "all free, ten blocks around the cache");
    let origin = fs::read(&served.origin).expect("the origin is readable");
    assert!(origin[80 * 512..160 * 512] == pattern::of(&(80..160), 3));
    served.server.stop();
}

#[test]
fn a_suspended_device_holds_requests_until_it_is_resumed() {
    let scratch = Scratch::new();
    let served = serve(&scratch, "0");
    write(&mut served.client(), 0..8, 1);
    served.told(&["suspend", "vol"]);
    let refused = served.ask(&["message", "vol", "flush"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("suspended"), "{}", refused.stderr);
    thread::scope(|threads| {
        let held = threads.spawn(|| {
            write(&mut served.client(), 8..16, 2);
            run::now()
        });
        run::pause(Duration::from_millis(300));
        let resumed = run::now();
        served.told(&["resume", "vol"]);
        assert!(held.join().expect("the write ends well") > resumed, "a write was answered while suspended");
    });
    let mut client = served.client();
    assert!(client.read(0, 8192).expect("a read") == [pattern::of(&(0..8), 1), pattern::of(&(8..16), 2)].concat());
    served.server.stop();
}

#[test]
fn devices_that_are_not_there_are_refused_in_a_sentence() {
    let scratch = Scratch::new();
    let served = serve(&scratch, "0");
    for words in [&["message", "other", "flush"][..], &["status", "other"], &["suspend", "other"]] {
        let ended = served.ask(words);
        assert_eq!(ended.code, 1, "{words:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{words:?}: {}", ended.stderr);
    }
    served.server.stop();
}

#[test]
fn a_toml_file_brings_several_devices_up() {
    let scratch = Scratch::new();
    let (origin, cache, plain) =
        (scratch.sparse("origin.img", 8 * MIB), scratch.sparse("cache.img", MIB), scratch.sparse("plain.img", 2 * MIB));
    let (socket, control) = (scratch.file("nbd.sock"), scratch.file("control.sock"));
    let config = format!(
        "control = \"{control}\"\n\
         [[device]]\nname = \"cached\"\ntable = \"0 16384 writecache s {origin} {cache} 512 0\"\n\
         export = [\"nbd+unix:///cached?socket={socket}\"]\n\
         [[device]]\nname = \"slow\"\nread_only = true\n\
         table = '''\n0 1024 delay {plain} 0 20\n1024 1024 linear {plain} 1024'''\nexport = [\"nbd+unix:///slow?socket={socket}\"]\n"
    );
    let config = scratch.write("forebay.toml", config.as_bytes());
    let server = Server::start(&scratch.file("server"), 2, &["--config", &config]);
    let mut cached = Client::connect(&server.uris()[0]).expect("a client is taken");
    write(&mut cached, 1..4, 1);
    let mut slow = Client::connect(&server.uris()[1]).expect("a client is taken");
    let asked = run::now();
    assert!(slow.read(0, 512).expect("a read").iter().all(|byte| *byte == 0));
    assert!(asked.elapsed() >= Duration::from_millis(20), "the delay");
    let refused = slow.write(0, &[1; 512], 0).expect_err("a read-only export");
    assert_eq!(refused.raw_os_error(), Some(1), "{refused}");
    let json = forebay(&["status", "--json", "--control", &control]).stdout;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let names: Vec<&Value> = json["devices"].as_array().expect("a list").iter().map(|device| &device["name"]).collect();
    assert_eq!(names, ["cached", "slow"]);
    drop((cached, slow));
    server.stop();
}

#[test]
fn a_killed_server_starts_again_at_once() {
    let scratch = Scratch::new();
    let (origin, cache) = (scratch.sparse("origin.img", 64 * MIB), scratch.sparse("cache.img", 16 * MIB));
    let (table, control) = (format!("0 131072 writecache s {origin} {cache} 4096 0"), scratch.file("control.sock"));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let args = ["--table", &table, "--export", &export, "--control", &control];
    for round in 1..=5 {
        let server = Server::start(&scratch.file("server"), 1, &args);
        let mut client = Client::connect(server.uri()).expect("a client is taken");
        // Nobody waits for replies, so that the server dies with requests in the kernel's hands.
        for mib in 0..32 {
            let sectors = mib * 2048..mib * 2048 + 1024;
            client.send(WRITE, FUA, mib * MIB, 512 << 10, &pattern::of(&sectors, round)).expect("a request");
        }
        server.kill();
    }
    let server = Server::start(&scratch.file("server"), 1, &args);
    assert_eq!(forebay(&["status", "--control", &control]).code, 0);
    server.stop();
}

#[test]
fn a_file_in_the_place_of_the_control_socket_is_left_alone() {
    let scratch = Scratch::new();
    let (notes, disk) = (scratch.write("notes.txt", b"kept"), scratch.sparse("disk.img", MIB));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let ended = forebay(&["serve", "--table", &format!("0 2048 linear {disk} 0"), "--export", &export, "--control", &notes]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("notes.txt exists and is not a socket"), "{}", ended.stderr);
    assert_eq!(fs::read(&notes).expect("the file is there"), b"kept");
}

#[test]
fn a_second_signal_leaves_at_once_and_loses_nothing_that_was_flushed() {
    let scratch = Scratch::new();
    // Scattered blocks of 512 bytes, written back one by one to an origin that takes 50 ms for each: three minutes.
    let (plain, cache) = (scratch.sparse("origin.img", 64 * MIB), scratch.sparse("cache.img", 16 * MIB));
    let slow_export = format!("nbd+unix:///?socket={}", scratch.file("slow.sock"));
    let slow_table = format!("0 131072 delay {plain} 0 0 {plain} 0 50");
    let slow = Server::start(&scratch.file("slow"), 1, &["--table", &slow_table, "--export", &slow_export]);
    let table = format!("0 131072 writecache s {} {cache} 512 2 writeback_jobs 1", slow.uri());
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let args = ["--table", &table, "--export", &export];
    let mut server = Server::start(&scratch.file("server"), 1, &[&args[..], &["--drain"]].concat());
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    for place in 0..4096 {
        write(&mut client, place * 16..place * 16 + 1, 1);
    }
    client.flush().expect("a flush");
    // Two signals that come at the same time may be one.
    let left = run::happens_within(Duration::from_secs(20), || {
        server.terminate();
        run::pause(Duration::from_millis(20));
        server.has_ended()
    });
    assert!(left, "a second signal changes nothing: {}", server.stderr());
    let code = server.wait().code;
    assert_eq!(code, 1, "{}{}", server.stdout(), server.stderr());
    let server = Server::start(&scratch.file("server"), 1, &args);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    for place in 0..4096 {
        let bytes = client.read(place * 16 * 512, 512).expect("a read");
        assert!(bytes == pattern::of(&(place * 16..place * 16 + 1), 1), "write {place}");
    }
    drop(client);
    server.stop();
}
