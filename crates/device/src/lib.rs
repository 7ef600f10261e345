//! The bottom of a stack: files and block devices.
//!
//! A device takes bios of its own sectors from whatever stands above it, and makes requests of its
//! reactor from them. What comes before: the last target of a table. What comes after:
//! `forebay_reactor`, and there the plug.
#![forbid(unsafe_code)]

mod error;
mod file;

pub use error::DeviceError;
pub use file::{Direct, FileDevice, FileOptions};
