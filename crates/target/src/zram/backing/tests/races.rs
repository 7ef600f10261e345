//! What happens to pages on their way out and back: every race has its test.
#![allow(clippy::needless_for_each, reason = "one line for each step")]

use forebay_block::{Bio, Status};

use super::*;

#[test]
fn a_page_discarded_on_its_way_stays_gone_and_its_block_is_free() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert_eq!(rig.status_of(Bio::discard(extent(8, 8))), Status::Ok);
    assert_eq!(rig.zram.status().used_bytes, 3 * 4096, "its memory is free at once");
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!(rig.bd_stat(), [3, 0, 4]);
    assert_eq!(rig.page(1), Ok(vec![0; PAGE]));
}

#[test]
fn a_page_rewritten_on_its_way_keeps_the_new_content_in_memory() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    rig.fill(2, 99);
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!((rig.bd_stat(), rig.zram.status().compressed_bytes), ([3, 0, 4], 4096));
    assert!(rig.page(2).unwrap() == noise(99, PAGE));
}

#[test]
fn a_page_read_on_its_way_stays_in_memory() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert!(rig.page(3).unwrap() == noise(3, PAGE));
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!(rig.bd_stat(), [3, 0, 4]);
    assert!(rig.page(3).unwrap() == noise(3, PAGE));
    assert_eq!(rig.bd_stat()[1], 0);
}

#[test]
fn marking_idle_does_not_hide_that_a_page_on_its_way_was_rewritten() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    rig.fill(0, 50);
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.finish(&ended), Ok(()));
    assert!(rig.page(0).unwrap() == noise(50, PAGE));
    assert_eq!(rig.bd_stat(), [3, 0, 4]);
}

#[test]
fn a_second_command_and_a_reset_wait_their_turn() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert_eq!(rig.write_back("idle"), Err(WritebackError::Busy));
    assert_eq!(rig.set("reset", "1"), Err(AttributeError::Busy));
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!(rig.set("reset", "1"), Ok(()));
    assert_eq!((rig.bd_stat(), rig.zram.status().original_bytes, rig.zram.status().used_bytes), ([0, 0, 0], 0, 0));
    assert_eq!(rig.page(0), Ok(vec![0; PAGE]));
}

#[test]
fn a_block_that_is_read_is_not_used_again_before_the_read_ends() {
    let rig = Rig::new(64, 2, 8);
    rig.fill(0, 0);
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    rig.disk.hold.set(true);
    let (bio, memory) = read(0, 8);
    let mut reading = std::pin::pin!(call(&*rig.zram, bio));
    rig.turns();
    assert_eq!(rig.status_of(Bio::discard(extent(0, 8))), Status::Ok);
    rig.fill(1, 1);
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.write_back("idle"), Err(WritebackError::NoSpace), "the only block is being read");
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    let status = rig.reactor.run(reading.as_mut()).unwrap().status();
    assert_eq!(status, Status::Ok);
    assert!(content(memory) == noise(0, PAGE), "the read sees the page as it was");
    assert_eq!(rig.write_back("idle"), Ok(()));
    assert!(rig.page(1).unwrap() == noise(1, PAGE));
    assert_eq!(rig.page(0), Ok(vec![0; PAGE]));
}

#[test]
fn a_block_that_cannot_be_written_keeps_only_its_page_in_memory() {
    let rig = Rig::new(64, 64, 8);
    (0..16).for_each(|page| rig.fill(page, page));
    rig.set("idle", "all").unwrap();
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "100").unwrap();
    rig.disk.bad_sector.set(Some(5 * 8 + 3));
    assert_eq!(rig.write_back("idle"), Err(WritebackError::Device));
    assert_eq!((rig.bd_stat(), rig.zram.status().used_bytes), ([15, 0, 15], 4096));
    assert_eq!(rig.zram.get("writeback_limit").unwrap(), "85\n", "what was not written is not charged");
    rig.disk.bad_sector.set(None);
    (0..16).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    assert_eq!(rig.set("reset", "1"), Ok(()));
    assert_eq!((rig.bd_stat(), rig.zram.status().used_bytes), ([0, 0, 0], 0));
}
