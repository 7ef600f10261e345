//! Units: positions and lengths on devices, and every conversion between them.
//!
//! A [`Sector`] is a position, a [`SectorCount`] a length; both are in units of 512 bytes whatever
//! the device's own block size is, as in the kernel's block layer. They never share a type.

use std::fmt;
use std::ops::{Add, Sub};

/// Bytes in a sector.
pub const SECTOR_BYTES: u32 = 512;
/// Base-2 logarithm of [`SECTOR_BYTES`].
pub const SECTOR_SHIFT: u32 = 9;

/// A position on a device, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorCount(pub u64);

impl Sector {
    /// The byte offset of this position.
    ///
    /// # Panics
    /// When the offset does not fit 64 bits; positions on real devices always do.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> u64 {
        self.0.checked_mul(u64::from(SECTOR_BYTES)).expect("a sector position beyond 2^55 is a bug")
    }

    /// The position that lies `bytes` into a device, when that is a whole sector.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        bytes.is_multiple_of(u64::from(SECTOR_BYTES)).then_some(Self(bytes >> SECTOR_SHIFT))
    }

    /// The length from `start` up to here, or `None` when `start` lies behind.
    #[must_use]
    #[inline]
    pub fn since(self, start: Sector) -> Option<SectorCount> {
        self.0.checked_sub(start.0).map(SectorCount)
    }
}

impl SectorCount {
    /// The length in bytes.
    ///
    /// # Panics
    /// When it does not fit 64 bits; lengths of real devices always do.
    #[must_use]
    #[inline]
    pub fn to_bytes(self) -> u64 {
        self.0.checked_mul(u64::from(SECTOR_BYTES)).expect("a length beyond 2^55 sectors is a bug")
    }

    /// The number of whole sectors in `bytes`, when nothing is left over.
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        bytes.is_multiple_of(u64::from(SECTOR_BYTES)).then_some(Self(bytes >> SECTOR_SHIFT))
    }
}

impl Add<SectorCount> for Sector {
    type Output = Sector;
    #[inline]
    fn add(self, count: SectorCount) -> Sector {
        Sector(self.0 + count.0)
    }
}

impl Add for SectorCount {
    type Output = SectorCount;
    #[inline]
    fn add(self, other: SectorCount) -> SectorCount {
        SectorCount(self.0 + other.0)
    }
}

impl Sub for SectorCount {
    type Output = SectorCount;
    #[inline]
    fn sub(self, other: SectorCount) -> SectorCount {
        SectorCount(self.0 - other.0)
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sector {}", self.0)
    }
}

impl fmt::Display for SectorCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors", self.0)
    }
}

/// A half-open run of sectors, `start..start + count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First sector.
    pub start: Sector,
    /// Length; may be zero.
    pub count: SectorCount,
}

impl Extent {
    /// The run of `count` sectors from `start`.
    #[must_use]
    #[inline]
    pub fn new(start: Sector, count: SectorCount) -> Self {
        Self { start, count }
    }

    /// The position just behind the run.
    #[must_use]
    #[inline]
    pub fn end(self) -> Sector {
        self.start + self.count
    }

    /// Whether the two runs share a sector.
    #[must_use]
    #[inline]
    pub fn overlaps(self, other: Extent) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Whether `other` lies wholly inside this run. Never panics, even at the end of the range.
    #[must_use]
    #[inline]
    pub fn contains(self, other: Extent) -> bool {
        other.start.0.checked_add(other.count.0).is_some_and(|end| self.start <= other.start && end <= self.end().0)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start.0, self.count.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_refuse_what_is_not_whole() {
        assert_eq!(Sector::from_bytes(1024), Some(Sector(2)));
        assert_eq!(Sector::from_bytes(1025), None);
        assert_eq!(SectorCount::from_bytes(511), None);
        assert_eq!(SectorCount(3).to_bytes(), 1536);
    }

    #[test]
    fn containment_does_not_wrap() {
        let device = Extent::new(Sector(0), SectorCount(100));
        assert!(device.contains(Extent::new(Sector(99), SectorCount(1))));
        assert!(!device.contains(Extent::new(Sector(99), SectorCount(2))));
        assert!(!device.contains(Extent::new(Sector(u64::MAX), SectorCount(2))));
    }
}
