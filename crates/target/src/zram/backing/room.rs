//! Changes that cannot be made at once: a part of a page that they change is away, or memory is full.
//!
//! ```text
//!   change ─▶ edges back in memory ─▶ page by page ─▶ no room? ─▶ in line ─▶ a spill makes some ─┐
//!                   ▲                                                                            │
//!                   └────────────────────────── what is left of it ◀─────────────────────────────┘
//! ```
//!
//! 1. Only a rule that spills makes room by itself. Where it cannot, since the device is full, fails, or may take no
//!    more today, or nothing is left to spill, the change fails as it would without the rule.
//! 2. Room goes to changes in the order in which they found none; who comes later stands behind them.
//! 3. A write that waits goes on with the page that found no room, so that none of its pages is written twice over
//!    what others wrote meanwhile. Zeroes cannot tell how far they came: those whose edges find no room fail.

use std::rc::Rc;

use forebay_block::{Bio, BvecIter, Op};

use super::super::pages::PageError;
use super::super::{PAGE_BYTES, Zram};
use super::policy::Policy;
use crate::lock::Guard;

/// A change that found no room is the first in line.
struct Turn {
    _guard: Guard,
    /// Passes of the rules when it found no room the last time, unless it came on meanwhile.
    asked: Option<u64>,
}

impl Zram {
    /// Whether changes wait for room, behind which others have to stand.
    pub(in super::super) fn has_line(&self) -> bool {
        self.policy.as_ref().is_some_and(Policy::has_line)
    }

    /// Whether a change that finds no room may wait for it.
    pub(in super::super) fn makes_room(&self) -> bool {
        self.policy.as_ref().is_some_and(Policy::makes_room)
    }

    /// There may be more room than before.
    pub(in super::super) fn tell_of_room(&self) {
        if let Some(policy) = self.policy.as_ref().filter(|policy| policy.has_line()) {
            policy.room.raise();
        }
    }

    /// Makes a change of which so much is left, as soon as it can be made, and ends it.
    pub(in super::super) async fn change_later(self: Rc<Self>, bio: Bio, left: BvecIter) {
        match self.change(&bio, left).await {
            Some(done) => self.end(bio, done),
            None => self.door.park(bio),
        }
    }

    /// Makes what is left of a change; `None` when none of it was made and it has to wait at the door.
    pub(in super::super) async fn change(&self, bio: &Bio, mut left: BvecIter) -> Option<Result<(), PageError>> {
        let mut turn = None;
        if self.has_line() {
            self.wait_for_room(&mut turn).await;
        }
        loop {
            let edges = self.bring_edges(bio.op(), &left).await;
            if left.bytes == bio.bytes() && self.door.holds(bio.op()) {
                return None;
            }
            let (whole, before) = (edges.is_ok() && bio.op() != Op::Write, left.bytes);
            // Nothing waits between the last look and the change.
            let done = edges.and_then(|()| self.serve_left(bio, &mut left));
            if let Some(turn) = turn.as_mut().filter(|_| left.bytes < before) {
                turn.asked = None;
            }
            if done != Err(PageError::NoSpace) || whole || !self.wait_for_room(&mut turn).await {
                return Some(done);
            }
        }
    }

    /// Waits for its turn, and then until there may be more room; false when nobody makes any.
    async fn wait_for_room(&self, turn: &mut Option<Turn>) -> bool {
        let Some(policy) = self.policy.as_ref().filter(|policy| policy.makes_room()) else { return false };
        let Some(turn) = turn else {
            *turn = Some(Turn { _guard: policy.stand_in_line().await, asked: None });
            return true;
        };
        let seen = policy.room.count();
        turn.asked = policy.ask_for_room(turn.asked);
        if self.closed.get() || turn.asked.is_none() {
            return false;
        }
        policy.room.after(seen, None).await;
        true
    }

    /// Brings back what is away of the pages that a change of `range` covers in part.
    pub(in super::super) async fn bring_edges(&self, op: Op, range: &BvecIter) -> Result<(), PageError> {
        while let Some(page) = self.edge_away(op, range) {
            self.bring_back(page).await?;
        }
        Ok(())
    }

    /// A page that is away and that a change of `range` covers in part.
    pub(in super::super) fn edge_away(&self, op: Op, range: &BvecIter) -> Option<u64> {
        if !matches!(op, Op::Write | Op::WriteZeroes) {
            return None;
        }
        let (start, end) = (range.sector.to_bytes(), range.sector.to_bytes() + range.bytes);
        let edges = [start, end].into_iter().filter(|at| !at.is_multiple_of(PAGE_BYTES)).map(|at| at / PAGE_BYTES);
        let pages = self.pages.borrow();
        edges.into_iter().find(|&page| pages.any_away(page..page + 1))
    }
}
