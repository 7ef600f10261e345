//! Placeholder.

pub mod cache;
pub mod lock;
