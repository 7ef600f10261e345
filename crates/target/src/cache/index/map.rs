//! The extent map: which origin blocks are in the cache, and in which slots.
//!
//! ```text
//!   origin block   0    8         24   30        64
//!                  │miss│ slot 100+16 │miss│ slot 7+34 │ miss …      pieces(0..70)
//! ```
//!
//! 1. An origin block is in at most one slot.
//! 2. Extents that continue each other in origin block and slot and have equal states are joined, up
//!    to 65536 blocks each.
//! 3. Memory is about 18 bytes for each extent in random order and 16 in rising order; nothing is
//!    kept for blocks that are not cached.
//!
//! Units: ranges and counts are in cache blocks. Origin blocks are below [`ORIGIN_BLOCKS_MAX`], which
//! the caller checks when it opens the origin.
//!
//! Nothing here fails; an origin block out of range or an empty extent is a bug and panics.
//!
//! [`ORIGIN_BLOCKS_MAX`]: super::ORIGIN_BLOCKS_MAX

use std::ops::Range;

use super::chunk::{ENTRY_BLOCKS_MAX, Entry};
use super::tree::{Entries, Tree, TreeBuilder};
use super::{CacheSlot, CachedExtent, OriginBlock, State};

#[cfg(test)]
mod tests;

/// A part of a range: in the cache, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// These blocks are cached; clipped to the range.
    Hit(CachedExtent),
    /// These blocks are not.
    Miss {
        /// First block.
        origin: OriginBlock,
        /// Number of blocks, at least 1.
        count: u64,
    },
}

/// The map.
#[derive(Default)]
pub struct ExtentMap {
    tree: Tree,
    used: u64,
}

impl ExtentMap {
    /// A map of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Blocks in the map.
    #[must_use]
    pub fn used_blocks(&self) -> u64 {
        self.used
    }

    /// Extents in the map; one of more than 65536 blocks counts for several.
    #[must_use]
    pub fn extents(&self) -> u64 {
        self.tree.entries()
    }

    /// Bytes that the map has allocated, or a little more.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes()
    }

    /// The parts of `range` in order, without gaps.
    #[must_use]
    pub fn pieces(&self, range: Range<OriginBlock>) -> Pieces<'_> {
        Pieces { entries: self.tree.entries_from(range.start.0), next: range.start.0, end: range.end.0 }
    }

    /// The extent that holds `block`.
    #[must_use]
    pub fn get(&self, block: OriginBlock) -> Option<CachedExtent> {
        let entry = self.tree.entries_from(block.0).peek_below(block.0 + 1)?;
        (entry.origin() <= block.0).then(|| entry.extent())
    }

    /// Whole extents in order, from the one that holds `block` or the first behind it.
    #[must_use]
    pub fn extents_from(&self, block: OriginBlock) -> Extents<'_> {
        Extents(self.tree.entries_from(block.0))
    }

    /// The extent that holds `block`, or the first behind it.
    #[must_use]
    pub fn first_from(&self, block: OriginBlock) -> Option<CachedExtent> {
        self.extents_from(block).next()
    }

    /// Puts `extent` into the map. What it overlaps is cut out and pushed to `displaced`, in order.
    ///
    /// # Panics
    /// When the extent is empty, or reaches beyond the last possible origin block or slot.
    pub fn insert(&mut self, extent: CachedExtent, displaced: &mut Vec<CachedExtent>) {
        self.remove(extent.origin..extent.end(), displaced);
        self.used += u64::from(extent.count);
        for entry in entries(extent) {
            self.tree.put(entry);
        }
    }

    /// Takes all of `range` out of the map and pushes it to `removed`, in order.
    pub fn remove(&mut self, range: Range<OriginBlock>, removed: &mut Vec<CachedExtent>) {
        let used = &mut self.used;
        self.tree.cut(range.start.0, range.end.0, |entry| {
            *used -= u64::from(entry.count());
            removed.push(entry.extent());
        });
    }

    /// Takes the `count` blocks from `origin` on out of the map, but only those that still lie in the
    /// slots from `slot` on, and pushes them to `removed`, in order.
    pub fn remove_exact(&mut self, origin: OriginBlock, slot: CacheSlot, count: u32, removed: &mut Vec<CachedExtent>) {
        let end = origin.0 + u64::from(count);
        let mut next = origin.0;
        while let Some((_, entry)) = self.tree.find_shifted(next, end, shift(origin, slot)) {
            let part = entry.clipped(next, end);
            self.remove(OriginBlock(part.origin())..OriginBlock(part.end()), removed);
            next = part.end();
        }
    }

    /// Changes the state of the `count` blocks from `origin` on, but only of those that still lie in
    /// the slots from `slot` on: `change` gets each part's state and returns its new one.
    pub fn mark(&mut self, origin: OriginBlock, slot: CacheSlot, count: u32, mut change: impl FnMut(State) -> State) {
        let end = origin.0 + u64::from(count);
        let mut next = origin.0;
        while let Some((place, entry)) = self.tree.find_shifted(next, end, shift(origin, slot)) {
            let part = entry.clipped(next, end);
            next = part.end();
            let state = change(entry.state());
            if state == entry.state() {
                continue;
            }
            if part.count() == entry.count() {
                self.tree.change(place, part.with_state(state));
            } else {
                self.tree.cut(part.origin(), part.end(), |_| {});
                self.tree.put(part.with_state(state));
            }
        }
    }

    /// Checks every invariant of the tree below.
    #[cfg(test)]
    fn check(&self) {
        self.tree.check();
    }
}

/// Builds a map from extents in rising order, much faster than by insertion and without gaps in memory.
#[derive(Default)]
pub(in crate::cache) struct MapBuilder {
    tree: TreeBuilder,
    used: u64,
}

impl MapBuilder {
    /// A builder of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an extent behind all others; it joins the last one where it continues it.
    ///
    /// # Panics
    /// When the extent does not lie behind the last one, is empty, or reaches beyond the last possible
    /// origin block or slot.
    #[inline]
    pub fn push(&mut self, origin: u64, slot: u32, count: u32, state: State) {
        assert!(count > 0, "an extent has at least one block");
        self.used += u64::from(count);
        let mut done = 0;
        while done < count {
            let part = (count - done).min(ENTRY_BLOCKS_MAX);
            self.tree.push(origin + u64::from(done), slot + done, part, state);
            done += part;
        }
    }

    /// The map.
    #[must_use]
    pub fn finish(self) -> ExtentMap {
        ExtentMap { tree: self.tree.finish(), used: self.used }
    }
}

/// Slot minus origin block, which is equal for all blocks of an extent.
fn shift(origin: OriginBlock, slot: CacheSlot) -> u64 {
    u64::from(slot.0).wrapping_sub(origin.0)
}

/// The entries that make up an extent: one, unless it is longer than an entry can be.
fn entries(extent: CachedExtent) -> impl Iterator<Item = Entry> {
    assert!(extent.count > 0, "an extent has at least one block");
    (0..extent.count).step_by(ENTRY_BLOCKS_MAX as usize).map(move |skipped| {
        let count = (extent.count - skipped).min(ENTRY_BLOCKS_MAX);
        Entry::new(extent.origin.0 + u64::from(skipped), extent.slot.0 + skipped, count, extent.state)
    })
}

/// The parts of a range; see [`ExtentMap::pieces`].
#[derive(Clone)]
pub struct Pieces<'a> {
    entries: Entries<'a>,
    next: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.next >= self.end {
            return None;
        }
        let start = self.next;
        let entry = self.entries.peek_below(self.end);
        if let Some(entry) = entry.filter(|entry| entry.origin() <= start) {
            self.entries.next();
            let part = entry.clipped(start, self.end);
            self.next = part.end();
            return Some(Piece::Hit(part.extent()));
        }
        self.next = entry.map_or(self.end, |entry| entry.origin().min(self.end));
        Some(Piece::Miss { origin: OriginBlock(start), count: self.next - start })
    }
}

/// Whole extents in order; see [`ExtentMap::extents_from`].
#[derive(Clone)]
pub struct Extents<'a>(Entries<'a>);

impl Iterator for Extents<'_> {
    type Item = CachedExtent;

    fn next(&mut self) -> Option<CachedExtent> {
        self.0.next().map(Entry::extent)
    }
}
