//! What was negotiated, and the judgement of each request against it.
//!
//! ```text
//!   received bytes ── parse_request ──▶ RequestHeader ── Session::judge ──▶ Verdict
//!                     (framing only)                     (export, flags)    accept, refuse, close
//! ```
//!
//! 1. A payload is never part of the parse: it follows the header, and the verdict says how many
//!    bytes of it to receive or to drop.
//! 2. An accepted request lies within the export, has at least one byte (but FLUSH), at most
//!    [`PAYLOAD_BYTES_MAX`] bytes where data travels, and is aligned if the client knows the block
//!    sizes.
//! 3. Judging changes nothing, whatever the client sent.
//! 4. Where it is not certain how many bytes of payload follow, the connection ends: data of a
//!    write must never be read as requests.
//!
//! Units: offsets and lengths are bytes.

use super::export::Export;
use super::reply::ReplyTo;
use crate::status::WireError;
use crate::wire::{
    CommandFlags, Framing, MAGIC_REQUEST, MAGIC_REQUEST_EXTENDED, PAYLOAD_BYTES_MAX, Reader, TransmissionFlags, cmd,
};

/// Longest request header, in bytes.
pub const REQUEST_BYTES_MAX: usize = 32;

/// The header of a request as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Command flags, known or not.
    pub flags: CommandFlags,
    /// Command, known or not.
    pub kind: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte concerned.
    pub offset: u64,
    /// Bytes concerned, or bytes of payload.
    pub length: u64,
}

/// The stream of requests is out of step; nothing after this can be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request of the client begins with {magic:#010x} instead of the magic number")]
pub struct BadRequestMagic {
    /// What stood in its place.
    pub magic: u32,
}

/// Reads one request header from the front of `input`: the header and its length in bytes, or
/// `None` as long as it is not complete.
///
/// # Errors
/// [`BadRequestMagic`], after which the connection must be closed without an answer.
#[inline]
pub fn parse_request(input: &[u8], framing: Framing) -> Result<Option<(RequestHeader, usize)>, BadRequestMagic> {
    let (magic_expected, bytes) = if framing == Framing::Extended { (MAGIC_REQUEST_EXTENDED, 32) } else { (MAGIC_REQUEST, 28) };
    match Reader(input).u32() {
        None => return Ok(None),
        Some(magic) if magic != magic_expected => return Err(BadRequestMagic { magic }),
        Some(_) => {}
    }
    // Cut to its length first: the reads of the fields then need no checks of their own.
    Ok(input.get(..bytes).and_then(parse_fields).map(|header| (header, bytes)))
}

/// Reads the fields of a request header of either length.
#[inline]
fn parse_fields(bytes: &[u8]) -> Option<RequestHeader> {
    let mut reader = Reader(bytes);
    reader.u32()?;
    let flags = CommandFlags::from_bits(reader.u16()?);
    let kind = reader.u16()?;
    let cookie = reader.u64()?;
    let offset = reader.u64()?;
    let length = if bytes.len() == 32 { reader.u64()? } else { u64::from(reader.u32()?) };
    Some(RequestHeader { flags, kind, cookie, offset, length })
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read {
        /// Answer with a single content chunk.
        whole: bool,
    },
    /// Write the payload, as long as the request, which follows the header.
    Write,
    /// Make durable all that was answered before, on every connection.
    Flush,
    /// The contents are no longer needed.
    Trim,
    /// The contents will be needed soon.
    Cache,
    /// Make the contents zero.
    WriteZeroes {
        /// The space must stay allocated.
        no_hole: bool,
        /// Fail at once with [`WireError::NotSupported`] if this is not faster than writing.
        fast: bool,
    },
    /// Tell the allocation (`base:allocation`).
    BlockStatus {
        /// Tell one extent only.
        one: bool,
    },
}

/// An accepted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it wants.
    pub command: Command,
    /// Durable before it is answered; only for commands that write.
    pub fua: bool,
    /// Which request a reply belongs to; its offset is the first byte concerned.
    pub to: ReplyTo,
    /// Bytes concerned; zero for FLUSH and for [`Verdict::Empty`].
    pub length: u64,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Carry it out. If it is a write, its payload of `length` bytes follows.
    Accept(Request),
    /// It concerns no bytes: answer success at once ([`Session::put_empty`]). No payload follows.
    Empty(Request),
    /// Drop `drain` bytes of payload and answer with the error.
    Refuse {
        /// Which request.
        to: ReplyTo,
        /// The error to answer.
        error: WireError,
        /// The reason, for people.
        reason: &'static str,
        /// Bytes of payload that follow, at most [`PAYLOAD_BYTES_MAX`].
        drain: u32,
    },
    /// Answer with the error, then close the connection: what follows cannot be trusted.
    RefuseAndClose {
        /// Which request.
        to: ReplyTo,
        /// The error to answer.
        error: WireError,
        /// The reason, for people.
        reason: &'static str,
    },
    /// The client is done: finish what is in flight, answer it, then close. There is no answer to
    /// this request.
    Disconnect,
}

/// One negotiated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    export: usize,
    size_bytes: u64,
    flags: TransmissionFlags,
    framing: Framing,
    minimum: u32,
    allocation: bool,
    block_size_known: bool,
}

/// A refusal before it is known how much payload goes with it.
type Refused = (WireError, &'static str);

impl Session {
    pub(super) fn new(
        index: usize,
        export: &Export,
        flags: TransmissionFlags,
        framing: Framing,
        allocation: bool,
        block_size_known: bool,
    ) -> Self {
        let minimum = if block_size_known { export.block_bytes.minimum() } else { 1 };
        Self { export: index, size_bytes: export.size_bytes, flags, framing, minimum, allocation, block_size_known }
    }

    /// Index of the export in the list that was given to the last step of the handshake.
    #[must_use]
    pub const fn export(&self) -> usize {
        self.export
    }

    /// Size of the export as the client was told, in bytes.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Abilities as the client was told.
    #[must_use]
    pub const fn flags(&self) -> TransmissionFlags {
        self.flags
    }

    /// How requests and replies are framed.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.framing
    }

    /// True if the client asked for the block sizes when it entered, so that it must keep to them.
    /// If it did not, requests may begin and end at any byte.
    #[must_use]
    pub const fn client_knows_block_size(&self) -> bool {
        self.block_size_known
    }

    /// Answers a request that concerns no bytes.
    pub fn put_empty(&self, out: &mut Vec<u8>, request: &Request) {
        match request.command {
            Command::Read { .. } => self.framing.put_empty_read(out, request.to),
            _ => self.framing.put_done(out, request.to),
        }
    }

    /// Judges one request.
    #[must_use]
    #[inline]
    pub fn judge(&self, header: &RequestHeader) -> Verdict {
        if header.kind == cmd::DISC {
            return Verdict::Disconnect;
        }
        let to = ReplyTo { cookie: header.cookie, offset: header.offset };
        let drain = match self.payload(header) {
            Ok(bytes) => bytes,
            Err((error, reason)) => return Verdict::RefuseAndClose { to, error, reason },
        };
        let judged = self.command(header).and_then(|command| {
            self.range(header, command)?;
            Ok(command)
        });
        let command = match judged {
            Ok(command) => command,
            Err((error, reason)) => return Verdict::Refuse { to, error, reason, drain },
        };
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes { .. });
        let fua = writes && header.flags.contains(CommandFlags::FUA);
        let request = Request { command, fua, to, length: header.length };
        if header.length == 0 && command != Command::Flush { Verdict::Empty(request) } else { Verdict::Accept(request) }
    }

    /// Bytes of payload behind the header, or why the connection cannot go on.
    #[inline]
    fn payload(&self, header: &RequestHeader) -> Result<u32, Refused> {
        let marked = header.flags.contains(CommandFlags::PAYLOAD_LEN);
        let carries = match self.framing {
            Framing::Extended => marked,
            Framing::Simple | Framing::Structured => header.kind == cmd::WRITE,
        };
        if !carries {
            if header.kind == cmd::WRITE && header.length > 0 {
                let reason = "a write with extended headers must have the payload length flag";
                return Err((WireError::Invalid, reason));
            }
            return Ok(0);
        }
        match u32::try_from(header.length) {
            Ok(length) if length <= PAYLOAD_BYTES_MAX => Ok(length),
            _ => Err((WireError::Invalid, "the payload is longer than 32 MiB")),
        }
    }

    /// The command, if it is known, offered and its flags are allowed.
    #[inline]
    fn command(&self, header: &RequestHeader) -> Result<Command, Refused> {
        let flags = header.flags;
        let (command, allowed, needed) = match header.kind {
            cmd::READ => (
                Command::Read { whole: flags.contains(CommandFlags::DF) },
                self.if_offered(TransmissionFlags::SEND_DF, CommandFlags::DF),
                TransmissionFlags::HAS_FLAGS,
            ),
            cmd::WRITE => (Command::Write, self.payload_flag(), TransmissionFlags::HAS_FLAGS),
            cmd::FLUSH => (Command::Flush, CommandFlags::NONE, TransmissionFlags::SEND_FLUSH),
            cmd::TRIM => (Command::Trim, CommandFlags::NONE, TransmissionFlags::SEND_TRIM),
            cmd::CACHE => (Command::Cache, CommandFlags::NONE, TransmissionFlags::SEND_CACHE),
            cmd::WRITE_ZEROES => (
                Command::WriteZeroes {
                    no_hole: flags.contains(CommandFlags::NO_HOLE),
                    fast: flags.contains(CommandFlags::FAST_ZERO),
                },
                CommandFlags::NO_HOLE | self.if_offered(TransmissionFlags::SEND_FAST_ZERO, CommandFlags::FAST_ZERO),
                TransmissionFlags::SEND_WRITE_ZEROES,
            ),
            cmd::BLOCK_STATUS => (
                Command::BlockStatus { one: flags.contains(CommandFlags::REQ_ONE) },
                CommandFlags::REQ_ONE,
                TransmissionFlags::HAS_FLAGS,
            ),
            _ => return Err((WireError::Invalid, "this command is not known")),
        };
        let allowed = allowed | self.if_offered(TransmissionFlags::SEND_FUA, CommandFlags::FUA);
        if !flags.within(allowed) {
            return Err((WireError::Invalid, "a flag is not valid for this command"));
        }
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes { .. });
        if writes && self.flags.contains(TransmissionFlags::READ_ONLY) {
            return Err((WireError::NotPermitted, "the export is read-only"));
        }
        if !self.flags.contains(needed) {
            return Err((WireError::Invalid, "this command was not offered"));
        }
        if header.kind == cmd::BLOCK_STATUS && !self.allocation {
            return Err((WireError::Invalid, "no metadata context was selected"));
        }
        Ok(command)
    }

    fn if_offered(&self, offer: TransmissionFlags, flags: CommandFlags) -> CommandFlags {
        if self.flags.contains(offer) { flags } else { CommandFlags::NONE }
    }

    fn payload_flag(&self) -> CommandFlags {
        if self.framing == Framing::Extended { CommandFlags::PAYLOAD_LEN } else { CommandFlags::NONE }
    }

    /// Checks offset and length of a request.
    #[inline]
    fn range(&self, header: &RequestHeader, command: Command) -> Result<(), Refused> {
        let (offset, length) = (header.offset, header.length);
        if command == Command::Flush {
            return if offset == 0 && length == 0 {
                Ok(())
            } else {
                Err((WireError::Invalid, "offset and length of a flush must be zero"))
            };
        }
        let within = offset.checked_add(length).is_some_and(|end| end <= self.size_bytes);
        if !within {
            let error = match command {
                Command::Write | Command::WriteZeroes { .. } => WireError::NoSpace,
                _ => WireError::Invalid,
            };
            return Err((error, "the request reaches beyond the end of the export"));
        }
        let minimum = u64::from(self.minimum);
        if !offset.is_multiple_of(minimum) || !length.is_multiple_of(minimum) {
            return Err((WireError::Invalid, "the request is not a multiple of the block size"));
        }
        match command {
            Command::Read { whole } if length > u64::from(PAYLOAD_BYTES_MAX) => {
                let error = if whole { WireError::TooLarge } else { WireError::Invalid };
                Err((error, "a read is at most 32 MiB"))
            }
            Command::BlockStatus { .. } if length == 0 => Err((WireError::Invalid, "block status of no bytes cannot be told")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
