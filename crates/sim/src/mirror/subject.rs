//! Opens, disturbs, brings up to date and closes a mirror for a seed.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Sector, SectorCount, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::linear::Linear;
use forebay_target::mirror::log::LogState;
use forebay_target::mirror::options::Sync;
use forebay_target::mirror::{LogSetup, Mirror, Setup, open};

use super::swarm::Swarm;
use crate::check::SECTOR;
use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::World;

/// How often writes are let go that wait until somebody knows of a failed leg.
const RELEASE_EVERY: Duration = Duration::from_millis(20);

/// A mirror over the disks of a seed.
pub(super) struct MirrorSubject(Rc<Swarm>);

impl MirrorSubject {
    pub(super) fn new(swarm: Swarm) -> Self {
        Self(Rc::new(swarm))
    }
}

impl Subject for MirrorSubject {
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let swarm = Rc::clone(&self.0);
        let sectors = SectorCount(swarm.sectors as u64);
        let disks: Vec<_> = (0..=swarm.offsets.len()).map(|at| world.disk(reactor, at)).collect();
        let (world, reactor, pool) = (world.clone(), reactor.clone(), pool.clone());
        Box::pin(async move {
            let mut legs: Vec<(String, Rc<dyn Target>)> = Vec::new();
            for (at, (disk, offset)) in disks.iter().zip(&swarm.offsets).enumerate() {
                let leg = Linear::new(Rc::clone(disk) as Rc<dyn Target>, Sector(*offset), sectors);
                legs.push((format!("leg{at}"), Rc::new(leg.map_err(|error| error.to_string())?)));
            }
            let target = Rc::clone(disks.last().expect("the log is the last disk")) as Rc<dyn Target>;
            let log = LogSetup::Disk { name: "log".to_owned(), target };
            let setup = Setup {
                legs,
                sectors,
                log: if swarm.disk_log { log } else { LogSetup::Core },
                region: SectorCount(swarm.region),
                sync: Sync::AsLogged,
                features: swarm.features,
            };
            let mirror = Box::pin(open(&reactor, &pool, setup)).await.map_err(|error| error.to_string())?;
            if swarm.features.hold() {
                let (mirror, reactor) = (Rc::clone(&mirror), reactor.clone());
                let timer = reactor.clone();
                reactor.spawn(async move {
                    loop {
                        timer.sleep(RELEASE_EVERY).await;
                        mirror.release();
                    }
                });
            }
            if swarm.compare {
                let report = mirror.scrub(false).await;
                if report.differing > 0 {
                    return Err(format!("regions that are in sync differ: {report:?}"));
                }
            }
            Ok(Rc::new(OpenedMirror { mirror, world, reactor, swarm }) as Rc<dyn Opened>)
        })
    }

    fn bottom(&self) -> Option<usize> {
        Some(self.0.first_leg())
    }
}

/// A mirror in one of its lives.
struct OpenedMirror {
    mirror: Rc<Mirror>,
    world: World,
    reactor: Reactor,
    swarm: Rc<Swarm>,
}

/// What can be done to a running mirror.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Scrub,
    ScrubAndRepair,
    Revive,
    Release,
    Suspend,
    LookAt,
}

impl Disturbance {
    fn choose(number: u64) -> Self {
        match number % 12 {
            0..3 => Self::Scrub,
            3 => Self::ScrubAndRepair,
            4..7 => Self::Revive,
            7 => Self::Release,
            8..10 => Self::Suspend,
            _ => Self::LookAt,
        }
    }
}

/// # Panics
/// When the mirror is not what it must be, with faults or without.
async fn disturb(mirror: Rc<Mirror>, reactor: Reactor, number: u64) -> Result<Disturbed, String> {
    match Disturbance::choose(number) {
        doing @ (Disturbance::Scrub | Disturbance::ScrubAndRepair) => {
            let report = mirror.scrub(matches!(doing, Disturbance::ScrubAndRepair)).await;
            assert!(report.differing == 0, "regions that are in sync differ: {report:?}");
        }
        Disturbance::Revive => mirror.revive(),
        Disturbance::Release => mirror.release(),
        Disturbance::Suspend => {
            let status = mirror.suspend().await;
            let sleep = reactor.sleep(Duration::from_micros(number >> 32 & 0xFFFF));
            reactor.spawn(async move {
                sleep.await;
                mirror.resume();
            });
            return if status.is_ok() { Ok(Disturbed::Flushed) } else { Err(format!("suspend: {status:?}")) };
        }
        Disturbance::LookAt => {
            let status = mirror.status();
            assert!(status.legs[status.source].full, "the source lacks something: {status:?}");
            assert!(status.in_sync <= status.regions, "more regions than there are: {status:?}");
        }
    }
    Ok(Disturbed::Silently)
}

impl Opened for OpenedMirror {
    fn target(&self) -> &dyn Target {
        &*self.mirror
    }

    fn disturb(&self, number: u64) -> Later<Disturbed> {
        Box::pin(disturb(Rc::clone(&self.mirror), self.reactor.clone(), number))
    }

    fn drain(&self) -> Later<()> {
        let (mirror, reactor, world) = (Rc::clone(&self.mirror), self.reactor.clone(), self.world.clone());
        let swarm = Rc::clone(&self.swarm);
        Box::pin(async move {
            let end = reactor.now() + swarm.sync_max;
            while !mirror.is_in_sync() {
                if reactor.now() > end {
                    return Err(format!("not in sync after {:?}: {:?}", swarm.sync_max, mirror.status()));
                }
                reactor.sleep(Duration::from_millis(5)).await;
            }
            let content = |leg: usize| {
                let start = usize::try_from(swarm.offsets[leg]).expect("a simulated disk is small") * SECTOR;
                world.look(leg, |bytes| bytes[start..start + swarm.sectors * SECTOR].to_vec())
            };
            let first = content(0);
            match (1..swarm.offsets.len()).find(|&leg| content(leg) != first) {
                None => Ok(()),
                Some(leg) => Err(format!("leg {leg} differs from the first")),
            }
        })
    }

    fn leave(&self) -> Later<()> {
        let mirror = Rc::clone(&self.mirror);
        Box::pin(async move {
            let status = mirror.close().await;
            if status.is_ok() { Ok(()) } else { Err(format!("{status:?}")) }
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        None
    }

    fn is_latched(&self) -> bool {
        let status = self.mirror.status();
        status.broken || status.log.is_some_and(|(_, state)| state != LogState::Alive)
    }
}
