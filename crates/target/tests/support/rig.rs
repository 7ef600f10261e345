//! A cache between two disks in memory, and everything that reached them on one tape.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Extent, Limits, Op, Sector, SectorCount, Status, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::disk::side::Name;
use forebay_target::cache::disk::{Entry, Geometry, SEQ_FREE, Superblock};
use forebay_target::cache::index::CacheSlot;
use forebay_target::cache::options::{CacheOptions, Order};
use forebay_target::cache::{Cache, CacheStatus, OpenError, Setup, Side, SideStore, open};
use forebay_target::delay::Delay;

use super::side::SideFile;
use super::tape::{Disk, Step, Tape};
use super::{MemoryDisk, Platter, platter, reactor};

/// How long each request of a disk takes.
pub type Slowness = Rc<dyn Fn(Op, Extent) -> Duration>;

/// What a cache is made of; survives the lives of the cache.
pub struct Rig {
    pub fast: Rc<RefCell<Platter>>,
    pub origin: Rc<RefCell<Platter>>,
    pub tape: Rc<RefCell<Tape>>,
    /// Length of the cached device.
    pub sectors: u64,
    pub block_bytes: u32,
    pub options: CacheOptions,
    pub fast_limits: Limits,
    pub origin_limits: Limits,
    pub fast_slowness: Option<Slowness>,
    pub origin_slowness: Option<Slowness>,
    pub extend: bool,
    pub side: Option<Rc<SideFile>>,
}

/// One life of the cache, from opening to closing or to the power cut at its end.
pub struct Life {
    pub cache: Rc<Cache>,
    pub reactor: Reactor,
    pub block_bytes: u32,
}

impl Rig {
    /// Two disks of zeroes. The options are the defaults but for `order fifo` and no pause.
    pub fn new(fast_bytes: usize, origin_bytes: usize, block_bytes: u32) -> Self {
        let (fast, origin, tape) = (platter(fast_bytes), platter(origin_bytes), Rc::<RefCell<Tape>>::default());
        fast.borrow_mut().tape = Some((Disk::Fast, Rc::clone(&tape)));
        origin.borrow_mut().tape = Some((Disk::Origin, Rc::clone(&tape)));
        Self {
            fast,
            origin,
            tape,
            sectors: origin_bytes as u64 / 512,
            block_bytes,
            options: CacheOptions { order: Some(Order::Fifo), pause_writeback_ms: Some(0), ..CacheOptions::default() },
            fast_limits: Limits::unlimited(),
            origin_limits: Limits::unlimited(),
            fast_slowness: None,
            origin_slowness: None,
            extend: true,
            side: None,
        }
    }

    /// A cache of exactly `blocks` blocks of 4 KiB in front of 16 MiB that never writes back by itself.
    pub fn small(blocks: u32) -> Self {
        let mut rig = Self::new(fast_bytes(blocks, 4096), 16 << 20, 4096);
        rig.options.high_watermark = Some(100);
        rig.options.low_watermark = Some(100);
        rig
    }

    /// Opens the cache and gives it to `body`; a power cut ends its life unless `body` closed it.
    pub fn try_run<T>(&self, body: impl AsyncFnOnce(&Life) -> T) -> Result<T, OpenError> {
        let reactor = reactor();
        let disk = |platter: &Rc<RefCell<Platter>>, limits, slowness: &Option<Slowness>| -> Rc<dyn Target> {
            let disk = MemoryDisk::with_limits(&reactor, Rc::clone(platter), limits);
            match slowness.clone() {
                Some(slowness) => {
                    Rc::new(Delay::by(reactor.clone(), disk, Box::new(move |op, extent| slowness(op, extent))).unwrap())
                }
                None => disk,
            }
        };
        let setup = Setup {
            fast: disk(&self.fast, self.fast_limits, &self.fast_slowness),
            origin: disk(&self.origin, self.origin_limits, &self.origin_slowness),
            sectors: SectorCount(self.sectors),
            block_bytes: self.block_bytes,
            options: self.options.clone(),
            extend: self.extend,
            side: self.side.as_ref().map(|file| Side {
                store: Rc::clone(file) as Rc<dyn SideStore>,
                origin: Name::new(&file.origin.borrow()),
                cache: Name::new(&file.cache.borrow()),
            }),
        };
        let pool = BufferPool::default();
        let life = async {
            let cache = open(&reactor, &pool, setup).await?;
            let life = Life { cache, reactor: reactor.clone(), block_bytes: self.block_bytes };
            Ok(body(&life).await)
        };
        let result = reactor.run(life).unwrap();
        reactor.clear();
        result
    }

    pub fn run<T>(&self, body: impl AsyncFnOnce(&Life) -> T) -> T {
        self.try_run(body).unwrap_or_else(|error| panic!("the cache opens: {error}"))
    }

    /// Why the cache does not open; nothing may have been written then.
    pub fn refusal(&self) -> OpenError {
        let steps = self.tape.borrow().steps.len();
        let error = self.try_run(async |_| ()).expect_err("the cache is refused");
        assert!(!self.tape.borrow().steps[steps..].iter().any(Step::writes), "refused before anything was written");
        error
    }

    pub fn geometry(&self) -> Geometry {
        let start = self.options.start_sector.unwrap_or(0);
        let bytes = self.fast.borrow().bytes.len() as u64;
        Geometry::for_device(bytes, start, self.block_bytes).unwrap()
    }

    pub fn entry(&self, slot: u32) -> Entry {
        entry(&self.fast.borrow().bytes, &self.geometry(), slot)
    }

    /// The sequence number in the superblock.
    pub fn seq_count(&self) -> u64 {
        u64::from_le_bytes(self.fast.borrow().bytes[24..32].try_into().unwrap())
    }

    /// The committed slots on media and the origin sectors they hold.
    pub fn on_media(&self) -> Vec<(u32, u64)> {
        let seq_count = self.seq_count();
        let entries = (0..self.geometry().blocks()).map(|slot| (slot, self.entry(slot)));
        entries.filter(|(_, entry)| entry.seq < seq_count).map(|(slot, entry)| (slot, entry.origin_sector)).collect()
    }

    /// Puts a cache on the fast disk as another implementation may have left it: `entries` are
    /// (slot, origin sector, sequence number, stamp of the content).
    pub fn forge(&self, seq_count: u64, entries: &[(u32, u64, u64, u8)]) {
        let geometry = self.geometry();
        let mut fast = self.fast.borrow_mut();
        let superblock = Superblock { seq_count, ..geometry.superblock(seq_count) };
        fast.bytes[..64].copy_from_slice(&superblock.encode());
        let free = Entry { origin_sector: u64::MAX, seq: SEQ_FREE };
        for slot in 0..geometry.blocks() {
            put_entry(&mut fast.bytes, &geometry, slot, free);
        }
        for &(slot, origin_sector, seq, stamp) in entries {
            put_entry(&mut fast.bytes, &geometry, slot, Entry { origin_sector, seq });
            let at = usize::try_from(geometry.slot_sector(CacheSlot(slot)).to_bytes()).unwrap();
            let content = content(origin_sector, u64::from(geometry.block_sectors()), stamp);
            fast.bytes[at..at + content.len()].copy_from_slice(&content);
        }
    }
}

/// Bytes of a fast disk that has room for exactly so many blocks.
pub fn fast_bytes(blocks: u32, block_bytes: u32) -> usize {
    let metadata = (64 + 16 * blocks as usize).next_multiple_of(block_bytes as usize);
    metadata + blocks as usize * block_bytes as usize
}

pub fn entry(fast: &[u8], geometry: &Geometry, slot: u32) -> Entry {
    let at = usize::try_from(geometry.entry_offset(CacheSlot(slot))).unwrap();
    Entry::decode(fast[at..at + 16].try_into().unwrap())
}

fn put_entry(fast: &mut [u8], geometry: &Geometry, slot: u32, entry: Entry) {
    let at = usize::try_from(geometry.entry_offset(CacheSlot(slot))).unwrap();
    fast[at..at + 16].copy_from_slice(&entry.encode());
}

/// What a write with `stamp` puts into these sectors: each says which one it is.
pub fn content(sector: u64, sectors: u64, stamp: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sector in sector..sector + sectors {
        bytes.extend_from_slice(&sector.to_le_bytes());
        bytes.resize(bytes.len() + 504, stamp);
    }
    bytes
}

/// The stamp of a sector that was written as `sector`, 0 for one that never was.
pub fn stamp_of(bytes: &[u8], sector: u64) -> u8 {
    let stamp = bytes[8];
    let expected = if stamp == 0 { vec![0; 512] } else { content(sector, 1, stamp) };
    assert!(bytes == expected, "sector {sector} holds what nobody wrote there");
    stamp
}

impl Life {
    fn block_sectors(&self) -> u64 {
        u64::from(self.block_bytes / 512)
    }

    /// Writes whole blocks.
    pub async fn write(&self, first: u64, blocks: u64, stamp: u8) -> Status {
        self.write_sectors(first * self.block_sectors(), blocks * self.block_sectors(), stamp, false).await
    }

    pub async fn write_fua(&self, first: u64, blocks: u64, stamp: u8) -> Status {
        self.write_sectors(first * self.block_sectors(), blocks * self.block_sectors(), stamp, true).await
    }

    pub async fn write_sectors(&self, sector: u64, sectors: u64, stamp: u8, fua: bool) -> Status {
        super::write(&*self.cache, sector, &content(sector, sectors, stamp), fua).await
    }

    /// The stamps of whole blocks; every sector of a block must have the same.
    pub async fn read(&self, first: u64, blocks: u64) -> Vec<u8> {
        self.try_read(first, blocks).await.expect("the read succeeds")
    }

    pub async fn try_read(&self, first: u64, blocks: u64) -> Result<Vec<u8>, Status> {
        let per_block = usize::try_from(self.block_sectors()).unwrap();
        let sectors = self.read_sectors(first * self.block_sectors(), blocks * self.block_sectors()).await?;
        let blocks = sectors.chunks(per_block);
        Ok(blocks
            .map(|block| if block.iter().all(|&stamp| stamp == block[0]) { block[0] } else { panic!("torn: {block:?}") })
            .collect())
    }

    pub async fn read_sectors(&self, sector: u64, sectors: u64) -> Result<Vec<u8>, Status> {
        let bytes = super::read(&*self.cache, sector, u32::try_from(sectors).unwrap()).await?;
        Ok(bytes.chunks(512).zip(sector..).map(|(bytes, sector)| stamp_of(bytes, sector)).collect())
    }

    pub async fn flush(&self) -> Status {
        super::flush(&*self.cache).await
    }

    fn extent(&self, first: u64, blocks: u64) -> Extent {
        Extent::new(Sector(first * self.block_sectors()), SectorCount(blocks * self.block_sectors()))
    }

    pub async fn discard(&self, first: u64, blocks: u64) -> Status {
        call(&*self.cache, Bio::discard(self.extent(first, blocks))).await.status()
    }

    pub async fn write_zeroes(&self, first: u64, blocks: u64) -> Status {
        call(&*self.cache, Bio::write_zeroes(self.extent(first, blocks))).await.status()
    }

    pub fn status(&self) -> CacheStatus {
        self.cache.status()
    }

    pub async fn sleep_ms(&self, ms: u64) {
        self.reactor.sleep(Duration::from_millis(ms)).await;
    }

    /// Waits until `holds`, for at most so many milliseconds of the jumping clock.
    pub async fn until(&self, ms: u64, holds: impl Fn() -> bool) -> bool {
        for _ in 0..ms {
            if holds() {
                return true;
            }
            self.sleep_ms(1).await;
        }
        holds()
    }
}
