//! The persistent store of a snapshot as dm-snapshot has it: header, areas of entries, data chunks.
//!
//! ```text
//!  chunk  0        1        2 … E+1    E+2      E+3 … 2E+2   2E+3
//!        │ header │ area 0 │ data     │ area 1 │ data       │ area 2 │ …        E = chunk bytes / 16
//!
//!  header, bytes  0        4        8          12                  16
//!                 │ magic  │ valid  │ version  │ chunk in sectors  │ zeroes to the end of the chunk
//!
//!  entry, bytes   0                8                16
//!                 │ origin chunk   │ chunk here     │        0 here ends the list
//! ```
//!
//! 1. All integers are little endian; the version is always 1. A magic of 0 is a device without a store.
//! 2. Entries stand in the order in which they were committed. The first one with a `new` of 0 ends the
//!    list; an area without such an entry goes on in the next one.
//! 3. Chunks are given out in ascending order and never again. Those given out last and not committed
//!    before a crash are either given out again or, below the highest committed one, lost.
//!
//! Units: chunks of the store, sectors of 512 bytes where the name says so.
//!
//! Errors: [`FormatError`], which says what the device holds. Nothing here panics for what it holds.
//!
//! Sources: the observable format of the `snapshot` target 1.16.0.

#![deny(clippy::indexing_slicing)]

use forebay_block::{SECTOR_BYTES, Sector};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Bytes of the header that are not zero.
pub const HEADER_BYTES: usize = 16;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;
/// Largest chunk, sectors: 1 GiB.
pub const CHUNK_SECTORS_MAX: u64 = 1 << 21;

const MAGIC: u32 = 0x7041_6e53;
const VERSION: u32 = 1;
/// The chunk of area 0.
const FIRST_AREA: u64 = 1;
/// The chunk that is given out first.
pub const FIRST_DATA: u64 = 2;

/// Why a device is not a store that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// It begins with something else.
    #[error("it holds something else (magic {0:#x}): clear its first chunk if a new snapshot may replace that")]
    Magic(u32),
    /// A version that nobody knows.
    #[error("its store has version {0}, and only 1 is known")]
    Version(u32),
    /// A size that cannot be.
    #[error("its store says a chunk of {0} sectors, which is no power of two up to 2097152")]
    ChunkSize(u32),
    /// An entry whose data lies behind the device's end.
    #[error("its store has data in chunk {new}, and the device ends with chunk {last}: give it its former size again")]
    Beyond {
        /// The chunk.
        new: u64,
        /// The last one of the device.
        last: u64,
    },
    /// An entry whose data would lie over the header or an area.
    #[error("its store is damaged: entry {index} puts data into chunk {new}, where metadata is")]
    Overlay {
        /// Number of the entry, from 0.
        index: u64,
        /// The chunk.
        new: u64,
    },
    /// Two entries for one chunk, or into one chunk.
    #[error("its store is damaged: entry {index} names chunk {chunk} a second time")]
    Twice {
        /// Number of the later entry, from 0.
        index: u64,
        /// The chunk of the origin or of the store.
        chunk: u64,
    },
}

/// A chunk of the origin and where its old content, or its newer content, is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exception {
    /// Chunk of the origin.
    pub old: u64,
    /// Chunk of the store; never 0.
    pub new: u64,
}

impl Exception {
    /// Its 16 bytes.
    #[must_use]
    pub fn encode(self) -> [u8; ENTRY_BYTES] {
        let both = u128::from(self.old) | u128::from(self.new) << 64;
        both.to_le_bytes()
    }

    /// The entry in `bytes`; `None` for the one that ends the list, and for less than 16 bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (old, rest) = bytes.split_first_chunk()?;
        let new = u64::from_le_bytes(*rest.first_chunk()?);
        (new != 0).then_some(Self { old: u64::from_le_bytes(*old), new })
    }
}

/// The header of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether the snapshot can be used; once false, false for ever.
    pub valid: bool,
    /// Size of a chunk, sectors: a power of two.
    pub chunk_sectors: u32,
}

impl Header {
    /// Its 16 bytes; the rest of the chunk is zeroes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let words = [MAGIC, u32::from(self.valid), VERSION, self.chunk_sectors];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The header in the first bytes of a device; `None` where the device has no store.
    ///
    /// # Errors
    /// [`FormatError`] when it holds something else, or a store that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, FormatError> {
        let mut words = bytes.chunks_exact(4).map(|word| word.first_chunk().map_or(0, |word| u32::from_le_bytes(*word)));
        let mut word = || words.next().unwrap_or(0);
        let (magic, valid, version, chunk_sectors) = (word(), word(), word(), word());
        match magic {
            0 => return Ok(None),
            MAGIC => {}
            other => return Err(FormatError::Magic(other)),
        }
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        if !chunk_sectors.is_power_of_two() || u64::from(chunk_sectors) > CHUNK_SECTORS_MAX {
            return Err(FormatError::ChunkSize(chunk_sectors));
        }
        Ok(Some(Self { valid: valid != 0, chunk_sectors }))
    }
}

/// Where things lie in a store with chunks of a given size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    chunk_sectors: u64,
}

impl Layout {
    /// The layout with chunks of so many sectors, a power of two from 1 to 2^21.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    pub fn new(chunk_sectors: u64) -> Self {
        assert!(chunk_sectors.is_power_of_two(), "a chunk is a power of two of sectors");
        assert!(chunk_sectors <= CHUNK_SECTORS_MAX, "a chunk has at most 2^21 sectors");
        Self { chunk_sectors }
    }

    /// Size of a chunk, sectors.
    #[must_use]
    pub fn chunk_sectors(self) -> u64 {
        self.chunk_sectors
    }

    /// Size of a chunk, bytes.
    #[must_use]
    pub fn chunk_bytes(self) -> u64 {
        self.chunk_sectors * u64::from(SECTOR_BYTES)
    }

    /// Entries of an area, which are also the data chunks behind it.
    #[must_use]
    pub fn area_entries(self) -> u64 {
        self.chunk_bytes() / ENTRY_BYTES as u64
    }

    /// The chunk of an area.
    #[must_use]
    pub fn area_chunk(self, area: u64) -> u64 {
        FIRST_AREA + area * (self.area_entries() + 1)
    }

    /// First sector of a chunk.
    #[must_use]
    pub fn sector(self, chunk: u64) -> Sector {
        Sector(chunk * self.chunk_sectors)
    }

    /// Whether `chunk` is the header or an area.
    #[must_use]
    pub fn is_metadata(self, chunk: u64) -> bool {
        chunk == 0 || chunk % (self.area_entries() + 1) == FIRST_AREA
    }

    /// The first chunk from `chunk` on that may hold data.
    #[must_use]
    pub fn data_from(self, chunk: u64) -> u64 {
        let chunk = chunk.max(FIRST_DATA);
        if self.is_metadata(chunk) { chunk + 1 } else { chunk }
    }

    /// Whether an entry that was read can be, in a store on a device of `chunks` whole chunks.
    ///
    /// # Errors
    /// [`FormatError::Beyond`] and [`FormatError::Overlay`].
    pub fn check(self, index: u64, entry: Exception, chunks: u64) -> Result<(), FormatError> {
        let new = entry.new;
        if new >= chunks {
            return Err(FormatError::Beyond { new, last: chunks.saturating_sub(1) });
        }
        if self.is_metadata(new) { Err(FormatError::Overlay { index, new }) } else { Ok(()) }
    }
}
