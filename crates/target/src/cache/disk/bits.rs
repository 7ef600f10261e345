//! One bit for each slot.

#![deny(clippy::indexing_slicing)]

use crate::cache::index::{CacheSlot, SlotRun};

const WORD: u32 = u64::BITS;

/// The bits; those behind the last slot stay clear.
pub(super) struct Bits {
    words: Vec<u64>,
    len: u32,
}

impl Bits {
    /// `len` clear bits.
    pub(super) fn new(len: u32) -> Self {
        Self { words: vec![0; len.div_ceil(WORD) as usize], len }
    }

    pub(super) fn set(&mut self, at: u32) {
        if let Some(word) = self.words.get_mut((at / WORD) as usize) {
            *word |= 1 << (at % WORD);
        }
    }

    /// Sets the bits of `bits` in the word of `at`.
    pub(super) fn set_word(&mut self, at: u32, bits: u64) {
        if let Some(word) = self.words.get_mut((at / WORD) as usize) {
            *word |= bits;
        }
    }

    pub(super) fn clear(&mut self, at: u32) {
        if let Some(word) = self.words.get_mut((at / WORD) as usize) {
            *word &= !(1 << (at % WORD));
        }
    }

    /// The first set bit from `at` on, or the number of bits.
    pub(super) fn next_set(&self, at: u32) -> u32 {
        self.next(at, 0)
    }

    /// The first clear bit from `at` on, or the number of bits.
    #[inline]
    pub(super) fn next_clear(&self, at: u32) -> u32 {
        self.next(at, u64::MAX)
    }

    /// The set bits as runs, in order.
    pub(super) fn runs(&self) -> impl Iterator<Item = SlotRun> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let slot = self.next_set(next);
            next = self.next_clear(slot);
            (slot < self.len).then(|| SlotRun { slot: CacheSlot(slot), count: next - slot })
        })
    }

    /// Number of set bits in front of each word.
    pub(super) fn ranks(&self) -> Vec<u32> {
        let count = |rank: &mut u32, word: &u64| {
            let front = *rank;
            *rank += word.count_ones();
            Some(front)
        };
        self.words.iter().scan(0, count).collect()
    }

    /// Number of set bits in the word of `at`, up to and including `at`.
    pub(super) fn rank_in_word(&self, at: u32) -> u32 {
        let word = self.words.get((at / WORD) as usize).copied().unwrap_or(0);
        (word << (WORD - 1 - at % WORD)).count_ones()
    }

    #[inline]
    fn next(&self, at: u32, flip: u64) -> u32 {
        let first = at / WORD;
        let mut mask = u64::MAX << (at % WORD);
        let mut base = first * WORD;
        for word in self.words.get(first as usize..).unwrap_or_default() {
            let found = (word ^ flip) & mask;
            if found != 0 {
                return self.len.min(base + found.trailing_zeros());
            }
            mask = u64::MAX;
            base = base.saturating_add(WORD);
        }
        self.len
    }
}
