//! What one commit writes: any number of new entries, over any number of areas.
//!
//! ```text
//!   entries so far ──┐                area a            area a+1          area a+2          area a+3
//!                    ▼                │■■■■■■■■■■■□□□□□│ │□□□□□□□□□□□□□□□□│ │□□□□□           │ │               │
//!   before     the data of the new entries is durable; areas from a+1 on, as far as they are needed and
//!              the one in which the list ends, are durably zeroes
//!   ①          the blocks in which entries are new, and zeroes into areas that will be needed next
//!   ②  flush   the new entries are durable
//! ```
//!
//! Invariants:
//! - I1: the area of the present [`Position`] is never full, and behind its entries it is zeroes on disk.
//!   So a reader stops there.
//! - I2: whatever of step ① is on disk, the list ends in front of the first block that is missing: its
//!   old content is zeroes behind the entries that were there. All entries in front of that have their
//!   data, so any number of them is right.
//!
//! Units: entries; byte offsets on the device.

#![deny(clippy::indexing_slicing)]

use super::format::{ENTRY_BYTES, Exception, Layout};

/// Unit of metadata writes, bytes, where the chunk is not smaller and the device's block not larger.
const BLOCK_BYTES: u64 = 4096;

/// Where the next entry goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Area.
    pub area: u64,
    /// Entries in it.
    pub filled: u64,
}

/// Bytes to be written: entries, then zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset on the device, bytes.
    pub offset: u64,
    /// Length, bytes: whole blocks.
    pub bytes: u64,
    /// The entries at its start.
    pub entries: Vec<Exception>,
}

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Step ①, the entries.
    pub pieces: Vec<Piece>,
    /// Where the next entry goes then.
    pub position: Position,
    /// The entries of the last block, which the next commit writes again.
    pub tail: Vec<Exception>,
}

/// Unit of metadata writes of a store, bytes.
#[must_use]
pub fn block_bytes(layout: Layout, logical_bytes: u32) -> u64 {
    BLOCK_BYTES.max(u64::from(logical_bytes)).min(layout.chunk_bytes())
}

/// The byte offset of an area's entry.
#[must_use]
pub fn entry_offset(layout: Layout, at: Position) -> u64 {
    layout.sector(layout.area_chunk(at.area)).to_bytes() + at.filled * ENTRY_BYTES as u64
}

/// A whole area of zeroes.
#[must_use]
pub fn blank_area(layout: Layout, area: u64) -> Piece {
    Piece { offset: entry_offset(layout, Position { area, filled: 0 }), bytes: layout.chunk_bytes(), entries: Vec::new() }
}

/// Plans the commit of `new` behind `position`; `tail` are the entries that the block there has already.
///
/// # Panics
/// When `new` is empty, or `tail` is not what stands in that block.
#[must_use]
pub fn plan(layout: Layout, block: u64, position: Position, tail: &[Exception], new: &[Exception]) -> Round {
    assert!(!new.is_empty(), "a commit is of something");
    let (per_area, per_block) = (layout.area_entries(), block / ENTRY_BYTES as u64);
    assert!(position.filled < per_area, "the present area has room (I1)");
    let in_block = position.filled % per_block;
    assert!(tail.len() as u64 == in_block, "the tail is what the last block holds");
    let room = usize::try_from(per_area - position.filled).unwrap_or(usize::MAX);
    let (here, mut rest) = new.split_at(room.min(new.len()));
    let start = Position { filled: position.filled - in_block, ..position };
    let entries: Vec<Exception> = tail.iter().chain(here).copied().collect();
    let bytes = (entries.len() as u64).div_ceil(per_block) * block;
    let mut end = Position { filled: position.filled + here.len() as u64, ..position };
    let mut last = entries.clone();
    let mut pieces = vec![Piece { offset: entry_offset(layout, start), bytes, entries }];
    while end.filled == per_area {
        end = Position { area: end.area + 1, filled: 0 };
        let most = usize::try_from(per_area).unwrap_or(usize::MAX);
        let (here, left) = rest.split_at(most.min(rest.len()));
        rest = left;
        last = here.to_vec();
        end.filled = here.len() as u64;
        let bytes = end.filled.div_ceil(per_block) * block;
        if bytes > 0 {
            pieces.push(Piece { entries: here.to_vec(), bytes, ..blank_area(layout, end.area) });
        }
    }
    let tail_length = usize::try_from(end.filled % per_block).unwrap_or(0);
    let tail = last.split_off(last.len().saturating_sub(tail_length));
    Round { pieces, position: end, tail }
}

/// What takes entries off the end of the list again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retreat {
    /// Blocks to be written, from the end of the list to its front.
    pub pieces: Vec<Piece>,
    /// Where the next entry goes then.
    pub position: Position,
    /// The entries of the last block.
    pub tail: Vec<Exception>,
}

/// Plans to clear everything in front of `position` but `kept`, which are all entries that stay.
/// Written from the end of the list, no piece leaves entries behind the end.
#[must_use]
pub fn retreat(layout: Layout, block: u64, position: Position, kept: &[Exception]) -> Retreat {
    let (per_area, per_block) = (layout.area_entries(), block / ENTRY_BYTES as u64);
    let count = kept.len() as u64;
    let end = Position { area: count / per_area, filled: count % per_area };
    let tail_length = usize::try_from(end.filled % per_block).unwrap_or(0);
    let (_, tail) = kept.split_at(kept.len() - tail_length);
    let mut pieces = Vec::new();
    for area in (end.area..=position.area).rev() {
        let used = if area == position.area { position.filled } else { per_area };
        let first = if area == end.area { end.filled - tail_length as u64 } else { 0 };
        let entries = if area == end.area { tail.to_vec() } else { Vec::new() };
        let bytes = used.saturating_sub(first).div_ceil(per_block) * block;
        if bytes > 0 {
            pieces.push(Piece { offset: entry_offset(layout, Position { area, filled: first }), bytes, entries });
        }
    }
    Retreat { pieces, position: end, tail: tail.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceptions(first: u64, count: u64) -> Vec<Exception> {
        (first..first + count).map(|number| Exception { old: number * 3, new: number + 2 }).collect()
    }

    #[test]
    fn a_few_entries_are_one_block() {
        let layout = Layout::new(64);
        let round = plan(layout, 4096, Position::default(), &[], &exceptions(0, 3));
        let piece = Piece { offset: 32_768, bytes: 4096, entries: exceptions(0, 3) };
        let position = Position { area: 0, filled: 3 };
        assert_eq!(round, Round { pieces: vec![piece], position, tail: exceptions(0, 3) });
        let next = plan(layout, 4096, position, &round.tail, &exceptions(3, 300));
        assert_eq!(next.pieces, [Piece { offset: 32_768, bytes: 8192, entries: exceptions(0, 303) }]);
        assert_eq!((next.position.filled, next.tail), (303, exceptions(256, 47)));
        let third = plan(layout, 4096, next.position, &exceptions(256, 47), &exceptions(303, 1));
        assert_eq!(third.pieces, [Piece { offset: 32_768 + 4096, bytes: 4096, entries: exceptions(256, 48) }]);
    }

    #[test]
    fn entries_go_on_in_the_next_areas() {
        let layout = Layout::new(8);
        let full = plan(layout, 4096, Position::default(), &[], &exceptions(0, 256));
        assert_eq!((full.position, full.tail.len(), full.pieces.len()), (Position { area: 1, filled: 0 }, 0, 1));
        let more = plan(layout, 4096, Position { area: 0, filled: 250 }, &exceptions(0, 250), &exceptions(250, 600));
        let pieces: Vec<_> = more.pieces.iter().map(|piece| (piece.offset / 4096, piece.bytes, piece.entries.len())).collect();
        assert_eq!(pieces, [(1, 4096, 256), (258, 4096, 256), (515, 4096, 256), (772, 4096, 82)]);
        assert_eq!((more.position, more.tail), (Position { area: 3, filled: 82 }, exceptions(768, 82)));
    }

    #[test]
    fn entries_leave_from_the_end() {
        let layout = Layout::new(8);
        let back = retreat(layout, 4096, Position { area: 2, filled: 5 }, &exceptions(0, 250));
        let pieces: Vec<_> = back.pieces.iter().map(|piece| (piece.offset / 4096, piece.bytes, piece.entries.len())).collect();
        assert_eq!(pieces, [(515, 4096, 0), (258, 4096, 0), (1, 4096, 250)]);
        assert_eq!((back.position, back.tail), (Position { area: 0, filled: 250 }, exceptions(0, 250)));
        let whole = retreat(layout, 4096, Position { area: 1, filled: 0 }, &exceptions(0, 255));
        assert_eq!((whole.pieces.len(), whole.position), (1, Position { area: 0, filled: 255 }));
        let large = retreat(Layout::new(64), 4096, Position { area: 0, filled: 600 }, &exceptions(0, 300));
        let piece = Piece { offset: 32_768 + 4096, bytes: 8192, entries: exceptions(256, 44) };
        assert_eq!((large.pieces, large.tail), (vec![piece], exceptions(256, 44)));
        let all = retreat(layout, 4096, Position { area: 0, filled: 3 }, &[]);
        assert_eq!((all.pieces, all.position), (vec![blank_area(layout, 0)], Position::default()));
    }

    #[test]
    fn blocks_are_no_larger_than_chunks() {
        assert_eq!(block_bytes(Layout::new(1), 512), 512);
        assert_eq!(block_bytes(Layout::new(64), 512), 4096);
        assert_eq!(block_bytes(Layout::new(64), 16_384), 16_384);
    }
}
