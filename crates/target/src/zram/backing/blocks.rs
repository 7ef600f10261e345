//! The blocks of a backing device: which are free, who stands in them, and who still reads them.
//!
//! ```text
//!   block 0   never used, as in the kernel: a device of n blocks holds n - 1 whole pages
//!   take(32)  the next 32 free blocks in a row behind those taken last, round the end
//!
//!   run       │ block        │ block        │ block        │
//!   whole     │ page 7       │ page 9       │ page 10      │      one owner each
//!   packed    │ 7 │ 9  │ 10     │ 12 │ 13     │ 14 │ empty │      every object in it is an owner
//! ```
//!
//! Invariants:
//! - I1: a block is taken, or free, never both; who takes a run owns every block of it alone, and gives
//!   back at once those in which he puts nothing.
//! - I2: a block that was given back by its last owner while somebody reads it becomes free when the
//!   last reader is done, so a read never sees what another page put there.
//! - I3: what waits for a discard is not taken, unless nothing else is free and none has begun.
//!
//! Next-fit keeps what was written together together, and leaves what was freed a while to grow into
//! longer runs. A search looks at 65,536 blocks before it contents itself with less than was wanted.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::memory::PAGE;

/// Blocks in a word of the map.
const WORD: u64 = 64;
/// Words that a search looks at before it takes the best run so far.
const LOOKS_MAX: u64 = 1024;

/// Where something stands on the device, in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Spot(pub(in super::super) u64);

impl Spot {
    /// Bytes of a unit.
    pub(in super::super) const GRAIN: usize = 16;
    /// Bits of a spot: enough for 4 PiB.
    pub(in super::super) const BITS: u32 = 48;
    /// Spots of a block.
    const PER_BLOCK: u64 = (PAGE / Self::GRAIN) as u64;

    /// So many bytes behind the begin of a block.
    pub(in super::super) fn behind(block: u64, bytes: usize) -> Self {
        debug_assert!(bytes.is_multiple_of(Self::GRAIN), "a spot is a multiple of {} bytes", Self::GRAIN);
        Self(block * Self::PER_BLOCK + (bytes / Self::GRAIN) as u64)
    }

    /// The block in which it is.
    pub(in super::super) fn block(self) -> u64 {
        self.0 / Self::PER_BLOCK
    }

    /// The blocks that so many bytes touch from here on; at least this one.
    pub(in super::super) fn blocks(self, bytes: usize) -> RangeInclusive<u64> {
        let end = self.0 + bytes.div_ceil(Self::GRAIN).max(1) as u64;
        self.block()..=(end - 1) / Self::PER_BLOCK
    }

    /// Bytes from the begin of `block`, which is not behind it.
    pub(in super::super) fn bytes_from(self, block: u64) -> usize {
        let spots = self.0 - block * Self::PER_BLOCK;
        usize::try_from(spots).expect("what is read at once is small") * Self::GRAIN
    }
}

/// Blocks in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Run {
    pub(in super::super) start: u64,
    pub(in super::super) count: u64,
}

#[derive(Default)]
struct Readers {
    count: u32,
    /// It was given back meanwhile.
    given: bool,
}

/// The blocks of one device.
pub(in super::super) struct Blocks {
    /// A set bit is a block that is not free.
    words: Vec<u64>,
    count: u64,
    /// Taken and not given back.
    used: u64,
    next: u64,
    readers: BTreeMap<u64, Readers>,
    /// Owners of each block, where there may be several.
    owners: Option<Vec<u16>>,
    /// Free but for a discard; none where freed blocks are not discarded.
    freed: Option<Vec<Run>>,
    freed_count: u64,
}

/// How the blocks of a device are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Use {
    /// Several objects can own a block.
    pub(in super::super) shared: bool,
    /// What becomes free waits to be discarded.
    pub(in super::super) discarded: bool,
}

impl Blocks {
    /// A device of `count` blocks, all free but the first.
    pub(in super::super) fn new(count: u64, way: Use) -> Self {
        let count = count.min((1 << Spot::BITS) / Spot::PER_BLOCK);
        let words = usize::try_from(count.div_ceil(WORD)).expect("a map of blocks fits in memory");
        let owners = way.shared.then(|| vec![0; usize::try_from(count).expect("as above")]);
        let mut blocks = Self {
            words: vec![0; words],
            count,
            used: 0,
            next: 1,
            readers: BTreeMap::new(),
            owners,
            freed: way.discarded.then(Vec::new),
            freed_count: 0,
        };
        if count > 0 {
            blocks.mark(0, 1, true);
        }
        if !count.is_multiple_of(WORD) {
            // What lies behind the end is never free.
            blocks.words[words - 1] |= u64::MAX << (count % WORD);
        }
        blocks
    }

    /// The same device with everything free.
    pub(in super::super) fn emptied(&self) -> Self {
        Self::new(self.count, Use { shared: self.owners.is_some(), discarded: self.freed.is_some() })
    }

    /// Blocks that hold something.
    pub(in super::super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes `wanted` blocks in a row, or fewer where there are not that many; `None` when none is free.
    pub(in super::super) fn take(&mut self, wanted: u64) -> Option<Run> {
        let wanted = wanted.max(1);
        let mut found = self.search(wanted);
        if found.is_none() {
            // What waits for a discard is better used again.
            for run in self.take_freed() {
                self.free(run);
            }
            found = self.search(wanted);
        }
        let run = found?;
        self.mark(run.start, run.count, true);
        self.used += run.count;
        self.next = run.start + run.count;
        Some(run)
    }

    /// A block that was taken gets an owner: the only one, unless blocks are shared.
    pub(in super::super) fn own(&mut self, block: u64) {
        debug_assert!(self.is_set(block), "only what was taken has owners (I1)");
        if let Some(owners) = &mut self.owners {
            owners[usize::try_from(block).expect("a block of the device")] += 1;
        }
    }

    /// Gives back the last blocks of a run that was just taken, in which nothing stands.
    pub(in super::super) fn give_tail(&mut self, tail: Run) {
        if self.next == tail.start + tail.count {
            self.next = tail.start;
        }
        self.used -= tail.count;
        self.mark(tail.start, tail.count, false);
    }

    /// An owner gives a block back; after the last one it becomes free, or when its last reader is
    /// done (I2).
    pub(in super::super) fn give(&mut self, block: u64) {
        assert!(block > 0 && block < self.count && self.is_set(block), "only taken blocks are given back (I1)");
        if let Some(owners) = &mut self.owners {
            let left = &mut owners[usize::try_from(block).expect("a block of the device")];
            *left = left.checked_sub(1).expect("a block has as many owners as give it back (I1)");
            if *left > 0 {
                return;
            }
        }
        self.used -= 1;
        match self.readers.get_mut(&block) {
            Some(readers) => {
                assert!(!readers.given, "a block is given back once (I1)");
                readers.given = true;
            }
            None => self.release(block),
        }
    }

    /// Blocks that wait for a discard.
    pub(in super::super) fn freed(&self) -> u64 {
        self.freed_count
    }

    /// Takes them, in order, those that meet as one run; [`Blocks::free`] must follow for each.
    pub(in super::super) fn take_freed(&mut self) -> Vec<Run> {
        self.freed_count = 0;
        let mut runs = self.freed.as_mut().map_or_else(Vec::new, std::mem::take);
        runs.sort_unstable_by_key(|run| run.start);
        runs.dedup_by(|next, run| {
            let meet = run.start + run.count == next.start;
            run.count += if meet { next.count } else { 0 };
            meet
        });
        runs
    }

    /// Blocks that waited for a discard are free.
    pub(in super::super) fn free(&mut self, run: Run) {
        self.mark(run.start, run.count, false);
    }

    fn release(&mut self, block: u64) {
        let Some(freed) = &mut self.freed else { return self.mark(block, 1, false) };
        self.freed_count += 1;
        match freed.last_mut() {
            Some(run) if run.start + run.count == block => run.count += 1,
            _ => freed.push(Run { start: block, count: 1 }),
        }
    }

    /// Somebody reads a block that is taken.
    pub(in super::super) fn hold(&mut self, block: u64) {
        self.readers.entry(block).or_default().count += 1;
    }

    /// He is done.
    pub(in super::super) fn let_go(&mut self, block: u64) {
        let readers = self.readers.get_mut(&block).expect("who lets go has held");
        readers.count -= 1;
        if readers.count == 0 {
            let given = readers.given;
            self.readers.remove(&block);
            if given {
                self.release(block);
            }
        }
    }

    /// Memory taken, bytes, but for readers.
    pub(in super::super) fn memory_bytes(&self) -> usize {
        self.words.capacity() * 8 + self.owners.as_ref().map_or(0, |owners| owners.capacity() * 2)
    }

    fn is_set(&self, block: u64) -> bool {
        self.words[index(block)] >> (block % WORD) & 1 == 1
    }

    fn mark(&mut self, start: u64, count: u64, taken: bool) {
        let (mut at, end) = (start, start + count);
        while at < end {
            let bits = (WORD - at % WORD).min(end - at);
            let mask = (u64::MAX >> (WORD - bits)) << (at % WORD);
            let word = &mut self.words[index(at)];
            *word = if taken { *word | mask } else { *word & !mask };
            at += bits;
        }
    }

    fn search(&self, wanted: u64) -> Option<Run> {
        let mut best = Run { start: 0, count: 0 };
        let mut looked = 0;
        for (mut at, end) in [(self.next, self.count), (1, self.next)] {
            while at < end {
                let free = self.next_free(at, end);
                looked += (free - at) / WORD + 1;
                if free == end {
                    break;
                }
                let run = Run { start: free, count: self.free_length(free, self.count.min(free + wanted)) };
                if run.count > best.count {
                    best = run;
                }
                if best.count == wanted || (best.count > 0 && looked > LOOKS_MAX) {
                    return Some(best);
                }
                looked += run.count / WORD;
                at = free + run.count.max(1);
            }
        }
        (best.count > 0).then_some(best)
    }

    /// The first free block from `at` on, or `end`.
    fn next_free(&self, mut at: u64, end: u64) -> u64 {
        while at < end {
            let free = !self.words[index(at)] >> (at % WORD);
            if free != 0 {
                return (at + u64::from(free.trailing_zeros())).min(end);
            }
            at = (at / WORD + 1) * WORD;
        }
        end
    }

    /// Free blocks in a row from `start` on, up to `end`.
    fn free_length(&self, start: u64, end: u64) -> u64 {
        let mut at = start;
        while at < end {
            let taken = self.words[index(at)] >> (at % WORD);
            if taken != 0 {
                return (at + u64::from(taken.trailing_zeros())).min(end) - start;
            }
            at = (at / WORD + 1) * WORD;
        }
        end.saturating_sub(start)
    }
}

fn index(block: u64) -> usize {
    usize::try_from(block / WORD).expect("a map of blocks fits in memory")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    #[test]
    fn a_device_of_a_hundred_blocks_holds_ninety_nine_pages() {
        let mut blocks = Blocks::new(100, Use::default());
        assert_eq!(blocks.take(64), Some(Run { start: 1, count: 64 }));
        assert_eq!(blocks.take(64), Some(Run { start: 65, count: 35 }));
        assert_eq!((blocks.take(1), blocks.used()), (None, 99));
        blocks.give(40);
        assert_eq!(blocks.take(2), Some(Run { start: 40, count: 1 }));
        assert_eq!((Blocks::new(0, Use::default()).take(1), Blocks::new(1, Use::default()).take(1)), (None, None));
    }

    #[test]
    fn a_block_is_not_taken_again_before_its_last_reader_is_done() {
        let mut blocks = Blocks::new(2, Use::default());
        let block = blocks.take(1).unwrap().start;
        blocks.hold(block);
        blocks.hold(block);
        blocks.give(block);
        assert_eq!((blocks.take(1), blocks.used()), (None, 0));
        blocks.let_go(block);
        assert_eq!(blocks.take(1), None);
        blocks.let_go(block);
        assert_eq!(blocks.take(1), Some(Run { start: 1, count: 1 }));
        blocks.hold(block);
        blocks.let_go(block);
        assert_eq!((blocks.take(1), blocks.used()), (None, 1));
    }

    #[test]
    fn runs_go_on_behind_the_last_and_begin_again_at_the_end() {
        let mut blocks = Blocks::new(1000, Use::default());
        assert_eq!(blocks.take(100), Some(Run { start: 1, count: 100 }));
        (1..101).for_each(|block| blocks.give(block));
        assert_eq!(blocks.take(100), Some(Run { start: 101, count: 100 }));
        assert_eq!(blocks.take(790), Some(Run { start: 201, count: 790 }));
        assert_eq!(blocks.take(50), Some(Run { start: 1, count: 50 }));
    }

    #[test]
    fn blocks_are_what_a_list_of_them_says() {
        for seed in 0..40 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let count = rng.u64(1..700);
            let mut blocks = Blocks::new(count, Use::default());
            let mut taken: Vec<u64> = Vec::new();
            for _ in 0..400 {
                if rng.bool() {
                    let most = [2, 10, 300][rng.usize(0..3)];
                    let wanted = rng.u64(1..most);
                    let free = count - 1 - taken.len() as u64;
                    match blocks.take(wanted) {
                        None => assert_eq!(free, 0),
                        Some(run) => {
                            assert!(run.count >= 1 && run.count <= wanted && run.start + run.count <= count);
                            assert!(run.count == wanted || longest(count, &taken) == run.count, "seed {seed}");
                            for block in run.start..run.start + run.count {
                                assert!(!taken.contains(&block) && block > 0);
                                taken.push(block);
                            }
                        }
                    }
                } else if !taken.is_empty() {
                    let at = rng.usize(0..taken.len());
                    blocks.give(taken.swap_remove(at));
                }
                assert_eq!(blocks.used(), taken.len() as u64);
            }
        }
    }

    #[test]
    fn a_shared_block_is_free_when_its_last_owner_gave_it_back_and_its_last_reader_is_done() {
        let mut blocks = Blocks::new(3, Use { shared: true, ..Use::default() });
        let run = blocks.take(2).unwrap();
        [1, 1, 1, 2].into_iter().for_each(|block| blocks.own(block));
        blocks.hold(1);
        (0..2).for_each(|_| blocks.give(1));
        assert_eq!((run.count, blocks.used()), (2, 2));
        blocks.give(1);
        assert_eq!((blocks.used(), blocks.take(1)), (1, None), "it is being read");
        blocks.let_go(1);
        assert_eq!(blocks.take(1), Some(Run { start: 1, count: 1 }));
        blocks.give_tail(Run { start: 1, count: 1 });
        blocks.give(2);
        assert_eq!((blocks.used(), blocks.take(9).map(|run| run.count)), (0, Some(2)));
    }

    #[test]
    fn freed_blocks_wait_for_their_discard_unless_nothing_else_is_free() {
        let mut blocks = Blocks::new(11, Use { discarded: true, ..Use::default() });
        blocks.take(8).unwrap();
        [5, 6, 7, 2, 3, 4].into_iter().for_each(|block| blocks.give(block));
        assert_eq!((blocks.used(), blocks.freed(), blocks.take(9)), (2, 6, Some(Run { start: 9, count: 2 })));
        assert_eq!((blocks.take(9), blocks.freed()), (Some(Run { start: 2, count: 6 }), 0));
        [9, 2, 8, 3].into_iter().for_each(|block| blocks.give(block));
        let runs = blocks.take_freed();
        assert_eq!(runs, [Run { start: 2, count: 2 }, Run { start: 8, count: 2 }]);
        assert_eq!((blocks.take(1), blocks.freed()), (None, 0), "they are being discarded");
        runs.into_iter().for_each(|run| blocks.free(run));
        assert_eq!(blocks.take(9), Some(Run { start: 8, count: 2 }));
    }

    #[test]
    fn a_spot_knows_the_blocks_that_its_bytes_touch() {
        let spot = Spot::behind(7, 4080);
        assert_eq!((spot.block(), spot.blocks(16), spot.blocks(17), spot.bytes_from(6)), (7, 7..=7, 7..=8, 4096 + 4080));
        assert_eq!((spot.blocks(1), spot.blocks(0), Spot::behind(7, 0).blocks(4096)), (7..=7, 7..=7, 7..=7));
    }

    /// The longest free run.
    fn longest(count: u64, taken: &[u64]) -> u64 {
        let mut best = 0;
        let mut length = 0;
        for block in 1..count {
            length = if taken.contains(&block) { 0 } else { length + 1 };
            best = best.max(length);
        }
        best
    }
}
