//! The write log's format, bytes to values and back: a pure part that does no I/O.
//!
//! ```text
//!   sector 0      super
//!   sector 1      entry 0: head, then its mark text, then zeroes up to a sector
//!   …             entry 0: the data that was written, whole sectors (not for discards and marks)
//!   …             entry 1: head, data; and so on without gap
//!
//!   super  0      8        16       24    28          head   0       8        16     24        32
//!          magic │version │entries │unit │zeroes             sector │sectors │flags │mark len │mark text, zeroes
//! ```
//!
//! Everything is little-endian. A sector here has the size that the super tells (`unit`, bytes), and
//! sector numbers and counts of entries are in that size. The format is the one of the kernel's
//! `log-writes` target, version 1, so that tools which replay its logs take these as well. A replayer
//! takes a head with no flags and no sectors, or a head other than a mark with a byte behind it, for
//! damage; so does [`Log`].
//!
//! Source: `Documentation/admin-guide/device-mapper/log-writes.rst`.
#![deny(clippy::indexing_slicing)]

/// First eight bytes of a log.
pub const MAGIC: u64 = 0x006a_7366_7773_6872;
/// The only version there is.
pub const VERSION: u64 = 1;
/// Bytes of a head in front of its mark text.
pub const HEAD_BYTES: usize = 32;

/// A flush, or a write that flushed before.
pub const FLUSH: u64 = 1;
/// A write that was durable when it ended.
pub const FUA: u64 = 1 << 1;
/// A discard; no data follows.
pub const DISCARD: u64 = 1 << 2;
/// A mark set by a user; its text is in the head's sector.
pub const MARK: u64 = 1 << 3;
/// A write of file-system metadata.
pub const METADATA: u64 = 1 << 4;

const FLAGS_KNOWN: u64 = FLUSH | FUA | DISCARD | MARK | METADATA;

/// Why bytes are not a log. Entries count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Too short for a super.
    #[error("the log is shorter than its super: it was never started, or cut")]
    NoSuper,
    /// The magic is another.
    #[error("this is not a write log: magic {0:#x}")]
    Magic(u64),
    /// The version is another.
    #[error("the write log has version {0}, and only version 1 is known")]
    Version(u64),
    /// A sector size that cannot be.
    #[error("the write log has sectors of {0} bytes, which is no power of two from 512 to 65536")]
    SectorBytes(u32),
    /// The log ends inside an entry.
    #[error("the write log ends inside entry {0}: copy all of it")]
    Truncated(u64),
    /// An entry that says what cannot be.
    #[error("entry {0} of the write log is damaged")]
    Entry(u64),
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*field))
}

fn put(to: &mut [u8], at: usize, field: &[u8]) {
    let place = to.get_mut(at..at + field.len()).expect("the sector was made large enough");
    place.copy_from_slice(field);
}

/// The first sector of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Entries that are surely there.
    pub entries: u64,
    /// Bytes of a sector of this log.
    pub sector_bytes: u32,
}

impl Super {
    /// Writes the super to the start of a zeroed sector.
    ///
    /// # Panics
    /// When `to` is shorter than 28 bytes.
    pub fn encode(self, to: &mut [u8]) {
        put(to, 0, &MAGIC.to_le_bytes());
        put(to, 8, &VERSION.to_le_bytes());
        put(to, 16, &self.entries.to_le_bytes());
        put(to, 24, &self.sector_bytes.to_le_bytes());
    }

    /// Reads the super at the start of `bytes`.
    ///
    /// # Errors
    /// [`FormatError`] says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let field = |at| number(bytes, at).ok_or(FormatError::NoSuper);
        let (magic, version, entries) = (field(0)?, field(8)?, field(16)?);
        let sector_bytes = bytes.get(24..).and_then(<[u8]>::first_chunk).ok_or(FormatError::NoSuper)?;
        let sector_bytes = u32::from_le_bytes(*sector_bytes);
        if magic != MAGIC {
            return Err(FormatError::Magic(magic));
        }
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        if !sector_bytes.is_power_of_two() || !(512..=65_536).contains(&sector_bytes) {
            return Err(FormatError::SectorBytes(sector_bytes));
        }
        Ok(Self { entries, sector_bytes })
    }
}

/// The head of an entry; positions and lengths in sectors of the log's own size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// First sector that was written on the device.
    pub sector: u64,
    /// Sectors that were written.
    pub sectors: u64,
    /// [`FLUSH`], [`FUA`], [`DISCARD`], [`MARK`], [`METADATA`].
    pub flags: u64,
    /// Bytes of mark text behind the head.
    pub mark_bytes: u64,
}

impl Head {
    /// Writes the head to the start of a zeroed sector.
    ///
    /// # Panics
    /// When `to` is shorter than [`HEAD_BYTES`].
    pub fn encode(self, to: &mut [u8]) {
        put(to, 0, &self.sector.to_le_bytes());
        put(to, 8, &self.sectors.to_le_bytes());
        put(to, 16, &self.flags.to_le_bytes());
        put(to, 24, &self.mark_bytes.to_le_bytes());
    }

    fn decode(sector: &[u8]) -> Option<Self> {
        Some(Self {
            sector: number(sector, 0)?,
            sectors: number(sector, 8)?,
            flags: number(sector, 16)?,
            mark_bytes: number(sector, 24)?,
        })
    }

    /// Sectors of data behind the head's own.
    #[must_use]
    pub fn data_sectors(self) -> u64 {
        if self.flags & DISCARD == 0 { self.sectors } else { 0 }
    }

    /// Whether it could have been written; `text` is what follows it in its sector.
    fn is_sound(self, text: &[u8]) -> bool {
        let is_mark = self.flags & MARK != 0;
        let says_something = self.flags != 0 || self.sectors > 0;
        let text_fits = self.mark_bytes <= text.len() as u64;
        let text_belongs = is_mark || (self.mark_bytes == 0 && text.first().is_none_or(|byte| *byte == 0));
        let mark_is_alone = !is_mark || self.sectors == 0;
        let range_fits = self.sector.checked_add(self.sectors).is_some();
        self.flags & !FLAGS_KNOWN == 0 && says_something && text_fits && text_belongs && mark_is_alone && range_fits
    }
}

/// One entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What happened, where.
    pub head: Head,
    /// What was written.
    pub bytes: &'a [u8],
    /// The text of a mark.
    pub mark: &'a [u8],
    /// Bytes of a sector of this log.
    pub sector_bytes: u32,
}

impl Entry<'_> {
    /// Does to `disk` what the entry tells; discarded ranges become zeroes. False when the range is
    /// not inside of `disk`, which then stays as it was.
    pub fn apply(&self, disk: &mut [u8]) -> bool {
        let unit = u64::from(self.sector_bytes);
        let range = self.head.sector.checked_mul(unit).zip(self.head.sectors.checked_mul(unit));
        let place = range.and_then(|(start, bytes)| {
            let start = usize::try_from(start).ok()?;
            disk.get_mut(start..start.checked_add(usize::try_from(bytes).ok()?)?)
        });
        match place {
            Some(place) if self.head.flags & DISCARD != 0 => place.fill(0),
            Some(place) if place.len() == self.bytes.len() => place.copy_from_slice(self.bytes),
            _ => return false,
        }
        true
    }
}

/// The entries of a log that is in memory, in order; stops behind the first error.
pub struct Log<'a> {
    shape: Super,
    rest: &'a [u8],
    number: u64,
}

impl<'a> Log<'a> {
    /// Reads the super.
    ///
    /// # Errors
    /// As [`Super::decode`].
    pub fn open(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let shape = Super::decode(bytes)?;
        let rest = bytes.get(shape.sector_bytes as usize..).ok_or(FormatError::NoSuper)?;
        Ok(Self { shape, rest, number: 0 })
    }

    /// The super.
    #[must_use]
    pub fn shape(&self) -> Super {
        self.shape
    }

    fn take(&mut self, sectors: u64) -> Option<&'a [u8]> {
        let bytes = sectors.checked_mul(u64::from(self.shape.sector_bytes))?;
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn entry(&mut self) -> Result<Entry<'a>, FormatError> {
        let cut = FormatError::Truncated(self.number);
        let sector = self.take(1).ok_or(cut)?;
        let head = Head::decode(sector).ok_or(cut)?;
        let text = sector.get(HEAD_BYTES..).ok_or(cut)?;
        if !head.is_sound(text) {
            return Err(FormatError::Entry(self.number));
        }
        let bytes = self.take(head.data_sectors()).ok_or(cut)?;
        let mark = usize::try_from(head.mark_bytes).ok().and_then(|len| text.get(..len)).ok_or(cut)?;
        Ok(Entry { head, bytes, mark, sector_bytes: self.shape.sector_bytes })
    }
}

impl<'a> Iterator for Log<'a> {
    type Item = Result<Entry<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.number >= self.shape.entries {
            return None;
        }
        let entry = self.entry();
        self.number = if entry.is_ok() { self.number + 1 } else { u64::MAX };
        Some(entry)
    }
}

#[cfg(test)]
mod tests;
