//! The write cache's on-disk format, read and made by hand: the third opinion beside the kernel's and Forebay's.
//!
//! ```text
//!  start_sector × 512:  0 magic · 4 version · 8 block size · 12 zero · 16 blocks n · 24 seq_count · 32 zero
//!                      64 entries, 16 bytes each:  origin sector · seq      (seq = all ones: free)
//!                      next multiple of the block size: data, block i at i × block size
//! ```
//!
//! 1. An entry counts when its seq is below the superblock's `seq_count`.
//! 2. Of several that count for one sector the highest seq wins, and of equal ones the highest index.
//!
//! Units: bytes, except where a name says sector. All integers are little-endian.

use crate::pattern::{self, SECTOR};
use std::collections::BTreeMap;
use std::fs;

/// The first four bytes of a formatted cache.
pub const MAGIC: u32 = 0x2348_9321;
/// The sequence number of a free entry.
pub const FREE: u64 = u64::MAX;

/// How a cache is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes in a cache block.
    pub block_size: u64,
    /// Where on the cache device everything starts.
    pub start_sector: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Layout {
    /// The layout that a fresh cache of `bytes` gets.
    pub fn of_fresh(bytes: u64, block_size: u64, start_sector: u64) -> Self {
        let room = bytes - start_sector * SECTOR as u64;
        let fits = |blocks: u64| (64 + 16 * blocks).next_multiple_of(block_size) + blocks * block_size <= room;
        let most = room / (block_size + 16);
        let blocks = (1..=most).rev().find(|blocks| fits(*blocks)).expect("room for one block");
        Self { block_size, start_sector, blocks }
    }

    /// Byte offset of the superblock on the cache device.
    pub fn superblock_at(&self) -> usize {
        small(self.start_sector * SECTOR as u64)
    }

    /// Byte offset of entry `index` on the cache device.
    pub fn entry_at(&self, index: u64) -> usize {
        small(self.start_sector * SECTOR as u64 + 64 + 16 * index)
    }

    /// Byte offset of block `index` on the cache device.
    pub fn data_at(&self, index: u64) -> usize {
        let metadata = (64 + 16 * self.blocks).next_multiple_of(self.block_size);
        small(self.start_sector * SECTOR as u64 + metadata + index * self.block_size)
    }
}

/// A cache device's content.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Where things are.
    pub layout: Layout,
    /// The sequence number of the group that is not committed yet.
    pub seq_count: u64,
    bytes: Vec<u8>,
}

impl Cache {
    /// A freshly formatted cache device of `bytes`, with `seq_count` groups committed and every block free.
    pub fn fresh(bytes: u64, block_size: u64, start_sector: u64, seq_count: u64) -> Self {
        let layout = Layout::of_fresh(bytes, block_size, start_sector);
        let mut cache = Self { layout, seq_count, bytes: vec![0; small(bytes)] };
        cache.set_u32(0, MAGIC);
        cache.set_u32(4, 1);
        cache.set_u32(8, u32::try_from(block_size).expect("a block size"));
        cache.set_u64(16, layout.blocks);
        cache.set_u64(24, seq_count);
        for index in 0..layout.blocks {
            cache.set_entry(index, FREE, FREE);
        }
        cache
    }

    /// Reads a cache device that someone else wrote.
    pub fn read(path: &str, start_sector: u64) -> Self {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        let layout = Layout { block_size: 0, start_sector, blocks: 0 };
        let mut cache = Self { layout, seq_count: 0, bytes };
        assert_eq!(cache.u32(0), MAGIC, "{path}: magic");
        assert_eq!(cache.u32(4), 1, "{path}: version");
        cache.layout = Layout { block_size: u64::from(cache.u32(8)), start_sector, blocks: cache.u64(16) };
        cache.seq_count = cache.u64(24);
        let fresh = Layout::of_fresh(cache.bytes.len() as u64, cache.layout.block_size, start_sector);
        assert_eq!(cache.layout, fresh, "{path}: layout");
        cache
    }

    /// The device's bytes, to be written to a file or damaged first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Sets a 32-bit field of the superblock.
    pub fn set_u32(&mut self, offset: usize, value: u32) {
        let at = self.superblock(offset);
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets a 64-bit field of the superblock.
    pub fn set_u64(&mut self, offset: usize, value: u64) {
        let at = self.superblock(offset);
        self.bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets one entry.
    pub fn set_entry(&mut self, index: u64, origin_sector: u64, seq: u64) {
        let at = self.layout.entry_at(index);
        self.bytes[at..at + 8].copy_from_slice(&origin_sector.to_le_bytes());
        self.bytes[at + 8..at + 16].copy_from_slice(&seq.to_le_bytes());
    }

    /// Sets one entry and fills its block with the pattern of `version`.
    pub fn store(&mut self, index: u64, origin_sector: u64, seq: u64, version: u64) {
        self.set_entry(index, origin_sector, seq);
        let at = self.layout.data_at(index);
        let end = at + small(self.layout.block_size);
        pattern::fill(&mut self.bytes[at..end], origin_sector, version);
    }

    /// Origin sector and seq of entry `index`.
    pub fn entry(&self, index: u64) -> (u64, u64) {
        let at = self.layout.entry_at(index);
        let word = |at: usize| u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"));
        (word(at), word(at + 8))
    }

    /// The block that holds each cached origin sector, after the rules of recovery.
    pub fn committed(&self) -> BTreeMap<u64, u64> {
        let mut newest: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for index in 0..self.layout.blocks {
            let (sector, seq) = self.entry(index);
            if seq < self.seq_count && newest.get(&sector).is_none_or(|(old, _)| *old <= seq) {
                newest.insert(sector, (seq, index));
            }
        }
        newest.into_iter().map(|(sector, (_, index))| (sector, index)).collect()
    }

    /// What the cached device holds: the origin with every committed block laid over it.
    pub fn over(&self, origin: &str) -> Vec<u8> {
        let mut whole = fs::read(origin).unwrap_or_else(|error| panic!("cannot read {origin}: {error}"));
        let length = small(self.layout.block_size);
        for (sector, index) in self.committed() {
            let (to, from) = (small(sector) * SECTOR, self.layout.data_at(index));
            whole[to..to + length].copy_from_slice(&self.bytes[from..from + length]);
        }
        whole
    }

    fn superblock(&self, offset: usize) -> usize {
        self.layout.superblock_at() + offset
    }

    fn u32(&self, offset: usize) -> u32 {
        let at = self.superblock(offset);
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64(&self, offset: usize) -> u64 {
        let at = self.superblock(offset);
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }
}

fn small(number: u64) -> usize {
    usize::try_from(number).expect("test images fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_cache_has_as_many_blocks_as_the_kernel_makes() {
        let mib = 1 << 20;
        for (bytes, block_size, blocks) in [
            (64 * mib, 512, 127_100),
            (64 * mib, 1024, 64_527),
            (64 * mib, 2048, 32_513),
            (64 * mib, 4096, 16_320),
            (mib, 4096, 254),
            (8192, 4096, 1),
        ] {
            assert_eq!(Layout::of_fresh(bytes, block_size, 0).blocks, blocks, "{bytes} bytes in blocks of {block_size}");
        }
        assert_eq!(Layout::of_fresh(64 * mib, 4096, 0).data_at(5), 552 * SECTOR);
        assert_eq!(Layout::of_fresh(64 * mib, 4096, 0).entry_at(5), 144);
    }

    #[test]
    fn the_highest_sequence_wins_then_the_highest_index_and_the_uncommitted_never() {
        let mut cache = Cache::fresh(1 << 20, 4096, 3, 10);
        for (index, sector, seq) in [(0, 8, 9), (1, 8, 4), (2, 16, 5), (3, 16, 5), (4, 24, 10), (5, 32, FREE)] {
            cache.store(index, sector, seq, 1);
        }
        assert_eq!(cache.committed(), BTreeMap::from([(8, 0), (16, 3)]));
    }
}
