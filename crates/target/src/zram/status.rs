//! What a compressed RAM disk tells about itself.

use std::cell::Cell;

use super::Zram;
use super::backing::Backing;
use super::backing::blocks::Blocks;
use super::codec::Algorithm;
use super::memory::PAGE;

/// A snapshot of the counters. Sizes are bytes; the first eight numbers mean what they mean in the
/// kernel's `mm_stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZramStatus {
    /// Size of the disk.
    pub disk_bytes: u64,
    /// How pages are compressed.
    pub algorithm: Algorithm,
    /// Stored pages, uncompressed.
    pub original_bytes: u64,
    /// Their objects in memory.
    pub compressed_bytes: u64,
    /// Pages of memory for the objects: the kernel's third column.
    pub used_bytes: u64,
    /// Most that may be used; 0 for any.
    pub limit_bytes: u64,
    /// Most that was used.
    pub used_max_bytes: u64,
    /// Pages that repeat one word.
    pub same_pages: u64,
    /// Pages that are kept as they are, now.
    pub huge_pages: u64,
    /// Pages that were ever kept as they are.
    pub huge_pages_since: u64,
    /// All memory taken: for objects, with room to grow, and for every table.
    pub memory_bytes: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed.
    pub failed_writes: u64,
    /// Pages freed by discards and write-zeroes.
    pub freed_pages: u64,
    /// Pages whose object another codec than the first made, now.
    pub recompressed_pages: u64,
    /// Pages on which another codec was tried.
    pub recompress_tries: u64,
    /// Bytes that objects became smaller by that.
    pub recompress_saved_bytes: u64,
    /// Blocks of the backing device in use.
    pub backing_blocks: u64,
    /// Pages read from the backing device.
    pub backing_reads: u64,
    /// Requests that read them; for what was read ahead there is none.
    pub backing_read_requests: u64,
    /// Pages that came back into memory because they were read.
    pub backing_promoted: u64,
    /// Freed blocks that were discarded.
    pub backing_discards: u64,
    /// Blocks of 4096 bytes written to it.
    pub backing_writes: u64,
    /// Pages that left memory by that.
    pub backing_left: u64,
    /// Requests that wrote them.
    pub backing_requests: u64,
}

impl ZramStatus {
    /// The kernel's `mm_stat`, without the line's end. No page is ever moved by compaction: nothing
    /// lies empty between objects.
    #[must_use]
    pub fn mm_stat(&self) -> String {
        let numbers = [
            self.original_bytes,
            self.compressed_bytes,
            self.used_bytes,
            self.limit_bytes,
            self.used_max_bytes,
            self.same_pages,
            0,
            self.huge_pages,
            self.huge_pages_since,
        ];
        padded(&numbers)
    }

    /// The kernel's `io_stat`, without the line's end.
    #[must_use]
    pub fn io_stat(&self) -> String {
        padded(&[self.failed_reads, self.failed_writes, 0, self.freed_pages])
    }

    /// The kernel's `bd_stat`, without the line's end: blocks in use, pages read, blocks written.
    #[must_use]
    pub fn bd_stat(&self) -> String {
        padded(&[self.backing_blocks, self.backing_reads, self.backing_writes])
    }
}

/// Numbers as the kernel prints them: each 8 wide, with a space between.
fn padded(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(|number| format!("{number:>8}")).collect();
    words.join(" ")
}

impl Zram {
    /// What it holds and did so far.
    #[must_use]
    pub fn status(&self) -> ZramStatus {
        let pages = self.pages.borrow();
        let (counts, page) = (pages.counts, PAGE as u64);
        let backed = |counter: fn(&Backing) -> &Cell<u64>| self.backing.as_ref().map_or(0, |backing| counter(backing).get());
        ZramStatus {
            disk_bytes: self.sectors.to_bytes(),
            algorithm: pages.algorithm(),
            original_bytes: counts.stored * page,
            compressed_bytes: counts.compressed_bytes,
            used_bytes: pages.frames_used() * page,
            limit_bytes: pages.frames_limit.unwrap_or(0) * page,
            used_max_bytes: counts.frames_max * page,
            same_pages: counts.same,
            huge_pages: counts.huge,
            huge_pages_since: counts.huge_ever,
            memory_bytes: pages.memory_bytes() + self.backing.as_ref().map_or(0, Backing::memory_bytes),
            failed_reads: self.counts.failed_reads.get(),
            failed_writes: self.counts.failed_writes.get(),
            freed_pages: self.counts.freed_pages.get(),
            recompressed_pages: counts.recompressed.iter().sum(),
            recompress_tries: counts.recompress_tries,
            recompress_saved_bytes: counts.recompress_saved_bytes,
            backing_blocks: pages.blocks.as_ref().map_or(0, Blocks::used),
            backing_reads: backed(|backing| &backing.reads),
            backing_read_requests: backed(|backing| &backing.read_requests),
            backing_promoted: backed(|backing| &backing.promoted),
            backing_discards: backed(|backing| &backing.discards),
            backing_writes: backed(|backing| &backing.writes),
            backing_left: backed(|backing| &backing.left),
            backing_requests: backed(|backing| &backing.requests),
        }
    }
}
