//! The bytes of an image: a header, then sections, each a list of pages with their objects.
//!
//! ```text
//!   0         256
//!   │ header  │ section 0            │ section 1            │ …            │ section n-1 │ end
//!                 head 32 │ entries of 16 │ objects, one behind the other
//! ```
//!
//! 1. The checksum of a section begins with that of the one before it, and the header has the last
//!    one: a section of another image, or of another place, does not fit.
//! 2. Pages ascend through the whole image, and each is inside of the disk.
//! 3. What cannot be an image gives a [`Flaw`]; nothing here panics, whatever the bytes are.
//!
//! All integers are little endian. `docs/format.md` describes every field.

#![deny(clippy::indexing_slicing)]

use twox_hash::XxHash3_64;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 256;
/// Bytes of a section at most.
pub const SECTION_BYTES_MAX: usize = 1 << 20;
/// Codecs that objects of one image may be made by.
pub const CODECS_MAX: usize = 4;

const MAGIC: [u8; 8] = *b"FBZRAM\r\n";
const VERSION: u32 = 1;
const SECTION_MAGIC: u32 = 0x5345_435A;
const HEAD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 16;
const PAGE_BYTES: usize = 4096;
/// Bytes of the header before its checksum.
const HEADER_SUMMED: usize = HEADER_BYTES - 8;
const CODECS_AT: usize = 64;
/// Codec of a page that was kept as it is, or repeats a word.
const NO_CODEC: u8 = 0xFF;
const SAME: u8 = 1;
const AWAY: u8 = 2;

/// Why bytes are not an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// No image at all.
    #[error("it is no image of a compressed RAM disk: name a file that `forebay zram save` made")]
    Foreign,
    /// Of a later version.
    #[error("it is an image of version {0}, and this program knows version 1: use a newer one")]
    Version(u32),
    /// The header is damaged.
    #[error("it is an image whose header is damaged: use another copy of it")]
    Header,
    /// Shorter or longer than it was.
    #[error("it has {found} bytes and was saved with {saved}: use a whole copy of it")]
    Length {
        /// Bytes that there are.
        found: u64,
        /// Bytes that there were.
        saved: u64,
    },
    /// A section is not what was saved.
    #[error("it is damaged in section {0}: use another copy of it")]
    Section(u64),
    /// An object does not become a page.
    #[error("it does not hold page {0} as it says: use another copy of it")]
    Page(u64),
}

/// What objects of an image were made by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecMark {
    /// Number of the algorithm.
    pub algorithm: u32,
    /// Checksum of its dictionary; 0 without one.
    pub dictionary: u64,
}

/// The header of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pages of the disk, at most 2^32.
    pub pages: u64,
    /// Pages that the image holds.
    pub held: u64,
    /// Its sections.
    pub sections: u64,
    /// Bytes of the whole image.
    pub bytes: u64,
    /// Checksum of the last section; 0 without one.
    pub chain: u64,
    /// Codecs by number, 1 to 4.
    pub codecs: Vec<CodecMark>,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Header {
    /// Its bytes.
    ///
    /// # Panics
    /// When there are more than 4 codecs.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        assert!(self.codecs.len() <= CODECS_MAX, "an image has at most 4 codecs");
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::try_from(self.codecs.len()).expect("at most 4").to_le_bytes());
        for number in [self.pages, self.held, self.sections, self.bytes, self.chain, 0] {
            bytes.extend(number.to_le_bytes());
        }
        for codec in &self.codecs {
            bytes.extend(codec.algorithm.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(codec.dictionary.to_le_bytes());
        }
        bytes.resize(HEADER_SUMMED, 0);
        bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes.try_into().expect("the checksum fills the header")
    }

    /// Reads the first bytes of a file of `found` bytes.
    ///
    /// # Errors
    /// [`Flaw`].
    pub fn decode(bytes: &[u8], found: u64) -> Result<Self, Flaw> {
        let Some((magic, _)) = bytes.split_first_chunk() else { return Err(Flaw::Foreign) };
        if *magic != MAGIC {
            return Err(Flaw::Foreign);
        }
        let is_right = |summed: &&[u8]| u64_at(bytes, HEADER_SUMMED) == Some(XxHash3_64::oneshot(summed));
        let summed = bytes.get(..HEADER_SUMMED).filter(is_right).ok_or(Flaw::Header)?;
        if let Some(version) = u32_at(summed, 8).filter(|&version| version != VERSION) {
            return Err(Flaw::Version(version));
        }
        let header = Self::fields(summed).ok_or(Flaw::Header)?;
        if header.bytes != found {
            return Err(Flaw::Length { found, saved: header.bytes });
        }
        Ok(header)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let count = usize::try_from(u32_at(bytes, 12)?).ok().filter(|count| (1..=CODECS_MAX).contains(count))?;
        let mut codecs = Vec::with_capacity(count);
        for number in 0..count {
            let at = CODECS_AT + number * 16;
            codecs.push(CodecMark { algorithm: u32_at(bytes, at)?, dictionary: u64_at(bytes, at + 8)? });
        }
        let [pages, held, sections, length, chain] =
            [u64_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?, u64_at(bytes, 40)?, u64_at(bytes, 48)?];
        let fits = pages <= 1 << 32 && held <= pages && sections <= held && length >= HEADER_BYTES as u64;
        fits.then_some(Self { pages, held, sections, bytes: length, chain, codecs })
    }
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// This word, again and again.
    Same(u64),
    /// These 4096 bytes.
    Whole(&'a [u8; PAGE_BYTES]),
    /// What the codec of that number makes of this object.
    Packed {
        /// Its place in the header's list.
        codec: u8,
        /// 1 to 4095 bytes.
        object: &'a [u8],
    },
}

/// A page of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its number.
    pub page: u32,
    /// Whether it was on the backing device.
    pub away: bool,
    /// What it holds.
    pub content: Content<'a>,
}

impl Entry<'_> {
    fn object(&self) -> &[u8] {
        match self.content {
            Content::Same(_) => &[],
            Content::Whole(page) => page,
            Content::Packed { object, .. } => object,
        }
    }
}

/// Makes the sections of an image, in order.
#[derive(Debug, Default)]
pub struct Writer {
    entries: Vec<u8>,
    objects: Vec<u8>,
    sections: u64,
    held: u64,
    bytes: u64,
    chain: u64,
}

impl Writer {
    /// Whether a page of any content fits into the section that is being made.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Pages of any content that fit into it.
    #[must_use]
    pub fn room(&self) -> usize {
        SECTION_BYTES_MAX.saturating_sub(self.length()) / (ENTRY_BYTES + PAGE_BYTES)
    }

    fn length(&self) -> usize {
        HEAD_BYTES + self.entries.len() + self.objects.len()
    }

    /// Adds a page, whose number is above all before.
    ///
    /// # Panics
    /// When there is no room for it, or an object is not shorter than a page.
    pub fn push(&mut self, entry: &Entry<'_>) {
        assert!(self.has_room(), "who adds a page has looked for room");
        let object = entry.object();
        let (codec, word) = match entry.content {
            Content::Same(word) => (NO_CODEC, word),
            Content::Whole(_) => (NO_CODEC, 0),
            Content::Packed { codec, .. } => {
                assert!((1..PAGE_BYTES).contains(&object.len()), "an object is shorter than its page");
                (codec, 0)
            }
        };
        let same = if matches!(entry.content, Content::Same(_)) { SAME } else { 0 };
        self.entries.extend(entry.page.to_le_bytes());
        self.entries.extend(u16::try_from(object.len()).expect("at most 4096").to_le_bytes());
        self.entries.extend([codec, same | if entry.away { AWAY } else { 0 }]);
        self.entries.extend(word.to_le_bytes());
        self.objects.extend(object);
        self.held += 1;
    }

    /// Ends the section that is being made; its bytes, or `None` when it has no page.
    ///
    /// # Panics
    /// Never.
    pub fn section(&mut self) -> Option<Vec<u8>> {
        if self.entries.is_empty() {
            return None;
        }
        let length = self.length();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(SECTION_MAGIC.to_le_bytes());
        bytes.extend(u32::try_from(self.entries.len() / ENTRY_BYTES).expect("at most 1 MiB").to_le_bytes());
        bytes.extend(self.sections.to_le_bytes());
        bytes.extend(u32::try_from(length).expect("at most 1 MiB").to_le_bytes());
        bytes.extend([0; 4]);
        let head = XxHash3_64::oneshot_with_seed(self.chain, &bytes);
        bytes.extend([0; 8]);
        bytes.append(&mut self.entries);
        bytes.append(&mut self.objects);
        self.chain = XxHash3_64::oneshot_with_seed(head, bytes.get(HEAD_BYTES..).expect("the head stands before"));
        bytes.get_mut(HEAD_BYTES - 8..HEAD_BYTES).expect("just made").copy_from_slice(&self.chain.to_le_bytes());
        self.sections += 1;
        self.bytes += length as u64;
        Some(bytes)
    }

    /// The header of what was made.
    #[must_use]
    pub fn header(&self, pages: u64, codecs: Vec<CodecMark>) -> Header {
        let bytes = HEADER_BYTES as u64 + self.bytes;
        Header { pages, held: self.held, sections: self.sections, bytes, chain: self.chain, codecs }
    }
}

/// Reads the sections of an image, in order.
#[derive(Debug)]
pub struct Reader {
    header: Header,
    sections: u64,
    held: u64,
    chain: u64,
    /// Pages below this were seen.
    next: u64,
}

impl Reader {
    /// Begins with the header.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Self { header, sections: 0, held: 0, chain: 0, next: 0 }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the section that `bytes` begins with: its entries and its length, or `None` when it is not
    /// there in full.
    ///
    /// # Errors
    /// [`Flaw::Section`].
    pub fn section<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Vec<Entry<'a>>, usize)>, Flaw> {
        let flaw = Flaw::Section(self.sections);
        let Some((head, _)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = length_of(head, self.sections).filter(|_| self.sections < self.header.sections).ok_or(flaw)?;
        let Some(section) = bytes.get(..length) else { return Ok(None) };
        let entries = self.entries(section).ok_or(flaw)?;
        self.sections += 1;
        Ok(Some((entries, length)))
    }

    fn entries<'a>(&mut self, section: &'a [u8]) -> Option<Vec<Entry<'a>>> {
        let (head, body) = section.split_at_checked(HEAD_BYTES)?;
        let seed = XxHash3_64::oneshot_with_seed(self.chain, head.get(..HEAD_BYTES - 8)?);
        let chain = XxHash3_64::oneshot_with_seed(seed, body);
        if u64_at(head, HEAD_BYTES - 8)? != chain {
            return None;
        }
        let count = usize::try_from(u32_at(head, 4)?).ok()?;
        let (list, mut objects) = body.split_at_checked(count.checked_mul(ENTRY_BYTES)?)?;
        let (list, _) = list.as_chunks::<ENTRY_BYTES>();
        let mut entries = Vec::with_capacity(list.len());
        for bytes in list {
            let (entry, rest) = self.entry(bytes, objects)?;
            entries.push(entry);
            objects = rest;
        }
        self.chain = chain;
        self.held = self.held.checked_add(count as u64)?;
        (objects.is_empty() && count > 0 && self.held <= self.header.held).then_some(entries)
    }

    /// An entry, whose object is at the front of `objects`, and the objects behind that.
    fn entry<'a>(&mut self, bytes: &[u8; ENTRY_BYTES], objects: &'a [u8]) -> Option<(Entry<'a>, &'a [u8])> {
        let page = u32_at(bytes, 0)?;
        let [low, high, codec, flags] = u32_at(bytes, 4)?.to_le_bytes();
        let (object, rest) = objects.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
        let word = u64_at(bytes, 8)?;
        let content = match (flags & SAME, codec) {
            (SAME, NO_CODEC) if object.is_empty() => Content::Same(word),
            (0, NO_CODEC) if word == 0 => Content::Whole(object.try_into().ok()?),
            (0, codec) if word == 0 && usize::from(codec) < self.header.codecs.len() => {
                (1..PAGE_BYTES).contains(&object.len()).then_some(Content::Packed { codec, object })?
            }
            _ => return None,
        };
        let number = u64::from(page);
        if flags & !(SAME | AWAY) != 0 || number < self.next || number >= self.header.pages {
            return None;
        }
        self.next = number + 1;
        Some((Entry { page, away: flags & AWAY != 0, content }, rest))
    }

    /// Whether all was there.
    ///
    /// # Errors
    /// [`Flaw::Section`].
    pub fn finish(&self) -> Result<(), Flaw> {
        let header = &self.header;
        let all = (self.sections, self.held, self.chain) == (header.sections, header.held, header.chain);
        if all { Ok(()) } else { Err(Flaw::Section(self.sections)) }
    }
}

/// Bytes of the section of that number, by its head.
fn length_of(head: &[u8; HEAD_BYTES], number: u64) -> Option<usize> {
    let length = usize::try_from(u32_at(head, 16)?).ok()?;
    let right = u32_at(head, 0)? == SECTION_MAGIC && u64_at(head, 8)? == number && u32_at(head, 20)? == 0;
    (right && (HEAD_BYTES + ENTRY_BYTES..=SECTION_BYTES_MAX).contains(&length)).then_some(length)
}

#[cfg(test)]
mod tests;
