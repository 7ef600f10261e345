//! What the write cache keeps on its fast device: the format, byte for byte, and its recovery.
//!
//! Everything here is a plain function from bytes to values or back, and so is the side file, which may
//! lie beside a cache. The reader of the device and the order of writes live in the layer above.

pub mod entry;
pub mod format;
pub mod recover;
mod sequences;
pub mod side;
mod sort;

pub use entry::{ENTRY_BYTES, Entry, SEQ_FREE};
pub use format::{FormatError, Geometry, Media, SUPERBLOCK_BYTES, Superblock};
pub use recover::{Damage, Flaw, Recovered, Recovery};
