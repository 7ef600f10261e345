//! Reads: cached runs from the fast device, the rest from the origin, one request for each run.
//!
//! Follow a read: `block/target.rs` → here → the device. A run of consecutive slots is one request
//! whatever extents it is made of. A failed read of the cache fails; it is never answered from the
//! origin, whose copy may be older.
//!
//! I1: slots that a read looked up are not used for anything else before the read ended.

use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Sector, SectorCount};

use super::Cache;
use super::index::{CacheSlot, OriginBlock, Piece};

/// Where a run of a read comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Fast(CacheSlot),
    Origin,
}

impl Cache {
    /// Serves a read.
    pub(super) async fn read(self: Rc<Self>, bio: Bio) {
        let half = self.state.borrow_mut().reader_began();
        self.send_runs(&bio);
        let status = bio.parts_done().await;
        self.reader_ended(half);
        bio.end(status);
    }

    /// The read is over; slots that waited for it may be free now.
    pub(super) fn reader_ended(&self, half: usize) {
        let freed = self.state.borrow_mut().reader_ended(half);
        if freed {
            self.space.raise();
        }
    }

    fn send_runs(&self, bio: &Bio) {
        let block = self.block_bytes();
        let start = bio.sector().to_bytes();
        let end = start + bio.bytes();
        let range = OriginBlock(start / block)..OriginBlock(end.div_ceil(block));
        let mut run: Option<(Source, u64, u64)> = None;
        let mut next = range.start;
        while next < range.end {
            let piece = self.state.borrow().map.pieces(next..range.end).next().expect("a range that is not empty has a piece");
            let (source, origin, count) = match piece {
                Piece::Hit(hit) if self.settings.extend => (Source::Fast(hit.slot), hit.origin, u64::from(hit.count)),
                Piece::Hit(hit) => (Source::Fast(hit.slot), hit.origin, 1),
                Piece::Miss { origin, count } => (Source::Origin, origin, count),
            };
            let (from, to) = ((origin.0 * block).max(start), ((origin.0 + count) * block).min(end));
            self.count_read(source != Source::Origin, count);
            run = match run {
                Some((first, run_from, run_to)) if self.settings.extend && self.continues(first, run_from, source, origin) => {
                    debug_assert_eq!(run_to, from, "pieces adjoin");
                    Some((first, run_from, to))
                }
                other => {
                    if let Some(done) = other {
                        self.send_run(bio, done);
                    }
                    Some((source, from, to))
                }
            };
            next = OriginBlock(origin.0 + count);
        }
        if let Some(last) = run {
            self.send_run(bio, last);
        }
    }

    /// Whether a piece lies right behind the run that began at byte `run_from` from `first`.
    fn continues(&self, first: Source, run_from: u64, source: Source, origin: OriginBlock) -> bool {
        match (first, source) {
            (Source::Fast(head), Source::Fast(slot)) => {
                let blocks = origin.0 - run_from / self.block_bytes();
                u64::from(head.0) + blocks == u64::from(slot.0)
            }
            (Source::Origin, Source::Origin) => true,
            (Source::Fast(_), Source::Origin) | (Source::Origin, Source::Fast(_)) => false,
        }
    }

    /// Tells which sectors are data: those of cached blocks, whatever they hold, and for the rest what
    /// the origin says. A block leaves the index only when its content is on the origin.
    pub(super) fn tell_allocation(&self, extent: Extent, out: &mut Allocation) {
        let block = u64::from(self.geometry.block_sectors());
        let range = OriginBlock(extent.start.0 / block)..OriginBlock(extent.end().0.div_ceil(block));
        let state = self.state.borrow();
        for piece in state.map.pieces(range) {
            if out.is_full() {
                break;
            }
            let (origin, count) = match piece {
                Piece::Hit(hit) => (hit.origin, u64::from(hit.count)),
                Piece::Miss { origin, count } => (origin, count),
            };
            let start = Sector(origin.0 * block).max(extent.start);
            let end = Sector((origin.0 + count) * block).min(extent.end());
            let part = Extent::new(start, end.since(start).expect("pieces lie in the range"));
            match piece {
                Piece::Hit(_) => out.data(part.count),
                Piece::Miss { .. } => out.below(&*self.origin, part),
            }
        }
    }

    fn send_run(&self, bio: &Bio, (source, from, to): (Source, u64, u64)) {
        let part = bio.part(from - bio.sector().to_bytes(), to - from);
        match source {
            Source::Origin => self.origin.submit(part),
            Source::Fast(slot) => {
                let inside = SectorCount((from % self.block_bytes()) >> 9);
                let sector: Sector = self.geometry.slot_sector(slot) + inside;
                self.fast.submit(part.remap(sector));
            }
        }
    }
}
