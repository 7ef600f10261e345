//! A copy of many slices: they are cut from a list of runs, and as many as there is room for are under
//! way.
//!
//! ```text
//!   feed: where does the source have holes? ─▶ data 0..900 │ hole 900..4096 │ …   a few runs ahead
//!   job:  cut a slice off the first run ─▶ piece.rs ─▶ more? start the next behind all other copies
//! ```
//!
//! Invariants:
//! - I1: slices begin in the order of their sectors.
//! - I2: a job is one slice. The next one of the same copy stands in line behind those of others, so
//!   that copies share the engine.
//! - I3: after an error that ends the copy no slice begins, and everything under way is waited for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_block::{Extent, Run as Allocated, Sector, SectorCount, allocation};

use super::outcome::Tally;
use super::piece::{Order, Work};
use super::{Engine, How, Leg};
use crate::event::Event;

/// Most that is zeroed at once, sectors: 64 MiB.
const HOLE_SECTORS: u64 = 1 << 17;
/// Runs that are asked for at a time.
const RUNS: usize = 64;

/// A copy of many slices.
pub(super) struct Run {
    from: Leg,
    to: Vec<Leg>,
    how: How,
    pub(super) tally: Tally,
    order: Option<Order>,
    /// What is still to be cut, in order.
    ahead: RefCell<VecDeque<(Extent, bool)>>,
    /// Jobs under way.
    jobs: Cell<usize>,
    changed: Event,
}

impl Run {
    pub(super) fn new(from: &Leg, to: &[Leg], how: &How) -> Self {
        Self {
            from: from.clone(),
            to: to.to_vec(),
            how: how.clone(),
            tally: Tally::default(),
            order: how.sequential.then(Order::default),
            ahead: RefCell::default(),
            jobs: Cell::default(),
            changed: Event::default(),
        }
    }

    fn work(&self) -> Work<'_> {
        Work { from: &self.from, to: &self.to, how: &self.how, tally: &self.tally, order: self.order.as_ref(), ready: false }
    }

    /// Cuts the next slice off.
    fn next(&self, piece: SectorCount) -> Option<(Extent, bool)> {
        let mut ahead = self.ahead.borrow_mut();
        let (extent, hole) = ahead.front_mut()?;
        let most = if *hole { SectorCount(HOLE_SECTORS) } else { piece };
        let slice = Extent::new(extent.start, extent.count.min(most));
        let hole = *hole;
        *extent = Extent::new(slice.end(), extent.count - slice.count);
        if extent.count.0 == 0 {
            ahead.pop_front();
        }
        Some((slice, hole))
    }

    /// Copies `count` sectors, and returns once nothing is under way any more.
    pub(super) async fn feed(self: &Rc<Self>, engine: &Engine, count: SectorCount) {
        let mut told = Sector(0);
        loop {
            let stopped = self.work().is_stopped(engine);
            if stopped {
                self.ahead.borrow_mut().clear();
            }
            let left = SectorCount(count.0 - told.0);
            if left.0 > 0 && !stopped && self.ahead.borrow().len() < RUNS / 2 {
                for run in self.ask(told, left).await {
                    let run_count = run.count.min(SectorCount(count.0 - told.0));
                    self.ahead.borrow_mut().push_back((Extent::new(told, run_count), run.hole));
                    told = told + run_count;
                }
            }
            while self.jobs.get() < engine.inner.width && self.jobs.get() < self.slices_ahead(engine) {
                self.jobs.set(self.jobs.get() + 1);
                engine.inner.start(self);
            }
            if self.jobs.get() == 0 && (told.0 == count.0 || stopped) && self.ahead.borrow().is_empty() {
                return;
            }
            let seen = self.changed.count();
            self.changed.after(seen, None).await;
        }
    }

    /// Slices that are ahead, as far as that matters.
    fn slices_ahead(&self, engine: &Engine) -> usize {
        let piece = engine.inner.piece.0;
        let slices = |&(extent, hole): &(Extent, bool)| extent.count.0.div_ceil(if hole { HOLE_SECTORS } else { piece });
        let all: u64 = self.ahead.borrow().iter().map(slices).sum();
        usize::try_from(all).unwrap_or(usize::MAX)
    }

    async fn ask(&self, at: Sector, left: SectorCount) -> Vec<Allocated> {
        if !self.how.holes {
            return vec![Allocated { count: left, hole: false }];
        }
        let extent = Extent::new(self.from.sector + SectorCount(at.0), left);
        // What is a hole of the source is zeroed elsewhere, in blocks of all ends.
        let block = SectorCount(self.work().block_sectors());
        allocation::runs_in_blocks(&*self.from.target, extent, block, RUNS).await
    }

    /// One job: a slice, and a successor when there is more.
    pub(super) async fn job(self: Rc<Self>, engine: Engine) {
        let slice = if self.work().is_stopped(&engine) { None } else { self.next(engine.inner.piece) };
        match slice {
            Some((slice, true)) => self.work().zero(&engine, slice).await,
            Some((slice, false)) => self.work().copy(&engine, slice).await,
            None => {}
        }
        if self.ahead.borrow().is_empty() || self.tally.is_stopped() {
            self.jobs.set(self.jobs.get() - 1);
        } else {
            engine.inner.start(&self);
        }
        self.changed.raise();
    }
}
