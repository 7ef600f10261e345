//! Frontends that serve a table to clients. Today there is one: NBD.
//!
//! ```text
//!   client ──▶ serve: sockets, buffers, bios ──▶ Target::submit
//!                │ asks
//!                ▼
//!              forebay_nbd: what the bytes mean
//! ```
//!
//! 1. What a client sends never makes the server panic or give out memory that was not filled for
//!    that client.
#![forbid(unsafe_code)]

pub mod serve;
pub mod unix;

pub use forebay_nbd as nbd;
pub use forebay_nbd::uri;
