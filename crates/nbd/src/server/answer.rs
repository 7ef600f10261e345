//! Encodes the server's answers to options of the handshake.
//!
//! ```text
//!   8 bytes  0x0003e889045565a9
//!   4        the option answered
//!   4        kind of answer; the top bit means refusal
//!   4        length of what follows: nothing, a description, or a sentence about the refusal
//! ```
//!
//! 1. An answer's size follows from the server's own exports, never from what a client sent.
//!
//! Units: lengths are bytes.

use super::export::Export;
use super::option::ExportQuery;
use crate::wire::{ALLOCATION, MAGIC_OPTION_REPLY, PAYLOAD_BYTES_MAX, PutWire, TransmissionFlags, info, opt, rep};

/// The header of an answer; `length` bytes of data follow.
fn put_head(out: &mut Vec<u8>, option: u32, kind: u32, length: usize) {
    out.put_u64(MAGIC_OPTION_REPLY);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(length_u32(length));
}

fn length_u32(length: usize) -> u32 {
    u32::try_from(length).expect("answers hold at most two strings of at most 4096 bytes")
}

/// The option was accepted, or all that it asked for has been sent.
pub(super) fn ack(out: &mut Vec<u8>, option: u32) {
    put_head(out, option, rep::ACK, 0);
}

/// Why an option is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The option is not known.
    UnknownOption,
    /// STARTTLS: there is no TLS.
    Tls,
    /// There is data, where there must be none.
    Data,
    /// The data is too long to be read.
    Length,
    /// The data does not parse.
    Syntax,
    /// No export has the name.
    UnknownExport,
    /// The option makes sense only with structured replies or extended headers.
    Framing,
    /// Structured replies after extended headers.
    AlreadyExtended,
    /// The export is only for clients that know its block sizes.
    BlockSize,
    /// The server shuts down.
    ShuttingDown,
}

impl Refusal {
    const fn wire(self) -> (u32, &'static str) {
        match self {
            Self::UnknownOption => (rep::ERR_UNSUP, "this option is not supported"),
            Self::Tls => (rep::ERR_UNSUP, "this server has no TLS"),
            Self::Data => (rep::ERR_INVALID, "this option takes no data"),
            Self::Length => (rep::ERR_TOO_BIG, "the data of this option is too long"),
            Self::Syntax => (rep::ERR_INVALID, "the data of this option is malformed"),
            Self::UnknownExport => (rep::ERR_UNKNOWN, "there is no export of this name"),
            Self::Framing => (rep::ERR_INVALID, "negotiate structured replies or extended headers first"),
            Self::AlreadyExtended => (rep::ERR_EXT_HEADER_REQD, "extended headers are negotiated already"),
            Self::BlockSize => (rep::ERR_BLOCK_SIZE_REQD, "ask for NBD_INFO_BLOCK_SIZE to use this export"),
            Self::ShuttingDown => (rep::ERR_SHUTDOWN, "the server is shutting down"),
        }
    }
}

/// The option was refused; the sentence is for people.
pub(super) fn refuse(out: &mut Vec<u8>, option: u32, refusal: Refusal) {
    let (kind, text) = refusal.wire();
    put_head(out, option, kind, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// One description for each export; the caller acknowledges.
pub(super) fn put_list(out: &mut Vec<u8>, exports: &[Export]) {
    for export in exports {
        let (name, description) = (export.name.as_bytes(), export.description.as_bytes());
        put_head(out, opt::LIST, rep::SERVER, 4 + name.len() + description.len());
        out.put_u32(length_u32(name.len()));
        out.extend_from_slice(name);
        out.extend_from_slice(description);
    }
}

/// `base:allocation` under this id.
pub(super) fn put_context(out: &mut Vec<u8>, option: u32, id: u32) {
    put_head(out, option, rep::META_CONTEXT, 4 + ALLOCATION.len());
    out.put_u32(id);
    out.extend_from_slice(ALLOCATION.as_bytes());
}

/// All information about `export` that `query` asks for; the name also where it is not the one
/// that the client used, and the block sizes also where `block_size` says so.
pub(super) fn put_info(
    out: &mut Vec<u8>,
    option: u32,
    export: &Export,
    flags: TransmissionFlags,
    query: &ExportQuery<'_>,
    block_size: bool,
) {
    put_head(out, option, rep::INFO, 12);
    out.put_u16(info::EXPORT);
    out.put_u64(export.size_bytes);
    out.put_u16(flags.bits());
    if query.wanted.name() || query.name != export.name.as_bytes() {
        put_text(out, option, info::NAME, &export.name);
    }
    if query.wanted.description() && !export.description.is_empty() {
        put_text(out, option, info::DESCRIPTION, &export.description);
    }
    if query.wanted.block_size() || block_size {
        put_head(out, option, rep::INFO, 14);
        out.put_u16(info::BLOCK_SIZE);
        out.put_u32(export.block_bytes.minimum());
        out.put_u32(export.block_bytes.preferred());
        out.put_u32(PAYLOAD_BYTES_MAX);
    }
}

fn put_text(out: &mut Vec<u8>, option: u32, kind: u16, text: &str) {
    put_head(out, option, rep::INFO, 2 + text.len());
    out.put_u16(kind);
    out.extend_from_slice(text.as_bytes());
}
