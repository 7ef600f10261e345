//! Whether a cache and an origin are those of a side file.
//!
//! | what differs | verdict |
//! |---|---|
//! | no cache, where the record knows of dirty blocks or of one in use | refused |
//! | layout, the name of the cache, or a sequence number that is lower | refused, unless neither side has dirty blocks |
//! | a checksum, after a clean end | refused |
//! | the origin is another one, or smaller | refused when there are dirty blocks |
//!
//! 1. A record that was written in front of the first write of an opening never makes a later opening
//!    fail for what the cache did since: its sequence number is a lower bound, and it has no checksums.
//! 2. Equal checksums do not make another file the same cache: two caches that took the same requests have
//!    the same metadata, and different data.

use forebay_block::SectorCount;

use super::super::entry::ENTRY_BYTES;
use super::super::format::{Geometry, SUPERBLOCK_BYTES};
use super::{Name, PIECE_BYTES, Record, SideState};

/// What is found when a cache is opened or looked at.
#[derive(Debug, Clone)]
pub struct Found<'a> {
    /// Its layout.
    pub geometry: Geometry,
    /// The sequence number in its superblock.
    pub seq_count: u64,
    /// Blocks in it that are not on the origin.
    pub dirty_blocks: u64,
    /// Checksums of its metadata; not looked at when the record has none.
    pub checksums: &'a [u32],
    /// Its device.
    pub cache: &'a Name,
    /// The origin and its size, where they are known.
    pub origin: Option<(&'a Name, SectorCount)>,
}

/// How what is found differs from what a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// There is no cache where there was one with something in it.
    Emptied {
        /// Blocks that were not on the origin, where that is known.
        dirty_blocks: Option<u64>,
    },
    /// A cache of another layout.
    Layout {
        /// Blocks and their bytes in the record.
        recorded: (u32, u32),
        /// Blocks and their bytes found.
        found: (u32, u32),
    },
    /// The cache as it once was.
    Older {
        /// Sequence number in the record.
        recorded: u64,
        /// Sequence number found.
        found: u64,
    },
    /// Another cache.
    Cache {
        /// Name in the record.
        recorded: Name,
        /// Name found.
        found: Name,
    },
    /// The metadata are not what they were when the cache was closed.
    Changed {
        /// First and last slot of the first piece that differs; the superblock is in front of slot 0.
        slots: (u32, u32),
        /// Pieces that differ.
        pieces: usize,
    },
    /// Another origin.
    Origin {
        /// Name in the record.
        recorded: Name,
        /// Name found.
        found: Name,
    },
    /// The origin became smaller.
    OriginShrank {
        /// Size in the record.
        recorded: SectorCount,
        /// Size found.
        found: SectorCount,
    },
}

impl Mismatch {
    /// What differs, where the record is in the file `side`.
    #[must_use]
    pub fn difference(&self, side: &str) -> String {
        match self {
            Self::Emptied { dirty_blocks: Some(dirty) } => {
                format!("there is no cache here, but {side} knows of one with {dirty} dirty blocks")
            }
            Self::Emptied { dirty_blocks: None } => {
                format!("there is no cache here, but {side} knows of one that was in use and may have had dirty blocks")
            }
            Self::Layout { recorded, found } => format!(
                "{side} belongs to another cache, of {} blocks of {} bytes, and this one has {} of {}",
                recorded.0, recorded.1, found.0, found.1
            ),
            Self::Older { recorded, found } => {
                format!("the cache is older than {side}: its sequence number is {found} and was {recorded} already")
            }
            Self::Cache { recorded, found } => format!("{side} belongs to another cache ({recorded}; this one is {found})"),
            Self::Changed { slots: (first, last), pieces } => {
                let superblock = if *first == 0 { "the superblock or " } else { "" };
                let more = if *pieces > 1 { format!(" and {} more places", pieces - 1) } else { String::new() };
                format!("the metadata changed since the cache was closed here, in {superblock}slots {first} to {last}{more}")
            }
            Self::Origin { recorded, found } => {
                format!("{side} knows the cache with another origin ({recorded}; this one is {found})")
            }
            Self::OriginShrank { recorded, found } => format!("the origin had {} sectors and has {} now", recorded.0, found.0),
        }
    }

    /// What differs and what to do, in one sentence.
    #[must_use]
    pub fn sentence(&self, side: &str) -> String {
        let advice = match self {
            Self::Emptied { .. } => format!("if they may be lost, delete {side} and open again"),
            Self::Changed { .. } => format!(
                "if the kernel or another program used the cache meanwhile, delete {side} and open again; otherwise it is damaged"
            ),
            _ => format!("if files were copied, restored or exchanged on purpose, delete {side} and open again"),
        };
        format!("{}: {advice}", self.difference(side))
    }
}

impl Record {
    /// Holds a cache and its origin against this record: `Ok(None)` where they agree, `Ok(Some)` where
    /// they differ and no dirty block depends on it.
    ///
    /// # Errors
    /// The [`Mismatch`] for which the cache must not be opened.
    pub fn judge(&self, found: &Found) -> Result<Option<Mismatch>, Mismatch> {
        // A cache that was in use may have got dirty blocks since.
        let at_stake = self.state == SideState::Open || self.dirty_blocks > 0 || found.dirty_blocks > 0;
        match self.other_cache(found) {
            Some(mismatch) if at_stake => return Err(mismatch),
            Some(mismatch) => return Ok(Some(mismatch)),
            None => {}
        }
        if let Some(changed) = self.changed(found) {
            return Err(changed);
        }
        match self.other_origin(found) {
            Some(mismatch) if found.dirty_blocks > 0 => Err(mismatch),
            harmless => Ok(harmless),
        }
    }

    /// Holds a device without a cache against this record.
    ///
    /// # Errors
    /// The [`Mismatch`] for which it must not be formatted.
    pub fn judge_fresh(&self, cache: &Name) -> Result<(), Mismatch> {
        let in_use = self.state == SideState::Open;
        if self.dirty_blocks > 0 && !in_use {
            return Err(Mismatch::Emptied { dirty_blocks: Some(self.dirty_blocks) });
        }
        // A cache that was to be formatted when its user was killed is still fresh.
        let used = self.seq_count > 0 || self.dirty_blocks > 0 || *cache != self.cache;
        if in_use && used { Err(Mismatch::Emptied { dirty_blocks: None }) } else { Ok(()) }
    }

    fn other_cache(&self, found: &Found) -> Option<Mismatch> {
        let geometry = &found.geometry;
        let layout = (geometry.blocks(), geometry.block_bytes());
        if layout != (self.blocks, self.block_bytes) || geometry.start_sector().0 != self.start_sector {
            return Some(Mismatch::Layout { recorded: (self.blocks, self.block_bytes), found: layout });
        }
        if *found.cache != self.cache {
            return Some(Mismatch::Cache { recorded: self.cache.clone(), found: found.cache.clone() });
        }
        let older = found.seq_count < self.seq_count;
        older.then_some(Mismatch::Older { recorded: self.seq_count, found: found.seq_count })
    }

    fn changed(&self, found: &Found) -> Option<Mismatch> {
        let SideState::Clean(recorded) = &self.state else { return None };
        let differs = || recorded.iter().zip(found.checksums).enumerate().filter(|(_, (was, is))| was != is);
        let (piece, _) = differs().next()?;
        let begin = (piece * PIECE_BYTES).saturating_sub(SUPERBLOCK_BYTES) / ENTRY_BYTES;
        let end = ((piece + 1) * PIECE_BYTES - SUPERBLOCK_BYTES) / ENTRY_BYTES;
        let slot = |slot: usize| u32::try_from(slot).unwrap_or(u32::MAX).min(self.blocks - 1);
        Some(Mismatch::Changed { slots: (slot(begin), slot(end - 1)), pieces: differs().count() })
    }

    fn other_origin(&self, found: &Found) -> Option<Mismatch> {
        let (name, sectors) = found.origin?;
        if *name != self.origin {
            return Some(Mismatch::Origin { recorded: self.origin.clone(), found: name.clone() });
        }
        let shrank = sectors < self.origin_sectors;
        shrank.then_some(Mismatch::OriginShrank { recorded: self.origin_sectors, found: sectors })
    }
}
