//! The NBD protocol as bytes in and bytes out, for both sides: no sockets, no clock, no reactor.
//!
//! ```text
//!   server: handshake ──▶ session, reply        crates/export serves targets with it
//!             │  ▲
//!           wire, status, uri: numbers and byte order, errors, addresses
//!             ▼  │
//!   client: handshake ──▶ session               crates/device makes a device of a server with it
//! ```
//!
//! 1. Nothing that the other side sends makes these modules panic, or allocate more than their own
//!    answers need. They are tested and fuzzed alone.
//!
//! Source: the NBD protocol document (`doc/proto.md` of the `NetworkBlockDevice` project) with its
//! extended-headers extension.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod client;
pub mod server;
mod status;
pub mod uri;
mod wire;

pub use status::WireError;
pub use wire::{CommandFlags, Framing, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, StatusExtent, TransmissionFlags};
