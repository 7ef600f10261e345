//! Linear: a run of sectors of another target, from sector 0.
//!
//! ```text
//!   linear      0 ────────── sectors
//!   below    offset ─── offset + sectors
//! ```
//!
//! A bio is moved and passed on; nothing is kept, nothing waits. A flush flushes all that is below.
//! Chunk limits pass through as they are: with an offset that is no multiple of the chunk they are
//! only a hint, and the device below, which counts from its own start, cuts where it must.

use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, Sector, SectorCount, Target};

use crate::below::{BuildError, check_fit};

/// A run of sectors of another target.
pub struct Linear {
    below: Rc<dyn Target>,
    offset: Sector,
    sectors: SectorCount,
}

impl Linear {
    /// The `sectors` sectors of `below` from `offset` on.
    ///
    /// # Errors
    /// When they are not inside of `below`, or do not start and end on its logical blocks.
    pub fn new(below: Rc<dyn Target>, offset: Sector, sectors: SectorCount) -> Result<Self, BuildError> {
        check_fit("linear", &*below, offset, sectors)?;
        Ok(Self { below, offset, sectors })
    }
}

impl Target for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if bio.op() == Op::Flush {
            return self.below.submit(bio);
        }
        let sector = Sector(self.offset.0 + bio.sector().0);
        self.below.submit(bio.remap(sector));
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.below(&*self.below, Extent::new(self.offset + SectorCount(extent.start.0), extent.count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::{Disk, content, extent, read, status_of, told, write};
    use forebay_block::Status;

    #[test]
    fn everything_but_a_flush_is_moved_by_the_offset() {
        let disk = Disk::new(100);
        let linear = Linear::new(disk.clone(), Sector(40), SectorCount(20)).unwrap();
        assert_eq!(status_of(&linear, write(3, &[7; 1024])), Status::Ok);
        assert_eq!(status_of(&linear, Bio::discard(extent(10, 2))), Status::Ok);
        assert_eq!(status_of(&linear, Bio::write_zeroes(extent(0, 1))), Status::Ok);
        assert_eq!(status_of(&linear, Bio::flush()), Status::Ok);
        let (bio, bytes) = read(4, 1);
        assert_eq!(status_of(&linear, bio), Status::Ok);
        assert_eq!(content(bytes), [7; 512]);
        let expected = [
            (Op::Write, extent(43, 2)),
            (Op::Discard, extent(50, 2)),
            (Op::WriteZeroes, extent(40, 1)),
            (Op::Flush, extent(0, 0)),
            (Op::Read, extent(44, 1)),
        ];
        assert_eq!(disk.take_seen(), expected);
        assert_eq!(linear.sectors(), SectorCount(20));
    }

    #[test]
    fn holes_are_those_of_the_run() {
        let disk = Disk::new(100);
        disk.bytes.borrow_mut()[45 * 512..50 * 512].fill(1);
        let linear = Linear::new(disk, Sector(40), SectorCount(20)).unwrap();
        assert_eq!(told(&linear, extent(0, 20)), [(5, true), (5, false), (10, true)]);
        assert_eq!(told(&linear, extent(9, 2)), [(1, false), (1, true)]);
    }

    #[test]
    fn what_does_not_fit_below_is_refused() {
        let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
        let disk = Disk::with_limits(96, limits);
        let error = |offset, sectors| Linear::new(disk.clone(), Sector(offset), SectorCount(sectors)).err().unwrap().to_string();
        assert_eq!(error(0, 0), "linear: length is 0: give at least 1");
        let outside = "linear: sectors 90+7 do not fit the 96 sectors below: choose a smaller length or offset";
        assert_eq!(error(90, 7), outside);
        assert!(error(u64::MAX, 8).starts_with("linear: sectors 18446744073709551615+8 do not fit"));
        assert_eq!(error(4, 8), "linear: offset 4 is not a multiple of 8");
        assert_eq!(error(8, 12), "linear: length 12 is not a multiple of 8");
    }
}
