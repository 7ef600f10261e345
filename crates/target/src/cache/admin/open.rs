//! Opening a cache: read what is there, refuse what cannot be true, format what is fresh, mend what
//! a crash left, start the tasks.
//!
//! ```text
//!   first block ─▶ fresh?  ─ yes ─▶ metadata without magic, flush, with magic, flush
//!                    │ no
//!                    ▼
//!   all entries ─▶ damage, or not what the side file says? ─ yes ─▶ refused, nothing written
//!                    │ no
//!   what was read is made durable; the side file says "open"
//!                    ▼
//!                    ▼
//!   entries that were never committed or lost to a newer copy are cleared, flush
//! ```
//!
//! I1: nothing is written before the whole metadata was read and found possible.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, SectorCount, Status, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use thiserror::Error;

use super::super::commit::interval;
use super::super::disk::entry::{ENTRY_BYTES, clear_entries};
use super::super::disk::format::{FormatError, Geometry, Media, SUPERBLOCK_BYTES};
use super::super::disk::recover::{Recovered, Recovery};
use super::super::disk::side::{Checksums, Mismatch, SideError, SideState};
use super::super::index::age::AgeQueue;
use super::super::index::{ExtentMap, FreeSpace, ORIGIN_BLOCKS_MAX};
use super::super::metadata::{Metadata, Update, read_all};
use super::super::options::{CacheOptions, Full, Order, Overwrite};
use super::super::state::CacheState;
use super::super::writeback::{COPIES_MAX, copier, copy_blocks};
use super::super::{CHANGES_MAX, Cache, Counts, READS_MAX, Settings, serve_change};
use super::side::{Admission, Side};
use crate::event::Event;
use crate::lock::RangeLocks;

/// Bytes of metadata written by one request while formatting.
const PIECE_BYTES: u64 = 1 << 20;
/// Blocks in writeback at once where the options do not say: 256 MiB of 4 KiB blocks, the kernel's cap.
const WRITEBACK_BLOCKS: u32 = 65_536;
/// After formatting, this much is written again with the magic, as the kernel does.
const MAGIC_BYTES: u64 = 65_536;

/// What a cache is made of.
pub struct Setup {
    /// The fast device.
    pub fast: Rc<dyn Target>,
    /// The slow device.
    pub origin: Rc<dyn Target>,
    /// Size of the cached device; a multiple of the block size, at most the origin.
    pub sectors: SectorCount,
    /// Size of a block, bytes: a power of two from 512 to 65,536.
    pub block_bytes: u32,
    /// The options of the table line.
    pub options: CacheOptions,
    /// One request over consecutive slots. Off only to measure what that gains.
    pub extend: bool,
    /// The side file, where there is to be one.
    pub side: Option<Side>,
}

/// Why a cache does not open.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum OpenError {
    /// The device's layout, or what it holds, is not right.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The block size is smaller than a device can address.
    #[error("Block size is smaller than device logical block size: use a block size of at least {needed} bytes")]
    BlockBelowLogical {
        /// Smallest block size, bytes.
        needed: u32,
    },
    /// The start sector is not one where the device can begin a request.
    #[error("start_sector is not on a block of the fast device: use a multiple of {sectors}")]
    StartMisaligned {
        /// Granularity, sectors.
        sectors: u32,
    },
    /// The table line's length does not fit.
    #[error("the length of {sectors} sectors is not a multiple of the block size or more than the origin's {origin} sectors")]
    Length {
        /// The length asked for, sectors.
        sectors: u64,
        /// The origin's size, sectors.
        origin: u64,
    },
    /// The device could not be read or written.
    #[error("{what} failed: look at the log for the device's own error")]
    Device {
        /// What was tried.
        what: &'static str,
    },
    /// Entries that cannot be true; nothing was written.
    #[error(
        "the metadata is damaged: {count} entries cannot be true, the first in slot {slot} names sector {sector}; run `forebay cache check`"
    )]
    Damaged {
        /// How many.
        count: u64,
        /// Slot of the first.
        slot: u32,
        /// What it names.
        sector: u64,
    },
    /// The entries need a larger origin: it shrank, or belongs to another cache.
    #[error("the cache holds blocks up to sector {needed}, but the cached device ends at {sectors}: is this the right origin?")]
    OriginTooSmall {
        /// Where the origin must reach, sectors.
        needed: u64,
        /// How far it reaches.
        sectors: u64,
    },
    /// The side file could not be read or written.
    #[error("{action} the side file {side} failed: {error}: give another path for it, or leave the option out")]
    Side {
        /// Its path.
        side: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        error: Box<str>,
    },
    /// The side file is none.
    #[error("the side file {side} cannot be used, {problem}: give another path, or delete it if it was made for this cache")]
    SideContent {
        /// Its path.
        side: String,
        /// What it is instead.
        problem: SideError,
    },
    /// The devices are not those that the side file knows.
    #[error("{}", mismatch.sentence(side))]
    SideMismatch {
        /// Its path.
        side: String,
        /// How they differ.
        mismatch: Box<Mismatch>,
    },
}

/// Opens the cache of `setup`, formatting a fresh device and mending what a crash left behind.
///
/// # Errors
/// [`OpenError`]; nothing was written to either device then, unless formatting itself failed.
pub async fn open(reactor: &Reactor, pool: &BufferPool, setup: Setup) -> Result<Rc<Cache>, OpenError> {
    // A large future that is awaited once: on the heap it does not swell whoever awaits it.
    Box::pin(open_here(reactor, pool, setup)).await
}

async fn open_here(reactor: &Reactor, pool: &BufferPool, mut setup: Setup) -> Result<Rc<Cache>, OpenError> {
    check(&setup)?;
    let side = setup.side.take();
    let fast = &*setup.fast;
    let start = setup.options.start_sector();
    let logical = u64::from(fast.limits().logical_bytes);
    let first = read_first(fast, pool, start, logical).await?;
    let mut superblock = [0; SUPERBLOCK_BYTES];
    superblock.copy_from_slice(&first[..SUPERBLOCK_BYTES]);
    let (geometry, recovered, seq) = match Media::read(&superblock, fast.sectors().to_bytes(), start, setup.block_bytes)? {
        Media::Fresh(geometry) => {
            admission(side.as_ref(), &setup, &geometry).map_or(Ok(()), |admission| admission.fresh())?;
            format(fast, pool, &geometry).await?;
            (geometry, None, 0)
        }
        Media::Formatted(geometry, superblock) => {
            let recovered = admit(side.as_ref(), &setup, pool, &geometry, superblock.seq_count).await?;
            (geometry, Some(recovered), superblock.seq_count)
        }
    };
    let unit_bytes = Metadata::unit_bytes(fast, &geometry);
    let first_unit = read_first(fast, pool, start, unit_bytes).await?;
    let mut metadata = Metadata::new(Rc::clone(&setup.fast), pool.clone(), geometry, first_unit);
    let (map, free) = match recovered {
        None => (ExtentMap::new(), FreeSpace::new(geometry.blocks())),
        Some(recovered) => {
            mend(fast, &mut metadata, &recovered).await?;
            (recovered.map, recovered.free)
        }
    };
    let cache = build(reactor, pool, &setup, side, geometry, CacheState::new(map, free, seq));
    cache.metadata.set(Some(metadata));
    start_tasks(&cache);
    Ok(cache)
}

fn check(setup: &Setup) -> Result<(), OpenError> {
    let (fast, origin) = (setup.fast.limits(), setup.origin.limits());
    if !setup.block_bytes.is_power_of_two() || !(512..=65_536).contains(&setup.block_bytes) {
        return Err(FormatError::BlockBytes { block_bytes: setup.block_bytes }.into());
    }
    let needed = fast.logical_bytes.max(origin.logical_bytes);
    if setup.block_bytes < needed {
        return Err(OpenError::BlockBelowLogical { needed });
    }
    let granularity = u64::from(fast.logical_bytes / 512);
    if !setup.options.start_sector().is_multiple_of(granularity) {
        return Err(OpenError::StartMisaligned { sectors: fast.logical_bytes / 512 });
    }
    let block_sectors = u64::from(setup.block_bytes / 512);
    let fits = setup.sectors.0 > 0 && setup.sectors.0.is_multiple_of(block_sectors) && setup.sectors <= setup.origin.sectors();
    if !fits || setup.sectors.0 / block_sectors >= ORIGIN_BLOCKS_MAX {
        return Err(OpenError::Length { sectors: setup.sectors.0, origin: setup.origin.sectors().0 });
    }
    Ok(())
}

async fn read_first(fast: &dyn Target, pool: &BufferPool, start: u64, bytes: u64) -> Result<Box<[u8]>, OpenError> {
    let what = "Unable to read first block of metadata: reading the fast device";
    let end = start.checked_add(bytes / 512).filter(|&end| end <= fast.sectors().0);
    if end.is_none() {
        return Err(FormatError::NoRoom { device_bytes: fast.sectors().to_bytes(), start_sector: start }.into());
    }
    let length = u32::try_from(bytes).expect("a unit is small");
    let mut buffer = pool.take(length as usize);
    let bio = call(fast, Bio::read(forebay_block::Sector(start), Rc::clone(buffer.segments()), 0, length)).await;
    let status = bio.status();
    drop(bio);
    if status.is_ok() { Ok(buffer.bytes_mut()[..length as usize].into()) } else { Err(OpenError::Device { what }) }
}

/// Writes the metadata of an empty cache: first without the magic, so that a crash leaves no cache.
async fn format(fast: &dyn Target, pool: &BufferPool, geometry: &Geometry) -> Result<(), OpenError> {
    let what = "formatting the fast device";
    let superblock = geometry.superblock(0);
    write_empty(fast, pool, geometry, &superblock.encode_without_magic(), geometry.metadata_bytes()).await?;
    flush(fast, what).await?;
    let again = MAGIC_BYTES.min(geometry.metadata_bytes());
    write_empty(fast, pool, geometry, &superblock.encode(), again).await?;
    flush(fast, what).await
}

/// Writes the first `bytes` of the metadata with every entry free.
async fn write_empty(
    fast: &dyn Target,
    pool: &BufferPool,
    geometry: &Geometry,
    superblock: &[u8],
    bytes: u64,
) -> Result<(), OpenError> {
    let entries_end = SUPERBLOCK_BYTES as u64 + u64::from(geometry.blocks()) * ENTRY_BYTES as u64;
    let mut at = 0;
    while at < bytes {
        let length = PIECE_BYTES.min(bytes - at);
        let mut buffer = pool.take(usize::try_from(length).expect("a piece is 1 MiB"));
        let content = buffer.bytes_mut();
        content.fill(0);
        let free_to = usize::try_from(entries_end.saturating_sub(at).min(length)).expect("inside the piece");
        if at == 0 {
            clear_entries(&mut content[SUPERBLOCK_BYTES..free_to]);
            content[..SUPERBLOCK_BYTES].copy_from_slice(superblock);
        } else {
            clear_entries(&mut content[..free_to]);
        }
        let sector = geometry.start_sector() + SectorCount(at / 512);
        let length = u32::try_from(length).expect("a piece is 1 MiB");
        let status = call(fast, Bio::write(sector, Rc::clone(buffer.segments()), 0, length)).await.status();
        if !status.is_ok() {
            return Err(OpenError::Device { what: "formatting the fast device" });
        }
        at += u64::from(length);
    }
    Ok(())
}

async fn flush(fast: &dyn Target, what: &'static str) -> Result<(), OpenError> {
    if forebay_block::flush(fast).await.status().is_ok() { Ok(()) } else { Err(OpenError::Device { what }) }
}

fn admission<'a>(side: Option<&'a Side>, setup: &Setup, geometry: &'a Geometry) -> Option<Admission<'a>> {
    side.map(|side| Admission { side, geometry, origin_sectors: setup.origin.sectors() })
}

/// Reads all entries of a cache and holds them against the side file. What a killed process wrote may be
/// read already without being durable, so all of it is made durable before anything is written: or an
/// entry could be cleared that lost to one which a power cut then takes away, and a slot that looks free
/// could be given away while its entry still counts.
async fn admit(
    side: Option<&Side>,
    setup: &Setup,
    pool: &BufferPool,
    geometry: &Geometry,
    seq: u64,
) -> Result<Recovered, OpenError> {
    let record = side.map(Side::load).transpose()?.flatten();
    let was_clean = record.as_ref().is_some_and(|record| record.state != SideState::Open);
    let mut checksums = was_clean.then(|| Checksums::new(geometry.blocks()));
    let recovered = recover(&*setup.fast, pool, geometry, seq, setup.sectors, checksums.as_mut()).await?;
    let dirty = recovered.map.used_blocks();
    let admission = admission(side, setup, geometry);
    match (&admission, &record) {
        (Some(admission), Some(record)) => {
            admission.judge(record, seq, dirty, &checksums.map(Checksums::finish).unwrap_or_default())?;
        }
        _ => warn_of_identity(dirty, side.is_some()),
    }
    if !planted(Bug::M2OldInstanceNotSettled) {
        flush(&*setup.fast, "making durable what a killed process wrote").await?;
    }
    admission.map_or(Ok(()), |admission| admission.begin(seq, dirty))?;
    Ok(recovered)
}

/// Reads all entries.
async fn recover(
    fast: &dyn Target,
    pool: &BufferPool,
    geometry: &Geometry,
    seq: u64,
    sectors: SectorCount,
    mut checksums: Option<&mut Checksums>,
) -> Result<Recovered, OpenError> {
    let mut recovery = Recovery::new(geometry, seq, sectors);
    let mut front = SUPERBLOCK_BYTES;
    let each = |bytes: &[u8]| {
        recovery.feed(&bytes[std::mem::take(&mut front)..]);
        if let Some(checksums) = &mut checksums {
            checksums.feed(bytes);
        }
    };
    if !read_all(fast, pool, geometry, each).await.is_ok() {
        return Err(OpenError::Device { what: "reading the metadata" });
    }
    let recovered = recovery.finish();
    if recovered.origin_needed > sectors {
        return Err(OpenError::OriginTooSmall { needed: recovered.origin_needed.0, sectors: sectors.0 });
    }
    if let Some(first) = recovered.damage.first() {
        return Err(OpenError::Damaged { count: recovered.damaged, slot: first.slot.0, sector: first.origin_sector });
    }
    Ok(recovered)
}

/// Clears what was never committed or lost to a newer copy, before anything else is written.
async fn mend(fast: &dyn Target, metadata: &mut Metadata, recovered: &Recovered) -> Result<(), OpenError> {
    if recovered.ties > 0 {
        tracing::warn!("write cache: {} blocks had two identical entries; the one in the higher slot holds", recovered.ties);
    }
    if recovered.clear.is_empty() {
        return Ok(());
    }
    let what = "clearing entries that a crash left";
    let mut updates: Vec<Update> = Vec::new();
    for &run in &recovered.clear {
        metadata.push_update(&mut updates, run, None);
    }
    if metadata.apply(&updates).await != Status::Ok {
        return Err(OpenError::Device { what });
    }
    flush(fast, what).await
}

/// Says what the format cannot tell, where no side file does.
fn warn_of_identity(dirty: u64, recorded_now: bool) {
    if dirty > 0 {
        let advice =
            if recorded_now { "the side file records it from now on" } else { "the option `side PATH` keeps a record of it" };
        tracing::warn!(
            "write cache: {dirty} dirty blocks were found; the format does not record which origin they belong to, so only its \
             size was checked: make sure that this is the right one ({advice})"
        );
    }
}

fn settings(setup: &Setup, geometry: &Geometry) -> Settings {
    let options = &setup.options;
    let blocks = u64::from(geometry.blocks());
    let free_at = |used_percent: u32| (blocks * u64::from(100 - used_percent) + 50) / 100;
    Settings {
        autocommit_blocks: options.autocommit_blocks(),
        autocommit_time: interval(options.autocommit_time_ms()),
        start_free: if options.cleaner { blocks } else { free_at(options.high_watermark()) },
        stop_free: if options.cleaner { blocks } else { free_at(options.low_watermark()) },
        writeback_jobs: options.writeback_jobs.unwrap_or(WRITEBACK_BLOCKS),
        max_age: options.max_age_ms.map(interval),
        pause: interval(options.pause_writeback_ms()),
        order: options.order.unwrap_or_default(),
        metadata_only: options.metadata_only,
        overwrite_new: options.overwrite == Some(Overwrite::New),
        full_wait: options.full == Some(Full::Wait),
        extend: setup.extend,
        copy_blocks: copy_blocks(setup.origin.limits().preferred_bytes, u64::from(setup.block_bytes)),
    }
}

fn build(
    reactor: &Reactor,
    pool: &BufferPool,
    setup: &Setup,
    side: Option<Side>,
    geometry: Geometry,
    state: CacheState,
) -> Rc<Cache> {
    let settings = settings(setup, &geometry);
    let by_age = settings.order == Order::Fifo || settings.max_age.is_some();
    // Without a highest age only the order counts.
    let grain = settings.max_age.map_or(Duration::MAX, |age| (age / 64).max(Duration::from_millis(1)));
    let mut age = by_age.then(|| AgeQueue::new(grain));
    if let Some(age) = &mut age {
        let mut extents: Vec<_> = state.map.extents_from(super::super::index::OriginBlock(0)).collect();
        extents.sort_unstable_by_key(|extent| extent.slot);
        for extent in extents {
            age.push(reactor.now(), extent.origin, extent.count);
        }
    }
    Rc::new_cyclic(|this| Cache {
        this: this.clone(),
        reactor: reactor.clone(),
        pool: pool.clone(),
        fast: Rc::clone(&setup.fast),
        origin: Rc::clone(&setup.origin),
        geometry,
        copier: copier(reactor, pool, settings.copy_blocks * u64::from(setup.block_bytes)),
        settings,
        sectors: setup.sectors,
        unit_bytes: Metadata::unit_bytes(&*setup.fast, &geometry),
        state: RefCell::new(state),
        metadata: Cell::new(None),
        age: RefCell::new(age),
        locks: RangeLocks::new(),
        counts: Counts::default(),
        reads: OnceCell::new(),
        changes: OnceCell::new(),
        copy_jobs: OnceCell::new(),
        work: Event::default(),
        round_ended: Event::default(),
        open_idle: Event::default(),
        space: Event::default(),
        copy_ended: Event::default(),
        round_wanted: Cell::new(0),
        clear_wanted: Cell::new(false),
        scratch_bytes: Cell::new(0),
        rounds_started: Cell::new(0),
        rounds_done: Cell::new(0),
        autocommit_at: Cell::new(None),
        fast_dirty: Cell::new(false),
        // The origin may hold writes of a killed process that no flush has covered.
        origin_writes: Cell::new(1),
        origin_flushed: Cell::new(0),
        last_bypass: Cell::new(1),
        origin_flushing: Cell::new(false),
        origin_flush_ended: Event::default(),
        origin_lost: Cell::new(0),
        copies: RefCell::default(),
        uncleared: RefCell::default(),
        busy_blocks: Cell::new(0),
        copied: RefCell::default(),
        quarantine: RefCell::default(),
        swept: Cell::new(0),
        below_watermark: Cell::new(false),
        bypass_began: Cell::new(None),
        draining: Cell::new(None),
        drain_passes: Cell::new(0),
        cleaner: Cell::new(setup.options.cleaner),
        failed: Cell::new(false),
        suspended: Cell::new(false),
        flush_on_suspend: Cell::new(setup.options.cleaner),
        closed: Cell::new(false),
        committer_left: Cell::new(false),
        side,
        waiting: RefCell::default(),
        plans: RefCell::default(),
        spare_runs: RefCell::default(),
        removed: RefCell::default(),
    })
}

fn start_tasks(cache: &Rc<Cache>) {
    let reactor = &cache.reactor;
    let reads = reactor.job_pool(READS_MAX, |(cache, bio): (Rc<Cache>, Bio)| cache.read(bio));
    let changes = reactor.job_pool(CHANGES_MAX, serve_change);
    let copies = reactor.job_pool(COPIES_MAX, |(cache, run): (Rc<Cache>, _)| cache.copy(run));
    let made = cache.reads.set(reads).is_ok() && cache.changes.set(changes).is_ok() && cache.copy_jobs.set(copies).is_ok();
    assert!(made, "a cache is opened once");
    let started = reactor.spawn(Rc::clone(cache).committer())
        && reactor.spawn(Rc::clone(cache).writeback())
        && reactor.spawn(Rc::clone(cache).retirer());
    assert!(started, "a reactor has room for the tasks of its targets");
}
