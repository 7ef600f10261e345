//! The sequence number of each slot, in little memory: slots that follow each other mostly share one.

#![deny(clippy::indexing_slicing)]

use crate::cache::index::bits::Bits;
use crate::cache::index::{CacheSlot, SlotRun};

/// Sequence numbers of the slots that have one.
pub(super) struct Sequences {
    /// One for each stretch of slots with equal ones.
    values: Vec<u64>,
    /// The first slot of each stretch.
    starts: Bits,
    /// Stretches that begin in front of each word of `starts`; made when the first one is asked for.
    ranks: Vec<u32>,
}

impl Sequences {
    pub(super) fn new(slots: u32) -> Self {
        Self { values: Vec::new(), starts: Bits::new(slots), ranks: Vec::new() }
    }

    /// Notes that a stretch with this number begins at `slot`, behind all others.
    pub(super) fn push(&mut self, slot: u32, seq: u64) {
        self.values.push(seq);
        self.starts.set(SlotRun { slot: CacheSlot(slot), count: 1 });
    }

    /// The number of a slot that has one, once all are noted.
    pub(super) fn of(&mut self, slot: u32) -> u64 {
        if self.ranks.is_empty() {
            self.ranks = self.starts.ranks();
        }
        let front = self.ranks.get((slot / u64::BITS) as usize).map_or(0, |&rank| rank as usize);
        let begun = front + self.starts.rank_in_word(slot) as usize;
        begun.checked_sub(1).and_then(|at| self.values.get(at)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_gives_back_its_number() {
        let numbers: Vec<u64> = (0..1000).map(|slot| slot * slot / 777 % 5).collect();
        let mut sequences = Sequences::new(2000);
        let mut last = None;
        for (slot, &seq) in (0..).step_by(2).zip(&numbers) {
            if last.replace(seq) != Some(seq) {
                sequences.push(slot, seq);
            }
        }
        for (slot, &seq) in (0..).step_by(2).zip(&numbers) {
            assert_eq!(sequences.of(slot), seq, "slot {slot}");
        }
    }
}
