//! The commit: one round at a time makes a group of blocks durable for everybody who waits.
//!
//! ```text
//!   wanted by: flush, FUA, autocommit (count, time), discard, writeback
//!   ① wait for writes into the open group, close it            blocks: Open → Closing
//!   ② write the entries of the group; now and then clear the entries in `due`
//!   ③ flush the fast device                                    data and entries are durable
//!   ④ superblock with seq + 1, FUA: the instant of the commit  blocks: Closing → Committed
//!   ⑤ clear the entries in `written`, flush                    joined with ② when `due` is empty
//!   ⑥ slots whose entries are cleared are free once their readers are gone
//! ```
//!
//! A crash before ④ leaves the group out as a whole; after ④ it is in as a whole. Entries written
//! in ② carry the sequence number that the superblock does not cover yet, so they mean nothing.
//!
//! Entries in `due` are harmless, since newer committed ones win over them: they are cleared many at
//! a time, so that a single durable write pays for its own entry and the superblock only.
//!
//! Invariants:
//! - I1: there is one round at a time; whoever asks during a round gets the next one.
//! - I2: data of a group has ended before the group closes, so ③ covers it.
//! - I3: the first error latches: from then on writes and flushes fail, and reads go on from what
//!   is known to be newest.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Status, flush};

use super::Cache;
use super::index::{CachedExtent, SlotRun};
use super::metadata::Update;
use super::state::CacheState;

/// Superseded runs are cleared on their own when there is one for so many blocks of the cache.
const DUE_SHARE: u32 = 32;
/// But not when they are fewer than this.
const DUE_FEW: u32 = 64;
/// A group of so many runs for each block of the cache is committed, so that its lists stay small.
const OPEN_SHARE: u32 = 64;
/// But not one of fewer runs than this.
const OPEN_FEW: u32 = 512;

/// Vectors of a round, kept for their memory.
#[derive(Default)]
pub(super) struct Scratch {
    group: Vec<CachedExtent>,
    due: Vec<SlotRun>,
    written: Vec<SlotRun>,
    updates: Vec<Update>,
}

impl Scratch {
    fn bytes(&self) -> usize {
        self.group.capacity() * size_of::<CachedExtent>()
            + (self.due.capacity() + self.written.capacity()) * size_of::<SlotRun>()
            + self.updates.capacity() * size_of::<Update>()
    }
}

impl Cache {
    /// Makes everything that ended before durable on the fast device, and clears the entries of
    /// what left before. Shares the round with others who ask.
    pub(super) async fn commit(&self) -> Status {
        let round = self.want_round();
        self.round_over(round).await
    }

    /// Asks for the next round; its number, for [`Cache::round_over`].
    fn want_round(&self) -> u64 {
        let wanted = self.rounds_started.get() + 1;
        self.round_wanted.set(self.round_wanted.get().max(wanted));
        self.work.raise();
        wanted
    }

    /// Waits for the end of a round.
    async fn round_over(&self, wanted: u64) -> Status {
        while self.rounds_done.get() < wanted && !self.closed.get() {
            let seen = self.round_ended.count();
            self.round_ended.after(seen, None).await;
        }
        if self.failed.get() || self.rounds_done.get() < wanted { Status::IoError } else { Status::Ok }
    }

    /// As [`Cache::commit`], and also clears what is superseded only once the open group is durable.
    pub(super) async fn commit_superseded(&self) -> Status {
        let superseded = {
            let state = self.state.borrow();
            !state.leaving.superseded_open.is_empty() || !state.leaving.superseded_closing.is_empty()
        };
        self.clear_wanted.set(true);
        let status = self.commit().await;
        if superseded && status.is_ok() {
            self.clear_wanted.set(true);
            return self.commit().await;
        }
        status
    }

    /// The task that runs the rounds until the cache closes.
    pub(super) async fn committer(self: Rc<Self>) {
        let mut scratch = Scratch::default();
        while !self.closed.get() {
            let seen = self.work.count();
            let timer = self.autocommit_at.get();
            let due = timer.is_some_and(|at| at <= self.reactor.now());
            let asked = self.round_wanted.get() > self.rounds_done.get();
            let leaving = self.clears(&self.state.borrow());
            if asked || due || leaving {
                self.round(&mut scratch).await;
                continue;
            }
            if self.has_much_due() {
                self.clear_due(&mut scratch).await;
                continue;
            }
            self.work.after(seen, timer.map(|at| self.reactor.sleep_until(at))).await;
        }
        self.committer_left.set(true);
        self.round_ended.raise();
    }

    /// Whether a round now clears entries: what writeback freed at once, and what is superseded
    /// before it; what is superseded alone only when space is short.
    fn clears(&self, state: &CacheState) -> bool {
        let short = state.free.free_blocks() <= self.geometry.blocks() / 8;
        !self.failed.get() && (!state.leaving.written.is_empty() || (short && !state.leaving.due.is_empty()))
    }

    /// Whether so much is superseded that its entries should be cleared on their own.
    fn has_much_due(&self) -> bool {
        let few = (self.geometry.blocks() / DUE_SHARE).max(DUE_FEW);
        !self.failed.get() && self.state.borrow().leaving.due.len() > few as usize
    }

    /// Clears the entries in `due`, between two rounds and without closing the group.
    async fn clear_due(&self, scratch: &mut Scratch) {
        scratch.due.append(&mut self.state.borrow_mut().leaving.due);
        scratch.updates.clear();
        let mut metadata = self.metadata.take().expect("one round at a time uses the metadata");
        push_cleared(&metadata, &mut scratch.updates, &mut scratch.due);
        let mut status = metadata.apply(&scratch.updates).await;
        if status.is_ok() {
            status = self.flush_fast().await;
        }
        self.metadata.set(Some(metadata));
        self.let_go(scratch, status);
    }

    /// Lets the slots go whose entries are cleared, or latches when they could not be.
    fn let_go(&self, scratch: &mut Scratch, status: Status) {
        if status.is_ok() {
            let mut state = self.state.borrow_mut();
            for run in scratch.due.drain(..).chain(scratch.written.drain(..)) {
                state.retire(run);
            }
        } else {
            self.latch("a metadata write or flush of the fast device failed");
        }
        self.scratch_bytes.set(scratch.bytes());
        self.space.raise();
        self.work.raise();
    }

    /// Somebody waits for space: asks for a round where that makes superseded copies leave.
    pub(super) fn want_superseded(&self) {
        let state = self.state.borrow();
        if !state.leaving.superseded_open.is_empty() || !state.leaving.due.is_empty() {
            self.clear_wanted.set(true);
            self.round_wanted.set(self.round_wanted.get().max(self.rounds_started.get() + 1));
        }
    }

    /// Notes that blocks were written, for autocommit.
    pub(super) fn note_written(&self) {
        if self.autocommit_at.get().is_none() {
            self.autocommit_at.set(Some(self.reactor.now().saturating_add(self.settings.autocommit_time)));
            self.work.raise();
        }
        let state = self.state.borrow();
        let many = state.open.len() > (self.geometry.blocks() / OPEN_SHARE).max(OPEN_FEW) as usize;
        if many || state.open_blocks >= u64::from(self.settings.autocommit_blocks) {
            self.round_wanted.set(self.round_wanted.get().max(self.rounds_started.get() + 1));
            self.work.raise();
        }
    }

    async fn round(&self, scratch: &mut Scratch) {
        let status = self.close_and_write(scratch).await;
        scratch.group.clear();
        self.rounds_done.set(self.rounds_done.get() + 1);
        self.forget_cleared();
        self.let_go(scratch, status);
        self.round_ended.raise();
    }

    /// Steps ① to ⑤. After an error nothing closes any more: the group that was being committed
    /// then stays as it is.
    async fn close_and_write(&self, scratch: &mut Scratch) -> Status {
        if !self.failed.get() {
            self.close_group(scratch).await;
        }
        self.rounds_started.set(self.rounds_started.get() + 1);
        self.autocommit_at.set(None);
        if self.failed.get() { Status::IoError } else { self.write_round(scratch).await }
    }

    /// Step ①.
    async fn close_group(&self, scratch: &mut Scratch) {
        self.state.borrow_mut().close_wanted = true;
        while self.state.borrow().open_writes > 0 {
            let seen = self.open_idle.count();
            self.open_idle.after(seen, None).await;
        }
        let mut state = self.state.borrow_mut();
        state.close_wanted = false;
        state.close(&mut scratch.group);
        if self.clear_wanted.replace(false) || self.clears(&state) {
            scratch.due.append(&mut state.leaving.due);
            scratch.written.append(&mut state.leaving.written);
        }
    }

    /// Steps ② to ⑤; nothing is written when there is nothing to do.
    async fn write_round(&self, scratch: &mut Scratch) -> Status {
        let seq = self.state.borrow().seq;
        let joined = scratch.due.is_empty();
        self.gather(scratch, seq, joined);
        let overwritten = self.fast_dirty.replace(false);
        if scratch.group.is_empty() {
            // What was superseded by blocks that were dropped again waits for nothing more.
            self.state.borrow_mut().committed(&[]);
            if scratch.updates.is_empty() && !overwritten {
                return Status::Ok;
            }
        }
        let mut metadata = self.metadata.take().expect("one round at a time uses the metadata");
        let mut status = metadata.apply(&scratch.updates).await;
        if status.is_ok() && !planted(Bug::M1CommitWithoutFlush) {
            status = self.flush_fast().await;
        }
        if status.is_ok() && !scratch.group.is_empty() {
            status = metadata.write_superblock(seq).await;
            if status.is_ok() {
                self.state.borrow_mut().committed(&scratch.group);
            }
        }
        if status.is_ok() && !joined && !scratch.written.is_empty() {
            scratch.updates.clear();
            push_cleared(&metadata, &mut scratch.updates, &mut scratch.written);
            status = metadata.apply(&scratch.updates).await;
            if status.is_ok() {
                status = self.flush_fast().await;
            }
        }
        self.metadata.set(Some(metadata));
        status
    }

    /// Lists the updates of step ② in order of their slots. The group's blocks carry the sequence
    /// number in front of the one that the superblock will say.
    fn gather(&self, scratch: &mut Scratch, seq: u64, joined: bool) {
        let mut metadata = self.metadata.take().expect("one round at a time uses the metadata");
        metadata.set_seq(seq.wrapping_sub(1));
        let Scratch { group, due, written, updates } = scratch;
        updates.clear();
        for extent in group.iter() {
            let sector = self.block_sector(extent.origin).0;
            metadata.push_update(updates, extent.slots(), Some(sector));
        }
        push_cleared(&metadata, updates, due);
        if joined {
            push_cleared(&metadata, updates, written);
        }
        updates.sort_unstable_by_key(|update| update.slots.slot);
        self.metadata.set(Some(metadata));
    }

    pub(super) async fn flush_fast(&self) -> Status {
        flush(&*self.fast).await.status()
    }

    /// Makes bypassed writes and writeback durable on the origin, when there are any. One flush is in
    /// flight at a time, so that whoever is told of a success was told of every failure before.
    ///
    /// When a flush fails, the origin may have dropped whatever was written before, also what had
    /// not been heard of yet, and a later flush that succeeds says nothing about that. Blocks in
    /// writeback are copied again and writes on their way fail; but of a bypassed write that was
    /// acknowledged there is no other copy, so no flush may succeed any more.
    pub(super) async fn flush_origin(&self) -> Status {
        let wanted = self.origin_writes.get();
        while self.origin_flushed.get() < wanted && !self.failed.get() {
            if self.origin_flushing.replace(true) {
                let seen = self.origin_flush_ended.count();
                self.origin_flush_ended.after(seen, None).await;
                continue;
            }
            let covered = self.origin_writes.get();
            let status = flush(&*self.origin).await.status();
            self.origin_flushing.set(false);
            if status.is_ok() {
                self.origin_flushed.set(covered);
            } else if !planted(Bug::M14FlushErrorForgotten) {
                self.origin_lost.set(self.origin_lost.get() + 1);
                if self.last_bypass.get() > self.origin_flushed.get() {
                    self.latch("a flush of the origin failed with writes in it that are nowhere else");
                }
            }
            self.origin_flush_ended.raise();
            if !status.is_ok() {
                return status;
            }
        }
        if self.failed.get() { Status::IoError } else { Status::Ok }
    }

    /// Serves a flush: the commit and the origin's flush go side by side.
    pub(super) async fn flush(self: Rc<Self>, bio: Bio) {
        self.counts.flushes.set(self.counts.flushes.get() + 1);
        let round = self.want_round();
        let status = self.flush_origin().await;
        bio.end(status.and(self.round_over(round).await));
    }

    /// Stops all writing after an error that leaves the media in doubt (I3).
    pub(super) fn latch(&self, why: &str) {
        if !self.failed.replace(true) {
            tracing::error!("write cache: {why}; it serves reads only from now on: mend the device and open the cache again");
        }
        self.space.raise();
        self.work.raise();
    }
}

/// Appends clears for `runs`, joining neighbours; leaves the runs sorted by slot.
fn push_cleared(metadata: &super::metadata::Metadata, updates: &mut Vec<Update>, runs: &mut [SlotRun]) {
    runs.sort_unstable_by_key(|run| run.slot);
    let mut joined: Option<SlotRun> = None;
    for &run in &*runs {
        match &mut joined {
            Some(last) if last.end() == run.slot.0 => last.count += run.count,
            _ => {
                if let Some(last) = joined.replace(run) {
                    metadata.push_update(updates, last, None);
                }
            }
        }
    }
    if let Some(last) = joined {
        metadata.push_update(updates, last, None);
    }
}

/// The autocommit interval as a duration.
pub(super) fn interval(ms: u32) -> Duration {
    Duration::from_millis(u64::from(ms))
}
