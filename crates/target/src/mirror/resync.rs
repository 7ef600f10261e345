//! Bringing legs up to date: runs of regions that some legs lack, many pieces at once.
//!
//! ```text
//!   next run of regions ─▶ pieces ─▶ lock ─▶ one read, a write to each leg that lacks it ─▶ unlock
//!   every so often: flush all legs ─▶ what was copied before counts (I4 of the module above)
//! ```
//!
//! A pass goes once over the device. Regions that could not be copied are tried again in the next,
//! after a pause that grows; a leg that failed a write is out, and not tried until it is revived.
//! Where something can be read nowhere, the next pass takes each region for itself, so that those
//! beside it do not wait for it. The copy engine holds pieces back while requests of clients take
//! long, and keeps to a rate; they wait for that before they lock anything.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Extent, Sector, SectorCount};

use super::Mirror;
use super::who::Run;
use super::who::legs::{LegSet, Trouble};
use crate::copy::{self, How};
use crate::lock::{Guard, LockRange};

/// Size of a piece, sectors: 512 KiB, one slice of the copy engine.
pub(super) const PIECE_SECTORS: u64 = 1024;
/// Pieces that are copied at once.
pub(super) const PIECES: usize = 16;
/// Longest run that is accounted as one, sectors (32 MiB), but for regions that are larger.
const RUN_SECTORS_MAX: u64 = 65_536;
/// After so many sectors (256 MiB) a flush makes what was copied count.
const BATCH_SECTORS: u64 = 524_288;
/// Shortest and longest pause after a pass in which something failed.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// A part of a run.
pub(super) struct Piece {
    /// The first region of its run, which is its name.
    run: u64,
    extent: Extent,
}

/// How a pass went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pass {
    /// Regions that were brought up to date on some leg.
    done: u64,
    /// Runs of which something failed.
    failed: u64,
}

impl Mirror {
    /// Brings legs up to date whenever they lack something, until the end.
    pub(super) async fn resync(self: Rc<Self>) {
        let mut pause = PAUSE.0;
        while !self.closed.get() {
            let seen = self.work.count();
            let pass = self.pass().await;
            if pass.failed > 0 && !self.closed.get() {
                tracing::warn!("mirror: {} runs of regions could not be copied; they are tried again", pass.failed);
                self.work.after(seen, Some(self.reactor.sleep(pause))).await;
                pause = (pause * 2).min(PAUSE.1);
            } else if pass.done == 0 {
                pause = PAUSE.0;
                self.work.after(seen, None).await;
            } else if self.is_in_sync() {
                tracing::info!("mirror: all regions are in sync");
                self.events().raise();
            }
        }
    }

    /// The next run from region `from` on that something lacks; not beyond one of those that are `single`, in which
    /// each region is taken for itself.
    fn next_run(&self, from: u64, single: &[Range<u64>]) -> Option<(Range<u64>, LegSet)> {
        let state = self.state.borrow();
        let legs = state.legs.alive().without(LegSet::only(state.source));
        let (regions, legs) = state.regions.next_lacking(from, legs, RUN_SECTORS_MAX)?;
        let next = single.partition_point(|range| range.end <= regions.start);
        let end = single.get(next).map_or(regions.end, |range| range.start.max(regions.start + 1));
        Some((regions.start..regions.end.min(end), legs))
    }

    /// Goes over the device once.
    async fn pass(self: &Rc<Self>) -> Pass {
        let (mut pass, mut from, mut unsettled) = (Pass::default(), 0, 0);
        let mut single = self.unread.take();
        single.sort_unstable_by_key(|range| range.start);
        while !self.closed.get() {
            let Some((regions, legs)) = self.next_run(from, &single) else { break };
            from = regions.end;
            let extent = self.state.borrow().regions.extent(&regions);
            let pieces = extent.count.0.div_ceil(PIECE_SECTORS);
            self.state.borrow_mut().runs.push(Run { regions: regions.clone(), legs, left: pieces, unread: false });
            for piece in 0..pieces {
                self.room_for_piece().await;
                let start = piece * PIECE_SECTORS;
                let count = SectorCount(PIECE_SECTORS.min(extent.count.0 - start));
                let extent = Extent::new(Sector(extent.start.0 + start), count);
                self.copying.set(self.copying.get() + 1);
                self.pieces.start((Rc::clone(self), Piece { run: regions.start, extent }));
            }
            unsettled += extent.count.0;
            if unsettled >= BATCH_SECTORS {
                self.settle(&mut pass).await;
                unsettled = 0;
            }
        }
        while self.copying.get() > 0 {
            let seen = self.copied.count();
            self.copied.after(seen, None).await;
        }
        self.settle(&mut pass).await;
        pass
    }

    async fn room_for_piece(&self) {
        while self.copying.get() >= PIECES {
            let seen = self.copied.count();
            self.copied.after(seen, None).await;
        }
    }

    /// Copies a piece.
    pub(super) async fn copy_piece(self: Rc<Self>, piece: Piece) {
        let extent = piece.extent;
        // Before the lock: writes are not to wait for the rate.
        self.engine.ready(extent.count.to_bytes()).await;
        let guard = self.lock_piece(extent).await;
        self.begun.set(self.begun.get() + 1);
        let to = {
            let state = self.state.borrow();
            let run = state.runs.iter().find(|run| run.regions.start == piece.run);
            run.map_or(LegSet::NONE, |run| run.legs.and(state.legs.alive()))
        };
        let failed = if to.is_empty() || self.closed.get() { to } else { Box::pin(self.copy(extent, to)).await };
        drop(guard);
        self.begun.set(self.begun.get() - 1);
        // A leg that was out has not got it, whatever it is by now.
        let took = to.without(failed);
        let mut state = self.state.borrow_mut();
        if let Some(run) = state.runs.iter_mut().find(|run| run.regions.start == piece.run) {
            run.legs = run.legs.and(took);
            run.left -= 1;
            run.unread |= took.is_empty();
        }
        drop(state);
        self.copying.set(self.copying.get() - 1);
        self.copied.raise();
    }

    /// Locks `extent` at a time when the mirror is not suspended.
    pub(super) async fn lock_piece(&self, extent: Extent) -> Guard {
        loop {
            let seen = self.resumed.count();
            let guard = self.locks.lock(LockRange::new(extent.start.0, extent.count.0)).await;
            if !self.suspended.get() || self.closed.get() {
                return guard;
            }
            drop(guard);
            self.resumed.after(seen, None).await;
        }
    }

    /// Copies `extent` to `to`; the legs that did not get it.
    async fn copy(&self, extent: Extent, to: LegSet) -> LegSet {
        let end = |leg: usize| copy::Leg::new(Rc::clone(&self.legs[leg].target), extent.start);
        let sources: Vec<usize> = self.state.borrow().sources().collect();
        let ends: Vec<copy::Leg> = to.iter().map(end).collect();
        for source in sources {
            let outcome = self.engine.copy_now(&end(source), &ends, extent.count, &How::default()).await;
            let mut state = self.state.borrow_mut();
            let mut failed = LegSet::NONE;
            for unwritten in &outcome.unwritten {
                let leg = to.iter().nth(unwritten.leg).expect("it was one of these");
                state.trouble(leg, Trouble::Resync);
                state.put_out(LegSet::only(leg));
                failed = failed.with(LegSet::only(leg));
            }
            if outcome.cancelled {
                return to;
            }
            if outcome.unread.is_empty() {
                return failed;
            }
            state.trouble(source, Trouble::Read);
        }
        to
    }

    /// Flushes all legs, and lets the runs count that were copied before.
    async fn settle(&self, pass: &mut Pass) {
        let copied: Vec<u64> = self.state.borrow().runs.iter().filter(|run| run.left == 0).map(|run| run.regions.start).collect();
        if copied.is_empty() {
            return;
        }
        let flushed = self.flush_legs().await.status.is_ok();
        let mut state = self.state.borrow_mut();
        for start in copied {
            let at = state.runs.iter().position(|run| run.regions.start == start).expect("only this function takes runs away");
            let Run { regions, legs, unread, .. } = state.runs.swap_remove(at);
            let gained = if flushed { legs.and(state.legs.alive()) } else { LegSet::NONE };
            if gained.is_empty() {
                pass.failed += 1;
                if unread {
                    self.unread.borrow_mut().push(regions);
                }
                continue;
            }
            gained.iter().for_each(|leg| state.regions.gain(leg, &regions));
            pass.done += regions.end - regions.start;
            self.log.copied(regions);
        }
        self.written.raise();
    }
}
