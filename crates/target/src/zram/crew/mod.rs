//! Large writes, compressed on several threads.
//!
//! ```text
//!   write of many pages ─▶ job: its pages are locked
//!       front: compressed here, page by page          back: copied into parcels ─▶ packers
//!       objects are kept by this thread alone ◀──────────── done parcels ◀─────────┘
//!       what no packer has begun is taken back
//! ```
//!
//! Invariants:
//! - I1: packers see nothing but the parcel that they were given, and own it meanwhile.
//! - I2: a change that overlaps a large write waits for it, and changes that overlap go in the order in
//!   which they came; so what is read after a write has ended is what it or a later one wrote.
//! - I3: the objects depend on the content alone, not on who made them or when.
//!
//! Small writes are compressed where they are submitted: to hand them over costs more than it saves.

pub mod parcel;
pub mod threads;
mod wide;

use std::rc::Rc;

pub use self::parcel::{Hand, Parcel};
pub use self::threads::PackerThreads;
pub(super) use self::wide::Wide;
use super::codec::Algorithm;
use crate::event::Event;

/// Whoever compresses parcels beside the thread of the disk. All calls are made on that thread.
pub trait Packers {
    /// Bytes from which on a write that is compressed so is worth several threads.
    fn least_bytes(&self, algorithm: Algorithm) -> u64;

    /// Whether one more parcel would not wait for long.
    fn has_room(&self) -> bool;

    /// Has somebody pack a parcel, now or later.
    fn give(&self, parcel: Parcel);

    /// A parcel that came back, packed or as it was.
    fn take(&self) -> Option<Parcel>;

    /// A parcel that nobody has begun to pack.
    fn take_back(&self) -> Option<Parcel>;

    /// Whether nothing came back so far. Only then what comes next raises the event.
    fn will_tell(&self) -> bool;

    /// What is raised when a parcel came back, where that was asked for.
    fn came_back(&self) -> Rc<Event>;
}

#[cfg(test)]
mod tests;
