//! The side file of a cache that is opened and closed: read, judged, written in the right moments.
//!
//! ```text
//!   open:  read the record ─▶ read the metadata ─▶ judge ─▶ flush ─▶ record "open" ─▶ first write
//!   close: last commit ─▶ flush ─▶ read the metadata ─▶ record "clean"
//! ```
//!
//! 1. On the fast device nothing is written between the last record that says "clean" and the next that
//!    says "open". A crash in between leaves a record that is right, or one that says less.
//! 2. The sequence number in a record is durable on the fast device before the record is.
//! 3. Without a side file nothing here is done, and nothing is read twice.
//!
//! Errors: a side file that cannot be read, or that does not belong to the devices, refuses the cache
//! before anything is written. One that cannot be written because its disk is full is removed, with an
//! error in the log, and the cache is served without.

use std::io::{self, ErrorKind};
use std::rc::Rc;

use forebay_block::SectorCount;

use super::super::Cache;
use super::super::disk::SUPERBLOCK_BYTES;
use super::super::disk::format::{Geometry, Media};
use super::super::disk::side::{Checksums, Found, Name, Record, SideState};
use super::super::metadata::read_all;
use super::open::OpenError;

/// Where a side file lies.
pub trait SideStore {
    /// What to call it in sentences for people: its path.
    fn name(&self) -> String;

    /// Its content; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;

    /// Puts `content` in the place of what was there, durably. A crash leaves the one or the other.
    ///
    /// # Errors
    /// When that is not certain.
    fn replace(&self, content: &[u8]) -> io::Result<()>;

    /// Removes it, durably; it need not be there.
    ///
    /// # Errors
    /// When that is not certain.
    fn remove(&self) -> io::Result<()>;
}

/// A side file, and what it is to record.
pub struct Side {
    /// Where it lies.
    pub store: Rc<dyn SideStore>,
    /// The origin.
    pub origin: Name,
    /// The fast device.
    pub cache: Name,
}

/// What a cache was found to be, and the record of it.
pub(super) struct Admission<'a> {
    pub(super) side: &'a Side,
    pub(super) geometry: &'a Geometry,
    pub(super) origin_sectors: SectorCount,
}

impl Side {
    /// What it says so far.
    pub(super) fn load(&self) -> Result<Option<Record>, OpenError> {
        let content = self.store.read().map_err(|error| self.trouble("reading", &error))?;
        let record = content.map(|content| Record::decode(&content)).transpose();
        record.map_err(|problem| OpenError::SideContent { side: self.store.name(), problem })
    }

    fn trouble(&self, action: &'static str, error: &io::Error) -> OpenError {
        OpenError::Side { side: self.store.name(), action, error: error.to_string().into() }
    }
}

impl Admission<'_> {
    /// Judges a device without a cache, and records that there will be one.
    pub(super) fn fresh(&self) -> Result<(), OpenError> {
        if let Some(record) = self.side.load()? {
            let verdict = record.judge_fresh(&self.side.cache);
            verdict.map_err(|mismatch| OpenError::SideMismatch { side: self.side.store.name(), mismatch: Box::new(mismatch) })?;
        }
        self.begin(0, 0)
    }

    /// Judges a cache by what was recorded of it.
    pub(super) fn judge(&self, record: &Record, seq_count: u64, dirty_blocks: u64, checksums: &[u32]) -> Result<(), OpenError> {
        let found = Found {
            geometry: *self.geometry,
            seq_count,
            dirty_blocks,
            checksums,
            cache: &self.side.cache,
            origin: Some((&self.side.origin, self.origin_sectors)),
        };
        let side = self.side.store.name();
        match record.judge(&found) {
            Ok(None) => {}
            Ok(Some(mismatch)) => {
                let why = mismatch.difference(&side);
                tracing::warn!("write cache: {why}; no dirty block depends on that, so it is recorded anew");
            }
            Err(mismatch) => return Err(OpenError::SideMismatch { side, mismatch: Box::new(mismatch) }),
        }
        Ok(())
    }

    /// Records that the cache is in use, before it is written to.
    pub(super) fn begin(&self, seq_count: u64, dirty_blocks: u64) -> Result<(), OpenError> {
        let store = &self.side.store;
        let record = self.record(SideState::Open, seq_count, dirty_blocks);
        let Err(error) = store.replace(&record.encode()) else { return Ok(()) };
        // What it says now will not be true any more.
        let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        if !full || store.remove().is_err() {
            return Err(self.side.trouble("writing", &error));
        }
        tracing::error!(
            "write cache: the side file {} cannot be written ({error}); it was removed, and the cache is served without one until \
             it was closed: make room on that disk",
            store.name()
        );
        Ok(())
    }

    fn record(&self, state: SideState, seq_count: u64, dirty_blocks: u64) -> Record {
        Record {
            state,
            origin_sectors: self.origin_sectors,
            start_sector: self.geometry.start_sector().0,
            block_bytes: self.geometry.block_bytes(),
            blocks: self.geometry.blocks(),
            seq_count,
            dirty_blocks,
            origin: self.side.origin.clone(),
            cache: self.side.cache.clone(),
        }
    }
}

impl Cache {
    /// Records a clean end, once everything is committed and nothing is written any more. What fails
    /// here costs the next opening a check, and nothing else.
    pub(super) async fn record_clean(&self) {
        let Some(side) = &self.side else { return };
        while !self.committer_left.get() {
            let seen = self.round_ended.count();
            self.round_ended.after(seen, None).await;
        }
        let recorded = match self.metadata_now().await {
            Some((seq_count, checksums)) => {
                let admission = Admission { side, geometry: &self.geometry, origin_sectors: self.origin.sectors() };
                let dirty_blocks = self.state.borrow().map.used_blocks();
                let record = admission.record(SideState::Clean(checksums), seq_count, dirty_blocks);
                side.store.replace(&record.encode())
            }
            None => Err(io::Error::other("the metadata cannot be read")),
        };
        if let Err(error) = recorded {
            tracing::warn!(
                "write cache: the clean end is not recorded in the side file {}: {error}; the next opening cannot check the \
                 metadata",
                side.store.name()
            );
        }
    }

    /// The sequence number and the checksums of the metadata, which are durable.
    async fn metadata_now(&self) -> Option<(u64, Vec<u32>)> {
        if !self.flush_fast().await.is_ok() {
            return None;
        }
        let mut checksums = Checksums::new(self.geometry.blocks());
        let mut superblock: Option<[u8; SUPERBLOCK_BYTES]> = None;
        let each = |bytes: &[u8]| {
            superblock = superblock.or_else(|| bytes.first_chunk().copied());
            checksums.feed(bytes);
        };
        if !read_all(&*self.fast, &self.pool, &self.geometry, each).await.is_ok() {
            return None;
        }
        let (start, block_bytes) = (self.geometry.start_sector().0, self.geometry.block_bytes());
        match Media::read(&superblock?, self.fast.sectors().to_bytes(), start, block_bytes) {
            Ok(Media::Formatted(_, superblock)) => Some((superblock.seq_count, checksums.finish())),
            _ => None,
        }
    }
}
