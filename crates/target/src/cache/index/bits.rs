//! One bit for each slot.

#![deny(clippy::indexing_slicing)]

use super::{CacheSlot, SlotRun};

/// Bits in a word.
pub const WORD: u32 = u64::BITS;

/// The bits; those behind the last slot stay clear.
pub struct Bits {
    words: Vec<u64>,
    len: u32,
}

impl Bits {
    /// `len` clear bits.
    pub fn new(len: u32) -> Self {
        Self { words: vec![0; len.div_ceil(WORD) as usize], len }
    }

    /// The words, the lowest bit of the first one for slot 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether the bit at `at` is set.
    pub fn get(&self, at: u32) -> bool {
        self.words.get((at / WORD) as usize).is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    /// Sets the bits of `bits` in the word of `at`.
    pub fn set_in_word(&mut self, at: u32, bits: u64) {
        if let Some(word) = self.words.get_mut((at / WORD) as usize) {
            *word |= bits;
        }
    }

    /// Sets the bits of a run.
    pub fn set(&mut self, run: SlotRun) {
        self.each_word(run, |word, mask| *word |= mask);
    }

    /// Clears the bits of a run.
    pub fn clear(&mut self, run: SlotRun) {
        self.each_word(run, |word, mask| *word &= !mask);
    }

    fn each_word(&mut self, run: SlotRun, mut change: impl FnMut(&mut u64, u64)) {
        assert!(run.end() <= self.len, "slots {}+{} of {}", run.slot.0, run.count, self.len);
        let (first, mut left) = (run.slot.0 / WORD, run.count);
        let mut bit = run.slot.0 % WORD;
        for word in self.words.iter_mut().skip(first as usize) {
            let count = left.min(WORD - bit);
            if count == 0 {
                return;
            }
            change(word, u64::MAX >> (WORD - count) << bit);
            left -= count;
            bit = 0;
        }
    }

    /// The first set bit from `at` on, or the number of bits.
    pub fn next_set(&self, at: u32) -> u32 {
        next(&self.words, at, 0).unwrap_or(self.len)
    }

    /// The first clear bit from `at` on, or the number of bits.
    #[inline]
    pub fn next_clear(&self, at: u32) -> u32 {
        next(&self.words, at, u64::MAX).unwrap_or(self.len).min(self.len)
    }

    /// The first clear bit of `at..end`, or `end`.
    pub fn next_clear_below(&self, at: u32, end: u32) -> u32 {
        let words = self.words.get(..end.div_ceil(WORD) as usize).unwrap_or(&self.words);
        next(words, at, u64::MAX).unwrap_or(end).min(end)
    }

    /// The set bits as runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = SlotRun> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let slot = self.next_set(next);
            next = self.next_clear(slot);
            (slot < self.len).then(|| SlotRun { slot: CacheSlot(slot), count: next - slot })
        })
    }

    /// Number of set bits in front of each word.
    pub fn ranks(&self) -> Vec<u32> {
        let count = |rank: &mut u32, word: &u64| {
            let front = *rank;
            *rank += word.count_ones();
            Some(front)
        };
        self.words.iter().scan(0, count).collect()
    }

    /// Number of set bits in the word of `at`, up to and including `at`.
    pub fn rank_in_word(&self, at: u32) -> u32 {
        let word = self.words.get((at / WORD) as usize).copied().unwrap_or(0);
        (word << (WORD - 1 - at % WORD)).count_ones()
    }
}

/// The first bit from `at` on that differs from those of `flip`.
#[inline]
fn next(words: &[u64], at: u32, flip: u64) -> Option<u32> {
    let first = at / WORD;
    let mut mask = u64::MAX << (at % WORD);
    for (word, index) in words.get(first as usize..)?.iter().zip(first..) {
        let found = (word ^ flip) & mask;
        if found != 0 {
            return Some(index * WORD + found.trailing_zeros());
        }
        mask = u64::MAX;
    }
    None
}
