//! Placeholder.

pub mod lock;
