//! Objects that become smaller, by command and by rule, and what is left alone.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use forebay_block::{Bio, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, Reactor};

use super::super::backing::{BackingOptions, BackingSetup};
use super::super::memory::PAGE;
use super::super::{Algorithm, AttributeError, Setup, WritebackError};
use super::*;
use crate::below::testing::{Disk, JumpingClock, call, content, read, write};

struct Rig {
    reactor: Reactor,
    disk: Rc<Disk>,
    zram: Rc<Zram>,
}

fn params(algorithm: Algorithm) -> CodecParams {
    CodecParams { algorithm, ..CodecParams::default() }
}

impl Rig {
    fn new(seconds: &[Algorithm], after_s: Option<u32>) -> Self {
        Self::with(seconds, after_s, false)
    }

    fn with(seconds: &[Algorithm], after_s: Option<u32>, packed: bool) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let disk = Disk::new(64 * 8);
        let options = BackingOptions { range_pages: Some(8), packed, ..BackingOptions::default() };
        let target: Rc<dyn Target> = disk.clone();
        let backing = BackingSetup { name: "disk".into(), target, options };
        let recompression = RecompressSetup { codecs: seconds.iter().copied().map(params).collect(), after_s };
        let setup = Setup { sectors: SectorCount(2048), backing: Some(backing), recompression, ..Setup::default() };
        let zram = Zram::new(&reactor, &BufferPool::default(), &setup).unwrap();
        Self { reactor, disk, zram }
    }

    fn zstd() -> Self {
        Self::new(&[Algorithm::Zstd], None)
    }

    fn status_of(&self, bio: Bio) -> Status {
        self.reactor.run(call(&*self.zram, bio)).unwrap().status()
    }

    fn fill(&self, page: u64, bytes: &[u8]) {
        assert_eq!(self.status_of(write(page * 8, bytes)), Status::Ok);
    }

    fn page(&self, page: u64) -> Vec<u8> {
        let (bio, memory) = read(page * 8, 8);
        assert_eq!(self.status_of(bio), Status::Ok);
        content(memory)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), AttributeError> {
        self.reactor.run(self.zram.set(name, value)).unwrap()
    }

    fn recompress(&self, words: &str) -> Result<(), RecompressError> {
        self.reactor.run(self.zram.recompress(words)).unwrap()
    }

    fn sleep(&self, seconds: u64) {
        self.reactor.run(self.reactor.sleep(Duration::from_secs(seconds))).unwrap();
    }

    /// The marks of all pages that hold something.
    fn flags(&self) -> Vec<String> {
        let states = self.zram.get("block_state").unwrap();
        states.lines().map(|line| line.split_whitespace().last().unwrap().to_owned()).collect()
    }

    fn tries(&self) -> u64 {
        self.zram.status().recompress_tries
    }
}

/// What lz4 makes nothing of, and zstd half.
fn letters(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..PAGE).map(|_| rng.u8(b'a'..b'q')).collect()
}

/// What no codec makes smaller.
fn noise(seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..PAGE).map(|_| rng.u8(..)).collect()
}

#[test]
fn objects_become_smaller_and_pages_stay_what_they_were() {
    let rig = Rig::zstd();
    (0..20).for_each(|page| rig.fill(page, &letters(page)));
    rig.fill(20, &[7; PAGE]);
    let before = rig.zram.status();
    assert_eq!((before.huge_pages, before.compressed_bytes, before.recompressed_pages), (20, 20 * 4096, 0));
    assert_eq!(rig.set("recompress", "type=huge\n"), Ok(()));
    let after = rig.zram.status();
    assert_eq!((after.huge_pages, after.huge_pages_since, after.recompressed_pages, after.recompress_tries), (0, 20, 20, 20));
    assert_eq!((after.original_bytes, after.same_pages), (21 * 4096, 1));
    assert!(after.compressed_bytes < 20 * 2300 && after.used_bytes < 14 * 4096, "{after:?}");
    assert_eq!(after.recompress_saved_bytes, before.compressed_bytes - after.compressed_bytes);
    assert_eq!(rig.flags()[19..], ["....r.", "s....."]);
    (0..20).for_each(|page| assert!(rig.page(page) == letters(page), "page {page}"));
    // A part of a page is changed in the whole page, which the first codec compresses.
    assert_eq!(rig.status_of(write(8, &[1; 512])), Status::Ok);
    assert!(rig.page(1)[..512] == [1; 512] && rig.page(1)[512..] == letters(1)[512..]);
    assert_eq!(rig.zram.status().recompressed_pages, 19);
    rig.set("idle", "all").unwrap();
    rig.reactor.run(rig.zram.writeback("idle")).unwrap().unwrap();
    assert_eq!((rig.zram.status().recompressed_pages, rig.zram.status().backing_writes), (0, 20));
    (2..20).for_each(|page| assert!(rig.page(page) == letters(page), "page {page} from the device"));
}

#[test]
fn packed_objects_are_unpacked_by_the_codec_that_made_them() {
    let rig = Rig::with(&[Algorithm::Zstd, Algorithm::Deflate], None, true);
    (0..30).for_each(|page| rig.fill(page, &letters(page)));
    rig.recompress("algo=deflate max_pages=20").unwrap();
    rig.recompress("algo=zstd type=huge max_pages=5").unwrap();
    rig.set("idle", "all").unwrap();
    rig.reactor.run(rig.zram.writeback("idle")).unwrap().unwrap();
    assert_eq!(rig.zram.status().recompressed_pages, 25);
    assert_eq!(rig.set("recomp_algorithm", "algo=lz4 priority=2"), Err(AttributeError::InUse(2)));
    (0..30).for_each(|page| assert!(rig.page(page) == letters(page), "page {page}"));
    (0..30).for_each(|page| rig.fill(page, &[1; PAGE]));
    assert_eq!(rig.set("recomp_algorithm", "algo=lz4 priority=2"), Ok(()));
}

#[test]
fn only_what_is_asked_for_is_tried() {
    let rig = Rig::zstd();
    (0..6).for_each(|page| rig.fill(page, &letters(page)));
    rig.fill(6, &[letters(6)[..1000].to_vec(), vec![0; PAGE - 1000]].concat());
    rig.sleep(10);
    rig.page(0);
    rig.set("idle", "5").unwrap();
    assert_eq!(rig.recompress("type=huge_idle max_pages=0"), Ok(()));
    assert_eq!(rig.tries(), 0);
    assert_eq!(rig.recompress("type=huge_idle max_pages=2"), Ok(()));
    assert_eq!((rig.tries(), rig.zram.status().recompressed_pages), (2, 2));
    // The idle mark is gone where that was tried, and the time of access stays.
    assert_eq!(rig.flags(), ["..h...", "....r.", "....r.", "..hi..", "..hi..", "..hi..", "...i.."]);
    assert!(rig.zram.get("block_state").unwrap().lines().nth(1).unwrap().contains(" 0.000000"));
    assert_eq!(rig.recompress("type=idle threshold=1100"), Ok(()));
    assert_eq!(rig.zram.status().recompressed_pages, 2, "the new objects would not be below the threshold, the small one is");
    assert_eq!(rig.tries(), 5);
    assert_eq!(rig.recompress("type=huge threshold=3000"), Ok(()));
    assert_eq!(rig.zram.status().recompressed_pages, 6, "what failed a threshold is tried again with another");
    assert_eq!(rig.recompress(""), Ok(()));
    assert_eq!((rig.zram.status().recompressed_pages, rig.flags()[6].as_str()), (7, "....r."));
    let tries = rig.tries();
    assert_eq!((rig.recompress(""), rig.tries()), (Ok(()), tries), "nothing is tried twice");
}

#[test]
fn what_no_codec_makes_smaller_is_marked_and_left_alone_until_it_is_written() {
    let rig = Rig::new(&[Algorithm::Zstd, Algorithm::Deflate], None);
    (0..3).for_each(|page| rig.fill(page, &noise(page)));
    assert_eq!(rig.recompress("algo=deflate"), Ok(()));
    assert_eq!(rig.flags(), ["..h..."; 3], "one of two codecs was tried");
    assert_eq!(rig.recompress(""), Ok(()));
    assert_eq!((rig.flags(), rig.tries()), (vec!["..h..n".to_owned(); 3], 6));
    assert_eq!((rig.recompress(""), rig.tries()), (Ok(()), 6));
    rig.fill(1, &noise(9));
    assert_eq!(rig.flags()[1], "..h...");
    rig.reactor.run(rig.zram.writeback("incompressible")).unwrap().unwrap();
    assert_eq!(rig.flags(), [".w....", "..h...", ".w...."]);
    // Another codec may do better.
    assert_eq!(rig.recompress(""), Ok(()));
    assert_eq!(rig.set("recomp_algorithm", "algo=lz4 priority=3"), Ok(()));
    assert_eq!((rig.flags()[1].as_str(), rig.recompress("")), ("..h...", Ok(())));
    assert_eq!(rig.flags()[1], "..h..n");
}

#[test]
fn codecs_are_tried_in_order_above_the_objects_own() {
    let rig = Rig::new(&[Algorithm::Deflate, Algorithm::Zstd], None);
    let page: Vec<u8> = letters(1).iter().map(|letter| letter & 0xFD).collect();
    rig.fill(0, &page);
    assert_eq!(rig.recompress("algo=lz4"), Err(RecompressError::NoCodec));
    assert_eq!(rig.recompress("priority=2"), Ok(()));
    let bytes = rig.zram.status().compressed_bytes;
    assert_eq!((rig.recompress(""), rig.tries()), (Ok(()), 1), "nothing stands above the last");
    rig.fill(1, &page);
    assert_eq!(rig.recompress(""), Ok(()));
    assert_ne!(rig.zram.status().compressed_bytes, 2 * bytes, "the first that helps is taken");
    assert!(rig.page(0) == page && rig.page(1) == page);
}

#[test]
fn attributes_have_the_kernels_formats() {
    let rig = Rig::zstd();
    assert_eq!(rig.zram.get("recomp_algorithm").unwrap(), "#1: lz4 [zstd] deflate store \n");
    assert_eq!(rig.set("recomp_algorithm", "algo=deflate priority=3"), Ok(()));
    assert_eq!(rig.zram.get("recomp_algorithm").unwrap(), "#1: lz4 [zstd] deflate store \n#3: lz4 zstd [deflate] store \n");
    assert_eq!(rig.set("algorithm_params", "priority=3 level=9"), Ok(()));
    assert_eq!(rig.set("algorithm_params", "algo=zstd level=19"), Ok(()));
    for (name, value, end) in [
        ("recomp_algorithm", "zstd", "(EINVAL)"),
        ("recomp_algorithm", "algo=zstd priority=4", "(EINVAL)"),
        ("algorithm_params", "priority=2 level=1", "(EINVAL)"),
        ("algorithm_params", "algo=zstd level=99", "zstd has no level 99: use 1 to 22 (EINVAL)"),
        ("algorithm_params", "algo=zstd dict=/no/such/file", "(EINVAL)"),
        ("algorithm_params", "level=1", "lz4 has no level 1: leave the level out (EINVAL)"),
        ("recompress", "idle", "(EINVAL)"),
        ("recompress", "threshold=3625", "(EINVAL)"),
        ("recompress", "algo=lz4", "(EINVAL)"),
    ] {
        let error = rig.set(name, value).unwrap_err().to_string();
        assert!(error.ends_with(end), "{name}: {error}");
    }
    assert!(matches!(rig.zram.get("recompress"), Err(AttributeError::OneWay { .. })));
    let alone = Rig::new(&[], None);
    assert_eq!((alone.zram.get("recomp_algorithm").as_deref(), alone.recompress("")), (Ok(""), Err(RecompressError::NoCodec)));
}

#[test]
fn a_codec_with_objects_keeps_its_decoder_and_a_reset_brings_the_table_line_back() {
    let rig = Rig::zstd();
    rig.fill(0, &letters(1));
    rig.fill(1, &[letters(2)[..1500].to_vec(), vec![0; PAGE - 1500]].concat());
    rig.recompress("type=huge").unwrap();
    let dictionary = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let with_dictionary = format!("algo=zstd dict={}", dictionary.display());
    assert_eq!(rig.set("recomp_algorithm", "algo=deflate"), Err(AttributeError::InUse(1)));
    assert_eq!(rig.set("algorithm_params", &with_dictionary), Err(AttributeError::InUse(1)));
    assert_eq!(rig.set("algorithm_params", "algo=zstd level=1"), Ok(()));
    assert!(rig.page(0) == letters(1));
    assert_eq!(rig.set("recomp_algorithm", "algo=deflate priority=2"), Ok(()));
    assert_eq!(rig.set("reset", "1"), Ok(()));
    assert_eq!(rig.zram.get("recomp_algorithm").unwrap(), "#1: lz4 [zstd] deflate store \n");
    assert_eq!(rig.set("recomp_algorithm", "algo=deflate"), Ok(()));
}

#[test]
fn commands_exclude_each_other_and_writeback() {
    let rig = Rig::zstd();
    (0..40).for_each(|page| rig.fill(page, &letters(page)));
    rig.set("idle", "all").unwrap();
    rig.disk.hold.set(true);
    let zram = Rc::clone(&rig.zram);
    rig.reactor.spawn(async move { zram.writeback("page_index=3").await.unwrap() });
    (0..4).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(rig.recompress(""), Err(RecompressError::Busy));
    rig.disk.hold.set(false);
    rig.disk.take_seen();
    rig.disk.end_held(0);
    (0..4).for_each(|_| rig.reactor.turn(false).unwrap());
    let zram = Rc::clone(&rig.zram);
    rig.reactor.spawn(async move { zram.recompress("").await.unwrap() });
    rig.reactor.turn(false).unwrap();
    assert!((1..=4).contains(&rig.tries()), "a few pages a turn: {}", rig.tries());
    assert_eq!(rig.recompress(""), Err(RecompressError::Busy));
    assert_eq!(rig.reactor.run(rig.zram.writeback("idle")).unwrap(), Err(WritebackError::Busy));
    assert_eq!(rig.zram.reset(), Err(AttributeError::Busy));
    rig.sleep(1);
    assert_eq!((rig.tries(), rig.recompress("")), (39, Ok(())));
}

#[test]
fn the_rule_takes_what_is_old_enough_and_rests_when_nothing_is_left() {
    let rig = Rig::new(&[Algorithm::Zstd], Some(100));
    (0..20).for_each(|page| rig.fill(page, &letters(page)));
    rig.fill(20, &noise(20));
    rig.fill(21, &[7; PAGE]);
    rig.sleep(90);
    assert_eq!(rig.tries(), 0, "nothing is old enough");
    rig.page(5);
    rig.sleep(40);
    let status = rig.zram.status();
    assert_eq!((status.recompressed_pages, status.recompress_tries), (19, 20), "page 5 was asked for");
    rig.sleep(100);
    assert_eq!((rig.zram.status().recompressed_pages, rig.tries()), (20, 21));
    // A timer that is still set would make this clock jump.
    let before = rig.reactor.now();
    (0..100).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(rig.reactor.now(), before);
    rig.fill(30, &letters(30));
    rig.sleep(200);
    assert_eq!((rig.zram.status().recompressed_pages, rig.tries()), (21, 22));
    (0..20).for_each(|page| assert!(rig.page(page) == letters(page), "page {page}"));
}

#[test]
fn a_page_on_its_way_to_the_device_is_not_compressed_again() {
    let rig = Rig::new(&[Algorithm::Zstd], Some(5));
    (0..2).for_each(|page| rig.fill(page, &letters(page)));
    rig.set("idle", "all").unwrap();
    rig.disk.hold.set(true);
    let zram = Rc::clone(&rig.zram);
    rig.reactor.spawn(async move { zram.writeback("page_index=0").await.unwrap() });
    rig.sleep(20);
    assert_eq!((rig.tries(), rig.zram.status().recompressed_pages), (1, 1));
    rig.disk.hold.set(false);
    rig.disk.take_seen();
    rig.disk.end_held(0);
    (0..4).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!((rig.zram.status().backing_blocks, rig.flags()), (1, vec![".w....".to_owned(), "....r.".to_owned()]));
    assert!(rig.page(0) == letters(0));
}
