//! The gaps that objects leave in a class when many of them go at once.
//!
//! A bit for each place; what is no gap is an object. Places are numbers of objects in a class.

/// Places in a word.
const WORD: usize = 64;

/// Places where nothing stands any more.
#[derive(Default)]
pub(super) struct Gaps {
    words: Vec<u64>,
    count: usize,
    /// Words before this one hold no gap.
    low: usize,
}

impl Gaps {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// An object went from `place`.
    pub(super) fn add(&mut self, place: usize) {
        let at = place / WORD;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        debug_assert!(self.words[at] >> (place % WORD) & 1 == 0, "an object goes once");
        self.words[at] |= 1 << (place % WORD);
        self.count += 1;
        self.low = self.low.min(at);
    }

    /// Whether `place` was a gap; it is none any more.
    pub(super) fn take(&mut self, place: usize) -> bool {
        let Some(word) = self.words.get_mut(place / WORD) else { return false };
        let was = *word >> (place % WORD) & 1 == 1;
        if was {
            *word &= !(1 << (place % WORD));
            self.lose_one();
        }
        was
    }

    /// The first gap, which is none any more.
    pub(super) fn take_first(&mut self) -> Option<usize> {
        let ahead = self.words.iter().skip(self.low).position(|word| *word != 0)?;
        let at = self.low + ahead;
        let bit = self.words[at].trailing_zeros() as usize;
        self.words[at] &= self.words[at] - 1;
        self.low = at;
        self.lose_one();
        Some(at * WORD + bit)
    }

    fn lose_one(&mut self) {
        self.count -= 1;
        if self.count == 0 {
            *self = Self::default();
        }
    }

    /// Memory taken, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_taken_once_and_from_the_first() {
        let mut gaps = Gaps::default();
        for place in [700, 3, 64, 65] {
            gaps.add(place);
        }
        assert_eq!((gaps.take(64), gaps.take(64), gaps.take(9000), gaps.take_first()), (true, false, false, Some(3)));
        gaps.add(1);
        assert_eq!((gaps.take_first(), gaps.take_first(), gaps.is_empty()), (Some(1), Some(65), false));
        assert_eq!((gaps.take_first(), gaps.take_first(), gaps.is_empty(), gaps.memory_bytes()), (Some(700), None, true, 0));
    }
}
