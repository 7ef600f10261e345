//! Forebay as a library: open a stack of block targets from table text, submit to it, look at it,
//! close it.
//!
//! ```
//! use std::rc::Rc;
//!
//! use forebay::block::{Bio, Sector, call};
//! use forebay::{BufferPool, Engine, Reactor, Stack, engine};
//!
//! let reactor = Reactor::new(engine(Engine::Auto)?);
//! let pool = BufferPool::new(&reactor);
//! reactor.run(async {
//!     // 8 MiB of memory, cached in 4 MiB of memory.
//!     let stack = Stack::open(&reactor, &pool, "disk", "0 16384 writecache s ram:8M ram:4M 4096 0").await?;
//!
//!     let mut payload = pool.take(4096);
//!     payload.bytes_mut().fill(7);
//!     let bio = call(&**stack.table(), Bio::write(Sector(8), Rc::clone(payload.segments()), 0, 4096)).await;
//!     assert!(bio.status().is_ok());
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
//! Everything of a stack runs on one [`Reactor`], on one thread. The grammar of tables is in
//! [`text`]; frontends that serve a stack to clients are in `forebay_export`.
#![forbid(unsafe_code)]

mod assemble;
mod device;
mod stack;
mod status;
pub mod text;

pub use forebay_block as block;
pub use forebay_device::{DeviceError, Direct, FileOptions};
pub use forebay_reactor::{BufferPool, Engine, Reactor, engine};
pub use forebay_target::cache;
pub use forebay_target::stats::OpCounts;

pub use crate::device::{DeviceName, Devices, parse_bytes};
pub use crate::stack::{DrainProgress, OpenError, Stack, StackError};
pub use crate::status::{CacheLayer, CountedLayer, DeviceLayer, StackStatus, ZramLayer};
pub use crate::text::{TableText, TextError};

#[cfg(test)]
mod tests;
