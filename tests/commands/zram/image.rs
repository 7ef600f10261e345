//! Images of the compressed RAM disk: saved and restored, torn, rotten, and on a full file system.

use forebay_tests::foreign::unmount;
use forebay_tests::nbd::{Client, command};
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, require_root, run};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{MIB, attribute, serve, status};

/// Data of which half compresses, a little zero, by a seed.
fn data(seed: u64, mib: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; usize::try_from(mib * MIB).expect("small")];
    for page in bytes.chunks_mut(4096) {
        let noise = [0, 1638, 1638, 4096][rng.usize(0..4)];
        page[..noise].fill_with(|| rng.u8(..));
    }
    bytes
}

fn write(server: &Server, bytes: &[u8]) {
    let mut client = Client::connect(server.uri()).expect("the server takes a client");
    for (at, piece) in (0..).zip(bytes.chunks(1 << 20)) {
        client.write(at * MIB, piece, 0).expect("a write");
    }
}

fn read(server: &Server, mib: u64) -> Vec<u8> {
    let mut client = Client::connect(server.uri()).expect("the server takes a client");
    (0..mib).flat_map(|at| client.read(at * MIB, 1 << 20).expect("a read")).collect()
}

#[test]
fn a_disk_with_an_image_loses_nothing_when_its_server_is_restarted() {
    let scratch = Scratch::new();
    let (image, backing) = (scratch.file("disk.img"), scratch.sparse("backing", 32 * MIB));
    let options = format!("image={image} backing_dev={backing}");
    let server = serve(&scratch, 16, &options);
    let first = data(1, 12);
    write(&server, &first);
    assert_eq!(attribute(&scratch, &["set", "disk", "writeback", "huge"]).code, 0);
    let before = status(&scratch);
    assert!(before["backing_blocks"].as_u64().is_some_and(|blocks| blocks > 300), "{before}");
    server.stop();
    assert!(!Path::new(&format!("{image}.new")).exists());

    let server = serve(&scratch, 16, &options);
    let after = status(&scratch);
    for name in ["original_bytes", "compressed_bytes", "used_bytes", "same_pages", "backing_blocks"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    assert!(read(&server, 12) == first);
    let second = data(2, 3);
    write(&server, &second);
    // Killed, it has what it had when it last ended.
    server.kill();
    let server = serve(&scratch, 16, &options);
    assert!(read(&server, 12) == first);
    write(&server, &second);
    server.stop();
    // A disk that nobody changed is not saved again: the file is the same one, not only the same bytes.
    let file = || std::fs::metadata(&image).expect("the image is there").ino();
    let before = file();
    let server = serve(&scratch, 16, &format!("algo=zstd image={image}"));
    assert!(read(&server, 12) == [&second[..], &first[second.len()..]].concat());
    server.stop();
    assert_eq!(file(), before);
}

#[test]
fn an_image_that_is_damaged_cut_off_or_foreign_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    let image = scratch.file("disk.img");
    let server = serve(&scratch, 8, "");
    write(&server, &data(3, 4));
    assert_eq!(attribute(&scratch, &["save", "disk", &image]).code, 0);
    server.stop();
    let whole = std::fs::read(&image).expect("the image is there");
    let mut rotten = whole.clone();
    rotten[whole.len() / 2] ^= 1;
    let mut torn = whole.clone();
    torn[whole.len() / 3..].fill(0);
    let later = scratch.file("later.img");
    for (what, bytes, sentence) in [
        ("rotten", rotten, "is damaged in section"),
        ("torn", torn, "is damaged in section"),
        ("cut off", whole[..whole.len() - 1000].to_vec(), "bytes and was saved with"),
        ("foreign", b"#!/bin/sh\n".repeat(100), "is no image of a compressed RAM disk"),
        ("empty", Vec::new(), "is no image of a compressed RAM disk"),
    ] {
        std::fs::write(&image, &bytes).expect("a scratch file is writable");
        let table = format!("0 {} zram image={image}", 8 * MIB / 512);
        let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
        let ended = forebay(&["serve", "--table", &table, "--export", &export]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (1, 1), "{what}: {}", ended.stderr);
        assert!(ended.stderr.contains(sentence), "{what}: {}", ended.stderr);
        assert!(std::fs::read(&image).expect("it is still there") == bytes, "{what}");
        // A disk that is served refuses it as well, and stays what it was: empty.
        let server = serve(&scratch, 8, "");
        let ended = attribute(&scratch, &["restore", "disk", &image]);
        assert!(ended.code == 1 && ended.stderr.contains(sentence), "{what}: {}", ended.stderr);
        assert_eq!(status(&scratch)["original_bytes"], 0);
        assert_eq!(attribute(&scratch, &["save", "disk", &later]).code, 0);
        server.stop();
    }
    std::fs::write(&image, &whole).expect("a scratch file is writable");
    let server = serve(&scratch, 8, "");
    assert_eq!(attribute(&scratch, &["restore", "disk", &image]).code, 0);
    assert!(read(&server, 4) == data(3, 4));
    let ended = attribute(&scratch, &["restore", "disk", &image]);
    assert!(ended.code == 1 && ended.stderr.contains("only an empty one"), "{}", ended.stderr);
    server.stop();
}

#[test]
fn a_full_file_system_leaves_the_image_that_was_there_or_none() {
    require_root();
    let scratch = Scratch::new();
    let (folder, options) = (scratch.file("small"), "size=3M");
    std::fs::create_dir(&folder).expect("a scratch folder is writable");
    run::ok(20, &["mount", "-t", "tmpfs", "-o", options, "small", &folder]);
    let image = format!("{folder}/disk.img");
    let server = serve(&scratch, 16, &format!("image={image}"));
    let small = data(4, 2);
    write(&server, &small);
    assert_eq!(attribute(&scratch, &["save", "disk", &image]).code, 0);
    let before = run::sha256(image.as_ref());
    let mut server = server;
    write(&server, &data(5, 12));
    for name in [&image, &format!("{folder}/other.img")] {
        let ended = attribute(&scratch, &["save", "disk", name]);
        assert!(ended.code == 1 && ended.stderr.contains("No space left"), "{}", ended.stderr);
    }
    let mut client = Client::connect(server.uri()).expect("the server is there");
    client.simple(command::TRIM, 0, 0, 4096).expect("the disk takes changes again");
    drop(client);
    server.terminate();
    let ended = server.wait();
    assert!(ended.code == 1 && ended.stderr.contains("No space left"), "{}", ended.stderr);
    assert_eq!(run::sha256(image.as_ref()), before);
    let names: Vec<_> =
        std::fs::read_dir(&folder).expect("it is mounted").map(|entry| entry.expect("listed").file_name()).collect();
    assert_eq!(names, ["disk.img"]);
    let server = serve(&scratch, 16, "");
    assert_eq!(attribute(&scratch, &["restore", "disk", &image]).code, 0);
    assert!(read(&server, 2) == small);
    server.stop();
    unmount(&folder);
}
