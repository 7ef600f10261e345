//! Forebay as a library: open a stack of block targets from table text, submit to it, look at it,
//! close it.
//!
//! Whoever awaits gives each request its payload and gets it back with the result:
//!
//! ```
//! use forebay::block::Sector;
//! use forebay::{BufferPool, Engine, Payload, Reactor, Stack, engine};
//!
//! let reactor = Reactor::new(engine(Engine::Auto)?);
//! let pool = BufferPool::new(&reactor);
//! reactor.run(async {
//!     // 8 MiB of memory, cached in 4 MiB of memory.
//!     let stack = Stack::open(&reactor, &pool, "disk", "0 16384 writecache s ram:8M ram:4M 4096 0").await?;
//!
//!     let mut payload = Payload::of(&pool, &[4096])?;
//!     payload.fill(7);
//!     let (written, payload) = stack.write(Sector(8), payload).await;
//!     written?;
//!     assert_eq!(stack.dirty_bytes(), 4096);
//!
//!     stack.drain(std::time::Duration::from_secs(1), |_| {}).await?;
//!     assert_eq!(stack.dirty_bytes(), 0);
//!     stack.close().await?;
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Whoever blocks lends slices for the length of a call: see [`Disk`]. Below both are bios
//! ([`block`]), which [`Stack::table`] takes as it takes those of a frontend. A program to start from
//! is `examples/image_copy.rs`.
//!
//! Everything of a stack runs on one [`Reactor`], on one thread. The grammar of tables is in
//! [`text`]; frontends that serve a stack to clients are in `forebay_export`.
#![forbid(unsafe_code)]

mod assemble;
mod device;
mod image;
mod request;
mod side;
mod snapshots;
mod stack;
mod status;
pub mod text;

pub use forebay_block as block;
pub use forebay_device::{DeviceError, Direct, FileOptions};
pub use forebay_reactor::{Buffer, BufferPool, Engine, Reactor, engine};
pub use forebay_target::cache;
pub use forebay_target::clone;
pub use forebay_target::mirror::{LegStatus, MirrorStatus, ScrubReport};
pub use forebay_target::snapshot;
pub use forebay_target::stats::OpCounts;

pub use crate::device::{DeviceName, Devices, NameError, parse_bytes};
pub use crate::image::ImageFileError;
pub use crate::request::{Command, Disk, DiskError, DiskOptions, Payload, RequestError, Transfer};
pub use crate::side::{SideFile, known_as};
pub use crate::snapshots::ViewStatus;
pub use crate::stack::{DrainProgress, OpenError, Stack, StackError};
pub use crate::status::{CacheLayer, CloneLayer, CountedLayer, DeviceLayer, MirrorLayer, SnapshotLayer, StackStatus, ZramLayer};
pub use crate::text::{TableNames, TableText, TextError};

#[cfg(test)]
mod tests;
