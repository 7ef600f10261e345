//! The net must hold what is right and catch every fish: a plain disk passes, wrong targets do not.

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use forebay_block::{Bio, Flags, Limits, Op, Sector, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, Reactor};

use super::{Disturbed, Later, Load, Opened, Outcome, Stage, Subject, run};
use crate::check::{Model, stamp};
use crate::world::{DiskOptions, FaultOptions, SimDisk, World, WorldOptions};

const SECTORS: usize = 512;

/// What is wrong with a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// Nothing.
    None,
    /// Some flushes end without having been done.
    LosesFlush,
    /// FUA is an ordinary write.
    IgnoresFua,
    /// Some writes go next to their place.
    Misdirects,
    /// Some writes are acknowledged and forgotten.
    LosesWrite,
    /// Writes are acknowledged before they are done.
    AnswersEarly,
    /// Some long writes lose their end.
    CutsShort,
    /// Some reads leave their memory as it was.
    ReadsNothing,
    /// Some zeroes are not written.
    LosesZeroes,
    /// Says that its groups are atomic.
    ClaimsGroups,
}

struct Toy {
    bug: Bug,
    disk: Rc<SimDisk>,
    count: Cell<u64>,
}

impl Toy {
    fn every(&self, n: u64) -> bool {
        self.count.set(self.count.get() + 1);
        self.count.get().is_multiple_of(n)
    }
}

impl Target for Toy {
    fn kind(&self) -> &'static str {
        "toy"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.disk.sectors()
    }

    fn submit(&self, bio: Bio) {
        match (self.bug, bio.op()) {
            (Bug::LosesFlush, Op::Flush) if self.every(2) => bio.end(Status::Ok),
            (Bug::IgnoresFua, Op::Write) => self.disk.submit(bio.with(Flags::default())),
            (Bug::Misdirects, Op::Write) if self.every(40) && bio.extent().end().0 < SECTORS as u64 => {
                let next = Sector(bio.sector().0 + 1);
                self.disk.submit(bio.remap(next));
            }
            (Bug::LosesWrite, Op::Write) | (Bug::ReadsNothing, Op::Read) if self.every(40) => bio.end(Status::Ok),
            (Bug::AnswersEarly, Op::Write) => {
                let bytes = u32::try_from(bio.bytes()).unwrap();
                let copy = Bio::write(bio.sector(), Rc::clone(bio.segments().unwrap()), 0, bytes).with(bio.flags());
                self.disk.submit(copy);
                bio.end(Status::Ok);
            }
            (Bug::CutsShort, Op::Write) if bio.bytes() > 4096 && self.every(5) => {
                self.disk.submit(bio.part(0, bio.bytes() - 512));
                bio.end_after_parts();
            }
            (Bug::LosesZeroes, Op::WriteZeroes) => bio.end(Status::Ok),
            _ => self.disk.submit(bio),
        }
    }
}

impl Opened for Toy {
    fn target(&self) -> &dyn Target {
        self
    }

    fn disturb(&self, _number: u64) -> Later<Disturbed> {
        Box::pin(async { Ok(Disturbed::Silently) })
    }

    fn drain(&self) -> Later<()> {
        Box::pin(async { Ok(()) })
    }

    fn leave(&self) -> Later<()> {
        let disk = Rc::clone(&self.disk);
        Box::pin(async move {
            let status = forebay_block::call(&*disk, Bio::flush()).await.status();
            if status.is_ok() { Ok(()) } else { Err(format!("{status:?}")) }
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        (self.bug == Bug::ClaimsGroups).then_some(8)
    }

    fn is_latched(&self) -> bool {
        false
    }
}

impl Subject for Bug {
    fn open(&self, world: &World, reactor: &Reactor, _pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let disk = world.disk(reactor, 0);
        let bug = *self;
        Box::pin(async move { Ok(Rc::new(Toy { bug, disk, count: Cell::new(0) }) as Rc<dyn Opened>) })
    }

    fn bottom(&self) -> Option<usize> {
        Some(0)
    }
}

fn run_toy(bug: Bug, seed: u64, faults: Option<&FaultOptions>) -> Outcome {
    let mut rng = Rng::with_seed(seed);
    let options = DiskOptions {
        name: "disk",
        sectors: SECTORS as u64,
        limits: Limits { max_sectors: 64, ..Limits::unlimited() },
        latency_ns: (10_000, 1 << rng.u32(14..24)),
        tear_bytes: if rng.bool() { 512 } else { 4096 },
        faults: faults.cloned().unwrap_or_default(),
    };
    let world =
        World::new(WorldOptions { seed, disks: vec![options], yield_always: rng.bool(), early_effect: rng.bool(), trace: false });
    world.preset(0, |bytes| stamp(bytes, seed, 0, 0));
    let load = Load::draw(&mut rng, SECTORS, 8, 1);
    let (model, faults) = (Model::new(seed, SECTORS, false), faults.is_some());
    run(seed, Stage { world, subject: Box::new(bug), load, model, faults }, 400)
}

#[test]
fn a_plain_disk_is_found_right_through_all_crashes() {
    let mut crashes = 0;
    for seed in 0..150 {
        let outcome = run_toy(Bug::None, seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}");
        crashes += outcome.totals.crashes;
    }
    assert!(crashes > 150 * 10, "{crashes} crashes");
}

#[test]
fn a_plain_disk_with_faults_is_found_right() {
    let mut faults = 0;
    let mut options = FaultOptions {
        read_error: 5_000,
        write_error: 20_000,
        discard_error: 20_000,
        short: 50_000,
        again: 50_000,
        stuck: 1_000,
        ..FaultOptions::default()
    };
    options.unwritable.push(100..110);
    for seed in 0..150 {
        let outcome = run_toy(Bug::None, seed, Some(&options));
        assert_eq!(outcome.failure, None, "seed {seed}");
        faults += outcome.totals.faults;
    }
    assert!(faults > 1000, "{faults} faults");
}

#[test]
fn one_seed_gives_one_digest_and_another_seed_another() {
    let first = run_toy(Bug::None, 7, None);
    let second = run_toy(Bug::None, 7, None);
    assert_eq!(first.digest, second.digest);
    assert_ne!(first.digest, run_toy(Bug::None, 8, None).digest);
}

#[test]
fn a_disk_that_forgets_after_a_failed_flush_is_caught() {
    let options = FaultOptions { flush_error: 100_000, ..FaultOptions::default() };
    let caught = (0..100).find(|&seed| run_toy(Bug::None, seed, Some(&options)).failure.is_some());
    assert!(caught.is_some());
}

#[test]
fn every_bug_is_caught_within_fifty_seeds() {
    let bugs = [
        Bug::LosesFlush,
        Bug::IgnoresFua,
        Bug::Misdirects,
        Bug::LosesWrite,
        Bug::AnswersEarly,
        Bug::CutsShort,
        Bug::ReadsNothing,
        Bug::LosesZeroes,
        Bug::ClaimsGroups,
    ];
    for bug in bugs {
        let caught = (0..50).find(|&seed| run_toy(bug, seed, None).failure.is_some());
        assert!(caught.is_some(), "{bug:?} escaped");
    }
}
