//! What requests of a clone do, over disks in memory and a clock that jumps.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Bio, Flags, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, Reactor};

use crate::below::testing::{Disk, JumpingClock, call, content, extent, read, told, write};
use crate::clone::options::CloneArgs;
use crate::clone::{CloneStatus, CloneTarget, OpenError, Setup, open};

/// Sectors of the clone of a bench: 12 regions of 8 sectors and a half.
pub(in crate::clone) const SECTORS: usize = 100;

/// Three disks, and a clone over them that can be opened again and again.
pub(in crate::clone) struct Bench {
    pub(in crate::clone) reactor: Reactor,
    pub(in crate::clone) pool: BufferPool,
    pub(in crate::clone) metadata: Rc<Disk>,
    pub(in crate::clone) destination: Rc<Disk>,
    pub(in crate::clone) source: Rc<Disk>,
    sectors: usize,
}

/// What a byte of the source is: never 0, and another in every sector.
pub(in crate::clone) fn source_byte(at: usize) -> u8 {
    u8::try_from((at / 512 * 7 + at) % 251 + 1).unwrap()
}

impl Bench {
    pub(in crate::clone) fn of(sectors: usize) -> Self {
        let bench = Self::blank(sectors);
        for (at, byte) in bench.source.bytes.borrow_mut().iter_mut().enumerate() {
            *byte = source_byte(at);
        }
        bench.destination.bytes.borrow_mut().fill(0xAA);
        bench
    }

    /// With disks full of zeroes.
    pub(in crate::clone) fn blank(sectors: usize) -> Self {
        let (source, destination, metadata) = (Disk::new(sectors), Disk::new(sectors + 3), Disk::new(64));
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        Self { reactor, pool: BufferPool::default(), metadata, destination, source, sectors }
    }

    pub(in crate::clone) fn new() -> Self {
        Self::of(SECTORS)
    }

    pub(in crate::clone) fn try_open(&self, words: &str) -> Result<Rc<CloneTarget>, OpenError> {
        let line = format!("m d s {words}");
        let args = CloneArgs::parse(line.split_whitespace()).unwrap();
        let setup = Setup {
            metadata: Rc::clone(&self.metadata) as Rc<dyn Target>,
            destination: Rc::clone(&self.destination) as Rc<dyn Target>,
            source: Rc::clone(&self.source) as Rc<dyn Target>,
            sectors: SectorCount(self.sectors as u64),
            region_sectors: args.region_sectors,
            options: args.options,
        };
        self.reactor.run(Box::pin(open(&self.reactor, &self.pool, setup))).unwrap()
    }

    /// Opens it with regions of 8 sectors, and further words behind these.
    pub(in crate::clone) fn open(&self, words: &str) -> Rc<CloneTarget> {
        let clone = self.try_open(&format!("8 {words}")).unwrap();
        for disk in [&self.metadata, &self.destination, &self.source] {
            disk.take_seen();
        }
        clone
    }

    /// Opens it without hydration in the background.
    pub(in crate::clone) fn still(&self) -> Rc<CloneTarget> {
        self.open("1 no_hydration")
    }

    pub(in crate::clone) fn status_of(&self, clone: &CloneTarget, bio: Bio) -> Status {
        self.reactor.run(call(clone, bio)).unwrap().status()
    }

    pub(in crate::clone) fn write(&self, clone: &CloneTarget, sector: u64, sectors: usize, byte: u8) {
        assert_eq!(self.status_of(clone, write(sector, &vec![byte; sectors * 512])), Status::Ok);
    }

    pub(in crate::clone) fn read(&self, clone: &CloneTarget, sector: u64, sectors: usize) -> Vec<u8> {
        let (bio, bytes) = read(sector, sectors);
        assert_eq!(self.status_of(clone, bio), Status::Ok);
        content(bytes)
    }

    pub(in crate::clone) fn flush(&self, clone: &CloneTarget) {
        assert_eq!(self.status_of(clone, Bio::flush()), Status::Ok);
    }

    pub(in crate::clone) fn close(&self, clone: &CloneTarget) -> Status {
        self.reactor.run(clone.close()).unwrap()
    }

    /// Drops everything that is not on the disks.
    pub(in crate::clone) fn kill(&mut self) {
        self.reactor.clear();
        self.reactor = Reactor::new(Box::new(JumpingClock::default()));
    }

    /// Lets time pass until the clone says so.
    pub(in crate::clone) fn until(&self, clone: &CloneTarget, said: impl Fn(&CloneStatus) -> bool) {
        let waited = async {
            for _ in 0..10_000 {
                if said(&clone.status()) {
                    return true;
                }
                self.reactor.sleep(std::time::Duration::from_millis(10)).await;
            }
            false
        };
        assert!(self.reactor.run(Box::pin(waited)).unwrap(), "{:?}", clone.status());
    }
}

/// What the source holds.
pub(in crate::clone) fn original(sector: usize, sectors: usize) -> Vec<u8> {
    (sector * 512..(sector + sectors) * 512).map(source_byte).collect()
}

#[test]
fn behaviour_19_cold_regions_are_read_from_the_source_and_stay_cold() {
    let bench = Bench::new();
    let clone = bench.still();
    assert_eq!(bench.read(&clone, 0, SECTORS), original(0, SECTORS));
    assert_eq!(clone.status().hydrated, 0);
    assert_eq!(bench.source.take_seen(), [(Op::Read, extent(0, 100))]);
    assert!(bench.destination.take_seen().is_empty());
}

#[test]
fn behaviour_19_a_small_write_hydrates_its_region_and_no_other() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 19, 1, 7);
    assert_eq!((clone.status().hydrated, clone.status().counts.waited_for), (1, 1));
    assert_eq!(bench.source.take_seen(), [(Op::Read, extent(16, 8))]);
    assert_eq!(bench.destination.take_seen(), [(Op::Write, extent(16, 8)), (Op::Write, extent(19, 1))]);
    let expected = [original(14, 5), vec![7; 512], original(20, 6)].concat();
    assert_eq!(bench.read(&clone, 14, 12), expected);
    bench.write(&clone, 23, 1, 8);
    assert_eq!(bench.destination.take_seen().last(), Some(&(Op::Write, extent(23, 1))));
    assert_eq!(bench.source.take_seen().iter().filter(|(op, _)| *op != Op::Read).count(), 0);
}

#[test]
fn behaviour_19_whole_regions_are_written_without_a_read() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 16, 16, 7);
    // The last region ends with the clone.
    bench.write(&clone, 96, 4, 8);
    assert_eq!(bench.status_of(&clone, Bio::write_zeroes(extent(0, 8))), Status::Ok);
    assert_eq!(clone.status().hydrated, 4);
    assert!(bench.source.take_seen().is_empty());
    let expected = [vec![0; 8 * 512], original(8, 8), vec![7; 16 * 512]].concat();
    assert_eq!(bench.read(&clone, 0, 32), expected);
    assert_eq!(bench.read(&clone, 90, 10), [original(90, 6), vec![8; 4 * 512]].concat());
}

#[test]
fn a_write_over_several_regions_copies_its_edges_only() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 12, 24, 7);
    assert_eq!(bench.source.take_seen(), [(Op::Read, extent(8, 8)), (Op::Read, extent(32, 8))]);
    assert_eq!(bench.destination.take_seen().last(), Some(&(Op::Write, extent(12, 24))));
    assert_eq!(bench.read(&clone, 8, 32), [original(8, 4), vec![7; 24 * 512], original(36, 4)].concat());
    assert_eq!(clone.status().hydrated, 4);
}

#[test]
fn behaviour_20_a_discard_of_everything_hydrates_everything_without_a_copy() {
    let bench = Bench::new();
    let clone = bench.still();
    assert_eq!(bench.status_of(&clone, Bio::discard(extent(0, 100))), Status::Ok);
    assert_eq!(clone.status().hydrated, 13);
    assert!(bench.source.take_seen().is_empty());
    assert_eq!(bench.destination.take_seen(), [(Op::Discard, extent(0, 100))]);
}

#[test]
fn a_discard_hydrates_what_it_covers_and_leaves_the_edges_alone() {
    let bench = Bench::new();
    let clone = bench.still();
    assert_eq!(bench.status_of(&clone, Bio::discard(extent(4, 20))), Status::Ok);
    assert_eq!(clone.status().hydrated, 2);
    assert_eq!(bench.destination.take_seen(), [(Op::Discard, extent(8, 16))]);
    assert_eq!(bench.read(&clone, 0, 8), original(0, 8));
    assert_eq!(bench.status_of(&clone, Bio::discard(extent(33, 6))), Status::Ok);
    assert_eq!((clone.status().hydrated, bench.read(&clone, 32, 8)), (2, original(32, 8)));

    let bench = Bench::new();
    let clone = bench.open("2 no_hydration no_discard_passdown");
    assert_eq!(bench.status_of(&clone, Bio::discard(extent(8, 16))), Status::Ok);
    assert_eq!((clone.status().hydrated, bench.destination.take_seen()), (2, vec![]));
}

#[test]
fn what_was_flushed_is_found_again_and_what_was_not_is_as_it_was_before() {
    let mut bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 19, 1, 7);
    bench.flush(&clone);
    bench.write(&clone, 40, 8, 9);
    assert_eq!(clone.status().commits, 1);
    bench.kill();
    let clone = bench.still();
    assert_eq!(clone.status().hydrated, 1);
    assert_eq!(bench.read(&clone, 16, 8), [original(16, 3), vec![7; 512], original(20, 4)].concat());
    assert_eq!(bench.read(&clone, 40, 8), original(40, 8));
}

#[test]
fn a_flush_of_the_destination_comes_before_the_metadata_and_one_after_them() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 16, 8, 7);
    bench.destination.take_seen();
    bench.flush(&clone);
    assert_eq!(bench.destination.take_seen(), [(Op::Flush, extent(0, 0))]);
    let (page, flush) = (|sector| (Op::Write, extent(sector, 8)), (Op::Flush, extent(0, 0)));
    assert_eq!(bench.metadata.take_seen(), [page(16), flush, page(24), flush]);
    // What is committed is not written again.
    bench.flush(&clone);
    assert!(bench.metadata.take_seen().is_empty());
    bench.write(&clone, 24, 8, 7);
    bench.flush(&clone);
    assert_eq!(bench.metadata.take_seen(), [page(16), flush, page(24), flush]);
}

#[test]
fn a_durable_write_of_a_cold_region_ends_with_its_commit() {
    let mut bench = Bench::new();
    let clone = bench.still();
    let fua = Flags { fua: true, ..Flags::default() };
    assert_eq!(bench.status_of(&clone, write(19, &[7; 512]).with(fua)), Status::Ok);
    bench.kill();
    let clone = bench.still();
    assert_eq!((clone.status().hydrated, bench.read(&clone, 19, 1)), (1, vec![7; 512]));
    assert_eq!(bench.status_of(&clone, write(20, &[8; 512]).with(fua)), Status::Ok);
    assert!(bench.metadata.take_seen().is_empty(), "the region was committed");
}

#[test]
fn a_region_is_committed_a_second_after_it_was_hydrated() {
    let mut bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 16, 8, 7);
    bench.until(&clone, |status| status.commits == 1);
    assert!(bench.reactor.now().as_millis() >= 1000);
    bench.kill();
    let clone = bench.still();
    assert_eq!((clone.status().hydrated, bench.read(&clone, 16, 8)), (1, vec![7; 8 * 512]));
}

#[test]
fn a_write_whose_copy_fails_fails_and_the_region_stays_cold() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.source.bad_sector.set(Some(17));
    assert_eq!(bench.status_of(&clone, write(19, &[7; 512])), Status::IoError);
    assert_eq!(clone.status().hydrated, 0);
    bench.write(&clone, 16, 8, 7);
    bench.destination.bad_sector.set(Some(42));
    assert_eq!(bench.status_of(&clone, write(40, &[7; 8 * 512])), Status::IoError);
    assert_eq!((clone.status().hydrated, bench.read(&clone, 40, 8)), (1, original(40, 8)));
}

#[test]
fn a_failed_flush_of_the_destination_latches() {
    let mut bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 16, 8, 7);
    bench.destination.fails.set(Status::IoError);
    assert_eq!(bench.status_of(&clone, Bio::flush()), Status::IoError);
    bench.destination.fails.set(Status::Ok);
    assert!(clone.status().line().ends_with(" ro"), "{}", clone.status().line());
    assert_eq!(bench.status_of(&clone, Bio::flush()), Status::IoError);
    assert_eq!(bench.status_of(&clone, write(40, &[7; 512])), Status::IoError);
    assert_eq!(bench.read(&clone, 16, 16), [vec![7; 8 * 512], original(24, 8)].concat());
    bench.write(&clone, 17, 1, 8);
    assert!(bench.metadata.take_seen().is_empty());
    assert_eq!(bench.close(&clone), Status::IoError);
    bench.kill();
    let clone = bench.still();
    assert_eq!((clone.status().hydrated, bench.read(&clone, 16, 8)), (0, original(16, 8)));
}

#[test]
fn holes_are_those_of_whoever_serves_the_region() {
    let bench = Bench::new();
    let clone = bench.still();
    bench.source.bytes.borrow_mut()[8 * 512..16 * 512].fill(0);
    bench.destination.bytes.borrow_mut().fill(0);
    bench.write(&clone, 16, 8, 7);
    assert_eq!(told(&*clone, extent(0, 32)), [(8, false), (8, true), (16, false)]);
    assert_eq!(bench.status_of(&clone, Bio::write_zeroes(extent(16, 8))), Status::Ok);
    assert_eq!(told(&*clone, extent(4, 22)), [(4, false), (16, true), (2, false)]);
}

#[test]
fn what_may_not_wait_is_not_copied_for() {
    let bench = Bench::new();
    let clone = bench.still();
    let no_wait = Flags { no_wait: true, ..Flags::default() };
    bench.write(&clone, 16, 8, 7);
    for (sector, sectors, status) in [(16, 8, Status::Ok), (15, 2, Status::Again), (8, 8, Status::Again)] {
        assert_eq!(bench.status_of(&clone, write(sector, &vec![8; sectors * 512]).with(no_wait)), status);
    }
    for (sector, sectors, status) in [(17, 3, Status::Ok), (0, 16, Status::Ok), (15, 2, Status::Again)] {
        assert_eq!(bench.status_of(&clone, read(sector, sectors).0.with(no_wait)), status);
    }
}

#[test]
fn a_flush_commits_also_where_the_destination_has_none() {
    let mut bench = Bench::new();
    bench.destination = Disk::with_limits(SECTORS + 3, Limits { flush: Ability::No, ..Limits::unlimited() });
    let clone = bench.still();
    assert_eq!(clone.limits().flush, Ability::Native, "the metadata are to be flushed");
    bench.write(&clone, 16, 8, 7);
    bench.flush(&clone);
    assert!(bench.destination.take_seen().iter().all(|(op, _)| *op != Op::Flush));
    drop(clone);
    bench.kill();
    assert_eq!(bench.still().status().hydrated, 1);
}

#[test]
fn a_suspend_waits_for_everything_that_was_passed_on() {
    for (what, hydrate, bio) in [
        ("write", 100, write(19, &[7; 512])),
        ("zeroes", 100, Bio::write_zeroes(extent(0, 8))),
        ("discard", 100, Bio::discard(extent(0, 8))),
        ("discard beside cold regions", 8, Bio::discard(extent(0, 8))),
        ("read", 100, read(3, 2).0),
        ("read of both", 8, read(4, 8).0),
    ] {
        let bench = Bench::new();
        let clone = bench.still();
        bench.write(&clone, 0, hydrate, 1);
        bench.flush(&clone);
        bench.destination.take_seen();
        bench.destination.hold.set(true);
        let suspended = Rc::new(Cell::new(false));
        let (suspending, told) = (Rc::clone(&clone), Rc::clone(&suspended));
        let work = async {
            let request = call(&*clone, bio);
            assert!(bench.reactor.spawn(async move { told.set(suspending.suspend().await.is_ok()) }));
            bench.reactor.sleep(Duration::from_millis(100)).await;
            assert_eq!(bench.destination.take_seen().len(), 1, "{what}: nothing is flushed before it is over");
            bench.destination.hold.set(false);
            bench.destination.end_held(0);
            assert_eq!(request.await.status(), Status::Ok, "{what}");
            bench.reactor.sleep(Duration::from_millis(100)).await;
        };
        bench.reactor.run(Box::pin(work)).unwrap();
        assert!(suspended.get(), "{what}");
        assert_eq!(bench.destination.take_seen(), [(Op::Flush, extent(0, 0))], "{what}");
    }
}
