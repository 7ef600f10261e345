//! The superblock and the layout of the write cache's fast device, as dm-writecache has them.
//!
//! ```text
//!  start_sector                                                        end of the device
//!  │ superblock 64 B │ entries 16 B × n │ undefined │ block 0 │ block 1 │ … │ block n-1 │ unused │
//!  0                 64                 64+16n      data offset = align_up(64+16n, block size)
//!
//!  byte    0        4         8            12       16       24          32         64
//!          │ magic  │ version │ block size │ zero   │ n      │ seq_count │ zero     │
//! ```
//!
//! 1. All integers are little endian; the version is always 1.
//! 2. The recorded n rules, not the one that the device's size would give: a device that grew keeps
//!    its n, and a smaller n than would fit is accepted.
//! 3. A device is fresh exactly when magic and version are both zero, whatever else it holds.
//! 4. `64 + 16n` rounded up to the block size, plus n blocks, never exceeds the device behind
//!    `start_sector`.
//!
//! Units: `_bytes` are bytes, `_sectors` are 512-byte sectors, `blocks` are cache blocks. Byte
//! offsets count from `start_sector`; sectors count from the start of the device.
//!
//! Errors: [`FormatError`], whose text starts with the kernel driver's own words where it has some.
//! Nothing here panics for what a device holds.
//!
//! Sources: the observable format of the `writecache` target 1.6.0.

#![deny(clippy::indexing_slicing)]

use forebay_block::Sector;
use thiserror::Error;

use super::entry::ENTRY_BYTES;
use crate::cache::index::CacheSlot;

#[cfg(test)]
mod tests;

/// Bytes of the superblock; the entries follow it at once.
pub const SUPERBLOCK_BYTES: usize = 64;
/// The smallest block size in bytes: one sector.
pub const BLOCK_BYTES_MIN: u32 = 512;
/// The largest block size in bytes. Kernels with 4 KiB pages open caches up to 4096 only.
pub const BLOCK_BYTES_MAX: u32 = 65_536;
/// Most blocks of a cache: slots are 32 bits, and the last value stays unused.
pub const BLOCKS_MAX: u64 = u32::MAX as u64;

const MAGIC: u32 = 0x2348_9321;
const VERSION: u32 = 1;
const SECTOR_BYTES: u64 = 512;
/// Sequence numbers above this are damage: below it there is room for 2^48 more commits.
const SEQ_COUNT_MAX: u64 = u64::MAX - (1 << 48);

/// Why a device cannot be a cache, or is not the cache that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The block size is not a power of two within the limits.
    #[error("Invalid block size: {block_bytes} is not a power of two from 512 to 65536")]
    BlockBytes {
        /// The block size asked for, in bytes.
        block_bytes: u32,
    },
    /// Not even one block fits (the kernel's ENOSPC).
    #[error("Invalid device size: {device_bytes} bytes behind start_sector {start_sector} leave no room for one block")]
    NoRoom {
        /// Size of the whole device in bytes.
        device_bytes: u64,
        /// Sectors in front of the cache.
        start_sector: u64,
    },
    /// More blocks than slots have numbers (the kernel's EFBIG, at another limit).
    #[error("Invalid device size: {blocks} blocks are more than {BLOCKS_MAX}; use a larger block size")]
    TooManyBlocks {
        /// The number of blocks that fit, or that the superblock records.
        blocks: u64,
    },
    /// Neither a cache nor fresh.
    #[error("Invalid magic in the superblock: {found:#010x} is not {MAGIC:#010x}, so the device holds something else")]
    Magic {
        /// The magic found.
        found: u32,
    },
    /// A cache of an unknown version.
    #[error("Invalid version in the superblock: {found} is not 1")]
    Version {
        /// The version found.
        found: u32,
    },
    /// A cache with another block size than the one asked for.
    #[error("Block size does not match superblock: the cache has {recorded_bytes} bytes, {wanted_bytes} were asked for")]
    BlockBytesDiffer {
        /// The block size in the superblock, in bytes.
        recorded_bytes: u32,
        /// The block size asked for, in bytes.
        wanted_bytes: u32,
    },
    /// The recorded number of blocks cannot be a size at all.
    #[error("Number of blocks in the superblock is out of range: {blocks}")]
    Overflow {
        /// The recorded number of blocks.
        blocks: u64,
    },
    /// The recorded sequence number leaves no room for commits; no cache gets there by itself.
    #[error("The superblock is damaged: its sequence number {seq_count} is next to the last; run `forebay cache dump`")]
    SeqCount {
        /// The recorded sequence number.
        seq_count: u64,
    },
    /// The superblock records a cache of no blocks.
    #[error("The superblock records no blocks: format the device anew")]
    NoBlocks,
    /// The recorded blocks do not fit the device: it shrank, or `start_sector` is wrong.
    #[error("Memory area is too small: the superblock records {needed_bytes} bytes, the device has {have_bytes}")]
    TooSmall {
        /// Bytes that the recorded cache takes.
        needed_bytes: u64,
        /// Bytes of the device behind `start_sector`.
        have_bytes: u64,
    },
}

/// Where the parts of a cache lie on its fast device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    start_sector: u64,
    block_bytes: u32,
    blocks: u32,
}

impl Geometry {
    /// The layout of a new cache on a device of `device_bytes`, whose cache begins at
    /// `start_sector` and has blocks of `block_bytes`.
    ///
    /// Worked example, 64 MiB with 4096-byte blocks: 67108864 / (4096 + 16) = 16320 blocks; metadata
    /// 64 + 16 × 16320 = 261184, rounded up 262144; 262144 + 16320 × 4096 = 67108864, an exact fit.
    ///
    /// # Errors
    /// [`FormatError::BlockBytes`], [`FormatError::NoRoom`], [`FormatError::TooManyBlocks`].
    pub fn for_device(device_bytes: u64, start_sector: u64, block_bytes: u32) -> Result<Self, FormatError> {
        check_block_bytes(block_bytes)?;
        let room_bytes = room(device_bytes, start_sector);
        let block = u64::from(block_bytes);
        let mut blocks = room_bytes / (block + ENTRY_BYTES as u64);
        while blocks > 0 && cache_bytes(blocks, block).is_none_or(|bytes| bytes > room_bytes) {
            blocks -= 1;
        }
        if blocks == 0 {
            return Err(FormatError::NoRoom { device_bytes, start_sector });
        }
        let blocks = slots(blocks)?;
        Ok(Self { start_sector, block_bytes, blocks })
    }

    /// The layout that `superblock` records, held against the device and the block size asked for.
    fn recorded(superblock: &Superblock, device_bytes: u64, start_sector: u64, block_bytes: u32) -> Result<Self, FormatError> {
        if superblock.block_bytes != block_bytes {
            return Err(FormatError::BlockBytesDiffer { recorded_bytes: superblock.block_bytes, wanted_bytes: block_bytes });
        }
        let blocks = superblock.blocks;
        if blocks == 0 {
            return Err(FormatError::NoBlocks);
        }
        let needed_bytes = cache_bytes(blocks, u64::from(block_bytes)).ok_or(FormatError::Overflow { blocks })?;
        let have_bytes = room(device_bytes, start_sector);
        if needed_bytes > have_bytes {
            return Err(FormatError::TooSmall { needed_bytes, have_bytes });
        }
        Ok(Self { start_sector, block_bytes, blocks: slots(blocks)? })
    }

    /// Sectors of the device in front of the cache.
    #[must_use]
    pub fn start_sector(&self) -> Sector {
        Sector(self.start_sector)
    }

    /// Size of a block in bytes: a power of two, 512 to 65536.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Size of a block in sectors: a power of two, 1 to 128.
    #[must_use]
    pub fn block_sectors(&self) -> u32 {
        self.block_bytes >> 9
    }

    /// Number of blocks, at least 1.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of the metadata area, which is also the offset of the data: a multiple of the block size.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        let entries = SUPERBLOCK_BYTES as u64 + ENTRY_BYTES as u64 * u64::from(self.blocks);
        entries.next_multiple_of(u64::from(self.block_bytes))
    }

    /// Bytes of the whole cache, metadata and blocks.
    #[must_use]
    pub fn cache_bytes(&self) -> u64 {
        self.metadata_bytes() + u64::from(self.blocks) * u64::from(self.block_bytes)
    }

    /// The sector of the device where the block in `slot` begins.
    ///
    /// # Panics
    /// When the cache has no such slot.
    #[must_use]
    pub fn slot_sector(&self, slot: CacheSlot) -> Sector {
        assert!(slot.0 < self.blocks, "slot {} of a cache with {} blocks", slot.0, self.blocks);
        let block_sectors = u64::from(self.block_sectors());
        Sector(self.start_sector + self.metadata_bytes() / SECTOR_BYTES + u64::from(slot.0) * block_sectors)
    }

    /// The byte offset of the entry of `slot`, counted from `start_sector`.
    ///
    /// # Panics
    /// When the cache has no such slot.
    #[must_use]
    pub fn entry_offset(&self, slot: CacheSlot) -> u64 {
        assert!(slot.0 < self.blocks, "entry {} of a cache with {} blocks", slot.0, self.blocks);
        SUPERBLOCK_BYTES as u64 + ENTRY_BYTES as u64 * u64::from(slot.0)
    }

    /// The superblock of this cache with the given sequence number.
    #[must_use]
    pub fn superblock(&self, seq_count: u64) -> Superblock {
        Superblock { block_bytes: self.block_bytes, blocks: u64::from(self.blocks), seq_count }
    }
}

/// The fields of a superblock that vary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// The sequence number of the current group, which is not committed yet.
    pub seq_count: u64,
}

impl Superblock {
    /// The superblock as it stands on a device.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        self.encode_with(MAGIC, VERSION)
    }

    /// The superblock as formatting writes it first: without its magic and version, so that a crash
    /// before the rest is durable leaves a fresh device. (With a version it would be neither fresh
    /// nor a cache, and be refused for ever.)
    #[must_use]
    pub fn encode_without_magic(&self) -> [u8; SUPERBLOCK_BYTES] {
        self.encode_with(0, 0)
    }

    fn encode_with(&self, magic: u32, version: u32) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let fields = magic
            .to_le_bytes()
            .into_iter()
            .chain(version.to_le_bytes())
            .chain(self.block_bytes.to_le_bytes())
            .chain(0_u32.to_le_bytes())
            .chain(self.blocks.to_le_bytes())
            .chain(self.seq_count.to_le_bytes());
        for (byte, field) in bytes.iter_mut().zip(fields) {
            *byte = field;
        }
        bytes
    }
}

/// What a device holds at the place of its superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// Magic and version are zero: to be formatted with this layout.
    Fresh(Geometry),
    /// A cache.
    Formatted(Geometry, Superblock),
}

impl Media {
    /// Reads the superblock of a device of `device_bytes`, whose cache begins at `start_sector` and
    /// is asked to have blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`FormatError`]; the first that applies, in the kernel driver's order.
    pub fn read(
        superblock: &[u8; SUPERBLOCK_BYTES],
        device_bytes: u64,
        start_sector: u64,
        block_bytes: u32,
    ) -> Result<Self, FormatError> {
        let (magic, rest) = take_u32(superblock);
        let (version, rest) = take_u32(rest);
        let fresh = Geometry::for_device(device_bytes, start_sector, block_bytes);
        if magic == 0 && version == 0 {
            return fresh.map(Media::Fresh);
        }
        match fresh {
            // A recorded number of blocks may be smaller than what fits.
            Ok(_) | Err(FormatError::TooManyBlocks { .. }) => {}
            Err(error) => return Err(error),
        }
        if magic != MAGIC {
            return Err(FormatError::Magic { found: magic });
        }
        if version != VERSION {
            return Err(FormatError::Version { found: version });
        }
        let (recorded_bytes, rest) = take_u32(rest);
        let (_zero, rest) = take_u32(rest);
        let (blocks, rest) = take_u64(rest);
        let (seq_count, _zero) = take_u64(rest);
        if seq_count > SEQ_COUNT_MAX {
            return Err(FormatError::SeqCount { seq_count });
        }
        let superblock = Superblock { block_bytes: recorded_bytes, blocks, seq_count };
        let geometry = Geometry::recorded(&superblock, device_bytes, start_sector, block_bytes)?;
        Ok(Media::Formatted(geometry, superblock))
    }
}

/// Splits a little-endian number off the front; a number cut short reads as zero, which does not
/// happen inside an array of 64 bytes.
fn take_u32(bytes: &[u8]) -> (u32, &[u8]) {
    bytes.split_first_chunk().map_or((0, bytes), |(number, rest)| (u32::from_le_bytes(*number), rest))
}

fn take_u64(bytes: &[u8]) -> (u64, &[u8]) {
    bytes.split_first_chunk().map_or((0, bytes), |(number, rest)| (u64::from_le_bytes(*number), rest))
}

fn check_block_bytes(block_bytes: u32) -> Result<(), FormatError> {
    let valid = block_bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes);
    if valid { Ok(()) } else { Err(FormatError::BlockBytes { block_bytes }) }
}

/// Bytes of the device behind `start_sector`.
fn room(device_bytes: u64, start_sector: u64) -> u64 {
    device_bytes.saturating_sub(start_sector.saturating_mul(SECTOR_BYTES))
}

/// Bytes that a cache of `blocks` takes, or `None` where that does not fit 64 bits.
fn cache_bytes(blocks: u64, block_bytes: u64) -> Option<u64> {
    let entries = blocks.checked_mul(ENTRY_BYTES as u64)?.checked_add(SUPERBLOCK_BYTES as u64)?;
    let metadata = entries.checked_next_multiple_of(block_bytes)?;
    metadata.checked_add(blocks.checked_mul(block_bytes)?)
}

fn slots(blocks: u64) -> Result<u32, FormatError> {
    u32::try_from(blocks).map_err(|_| FormatError::TooManyBlocks { blocks })
}
