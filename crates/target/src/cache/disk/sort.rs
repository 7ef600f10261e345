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

/// Keys of a block, 4 KiB of the usual ones: small enough to be used again by the allocator.
const BLOCK_KEYS: usize = 512;

/// Fewer than 2^32 keys in slot order, kept in blocks. Sorting goes from blocks to blocks and gives each
/// one back as soon as its keys are elsewhere: fresh memory costs more than anything else here.
pub(super) struct Keys<K> {
    full: Vec<Vec<K>>,
    last: Vec<K>,
    slot_bits: u32,
}

impl<K: Key> Keys<K> {
    pub(super) fn new(slot_bits: u32) -> Self {
        Self { full: Vec::new(), last: Vec::new(), slot_bits }
    }

    /// Adds a key behind all others.
    #[inline]
    pub(super) fn push(&mut self, origin: u64, slot: u32) {
        if self.last.len() == self.last.capacity() {
            self.next_block();
        }
        self.last.push(K::new(origin, slot, self.slot_bits));
    }

    /// Marks the last key.
    #[inline]
    pub(super) fn mark_last(&mut self) {
        if let Some(last) = self.last.last_mut() {
            *last = last.marked();
        }
    }

    #[cold]
    fn next_block(&mut self) {
        let full = std::mem::replace(&mut self.last, Vec::with_capacity(BLOCK_KEYS));
        if !full.is_empty() {
            self.full.push(full);
        }
    }

    /// Hands all keys to `each`, part by part, in order of origin block, then slot.
    pub(super) fn sorted(mut self, mut each: impl FnMut(&[K])) {
        self.next_block();
        let Some(&first) = self.full.first().and_then(|block| block.first()) else { return };
        let (mut last, mut lowest, mut highest, mut in_order) = (first, first, first, true);
        for &key in self.full.iter().flatten() {
            in_order &= last <= key;
            lowest = lowest.min(key);
            highest = highest.max(key);
            last = key;
        }
        if in_order {
            return self.full.iter().for_each(|block| each(block));
        }
        let (lowest, highest) = (lowest.origin(self.slot_bits), highest.origin(self.slot_bits));
        let bits = u64::BITS - (highest - lowest).leading_zeros();
        let base = K::new(lowest, 0, self.slot_bits);
        let mut by_origin = Sorter { base, low_bits: self.slot_bits + MARK_BITS, places: [0; DIGITS_MAX] };
        let (parts, below) = by_origin.split(self.full, bits);
        let (mut keys, mut other) = (Vec::new(), Vec::new());
        for part in parts {
            keys.clear();
            for block in part {
                keys.extend_from_slice(&block);
            }
            if other.len() < keys.len() {
                other.resize(keys.len(), base);
            }
            let len = keys.len();
            by_origin.sort(&mut keys, &mut other[..len], below, Goal::Same);
            each(&keys);
        }
    }
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

    /// Splits by the highest bits into parts of about a quarter of `NEAR`, each in blocks. Tells by how
    /// many bits the parts are still to be sorted.
    fn split(&self, blocks: Vec<Vec<K>>, bits: u32) -> (Vec<Vec<Vec<K>>>, u32) {
        let far_bits = far_bits(blocks.len() * BLOCK_KEYS, bits);
        let below = bits - far_bits;
        let (mask, shift) = ((1 << far_bits) - 1, self.low_bits + below);
        let mut parts: Vec<Vec<Vec<K>>> = vec![Vec::new(); mask + 1];
        let mut open: Vec<Vec<K>> = vec![Vec::new(); mask + 1];
        let mut spare = Vec::new();
        for mut block in blocks {
            for &key in &block {
                let digit = key.digit(self.base, shift) & mask;
                let to = &mut open[digit];
                if to.len() == to.capacity() {
                    let empty = spare.pop().unwrap_or_else(|| Vec::with_capacity(BLOCK_KEYS));
                    parts[digit].push(std::mem::replace(to, empty));
                }
                to.push(key);
            }
            block.clear();
            spare.push(block);
        }
        for (part, last) in parts.iter_mut().zip(open) {
            part.push(last);
        }
        (parts, below)
    }

    /// Splits by the highest bits into parts of about a quarter of `NEAR`, then sorts each.
    fn sort_far(&mut self, keys: &mut [K], other: &mut [K], bits: u32, goal: Goal) {
        let far_bits = far_bits(keys.len(), bits);
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

/// By how many of the highest `bits` to split `keys` keys.
fn far_bits(keys: usize, bits: u32) -> u32 {
    (keys / (NEAR / 4)).max(1).ilog2().min(DIGIT_BITS_MAX).min(bits)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn check<K: Key + std::fmt::Debug>(origins: impl Iterator<Item = u64>) {
        let mut keys = Keys::<K>::new(20);
        let mut expected = Vec::new();
        for (origin, slot) in origins.zip(0..) {
            keys.push(origin, slot);
            expected.push(K::new(origin, slot, 20));
        }
        expected.sort_unstable();
        let mut sorted = Vec::new();
        keys.sorted(|part| sorted.extend_from_slice(part));
        assert_eq!(sorted, expected);
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
