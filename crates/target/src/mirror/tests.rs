//! Mirrors over disks in memory: what each leg gets, and what errors mean.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Bio, Flags, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, Reactor};

use super::options::{Features, Sync};
use super::*;
use crate::below::testing::{Disk, JumpingClock, call, content, extent, read, write};

mod corners;

const SECTORS: u64 = 64;
const REGION: u64 = 8;

/// A mirror and its disks.
struct Rig {
    reactor: Reactor,
    legs: Vec<Rc<Disk>>,
    log: Rc<Disk>,
}

impl Rig {
    fn new(legs: usize) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        Self { reactor, legs: (0..legs).map(|_| Disk::new(64)).collect(), log: Disk::new(4) }
    }

    fn setup(&self, disk: bool, sync: Sync, features: Features) -> Setup {
        let legs = self.legs.iter().enumerate().map(|(at, leg)| (format!("leg{at}"), Rc::clone(leg) as Rc<dyn Target>));
        let log = LogSetup::Disk { name: "log".to_owned(), target: Rc::clone(&self.log) as Rc<dyn Target> };
        Setup {
            legs: legs.collect(),
            sectors: SectorCount(SECTORS),
            log: if disk { log } else { LogSetup::Core },
            region: SectorCount(REGION),
            sync,
            features,
        }
    }

    fn run<T>(&self, setup: Setup, work: impl AsyncFnOnce(&Rc<Mirror>) -> T) -> T {
        let run = async {
            let mirror = open(&self.reactor, &BufferPool::default(), setup).await.unwrap();
            work(&mirror).await
        };
        let output = self.reactor.run(run).unwrap();
        self.reactor.clear();
        output
    }

    fn fill(&self, leg: usize, byte: u8) {
        self.legs[leg].bytes.borrow_mut().fill(byte);
    }

    fn sector(&self, leg: usize, sector: usize) -> u8 {
        self.legs[leg].bytes.borrow()[sector * 512]
    }

    fn equal(&self) -> bool {
        self.legs.iter().all(|leg| *leg.bytes.borrow() == *self.legs[0].bytes.borrow())
    }

    /// The bitmap of the log, and how many regions its header counts.
    fn logged(&self) -> (u8, u8) {
        let bytes = self.log.bytes.borrow();
        (bytes[1024], bytes[8])
    }
}

async fn put(mirror: &Mirror, sector: u64, byte: u8) -> Status {
    call(mirror, write(sector, &[byte; 512])).await.status()
}

async fn get(mirror: &Mirror, sector: u64) -> Result<u8, Status> {
    let (bio, memory) = read(sector, 1);
    let bio = call(mirror, bio).await;
    let status = bio.status();
    drop(bio);
    if status.is_ok() { Ok(content(memory)[0]) } else { Err(status) }
}

async fn synced(mirror: &Mirror) {
    while !mirror.is_in_sync() {
        mirror.reactor.sleep(Duration::from_millis(10)).await;
    }
}

const KEEP: Features = Features { handle_errors: true, keep_log: true, resync_rate: 0 };

#[test]
fn a_write_goes_to_every_leg_and_reads_go_round() {
    let rig = Rig::new(3);
    rig.run(rig.setup(false, Sync::None, Features::default()), async |mirror| {
        assert_eq!(mirror.status().line(), "3 leg0 leg1 leg2 8/8 1 AAA 1 core");
        assert_eq!(put(mirror, 20, 7).await, Status::Ok);
        assert!((0..3).all(|leg| rig.sector(leg, 20) == 7));
        let zeroes = Bio::discard(extent(20, 1));
        assert_eq!(call(&**mirror, zeroes).await.status(), Status::Ok);
        assert!((0..3).all(|leg| rig.sector(leg, 20) == 0));
        assert_eq!(call(&**mirror, Bio::flush()).await.status(), Status::Ok);
        rig.legs.iter().for_each(|leg| drop(leg.take_seen()));
        for sector in [0, 40, 8, 50, 16, 60] {
            assert_eq!(get(mirror, sector).await, Ok(0));
        }
        let reads: Vec<usize> = rig.legs.iter().map(|leg| leg.take_seen().len()).collect();
        assert_eq!(reads.iter().sum::<usize>(), 6, "each is read once");
        assert!(reads.iter().filter(|&&reads| reads > 0).count() > 1, "{reads:?}");
    });
}

#[test]
fn what_is_out_of_sync_is_copied_from_the_first_leg() {
    let rig = Rig::new(3);
    (0..3).for_each(|leg| rig.fill(leg, [1, 2, 3][leg]));
    rig.run(rig.setup(false, Sync::AsLogged, Features::default()), async |mirror| {
        assert_eq!(get(mirror, 33).await, Ok(1), "before anything is copied");
        synced(mirror).await;
        mirror.events().after(0, None).await;
        assert!(rig.equal() && rig.sector(2, 63) == 1);
        assert_eq!(mirror.status().line(), "3 leg0 leg1 leg2 8/8 1 AAA 1 core");
    });
    let reads =
        |leg: usize| rig.legs[leg].take_seen().iter().filter(|(op, _)| *op == Op::Read).map(|(_, at)| at.count.0).sum::<u64>();
    assert_eq!((reads(1), reads(2)), (0, 0));
    assert_eq!(reads(0), SECTORS + 1, "each sector is read once for both");
}

#[test]
fn a_region_is_dirty_on_the_log_before_it_is_written_and_clean_some_time_after() {
    let rig = Rig::new(2);
    let setup = rig.setup(true, Sync::None, Features::default());
    rig.run(setup, async |mirror| {
        assert_eq!(rig.logged(), (0xFF, 8));
        rig.log.take_seen();
        rig.legs[1].hold.set(true);
        let written = call(&**mirror, write(9, &[1; 512]));
        mirror.reactor.sleep(Duration::from_secs(5)).await;
        assert_eq!(rig.logged().0, 0b1111_1101, "while the write is in flight");
        assert_eq!(rig.log.take_seen(), [(Op::Write, extent(2, 1))], "one sector, with FUA");
        rig.legs[1].hold.set(false);
        rig.legs[1].end_held(0);
        assert_eq!(written.await.status(), Status::Ok);
        assert_eq!(put(mirror, 8, 2).await, Status::Ok);
        assert_eq!(rig.log.take_seen(), [], "it is dirty already");
        mirror.reactor.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.logged().0, 0xFF);
        assert_eq!(put(mirror, 9, 3).await, Status::Ok);
        assert_eq!(mirror.close().await, Status::Ok);
        assert_eq!(rig.logged(), (0xFF, 8), "closed in order");
    });
}

#[test]
fn after_a_crash_only_dirty_regions_are_copied() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, Features::default()), async |mirror| {
        assert_eq!(put(mirror, 17, 5).await, Status::Ok);
    });
    rig.fill(1, 9);
    rig.run(rig.setup(true, Sync::AsLogged, Features::default()), async |mirror| {
        assert_eq!(mirror.status().in_sync, 7);
        assert_eq!(get(mirror, 17).await, Ok(5));
        synced(mirror).await;
        assert_eq!((rig.sector(1, 17), rig.sector(1, 16), rig.sector(1, 24)), (5, 0, 9));
    });
}

#[test]
fn a_leg_that_fails_is_left_out_and_comes_back_when_told() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[1].fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        assert_eq!((mirror.status().line().as_str(), mirror.events().count()), ("2 leg0 leg1 7/8 1 AD 3 disk log A", 1));
        rig.legs[1].take_seen();
        assert_eq!(put(mirror, 30, 6).await, Status::Ok);
        assert_eq!(rig.legs[1].take_seen(), [], "nobody asks it any more");
        rig.legs[1].fails.set(Status::Ok);
        mirror.revive();
        synced(mirror).await;
        assert!(rig.equal());
        assert_eq!(mirror.status().line(), "2 leg0 leg1 8/8 1 AA 3 disk log A");
    });
}

#[test]
fn the_first_leg_may_fail_and_is_not_copied_from_after_a_crash() {
    let rig = Rig::new(3);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[0].fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        assert_eq!(rig.logged().1, 9, "the record counts");
        assert_eq!(get(mirror, 3).await, Ok(5));
    });
    rig.legs[0].fails.set(Status::Ok);
    rig.run(rig.setup(true, Sync::AsLogged, KEEP), async |mirror| {
        assert_eq!(get(mirror, 3).await, Ok(5));
        synced(mirror).await;
        assert!(rig.equal());
        mirror.close().await;
    });
    assert_eq!((rig.sector(0, 3), rig.logged()), (5, (0xFF, 8)));
}

#[test]
fn writes_that_a_leg_missed_are_held_until_somebody_knows() {
    let rig = Rig::new(2);
    let features = Features { keep_log: false, ..KEEP };
    rig.run(rig.setup(true, Sync::None, features), async |mirror| {
        rig.legs[1].fails.set(Status::IoError);
        let held = call(&**mirror, write(3, &[5; 512]));
        mirror.reactor.sleep(Duration::from_secs(9)).await;
        assert_eq!(mirror.status().held, 1);
        mirror.release();
        assert_eq!(held.await.status(), Status::Ok);
        assert_eq!(put(mirror, 60, 6).await, Status::Ok, "it is known");
    });
}

#[test]
fn when_all_legs_fail_the_write_fails_and_reads_stay_what_the_source_has() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs.iter().for_each(|leg| leg.fails.set(Status::IoError));
        assert_eq!(put(mirror, 3, 5).await, Status::IoError);
        assert_eq!(mirror.status().line(), "2 leg0 leg1 7/8 1 DD 3 disk log A");
        rig.legs.iter().for_each(|leg| leg.fails.set(Status::Ok));
        rig.fill(1, 9);
        assert_eq!(get(mirror, 3).await, Ok(0), "regions that differ are read from the source");
        mirror.revive();
        synced(mirror).await;
        assert_eq!((rig.sector(1, 3), rig.sector(1, 20)), (0, 9));
    });
}

#[test]
fn a_read_that_fails_is_served_by_another_leg() {
    let rig = Rig::new(2);
    rig.run(rig.setup(false, Sync::None, Features::default()), async |mirror| {
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        rig.legs[0].bad_sector.set(Some(3));
        for _ in 0..4 {
            assert_eq!(get(mirror, 3).await, Ok(5));
        }
        assert_eq!(mirror.status().line(), "2 leg0 leg1 8/8 1 RA 1 core");
        assert_eq!(mirror.events().count(), 1, "the first time counts");
        rig.legs[1].bad_sector.set(Some(3));
        assert_eq!(get(mirror, 3).await, Err(Status::IoError));
    });
}

#[test]
fn a_failed_flush_means_that_unflushed_regions_are_lost_on_that_leg() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        rig.legs[0].fails.set(Status::IoError);
        assert_eq!(call(&**mirror, Bio::flush()).await.status(), Status::Ok, "the other leg has everything");
        assert_eq!(mirror.status().line(), "2 leg0 leg1 7/8 1 FA 3 disk log A");
        assert_eq!(mirror.status().source, 1);
        rig.legs[1].fails.set(Status::IoError);
        assert_eq!(call(&**mirror, Bio::flush()).await.status(), Status::IoError);
        rig.legs[1].fails.set(Status::Ok);
        assert_eq!(put(mirror, 3, 6).await, Status::IoError, "nothing can be promised any more");
    });
}

#[test]
fn a_leg_without_flushes_is_not_flushed_and_the_others_are() {
    let mut rig = Rig::new(3);
    rig.legs[1] = Disk::with_limits(64, Limits { flush: Ability::No, ..Limits::unlimited() });
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        assert_eq!(mirror.limits().flush, Ability::Native);
        assert_eq!(put(mirror, 3, 5).await, Status::Ok);
        rig.legs.iter().for_each(|leg| drop(leg.take_seen()));
        assert_eq!(call(&**mirror, Bio::flush()).await.status(), Status::Ok);
        let flushes: Vec<usize> = rig.legs.iter().map(|leg| leg.take_seen().len()).collect();
        assert_eq!(flushes, [1, 0, 1]);
        assert_eq!(mirror.status().line(), "3 leg0 leg1 leg2 8/8 1 AAA 3 disk log A");
        mirror.reactor.sleep(Duration::from_secs(2)).await;
        assert_eq!(rig.logged().0, 0xFF, "regions become clean as ever");
    });
}

#[test]
fn a_log_that_fails_ends_all_writes() {
    let rig = Rig::new(2);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.log.fails.set(Status::IoError);
        assert_eq!(put(mirror, 3, 5).await, Status::IoError);
        assert_eq!((rig.sector(0, 3), rig.sector(1, 3)), (0, 0));
        assert_eq!(mirror.status().line(), "2 leg0 leg1 8/8 1 AA 3 disk log D");
        mirror.events().after(0, None).await;
        assert_eq!(get(mirror, 3).await, Ok(0));
    });
}

#[test]
fn scrubbing_finds_what_differs_and_repairs_it_when_told() {
    let rig = Rig::new(3);
    rig.run(rig.setup(true, Sync::None, KEEP), async |mirror| {
        rig.legs[2].bytes.borrow_mut()[512 * 17] = 1;
        rig.legs[1].bytes.borrow_mut()[512 * 63 + 511] = 1;
        let report = mirror.scrub(false).await;
        assert_eq!((report.compared, report.differing, report.regions), (SECTORS, 2, vec![2..3, 7..8]));
        assert!(!rig.equal());
        assert_eq!(mirror.scrub(true).await.differing, 2);
        synced(mirror).await;
        assert!(rig.equal());
        assert_eq!(mirror.scrub(false).await.differing, 0);
    });
}

#[test]
fn overlapping_writes_arrive_everywhere_in_the_same_order() {
    let rig = Rig::new(2);
    rig.run(rig.setup(false, Sync::None, KEEP), async |mirror| {
        rig.legs.iter().for_each(|leg| leg.hold.set(true));
        let calls = [1, 2].map(|byte| call(&**mirror, write(3, &[byte; 512])));
        mirror.reactor.sleep(Duration::from_millis(1)).await;
        assert!(rig.legs.iter().all(|leg| leg.take_seen().len() == 1), "the second waits");
        rig.legs.iter().for_each(|leg| leg.hold.set(false));
        rig.legs.iter().for_each(|leg| leg.end_held(0));
        for call in calls {
            assert_eq!(call.await.status(), Status::Ok);
        }
        assert!(rig.equal() && rig.sector(0, 3) == 2);
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let rig = Rig::new(2);
    let refused = |change: &dyn Fn(&mut Setup)| {
        let mut setup = rig.setup(true, Sync::AsLogged, KEEP);
        change(&mut setup);
        let opened = rig.reactor.run(open(&rig.reactor, &BufferPool::default(), setup)).unwrap();
        opened.err().map(|error| error.to_string()).unwrap()
    };
    assert!(refused(&|setup| setup.region = SectorCount(128)).contains("at most its length"));
    assert!(refused(&|setup| drop(setup.legs.pop())).contains("2 to 9 legs"));
    assert!(refused(&|setup| setup.sectors = SectorCount(65)).contains("leg0 has 64 sectors"));
    let small = LogSetup::Disk { name: "small".into(), target: Disk::new(2) };
    let small = Cell::new(Some(small));
    assert!(refused(&|setup| setup.log = small.take().unwrap()).contains("1536 are needed"));
    rig.log.fails.set(Status::IoError);
    assert!(refused(&|_| {}).contains("cannot be read"));
    assert!(refused(&|setup| setup.sync = Sync::All).contains("cannot be written"));
}

#[test]
fn fua_and_no_wait_reach_the_legs_as_they_should() {
    let rig = Rig::new(2);
    rig.run(rig.setup(false, Sync::None, KEEP), async |mirror| {
        let flags = Flags { fua: true, no_wait: true, ..Flags::default() };
        assert_eq!(call(&**mirror, write(0, &[1; 512]).with(flags)).await.status(), Status::Ok);
    });
}
