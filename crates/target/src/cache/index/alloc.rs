//! Free slots of the cache, by runs, handed out so that the runs stay long.
//!
//! ```text
//!   slots   │ used │ free 12 │ used │ current run ──▶ carved from its front │ used │ free 900 │
//! ```
//!
//! 1. Runs are maximal: two free runs never touch.
//! 2. The current run is carved from its front as long as it holds what is wanted; so allocations
//!    that follow each other get slots that follow each other.
//! 3. When it does not, the longest run becomes the current one and the rest goes back. Only when no
//!    run holds what is wanted is a shorter one handed out: the longest.
//!
//! Units: slots and counts are cache blocks. Giving back a slot that is free, or one that the cache
//! does not have, is a bug and panics.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::CacheSlot;

#[cfg(test)]
mod tests;

/// A run of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotRun {
    /// The first slot.
    pub slot: CacheSlot,
    /// Number of slots, at least 1.
    pub count: u32,
}

impl SlotRun {
    /// The slot number behind the last one.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.slot.0 + self.count
    }
}

/// The free slots.
pub struct FreeSpace {
    blocks: u32,
    free: u32,
    /// The run that is carved; not in the two sets below.
    current: Option<SlotRun>,
    /// First slot to count.
    by_slot: BTreeMap<u32, u32>,
    /// Count, then first slot: the last element is the longest run, and of those the lowest.
    by_count: BTreeSet<(u32, Reverse<u32>)>,
}

impl FreeSpace {
    /// All slots of a cache of `blocks` are free.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self::from_used(blocks, [])
    }

    /// All slots but those of `used`, runs in rising order that do not overlap.
    ///
    /// # Panics
    /// When the runs are out of order, overlap or reach beyond the cache.
    #[must_use]
    pub fn from_used(blocks: u32, used: impl IntoIterator<Item = SlotRun>) -> Self {
        let mut runs = Vec::new();
        let mut next = 0;
        let mut free = 0;
        let end = SlotRun { slot: CacheSlot(blocks), count: 0 };
        for run in used.into_iter().chain([end]) {
            assert!(next <= run.slot.0, "slot {} is used twice or out of order", run.slot.0);
            if next < run.slot.0 {
                runs.push((next, run.slot.0 - next));
                free += run.slot.0 - next;
            }
            next = run.end();
        }
        assert!(next == blocks, "slots up to {next} of a cache with {blocks}");
        let by_count = runs.iter().map(|&(slot, count)| (count, Reverse(slot))).collect();
        Self { blocks, free, current: None, by_slot: runs.into_iter().collect(), by_count }
    }

    /// Free slots.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free
    }

    /// Free runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.by_slot.len() + usize::from(self.current.is_some())
    }

    /// Slots in the longest free run.
    #[must_use]
    pub fn longest(&self) -> u32 {
        let current = self.current.map_or(0, |run| run.count);
        self.by_count.last().map_or(0, |&(count, _)| count).max(current)
    }

    /// Bytes that the sets have allocated, or a little more.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // Two sets of 8 bytes for each run, in nodes of up to 11 keys that are at least 5 keys full;
        // the upper levels, with one pointer more for each key, add at most two fifths.
        2 * self.by_slot.len() * (size_of::<(u32, u32)>() + 2) * 11 / 5 * 7 / 5
    }

    /// Takes up to `want` slots that follow each other; fewer only where no free run is that long,
    /// and none only where no slot is free.
    ///
    /// # Panics
    /// When `want` is 0.
    pub fn allocate(&mut self, want: u32) -> Option<SlotRun> {
        assert!(want > 0, "an allocation of no blocks");
        if self.current.is_none_or(|run| run.count < want) {
            self.choose_longest();
        }
        let run = self.current?;
        let count = want.min(run.count);
        self.current = (count < run.count).then(|| SlotRun { slot: CacheSlot(run.slot.0 + count), count: run.count - count });
        self.free -= count;
        Some(SlotRun { slot: run.slot, count })
    }

    /// Takes exactly these slots, which must be free.
    ///
    /// # Panics
    /// When one of them is not.
    pub fn take(&mut self, run: SlotRun) {
        if let Some(current) = self.current.take() {
            self.put(current);
        }
        let (&slot, &count) = self.by_slot.range(..=run.slot.0).next_back().expect("slots to take are free");
        let end = slot + count;
        assert!(run.end() <= end, "slots {}+{} are not all free", run.slot.0, run.count);
        self.pull(slot, count);
        if slot < run.slot.0 {
            self.put(SlotRun { slot: CacheSlot(slot), count: run.slot.0 - slot });
        }
        if run.end() < end {
            self.put(SlotRun { slot: CacheSlot(run.end()), count: end - run.end() });
        }
        self.free -= run.count;
    }

    /// Gives slots back.
    ///
    /// # Panics
    /// When one of them is free already, or not a slot of this cache.
    pub fn release(&mut self, run: SlotRun) {
        assert!(run.count > 0, "a release of no slots");
        assert!(run.end() <= self.blocks, "slots {}+{} of a cache with {}", run.slot.0, run.count, self.blocks);
        self.free += run.count;
        let mut start = run.slot.0;
        let mut end = run.end();
        let front = self.by_slot.range(..end).next_back().map(|(&slot, &count)| (slot, count));
        if let Some((slot, count)) = front {
            assert!(slot + count <= start, "slots {start}..{end} are free already");
            if slot + count == start {
                self.pull(slot, count);
                start = slot;
            }
        }
        if let Some(&count) = self.by_slot.get(&end) {
            self.pull(end, count);
            end += count;
        }
        let mut merged = SlotRun { slot: CacheSlot(start), count: end - start };
        if let Some(current) = self.current {
            assert!(current.end() <= start || end <= current.slot.0, "slots {start}..{end} are free already");
            if current.end() == start || current.slot.0 == end {
                merged.slot = merged.slot.min(current.slot);
                merged.count += current.count;
                self.current = Some(merged);
                return;
            }
        }
        self.put(merged);
    }

    /// Makes the longest run the current one, the present one included.
    fn choose_longest(&mut self) {
        let Some(&(count, Reverse(slot))) = self.by_count.last() else { return };
        if let Some(current) = self.current {
            if current.count >= count {
                return;
            }
            self.put(current);
        }
        self.pull(slot, count);
        self.current = Some(SlotRun { slot: CacheSlot(slot), count });
    }

    fn put(&mut self, run: SlotRun) {
        self.by_slot.insert(run.slot.0, run.count);
        self.by_count.insert((run.count, Reverse(run.slot.0)));
    }

    fn pull(&mut self, slot: u32, count: u32) {
        self.by_slot.remove(&slot);
        self.by_count.remove(&(count, Reverse(slot)));
    }
}
