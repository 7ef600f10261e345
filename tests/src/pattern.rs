//! Sectors that say what they are, so that a lost, old, torn or misplaced one names itself.
//!
//! ```text
//!  one sector, 512 bytes = 64 words of 8:   sector · version · 62 words mixed from both
//! ```
//!
//! 1. A sector that was never written is all zeros and counts as version 0.
//! 2. `Churn` gives the same writes for the same seed, so that the host knows what a guest was doing.
//!
//! Units: sectors of 512 bytes.

use std::ops::Range;

/// Bytes in a sector.
pub const SECTOR: usize = 512;

/// Fills `bytes` (whole sectors) with the pattern of `version`, starting at device sector `first`.
pub fn fill(bytes: &mut [u8], first: u64, version: u64) {
    assert_eq!(bytes.len() % SECTOR, 0, "patterns are made of whole sectors");
    for (sector, chunk) in (first..).zip(bytes.chunks_exact_mut(SECTOR)) {
        for (word, place) in words(sector, version).zip(chunk.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The pattern of `version` for a range of device sectors.
pub fn of(sectors: &Range<u64>, version: u64) -> Vec<u8> {
    let count = usize::try_from(sectors.end - sectors.start).expect("a range that fits in memory");
    let mut bytes = vec![0; count * SECTOR];
    fill(&mut bytes, sectors.start, version);
    bytes
}

/// The version that `bytes` (one sector) holds if it is the pattern of device sector `sector`; `None` when it is anything else.
pub fn version_of(bytes: &[u8], sector: u64) -> Option<u64> {
    assert_eq!(bytes.len(), SECTOR, "one sector at a time");
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let version = word(8);
    let same = words(sector, version).enumerate().all(|(index, expected)| word(index * 8) == expected);
    same.then_some(version)
}

fn words(sector: u64, version: u64) -> impl Iterator<Item = u64> {
    let seed = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.rotate_left(32);
    let mixed = (2..64_u64).map(move |index| (seed ^ index).wrapping_mul(0xbf58_476d_1ce4_e5b9));
    [sector, version].into_iter().chain(mixed)
}

/// A repeatable stream of writes: round after round over a device, each round a version of its own.
#[derive(Clone, Copy, Debug)]
pub struct Churn {
    /// Same seed, same writes.
    pub seed: u64,
    /// Size of the device.
    pub sectors: u64,
    /// Every write starts and ends at a multiple of this many sectors.
    pub grain: u64,
}

impl Churn {
    /// The writes of one round (counted from 1), in order. All carry the round as their version.
    ///
    /// The writes of a round do not overlap: a sector that is written twice between two flushes, while writeback is
    /// at work, can crash the kernel's own dm-writecache (6.1: the commit that writeback begins with frees the older
    /// of the two, which writeback goes on to use), and can make it lose the newer one.
    pub fn round(&self, round: u64) -> Vec<Range<u64>> {
        let mut random = fastrand::Rng::with_seed(self.seed.wrapping_mul(1_000_003).wrapping_add(round));
        let blocks = self.sectors / self.grain;
        let mut writes: Vec<Range<u64>> = Vec::new();
        for _ in 0..random.u64(8..40) {
            let longest = [1, 4, 32, 128][random.usize(0..4)];
            let count = random.u64(1..=longest).min(blocks);
            let start = random.u64(0..=blocks - count);
            let write = start * self.grain..(start + count) * self.grain;
            if writes.iter().all(|other| other.end <= write.start || write.end <= other.start) {
                writes.push(write);
            }
        }
        writes
    }

    /// The versions that each sector may hold when rounds up to `flushed` are durable and rounds up to `started` may be.
    ///
    /// A sector holds the last flushed round that wrote it, or any later round that did.
    pub fn allowed(&self, flushed: u64, started: u64) -> Vec<Vec<u64>> {
        let mut allowed = vec![vec![0]; usize::try_from(self.sectors).expect("test devices are small")];
        for round in 1..=started {
            for sector in self.round(round).into_iter().flatten() {
                let versions = &mut allowed[usize::try_from(sector).expect("test devices are small")];
                if round <= flushed {
                    versions.clear();
                }
                if versions.last() != Some(&round) {
                    versions.push(round);
                }
            }
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_recognised_only_whole_and_in_its_own_place() {
        let mut bytes = vec![0; 2 * SECTOR];
        assert_eq!(version_of(&bytes[..SECTOR], 7), Some(0));
        fill(&mut bytes, 7, 3);
        assert_eq!(version_of(&bytes[..SECTOR], 7), Some(3));
        assert_eq!(version_of(&bytes[SECTOR..], 8), Some(3));
        assert_eq!(version_of(&bytes[SECTOR..], 7), None);
        bytes[500] ^= 1;
        assert_eq!(version_of(&bytes[..SECTOR], 7), None);
    }

    #[test]
    fn a_churn_repeats_itself_stays_inside_keeps_its_grain_and_does_not_overlap_itself() {
        let churn = Churn { seed: 5, sectors: 1000, grain: 8 };
        for round in 1..200 {
            let writes = churn.round(round);
            assert_eq!(writes, churn.round(round));
            let sectors: Vec<u64> = writes.iter().cloned().flatten().collect();
            let once: std::collections::BTreeSet<u64> = sectors.iter().copied().collect();
            assert_eq!(once.len(), sectors.len());
            for write in writes {
                assert!(write.start < write.end);
                assert!(write.end <= 1000);
                assert_eq!((write.start % 8, write.end % 8), (0, 0));
            }
        }
    }

    #[test]
    fn a_flushed_round_rules_out_what_came_before() {
        let churn = Churn { seed: 1, sectors: 256, grain: 1 };
        let allowed = churn.allowed(3, 5);
        let written = |round: u64, sector: u64| churn.round(round).iter().any(|write| write.contains(&sector));
        for (sector, versions) in (0..256).zip(&allowed) {
            let flushed = (1..=3).rev().find(|round| written(*round, sector)).unwrap_or(0);
            let mut expected = vec![flushed];
            expected.extend((4..=5).filter(|round| written(*round, sector)));
            assert_eq!(*versions, expected, "sector {sector}");
        }
    }
}
