//! Freed blocks are discarded, many at a time, where the device can do that.
//!
//! ```text
//!   page gone ─▶ freed ── 256 of them ─▶ in runs of 16 blocks or more ─▶ discard ─▶ free
//!                  │                          └─ shorter ───────────────────────▶ free
//!                  └─ nothing else is free ───────────────────────────────────▶ free
//! ```
//!
//! 1. A block that is being discarded is not taken before that is over, so that no write is lost.
//! 2. A discard that fails is none: the block is free all the same.

use std::rc::Rc;

use forebay_block::{Ability, Bio, Extent, Limits, SectorCount, call};

use super::super::memory::PAGE;
use super::super::{PAGE_SECTORS, Zram};
use super::blocks::Run;
use super::fetch::block_sector;

/// Freed blocks that are worth a discard.
const READY: u64 = 256;
/// Blocks in a row that are.
const RUN_MIN: u64 = 16;

/// Blocks to which runs that a device discards must be aligned, where it can do that at all.
pub(super) fn grain(limits: &Limits) -> Option<u64> {
    let grain = u64::from(limits.discard_grain_bytes).div_ceil(PAGE as u64).max(1);
    (limits.discard == Ability::Native).then_some(grain)
}

/// The blocks of a run that a discard in units of `grain` can do something to, where they are enough.
fn aligned(run: Run, grain: u64) -> Option<Run> {
    let start = run.start.next_multiple_of(grain);
    let end = (run.start + run.count) / grain * grain;
    (start + RUN_MIN <= end).then(|| Run { start, count: end - start })
}

impl Zram {
    /// Discards blocks that became free, when there are enough.
    pub(in super::super) fn discard_freed(&self) {
        let Some(backing) = self.backing.as_ref().filter(|backing| !backing.discarding.get()) else { return };
        let Some(grain) = backing.discard_grain else { return };
        let mut pages = self.pages.borrow_mut();
        let blocks = pages.blocks.as_mut().expect("a disk with a backing device has its blocks");
        if blocks.freed() < READY {
            return;
        }
        let runs = blocks.take_freed();
        if runs.iter().any(|run| aligned(*run, grain).is_some()) {
            backing.discarding.set(true);
            let this = self.this.upgrade().expect("a disk is held by whoever uses it");
            self.discards.get().expect("jobs are made with the disk").start((this, runs));
        } else {
            for run in runs {
                blocks.free(run);
            }
        }
    }
}

/// Discards what is worth it of `runs`, and makes all of them free.
pub(in super::super) async fn discard((zram, runs): (Rc<Zram>, Vec<Run>)) {
    let backing = zram.backing.as_ref().expect("blocks are those of a backing device");
    let grain = backing.discard_grain.expect("only what can be discarded gets here");
    for run in runs {
        if let Some(part) = aligned(run, grain) {
            let extent = Extent::new(block_sector(part.start), SectorCount(part.count * PAGE_SECTORS));
            if call(&*backing.target, Bio::discard(extent)).await.status().is_ok() {
                backing.discards.set(backing.discards.get() + part.count);
            }
        }
        zram.pages.borrow_mut().blocks.as_mut().expect("as above").free(run);
    }
    backing.discarding.set(false);
    backing.ended.raise();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_to_what_the_device_discards() {
        let run = |start, count| Run { start, count };
        assert_eq!(aligned(run(5, 16), 1), Some(run(5, 16)));
        assert_eq!(aligned(run(5, 15), 1), None);
        assert_eq!(aligned(run(5, 60), 16), Some(run(16, 48)));
        assert_eq!((aligned(run(5, 26), 16), aligned(run(5, 16), 16)), (None, None));
    }

    #[test]
    fn only_devices_that_discard_by_themselves_are_asked() {
        let limits = Limits { discard_grain_bytes: 65_536, ..Limits::unlimited() };
        assert_eq!((grain(&limits), grain(&Limits::unlimited())), (Some(16), Some(1)));
        assert_eq!(grain(&Limits { discard: Ability::No, ..limits }), None);
    }
}
