//! A stack: one named, running tree of targets, opened from table text.
//!
//! ```text
//!   open ─▶ serve through `table()` ─▶ status, message, suspend, resume, drain ─▶ close
//! ```
//!
//! 1. Whatever a failed opening had opened is closed again.
//! 2. Closing commits; dirty blocks stay in their cache, where the next opening finds them.

pub(crate) mod clones;
mod error;
mod events;
mod mirrors;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Extent, SectorCount, Status, Table, Target, flush};
use forebay_device::FileOptions;
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::{self, Cache, MessageError};
use forebay_target::clone::MessageError as CloneMessageError;
use forebay_target::mirror::Mirror;
use forebay_target::stats::Stats;
use forebay_target::zram::Zram;

pub(crate) use self::mirrors::OpenMirror;
use crate::assemble::{Assembly, Parts};
use crate::device::{Devices, OpenDevice};
use crate::image::{self, ImageFileError, Kept};
use crate::snapshots::{OpenSnapshot, close_all};
use crate::status::{CacheLayer, CountedLayer, DeviceLayer, StackStatus, ZramLayer};
use crate::text::TableText;
use clones::OpenClone;
pub use error::OpenError;

/// How far a drain has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainProgress {
    /// Bytes that were dirty when it began.
    pub at_start_bytes: u64,
    /// Bytes that still are.
    pub left_bytes: u64,
    /// How long it has taken so far.
    pub elapsed: Duration,
}

impl DrainProgress {
    /// Time until the end at the mean speed so far; `None` before anything was written.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let done = self.at_start_bytes.checked_sub(self.left_bytes).filter(|&done| done > 0)?;
        let millis = self.elapsed.as_millis() * u128::from(self.left_bytes) / u128::from(done);
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

/// A cache of a stack.
pub(crate) struct OpenCache {
    pub(crate) extent: Extent,
    pub(crate) origin: String,
    pub(crate) fast: String,
    pub(crate) cache: Rc<Cache>,
}

/// One named, running tree of targets.
pub struct Stack {
    name: String,
    reactor: Reactor,
    table: Rc<Table>,
    caches: Vec<OpenCache>,
    counters: Vec<(Extent, Rc<Stats>)>,
    zrams: Vec<(Extent, Rc<Zram>)>,
    snapshots: Vec<OpenSnapshot>,
    images: Vec<Kept>,
    mirrors: Vec<OpenMirror>,
    clones: Vec<OpenClone>,
    devices: Vec<OpenDevice>,
    /// What the rows are called in table lines.
    kinds: Vec<&'static str>,
    suspended: Cell<bool>,
}

impl Stack {
    /// Opens the stack that `text` describes, with devices of its own. For stacks that share
    /// devices, or are opened otherwise, see [`Stack::open_on`].
    ///
    /// # Errors
    /// [`OpenError`], one sentence.
    pub async fn open(reactor: &Reactor, pool: &BufferPool, name: &str, text: &str) -> Result<Self, OpenError> {
        let text = TableText::parse(text)?;
        let devices = Devices::new(reactor, FileOptions::default());
        // A large future that is awaited once: on the heap it does not swell whoever awaits it.
        let stack = Box::pin(Self::open_on(&devices, pool, name, &text, false)).await?;
        stack.begin();
        Ok(stack)
    }

    /// Opens a stack on `devices`, which other stacks may use too. With `read_only`, devices are
    /// opened for reading only, where the table allows it
    /// ([`writes_when_opened`](TableText::writes_when_opened)).
    ///
    /// # Errors
    /// [`OpenError`], one sentence.
    pub async fn open_on(
        devices: &Devices,
        pool: &BufferPool,
        name: &str,
        text: &TableText,
        read_only: bool,
    ) -> Result<Self, OpenError> {
        let read_only = read_only && !text.writes_when_opened();
        let mut assembly = Box::new(Assembly { devices, pool, read_only, parts: Parts::default() });
        for row in text.rows() {
            if let Err(error) = Box::pin(assembly.add(row)).await {
                close_caches(&assembly.parts.caches).await;
                close_all(&assembly.parts.snapshots).await;
                mirrors::close_all(&assembly.parts.mirrors).await;
                clones::close(&assembly.parts.clones).await;
                return Err(error);
            }
        }
        let table = match Table::new(std::mem::take(&mut assembly.parts.rows)) {
            Ok(table) => Rc::new(table),
            Err(error) => {
                close_caches(&assembly.parts.caches).await;
                close_all(&assembly.parts.snapshots).await;
                mirrors::close_all(&assembly.parts.mirrors).await;
                clones::close(&assembly.parts.clones).await;
                return Err(error.into());
            }
        };
        let reactor = devices.reactor().clone();
        let Parts { kinds, caches, counters, zrams, snapshots, images, mirrors, clones, devices, .. } = assembly.parts;
        let suspended = Cell::new(false);
        let name = name.to_owned();
        Ok(Self { name, reactor, table, caches, counters, zrams, snapshots, images, mirrors, clones, devices, kinds, suspended })
    }

    /// Starts what works by itself: merges of snapshots. For stacks of [`Stack::open_on`], once all
    /// that share devices are open, since a merge saves only for snapshots that are.
    pub fn begin(&self) {
        self.snapshots.iter().for_each(OpenSnapshot::begin);
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    #[must_use]
    pub fn sectors(&self) -> SectorCount {
        self.table.sectors()
    }

    /// Where requests go.
    #[must_use]
    pub fn table(&self) -> &Rc<Table> {
        &self.table
    }

    /// Its write caches, in the order of the table.
    pub fn caches(&self) -> impl Iterator<Item = &Rc<Cache>> {
        self.caches.iter().map(|open| &open.cache)
    }

    /// Its compressed RAM disk.
    ///
    /// # Errors
    /// When it has none, or several.
    pub fn zram(&self) -> Result<&Rc<Zram>, StackError> {
        let name = || self.name.clone();
        match self.zrams.as_slice() {
            [(_, zram)] => Ok(zram),
            [] => Err(StackError::NoZram(name())),
            _ => Err(StackError::SeveralZrams(name())),
        }
    }

    /// Saves its compressed RAM disk to a file, which is there in whole or not at all; the bytes of
    /// the file. Changes of the disk wait meanwhile.
    ///
    /// # Errors
    /// When it has no such disk, or several, or the image cannot be written.
    pub async fn save_image(&self, path: &Path) -> Result<u64, StackError> {
        Ok(Box::pin(image::save(&self.reactor, self.zram()?, path)).await?)
    }

    /// Restores its compressed RAM disk, which must be empty, from a file; the pages that it holds then.
    /// Requests wait meanwhile.
    ///
    /// # Errors
    /// When it has no such disk, or several, or the file is not an image for it; the disk is empty then.
    pub async fn restore_image(&self, path: &Path) -> Result<u64, StackError> {
        Ok(Box::pin(image::restore(&self.reactor, self.zram()?, path)).await?)
    }

    /// What its layers did so far.
    #[must_use]
    pub fn status(&self) -> StackStatus {
        let cache = |open: &OpenCache| CacheLayer {
            extent: open.extent,
            origin: open.origin.clone(),
            fast: open.fast.clone(),
            status: open.cache.status(),
        };
        let counted = |(extent, stats): &(Extent, Rc<Stats>)| CountedLayer { extent: *extent, snapshot: stats.snapshot() };
        let zram = |(extent, disk): &(Extent, Rc<Zram>)| ZramLayer { extent: *extent, status: disk.status() };
        let device = |device: &OpenDevice| DeviceLayer {
            name: device.name.clone(),
            kind: device.target.kind(),
            sectors: device.target.sectors(),
            direct: device.direct,
            counts: self.reactor.device_counts(device.id),
        };
        StackStatus {
            sectors: self.sectors(),
            suspended: self.suspended.get(),
            events: self.events(),
            rows: self.table.rows().iter().map(|row| row.extent).zip(self.kinds.iter().copied()).collect(),
            caches: self.caches.iter().map(cache).collect(),
            counted: self.counters.iter().map(counted).collect(),
            zrams: self.zrams.iter().map(zram).collect(),
            snapshots: self.snapshots.iter().map(OpenSnapshot::layer).collect(),
            mirrors: self.mirrors.iter().map(mirrors::layer).collect(),
            clones: self.clones.iter().map(OpenClone::layer).collect(),
            devices: self.devices.iter().map(device).collect(),
        }
    }

    /// Bytes that are in the caches and not yet on their origins.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        let bytes = |status: cache::CacheStatus| status.dirty * u64::from(status.block_bytes);
        self.caches().map(|cache| bytes(cache.status())).sum()
    }

    /// Carries out a message on every cache of the stack: `flush`, `flush_on_suspend`, `cleaner` or
    /// `clear_stats`; on every mirror: `revive` or `release`; or on every clone: `enable_hydration`,
    /// `disable_hydration`, or `hydration_threshold`, `hydration_batch_size`, `hydration_rate` or
    /// `hydration_latency_us` with a number.
    ///
    /// # Errors
    /// [`MessageError`], [`CloneMessageError`]; also when the stack has none of what is meant.
    pub async fn message(&self, words: &[&str]) -> Result<(), StackError> {
        match words {
            ["revive"] => return self.tell_mirrors(Mirror::revive),
            ["release"] => return self.tell_mirrors(Mirror::release),
            _ => {}
        }
        match clones::message(&self.clones, words) {
            Err(CloneMessageError::Unknown(_)) if !self.caches.is_empty() => {}
            Ok(false) => {}
            done => return Ok(done.map(|_| ())?),
        }
        self.needs_suspendable("messages reach")?;
        self.needs_cache("this message reaches")?;
        for cache in self.caches() {
            cache.message(words).await?;
        }
        Ok(())
    }

    /// Holds new requests of caches, mirrors and clones back, waits for what they do by themselves, and makes durable
    /// what came before.
    ///
    /// # Errors
    /// When the stack has none of them, or not everything could be committed; it is suspended then, too.
    pub async fn suspend(&self) -> Result<(), StackError> {
        self.needs_suspendable("suspend holds")?;
        self.suspended.set(true);
        let mut status = Status::Ok;
        for cache in self.caches() {
            status = status.and(cache.suspend().await);
        }
        for (_, mirror) in &self.mirrors {
            status = status.and(mirror.suspend().await);
        }
        status = status.and(clones::suspend(&self.clones).await);
        if status.is_ok() { Ok(()) } else { Err(StackError::Commit(self.name.clone())) }
    }

    /// Lets requests in again.
    ///
    /// # Errors
    /// When the stack has no cache, mirror or clone.
    pub fn resume(&self) -> Result<(), StackError> {
        self.needs_suspendable("resume lets on")?;
        self.suspended.set(false);
        self.caches().for_each(|cache| cache.resume());
        self.mirrors.iter().for_each(|(_, mirror)| mirror.resume());
        clones::resume(&self.clones);
        Ok(())
    }

    fn needs_suspendable(&self, what: &'static str) -> Result<(), StackError> {
        let none = self.caches.is_empty() && self.mirrors.is_empty() && self.clones.is_empty();
        if none { Err(StackError::NotSuspendable { name: self.name.clone(), what }) } else { Ok(()) }
    }

    fn needs_cache(&self, what: &'static str) -> Result<(), StackError> {
        if self.caches.is_empty() { Err(StackError::NoCache { name: self.name.clone(), what }) } else { Ok(()) }
    }

    /// Writes everything dirty to the origins; calls `report` now and then, and once at the end.
    ///
    /// # Errors
    /// When something could not be written, or the stack is suspended.
    pub async fn drain(&self, every: Duration, mut report: impl FnMut(DrainProgress)) -> Result<(), StackError> {
        let began = self.reactor.now();
        let at_start_bytes = self.dirty_bytes();
        let mut progress = || {
            let left_bytes = self.dirty_bytes().min(at_start_bytes);
            report(DrainProgress { at_start_bytes, left_bytes, elapsed: self.reactor.now().saturating_sub(began) });
        };
        let mut result = Ok(());
        for cache in self.caches() {
            let flushed = with_ticks(&self.reactor, every, cache.message(&["flush"]), &mut progress).await;
            result = result.and(flushed.map_err(StackError::from));
        }
        progress();
        result
    }

    /// Makes everything durable, saves the disks that have an image, and ends the caches; dirty blocks
    /// stay in them. The last thing done to a stack, once nobody submits to it any more.
    ///
    /// # Errors
    /// When not everything could be committed or saved.
    pub async fn close(&self) -> Result<(), StackError> {
        let mut flushed = Status::Ok;
        // These flush what is below them when they close, and hold flushes while they are suspended.
        let by_itself = |kind: &str| matches!(kind, "writecache" | "mirror" | "clone");
        for (row, _) in self.table.rows().iter().zip(&self.kinds).filter(|(_, kind)| !by_itself(kind)) {
            flushed = flushed.and(flush(&*row.target).await.status());
        }
        let mirrors = mirrors::close_all(&self.mirrors).await;
        let closed = close_caches(&self.caches).await.and(mirrors).and(clones::close(&self.clones).await);
        for (_, zram) in &self.zrams {
            zram.close().await;
        }
        close_all(&self.snapshots).await;
        let mut saved = Ok(());
        for kept in &self.images {
            saved = saved.and(Box::pin(kept.save(&self.reactor)).await);
        }
        if flushed.and(closed).is_ok() { Ok(saved?) } else { Err(StackError::Commit(self.name.clone())) }
    }
}

/// Why something was not done to a running stack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// Only caches can do it.
    #[error("{name} has no write cache: {what} only write caches")]
    NoCache {
        /// Of the stack.
        name: String,
        /// What was asked.
        what: &'static str,
    },
    /// Only caches, mirrors and clones can do it.
    #[error("{name} has no write cache, mirror or clone: {what} only these")]
    NotSuspendable {
        /// Of the stack.
        name: String,
        /// What was asked.
        what: &'static str,
    },
    /// Only mirrors can do it.
    #[error("{name} has no mirror: {what} only mirrors")]
    NoMirror {
        /// Of the stack.
        name: String,
        /// What was asked.
        what: &'static str,
    },
    /// Attributes belong to compressed RAM disks.
    #[error("{0} has no compressed RAM disk: attributes belong to zram lines of a table")]
    NoZram(String),
    /// Attributes of one disk only.
    #[error("{0} has several compressed RAM disks: serve each as a device of its own")]
    SeveralZrams(String),
    /// Only mirrors, snapshots and clones raise events.
    #[error("{0} has no mirror, snapshot or clone: only these raise events")]
    NoEvents(String),
    /// A compressed RAM disk was not saved or restored.
    #[error(transparent)]
    Image(#[from] ImageFileError),
    /// The cache refused.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The clone refused.
    #[error(transparent)]
    CloneMessage(#[from] CloneMessageError),
    /// A device failed while everything was being made durable.
    #[error("not everything of {0} could be made durable: look at the log for the device's own error")]
    Commit(String),
}

async fn close_caches(caches: &[OpenCache]) -> Status {
    let mut status = Status::Ok;
    for open in caches {
        status = status.and(open.cache.close().await);
    }
    status
}

/// Waits for `work`, and calls `tick` every so often meanwhile.
async fn with_ticks<F: Future>(reactor: &Reactor, every: Duration, work: F, mut tick: impl FnMut()) -> F::Output {
    let mut work = pin!(work);
    loop {
        let mut sleep = pin!(reactor.sleep(every));
        let done = poll_fn(|cx| {
            if let Poll::Ready(output) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await;
        if let Some(output) = done {
            return output;
        }
        tick();
    }
}
