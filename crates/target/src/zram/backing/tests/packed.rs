//! Objects that share blocks: fewer bytes than pages, and never another page's data.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use super::*;

/// A page of which so many bytes are noise and the rest zero.
fn partly(stamp: u64, bytes: usize) -> Vec<u8> {
    [noise(stamp, bytes), vec![0; PAGE - bytes]].concat()
}

/// 60 % of it compressible.
fn usual(stamp: u64) -> Vec<u8> {
    partly(stamp, 1638)
}

impl Rig {
    fn put(&self, page: u64, content: &[u8]) {
        assert_eq!(self.status_of(write(page * 8, content)), Status::Ok);
    }

    fn write_all_back(&self) -> Result<(), WritebackError> {
        self.set("idle", "all").unwrap();
        self.write_back("idle")
    }
}

#[test]
fn fewer_bytes_are_written_than_pages_leave_and_the_numbers_tell_both() {
    let rig = Rig::packed(1024, 1024, 32);
    (0..1000).for_each(|page| rig.put(page, &usual(page)));
    rig.write_all_back().unwrap();
    let status = rig.zram.status();
    assert_eq!((status.backing_left, status.used_bytes, status.compressed_bytes), (1000, 0, 0));
    assert!(status.backing_writes <= 430, "{} blocks for 1000 pages of which 40 % is noise", status.backing_writes);
    assert_eq!(status.backing_blocks, status.backing_writes);
    (0..1000).for_each(|page| assert!(rig.page(page).unwrap() == usual(page), "page {page}"));
}

#[test]
fn objects_of_every_size_come_back_from_wherever_they_stand() {
    for (range, seed) in [(1, 1), (3, 2), (256, 3)] {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let rig = Rig::packed(400, 400, range);
        let pages: Vec<Vec<u8>> = (0..300).map(|page| partly(page, [1, 60, 1638, 3500, PAGE][rng.usize(0..5)])).collect();
        pages.iter().zip(0..).for_each(|(content, page)| rig.put(page, content));
        rig.write_all_back().unwrap();
        let (bio, memory) = read(0, 300 * 8);
        assert_eq!(rig.status_of(bio), Status::Ok);
        assert!(content(memory) == pages.concat());
        for page in [7, 0, 299, 150] {
            assert!(rig.page(page).unwrap() == pages[page as usize]);
        }
    }
}

#[test]
fn a_block_is_free_when_the_last_object_in_it_is_gone() {
    let rig = Rig::packed(64, 3, 8);
    (0..4).for_each(|page| rig.put(page, &usual(page)));
    rig.write_all_back().unwrap();
    assert_eq!((rig.bd_stat(), rig.zram.status().backing_left), ([2, 0, 2], 4));
    (4..8).for_each(|page| rig.put(page, &usual(page)));
    assert_eq!(rig.write_all_back(), Err(WritebackError::NoSpace));
    // Pages 0, 1 and the begin of 2 stand in the first block.
    (0..2).for_each(|page| assert_eq!(rig.status_of(Bio::discard(extent(page * 8, 8))), Status::Ok));
    assert_eq!(rig.write_all_back(), Err(WritebackError::NoSpace));
    assert!(rig.page(2).unwrap() == usual(2));
    rig.put(2, &usual(20));
    assert_eq!(rig.bd_stat()[0], 1);
    assert_eq!(rig.write_back("page_indexes=4-5"), Ok(()));
    for (page, stamp) in [(2, 20), (3, 3), (4, 4), (5, 5)] {
        assert!(rig.page(page).unwrap() == usual(stamp), "page {page}");
    }
}

#[test]
fn a_shared_block_is_not_used_again_while_one_of_its_pages_is_read() {
    let rig = Rig::packed(64, 2, 8);
    (0..2).for_each(|page| rig.put(page, &usual(page)));
    rig.write_all_back().unwrap();
    rig.disk.hold.set(true);
    let (bio, memory) = read(8, 8);
    let mut reading = std::pin::pin!(call(&*rig.zram, bio));
    rig.turns();
    assert_eq!(rig.status_of(Bio::discard(extent(0, 16))), Status::Ok);
    rig.put(2, &usual(2));
    assert_eq!(rig.write_all_back(), Err(WritebackError::NoSpace), "the only block is being read");
    rig.disk.hold.set(false);
    rig.disk.end_held(0);
    assert_eq!(rig.reactor.run(reading.as_mut()).unwrap().status(), Status::Ok);
    assert!(content(memory) == usual(1), "the read sees the page as it was");
    assert_eq!(rig.write_back("idle"), Ok(()));
    assert!(rig.page(2).unwrap() == usual(2));
}

#[test]
fn the_limit_is_exact_in_blocks() {
    for range in [1, 7, 32, 256] {
        let rig = Rig::packed(2560, 4096, range);
        (0..2560).for_each(|page| rig.put(page, &usual(page)));
        rig.set("idle", "all").unwrap();
        rig.set("writeback_limit_enable", "1").unwrap();
        rig.set("writeback_limit", "502").unwrap();
        assert_eq!(rig.write_back("idle"), Err(WritebackError::Limit));
        assert_eq!((rig.bd_stat(), rig.zram.get("writeback_limit").unwrap().as_str()), ([502, 0, 502], "0\n"));
        assert!(rig.zram.status().backing_left >= 1004, "{} pages left", rig.zram.status().backing_left);
        rig.set("writeback_limit", "2560").unwrap();
        assert_eq!(rig.write_back("idle"), Ok(()));
        assert_eq!(rig.zram.status().backing_left, 2560);
    }
}

#[test]
fn what_changed_on_the_way_stays_in_memory_and_the_rest_of_its_block_leaves() {
    let rig = Rig::packed(64, 64, 8);
    (0..6).for_each(|page| rig.put(page, &usual(page)));
    let ended = rig.begin();
    rig.put(1, &usual(50));
    assert_eq!(rig.status_of(Bio::discard(extent(16, 8))), Status::Ok);
    assert!(rig.page(3).unwrap() == usual(3));
    assert_eq!(rig.finish(&ended), Ok(()));
    assert_eq!((rig.bd_stat(), rig.zram.status().backing_left), ([3, 0, 3], 3));
    for (page, content) in [usual(0), usual(50), vec![0; PAGE], usual(3), usual(4), usual(5)].iter().enumerate() {
        assert!(rig.page(page as u64).unwrap() == *content, "page {page}");
    }
    assert_eq!(rig.status_of(Bio::discard(extent(0, 64 * 8))), Status::Ok);
    assert_eq!((rig.bd_stat()[0], rig.zram.status().used_bytes), (0, 0));
}

#[test]
fn a_block_that_cannot_be_written_keeps_all_of_its_pages_and_no_others() {
    let rig = Rig::packed(64, 64, 8);
    (0..10).for_each(|page| rig.put(page, &usual(page)));
    rig.set("writeback_limit_enable", "1").unwrap();
    rig.set("writeback_limit", "100").unwrap();
    // The second block: pages 2 to 4.
    rig.disk.bad_sector.set(Some(2 * 8 + 3));
    assert_eq!(rig.write_all_back(), Err(WritebackError::Device));
    let states = rig.zram.get("block_state").unwrap();
    let stayed: Vec<usize> = states.lines().enumerate().filter(|(_, line)| !line.contains('w')).map(|(page, _)| page).collect();
    assert_eq!((stayed, rig.zram.status().backing_left), (vec![2, 3, 4], 7));
    assert_eq!((rig.bd_stat(), rig.zram.get("writeback_limit").unwrap().as_str()), ([4, 0, 4], "96\n"));
    rig.disk.bad_sector.set(None);
    (0..10).for_each(|page| assert!(rig.page(page).unwrap() == usual(page)));
    assert_eq!(rig.write_all_back(), Ok(()));
    (0..10).for_each(|page| assert!(rig.page(page).unwrap() == usual(page)));
}

#[test]
fn what_was_damaged_torn_swapped_or_left_over_gives_errors_for_its_pages_only() {
    type Damage = fn(&mut [u8], &[u8]);
    let damage: [Damage; 5] = [
        |bytes, _| bytes[PAGE + 77] ^= 4,
        |bytes, _| bytes[PAGE + 1600] ^= 1,
        |bytes, old| bytes[PAGE + 512..2 * PAGE].copy_from_slice(&old[PAGE + 512..2 * PAGE]),
        |bytes, _| bytes.copy_within(2 * PAGE..3 * PAGE, PAGE),
        |bytes, old| bytes[PAGE..2 * PAGE].copy_from_slice(&old[PAGE..2 * PAGE]),
    ];
    for (number, damage) in damage.iter().enumerate() {
        let rig = Rig::packed(64, 4, 8);
        let write_back = |stamp: u64| {
            (0..6).for_each(|page| rig.put(page, &usual(page + stamp)));
            rig.write_all_back().unwrap();
        };
        write_back(0);
        let old = rig.disk.bytes.borrow().clone();
        rig.status_of(Bio::discard(extent(0, 48)));
        write_back(10);
        damage(&mut rig.disk.bytes.borrow_mut(), &old);
        assert_eq!(rig.page(0), Err(Status::IoError), "damage {number}");
        assert!((3..6).all(|page| rig.page(page).unwrap() == usual(page + 10)), "damage {number}");
        assert_eq!(rig.status_of(write(1, &[1; 512])), Status::IoError, "a part of a lost page cannot be kept");
        rig.put(0, &usual(20));
        assert!(rig.page(0).unwrap() == usual(20));
    }
}

#[test]
fn a_part_of_a_packed_page_changes_with_the_rest_kept() {
    let rig = Rig::packed(64, 64, 8);
    let mut model: Vec<u8> = (0..8).flat_map(usual).collect();
    (0..8).for_each(|page| rig.put(page, &usual(page)));
    rig.write_all_back().unwrap();
    assert_eq!(rig.status_of(write(3, &noise(70, 30 * 512))), Status::Ok);
    model[3 * 512..33 * 512].copy_from_slice(&noise(70, 30 * 512));
    assert_eq!(rig.status_of(Bio::write_zeroes(extent(44, 15))), Status::Ok);
    model[44 * 512..59 * 512].fill(0);
    let (bio, memory) = read(0, 64);
    assert_eq!(rig.status_of(bio), Status::Ok);
    assert!(content(memory) == model);
}

#[test]
fn nothing_of_other_requests_gets_to_the_device() {
    let rig = Rig::packed(64, 64, 8);
    // A buffer of the pool holds noise now.
    (0..16).for_each(|page| rig.put(page, &noise(page, PAGE)));
    rig.write_all_back().unwrap();
    assert_eq!(rig.set("reset", "1"), Ok(()));
    rig.disk.bytes.borrow_mut().fill(0);
    rig.put(0, &partly(0, 40));
    rig.write_all_back().unwrap();
    let bytes = rig.disk.bytes.borrow();
    assert!(bytes[PAGE..2 * PAGE].iter().any(|&byte| byte != 0), "the object is there");
    assert!(bytes[PAGE + 256..].iter().all(|&byte| byte == 0), "and nothing else");
}

#[test]
fn a_limited_budget_frees_as_much_memory_as_any_choice_of_pages() {
    for packed in [false, true] {
        let freed = |chosen: Option<&[u64]>| {
            let options = BackingOptions { range_pages: Some(256), packed, ..BackingOptions::default() };
            let rig = Rig::of(256, 400, 0, options);
            let rng = &mut fastrand::Rng::with_seed(8);
            (0..200).for_each(|page| rig.put(page, &partly(page, rng.usize(1..=PAGE))));
            let before = rig.zram.status().used_bytes;
            rig.set("writeback_limit_enable", "1").unwrap();
            rig.set("writeback_limit", "40").unwrap();
            let words: Vec<String> = chosen.unwrap_or_default().iter().map(|page| format!("page_index={page}")).collect();
            let words = if chosen.is_some() { words.join(" ") } else { "page_indexes=0-199".to_owned() };
            let _ = rig.write_back(&words);
            assert!(rig.bd_stat()[2] <= 40);
            before - rig.zram.status().used_bytes
        };
        let ours = freed(None);
        let rng = &mut fastrand::Rng::with_seed(9);
        for _ in 0..12 {
            let mut pages: Vec<u64> = (0..200).collect();
            rng.shuffle(&mut pages);
            let others = freed(Some(&pages[..if packed { 80 } else { 40 }]));
            // Frames that are free in part are all that can make a difference to packed objects.
            assert!(ours + if packed { 4 * PAGE as u64 } else { 0 } >= others, "packed {packed}: {ours} and {others}");
        }
    }
}

#[test]
fn rules_never_write_more_blocks_than_their_rate_however_objects_fall() {
    for range in [1, 3, 256] {
        let rules = Rules { idle_after_s: Some(1), rate_bytes: Some(8 * 4096), ..Rules::default() };
        let options = BackingOptions { range_pages: Some(range), packed: true, rules, ..BackingOptions::default() };
        let rig = Rig::of(256, 400, 0, options);
        (0..100).for_each(|page| rig.put(page, &partly(page, 3000)));
        let after = |millis| rig.reactor.run(rig.reactor.sleep(std::time::Duration::from_millis(millis))).unwrap();
        after(1_500);
        assert_eq!(rig.bd_stat()[2], 8, "in blocks of {range}");
        after(1_000);
        assert_eq!(rig.bd_stat()[2], 16, "in blocks of {range}");
        after(30_000);
        assert_eq!((rig.zram.status().backing_left, rig.zram.status().used_bytes), (100, 0));
        (0..100).for_each(|page| assert!(rig.page(page).unwrap() == partly(page, 3000)));
    }
}
