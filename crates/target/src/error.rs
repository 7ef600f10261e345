//! Error: every bio ends with an I/O error, at once. For tests, and to fence off a damaged range.
//!
//! 1. Only a flush succeeds: there is nothing that it could lose, and a table with such a row must still be able to
//!    make the others durable. The kernel's target is never sent one.

use forebay_block::{Bio, Limits, Op, SectorCount, Status, Target};

/// A target on which everything fails.
pub struct Failing {
    sectors: SectorCount,
}

impl Failing {
    /// `sectors` sectors of errors.
    #[must_use]
    pub fn new(sectors: SectorCount) -> Self {
        Self { sectors }
    }
}

impl Target for Failing {
    fn kind(&self) -> &'static str {
        "error"
    }

    fn limits(&self) -> Limits {
        Limits::unlimited()
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        let nothing_to_lose = bio.op() == Op::Flush;
        bio.end(if nothing_to_lose { Status::Ok } else { Status::IoError });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::{extent, read, status_of, told, write};

    #[test]
    fn everything_but_a_flush_fails() {
        let target = Failing::new(SectorCount(8));
        let (read, _memory) = read(0, 1);
        let bios = [read, write(0, &[0; 512]), Bio::discard(extent(0, 8)), Bio::write_zeroes(extent(0, 8))];
        for bio in bios {
            assert_eq!(status_of(&target, bio), Status::IoError);
        }
        assert_eq!(told(&target, extent(0, 8)), [(8, false)], "no hole: reads give no zeroes");
        assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
        assert_eq!((target.sectors(), target.kind()), (SectorCount(8), "error"));
    }
}
