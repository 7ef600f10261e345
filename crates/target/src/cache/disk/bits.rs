//! One bit for each slot.

#![deny(clippy::indexing_slicing)]

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
    pub(super) fn next_clear(&self, at: u32) -> u32 {
        self.next(at, u64::MAX)
    }

    fn next(&self, at: u32, flip: u64) -> u32 {
        let first = at / WORD;
        let mut mask = u64::MAX << (at % WORD);
        let mut base = first * WORD;
        for word in self.words.iter().skip(first as usize) {
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
