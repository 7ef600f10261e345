//! What the write cache promises beyond the format's family: costs, order, failures and limits.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod batching;
mod errors;
mod metadata;
mod order;
mod origin_errors;
mod partial;
mod supersede;
