//! What the write cache knows in memory: which origin block lies in which slot, and which slots are
//! free. Plain structures, both by runs, so that a sequentially filled cache costs next to nothing.
//!
//! ```text
//!   origin blocks  ──▶ ExtentMap ──▶ slots in use          FreeSpace ──▶ slots not in use
//! ```
//!
//! Together they take at most 32 bytes for each block of the cache, whatever its state.

pub mod age;
pub mod alloc;
pub(in crate::cache) mod bits;
mod chunk;
pub mod map;
mod tree;

pub use alloc::{FreeSpace, SlotRun};
pub use map::{ExtentMap, Extents, Piece, Pieces};

/// Index of a cache block on the origin, in units of the cache's block size; below 2^48.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginBlock(pub u64);

/// Index of a cache block on the fast device, in units of the cache's block size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheSlot(pub u32);

/// Origin blocks from this one on do not fit the index; a cache over a larger origin is refused
/// before it opens (at 512-byte blocks that is an origin of 128 PiB).
pub const ORIGIN_BLOCKS_MAX: u64 = 1 << 48;

/// How far a block has come on its way to being durable in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// In the group that still collects blocks.
    #[default]
    Open,
    /// In the group that is being committed.
    Closing,
    /// Its entry is durable.
    Committed,
}

/// What the index remembers of an extent besides its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State {
    /// How far it has come.
    pub phase: Phase,
    /// In writeback.
    pub busy: bool,
}

/// A run of origin blocks that lie in a run of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedExtent {
    /// First block on the origin.
    pub origin: OriginBlock,
    /// Slot of the first block; the others follow.
    pub slot: CacheSlot,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// The same for all of them.
    pub state: State,
}

impl CachedExtent {
    /// The origin block behind the last one.
    #[must_use]
    pub fn end(&self) -> OriginBlock {
        OriginBlock(self.origin.0 + u64::from(self.count))
    }

    /// The slots, as a run.
    #[must_use]
    pub fn slots(&self) -> SlotRun {
        SlotRun { slot: self.slot, count: self.count }
    }
}
