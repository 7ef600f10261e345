//! Requests of a clone: reads, writes, zeroes, discards, flushes.
//!
//! ```text
//!   write      ░░░░│████│████│██░░      ░ copied from the source first, with █ over it after that
//!              cold partial   whole      whole regions are written without a copy
//! ```
//!
//! What touches hydrated regions only is passed on as it is. A change of cold ones is a job that holds
//! their locks. The invariants are those of the parent module.

use std::ops::Range;

use forebay_block::{Bio, Extent, Op, Status};

use super::{CloneTarget, common};
use crate::copy::{Engine, How, Leg, Outcome};
use crate::lock::LockRange;

impl CloneTarget {
    pub(super) fn read(&self, bio: Bio) {
        let touched = self.touched(bio.extent());
        let (hydrated, end) = self.regions.borrow().run(touched.clone());
        if end == touched.end {
            if !hydrated {
                self.was_read(touched);
            }
            return self.pass(bio, if hydrated { &self.destination } else { &self.source });
        }
        if bio.flags().no_wait {
            return bio.end(Status::Again);
        }
        self.pass_untimed(bio, |bio| self.read_mixed(bio, touched));
    }

    /// Reads each run of regions from where it is.
    fn read_mixed(&self, bio: Bio, touched: Range<u32>) {
        let Range { mut start, end } = touched;
        while start < end {
            let (hydrated, run_end) = self.regions.borrow().run(start..end);
            let below = if hydrated { &self.destination } else { &self.source };
            if !hydrated {
                self.was_read(start..run_end);
            }
            let extent = common(self.extent(&(start..run_end)), bio.extent());
            below.target.submit(part(&bio, extent));
            start = run_end;
        }
        bio.end_after_parts();
    }

    /// A write, or zeroes.
    pub(super) fn write(&self, bio: Bio) {
        let touched = self.touched(bio.extent());
        let regions = self.regions.borrow();
        let (hydrated, committed) = (regions.all_hydrated(touched.clone()), regions.all_committed(touched));
        drop(regions);
        if hydrated && (committed || !bio.flags().fua) {
            if !committed {
                self.commits.owe();
            }
            return self.pass(bio, &self.destination);
        }
        self.start_change(bio);
    }

    pub(super) fn discard(&self, bio: Bio) {
        let hydrated = self.regions.borrow().all_hydrated(self.touched(bio.extent()));
        match (hydrated, self.passes_discards()) {
            (false, _) => self.start_change(bio),
            (true, true) => self.pass_untimed(bio, |bio| self.destination.target.submit(bio)),
            (true, false) => bio.end(Status::Ok),
        }
    }

    fn start_change(&self, bio: Bio) {
        if bio.flags().no_wait {
            return bio.end(Status::Again);
        }
        self.start(bio);
    }

    /// A change of regions that were not all durably hydrated when it came.
    pub(super) async fn change(&self, bio: Bio) {
        let touched = self.touched(bio.extent());
        let guard = self.locks.lock(LockRange::new(u64::from(touched.start), u64::from(touched.end - touched.start))).await;
        let cold = !self.regions.borrow().all_hydrated(touched.clone());
        let status = match bio.op() {
            _ if cold && self.latched.get() => Status::IoError,
            Op::Discard => self.discard_cold(&bio, &touched).await,
            _ => self.write_cold(&bio, &touched).await,
        };
        drop(guard);
        self.hydration.work.raise();
        let durable = !bio.flags().fua || bio.op() == Op::Discard || self.regions.borrow().all_committed(touched);
        if status.is_ok() && !durable {
            return self.end_with_commit(bio);
        }
        bio.end(status);
    }

    async fn write_cold(&self, bio: &Bio, touched: &Range<u32>) -> Status {
        let covered = self.covered(bio.extent());
        for region in self.edges(touched, &covered) {
            let status = self.hydrate_here(region).await;
            if !status.is_ok() {
                return status;
            }
        }
        self.destination.target.submit(bio.part(0, bio.bytes()));
        let status = bio.parts_done().await;
        if status.is_ok() {
            self.commits.owe();
            self.mark(covered);
        }
        status
    }

    /// Copies a region that somebody waits for, unless it is hydrated.
    async fn hydrate_here(&self, region: u32) -> Status {
        if self.regions.borrow().is_hydrated(region) {
            return Status::Ok;
        }
        let _counted = self.hydration.count(1);
        let extent = self.extent(&(region..region + 1));
        let status = self.copy(&self.foreground, extent, &How::default()).await.status();
        if status.is_ok() {
            self.hydration.was_waited_for();
            self.mark(region..region + 1);
        }
        status
    }

    /// Copies `extent` from the source to the destination.
    pub(super) async fn copy(&self, engine: &Engine, extent: Extent, how: &How) -> Outcome {
        let from = Leg { sector: extent.start, ..self.source.clone() };
        let to = [Leg { sector: extent.start, ..self.destination.clone() }];
        // A large future for something that moves a region: on the heap it does not swell whoever waits.
        Box::pin(engine.copy(&from, &to, extent.count, how)).await
    }

    /// Cold regions that are touched and not covered: at most the first and the last.
    fn edges(&self, touched: &Range<u32>, covered: &Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let (first, last) = (touched.start, touched.end - 1);
        let regions = self.regions.borrow();
        let is_edge = |region: u32| !covered.contains(&region) && !regions.is_hydrated(region);
        let edges = [is_edge(first).then_some(first), (last != first && is_edge(last)).then_some(last)];
        edges.into_iter().flatten()
    }

    /// A discard makes the regions that it covers hydrated without a copy. Of cold regions that it
    /// covers in part nothing is discarded.
    async fn discard_cold(&self, bio: &Bio, touched: &Range<u32>) -> Status {
        let covered = self.covered(bio.extent());
        let mut regions = touched.clone();
        for edge in self.edges(touched, &covered) {
            if edge == regions.start { regions.start += 1 } else { regions.end -= 1 }
        }
        if !regions.is_empty() && self.passes_discards() {
            let extent = common(self.extent(&regions), bio.extent());
            self.destination.target.submit(part(bio, extent));
            let status = bio.parts_done().await;
            if !status.is_ok() {
                return status;
            }
        }
        self.mark(covered);
        Status::Ok
    }
}

/// The part of `bio` over `extent`, which lies inside of it.
fn part(bio: &Bio, extent: Extent) -> Bio {
    let skip = extent.start.since(bio.sector()).expect("a part of a request begins inside of it");
    bio.part(skip.to_bytes(), extent.count.to_bytes())
}

#[cfg(test)]
pub(super) mod tests;
