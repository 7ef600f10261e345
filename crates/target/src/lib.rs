//! Targets: what stands between a table and its devices.
//!
//! ```text
//!   Table ─▶ linear · striped · delay · flakey · log-writes · stats · error · mirror · writecache · zram ·
//!             snapshot · snapshot-origin · snapshot-merge ─▶ device
//! ```
//!
//! Each small target is one file; the write cache is a folder, and its story begins in
//! [`cache`]. Data that moves between targets moves through [`copy`]. What comes before: `forebay-block`'s table. What comes after: `forebay-device`.

mod below;
pub mod cache;
pub mod clone;
pub mod copy;
pub mod delay;
pub mod error;
pub mod event;
pub mod flaky;
pub mod linear;
pub mod lock;
pub mod log;
pub mod mirror;
pub mod snapshot;
pub mod stats;
pub mod stripe;
pub mod zram;

pub use below::BuildError;
