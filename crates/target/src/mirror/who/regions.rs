//! Which leg has what: for each leg, the regions that it lacks. Pure.
//!
//! ```text
//!   region      0 1 2 3 4 5 6 7          a region is in sync when no leg lacks it;
//!   leg 0       . . . . . . . .          a leg is *full* when it lacks nothing: it can be
//!   leg 1       . . x x . . . x          copied from, and requests can rely on it alone
//! ```
//!
//! Regions are numbered from 0; their size is in sectors of 512 bytes.

use std::ops::Range;

use forebay_block::{Extent, Sector, SectorCount};

use super::legs::LegSet;

/// A set of regions.
#[derive(Clone, Debug)]
struct Bits {
    words: Vec<u64>,
    count: u64,
}

/// Words and masks that cover `range`.
fn words(range: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (range.start / 64, range.end.div_ceil(64));
    (first..last).map(move |word| {
        let from = range.start.saturating_sub(word * 64).min(63);
        let to = (range.end - word * 64).min(64);
        let below = |bits: u64| if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let at = usize::try_from(word).expect("regions are counted in memory");
        (at, below(to) & !below(from))
    })
}

impl Bits {
    fn new(regions: u64) -> Self {
        let words = usize::try_from(regions.div_ceil(64)).expect("regions are counted in memory");
        Self { words: vec![0; words], count: 0 }
    }

    /// Whether any of `range` is in it.
    fn any(&self, range: Range<u64>) -> bool {
        self.count > 0 && words(range).any(|(at, mask)| self.words[at] & mask != 0)
    }

    /// Puts `range` in; whether all of it already was.
    fn set(&mut self, range: Range<u64>) -> bool {
        let before = self.count;
        let asked = range.end - range.start;
        let mut had = 0;
        for (at, mask) in words(range) {
            had += u64::from((self.words[at] & mask).count_ones());
            self.words[at] |= mask;
        }
        self.count = before + asked - had;
        had == asked
    }

    /// Takes `range` out.
    fn clear(&mut self, range: Range<u64>) {
        for (at, mask) in words(range) {
            self.count -= u64::from((self.words[at] & mask).count_ones());
            self.words[at] &= !mask;
        }
    }
}

/// What each leg lacks.
#[derive(Clone, Debug)]
pub struct Regions {
    sectors: u64,
    size: u64,
    count: u64,
    lacks: Vec<Bits>,
}

impl Regions {
    /// A device of `sectors` in regions of `size`, with nothing lacking on any of `legs` legs.
    #[must_use]
    pub fn new(sectors: SectorCount, size: SectorCount, legs: usize) -> Self {
        let count = sectors.0.div_ceil(size.0);
        Self { sectors: sectors.0, size: size.0, count, lacks: vec![Bits::new(count); legs] }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Size of each but perhaps the last, sectors.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The regions that `extent` touches.
    #[must_use]
    pub fn of(&self, extent: Extent) -> Range<u64> {
        extent.start.0 / self.size..extent.end().0.div_ceil(self.size)
    }

    /// The sectors of `regions`; the last region may be shorter than the others.
    #[must_use]
    pub fn extent(&self, regions: &Range<u64>) -> Extent {
        let start = regions.start * self.size;
        let end = (regions.end * self.size).min(self.sectors);
        Extent::new(Sector(start), SectorCount(end - start))
    }

    /// The legs that have all of `regions`.
    #[must_use]
    pub fn having(&self, regions: &Range<u64>) -> LegSet {
        self.legs(|lacks| !lacks.any(regions.clone()))
    }

    /// The legs that have everything.
    #[must_use]
    pub fn full(&self) -> LegSet {
        self.legs(|lacks| lacks.count == 0)
    }

    fn legs(&self, keep: impl Fn(&Bits) -> bool) -> LegSet {
        let kept = self.lacks.iter().enumerate().filter(|(_, lacks)| keep(lacks));
        kept.fold(LegSet::NONE, |set, (leg, _)| set.with(LegSet::only(leg)))
    }

    /// `legs` lack `regions` from now on; those of them that had all of it until now.
    pub fn lose(&mut self, legs: LegSet, regions: &Range<u64>) -> LegSet {
        let mut new = LegSet::NONE;
        for leg in legs.iter() {
            if !self.lacks[leg].set(regions.clone()) {
                new = new.with(LegSet::only(leg));
            }
        }
        new
    }

    /// `leg` has `regions` from now on.
    pub fn gain(&mut self, leg: usize, regions: &Range<u64>) {
        self.lacks[leg].clear(regions.clone());
    }

    /// How many regions no leg lacks.
    #[must_use]
    pub fn in_sync(&self) -> u64 {
        let lacking: Vec<&Bits> = self.lacks.iter().filter(|lacks| lacks.count > 0).collect();
        let missing = match lacking.as_slice() {
            [] => 0,
            [one] => one.count,
            several => {
                let words = several[0].words.len();
                let any = |at| several.iter().fold(0, |any, lacks: &&Bits| any | lacks.words[at]);
                (0..words).map(|at| u64::from(any(at).count_ones())).sum()
            }
        };
        self.count - missing
    }

    /// The next run of regions from `from` on that the same ones of `legs` lack, and which these are;
    /// as many regions as `sectors_max` sectors hold, but at least one.
    #[must_use]
    pub fn next_lacking(&self, from: u64, legs: LegSet, sectors_max: u64) -> Option<(Range<u64>, LegSet)> {
        let start = legs.iter().filter_map(|leg| self.next_of(leg, from)).min()?;
        let lacking = |region| legs.without(self.having(&(region..region + 1)));
        let who = lacking(start);
        let most = (sectors_max / self.size).max(1).min(self.count - start);
        let length = (1..most).find(|&more| lacking(start + more) != who).unwrap_or(most);
        Some((start..start + length, who))
    }

    /// The first region from `from` on that `leg` lacks.
    fn next_of(&self, leg: usize, from: u64) -> Option<u64> {
        let lacks = &self.lacks[leg];
        if lacks.count == 0 || from >= self.count {
            return None;
        }
        let found = words(from..self.count).find_map(|(at, mask)| {
            let bits = lacks.words[at] & mask;
            (bits != 0).then(|| at as u64 * 64 + u64::from(bits.trailing_zeros()))
        });
        found.filter(|&region| region < self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(count: u64, legs: usize) -> Regions {
        Regions::new(SectorCount(count * 8 - 3), SectorCount(8), legs)
    }

    #[test]
    fn regions_and_sectors_turn_into_each_other() {
        let regions = regions(10, 2);
        assert_eq!(regions.count(), 10);
        assert_eq!(regions.of(Extent::new(Sector(7), SectorCount(2))), 0..2);
        assert_eq!(regions.of(Extent::new(Sector(16), SectorCount(8))), 2..3);
        assert_eq!(regions.extent(&(8..10)), Extent::new(Sector(64), SectorCount(13)));
    }

    #[test]
    fn sets_of_regions_agree_with_a_plain_list() {
        let mut rng = fastrand::Rng::with_seed(7);
        let count = 300;
        let mut regions = regions(300, 3);
        let mut plain = vec![LegSet::NONE; count];
        let wide = |range: &Range<usize>| range.start as u64..range.end as u64;
        for _ in 0..2000 {
            let start = rng.usize(0..count);
            let most = rng.usize(0..130);
            let range = start..rng.usize(start + 1..=(start + 1 + most).min(count));
            let leg = rng.usize(0..3);
            if rng.bool() {
                let new = regions.lose(LegSet::only(leg), &wide(&range));
                assert_eq!(new.is_empty(), plain[range.clone()].iter().all(|set| set.contains(leg)));
                plain[range].iter_mut().for_each(|set| *set = set.with(LegSet::only(leg)));
            } else {
                regions.gain(leg, &wide(&range));
                plain[range].iter_mut().for_each(|set| *set = set.without(LegSet::only(leg)));
            }
            let lacking = plain[start..].iter().position(|set| !set.is_empty()).map(|at| start + at);
            let next = regions.next_lacking(start as u64, LegSet::first_of(3), 64);
            assert_eq!(next.clone().map(|(run, _)| run.start), lacking.map(|at| at as u64));
            if let (Some((run, who)), Some(first)) = (next, lacking) {
                assert!(run.end - run.start <= 8 && run.clone().zip(&plain[first..]).all(|(_, set)| *set == who));
            }
            assert_eq!(regions.in_sync(), plain.iter().filter(|set| set.is_empty()).count() as u64);
            let full = (0..3).filter(|&leg| plain.iter().all(|set| !set.contains(leg)));
            assert_eq!(regions.full().iter().collect::<Vec<_>>(), full.collect::<Vec<_>>());
        }
    }
}
