//! The building blocks of the extent map: entries of 16 bytes in small sorted chunks.
//!
//! ```text
//!   entry   u64: origin block (48 bits) │ count - 1 (16 bits)   u32: slot   u32: busy │ phase (2)
//! ```
//!
//! 1. A chunk's room is a multiple of [`STEP`] entries and never more than `STEP` beyond its length.
//! 2. Chunks that come and go are taken from a few spare ones, so that a map which only changes does
//!    not allocate.
//!
//! Units: counts are blocks, room is in entries.

use super::{CacheSlot, CachedExtent, ORIGIN_BLOCKS_MAX, OriginBlock, Phase, State};

/// Most entries of a chunk.
pub(super) const CHUNK_MAX: usize = 128;
/// Below this many entries a chunk looks for a neighbour to join.
pub(super) const CHUNK_MIN: usize = 32;
/// Entries by which a chunk's room grows and shrinks.
const STEP: usize = 16;
/// Chunks kept for later, for each size of room.
const SPARE_MAX: usize = 8;
/// Most blocks of an entry.
pub(super) const ENTRY_BLOCKS_MAX: u32 = 1 << 16;

const _: () = assert!(size_of::<Entry>() == 16);
const _: () = assert!(CHUNK_MAX.is_multiple_of(STEP));

/// An extent of at most [`ENTRY_BLOCKS_MAX`] blocks, packed.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    origin_count: u64,
    slot: u32,
    tag: u32,
}

impl Entry {
    #[inline]
    pub(super) fn new(origin: u64, slot: u32, count: u32, state: State) -> Self {
        assert!(origin < ORIGIN_BLOCKS_MAX, "origin block {origin} is beyond the index");
        assert!((1..=ENTRY_BLOCKS_MAX).contains(&count), "an entry of {count} blocks");
        Self { origin_count: origin << 16 | u64::from(count - 1), slot, tag: pack(state) }
    }

    #[inline]
    pub(super) fn origin(self) -> u64 {
        self.origin_count >> 16
    }

    #[inline]
    pub(super) fn count(self) -> u32 {
        (self.origin_count & 0xffff) as u32 + 1
    }

    #[inline]
    pub(super) fn end(self) -> u64 {
        self.origin() + u64::from(self.count())
    }

    pub(super) fn state(self) -> State {
        unpack(self.tag)
    }

    /// Slot minus origin block, which is what two extents that continue each other share.
    #[inline]
    pub(super) fn shift(self) -> u64 {
        u64::from(self.slot).wrapping_sub(self.origin())
    }

    /// Whether `next` continues this entry and both fit one.
    #[inline]
    pub(super) fn joins(self, next: Self) -> bool {
        self.end() == next.origin()
            && self.shift() == next.shift()
            && self.tag == next.tag
            && self.count() + next.count() <= ENTRY_BLOCKS_MAX
    }

    /// This entry made longer by `blocks`.
    #[inline]
    pub(super) fn grown(self, blocks: u32) -> Self {
        assert!(self.count() + blocks <= ENTRY_BLOCKS_MAX, "an entry outgrows its count");
        Self { origin_count: self.origin_count + u64::from(blocks), ..self }
    }

    /// The part of this entry in `start..end`, which must not be empty.
    pub(super) fn clipped(self, start: u64, end: u64) -> Self {
        let start = start.max(self.origin());
        let end = end.min(self.end());
        assert!(start < end, "a clipped entry keeps at least one block");
        let skipped = ((start - self.origin()) & 0xffff) as u32;
        let last = (end - start - 1) & 0xffff;
        Self { origin_count: start << 16 | last, slot: self.slot + skipped, tag: self.tag }
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Self { tag: pack(state), ..self }
    }

    pub(super) fn extent(self) -> CachedExtent {
        CachedExtent { origin: OriginBlock(self.origin()), slot: CacheSlot(self.slot), count: self.count(), state: self.state() }
    }
}

#[inline]
fn pack(state: State) -> u32 {
    let phase = match state.phase {
        Phase::Open => 0,
        Phase::Closing => 1,
        Phase::Committed => 2,
    };
    u32::from(state.busy) << 2 | phase
}

fn unpack(tag: u32) -> State {
    let phase = match tag & 3 {
        0 => Phase::Open,
        1 => Phase::Closing,
        _ => Phase::Committed,
    };
    State { phase, busy: tag & 4 != 0 }
}

/// A sorted run of entries, never empty inside a map.
pub(super) type Chunk = Vec<Entry>;

/// Number of entries in `chunk` that begin at or in front of `origin`.
pub(super) fn begun(chunk: &[Entry], origin: u64) -> usize {
    chunk.partition_point(|entry| entry.origin() <= origin)
}

/// Chunks not in use, and the count of all room there is.
#[derive(Default)]
pub(super) struct Spare {
    by_room: [Vec<Chunk>; CHUNK_MAX / STEP],
    room: usize,
}

impl Spare {
    /// Entries for which there is room, in chunks in use and in spare ones.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// Bytes of the lists of spare chunks.
    pub(super) fn list_bytes(&self) -> usize {
        self.by_room.iter().map(Vec::capacity).sum::<usize>() * size_of::<Chunk>()
    }

    /// An empty chunk with room for `len` entries.
    pub(super) fn take(&mut self, len: usize) -> Chunk {
        let steps = len.div_ceil(STEP).max(1);
        if let Some(chunk) = self.by_room[steps - 1].pop() {
            return chunk;
        }
        self.room += steps * STEP;
        Vec::with_capacity(steps * STEP)
    }

    /// Gives an unused chunk back.
    pub(super) fn give(&mut self, mut chunk: Chunk) {
        chunk.clear();
        let spare = &mut self.by_room[chunk.capacity() / STEP - 1];
        if spare.len() < SPARE_MAX {
            if spare.capacity() == 0 {
                spare.reserve_exact(SPARE_MAX);
            }
            spare.push(chunk);
        } else {
            self.room -= chunk.capacity();
        }
    }

    /// Inserts into a chunk that is not full, growing its room when needed.
    pub(super) fn insert(&mut self, chunk: &mut Chunk, at: usize, entry: Entry) {
        assert!(chunk.len() < CHUNK_MAX, "a full chunk is split before an insertion");
        if chunk.len() == chunk.capacity() {
            self.fit(chunk, chunk.len() + 1);
        }
        chunk.insert(at, entry);
    }

    /// Gives room back after a removal.
    pub(super) fn shrink(&mut self, chunk: &mut Chunk) {
        if chunk.capacity() - chunk.len() > STEP {
            self.fit(chunk, chunk.len());
        }
    }

    /// Moves the entries from `at` on into a new chunk.
    pub(super) fn split_off(&mut self, chunk: &mut Chunk, at: usize) -> Chunk {
        let mut right = self.take(chunk.len() - at);
        right.extend_from_slice(&chunk[at..]);
        chunk.truncate(at);
        self.shrink(chunk);
        right
    }

    /// Puts the entries of `right` behind those of `left`.
    pub(super) fn append(&mut self, left: &mut Chunk, right: Chunk) {
        if left.len() + right.len() > left.capacity() {
            self.fit(left, left.len() + right.len());
        }
        left.extend_from_slice(&right);
        self.give(right);
    }

    /// Moves `chunk` into the smallest room for `len` entries.
    fn fit(&mut self, chunk: &mut Chunk, len: usize) {
        let mut fitting = self.take(len);
        fitting.extend_from_slice(chunk);
        self.give(std::mem::replace(chunk, fitting));
    }
}
