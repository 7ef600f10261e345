//! The bottom of a stack: files and block devices, servers far away, memory, and nothing at all.
//!
//! A device takes bios of its own sectors from whatever stands above it, and makes requests of its
//! reactor from them. What comes before: the last target of a table. What comes after:
//! `forebay_reactor`, and there the plug.
#![forbid(unsafe_code)]

mod error;
mod file;
mod nbd;
mod null;
mod ram;

pub use error::DeviceError;
pub use file::{Direct, FileDevice, FileOptions, open_alone};
pub use nbd::{NbdDevice, NbdError, NbdOptions};
pub use null::NullDevice;
pub use ram::RamDevice;

use forebay_block::{Bio, Extent, Sector, SectorCount};

/// Whether `bio` lies inside a device of `sectors`.
fn inside(sectors: SectorCount, bio: &Bio) -> bool {
    Extent::new(Sector(0), sectors).contains(bio.extent())
}
