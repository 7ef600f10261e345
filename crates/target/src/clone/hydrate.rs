//! Hydration in the background: cold regions are copied in batches until none is left.
//!
//! ```text
//!   what was read (option) ─┐
//!   cursor, round and round ─┼─▶ cold, nobody at it, not set aside ─▶ neighbours up to a batch ─▶ locked ─▶ copied ─▶ hydrated
//!                            │                                            │ source has a hole there       │ failed
//!                            └──────── in hydration < threshold           └─▶ zeroed, nothing is read     └─▶ set aside for a while
//! ```
//!
//! 1. A batch begins while fewer regions than the threshold are in hydration, and has up to
//!    `hydration_batch_size` adjacent regions whatever the threshold is.
//! 2. It goes on under load: at most `hydration_rate` bytes begin in a second, and while requests take
//!    longer than `hydration_latency_us`, batches begin later and later. A batch that waits for its
//!    turn is none yet: its regions are locked only while they are copied.
//! 3. A region that could not be copied is tried again after 1, 2, 4, 8 and 16 s. After the sixth time
//!    it is left alone, which is logged and counted, until it is written or `enable_hydration` is said.
//!    Beyond 1024 regions that failed and were not copied since, hydration stops altogether.
//! 4. Zeroes are found in what was read, too; both are zeroed on the destination, so that it has holes
//!    where the source has.
//!
//! The invariants are those of the parent module.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Extent, Sector, SectorCount, allocation};
use forebay_reactor::{BufferPool, Reactor};

use super::options::Tuning;
use super::{CloneTarget, narrow};
use crate::copy::pace::Pace;
use crate::copy::{Engine, How, Outcome, Settings, Zeroes};
use crate::event::Event;
use crate::lock::{Guard, LockRange};

/// Batches under way at most, whatever the threshold is.
pub(super) const BATCHES_MAX: usize = 64;
/// Largest batch, sectors: 16 MiB, but for a larger region. A write to one of its regions waits for all.
const BATCH_SECTORS: u64 = 1 << 15;
/// Largest stretch in which zeroes are looked for, bytes.
const DETECT_BYTES: u32 = 65_536;
/// Regions that were read and wait to be hydrated, at most.
const WANTED_MAX: usize = 1024;
/// Times that a region is tried before it is left alone.
const TRIES_MAX: u32 = 6;
/// Failed regions beyond which hydration stops.
const FAILURES_MAX: usize = 1024;
/// Runs of holes and data that the source is asked for at a time.
const RUNS: usize = 64;

/// A batch of regions, locked.
pub(super) struct Batch {
    regions: Range<u32>,
    /// The source has a hole there.
    hole: bool,
    guard: Guard,
    counted: Counted,
}

/// A region that could not be copied.
struct Failure {
    tries: u32,
    /// When it is tried again; `None` when it is not.
    again: Option<Duration>,
}

/// What a clone knows of its hydration.
pub(super) struct Hydration {
    pub(super) engine: Engine,
    /// Something may have changed for the task.
    pub(super) work: Event,
    /// Regions in hydration, those included that a write waits for.
    under_way: Rc<Cell<u32>>,
    batches: Cell<usize>,
    pace: Pace,
    /// Everything was hydrated durably when it was looked at last.
    over: Cell<bool>,
    cursor: Cell<u32>,
    wanted: RefCell<VecDeque<u32>>,
    failures: RefCell<BTreeMap<u32, Failure>>,
    /// What the source said about the sectors from here on, and which holes and data follow.
    source_map: RefCell<(Sector, VecDeque<allocation::Run>)>,
    counts: Counts,
}

/// Regions, since the clone was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HydrationCounts {
    /// Hydrated by batches.
    pub in_background: u64,
    /// Of them, without reading: the source has holes there.
    pub holes: u64,
    /// Batches.
    pub batches: u64,
    /// Hydrated because a write waited for it.
    pub waited_for: u64,
    /// Copies of a region that failed.
    pub failed: u64,
}

#[derive(Default)]
struct Counts(Cell<HydrationCounts>);

impl Counts {
    fn add(&self, change: impl FnOnce(&mut HydrationCounts)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}

/// Regions that count as in hydration until it is dropped.
pub(super) struct Counted(Rc<Cell<u32>>, u32);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl Hydration {
    pub(super) fn new(reactor: &Reactor, pool: &BufferPool, tuning: Tuning) -> Self {
        Self {
            engine: Engine::new(reactor, pool, &Settings::default()),
            work: Event::default(),
            under_way: Rc::default(),
            batches: Cell::default(),
            pace: Pace::new(NonZeroU64::new(tuning.rate), foreground(tuning)),
            over: Cell::default(),
            cursor: Cell::default(),
            wanted: RefCell::default(),
            failures: RefCell::default(),
            source_map: RefCell::new((Sector(0), VecDeque::new())),
            counts: Counts::default(),
        }
    }

    /// Whether everything is hydrated, durably.
    pub(super) fn is_over(&self) -> bool {
        self.over.get()
    }

    pub(super) fn set_over(&self) {
        self.over.set(true);
    }

    /// Takes in numbers that were changed.
    pub(super) fn tune(&self, before: Tuning, now: Tuning) {
        if before.rate != now.rate {
            self.pace.set_rate(NonZeroU64::new(now.rate));
        }
        if before.latency_us != now.latency_us {
            self.pace.set_foreground(foreground(now));
        }
        self.work.raise();
    }

    /// A request ended at `now`, and took so long.
    pub(super) fn request_ended(&self, latency: Duration, now: Duration) {
        self.pace.request_ended(latency, now);
    }

    /// When the next batch may begin (2).
    fn turn(&self, now: Duration) -> Duration {
        self.pace.turn(now)
    }

    /// A batch of so many bytes to read begins.
    fn begin(&self, bytes: u64, now: Duration) {
        self.pace.begin(bytes, now);
        self.batches.set(self.batches.get() + 1);
    }

    /// Counts regions as in hydration.
    pub(super) fn count(&self, regions: u32) -> Counted {
        self.under_way.set(self.under_way.get() + regions);
        Counted(Rc::clone(&self.under_way), regions)
    }

    pub(super) fn was_waited_for(&self) {
        self.counts.add(|counts| counts.waited_for += 1);
    }

    /// Regions in hydration.
    pub(super) fn in_hydration(&self) -> u32 {
        self.under_way.get()
    }

    /// Batches under way.
    pub(super) fn batches(&self) -> usize {
        self.batches.get()
    }

    /// Regions that are not tried any more.
    pub(super) fn left_alone(&self) -> u64 {
        self.failures.borrow().values().filter(|failure| failure.again.is_none()).count() as u64
    }

    pub(super) fn counts(&self) -> HydrationCounts {
        self.counts.0.get()
    }

    /// Tries again at once whatever failed.
    pub(super) fn forgive(&self) {
        self.failures.borrow_mut().clear();
        self.work.raise();
    }

    /// Whether so much failed that nothing is tried any more.
    fn has_given_up(&self) -> bool {
        self.failures.borrow().len() > FAILURES_MAX
    }

    /// Whether `region` failed and is not to be tried at `now`.
    fn is_set_aside(&self, region: u32, now: Duration) -> bool {
        self.failures.borrow().get(&region).is_some_and(|failure| failure.again.is_none_or(|again| again > now))
    }

    /// The next time behind `now` at which a region is to be tried again.
    fn next_again(&self, now: Duration) -> Option<Duration> {
        self.failures.borrow().values().filter_map(|failure| failure.again).filter(|&again| again > now).min()
    }

    /// Regions became hydrated: what failed there before does not matter any more.
    pub(super) fn forget_failures(&self, regions: &Range<u32>) {
        let mut failures = self.failures.borrow_mut();
        if !failures.is_empty() {
            failures.retain(|region, _| !regions.contains(region));
        }
    }
}

impl CloneTarget {
    /// Cold regions were read.
    pub(super) fn was_read(&self, regions: Range<u32>) {
        if !self.options.get().hydrate_on_read {
            return;
        }
        let mut wanted = self.hydration.wanted.borrow_mut();
        let room = WANTED_MAX.saturating_sub(wanted.len());
        wanted.extend(regions.take(room));
        self.hydration.work.raise();
    }

    /// The task that starts batches, until the clone is closed.
    pub(super) async fn hydrator(&self) {
        let hydration = &self.hydration;
        while !self.closed.get() && !self.regions.borrow().is_complete() {
            let seen = hydration.work.count();
            let now = self.reactor.now();
            let turn = hydration.turn(now);
            if self.may_begin() && turn > now {
                hydration.work.after(seen, Some(self.reactor.sleep_until(turn))).await;
                continue;
            }
            let candidate = if self.may_begin() { self.candidate() } else { None };
            let Some(Range { start: first, end }) = candidate else {
                let again = hydration.next_again(now).filter(|_| self.may_begin());
                hydration.work.after(seen, again.map(|again| self.reactor.sleep_until(again))).await;
                continue;
            };
            let (hole, alike) = self.ask_source(first).await;
            // While the source was asked, somebody else may have come first.
            if let Some(batch) = self.batch(first, hole, alike.min(end)) {
                // A hole costs what a destination without zeroes of its own is sent.
                let free = hole && self.destination.target.limits().write_zeroes != Ability::No;
                let bytes = if free { 0 } else { self.extent(&batch.regions).count.to_bytes() };
                hydration.begin(bytes, self.reactor.now());
                let jobs = self.batches.get().expect("jobs are made when the clone opens");
                jobs.start((self.me(), batch));
            }
        }
        self.task_left();
    }

    /// Whether another batch may begin (1).
    fn may_begin(&self) -> bool {
        let tuning = self.options.get().tuning;
        let room = self.hydration.under_way.get() < tuning.threshold && self.hydration.batches.get() < BATCHES_MAX;
        room && !self.latched.get() && !self.closed.get() && !self.suspended.get() && !self.hydration.has_given_up()
    }

    /// The first region of the next batch, and how far it may reach.
    fn candidate(&self) -> Option<Range<u32>> {
        while let Some(regions) = self.next_wanted() {
            if self.is_free(regions.start) {
                return Some(regions);
            }
        }
        if !self.options.get().hydration {
            return None;
        }
        let count = self.geometry.regions();
        let regions = self.regions.borrow();
        let cursor = self.hydration.cursor.get();
        for part in [cursor..count, 0..cursor] {
            let mut at = part.start;
            while let Some(region) = regions.next_cold(at..part.end) {
                if self.is_free(region) {
                    return Some(region..count);
                }
                at = region + 1;
            }
        }
        None
    }

    /// The next region that was read, and its neighbours that were read with it.
    fn next_wanted(&self) -> Option<Range<u32>> {
        let mut wanted = self.hydration.wanted.borrow_mut();
        let first = wanted.pop_front()?;
        let mut end = first + 1;
        while end - first < self.options.get().tuning.batch && wanted.front() == Some(&end) {
            wanted.pop_front();
            end += 1;
        }
        Some(first..end)
    }

    /// Whether `region` is cold, and nothing keeps it from being hydrated now.
    fn is_free(&self, region: u32) -> bool {
        !self.regions.borrow().is_hydrated(region)
            && !self.locks.is_locked(LockRange::new(u64::from(region), 1))
            && !self.hydration.is_set_aside(region, self.reactor.now())
    }

    /// The batch that begins with `first`, at most up to `end`; `None` where `first` is not free any more.
    fn batch(&self, first: u32, hole: bool, end: u32) -> Option<Batch> {
        if !self.is_free(first) || !self.may_begin() {
            return None;
        }
        let region = u64::from(self.geometry.region_sectors());
        let most = narrow((BATCH_SECTORS / region).max(1)).min(if hole { u32::MAX } else { self.options.get().tuning.batch });
        let end = end.min(first.saturating_add(most)).max(first + 1);
        let end = (first + 1..end).find(|&region| !self.is_free(region)).unwrap_or(end);
        let guard = self.locks.try_lock(LockRange::new(u64::from(first), u64::from(end - first)))?;
        self.hydration.cursor.set(end % self.geometry.regions());
        Some(Batch { regions: first..end, hole, guard, counted: self.hydration.count(end - first) })
    }

    /// Whether the source has a hole in all of `region`, and up to which region that goes on.
    async fn ask_source(&self, region: u32) -> (bool, u32) {
        let extent = self.extent(&(region..region + 1));
        if !self.knows(extent.start) {
            let all = self.geometry.sectors();
            let rest = Extent::new(extent.start, all - SectorCount(extent.start.0));
            let found = allocation::runs(&*self.source.target, rest, RUNS).await;
            *self.hydration.source_map.borrow_mut() = (extent.start, found.into());
        }
        let map = self.hydration.source_map.borrow();
        let mut at = map.0;
        for run in &map.1 {
            let here = Extent::new(at, run.count);
            at = here.end();
            if at <= extent.start {
                continue;
            }
            let whole = at >= extent.end();
            let region_sectors = u64::from(self.geometry.region_sectors());
            let end = if at.0 == self.geometry.sectors().0 { self.geometry.regions() } else { narrow(at.0 / region_sectors) };
            return if run.hole && whole { (true, end) } else { (false, self.data_end(region)) };
        }
        (false, region + 1)
    }

    /// Whether what the source said covers `sector`.
    fn knows(&self, sector: Sector) -> bool {
        let map = self.hydration.source_map.borrow();
        let told: u64 = map.1.iter().map(|run| run.count.0).sum();
        (map.0..map.0 + SectorCount(told)).contains(&sector)
    }

    /// The region behind `region` at which the next hole of at least a region begins, as far as is
    /// known.
    fn data_end(&self, region: u32) -> u32 {
        let region_sectors = u64::from(self.geometry.region_sectors());
        let map = self.hydration.source_map.borrow();
        let mut at = map.0;
        for run in &map.1 {
            let first = narrow(at.0.div_ceil(region_sectors));
            at = at + run.count;
            if run.hole && first > region && narrow(at.0 / region_sectors) > first {
                return first;
            }
        }
        narrow(at.0.div_ceil(region_sectors)).max(region + 1)
    }

    /// One batch.
    pub(super) async fn hydrate(&self, batch: Batch) {
        let Batch { regions, hole, guard, counted } = batch;
        let extent = self.extent(&regions);
        let outcome = if hole {
            let to = [crate::copy::Leg { sector: extent.start, ..self.destination.clone() }];
            Box::pin(self.hydration.engine.zero(&to, extent.count, &How::default())).await
        } else {
            let detect_bytes = (self.geometry.region_sectors() * 512).min(DETECT_BYTES);
            let how = How { keep_going: true, detect_bytes, zeroes: Zeroes::Unmap, ..How::default() };
            self.copy(&self.hydration.engine, extent, &how).await
        };
        if !outcome.cancelled {
            self.settle(&regions, hole, &outcome);
        }
        drop((guard, counted));
        self.hydration.batches.set(self.hydration.batches.get() - 1);
        self.hydration.work.raise();
    }

    /// Takes in how a batch went: what arrived is hydrated, the rest is set aside.
    fn settle(&self, regions: &Range<u32>, hole: bool, outcome: &Outcome) {
        let failed = self.failed(regions.start, outcome);
        let good = u64::from(regions.end - regions.start) - failed.len() as u64;
        self.hydration.counts.add(|counts| {
            counts.batches += 1;
            counts.in_background += good;
            counts.holes += if hole { good } else { 0 };
            counts.failed += failed.len() as u64;
        });
        let mut start = regions.start;
        for &region in failed.iter().chain([&regions.end]) {
            if start < region {
                self.mark(start..region);
            }
            start = region + 1;
        }
        let had_given_up = self.hydration.has_given_up();
        for region in failed {
            let mut failures = self.hydration.failures.borrow_mut();
            let failure = failures.entry(region).or_insert(Failure { tries: 0, again: None });
            failure.tries += 1;
            let wait = Duration::from_secs(1 << (failure.tries - 1).min(16));
            failure.again = (failure.tries < TRIES_MAX).then(|| self.reactor.now() + wait);
            let Extent { start, count } = self.extent(&(region..region + 1));
            let (tries, from) = (failure.tries, start.0);
            if failure.again.is_none() {
                let until = "are left alone until enable_hydration";
                tracing::error!("clone: sectors {from}+{} could not be copied in {tries} tries and {until}", count.0);
                self.events.raise();
            } else {
                tracing::debug!("clone: sectors {from}+{} could not be copied, try {tries}", count.0);
            }
        }
        if self.hydration.has_given_up() && !had_given_up {
            tracing::error!(
                "clone: hydration stops, {FAILURES_MAX} regions could not be copied: mend the devices, then say enable_hydration"
            );
            self.events.raise();
        }
    }

    /// The regions, in order, of which something did not arrive in a copy that begins with `first`.
    fn failed(&self, first: u32, outcome: &Outcome) -> Vec<u32> {
        let unwritten = outcome.unwritten.iter().flat_map(|unwritten| &unwritten.ranges);
        let start = self.extent(&(first..first + 1)).start;
        let touched = |extent: &Extent| self.touched(Extent::new(start + SectorCount(extent.start.0), extent.count));
        let mut failed: Vec<u32> = outcome.unread.iter().chain(unwritten).flat_map(touched).collect();
        failed.sort_unstable();
        failed.dedup();
        failed
    }
}

fn foreground(tuning: Tuning) -> Option<Duration> {
    (tuning.latency_us > 0).then(|| Duration::from_micros(tuning.latency_us))
}

#[cfg(test)]
mod tests;
