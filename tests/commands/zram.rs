//! The compressed RAM disk of the real binary: fio's checksums, copies by libnbd, and what status says.
//! Images are in `image`.
#![forbid(unsafe_code)]

use forebay_tests::foreign::{Attached, fio, unmount};
use forebay_tests::nbd::{Client, command};
use forebay_tests::server::forebay;
use forebay_tests::{Scratch, Server, require, require_root, run};

#[path = "zram/image.rs"]
mod image;

const MIB: u64 = 1 << 20;

/// A disk of `mib` MiB with the given options.
fn serve(scratch: &Scratch, mib: u64, options: &str) -> Server {
    let table = format!("0 {} zram {options}", mib * MIB / 512);
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let control = scratch.file("control.sock");
    Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export, "--control", &control])
}

/// The only disk's numbers.
fn status(scratch: &Scratch) -> serde_json::Value {
    let ended = forebay(&["status", "--json", "--control", &scratch.file("control.sock")]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let mut report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("status is JSON");
    report["devices"][0]["zrams"][0].take()
}

#[test]
fn what_fio_writes_it_reads_back_with_every_codec() {
    require(&["fio"]);
    for algorithm in ["lz4", "zstd", "deflate", "store"] {
        let scratch = Scratch::new();
        let server = serve(&scratch, 64, &format!("algo={algorithm}"));
        fio::verify(
            server.uri(),
            scratch.path(),
            "--rw=randrw --bsrange=512-256k --iodepth=16 --size=48m --buffer_compress_percentage=60",
        );
        fio::verify(server.uri(), scratch.path(), "--rw=randwrite --bs=4k --iodepth=4 --size=16m");
        let status = status(&scratch);
        assert_eq!((&status["algorithm"], &status["failed_reads"]), (&algorithm.into(), &0.into()), "{status}");
        server.stop();
    }
}

#[test]
fn a_copied_image_comes_back_the_same_and_takes_less_memory_than_it_has() {
    require(&["nbdcopy"]);
    let scratch = Scratch::new();
    let server = serve(&scratch, 16, "");
    let mut rng = fastrand::Rng::with_seed(11);
    let image: Vec<u8> = (0..4096)
        .flat_map(|_| {
            let mut page = vec![0; 4096];
            page[..1638].fill_with(|| rng.u8(..));
            page
        })
        .collect();
    let path = scratch.write("image", &image);
    run::ok(60, &["nbdcopy", &path, server.uri()]);
    let status = status(&scratch);
    assert_eq!(status["original_bytes"], 16 * MIB);
    assert!(status["memory_bytes"].as_u64().unwrap() < 9 * MIB, "{status}");
    let back = scratch.file("back");
    run::ok(60, &["nbdcopy", server.uri(), &back]);
    assert_eq!(run::sha256(back.as_ref()), run::sha256(path.as_ref()));
    let mut client = Client::connect(server.uri()).unwrap();
    client.simple(command::TRIM, 0, 0, 16 << 20).unwrap();
    assert_eq!(self::status(&scratch)["original_bytes"], 0);
    server.stop();
}

#[test]
fn over_the_limit_a_client_is_told_that_there_is_no_space() {
    let scratch = Scratch::new();
    let server = serve(&scratch, 16, "mem_limit=1M");
    let mut client = Client::connect(server.uri()).unwrap();
    let mut rng = fastrand::Rng::with_seed(12);
    let noise: Vec<u8> = (0..MIB).map(|_| rng.u8(..)).collect();
    client.write(0, &noise, 0).unwrap();
    let error = client.write(MIB, &noise[..4096], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28), "{error}");
    client.write(MIB, &[9; 4096], 0).unwrap();
    assert!(client.read(0, 1 << 20).unwrap() == noise);
    let line = forebay(&["status", "--line", "--control", &scratch.file("control.sock")]).stdout;
    assert_eq!(line, "0 32768 zram 1052672 1048576 1048576 1048576 1048576 1 0 256 256\n");
    server.stop();
}

/// Reads or writes an attribute of the only disk.
fn attribute(scratch: &Scratch, words: &[&str]) -> forebay_tests::run::Ended {
    let control = scratch.file("control.sock");
    let mut all = vec!["zram"];
    all.extend(words);
    all.extend(["--control", &control]);
    forebay(&all)
}

#[test]
fn idle_pages_are_written_to_a_file_and_read_again_within_an_exact_limit() {
    require(&["nbdcopy"]);
    let scratch = Scratch::new();
    let file = scratch.sparse("backing", 64 * MIB);
    let server = serve(&scratch, 32, &format!("backing_dev={file}"));
    let mut rng = fastrand::Rng::with_seed(13);
    let image: Vec<u8> = (0..10 * MIB).map(|_| rng.u8(..)).collect();
    let path = scratch.write("image", &image);
    run::ok(60, &["nbdcopy", &path, server.uri()]);
    for words in [["idle", "all"], ["writeback_limit_enable", "1"], ["writeback_limit", "1002"]] {
        assert_eq!(attribute(&scratch, &["set", "disk", words[0], words[1]]).code, 0);
    }
    let ended = attribute(&scratch, &["set", "disk", "writeback", "idle"]);
    assert_eq!((ended.code, ended.stderr.contains("(EIO)")), (1, true), "{}", ended.stderr);
    assert_eq!(attribute(&scratch, &["get", "disk", "bd_stat"]).stdout, "    1002        0     1002\n");
    assert_eq!(attribute(&scratch, &["set", "disk", "writeback_limit_enable", "0"]).code, 0);
    assert_eq!(attribute(&scratch, &["set", "disk", "writeback", "idle"]).code, 0);
    let status = status(&scratch);
    assert_eq!((&status["backing_blocks"], &status["used_bytes"]), (&2560.into(), &0.into()), "{status}");
    assert!(status["backing_requests"].as_u64().is_some_and(|requests| requests < 40), "{status}");
    let mut client = Client::connect(server.uri()).expect("the server is there");
    let mut back = Vec::new();
    for at in 0..10 {
        back.extend(client.read(at * MIB, 1 << 20).expect("the disk is readable"));
    }
    assert!(back == image);
    client.write(512, &[7; 1024], 0).expect("parts of pages can be written");
    assert_eq!(client.read(0, 4096).expect("and read")[..2048], [&image[..512], &[7; 1024], &image[1536..2048]].concat());
    assert_eq!(attribute(&scratch, &["get", "disk", "nonsense"]).code, 1);
    server.stop();
}

#[test]
fn packed_pages_take_fewer_blocks_and_come_back_into_memory_when_they_are_read() {
    let scratch = Scratch::new();
    let file = scratch.sparse("backing", 64 * MIB);
    let server = serve(&scratch, 32, &format!("backing_dev={file} packed=yes promote=yes"));
    let mut rng = fastrand::Rng::with_seed(14);
    let page = |rng: &mut fastrand::Rng| (0..4096).map(|at| if at < 1638 { rng.u8(..) } else { 0 }).collect::<Vec<u8>>();
    let image: Vec<u8> = (0..1024).flat_map(|_| page(&mut rng)).collect();
    let mut client = Client::connect(server.uri()).expect("the server is there");
    for (at, part) in (0..).zip(image.chunks(1 << 20)) {
        client.write(at * MIB, part, 0).expect("the disk takes it");
    }
    assert_eq!(attribute(&scratch, &["set", "disk", "idle", "all"]).code, 0);
    assert_eq!(attribute(&scratch, &["set", "disk", "writeback", "idle"]).code, 0);
    let away = status(&scratch);
    assert_eq!((&away["backing_left"], &away["used_bytes"]), (&1024.into(), &0.into()), "{away}");
    assert!(away["backing_writes"].as_u64().is_some_and(|blocks| blocks <= 512), "half of the bytes at most: {away}");
    for (at, part) in (0..).zip(image.chunks(1 << 20)) {
        assert!(client.read(at * MIB, 1 << 20).expect("the disk is readable") == part);
    }
    let back = status(&scratch);
    assert_eq!((&back["backing_promoted"], &back["backing_blocks"]), (&1024.into(), &0.into()), "{back}");
    server.stop();
}

#[test]
fn a_tarball_comes_back_through_ext4_and_the_backing_file() {
    require(&["mkfs.ext4", "tar"]);
    require_root();
    let scratch = Scratch::new();
    let file = scratch.sparse("backing", 128 * MIB);
    let server = serve(&scratch, 64, &format!("backing_dev={file}"));
    let (mount, tarball) = (scratch.file("mount"), scratch.file("sources.tar"));
    run::ok(60, &["tar", "-cf", &tarball, "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/.."), "crates", "docs", "tests"]);
    let before = run::sha256(tarball.as_ref());
    std::fs::create_dir(&mount).expect("a scratch folder is writable");
    let attached = Attached::new(&scratch, "fuse", server.uri());
    let device = attached.device();
    run::ok(60, &["mkfs.ext4", "-q", "-F", device]);
    run::ok(30, &["mount", device, &mount]);
    run::ok(60, &["cp", &tarball, &format!("{mount}/there")]);
    unmount(&mount);
    assert_eq!(attribute(&scratch, &["set", "disk", "idle", "all"]).code, 0);
    assert_eq!(attribute(&scratch, &["set", "disk", "writeback", "idle"]).code, 0);
    let away = status(&scratch);
    assert_eq!(away["used_bytes"], 0, "{away}");
    run::ok(30, &["mount", "-o", "ro", device, &mount]);
    assert_eq!(run::sha256(format!("{mount}/there").as_ref()), before);
    unmount(&mount);
    assert!(status(&scratch)["backing_reads"].as_u64().is_some_and(|reads| reads > 100));
    attached.detach();
    server.stop();
}

#[test]
fn codecs_are_compared_and_disks_shown_as_zramctl_does() {
    let scratch = Scratch::new();
    let path = scratch.write("data", &[b"a line of text that is like the next\n".repeat(4000), vec![0; 8192]].concat());
    let ended = forebay(&["zram", "advise", &path]);
    let names: Vec<&str> = ended.stdout.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["lz4", "zstd", "zstd", "zstd", "deflate", "deflate"], "{}{}", ended.stdout, ended.stderr);
    let none = forebay(&["zram", "advise", &scratch.file("none")]);
    assert_eq!((none.code, none.stderr.contains("none")), (1, true), "{}", none.stderr);
    let server = serve(&scratch, 16, "mem_limit=1M");
    let mut client = Client::connect(server.uri()).expect("the server is there");
    client.write(0, &[7; 8192], 0).expect("the disk takes writes");
    let words = ["status", "--noheadings", "--raw", "--output", "name,algorithm,disksize,data,zero-pages,mem-limit"];
    assert_eq!(attribute(&scratch, &words).stdout, "disk lz4 16M 8K 2 1M\n");
    let all = attribute(&scratch, &["status", "--bytes", "--output-all"]).stdout;
    assert!(all.starts_with("NAME ALGORITHM DISKSIZE") && all.contains("16777216"), "{all}");
    assert_eq!(attribute(&scratch, &["status", "--output", "speed"]).code, 1);
    server.stop();
}
