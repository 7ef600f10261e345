//! Frontends that serve a table to clients. Today there is one: NBD.
//!
//! ```text
//!   client ──▶ serve: sockets, buffers, bios ──▶ Target::submit
//!                │ asks
//!                ▼
//!              nbd: what the bytes mean
//! ```
//!
//! 1. What a client sends never makes the server panic or give out memory that was not filled for
//!    that client.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod serve;
pub mod unix;
pub mod uri;
