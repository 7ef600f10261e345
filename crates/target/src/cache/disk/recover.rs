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
//! 5. Memory is bounded by the number of slots: about 40 bytes for each where every block is alone,
//!    a quarter of a byte for a cache filled in order.
//!
//! Units: sectors are 512 bytes; sequence numbers count committed groups.
//!
//! Nothing here fails or panics for what the device holds: entries that cannot be true are listed in
//! [`Recovered::damage`], and the caller refuses the cache before it writes anything.

#![deny(clippy::indexing_slicing)]

use forebay_block::SectorCount;

use super::bits::Bits;
use super::entry::{ENTRY_BYTES, Entry, SEQ_FREE};
use super::format::Geometry;
use super::sort::{self, Key};
use crate::cache::index::map::MapBuilder;
use crate::cache::index::{CacheSlot, CachedExtent, ExtentMap, FreeSpace, ORIGIN_BLOCKS_MAX, OriginBlock, Phase, SlotRun, State};

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
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
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
        let scan = Scan {
            blocks: geometry.blocks(),
            block_shift,
            origin_blocks,
            seq_count,
            slot_bits,
            key_bits: slot_bits + origin_bits,
            slot: 0,
            expected: None,
            used: Bits::new(geometry.blocks()),
            continues: Bits::new(geometry.blocks()),
            seqs: Vec::new(),
            clear: Vec::new(),
            damage: Vec::new(),
            damaged: 0,
            sector_max: None,
        };
        let runs = if scan.key_bits <= u64::BITS { Runs::Narrow(Vec::new()) } else { Runs::Wide(Vec::new()) };
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

struct Scan {
    blocks: u32,
    /// Base-2 logarithm of the sectors in a block.
    block_shift: u32,
    origin_blocks: u64,
    seq_count: u64,
    slot_bits: u32,
    key_bits: u32,
    /// The slot of the next entry.
    slot: u32,
    /// The origin block that would continue the run of the last entry.
    expected: Option<u64>,
    /// Slots that hold a recovered block.
    used: Bits,
    /// Slots that continue the run of the slot in front.
    continues: Bits,
    /// First slot and sequence number of each stretch of used slots with equal ones.
    seqs: Vec<(u32, u64)>,
    clear: Vec<SlotRun>,
    damage: Vec<Damage>,
    damaged: u64,
    sector_max: Option<u64>,
}

impl Scan {
    fn feed<K: Key>(&mut self, entries: &[[u8; ENTRY_BYTES]], runs: &mut Vec<K>) {
        for entry in entries.iter().take((self.blocks - self.slot) as usize) {
            let slot = self.slot;
            self.slot += 1;
            let Entry { origin_sector, seq } = Entry::decode(entry);
            if seq >= self.seq_count || seq == SEQ_FREE {
                self.expected = None;
                if seq != SEQ_FREE {
                    push_slot(&mut self.clear, slot);
                }
                continue;
            }
            self.sector_max = self.sector_max.max(Some(origin_sector));
            let origin = origin_sector >> self.block_shift;
            if origin << self.block_shift != origin_sector || origin >= self.origin_blocks {
                self.expected = None;
                self.note_damage(slot, origin_sector);
                continue;
            }
            self.used.set(slot);
            if self.expected == Some(origin) {
                self.continues.set(slot);
            } else {
                runs.push(K::new(origin, slot, self.slot_bits));
            }
            self.expected = Some(origin + 1);
            if self.seqs.last().is_none_or(|&(_, last)| last != seq) {
                self.seqs.push((slot, seq));
            }
        }
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

    fn finish<K: Key>(mut self, mut runs: Vec<K>) -> Recovered {
        sort::sort(&mut runs, self.slot_bits, self.key_bits);
        let mut map = MapBuilder::new();
        let mut losers = Vec::new();
        let mut ties = 0;
        let mut runs = runs.into_iter().map(|key| self.run(key)).peekable();
        while let Some(run) = runs.next() {
            let mut end = run.end();
            if runs.peek().is_none_or(|next| next.origin >= end) {
                map.push(run);
                continue;
            }
            let mut several = vec![run];
            while let Some(next) = runs.next_if(|next| next.origin < end) {
                end = end.max(next.end());
                several.push(next);
            }
            ties += self.choose(&several, &mut map, &mut losers);
        }
        drop(runs);
        for &slot in &losers {
            self.used.clear(slot);
        }
        let clear = merged(self.clear, losers);
        let block_sectors = 1 << self.block_shift;
        let origin_needed = self.sector_max.map_or(0, |sector| sector.saturating_add(block_sectors));
        Recovered {
            map: map.finish(),
            free: FreeSpace::from_used(self.blocks, UsedRuns { used: &self.used, next: 0, blocks: self.blocks }),
            clear,
            damage: self.damage,
            damaged: self.damaged,
            ties,
            origin_needed: SectorCount(origin_needed),
        }
    }

    /// The whole run that begins with `key`.
    fn run<K: Key>(&self, key: K) -> CachedExtent {
        let slot = key.slot(self.slot_bits);
        let end = self.continues.next_clear(slot + 1);
        committed(key.origin(self.slot_bits), slot, end - slot)
    }

    /// Chooses, block by block, among runs that overlap; tells how many blocks had equals.
    fn choose(&self, runs: &[CachedExtent], map: &mut MapBuilder, losers: &mut Vec<u32>) -> u64 {
        let blocks = |run: &CachedExtent| {
            let (origin, slot) = (run.origin.0, run.slot.0);
            (0..run.count).map(move |block| (origin + u64::from(block), slot + block))
        };
        let mut slots: Vec<(u64, u32)> = runs.iter().flat_map(blocks).collect();
        sort_rising_parts(&mut slots);
        let mut ties = 0;
        for same in slots.chunk_by(|a, b| a.0 == b.0) {
            let ranked = same.iter().map(|&(origin, slot)| (self.seq(slot), slot, origin));
            let Some((best_seq, best, origin)) = ranked.clone().max() else { continue };
            map.push(committed(origin, best, 1));
            losers.extend(same.iter().map(|&(_, slot)| slot).filter(|&slot| slot != best));
            ties += u64::from(ranked.filter(|&(seq, ..)| seq == best_seq).count() > 1);
        }
        ties
    }

    /// The sequence number of a used slot.
    fn seq(&self, slot: u32) -> u64 {
        let after = self.seqs.partition_point(|&(first, _)| first <= slot);
        after.checked_sub(1).and_then(|at| self.seqs.get(at)).map_or(0, |&(_, seq)| seq)
    }
}

fn committed(origin: u64, slot: u32, count: u32) -> CachedExtent {
    let state = State { phase: Phase::Committed, busy: false, stamp: 0 };
    CachedExtent { origin: OriginBlock(origin), slot: CacheSlot(slot), count, state }
}

#[expect(clippy::stable_sort_primitive, reason = "the stable sort merges the few rising parts that this is made of")]
fn sort_rising_parts(slots: &mut [(u64, u32)]) {
    slots.sort();
}

/// Adds a slot behind the last run or as a new one.
fn push_slot(runs: &mut Vec<SlotRun>, slot: u32) {
    match runs.last_mut() {
        Some(last) if last.end() == slot => last.count += 1,
        _ => runs.push(SlotRun { slot: CacheSlot(slot), count: 1 }),
    }
}

/// The runs and the single slots as runs in order; they do not overlap.
fn merged(runs: Vec<SlotRun>, mut slots: Vec<u32>) -> Vec<SlotRun> {
    if slots.is_empty() {
        return runs;
    }
    slots.sort_unstable();
    let mut all: Vec<SlotRun> = Vec::new();
    let mut slots = slots.into_iter().map(|slot| SlotRun { slot: CacheSlot(slot), count: 1 }).peekable();
    let mut runs = runs.into_iter().peekable();
    while let Some(run) = match (runs.peek(), slots.peek()) {
        (Some(run), Some(slot)) if slot.slot < run.slot => slots.next(),
        (None, _) => slots.next(),
        _ => runs.next(),
    } {
        match all.last_mut() {
            Some(last) if last.end() == run.slot.0 => last.count += run.count,
            _ => all.push(run),
        }
    }
    all
}

/// The runs of used slots, in order.
struct UsedRuns<'a> {
    used: &'a Bits,
    next: u32,
    blocks: u32,
}

impl Iterator for UsedRuns<'_> {
    type Item = SlotRun;

    fn next(&mut self) -> Option<SlotRun> {
        let slot = self.used.next_set(self.next);
        if slot >= self.blocks {
            return None;
        }
        self.next = self.used.next_clear(slot);
        Some(SlotRun { slot: CacheSlot(slot), count: self.next - slot })
    }
}
