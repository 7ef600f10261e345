//! Recovery: from the entries on the fast device to the index, in one pass and a sort.
//!
//! ```text
//!   metadata, slot by slot ──feed──▶ runs of consecutive blocks ──finish──▶ sorted by origin block,
//!                                    what to clear, what is damaged          one slot for each block
//! ```
//!
//! 1. A block is recovered when it was committed: its sequence number is below the superblock's.
//! 2. Of several committed slots for one origin block the one with the highest sequence number holds
//!    it; of equal ones (a kernel that lost power in a certain moment leaves such) the highest slot.
//! 3. Slots that were never committed, and those that lost to another, are to be cleared on the device
//!    before any of them is used again.
//! 4. The same entries give the same result, however they are cut into calls of `feed`.
//! 5. Memory is bounded by the number of slots: about 30 bytes for each where every block is alone,
//!    a quarter of a byte for a cache filled in order.
//!
//! Units: sectors are 512 bytes; sequence numbers count committed groups.
//!
//! Nothing here fails or panics for what the device holds: entries that cannot be true are listed in
//! [`Recovered::damage`], and the caller refuses the cache before it writes anything.

#![deny(clippy::indexing_slicing)]

use forebay_block::SectorCount;
use forebay_block::replant::{Bug, planted};

use super::entry::{ENTRY_BYTES, Entry, SEQ_FREE};
use super::format::Geometry;
use super::sequences::Sequences;
use super::sort::{Key, Keys, MARK_BITS};
use crate::cache::index::bits::Bits;
use crate::cache::index::map::MapBuilder;
use crate::cache::index::{CacheSlot, ExtentMap, FreeSpace, ORIGIN_BLOCKS_MAX, Phase, SlotRun, State};

#[cfg(test)]
mod tests;

/// Damaged entries beyond this many are counted, not listed.
pub const DAMAGE_LISTED_MAX: usize = 64;

/// What is wrong with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Its origin sector is not a multiple of the block size.
    Misaligned,
    /// Its block does not lie on the origin.
    BeyondOrigin,
}

/// A committed entry that cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The slot of the entry.
    pub slot: CacheSlot,
    /// The origin sector that it names.
    pub origin_sector: u64,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What the entries of a cache say.
pub struct Recovered {
    /// Where each recovered block lies, all of them committed.
    pub map: ExtentMap,
    /// The slots that hold no recovered block.
    pub free: FreeSpace,
    /// Free slots whose entries on the device do not say so yet, in order.
    pub clear: Vec<SlotRun>,
    /// The first [`DAMAGE_LISTED_MAX`] damaged entries; their slots count as free and are not cleared.
    pub damage: Vec<Damage>,
    /// All damaged entries.
    pub damaged: u64,
    /// Origin blocks that had several slots with equal, highest sequence numbers.
    pub ties: u64,
    /// The smallest origin that all committed entries fit on, damaged ones included.
    pub origin_needed: SectorCount,
}

/// Reads entries.
pub struct Recovery {
    scan: Scan,
    runs: Runs,
}

/// The first block and slot of each run, in slot order.
enum Runs {
    /// Both fit 64 bits, as on nearly all devices.
    Narrow(Keys<u64>),
    Wide(Keys<u128>),
}

impl Recovery {
    /// Begins to read the entries of a cache with this layout and `seq_count` in its superblock, in
    /// front of an origin of `origin` sectors, rounded up to whole blocks.
    #[must_use]
    pub fn new(geometry: &Geometry, seq_count: u64, origin: SectorCount) -> Self {
        let block_shift = geometry.block_sectors().trailing_zeros();
        let origin_blocks = (origin.0 >> block_shift).min(ORIGIN_BLOCKS_MAX);
        let slot_bits = u32::BITS - (geometry.blocks() - 1).leading_zeros();
        let origin_bits = u64::BITS - origin_blocks.saturating_sub(1).leading_zeros();
        let seq_count = if planted(Bug::M4DirtyLostOnRestart) { seq_count.saturating_sub(1) } else { seq_count };
        let scan = Scan {
            blocks: geometry.blocks(),
            block_shift,
            origin_blocks,
            seq_count,
            slot_bits,
            slot: 0,
            expected: NONE,
            last_seq: NONE,
            used: Bits::new(geometry.blocks()),
            continues: Bits::new(geometry.blocks()),
            seqs: Sequences::new(geometry.blocks()),
            clear: Bits::new(geometry.blocks()),
            damage: Vec::new(),
            damaged: 0,
            sector_max: 0,
        };
        let runs = if origin_bits + slot_bits + MARK_BITS <= u64::BITS {
            Runs::Narrow(Keys::new(slot_bits))
        } else {
            Runs::Wide(Keys::new(slot_bits))
        };
        Self { scan, runs }
    }

    /// Reads the next entries, in slot order. What follows the last slot's entry is ignored.
    ///
    /// # Panics
    /// When `entries` is not a whole number of entries.
    pub fn feed(&mut self, entries: &[u8]) {
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        assert!(rest.is_empty(), "entries are {ENTRY_BYTES} bytes each");
        match &mut self.runs {
            Runs::Narrow(runs) => self.scan.feed(entries, runs),
            Runs::Wide(runs) => self.scan.feed(entries, runs),
        }
    }

    /// Slots whose entries were not fed yet.
    #[must_use]
    pub fn slots_left(&self) -> u32 {
        self.scan.blocks - self.scan.slot
    }

    /// The result, once all entries were fed.
    ///
    /// # Panics
    /// When some were not.
    #[must_use]
    pub fn finish(self) -> Recovered {
        assert!(self.slots_left() == 0, "{} entries were not fed", self.slots_left());
        match self.runs {
            Runs::Narrow(runs) => self.scan.finish(runs),
            Runs::Wide(runs) => self.scan.finish(runs),
        }
    }
}

/// No origin block and no committed entry has this number.
const NONE: u64 = u64::MAX;

struct Scan {
    blocks: u32,
    /// Base-2 logarithm of the sectors in a block.
    block_shift: u32,
    origin_blocks: u64,
    seq_count: u64,
    slot_bits: u32,
    /// The slot of the next entry.
    slot: u32,
    /// The origin block that would continue the run of the last entry, or [`NONE`].
    expected: u64,
    /// The sequence number of the last used slot, or [`NONE`].
    last_seq: u64,
    /// Slots that hold a recovered block.
    used: Bits,
    /// Slots that continue the run of the slot in front.
    continues: Bits,
    seqs: Sequences,
    /// Free slots whose entries do not say so.
    clear: Bits,
    damage: Vec<Damage>,
    damaged: u64,
    /// The highest origin sector of a committed entry.
    sector_max: u64,
}

impl Scan {
    fn feed<K: Key>(&mut self, entries: &[[u8; ENTRY_BYTES]], runs: &mut Keys<K>) {
        let mut rest = entries.get(..(self.blocks - self.slot) as usize).unwrap_or(entries);
        while !rest.is_empty() {
            let to_word_end = (u64::BITS - self.slot % u64::BITS) as usize;
            let (word, behind) = rest.split_at(to_word_end.min(rest.len()));
            self.feed_word(word, runs);
            rest = behind;
        }
    }

    /// Reads up to 64 entries, whose bits lie in one word.
    fn feed_word<K: Key>(&mut self, entries: &[[u8; ENTRY_BYTES]], runs: &mut Keys<K>) {
        let (mut used, mut continues, mut clear) = (0, 0, 0);
        let (mut expected, mut last_seq) = (self.expected, self.last_seq);
        let mut sector_max = self.sector_max;
        let first = self.slot;
        let mut bit = 1 << (first % u64::BITS);
        for (entry, slot) in entries.iter().zip(first..) {
            let Entry { origin_sector, seq } = Entry::decode(entry);
            if seq >= self.seq_count || seq == SEQ_FREE {
                expected = NONE;
                clear |= if seq == SEQ_FREE { 0 } else { bit };
            } else {
                sector_max = sector_max.max(origin_sector);
                let origin = origin_sector >> self.block_shift;
                if origin << self.block_shift != origin_sector || origin >= self.origin_blocks {
                    expected = NONE;
                    self.note_damage(slot, origin_sector);
                } else {
                    used |= bit;
                    if expected == origin {
                        continues |= bit;
                        runs.mark_last();
                    } else {
                        runs.push(origin, slot);
                    }
                    expected = origin + 1;
                    if seq != last_seq {
                        self.seqs.push(slot, seq);
                        last_seq = seq;
                    }
                }
            }
            bit <<= 1;
        }
        self.used.set_in_word(first, used);
        self.continues.set_in_word(first, continues);
        self.clear.set_in_word(first, clear);
        (self.expected, self.last_seq, self.sector_max) = (expected, last_seq, sector_max);
        self.slot += u32::try_from(entries.len()).expect("a word has 64 bits");
    }

    #[cold]
    fn note_damage(&mut self, slot: u32, origin_sector: u64) {
        self.damaged += 1;
        let aligned = origin_sector >> self.block_shift << self.block_shift == origin_sector;
        let flaw = if aligned { Flaw::BeyondOrigin } else { Flaw::Misaligned };
        if self.damage.len() < DAMAGE_LISTED_MAX {
            self.damage.push(Damage { slot: CacheSlot(slot), origin_sector, flaw });
        }
    }

    fn finish<K: Key>(self, runs: Keys<K>) -> Recovered {
        let block_sectors = 1 << self.block_shift;
        let none = self.last_seq == NONE && self.damaged == 0;
        let origin_needed = if none { 0 } else { self.sector_max.saturating_add(block_sectors) };
        let mut merge = Merge {
            used: self.used,
            clear: self.clear,
            seqs: self.seqs,
            map: MapBuilder::new(),
            ties: 0,
            held: None,
            end: 0,
            rivals: Vec::new(),
        };
        runs.sorted(|keys| merge.add(keys, self.slot_bits, &self.continues));
        merge.settle();
        Recovered {
            map: merge.map.finish(),
            free: FreeSpace::from_used(self.blocks, merge.used.runs()),
            clear: merge.clear.runs().collect(),
            damage: self.damage,
            damaged: self.damaged,
            ties: merge.ties,
            origin_needed: SectorCount(origin_needed),
        }
    }
}

/// Builds the map of runs that come in order of origin block. Where several hold the same block it
/// chooses one and frees the others.
struct Merge {
    /// Slots that hold a recovered block.
    used: Bits,
    /// Free slots whose entries do not say so.
    clear: Bits,
    seqs: Sequences,
    map: MapBuilder,
    ties: u64,
    /// The last run, as long as nothing overlaps it.
    held: Option<Run>,
    /// Blocks of the last runs with their slots, once one overlaps another.
    rivals: Vec<(u64, u32)>,
    /// Where those runs end.
    end: u64,
}

impl Merge {
    fn add<K: Key>(&mut self, keys: &[K], slot_bits: u32, continues: &Bits) {
        let (mut held, mut end) = (self.held.take(), self.end);
        for key in keys {
            // A marked key has more than one block.
            let (origin, slot) = (key.origin(slot_bits), key.slot(slot_bits));
            let count = if key.is_marked() { continues.next_clear(slot + 1) - slot } else { 1 };
            let run = Run { origin, slot, count };
            if origin < end {
                end = end.max(run.end());
                self.rivals.extend(held.take().into_iter().flat_map(Run::blocks).chain(run.blocks()));
                continue;
            }
            end = run.end();
            match held.replace(run) {
                Some(alone) => self.map.push(alone.origin, alone.slot, alone.count, COMMITTED),
                None => self.settle(),
            }
        }
        (self.held, self.end) = (held, end);
    }

    /// Decides about the last runs, which nothing that follows overlaps.
    fn settle(&mut self) {
        if let Some(held) = self.held.take() {
            self.map.push(held.origin, held.slot, held.count, COMMITTED);
        }
        sort_rising_parts(&mut self.rivals);
        for same in self.rivals.chunk_by(|a, b| a.0 == b.0) {
            let winner = choose(same, &mut self.seqs);
            self.map.push(winner.origin, winner.slot, 1, COMMITTED);
            for &(_, loser) in same.iter().filter(|&&(_, slot)| slot != winner.slot) {
                let loser = SlotRun { slot: CacheSlot(loser), count: 1 };
                self.used.clear(loser);
                self.clear.set(loser);
            }
            self.ties += u64::from(winner.tied);
        }
        self.rivals.clear();
    }
}

/// The slot that holds an origin block.
struct Winner {
    origin: u64,
    slot: u32,
    /// Another slot has the same sequence number.
    tied: bool,
}

/// Chooses among slots in rising order that all hold the same origin block.
fn choose(same: &[(u64, u32)], seqs: &mut Sequences) -> Winner {
    let mut best: Option<(u64, Winner)> = None;
    for &(origin, slot) in same {
        let seq = seqs.of(slot);
        match &mut best {
            Some((best_seq, _)) if *best_seq > seq => {}
            Some((best_seq, winner)) if *best_seq == seq => *winner = Winner { origin, slot, tied: true },
            _ => best = Some((seq, Winner { origin, slot, tied: false })),
        }
    }
    best.expect("a group of equals is never empty").1
}

/// Blocks that follow each other on the origin and in the cache.
struct Run {
    origin: u64,
    slot: u32,
    count: u32,
}

impl Run {
    #[inline]
    fn end(&self) -> u64 {
        self.origin + u64::from(self.count)
    }

    /// The blocks, each with its slot.
    fn blocks(self) -> impl Iterator<Item = (u64, u32)> {
        (self.origin..self.end()).zip(self.slot..)
    }
}

const COMMITTED: State = State { phase: Phase::Committed, busy: false };

#[expect(clippy::stable_sort_primitive, reason = "the stable sort merges the few rising parts that this is made of")]
fn sort_rising_parts(slots: &mut [(u64, u32)]) {
    slots.sort();
}
