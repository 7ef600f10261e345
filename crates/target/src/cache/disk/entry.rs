//! The 16-byte metadata entries of the write cache.
//!
//! ```text
//!  byte  0                         8                        16
//!        │ original sector (u64)   │ seq (u64)              │      little endian
//! ```
//!
//! 1. seq = 2^64-1 is a free slot, whatever its original sector says.
//! 2. seq < the superblock's `seq_count` is a committed block; any other was never committed.
//! 3. The original sector counts 512-byte sectors from the start of the cached device.
//!
//! Sources: the observable format of the `writecache` target 1.6.0.

#![deny(clippy::indexing_slicing)]

#[cfg(test)]
mod tests;

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 16;
/// The sequence number of a free slot.
pub const SEQ_FREE: u64 = u64::MAX;

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// First sector of the block on the cached device; means nothing when the slot is free.
    pub origin_sector: u64,
    /// Sequence number of the group that wrote the block, or [`SEQ_FREE`].
    pub seq: u64,
}

impl Entry {
    /// The entry in these bytes.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let both = u128::from_le_bytes(*bytes);
        let low = (both & 0xffff_ffff_ffff_ffff) as u64;
        let high = (both >> 64) as u64;
        Self { origin_sector: low, seq: high }
    }

    /// The entry as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        (u128::from(self.seq) << 64 | u128::from(self.origin_sector)).to_le_bytes()
    }
}

/// Writes the entries of a run of blocks with consecutive slots and origin blocks: the first is at
/// `first_origin_sector`, each next one `block_sectors` further, all with sequence number `seq`.
///
/// # Panics
/// When `entries` is not a whole number of entries.
pub fn write_entries(entries: &mut [u8], first_origin_sector: u64, block_sectors: u32, seq: u64) {
    let (entries, rest) = entries.as_chunks_mut::<ENTRY_BYTES>();
    assert!(rest.is_empty(), "entries are {ENTRY_BYTES} bytes each");
    let step = u64::from(block_sectors);
    let mut origin_sector = first_origin_sector;
    for entry in entries {
        *entry = Entry { origin_sector, seq }.encode();
        // The value behind the last entry is never used, so it may wrap.
        origin_sector = origin_sector.wrapping_add(step);
    }
}

/// Marks the slots of all these entries free.
///
/// # Panics
/// When `entries` is not a whole number of entries.
pub fn clear_entries(entries: &mut [u8]) {
    assert!(entries.len().is_multiple_of(ENTRY_BYTES), "entries are {ENTRY_BYTES} bytes each");
    entries.fill(0xff);
}
