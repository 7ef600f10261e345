//! The metadata of a clone, bytes to values and back: which regions are hydrated.
//!
//! ```text
//!  block     0            1            2 … 1+P             2+P … 1+2P           4096 bytes each
//!            │ superblock │ superblock │ first copies of   │ second copies of │
//!            │            │ again      │ pages 0 … P-1     │ pages 0 … P-1    │
//!
//!  page      0      4        8               16     32                                     4096
//!            │ CRC  │ number │ commit number │ zero │ a bit for each of 32512 regions      │
//!
//!  super     0       8         12               16             24        28     60    64
//!            │ magic │ version │ region sectors │ size sectors │ regions │ zero │ CRC │ zero … 4096
//! ```
//!
//! 1. All integers are little endian. A page's checksum is the CRC32C of everything behind it, the
//!    superblock's that of everything in front.
//! 2. Bit `b` of byte `32 + i` of page `p` is region `32512 p + 8 i + b`; 1 is hydrated. Bits behind
//!    the last region are 0.
//! 3. Bits are only ever set. So of two copies the newer has every bit of the older, and taking the
//!    older never claims a region that is not hydrated.
//! 4. Decoding accepts exactly what encoding gives.
//!
//! Units: sectors are 512 bytes.
//!
//! Errors: [`FormatError`]. Nothing here panics for what a device holds. The order in which copies are
//! written is [`commit`](super)'s.

#![deny(clippy::indexing_slicing)]

use forebay_block::{Sector, SectorCount};
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Bytes of a superblock, and of a page.
pub const PAGE_BYTES: usize = 4096;
/// Words of bits in a page.
pub const PAGE_WORDS: usize = (PAGE_BYTES - PAGE_HEAD_BYTES) / 8;
/// Regions of a page.
pub const PAGE_REGIONS: u32 = 32_512;
/// Most regions of a clone.
pub const REGIONS_MAX: u64 = 1 << 31;
/// Smallest and largest region, sectors.
pub const REGION_SECTORS: std::ops::RangeInclusive<u32> = 8..=2_097_152;

const PAGE_SECTORS: u64 = PAGE_BYTES as u64 / 512;
const PAGE_HEAD_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"FBAYCLON";
const VERSION: u32 = 1;
const SUPER_CRC_AT: usize = 60;
/// Where the kernel's `dm-clone` has its magic, and what it is.
const KERNEL_MAGIC_AT: usize = 32;
const KERNEL_MAGIC: u64 = 0x8af2_7f64;

const _: () = assert!(PAGE_WORDS * 64 == PAGE_REGIONS as usize);

/// Why what a device holds is not the metadata of this clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FormatError {
    /// It holds something else.
    #[error("it holds something that is no clone metadata: zero its first 8 KiB to begin a new clone")]
    Foreign,
    /// It was made by a kernel.
    #[error("it holds the metadata of a kernel's dm-clone, which is not read here: give another device")]
    Kernel,
    /// A version to come.
    #[error("its version is {found}, and only version 1 is known")]
    Version {
        /// The version found.
        found: u32,
    },
    /// The superblocks do not add up.
    #[error("its superblocks are damaged")]
    Super,
    /// Another region size.
    #[error("it belongs to a clone with regions of {found} sectors, and the table says {wanted}: use its region size")]
    Region {
        /// What it has.
        found: u32,
        /// What the table says.
        wanted: u32,
    },
    /// Another size.
    #[error("it belongs to a clone of {found} sectors, and the table says {wanted}: use its length, or another device")]
    Size {
        /// What it has.
        found: u64,
        /// What the table says.
        wanted: u64,
    },
    /// Neither copy of a page is intact.
    #[error("both copies of page {page} are damaged: which regions are hydrated is not known any more")]
    Page {
        /// Which, from 0.
        page: u32,
    },
}

/// Why a clone cannot have the shape that a table line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// Not a size that a region can have.
    #[error("Invalid region size: {0} is not a power of two from 8 to 2097152")]
    Region(u64),
    /// Too many of them.
    #[error("Too many regions: {0}, and at most 2147483648 fit; use a larger region size")]
    Count(u64),
}

/// The shape of a clone, and where its metadata lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    region_sectors: u32,
    sectors: u64,
    regions: u32,
}

impl Geometry {
    /// The shape of a clone of `sectors` in regions of `region_sectors`; the last one may be shorter.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn new(sectors: SectorCount, region_sectors: u64) -> Result<Self, ShapeError> {
        let region = u32::try_from(region_sectors).ok().filter(|size| size.is_power_of_two() && REGION_SECTORS.contains(size));
        let region = region.ok_or(ShapeError::Region(region_sectors))?;
        let regions = sectors.0.div_ceil(region_sectors);
        if regions > REGIONS_MAX {
            return Err(ShapeError::Count(regions));
        }
        let regions = u32::try_from(regions).map_err(|_| ShapeError::Count(regions))?;
        Ok(Self { region_sectors: region, sectors: sectors.0, regions })
    }

    /// Sectors of a region.
    #[must_use]
    pub fn region_sectors(&self) -> u32 {
        self.region_sectors
    }

    /// Size of the clone.
    #[must_use]
    pub fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors)
    }

    /// How many regions there are.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.regions
    }

    /// How many pages the bits take.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.regions.div_ceil(PAGE_REGIONS)
    }

    /// Blocks of 4096 bytes that the metadata takes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        2 + 2 * u64::from(self.pages())
    }

    /// Where a superblock lies.
    #[must_use]
    pub fn superblock(place: Place) -> Sector {
        Sector(match place {
            Place::First => 0,
            Place::Second => PAGE_SECTORS,
        })
    }

    /// Where a copy of a page lies.
    #[must_use]
    pub fn page(&self, place: Place, page: u32) -> Sector {
        let before = match place {
            Place::First => 0,
            Place::Second => u64::from(self.pages()),
        };
        Sector((2 + before + u64::from(page)) * PAGE_SECTORS)
    }

    /// Regions whose bits stand in `page`.
    fn regions_of(&self, page: u32) -> u32 {
        let before = u64::from(page) * u64::from(PAGE_REGIONS);
        let left = u64::from(self.regions).saturating_sub(before).min(u64::from(PAGE_REGIONS));
        u32::try_from(left).unwrap_or(PAGE_REGIONS)
    }

    /// Writes the superblock to a zeroed block.
    ///
    /// # Panics
    /// When `to` has less than [`PAGE_BYTES`].
    pub fn encode(&self, to: &mut [u8]) {
        put(to, 0, &MAGIC);
        put(to, 8, &VERSION.to_le_bytes());
        put(to, 12, &self.region_sectors.to_le_bytes());
        put(to, 16, &self.sectors.to_le_bytes());
        put(to, 24, &self.regions.to_le_bytes());
        seal_superblock(to);
    }

    /// Reads a superblock; `None` where it is not an intact one of version 1.
    fn decode(block: &[u8]) -> Option<Self> {
        let (head, rest) = block.split_at_checked(SUPER_CRC_AT)?;
        let zeroes = head.get(28..)?.iter().chain(rest.get(4..)?);
        let intact = block.len() == PAGE_BYTES
            && head.starts_with(&MAGIC)
            && word(head, 8)? == VERSION
            && word(rest, 0)? == crc32c::crc32c(head)
            && zeroes.clone().all(|&byte| byte == 0);
        let shape = Self::new(SectorCount(double(head, 16)?), u64::from(word(head, 12)?)).ok()?;
        (intact && shape.regions == word(head, 24)?).then_some(shape)
    }
}

/// Which of the two places of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Written first in a commit.
    First,
    /// Written after the first is durable.
    Second,
}

impl Place {
    /// Both.
    pub const ALL: [Place; 2] = [Place::First, Place::Second];
}

/// What the first two blocks of a metadata device say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// Nothing was ever written.
    Fresh,
    /// It holds the metadata of this clone; `mend` where one superblock is to be written again.
    Formatted {
        /// Whether a superblock is to be written again.
        mend: bool,
    },
}

impl Media {
    /// Judges the two superblocks of the metadata of a clone of the shape `wanted`.
    ///
    /// # Errors
    /// [`FormatError`] when they are something else, damaged, or of another clone.
    pub fn read(first: &[u8], second: &[u8], wanted: &Geometry) -> Result<Self, FormatError> {
        let found = match (Geometry::decode(first), Geometry::decode(second)) {
            (Some(one), Some(other)) if one != other => return Err(FormatError::Super),
            (Some(found), _) | (_, Some(found)) => found,
            (None, None) => return Self::without_superblock(first, second),
        };
        if found.region_sectors != wanted.region_sectors {
            return Err(FormatError::Region { found: found.region_sectors, wanted: wanted.region_sectors });
        }
        if found.sectors != wanted.sectors {
            return Err(FormatError::Size { found: found.sectors, wanted: wanted.sectors });
        }
        Ok(Self::Formatted { mend: first != second })
    }

    fn without_superblock(first: &[u8], second: &[u8]) -> Result<Self, FormatError> {
        let blocks = [first, second];
        if blocks.iter().all(|block| block.iter().all(|&byte| byte == 0)) {
            return Ok(Self::Fresh);
        }
        if double(first, KERNEL_MAGIC_AT) == Some(KERNEL_MAGIC) {
            return Err(FormatError::Kernel);
        }
        let ours = blocks.into_iter().find(|block| block.starts_with(&MAGIC)).ok_or(FormatError::Foreign)?;
        let crc_fits = word(ours, SUPER_CRC_AT) == ours.get(..SUPER_CRC_AT).map(crc32c::crc32c);
        match word(ours, 8) {
            Some(found) if found != VERSION && crc_fits => Err(FormatError::Version { found }),
            _ => Err(FormatError::Super),
        }
    }
}

/// The bits of a page, and in which commit they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Number of the commit; only grows.
    pub commit: u64,
    /// [`PAGE_WORDS`] words; bit `b` of word `w` is region `64 w + b` of the page.
    pub bits: Vec<u64>,
}

impl Page {
    /// Writes page `number` with these bits to a zeroed block.
    ///
    /// # Panics
    /// When `to` has less than [`PAGE_BYTES`], or there are more than [`PAGE_WORDS`] words.
    pub fn encode(number: u32, commit: u64, bits: &[u64], to: &mut [u8]) {
        put(to, 4, &number.to_le_bytes());
        put(to, 8, &commit.to_le_bytes());
        for (at, bits) in bits.iter().enumerate() {
            put(to, PAGE_HEAD_BYTES + 8 * at, &bits.to_le_bytes());
        }
        seal_page(to);
    }

    /// Reads page `number` of a clone of shape `geometry`; `None` where the block is not that page,
    /// intact.
    #[must_use]
    pub fn decode(block: &[u8], number: u32, geometry: &Geometry) -> Option<Self> {
        let rest = block.get(4..PAGE_BYTES)?;
        let intact = block.len() == PAGE_BYTES
            && word(block, 0)? == crc32c::crc32c(rest)
            && word(block, 4)? == number
            && block.get(16..PAGE_HEAD_BYTES)?.iter().all(|&byte| byte == 0);
        let (words, _) = block.get(PAGE_HEAD_BYTES..)?.as_chunks::<8>();
        let bits: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut last = u64::from(geometry.regions_of(number));
        let beyond = bits.iter().any(|bits| {
            let inside = if last >= 64 { u64::MAX } else { (1 << last) - 1 };
            last = last.saturating_sub(64);
            bits & !inside != 0
        });
        (intact && !beyond).then_some(Self { commit: double(block, 8)?, bits })
    }

    /// The page that counts of its two copies, and which of them must be written again.
    ///
    /// # Errors
    /// [`FormatError::Page`] when neither is intact, or they contradict each other.
    pub fn choose(first: Option<Self>, second: Option<Self>, page: u32) -> Result<(Self, Option<Place>), FormatError> {
        let damaged = FormatError::Page { page };
        match (first, second) {
            (Some(first), None) => Ok((first, Some(Place::Second))),
            (None, Some(second)) => Ok((second, Some(Place::First))),
            (Some(first), Some(second)) if first == second => Ok((first, None)),
            (Some(first), Some(second)) if first.follows(&second) => Ok((first, Some(Place::Second))),
            (Some(first), Some(second)) if second.follows(&first) => Ok((second, Some(Place::First))),
            (None, None) | (Some(_), Some(_)) => Err(damaged),
        }
    }

    /// Whether this can be a later state of `earlier`.
    fn follows(&self, earlier: &Self) -> bool {
        self.commit > earlier.commit && earlier.bits.iter().zip(&self.bits).all(|(earlier, later)| earlier & !later == 0)
    }
}

/// Puts the right checksum into a superblock.
///
/// # Panics
/// When `block` has less than [`PAGE_BYTES`].
pub fn seal_superblock(block: &mut [u8]) {
    let crc = crc32c::crc32c(block.get(..SUPER_CRC_AT).expect("a superblock is a block"));
    put(block, SUPER_CRC_AT, &crc.to_le_bytes());
}

/// Puts the right checksum into a page.
///
/// # Panics
/// When `block` has less than [`PAGE_BYTES`].
pub fn seal_page(block: &mut [u8]) {
    let crc = crc32c::crc32c(block.get(4..PAGE_BYTES).expect("a page is a block"));
    put(block, 0, &crc.to_le_bytes());
}

fn put(to: &mut [u8], at: usize, field: &[u8]) {
    let place = to.get_mut(at..at + field.len()).expect("the block was made large enough");
    place.copy_from_slice(field);
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|field| u32::from_le_bytes(*field))
}

fn double(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|field| u64::from_le_bytes(*field))
}
