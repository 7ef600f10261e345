//! Sorting the runs of a whole cache by origin block.
//!
//! ```text
//!   key      origin block │ slot │ mark  the slot takes as many bits as the cache has, the mark one
//!
//!   keys  ──far pass, by the highest bits──▶  parts that fit a processor's cache
//!   part  ──near passes, by the other bits, the lowest first──▶  sorted
//! ```
//!
//! Keys come in slot order and every pass keeps the order of equals, so only the bits of the block are
//! looked at: with 2^24 keys of 2^26 blocks that is one far pass of 10 bits and two near ones of 8.

/// An origin block, a slot and a mark in one number.
pub(super) trait Key: Copy + Ord {
    /// An unmarked key; `slot` must be below `2^slot_bits`.
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self;
    fn origin(self, slot_bits: u32) -> u64;
    fn slot(self, slot_bits: u32) -> u32;
    fn marked(self) -> Self;
    fn is_marked(self) -> bool;
    /// 32 bits, from `shift` on, of the distance from `base`.
    fn digit(self, base: Self, shift: u32) -> usize;
}

/// Bits of a key that are not the origin block's or the slot's.
pub(super) const MARK_BITS: u32 = 1;

impl Key for u64 {
    #[inline]
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self {
        (origin << slot_bits | u64::from(slot)) << MARK_BITS
    }

    #[inline]
    fn origin(self, slot_bits: u32) -> u64 {
        self >> slot_bits >> MARK_BITS
    }

    #[inline]
    fn slot(self, slot_bits: u32) -> u32 {
        (self >> MARK_BITS & ((1 << slot_bits) - 1) & 0xffff_ffff) as u32
    }

    #[inline]
    fn marked(self) -> Self {
        self | 1
    }

    #[inline]
    fn is_marked(self) -> bool {
        self & 1 == 1
    }

    #[inline]
    fn digit(self, base: Self, shift: u32) -> usize {
        (self.wrapping_sub(base) >> shift & 0xffff_ffff) as usize
    }
}

impl Key for u128 {
    #[inline]
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self {
        (u128::from(origin) << slot_bits | u128::from(slot)) << MARK_BITS
    }

    #[inline]
    fn origin(self, slot_bits: u32) -> u64 {
        (self >> slot_bits >> MARK_BITS & 0xffff_ffff_ffff_ffff) as u64
    }

    #[inline]
    fn slot(self, slot_bits: u32) -> u32 {
        (self >> MARK_BITS & ((1 << slot_bits) - 1) & 0xffff_ffff) as u32
    }

    #[inline]
    fn marked(self) -> Self {
        self | 1
    }

    #[inline]
    fn is_marked(self) -> bool {
        self & 1 == 1
    }

    #[inline]
    fn digit(self, base: Self, shift: u32) -> usize {
        (self.wrapping_sub(base) >> shift & 0xffff_ffff) as usize
    }
}

/// Keys that fit a processor's second cache together with as many others.
const NEAR: usize = 1 << 14;
/// Below this many keys a comparing sort is faster.
const FEW: usize = 64;
/// Most bits that one pass sorts by.
const DIGIT_BITS_MAX: u32 = 11;

/// Sorts fewer than 2^32 keys that come in slot order by origin block, then slot.
pub(super) fn sort<K: Key>(keys: &mut Vec<K>, slot_bits: u32) {
    let Some(&first) = keys.first() else { return };
    let (mut last, mut lowest, mut highest, mut sorted) = (first, first, first, true);
    for &key in keys.iter() {
        sorted &= last <= key;
        lowest = lowest.min(key);
        highest = highest.max(key);
        last = key;
    }
    if sorted {
        return;
    }
    let (lowest, highest) = (lowest.origin(slot_bits), highest.origin(slot_bits));
    let base = K::new(lowest, 0, slot_bits);
    let mut other = vec![K::new(0, 0, 0); keys.len()];
    let mut by_origin = Sorter { base, low_bits: slot_bits + MARK_BITS, places: [0; DIGITS_MAX] };
    by_origin.sort(keys, &mut other, u64::BITS - (highest - lowest).leading_zeros(), Goal::Other);
    *keys = other;
}

/// Which of the two arrays shall hold the sorted keys.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    /// The one that holds the unsorted ones.
    Same,
    /// The other one.
    Other,
}

const DIGITS_MAX: usize = 1 << DIGIT_BITS_MAX;

struct Sorter<K> {
    /// The lowest origin block.
    base: K,
    /// Bits of a key below the origin block's.
    low_bits: u32,
    /// For each digit, where its next key goes.
    places: [u32; DIGITS_MAX],
}

impl<K: Key> Sorter<K> {
    /// Sorts by the lowest `bits` of the origin block; all higher ones are equal.
    fn sort(&mut self, keys: &mut [K], other: &mut [K], bits: u32, goal: Goal) {
        if keys.len() < FEW || bits == 0 {
            keys.sort_unstable();
            if goal == Goal::Other {
                other.copy_from_slice(keys);
            }
        } else if keys.len() <= NEAR {
            self.sort_near(keys, other, bits, goal);
        } else {
            self.sort_far(keys, other, bits, goal);
        }
    }

    /// Splits by the highest bits into parts of about a quarter of `NEAR`, then sorts each.
    fn sort_far(&mut self, keys: &mut [K], other: &mut [K], bits: u32, goal: Goal) {
        let far_bits = (keys.len() / (NEAR / 4)).ilog2().min(DIGIT_BITS_MAX).min(bits);
        let below = bits - far_bits;
        self.pass(keys, other, below, far_bits);
        let ends = self.places;
        let goal = if goal == Goal::Same { Goal::Other } else { Goal::Same };
        let mut start = 0;
        for end in ends.into_iter().take(1 << far_bits) {
            let part = start..end as usize;
            start = part.end;
            self.sort(&mut other[part.clone()], &mut keys[part], below, goal);
        }
    }

    /// Sorts by the lowest bits first, in as many passes as lead to the right array.
    fn sort_near(&mut self, keys: &mut [K], other: &mut [K], bits: u32, goal: Goal) {
        let fewest = bits.div_ceil(DIGIT_BITS_MAX);
        let passes = if fewest.is_multiple_of(2) == (goal == Goal::Same) { fewest } else { fewest + 1 };
        let digit_bits = bits.div_ceil(passes);
        let (mut from, mut to) = (keys, other);
        for pass in 0..passes {
            self.pass(from, to, pass * digit_bits, digit_bits);
            (from, to) = (to, from);
        }
    }

    /// Sorts `from` into `to` by the bits from `shift` on. The places are then the digits' ends.
    fn pass(&mut self, from: &[K], to: &mut [K], shift: u32, bits: u32) {
        let mask = (1 << bits) - 1;
        let (base, shift) = (self.base, self.low_bits + shift);
        let digit = |key: K| key.digit(base, shift) & mask;
        let places = &mut self.places[..=mask];
        places.fill(0);
        for &key in from {
            places[digit(key)] += 1;
        }
        let mut start = 0;
        for place in places.iter_mut() {
            start += std::mem::replace(place, start);
        }
        for &key in from {
            let place = &mut places[digit(key)];
            to[*place as usize] = key;
            *place += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn check<K: Key + std::fmt::Debug>(origins: impl Iterator<Item = u64>) {
        let mut keys: Vec<K> = origins.zip(0..).map(|(origin, slot)| K::new(origin, slot, 20)).collect();
        let mut expected = keys.clone();
        expected.sort_unstable();
        sort(&mut keys, 20);
        assert_eq!(keys, expected);
    }

    #[test]
    fn keys_of_any_number_and_spread_are_sorted() {
        let mut rng = Rng::with_seed(1);
        for len in [0, 1, 2, FEW - 1, FEW, 5000, NEAR, NEAR + 1, 3 * NEAR, 40 * NEAR] {
            for bits in [0, 1, 5, 11, 12, 22, 23, 33, 44] {
                let base = rng.u64(..1 << 43);
                let origins: Vec<u64> = (0..len).map(|_| base >> bits | rng.u64(..1 << bits)).collect();
                if bits < 40 {
                    check::<u64>(origins.iter().copied());
                }
                check::<u128>(origins.iter().copied());
            }
        }
    }

    #[test]
    fn one_key_far_from_all_others_does_no_harm() {
        let mut rng = Rng::with_seed(2);
        let near: Vec<u64> = (0..3 * NEAR).map(|_| rng.u64(1 << 20..1 << 21)).collect();
        check::<u64>(near.iter().copied().chain([0]));
        check::<u64>(near.iter().copied().chain([1 << 43]));
    }
}
