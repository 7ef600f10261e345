//! Comparing all legs with each other.
//!
//! ```text
//!   piece by piece: lock ─▶ read from every leg ─▶ equal? ─ no ─▶ its regions are reported,
//!                                                                and to be copied where asked
//! ```
//!
//! Regions that are known to differ are left out: they are copied anyway. A repair copies from the
//! source, because nothing says which leg is right; what the source cannot read is left as it is.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Bio, Extent, Sector, SectorCount, Status, call};
use forebay_reactor::Buffer;

use super::Mirror;
use super::resync::PIECE_SECTORS;
use super::who::legs::{LegSet, Trouble};

/// Runs of differing regions that are kept; beyond that they are only counted.
const RUNS_MAX: usize = 1000;

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Whether it is still going on.
    pub running: bool,
    /// Whether regions that differ are copied.
    pub repair: bool,
    /// Sectors compared so far.
    pub compared: u64,
    /// Sectors left out, because legs lack them anyway.
    pub skipped: u64,
    /// Sectors that some leg could not read.
    pub unread: u64,
    /// How many regions differ.
    pub differing: u64,
    /// Which, in order; the first of them where there are very many runs.
    pub regions: Vec<Range<u64>>,
}

impl ScrubReport {
    fn differs(&mut self, regions: Range<u64>) {
        self.differing += regions.end - regions.start;
        let room = self.regions.len() < RUNS_MAX;
        match self.regions.last_mut() {
            Some(last) if last.end == regions.start => last.end = regions.end,
            _ if room => self.regions.push(regions),
            _ => {}
        }
    }
}

/// A piece that has begun, which a suspend waits for, until this is dropped.
struct Begun<'a>(&'a Cell<usize>);

impl<'a> Begun<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Mirror {
    /// Compares everything; with `repair`, has regions copied that differ. It waits while the mirror is suspended.
    pub async fn scrub(&self, repair: bool) -> ScrubReport {
        let mut report = ScrubReport { running: true, repair, ..ScrubReport::default() };
        let mut next = 0;
        while next < self.sectors.0 && !self.closed.get() {
            // A piece ends with a region, or lies inside of one.
            let region = self.state.borrow().regions.extent(&self.regions_of(Extent::new(Sector(next), SectorCount(1))));
            let rest = region.end().0 - next;
            let whole = PIECE_SECTORS / region.count.0.max(1) * region.count.0;
            let count = if rest < PIECE_SECTORS { rest.max(whole) } else { PIECE_SECTORS };
            let extent = Extent::new(Sector(next), SectorCount(count.min(self.sectors.0 - next)));
            let guard = self.lock_piece(extent).await;
            if self.closed.get() {
                break;
            }
            let begun = Begun::new(&self.begun);
            Box::pin(self.compare(extent, repair, &mut report)).await;
            drop((guard, begun));
            next += extent.count.0;
            *self.scrubbed.borrow_mut() = Some(report.clone());
        }
        report.running = false;
        *self.scrubbed.borrow_mut() = Some(report.clone());
        if repair && report.differing > 0 {
            self.work.raise();
        }
        report
    }

    /// Compares `extent`, which is locked, on all legs.
    async fn compare(&self, extent: Extent, repair: bool, report: &mut ScrubReport) {
        let regions = self.regions_of(extent);
        let having = {
            let state = self.state.borrow();
            state.regions.having(&regions).and(state.legs.alive())
        };
        if having.len() < 2 {
            report.skipped += extent.count.0;
            return;
        }
        let bytes = u32::try_from(extent.count.to_bytes()).expect("a piece is small");
        let mut buffers: Vec<(usize, Buffer)> = having.iter().map(|leg| (leg, self.pool.take(bytes as usize))).collect();
        let read = |(leg, buffer): &(usize, Buffer)| {
            call(&*self.legs[*leg].target, Bio::read(extent.start, Rc::clone(buffer.segments()), 0, bytes))
        };
        let calls: Vec<_> = buffers.iter().map(read).collect();
        let mut statuses = Vec::new();
        for call in calls {
            statuses.push(call.await.status());
        }
        for ((leg, _), status) in buffers.iter().zip(&statuses) {
            if !status.is_ok() {
                self.state.borrow_mut().trouble(*leg, Trouble::Read);
            }
        }
        let mut readable = statuses.iter().map(|status| *status == Status::Ok);
        buffers.retain(|_| readable.next() == Some(true));
        if buffers.len() < having.len() as usize {
            report.unread += extent.count.0;
        }
        let readable = buffers.iter().fold(LegSet::NONE, |set, (leg, _)| set.with(LegSet::only(*leg)));
        let Some(((_, first), others)) = buffers.split_first_mut().filter(|(_, others)| !others.is_empty()) else { return };
        report.compared += extent.count.0;
        for region in regions {
            let part = self.part(region, extent);
            let wanted = &first.bytes_mut()[part.clone()];
            if others.iter_mut().all(|(_, other)| other.bytes_mut()[part.clone()] == *wanted) {
                continue;
            }
            // A large region is compared in several pieces and counts once.
            if report.regions.last().is_none_or(|last| last.end <= region) {
                report.differs(region..region + 1);
            }
            if repair {
                self.repair(region, readable).await;
            }
        }
    }

    /// Has `region` copied, whose lock is held, from the source, which is one of those that are `readable`.
    async fn repair(&self, region: u64, readable: LegSet) {
        let regions = region..region + 1;
        // A crash before it is copied must not forget it.
        let known = self.log.settled(self.log.write_begins(regions.clone())).await;
        let mut state = self.state.borrow_mut();
        if known && readable.contains(state.source) {
            let others = state.others(state.source);
            state.lose(others, &regions);
        }
        drop(state);
        self.log.write_ended(regions);
        self.written.raise();
    }

    /// The bytes of `extent` that lie in `region`.
    fn part(&self, region: u64, extent: Extent) -> Range<usize> {
        let whole = self.state.borrow().regions.extent(&(region..region + 1));
        let start = whole.start.max(extent.start);
        let end = whole.end().min(extent.end());
        let byte = |at: Sector| usize::try_from(at.0 - extent.start.0).expect("a piece is small") * 512;
        byte(start)..byte(end)
    }
}
