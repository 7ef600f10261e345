//! Opens, disturbs, hydrates and closes a clone for a seed.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{SectorCount, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::clone::options::CloneArgs;
use forebay_target::clone::{CloneTarget, MessageError, Mode, Setup, open};

use super::source::Source;
use super::swarm::{DESTINATION, METADATA, SOURCE, Swarm};
use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::World;

/// A clone over the three disks of a seed.
pub(super) struct CloneSubject {
    seed: u64,
    swarm: Swarm,
    /// What the source holds for ever.
    original: Rc<Vec<u8>>,
}

impl CloneSubject {
    pub(super) fn new(seed: u64, swarm: Swarm, original: Vec<u8>) -> Self {
        Self { seed, swarm, original: Rc::new(original) }
    }
}

impl Subject for CloneSubject {
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let words = self.swarm.words_of(self.seed, world.lives());
        let line = format!("metadata destination source {} {words}", self.swarm.region_sectors);
        let [metadata, destination, source] = [METADATA, DESTINATION, SOURCE].map(|number| world.disk(reactor, number));
        let source = Rc::new(Source::new(source, self.swarm.holes.clone()));
        let sectors = SectorCount(self.swarm.sectors as u64);
        let (world, reactor, pool) = (world.clone(), reactor.clone(), pool.clone());
        let (original, hydration_max) = (Rc::clone(&self.original), self.swarm.hydration_max);
        Box::pin(async move {
            let args = CloneArgs::parse(line.split_whitespace()).map_err(|error| format!("{line}: {error}"))?;
            let (region_sectors, options) = (args.region_sectors, args.options);
            let setup = Setup { metadata, destination, source, sectors, region_sectors, options };
            let clone = Box::pin(open(&reactor, &pool, setup)).await.map_err(|error| error.to_string())?;
            Ok(Rc::new(OpenedClone { clone, reactor, world, original, hydration_max }) as Rc<dyn Opened>)
        })
    }

    fn bottom(&self) -> Option<usize> {
        Some(DESTINATION)
    }

    fn delicate(&self) -> Option<usize> {
        Some(METADATA)
    }
}

/// A clone in one of its lives.
struct OpenedClone {
    clone: Rc<CloneTarget>,
    reactor: Reactor,
    world: World,
    original: Rc<Vec<u8>>,
    /// Longest hydration of a healthy world.
    hydration_max: Duration,
}

/// Numbers of the status that cannot be.
fn consistent(clone: &CloneTarget) -> Result<(), String> {
    let status = clone.status();
    if status.hydrated > status.regions || status.hydrating > status.regions - status.hydrated {
        return Err(format!("the numbers do not add up: {status:?}"));
    }
    Ok(())
}

fn disturb(clone: &CloneTarget, number: u64) -> Result<(), String> {
    let argument = (1 << (number >> 8 & 7)).to_string();
    let words: &[&str] = match number % 16 {
        0..4 => &["enable_hydration"],
        4..6 => &["Disable_Hydration"],
        6..8 => &["hydration_threshold", &argument],
        8..10 => &["hydration_batch_size", &argument],
        10 => &["hydration_rate", "262144"],
        11 => &["hydration_rate", "0"],
        12 => &["hydrate", "everything"],
        _ => return consistent(clone),
    };
    match (clone.message(words), number % 16) {
        (Err(MessageError::Unknown(_)), 12) => Ok(()),
        (Ok(()), 12) => Err("a message that does not exist was taken".to_owned()),
        (done, _) => done.map_err(|error| format!("{words:?}: {error}")),
    }
}

/// Suspends the clone for a moment.
async fn suspend(clone: Rc<CloneTarget>, reactor: Reactor, number: u64) -> Result<Disturbed, String> {
    let status = clone.suspend().await;
    let sleep = reactor.sleep(Duration::from_micros(number >> 32 & 0xFFFF));
    reactor.spawn(async move {
        sleep.await;
        clone.resume();
    });
    if status.is_ok() { Ok(Disturbed::Flushed) } else { Err(format!("suspend: {status:?}")) }
}

/// Hydrates everything, with whatever speed there is.
async fn hydrate(clone: &CloneTarget, reactor: &Reactor, longest: Duration) -> Result<(), String> {
    for words in
        [&["hydration_threshold", "64"][..], &["hydration_batch_size", "16"], &["hydration_rate", "0"], &["enable_hydration"]]
    {
        clone.message(words).map_err(|error| error.to_string())?;
    }
    let end = reactor.now() + longest;
    while clone.status().hydrated < clone.status().regions {
        if reactor.now() > end {
            return Err(format!("hydration does not come to an end: {:?}", clone.status()));
        }
        reactor.sleep(Duration::from_millis(50)).await;
    }
    consistent(clone)
}

impl Opened for OpenedClone {
    fn target(&self) -> &dyn Target {
        &*self.clone
    }

    fn disturb(&self, number: u64) -> Later<Disturbed> {
        if number % 16 == 13 {
            return Box::pin(suspend(Rc::clone(&self.clone), self.reactor.clone(), number));
        }
        let done = disturb(&self.clone, number);
        Box::pin(async move { done.map(|()| Disturbed::Silently) })
    }

    fn drain(&self) -> Later<()> {
        let (clone, reactor, world) = (Rc::clone(&self.clone), self.reactor.clone(), self.world.clone());
        let (original, longest) = (Rc::clone(&self.original), self.hydration_max);
        Box::pin(async move {
            hydrate(&clone, &reactor, longest).await?;
            let same = world.look(SOURCE, |bytes| bytes == original.as_slice());
            if same { Ok(()) } else { Err("the source was written".to_owned()) }
        })
    }

    fn leave(&self) -> Later<()> {
        let clone = Rc::clone(&self.clone);
        Box::pin(async move {
            let status = clone.close().await;
            if status.is_ok() { Ok(()) } else { Err(format!("{status:?}")) }
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        None
    }

    fn is_latched(&self) -> bool {
        self.clone.status().mode == Mode::ReadOnly
    }
}
