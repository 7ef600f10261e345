//! The origin as people use it: `snapshot-origin`.
//!
//! While a snapshot is merged into it, this is what the merge shows. Its limits are those of the merge
//! then; who asked before goes on with what he knows, so no merge with coarser blocks is opened under it,
//! and discards are refused by the merge.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, Sector, SectorCount, Status, Target};

use super::Origin;
use crate::below::{BuildError, check_fit};

/// The origin as people use it while there are snapshots of it: `snapshot-origin`. While one is merged
/// into it, this is what the merge shows.
pub struct OriginFront {
    origin: Rc<Origin>,
    sectors: SectorCount,
    /// Whether it was said why requests fail.
    told: Cell<bool>,
}

impl OriginFront {
    /// The first `sectors` sectors of `origin`.
    ///
    /// # Errors
    /// When it does not have so many.
    pub fn new(origin: Rc<Origin>, sectors: SectorCount) -> Result<Self, BuildError> {
        check_fit("snapshot-origin", &**origin.device(), Sector(0), sectors)?;
        origin.fronts.set(origin.fronts.get() + 1);
        Ok(Self { origin, sectors, told: Cell::default() })
    }
}

impl Drop for OriginFront {
    fn drop(&mut self) {
        self.origin.fronts.set(self.origin.fronts.get() - 1);
    }
}

impl Target for OriginFront {
    fn kind(&self) -> &'static str {
        "snapshot-origin"
    }

    fn limits(&self) -> Limits {
        self.origin.merging().map_or_else(|| self.origin.device.limits(), |merge| merge.limits())
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if let Some(merge) = self.origin.merging() {
            return merge.submit(bio);
        }
        if bio.op() != Op::Flush && self.origin.unfinished.borrow().is_some() {
            if !self.told.replace(true) {
                tracing::error!("snapshot-origin: a merge into it is not finished: requests fail until that is open again");
            }
            return bio.end(Status::IoError);
        }
        match bio.op() {
            Op::Read | Op::Flush => self.origin.device.submit(bio),
            Op::Write | Op::Discard | Op::WriteZeroes => self.origin.change(bio),
        }
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        if self.origin.merging().is_some() || self.origin.unfinished.borrow().is_some() {
            return out.data(extent.count);
        }
        out.below(&*self.origin.device, extent);
    }
}
