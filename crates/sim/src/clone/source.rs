//! The source of a clone: a simulated disk that tells where its holes are.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::allocation::Run;
use forebay_block::{Allocation, Bio, Extent, Limits, SectorCount, Target};

use crate::world::SimDisk;

/// A disk with holes.
pub(super) struct Source {
    disk: Rc<SimDisk>,
    /// In order, apart from each other, sectors.
    holes: Vec<Range<usize>>,
}

impl Source {
    pub(super) fn new(disk: Rc<SimDisk>, holes: Vec<Range<usize>>) -> Self {
        Self { disk, holes }
    }
}

impl Target for Source {
    fn kind(&self) -> &'static str {
        "source"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.disk.sectors()
    }

    fn submit(&self, bio: Bio) {
        self.disk.submit(bio);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let (mut at, end) = (extent.start.0, extent.end().0);
        for hole in &self.holes {
            let (first, last) = ((hole.start as u64).clamp(at, end), (hole.end as u64).clamp(at, end));
            out.data(SectorCount(first - at));
            out.tell(Run { count: SectorCount(last - first), hole: true });
            at = last;
        }
        out.data(SectorCount(end - at));
    }
}
