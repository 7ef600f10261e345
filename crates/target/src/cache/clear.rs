//! Discards and write-zeroes: what supersedes cached copies without going through the cache.
//!
//! ```text
//!   lock the blocks ─▶ wait for writeback of them ─▶ new content durable on the origin
//!                   ─▶ drop the cached copies ─▶ their entries cleared durably ─▶ end
//! ```
//!
//! Invariants:
//! - I1: an entry is cleared only after the origin durably holds what is to be read then, so a crash
//!   at any point uncovers the old content or the new one, never something older.
//! - I2: older copies of dropped blocks that are still on media are cleared as well before the
//!   request ends, so that a later write past the cache cannot be hidden by one.
//! - I3: blocks covered only in part are zeroed through the cache, and not discarded at all.

use std::rc::Rc;

use forebay_block::{Ability, Bio, Extent, Flags, HeapMemory, Sector, SectorCount, Segments, Status, call};

use super::Cache;
use super::index::{OriginBlock, Phase, Piece};
use crate::lock::LockRange;

/// Bytes of zeroes that one request through the cache carries.
const ZERO_BYTES: u32 = 65_536;

impl Cache {
    /// Serves a discard.
    pub(super) async fn discard(self: Rc<Self>, bio: Bio) {
        self.count_discard(bio.bytes() / self.block_bytes());
        let (inner, outer) = self.blocks_of(&bio);
        let guard = self.locks.lock(LockRange::new(outer.start.0, outer.end.0 - outer.start.0)).await;
        self.writeback_left(&outer).await;
        let mut status = if self.failed.get() { Status::IoError } else { Status::Ok };
        if status.is_ok() && inner.start < inner.end {
            let dropped = self.state.borrow_mut().drop_range(inner);
            if dropped {
                status = self.commit_superseded().await;
            }
        }
        if status.is_ok() && self.origin.limits().discard != Ability::No {
            let below = bio.part(0, bio.bytes());
            self.origin.submit(below);
            status = bio.parts_done().await;
        }
        drop(guard);
        bio.end(status);
    }

    /// Serves a write of zeroes.
    pub(super) async fn write_zeroes(self: Rc<Self>, bio: Bio) {
        let (inner, _) = self.blocks_of(&bio);
        let block = self.block_bytes();
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        let inner_start = (inner.start.0 * block).clamp(start, end);
        let inner_end = (inner.end.0 * block).clamp(inner_start, end);
        let mut status = Status::Ok;
        if inner_start < inner_end {
            status = self.zero_blocks(&bio, inner_start, inner_end).await;
        }
        for (from, to) in [(start, inner_start), (inner_end, end)] {
            if status.is_ok() && from < to {
                status = self.zero_through_cache(from, to).await;
            }
        }
        if status.is_ok() && bio.flags().fua {
            status = self.commit().await.and(self.flush_origin().await);
        }
        self.end_or_hold(bio, status);
    }

    /// Zeroes whole blocks, from byte `from` to byte `to`, on the origin and drops their copies.
    async fn zero_blocks(&self, bio: &Bio, from: u64, to: u64) -> Status {
        if self.origin.limits().write_zeroes == Ability::No {
            return self.zero_through_cache(from, to).await;
        }
        let block = self.block_bytes();
        let blocks = OriginBlock(from / block)..OriginBlock(to / block);
        let guard = self.locks.lock(LockRange::new(blocks.start.0, blocks.end.0 - blocks.start.0)).await;
        self.writeback_left(&blocks).await;
        if self.failed.get() {
            return Status::IoError;
        }
        let extent = Extent::new(Sector(from >> 9), SectorCount((to - from) >> 9));
        let flags = Flags { no_unmap: bio.flags().no_unmap, ..Flags::default() };
        if self.holds_uncommitted(&blocks) {
            let status = self.commit_superseded().await;
            if !status.is_ok() {
                return status;
            }
        }
        let lost = self.origin_lost.get();
        let mut status = call(&*self.origin, Bio::write_zeroes(extent).with(flags)).await.status();
        self.note_bypassed();
        let cached = !matches!(self.state.borrow().map.pieces(blocks.clone()).next(), Some(Piece::Miss { count, .. }) if count == blocks.end.0 - blocks.start.0);
        if status.is_ok() && cached {
            status = self.flush_origin().await;
            if status.is_ok() && self.origin_lost.get() == lost {
                self.state.borrow_mut().drop_range(blocks);
                status = self.commit_superseded().await;
            }
        }
        if self.origin_lost.get() > lost {
            status = status.and(Status::IoError);
        }
        drop(guard);
        status
    }

    /// Whether a block of the range was written since the last commit. If such a block were dropped,
    /// a flush of somebody else that came between could succeed although an older copy on media
    /// still hides what replaces the block.
    fn holds_uncommitted(&self, blocks: &std::ops::Range<OriginBlock>) -> bool {
        let uncommitted = |piece| matches!(piece, Piece::Hit(hit) if hit.state.phase != Phase::Committed);
        self.state.borrow().map.pieces(blocks.clone()).any(uncommitted)
    }

    /// Zeroes bytes `from` to `to` by writes of zeroes like any other.
    async fn zero_through_cache(&self, from: u64, to: u64) -> Status {
        let segments = Segments::whole(Box::new(HeapMemory::new(ZERO_BYTES as usize, 4096)), ZERO_BYTES);
        let zeroes = segments.expect("64 KiB are neither empty nor too long");
        let mut at = from;
        while at < to {
            let bytes = u32::try_from((to - at).min(u64::from(ZERO_BYTES))).expect("at most 64 KiB");
            let write = Bio::write(Sector(at >> 9), Rc::clone(&zeroes), 0, bytes);
            let status = self.write_all(&write).await;
            write.end(status);
            if !status.is_ok() {
                return status;
            }
            at += u64::from(bytes);
        }
        Status::Ok
    }

    /// The blocks that a request covers whole, and those that it touches.
    fn blocks_of(&self, bio: &Bio) -> (std::ops::Range<OriginBlock>, std::ops::Range<OriginBlock>) {
        let block = self.block_bytes();
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        let inner = OriginBlock(start.div_ceil(block))..OriginBlock(end / block);
        let outer = OriginBlock(start / block)..OriginBlock(end.div_ceil(block));
        (inner, outer)
    }
}
