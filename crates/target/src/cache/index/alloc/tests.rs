//! Free space against one cell for each slot.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests are small")]

use fastrand::Rng;

use super::*;

fn run(slot: u32, count: u32) -> SlotRun {
    SlotRun { slot: CacheSlot(slot), count }
}

/// Free runs of a cache of cells, in order.
fn runs(cells: &[bool]) -> Vec<SlotRun> {
    let mut found: Vec<SlotRun> = Vec::new();
    for (slot, _) in cells.iter().enumerate().filter(|&(_, &free)| free) {
        match found.last_mut() {
            Some(last) if last.end() as usize == slot => last.count += 1,
            _ => found.push(run(slot as u32, 1)),
        }
    }
    found
}

fn check(space: &FreeSpace, cells: &[bool]) {
    let expected = runs(cells);
    assert_eq!(space.free_blocks() as usize, cells.iter().filter(|&&free| free).count());
    assert_eq!(space.runs() as usize, expected.len());
    assert_eq!(space.longest(), expected.iter().map(|run| run.count).max().unwrap_or(0));
}

fn set(cells: &mut [bool], run: SlotRun, free: bool) {
    for cell in &mut cells[run.slot.0 as usize..run.end() as usize] {
        assert_ne!(*cell, free);
        *cell = free;
    }
}

#[test]
fn an_empty_cache_gives_consecutive_slots_from_zero() {
    let mut space = FreeSpace::new(100);
    assert_eq!(space.allocate(30), Some(run(0, 30)));
    assert_eq!(space.allocate(1), Some(run(30, 1)));
    assert_eq!(space.allocate(60), Some(run(31, 60)));
    assert_eq!(space.allocate(60), Some(run(91, 9)));
    assert_eq!(space.allocate(1), None);
}

#[test]
fn a_request_too_long_for_the_current_run_moves_to_the_longest() {
    let mut space = FreeSpace::from_used(100, [run(0, 10), run(30, 10), run(60, 20)]);
    assert_eq!(space.allocate(10), Some(run(10, 10)), "the lowest of the longest");
    assert_eq!(space.allocate(15), Some(run(40, 15)), "10 are left, 20 are elsewhere");
    assert_eq!(space.allocate(5), Some(run(55, 5)), "and it stays there");
    assert_eq!(space.allocate(50), Some(run(80, 20)), "nothing holds 50");
    assert_eq!(space.allocate(50), Some(run(20, 10)), "what was left of the first run");
    assert_eq!(space.allocate(1), None);
}

#[test]
fn random_steps_agree_with_one_cell_per_slot() {
    for (seed, longest) in [(1, 1), (2, 4), (3, 40), (4, 400)] {
        let mut rng = Rng::with_seed(seed);
        let slots = 5000;
        let mut space = FreeSpace::new(slots);
        let mut cells = vec![true; slots as usize];
        for _ in 0..10_000 {
            let want = rng.u32(1..=longest);
            if rng.bool() {
                let longest_before = space.longest();
                let got = space.allocate(want);
                assert_eq!(got.map_or(0, |run| run.count), want.min(longest_before), "as much as any run holds");
                if let Some(run) = got {
                    set(&mut cells, run, false);
                }
            } else {
                let first = rng.u32(..slots);
                let used = (first..slots.min(first + want)).take_while(|&slot| !cells[slot as usize]).count() as u32;
                if used > 0 {
                    space.release(run(first, used));
                    set(&mut cells, run(first, used), true);
                }
            }
            check(&space, &cells);
        }
        let used: Vec<bool> = cells.iter().map(|free| !free).collect();
        check(&FreeSpace::from_used(slots, runs(&used)), &cells);
    }
}

#[test]
fn every_state_of_ten_slots_is_built_and_taken_apart() {
    for state in 0_u32..1 << 10 {
        let mut cells: Vec<bool> = (0..10).map(|slot| state >> slot & 1 == 1).collect();
        let used: Vec<bool> = cells.iter().map(|free| !free).collect();
        for want in 1..=10 {
            let mut space = FreeSpace::from_used(10, runs(&used));
            check(&space, &cells);
            let mut taken = Vec::new();
            while let Some(run) = space.allocate(want) {
                set(&mut cells, run, false);
                check(&space, &cells);
                taken.push(run);
            }
            for run in taken {
                space.release(run);
                set(&mut cells, run, true);
                check(&space, &cells);
            }
        }
    }
}

#[test]
#[should_panic(expected = "free already")]
fn giving_a_slot_back_twice_is_a_bug() {
    let mut space = FreeSpace::new(10);
    space.allocate(5);
    space.release(run(2, 1));
    space.release(run(1, 2));
}

#[test]
#[should_panic(expected = "free already")]
fn giving_back_a_slot_of_the_current_run_is_a_bug() {
    let mut space = FreeSpace::new(10);
    space.allocate(5);
    space.release(run(4, 2));
}

#[test]
fn the_longest_run_of_a_word_is_found() {
    let slow = |word: u64| (0..64).map(|at| (word >> at).trailing_ones()).max().unwrap();
    let mut rng = Rng::with_seed(5);
    for _ in 0..100_000 {
        let word = rng.u64(..) | rng.u64(..) & rng.u64(..) | (u64::MAX >> rng.u32(..64)) << rng.u32(..64) & rng.u64(..);
        assert_eq!(longest_ones(word), slow(word), "{word:#x}");
    }
    for len in 0..=64_u32 {
        for at in 0..=64 - len {
            let word = u64::MAX.checked_shr(64 - len).unwrap_or(0).checked_shl(at).unwrap_or(0);
            assert_eq!(longest_ones(word), len);
        }
    }
}

#[test]
fn caches_of_any_size_begin_as_one_run() {
    for blocks in [1, 63, 64, 65, 511, 512, 513, 1024, 1025, 100_000, (1 << 20) - 1] {
        let mut space = FreeSpace::new(blocks);
        assert_eq!((space.free_blocks(), space.runs(), space.longest()), (blocks, 1, blocks));
        assert_eq!(space.allocate(u32::MAX), Some(run(0, blocks)));
        assert_eq!((space.free_blocks(), space.runs(), space.longest(), space.allocate(1)), (0, 0, 0, None));
        space.release(run(blocks - 1, 1));
        assert_eq!(space.allocate(7), Some(run(blocks - 1, 1)));
    }
}
