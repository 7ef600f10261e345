//! Frontends that serve a table to clients. Today there is one: NBD.
//!
//! 1. What a client sends never makes the server panic or give out memory that was not filled for
//!    that client.
#![forbid(unsafe_code)]

pub mod nbd;
