//! What is read ahead, what comes back into memory, and what becomes of freed blocks.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use forebay_block::Op;

use super::*;

impl Rig {
    /// A disk whose first pages are all away.
    fn away(pages: u64, blocks: usize, mem_limit: u64, options: BackingOptions) -> Self {
        let rig = Self::of(1024, blocks, mem_limit, BackingOptions { range_pages: Some(256), ..options });
        (0..pages).for_each(|page| {
            rig.fill(page, page);
            if page % 4 == 3 {
                rig.set("idle", "all").unwrap();
                rig.write_back("idle").unwrap();
            }
        });
        assert_eq!(rig.zram.status().used_bytes, 0, "pages come in fours");
        rig.disk.take_seen();
        rig
    }

    fn seen(&self, op: Op) -> Vec<(u64, u64)> {
        let seen = self.disk.take_seen();
        seen.iter().filter(|(of, _)| *of == op).map(|(_, extent)| (extent.start.0 / 8, extent.count.0 / 8)).collect()
    }
}

#[test]
fn who_reads_on_is_served_from_what_was_read_ahead() {
    for packed in [false, true] {
        let rig = Rig::away(200, 1024, 0, BackingOptions { packed, ..BackingOptions::default() });
        (0..200).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE), "page {page}"));
        let status = rig.zram.status();
        assert_eq!(status.backing_reads, 200);
        assert!(status.backing_read_requests <= 6, "{} requests for 200 pages", status.backing_read_requests);
    }
}

#[test]
fn who_jumps_gets_what_he_asks_for_and_no_more() {
    let rig = Rig::away(200, 1024, 0, BackingOptions::default());
    [40, 3, 20, 160].into_iter().for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    assert_eq!(rig.seen(Op::Read), [(41, 1), (4, 1), (21, 1), (161, 1)]);
}

#[test]
fn pages_in_random_order_on_the_device_are_read_by_one_request() {
    let rig = Rig::new(64, 64, 1);
    (0..16).for_each(|page| rig.fill(page, page));
    let order = [7, 3, 11, 0, 15, 4, 9, 1, 13, 2, 6, 14, 5, 12, 8, 10];
    order.into_iter().for_each(|page| rig.write_back(&format!("page_index={page}")).unwrap());
    rig.disk.take_seen();
    let (bio, memory) = read(0, 16 * 8);
    assert_eq!(rig.status_of(bio), Status::Ok);
    assert!(content(memory) == (0..16).flat_map(|page| noise(page, PAGE)).collect::<Vec<_>>());
    assert_eq!(rig.seen(Op::Read), [(1, 16)]);
}

#[test]
fn what_was_read_ahead_is_forgotten_when_its_blocks_hold_something_else() {
    let rig = Rig::away(16, 17, 0, BackingOptions { keep_freed: true, ..BackingOptions::default() });
    (0..2).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    assert_eq!(rig.zram.status().backing_read_requests, 1, "page 1 was read ahead");
    (2..8).for_each(|page| rig.fill(page, page + 100));
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    (2..16).for_each(|page| {
        let stamp = if page < 8 { page + 100 } else { page };
        assert!(rig.page(page).unwrap() == noise(stamp, PAGE), "page {page}");
    });
}

#[test]
fn damage_to_what_was_read_ahead_is_seen() {
    let rig = Rig::away(16, 32, 0, BackingOptions::default());
    rig.disk.bytes.borrow_mut()[5 * PAGE + 9] ^= 1;
    (0..4).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    assert_eq!(rig.page(4), Err(Status::IoError));
    assert!(rig.page(5).unwrap() == noise(5, PAGE));
}

#[test]
fn pages_that_are_read_come_back_into_memory_where_that_is_asked_for() {
    for packed in [false, true] {
        let rig = Rig::away(8, 32, 0, BackingOptions { promote: true, packed, ..BackingOptions::default() });
        assert!(rig.page(5).unwrap() == noise(5, PAGE));
        let status = rig.zram.status();
        assert_eq!((status.used_bytes, status.backing_promoted, status.backing_blocks), (4096, 1, 7));
        rig.disk.take_seen();
        assert!(rig.page(5).unwrap() == noise(5, PAGE));
        assert_eq!(rig.seen(Op::Read), []);
        rig.set("idle", "all").unwrap();
        rig.write_back("idle").unwrap();
        assert_eq!((rig.bd_stat()[0], rig.zram.status().used_bytes), (8, 0));
        assert!(rig.page(5).unwrap() == noise(5, PAGE));
    }
}

#[test]
fn packed_objects_come_back_as_they_are_and_their_neighbours_stay_away() {
    let options = BackingOptions { promote: true, packed: true, ..BackingOptions::default() };
    let rig = Rig::of(64, 64, 0, options);
    let half = |stamp| [noise(stamp, 2000), vec![0; PAGE - 2000]].concat();
    (0..6).for_each(|page| assert_eq!(rig.status_of(write(page * 8, &half(page))), Status::Ok));
    let before = rig.zram.status().compressed_bytes;
    rig.set("idle", "all").unwrap();
    rig.write_back("idle").unwrap();
    (0..6).rev().for_each(|page| assert!(rig.page(page).unwrap() == half(page)));
    let status = rig.zram.status();
    assert_eq!((status.compressed_bytes, status.backing_promoted, status.backing_blocks), (before, 6, 0));
}

#[test]
fn pages_never_come_back_beyond_the_memory_limit_or_the_mark_of_a_spill() {
    for (percent, most) in [(None, 4), (Some(50), 2)] {
        let rules = Rules { spill_percent: percent, ..Rules::default() };
        let rig = Rig::away(16, 32, 4 * 4096, BackingOptions { promote: true, rules, ..BackingOptions::default() });
        (0..16).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
        let status = rig.zram.status();
        assert_eq!((status.used_bytes, status.used_max_bytes <= 4 * 4096), (most * 4096, true));
        assert_eq!(status.backing_blocks, 16 - most);
    }
}

#[test]
fn a_page_that_was_rewritten_while_it_was_read_does_not_come_back() {
    let rig = Rig::away(4, 32, 0, BackingOptions { promote: true, ..BackingOptions::default() });
    rig.disk.hold.set(true);
    let (bio, memory) = read(2 * 8, 8);
    let mut reading = std::pin::pin!(call(&*rig.zram, bio));
    rig.turns();
    rig.fill(2, 77);
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    assert_eq!(rig.reactor.run(reading.as_mut()).unwrap().status(), Status::Ok);
    assert!(content(memory) == noise(2, PAGE), "the read began before the write ended");
    assert!(rig.page(2).unwrap() == noise(77, PAGE));
    assert_eq!((rig.zram.status().backing_promoted, rig.bd_stat()[0]), (0, 3));
}

#[test]
fn freed_blocks_are_discarded_in_long_runs_and_counted() {
    let rig = Rig::away(400, 512, 0, BackingOptions::default());
    assert_eq!(rig.status_of(Bio::discard(extent(0, 255 * 8))), Status::Ok);
    rig.turns();
    assert_eq!(rig.seen(Op::Discard), [], "not enough yet");
    assert_eq!(rig.status_of(Bio::discard(extent(300 * 8, 8))), Status::Ok);
    rig.turns();
    assert_eq!(rig.seen(Op::Discard), [(1, 255)], "a single block is not worth it");
    assert_eq!((rig.zram.status().backing_discards, rig.bd_stat()[0]), (255, 144));
    (255..400).filter(|page| *page != 300).for_each(|page| assert!(rig.page(page).unwrap() == noise(page, PAGE)));
    let bytes = rig.disk.bytes.borrow();
    assert!(bytes[PAGE..256 * PAGE].iter().all(|&byte| byte == 0));
}

#[test]
fn blocks_that_are_being_discarded_are_waited_for_and_not_written() {
    let rig = Rig::away(400, 401, 0, BackingOptions::default());
    rig.disk.hold.set(true);
    assert_eq!(rig.status_of(Bio::discard(extent(0, 300 * 8))), Status::Ok);
    rig.turns();
    assert_eq!(rig.seen(Op::Discard), [(1, 300)]);
    assert_eq!(rig.set("reset", "1"), Err(AttributeError::Busy));
    rig.fill(0, 500);
    let ended = rig.begin();
    assert_eq!(rig.disk.take_seen(), [], "no block is free before the discard ends");
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    rig.turns();
    assert_eq!(*ended.borrow(), Some(Ok(())));
    assert!(rig.page(0).unwrap() == noise(500, PAGE));
    assert!(rig.page(399).unwrap() == noise(399, PAGE));
}

#[test]
fn nothing_is_discarded_where_that_is_not_wanted() {
    let rig = Rig::away(400, 512, 0, BackingOptions { keep_freed: true, ..BackingOptions::default() });
    assert_eq!(rig.status_of(Bio::discard(extent(0, 400 * 8))), Status::Ok);
    rig.turns();
    assert_eq!((rig.seen(Op::Discard), rig.bd_stat()[0]), (vec![], 0));
}
