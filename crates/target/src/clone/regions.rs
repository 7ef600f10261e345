//! Which regions are hydrated, which of that is durable, and which come next: a pure part.
//!
//! ```text
//!   hydrated    1111 1101 1000      in memory: reads and writes go by this
//!   committed   1111 1100 0000      on the metadata device: what a crash leaves
//!   dirty         page 0            has regions that are the one and not the other
//! ```
//!
//! 1. A bit of `hydrated` is never cleared, and neither is one of `committed`; what is committed is
//!    hydrated.
//! 2. A page is dirty from the moment a bit of it is set until it is taken for a commit.
//!
//! Regions count from 0. It costs two bits for each, whatever they hold.

use std::collections::BTreeSet;
use std::ops::Range;

use super::format::{PAGE_REGIONS, PAGE_WORDS};

#[cfg(test)]
mod tests;

/// Bits of a word.
const WORD: u32 = 64;

/// The state of all regions of a clone.
pub struct Regions {
    count: u32,
    hydrated: Vec<u64>,
    committed: Vec<u64>,
    hydrated_count: u32,
    dirty: BTreeSet<u32>,
}

impl Regions {
    /// `count` regions, none hydrated.
    #[must_use]
    pub fn new(count: u32) -> Self {
        let words = count.div_ceil(PAGE_REGIONS) as usize * PAGE_WORDS;
        Self { count, hydrated: vec![0; words], committed: vec![0; words], hydrated_count: 0, dirty: BTreeSet::new() }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many are hydrated.
    #[must_use]
    pub fn hydrated_count(&self) -> u32 {
        self.hydrated_count
    }

    /// Whether all are.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.hydrated_count == self.count
    }

    /// Whether all are, durably.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_complete() && self.hydrated == self.committed
    }

    /// Takes in a page as it stands on the metadata device.
    ///
    /// # Panics
    /// When there is no such page, or it says something of regions that are not there.
    pub fn load(&mut self, page: u32, bits: &[u64]) {
        let at = page as usize * PAGE_WORDS;
        self.hydrated[at..at + PAGE_WORDS].copy_from_slice(bits);
        self.committed[at..at + PAGE_WORDS].copy_from_slice(bits);
        self.hydrated_count += bits.iter().map(|word| word.count_ones()).sum::<u32>();
        assert!(self.hydrated_count <= self.count, "a page has no bits behind the last region");
    }

    /// Whether `region` is hydrated.
    #[must_use]
    pub fn is_hydrated(&self, region: u32) -> bool {
        bit(&self.hydrated, region)
    }

    /// Whether all of `range` are.
    #[must_use]
    pub fn all_hydrated(&self, range: Range<u32>) -> bool {
        find(&self.hydrated, range, false).is_none()
    }

    /// Whether all of `range` are hydrated durably.
    #[must_use]
    pub fn all_committed(&self, range: Range<u32>) -> bool {
        find(&self.committed, range, false).is_none()
    }

    /// Whether the first of `range` is hydrated, and where in it the first is that differs.
    ///
    /// # Panics
    /// When `range` is empty.
    #[must_use]
    pub fn run(&self, range: Range<u32>) -> (bool, u32) {
        assert!(!range.is_empty(), "a run has a region");
        let hydrated = self.is_hydrated(range.start);
        (hydrated, find(&self.hydrated, range.clone(), !hydrated).unwrap_or(range.end))
    }

    /// The first region of `range` that is not hydrated.
    #[must_use]
    pub fn next_cold(&self, range: Range<u32>) -> Option<u32> {
        find(&self.hydrated, range, false)
    }

    /// All of `range` are hydrated now.
    pub fn mark(&mut self, range: Range<u32>) {
        let mut at = range.start;
        while at < range.end {
            let end = (at - at % WORD + WORD).min(range.end);
            let bits = (u64::MAX >> (WORD - (end - at))) << (at % WORD);
            let word = &mut self.hydrated[(at / WORD) as usize];
            let fresh = (bits & !*word).count_ones();
            *word |= bits;
            if fresh > 0 {
                self.hydrated_count += fresh;
                self.dirty.insert(at / PAGE_REGIONS);
            }
            at = end;
        }
    }

    /// Whether something is hydrated that no commit has taken.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the pages that must be written, in order, with their bits as they are now (2).
    #[must_use]
    pub fn take_dirty(&mut self) -> Vec<(u32, Vec<u64>)> {
        let pages = std::mem::take(&mut self.dirty);
        let bits = |page: u32| {
            let at = page as usize * PAGE_WORDS;
            self.hydrated[at..at + PAGE_WORDS].to_vec()
        };
        pages.into_iter().map(|page| (page, bits(page))).collect()
    }

    /// A page stands on the metadata device, durably.
    pub fn committed(&mut self, page: u32, bits: &[u64]) {
        let at = page as usize * PAGE_WORDS;
        for (word, bits) in self.committed[at..at + PAGE_WORDS].iter_mut().zip(bits) {
            *word |= bits;
        }
    }
}

fn bit(words: &[u64], region: u32) -> bool {
    words[(region / WORD) as usize] & (1 << (region % WORD)) != 0
}

/// The first region of `range` whose bit is `wanted`; looks at 64 at a time.
fn find(words: &[u64], range: Range<u32>, wanted: bool) -> Option<u32> {
    let mut at = range.start;
    while at < range.end {
        let word = words[(at / WORD) as usize];
        let matching = if wanted { word } else { !word };
        let word = matching & (u64::MAX << (at % WORD));
        if word != 0 {
            let found = at - at % WORD + word.trailing_zeros();
            return (found < range.end).then_some(found);
        }
        at = at - at % WORD + WORD;
    }
    None
}
