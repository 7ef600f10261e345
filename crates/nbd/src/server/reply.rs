//! Encodes the replies of the transmission phase, in the framing that was negotiated.
//!
//! ```text
//!   simple (16)         structured chunk (20)     extended chunk (32)
//!   4 magic             4 magic                   4 magic
//!   4 error             2 flags, 2 type           2 flags, 2 type
//!   8 cookie            8 cookie                  8 cookie
//!   … data of READ      4 payload length          8 offset of the request
//!                       … payload                 8 payload length
//!                                                 … payload
//! ```
//!
//! 1. Only heads are encoded here. The data of a read never passes through: the caller sends it
//!    right after the head, from where it is.
//! 2. With structured replies a success without payload is a simple reply, which is the shortest;
//!    with extended headers everything is an extended chunk.
//! 3. A READ is answered by one content chunk for all of it, or by chunks that do not overlap and
//!    one closing chunk. Errors after a simple read head was sent cannot be expressed: the caller
//!    must have the data before it asks for that head.
//! 4. Heads are appended to a buffer of the caller's; there is no other allocation.
//!
//! Units: lengths and offsets are bytes.

use crate::status::WireError;
use crate::wire::{
    CONTEXT_ALLOCATION, Framing, MAGIC_REPLY_EXTENDED, MAGIC_REPLY_SIMPLE, MAGIC_REPLY_STRUCTURED, PAYLOAD_BYTES_MAX, PutWire,
    StatusExtent, chunk,
};

/// Most extents in one block status reply.
pub const STATUS_EXTENTS_MAX: u32 = 8192;
/// Granularity to which an extent is cut when its length does not fit into 32 bits, in bytes: the
/// largest minimum block size, so that the cut is aligned for everyone.
const STATUS_CUT_BYTES: u64 = 1 << 16;

/// The request that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The client's name for the request.
    pub cookie: u64,
    /// The offset of the request, in bytes; extended replies repeat it.
    pub offset: u64,
}

impl Framing {
    /// The request succeeded and has no payload in its reply.
    pub fn put_done(self, out: &mut Vec<u8>, to: ReplyTo) {
        match self {
            Self::Simple | Self::Structured => put_simple(out, to, 0),
            Self::Extended => self.put_chunk(out, to, chunk::NONE, true, 0),
        }
    }

    /// The request failed, with a sentence for people where the framing has room for one.
    ///
    /// # Panics
    /// If `text` is longer than [`crate::STRING_BYTES_MAX`].
    pub fn put_error(self, out: &mut Vec<u8>, to: ReplyTo, error: WireError, text: &str) {
        if self == Self::Simple {
            return put_simple(out, to, error.code());
        }
        let length = text_length(text);
        self.put_chunk(out, to, chunk::ERROR, true, 6 + u64::from(length));
        out.put_u32(error.code());
        out.put_u16(length);
        out.extend_from_slice(text.as_bytes());
    }

    /// The request failed at byte `at` of the export. With simple replies the place is lost.
    ///
    /// # Panics
    /// If `text` is longer than [`crate::STRING_BYTES_MAX`].
    pub fn put_error_at(self, out: &mut Vec<u8>, to: ReplyTo, error: WireError, text: &str, at: u64) {
        if self == Self::Simple {
            return put_simple(out, to, error.code());
        }
        let length = text_length(text);
        self.put_chunk(out, to, chunk::ERROR_OFFSET, true, 14 + u64::from(length));
        out.put_u32(error.code());
        out.put_u16(length);
        out.extend_from_slice(text.as_bytes());
        out.put_u64(at);
    }

    /// A READ of `length` bytes succeeded: the head of a reply whose data, all of it, follows.
    ///
    /// # Panics
    /// If `length` is zero (use [`Framing::put_empty_read`]) or above [`crate::PAYLOAD_BYTES_MAX`].
    pub fn put_read(self, out: &mut Vec<u8>, to: ReplyTo, length: u32) {
        if self == Self::Simple {
            assert_content(length);
            return put_simple(out, to, 0);
        }
        self.put_read_part(out, to, to.offset, length, true);
    }

    /// A READ of no bytes succeeded.
    pub fn put_empty_read(self, out: &mut Vec<u8>, to: ReplyTo) {
        match self {
            Self::Simple => put_simple(out, to, 0),
            Self::Structured | Self::Extended => self.put_chunk(out, to, chunk::NONE, true, 0),
        }
    }

    /// Part of a READ: the head of a chunk with `length` bytes of data from byte `offset` of the
    /// export on. `last` ends the reply.
    ///
    /// # Panics
    /// With simple replies, or if `length` is zero or above [`crate::PAYLOAD_BYTES_MAX`].
    pub fn put_read_part(self, out: &mut Vec<u8>, to: ReplyTo, offset: u64, length: u32, last: bool) {
        assert_content(length);
        self.put_chunk(out, to, chunk::OFFSET_DATA, last, 8 + u64::from(length));
        out.put_u64(offset);
    }

    /// Part of a READ that needs no data: `length` bytes from byte `offset` on are zeroes. `last`
    /// ends the reply.
    ///
    /// # Panics
    /// With simple replies, or if `length` is zero or above [`crate::PAYLOAD_BYTES_MAX`].
    pub fn put_read_hole(self, out: &mut Vec<u8>, to: ReplyTo, offset: u64, length: u32, last: bool) {
        assert_content(length);
        self.put_chunk(out, to, chunk::OFFSET_HOLE, last, 12);
        out.put_u64(offset);
        out.put_u32(length);
    }

    /// Answers BLOCK STATUS for `length` bytes from the request's offset on.
    ///
    /// `extents` follow each other from that offset and may reach beyond the range, but not beyond
    /// the export. Neighbours in the same state become one, and those that begin beyond the range
    /// are left out; no more are taken than that needs. With `one`, only the first state is told,
    /// and only within the range.
    ///
    /// # Panics
    /// With simple replies, without any extent, or with an empty extent.
    pub fn put_status(
        self,
        out: &mut Vec<u8>,
        to: ReplyTo,
        length: u64,
        one: bool,
        extents: impl IntoIterator<Item = StatusExtent>,
    ) {
        // The length of the payload is known at the end; until then its place holds zero.
        let start = out.len();
        let kind = if self == Self::Extended { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
        self.put_chunk(out, to, kind, true, 0);
        let payload = out.len();
        out.put_u32(CONTEXT_ALLOCATION);
        if self == Self::Extended {
            out.put_u32(0);
        }
        let mut count = 0;
        let mut told = 0_u64;
        let joined = Joined { rest: extents.into_iter(), next: None };
        for mut extent in joined {
            assert!(extent.length > 0, "an extent is not empty");
            if one {
                extent.length = extent.length.min(length);
            }
            told = told.saturating_add(self.put_extent(out, extent));
            count += 1;
            if one || count == STATUS_EXTENTS_MAX || told >= length || cut(self, extent) {
                break;
            }
        }
        assert!(count > 0, "block status has at least one extent");
        self.patch_length(out, start, payload, count);
    }

    /// Appends one descriptor and returns the length it tells.
    fn put_extent(self, out: &mut Vec<u8>, extent: StatusExtent) -> u64 {
        if self == Self::Extended {
            out.put_u64(extent.length);
            out.put_u64(u64::from(extent.state));
            return extent.length;
        }
        let length = u32::try_from(extent.length).unwrap_or(STATUS_LENGTH_CUT);
        out.put_u32(length);
        out.put_u32(extent.state);
        u64::from(length)
    }

    /// Fills in what was not known when the chunk at `start` was begun.
    fn patch_length(self, out: &mut [u8], start: usize, payload: usize, count: u32) {
        let length = out.len() - payload;
        let (place, bytes) = if self == Self::Extended {
            overwrite(out, payload + 4, &count.to_be_bytes());
            (24, 8)
        } else {
            (16, 4)
        };
        let wide = u64::try_from(length).expect("a length fits 64 bits").to_be_bytes();
        let digits = wide.get(8 - bytes..).expect("four or eight of eight bytes");
        overwrite(out, start + place, digits);
    }

    fn put_chunk(self, out: &mut Vec<u8>, to: ReplyTo, kind: u16, last: bool, length: u64) {
        let flags = if last { chunk::DONE } else { 0 };
        let magic = match self {
            Self::Simple => panic!("simple replies have no chunks"),
            Self::Structured => MAGIC_REPLY_STRUCTURED,
            Self::Extended => MAGIC_REPLY_EXTENDED,
        };
        // One append for most of the head: this runs once per request.
        let fields = u128::from(magic) << 96 | u128::from(flags) << 80 | u128::from(kind) << 64;
        out.extend_from_slice(&(fields | u128::from(to.cookie)).to_be_bytes());
        if self == Self::Extended {
            out.put_u64(to.offset);
            out.put_u64(length);
        } else {
            out.put_u32(u32::try_from(length).expect("payloads are at most 32 MiB and a head"));
        }
    }
}

/// Longest aligned length that fits 32 bits, in bytes.
const STATUS_LENGTH_CUT: u32 = {
    let cut = (1_u64 << 32) - STATUS_CUT_BYTES;
    assert!(cut < 1 << 32);
    #[expect(clippy::cast_possible_truncation, reason = "asserted in the line before")]
    let narrow = cut as u32;
    narrow
};

/// True if `extent` is told shorter than it is, so that nothing can follow it.
fn cut(framing: Framing, extent: StatusExtent) -> bool {
    framing != Framing::Extended && u32::try_from(extent.length).is_err()
}

/// Extents with equal neighbours joined.
struct Joined<I: Iterator<Item = StatusExtent>> {
    rest: I,
    next: Option<StatusExtent>,
}

impl<I: Iterator<Item = StatusExtent>> Iterator for Joined<I> {
    type Item = StatusExtent;

    fn next(&mut self) -> Option<StatusExtent> {
        let mut extent = self.next.take().or_else(|| self.rest.next())?;
        for next in self.rest.by_ref() {
            let sum = extent.length.checked_add(next.length);
            match sum {
                Some(length) if next.state == extent.state => extent.length = length,
                _ => {
                    self.next = Some(next);
                    break;
                }
            }
        }
        Some(extent)
    }
}

fn put_simple(out: &mut Vec<u8>, to: ReplyTo, error: u32) {
    let fields = u128::from(MAGIC_REPLY_SIMPLE) << 96 | u128::from(error) << 64 | u128::from(to.cookie);
    out.extend_from_slice(&fields.to_be_bytes());
}

fn assert_content(length: u32) {
    assert!(length > 0, "a content chunk is not empty");
    assert!(length <= PAYLOAD_BYTES_MAX, "a read is at most 32 MiB");
}

fn text_length(text: &str) -> u16 {
    assert!(text.len() <= crate::wire::STRING_BYTES_MAX, "a sentence is at most 4096 bytes");
    u16::try_from(text.len()).expect("at most 4096")
}

fn overwrite(out: &mut [u8], at: usize, bytes: &[u8]) {
    out.get_mut(at..at + bytes.len()).expect("written before").copy_from_slice(bytes);
}

#[cfg(test)]
mod tests;
