//! A copy so small that all its crashes can be tried. Opening it is resuming it and coming to its end; what it serves
//! then are stamps, wherever every destination has what the source has, and nothing of use elsewhere.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Bio, Limits, Op, Sector, SectorCount, Status, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::copy::{Engine, Found, How, JOURNAL_BYTES, Leg, Settings, Watch, Zeroes};

use super::swarm::{DESTINATIONS, JOURNAL, SOURCE};
use super::{first_difference, journal_on, settled_by};
use crate::check::{Model, POISON, SECTOR, stamp};
use crate::enumerate::{SEED, Tiny};
use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::{DiskOptions, FaultOptions, World, WorldOptions};

/// Bytes of a slice.
const PIECE_BYTES: u32 = 4096;
/// Time of a request, nanoseconds.
const LATENCY_NS: u64 = 10_000;
/// Time between two notes in the journal: a few slices.
const NOTE_EVERY: Duration = Duration::from_nanos(3 * LATENCY_NS);

/// A variant.
#[derive(Clone, Copy)]
struct Shape {
    destinations: usize,
    /// Slices of the copy, of which the second holds zeroes.
    slices: usize,
    /// Slices in flight.
    width: u64,
    /// What a power cut leaves whole on destinations, bytes.
    tear_bytes: u32,
    /// The destinations hold something else before.
    old: bool,
    sequential: bool,
}

const SHAPES: [Shape; 5] = [
    Shape { destinations: 1, slices: 5, width: 1, tear_bytes: 512, old: false, sequential: false },
    Shape { destinations: 1, slices: 4, width: 4, tear_bytes: 512, old: true, sequential: false },
    Shape { destinations: 2, slices: 4, width: 2, tear_bytes: 4096, old: true, sequential: false },
    Shape { destinations: 1, slices: 8, width: 3, tear_bytes: 4096, old: false, sequential: true },
    Shape { destinations: 3, slices: 2, width: 2, tear_bytes: 4096, old: true, sequential: false },
];

/// A copy of a few slices in its variant number `variant`.
#[must_use]
pub fn tiny(variant: usize) -> Option<Tiny> {
    let &shape = SHAPES.get(variant)?;
    Some(Tiny {
        world: Box::new(move || shape.world()),
        subject: Box::new(shape),
        model: Model::new(SEED, shape.sectors(), false),
        block_sectors: PIECE_BYTES as usize / SECTOR,
        operations: Vec::new(),
        drained_again: false,
    })
}

impl Shape {
    fn sectors(self) -> usize {
        self.slices * PIECE_BYTES as usize / SECTOR
    }

    fn destinations(self) -> std::ops::Range<usize> {
        DESTINATIONS..DESTINATIONS + self.destinations
    }

    fn world(self) -> World {
        let limits = Limits { memory_align: 512, write_zeroes: Ability::Native, ..Limits::unlimited() };
        let sectors = self.sectors() as u64;
        let disk = |name, sectors, tear_bytes| DiskOptions {
            name,
            sectors,
            limits,
            latency_ns: (LATENCY_NS, LATENCY_NS),
            tear_bytes,
            faults: FaultOptions::default(),
        };
        let mut disks = vec![disk("source", sectors, 512), disk("journal", JOURNAL_BYTES / 512, 512)];
        disks.extend(self.destinations().map(|_| disk("destination", sectors, self.tear_bytes)));
        let world = World::new(WorldOptions { seed: SEED, disks, yield_always: false, early_effect: false, trace: false });
        world.preset(SOURCE, |bytes| {
            stamp(bytes, SEED, 0, 1);
            bytes.chunks_exact_mut(PIECE_BYTES as usize).skip(1).take(1).for_each(|slice| slice.fill(0));
        });
        for number in self.destinations().filter(|_| self.old) {
            world.preset(number, |bytes| stamp(bytes, SEED, 0, 2));
        }
        world
    }

    /// Goes on where the journal says, to the end.
    async fn resume(self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Result<(), String> {
        let disk = |number| world.disk(reactor, number) as Rc<dyn Target>;
        let from = Leg::new(disk(SOURCE), Sector(0));
        let to: Vec<Leg> = self.destinations().map(|number| Leg::new(disk(number), Sector(0))).collect();
        let journal = journal_on(disk(JOURNAL), 1, self.sectors() as u64, !self.old).await?;
        let in_flight_bytes = self.width * u64::from(PIECE_BYTES);
        let settings = Settings { piece_bytes: PIECE_BYTES, in_flight_bytes, ..Settings::default() };
        let how = How {
            sequential: self.sequential,
            detect_bytes: PIECE_BYTES,
            zeroes: if journal.state().zero { Zeroes::Skip } else { Zeroes::Unmap },
            watch: Some(Rc::new(Watch::default())),
            ..How::default()
        };
        let engine = Engine::new(reactor, pool, &settings);
        let count = SectorCount(self.sectors() as u64);
        let outcome = engine.copy_noting(&from, &to, count, &how, &journal, NOTE_EVERY).await;
        let outcome = outcome.map_err(|status| format!("the journal was not kept: {status:?}"))?;
        if !outcome.is_ok() {
            return Err(format!("{outcome:?}"));
        }
        for leg in &to {
            let status = call(&*leg.target, Bio::flush()).await.status();
            if !status.is_ok() {
                return Err(format!("the last flush: {status:?}"));
            }
        }
        Ok(())
    }
}

impl Subject for Shape {
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let (shape, world, reactor, pool) = (*self, world.clone(), reactor.clone(), pool.clone());
        Box::pin(async move {
            let settled = world.look(JOURNAL, |journal| settled_by(Found::decode(journal), 1))?;
            if let Some((number, place)) = first_difference(&world, shape.destinations(), settled) {
                return Err(format!("disk {number} differs at byte {place} of the {settled} that are settled"));
            }
            shape.resume(&world, &reactor, &pool).await?;
            Ok(Rc::new(Arrived { world, shape }) as Rc<dyn Opened>)
        })
    }

    fn bottom(&self) -> Option<usize> {
        None
    }
}

/// A copy that says that it is over.
struct Arrived {
    world: World,
    shape: Shape,
}

impl Target for Arrived {
    fn kind(&self) -> &'static str {
        "arrived"
    }

    fn limits(&self) -> Limits {
        Limits::unlimited()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.shape.sectors() as u64)
    }

    fn submit(&self, bio: Bio) {
        if bio.op() != Op::Read {
            return bio.end(Status::Unsupported);
        }
        let mut bytes = vec![0; usize::try_from(bio.bytes()).expect("a few slices")];
        stamp(&mut bytes, SEED, bio.sector().0, 0);
        let first = usize::try_from(bio.sector().to_bytes()).expect("inside of a few slices");
        for (at, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
            let place = first + at * SECTOR..first + (at + 1) * SECTOR;
            let content = |number| self.world.look(number, |disk| disk[place.clone()].to_vec());
            if self.shape.destinations().any(|number| content(number) != content(SOURCE)) {
                sector.fill(POISON);
            }
        }
        bio.copy_in(&bytes);
        bio.end(Status::Ok);
    }
}

impl Opened for Arrived {
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
        Box::pin(async { Ok(()) })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        None
    }

    fn is_latched(&self) -> bool {
        false
    }
}
