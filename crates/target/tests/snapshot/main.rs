//! Snapshots over disks in memory: what reaches the disks, byte by byte, and what either side reads.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../support/mod.rs"]
mod support;

mod failing;
mod merging;
mod rig;
mod store;
mod views;
