//! Error: every bio ends with an I/O error, at once. For tests, and to fence off a damaged range.

use forebay_block::{Bio, Limits, SectorCount, Status, Target};

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
        bio.end(Status::IoError);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::{extent, read, status_of, told, write};

    #[test]
    fn everything_fails() {
        let target = Failing::new(SectorCount(8));
        let (read, _memory) = read(0, 1);
        let bios = [read, write(0, &[0; 512]), Bio::flush(), Bio::discard(extent(0, 8)), Bio::write_zeroes(extent(0, 8))];
        for bio in bios {
            assert_eq!(status_of(&target, bio), Status::IoError);
        }
        assert_eq!(told(&target, extent(0, 8)), [(8, false)], "no hole: reads give no zeroes");
        assert_eq!((target.sectors(), target.kind()), (SectorCount(8), "error"));
    }
}
