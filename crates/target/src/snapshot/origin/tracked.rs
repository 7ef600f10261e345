//! Reads of the origin on behalf of snapshots: a change of the origin waits for those that it overlaps.
//!
//! Units: sectors of the origin.

use std::cell::RefCell;

use forebay_block::Extent;

use crate::event::Event;

/// The reads that are under way.
#[derive(Default)]
pub(in super::super) struct Tracked {
    slots: RefCell<Vec<Option<Extent>>>,
    free: RefCell<Vec<usize>>,
    over: Event,
}

impl Tracked {
    /// A read of `extent` begins; a number for its end.
    pub(in super::super) fn begin(&self, extent: Extent) -> usize {
        let mut slots = self.slots.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(None);
            slots.len() - 1
        });
        slots[slot] = Some(extent);
        slot
    }

    /// The read of this number is over.
    pub(in super::super) fn end(&self, slot: usize) {
        let ended = self.slots.borrow_mut()[slot].take();
        assert!(ended.is_some(), "a read ends once");
        self.free.borrow_mut().push(slot);
        self.over.raise();
    }

    /// Whether a read of a part of `extent` is under way.
    pub(in super::super) fn overlaps(&self, extent: Extent) -> bool {
        self.slots.borrow().iter().flatten().any(|read| read.overlaps(extent))
    }

    /// Waits until no such read is.
    pub(in super::super) async fn clear_of(&self, extent: Extent) {
        while self.overlaps(extent) {
            self.over.after(self.over.count(), None).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::extent;

    #[test]
    fn only_reads_that_overlap_count_and_slots_are_used_again() {
        let tracked = Tracked::default();
        let (first, second) = (tracked.begin(extent(0, 8)), tracked.begin(extent(100, 8)));
        assert!(tracked.overlaps(extent(7, 1)) && !tracked.overlaps(extent(8, 92)));
        tracked.end(first);
        assert!(!tracked.overlaps(extent(0, 8)) && tracked.overlaps(extent(0, 1000)));
        assert_eq!(tracked.begin(extent(0, 8)), first);
        tracked.end(second);
        assert!(!tracked.overlaps(extent(100, 8)));
    }
}
