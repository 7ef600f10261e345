//! The behaviours of a write cache that speaks dm-writecache's format, each a test of its name. Those
//! in which the kernel's own cache is wrong are marked as deviations.

#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

#[path = "../support/mod.rs"]
mod support;

mod commit;
mod format;
mod write;
mod writeback;
