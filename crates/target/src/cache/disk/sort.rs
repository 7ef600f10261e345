//! Sorting the runs of a whole cache by origin block in a few passes.
//!
//! ```text
//!   key   origin block │ slot        the slot takes as many bits as the cache has, the block the rest
//! ```
//!
//! Keys come in slot order, and every pass is stable, so only the block's bits are looked at: at 2^28
//! origin blocks that is three passes of ten bits.

/// An origin block and a slot in one number.
pub(super) trait Key: Copy + Ord {
    /// `slot` must be below `2^slot_bits`.
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self;
    fn origin(self, slot_bits: u32) -> u64;
    fn slot(self, slot_bits: u32) -> u32;
    /// The bits from `shift` on, as many as `mask` has.
    fn digit(self, shift: u32, mask: usize) -> usize;
}

impl Key for u64 {
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self {
        origin << slot_bits | u64::from(slot)
    }

    fn origin(self, slot_bits: u32) -> u64 {
        self >> slot_bits
    }

    fn slot(self, slot_bits: u32) -> u32 {
        (self & ((1 << slot_bits) - 1) & 0xffff_ffff) as u32
    }

    fn digit(self, shift: u32, mask: usize) -> usize {
        ((self >> shift) & 0xffff_ffff) as usize & mask
    }
}

impl Key for u128 {
    fn new(origin: u64, slot: u32, slot_bits: u32) -> Self {
        u128::from(origin) << slot_bits | u128::from(slot)
    }

    fn origin(self, slot_bits: u32) -> u64 {
        ((self >> slot_bits) & 0xffff_ffff_ffff_ffff) as u64
    }

    fn slot(self, slot_bits: u32) -> u32 {
        (self & ((1 << slot_bits) - 1) & 0xffff_ffff) as u32
    }

    fn digit(self, shift: u32, mask: usize) -> usize {
        ((self >> shift) & 0xffff_ffff) as usize & mask
    }
}

/// Most bits that one pass sorts by.
const DIGIT_BITS_MAX: u32 = 11;
/// Below this many keys a comparing sort is faster.
const RADIX_MIN: usize = 4096;

/// Sorts keys that come in slot order by their bits from `low_bit` up to `high_bit`; all bits above
/// are zero.
pub(super) fn sort<K: Key>(keys: &mut Vec<K>, low_bit: u32, high_bit: u32) {
    if keys.is_sorted() {
        return;
    }
    if keys.len() < RADIX_MIN {
        keys.sort_unstable();
        return;
    }
    let passes = (high_bit - low_bit).div_ceil(DIGIT_BITS_MAX).max(1);
    let digit_bits = (high_bit - low_bit).div_ceil(passes);
    let digits = 1_usize << digit_bits;
    let mut other = keys.clone();
    for pass in 0..passes {
        let shift = low_bit + pass * digit_bits;
        let mut next = vec![0_usize; digits];
        for key in keys.iter() {
            next[key.digit(shift, digits - 1)] += 1;
        }
        let mut start = 0;
        for slot in &mut next {
            start += std::mem::replace(slot, start);
        }
        for &key in keys.iter() {
            let slot = &mut next[key.digit(shift, digits - 1)];
            other[*slot] = key;
            *slot += 1;
        }
        std::mem::swap(keys, &mut other);
    }
}
