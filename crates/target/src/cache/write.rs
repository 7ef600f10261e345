//! Writes: into fresh slots by the longest runs there are, over what is cached, or to the origin.
//!
//! Follow a write: `block/target.rs` (the table hands it down) → here → the device
//! (`device/file.rs`, `device/ram.rs`) → the reactor's plug.
//!
//! ```text
//!   lock the blocks ─▶ plan (pure, state.rs) ─▶ one request per run ─▶ publish ─▶ FUA: commit ─▶ end
//!                        │ hit       │ miss
//!                        ▼           ▼
//!                     in place    free run of slots, extended as far as it goes
//! ```
//!
//! Invariants:
//! - I1: overlapping writes pass one after the other: each holds its blocks from plan to publish.
//! - I2: blocks appear in the index only after their data is in their slots; a write that fails
//!   gives its slots back and changes nothing that was cached before.
//! - I3: a block written in part is filled from its newest copy; a failed fill fails only that write.
//! - I4: waiting for space holds no lock, so writeback can always take what is needed.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Flags, Op, SectorCount, Status, bvec, call};
use forebay_reactor::Buffer;

use super::Cache;
use super::index::{CacheSlot, OriginBlock};
use super::state::{Action, Planned};
use crate::lock::LockRange;

impl Cache {
    /// Serves a write.
    pub(super) async fn write(self: Rc<Self>, bio: Bio) {
        let status = self.write_all(&bio).await;
        let status = if status.is_ok() && bio.flags().fua { self.commit().await } else { status };
        self.end_or_hold(bio, status);
    }

    /// Ends a bio; but one that waited for space when the cache was suspended begins anew once it is
    /// resumed, so that a suspend does not wait for an origin that takes nothing.
    pub(super) fn end_or_hold(&self, bio: Bio, status: Status) {
        if status == Status::Again && self.suspended.get() {
            return self.waiting.borrow_mut().push_back(bio);
        }
        bio.end(status);
    }

    /// Writes all of `bio` without ending it; waits for space where the options say so, and gives up
    /// with [`Status::Again`] when the cache is suspended meanwhile.
    pub(super) async fn write_all(&self, bio: &Bio) -> Status {
        let mut plan = self.plans.borrow_mut().pop().unwrap_or_default();
        let mut next = self.first_block(bio);
        let end = self.end_block(bio);
        let mut status = Status::Ok;
        while next < end && status.is_ok() {
            let seen = self.space.count();
            let guard = self.locks.lock(LockRange::new(next.0, end.0 - next.0)).await;
            if self.failed.get() {
                status = Status::IoError;
                break;
            }
            plan.clear();
            self.plan_write(bio, next..end, &mut plan);
            if let Some(last) = plan.last() {
                next = OriginBlock(last.origin.0 + u64::from(last.count));
                status = self.carry_out(bio, &plan).await;
            }
            drop(guard);
            if plan.is_empty() {
                if self.suspended.get() {
                    status = Status::Again;
                    break;
                }
                self.counts.blocked.set(self.counts.blocked.get() + 1);
                self.want_superseded();
                self.work.raise();
                self.space.after(seen, None).await;
            }
        }
        self.plans.borrow_mut().push(plan);
        self.note_written();
        status
    }

    /// Plans as much of `range` as there is space for. A block that the bio covers only in part is
    /// a piece of its own.
    fn plan_write(&self, bio: &Bio, range: Range<OriginBlock>, plan: &mut Vec<Planned>) {
        let block = self.block_bytes();
        let whole_start = OriginBlock(bio.sector().to_bytes().div_ceil(block)).clamp(range.start, range.end);
        let whole_end = OriginBlock((bio.sector().to_bytes() + bio.bytes()) / block).clamp(whole_start, range.end);
        let rules = self.rules(bio);
        let mut state = self.state.borrow_mut();
        let mut planned_to = range.start;
        for part in [range.start..whole_start, whole_start..whole_end, whole_end..range.end] {
            if planned_to == part.start && part.start < part.end {
                state.plan(part, rules, plan);
                planned_to = plan.last().map_or(range.start, |last| OriginBlock(last.origin.0 + u64::from(last.count)));
            }
        }
    }

    /// Sends every piece of the plan, waits for all, and enters what is in the cache now.
    async fn carry_out(&self, bio: &Bio, plan: &[Planned]) -> Status {
        let lost = self.origin_lost.get();
        let open_writes = plan.iter().filter(|planned| matches!(planned.action, Action::InPlace { open: true, .. })).count();
        self.hold_open(open_writes);
        for planned in plan {
            self.count_planned(planned);
            if !self.needs_fill(bio, planned) {
                self.send(bio, planned);
            }
        }
        // From the plan on, or a copy to fill from may leave and its slot get other content first.
        let half = self.state.borrow_mut().reader_began();
        let mut status = Status::Ok;
        if planted(Bug::M3DirtyBeforeData) {
            self.settle(plan, Status::Ok);
        }
        for planned in plan.iter().filter(|planned| self.needs_fill(bio, planned)) {
            status = status.and(self.fill_and_write(bio, planned).await);
        }
        self.reader_ended(half);
        status = status.and(bio.parts_done().await);
        let bypassed = plan.iter().any(|planned| planned.action == Action::Bypass);
        if bypassed && self.origin_lost.get() > lost {
            status = status.and(Status::IoError);
        }
        if !planted(Bug::M3DirtyBeforeData) {
            self.settle(plan, status);
        }
        self.release_open(open_writes);
        status
    }

    /// Whether the piece is a block written in part that gets a fresh slot.
    fn needs_fill(&self, bio: &Bio, planned: &Planned) -> bool {
        matches!(planned.action, Action::Fresh { .. })
            && self.clip(bio, planned).1 < u64::from(planned.count) * self.block_bytes()
    }

    /// The part of `bio` that lies in the piece: bytes to skip, and length in bytes.
    fn clip(&self, bio: &Bio, planned: &Planned) -> (u64, u64) {
        let start = bio.sector().to_bytes();
        let piece_start = planned.origin.0 * self.block_bytes();
        let piece_end = piece_start + u64::from(planned.count) * self.block_bytes();
        let from = piece_start.max(start);
        let to = piece_end.min(start + bio.bytes());
        (from - start, to - from)
    }

    /// Sends a piece whose payload goes as it is, in one request.
    fn send(&self, bio: &Bio, planned: &Planned) {
        let (skip, bytes) = self.clip(bio, planned);
        let part = bio.part(skip, bytes);
        match planned.action {
            Action::Bypass => self.origin.submit(part),
            Action::InPlace { slot, .. } | Action::Fresh { slot, .. } => {
                // The commit makes it durable; a FUA here would only cost.
                let inside = part.sector().0 - self.block_sector(planned.origin).0;
                let sector = self.geometry.slot_sector(slot) + SectorCount(inside);
                let flags = Flags { nomerge: !self.settings.extend, ..Flags::default() };
                self.fast.submit(part.with(flags).remap(sector));
            }
        }
    }

    /// Writes a block that is only partly covered: through a buffer that first takes the block's
    /// newest content (I3).
    async fn fill_and_write(&self, bio: &Bio, planned: &Planned) -> Status {
        let Action::Fresh { slot, old } = planned.action else { unreachable!("only fresh slots are filled") };
        let (skip, bytes) = self.clip(bio, planned);
        let inside = usize::try_from((bio.sector().to_bytes() + skip) % self.block_bytes()).expect("inside a block");
        let length = usize::try_from(bytes).expect("less than a block");
        let mut buffer = self.pool.take(self.geometry.block_bytes() as usize);
        let status = self.read_newest(planned.origin, old, &buffer).await;
        if !status.is_ok() {
            return status;
        }
        let mut iter = bio.iter();
        let segments = bio.segments().expect("a write has a payload");
        iter.advance(Some(segments), skip).expect("the piece lies inside the bio");
        bvec::copy_out(segments, iter, &mut buffer.bytes_mut()[inside..inside + length]);
        let write = Bio::write(self.geometry.slot_sector(slot), Rc::clone(buffer.segments()), 0, self.geometry.block_bytes());
        call(&*self.fast, write).await.status()
    }

    /// Reads a whole block from its newest copy.
    async fn read_newest(&self, origin: OriginBlock, cached: Option<CacheSlot>, buffer: &Buffer) -> Status {
        let segments = Rc::clone(buffer.segments());
        let bytes = self.geometry.block_bytes();
        match cached {
            Some(slot) => call(&*self.fast, Bio::read(self.geometry.slot_sector(slot), segments, 0, bytes)).await.status(),
            None => call(&*self.origin, Bio::read(self.block_sector(origin), segments, 0, bytes)).await.status(),
        }
    }

    /// Enters fresh blocks into the index, or gives their slots back when the write failed (I2).
    fn settle(&self, plan: &[Planned], status: Status) {
        let mut state = self.state.borrow_mut();
        for planned in plan {
            match planned.action {
                Action::Fresh { slot, .. } if status.is_ok() => {
                    state.publish(planned.origin, slot, planned.count);
                    self.with_age(|age| age.push(self.reactor.now(), planned.origin, planned.count));
                }
                Action::Fresh { slot, .. } => state.unplan(slot, planned.count),
                // Even a failed write may have reached the device in part.
                Action::InPlace { .. } => self.fast_dirty.set(true),
                Action::Bypass => self.note_bypassed(),
            }
        }
        drop(state);
        self.trim_age();
        self.consider_writeback();
    }

    fn hold_open(&self, writes: usize) {
        self.state.borrow_mut().open_writes += u32::try_from(writes).expect("a plan is short");
    }

    fn release_open(&self, writes: usize) {
        let mut state = self.state.borrow_mut();
        state.open_writes -= u32::try_from(writes).expect("a plan is short");
        if writes > 0 && state.open_writes == 0 {
            drop(state);
            self.open_idle.raise();
        }
    }

    fn first_block(&self, bio: &Bio) -> OriginBlock {
        OriginBlock(bio.sector().to_bytes() / self.block_bytes())
    }

    fn end_block(&self, bio: &Bio) -> OriginBlock {
        debug_assert!(matches!(bio.op(), Op::Read | Op::Write), "only requests with payload are cut into blocks");
        OriginBlock((bio.sector().to_bytes() + bio.bytes()).div_ceil(self.block_bytes()))
    }
}
