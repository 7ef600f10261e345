//! The world itself: what a disk keeps, loses and refuses.

use std::rc::Rc;

use forebay_block::{Ability, Bio, Extent, Flags, HeapMemory, Limits, Sector, SectorCount, Segments, Status, Target, call};

use super::{Cut, DiskOptions, FaultOptions, Moment, Stop, World, WorldOptions};

fn world(seed: u64, faults: FaultOptions) -> World {
    world_of(seed, faults, Limits::unlimited())
}

fn world_of(seed: u64, faults: FaultOptions, limits: Limits) -> World {
    let disk = DiskOptions { name: "disk", sectors: 64, limits, latency_ns: (1_000, 2_000), tear_bytes: 512, faults };
    World::new(WorldOptions { seed, disks: vec![disk], yield_always: false, early_effect: false, trace: false })
}

fn filled(sectors: u32, byte: u8) -> Rc<Segments> {
    let bytes = sectors * 512;
    let mut segments = Segments::whole(Box::new(HeapMemory::new(bytes as usize, 512)), bytes).unwrap();
    Rc::get_mut(&mut segments).unwrap().bytes_mut().fill(byte);
    segments
}

fn write(sector: u64, sectors: u32, byte: u8, fua: bool) -> Bio {
    Bio::write(Sector(sector), filled(sectors, byte), 0, sectors * 512).with(Flags { fua, ..Flags::default() })
}

/// Does `bios` one after the other in a life of its own and ends it; what the disk holds then.
fn live(world: &World, bios: Vec<Bio>, cut: Cut) -> (Vec<Status>, Vec<u8>) {
    let reactor = world.restart();
    let disk = world.disk(&reactor, 0);
    let mut statuses = Vec::new();
    let list = &mut statuses;
    let root = async move {
        for bio in bios {
            list.push(call(&*disk, bio).await.status());
        }
        world.cut_now(cut);
        std::future::pending::<()>().await;
    };
    assert!(reactor.run(root).is_err());
    assert_eq!(world.stop(), Some(Stop::Cut(cut)));
    reactor.clear();
    (statuses, world.look(0, <[u8]>::to_vec))
}

#[test]
fn flushed_and_fua_writes_outlive_every_power_cut_and_others_only_some() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = world(seed, FaultOptions::default());
        let bios = vec![write(0, 1, 1, false), Bio::flush(), write(1, 1, 2, true), write(2, 1, 3, false)];
        let (_, bytes) = live(&world, bios, Cut::Power);
        assert_eq!((bytes[0], bytes[512]), (1, 2), "seed {seed}");
        lost += u32::from(bytes[1024] == 0);
    }
    assert!(lost > 5 && lost < 35, "{lost} of 40 lost");
}

#[test]
fn a_disk_without_flushes_keeps_what_is_done_and_refuses_them() {
    for seed in 0..20 {
        let world = world_of(seed, FaultOptions::default(), Limits { flush: Ability::No, ..Limits::unlimited() });
        let (statuses, bytes) = live(&world, vec![write(0, 1, 1, false), Bio::flush(), write(1, 1, 2, false)], Cut::Power);
        assert_eq!((statuses[1], bytes[0], bytes[512]), (Status::Unsupported, 1, 2), "seed {seed}");
    }
}

#[test]
fn a_kill_takes_nothing_that_was_done_and_a_later_power_cut_may() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = world(seed, FaultOptions::default());
        let (_, bytes) = live(&world, vec![write(0, 1, 1, false)], Cut::Kill);
        assert_eq!(bytes[0], 1, "seed {seed}");
        let (_, bytes) = live(&world, Vec::new(), Cut::Power);
        lost += u32::from(bytes[0] == 0);
    }
    assert!(lost > 5, "{lost} of 40 lost");
}

#[test]
fn a_durable_sector_never_goes_back_to_an_older_unflushed_one() {
    for seed in 0..40 {
        let world = world(seed, FaultOptions::default());
        let bios = vec![write(0, 4, 1, false), write(1, 1, 2, true)];
        let (_, bytes) = live(&world, bios, Cut::Power);
        assert_eq!(bytes[512], 2, "seed {seed}");
    }
}

#[test]
fn long_writes_are_torn_at_sectors() {
    let torn = (0..60).any(|seed| {
        let world = world(seed, FaultOptions::default());
        let (_, bytes) = live(&world, vec![write(0, 8, 7, false)], Cut::Power);
        let left = (0..8).filter(|at| bytes[at * 512] == 7).count();
        assert!((0..8).all(|at| bytes[at * 512] == bytes[at * 512 + 511]), "a sector is whole");
        left > 0 && left < 8
    });
    assert!(torn);
}

#[test]
fn faults_reach_the_requests_concerned_and_healing_ends_them() {
    let mut faults = FaultOptions { fail_at: Some(0), ..FaultOptions::default() };
    faults.unwritable.push(8..9);
    faults.unreadable.push(16..17);
    let world = world(1, faults);
    let bios = vec![Bio::flush(), write(4, 8, 1, false), write(0, 8, 1, false), Bio::read(Sector(16), filled(1, 0), 0, 512)];
    let (statuses, _) = live(&world, bios, Cut::Kill);
    assert_eq!(statuses, [Status::IoError, Status::IoError, Status::Ok, Status::IoError]);
    assert_eq!(world.counts().faults, 3);
    world.heal();
    let (statuses, bytes) = live(&world, vec![write(4, 8, 5, false), Bio::flush()], Cut::Power);
    assert_eq!(statuses, [Status::Ok, Status::Ok]);
    assert!(bytes[4 * 512..12 * 512].iter().all(|&byte| byte == 5));
}

#[test]
fn what_a_failed_flush_forgot_no_later_flush_saves() {
    let mut lost = 0;
    for seed in 0..40 {
        let world = world(seed, FaultOptions { fail_at: Some(1), ..FaultOptions::default() });
        let (statuses, bytes) = live(&world, vec![write(0, 1, 1, false), Bio::flush(), Bio::flush()], Cut::Power);
        assert_eq!(statuses, [Status::Ok, Status::IoError, Status::Ok]);
        lost += u32::from(bytes[0] == 0);
    }
    assert!(lost > 5, "{lost} of 40 lost");
}

#[test]
fn short_results_and_refusals_for_now_are_invisible_above() {
    for seed in 0..20 {
        let faults = FaultOptions { short: 400_000, again: 300_000, stuck: 100_000, ..FaultOptions::default() };
        let world = world(seed, faults);
        let payload = filled(32, 0);
        let bios = vec![write(0, 32, 9, true), Bio::read(Sector(0), Rc::clone(&payload), 0, 32 * 512)];
        let (statuses, bytes) = live(&world, bios, Cut::Power);
        assert_eq!(statuses, [Status::Ok, Status::Ok]);
        assert!(bytes[..32 * 512].iter().all(|&byte| byte == 9), "seed {seed}");
        let mut payload = payload;
        assert!(Rc::get_mut(&mut payload).unwrap().bytes_mut().iter().all(|&byte| byte == 9), "seed {seed}");
    }
}

#[test]
fn discarded_sectors_read_as_they_were_or_as_zeroes() {
    let mut zeroed = 0;
    for seed in 0..20 {
        let world = world(seed, FaultOptions::default());
        let extent = Extent::new(Sector(0), SectorCount(8));
        let (_, bytes) = live(&world, vec![write(0, 8, 4, false), Bio::discard(extent)], Cut::Kill);
        assert!(bytes[..8 * 512].iter().all(|&byte| byte == 4 || byte == 0));
        zeroed += (0..8).filter(|at| bytes[at * 512] == 0).count();
    }
    assert!(zeroed > 0 && zeroed < 20 * 8);
}

#[test]
fn the_cut_strikes_at_the_very_step() {
    // Of each request, submission, effect and completion are three steps; the third is the flush.
    let moments = [
        (Moment::Step(0), 0),
        (Moment::Step(1), 0),
        (Moment::Step(2), 0),
        (Moment::Step(3), 1),
        (Moment::Flush(0), 2),
        (Moment::Flush(1), 3),
    ];
    for (moment, answered) in moments {
        let world = world(3, FaultOptions::default());
        let reactor = world.restart();
        let disk = world.disk(&reactor, 0);
        world.cut_at(Cut::Kill, moment);
        let mut answers = 0;
        let count = &mut answers;
        let ended = reactor.run(async move {
            for bio in [write(0, 1, 1, false), write(0, 1, 2, false), Bio::flush(), Bio::flush()] {
                let _ = call(&*disk, bio).await;
                *count += 1;
            }
        });
        assert!(ended.is_err());
        assert_eq!(answers, answered, "{moment:?}");
        reactor.clear();
    }
}

#[test]
fn who_waits_for_nothing_is_told_of_a_deadlock_and_who_asks_nonsense_of_misuse() {
    let world = world(1, FaultOptions::default());
    let reactor = world.restart();
    assert!(reactor.run(std::future::pending::<()>()).is_err());
    assert_eq!(world.stop(), Some(Stop::Deadlock));
    let reactor = world.restart();
    let disk = world.disk(&reactor, 0);
    let ended = reactor.run(async move { call(&*disk, write(63, 2, 1, false)).await.status() });
    assert!(ended.is_err());
    assert!(matches!(world.stop(), Some(Stop::Misuse(_))));
}

#[test]
fn time_jumps_to_timers_when_nothing_else_is_to_be_done() {
    let world = world(1, FaultOptions::default());
    let reactor = world.restart();
    let hour = std::time::Duration::from_hours(1);
    reactor.run(reactor.sleep(hour)).unwrap();
    assert!(world.now() >= hour && world.now() < hour + std::time::Duration::from_secs(1));
    assert_eq!(world.disk(&reactor, 0).kind(), "sim");
}
