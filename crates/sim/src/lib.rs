//! The simulated world in which Forebay's targets are proven: never shipped.
//!
//! ```text
//!   cache/, clone/, copy/, mirror/, nbd/, served/, snapshot/, zram/ ── seeded requests ──▶ Target under test ──▶ world/ (disks, faults, power, time)
//!     │                                                     │
//!     └── check/ (what a read may return) ◀── crash, restart, read everything back
//! ```
//!
//! One seed is one run on one thread; everything in it follows from the seed, so that a failure is
//! replayed by its number alone.
#![forbid(unsafe_code)]

pub mod cache;
pub mod check;
pub mod clone;
pub mod copy;
mod draw;
pub mod enumerate;
pub mod mirror;
pub mod nbd;
pub mod only;
pub mod pair;
pub mod run;
pub mod served;
pub mod snapshot;
pub mod world;
pub mod zram;
