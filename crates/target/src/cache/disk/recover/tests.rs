//! Recovery against a map that looks at one entry after the other.

#![expect(clippy::cast_possible_truncation, clippy::indexing_slicing, reason = "the numbers of these tests are small")]

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;
use crate::cache::index::{OriginBlock, Piece};

const SEQ_COUNT: u64 = 100;
const BLOCK_SECTORS: u64 = 8;

/// What recovery must say about these entries, on an origin of `origin_blocks`.
#[derive(Default, Debug, PartialEq)]
struct Model {
    /// Origin block to slot.
    map: BTreeMap<u64, u32>,
    clear: BTreeSet<u32>,
    damage: Vec<Damage>,
    ties: u64,
    origin_needed: u64,
}

fn model(entries: &[Entry], origin_blocks: u64) -> Model {
    let mut model = Model::default();
    let mut several: BTreeMap<u64, Vec<(u64, u32)>> = BTreeMap::new();
    for (entry, slot) in entries.iter().zip(0..) {
        if entry.seq == SEQ_FREE {
            continue;
        }
        if entry.seq >= SEQ_COUNT {
            model.clear.insert(slot);
            continue;
        }
        model.origin_needed = model.origin_needed.max(entry.origin_sector.saturating_add(BLOCK_SECTORS));
        let (slot_of, origin_sector) = (CacheSlot(slot), entry.origin_sector);
        if entry.origin_sector % BLOCK_SECTORS != 0 {
            model.damage.push(Damage { slot: slot_of, origin_sector, flaw: Flaw::Misaligned });
        } else if entry.origin_sector / BLOCK_SECTORS >= origin_blocks {
            model.damage.push(Damage { slot: slot_of, origin_sector, flaw: Flaw::BeyondOrigin });
        } else {
            several.entry(entry.origin_sector / BLOCK_SECTORS).or_default().push((entry.seq, slot));
        }
    }
    for (origin, mut slots) in several {
        slots.sort_unstable();
        let (seq, slot) = slots.pop().unwrap();
        model.map.insert(origin, slot);
        model.ties += u64::from(slots.last().is_some_and(|&(other, _)| other == seq));
        model.clear.extend(slots.into_iter().map(|(_, slot)| slot));
    }
    model
}

fn geometry(blocks: u32) -> Geometry {
    let geometry = Geometry::for_device(u64::from(blocks) * 4112 + 4096, 0, 4096).unwrap();
    let mut bytes = geometry.superblock(0);
    bytes.blocks = u64::from(blocks);
    match super::super::Media::read(&bytes.encode(), 1 << 40, 0, 4096) {
        Ok(super::super::Media::Formatted(geometry, _)) => geometry,
        other => panic!("{other:?}"),
    }
}

fn recover(entries: &[Entry], origin_blocks: u64, cuts: &mut Rng) -> Recovered {
    let media: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
    let mut recovery = Recovery::new(&geometry(entries.len() as u32), SEQ_COUNT, SectorCount(origin_blocks * BLOCK_SECTORS));
    let mut rest = &media[..];
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(ENTRY_BYTES * cuts.usize(1..2000)));
        recovery.feed(part);
        rest = behind;
    }
    recovery.feed(&[0; ENTRY_BYTES]);
    recovery.finish()
}

fn check(entries: &[Entry], origin_blocks: u64, cuts: &mut Rng) {
    let mut expected = model(entries, origin_blocks);
    let recovered = recover(entries, origin_blocks, cuts);
    let mut map = BTreeMap::new();
    for extent in recovered.map.extents_from(OriginBlock(0)) {
        assert_eq!(extent.state, State { phase: Phase::Committed, busy: false });
        map.extend((0..extent.count).map(|block| (extent.origin.0 + u64::from(block), extent.slot.0 + block)));
    }
    let clear = recovered.clear.iter().flat_map(|run| run.slot.0..run.end()).collect::<Vec<_>>();
    assert!(clear.is_sorted());
    assert!(recovered.clear.windows(2).all(|pair| pair[0].end() < pair[1].slot.0), "runs to clear are whole");
    assert_eq!(recovered.map.used_blocks(), map.len() as u64);
    assert_eq!(recovered.free.free_blocks() as usize, entries.len() - map.len());
    let mut free = recovered.free;
    for &slot in map.values() {
        // Panics where the slot is free.
        free.release(SlotRun { slot: CacheSlot(slot), count: 1 });
    }
    assert_eq!(recovered.damaged, expected.damage.len() as u64);
    expected.damage.truncate(DAMAGE_LISTED_MAX);
    let found = Model {
        map,
        clear: clear.into_iter().collect(),
        damage: recovered.damage,
        ties: recovered.ties,
        origin_needed: recovered.origin_needed.0,
    };
    assert_eq!(found, expected);
}

fn entry(origin: u64, seq: u64) -> Entry {
    Entry { origin_sector: origin * BLOCK_SECTORS, seq }
}

/// Entries in runs, some over each other, some free, uncommitted or, where asked for, damaged.
fn random_entries(rng: &mut Rng, slots: usize, origin_blocks: u64, damage: bool) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < slots {
        let first = rng.u64(..origin_blocks);
        let seq = [rng.u64(..SEQ_COUNT), rng.u64(..4), SEQ_COUNT, SEQ_FREE][rng.usize(..4)];
        for origin in first..origin_blocks.min(first + rng.u64(1..12)) {
            let mut next = entry(origin, seq);
            if damage && rng.u8(..50) == 0 {
                next.origin_sector = rng.choice([next.origin_sector + 1, u64::MAX, (origin_blocks + 1) * BLOCK_SECTORS]).unwrap();
            }
            entries.push(next);
        }
    }
    entries.truncate(slots);
    entries
}

#[test]
fn random_entries_recover_as_one_by_one() {
    let mut rng = Rng::with_seed(7);
    for round in 0..400 {
        let slots = rng.usize(1..600);
        let origin_blocks = rng.u64(1..3000);
        let entries = random_entries(&mut rng, slots, origin_blocks, round % 2 == 0);
        check(&entries, origin_blocks, &mut rng);
    }
}

#[test]
fn caches_large_enough_for_the_radix_sort_recover_as_one_by_one() {
    let mut rng = Rng::with_seed(8);
    // Origins whose blocks take 10 to 47 bits; the last ones do not fit a 64-bit key.
    for origin_blocks in [1 << 10, 100_000, 1 << 21, 1 << 33, (1 << 47) + 12_345, 1 << 48] {
        let entries = random_entries(&mut rng, 70_000, origin_blocks, false);
        check(&entries, origin_blocks, &mut rng);
    }
}

#[test]
fn all_states_of_three_slots_recover_as_one_by_one() {
    let sequences = [0, 1, SEQ_COUNT - 1, SEQ_COUNT, SEQ_FREE - 1, SEQ_FREE];
    let states: Vec<Entry> = sequences.into_iter().flat_map(|seq| (0..4).map(move |origin| entry(origin, seq))).collect();
    for &first in &states {
        for &second in &states {
            for &third in &states {
                check(&[first, second, third], 3, &mut Rng::with_seed(1));
            }
        }
    }
}

#[test]
fn the_higher_sequence_number_wins_and_the_other_slot_is_cleared() {
    let entries = [entry(5, 9), entry(6, 9), entry(5, 8), entry(6, 10)];
    let recovered = recover(&entries, 10, &mut Rng::with_seed(1));
    let slots: Vec<_> = recovered.map.extents_from(OriginBlock(0)).map(|extent| (extent.origin.0, extent.slot.0)).collect();
    assert_eq!(slots, [(5, 0), (6, 3)]);
    assert_eq!(recovered.clear, [SlotRun { slot: CacheSlot(1), count: 2 }]);
    assert_eq!(recovered.ties, 0);
}

#[test]
fn of_equal_sequence_numbers_the_higher_slot_wins() {
    let entries = [entry(5, 9), entry(6, 9), entry(5, 9)];
    let recovered = recover(&entries, 10, &mut Rng::with_seed(1));
    assert_eq!(recovered.map.get(OriginBlock(5)).map(|extent| extent.slot.0), Some(2));
    assert_eq!(recovered.clear, [SlotRun { slot: CacheSlot(0), count: 1 }]);
    assert_eq!(recovered.ties, 1);
}

#[test]
fn a_cache_filled_in_order_is_one_extent() {
    let entries: Vec<_> = (0..60_000).map(|slot| entry(1000 + slot, slot / 700 % SEQ_COUNT)).collect();
    let recovered = recover(&entries, 100_000, &mut Rng::with_seed(1));
    assert_eq!(recovered.map.extents(), 1);
    let pieces: Vec<_> = recovered.map.pieces(OriginBlock(1000)..OriginBlock(61_000)).collect();
    assert!(matches!(pieces[..], [Piece::Hit(extent)] if extent.slot == CacheSlot(0) && extent.count == 60_000));
    assert_eq!(recovered.free.free_blocks(), 0);
}

#[test]
fn a_sequence_number_of_all_ones_is_free_even_when_the_superblock_says_the_same() {
    let media: Vec<u8> = [entry(1, SEQ_FREE), entry(2, SEQ_FREE - 1)].iter().flat_map(Entry::encode).collect();
    let mut recovery = Recovery::new(&geometry(2), u64::MAX, SectorCount(100));
    recovery.feed(&media);
    let recovered = recovery.finish();
    assert_eq!((recovered.map.used_blocks(), recovered.clear.len()), (1, 0));
}

#[test]
#[should_panic(expected = "were not fed")]
fn finishing_early_is_a_bug() {
    let _ = Recovery::new(&geometry(2), 1, SectorCount(100)).finish();
}
