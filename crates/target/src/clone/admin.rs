//! Opening a clone, messages to it, its status, and its end.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use forebay_block::{Bio, SECTOR_BYTES, Sector, SectorCount, Status, Target, call_with};
use forebay_reactor::{BufferPool, Reactor};
use thiserror::Error;

use super::commit::Commits;
use super::format::{FormatError, Geometry, ShapeError};
use super::hydrate::{BATCHES_MAX, Hydration, HydrationCounts};
use super::metadata::Metadata;
use super::options::{CloneOptions, OptionError};
use super::{CHANGES_MAX, CloneTarget};
use crate::copy::{Engine, Leg, Settings};
use crate::event::Event;
use crate::lock::RangeLocks;

/// Bytes of copies in flight that somebody waits for.
const FOREGROUND_BYTES: u64 = 8 << 20;
/// Largest logical block of a metadata device, bytes: a page of ours.
const LOGICAL_MAX: u32 = 4096;

/// What a clone is made of.
pub struct Setup {
    /// Where it is written which regions are hydrated.
    pub metadata: Rc<dyn Target>,
    /// What becomes the copy.
    pub destination: Rc<dyn Target>,
    /// What is copied.
    pub source: Rc<dyn Target>,
    /// Size of the clone; the other two have at least as much.
    pub sectors: SectorCount,
    /// Size of a region, sectors.
    pub region_sectors: u64,
    /// The rest of the table line.
    pub options: CloneOptions,
}

/// Why a clone does not open.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The table line's numbers.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// What the metadata device holds.
    #[error("the metadata cannot be used: {0}")]
    Format(#[from] FormatError),
    /// The region size does not fit a device's blocks.
    #[error("Region size is not a multiple of the {what} device's logical block size: use a multiple of {sectors} sectors")]
    Blocks {
        /// Which device.
        what: &'static str,
        /// Its logical block, sectors.
        sectors: u32,
    },
    /// A device is too small.
    #[error("the {what} has {has} sectors, and {needed} are needed: give a larger one")]
    Small {
        /// Which device.
        what: &'static str,
        /// Its size, sectors.
        has: u64,
        /// What it must have.
        needed: u64,
    },
    /// The metadata device has large blocks.
    #[error("the metadata device has blocks of {0} bytes, and at most 4096 are possible: give another one")]
    MetadataBlocks(u32),
    /// A device failed.
    #[error("{what} failed: look at the log for the device's own error")]
    Device {
        /// What was tried.
        what: &'static str,
    },
    /// A page of the metadata cannot be read.
    #[error(
        "a page of the metadata cannot be read: try again; if it stays so, copy the device with zeroes where it cannot be read, and the other copies of its pages serve"
    )]
    Unreadable,
    /// The reactor has no room for its tasks.
    #[error("this thread has too many tasks: use fewer devices on it")]
    TooManyTasks,
}

/// Opens the clone of `setup`, and starts to hydrate it unless the options say otherwise. Metadata
/// that are fresh, that is zeroes, are begun.
///
/// # Errors
/// [`OpenError`]. Nothing was written then, unless writing itself failed.
pub async fn open(reactor: &Reactor, pool: &BufferPool, setup: Setup) -> Result<Rc<CloneTarget>, OpenError> {
    let geometry = check(&setup)?;
    let Setup { metadata, destination, source, options, .. } = setup;
    // A large future that is awaited once: on the heap it does not swell whoever awaits it.
    let (metadata, regions) = Box::pin(Metadata::open(metadata, pool, geometry)).await?;
    let foreground = Settings { in_flight_bytes: FOREGROUND_BYTES, ..Settings::default() };
    let clone = Rc::new_cyclic(|this| CloneTarget {
        this: this.clone(),
        reactor: reactor.clone(),
        source: Leg::new(source, Sector(0)),
        destination: Leg::new(destination, Sector(0)),
        geometry,
        metadata,
        options: Cell::new(options),
        regions: RefCell::new(regions),
        locks: RangeLocks::new(),
        commits: Commits::default(),
        hydration: Hydration::new(reactor, pool, options.tuning),
        foreground: Engine::new(reactor, pool, &foreground),
        changes: OnceCell::new(),
        batches: OnceCell::new(),
        below: crate::below::Parked::default(),
        suspended: Cell::new(false),
        waiting: RefCell::default(),
        latched: Cell::new(false),
        closed: Cell::new(false),
        tasks: Cell::new(0),
        left: Event::default(),
        events: Rc::default(),
    });
    if clone.start_tasks() { Ok(clone) } else { Err(OpenError::TooManyTasks) }
}

fn check(setup: &Setup) -> Result<Geometry, OpenError> {
    let geometry = Geometry::new(setup.sectors, setup.region_sectors)?;
    for (what, device) in [("destination", &setup.destination), ("source", &setup.source)] {
        let sectors = device.limits().logical_bytes / SECTOR_BYTES;
        if !geometry.region_sectors().is_multiple_of(sectors) {
            return Err(OpenError::Blocks { what, sectors });
        }
        if device.sectors() < setup.sectors {
            return Err(OpenError::Small { what, has: device.sectors().0, needed: setup.sectors.0 });
        }
    }
    let logical = setup.metadata.limits().logical_bytes;
    if logical > LOGICAL_MAX {
        return Err(OpenError::MetadataBlocks(logical));
    }
    let (has, needed) = (setup.metadata.sectors().0, geometry.blocks() * u64::from(LOGICAL_MAX / SECTOR_BYTES));
    if has < needed { Err(OpenError::Small { what: "metadata device", has, needed }) } else { Ok(geometry) }
}

/// Whether a clone takes changes of cold regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    ReadWrite,
    /// An error latched: only what is hydrated takes them.
    ReadOnly,
}

/// A snapshot of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneStatus {
    /// Blocks of 4096 bytes that the metadata takes.
    pub metadata_blocks: u64,
    /// Blocks of the metadata device.
    pub metadata_blocks_all: u64,
    /// Size of a region, sectors.
    pub region_sectors: u32,
    /// Regions that are hydrated.
    pub hydrated: u32,
    /// All regions.
    pub regions: u32,
    /// Regions in hydration now.
    pub hydrating: u32,
    /// Regions that could not be copied and are not tried any more.
    pub left_alone: u64,
    /// Commits that wrote metadata.
    pub commits: u64,
    /// Regions that were hydrated since the clone was opened.
    pub counts: HydrationCounts,
    /// What it does now.
    pub options: CloneOptions,
    /// Whether it takes changes.
    pub mode: Mode,
}

impl CloneStatus {
    /// The kernel's status line.
    #[must_use]
    pub fn line(&self) -> String {
        let mode = match self.mode {
            Mode::ReadWrite => "rw",
            Mode::ReadOnly => "ro",
        };
        format!(
            "{} {}/{} {} {}/{} {} {} {mode}",
            LOGICAL_MAX / SECTOR_BYTES,
            self.metadata_blocks,
            self.metadata_blocks_all,
            self.region_sectors,
            self.hydrated,
            self.regions,
            self.hydrating,
            self.options.words(),
        )
    }
}

/// Why a message was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Not one that a clone takes.
    #[error(
        "unknown message {0:?}: a clone takes enable_hydration, disable_hydration, and hydration_threshold, hydration_batch_size, hydration_rate and hydration_latency_us with a number"
    )]
    Unknown(String),
    /// The number does not fit.
    #[error(transparent)]
    Number(#[from] OptionError),
}

impl CloneTarget {
    /// Starts the jobs and tasks; false when the reactor has no room.
    fn start_tasks(self: &Rc<Self>) -> bool {
        let _ = self
            .changes
            .set(self.reactor.job_pool(CHANGES_MAX, |(clone, bio): (Rc<Self>, _)| async move { clone.change(bio).await }));
        let _ = self
            .batches
            .set(self.reactor.job_pool(BATCHES_MAX, |(clone, batch): (Rc<Self>, _)| async move { clone.hydrate(batch).await }));
        let (committer, hydrator) = (Rc::clone(self), Rc::clone(self));
        if self.regions.borrow().is_settled() {
            self.hydration.set_over();
        }
        self.tasks.set(2);
        self.reactor.spawn(async move { committer.committer().await })
            && self.reactor.spawn(async move { hydrator.hydrator().await })
    }

    /// Carries out a message: `enable_hydration`, `disable_hydration`, or `hydration_threshold`,
    /// `hydration_batch_size`, `hydration_rate` or `hydration_latency_us` with a number; case ignored.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn message(&self, words: &[&str]) -> Result<(), MessageError> {
        let mut options = self.options.get();
        match *words {
            [word] if word.eq_ignore_ascii_case("enable_hydration") => {
                options.hydration = true;
                self.hydration.forgive();
            }
            [word] if word.eq_ignore_ascii_case("disable_hydration") => options.hydration = false,
            [name, value] => match options.tuning.set(name, value) {
                Err(OptionError::Argument(_)) => return Err(MessageError::Unknown(words.join(" "))),
                set => set?,
            },
            _ => return Err(MessageError::Unknown(words.join(" "))),
        }
        let before = self.options.replace(options);
        self.hydration.tune(before.tuning, options.tuning);
        Ok(())
    }

    /// What people wait for: every region is hydrated, some are left alone, or it became read-only.
    #[must_use]
    pub fn events(&self) -> Rc<Event> {
        Rc::clone(&self.events)
    }

    /// A snapshot.
    #[must_use]
    pub fn status(&self) -> CloneStatus {
        let (metadata_blocks, metadata_blocks_all) = self.metadata.blocks();
        let regions = self.regions.borrow();
        CloneStatus {
            metadata_blocks,
            metadata_blocks_all,
            region_sectors: self.geometry.region_sectors(),
            hydrated: regions.hydrated_count(),
            regions: regions.count(),
            hydrating: self.hydration.in_hydration(),
            left_alone: self.hydration.left_alone(),
            commits: self.commits.done(),
            counts: self.hydration.counts(),
            options: self.options.get(),
            mode: if self.latched.get() { Mode::ReadOnly } else { Mode::ReadWrite },
        }
    }

    /// Holds new requests and hydration back, waits for what is under way, and commits.
    pub async fn suspend(&self) -> Status {
        self.suspended.set(true);
        let changes = || self.changes.get().map_or(0, forebay_reactor::JobPool::running);
        while changes() > 0 || self.hydration.batches() > 0 || !self.below.is_empty() {
            self.reactor.sleep(std::time::Duration::from_millis(1)).await;
        }
        self.commits.owe();
        let status = call_with(Bio::flush(), |bio| self.end_with_commit(bio)).await.status();
        while self.commits.is_busy() {
            self.reactor.sleep(std::time::Duration::from_millis(1)).await;
        }
        status
    }

    /// Lets requests in again, and hydration.
    pub fn resume(&self) {
        self.suspended.set(false);
        for bio in self.waiting.take() {
            self.serve(bio);
        }
        self.hydration.work.raise();
    }

    /// Stops hydration, waits for what is under way, commits, and ends the tasks: the last thing done to
    /// a clone, when nobody submits to it any more.
    pub async fn close(&self) -> Status {
        self.closed.set(true);
        self.hydration.work.raise();
        self.hydration.engine.close().await;
        let changes = || self.changes.get().map_or(0, forebay_reactor::JobPool::running);
        while changes() > 0 || self.hydration.batches() > 0 {
            self.reactor.sleep(std::time::Duration::from_millis(1)).await;
        }
        for bio in self.waiting.take() {
            bio.end(Status::Aborted);
        }
        self.commits.close();
        while self.tasks.get() > 0 {
            let seen = self.left.count();
            self.left.after(seen, None).await;
        }
        if self.latched.get() { Status::IoError } else { Status::Ok }
    }
}
