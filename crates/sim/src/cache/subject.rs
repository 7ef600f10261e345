//! Opens, disturbs, drains and closes a write cache for a seed.
//!
//! A side file never refuses a cache, wherever a crash came: its record is there or is not, whole and at
//! once, while the disks lose what was not flushed.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{SectorCount, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::disk::side::Name;
use forebay_target::cache::options::CacheArgs;
use forebay_target::cache::{Cache, CacheStatus, MessageError, Setup, Side, SideStore, open};

use super::swarm::{Configuration, FAST, ORIGIN, Swarm};
use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::World;

/// A write cache over the two disks of a seed.
pub(super) struct CacheSubject {
    seed: u64,
    swarm: Swarm,
    side: SideMemory,
}

/// A side file that survives crashes.
#[derive(Clone, Default)]
struct SideMemory(Rc<RefCell<Option<Vec<u8>>>>);

impl SideStore for SideMemory {
    fn name(&self) -> String {
        "the side file".to_owned()
    }

    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.borrow().clone())
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        *self.0.borrow_mut() = Some(content.to_vec());
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        *self.0.borrow_mut() = None;
        Ok(())
    }
}

impl CacheSubject {
    pub(super) fn new(seed: u64, swarm: Swarm) -> Self {
        Self { seed, swarm, side: SideMemory::default() }
    }
}

impl Subject for CacheSubject {
    fn open(&self, world: &World, reactor: &Reactor, pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let swarm = &self.swarm;
        let Configuration { words, extend, side } = swarm.life(self.seed, world.lives());
        let line = format!("s origin fast {} {} {}", swarm.block_bytes, words.len(), words.join(" "));
        let fast = world.disk(reactor, FAST);
        let origin = world.disk(reactor, ORIGIN);
        let (reactor, pool) = (reactor.clone(), pool.clone());
        let sectors = SectorCount(swarm.sectors as u64);
        let store = self.side.clone();
        let side = side.then(|| Side { store: Rc::new(store), origin: Name::new("origin"), cache: Name::new("fast") });
        let atomic = words.windows(2).any(|pair| pair[0] == "overwrite" && pair[1] == "new");
        let atomic = atomic.then_some(swarm.block_bytes as usize / 512);
        Box::pin(async move {
            let args = CacheArgs::parse(line.split_whitespace()).map_err(|error| format!("{line}: {error}"))?;
            let setup = Setup { fast, origin, sectors, block_bytes: args.block_bytes, options: args.options, extend, side };
            let cache = Box::pin(open(&reactor, &pool, setup)).await.map_err(|error| error.to_string())?;
            Ok(Rc::new(OpenedCache { cache, reactor, bypassed: Rc::default(), atomic }) as Rc<dyn Opened>)
        })
    }

    fn bottom(&self) -> Option<usize> {
        Some(ORIGIN)
    }
}

/// A cache in one of its lives.
struct OpenedCache {
    cache: Rc<Cache>,
    reactor: Reactor,
    /// Writes went past the cache before its counters were cleared.
    bypassed: Rc<Cell<bool>>,
    /// Block size in sectors, where no committed block is overwritten.
    atomic: Option<usize>,
}

/// What can be done to a running cache.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Drain,
    FlushOnSuspend,
    ClearStats,
    Cleaner,
    Nonsense,
    Suspend,
    LookAt,
}

impl Disturbance {
    fn choose(number: u64) -> Self {
        match number % 40 {
            0..8 => Self::Drain,
            8..11 => Self::FlushOnSuspend,
            11..16 => Self::ClearStats,
            16 => Self::Cleaner,
            17..20 => Self::Nonsense,
            20..30 => Self::Suspend,
            _ => Self::LookAt,
        }
    }
}

/// Numbers of the status that cannot be.
fn consistent(status: &CacheStatus) -> Result<(), String> {
    if status.free + status.dirty > status.blocks || status.free_longest > status.free {
        return Err(format!("the numbers do not add up: {status:?}"));
    }
    Ok(())
}

async fn disturb(cache: Rc<Cache>, reactor: Reactor, number: u64) -> Result<Disturbed, String> {
    let message = |word: &'static str| {
        let cache = Rc::clone(&cache);
        async move { cache.message(&[word]).await.map_err(|error| format!("{word}: {error}")) }
    };
    match Disturbance::choose(number) {
        Disturbance::Drain => match cache.message(&["flush"]).await {
            Ok(()) => Ok(Disturbed::Flushed),
            Err(MessageError::Busy) => Ok(Disturbed::Silently),
            Err(error) => Err(format!("flush: {error}")),
        },
        Disturbance::FlushOnSuspend => message("flush_on_suspend").await.map(|()| Disturbed::Silently),
        Disturbance::ClearStats => message("Clear_Stats").await.map(|()| Disturbed::Silently),
        Disturbance::Cleaner => message("cleaner").await.map(|()| Disturbed::Silently),
        Disturbance::Nonsense => match message("flash").await {
            Ok(()) => Err("a message that does not exist was taken".to_owned()),
            Err(_) => Ok(Disturbed::Silently),
        },
        Disturbance::Suspend => {
            let status = cache.suspend().await;
            let after = Duration::from_micros(number >> 32 & 0xFFFF);
            let sleep = reactor.sleep(after);
            reactor.spawn(async move {
                sleep.await;
                cache.resume();
            });
            if status.is_ok() { Ok(Disturbed::Flushed) } else { Err(format!("suspend: {status:?}")) }
        }
        Disturbance::LookAt => consistent(&cache.status()).map(|()| Disturbed::Silently),
    }
}

impl Opened for OpenedCache {
    fn target(&self) -> &dyn Target {
        &*self.cache
    }

    fn disturb(&self, number: u64) -> Later<Disturbed> {
        self.bypassed.set(self.bypassed.get() || self.cache.status().around > 0);
        Box::pin(disturb(Rc::clone(&self.cache), self.reactor.clone(), number))
    }

    fn drain(&self) -> Later<()> {
        let cache = Rc::clone(&self.cache);
        Box::pin(async move {
            cache.message(&["flush"]).await.map_err(|error| error.to_string())?;
            let status = cache.status();
            consistent(&status)?;
            if status.free < status.blocks {
                return Err(format!("blocks stayed in the cache: {status:?}"));
            }
            Ok(())
        })
    }

    fn leave(&self) -> Later<()> {
        let cache = Rc::clone(&self.cache);
        Box::pin(async move {
            let status = cache.close().await;
            if status.is_ok() { Ok(()) } else { Err(format!("{status:?}")) }
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        if self.bypassed.get() || self.cache.status().around > 0 { None } else { self.atomic }
    }

    fn is_latched(&self) -> bool {
        self.cache.status().failed
    }
}
