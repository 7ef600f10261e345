//! An origin with snapshots over disks in memory.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::SectorCount;
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::snapshot::options::{Discards, StoreKind};
use forebay_target::snapshot::{Origin, OriginFront, Setup, Snapshot, SnapshotError, open};

use crate::support::{MemoryDisk, Platter, platter, reactor};

pub const P: StoreKind = StoreKind::Persistent { overflow: false };
pub const PO: StoreKind = StoreKind::Persistent { overflow: true };
pub const N: StoreKind = StoreKind::Transient;

/// A snapshot to be opened.
#[derive(Clone)]
pub struct Wish {
    pub cow: Rc<RefCell<Platter>>,
    pub store: StoreKind,
    pub chunk_sectors: u64,
    pub discards: Discards,
}

impl Wish {
    /// With a store of so many chunks.
    pub fn new(store: StoreKind, chunk_sectors: u64, chunks: u64) -> Self {
        let bytes = usize::try_from(chunk_sectors * chunks * 512).unwrap();
        Self { cow: platter(bytes), store, chunk_sectors, discards: Discards::Refused }
    }
}

/// The disks of an origin and its snapshots; they survive any number of lives.
pub struct Rig {
    pub origin: Rc<RefCell<Platter>>,
    pub wishes: Vec<Wish>,
}

/// One life.
pub struct Life {
    pub reactor: Reactor,
    pub front: OriginFront,
    pub snapshots: Vec<Rc<Snapshot>>,
}

impl Rig {
    /// An origin of so many sectors, each of which holds its own number.
    pub fn new(sectors: usize, wishes: &[Wish]) -> Self {
        let origin = platter(sectors * 512);
        for (number, sector) in origin.borrow_mut().bytes.chunks_exact_mut(512).enumerate() {
            sector.fill(u8::try_from(number % 251).unwrap());
        }
        Self { origin, wishes: wishes.to_vec() }
    }

    /// Opens everything and gives it to `body`, after which the process is gone.
    pub fn try_run<T>(&self, body: impl AsyncFnOnce(&Life) -> T) -> Result<T, SnapshotError> {
        let (reactor, pool) = (reactor(), BufferPool::default());
        let device = MemoryDisk::new(&reactor, Rc::clone(&self.origin));
        let origin = Origin::new(&reactor, &pool, device);
        let sectors = SectorCount(self.origin.borrow().bytes.len() as u64 / 512);
        let run = async {
            let mut snapshots = Vec::new();
            for wish in &self.wishes {
                let setup = Setup {
                    origin: Rc::clone(&origin),
                    cow: MemoryDisk::new(&reactor, Rc::clone(&wish.cow)),
                    sectors,
                    store: wish.store,
                    chunk_sectors: wish.chunk_sectors,
                    discards: wish.discards,
                    coalesce: true,
                };
                snapshots.push(open(&reactor, &pool, setup).await?);
            }
            let front = OriginFront::new(Rc::clone(&origin), sectors).unwrap();
            Ok(body(&Life { reactor: reactor.clone(), front, snapshots }).await)
        };
        let result = reactor.run(run).unwrap();
        reactor.clear();
        result
    }

    pub fn run<T>(&self, body: impl AsyncFnOnce(&Life) -> T) -> T {
        self.try_run(body).unwrap()
    }

    /// What the origin's disk holds.
    pub fn origin_bytes(&self) -> Vec<u8> {
        self.origin.borrow().bytes.clone()
    }
}

impl Life {
    pub fn status(&self, number: usize) -> String {
        self.snapshots[number].status().to_string()
    }
}
