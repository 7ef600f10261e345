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

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, SectorCount, Status, call};

use super::Cache;
use super::disk::entry::{ENTRY_BYTES, Entry, SEQ_FREE};
use super::index::{CacheSlot, CachedExtent, OriginBlock, Phase, Piece, SlotRun, State as BlockState};
use super::options::Order;
use crate::lock::LockRange;

/// Copies in flight at once: enough to keep a slow origin busy.
pub(super) const COPIES_MAX: usize = 64;
/// Largest copy, bytes.
const COPY_BYTES_MAX: u64 = 1 << 20;
/// A stretch of slots that is swept at once holds this much, bytes, in a large cache.
const STRETCH_BYTES: u64 = 4 << 20;
/// First wait before a quarantined block is tried again; doubles up to the maximum.
const QUARANTINE: Duration = Duration::from_secs(1);
const QUARANTINE_MAX: Duration = Duration::from_secs(60);

/// A run of origin blocks on its way home, from one or more runs of slots.
pub(super) struct CopyRun {
    pub(super) extents: Vec<CachedExtent>,
    /// Failed flushes of the origin when the write to it began.
    lost: u64,
}

impl CopyRun {
    fn origin(&self) -> OriginBlock {
        self.extents.first().expect("a copy is of something").origin
    }

    fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.count)).sum()
    }

    fn range(&self) -> LockRange {
        LockRange::new(self.origin().0, self.blocks())
    }
}

/// A block whose copy failed.
pub(super) struct Quarantined {
    range: LockRange,
    until: Duration,
    wait: Duration,
}

impl Quarantined {
    pub(super) fn blocks(&self) -> u64 {
        self.range.count()
    }
}

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
                Goal::Drain => self.drain_pass().await,
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
            let again = self.quarantine.borrow().iter().map(|block| block.until).min();
            let again = again.unwrap_or(self.reactor.now() + QUARANTINE).max(self.reactor.now() + Duration::from_millis(10));
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
        let Some((_, _, since)) = age.as_ref().and_then(|age| age.front()) else { return Goal::Rest(None) };
        let at = since.saturating_add(max_age - max_age / 16);
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

    /// Whether a copy of `extent` may start.
    fn eligible(&self, extent: &CachedExtent) -> bool {
        if extent.state.phase != Phase::Committed || extent.state.busy {
            return false;
        }
        let range = LockRange::new(extent.origin.0, u64::from(extent.count));
        let now = self.reactor.now();
        !self.locks.is_locked(range)
            && !self.is_leaving(range)
            && !self.quarantine.borrow().iter().any(|block| block.until > now && block.range.overlaps(range))
    }

    /// Starts a copy that begins with `seed` and takes cached neighbours on both sides along, at
    /// most `most` blocks. Returns the blocks taken.
    fn start_copy(&self, seed: CachedExtent, most: u64) -> u64 {
        let most = most.min(self.settings.copy_blocks).max(1);
        let mut extents = self.spare_runs.borrow_mut().pop().unwrap_or_default();
        let seed = head(seed, most);
        let mut blocks = u64::from(seed.count);
        extents.push(seed);
        while blocks < most {
            let first = extents[0].origin;
            let state = self.state.borrow();
            let Some(before) = first.0.checked_sub(1).and_then(|block| state.map.get(OriginBlock(block))) else { break };
            drop(state);
            let before = tail(clip_end(before, first), most - blocks);
            if !self.eligible(&before) {
                break;
            }
            blocks += u64::from(before.count);
            extents.insert(0, before);
        }
        while blocks < most {
            let end = extents.last().expect("begun with the seed").end();
            let Some(after) = self.state.borrow().map.get(end) else { break };
            let after = head(clip_start(after, end), most - blocks);
            if !self.eligible(&after) {
                break;
            }
            blocks += u64::from(after.count);
            extents.push(after);
        }
        let run = CopyRun { extents, lost: 0 };
        let mut state = self.state.borrow_mut();
        for extent in &run.extents {
            state.map.mark(extent.origin, extent.slot, extent.count, |old| BlockState { busy: true, ..old });
        }
        state.leaving_blocks += blocks;
        drop(state);
        self.copies.borrow_mut().push(run.range());
        self.busy_blocks.set(self.busy_blocks.get() + blocks);
        self.copy_jobs
            .get()
            .expect("jobs are made when the cache opens")
            .start((self.this.upgrade().expect("alive while its task runs"), run));
        blocks
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
        let mut started = 0;
        while started < need {
            self.copy_slot().await;
            let Some((origin, count, since)) = self.age.borrow().as_ref().and_then(|age| age.front()) else { break };
            let max_age = self.settings.max_age.unwrap_or_default();
            if self.failed.get() || (aged && since.saturating_add(max_age - max_age / 16) > self.reactor.now()) {
                break;
            }
            let range = origin..OriginBlock(origin.0 + u64::from(count));
            let hit = self.state.borrow().map.pieces(range.clone()).find_map(|piece| match piece {
                Piece::Hit(hit) if !hit.state.busy => Some(hit),
                Piece::Hit(_) | Piece::Miss { .. } => None,
            });
            let Some(hit) = hit else {
                self.with_age(super::index::age::AgeQueue::pop);
                continue;
            };
            if !self.eligible(&hit) {
                break;
            }
            started += self.start_copy(hit, need - started);
        }
        started
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

    /// One copy: read the runs of slots into one buffer, write it to the origin at once.
    pub(super) async fn copy(self: Rc<Self>, mut run: CopyRun) {
        let bytes = u32::try_from(run.blocks() * self.block_bytes()).expect("a copy is at most 1 MiB or one block");
        let buffer = self.pool.take(bytes as usize);
        let gather = Bio::read(forebay_block::Sector(0), Rc::clone(buffer.segments()), 0, bytes);
        let mut skip = 0;
        for extent in &run.extents {
            let length = u64::from(extent.count) * self.block_bytes();
            self.fast.submit(gather.part(skip, length).remap(self.geometry.slot_sector(extent.slot)));
            skip += length;
        }
        let mut status = gather.parts_done().await;
        gather.end(status);
        if status.is_ok() {
            run.lost = self.origin_lost.get();
            let write = Bio::write(self.block_sector(run.origin()), Rc::clone(buffer.segments()), 0, bytes);
            status = call(&*self.origin, write).await.status();
        }
        if status.is_ok() {
            self.origin_writes.set(self.origin_writes.get() + 1);
            self.copied.borrow_mut().push(run);
        } else {
            self.copy_failed(run);
        }
        self.work.raise();
    }

    /// The task that lets copied blocks go, as many at a time as have gathered.
    pub(super) async fn retirer(self: Rc<Self>) {
        let mut runs = Vec::new();
        while !self.closed.get() {
            let seen = self.work.count();
            runs.append(&mut *self.copied.borrow_mut());
            if runs.is_empty() {
                self.work.after(seen, None).await;
                continue;
            }
            let status = self.flush_origin().await;
            for run in runs.drain(..) {
                let durable = status.is_ok() && run.lost == self.origin_lost.get();
                if durable { self.copy_done(run) } else { self.copy_failed(run) }
            }
            self.work.raise();
        }
    }

    fn copy_done(&self, mut run: CopyRun) {
        let mut state = self.state.borrow_mut();
        let mut removed = std::mem::take(&mut *self.removed.borrow_mut());
        removed.clear();
        for extent in &run.extents {
            state.map.remove_exact(extent.origin, extent.slot, extent.count, &mut removed);
            // What a newer copy replaced meanwhile is not in the map any more, but leaves as well.
            state.leaving.written.push(extent.slots());
        }
        let left: u64 = removed.iter().map(|extent| u64::from(extent.count)).sum();
        *self.removed.borrow_mut() = removed;
        drop(state);
        if left < run.blocks() {
            self.uncleared.borrow_mut().push((run.range(), self.rounds_started.get() + 1));
        }
        self.quarantine.borrow_mut().retain(|block| !block.range.overlaps(run.range()));
        self.leave_copies(&run);
        run.extents.clear();
        self.spare_runs.borrow_mut().push(run.extents);
    }

    fn leave_copies(&self, run: &CopyRun) {
        let range = run.range();
        let mut copies = self.copies.borrow_mut();
        let at = copies.iter().position(|copy| *copy == range).expect("a copy is listed until it is over");
        copies.swap_remove(at);
        self.busy_blocks.set(self.busy_blocks.get() - run.blocks());
        drop(copies);
        self.copy_ended.raise();
    }

    /// I4: blocks stay cached; more than one are tried again in halves, one goes into quarantine.
    fn copy_failed(&self, run: CopyRun) {
        let mut state = self.state.borrow_mut();
        for extent in &run.extents {
            let pieces: Vec<Piece> = state.map.pieces(extent.origin..extent.end()).collect();
            for piece in pieces {
                let (origin, count) = match piece {
                    Piece::Hit(hit) => (hit.origin, hit.count),
                    Piece::Miss { origin, count } => (origin, u32::try_from(count).expect("inside an extent")),
                };
                let slot = CacheSlot(extent.slot.0 + u32::try_from(origin.0 - extent.origin.0).expect("inside an extent"));
                if matches!(piece, Piece::Hit(hit) if hit.slot == slot) {
                    state.map.mark(origin, slot, count, |old| BlockState { busy: false, ..old });
                    state.leaving_blocks -= u64::from(count);
                } else {
                    state.leave_replaced(origin, SlotRun { slot, count });
                }
            }
        }
        drop(state);
        self.leave_copies(&run);
        if run.blocks() > 1 && !self.failed.get() {
            self.retry_in_halves(&run);
        } else {
            self.put_in_quarantine(run.range());
        }
        self.with_age(|age| {
            age.push_front(run.origin(), u32::try_from(run.blocks()).expect("a copy is short"), self.reactor.now())
        });
    }

    fn retry_in_halves(&self, run: &CopyRun) {
        let half = run.blocks().div_ceil(2);
        let end = OriginBlock(run.origin().0 + run.blocks());
        let mut next = run.origin();
        while next < end {
            let stop = OriginBlock((next.0 + half).min(end.0));
            let Some(piece) = self.state.borrow().map.pieces(next..stop).next() else { break };
            next = match piece {
                Piece::Miss { origin, count } => OriginBlock(origin.0 + count),
                Piece::Hit(hit) => {
                    if self.eligible(&hit) {
                        self.start_exactly(hit);
                    }
                    hit.end()
                }
            };
        }
    }

    /// Starts a copy of `extent` alone, without neighbours.
    fn start_exactly(&self, extent: CachedExtent) {
        self.start_copy(extent, u64::from(extent.count));
    }

    fn put_in_quarantine(&self, range: LockRange) {
        let mut quarantine = self.quarantine.borrow_mut();
        let before = quarantine.iter().find(|block| block.range == range).map(|block| block.wait);
        let wait = before.map_or(QUARANTINE, |wait| (wait * 2).min(QUARANTINE_MAX));
        quarantine.retain(|block| block.range != range);
        quarantine.push(Quarantined { range, until: self.reactor.now() + wait, wait });
        if before.is_none() {
            tracing::warn!(
                "write cache: block {} cannot be written to the origin; it stays cached and is tried again",
                range.start()
            );
        }
    }

    /// Waits until no copy of a block in `range` is on its way.
    pub(super) async fn writeback_left(&self, range: &std::ops::Range<OriginBlock>) {
        let range = LockRange::new(range.start.0, range.end.0 - range.start.0);
        while self.is_leaving(range) && !self.closed.get() && !self.failed.get() {
            let seen = self.copy_ended.count();
            self.copy_ended.after(seen, None).await;
        }
    }

    /// Commits and writes everything home; fails when a block cannot be written or an error latched.
    pub(super) async fn drain(&self) -> Status {
        let mut passes = 0;
        loop {
            let status = self.commit().await;
            if !status.is_ok() {
                return status;
            }
            self.draining.set(Some(passes));
            self.work.raise();
            self.copies_idle().await;
            self.commit().await;
            let left = self.state.borrow().map.used_blocks();
            passes += 1;
            let stuck = !self.quarantine.borrow().is_empty();
            if left == 0 || stuck || passes > DRAIN_PASSES_MAX || self.failed.get() || self.closed.get() {
                self.draining.set(None);
                let whole = !self.failed.get() && !(stuck && left > 0);
                return if whole { self.flush_origin().await } else { Status::IoError };
            }
        }
    }

    /// Waits until a drain pass has started all it could and every copy is over.
    async fn copies_idle(&self) {
        let mut quiet = 0;
        while quiet < 2 && !self.closed.get() && !self.failed.get() {
            let seen = self.work.count();
            let busy = !self.copies.borrow().is_empty();
            quiet = if busy { 0 } else { quiet + 1 };
            let pause = self.reactor.sleep(Duration::from_millis(1));
            self.work.after(seen, Some(pause)).await;
        }
    }
}

/// Times a drain goes through the whole cache when writes go on meanwhile.
const DRAIN_PASSES_MAX: u32 = 64;

/// The first `most` blocks of an extent.
fn head(extent: CachedExtent, most: u64) -> CachedExtent {
    CachedExtent { count: u32::try_from(u64::from(extent.count).min(most)).expect("at most what it was"), ..extent }
}

/// The last `most` blocks of an extent.
fn tail(extent: CachedExtent, most: u64) -> CachedExtent {
    let count = u64::from(extent.count).min(most);
    clip_start(extent, OriginBlock(extent.end().0 - count))
}

fn clip_start(extent: CachedExtent, start: OriginBlock) -> CachedExtent {
    let cut = u32::try_from(start.0 - extent.origin.0).expect("inside the extent");
    CachedExtent { origin: start, slot: CacheSlot(extent.slot.0 + cut), count: extent.count - cut, ..extent }
}

fn clip_end(extent: CachedExtent, end: OriginBlock) -> CachedExtent {
    let count = u32::try_from(end.0 - extent.origin.0).expect("inside the extent").min(extent.count);
    CachedExtent { count, ..extent }
}

/// Blocks of the largest copy: the origin's preferred request, up to 1 MiB.
pub(super) fn copy_blocks(preferred_bytes: u32, block_bytes: u64) -> u64 {
    let bytes = if preferred_bytes == 0 { COPY_BYTES_MAX } else { u64::from(preferred_bytes) };
    (bytes.clamp(65_536, COPY_BYTES_MAX) / block_bytes).max(1)
}
