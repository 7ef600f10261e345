//! The extent map against one cell for each origin block.

#![expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the numbers of these tests are small")]

use fastrand::Rng;

use super::*;
use crate::cache::index::Phase;

const BLOCKS: u64 = 3000;

/// The map as one cell for each origin block.
struct Model(Vec<Option<(u32, State)>>);

impl Model {
    fn new(blocks: u64) -> Self {
        Self(vec![None; blocks as usize])
    }

    fn insert(&mut self, extent: CachedExtent) -> Vec<(u64, u32, State)> {
        let displaced = self.remove(extent.origin.0, extent.end().0, |_, _| true);
        for block in 0..extent.count {
            self.0[extent.origin.0 as usize + block as usize] = Some((extent.slot.0 + block, extent.state));
        }
        displaced
    }

    fn remove(&mut self, start: u64, end: u64, which: impl Fn(u64, u32) -> bool) -> Vec<(u64, u32, State)> {
        let mut removed = Vec::new();
        for block in start..end {
            let cell = &mut self.0[block as usize];
            if let Some((slot, state)) = *cell
                && which(block, slot)
            {
                removed.push((block, slot, state));
                *cell = None;
            }
        }
        removed
    }

    fn cells(&self, start: u64, end: u64) -> Vec<(u64, u32, State)> {
        (start..end).filter_map(|block| self.0[block as usize].map(|(slot, state)| (block, slot, state))).collect()
    }
}

fn cells(extents: &[CachedExtent]) -> Vec<(u64, u32, State)> {
    let each = |extent: &CachedExtent| {
        let extent = *extent;
        (0..extent.count).map(move |block| (extent.origin.0 + u64::from(block), extent.slot.0 + block, extent.state))
    };
    extents.iter().flat_map(each).collect()
}

/// The pieces of a range as cells, having checked that they cover it in order.
fn piece_cells(map: &ExtentMap, start: u64, end: u64) -> Vec<(u64, u32, State)> {
    let mut next = start;
    let mut hits = Vec::new();
    for piece in map.pieces(OriginBlock(start)..OriginBlock(end)) {
        match piece {
            Piece::Hit(extent) => {
                assert_eq!(extent.origin.0, next);
                next = extent.end().0;
                hits.push(extent);
            }
            Piece::Miss { origin, count } => {
                assert_eq!(origin.0, next);
                assert!(count > 0);
                next += count;
            }
        }
    }
    assert_eq!(next, end.max(start));
    cells(&hits)
}

fn extent(origin: u64, slot: u32, count: u32, state: State) -> CachedExtent {
    CachedExtent { origin: OriginBlock(origin), slot: CacheSlot(slot), count, state }
}

fn random_state(rng: &mut Rng) -> State {
    let phase = rng.choice([Phase::Open, Phase::Closing, Phase::Committed]).expect("three phases");
    State { phase, busy: rng.u8(..8) == 0 }
}

/// Some runs continue their neighbour's slots, as sequential writes do; others lie anywhere.
fn random_extent(rng: &mut Rng, longest: u32) -> CachedExtent {
    let count = rng.u32(1..=longest);
    let origin = rng.u64(0..=BLOCKS - u64::from(count));
    let slot = if rng.bool() { 10_000 + origin as u32 } else { rng.u32(..1 << 20) };
    extent(origin, slot, count, random_state(rng))
}

/// One random step on both; compares what it returned.
fn step(rng: &mut Rng, map: &mut ExtentMap, model: &mut Model, longest: u32) {
    let mut out = Vec::new();
    let picked = random_extent(rng, longest);
    let (start, end) = (picked.origin.0, picked.end().0);
    match rng.u8(..10) {
        0..=4 => {
            map.insert(picked, &mut out);
            assert_eq!(cells(&out), model.insert(picked));
        }
        5 | 6 => {
            map.remove(picked.origin..picked.end(), &mut out);
            assert_eq!(cells(&out), model.remove(start, end, |_, _| true));
        }
        7 => {
            let (slot, count) = (picked.slot, picked.count);
            map.remove_exact(picked.origin, slot, count, &mut out);
            let exact = |block: u64, at: u32| i64::from(at) - block as i64 == i64::from(slot.0) - start as i64;
            assert_eq!(cells(&out), model.remove(start, end, exact));
        }
        _ => {
            map.mark(picked.origin, picked.slot, picked.count, |old| State { busy: !old.busy, ..picked.state });
            for block in start..end {
                if let Some((slot, state)) = &mut model.0[block as usize]
                    && *slot == picked.slot.0 + (block - start) as u32
                {
                    *state = State { busy: !state.busy, ..picked.state };
                }
            }
        }
    }
}

fn compare(rng: &mut Rng, map: &ExtentMap, model: &Model) {
    map.check();
    let a = rng.u64(0..=BLOCKS);
    let b = rng.u64(a..=BLOCKS);
    assert_eq!(piece_cells(map, a, b), model.cells(a, b));
    let after = map.first_from(OriginBlock(a)).map(|extent| extent.end().0);
    assert_eq!(after.is_some(), !model.cells(a, BLOCKS).is_empty());
    assert!(after.is_none_or(|end| end > a && model.cells(a, end).len() as u64 <= end - a));
    if a < BLOCKS {
        let holds = map.get(OriginBlock(a)).map(|extent| (extent.slot.0 + (a - extent.origin.0) as u32, extent.state));
        assert_eq!(holds, model.0[a as usize]);
    }
}

#[test]
fn random_steps_agree_with_one_cell_per_block() {
    for (seed, longest) in [(1, 1), (2, 3), (3, 20), (4, 300), (5, 2), (6, 1)] {
        let mut rng = Rng::with_seed(seed);
        let (mut map, mut model) = (ExtentMap::new(), Model::new(BLOCKS));
        for round in 0..20_000 {
            step(&mut rng, &mut map, &mut model, longest);
            if round % 16 == 0 {
                compare(&mut rng, &map, &model);
            }
        }
        assert_eq!(piece_cells(&map, 0, BLOCKS), model.cells(0, BLOCKS));
        assert_eq!(map.used_blocks(), model.cells(0, BLOCKS).len() as u64);
        let mut builder = MapBuilder::new();
        for extent in map.extents_from(OriginBlock(0)) {
            builder.push(extent.origin.0, extent.slot.0, extent.count, extent.state);
        }
        let rebuilt = builder.finish();
        rebuilt.check();
        assert_eq!(piece_cells(&rebuilt, 0, BLOCKS), model.cells(0, BLOCKS));
        assert_eq!(rebuilt.used_blocks(), map.used_blocks());
        assert!(rebuilt.extents() <= map.extents());
    }
}

#[test]
fn every_short_sequence_over_six_blocks_agrees_with_the_model() {
    // Steps: (action, start, count); all sequences of three of them.
    let steps: Vec<(u8, u64, u32)> = (0..4)
        .flat_map(|action| (0..6).flat_map(move |start| (1..=6 - start).map(move |count| (action, start, count as u32))))
        .collect();
    for &first in &steps {
        for &second in &steps {
            for &third in &steps {
                let (mut map, mut model) = (ExtentMap::new(), Model::new(6));
                for (action, start, count) in [first, second, third] {
                    let mut out = Vec::new();
                    let committed = State { phase: Phase::Committed, ..State::default() };
                    let new = match action {
                        0 => extent(start, start as u32, count, State::default()),
                        1 => extent(start, 50, count, State::default()),
                        _ => extent(start, start as u32, count, committed),
                    };
                    if action < 3 {
                        map.insert(new, &mut out);
                        assert_eq!(cells(&out), model.insert(new));
                    } else {
                        map.remove(OriginBlock(start)..OriginBlock(start + u64::from(count)), &mut out);
                        assert_eq!(cells(&out), model.remove(start, start + u64::from(count), |_, _| true));
                    }
                }
                map.check();
                assert_eq!(piece_cells(&map, 0, 6), model.cells(0, 6));
                let joined = model.0.windows(2).filter(|pair| match (pair[0], pair[1]) {
                    (Some((a, first)), Some((b, second))) => a + 1 == b && first == second,
                    _ => false,
                });
                assert_eq!(map.extents(), map.used_blocks() - joined.count() as u64, "all that can be joined is");
            }
        }
    }
}

#[test]
fn sequential_writes_make_one_extent_for_65536_blocks() {
    let mut map = ExtentMap::new();
    for block in (0..1 << 18).step_by(128) {
        map.insert(extent(block, block as u32, 128, State::default()), &mut Vec::new());
    }
    assert_eq!(map.extents(), 4);
    assert_eq!(map.used_blocks(), 1 << 18);
    let whole: Vec<_> = map.pieces(OriginBlock(100)..OriginBlock(1100)).collect();
    assert_eq!(whole, [Piece::Hit(extent(100, 100, 1000, State::default()))]);
}

#[test]
fn an_extent_longer_than_an_entry_keeps_its_blocks() {
    let mut map = ExtentMap::new();
    map.insert(extent(5, 7, 200_000, State::default()), &mut Vec::new());
    map.check();
    assert_eq!(map.used_blocks(), 200_000);
    let mut removed = Vec::new();
    map.remove_exact(OriginBlock(5), CacheSlot(7), 200_000, &mut removed);
    assert_eq!(removed.iter().map(|extent| extent.count).sum::<u32>(), 200_000);
    assert_eq!((map.used_blocks(), map.extents()), (0, 0));
}

#[test]
fn rising_and_falling_sequences_leave_full_chunks() {
    let blocks = 100_000_u64;
    for falling in [false, true] {
        let mut map = ExtentMap::new();
        for step in 0..blocks {
            let origin = 2 * if falling { blocks - step } else { step };
            map.insert(extent(origin, step as u32, 1, State::default()), &mut Vec::new());
        }
        map.check();
        let bytes = map.memory_bytes() as u64;
        assert!(bytes < 18 * blocks, "{bytes} bytes for {blocks} blocks, falling {falling}");
    }
}

#[test]
fn marking_a_group_joins_it_with_what_was_committed_before() {
    let committed = State { phase: Phase::Committed, ..State::default() };
    let mut map = ExtentMap::new();
    map.insert(extent(0, 0, 10, committed), &mut Vec::new());
    map.insert(extent(10, 10, 10, State::default()), &mut Vec::new());
    map.insert(extent(20, 20, 10, committed), &mut Vec::new());
    assert_eq!(map.extents(), 3);
    map.mark(OriginBlock(10), CacheSlot(10), 10, |state| State { phase: Phase::Committed, ..state });
    assert_eq!(map.extents(), 1);
    assert_eq!(map.get(OriginBlock(15)), Some(extent(0, 0, 30, committed)));
}

#[test]
#[should_panic(expected = "beyond the index")]
fn an_origin_block_of_49_bits_is_refused() {
    ExtentMap::new().insert(extent(1 << 48, 0, 1, State::default()), &mut Vec::new());
}
