//! Writes that find memory full, with a rule that spills: they wait as long as room is made.

use std::time::Duration;

use super::*;
use crate::below::testing::Ends;

const LIMIT: u64 = 32;

fn spilling(percent: u32) -> Rules {
    Rules { spill_percent: Some(percent), ..Rules::default() }
}

/// Sends a write of some pages; its end is noted by the number of the first.
fn send(rig: &Rig, ends: &Rc<Ends>, first: u64, count: u64) {
    let content: Vec<u8> = (first..first + count).flat_map(|page| noise(page, PAGE)).collect();
    ends.submit(&*rig.zram, write(first * 8, &content), first);
}

fn turns(rig: &Rig, count: usize) {
    (0..count).for_each(|_| rig.reactor.turn(false).unwrap());
}

#[test]
fn a_write_of_several_times_the_memory_limit_goes_through_to_the_device() {
    for percent in [11, 50, 100] {
        for range in [1, 8, 256] {
            let rig = Rig::with(1024, 1024, range, LIMIT * 4096, spilling(percent));
            let ends = Rc::new(Ends::default());
            (0..8).for_each(|number| send(&rig, &ends, number * 100, 100));
            turns(&rig, 4000);
            assert!(ends.0.borrow().iter().all(|(_, status)| status.is_ok()), "{percent}, {range}: {:?}", ends.0.borrow());
            assert_eq!(ends.0.borrow().len(), 8, "spill_at={percent}, range_pages={range}");
            assert!(rig.zram.status().used_max_bytes <= LIMIT * 4096);
            (0..800).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE), "page {page}"));
        }
    }
}

#[test]
fn writes_that_wait_are_served_in_their_order_and_nobody_overtakes_them() {
    let rig = Rig::with(1024, 1024, 8, LIMIT * 4096, spilling(80));
    let ends = Rc::new(Ends::default());
    rig.disk.hold.set(true);
    [(0, LIMIT), (100, 20), (200, 1), (300, 20)].into_iter().for_each(|(first, count)| send(&rig, &ends, first, count));
    turns(&rig, 20);
    assert_eq!(*ends.0.borrow(), [(0, Status::Ok)], "what filled memory, and nothing behind it");
    rig.disk.hold.set(false);
    while rig.disk.held() > 0 {
        rig.disk.end_held(0);
    }
    turns(&rig, 400);
    assert_eq!(ends.0.borrow().iter().map(|(first, _)| *first).collect::<Vec<_>>(), [0, 100, 200, 300]);
}

#[test]
fn what_others_wrote_while_a_write_waited_stays() {
    let rig = Rig::with(1024, 1024, 8, LIMIT * 4096, spilling(80));
    let ends = Rc::new(Ends::default());
    rig.disk.hold.set(true);
    send(&rig, &ends, 0, LIMIT + 8);
    turns(&rig, 20);
    assert!(ends.0.borrow().is_empty(), "its last pages wait");
    // A page that repeats a word needs no room, but a write stands behind those that wait; a discard does not.
    assert_eq!(rig.status_of(Bio::discard(extent(0, 8))), Status::Ok);
    rig.disk.hold.set(false);
    while rig.disk.held() > 0 {
        rig.disk.end_held(0);
    }
    turns(&rig, 400);
    assert_eq!(*ends.0.borrow(), [(0, Status::Ok)]);
    assert!(rig.page(0).unwrap() == vec![0; PAGE], "the page was written before it was discarded");
    (1..LIMIT + 8).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE), "page {page}"));
}

#[test]
fn a_rate_slows_writes_down_and_fails_none() {
    let rules = Rules { rate_bytes: Some(8 * 4096), ..spilling(80) };
    let rig = Rig::with(1024, 1024, 4, LIMIT * 4096, rules);
    let start = rig.reactor.now();
    (0..128).for_each(|page| rig.fill(page, page));
    let took = rig.reactor.now().saturating_sub(start);
    let least = Duration::from_secs((128 - LIMIT - 8) / 8 - 1);
    assert!(took >= least && took <= 2 * least + Duration::from_secs(2), "{took:?} of at least {least:?}");
}

#[test]
fn without_hope_a_write_fails_at_once_and_says_that_there_is_no_space() {
    let full = Rig::with(1024, 20, 4, LIMIT * 4096, spilling(80));
    let spent = Rig::with(1024, 1024, 4, LIMIT * 4096, Rules { daily_bytes: Some(20 * 4096), ..spilling(80) });
    let failing = Rig::with(1024, 1024, 4, LIMIT * 4096, spilling(80));
    failing.disk.fails.set(Status::IoError);
    let limited = Rig::with(1024, 1024, 4, LIMIT * 4096, spilling(80));
    limited.set("writeback_limit_enable", "1").unwrap();
    for (what, rig) in [("full", &full), ("spent", &spent), ("failing", &failing), ("limited", &limited)] {
        let start = rig.reactor.now();
        let ends: Vec<Status> = (0..100).map(|page| rig.status_of(write(page * 8, &noise(page, PAGE)))).collect();
        let written = ends.iter().take_while(|status| status.is_ok()).count() as u64;
        assert!((LIMIT..=LIMIT + 20).contains(&written), "{what}: {written}");
        assert!(ends[usize::try_from(written).unwrap()..].iter().all(|status| *status == Status::NoSpace), "{what}: {ends:?}");
        assert!(rig.reactor.now().saturating_sub(start) <= Duration::from_secs(2), "{what}");
        (0..written).filter(|_| what != "failing").for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    }
    // As soon as there is hope again, it is seen.
    failing.disk.fails.set(Status::Ok);
    failing.reactor.run(failing.reactor.sleep(Duration::from_secs(2))).unwrap();
    failing.fill(500, 500);
}

#[test]
fn who_waits_goes_on_when_pages_are_discarded_or_the_limit_is_raised_and_fails_when_the_disk_closes() {
    for way in 0..3 {
        let rig = Rig::with(1024, 1024, 8, LIMIT * 4096, spilling(80));
        let ends = Rc::new(Ends::default());
        rig.disk.hold.set(true);
        send(&rig, &ends, 0, LIMIT + 4);
        turns(&rig, 20);
        assert!(ends.0.borrow().is_empty());
        match way {
            0 => assert_eq!(rig.status_of(Bio::discard(extent(0, 16 * 8))), Status::Ok),
            1 => rig.set("mem_limit", "1M").unwrap(),
            _ => {
                let zram = Rc::clone(&rig.zram);
                rig.reactor.spawn(async move { zram.close().await });
            }
        }
        turns(&rig, 20);
        assert_eq!(*ends.0.borrow(), [(0, if way == 2 { Status::NoSpace } else { Status::Ok })], "{way}");
        while rig.disk.held() > 0 {
            rig.disk.end_held(0);
        }
        turns(&rig, 20);
    }
}

#[test]
fn a_part_of_a_page_that_is_away_waits_for_room_too() {
    let rig = Rig::with(1024, 1024, 8, LIMIT * 4096, spilling(50));
    (0..200).for_each(|page| rig.fill(page, page));
    (0..200).for_each(|page| assert_eq!(rig.status_of(write(page * 8 + 3, &noise(page + 1000, 512))), Status::Ok, "{page}"));
    for page in 0..200 {
        let mut expected = noise(page, PAGE);
        expected[3 * 512..4 * 512].copy_from_slice(&noise(page + 1000, 512));
        assert!(rig.page(page).unwrap() == expected, "page {page}");
    }
}
