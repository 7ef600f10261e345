//! Pages that leave and come back, and what happens to them on the way.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

mod packed;
mod races;
mod reading;
mod room;

use std::cell::RefCell;

use forebay_block::{Bio, SectorCount, Status};
use forebay_reactor::{BufferPool, Reactor};

use super::super::{AttributeError, Setup, Zram};
use super::*;
use crate::below::testing::{Disk, JumpingClock, call, content, extent, read, write};

struct Rig {
    reactor: Reactor,
    disk: Rc<Disk>,
    zram: Rc<Zram>,
}

type Ended = Rc<RefCell<Option<Result<(), WritebackError>>>>;

impl Rig {
    /// A disk of `pages` pages before a backing device of `blocks` blocks.
    fn new(pages: u64, blocks: usize, range_pages: u32) -> Self {
        Self::with(pages, blocks, range_pages, 0, Rules::default())
    }

    fn with(pages: u64, blocks: usize, range_pages: u32, mem_limit: u64, rules: Rules) -> Self {
        let options = BackingOptions { range_pages: Some(range_pages), rules, ..BackingOptions::default() };
        Self::of(pages, blocks, mem_limit, options)
    }

    fn packed(pages: u64, blocks: usize, range_pages: u32) -> Self {
        let options = BackingOptions { range_pages: Some(range_pages), packed: true, ..BackingOptions::default() };
        Self::of(pages, blocks, 0, options)
    }

    fn of(pages: u64, blocks: usize, mem_limit: u64, options: BackingOptions) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let disk = Disk::new(blocks * 8);
        let backing = BackingSetup { name: "disk".into(), target: disk.clone(), options };
        let setup = Setup { sectors: SectorCount(pages * 8), mem_limit, backing: Some(backing), ..Setup::default() };
        let zram = Zram::new(&reactor, &BufferPool::default(), &setup).unwrap();
        Self { reactor, disk, zram }
    }

    fn status_of(&self, bio: Bio) -> Status {
        self.reactor.run(call(&*self.zram, bio)).unwrap().status()
    }

    fn fill(&self, page: u64, stamp: u64) {
        assert_eq!(self.status_of(write(page * 8, &noise(stamp, PAGE))), Status::Ok);
    }

    fn page(&self, page: u64) -> Result<Vec<u8>, Status> {
        let (bio, memory) = read(page * 8, 8);
        match self.status_of(bio) {
            Status::Ok => Ok(content(memory)),
            status => Err(status),
        }
    }

    fn set(&self, name: &str, value: &str) -> Result<(), AttributeError> {
        self.reactor.run(self.zram.set(name, value)).unwrap()
    }

    fn write_back(&self, words: &str) -> Result<(), WritebackError> {
        self.reactor.run(self.zram.writeback(words)).unwrap()
    }

    /// Marks everything idle and begins to write it back, with the writes held.
    fn begin(&self) -> Ended {
        self.set("idle", "all").unwrap();
        self.disk.hold.set(true);
        self.disk.take_seen();
        let ended = Ended::default();
        let (zram, place) = (Rc::clone(&self.zram), Rc::clone(&ended));
        self.reactor.spawn(async move { *place.borrow_mut() = Some(zram.writeback("idle").await) });
        self.turns();
        ended
    }

    fn turns(&self) {
        (0..8).for_each(|_| self.reactor.turn(false).unwrap());
    }

    /// Lets the held writes end, and what follows from them.
    fn finish(&self, ended: &Ended) -> Result<(), WritebackError> {
        self.disk.hold.set(false);
        let held = self.disk.take_seen().len();
        (0..held).for_each(|_| self.disk.end_held(0));
        self.turns();
        ended.borrow_mut().take().expect("nothing is left to wait for")
    }

    fn bd_stat(&self) -> [u64; 3] {
        let status = self.zram.status();
        [status.backing_blocks, status.backing_reads, status.backing_writes]
    }
}

fn noise(stamp: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(stamp);
    (0..bytes).map(|_| rng.u8(..)).collect()
}

#[test]
fn idle_pages_leave_and_come_back_as_they_were() {
    let rig = Rig::new(1024, 1024, 32);
    (0..200).for_each(|page| rig.fill(page, page));
    rig.fill(300, 300);
    assert_eq!(rig.write_back("idle"), Ok(()));
    assert_eq!(rig.bd_stat(), [0, 0, 0], "nothing is idle");
    rig.set("idle", "all").unwrap();
    let before = rig.zram.status();
    assert_eq!(rig.write_back("idle"), Ok(()));
    let after = rig.zram.status();
    assert_eq!(rig.bd_stat(), [201, 0, 201]);
    assert_eq!(
        (after.original_bytes, after.compressed_bytes, after.used_bytes, after.huge_pages),
        (before.original_bytes, 0, 0, 0)
    );
    assert_eq!(after.backing_requests, 7, "201 pages in runs of 32");
    for page in 0..200 {
        assert!(rig.page(page).unwrap() == noise(page, PAGE), "page {page}");
    }
    assert_eq!(rig.bd_stat(), [201, 200, 201]);
    rig.fill(7, 1000);
    assert_eq!(rig.bd_stat()[0], 200);
    assert!(rig.page(7).unwrap() == noise(1000, PAGE));
    assert_eq!(rig.status_of(Bio::discard(extent(0, 1024 * 8))), Status::Ok);
    assert_eq!((rig.bd_stat()[0], rig.zram.status().original_bytes), (0, 0));
}

#[test]
fn neighbours_are_read_by_one_request_and_parts_of_pages_too() {
    let rig = Rig::new(256, 256, 64);
    (0..64).for_each(|page| rig.fill(page, page));
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    rig.fill(20, 20);
    rig.disk.take_seen();
    let (bio, memory) = read(3, 64 * 8 - 5);
    assert_eq!(rig.status_of(bio), Status::Ok);
    let all: Vec<u8> = (0..64).flat_map(|page| noise(page, PAGE)).collect();
    assert!(content(memory) == all[3 * 512..64 * PAGE - 2 * 512]);
    assert_eq!(rig.disk.take_seen().len(), 2, "before and behind the page in memory");
}

#[test]
fn the_limit_is_exact_whatever_the_batch() {
    for range in [1, 7, 32, 256] {
        let rig = Rig::new(2560, 4096, range);
        (0..2560).for_each(|page| rig.fill(page, page));
        rig.set("idle", "all").unwrap();
        rig.set("writeback_limit_enable", "1").unwrap();
        rig.set("writeback_limit", "1002").unwrap();
        assert_eq!(rig.write_back("idle"), Err(WritebackError::Limit));
        assert_eq!(rig.bd_stat(), [1002, 0, 1002]);
        assert_eq!(rig.zram.get("bd_stat").unwrap(), "    1002        0     1002\n");
        assert_eq!(rig.zram.get("writeback_limit").unwrap(), "0\n");
        assert_eq!(rig.write_back("idle"), Err(WritebackError::Limit));
        assert_eq!(rig.bd_stat(), [1002, 0, 1002]);
        rig.set("writeback_limit", "1558").unwrap();
        assert_eq!(rig.write_back("idle"), Ok(()), "as much as there is, and no more");
        assert_eq!(rig.bd_stat(), [2560, 0, 2560]);
    }
}

#[test]
fn a_full_backing_device_is_said_and_harms_nothing() {
    let rig = Rig::new(200, 100, 32);
    (0..150).for_each(|page| rig.fill(page, page));
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.write_back("idle"), Err(WritebackError::NoSpace));
    assert_eq!(rig.bd_stat(), [99, 0, 99]);
    (0..150).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
}

#[test]
fn commands_that_are_none_and_disks_without_a_device_are_refused() {
    let rig = Rig::new(64, 64, 8);
    assert_eq!(rig.write_back("everything"), Err(WritebackError::Words));
    let setup = Setup { sectors: SectorCount(64), ..Setup::default() };
    let bare = Zram::new(&rig.reactor, &BufferPool::default(), &setup).unwrap();
    assert_eq!(rig.reactor.run(bare.writeback("idle")).unwrap(), Err(WritebackError::NoBacking));
}

#[test]
fn blocks_that_were_damaged_torn_swapped_or_left_over_give_errors() {
    type Damage = fn(&mut [u8], &[u8]);
    let damage: [Damage; 4] = [
        |bytes, _| bytes[PAGE + 77] ^= 4,
        |bytes, old| bytes[PAGE + 512..2 * PAGE].copy_from_slice(&old[PAGE + 512..2 * PAGE]),
        |bytes, _| bytes.copy_within(2 * PAGE..3 * PAGE, PAGE),
        |bytes, old| bytes[PAGE..2 * PAGE].copy_from_slice(&old[PAGE..2 * PAGE]),
    ];
    for (number, damage) in damage.iter().enumerate() {
        let rig = Rig::new(64, 3, 8);
        let write_back = |stamp: u64| {
            (0..2).for_each(|page| rig.fill(page, page + stamp));
            rig.set("idle", "all").unwrap();
            rig.write_back("idle").unwrap();
        };
        write_back(0);
        let old = rig.disk.bytes.borrow().clone();
        rig.status_of(Bio::discard(extent(0, 16)));
        write_back(10);
        damage(&mut rig.disk.bytes.borrow_mut(), &old);
        assert_eq!(rig.page(0), Err(Status::IoError), "damage {number}");
        assert!(rig.page(1).unwrap() == noise(11, PAGE));
        assert_eq!(rig.status_of(write(1, &[1; 512])), Status::IoError, "a part of a lost page cannot be kept");
        rig.fill(0, 20);
        assert!(rig.page(0).unwrap() == noise(20, PAGE));
    }
}

#[test]
fn parts_of_pages_that_are_away_change_with_the_rest_kept() {
    let rig = Rig::new(64, 64, 8);
    (0..8).for_each(|page| rig.fill(page, page));
    let mut model: Vec<u8> = (0..8).flat_map(|page| noise(page, PAGE)).collect();
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    assert_eq!(rig.status_of(write(3, &noise(70, 30 * 512))), Status::Ok);
    model[3 * 512..33 * 512].copy_from_slice(&noise(70, 30 * 512));
    assert_eq!(rig.status_of(Bio::write_zeroes(extent(44, 15))), Status::Ok);
    model[44 * 512..59 * 512].fill(0);
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    assert_eq!(rig.zram.status().used_bytes, 0);
    // Two parts of one page at once, and a whole page over a part.
    rig.disk.hold.set(true);
    rig.disk.take_seen();
    let bios = [write(62, &[1; 512]), write(63, &[2; 512]), write(41, &[3; 512]), write(40, &noise(71, PAGE))];
    let [mut a, mut b, mut c, d] = bios.map(|bio| Box::pin(call(&*rig.zram, bio)));
    assert!(rig.reactor.run(d).unwrap().status().is_ok(), "a whole page waits for nothing");
    rig.turns();
    rig.disk.hold.set(false);
    (0..rig.disk.take_seen().len()).for_each(|_| rig.disk.end_held(0));
    for part in [&mut a, &mut b, &mut c] {
        assert!(rig.reactor.run(part.as_mut()).unwrap().status().is_ok());
    }
    model[62 * 512..63 * 512].fill(1);
    model[63 * 512..].fill(2);
    model[40 * 512..48 * 512].copy_from_slice(&noise(71, PAGE));
    model[41 * 512..42 * 512].fill(3);
    let (bio, memory) = read(0, 64);
    assert_eq!(rig.status_of(bio), Status::Ok);
    assert!(content(memory) == model);
}

#[test]
fn ages_mark_what_nobody_asked_for() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    rig.reactor.run(rig.reactor.sleep(std::time::Duration::from_secs(100))).unwrap();
    rig.page(1).unwrap();
    assert_eq!(rig.set("idle", "60"), Ok(()));
    let states = rig.zram.get("block_state").unwrap();
    let flags: Vec<&str> = states.lines().map(|line| line.split_whitespace().last().unwrap()).collect();
    assert_eq!(flags, ["..hi..", "..h...", "..hi..", "..hi.."]);
    assert_eq!(rig.write_back("huge_idle"), Ok(()));
    assert_eq!(rig.bd_stat(), [3, 0, 3]);
    assert_eq!(rig.set("idle", "101"), Ok(()));
    assert_eq!(rig.write_back("page_index=1 page_indexes=3-5"), Ok(()));
    assert_eq!(rig.bd_stat(), [4, 0, 4]);
}

#[test]
fn attributes_speak_as_the_kernel_does() {
    let rig = Rig::new(256, 64, 8);
    for (name, text) in [
        ("disksize", "1048576\n"),
        ("initstate", "1\n"),
        ("comp_algorithm", "[lz4] zstd deflate store \n"),
        ("backing_dev", "disk\n"),
        ("writeback_batch_size", "32\n"),
        ("writeback_limit_enable", "0\n"),
        ("mm_stat", "       0        0        0        0        0        0        0        0        0\n"),
        ("debug_stat", "version: 1\n       0        0\n"),
    ] {
        assert_eq!(rig.zram.get(name).as_deref(), Ok(text), "{name}");
    }
    for (name, value, end) in [
        ("disksize", "0", "(EINVAL)"),
        ("disksize", "1G", "(EBUSY)"),
        ("comp_algorithm", "zstd", "(EBUSY)"),
        ("comp_algorithm", "lzma", "(EINVAL)"),
        ("backing_dev", "/dev/sdb", "(EBUSY)"),
        ("mem_used_max", "1", "(EINVAL)"),
        ("writeback", "sideways", "(EINVAL)"),
        ("writeback_batch_size", "0", "(EINVAL)"),
        ("writeback_limit_enable", "2", "(EINVAL)"),
        ("idle", "some", "(EINVAL)"),
        ("reset", "0", "(EINVAL)"),
        ("mm_stat", "1", "(EACCES)"),
        ("speed", "1", "(ENOENT)"),
    ] {
        let error = rig.set(name, value).unwrap_err().to_string();
        assert!(error.ends_with(end), "{name}: {error}");
    }
    for (name, value) in [("mem_used_max", "0"), ("compact", "1"), ("mem_limit", "1M"), ("writeback_batch_size", "4\n")] {
        assert_eq!(rig.set(name, value), Ok(()), "{name}");
    }
    assert_eq!((rig.zram.status().limit_bytes, rig.zram.get("writeback_batch_size").unwrap()), (1 << 20, "4\n".to_owned()));
    assert!(matches!(rig.zram.get("idle"), Err(AttributeError::OneWay { .. })));
}

#[test]
fn rules_write_idle_pages_back_at_their_rate_and_rest_when_nothing_is_left() {
    let rules = Rules { idle_after_s: Some(100), rate_bytes: Some(8 * 4096), ..Rules::default() };
    let rig = Rig::with(64, 64, 8, 0, rules);
    (0..20).for_each(|page| rig.fill(page, page));
    let after = |seconds| rig.reactor.run(rig.reactor.sleep(std::time::Duration::from_secs(seconds))).unwrap();
    after(90);
    assert_eq!(rig.bd_stat(), [0, 0, 0], "nothing is old enough");
    rig.page(5).unwrap();
    rig.reactor.run(rig.reactor.sleep(std::time::Duration::from_millis(10_500))).unwrap();
    assert_eq!(rig.bd_stat(), [8, 0, 8], "a second's pages at a time");
    after(30);
    assert_eq!(rig.bd_stat(), [19, 0, 19], "page 5 was asked for");
    after(100);
    assert_eq!(rig.bd_stat(), [20, 0, 20]);
    // A timer that is still set would make this clock jump.
    let before = rig.reactor.now();
    (0..100).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!((rig.reactor.now(), rig.zram.status().used_bytes), (before, 0));
    rig.fill(7, 70);
    after(200);
    assert_eq!(rig.bd_stat(), [20, 0, 21]);
}

#[test]
fn a_spill_begins_at_its_mark_takes_the_largest_and_ends_below_it() {
    let rules = Rules { spill_percent: Some(80), ..Rules::default() };
    let rig = Rig::with(400, 400, 8, 100 * 4096, rules);
    for page in 0..20 {
        assert_eq!(rig.status_of(write(page * 8, &[noise(page, 2048), vec![0; 2048]].concat())), Status::Ok);
    }
    (20..90).for_each(|page| rig.fill(page, page));
    rig.turns();
    let status = rig.zram.status();
    assert!(status.used_bytes <= 80 * 4096 && status.used_bytes >= 60 * 4096, "{status:?}");
    assert!(rig.zram.get("block_state").unwrap().lines().take(20).all(|line| !line.contains('w')), "small pages stay");
    // More than the limit goes in, as long as the device takes it.
    (100..300).for_each(|page| {
        rig.fill(page, page);
        rig.turns();
    });
    (20..90).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
}

#[test]
fn a_spill_of_pages_that_compress_goes_as_far_below_its_mark() {
    let rules = Rules { spill_percent: Some(80), ..Rules::default() };
    let rig = Rig::with(400, 400, 8, 100 * 4096, rules);
    for page in 0..340 {
        assert_eq!(rig.status_of(write(page * 8, &[noise(page, 1000), vec![0; 3096]].concat())), Status::Ok);
    }
    (0..20).for_each(|_| rig.turns());
    let used_bytes = rig.zram.status().used_bytes;
    assert!(used_bytes <= 70 * 4096, "{used_bytes}");
    (0..340).for_each(|page| assert!(rig.page(page).unwrap() == [noise(page, 1000), vec![0; 3096]].concat()));
}

#[test]
fn a_limit_of_any_size_may_be_set_while_a_write_fails() {
    let rig = Rig::new(64, 64, 8);
    (0..32).for_each(|page| rig.fill(page, page));
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "32").unwrap();
    let ended = rig.begin();
    rig.set("writeback_limit", &u64::MAX.to_string()).unwrap();
    rig.disk.fails.set(Status::IoError);
    assert!(rig.finish(&ended).is_err());
    assert_eq!(rig.zram.get("writeback_limit").unwrap(), format!("{}\n", u64::MAX));
}
