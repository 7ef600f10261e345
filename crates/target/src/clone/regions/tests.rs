//! Regions against plain booleans.

use proptest::prelude::*;

use super::*;

/// Regions as plain booleans.
struct Plain {
    hydrated: Vec<bool>,
    committed: Vec<bool>,
}

proptest! {
    #[test]
    fn regions_are_what_plain_booleans_say(
        count in 1_u32..2 * PAGE_REGIONS + 100,
        marks in prop::collection::vec((any::<u32>(), 0_u32..3 * PAGE_REGIONS, any::<bool>()), 1..12),
        asked in prop::collection::vec((any::<u32>(), 1_u32..500), 1..12),
    ) {
        let mut regions = Regions::new(count);
        let mut plain = Plain { hydrated: vec![false; count as usize], committed: vec![false; count as usize] };
        for (start, length, commit) in marks {
            let start = start % count;
            let end = start.saturating_add(length).min(count);
            regions.mark(start..end);
            plain.hydrated[start as usize..end as usize].fill(true);
            if commit {
                prop_assert_eq!(regions.is_dirty(), plain.hydrated != plain.committed);
                for (page, bits) in regions.take_dirty() {
                    regions.committed(page, &bits);
                }
                prop_assert!(!regions.is_dirty());
                plain.committed = plain.hydrated.clone();
            }
        }
        prop_assert_eq!(regions.hydrated_count() as usize, plain.hydrated.iter().filter(|bit| **bit).count());
        prop_assert_eq!(regions.is_complete(), plain.hydrated.iter().all(|bit| *bit));
        prop_assert_eq!(regions.is_settled(), plain.committed.iter().all(|bit| *bit));
        for (start, length) in asked {
            let start = start % count;
            let end = start.saturating_add(length).min(count);
            let range = start as usize..end as usize;
            prop_assert_eq!(regions.all_hydrated(start..end), plain.hydrated[range.clone()].iter().all(|bit| *bit));
            prop_assert_eq!(regions.all_committed(start..end), plain.committed[range.clone()].iter().all(|bit| *bit));
            let cold = plain.hydrated[range.clone()].iter().position(|bit| !bit);
            prop_assert_eq!(regions.next_cold(start..end), cold.map(|at| start + u32::try_from(at).unwrap()));
            let (hydrated, run_end) = regions.run(start..end);
            prop_assert_eq!(hydrated, plain.hydrated[start as usize]);
            let same = plain.hydrated[range].iter().take_while(|bit| **bit == hydrated).count();
            prop_assert_eq!(run_end - start, u32::try_from(same).unwrap());
        }
    }
}

#[test]
fn what_was_marked_after_it_was_taken_is_written_with_the_next_commit() {
    let mut regions = Regions::new(PAGE_REGIONS + 1);
    regions.mark(PAGE_REGIONS - 1..PAGE_REGIONS + 1);
    let taken = regions.take_dirty();
    assert_eq!(taken.iter().map(|(page, _)| *page).collect::<Vec<_>>(), [0, 1]);
    regions.mark(5..6);
    for (page, bits) in &taken {
        regions.committed(*page, bits);
    }
    assert!(regions.all_committed(PAGE_REGIONS - 1..PAGE_REGIONS + 1) && !regions.all_committed(5..6));
    assert_eq!(regions.take_dirty().len(), 1);
    assert_eq!(regions.hydrated_count(), 3);
}

#[test]
fn what_a_page_says_holds_at_once() {
    let mut bits = vec![0; PAGE_WORDS];
    bits[0] = 0b101;
    let mut regions = Regions::new(3);
    regions.load(0, &bits);
    assert!(regions.all_committed(0..1) && regions.is_hydrated(2) && !regions.is_hydrated(1));
    assert!(!regions.is_dirty() && !regions.is_complete());
    regions.mark(1..2);
    assert!(regions.is_complete() && !regions.is_settled());
}
