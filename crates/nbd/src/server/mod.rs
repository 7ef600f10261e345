//! The server's side of the protocol: fixed newstyle negotiation, then requests and replies.
//!
//! ```text
//!              bytes                                   bytes
//!   client ───────────▶ handshake ──▶ session ◀────────────────── client
//!                      option, answer   judge: accept, refuse, close
//!                      export           reply: heads, errors, block status
//!                             crate::wire: numbers and byte order
//! ```
//!
//! 1. These modules know bytes only: no sockets, no clock, no reactor. They are tested and fuzzed
//!    alone.
//! 2. Nothing a client sends makes them panic, or allocate more than the server's own answers need.
//!
//! A client that enters the default export and reads its first kilobyte:
//!
//! ```
//! use forebay_nbd::server::{BlockBytes, Command, Export, Handshake, Step, Verdict, parse_request};
//! use forebay_nbd::{Framing, TransmissionFlags};
//!
//! let sizes = BlockBytes::new(512, 4096)?;
//! let exports = [Export::new("disk", 1 << 20, TransmissionFlags::SEND_FLUSH, sizes)?.as_default()];
//! let mut out = Vec::new();
//! let mut handshake = Handshake::start(&mut out);
//! let input = b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
//! let flags = handshake.advance(&exports, input, &mut out);
//! let go = handshake.advance(&exports, &input[flags.consumed..], &mut out);
//! let Step::Transmit(session) = go.step else { panic!("GO was refused") };
//!
//! let input = b"\x25\x60\x95\x13\0\0\0\0cookie!!\0\0\0\0\0\0\0\0\0\0\x04\0";
//! let (header, consumed) = parse_request(input, session.framing())?.expect("a whole request");
//! assert_eq!(consumed, input.len());
//! let Verdict::Accept(request) = session.judge(&header) else { panic!("READ was refused") };
//! assert_eq!((request.command, request.length), (Command::Read { whole: false }, 1024));
//!
//! let mut out = Vec::new();
//! session.framing().put_read(&mut out, request.to, 1024);
//! assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\0cookie!!");
//! # assert_eq!(session.framing(), Framing::Simple);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod export;
mod handshake;
mod option;
mod reply;
mod session;

pub use export::{BlockBytes, Export, ExportError, Unaligned};
pub use handshake::{Close, Handshake, INPUT_BYTES_MAX, OPTION_BYTES_MAX, OPTIONS_MAX, Progress, Step};
pub use reply::{ReplyTo, STATUS_EXTENTS_MAX};
pub use session::{BadRequestMagic, Command, REQUEST_BYTES_MAX, Request, RequestHeader, Session, Verdict, parse_request};
