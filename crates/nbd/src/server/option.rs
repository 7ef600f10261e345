//! Reads the options of the handshake out of received bytes.
//!
//! ```text
//!   8 bytes  IHAVEOPT        GO, INFO:            LIST/SET_META_CONTEXT:
//!   4        option            4  name length       4  name length
//!   4        data length       …  name              …  name
//!   …        data              2  count             4  count
//!                              2× information       (4 length, … query)×
//! ```
//!
//! 1. Nothing is allocated, whatever the lengths and counts say; all borrow from the input.
//! 2. Data that is too short, too long or has an over-long string is `None`: a syntax error.
//!
//! Units: lengths are bytes.

use crate::wire::{ALLOCATION, MAGIC_OPTION, Reader, STRING_BYTES_MAX, info};

/// Length of the header of an option, in bytes.
pub(super) const HEADER_BYTES: usize = 16;

/// The query that means all contexts of the `base` namespace.
const BASE_ALL: &[u8] = b"base:";

/// What the header of an option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHeader {
    pub kind: u32,
    pub length: u32,
}

/// The first bytes of an option are not `IHAVEOPT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadMagic;

/// Reads the header of an option; `None` as long as it is not complete.
pub(super) fn parse_header(input: &[u8]) -> Result<Option<OptionHeader>, BadMagic> {
    let mut reader = Reader(input);
    let (Some(magic), Some(kind), Some(length)) = (reader.u64(), reader.u32(), reader.u32()) else {
        return Ok(None);
    };
    if magic == MAGIC_OPTION { Ok(Some(OptionHeader { kind, length })) } else { Err(BadMagic) }
}

/// The kinds of information that INFO or GO asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted(u32);

impl Wanted {
    fn add(&mut self, kind: u16) {
        if let Some(bit) = 1_u32.checked_shl(u32::from(kind)) {
            self.0 |= bit;
        }
    }

    fn has(self, kind: u16) -> bool {
        1_u32.checked_shl(u32::from(kind)).is_some_and(|bit| self.0 & bit != 0)
    }

    pub fn name(self) -> bool {
        self.has(info::NAME)
    }

    pub fn description(self) -> bool {
        self.has(info::DESCRIPTION)
    }

    pub fn block_size(self) -> bool {
        self.has(info::BLOCK_SIZE)
    }
}

/// The data of INFO and GO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExportQuery<'a> {
    pub name: &'a [u8],
    pub wanted: Wanted,
}

impl<'a> ExportQuery<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(data);
        let name = string(&mut reader)?;
        let count = reader.u16()?;
        let mut wanted = Wanted::default();
        for _ in 0..count {
            wanted.add(reader.u16()?);
        }
        reader.is_empty().then_some(Self { name, wanted })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextQuery<'a> {
    pub name: &'a [u8],
    /// One of the queries is exactly `base:allocation`.
    pub allocation: bool,
    /// One of the queries is `base:`, or there is no query at all: all that a listing shows.
    pub all: bool,
}

impl<'a> ContextQuery<'a> {
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(data);
        let name = string(&mut reader)?;
        let count = reader.u32()?;
        let mut query = Self { name, allocation: false, all: count == 0 };
        for _ in 0..count {
            let text = string(&mut reader)?;
            query.allocation |= text == ALLOCATION.as_bytes();
            query.all |= text == BASE_ALL;
        }
        reader.is_empty().then_some(query)
    }
}

/// A string that follows its length (32 bits).
fn string<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = reader.u32()?;
    let text = reader.bytes(length)?;
    (text.len() <= STRING_BYTES_MAX).then_some(text)
}
