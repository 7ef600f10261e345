//! NBD servers as devices of a stack: our own, nbdkit and qemu-nbd, healthy, failing, slow, and killed.
#![forbid(unsafe_code)]

use forebay_tests::foreign::{Peer, fio};
use forebay_tests::nbd::Client;
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, require, run};
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// The URI of the default export at `socket`.
fn uri(socket: &str) -> String {
    format!("nbd+unix:///?socket={socket}")
}

/// Serves `table` at `name.sock`.
fn serve(scratch: &Scratch, name: &str, table: &str) -> Server {
    let export = format!("nbd+unix:///{name}?socket={}", scratch.file(&format!("{name}.sock")));
    Server::start(&scratch.file(name), 1, &["--table", table, "--export", &export])
}

/// Copies random bytes onto a device and back.
fn copy_there_and_back(scratch: &Scratch, uri: &str, bytes: u64) {
    let mut content = vec![0; usize::try_from(bytes).expect("it fits in memory")];
    fastrand::Rng::with_seed(bytes).fill(&mut content);
    let (image, back) = (scratch.write("image", &content), scratch.file("back"));
    run::ok(60, &["nbdcopy", "--flush", &image, uri]);
    run::ok(60, &["nbdcopy", uri, &back]);
    assert_eq!(run::sha256(Path::new(&image)), run::sha256(Path::new(&back)));
}

#[test]
fn a_write_cache_stands_on_an_origin_far_away() {
    require(&["nbdcopy"]);
    let scratch = Scratch::new();
    let (image, fast) = (scratch.sparse("origin.img", 32 * MIB), scratch.sparse("fast.img", 8 * MIB));
    let far = serve(&scratch, "far", &format!("0 {} linear {image} 0", 32 * MIB / 512));
    let near = serve(&scratch, "near", &format!("0 {} writecache s {} {fast} 4096 0", 32 * MIB / 512, far.uri()));
    copy_there_and_back(&scratch, near.uri(), 32 * MIB);
    near.stop();
    // What is still in the cache goes home without a server in between.
    let ended = forebay(&["cache", "flush", &fast, far.uri()]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    let there = run::ok(60, &["cmp", &scratch.file("image"), &image]);
    assert_eq!(there, "");
    let text = far.stderr();
    assert!(!text.contains("hung up on"), "the client keeps to the protocol: {text}");
    far.stop();
}

#[test]
fn servers_of_other_projects_are_devices() {
    require(&["nbdkit", "qemu-nbd", "nbdcopy"]);
    let scratch = Scratch::new();
    let (kit, qemu) = (scratch.file("kit.sock"), scratch.file("qemu.sock"));
    let image = scratch.sparse("qemu.img", 8 * MIB);
    let _kit = Peer::serve(&["nbdkit", "-f", "-U", &kit, "memory", "8M"], &kit);
    let _qemu = Peer::serve(&["qemu-nbd", "-t", "-f", "raw", "-e", "8", "-k", &qemu, &image], &qemu);
    let sectors = 8 * MIB / 512;
    let table = format!("0 {sectors} linear {} 0; {sectors} {sectors} linear {} 0", uri(&kit), uri(&qemu));
    let near = serve(&scratch, "near", &table);
    copy_there_and_back(&scratch, near.uri(), 16 * MIB);
    near.stop();
    // What is on the one is the second half of what was copied.
    let half = run::ok(20, &["sh", "-c", &format!("tail -c {} {} | cmp - {image} && echo same", 8 * MIB, scratch.file("image"))]);
    assert_eq!(half.trim(), "same");
}

#[test]
fn errors_of_a_server_are_those_of_its_clients_and_only_while_they_last() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let (socket, errors) = (scratch.file("kit.sock"), scratch.file("errors"));
    let file = format!("error-file={errors}");
    let filter = ["error=ENOSPC", "error-rate=100%", &file];
    let mut words = vec!["nbdkit", "-f", "-U", &socket, "--filter=error", "memory", "8M"];
    words.extend(filter);
    let _kit = Peer::serve(&words, &socket);
    let near = serve(&scratch, "near", &format!("0 {} linear {} 0", 8 * MIB / 512, uri(&socket)));
    let mut client = Client::connect(near.uri()).expect("it serves");
    let bytes = [7; 4096];
    client.write(0, &bytes, 0).expect("there are no errors yet");
    std::fs::write(&errors, "").expect("the folder is writable");
    let error = client.write(4096, &bytes, 0).expect_err("the server fails it");
    assert!(error.to_string().contains("28"), "no space: {error}");
    client.read(0, 4096).expect_err("the server fails it");
    std::fs::remove_file(&errors).expect("it is there");
    assert_eq!(client.read(0, 4096).expect("it is over"), bytes);
    client.write(4096, &bytes, 0).expect("it is over");
    client.flush().expect("it is over");
    near.stop();
}

#[test]
fn a_slow_server_has_many_requests_at_work() {
    require(&["nbdkit", "fio"]);
    let scratch = Scratch::new();
    let socket = scratch.file("kit.sock");
    let _kit =
        Peer::serve(&["nbdkit", "-f", "-U", &socket, "--filter=delay", "memory", "8M", "rdelay=20ms", "wdelay=20ms"], &socket);
    let near = serve(&scratch, "near", &format!("0 {} linear {} 0", 8 * MIB / 512, uri(&socket)));
    fio::verify(near.uri(), scratch.path(), "--rw=randwrite --bs=4k --iodepth=32 --size=1m --do_verify=1");
    near.stop();
}

#[test]
fn what_was_acknowledged_survives_kills_of_the_server_in_the_middle() {
    require(&["fio"]);
    let scratch = Scratch::new();
    let image = scratch.sparse("far.img", 64 * MIB);
    let table = format!("0 {} linear {image} 0", 64 * MIB / 512);
    let far = serve(&scratch, "far", &table);
    let (near_table, control) = (format!("0 {} linear {} 0", 64 * MIB / 512, far.uri()), scratch.file("control.sock"));
    let export = format!("nbd+unix:///near?socket={}", scratch.file("near.sock"));
    let words = ["--table", &near_table, "--export", &export, "--control", &control];
    let near = Server::start(&scratch.file("near"), 1, &words);
    let written = || {
        let told = forebay(&["status", "--json", "--control", &control]).stdout;
        let told: serde_json::Value = serde_json::from_str(&told).expect("status is JSON");
        told["devices"][0]["exports"][0]["written_bytes"].as_u64().expect("a number")
    };
    // fio checks what it has written while it writes on, and everything at the end.
    let job = "--rw=randwrite --bs=4k-64k --bs_unaligned=0 --iodepth=16 --size=64m --io_size=48m --rate=12m --verify_backlog=128";
    let far = std::thread::scope(|scope| {
        let mut far = far;
        let load = scope.spawn(|| fio::verify(near.uri(), scratch.path(), job));
        for part in 1..4 {
            // Kills come in the middle of the load, however late it began.
            run::wait_for("writes", Duration::from_mins(1), || (written() > part * 8 * MIB).then_some(()));
            far.kill();
            run::pause(Duration::from_millis(100));
            far = serve(&scratch, "far", &table);
        }
        load.join().expect("fio reads what it wrote");
        far
    });
    let text = near.stderr();
    assert!(text.matches("connecting again").count() >= 2, "the server was lost while it was used: {text}");
    // Nobody knows whether the killed server had made everything durable: the next flush says so, once.
    let mut client = Client::connect(near.uri()).expect("it serves");
    client.flush().expect_err("what was acknowledged before the kill may be lost");
    client.flush().expect("that was told");
    near.stop();
    far.stop();
}

#[test]
fn a_server_that_cannot_be_used_is_told_in_one_sentence() {
    let scratch = Scratch::new();
    let socket = scratch.file("nothing.sock");
    let export = format!("nbd+unix:///?socket={}", scratch.file("near.sock"));
    for (device, said) in [
        (uri(&socket), "cannot be reached: No such file or directory"),
        ("nbd://127.0.0.1:1/x".to_owned(), "cannot be reached: Connection refused"),
        ("nbds://localhost/x".to_owned(), "TLS is not supported"),
        ("nbd://localhost/x?y=1".to_owned(), "the parameter \"y\" is not known"),
    ] {
        let table = format!("0 2048 linear {device} 0");
        let ended = forebay(&["serve", "--table", &table, "--export", &export]);
        assert_ne!(ended.code, 0);
        assert!(ended.stderr.contains("table line 1: ") && ended.stderr.contains(said), "{device}: {}", ended.stderr);
    }
}

#[test]
fn copies_go_to_servers_and_come_from_them() {
    let scratch = Scratch::new();
    let mut content = vec![0; 3 << 20];
    fastrand::Rng::with_seed(5).fill(&mut content[1 << 20..2 << 20]);
    let (image, back, far_image) = (scratch.write("image", &content), scratch.file("back"), scratch.sparse("far.img", 3 * MIB));
    let far = serve(&scratch, "far", &format!("0 {} linear {far_image} 0", 3 * MIB / 512));
    for words in
        [["copy", &image, far.uri()], ["compare", &image, far.uri()], ["copy", far.uri(), &back], ["compare", &back, &image]]
    {
        let ended = forebay(&words);
        assert_eq!(ended.code, 0, "{words:?}: {}{}", ended.stdout, ended.stderr);
    }
    std::fs::write(&image, vec![1; 3 << 20]).expect("the folder is writable");
    assert_eq!(forebay(&["compare", &image, far.uri()]).code, 1, "they differ now");
    assert_eq!(forebay(&["copy", &image, &format!("{}x", far.uri())]).code, 1, "there is no such server");
    far.stop();
}

#[test]
fn pages_of_a_compressed_disk_go_far_away_and_come_back() {
    let scratch = Scratch::new();
    let image = scratch.sparse("far.img", 8 * MIB);
    let far = serve(&scratch, "far", &format!("0 {} linear {image} 0", 8 * MIB / 512));
    let (export, control) = (format!("nbd+unix:///disk?socket={}", scratch.file("disk.sock")), scratch.file("control.sock"));
    let table = format!("0 {} zram backing_dev={}", 4 * MIB / 512, far.uri());
    let disk = Server::start(&scratch.file("disk"), 1, &["--table", &table, "--export", &export, "--control", &control]);
    let mut content = vec![0; 1 << 20];
    fastrand::Rng::with_seed(9).fill(&mut content);
    let mut client = Client::connect(disk.uri()).expect("it serves");
    client.write(0, &content, 0).expect("it is healthy");
    for words in [["idle", "all"], ["writeback", "idle"]] {
        let mut all = vec!["zram", "set", "--control", &control, "disk"];
        all.extend(words);
        let ended = forebay(&all);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    let far_data = std::fs::read(&image).expect("it is there");
    assert!(far_data.iter().filter(|byte| **byte != 0).count() > 900_000, "random pages are kept far away");
    assert!(client.read(0, 1 << 20).expect("it is healthy") == content);
    disk.stop();
    far.stop();
}

/// What `nbdinfo --map` tells of an export: starts, lengths, and kinds, neighbours of one kind put together.
fn map(uri: &str) -> Vec<(u64, u64, u64)> {
    let told = run::ok(30, &["nbdinfo", "--map", uri]);
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for line in told.lines() {
        let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
        let mut number = || numbers.next().unwrap_or_else(|| panic!("a start, a length and a kind: {line}"));
        let (start, length, kind) = (number(), number(), number());
        match runs.last_mut() {
            Some(last) if last.2 == kind => last.1 += length,
            _ => runs.push((start, length, kind)),
        }
    }
    runs
}

#[test]
fn holes_of_other_servers_are_told_on() {
    require(&["nbdkit", "qemu-nbd", "qemu-img", "qemu-io", "nbdinfo"]);
    let scratch = Scratch::new();
    let (kit, qemu, image) = (scratch.file("kit.sock"), scratch.file("qemu.sock"), scratch.file("image.qcow2"));
    // Both have 1 MiB of data at 1 MiB.
    let content = format!("data=@{MIB} ( 0x07 ) * {MIB}");
    let _kit = Peer::serve(&["nbdkit", "-f", "-U", &kit, "data", &content, "size=8M"], &kit);
    run::ok(20, &["qemu-img", "create", "-q", "-f", "qcow2", &image, "8M"]);
    run::ok(20, &["qemu-io", "-f", "qcow2", "-c", "write -P 7 1M 1M", &image]);
    let _qemu = Peer::serve(&["qemu-nbd", "-t", "-f", "qcow2", "-k", &qemu, &image], &qemu);
    for (name, socket) in [("kit", &kit), ("qemu", &qemu)] {
        let near = serve(&scratch, &format!("near-{name}"), &format!("0 {} linear {} 0", 8 * MIB / 512, uri(socket)));
        assert_eq!(map(near.uri()), [(0, MIB, 3), (MIB, MIB, 0), (2 * MIB, 6 * MIB, 3)], "{name}");
        let mut client = Client::connect(near.uri()).expect("it serves");
        assert_eq!(client.read(MIB - 512, 1024).expect("it is healthy"), [[0; 512], [7; 512]].concat());
        near.stop();
    }
}

#[test]
fn a_write_cache_outlives_kills_of_the_server_of_its_origin() {
    let scratch = Scratch::new();
    // There is room for everything: a write that finds none goes to the origin, and while that is away it has no end. More
    // than 8 MiB are written back all the same.
    let (image, fast) = (scratch.sparse("origin.img", 16 * MIB), scratch.sparse("fast.img", 32 * MIB));
    let table = format!("0 {} linear {image} 0", 16 * MIB / 512);
    let mut far = serve(&scratch, "far", &table);
    let words = "4 high_watermark 25 low_watermark 20";
    let near = serve(&scratch, "near", &format!("0 {} writecache s {} {fast} 4096 {words}", 16 * MIB / 512, far.uri()));
    let mut content = vec![0; 16 << 20];
    fastrand::Rng::with_seed(16).fill(&mut content);
    let mut client = Client::connect(near.uri()).expect("it serves");
    let piece = 1 << 18;
    for (at, bytes) in content.chunks(piece).enumerate() {
        let mut write = || client.write((at * piece) as u64, bytes, 0).expect("the cache takes it");
        if at % 20 != 10 {
            write();
            continue;
        }
        // While the server is away, writes go to the fast device.
        far.kill();
        write();
        far = serve(&scratch, "far", &table);
        // Nobody knows whether the killed server had made everything durable that it was sent: that is told once.
        let _ = client.flush();
        client.flush().expect("that was told");
    }
    client.flush().expect("everything is there");
    assert!(client.read(0, 16 << 20).expect("it is healthy") == content);
    let home = || std::fs::read(&image).expect("it is there");
    run::wait_for("the cache to write back", Duration::from_mins(1), || {
        let same = home().chunks(4096).zip(content.chunks(4096)).filter(|(there, here)| there == here).count();
        (same >= 1024).then_some(())
    });
    near.stop();
    let ended = forebay(&["cache", "flush", &fast, far.uri()]);
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(home() == content, "everything went home");
    far.stop();
}

#[test]
fn a_clone_takes_over_what_is_far_away() {
    require(&["nbdcopy"]);
    let scratch = Scratch::new();
    let mut content = vec![0; 16 << 20];
    fastrand::Rng::with_seed(17).fill(&mut content[4 << 20..12 << 20]);
    let source = scratch.write("source.img", &content);
    let (metadata, destination) = (scratch.sparse("metadata.img", MIB), scratch.sparse("destination.img", 16 * MIB));
    let sectors = 16 * MIB / 512;
    let far = serve(&scratch, "far", &format!("0 {sectors} linear {source} 0"));
    let table = format!("0 {sectors} clone {metadata} {destination} {} 128", far.uri());
    let near = serve(&scratch, "near", &table);
    let mut client = Client::connect(near.uri()).expect("it serves");
    let bytes = vec![9; 100 << 10];
    client.write(5 << 20, &bytes, 0).expect("it is healthy");
    content[5 << 20..][..bytes.len()].copy_from_slice(&bytes);
    assert!(client.read(0, 16 << 20).expect("it is healthy") == content, "from here and from there");
    client.flush().expect("it is healthy");
    // A source that goes away and comes back is waited for.
    far.kill();
    let far = serve(&scratch, "far", &format!("0 {sectors} linear {source} 0"));
    run::wait_for("everything to be here", Duration::from_mins(1), || {
        (std::fs::read(&destination).expect("it is there") == content).then_some(())
    });
    let back = scratch.file("back");
    run::ok(60, &["nbdcopy", near.uri(), &back]);
    assert!(std::fs::read(&back).expect("it was copied") == content);
    near.stop();
    far.stop();
}
