//! Writeback: dirty blocks go home in large, sorted, merged writes, many at once.
//!
//! ```text
//!   choose (sweep: by slot · fifo: by age · drain: by sector) ─▶ grow to both sides while cached
//!     ─▶ mark busy ─▶ copy job: read runs into one buffer, one origin write
//!     ─▶ retire: one origin flush for all that are done ─▶ entries cleared in the next commit round
//! ```
//!
//! `sweep` goes through the slots in order and writes home all that a stretch of slots holds, so
//! that long runs of slots become free again whatever the load was. Which blocks lie in a stretch is
//! read from the metadata on media; the index says whether that is still so.
//!
//! Invariants:
//! - I1: only committed blocks are copied, and nobody writes into a block while it is busy: its
//!   next write goes to another slot.
//! - I2: at most one copy of an origin block is on its way to the origin, and the next one waits until
//!   the entry of the one before is cleared: a crash must not uncover that one again.
//! - I3: entries are cleared only after a flush of the origin that began after their copy ended, and
//!   only when no flush failed since that copy began.
//! - I4: a copy that fails is tried again in halves; a single block that fails is put into
//!   quarantine, stays cached, and is tried again later. Nothing else is affected.

mod copy;
mod quarantine;

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, SectorCount, Status, call};

use super::Cache;
use super::disk::entry::{ENTRY_BYTES, Entry, SEQ_FREE};
use super::index::age::AgeQueue;
use super::index::bits::Bits;
use super::index::{CacheSlot, CachedExtent, OriginBlock, Piece, SlotRun, State as BlockState};
use super::options::Order;
use crate::lock::LockRange;

use self::copy::clip_start;
pub(super) use self::copy::{CopyRun, copier, copy_blocks};
pub(super) use self::quarantine::Quarantine;
use self::quarantine::WAIT_MIN;

/// Copies in flight at once: enough to keep a slow origin busy.
pub(super) const COPIES_MAX: usize = 64;
/// A stretch of slots that is swept at once holds this much, bytes, in a large cache.
const STRETCH_BYTES: u64 = 4 << 20;

/// What writeback has to do now.
enum Goal {
    /// Nothing before that time.
    Rest(Option<Duration>),
    /// Make this many blocks leave.
    Free(u64),
    /// Write everything home, in order of sectors.
    Drain,
    /// Write home what is older than `max_age`.
    Aged,
}

impl Cache {
    /// The task that keeps copies going until the cache closes.
    pub(super) async fn writeback(self: Rc<Self>) {
        while !self.closed.get() {
            let seen = self.work.count();
            let started = match self.goal() {
                Goal::Rest(until) => {
                    self.work.after(seen, until.map(|at| self.reactor.sleep_until(at))).await;
                    continue;
                }
                Goal::Drain => {
                    let started = self.drain_pass().await;
                    self.drain_passes.set(self.drain_passes.get() + 1);
                    started
                }
                Goal::Aged => self.start_oldest(u64::MAX).await,
                Goal::Free(need) if self.settings.order == Order::Fifo => self.start_oldest(need).await,
                Goal::Free(need) => self.sweep(need).await,
            };
            if started == 0 {
                self.nothing_started(seen).await;
            }
        }
    }

    /// Nothing could be chosen: commit what is not committed, or wait until something changes.
    async fn nothing_started(&self, seen: u64) {
        let uncommitted = !self.state.borrow().open.is_empty();
        if uncommitted && !self.failed.get() {
            self.commit().await;
        } else {
            let again = self.quarantine.borrow().next();
            let again = again.unwrap_or(self.reactor.now() + WAIT_MIN).max(self.reactor.now() + Duration::from_millis(10));
            self.work.after(seen, Some(self.reactor.sleep_until(again))).await;
        }
    }

    /// What is to be done now.
    fn goal(&self) -> Goal {
        // Until the last bio has ended that came before a suspend: it may wait for space.
        let suspended = self.suspended.get() && self.running() == 0;
        if self.failed.get() || (suspended && self.draining.get().is_none()) {
            return Goal::Rest(None);
        }
        if self.draining.get().is_some() {
            return Goal::Drain;
        }
        let state = self.state.borrow();
        if self.cleaner.get() {
            return if state.map.used_blocks() > 0 { Goal::Drain } else { Goal::Rest(None) };
        }
        let going = u64::from(state.free.free_blocks()) + state.leaving_blocks;
        if going <= self.settings.start_free {
            self.below_watermark.set(true);
        }
        if going > self.settings.stop_free {
            self.below_watermark.set(false);
        }
        let now = self.reactor.now();
        if self.below_watermark.get() {
            // A full cache sends writes past itself; waiting for these to end would keep it full.
            let resume = self.bypass_began.get().map(|at| at.saturating_add(self.settings.pause));
            return match resume {
                Some(at) if at > now => Goal::Rest(Some(at)),
                _ => Goal::Free(self.settings.stop_free + 1 - going),
            };
        }
        self.bypass_began.set(None);
        let Some(max_age) = self.settings.max_age else { return Goal::Rest(None) };
        let age = self.age.borrow();
        let Some((_, _, since)) = age.as_ref().and_then(AgeQueue::front) else { return Goal::Rest(None) };
        let at = since.saturating_add(max_age * 15 / 16);
        if at <= now { Goal::Aged } else { Goal::Rest(Some(at)) }
    }

    /// Rouses writeback when the high watermark is passed.
    pub(super) fn consider_writeback(&self) {
        let state = self.state.borrow();
        let going = u64::from(state.free.free_blocks()) + state.leaving_blocks;
        let aged = self.settings.max_age.is_some() && self.copies.borrow().is_empty();
        if going <= self.settings.start_free || self.cleaner.get() || aged {
            drop(state);
            self.work.raise();
        }
    }

    /// Whether a copy of a block in `range` is on its way, or its entry must be cleared before
    /// anything newer of that block leaves.
    fn is_leaving(&self, range: LockRange) -> bool {
        self.copies.borrow().iter().any(|copy| copy.overlaps(range))
            || self.uncleared.borrow().iter().any(|(copy, _)| copy.overlaps(range))
    }

    /// A commit round ended that cleared entries.
    pub(super) fn forget_cleared(&self) {
        let done = self.rounds_done.get();
        self.uncleared.borrow_mut().retain(|&(_, round)| round > done);
        self.copy_ended.raise();
    }

    /// Waits until another copy may start.
    async fn copy_slot(&self) {
        loop {
            let seen = self.work.count();
            let jobs = u64::from(self.settings.writeback_jobs);
            let blocks_left = jobs == 0 || self.busy_blocks.get() < jobs;
            if (self.copies.borrow().len() < COPIES_MAX && blocks_left) || self.closed.get() || self.failed.get() {
                return;
            }
            self.work.after(seen, None).await;
        }
    }

    /// `fifo`: starts copies of the oldest blocks until `need` are on their way.
    async fn start_oldest(&self, need: u64) -> u64 {
        let aged = need == u64::MAX;
        let (mut started, mut skipped) = (0, 0);
        while started < need {
            self.copy_slot().await;
            let Some((origin, count, since)) = self.age.borrow().as_ref().and_then(AgeQueue::front) else { break };
            let max_age = self.settings.max_age.unwrap_or_default();
            if self.failed.get() || (aged && since.saturating_add(max_age * 15 / 16) > self.reactor.now()) {
                break;
            }
            let range = origin..OriginBlock(origin.0 + u64::from(count));
            let hit = self.state.borrow().map.pieces(range.clone()).find_map(|piece| match piece {
                Piece::Hit(hit) if !hit.state.busy => Some(hit),
                Piece::Hit(_) | Piece::Miss { .. } => None,
            });
            let Some(hit) = hit else {
                self.with_age(AgeQueue::pop);
                continue;
            };
            if self.eligible(&hit) {
                started += self.start_copy(hit, need - started);
            } else if !self.skip_quarantined(&hit, count, &mut skipped) {
                break;
            }
        }
        started
    }

    /// Sends the oldest run to the end of the queue when it is left alone because its copy failed, so
    /// that it holds up nothing else. False when it must be waited for, or all were skipped.
    fn skip_quarantined(&self, oldest: &CachedExtent, count: u32, skipped: &mut usize) -> bool {
        let now = self.reactor.now();
        let range = LockRange::new(oldest.origin.0, u64::from(oldest.count));
        let runs = self.age.borrow().as_ref().map_or(0, AgeQueue::len);
        if !self.quarantine.borrow().holds(range, now) || *skipped >= runs {
            return false;
        }
        *skipped += 1;
        self.with_age(|age| {
            if let Some((origin, _, _)) = age.front() {
                age.pop();
                age.push(now, origin, count);
            }
        });
        true
    }

    /// Keeps the queue of ages in step with the index: runs that were replaced or dropped pile up in
    /// it. Of several runs with the same block the newest stays.
    pub(super) fn trim_age(&self) {
        let mut age = self.age.borrow_mut();
        let Some(age) = age.as_mut().filter(|age| age.is_overgrown()) else { return };
        let state = self.state.borrow();
        let mut seen = Bits::new(self.geometry.blocks());
        age.trim(|origin, count| {
            let hits = state.map.pieces(origin..OriginBlock(origin.0 + u64::from(count)));
            let mut kept = false;
            for piece in hits {
                if let Piece::Hit(hit) = piece {
                    kept |= (hit.slot.0..hit.slots().end()).any(|slot| !seen.get(slot));
                    seen.set(hit.slots());
                }
            }
            kept
        });
    }

    /// `sweep`: starts copies of all that lies in the next stretch of slots.
    async fn sweep(&self, need: u64) -> u64 {
        let blocks = self.geometry.blocks();
        let stretch = (STRETCH_BYTES / self.block_bytes()).min(u64::from(blocks / 64)).max(16);
        let stretch = u32::try_from(stretch).expect("a stretch is short");
        let mut started = 0;
        let mut looked = 0;
        while started < need && looked < blocks && !self.failed.get() {
            let first = self.swept.get() % blocks;
            let count = stretch.min(blocks - first);
            self.swept.set((first + count) % blocks);
            looked += count;
            let Some(mut found) = self.read_stretch(SlotRun { slot: CacheSlot(first), count }).await else { break };
            found.sort_unstable_by_key(|extent| extent.origin);
            for extent in found.drain(..) {
                self.copy_slot().await;
                started += self.start_where_still(extent);
            }
        }
        started
    }

    /// Starts copies of those blocks of `extent` that still lie in its slots and may leave.
    fn start_where_still(&self, extent: CachedExtent) -> u64 {
        let mut started = 0;
        let mut next = extent.origin;
        while next < extent.end() {
            let Some(piece) = self.state.borrow().map.pieces(next..extent.end()).next() else { break };
            match piece {
                Piece::Miss { origin, count } => next = OriginBlock(origin.0 + count),
                Piece::Hit(hit) => {
                    next = hit.end();
                    let moved = u64::from(hit.slot.0) != u64::from(extent.slot.0) + (hit.origin.0 - extent.origin.0);
                    if !moved && self.eligible(&hit) {
                        started += self.start_copy(hit, u64::MAX);
                    }
                }
            }
        }
        started
    }

    /// Which committed extents the media say lie in these slots.
    async fn read_stretch(&self, slots: SlotRun) -> Option<Vec<CachedExtent>> {
        let unit = self.unit_bytes;
        let first = self.geometry.entry_offset(slots.slot);
        let end = first + u64::from(slots.count) * ENTRY_BYTES as u64;
        let from = first - first % unit;
        let bytes = u32::try_from(end.next_multiple_of(unit) - from).expect("the entries of a stretch are few");
        let mut buffer = self.pool.take(bytes as usize);
        let sector = self.geometry.start_sector() + SectorCount(from / 512);
        let read = call(&*self.fast, Bio::read(sector, Rc::clone(buffer.segments()), 0, bytes)).await;
        let status = read.status();
        drop(read);
        if !status.is_ok() {
            self.latch("the metadata cannot be read");
            return None;
        }
        let at = usize::try_from(first - from).expect("inside a unit");
        let (entries, _) = buffer.bytes_mut()[at..].as_chunks::<ENTRY_BYTES>();
        let mut found: Vec<CachedExtent> = Vec::new();
        for (index, entry) in entries.iter().take(slots.count as usize).enumerate() {
            let entry = Entry::decode(entry);
            if entry.seq == SEQ_FREE {
                continue;
            }
            let origin = OriginBlock(entry.origin_sector / u64::from(self.geometry.block_sectors()));
            let slot = CacheSlot(slots.slot.0 + u32::try_from(index).expect("below the count"));
            match found.last_mut() {
                Some(last) if last.end() == origin && last.slots().end() == slot.0 => last.count += 1,
                _ => found.push(CachedExtent { origin, slot, count: 1, state: BlockState::default() }),
            }
        }
        Some(found)
    }

    /// A drain: starts copies in order of sectors, once through; then again for what was left.
    async fn drain_pass(&self) -> u64 {
        let mut started = 0;
        let mut next = OriginBlock(0);
        loop {
            self.copy_slot().await;
            let Some(extent) = self.state.borrow().map.first_from(next) else { break };
            let extent = clip_start(extent, next.max(extent.origin));
            next = extent.end();
            if self.failed.get() || self.closed.get() {
                break;
            }
            if self.eligible(&extent) {
                let blocks = self.start_copy(extent, self.settings.copy_blocks);
                next = next.min(OriginBlock(extent.origin.0 + blocks.min(u64::from(extent.count))));
                started += blocks;
            }
        }
        started
    }

    /// Commits and writes everything home; fails when a block cannot be written, or an error latched.
    /// What is written meanwhile may stay.
    pub(super) async fn drain(&self) -> Status {
        let written = self.counts.writes.get();
        self.quarantine.borrow_mut().try_now();
        for pass in 0..=DRAIN_PASSES_MAX {
            let status = self.commit().await;
            if !status.is_ok() {
                self.draining.set(None);
                return status;
            }
            self.draining.set(Some(pass));
            self.pass_over().await;
            self.commit().await;
            // What was copied leaves only with the round after that.
            let left = {
                let state = self.state.borrow();
                state.map.used_blocks() + state.leaving_blocks
            };
            if left == 0 || self.quarantine.borrow().blocks() > 0 || self.failed.get() || self.closed.get() {
                self.draining.set(None);
                let whole = left == 0 && !self.failed.get();
                return if whole { self.flush_origin().await } else { Status::IoError };
            }
        }
        self.draining.set(None);
        let disturbed = self.counts.writes.get() != written;
        if disturbed && !self.failed.get() { self.flush_origin().await } else { Status::IoError }
    }

    /// Waits until a drain pass that began after this call has started all it could, and every copy
    /// is over. A pass may be under way already, so two must end.
    async fn pass_over(&self) {
        let wanted = self.drain_passes.get() + 2;
        let busy = || !self.copies.borrow().is_empty() || !self.copied.borrow().is_empty();
        while (self.drain_passes.get() < wanted || busy()) && !self.closed.get() && !self.failed.get() {
            self.work.raise();
            self.reactor.sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Times a drain goes through the whole cache when writes go on meanwhile.
const DRAIN_PASSES_MAX: u32 = 64;
