//! Disks saved and restored, with requests, faults and damage on the way.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use forebay_block::{Bio, SectorCount, Status};
use forebay_reactor::{BufferPool, Reactor};

use super::super::backing::{BackingOptions, BackingSetup};
use super::super::memory::PAGE;
use super::super::{AttributeError, RecompressSetup, Setup};
use super::format::HEADER_BYTES;
use super::*;
use crate::below::testing::{Disk, Ends, JumpingClock, call, content, extent, read, status_of, write};

struct Rig {
    reactor: Reactor,
    disk: Rc<Disk>,
    zram: Rc<Zram>,
}

fn codec(algorithm: Algorithm) -> CodecParams {
    CodecParams { algorithm, ..CodecParams::default() }
}

impl Rig {
    fn new(pages: u64) -> Self {
        Self::with(pages, &codec(Algorithm::Lz4), 0, Some(1024))
    }

    fn with(pages: u64, codec: &CodecParams, mem_limit: u64, blocks: Option<usize>) -> Self {
        Self::of(pages, codec, mem_limit, blocks, false)
    }

    fn of(pages: u64, codec: &CodecParams, mem_limit: u64, blocks: Option<usize>, packed: bool) -> Self {
        Self::whole(pages, codec, mem_limit, blocks, packed, &RecompressSetup::default())
    }

    fn whole(
        pages: u64,
        codec: &CodecParams,
        mem_limit: u64,
        blocks: Option<usize>,
        packed: bool,
        recompression: &RecompressSetup,
    ) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let disk = Disk::new(blocks.unwrap_or(1) * 8);
        let target = Rc::clone(&disk) as Rc<dyn forebay_block::Target>;
        let options = BackingOptions { range_pages: Some(16), packed, ..BackingOptions::default() };
        let backing = BackingSetup { name: "disk".into(), target, options };
        let (backing, recompression) = (blocks.map(|_| backing), recompression.clone());
        let setup =
            Setup { sectors: SectorCount(pages * 8), codec: codec.clone(), mem_limit, backing, recompression, packers: None };
        let zram = Zram::new(&reactor, &BufferPool::default(), &setup).unwrap();
        Self { reactor, disk, zram }
    }

    /// Writes pages of every kind, and has some of them leave memory.
    fn fill(&self, seed: u64, pages: u64) {
        let rng = &mut fastrand::Rng::with_seed(seed);
        for page in 0..pages {
            let bytes = [0, 0, 1000, 3000, PAGE][rng.usize(0..5)];
            let mut whole = [rng.u8(..); PAGE];
            whole[..bytes].fill_with(|| rng.u8(..));
            if rng.u32(0..8) > 0 {
                self.write(page, &whole);
            }
        }
        if self.zram.backing.is_some() {
            self.set("idle", "all").unwrap();
            (0..pages).filter(|_| rng.bool()).for_each(|page| drop(self.page(page)));
            self.set("writeback", "idle").unwrap();
        }
    }

    fn write(&self, page: u64, bytes: &[u8]) {
        assert_eq!(self.reactor.run(call(&*self.zram, write(page * 8, bytes))).unwrap().status(), Status::Ok);
    }

    fn page(&self, page: u64) -> Vec<u8> {
        let (bio, memory) = read(page * 8, 8);
        assert_eq!(self.reactor.run(call(&*self.zram, bio)).unwrap().status(), Status::Ok);
        content(memory)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), AttributeError> {
        self.reactor.run(self.zram.set(name, value)).unwrap()
    }

    fn all(&self) -> Vec<Vec<u8>> {
        (0..self.zram.page_count()).map(|page| self.page(page)).collect()
    }

    fn finish(&self, mut cut: Cut) -> Result<Vec<u8>, ImageError> {
        let saved = self.reactor.run(async {
            let mut body = Vec::new();
            while let Some(section) = cut.section().await? {
                body.extend(section);
            }
            Ok([&cut.header()[..], &body].concat())
        });
        saved.unwrap()
    }

    fn save(&self) -> Result<Vec<u8>, ImageError> {
        self.finish(self.zram.cut()?)
    }

    fn restore(&self, image: &[u8]) -> Result<u64, ImageError> {
        let mut refill = self.zram.refill(image, image.len() as u64)?;
        let restored = self.reactor.run(async {
            for piece in image[HEADER_BYTES..].chunks(70_000) {
                refill.take(piece).await?;
            }
            refill.finish().await
        });
        restored.unwrap()
    }

    /// Numbers of `mm_stat` and the first of `bd_stat`, without what was once.
    fn held(&self) -> [u64; 5] {
        let status = self.zram.status();
        [status.original_bytes, status.compressed_bytes, status.used_bytes, status.same_pages, status.backing_blocks]
    }
}

#[test]
fn a_disk_comes_back_with_what_was_in_memory_there_and_what_was_away_away() {
    for packed in [false, true] {
        let rig = || Rig::of(900, &codec(Algorithm::Lz4), 0, Some(1024), packed);
        let old = rig();
        old.fill(1, 800);
        let before = old.held();
        let image = old.save().unwrap();
        let new = rig();
        assert_eq!(new.restore(&image), Ok(before[0] / PAGE as u64));
        assert_eq!(new.held(), before);
        assert!(before[4] > 100 && before[1] > 0, "{before:?}");
        assert!(new.all() == old.all());
        assert!(new.save().unwrap() == image, "an image of it is the same image");
    }
}

#[test]
fn a_disk_is_restored_with_another_codec_a_greater_length_and_no_backing_device() {
    let old = Rig::with(300, &codec(Algorithm::Zstd), 0, Some(200));
    old.fill(2, 300);
    let image = old.save().unwrap();
    for algorithm in Algorithm::ALL {
        let new = Rig::with(400, &codec(algorithm), 0, None);
        new.restore(&image).unwrap();
        let all = new.all();
        assert!(all[..300] == old.all()[..], "{algorithm}");
        assert_eq!(new.held()[0], old.held()[0]);
    }
    let small = Rig::with(299, &codec(Algorithm::Zstd), 0, None);
    assert_eq!(small.restore(&image), Err(ImageError::TooLong { saved: 2400, found: 2392 }));
}

#[test]
fn objects_that_were_compressed_again_stay_as_small() {
    let seconds = RecompressSetup { codecs: vec![codec(Algorithm::Zstd), codec(Algorithm::Deflate)], after_s: None };
    let rig = |seconds| Rig::whole(400, &codec(Algorithm::Lz4), 0, Some(400), true, seconds);
    let old = rig(&seconds);
    for page in 0..300 {
        let rng = &mut fastrand::Rng::with_seed(page);
        let text: Vec<u8> = (0..PAGE).map(|_| b"lorem ipsum dolor"[rng.usize(0..17)]).collect();
        old.write(page, &text);
    }
    let before = old.held();
    old.set("recompress", "max_pages=200 priority=1").unwrap();
    let after = old.held();
    assert!(after[1] < before[1], "{before:?} {after:?}");
    old.set("writeback", "page_indexes=100-250").unwrap();
    let image = old.save().unwrap();
    let new = rig(&seconds);
    new.restore(&image).unwrap();
    assert_eq!(new.held(), old.held());
    assert!(new.all() == old.all());
    assert!(new.save().unwrap() == image);
    // Without these codecs objects are made anew.
    let other = rig(&RecompressSetup::default());
    other.restore(&image).unwrap();
    assert!(other.all() == old.all());
}

#[test]
fn codecs_stay_while_a_disk_is_saved() {
    let rig = Rig::new(16);
    let cut = rig.zram.cut().unwrap();
    assert_eq!(rig.set("recomp_algorithm", "algo=zstd priority=1"), Err(AttributeError::Busy));
    drop(cut);
    assert_eq!(rig.set("recomp_algorithm", "algo=zstd priority=1"), Ok(()));
}

#[test]
fn a_dictionary_must_be_the_same() {
    let with = |byte: u8| CodecParams { dictionary: Some(vec![byte; 300]), ..codec(Algorithm::Zstd) };
    let old = Rig::with(100, &with(1), 0, None);
    old.fill(3, 100);
    let image = old.save().unwrap();
    for other in [with(2), codec(Algorithm::Zstd), codec(Algorithm::Lz4)] {
        assert_eq!(Rig::with(100, &other, 0, None).restore(&image), Err(ImageError::Dictionary));
    }
    let new = Rig::with(100, &with(1), 0, None);
    new.restore(&image).unwrap();
    assert!(new.all() == old.all());
}

#[test]
fn changes_wait_while_a_disk_is_saved_and_are_not_in_the_image() {
    let rig = Rig::new(900);
    rig.fill(4, 900);
    let before = rig.all();
    let mut cut = rig.zram.cut().unwrap();
    let mut body = rig.reactor.run(cut.section()).unwrap().unwrap().unwrap();
    let ends = Rc::new(Ends::default());
    for (token, bio) in [
        (0, write(0, &[7; PAGE])),
        (1, write(890 * 8, &[8; PAGE])),
        (2, write(8, &[9; 512])),
        (3, Bio::discard(extent(16, 8))),
        (4, Bio::write_zeroes(extent(24, 8))),
        (5, Bio::flush()),
    ] {
        ends.submit(&*rig.zram, bio, token);
    }
    (0..8).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(*ends.0.borrow(), [(5, Status::Ok)], "changes wait, a flush does not");
    assert!(rig.page(890) == before[890], "and neither do reads");
    assert_eq!((rig.save().err(), rig.set("reset", "1").err()), (Some(ImageError::Busy), Some(AttributeError::Busy)));
    let rest = rig.reactor.run(async {
        let mut rest = Vec::new();
        while let Some(section) = cut.section().await.unwrap() {
            rest.extend(section);
        }
        rest
    });
    body.extend(rest.unwrap());
    let image = [&cut.header()[..], &body].concat();
    drop(cut);
    (0..8).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(ends.0.borrow().len(), 6, "the rest was done afterwards");
    assert!(ends.0.borrow().iter().all(|(_, status)| status.is_ok()));
    assert!(rig.page(0) == [7; PAGE] && rig.page(890) == [8; PAGE] && rig.page(1)[..512] == [9; 512] && rig.page(2) == [0; PAGE]);
    let new = Rig::new(900);
    new.restore(&image).unwrap();
    assert!(new.all() == before);
}

#[test]
fn a_change_that_was_fetching_its_page_waits_too() {
    let rig = Rig::new(64);
    rig.fill(5, 64);
    rig.set("idle", "all").unwrap();
    rig.set("writeback", "idle").unwrap();
    let before = rig.all();
    let page = (0..64).find(|page| rig.zram.pages.borrow().any_away(*page..page + 1)).unwrap();
    rig.disk.hold.set(true);
    rig.disk.take_seen();
    let ends = Rc::new(Ends::default());
    ends.submit(&*rig.zram, write(page * 8 + 1, &[3; 512]), 0);
    let cut = rig.zram.cut().unwrap();
    rig.disk.hold.set(false);
    (0..rig.disk.take_seen().len()).for_each(|_| rig.disk.end_held(0));
    (0..8).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(ends.0.borrow().len(), 0);
    let image = rig.finish(cut).unwrap();
    (0..8).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(*ends.0.borrow(), [(0, Status::Ok)]);
    assert!(rig.page(page)[512..1024] == [3; 512]);
    let new = Rig::new(64);
    new.restore(&image).unwrap();
    assert!(new.all() == before);
}

#[test]
fn everything_waits_while_a_disk_is_restored() {
    let old = Rig::new(600);
    old.fill(6, 600);
    let image = old.save().unwrap();
    let new = Rig::new(600);
    let mut refill = new.zram.refill(&image, image.len() as u64).unwrap();
    let (bio, memory) = read(599 * 8, 8);
    let ends = Rc::new(Ends::default());
    ends.submit(&*new.zram, bio, 0);
    ends.submit(&*new.zram, write(0, &[1; PAGE]), 1);
    new.reactor.run(refill.take(&image[HEADER_BYTES..])).unwrap().unwrap();
    assert_eq!(ends.0.borrow().len(), 0);
    new.reactor.run(refill.finish()).unwrap().unwrap();
    (0..8).for_each(|_| new.reactor.turn(false).unwrap());
    assert_eq!(ends.0.borrow().len(), 2);
    assert!(content(memory) == old.page(599) && new.page(0) == [1; PAGE]);
    assert_eq!(new.restore(&image), Err(ImageError::NotEmpty));
}

#[test]
fn a_damaged_torn_or_short_image_leaves_the_disk_empty() {
    let old = Rig::new(1200);
    old.fill(7, 1200);
    let image = old.save().unwrap();
    let new = Rig::new(1200);
    let rng = &mut fastrand::Rng::with_seed(8);
    for round in 0..60 {
        let mut bytes = image.clone();
        let at = rng.usize(0..bytes.len());
        match round % 3 {
            0 => bytes[at] ^= 1 << rng.u32(0..8),
            1 => bytes.truncate(at),
            _ => bytes[at..].fill(0),
        }
        let flaw = new.restore(&bytes).unwrap_err();
        assert!(matches!(flaw, ImageError::Flaw(_)), "{flaw}");
        assert_eq!(new.held(), [0; 5], "round {round}");
    }
    new.restore(&image).unwrap();
    assert!(new.all() == old.all());
}

#[test]
fn what_passes_the_memory_limit_goes_to_the_backing_device_or_is_refused() {
    let old = Rig::with(500, &codec(Algorithm::Lz4), 0, None);
    old.fill(9, 500);
    let image = old.save().unwrap();
    let limit = 40 * PAGE as u64;
    let refused = Rig::with(500, &codec(Algorithm::Lz4), limit, None);
    assert_eq!((refused.restore(&image), refused.held()), (Err(ImageError::NoSpace), [0; 5]));
    let full = Rig::with(500, &codec(Algorithm::Lz4), limit, Some(20));
    assert_eq!((full.restore(&image), full.held()), (Err(ImageError::Spill(WritebackError::NoSpace)), [0; 5]));
    let spilled = Rig::with(500, &codec(Algorithm::Lz4), limit, Some(500));
    spilled.restore(&image).unwrap();
    assert!(spilled.all() == old.all());
    assert!(spilled.held()[2] <= limit && spilled.held()[4] > 50, "{:?}", spilled.held());
    // A backing device that is too small for what was away: it stays in memory.
    let away = Rig::new(500);
    away.fill(9, 500);
    let tight = Rig::with(500, &codec(Algorithm::Lz4), 0, Some(20));
    tight.restore(&away.save().unwrap()).unwrap();
    assert!(tight.all() == away.all());
    assert_eq!(tight.held()[4], 19);
}

#[test]
fn a_page_that_the_backing_device_lost_is_named() {
    let rig = Rig::new(100);
    rig.fill(10, 100);
    rig.disk.bytes.borrow_mut()[PAGE..].fill(1);
    let error = rig.save().unwrap_err();
    assert!(matches!(error, ImageError::Unreadable(_)), "{error}");
    assert_eq!(status_of(&*rig.zram, write(0, &[1; PAGE])), Status::Ok, "the door is open again");
}

#[test]
fn an_empty_disk_has_an_image() {
    let old = Rig::new(8);
    let image = old.save().unwrap();
    assert_eq!(image.len(), HEADER_BYTES);
    let new = Rig::new(8);
    assert_eq!((new.restore(&image), new.held()), (Ok(0), [0; 5]));
    assert_eq!(
        new.restore(&[&image[..], &[0]].concat()).unwrap_err().to_string(),
        "it has 257 bytes and was saved with 256: use a whole copy of it"
    );
}
