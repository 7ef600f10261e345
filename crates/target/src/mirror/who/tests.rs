//! What errors mean for copies that are under way.

use forebay_block::SectorCount;

use super::*;

/// Three legs of eight regions, of which leg 1 lacks regions 0 and 1, which are being copied to it.
fn copying() -> State {
    let mut state = State::new(Legs::new(3), Regions::new(SectorCount(64), SectorCount(8), 3), 0);
    state.regions.lose(LegSet::only(1), &(0..2));
    state.runs.push(Run { regions: 0..2, legs: LegSet::only(1), left: 1, unread: false });
    state
}

#[test]
fn a_leg_that_was_put_out_does_not_get_what_is_being_copied() {
    let mut state = copying();
    let verdict = state.wrote(&(6..7), state.legs.all(), LegSet::only(1), Status::IoError);
    assert!(verdict.status.is_ok() && verdict.missed);
    state.legs.revive();
    assert!(state.runs[0].legs.is_empty(), "it may have missed a flush meanwhile");
}

#[test]
fn what_was_read_from_a_leg_that_failed_a_flush_counts_nowhere() {
    let mut state = copying();
    let verdict = state.flushed(&[], state.legs.all(), LegSet::only(0));
    assert!(verdict.status.is_ok() && verdict.source_moved);
    assert!(state.runs[0].legs.is_empty(), "it may have forgotten what was read from it");
}
