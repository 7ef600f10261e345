//! What flows through Forebay: bios, their segments, units, limits, targets and tables.
//!
//! ```text
//!   frontend ── Bio ──▶ Table ── split / remap ──▶ Target … ──▶ device
//!       ▲                                                         │
//!       └────────────────── Bio::end(status) ◀────────────────────┘
//! ```
//!
//! This crate does no I/O, knows no runtime and depends on no other crate of the project. A write
//! starts at [`Table`], is described by a [`Bio`], and its payload is an
//! immutable array of segments ([`Segments`]) over which only a small cursor
//! ([`BvecIter`]) moves.

#![deny(unsafe_code)]

pub mod allocation;
pub mod bio;
pub mod bvec;
pub mod limits;
pub mod replant;
pub mod split;
pub mod target;
pub mod unit;

pub use allocation::{Allocation, LookUp, Run};
pub use bio::{Bio, End, Flags, Op, Status, call, call_with};
pub use bvec::{BioVec, BvecIter, Common, HeapMemory, Loan, Memory, Segments, SharedMemory, Source, lend, lend_mut};
pub use limits::{Ability, Limits};
pub use target::{Row, Table, TableError, Target, flush, pass_flush};
pub use unit::{Extent, SECTOR_BYTES, Sector, SectorCount};
