//! Requests in flight on one connection, and what the server's replies say about them.
//!
//! ```text
//!   start(ask) ──▶ header, cookie = (number, slot)
//!   bytes ──▶ take ─┬─▶ NeedMore                       not enough of a head
//!                   ├─▶ Payload: slot, skip, bytes     the caller takes them, and says so: received
//!                   ├─▶ Zeroes: slot, skip, bytes      a part of a read that is a hole
//!                   ├─▶ Nothing                        something was used up
//!                   └─▶ Ended: slot, error, extents    the slot is free again
//! ```
//!
//! 1. Each started request ends once, or never when the connection does.
//! 2. A read that ends without an error was filled to its last byte, and no byte of it twice.
//! 3. Payload never belongs anywhere but inside of a read that is in flight.
//! 4. Memory is bounded by what was asked: a slot for each request in flight, at most
//!    [`EXTENTS_MAX`] extents of a status.
//!
//! Units: bytes. Errors: [`Violation`], after which nothing the server sends can be understood.

use super::covered::Covered;
use super::handshake::Entered;
use crate::wire::{
    CommandFlags, Framing, MAGIC_REPLY_EXTENDED, MAGIC_REPLY_SIMPLE, MAGIC_REPLY_STRUCTURED, MAGIC_REQUEST,
    MAGIC_REQUEST_EXTENDED, PutWire, Reader, STRING_BYTES_MAX, StatusExtent, chunk, cmd,
};

/// Most extents of one status that are kept; those behind are dropped.
const EXTENTS_MAX: usize = 1024;
/// Longest error chunk: two numbers, a text, an offset.
const ERROR_BYTES_MAX: u64 = 14 + STRING_BYTES_MAX as u64;

/// What a request asks of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Data.
    Read,
    /// Takes the payload that follows the header.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Makes durable what was replied to before.
    Flush,
    /// Lets the range go.
    Trim,
    /// Makes the range zero.
    WriteZeroes {
        /// Space stays allocated.
        no_hole: bool,
    },
    /// What of the range is allocated.
    Status,
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A reply does not begin as replies do.
    #[error("a reply begins with {0:#010x}")]
    Magic(u32),
    /// A reply to a request that is not in flight.
    #[error("a reply belongs to no request")]
    Cookie,
    /// A chunk that the protocol does not know, or that does not fit its request.
    #[error("a reply has a part of kind {0} that does not fit its request")]
    Kind(u16),
    /// A chunk of a length that its kind cannot have.
    #[error("a part of a reply has {0} bytes, which its kind cannot have")]
    Length(u64),
    /// Data that was not asked for, or that came before.
    #[error("a reply has data that was not asked for or comes twice")]
    Range,
    /// A read ended with parts of it missing.
    #[error("a read is answered in part only")]
    Missing,
    /// A status that says nothing sensible.
    #[error("a block status makes no sense")]
    Status,
    /// A failed request without an error.
    #[error("an error has the number 0")]
    NoError,
}

/// Where the bytes that come next belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Which request.
    pub slot: usize,
    /// First byte of its payload.
    pub skip: u32,
    /// How many come.
    pub bytes: u32,
}

/// A request that is no longer in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub slot: usize,
    /// The server's error number.
    pub error: Option<u32>,
    /// What a status told, from the start of its range on; empty where nothing is known.
    pub extents: Vec<StatusExtent>,
}

/// What a call to [`Session::take`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Took {
    /// At least so many bytes from the first unconsumed one on are needed.
    NeedMore(usize),
    /// Something without consequence.
    Nothing,
    /// Payload comes next: see [`Session::payload`].
    Payload,
    /// A part of a read is zeroes.
    Zeroes(Payload),
    /// A request ended.
    Ended(Ended),
}

/// A request in flight.
#[derive(Debug)]
struct Pending {
    cookie: u64,
    ask: Ask,
    offset: u64,
    length: u64,
    covered: Covered,
    error: Option<u32>,
    extents: Vec<StatusExtent>,
}

/// What the bytes that come next are.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Head,
    Payload { at: Payload, last: bool },
    Extents { slot: usize, left: u64, last: bool },
}

/// The head of a reply or of a chunk of one.
struct Head {
    cookie: u64,
    kind: Kind,
}

enum Kind {
    Simple { error: u32 },
    Chunk { kind: u16, last: bool, length: u64 },
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Session {
    framing: Framing,
    allocation: Option<u32>,
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// Used again by the next reads.
    spare: Vec<Covered>,
    issued: u32,
    expected: Expected,
}

impl Session {
    /// No requests yet, on a connection that entered an export.
    #[must_use]
    pub fn new(entered: &Entered) -> Self {
        Self {
            framing: entered.framing,
            allocation: entered.allocation,
            slots: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            issued: 0,
            expected: Expected::Head,
        }
    }

    /// Appends the header of a request to `out`, behind which the payload of a write follows. Returns
    /// the slot that it has until it ended.
    ///
    /// # Panics
    /// When the length of anything but a status or a trim does not fit 32 bits, which is a bug.
    pub fn start(&mut self, ask: Ask, offset: u64, length: u64, out: &mut Vec<u8>) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.issued = self.issued.wrapping_add(1);
        let cookie = u64::from(self.issued) << 32 | u64::try_from(slot).expect("slots are few");
        let (command, flags) = self.command(ask);
        let magic = if self.framing == Framing::Extended { MAGIC_REQUEST_EXTENDED } else { MAGIC_REQUEST };
        out.put_u32(magic);
        out.put_u16(flags.bits());
        out.put_u16(command);
        out.put_u64(cookie);
        out.put_u64(offset);
        if self.framing == Framing::Extended {
            out.put_u64(length);
        } else {
            out.put_u32(u32::try_from(length).expect("compact requests are cut to 32 bits"));
        }
        let covered = self.spare.pop().unwrap_or_default();
        let pending = Pending { cookie, ask, offset, length, covered, error: None, extents: Vec::new() };
        *self.slots.get_mut(slot).expect("a free slot is there") = Some(pending);
        slot
    }

    /// The last words of a connection: nothing is in flight any more.
    pub fn put_disconnect(&self, out: &mut Vec<u8>) {
        let extended = self.framing == Framing::Extended;
        out.put_u32(if extended { MAGIC_REQUEST_EXTENDED } else { MAGIC_REQUEST });
        out.put_u16(0);
        out.put_u16(cmd::DISC);
        let rest = if extended { 24 } else { 20 };
        out.resize(out.len() + rest, 0);
    }

    fn command(&self, ask: Ask) -> (u16, CommandFlags) {
        let none = CommandFlags::NONE;
        match ask {
            Ask::Read => (cmd::READ, none),
            Ask::Write { fua } => {
                let fua = if fua { CommandFlags::FUA } else { none };
                let payload = if self.framing == Framing::Extended { CommandFlags::PAYLOAD_LEN } else { none };
                (cmd::WRITE, fua | payload)
            }
            Ask::Flush => (cmd::FLUSH, none),
            Ask::Trim => (cmd::TRIM, none),
            Ask::WriteZeroes { no_hole } => (cmd::WRITE_ZEROES, if no_hole { CommandFlags::NO_HOLE } else { none }),
            Ask::Status => (cmd::BLOCK_STATUS, none),
        }
    }

    /// Where the bytes that come next belong; `None` where a head or a part of one is next.
    #[must_use]
    pub fn payload(&self) -> Option<Payload> {
        match self.expected {
            Expected::Payload { at, .. } => Some(at),
            Expected::Head | Expected::Extents { .. } => None,
        }
    }

    /// `bytes` bytes of the payload that [`Session::payload`] told came in.
    ///
    /// # Errors
    /// [`Violation`], when the read ended with this and is not whole.
    ///
    /// # Panics
    /// When no such payload was told, which is a bug.
    pub fn received(&mut self, bytes: u32) -> Result<Option<Ended>, Violation> {
        let Expected::Payload { at, last } = self.expected else { panic!("payload is received only where it is told") };
        let left = at.bytes.checked_sub(bytes).expect("no more is received than was told");
        if left > 0 {
            self.expected = Expected::Payload { at: Payload { skip: at.skip + bytes, bytes: left, ..at }, last };
            return Ok(None);
        }
        self.expected = Expected::Head;
        if last { self.end(at.slot).map(Some) } else { Ok(None) }
    }

    /// Takes what comes next from the front of `input`: the bytes that are used up, and what they meant.
    ///
    /// # Errors
    /// [`Violation`].
    ///
    /// # Panics
    /// While [`Session::payload`] tells of payload, which is a bug.
    pub fn take(&mut self, input: &[u8]) -> Result<(usize, Took), Violation> {
        match self.expected {
            Expected::Head => self.reply(input),
            Expected::Payload { .. } => panic!("payload is received and not taken"),
            Expected::Extents { slot, left, last } => self.extent(slot, left, last, input),
        }
    }

    /// The slot of the request that `cookie` names.
    fn find(&mut self, cookie: u64) -> Result<(usize, &mut Pending), Violation> {
        let slot = usize::try_from(cookie & u64::from(u32::MAX)).map_err(|_| Violation::Cookie)?;
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut).filter(|pending| pending.cookie == cookie);
        pending.map(|pending| (slot, pending)).ok_or(Violation::Cookie)
    }

    /// A request has its last part.
    fn end(&mut self, slot: usize) -> Result<Ended, Violation> {
        let mut pending = self.slots.get_mut(slot).and_then(Option::take).ok_or(Violation::Cookie)?;
        self.free.push(slot);
        let whole = u32::try_from(pending.length).is_ok_and(|length| pending.covered.is_all(length));
        pending.covered.clear();
        self.spare.push(pending.covered);
        if pending.ask == Ask::Read && pending.error.is_none() && !whole {
            return Err(Violation::Missing);
        }
        Ok(Ended { slot, error: pending.error, extents: pending.extents })
    }

    fn reply(&mut self, input: &[u8]) -> Result<(usize, Took), Violation> {
        let (head, used) = match self.head(input)? {
            Ok(found) => found,
            Err(bytes) => return Ok((0, Took::NeedMore(bytes))),
        };
        let structured = self.framing != Framing::Simple;
        let (slot, pending) = self.find(head.cookie)?;
        match head.kind {
            Kind::Simple { error: 0 } if pending.ask == Ask::Read && !structured => {
                let bytes = u32::try_from(pending.length).map_err(|_| Violation::Range)?;
                self.expect_payload(Payload { slot, skip: 0, bytes }, true)?;
                Ok((used, Took::Payload))
            }
            Kind::Simple { error: 0 } if matches!(pending.ask, Ask::Read | Ask::Status) => Err(Violation::Missing),
            Kind::Simple { error } => {
                pending.error = (error != 0).then_some(error);
                Ok((used, Took::Ended(self.end(slot)?)))
            }
            Kind::Chunk { kind, last, length } => {
                let body = input.get(used..).unwrap_or_default();
                let (more, took) = self.chunk(slot, kind, last, length, body)?;
                // A chunk that is not there as far as it is needed is looked at again from its head on.
                Ok(match took {
                    Took::NeedMore(bytes) => (0, Took::NeedMore(used + bytes)),
                    took => (used + more, took),
                })
            }
        }
    }

    /// The head at the front of `input` and its length; or how many bytes it takes to tell.
    fn head(&self, input: &[u8]) -> Result<Result<(Head, usize), usize>, Violation> {
        let mut reader = Reader(input);
        let Some(magic) = reader.u32() else { return Ok(Err(4)) };
        let bytes = match (magic, self.framing) {
            (MAGIC_REPLY_SIMPLE, Framing::Simple | Framing::Structured) => 16,
            (MAGIC_REPLY_STRUCTURED, Framing::Structured) => 20,
            (MAGIC_REPLY_EXTENDED, Framing::Extended) => 32,
            _ => return Err(Violation::Magic(magic)),
        };
        let fields = if bytes == 16 { simple(&mut reader) } else { chunk_head(&mut reader, bytes == 32) };
        Ok(fields.map(|head| (head, bytes)).ok_or(bytes))
    }

    /// Takes a chunk whose head was taken; `body` is what came in behind it.
    fn chunk(&mut self, slot: usize, kind: u16, last: bool, length: u64, body: &[u8]) -> Result<(usize, Took), Violation> {
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut).ok_or(Violation::Cookie)?;
        let mut reader = Reader(body);
        match (kind, pending.ask) {
            (chunk::NONE, _) if length != 0 || !last => Err(Violation::Length(length)),
            (chunk::NONE, _) => Ok((0, Took::Ended(self.end(slot)?))),
            (chunk::OFFSET_DATA, Ask::Read) => {
                let bytes = length.checked_sub(8).and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
                let bytes = bytes.ok_or(Violation::Length(length))?;
                let Some(offset) = reader.u64() else { return Ok((0, Took::NeedMore(8))) };
                let skip = inside(pending, offset, bytes)?;
                self.expect_payload(Payload { slot, skip, bytes }, last)?;
                Ok((8, Took::Payload))
            }
            (chunk::OFFSET_HOLE, Ask::Read) if length == 12 => {
                let (Some(offset), Some(bytes)) = (reader.u64(), reader.u32()) else { return Ok((0, Took::NeedMore(12))) };
                let skip = inside(pending, offset, bytes)?;
                if bytes == 0 || !pending.covered.add(skip, bytes) {
                    return Err(Violation::Range);
                }
                Ok((12, self.zeroes(Payload { slot, skip, bytes }, last)))
            }
            (chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT, Ask::Status) => self.status(slot, kind, last, length, body),
            _ if kind & chunk::ERROR_BIT != 0 => self.error(slot, last, length, body),
            _ => Err(Violation::Kind(kind)),
        }
    }

    fn expect_payload(&mut self, at: Payload, last: bool) -> Result<(), Violation> {
        let pending = self.slots.get_mut(at.slot).and_then(Option::as_mut).ok_or(Violation::Cookie)?;
        if !pending.covered.add(at.skip, at.bytes) {
            return Err(Violation::Range);
        }
        self.expected = Expected::Payload { at, last };
        Ok(())
    }

    /// A hole is told; its read ends with the next look where that was the last of it.
    fn zeroes(&mut self, at: Payload, last: bool) -> Took {
        if last {
            // Nothing more comes for it: payload of no bytes ends it once the zeroes are in place.
            self.expected = Expected::Payload { at: Payload { skip: at.skip + at.bytes, bytes: 0, ..at }, last };
        }
        Took::Zeroes(at)
    }

    fn error(&mut self, slot: usize, last: bool, length: u64, body: &[u8]) -> Result<(usize, Took), Violation> {
        if !(6..=ERROR_BYTES_MAX).contains(&length) {
            return Err(Violation::Length(length));
        }
        let length = usize::try_from(length).expect("at most ERROR_BYTES_MAX");
        if body.len() < length {
            return Ok((0, Took::NeedMore(length)));
        }
        let code = Reader(body).u32().filter(|code| *code != 0).ok_or(Violation::NoError)?;
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut).ok_or(Violation::Cookie)?;
        pending.error.get_or_insert(code);
        let took = if last { Took::Ended(self.end(slot)?) } else { Took::Nothing };
        Ok((length, took))
    }

    /// Takes the head of a block status; its extents follow one by one.
    fn status(&mut self, slot: usize, kind: u16, last: bool, length: u64, body: &[u8]) -> Result<(usize, Took), Violation> {
        let extended = self.framing == Framing::Extended;
        if (kind == chunk::BLOCK_STATUS_EXT) != extended {
            return Err(Violation::Kind(kind));
        }
        let (head, each) = if extended { (8_usize, 16) } else { (4, 8) };
        let left = length.checked_sub(head as u64).filter(|left| *left > 0 && left.is_multiple_of(each));
        let left = left.ok_or(Violation::Length(length))?;
        let mut reader = Reader(body);
        let (id, count) = (reader.u32(), if extended { reader.u32() } else { None });
        let Some(id) = id.filter(|_| body.len() >= head) else { return Ok((0, Took::NeedMore(head))) };
        let counted = count.is_none_or(|count| u64::from(count) == left / each);
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut).ok_or(Violation::Cookie)?;
        if Some(id) != self.allocation || !counted || !pending.extents.is_empty() {
            return Err(Violation::Status);
        }
        self.expected = Expected::Extents { slot, left, last };
        Ok((head, Took::Nothing))
    }

    /// Takes one extent of a block status.
    fn extent(&mut self, slot: usize, left: u64, last: bool, input: &[u8]) -> Result<(usize, Took), Violation> {
        let mut reader = Reader(input);
        let (used, fields) = if self.framing == Framing::Extended {
            (16_usize, reader.u64().zip(reader.u64()))
        } else {
            (8, reader.u32().map(u64::from).zip(reader.u32().map(u64::from)))
        };
        let Some((length, state)) = fields else { return Ok((0, Took::NeedMore(used))) };
        let pending = self.slots.get_mut(slot).and_then(Option::as_mut).ok_or(Violation::Cookie)?;
        if length == 0 {
            return Err(Violation::Status);
        }
        if pending.extents.len() < EXTENTS_MAX {
            // Bits beyond the known ones say nothing.
            let state = u32::try_from(state & u64::from(StatusExtent::HOLE | StatusExtent::ZERO)).expect("two bits");
            pending.extents.push(StatusExtent { length, state });
        }
        let left = left - used as u64;
        if left > 0 {
            self.expected = Expected::Extents { slot, left, last };
            return Ok((used, Took::Nothing));
        }
        self.expected = Expected::Head;
        let took = if last { Took::Ended(self.end(slot)?) } else { Took::Nothing };
        Ok((used, took))
    }
}

fn simple(reader: &mut Reader<'_>) -> Option<Head> {
    let (error, cookie) = (reader.u32()?, reader.u64()?);
    Some(Head { cookie, kind: Kind::Simple { error } })
}

fn chunk_head(reader: &mut Reader<'_>, extended: bool) -> Option<Head> {
    let (flags, kind, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
    let length = if extended { reader.u64().and(reader.u64())? } else { u64::from(reader.u32()?) };
    Some(Head { cookie, kind: Kind::Chunk { kind, last: flags & chunk::DONE != 0, length } })
}

/// Where in the payload of a read the `bytes` bytes from byte `offset` of the export on belong.
fn inside(pending: &Pending, offset: u64, bytes: u32) -> Result<u32, Violation> {
    let skip = offset.checked_sub(pending.offset).ok_or(Violation::Range)?;
    let end = skip.checked_add(u64::from(bytes)).ok_or(Violation::Range)?;
    if end > pending.length {
        return Err(Violation::Range);
    }
    u32::try_from(skip).map_err(|_| Violation::Range)
}

#[cfg(test)]
mod tests;
