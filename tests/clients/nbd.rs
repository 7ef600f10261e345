//! The clients that people use, against a cached device: libnbd's tools, QEMU's, and a client that misbehaves.
#![forbid(unsafe_code)]

use forebay_tests::nbd::{Client, FUA, command};
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, pattern, require, run};
use serde_json::Value;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const MIB: u64 = 1 << 20;
const ORIGIN: u64 = 64 * MIB;

/// A cached device of 64 MiB, with a cache of a quarter of that.
fn serve(scratch: &Scratch) -> Server {
    let (origin, cache) = (scratch.file("origin.img"), scratch.file("cache.img"));
    if !Path::new(&origin).exists() {
        let _path = scratch.sparse("origin.img", ORIGIN);
        let _path = scratch.sparse("cache.img", ORIGIN / 4);
    }
    let table = format!("0 {} writecache s {origin} {cache} 4096 0", ORIGIN / 512);
    let export = format!("nbd+unix:///disk?socket={}", scratch.file("nbd.sock"));
    Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export])
}

/// What `nbdinfo --map` says: where data begins and how long it is. The rest must be holes that read as zeroes.
fn data_of(server: &Server) -> Vec<(u64, u64)> {
    let json: Value = serde_json::from_str(&run::ok(20, &["nbdinfo", "--map", "--json", server.uri()])).expect("JSON");
    let mut data = Vec::new();
    let mut end = 0;
    for piece in json.as_array().expect("a list") {
        let number = |name| piece[name].as_u64().expect("a number");
        assert_eq!(number("offset"), end, "pieces follow one another: {json}");
        match number("type") {
            0 => data.push((end, number("length"))),
            kind => assert_eq!(kind, 3, "hole and zero: {json}"),
        }
        end += number("length");
    }
    assert_eq!(end, ORIGIN, "the map covers the device: {json}");
    data
}

/// An image with data and holes: random bytes in every other run of 384 KiB.
fn image(scratch: &Scratch) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let run = 384 * 1024;
    let mut bytes = vec![0; usize::try_from(ORIGIN).expect("64 MiB fit in memory")];
    for chunk in bytes.chunks_mut(run).step_by(2) {
        random.fill(chunk);
    }
    scratch.write("image", &bytes)
}

#[test]
fn nbdinfo_sees_size_and_abilities() {
    require(&["nbdinfo"]);
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let json = run::ok(20, &["nbdinfo", "--json", server.uri()]);
    for fact in [
        "\"export-size\": 67108864",
        "\"is_read_only\": false",
        "\"can_flush\": true",
        "\"can_fua\": true",
        "\"can_trim\": true",
        "\"can_zero\": true",
        "\"can_cache\": true",
        "\"can_df\": true",
        "\"can_multi_conn\": true",
        "\"base:allocation\"",
    ] {
        assert!(json.contains(fact), "nbdinfo does not say {fact}: {json}");
    }
    assert!(run::ok(20, &["nbdinfo", "--list", server.uri()]).contains("export=\"disk\""));
    let map = run::ok(20, &["nbdinfo", "--map", "--totals", server.uri()]);
    let total: u64 = map.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum();
    assert_eq!(total, ORIGIN, "the map covers the device: {map}");
    server.stop();
}

#[test]
fn clients_see_holes_where_nothing_was_written_and_where_it_was_taken_away() {
    require(&["nbdinfo", "qemu-img", "qemu-io"]);
    let scratch = Scratch::new();
    let server = serve(&scratch);
    assert_eq!(data_of(&server), []);
    let change = |script: &[&str]| {
        let words: Vec<&str> = script.iter().flat_map(|line| ["-c", line]).collect();
        run::ok(60, &[&["qemu-io", "-f", "raw"], &words[..], &[server.uri()]].concat());
    };
    change(&["write -P 1 8M 2M", "write -P 2 20M 4k", "flush"]);
    let data = [(8 * MIB, 2 * MIB), (20 * MIB, 4096)];
    assert_eq!(data_of(&server), data);
    let told = run::ok(60, &["qemu-img", "map", "--output=json", "-f", "raw", server.uri()]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let told = told.as_array().expect("a list").iter();
    let told: Vec<_> =
        told.filter(|piece| piece["data"] == true).map(|piece| (piece["start"].as_u64(), piece["length"].as_u64())).collect();
    assert_eq!(told, data.map(|(start, length)| (Some(start), Some(length))));
    // A killed server has its data in the cache, and nothing of it on the origin.
    server.kill();
    let server = serve(&scratch);
    assert_eq!(data_of(&server), data);
    let change = |script: &str| run::ok(60, &["qemu-io", "-f", "raw", "-d", "unmap", "-c", script, server.uri()]);
    change("discard 8M 1M");
    change("write -z -u 9M 512k");
    change("write -z 20M 4k");
    assert_eq!(data_of(&server)[..1], [(9 * MIB + MIB / 2, MIB / 2)]);
    server.stop();
}

#[test]
fn nbdcopy_reads_and_writes_no_holes() {
    require(&["nbdcopy", "nbdinfo"]);
    let scratch = Scratch::new();
    let image = scratch.sparse("image", ORIGIN);
    let mut file = fs::File::options().write(true).open(&image).expect("it was made");
    for place in [3, 17, 50] {
        file.seek(SeekFrom::Start(place * MIB)).expect("a file seeks");
        file.write_all(&pattern::of(&(place * 2048..(place + 1) * 2048), 1)).expect("a write");
    }
    let disk = scratch.sparse("disk", ORIGIN);
    let control = scratch.file("control.sock");
    let table = format!("0 {} linear {disk} 0", ORIGIN / 512);
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let server = Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export, "--control", &control]);
    run::ok(60, &["nbdcopy", "--flush", "--destination-is-zero", &image, server.uri()]);
    assert_eq!(data_of(&server), [(3 * MIB, MIB), (17 * MIB, MIB), (50 * MIB, MIB)]);
    let copy = scratch.file("copy");
    run::ok(60, &["nbdcopy", server.uri(), &copy]);
    assert_eq!(run::sha256(Path::new(&image)), run::sha256(Path::new(&copy)));
    let status = forebay(&["status", "--json", "--control", &control]).stdout;
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let read = status["devices"][0]["exports"][0]["read_bytes"].as_u64();
    assert_eq!(read, Some(3 * MIB), "{status}");
    server.stop();
}

#[test]
fn nbdcopy_brings_back_what_it_took_in_also_after_a_restart() {
    require(&["nbdcopy", "qemu-img"]);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let server = serve(&scratch);
    run::ok(120, &["nbdcopy", "--flush", &image, server.uri()]);
    let copy = scratch.file("copy");
    run::ok(120, &["nbdcopy", server.uri(), &copy]);
    assert_eq!(run::sha256(Path::new(&image)), run::sha256(Path::new(&copy)));
    run::ok(120, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &image, server.uri()]);
    server.stop();
    let server = serve(&scratch);
    run::ok(120, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &image, server.uri()]);
    server.kill();
    let server = serve(&scratch);
    run::ok(120, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &image, server.uri()]);
    server.stop();
}

#[test]
fn qemu_img_converts_to_it_and_keeps_a_qcow2_on_it() {
    require(&["qemu-img", "qemu-io"]);
    let scratch = Scratch::new();
    let image = image(&scratch);
    let server = serve(&scratch);
    let info = run::ok(60, &["qemu-img", "info", server.uri()]);
    assert!(info.contains("64 MiB (67108864 bytes)"), "{info}");
    run::ok(120, &["qemu-img", "convert", "-n", "-W", "-f", "raw", "-O", "raw", &image, server.uri()]);
    run::ok(120, &["qemu-img", "compare", "-f", "raw", "-F", "raw", &image, server.uri()]);
    run::ok(60, &["qemu-img", "create", "-q", "-f", "qcow2", server.uri(), "40M"]);
    let write = ["-c", "write -P 17 1M 3M", "-c", "write -P 18 3M 64k", "-c", "flush"];
    run::ok(60, &[&["qemu-io", "-f", "qcow2"], &write[..], &[server.uri()]].concat());
    let check = run::ok(60, &["qemu-img", "check", "-f", "qcow2", server.uri()]);
    assert!(check.contains("No errors were found"), "{check}");
    server.kill();
    let server = serve(&scratch);
    let read = ["-c", "read -P 17 1M 2M", "-c", "read -P 18 3M 64k", "-c", "read -P 0 8M 1M"];
    let said = run::ok(60, &[&["qemu-io", "-f", "qcow2"], &read[..], &[server.uri()]].concat());
    assert!(!said.contains("Pattern verification failed"), "{said}");
    server.stop();
}

#[test]
fn qemu_io_reads_what_it_wrote_at_every_alignment() {
    require(&["qemu-io"]);
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let script = [
        "write -P 1 0 1M",
        "write -P 2 512 512",
        "write -P 3 4608 3584",
        "write -P 4 65535 3",
        "write -z 131072 8k",
        "write -z -u 262144 64k",
        "discard 524288 64k",
        "aio_write -P 5 2M 1M",
        "aio_write -P 6 3M 1M",
        "aio_flush",
        "write -f -P 7 4M 512",
        "flush",
        "read -P 1 0 512",
        "read -P 2 512 512",
        "read -P 1 1024 3584",
        "read -P 3 4608 3584",
        "read -P 1 8192 57343",
        "read -P 4 65535 3",
        "read -P 0 131072 8k",
        "read -P 0 262144 64k",
        "read -P 1 139264 1k",
        "read -P 5 2M 1M",
        "read -P 6 3M 1M",
        "read -P 7 4M 512",
        "read -P 0 4194816 512",
    ];
    let mut words = vec!["qemu-io", "-f", "raw"];
    for line in script {
        words.extend(["-c", line]);
    }
    words.push(server.uri());
    let said = run::ok(60, &words);
    assert!(!said.contains("failed"), "{said}");
    server.stop();
}

#[test]
fn every_command_at_every_bound_matches_a_model() {
    require(&["/usr/bin/python3", "/usr/lib/python3/dist-packages/nbd.py"]);
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lab/nbd_bounds.py");
    let said = run::ok(300, &["/usr/bin/python3", script, server.uri()]);
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 2 && numbers.iter().all(|number| *number > 300), "{said}");
    server.stop();
}

#[test]
fn a_flush_on_one_connection_covers_writes_on_all() {
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(server.uri()).expect("a client is taken")).collect();
    for (place, client) in (0..).zip(&mut clients) {
        client.write(place * MIB, &pattern::of(&(place * 2048..place * 2048 + 256), 1), 0).expect("a write");
    }
    clients[3].flush().expect("a flush");
    for (place, client) in (0..).zip(&mut clients) {
        let next = (place + 1) % 8;
        let bytes = client.read(next * MIB, 128 * 1024).expect("a read");
        assert!(bytes == pattern::of(&(next * 2048..next * 2048 + 256), 1), "what another connection wrote");
    }
    server.kill();
    let server = serve(&scratch);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    for place in 0..8 {
        let bytes = client.read(place * MIB, 128 * 1024).expect("a read");
        assert!(bytes == pattern::of(&(place * 2048..place * 2048 + 256), 1), "write {place} after the kill");
    }
    server.stop();
}

#[test]
fn a_write_with_fua_is_durable_when_it_is_answered() {
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    client.write(8192, &pattern::of(&(16..24), 9), FUA).expect("a write");
    server.kill();
    let server = serve(&scratch);
    let mut client = Client::connect(server.uri()).expect("a client is taken");
    assert!(client.read(8192, 4096).expect("a read") == pattern::of(&(16..24), 9));
    server.stop();
}

#[test]
fn a_client_that_leaves_in_the_middle_harms_nobody_and_a_half_write_is_never_applied() {
    let scratch = Scratch::new();
    let server = serve(&scratch);
    let mut steady = Client::connect(server.uri()).expect("a client is taken");
    steady.write(0, &pattern::of(&(0..2048), 1), 0).expect("a write");
    for round in 0..20_u64 {
        let mut leaver = Client::connect(server.uri()).expect("a client is taken");
        for place in 0..32 {
            leaver.send(command::WRITE, 0, (32 + place) * MIB / 2, 4096, &pattern::of(&(0..8), 2)).expect("a request");
            leaver.send(command::READ, 0, place * 4096, 4096, &[]).expect("a request");
        }
        // The header announces 1 MiB over what `steady` wrote; half of it arrives.
        leaver.send(command::WRITE, 0, 0, 1 << 20, &pattern::of(&(0..1024), 3)).expect("a request");
        drop(leaver);
        let bytes = steady.read(round * 4096, 4096).expect("the others are served");
        assert!(bytes == pattern::of(&(round * 8..round * 8 + 8), 1), "round {round}");
    }
    assert!(steady.read(0, 1 << 20).expect("a read") == pattern::of(&(0..2048), 1));
    server.stop();
}
