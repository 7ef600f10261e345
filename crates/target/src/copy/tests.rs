//! What the engine promises, over disks in memory and a clock that jumps: first the behaviours that every
//! engine of this kind must show, then what this one adds.

use std::cell::{Cell, RefCell};

use forebay_block::{Allocation, Limits, Op};
use forebay_reactor::{Attachment, DeviceId, Inline};

use super::*;
use crate::below::testing::{Disk, JumpingClock, content, extent, read, status_of};

struct Bench {
    reactor: Reactor,
    engine: Engine,
    pool: BufferPool,
}

fn bench_with(settings: &Settings) -> Bench {
    let reactor = Reactor::new(Box::new(JumpingClock::default()));
    let pool = BufferPool::default();
    Bench { engine: Engine::new(&reactor, &pool, settings), reactor, pool }
}

/// Slices of 4 KiB.
fn small() -> Settings {
    Settings { piece_bytes: 4096, in_flight_bytes: 32 << 10, ..Settings::default() }
}

fn bench() -> Bench {
    bench_with(&small())
}

impl Bench {
    fn copy(&self, from: &Rc<Disk>, to: &[&Rc<Disk>], count: u64, how: &How) -> Outcome {
        let to: Vec<Leg> = to.iter().map(|&disk| leg(disk)).collect();
        self.reactor.run(Box::pin(self.engine.copy(&leg(from), &to, SectorCount(count), how))).unwrap()
    }

    /// Starts a copy that goes on by itself; its outcome comes to lie in the cell.
    fn begin(&self, from: &Rc<Disk>, to: &Rc<Disk>, count: u64, how: &How) -> Rc<RefCell<Option<Outcome>>> {
        let (engine, from, to, how) = (self.engine.clone(), leg(from), [leg(to)], how.clone());
        let place = Rc::<RefCell<Option<Outcome>>>::default();
        let outcome = Rc::clone(&place);
        assert!(self.reactor.spawn(async move {
            let made = engine.copy(&from, &to, SectorCount(count), &how).await;
            outcome.replace(Some(made));
        }));
        place
    }

    fn turns(&self) {
        for _ in 0..8 {
            self.reactor.turn(false).unwrap();
        }
    }
}

fn leg(disk: &Rc<Disk>) -> Leg {
    Leg::new(Rc::clone(disk) as Rc<dyn Target>, Sector(0))
}

/// A disk in which every byte says where it is; none of them is 0.
fn filled(sectors: usize) -> Rc<Disk> {
    let disk = Disk::new(sectors);
    for (at, byte) in disk.bytes.borrow_mut().iter_mut().enumerate() {
        *byte = u8::try_from((at / 512 * 7 + at) % 251 + 1).unwrap();
    }
    disk
}

fn marked(sectors: usize) -> Rc<Disk> {
    let disk = Disk::new(sectors);
    disk.bytes.borrow_mut().fill(0xAA);
    disk
}

fn same(a: &Disk, b: &Disk, from: usize, to: usize) -> bool {
    a.bytes.borrow()[from * 512..to * 512] == b.bytes.borrow()[from * 512..to * 512]
}

fn is_marked(disk: &Disk, from: usize, to: usize) -> bool {
    disk.bytes.borrow()[from * 512..to * 512].iter().all(|&byte| byte == 0xAA)
}

#[test]
fn behaviour_1_a_copy_of_nothing_ends_without_io() {
    let (bench, from, to) = (bench(), filled(8), marked(8));
    assert!(bench.copy(&from, &[&to], 0, &How::default()).is_ok());
    assert!(from.take_seen().is_empty() && to.take_seen().is_empty());
}

#[test]
fn behaviour_2_lengths_that_are_not_whole_pages_are_copied_exactly() {
    for sectors in [1, 7, 9, 17, 1000] {
        let (bench, from, to) = (bench(), filled(1024), marked(1024));
        assert!(bench.copy(&from, &[&to], sectors as u64, &How::default()).is_ok());
        assert!(same(&from, &to, 0, sectors) && is_marked(&to, sectors, 1024), "{sectors}");
    }
}

#[test]
fn behaviour_3_of_three_destinations_the_failing_one_is_told_and_the_others_hold_the_data() {
    let (bench, from, to) = (bench(), filled(8), [marked(8), marked(8), marked(8)]);
    to[1].fails.set(Status::NoSpace);
    let outcome = bench.copy(&from, &[&to[0], &to[1], &to[2]], 8, &How::default());
    assert_eq!(outcome.unwritten, [Unwritten { leg: 1, status: Status::NoSpace, ranges: vec![extent(0, 8)] }]);
    assert_eq!((outcome.status(), outcome.leg(0)), (Status::NoSpace, None));
    assert!(same(&from, &to[0], 0, 8) && is_marked(&to[1], 0, 8) && same(&from, &to[2], 0, 8));
    assert_eq!(from.take_seen(), [(Op::Read, extent(0, 8))], "read once");
}

#[test]
fn behaviour_4_what_cannot_be_read_leaves_the_destination_untouched() {
    let (bench, from, to) = (bench(), filled(64), marked(64));
    from.bad_sector.set(Some(11));
    let outcome = bench.copy(&from, &[&to], 64, &How::default());
    assert_eq!((&outcome.unread[..], outcome.status()), (&[extent(11, 1)][..], Status::IoError));
    assert!(is_marked(&to, 8, 16), "the slice was not written");
}

#[test]
fn behaviour_5_a_copy_that_goes_on_leaves_out_exactly_what_is_unreadable() {
    let (bench, from, to) = (bench_with(&Settings { piece_bytes: 64 << 10, ..small() }), filled(512), marked(512));
    from.bad_sector.set(Some(131));
    let outcome = bench.copy(&from, &[&to], 512, &How { keep_going: true, ..How::default() });
    assert_eq!((outcome.unread, outcome.unwritten), (vec![extent(131, 1)], vec![]));
    assert!(same(&from, &to, 0, 131) && is_marked(&to, 131, 132) && same(&from, &to, 132, 512));
}

#[test]
fn behaviour_6_writes_of_a_copy_in_order_ascend_although_reads_end_in_any_order() {
    let (bench, from, to) = (bench(), filled(64), marked(64));
    from.hold.set(true);
    let outcome = bench.begin(&from, &to, 64, &How { sequential: true, ..How::default() });
    bench.turns();
    for _ in 0..8 {
        from.end_held(from.held() - 1);
        bench.turns();
    }
    assert!(outcome.take().expect("all reads have ended").is_ok());
    let starts: Vec<u64> = to.take_seen().iter().map(|(_, extent)| extent.start.0).collect();
    assert_eq!(starts, [0, 8, 16, 24, 32, 40, 48, 56]);
    assert!(same(&from, &to, 0, 64));
}

#[test]
fn behaviour_7_without_memory_slices_go_one_by_one_through_the_reserve() {
    let bench = bench_with(&Settings { pool_bytes_max: 0, ..small() });
    let (from, to) = (filled(64), marked(64));
    from.hold.set(true);
    let outcome = bench.begin(&from, &to, 64, &How::default());
    for _ in 0..8 {
        bench.turns();
        assert_eq!((from.held(), bench.engine.in_flight_bytes(), bench.pool.bytes_out()), (1, 4096, 4096));
        from.end_held(0);
    }
    bench.turns();
    assert!(outcome.take().expect("the reserve went round").is_ok());
    assert!(same(&from, &to, 0, 64));
}

#[test]
fn behaviour_8_what_follows_a_copy_never_runs_inside_what_follows_another() {
    let (bench, from, to) = (bench_with(&Settings { in_flight_bytes: 1 << 20, ..small() }), filled(64), marked(64));
    let inside = Rc::new(Cell::new(0));
    let done = Rc::new(Cell::new(0));
    from.hold.set(true);
    for _ in 0..16 {
        let (engine, disk, from, to) = (bench.engine.clone(), Rc::clone(&from), leg(&from), leg(&to));
        let (inside, done) = (Rc::clone(&inside), Rc::clone(&done));
        assert!(bench.reactor.spawn(async move {
            engine.copy(&from, std::slice::from_ref(&to), SectorCount(8), &How::default()).await;
            assert_eq!(inside.replace(1), 0);
            // What another copy waits for ends here.
            if disk.held() > 0 {
                disk.end_held(0);
            }
            assert_eq!(inside.replace(0), 1);
            done.set(done.get() + 1);
        }));
    }
    bench.turns();
    assert_eq!(from.held(), 16);
    from.end_held(0);
    for _ in 0..20 {
        bench.turns();
    }
    assert_eq!(done.get(), 16);
}

#[test]
fn behaviour_9_closing_waits_for_what_is_under_way_and_begins_nothing_more() {
    let (bench, from, to) = (bench(), filled(1024), marked(1024));
    from.hold.set(true);
    let outcome = bench.begin(&from, &to, 1024, &How::default());
    bench.turns();
    let closed = Rc::new(Cell::new(false));
    let (engine, flag) = (bench.engine.clone(), Rc::clone(&closed));
    assert!(bench.reactor.spawn(async move {
        engine.close().await;
        flag.set(true);
    }));
    for left in (0..8).rev() {
        bench.turns();
        assert!(!closed.get() && outcome.borrow().is_none());
        assert_eq!(from.held(), left + 1);
        from.end_held(0);
    }
    bench.turns();
    assert!(closed.get());
    assert!(outcome.take().expect("ended").cancelled);
    assert!(same(&from, &to, 0, 64) && is_marked(&to, 64, 1024));
    assert!(bench.copy(&from, &[&to], 8, &How::default()).cancelled, "closed for good");
}

#[test]
fn behaviour_10_a_rate_in_bytes_per_second_is_kept() {
    for rate in [1 << 20, 10 << 20, 100 << 20] {
        let settings = Settings { rate: NonZeroU64::new(rate), piece_bytes: 64 << 10, in_flight_bytes: 1 << 20, ..small() };
        let bench = bench_with(&settings);
        let sectors = 2 * rate / 512;
        let (from, to) = (filled(usize::try_from(sectors).unwrap()), Disk::new(usize::try_from(sectors).unwrap()));
        assert!(bench.copy(&from, &[&to], sectors, &How::default()).is_ok());
        let millis = bench.reactor.now().as_millis();
        assert!((1850..=2050).contains(&millis), "2 s of bytes took {millis} ms at {rate}");
    }
    let (bench, from, to) = (bench(), filled(4096), Disk::new(4096));
    bench.copy(&from, &[&to], 4096, &How::default());
    assert_eq!(bench.reactor.now(), Duration::ZERO, "no rate, no delay");
}

#[test]
fn a_read_that_fails_drains_those_that_wait_behind_it_in_a_copy_in_order() {
    let (bench, from, to) = (bench(), filled(1024), marked(1024));
    from.bad_sector.set(Some(19));
    let outcome = bench.copy(&from, &[&to], 1024, &How { sequential: true, keep_going: true, ..How::default() });
    assert_eq!(outcome.unread, [extent(19, 1)]);
    assert!(same(&from, &to, 0, 16) && is_marked(&to, 16, 1024));
    assert_eq!(bench.engine.in_flight_bytes(), 0);
}

#[test]
fn copies_in_order_share_the_reserve_without_waiting_for_each_other_for_ever() {
    let bench = bench_with(&Settings { pool_bytes_max: 0, rate: NonZeroU64::new(1 << 20), ..small() });
    let disks = [filled(256), marked(256), marked(256), marked(256)];
    let how = How { sequential: true, ..How::default() };
    let outcomes = [1, 2, 3].map(|to| bench.begin(&disks[0], &disks[to], 256, &how));
    bench.reactor.run(bench.reactor.sleep(Duration::from_secs(2))).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.take().is_some_and(|outcome| outcome.is_ok())));
}

#[test]
fn a_read_that_succeeds_when_tried_again_is_no_error() {
    let (bench, from, to) = (bench(), filled(8), marked(8));
    from.hold.set(true);
    from.fails.set(Status::IoError);
    let outcome = bench.begin(&from, &to, 8, &How::default());
    bench.turns();
    from.end_held(0);
    from.fails.set(Status::Ok);
    from.hold.set(false);
    bench.turns();
    assert!(outcome.take().unwrap().is_ok());
    assert!(same(&from, &to, 0, 8));
}

#[test]
fn a_cancelled_copy_ends_with_what_is_in_flight_and_tells_how_far_it_came() {
    let (bench, from, to) = (bench(), filled(1024), marked(1024));
    let watch = Rc::new(Watch::default());
    from.hold.set(true);
    let outcome = bench.begin(&from, &to, 1024, &How { watch: Some(Rc::clone(&watch)), ..How::default() });
    bench.turns();
    watch.cancel();
    (0..8).for_each(|_| from.end_held(0));
    bench.turns();
    assert!(outcome.take().unwrap().cancelled);
    assert_eq!((watch.settled(), watch.progress().written), (SectorCount(64), 64 * 512));
    assert!(same(&from, &to, 0, 64) && is_marked(&to, 64, 1024));
}

#[test]
fn cancelling_ends_the_wait_for_the_rate() {
    let bench = bench_with(&Settings { rate: NonZeroU64::new(1), ..small() });
    let (from, to) = (filled(64), marked(64));
    let watch = Rc::new(Watch::default());
    let outcome = bench.begin(&from, &to, 64, &How { watch: Some(Rc::clone(&watch)), ..How::default() });
    bench.turns();
    watch.cancel();
    bench.reactor.run(bench.reactor.sleep(Duration::from_millis(200))).unwrap();
    assert!(outcome.take().expect("4,096 seconds were not waited for").cancelled);
}

#[test]
fn holes_of_the_source_are_not_read_and_become_zeroes_or_are_left_alone() {
    for (zeroes, zeroed) in [(Zeroes::Unmap, true), (Zeroes::Skip, false)] {
        let (bench, from, to) = (bench(), filled(256), marked(256));
        from.bytes.borrow_mut()[64 * 512..192 * 512].fill(0);
        let watch = Rc::new(Watch::default());
        let how = How { holes: true, zeroes, watch: Some(Rc::clone(&watch)), ..How::default() };
        assert!(bench.copy(&from, &[&to], 256, &how).is_ok());
        assert!(same(&from, &to, 0, 64) && same(&from, &to, 192, 256));
        assert_eq!((same(&from, &to, 64, 192), is_marked(&to, 64, 192)), (zeroed, !zeroed));
        let seen = watch.progress();
        assert_eq!((seen.read, seen.zeroed + seen.skipped, seen.done), (128 * 512, 128 * 512, 256 * 512));
        assert!(from.take_seen().iter().all(|(_, read)| !read.overlaps(extent(64, 128))));
    }
}

#[test]
fn holes_are_cut_to_the_blocks_of_the_coarsest_end() {
    let (bench, from) = (bench(), filled(256));
    let to = Disk::with_limits(256, Limits { logical_bytes: 4096, ..Limits::unlimited() });
    for (start, end) in [(3, 13), (17, 23), (31, 50), (101, 256)] {
        from.bytes.borrow_mut()[start * 512..end * 512].fill(0);
    }
    to.bytes.borrow_mut().fill(0xAA);
    assert!(bench.copy(&from, &[&to], 256, &How { holes: true, ..How::default() }).is_ok());
    assert!(same(&from, &to, 0, 256));
    let seen = to.take_seen();
    assert!(seen.iter().all(|(_, extent)| extent.start.0 % 8 == 0 && extent.count.0 % 8 == 0), "{seen:?}");
    let zeroed: u64 = seen.iter().filter(|(op, _)| *op == Op::WriteZeroes).map(|(_, extent)| extent.count.0).sum();
    assert_eq!(zeroed, 16 + 152, "32..48 and 104..256 are whole blocks of holes");
}

#[test]
fn zeroes_in_the_data_are_found_in_whole_stretches() {
    let (bench, from, to) = (bench_with(&Settings { piece_bytes: 64 << 10, ..small() }), filled(128), marked(128));
    from.bytes.borrow_mut()[10 * 512..100 * 512].fill(0);
    assert!(bench.copy(&from, &[&to], 128, &How { detect_bytes: 4096, ..How::default() }).is_ok());
    assert!(same(&from, &to, 0, 128));
    let seen = [(Op::Write, extent(0, 16)), (Op::WriteZeroes, extent(16, 80)), (Op::Write, extent(96, 32))];
    assert_eq!(to.take_seen(), seen);
}

#[test]
fn zeroes_are_written_where_a_destination_cannot_zero() {
    let bench = bench();
    let limits = Limits { write_zeroes: Ability::No, ..Limits::unlimited() };
    let to = Disk::with_limits(8192, limits);
    to.bytes.borrow_mut().fill(0xAA);
    let zero = async { bench.engine.zero(&[leg(&to)], SectorCount(8000), &How::default()).await };
    assert!(bench.reactor.run(Box::pin(zero)).unwrap().is_ok());
    assert!(to.bytes.borrow()[..8000 * 512].iter().all(|&byte| byte == 0) && is_marked(&to, 8000, 8192));
    assert!(to.take_seen().iter().all(|(op, _)| *op == Op::Write));
}

#[test]
fn zeroes_that_are_written_keep_to_the_rate_and_those_that_are_asked_for_cost_nothing() {
    let limits = |write_zeroes| Limits { write_zeroes, ..Limits::unlimited() };
    let time = |to: &[Ability]| {
        let bench = bench_with(&Settings { rate: NonZeroU64::new(1 << 20), ..small() });
        let to: Vec<_> = to.iter().map(|ability| leg(&Disk::with_limits(8192, limits(*ability)))).collect();
        let zero = async { bench.engine.zero(&to, SectorCount(8192), &How::default()).await };
        assert!(bench.reactor.run(Box::pin(zero)).unwrap().is_ok());
        bench.reactor.now().as_millis()
    };
    assert_eq!(time(&[Ability::Native]), 0);
    let (one, two) = (time(&[Ability::No]), time(&[Ability::Native, Ability::No, Ability::No]));
    assert!((2900..=4000).contains(&one), "4 MiB took {one} ms");
    assert_eq!(one, two, "they count once, as what is read for several does");
}

#[test]
fn slow_foreground_io_makes_slices_begin_later() {
    let bench = bench_with(&Settings { foreground: Some(Duration::from_millis(2)), ..small() });
    let (from, to) = (filled(64), marked(64));
    bench.engine.foreground_ended(Duration::from_millis(50));
    bench.reactor.run(bench.reactor.sleep(Duration::from_millis(30))).unwrap();
    bench.copy(&from, &[&to], 8, &How::default());
    assert!(bench.reactor.now() > Duration::from_millis(30));
    assert!(same(&from, &to, 0, 8));
}

/// A disk of which the reactor gathers the requests.
struct Plugged {
    reactor: Reactor,
    id: DeviceId,
    disk: Rc<Disk>,
}

struct AtOnce(Rc<Disk>);

impl Inline for AtOnce {
    fn execute(&self, bio: &Bio) -> Status {
        let start = usize::try_from(bio.sector().to_bytes()).unwrap();
        let end = start + usize::try_from(bio.bytes()).unwrap();
        let mut bytes = self.0.bytes.borrow_mut();
        match bio.op() {
            Op::Read => assert_eq!(bio.copy_in(&bytes[start..end]), end - start),
            Op::Write => assert_eq!(bio.copy_out(&mut bytes[start..end]), end - start),
            _ => return Status::Unsupported,
        }
        Status::Ok
    }
}

impl Target for Plugged {
    fn kind(&self) -> &'static str {
        "plugged"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        self.disk.sectors()
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.below(&*self.disk, extent);
    }
}

fn plugged(reactor: &Reactor, disk: &Rc<Disk>) -> (Leg, DeviceId) {
    let inline: Option<Rc<dyn Inline>> = Some(Rc::new(AtOnce(Rc::clone(disk))));
    let attachment = Attachment { name: "plugged".into(), limits: Limits::unlimited(), file: None, inline, merging: true };
    let id = reactor.attach(attachment).unwrap();
    let target = Plugged { reactor: reactor.clone(), id, disk: Rc::clone(disk) };
    (Leg::new(Rc::new(target), Sector(0)), id)
}

#[test]
fn small_copies_of_one_turn_leave_as_one_request_at_each_end_for_any_number_of_destinations() {
    let bench = bench();
    let disks = [filled(512), marked(512), marked(512), marked(512)];
    let ends = disks.each_ref().map(|disk| plugged(&bench.reactor, disk));
    // As from jobs of a snapshot: 8 chunks of 4 KiB, in any order.
    for chunk in [3, 0, 7, 1, 6, 2, 5, 4] {
        let at = |end: &(Leg, DeviceId)| Leg::new(Rc::clone(&end.0.target), Sector(chunk * 8));
        let (engine, from, to) = (bench.engine.clone(), at(&ends[0]), [at(&ends[1]), at(&ends[2]), at(&ends[3])]);
        assert!(bench.reactor.spawn(async move {
            assert!(engine.copy(&from, &to, SectorCount(8), &How::default()).await.is_ok());
        }));
    }
    bench.turns();
    for (disk, (_, id)) in disks.iter().zip(&ends) {
        assert!(same(&disks[0], disk, 0, 64));
        let counts = bench.reactor.device_counts(*id);
        assert_eq!((counts.bios, counts.requests), (8, 1));
    }
}

#[test]
fn copies_of_one_slice_allocate_nothing_once_warm() {
    let (bench, from, to) = (bench(), filled(64), marked(64));
    let disks = [&from, &to].map(Rc::clone);
    let (from, to, how) = (leg(&from), leg(&to), How::default());
    let many = |times: u32| {
        let copies = async {
            for _ in 0..times {
                assert!(bench.engine.copy(&from, std::slice::from_ref(&to), SectorCount(8), &how).await.is_ok());
            }
        };
        bench.reactor.run(std::pin::pin!(copies)).unwrap();
    };
    many(1000);
    // The lists of the disks have room now.
    for disk in &disks {
        disk.seen.borrow_mut().clear();
    }
    assert_eq!(allocation_counter::measure(|| many(1000)).count_total, 0);
}

#[test]
fn a_copy_reads_what_the_source_gives_where_it_starts() {
    let (bench, from, to) = (bench(), filled(128), marked(128));
    let from_leg = Leg::new(Rc::clone(&from) as Rc<dyn Target>, Sector(100));
    let to_leg = Leg::new(Rc::clone(&to) as Rc<dyn Target>, Sector(3));
    let how = How::default();
    let copy = bench.engine.copy(&from_leg, std::slice::from_ref(&to_leg), SectorCount(20), &how);
    assert!(bench.reactor.run(Box::pin(copy)).unwrap().is_ok());
    let (bio, memory) = read(3, 20);
    assert_eq!(status_of(&*to, bio), Status::Ok);
    assert_eq!(content(memory), from.bytes.borrow()[100 * 512..120 * 512]);
    assert!(is_marked(&to, 0, 3) && is_marked(&to, 23, 128));
}
