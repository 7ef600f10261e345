//! The stations that slots pass, without any I/O.

use super::*;

fn state(blocks: u32) -> CacheState {
    CacheState::new(ExtentMap::new(), FreeSpace::new(blocks), 0)
}

const RULES: WriteRules = WriteRules { overwrite_new: false, full_wait: false, bypass_new: false, extend: true };

fn write(state: &mut CacheState, first: u64, count: u64, rules: WriteRules) -> Vec<Planned> {
    let mut plan = Vec::new();
    state.plan(OriginBlock(first)..OriginBlock(first + count), rules, &mut plan);
    for planned in &plan {
        if let Action::Fresh { slot, .. } = planned.action {
            state.publish(planned.origin, slot, planned.count);
        }
    }
    plan
}

fn commit(state: &mut CacheState) {
    let mut group = Vec::new();
    state.close(&mut group);
    state.committed(&group);
}

#[test]
fn a_write_over_free_space_is_one_run_of_slots() {
    let mut state = state(1000);
    let plan = write(&mut state, 70, 128, RULES);
    assert_eq!(plan, [Planned { origin: OriginBlock(70), count: 128, action: Action::Fresh { slot: CacheSlot(0), old: None } }]);
}

#[test]
fn without_extension_every_block_is_a_piece() {
    let mut state = state(1000);
    assert_eq!(write(&mut state, 0, 5, WriteRules { extend: false, ..RULES }).len(), 5);
}

#[test]
fn the_tail_of_a_run_is_looked_up() {
    let mut state = state(100);
    write(&mut state, 10, 3, RULES);
    let plan = write(&mut state, 8, 4, RULES);
    let in_place = Action::InPlace { slot: CacheSlot(0), open: true };
    assert_eq!(plan.len(), 2);
    assert_eq!(plan[1], Planned { origin: OriginBlock(10), count: 2, action: in_place });
}

#[test]
fn a_full_cache_sends_new_blocks_past_itself_or_makes_them_wait() {
    let mut state = state(8);
    let plan = write(&mut state, 0, 16, RULES);
    assert_eq!(plan.last(), Some(&Planned { origin: OriginBlock(8), count: 8, action: Action::Bypass }));
    let waiting = write(&mut state, 20, 2, WriteRules { full_wait: true, ..RULES });
    assert!(waiting.is_empty());
}

#[test]
fn a_closing_block_is_overwritten_in_another_slot_and_leaves_after_the_next_commit() {
    let mut state = state(10);
    write(&mut state, 0, 1, RULES);
    let mut group = Vec::new();
    state.close(&mut group);
    let plan = write(&mut state, 0, 1, RULES);
    assert!(matches!(plan[0].action, Action::Fresh { slot: CacheSlot(1), old: Some(CacheSlot(0)) }));
    state.committed(&group);
    assert!(state.leaving.due.is_empty(), "the old copy is the durable one until the new one is committed");
    commit(&mut state);
    assert_eq!(state.leaving.due, [SlotRun { slot: CacheSlot(0), count: 1 }]);
}

#[test]
fn slots_are_free_only_after_the_reads_that_looked_them_up() {
    let mut state = state(10);
    write(&mut state, 0, 4, RULES);
    let before = state.reader_began();
    state.drop_range(OriginBlock(0)..OriginBlock(4));
    assert_eq!(state.free.free_blocks(), 6);
    let after = state.reader_began();
    assert!(!state.reader_ended(after) || before == after);
    state.reader_ended(before);
    assert_eq!((state.free.free_blocks(), state.leaving_blocks), (10, 0));
}

#[test]
fn no_slot_is_lost_or_given_twice_in_any_order_of_events() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut state = state(32);
        let mut readers = Vec::new();
        for _ in 0..200 {
            match rng.u32(..8) {
                0..4 => {
                    let rules = WriteRules { overwrite_new: rng.bool(), ..RULES };
                    write(&mut state, rng.u64(..40), rng.u64(1..6), rules);
                }
                4 => commit(&mut state),
                5 => {
                    let first = rng.u64(..40);
                    state.drop_range(OriginBlock(first)..OriginBlock(first + rng.u64(1..6)));
                }
                6 => readers.push(state.reader_began()),
                _ => {
                    let runs: Vec<SlotRun> = state.leaving.due.drain(..).collect();
                    let written: Vec<SlotRun> = state.leaving.written.drain(..).collect();
                    runs.into_iter().chain(written).for_each(|run| state.retire(run));
                    if !readers.is_empty() {
                        let reader = readers.swap_remove(rng.usize(..readers.len()));
                        state.reader_ended(reader);
                    }
                }
            }
            let held = state.map.used_blocks() + state.leaving_blocks + u64::from(state.free.free_blocks());
            assert_eq!(held, 32, "seed {seed}");
        }
    }
}

#[test]
fn reads_that_follow_each_other_without_a_gap_do_not_keep_slots() {
    let mut state = state(10);
    write(&mut state, 0, 4, RULES);
    let mut last = state.reader_began();
    state.drop_range(OriginBlock(0)..OriginBlock(4));
    for _ in 0..4 {
        let next = state.reader_began();
        state.reader_ended(last);
        last = next;
    }
    assert_eq!((state.free.free_blocks(), state.leaving_blocks), (10, 0), "whoever looked the slots up has ended");
}
