//! The behaviours of a write cache that speaks dm-writecache's format, each a test of its name. Those
//! in which the kernel's own cache is wrong are marked as deviations.

#[path = "../support/mod.rs"]
mod support;

mod commit;
mod format;
mod write;
mod writeback;
