//! The numbers of the NBD protocol, and reading and writing them in its byte order.
//!
//! 1. Everything on the wire is big-endian.
//! 2. Nothing here allocates for a length that a client sent: reading borrows from the input.
//! 3. A field that is cut short is `None`, never a panic.
//!
//! Units: lengths and offsets are bytes.
//!
//! Source: the NBD protocol document (`doc/proto.md` of the `NetworkBlockDevice` project) with its
//! extended-headers extension.

use std::ops::BitOr;

/// First eight bytes of the server's greeting: `NBDMAGIC`.
pub(crate) const MAGIC_GREETING: u64 = 0x4e42_444d_4147_4943;
/// Second part of the greeting and first field of each option: `IHAVEOPT`.
pub(crate) const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
/// First field of each reply to an option.
pub(crate) const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// First field of a compact request.
pub(crate) const MAGIC_REQUEST: u32 = 0x2560_9513;
/// First field of an extended request.
pub(crate) const MAGIC_REQUEST_EXTENDED: u32 = 0x21e4_1c71;
/// First field of a simple reply.
pub(crate) const MAGIC_REPLY_SIMPLE: u32 = 0x6744_6698;
/// First field of a structured reply chunk.
pub(crate) const MAGIC_REPLY_STRUCTURED: u32 = 0x668e_33ef;
/// First field of an extended reply chunk.
pub(crate) const MAGIC_REPLY_EXTENDED: u32 = 0x6e8a_278c;

/// Longest string the protocol knows (export names, descriptions, error messages), in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest payload of one request, in bytes: 32 MiB, the limit that every client keeps without
/// asking. It is also the largest read that is answered.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The only metadata context that either side uses.
pub(crate) const ALLOCATION: &str = "base:allocation";
/// Id under which the server tells the only metadata context, `base:allocation`. Any number but zero would do.
pub(crate) const CONTEXT_ALLOCATION: u32 = 1;

/// Option types a client may send in the handshake.
pub(crate) mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub(crate) mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;

    /// Refusals have the top bit set.
    const fn err(number: u32) -> u32 {
        0x8000_0000 + number
    }

    /// Lowest of all refusals.
    pub const ERR: u32 = err(0);
    pub const ERR_UNSUP: u32 = err(1);
    pub const ERR_INVALID: u32 = err(3);
    pub const ERR_TLS_REQD: u32 = err(5);
    pub const ERR_UNKNOWN: u32 = err(6);
    pub const ERR_SHUTDOWN: u32 = err(7);
    pub const ERR_BLOCK_SIZE_REQD: u32 = err(8);
    pub const ERR_TOO_BIG: u32 = err(9);
    pub const ERR_EXT_HEADER_REQD: u32 = err(10);
}

/// Kinds of information in a reply to INFO and GO.
pub(crate) mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Request types.
pub(crate) mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Types of structured and extended reply chunks.
pub(crate) mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = 0x8001;
    pub const ERROR_OFFSET: u16 = 0x8002;
    /// Set in the types of all errors, also of those that nobody knows yet.
    pub const ERROR_BIT: u16 = 0x8000;
    /// Flag of the last chunk of a reply.
    pub const DONE: u16 = 1;
}

/// Handshake flags; the client answers with the same bits.
pub(crate) mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

/// How requests and replies are framed on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies where they are needed.
    Structured,
    /// Extended requests and replies.
    Extended,
}

/// Part of the export with one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Length in bytes, not zero.
    pub length: u64,
    /// What is known about it: [`StatusExtent::HOLE`] and [`StatusExtent::ZERO`].
    pub state: u32,
}

impl StatusExtent {
    /// Nothing is allocated here.
    pub const HOLE: u32 = 1;
    /// This reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// What an export can do, as the protocol's transmission flags (16 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionFlags(u16);

impl TransmissionFlags {
    /// The flags field is present; every reply has it.
    pub const HAS_FLAGS: Self = Self(1);
    /// Nothing can be written.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// FLUSH is understood.
    pub const SEND_FLUSH: Self = Self(1 << 2);
    /// The FUA command flag is honoured.
    pub const SEND_FUA: Self = Self(1 << 3);
    /// TRIM is understood.
    pub const SEND_TRIM: Self = Self(1 << 5);
    /// `WRITE_ZEROES` is understood.
    pub const SEND_WRITE_ZEROES: Self = Self(1 << 6);
    /// The DF command flag of READ is honoured; only with structured or extended replies.
    pub const SEND_DF: Self = Self(1 << 7);
    /// A flush on one connection covers the writes of all.
    pub const CAN_MULTI_CONN: Self = Self(1 << 8);
    /// CACHE is understood.
    pub const SEND_CACHE: Self = Self(1 << 10);
    /// The `FAST_ZERO` command flag of `WRITE_ZEROES` is honoured.
    pub const SEND_FAST_ZERO: Self = Self(1 << 11);

    /// Flags as received.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// True if all of `flags` are set here.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags without `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// The 16 bits as they go over the wire.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}

impl BitOr for TransmissionFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The flags of one request (16 bits), known or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandFlags(u16);

impl CommandFlags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// The write is durable before it is answered.
    pub const FUA: Self = Self(1);
    /// Zeroes must stay allocated.
    pub const NO_HOLE: Self = Self(1 << 1);
    /// A read is answered in one piece.
    pub const DF: Self = Self(1 << 2);
    /// Block status wants one extent only.
    pub const REQ_ONE: Self = Self(1 << 3);
    /// Zeroing must be faster than writing, or fail at once.
    pub const FAST_ZERO: Self = Self(1 << 4);
    /// The length is that of a payload; only with extended headers.
    pub const PAYLOAD_LEN: Self = Self(1 << 5);

    /// Flags as received.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The 16 bits as they go over the wire.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// True if all of `flags` are set here.
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// True if nothing but `flags` is set here.
    #[must_use]
    pub const fn within(self, flags: Self) -> bool {
        self.0 & !flags.0 == 0
    }
}

impl BitOr for CommandFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A cursor over received bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The next `length` bytes, borrowed.
    pub fn bytes(&mut self, length: u32) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(head)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends numbers in wire order.
pub(crate) trait PutWire {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
}

impl PutWire for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    //! The numbers a second time, as the protocol document lists them, so that a slip shows.

    use super::*;

    #[test]
    fn option_and_answer_numbers_are_those_of_the_protocol() {
        let options = [opt::EXPORT_NAME, opt::ABORT, opt::LIST, opt::STARTTLS, opt::INFO, opt::GO];
        assert_eq!(options, [1, 2, 3, 5, 6, 7]);
        let options = [opt::STRUCTURED_REPLY, opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT, opt::EXTENDED_HEADERS];
        assert_eq!(options, [8, 9, 10, 11]);
        assert_eq!([rep::ACK, rep::SERVER, rep::INFO, rep::META_CONTEXT], [1, 2, 3, 4]);
        let refusals = [rep::ERR_UNSUP, rep::ERR_INVALID, rep::ERR_UNKNOWN, rep::ERR_SHUTDOWN];
        assert_eq!(refusals, [0x8000_0001, 0x8000_0003, 0x8000_0006, 0x8000_0007]);
        let refusals = [rep::ERR_BLOCK_SIZE_REQD, rep::ERR_TOO_BIG, rep::ERR_EXT_HEADER_REQD];
        assert_eq!(refusals, [0x8000_0008, 0x8000_0009, 0x8000_000a]);
        assert_eq!([info::EXPORT, info::NAME, info::DESCRIPTION, info::BLOCK_SIZE], [0, 1, 2, 3]);
    }

    #[test]
    fn command_and_chunk_numbers_are_those_of_the_protocol() {
        let commands = [cmd::READ, cmd::WRITE, cmd::DISC, cmd::FLUSH, cmd::TRIM, cmd::CACHE];
        assert_eq!(commands, [0, 1, 2, 3, 4, 5]);
        assert_eq!([cmd::WRITE_ZEROES, cmd::BLOCK_STATUS], [6, 7]);
        let chunks = [chunk::NONE, chunk::OFFSET_DATA, chunk::OFFSET_HOLE, chunk::BLOCK_STATUS];
        assert_eq!(chunks, [0, 1, 2, 5]);
        assert_eq!([chunk::BLOCK_STATUS_EXT, chunk::ERROR, chunk::ERROR_OFFSET], [6, 0x8001, 0x8002]);
    }

    #[test]
    fn flags_have_the_bits_of_the_protocol() {
        for (flag, bits) in [
            (TransmissionFlags::HAS_FLAGS, 0x001),
            (TransmissionFlags::READ_ONLY, 0x002),
            (TransmissionFlags::SEND_FLUSH, 0x004),
            (TransmissionFlags::SEND_FUA, 0x008),
            (TransmissionFlags::SEND_TRIM, 0x020),
            (TransmissionFlags::SEND_WRITE_ZEROES, 0x040),
            (TransmissionFlags::SEND_DF, 0x080),
            (TransmissionFlags::CAN_MULTI_CONN, 0x100),
            (TransmissionFlags::SEND_CACHE, 0x400),
            (TransmissionFlags::SEND_FAST_ZERO, 0x800),
        ] {
            assert_eq!(flag.bits(), bits);
        }
        for (flag, bits) in [
            (CommandFlags::FUA, 1),
            (CommandFlags::NO_HOLE, 2),
            (CommandFlags::DF, 4),
            (CommandFlags::REQ_ONE, 8),
            (CommandFlags::FAST_ZERO, 16),
            (CommandFlags::PAYLOAD_LEN, 32),
        ] {
            assert_eq!(flag.bits(), bits);
        }
        assert_eq!([handshake_flag::FIXED_NEWSTYLE, handshake_flag::NO_ZEROES], [1, 2]);
    }
}
