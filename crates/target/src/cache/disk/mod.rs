//!
//! Everything here is a plain function from bytes to values or back. The reader of the device and
//! the order of writes live in the layer above.

pub mod entry;
pub mod format;

pub use entry::{ENTRY_BYTES, Entry, SEQ_FREE};
pub use format::{FormatError, Geometry, Media, SUPERBLOCK_BYTES, Superblock};
