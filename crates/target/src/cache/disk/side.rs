//! The side file of a cache: which cache and origin belong together, and checksums of the metadata.
//!
//! ```text
//!  byte    0         8         12        16               24             32           36        40
//!          │ magic   │ version │ state   │ origin sectors │ start_sector │ block size │ n       │
//!          40          48             56        60     64                192              320
//!          │ seq_count │ dirty blocks │ m       │ zero  │ origin, 128 B  │ cache, 128 B   │
//!          320                             320 + 4m
//!          │ m checksums of 64 KiB, CRC32C │ CRC32C of everything in front │
//! ```
//!
//! 1. All integers are little endian. Names are UTF-8 and filled up with zeroes.
//! 2. State 1, *open*: the cache is in use, or its user was killed; m is 0. State 2, *clean*: it was
//!    closed; the superblock and the entries have these m checksums, one for each 64 KiB.
//! 3. The gap between the entries and the data has no checksum: nothing in it counts.
//! 4. Decoding accepts exactly what encoding gives.
//! 5. What a record says about a cache is judged by [`Record::judge`] and [`Record::judge_fresh`],
//!    whoever opens it.
//!
//! Units: sectors are 512 bytes, blocks are cache blocks.
//!
//! Errors: [`SideError`] for bytes that are no side file, [`Mismatch`] for devices that are not those
//! of the record. Nothing here panics for what a file holds.

#![deny(clippy::indexing_slicing)]

use std::fmt;

use forebay_block::SectorCount;
use thiserror::Error;

use super::entry::ENTRY_BYTES;
use super::format::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, SUPERBLOCK_BYTES};

mod judge;
#[cfg(test)]
mod tests;

pub use judge::{Found, Mismatch};

/// Bytes of metadata that one checksum covers.
pub const PIECE_BYTES: usize = 65_536;
/// Most bytes of a name.
pub const NAME_BYTES: usize = 128;
/// Most bytes of a side file: that of the largest cache, after a clean end.
pub const SIDE_BYTES_MAX: usize = HEAD_BYTES + 4 * ((1 << 20) + 1) + 4;

const MAGIC: [u8; 8] = *b"FBAYSIDE";
const VERSION: u32 = 1;
const OPEN: u32 = 1;
const CLEAN: u32 = 2;
const HEAD_BYTES: usize = 64 + 2 * NAME_BYTES;

/// Why bytes are no side file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SideError {
    /// It is something else.
    #[error("it is not a side file")]
    Magic,
    /// A version to come.
    #[error("its version is {found}, and only version 1 is known")]
    Version {
        /// The version found.
        found: u32,
    },
    /// It was cut short, or changed.
    #[error("it is damaged")]
    Damaged,
}

/// What tells a device from all others: at most [`NAME_BYTES`] of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// The name `text`, cut where it is too long; zeroes and line breaks are left out.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut name = String::new();
        for letter in text.chars().filter(|letter| !letter.is_control()) {
            if name.len() + letter.len_utf8() > NAME_BYTES {
                break;
            }
            name.push(letter);
        }
        Self(name)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let plain = !text.chars().any(char::is_control);
        plain.then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the cache was doing when its side file was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SideState {
    /// It was about to be written to.
    Open,
    /// It was closed, and its metadata had these checksums.
    Clean(Vec<u32>),
}

/// The content of a side file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What the cache was doing.
    pub state: SideState,
    /// Size of the origin.
    pub origin_sectors: SectorCount,
    /// Sectors of the fast device in front of the cache.
    pub start_sector: u64,
    /// Block size in bytes: a power of two, 512 to 65536.
    pub block_bytes: u32,
    /// Number of blocks, at least 1.
    pub blocks: u32,
    /// The sequence number in the superblock; it never becomes smaller.
    pub seq_count: u64,
    /// Blocks in the cache that were not on the origin.
    pub dirty_blocks: u64,
    /// The origin.
    pub origin: Name,
    /// The fast device.
    pub cache: Name,
}

impl Record {
    /// The record as it stands in its file.
    ///
    /// # Panics
    /// When it has 2^32 checksums; the largest cache has 2^20 and one.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (state, checksums): (u32, &[u32]) = match &self.state {
            SideState::Open => (OPEN, &[]),
            SideState::Clean(checksums) => (CLEAN, checksums),
        };
        let count = u32::try_from(checksums.len()).expect("no cache has so many checksums");
        let mut bytes = Vec::with_capacity(HEAD_BYTES + 4 * checksums.len() + 4);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(&self.origin_sectors.0.to_le_bytes());
        bytes.extend_from_slice(&self.start_sector.to_le_bytes());
        bytes.extend_from_slice(&self.block_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.blocks.to_le_bytes());
        bytes.extend_from_slice(&self.seq_count.to_le_bytes());
        bytes.extend_from_slice(&self.dirty_blocks.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        for name in [&self.origin, &self.cache] {
            let end = bytes.len() + NAME_BYTES;
            bytes.extend_from_slice(name.0.as_bytes());
            bytes.resize(end, 0);
        }
        for checksum in checksums {
            bytes.extend_from_slice(&checksum.to_le_bytes());
        }
        seal(&mut bytes);
        bytes
    }

    /// Reads the content of a side file.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, SideError> {
        let (magic, rest) = bytes.split_first_chunk().ok_or(SideError::Magic)?;
        if *magic != MAGIC {
            return Err(SideError::Magic);
        }
        let (version, _) = take_u32(rest).ok_or(SideError::Damaged)?;
        if version != VERSION {
            return Err(SideError::Version { found: version });
        }
        let (sealed, checksum) = bytes.split_last_chunk().ok_or(SideError::Damaged)?;
        if crc32c::crc32c(sealed) != u32::from_le_bytes(*checksum) {
            return Err(SideError::Damaged);
        }
        let fields = sealed.get(MAGIC.len() + size_of::<u32>()..).and_then(Self::fields);
        fields.ok_or(SideError::Damaged)
    }

    /// The fields behind the version.
    fn fields(bytes: &[u8]) -> Option<Self> {
        let (state, rest) = take_u32(bytes)?;
        let (origin_sectors, rest) = take_u64(rest)?;
        let (start_sector, rest) = take_u64(rest)?;
        let (block_bytes, rest) = take_u32(rest)?;
        let (blocks, rest) = take_u32(rest)?;
        let (seq_count, rest) = take_u64(rest)?;
        let (dirty_blocks, rest) = take_u64(rest)?;
        let (count, rest) = take_u32(rest)?;
        let (zero, rest) = take_u32(rest)?;
        let (origin, rest) = rest.split_at_checked(NAME_BYTES)?;
        let (cache, checksums) = rest.split_at_checked(NAME_BYTES)?;
        let possible = block_bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
        if !possible || blocks == 0 || zero != 0 {
            return None;
        }
        let (checksums, rest) = checksums.as_chunks();
        let checksums: Vec<u32> = checksums.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let counted = rest.is_empty() && checksums.len() == count as usize;
        let state = match state {
            OPEN if counted && checksums.is_empty() => SideState::Open,
            CLEAN if counted && checksums.len() as u64 == pieces(blocks) => SideState::Clean(checksums),
            _ => return None,
        };
        let (origin, cache) = (Name::decode(origin)?, Name::decode(cache)?);
        let origin_sectors = SectorCount(origin_sectors);
        Some(Self { state, origin_sectors, start_sector, block_bytes, blocks, seq_count, dirty_blocks, origin, cache })
    }
}

/// Appends the checksum that ends a side file.
pub fn seal(bytes: &mut Vec<u8>) {
    let checksum = crc32c::crc32c(bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u32::from_le_bytes(*number), rest))
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(number, rest)| (u64::from_le_bytes(*number), rest))
}

/// Bytes of the superblock and the entries.
fn covered_bytes(blocks: u32) -> u64 {
    SUPERBLOCK_BYTES as u64 + u64::from(blocks) * ENTRY_BYTES as u64
}

/// Checksums of a cache with so many blocks.
fn pieces(blocks: u32) -> u64 {
    covered_bytes(blocks).div_ceil(PIECE_BYTES as u64)
}

/// Takes the checksums of a cache's metadata.
pub struct Checksums {
    /// Bytes that were not fed yet.
    left: u64,
    done: Vec<u32>,
    /// Checksum of the piece that was fed in part, and its bytes.
    piece: u32,
    piece_bytes: usize,
}

impl Checksums {
    /// Begins with the metadata of a cache of so many blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self { left: covered_bytes(blocks), done: Vec::new(), piece: 0, piece_bytes: 0 }
    }

    /// Takes the next bytes of the metadata, from the superblock on. What follows the last entry is
    /// ignored.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while self.left > 0 && !bytes.is_empty() {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let length = bytes.len().min(PIECE_BYTES - self.piece_bytes).min(left);
            let (next, rest) = bytes.split_at(length);
            self.piece = crc32c::crc32c_append(self.piece, next);
            self.piece_bytes += length;
            self.left -= length as u64;
            if self.piece_bytes == PIECE_BYTES || self.left == 0 {
                self.done.push(std::mem::take(&mut self.piece));
                self.piece_bytes = 0;
            }
            bytes = rest;
        }
    }

    /// The checksums, once everything was fed.
    ///
    /// # Panics
    /// When something was not.
    #[must_use]
    pub fn finish(self) -> Vec<u32> {
        assert!(self.left == 0, "{} bytes of metadata were not fed", self.left);
        self.done
    }
}
