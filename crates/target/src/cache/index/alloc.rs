//! Free slots of the cache, handed out in runs so that the runs stay long.
//!
//! ```text
//!   slots    │ used │ free 12 │ used │ used so far ──▶ next here │ used │ free 900 │
//!
//!   spans    512 slots │ 512 slots │ 512 slots │ 512 slots          each knows the free run at its
//!            └── 1024 ─┘           └── 1024 ───┘                    front, at its back, and the longest
//!            └────────────── 2048 ─────────────┘
//! ```
//!
//! 1. Allocations carve the run behind the last one as long as it holds what is wanted; so
//!    allocations that follow each other get slots that follow each other.
//! 2. When it does not, the longest run is carved from then on, the lowest of equals. Only when no run
//!    holds what is wanted is a shorter one handed out: the longest.
//! 3. A span says what its two halves say, and the smallest spans what the bits say.
//! 4. Memory is a fifth of a byte for each slot at most, from the start and for ever, whatever is free.
//!
//! Units: slots and counts are cache blocks. Giving back a slot that is free, or one that the cache
//! does not have, is a bug and panics.

use super::CacheSlot;
use super::bits::{Bits, WORD};

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

/// Slots of the smallest span.
const LEAF_SLOTS: u32 = 512;
const LEAF_WORDS: usize = (LEAF_SLOTS / WORD) as usize;

/// What is free in a span of slots.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Span {
    /// Length of the free run that begins with the span's first slot.
    front: u32,
    /// Length of the free run that ends with its last slot.
    back: u32,
    /// Length of the longest free run.
    longest: u32,
}

/// The free slots.
pub struct FreeSpace {
    blocks: u32,
    /// Set where a slot is free.
    free: Bits,
    free_blocks: u32,
    runs: u32,
    /// Where the last allocation ended.
    next: u32,
    /// A binary tree in an array: the span at `i` has the halves `2i` and `2i + 1`, and the leaves
    /// are the second half of the array.
    spans: Vec<Span>,
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
        let leaves = blocks.div_ceil(LEAF_SLOTS).next_power_of_two() as usize;
        let spans = vec![Span::default(); 2 * leaves];
        let mut space = Self { blocks, free: Bits::new(blocks), free_blocks: 0, runs: 0, next: 0, spans };
        let mut next = 0;
        let end = SlotRun { slot: CacheSlot(blocks), count: 0 };
        for run in used.into_iter().chain([end]) {
            assert!(next <= run.slot.0, "slot {} is used twice or out of order", run.slot.0);
            if next < run.slot.0 {
                let count = run.slot.0 - next;
                space.free.set(SlotRun { slot: CacheSlot(next), count });
                space.free_blocks += count;
                space.runs += 1;
            }
            next = run.end();
        }
        assert!(next == blocks, "slots up to {next} of a cache with {blocks}");
        space.sum_up(0, leaves - 1);
        space
    }

    /// Free slots.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free_blocks
    }

    /// Free runs.
    #[must_use]
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Slots in the longest free run.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.spans[1].longest
    }

    /// Allocated bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(self.free.words()) + size_of_val(self.spans.as_slice())
    }

    /// Takes up to `want` slots that follow each other; fewer only where no free run is that long,
    /// and none only where no slot is free.
    ///
    /// # Panics
    /// When `want` is 0.
    pub fn allocate(&mut self, want: u32) -> Option<SlotRun> {
        assert!(want > 0, "an allocation of no blocks");
        let longest = self.longest();
        if longest == 0 {
            return None;
        }
        let mut slot = self.next;
        let mut count = self.free_from(slot, want);
        if count < want && count < longest {
            slot = self.longest_run();
            count = longest.min(want);
        }
        let run = SlotRun { slot: CacheSlot(slot), count };
        self.next = run.end();
        self.free.clear(run);
        self.free_blocks -= count;
        let (front, behind) = self.free_neighbours(run);
        self.runs = self.runs + u32::from(front) + u32::from(behind) - 1;
        self.sum_up_run(run);
        Some(run)
    }

    /// Gives slots back.
    ///
    /// # Panics
    /// When one of them is free already, or not a slot of this cache.
    pub fn release(&mut self, run: SlotRun) {
        assert!(run.count > 0, "a release of no slots");
        assert!(run.end() <= self.blocks, "slots {}+{} of a cache with {}", run.slot.0, run.count, self.blocks);
        let next_free = self.free.next_set(run.slot.0);
        assert!(next_free >= run.end(), "slot {next_free} is free already");
        self.free.set(run);
        self.free_blocks += run.count;
        let (front, behind) = self.free_neighbours(run);
        self.runs = self.runs + 1 - u32::from(front) - u32::from(behind);
        self.sum_up_run(run);
    }

    /// Free slots from `slot` on, as far as `want`.
    fn free_from(&self, slot: u32, want: u32) -> u32 {
        let end = slot.saturating_add(want).min(self.blocks);
        self.free.next_clear_below(slot, end) - slot
    }

    /// Whether the slots in front of and behind a run are free.
    fn free_neighbours(&self, run: SlotRun) -> (bool, bool) {
        (run.slot.0 > 0 && self.free.get(run.slot.0 - 1), self.free.get(run.end()))
    }

    /// The first slot of the longest free run, the lowest of equals.
    fn longest_run(&self) -> u32 {
        let leaves = self.spans.len() / 2;
        let longest = self.longest();
        let (mut at, mut slots, mut start) = (1, leaves as u64 * u64::from(LEAF_SLOTS), 0_u64);
        while at < leaves {
            slots /= 2;
            let (left, right) = (self.spans[2 * at], self.spans[2 * at + 1]);
            if left.longest == longest {
                at *= 2;
            } else if left.back + right.front == longest {
                return slot_number(start + slots - u64::from(left.back));
            } else {
                at = 2 * at + 1;
                start += slots;
            }
        }
        let mut slot = slot_number(start);
        loop {
            slot = self.free.next_set(slot);
            let end = self.free.next_clear(slot);
            if end - slot >= longest {
                return slot;
            }
            slot = end;
        }
    }

    fn sum_up_run(&mut self, run: SlotRun) {
        self.sum_up((run.slot.0 / LEAF_SLOTS) as usize, ((run.end() - 1) / LEAF_SLOTS) as usize);
    }

    /// Brings the spans of these leaves and all above them up to date.
    fn sum_up(&mut self, first: usize, last: usize) {
        let leaves = self.spans.len() / 2;
        for leaf in first..=last {
            let words = self.free.words().iter().skip(leaf * LEAF_WORDS).take(LEAF_WORDS);
            self.spans[leaves + leaf] = leaf_span(words);
        }
        let (mut first, mut last, mut half) = (leaves + first, leaves + last, u64::from(LEAF_SLOTS));
        while last > 1 {
            (first, last) = (first / 2, last / 2);
            let mut changed = false;
            for at in first..=last {
                let span = joined(self.spans[2 * at], self.spans[2 * at + 1], half);
                changed |= self.spans[at] != span;
                self.spans[at] = span;
            }
            if !changed {
                return;
            }
            half *= 2;
        }
    }
}

fn slot_number(slot: u64) -> u32 {
    u32::try_from(slot).expect("a free slot is below 2^32")
}

/// The span of two halves of `half` slots each.
fn joined(left: Span, right: Span, half: u64) -> Span {
    Span {
        front: if u64::from(left.front) == half { left.front + right.front } else { left.front },
        back: if u64::from(right.back) == half { right.back + left.back } else { right.back },
        longest: left.longest.max(right.longest).max(left.back + right.front),
    }
}

/// The span of a leaf's words; words that are missing at the end have no free slots.
fn leaf_span<'a>(words: impl Iterator<Item = &'a u64>) -> Span {
    let mut span = Span::default();
    let mut slots = 0;
    for &word in words {
        if slots == span.front {
            span.front += word.trailing_ones();
        }
        span.longest = span.longest.max(span.back + word.trailing_ones()).max(longest_ones(word));
        span.back = if word == u64::MAX { span.back + WORD } else { word.leading_ones() };
        slots += WORD;
    }
    if slots < LEAF_SLOTS {
        span.back = 0;
    }
    span
}

/// Length of the longest run of ones.
fn longest_ones(word: u64) -> u32 {
    // `runs` has a one wherever `len` ones follow each other in the word. The length is doubled as far
    // as that goes, then extended by the smaller powers of two.
    let (mut runs, mut len, mut step) = (word, u32::from(word != 0), 1);
    while runs & (runs >> step) != 0 && step < WORD / 2 {
        runs &= runs >> step;
        len += step;
        step *= 2;
    }
    while step > 0 {
        let longer = runs & (runs >> step);
        if longer != 0 {
            runs = longer;
            len += step;
        }
        step /= 2;
    }
    len
}
