//! One copy on its way home: grown to both sides, read into one buffer, written at once, let go.
//!
//! ```text
//!   seed ─▶ grow ─▶ mark busy ─▶ read runs of slots ─▶ one origin write ─▶ retire, or back
//! ```
//!
//! The invariants are those of the parent module.

use std::rc::Rc;

use forebay_block::{Extent, SectorCount};
use forebay_reactor::{BufferPool, Reactor};

use super::super::Cache;
use super::super::index::{CacheSlot, CachedExtent, OriginBlock, Phase, Piece, SlotRun, State as BlockState};
use super::COPIES_MAX;
use crate::copy::{Engine, Settings};
use crate::lock::LockRange;

/// Largest copy, bytes.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// A run of origin blocks on its way home, from one or more runs of slots.
pub(in super::super) struct CopyRun {
    pub(in super::super) extents: Vec<CachedExtent>,
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

impl Cache {
    /// Whether a copy of `extent` may start.
    pub(super) fn eligible(&self, extent: &CachedExtent) -> bool {
        if extent.state.phase != Phase::Committed || extent.state.busy {
            return false;
        }
        let range = LockRange::new(extent.origin.0, u64::from(extent.count));
        let now = self.reactor.now();
        !self.locks.is_locked(range) && !self.is_leaving(range) && !self.quarantine.borrow().holds(range, now)
    }

    /// Starts a copy that begins with `seed` and takes cached neighbours on both sides along, at
    /// most `most` blocks. Returns the blocks taken.
    pub(super) fn start_copy(&self, seed: CachedExtent, most: u64) -> u64 {
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

    /// One copy: read the runs of slots into one buffer, write it to the origin at once.
    pub(in super::super) async fn copy(self: Rc<Self>, mut run: CopyRun) {
        let sectors = |extent: &CachedExtent| SectorCount(u64::from(extent.count) * self.block_bytes() / 512);
        let slots = |extent: &CachedExtent| Extent::new(self.geometry.slot_sector(extent.slot), sectors(extent));
        let gathered = self.copier.gather(&*self.fast, run.extents.iter().map(slots)).await;
        run.lost = self.origin_lost.get();
        let status = match gathered {
            Ok(gathered) => gathered.write(&*self.origin, self.block_sector(run.origin())).await,
            Err(status) => status,
        };
        if status.is_ok() {
            self.origin_writes.set(self.origin_writes.get() + 1);
            self.copied.borrow_mut().push(run);
        } else {
            self.copy_failed(run);
        }
        self.work.raise();
    }

    /// The task that lets copied blocks go, as many at a time as have gathered.
    pub(in super::super) async fn retirer(self: Rc<Self>) {
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
        self.quarantine.borrow_mut().release(run.range());
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

    /// I4: blocks stay cached; more than one are tried again in halves, one goes into quarantine, and
    /// so do all when everything fails.
    #[expect(clippy::needless_pass_by_value, reason = "the copy is over; nobody may use the run again")]
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
        let now = self.reactor.now();
        let blocks = u32::try_from(run.blocks()).expect("a copy is short");
        if run.blocks() > 1 && !self.failed.get() && self.quarantine.borrow().may_split() {
            self.with_age(|age| age.push_front(run.origin(), blocks, now));
            self.retry_in_halves(&run);
        } else {
            self.with_age(|age| age.push(now, run.origin(), blocks));
            self.quarantine.borrow_mut().put(run.range(), now);
        }
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
    pub(super) fn start_exactly(&self, extent: CachedExtent) {
        self.start_copy(extent, u64::from(extent.count));
    }

    /// Waits until no copy of a block in `range` is on its way.
    pub(in super::super) async fn writeback_left(&self, range: &std::ops::Range<OriginBlock>) {
        let range = LockRange::new(range.start.0, range.end.0 - range.start.0);
        while self.is_leaving(range) && !self.closed.get() && !self.failed.get() {
            let seen = self.copy_ended.count();
            self.copy_ended.after(seen, None).await;
        }
    }
}

/// The first `most` blocks of an extent.
fn head(extent: CachedExtent, most: u64) -> CachedExtent {
    CachedExtent { count: u32::try_from(u64::from(extent.count).min(most)).expect("at most what it was"), ..extent }
}

/// The last `most` blocks of an extent.
fn tail(extent: CachedExtent, most: u64) -> CachedExtent {
    let count = u64::from(extent.count).min(most);
    clip_start(extent, OriginBlock(extent.end().0 - count))
}

pub(super) fn clip_start(extent: CachedExtent, start: OriginBlock) -> CachedExtent {
    let cut = u32::try_from(start.0 - extent.origin.0).expect("inside the extent");
    CachedExtent { origin: start, slot: CacheSlot(extent.slot.0 + cut), count: extent.count - cut, ..extent }
}

fn clip_end(extent: CachedExtent, end: OriginBlock) -> CachedExtent {
    let count = u32::try_from(end.0 - extent.origin.0).expect("inside the extent").min(extent.count);
    CachedExtent { count, ..extent }
}

/// Blocks of the largest copy: the origin's preferred request, up to 1 MiB.
pub(in super::super) fn copy_blocks(preferred_bytes: u32, block_bytes: u64) -> u64 {
    let bytes = if preferred_bytes == 0 { COPY_BYTES_MAX } else { u64::from(preferred_bytes) };
    (bytes.clamp(65_536, COPY_BYTES_MAX) / block_bytes).max(1)
}

/// The engine for copies of at most `bytes`; how many there are is limited by their jobs.
pub(in super::super) fn copier(reactor: &Reactor, pool: &BufferPool, bytes: u64) -> Engine {
    let piece_bytes = u32::try_from(bytes.next_multiple_of(4096)).expect("a copy is at most 1 MiB or one block");
    let in_flight_bytes = u64::from(piece_bytes) * COPIES_MAX as u64;
    Engine::new(reactor, pool, &Settings { piece_bytes, in_flight_bytes, ..Settings::default() })
}
