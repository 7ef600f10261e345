//! What the write cache knows and decides between two awaits: plain data and pure functions.
//!
//! ```text
//!              publish                 close                 commit
//!   free slot ─────────▶ Open extent ─────────▶ Closing ─────────▶ Committed ─┐ writeback,
//!      ▲                                                                      │ superseded,
//!      └── readers gone ◀── entry cleared on media ◀── due / written ◀────────┘ discarded
//! ```
//!
//! Invariants:
//! - I1: a slot is in exactly one place: free, handed to a write that has not ended, in the map, or
//!   on its way out (superseded, due, written, limbo).
//! - I2: an extent enters the map only after its data is in its slot, so a read never meets a slot
//!   with somebody else's data, and a failed write leaves no entry.
//! - I3: a slot whose entry may be on media is free again only after the entry was cleared durably.
//! - I4: of two copies of a block on media the older one's entry is cleared before the newer one's:
//!   `superseded` waits for the commit of what replaced it, `due` is cleared before `written`.
//! - I5: a slot becomes free only when no read that may have looked it up is in flight.
//!
//! Units: blocks of the cache.

use std::ops::Range;

use super::index::{CacheSlot, CachedExtent, ExtentMap, FreeSpace, OriginBlock, Phase, Piece, SlotRun, State as BlockState};

/// What a write does with a piece of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Overwrite the slot that holds it.
    InPlace {
        /// Where it lies.
        slot: CacheSlot,
        /// Whether the block belongs to the group that still collects.
        open: bool,
    },
    /// Put it into a fresh slot; a partial block is filled from `fill` first.
    Fresh {
        /// Where it goes.
        slot: CacheSlot,
        /// The copy that is replaced, where there is one.
        old: Option<CacheSlot>,
    },
    /// Send it to the origin.
    Bypass,
}

/// One piece of a write: a run of blocks and what happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) origin: OriginBlock,
    pub(super) count: u32,
    pub(super) action: Action,
}

/// How writes choose; fixed when the cache is opened, but for `cleaner`.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "rules are independent of each other")]
pub(super) struct WriteRules {
    /// Every overwrite goes to a fresh slot, so that groups are atomic.
    pub(super) overwrite_new: bool,
    /// A full cache makes writers wait instead of sending them to the origin.
    pub(super) full_wait: bool,
    /// New blocks go to the origin.
    pub(super) bypass_new: bool,
    /// Extend a request over consecutive slots; off only to measure what that gains.
    pub(super) extend: bool,
}

/// Slots on their way out, in the order of their stations.
#[derive(Default)]
pub(super) struct Leaving {
    /// Replaced by blocks of the open group.
    pub(super) superseded_open: Vec<SlotRun>,
    /// Replaced by blocks of the group that is being committed.
    pub(super) superseded_closing: Vec<SlotRun>,
    /// What replaced them is committed: to be cleared in the next round, first.
    pub(super) due: Vec<SlotRun>,
    /// Their data is on the origin or no longer wanted: to be cleared in the next round, after `due`.
    pub(super) written: Vec<SlotRun>,
    /// Cleared; waiting for reads that began before this half of the readers' clock.
    limbo: [Vec<SlotRun>; 2],
}

/// The pure state of a cache.
pub(super) struct CacheState {
    pub(super) map: ExtentMap,
    pub(super) free: FreeSpace,
    pub(super) leaving: Leaving,
    /// Blocks between being chosen for writeback, or dropped, and being free again.
    pub(super) leaving_blocks: u64,
    /// The sequence number of the open group: what the superblock says once all before is durable.
    pub(super) seq: u64,
    /// Extents published into the open group; some may have been replaced or dropped since.
    pub(super) open: Vec<CachedExtent>,
    /// Blocks published since the last close, counted for autocommit.
    pub(super) open_blocks: u64,
    /// Writes in flight to blocks of the open group.
    pub(super) open_writes: u32,
    /// The open group is about to close: no further write into its blocks.
    pub(super) close_wanted: bool,
    readers: [u32; 2],
    half: usize,
    displaced: Vec<CachedExtent>,
}

impl CacheState {
    pub(super) fn new(map: ExtentMap, free: FreeSpace, seq: u64) -> Self {
        Self {
            map,
            free,
            leaving: Leaving::default(),
            leaving_blocks: 0,
            seq,
            open: Vec::new(),
            open_blocks: 0,
            open_writes: 0,
            close_wanted: false,
            readers: [0; 2],
            half: 0,
            displaced: Vec::new(),
        }
    }

    /// Bytes allocated, or a little more.
    pub(super) fn memory_bytes(&self) -> usize {
        let Leaving { superseded_open, superseded_closing, due, written, limbo: [one, other] } = &self.leaving;
        let runs: usize =
            [superseded_open, superseded_closing, due, written, one, other].iter().map(|list| list.capacity()).sum();
        let extents = self.open.capacity() + self.displaced.capacity();
        self.map.memory_bytes() + self.free.memory_bytes() + runs * size_of::<SlotRun>() + extents * size_of::<CachedExtent>()
    }

    /// Plans a write over `range`, taking the slots it needs, and appends the plan to `plan`.
    /// Stops where space ran out and the writer must wait: the plan then ends before the range.
    pub(super) fn plan(&mut self, range: Range<OriginBlock>, rules: WriteRules, plan: &mut Vec<Planned>) {
        let mut next = range.start;
        while next < range.end {
            let piece = self.map.pieces(next..range.end).next().expect("a range that is not empty has a piece");
            let planned = match piece {
                Piece::Hit(extent) => self.plan_hit(extent, rules),
                Piece::Miss { origin, count } => self.plan_miss(origin, count, rules),
            };
            let Some(planned) = planned else { return };
            next = OriginBlock(planned.origin.0 + u64::from(planned.count));
            plan.push(planned);
        }
    }

    fn plan_hit(&mut self, extent: CachedExtent, rules: WriteRules) -> Option<Planned> {
        let CachedExtent { origin, slot, count, state } = extent;
        let open = state.phase == Phase::Open;
        let closing = state.phase == Phase::Closing || (open && self.close_wanted);
        if !state.busy && !closing && !rules.overwrite_new {
            let count = if rules.extend { count } else { 1 };
            return Some(Planned { origin, count, action: Action::InPlace { slot, open } });
        }
        let run = self.free.allocate(if rules.extend { count } else { 1 })?;
        Some(Planned { origin, count: run.count, action: Action::Fresh { slot: run.slot, old: Some(slot) } })
    }

    fn plan_miss(&mut self, origin: OriginBlock, count: u64, rules: WriteRules) -> Option<Planned> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let bypass = Planned { origin, count, action: Action::Bypass };
        if rules.bypass_new {
            return Some(bypass);
        }
        match self.free.allocate(if rules.extend { count } else { 1 }) {
            Some(run) => Some(Planned { origin, count: run.count, action: Action::Fresh { slot: run.slot, old: None } }),
            None if rules.full_wait => None,
            None => Some(bypass),
        }
    }

    /// Gives back the slots of a write that failed.
    pub(super) fn unplan(&mut self, slot: CacheSlot, count: u32) {
        self.free.release(SlotRun { slot, count });
    }

    /// Enters blocks whose data is in their slots, and sends what they replace on its way out.
    pub(super) fn publish(&mut self, origin: OriginBlock, slot: CacheSlot, count: u32) {
        let extent = CachedExtent { origin, slot, count, state: BlockState::default() };
        let mut displaced = std::mem::take(&mut self.displaced);
        self.map.insert(extent, &mut displaced);
        for old in displaced.drain(..) {
            self.leave_superseded(old);
        }
        self.displaced = displaced;
        self.open_blocks += u64::from(count);
        match self.open.last_mut() {
            Some(last) if last.end() == origin && last.slots().end() == slot.0 => last.count += count,
            _ => self.open.push(extent),
        }
    }

    /// A copy that a newer one in the open group replaces. Copies in writeback leave with it.
    fn leave_superseded(&mut self, old: CachedExtent) {
        if old.state.busy {
            return;
        }
        self.leaving_blocks += u64::from(old.count);
        match old.state.phase {
            Phase::Open => self.retire(old.slots()),
            Phase::Closing | Phase::Committed => self.leaving.superseded_open.push(old.slots()),
        }
    }

    /// A copy left behind by a failed writeback although a newer one replaced it meanwhile.
    pub(super) fn leave_replaced(&mut self, origin: OriginBlock, slots: SlotRun) {
        match self.map.get(origin).map(|extent| extent.state.phase) {
            Some(Phase::Open) => self.leaving.superseded_open.push(slots),
            Some(Phase::Closing) => self.leaving.superseded_closing.push(slots),
            Some(Phase::Committed) | None => self.leaving.due.push(slots),
        }
    }

    /// Drops what is cached of `range`; its entries are cleared in the next round. Returns whether
    /// anything was there. Blocks in writeback must have left before.
    pub(super) fn drop_range(&mut self, range: Range<OriginBlock>) -> bool {
        let mut removed = std::mem::take(&mut self.displaced);
        self.map.remove(range, &mut removed);
        let any = !removed.is_empty();
        for old in removed.drain(..) {
            assert!(!old.state.busy, "blocks in writeback are waited for before they are dropped");
            self.leaving_blocks += u64::from(old.count);
            match old.state.phase {
                Phase::Open => self.retire(old.slots()),
                Phase::Closing | Phase::Committed => self.leaving.written.push(old.slots()),
            }
        }
        self.displaced = removed;
        any
    }

    /// Closes the open group: gives its extents that are still there to `group`, in slot order.
    pub(super) fn close(&mut self, group: &mut Vec<CachedExtent>) {
        assert_eq!(self.open_writes, 0, "a group closes when no write into it is in flight");
        for published in self.open.drain(..) {
            let slot_of = |origin: OriginBlock| u64::from(published.slot.0) + (origin.0 - published.origin.0);
            group.extend(self.map.pieces(published.origin..published.end()).filter_map(|piece| match piece {
                Piece::Hit(hit) if hit.state.phase == Phase::Open && u64::from(hit.slot.0) == slot_of(hit.origin) => Some(hit),
                Piece::Hit(_) | Piece::Miss { .. } => None,
            }));
        }
        for extent in &*group {
            self.map.mark(extent.origin, extent.slot, extent.count, |state| BlockState { phase: Phase::Closing, ..state });
        }
        group.sort_unstable_by_key(|extent| extent.slot);
        self.open_blocks = 0;
        assert!(self.leaving.superseded_closing.is_empty(), "one group closes at a time");
        std::mem::swap(&mut self.leaving.superseded_open, &mut self.leaving.superseded_closing);
        if !group.is_empty() {
            self.seq += 1;
        }
    }

    /// The closed group is durable.
    pub(super) fn committed(&mut self, group: &[CachedExtent]) {
        for extent in group {
            self.map.mark(extent.origin, extent.slot, extent.count, |state| BlockState { phase: Phase::Committed, ..state });
        }
        self.leaving.due.append(&mut self.leaving.superseded_closing);
    }

    /// The entry of these slots is cleared, or never was on media: free once no reader may hold them.
    pub(super) fn retire(&mut self, run: SlotRun) {
        if self.readers == [0; 2] {
            return self.release(run);
        }
        self.leaving.limbo[self.half].push(run);
    }

    fn release(&mut self, run: SlotRun) {
        self.leaving_blocks -= u64::from(run.count);
        self.free.release(run);
    }

    /// A read looks up slots; give what this returns to [`CacheState::reader_ended`].
    pub(super) fn reader_began(&mut self) -> usize {
        self.readers[self.half] += 1;
        self.half
    }

    /// A read that began in `half` ended. Returns whether slots became free.
    ///
    /// Nobody joins the other half, so its readers become fewer however many follow each other. Once
    /// they are gone, what its limbo holds is free, since that was retired before it became the other
    /// half; then the halves change places.
    pub(super) fn reader_ended(&mut self, half: usize) -> bool {
        self.readers[half] -= 1;
        let mut freed = false;
        for _ in 0..2 {
            let other = 1 - self.half;
            if self.readers[other] > 0 || self.leaving.limbo.iter().all(Vec::is_empty) {
                break;
            }
            let mut limbo = std::mem::take(&mut self.leaving.limbo[other]);
            for run in limbo.drain(..) {
                freed = true;
                self.release(run);
            }
            self.leaving.limbo[other] = limbo;
            self.half = other;
        }
        freed
    }
}

#[cfg(test)]
mod tests;
