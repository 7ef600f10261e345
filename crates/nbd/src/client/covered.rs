//! Which bytes of a read have come in, so that none is left as it was and none comes twice.
//!
//! 1. Ranges are in order, do not overlap and do not adjoin.
//! 2. There are at most [`RANGES_MAX`]: a server that scatters a read more than that breaks the rules.

/// Most ranges of one read that are not joined yet.
const RANGES_MAX: usize = 1024;

/// Ranges of a payload, bytes.
#[derive(Debug, Default)]
pub(super) struct Covered(Vec<(u32, u32)>);

impl Covered {
    /// Adds `bytes` bytes from `start` on; false when one of them is there already, or there are too many
    /// ranges.
    pub(super) fn add(&mut self, start: u32, bytes: u32) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let at = self.0.partition_point(|range| range.1 < start);
        // `at` is the first range that ends at or behind `start`; the one after it may adjoin at the end.
        let joins_front = self.0.get(at).is_some_and(|range| range.1 == start);
        let next = at + usize::from(joins_front);
        let joins_back = match self.0.get(next) {
            Some(range) if range.0 < end => return false,
            Some(range) => range.0 == end,
            None => false,
        };
        match (joins_front, joins_back) {
            (true, true) => {
                let (_, behind) = self.0.remove(next);
                self.set(at, |range| range.1 = behind);
            }
            (true, false) => self.set(at, |range| range.1 = end),
            (false, true) => self.set(at, |range| range.0 = start),
            (false, false) if self.0.len() == RANGES_MAX => return false,
            (false, false) => self.0.insert(at, (start, end)),
        }
        true
    }

    /// Forgets everything, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether all of `0..bytes` is there.
    pub(super) fn is_all(&self, bytes: u32) -> bool {
        self.0 == [(0, bytes)]
    }

    fn set(&mut self, at: usize, change: impl FnOnce(&mut (u32, u32))) {
        change(self.0.get_mut(at).expect("the caller found a range there"));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_taken_as_a_map_of_bytes_would(ranges in prop::collection::vec((0_u32..64, 1_u32..16), 0..24)) {
            let (mut covered, mut map) = (Covered::default(), [false; 80]);
            for (start, bytes) in ranges {
                let place = &mut map[start as usize..(start + bytes) as usize];
                let free = place.iter().all(|taken| !taken);
                prop_assert_eq!(covered.add(start, bytes), free);
                if free {
                    place.fill(true);
                }
                let first = map.iter().position(|taken| !taken).unwrap();
                let any_behind = map[first..].iter().any(|taken| *taken);
                prop_assert_eq!(covered.is_all(u32::try_from(first).unwrap()), first > 0 && !any_behind);
                prop_assert!(covered.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }

    #[test]
    fn scattered_bytes_are_refused_beyond_the_limit() {
        let mut covered = Covered::default();
        let taken = (0..4096).take_while(|at| covered.add(at * 2, 1)).count();
        assert_eq!(taken, RANGES_MAX);
        assert!(!covered.add(u32::MAX, 2));
    }
}
