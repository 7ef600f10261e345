//! Cache images made by hand, byte by byte: what the kernel takes or refuses, Forebay takes or refuses too,
//! except where the kernel is known to be wrong.
//!
//! Each image is put before the kernel as well, so that a mistake in the image cannot pass for an opinion.
#![forbid(unsafe_code)]

use forebay_tests::nbd::Client;
use forebay_tests::pattern;
use forebay_tests::writecache::image::{Cache, FREE};
use forebay_tests::writecache::{CACHE_BYTES, Case};
use forebay_tests::{Guest, Scratch, Server, run, server};
use std::path::Path;

/// One image: what is wrong with it, and who opens it all the same.
struct Image {
    name: &'static str,
    build: fn() -> Vec<u8>,
    kernel_opens: bool,
    forebay_opens: bool,
}

const fn both(name: &'static str, opens: bool, build: fn() -> Vec<u8>) -> Image {
    Image { name, build, kernel_opens: opens, forebay_opens: opens }
}

/// The kernel follows any sector number; here a block that cannot belong to the origin is damage.
const fn only_kernel(name: &'static str, build: fn() -> Vec<u8>) -> Image {
    Image { name, build, kernel_opens: true, forebay_opens: false }
}

/// A cache with three committed blocks, in blocks of 4096 bytes.
fn sound() -> Cache {
    let mut cache = Cache::fresh(CACHE_BYTES, 4096, 0, 5);
    for (index, sector) in [(0, 80), (1, 88), (7, 800)] {
        cache.store(index, sector, 4, 1);
    }
    cache
}

fn changed(change: impl FnOnce(&mut Cache)) -> Vec<u8> {
    let mut cache = sound();
    change(&mut cache);
    cache.bytes().to_vec()
}

fn resized(bytes: u64) -> Vec<u8> {
    let mut image = sound().bytes().to_vec();
    image.resize(usize::try_from(bytes).expect("a small image"), 0);
    image
}

const IMAGES: [Image; 14] = [
    both("sound", true, || changed(|_| {})),
    both("zeros", true, || vec![0; 2 << 20]),
    both("grown", true, || resized(2 * CACHE_BYTES)),
    both("smaller-count", true, || changed(|cache| cache.set_u64(16, cache.layout.blocks - 10))),
    both("blank-magic-and-version", true, || {
        changed(|cache| {
            cache.set_u32(0, 0);
            cache.set_u32(4, 0);
        })
    }),
    both("bad-magic", false, || changed(|cache| cache.set_u32(0, 0x1234_5678))),
    both("blank-magic-version-2", false, || {
        changed(|cache| {
            cache.set_u32(0, 0);
            cache.set_u32(4, 2);
        })
    }),
    both("version-2", false, || changed(|cache| cache.set_u32(4, 2))),
    both("other-block-size", false, || changed(|cache| cache.set_u32(8, 2048))),
    both("count-too-large", false, || changed(|cache| cache.set_u64(16, cache.layout.blocks + 1))),
    both("count-absurd", false, || changed(|cache| cache.set_u64(16, u64::MAX / 32))),
    both("shrunk", false, || resized(CACHE_BYTES / 2)),
    only_kernel("sector-beyond-origin", || changed(|cache| cache.set_entry(3, 1 << 40, 2))),
    only_kernel("sector-off-its-block", || changed(|cache| cache.set_entry(3, 81, 2))),
];

fn case(name: &str) -> Case {
    Case { name: name.to_owned(), block_size: 4096, start_sector: 0, options: Vec::new(), seed: 0 }
}

/// The pair of files for an image: an empty origin, and the image as the cache.
fn lay(name: &str, image: &[u8], scratch: &Scratch) -> Case {
    let case = case(name);
    case.make(scratch);
    let _path = scratch.write(&format!("{name}.cache"), image);
    case
}

/// The end of a server that was to open the pair, or none when it opened it and serves.
fn refusal(case: &Case, scratch: &Scratch) -> Option<run::Ended> {
    let table = case.table(&case.origin(scratch), &case.cache(scratch));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let mut server = Server::spawn(&scratch.file("server"), &["--table", &table, "--export", &export]);
    let ended = server.first_of_uris_or_end(1);
    if ended.is_none() {
        server.stop();
    }
    ended
}

#[test]
fn the_kernel_and_forebay_open_and_refuse_the_same_images() {
    let scratch = Scratch::in_memory();
    let mut body = Vec::new();
    for (slot, image) in IMAGES.iter().enumerate() {
        let name = image.name;
        let attach = lay(name, &(image.build)(), &scratch).attach(slot).trim_end().replace('\n', " && ");
        body.push(format!("if {attach}; then echo {name} opened; else echo {name} refused; fi"));
    }
    let copies = Scratch::in_memory();
    run::shell(60, &format!("cp --sparse=always {}/* {}/", scratch.path().display(), copies.path().display()));
    let output = Guest::new(copies.path()).run(&body.join("\n"));
    for image in &IMAGES {
        let verdict = if image.kernel_opens { "opened" } else { "refused" };
        let line = format!("{} {verdict}", image.name);
        assert!(output.lines().any(|found| found == line), "the kernel has not {verdict} {}\n{output}", image.name);
    }
    for image in &IMAGES {
        let case = case(image.name);
        let before = run::sha256(Path::new(&case.cache(&scratch)));
        let refusal = refusal(&case, &scratch);
        assert_eq!(refusal.is_none(), image.forebay_opens, "{}: {refusal:?}", image.name);
        if let Some(ended) = refusal {
            assert_eq!(ended.code, 1, "{}: {}", image.name, ended.stderr);
            assert!(ended.stderr.contains(&case.cache(&scratch)), "{}: the file is not named: {}", image.name, ended.stderr);
            assert_eq!(run::sha256(Path::new(&case.cache(&scratch))), before, "{}: a refused cache was changed", image.name);
        }
    }
}

#[test]
fn cache_check_tells_sound_from_damaged_images() {
    let scratch = Scratch::in_memory();
    for image in &IMAGES {
        let case = lay(image.name, &(image.build)(), &scratch);
        let (cache, origin) = (case.cache(&scratch), case.origin(&scratch));
        let ended = server::forebay(&["cache", "check", &cache, &origin]);
        let expected = match image.name {
            "sound" | "zeros" | "blank-magic-and-version" | "grown" | "smaller-count" | "other-block-size" => 0,
            _ => 2,
        };
        assert_eq!(ended.code, expected, "{}: {}{}", image.name, ended.stdout, ended.stderr);
    }
}

/// Two committed copies of one sector with equal sequence numbers, as a power cut can leave them after the kernel wrote
/// a sector twice in one group. The kernel takes the one at the higher index, and stops the device with an error.
#[test]
fn equal_sequence_numbers_are_no_error_and_the_later_block_wins() {
    let scratch = Scratch::in_memory();
    let mut cache = sound();
    cache.store(20, 160, 4, 1);
    cache.store(21, 160, 4, 2);
    let case = lay("equal", cache.bytes(), &scratch);
    let copies = Scratch::in_memory();
    case.copy(&scratch, &copies);
    let output = Guest::new(copies.path()).run(&(case.attach(0) + &case.hash()));
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let table = case.table(&case.origin(&scratch), &case.cache(&scratch));
    let server = Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export]);
    let mut client = Client::connect(server.uri()).expect("the server takes a client");
    let whole = client.read(0, u32::try_from(client.size()).expect("a small device")).expect("the whole device is readable");
    let path = scratch.write("whole", &whole);
    assert_eq!(run::sha256(Path::new(&path)), case.hash_in(&output), "the kernel sees the same");
    assert_eq!(pattern::version_of(&whole[160 * 512..161 * 512], 160), Some(2));
    client.write(160 * 512, &pattern::of(&(160..168), 3), 0).expect("the device is writable");
    client.flush().expect("the device can be flushed");
    server.kill();
    let reread = Cache::read(&case.cache(&scratch), 0).over(&case.origin(&scratch));
    assert_eq!(pattern::version_of(&reread[160 * 512..161 * 512], 160), Some(3), "the newest write wins on media");
}

/// Nine blocks, sector 808 (block 101) at index 4, taken up to index 7, so that the last one keeps writeback away. Then 100-101, 99-100 and 100-101 again, without a
/// commit in between. The kernel's last write goes into the old copy at index 4, and block 101 reads as before.
#[test]
fn a_rewritten_run_never_goes_into_an_older_copy_of_its_tail() {
    let scratch = Scratch::in_memory();
    let mut cache = Cache::fresh(10 * 4096, 4096, 0, 10);
    assert_eq!(cache.layout.blocks, 9);
    for (index, block) in [(4, 101), (5, 200), (6, 201), (7, 202)] {
        cache.store(index, block * 8, 9, 1);
    }
    assert_eq!((0..4).map(|index| cache.entry(index).1).collect::<Vec<_>>(), [FREE; 4]);
    let mut case = lay("tail", cache.bytes(), &scratch);
    case.options = vec!["high_watermark", "100", "low_watermark", "100", "autocommit_time", "3600000"];
    let export = format!("nbd+unix:///?socket={}", scratch.file("nbd.sock"));
    let table = case.table(&case.origin(&scratch), &case.cache(&scratch));
    let server = Server::start(&scratch.file("server"), 1, &["--table", &table, "--export", &export]);
    let mut client = Client::connect(server.uri()).expect("the server takes a client");
    for (blocks, version) in [(100..102, 2), (99..101, 3), (100..102, 4)] {
        let sectors = blocks.start * 8..blocks.end * 8;
        client.write(sectors.start * 512, &pattern::of(&sectors, version), 0).expect("a write");
    }
    let check = |client: &mut Client, when: &str| {
        for (block, version) in [(99, 3), (100, 4), (101, 4), (200, 1), (201, 1), (202, 1)] {
            let bytes = client.read(block * 4096, 4096).expect("a read");
            assert!(bytes == pattern::of(&(block * 8..block * 8 + 8), version), "block {block} {when}");
        }
    };
    check(&mut client, "before the flush");
    client.flush().expect("a flush");
    check(&mut client, "after the flush");
}
