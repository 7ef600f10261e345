//! The dirty log on disk, bytes to values and back: the kernel's format, and a record of our own in
//! bytes that the format leaves undefined. Pure.
//!
//! ```text
//!    0      4      8              16 … 64        72       74     76      80              88   92 … 1024
//!   ┌──────┬──────┬──────────────┬─────┬────────┬────────┬──────┬───────┬───────────────┬─────┬─────┬──────────
//!   │magic │ver. 2│ regions      │     │FBMIRROR│ behind │ legs │   0   │ regions       │ crc │     │ bitmap …
//!   └──────┴──────┴──────────────┴─────┴────────┴────────┴──────┴───────┴───────────────┴─────┴─────┴──────────
//!    the kernel's header                 the record, where the header counts one region more than it does
//! ```
//!
//! Region r is bit r mod 8 of byte 1024 + r / 8: 1 is clean, 0 dirty or out of sync.
//!
//! The *record* says which legs do not have everything that was acknowledged, so that after a crash
//! none of them is copied from. It counts only while the header counts one region more than there
//! are: the kernel keeps the undefined bytes, but writes the true count when it opens a log, and what
//! it does to the regions then makes the record void. The kernel takes a larger count as it takes
//! the true one.
//!
//! Invariants:
//! - I1: header and record lie in one sector, so a crash leaves them as they were or as they are to
//!   be.
//! - I2: bits beyond the last region are 0.
//!
//! Integers are little-endian. Source: `drivers/md/dm-log.c` and `Documentation/admin-guide/
//! device-mapper/dm-log.rst`, Linux 6.12, for the format only.
#![deny(clippy::indexing_slicing)]

use std::ops::Range;

use crate::mirror::who::legs::LegSet;

/// First bytes of a log: `rRiM` as the kernel stores it.
const MAGIC: u32 = 0x4D69_5272;
/// The version that is written; version 1 differs only on big-endian machines.
const VERSION: u32 = 2;
/// Where the bitmap begins, bytes.
const BITMAP: u64 = 1024;
/// Where the record begins, bytes.
const RECORD: usize = 64;
/// Its bytes before the checksum.
const RECORD_BYTES: usize = 24;
const RECORD_MAGIC: &[u8; 8] = b"FBMIRROR";

/// Bytes of a log for so many regions, on a device with logical blocks of `block_bytes`.
#[must_use]
pub fn log_bytes(regions: u64, block_bytes: u32) -> u64 {
    (BITMAP + regions.div_ceil(64) * 8).next_multiple_of(u64::from(block_bytes))
}

/// Why the bytes are no log that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Of a later kernel.
    #[error("its format has version {0}, and only 1 and 2 are known: give `sync` or `nosync` to begin a new log")]
    Version(u32),
}

/// What a log says when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Regions that its bitmap tells of.
    pub regions: u64,
    /// Legs that lack something, where a record says so: for as many legs as there were.
    pub behind: Option<Behind>,
}

/// What the record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Legs that do not have everything.
    pub legs: LegSet,
    /// How many legs the mirror had.
    pub of: u16,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let place = bytes.get_mut(at..at + value.len());
    place.expect("a log has a header").copy_from_slice(value);
}

/// Reads the first sector of a log; `None` where there is none yet.
///
/// # Errors
/// When it has a version that nobody knows.
pub fn decode(bytes: &[u8]) -> Result<Option<Header>, FormatError> {
    let number = |at| field(bytes, at).map(u32::from_le_bytes);
    if number(0) != Some(MAGIC) {
        return Ok(None);
    }
    match number(4) {
        Some(1 | 2) => {}
        other => return Err(FormatError::Version(other.unwrap_or_default())),
    }
    let counted = field(bytes, 8).map_or(0, u64::from_le_bytes);
    let record = record(bytes).filter(|&(_, regions)| counted.checked_sub(1) == Some(regions));
    Ok(Some(Header { regions: record.map_or(counted, |(_, regions)| regions), behind: record.map(|(behind, _)| behind) }))
}

fn record(bytes: &[u8]) -> Option<(Behind, u64)> {
    let body = bytes.get(RECORD..RECORD + RECORD_BYTES)?;
    let sum = u32::from_le_bytes(field(bytes, RECORD + RECORD_BYTES)?);
    if body.get(..8)? != RECORD_MAGIC || crc32c::crc32c(body) != sum {
        return None;
    }
    let legs = LegSet::from_bits(u16::from_le_bytes(field(body, 8)?));
    let of = u16::from_le_bytes(field(body, 10)?);
    Some((Behind { legs, of }, u64::from_le_bytes(field(body, 16)?)))
}

/// The whole log in memory, and which blocks of it differ from the device.
#[derive(Clone, Debug)]
pub struct Image {
    bytes: Vec<u8>,
    regions: u64,
    block_bytes: usize,
    /// Blocks that changed, ascending.
    changed: Vec<usize>,
}

impl Image {
    /// A log in which every region is dirty.
    ///
    /// # Panics
    /// When it does not fit in memory.
    #[must_use]
    pub fn new(regions: u64, block_bytes: u32) -> Self {
        let bytes = usize::try_from(log_bytes(regions, block_bytes)).expect("a log fits in memory");
        let mut image = Self { bytes: vec![0; bytes], regions, block_bytes: block_bytes as usize, changed: Vec::new() };
        image.record(None);
        image
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes over the bits of a log with `header`, of which `old` is the bitmap from byte 1024 on.
    /// Regions that it does not tell of are clean where `fresh_clean`.
    pub fn adopt(&mut self, header: &Header, old: &[u8], fresh_clean: bool) {
        let known = header.regions.min(self.regions);
        for region in 0..self.regions {
            let bit = usize::try_from(region / 8).ok().and_then(|at| old.get(at)).map(|byte| byte >> (region % 8) & 1);
            let clean = if region < known { bit == Some(1) } else { fresh_clean };
            self.put_bit(region, clean);
        }
    }

    /// Says which legs lack something, or that the record is void.
    pub fn record(&mut self, behind: Option<Behind>) {
        let count = self.regions + u64::from(behind.is_some());
        let bytes = &mut self.bytes;
        put(bytes, 0, &MAGIC.to_le_bytes());
        put(bytes, 4, &VERSION.to_le_bytes());
        put(bytes, 8, &count.to_le_bytes());
        let mut record = [0; RECORD_BYTES + 4];
        if let Some(Behind { legs, of }) = behind {
            put(&mut record, 0, RECORD_MAGIC);
            put(&mut record, 8, &legs.bits().to_le_bytes());
            put(&mut record, 10, &of.to_le_bytes());
            put(&mut record, 16, &self.regions.to_le_bytes());
            let sum = record.get(..RECORD_BYTES).map_or(0, crc32c::crc32c);
            put(&mut record, RECORD_BYTES, &sum.to_le_bytes());
        }
        put(bytes, RECORD, &record);
        self.changed_at(0);
    }

    fn place(region: u64) -> (usize, u8) {
        let at = usize::try_from(BITMAP + region / 8).expect("a log fits in memory");
        (at, 1 << (region % 8))
    }

    /// Whether `region` is clean.
    #[must_use]
    pub fn is_clean(&self, region: u64) -> bool {
        let (at, bit) = Self::place(region);
        self.bytes.get(at).is_some_and(|byte| byte & bit != 0)
    }

    /// Makes `region` clean or dirty.
    ///
    /// # Panics
    /// When there is no such region.
    pub fn set(&mut self, region: u64, clean: bool) {
        assert!(region < self.regions, "the log has {} regions", self.regions);
        self.put_bit(region, clean);
        self.changed_at(Self::place(region).0);
    }

    fn put_bit(&mut self, region: u64, clean: bool) {
        let (at, bit) = Self::place(region);
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte = if clean { *byte | bit } else { *byte & !bit };
        }
    }

    fn changed_at(&mut self, byte: usize) {
        let block = byte / self.block_bytes;
        if let Err(place) = self.changed.binary_search(&block) {
            self.changed.insert(place, block);
        }
    }

    /// Runs of dirty regions, ascending.
    pub fn dirty(&self) -> impl Iterator<Item = Range<u64>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = (next..self.regions).find(|&region| !self.is_clean(region))?;
            let end = (start..self.regions).find(|&region| self.is_clean(region)).unwrap_or(self.regions);
            next = end;
            Some(start..end)
        })
    }

    /// Whether something differs from the device.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Runs of blocks that differ from the device, as ranges of bytes of at most `bytes_max`, at
    /// least a block; they are taken to be the same from now on.
    pub fn take_changed(&mut self, bytes_max: usize, mut each: impl FnMut(usize, &[u8])) {
        let most = (bytes_max / self.block_bytes).max(1);
        for run in self.changed.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(most)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let range = first * self.block_bytes..(last + 1) * self.block_bytes;
            each(range.start, self.bytes.get(range).unwrap_or_default());
        }
        self.changed.clear();
    }

    /// Everything is to be written.
    pub fn change_all(&mut self) {
        self.changed = (0..self.bytes.len() / self.block_bytes).collect();
    }
}

#[cfg(test)]
mod tests;
