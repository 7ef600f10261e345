//! The client's side of the protocol: fixed newstyle negotiation, then requests and replies.
//!
//! ```text
//!   server ── bytes ──▶ Handshake ──▶ Entered ──▶ Session ◀── bytes ── server
//!                 ◀── options ──┘       start: a request's header ──▶
//!                                       take:  heads and chunks of replies, in any order
//! ```
//!
//! 1. Payloads never pass through: [`Session::payload`] tells where the bytes that come next belong.
//! 2. A reply that was not asked for, does not fit its request, or leaves a part of a read unfilled is
//!    a [`Violation`]; the connection is of no more use then.
//!
//! A server is greeted back, and asked for its best framing first:
//!
//! ```
//! use forebay_nbd::client::{Handshake, Step};
//!
//! let greeting = b"NBDMAGICIHAVEOPT\0\x03";
//! let mut out = Vec::new();
//! let mut handshake = Handshake::new("");
//! let (consumed, step) = handshake.advance(greeting, &mut out)?;
//! assert_eq!((consumed, step), (18, Step::Continue));
//! assert!(out.starts_with(b"\0\0\0\x03IHAVEOPT"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod covered;
mod handshake;
mod session;

pub use handshake::{Entered, Handshake, Refused, Step};
pub use session::{Ask, Ended, Payload, Session, Took, Violation};
