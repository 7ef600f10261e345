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

#[test]
fn a_part_of_a_page_changed_on_its_way_is_kept_with_the_rest() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert_eq!(rig.status_of(write(9, &[7; 512])), Status::Ok);
    assert_eq!(rig.status_of(Bio::write_zeroes(extent(17, 2))), Status::Ok);
    assert_eq!(rig.finish(&ended), Ok(()));
    let mut model = [noise(1, PAGE), noise(2, PAGE)].concat();
    model[512..1024].fill(7);
    model[PAGE + 512..PAGE + 1536].fill(0);
    assert!([rig.page(1).unwrap(), rig.page(2).unwrap()].concat() == model);
    assert_eq!(rig.bd_stat(), [2, 0, 4]);
}

#[test]
fn a_page_that_repeats_a_word_by_now_stays_that() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert_eq!(rig.status_of(write(8, &[9; PAGE])), Status::Ok);
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!((rig.page(1), rig.zram.status().same_pages, rig.bd_stat()), (Ok(vec![9; PAGE]), 1, [3, 0, 4]));
}

#[test]
fn a_slot_used_again_on_the_way_keeps_what_came_last() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    assert_eq!(rig.status_of(Bio::discard(extent(0, 4 * 8))), Status::Ok);
    (0..3).for_each(|page| rig.fill(page, page + 30));
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.finish(&ended), Ok(()));
    (0..3).for_each(|page| assert!(rig.page(page).unwrap() == noise(page + 30, PAGE)));
    assert_eq!((rig.page(3), rig.bd_stat()), (Ok(vec![0; PAGE]), [0, 0, 4]));
    // They leave by the next command, to blocks of their own.
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.write_back("idle"), Ok(()));
    (0..3).for_each(|page| assert!(rig.page(page).unwrap() == noise(page + 30, PAGE)));
    assert_eq!(rig.bd_stat()[0], 3);
}

#[test]
fn a_page_read_while_it_is_rewritten_and_leaves_again_is_old_or_new() {
    let rig = Rig::new(64, 64, 8);
    (0..2).for_each(|page| rig.fill(page, page));
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    rig.disk.hold.set(true);
    rig.disk.take_seen();
    let (bio, memory) = read(0, 16);
    let mut reading = std::pin::pin!(call(&*rig.zram, bio));
    rig.turns();
    rig.disk.hold.set(false);
    rig.fill(0, 40);
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.write_back("idle"), Ok(()));
    rig.disk.end_held(0);
    assert_eq!(rig.reactor.run(reading.as_mut()).unwrap().status(), Status::Ok);
    assert!(content(memory) == [noise(0, PAGE), noise(1, PAGE)].concat());
    assert!(rig.page(0).unwrap() == noise(40, PAGE));
    assert_eq!(rig.bd_stat()[0], 2);
}

#[test]
fn a_page_written_whole_while_a_part_of_it_waits_for_the_rest_keeps_both_in_order() {
    let rig = Rig::new(64, 64, 8);
    rig.fill(0, 0);
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    rig.disk.hold.set(true);
    let mut part = std::pin::pin!(call(&*rig.zram, write(2, &[5; 512])));
    rig.turns();
    rig.fill(0, 60);
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    assert_eq!(rig.reactor.run(part.as_mut()).unwrap().status(), Status::Ok);
    let mut model = noise(60, PAGE);
    model[1024..1536].fill(5);
    assert!(rig.page(0).unwrap() == model);
}

#[test]
fn an_error_in_the_middle_of_a_batch_keeps_what_changed_meanwhile() {
    let rig = Rig::new(64, 64, 8);
    (0..8).for_each(|page| rig.fill(page, page));
    rig.disk.bad_sector.set(Some(4 * 8));
    let ended = rig.begin();
    rig.fill(3, 33);
    assert_eq!(rig.status_of(Bio::discard(extent(2 * 8, 8))), Status::Ok);
    rig.fill(5, 55);
    assert_eq!(rig.finish(&ended), Err(WritebackError::Device));
    rig.disk.bad_sector.set(None);
    for (page, stamp) in [(0, 0), (1, 1), (3, 33), (4, 4), (5, 55), (6, 6), (7, 7)] {
        assert!(rig.page(page).unwrap() == noise(stamp, PAGE), "page {page}");
    }
    // Block 4 held page 3, which was rewritten; 2 is gone.
    assert_eq!((rig.page(2), rig.bd_stat()), (Ok(vec![0; PAGE]), [5, 5, 7]));
}

#[test]
fn a_limit_that_changes_while_writes_are_on_their_way_is_never_passed() {
    let rig = Rig::new(64, 64, 4);
    (0..20).for_each(|page| rig.fill(page, page));
    rig.set("writeback_batch_size", "1").unwrap();
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "20").unwrap();
    let ended = rig.begin();
    assert_eq!(rig.zram.get("writeback_limit").unwrap(), "16\n", "charged when it is sent");
    rig.set("writeback_limit", "3").unwrap();
    assert_eq!(rig.finish(&ended), Err(WritebackError::Limit));
    assert_eq!((rig.bd_stat(), rig.zram.get("writeback_limit").unwrap().as_str()), ([7, 0, 7], "0\n"));
    rig.set("writeback_limit", "8").unwrap();
    let ended = rig.begin();
    rig.set("writeback_limit_enable", "0").unwrap();
    assert_eq!(rig.finish(&ended), Err(WritebackError::Limit), "what was left out stays left out");
    assert_eq!(rig.bd_stat(), [15, 0, 15]);
}

#[test]
fn a_limit_is_given_back_for_writes_that_fail_and_kept_for_those_that_were_useless() {
    let rig = Rig::new(64, 64, 8);
    (0..8).for_each(|page| rig.fill(page, page));
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "8").unwrap();
    rig.disk.bad_sector.set(Some(3 * 8));
    let ended = rig.begin();
    rig.fill(0, 20);
    assert_eq!(rig.finish(&ended), Err(WritebackError::Device));
    rig.disk.bad_sector.set(None);
    assert_eq!((rig.bd_stat(), rig.zram.get("writeback_limit").unwrap().as_str()), ([6, 0, 7], "1\n"));
}

#[test]
fn the_last_free_block_is_given_back_by_who_did_not_need_it() {
    let rig = Rig::new(64, 4, 8);
    (0..3).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    rig.fill(0, 10);
    assert_eq!(rig.finish(&ended), Ok(()));
    rig.set("idle", "all").unwrap();
    assert_eq!(rig.write_back("idle"), Ok(()), "its block was free again");
    assert_eq!(rig.bd_stat(), [3, 0, 4]);
    assert!(rig.page(0).unwrap() == noise(10, PAGE));
}

#[test]
fn a_reset_waits_for_reads_and_closing_for_writes() {
    let rig = Rig::new(64, 64, 2);
    (0..8).for_each(|page| rig.fill(page, page));
    rig.write_back("page_index=0").unwrap();
    rig.disk.hold.set(true);
    let (bio, memory) = read(0, 8);
    let mut reading = std::pin::pin!(call(&*rig.zram, bio));
    rig.turns();
    assert_eq!(rig.set("reset", "1"), Err(AttributeError::Busy));
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    assert_eq!(rig.reactor.run(reading.as_mut()).unwrap().status(), Status::Ok);
    assert!(content(memory) == noise(0, PAGE));
    rig.set("writeback_batch_size", "1").unwrap();
    let ended = rig.begin();
    let closed = Rc::new(Cell::new(false));
    let (zram, told) = (Rc::clone(&rig.zram), Rc::clone(&closed));
    rig.reactor.spawn(async move {
        zram.close().await;
        told.set(true);
    });
    rig.turns();
    assert!(!closed.get(), "a write is on its way");
    assert_eq!(rig.finish(&ended), Ok(()));
    assert!(closed.get());
    assert_eq!(rig.bd_stat()[2], 3, "nothing begins any more");
    (0..8).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
}

#[test]
fn recompression_and_writeback_keep_out_of_each_others_way() {
    let rig = Rig::new(64, 64, 8);
    (0..4).for_each(|page| rig.fill(page, page));
    let ended = rig.begin();
    let refused = rig.set("recompress", "type=idle").unwrap_err().to_string();
    assert!(refused.contains("(EAGAIN)") || refused.contains("(EINVAL)"), "{refused}");
    assert_eq!(rig.finish(&ended), Ok(()));
    (0..4).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
}
