//! The oracle: what a read may return, now and after a crash.
//!
//! ```text
//!   sector 7:  v3 ── v5 ── v8 ── v9      a read issued now: v9, or v8 while v9 is in flight
//!                    │                   after a crash: v5 or any later one (in place)
//!                 flushed
//! ```
//!
//! Two oracles share the history of requests ([`Model`]):
//!
//! - *in place*, always: after a crash each sector holds its last durable version or any that was
//!   issued later, in any order; never another sector's data.
//! - *groups*, where every write went through the cache and none overwrites a committed block
//!   ([`Model::set_atomic`]): each cache block is old or new, never a mix; and if a write survived,
//!   so did all that had been acknowledged before it was issued: what is lost is the newest.
//!
//! After a power cut and a successful check the set of each sector collapses to what was read: it is
//! durable by then. After a kill it is only what reads return; a later power cut may still take it.
//!
//! A trimmed sector reads as anything that was ever written to it, or zeroes, until it is written
//! again. A failed write leaves each of its sectors old or new until it is written again.

mod groups;
mod history;
mod model;
mod stamp;

use std::fmt;

pub(crate) use history::Tick;
pub use history::{Act, OpId};
pub use model::Model;
pub use stamp::{Found, inspect, stamp};
pub(crate) use stamp::{POISON, SECTOR};

/// Data that nobody may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where.
    pub sector: u64,
    /// What was found, what would have been right, and by which rule.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}: {}", self.sector, self.reason)
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests;
