//! Placeholder.

mod below;
pub mod cache;
pub mod delay;
pub mod error;
pub mod event;
pub mod flaky;
pub mod linear;
pub mod lock;
pub mod log;
pub mod stats;
pub mod stripe;

pub use below::BuildError;
