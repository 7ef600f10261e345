//! `forebay copy` and `forebay compare` as people meet them: odd sizes, holes, pipes, wrong words, full disks, servers.
//! How ends are opened is in `ends`, copies that are cut off and resumed in `resume`.
#![forbid(unsafe_code)]

#[path = "copy/ends.rs"]
mod ends;
#[path = "copy/resume.rs"]
mod resume;

use forebay_tests::foreign::unmount;
use forebay_tests::run::{self, Ended};
use forebay_tests::server::{binary, forebay};
use forebay_tests::{Scratch, pattern, require, require_root};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// `bytes` bytes that no two sectors share.
fn data(bytes: usize) -> Vec<u8> {
    let mut all = pattern::of(&(0..bytes.div_ceil(512) as u64), 1);
    all.truncate(bytes);
    all
}

fn copy(words: &[&str]) -> Ended {
    forebay(&[&["copy"], words].concat())
}

fn copied(words: &[&str]) -> Ended {
    let ended = copy(words);
    assert_eq!(ended.code, 0, "copy {}: {}", words.join(" "), ended.stderr);
    ended
}

/// Panics unless the copy failed with `code` and said so plainly.
fn refused(words: &[&str], code: i32, says: &str) {
    let ended = copy(words);
    assert_eq!(ended.code, code, "copy {}: {}{}", words.join(" "), ended.stdout, ended.stderr);
    assert!(ended.stderr.contains(says), "copy {}: {}", words.join(" "), ended.stderr);
}

fn same(a: &str, b: &str) -> bool {
    let read = |path| fs::read(path).expect("the file is there");
    read(a) == read(b)
}

#[test]
fn wrong_words_end_with_2_and_nothing_is_made() {
    let scratch = Scratch::new();
    let (source, to) = (scratch.write("source", &data(5000)), scratch.file("to"));
    for words in [
        &[source.as_str()][..],
        &[&source, "-", "-"],
        &["-", &to, "--resume", &scratch.file("journal")],
        &["-", &to, "--verify"],
        &[&source, "-", "--checksum"],
        &[&source, &to, "--request-size", "1000"],
        &[&source, &to, "--sparse", "100"],
        &[&source, &to, "--requests", "0"],
        &[&source, &to, "--connections", "0"],
        &[&source, &to, "--rate", "0"],
        &[&source, &to, "--offload", "--no-offload"],
        &["ram:", &to],
        &["null:", &to],
    ] {
        refused(words, 2, "");
    }
    assert!(!Path::new(&to).exists());
}

#[test]
fn files_of_any_size_arrive_exactly_at_every_destination() {
    require(&["sha256sum"]);
    let scratch = Scratch::new();
    for bytes in [0, 1, 511, 512, 4095, 4096, 4097, 1_000_001, 3 << 20] {
        let source = scratch.write("source", &data(bytes));
        let to = ["a", "b", "c"].map(|name| scratch.file(name));
        let words = [&source, &to[0], &to[1], &to[2], "null:", "--checksum", "--verify", "--request-size", "64K"];
        let ended = copied(&words);
        assert_eq!(ended.stdout, format!("{}  {source}\n", run::sha256(Path::new(&source))), "{bytes}");
        for to in &to {
            assert!(same(&source, to), "{bytes} bytes to {to}");
            fs::remove_file(to).unwrap();
        }
    }
}

#[test]
fn holes_stay_holes_in_new_files_and_become_zeroes_in_old_ones_unless_told() {
    let scratch = Scratch::new();
    let source = scratch.sparse("source", 32 * MIB);
    File::options().write(true).open(&source).unwrap().write_all_at(&data(1 << 20), 8 * MIB).unwrap();
    let [new, full, old, told] = ["new", "full", "old", "told"].map(|name| scratch.file(name));
    copied(&[&source, &new]);
    copied(&[&source, &full, "--allocated"]);
    let blocks = |path: &str| fs::metadata(path).unwrap().blocks() * 512;
    assert!(same(&source, &new) && blocks(&new) < 2 * MIB, "{}", blocks(&new));
    assert!(same(&source, &full) && blocks(&full) >= 32 * MIB);
    for path in [&old, &told] {
        fs::write(path, vec![0xAA; 33 << 20]).unwrap();
    }
    copied(&[&source, &old]);
    copied(&[&source, &told, "--destination-is-zero"]);
    let (source, old, told) = (fs::read(&source).unwrap(), fs::read(&old).unwrap(), fs::read(&told).unwrap());
    assert!(old[..32 << 20] == source[..] && old[32 << 20..].iter().all(|&byte| byte == 0xAA), "what lies behind stays");
    assert!(told[8 << 20..9 << 20] == source[8 << 20..9 << 20]);
    assert!(told[..8 << 20].iter().chain(&told[9 << 20..]).all(|&byte| byte == 0xAA), "zeroes were said to be there");
}

#[test]
fn zeroes_in_the_data_become_holes_unless_they_are_not_looked_for() {
    let scratch = Scratch::new();
    let mut bytes = data(4 << 20);
    bytes[1 << 20..3 << 20].fill(0);
    let source = scratch.write("source", &bytes);
    let (found, kept) = (scratch.file("found"), scratch.file("kept"));
    copied(&[&source, &found]);
    copied(&[&source, &kept, "--sparse", "0"]);
    let blocks = |path: &str| fs::metadata(path).unwrap().blocks() * 512;
    assert!(same(&source, &found) && same(&source, &kept));
    assert!(blocks(&found) <= 2 * MIB + MIB / 4 && blocks(&kept) >= 4 * MIB, "{} {}", blocks(&found), blocks(&kept));
}

#[test]
fn pipes_are_ends_too() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(3_000_001));
    let (forebay, to) = (binary(), scratch.file("to"));
    run::shell(60, &format!("cat {source} | {forebay} copy - {to} null: --checksum > {to}.sum"));
    assert!(same(&source, &to));
    assert_eq!(fs::read_to_string(format!("{to}.sum")).unwrap(), format!("{}  -\n", run::sha256(Path::new(&source))));
    let more = scratch.file("more");
    run::shell(60, &format!("{forebay} copy {source} - {more} | cmp - {source}"));
    assert!(same(&source, &more));
    // A reader that leaves early is an error, and no crash.
    let ended =
        run::outcome(60, &["bash", "-c", &format!("set -o pipefail; {forebay} copy {source} - | head -c 10 > /dev/null")]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("standard output") && ended.stderr.contains("reader"), "{}", ended.stderr);
    // A file that is there and too small for what comes.
    let small = scratch.write("small", &vec![1; 1 << 20]);
    let ended = run::outcome(60, &["bash", "-c", &format!("set -o pipefail; cat {source} | {forebay} copy - {small}")]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("full after 1048576 bytes"), "{}", ended.stderr);
}

#[test]
fn what_cannot_work_is_refused_before_a_byte_is_written() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(2 << 20));
    let (small, new) = (scratch.write("small", &vec![7; 1 << 20]), scratch.file("new"));
    refused(&[&source, &new, &small], 1, "1048576 less than the source");
    refused(&[&source, &new, &source], 1, "same file");
    std::os::unix::fs::symlink(&source, scratch.file("link")).unwrap();
    refused(&[&source, &new, &scratch.file("link")], 1, "same file");
    refused(&[&source, &new, &new], 1, "given twice");
    refused(&[&source, &new, scratch.path().to_str().unwrap()], 1, "neither a file nor a block device");
    refused(&[&scratch.file("nothing"), &new], 1, "does not exist");
    refused(&[&source, &scratch.file("no/folder/file")], 1, "no/folder/file");
    assert_eq!(fs::read(&small).unwrap(), vec![7; 1 << 20]);
    assert!(!Path::new(&new).exists(), "nothing was made");
}

#[test]
fn a_full_disk_is_an_error_that_says_where() {
    require_root();
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(6 << 20));
    let mount = scratch.file("small");
    run::shell(20, &format!("mkdir {mount}; mount -t tmpfs -o size=4m forebay-test {mount}"));
    let to = format!("{mount}/to");
    let ended = copy(&[&source, &to, "--allocated"]);
    let later = copy(&[&source, &to]);
    unmount(&mount);
    assert_eq!((ended.code, later.code), (1, 1), "{}{}", ended.stderr, later.stderr);
    for ended in [ended, later] {
        assert!(ended.stderr.to_lowercase().contains("no space left") && ended.stderr.contains("/to"), "{}", ended.stderr);
    }
}

#[test]
fn every_way_to_copy_gives_the_same() {
    let scratch = Scratch::new();
    let source = scratch.write("source", &data(5_000_321));
    for (number, more) in [
        &["--offload"][..],
        &["--no-offload"],
        &[],
        &["--no-extents", "--sparse", "0"],
        &["--engine", "threads"],
        &["--engine", "threads", "--request-size", "4K", "--requests", "1"],
        &["--queue-size", "4K", "--keep-going"],
        &["--rate", "1G", "--flush", "--progress"],
    ]
    .into_iter()
    .enumerate()
    {
        let to = scratch.file(&number.to_string());
        let ended = copied(&[&[source.as_str(), &to], more].concat());
        assert!(same(&source, &to), "{more:?}");
        assert_eq!(ended.stderr.contains("100 %"), more.contains(&"--progress"), "{}", ended.stderr);
    }
    // Devices that are no files.
    copied(&[&source, "ram:8M", "--verify"]);
    copied(&[&source, "null:5M"]);
    refused(&[&source, "null:5M", "--verify"], 1, "differs from");
    refused(&[&source, "ram:1M"], 1, "less than the source");
    let zeroes = scratch.file("zeroes");
    copied(&["null:1M", &zeroes]);
    assert_eq!(fs::read(zeroes).unwrap(), vec![0; 1 << 20]);
}

#[test]
fn comparing_says_and_means_what_qemu_img_does() {
    require(&["qemu-img"]);
    let scratch = Scratch::new();
    let bytes = data(2 << 20);
    let one = scratch.write("one", &bytes);
    let two = scratch.write("two", &bytes);
    let other = scratch.write("other", &{
        let mut other = bytes.clone();
        other[1 << 20] ^= 1;
        other
    });
    let [longer, more, empty, holes] = ["longer", "more", "empty", "holes"].map(|name| scratch.file(name));
    fs::copy(&one, &longer).unwrap();
    File::options().write(true).open(&longer).unwrap().set_len(3 << 20).unwrap();
    fs::copy(&longer, &more).unwrap();
    File::options().write(true).open(&more).unwrap().write_all_at(&[1], (2 << 20) + 65_536).unwrap();
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    scratch.sparse("holes", 1 << 20);
    for pair in [[&one, &two], [&one, &other], [&one, &longer], [&longer, &one], [&one, &more], [&more, &one], [&empty, &holes]] {
        for strict in [&[][..], &["-s"]] {
            let ours = forebay(&[&["compare"], strict, &pair.map(String::as_str)].concat());
            let qemu = [&["qemu-img", "compare", "-f", "raw", "-F", "raw"], strict, &pair.map(String::as_str)].concat();
            let theirs = run::outcome(60, &qemu);
            assert_eq!((ours.code, &ours.stdout), (theirs.code, &theirs.stdout), "{strict:?} {pair:?}");
        }
    }
    let quiet = forebay(&["compare", "-q", &one, &other]);
    assert_eq!((quiet.code, quiet.stdout.as_str()), (1, ""));
    for words in [&["compare", &one, &scratch.file("nothing")][..], &["compare", &one], &["compare", &one, "ram:"]] {
        assert_eq!(forebay(words).code, 2, "{words:?}");
    }
}

/// Runs `script` with an NBD server of nbdkit, whose address is `$uri` there.
fn with_server(words: &[&str], script: &str) -> Ended {
    run::outcome(60, &[&["nbdkit", "-U", "-"], words, &["--run", script]].concat())
}

#[test]
fn servers_are_ends_too_slow_ones_as_well() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let mut bytes = data(5 << 20);
    bytes[1 << 20..2 << 20].fill(0);
    let (source, back, forebay) = (scratch.write("source", &bytes), scratch.file("back"), binary());
    let script = format!(
        "set -e; {forebay} copy {source} \"$uri\" --verify; {forebay} compare {source} \"$uri\"; {forebay} copy \"$uri\" {back}; \
         {forebay} copy \"$uri\" - | cmp - {source}"
    );
    for server in [
        &["memory", "5M"][..],
        &["--filter=delay", "memory", "5M", "delay-read=20ms", "delay-write=20ms"],
        &["--filter=rate", "memory", "5M", "rate=160M"],
        &[
            "--filter=blocksize-policy",
            "memory",
            "5M",
            "blocksize-minimum=4096",
            "blocksize-maximum=64K",
            "blocksize-error-policy=error",
        ],
    ] {
        let ended = with_server(server, &script);
        assert_eq!(ended.code, 0, "{server:?}: {}{}", ended.stdout, ended.stderr);
        assert!(same(&source, &back), "{server:?}");
        fs::remove_file(&back).unwrap();
    }
}

#[test]
fn an_error_of_a_server_is_never_a_success() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let (source, back, forebay) = (scratch.write("source", &data(4 << 20)), scratch.file("back"), binary());
    let file = format!("file={source}");
    // Always, and then now and then: a copy that says it is done is the same.
    let always = with_server(
        &["--filter=error", "file", &file, "error-pread=EIO", "error-pread-rate=100%"],
        &format!("{forebay} copy \"$uri\" {back}"),
    );
    assert_eq!(always.code, 1, "{}", always.stderr);
    assert!(always.stderr.contains("cannot be read"), "{}", always.stderr);
    fs::remove_file(&back).unwrap();
    let full = with_server(
        &["--filter=error", "memory", "4M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%"],
        &format!("{forebay} copy {source} \"$uri\""),
    );
    assert_eq!(full.code, 1, "{}", full.stderr);
    assert!(full.stderr.contains("no space left"), "{}", full.stderr);
    for rate in ["2%", "20%"] {
        for requests in ["--requests=1", "--requests=16"] {
            let words = ["--filter=error", "file", &file, "error-pread=EIO", &format!("error-pread-rate={rate}")];
            let copy = format!("{forebay} copy \"$uri\" {back} {requests} --request-size 32K");
            let ended = with_server(&words, &copy);
            assert!(ended.code <= 1, "{}", ended.stderr);
            if ended.code == 0 {
                assert!(same(&source, &back), "said to be done, and is not");
            }
            // With an end that goes on, in a new file: what could be read is right, and the rest is not there.
            fs::remove_file(&back).unwrap();
            let ended = with_server(&words, &format!("{copy} --keep-going"));
            let (got, meant) = (fs::read(&back).unwrap(), fs::read(&source).unwrap());
            let differ = got.chunks(512).zip(meant.chunks(512)).filter(|(got, meant)| got != meant).count();
            assert_eq!(ended.code == 0, differ == 0, "{differ} sectors differ: {}", ended.stderr);
            fs::remove_file(&back).unwrap();
        }
    }
}

#[test]
fn bytes_are_never_left_out_with_success() {
    require(&["nbdkit"]);
    let scratch = Scratch::new();
    let (small, to) = (scratch.write("small", b"hello"), scratch.file("to"));
    let full = run::outcome(60, &["sh", "-c", &format!("{} copy {small} - > /dev/full", binary())]);
    assert!(full.code == 1 && full.stderr.contains("No space left on device"), "{}", full.stderr);
    refused(&["/proc/cpuinfo", &to], 1, "does not tell its size");
    for (source, journal) in [(&small, &to), (&small, &small)] {
        refused(&[source, &to, "--resume", journal], 1, "cannot be the journal of its own copy");
    }
    assert_eq!(fs::read(&small).expect("the source is there"), b"hello");
    assert!(!Path::new(&to).exists());
    let odd = scratch.write("odd", &data(1_000_001));
    for words in ["copy \"$uri\"", "compare \"$uri\""] {
        let ended = with_server(&["file", &odd], &format!("{} {words} {odd}.copy", binary()));
        assert!(ended.code != 0 && ended.stderr.contains("has 65 bytes behind its last whole block"), "{}", ended.stderr);
    }
}
