//! The write cache: a persistent write-back cache in dm-writecache's own format.
//!
//! ```text
//!            ┌─ hit ──────────────▶ fast device (cache slots)     write.rs, read.rs
//!   bio ─────┤                          │  commit.rs: groups become durable
//!            └─ miss: write ─▶ fresh    │  writeback.rs: large sorted copies
//!                     read  ─▶ origin ◀─┘
//! ```
//!
//! What it promises: a write that was acknowledged before a flush that succeeded survives a power
//! cut at any instant. Blocks of a group become durable together. In place overwrites of committed
//! blocks may be old or new sector by sector until the next flush; with `overwrite new` every group
//! is atomic. In an error state it never serves stale data.
//!
//! Start reading at [`write`](self::Cache); the pure decisions are in `state.rs`, the media format
//! in `disk/`, the index in `index/`. Everything runs on one reactor; between two awaits the state
//! is changed by plain functions only.

mod admin;
mod clear;
mod commit;
pub mod disk;
pub mod index;
mod metadata;
pub mod options;
mod read;
mod state;
mod write;
mod writeback;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Ability, Allocation, Bio, Extent, Limits, Op, Sector, SectorCount, Target};
use forebay_reactor::{BufferPool, JobPool, Reactor};

use self::disk::format::Geometry;
use self::index::age::AgeQueue;
use self::index::{CachedExtent, OriginBlock};
use self::metadata::Metadata;
use self::options::Order;
use self::state::{CacheState, Planned, WriteRules};
use self::writeback::{CopyRun, Quarantine};
use crate::copy::Engine;
use crate::event::Event;
use crate::lock::{LockRange, RangeLocks};

pub use self::admin::{CacheStatus, MessageError, OpenError, Setup, Side, SideStore, open};

/// Reads served at once by one cache; more wait in line.
const READS_MAX: usize = 256;
/// Changes (writes, flushes, discards, zeroes) served at once; more wait in line.
const CHANGES_MAX: usize = 256;

/// The options as numbers that are ready for use.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "options are independent of each other")]
struct Settings {
    autocommit_blocks: u32,
    autocommit_time: Duration,
    /// Writeback starts when so many blocks or fewer are free or leaving.
    start_free: u64,
    /// And goes on while so many or fewer are.
    stop_free: u64,
    writeback_jobs: u32,
    max_age: Option<Duration>,
    pause: Duration,
    order: Order,
    metadata_only: bool,
    overwrite_new: bool,
    full_wait: bool,
    /// One request over consecutive slots; off only to measure what that gains.
    extend: bool,
    /// Blocks of the largest copy.
    copy_blocks: u64,
}

/// What happened, in blocks where the kernel's status line counts blocks.
#[derive(Default)]
struct Counts {
    reads: Cell<u64>,
    read_hits: Cell<u64>,
    writes: Cell<u64>,
    hit_open: Cell<u64>,
    hit_committed: Cell<u64>,
    around: Cell<u64>,
    allocated: Cell<u64>,
    blocked: Cell<u64>,
    flushes: Cell<u64>,
    discards: Cell<u64>,
    discarded: Cell<u64>,
    /// Requests over blocks that were cached, not committed and committed: the kernel's line counts
    /// these, and not their blocks.
    open_runs: Cell<u64>,
    committed_runs: Cell<u64>,
    /// Requests that writes of the cache sent to the fast device.
    runs: Cell<u64>,
}

/// A write cache over two targets.
pub struct Cache {
    this: Weak<Cache>,
    reactor: Reactor,
    pool: BufferPool,
    fast: Rc<dyn Target>,
    origin: Rc<dyn Target>,
    geometry: Geometry,
    settings: Settings,
    sectors: SectorCount,
    unit_bytes: u64,
    state: RefCell<CacheState>,
    metadata: Cell<Option<Metadata>>,
    age: RefCell<Option<AgeQueue>>,
    locks: RangeLocks,
    counts: Counts,

    reads: OnceCell<JobPool<(Rc<Cache>, Bio)>>,
    changes: OnceCell<JobPool<(Rc<Cache>, Bio)>>,
    copy_jobs: OnceCell<JobPool<(Rc<Cache>, CopyRun)>>,
    /// What copies home move through.
    copier: Engine,

    /// Something for the long-lived tasks may have changed.
    work: Event,
    /// A commit round ended.
    round_ended: Event,
    /// The last write into the open group ended.
    open_idle: Event,
    /// Slots may have become free.
    space: Event,
    /// A copy ended, well or not.
    copy_ended: Event,

    round_wanted: Cell<u64>,
    /// What the lists of a commit round take.
    scratch_bytes: Cell<usize>,
    /// The next round clears the entries of superseded blocks, however few they are.
    clear_wanted: Cell<bool>,
    rounds_started: Cell<u64>,
    rounds_done: Cell<u64>,
    autocommit_at: Cell<Option<Duration>>,
    /// Committed blocks were overwritten since the fast device's last flush.
    fast_dirty: Cell<bool>,
    /// Writes to the origin so far, and how many of them a flush has covered.
    origin_writes: Cell<u64>,
    origin_flushed: Cell<u64>,
    /// The number of the last of them that nothing but the origin holds.
    last_bypass: Cell<u64>,
    /// A flush of the origin is in flight.
    origin_flushing: Cell<bool>,
    /// One ended, well or not.
    origin_flush_ended: Event,
    /// Flushes of the origin that failed: each may have lost whatever was written to it before.
    origin_lost: Cell<u64>,

    copies: RefCell<Vec<LockRange>>,
    /// Copies that ended after a newer one of a block had come in, each with the round that clears
    /// their entries: until then nothing else of these blocks may leave.
    uncleared: RefCell<Vec<(LockRange, u64)>>,
    busy_blocks: Cell<u64>,
    copied: RefCell<Vec<CopyRun>>,
    quarantine: RefCell<Quarantine>,
    swept: Cell<u32>,
    below_watermark: Cell<bool>,
    bypass_began: Cell<Option<Duration>>,
    draining: Cell<Option<u32>>,
    /// Drain passes that have ended.
    drain_passes: Cell<u64>,

    cleaner: Cell<bool>,
    failed: Cell<bool>,
    suspended: Cell<bool>,
    flush_on_suspend: Cell<bool>,
    closed: Cell<bool>,
    /// The committer has ended: no more metadata is written.
    committer_left: Cell<bool>,
    side: Option<Side>,
    waiting: RefCell<VecDeque<Bio>>,

    plans: RefCell<Vec<Vec<Planned>>>,
    spare_runs: RefCell<Vec<Vec<CachedExtent>>>,
    removed: RefCell<Vec<CachedExtent>>,
}

impl Cache {
    /// Blocks of the cache, bytes each.
    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.block_bytes())
    }

    /// Where a block begins on the origin.
    fn block_sector(&self, block: OriginBlock) -> Sector {
        Sector(block.0 * u64::from(self.geometry.block_sectors()))
    }

    fn rules(&self, bio: &Bio) -> WriteRules {
        WriteRules {
            overwrite_new: self.settings.overwrite_new,
            full_wait: self.settings.full_wait,
            bypass_new: self.cleaner.get() || (self.settings.metadata_only && !bio.flags().meta),
            extend: self.settings.extend,
        }
    }

    fn start(&self, bio: Bio) {
        let this = self.this.upgrade().expect("a target is held by whoever submits to it");
        let jobs = if bio.op() == Op::Read { &self.reads } else { &self.changes };
        jobs.get().expect("jobs are made when the cache opens").start((this, bio));
    }

    /// Notes that the origin was written past the cache.
    fn note_bypassed(&self) {
        self.origin_writes.set(self.origin_writes.get() + 1);
        self.last_bypass.set(self.origin_writes.get());
        if self.bypass_began.get().is_none() {
            self.bypass_began.set(Some(self.reactor.now()));
        }
    }

    fn with_age(&self, change: impl FnOnce(&mut AgeQueue)) {
        if let Some(age) = self.age.borrow_mut().as_mut() {
            change(age);
        }
    }
}

async fn serve_change((cache, bio): (Rc<Cache>, Bio)) {
    match bio.op() {
        Op::Write => cache.write(bio).await,
        Op::Flush => cache.flush(bio).await,
        Op::Discard => cache.discard(bio).await,
        Op::WriteZeroes => cache.write_zeroes(bio).await,
        Op::Read => cache.read(bio).await,
    }
}

impl Target for Cache {
    fn kind(&self) -> &'static str {
        "writecache"
    }

    fn limits(&self) -> Limits {
        let below = self.origin.limits().stack(self.fast.limits());
        Limits {
            max_sectors: u32::MAX,
            max_segments: u32::MAX,
            max_segment_bytes: u32::MAX,
            gap_mask: 0,
            chunk_sectors: 0,
            physical_bytes: below.physical_bytes.max(self.geometry.block_bytes()),
            preferred_bytes: self.origin.limits().preferred_bytes,
            discard: self.origin.limits().discard,
            write_zeroes: Ability::Native,
            flush: Ability::Native,
            fua: Ability::Native,
            ..below
        }
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if self.suspended.get() {
            return self.waiting.borrow_mut().push_back(bio);
        }
        self.start(bio);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        self.tell_allocation(extent, out);
    }
}
