//! How much one request carries, and when the options set writeback and commits going.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Flags, Limits, Op, Sector, call};
use forebay_target::cache::options::{Full, Order};

use crate::support::rig::{Rig, content, fast_bytes};
use crate::support::tape::Disk;
use crate::support::{Seen, payload};

fn written(rig: &Rig, disk: Disk, from: usize) -> Vec<Seen> {
    let tape = rig.tape.borrow();
    let steps = tape.steps[from..].iter().filter(|step| step.disk == disk);
    steps.filter(|step| matches!(step.seen, Seen::Write(..))).map(|step| step.seen.clone()).collect()
}

fn slots(rig: &Rig) -> u64 {
    rig.geometry().metadata_bytes() / 512
}

#[test]
fn a_write_and_a_read_of_a_run_of_slots_are_one_request_each_at_every_block_size() {
    for shift in 9..=16 {
        let block_bytes = 1 << shift;
        let rig = Rig::new(fast_bytes((2 << 20 >> shift) + 16, block_bytes), 4 << 20, block_bytes);
        rig.run(async |life| {
            assert!(life.write_sectors(2048, 1024, 1, false).await.is_ok());
            let seen: Vec<Seen> = rig.tape.borrow().on(Disk::Fast).map(|step| step.seen.clone()).collect();
            assert_eq!(seen.last(), Some(&Seen::Write(slots(&rig), 1024, false)));
            assert_eq!(life.status().write_requests, 1);
            // The run is made of committed and other blocks, and of two extents that came apart.
            assert!(life.flush().await.is_ok());
            assert!(life.write_sectors(2048 + 128, 128, 2, false).await.is_ok());
            assert!(life.write_sectors(2048 + 1024, 512, 1, false).await.is_ok());
            let steps = rig.tape.borrow().steps.len();
            life.read_sectors(2048 + 1, 1500).await.unwrap();
            let reads: Vec<Seen> = rig.tape.borrow().steps[steps..].iter().map(|step| step.seen.clone()).collect();
            assert_eq!(reads, [Seen::Read(slots(&rig) + 1, 1500)], "blocks of {block_bytes} bytes");
        });
    }
}

#[test]
fn blocks_written_in_reverse_go_home_in_requests_of_the_preferred_size() {
    for (order, seed) in [(Order::Fifo, 0), (Order::Sweep, 0), (Order::Fifo, 31)] {
        let mut rig = Rig::small(300);
        rig.options.order = Some(order);
        rig.origin_limits = Limits { preferred_bytes: 256 << 10, ..Limits::unlimited() };
        rig.run(async |life| {
            for number in 0..256_u64 {
                // Last to first, or scattered over the whole range.
                let block = if seed == 0 { 255 - number } else { number * seed % 256 };
                assert!(life.write(1000 + block, 1, 1).await.is_ok());
            }
            life.cache.message(&["flush"]).await.unwrap();
        });
        let expected: Vec<Seen> = (0..4).map(|number| Seen::Write(8000 + number * 512, 512, false)).collect();
        let mut requests = written(&rig, Disk::Origin, 0);
        requests.sort_by_key(|seen| if let Seen::Write(sector, ..) = seen { *sector } else { 0 });
        assert_eq!(requests, expected, "{order:?}");
    }
}

#[test]
fn the_writeback_of_a_watermark_takes_neighbours_on_both_sides_along() {
    let mut rig = Rig::small(64);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(50), Some(25));
    rig.run(async |life| {
        for block in [110, 109, 111, 108, 112, 107] {
            assert!(life.write(block, 1, 1).await.is_ok());
        }
        for block in 0..26 {
            assert!(life.write(block * 5 + 200, 1, 2).await.is_ok());
        }
        assert!(life.until(1000, || life.status().free > 48).await);
        let requests = written(&rig, Disk::Origin, 0);
        assert!(requests.contains(&Seen::Write(107 * 8, 48, false)), "{requests:?}");
    });
}

#[test]
fn copies_of_blocks_stay_within_writeback_jobs() {
    let mut rig = Rig::small(64);
    rig.options.writeback_jobs = Some(3);
    rig.origin_slowness = Some(Rc::new(|op, _| Duration::from_millis(if op == Op::Write { 100 } else { 0 })));
    rig.run(async |life| {
        for block in 0..20 {
            assert!(life.write(block * 2, 1, 1).await.is_ok());
        }
        let cache = Rc::clone(&life.cache);
        assert!(life.reactor.spawn(async move { cache.message(&["flush"]).await.unwrap() }));
        let mut most = 0;
        while life.status().dirty > 0 {
            most = most.max(life.status().writeback);
            life.sleep_ms(5).await;
        }
        assert_eq!(most, 3);
    });
}

#[test]
fn so_many_blocks_are_committed_without_a_flush() {
    let mut rig = Rig::small(64);
    rig.options.autocommit_blocks = Some(8);
    rig.options.autocommit_time_ms = Some(3_600_000);
    rig.run(async |life| {
        assert!(life.write(0, 7, 1).await.is_ok());
        life.sleep_ms(1000).await;
        assert_eq!(rig.seq_count(), 0);
        assert!(life.write(7, 1, 1).await.is_ok());
        assert!(life.until(10, || rig.seq_count() == 1).await);
        assert_eq!(rig.on_media().len(), 8);
    });
    rig.options.autocommit_blocks = Some(0);
    rig.run(async |life| {
        assert!(life.write(20, 1, 1).await.is_ok());
        assert!(life.until(10, || rig.seq_count() == 2).await, "0 commits on every write");
    });
}

/// The kernel's cache waits for bypassing to end, which keeps the cache full and bypassing going on.
#[test]
fn a_cache_that_is_bypassed_all_the_time_still_writes_back_after_the_pause() {
    let mut rig = Rig::small(16);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(50), Some(25));
    rig.options.pause_writeback_ms = Some(3000);
    rig.run(async |life| {
        assert!(life.write(0, 17, 1).await.is_ok());
        let mut block = 100;
        while life.reactor.now() < Duration::from_millis(2900) {
            assert!(life.write(block, 1, 2).await.is_ok());
            block += 1;
            life.sleep_ms(50).await;
        }
        assert_eq!((life.status().free, life.status().dirty), (0, 16), "paused");
        // Each write that follows goes past the cache, until one finds room again.
        while life.status().around == block - 99 && life.reactor.now() < Duration::from_secs(5) {
            assert!(life.write(block, 1, 2).await.is_ok());
            block += 1;
            life.sleep_ms(50).await;
        }
        assert!(life.reactor.now() < Duration::from_millis(3200), "{:?}", life.status());
    });
}

#[test]
fn only_metadata_is_cached_where_that_is_asked() {
    let mut rig = Rig::small(16);
    rig.options.metadata_only = true;
    rig.run(async |life| {
        assert!(life.write(10, 1, 1).await.is_ok());
        assert_eq!((life.status().around, life.status().allocated), (1, 0));
        let meta = Flags { meta: true, ..Flags::default() };
        let bio = Bio::write(Sector(160), payload(&content(160, 8, 2)), 0, 4096).with(meta);
        assert!(call(&*life.cache, bio).await.status().is_ok());
        assert_eq!((life.status().around, life.status().allocated), (1, 1));
        assert!(life.write(20, 1, 3).await.is_ok(), "what is cached already stays");
        assert_eq!((life.status().around, life.read(20, 1).await), (1, vec![3]));
    });
}

#[test]
fn a_full_cache_is_bypassed_or_waited_for() {
    for (full, around) in [(Full::Bypass, 4), (Full::Wait, 0)] {
        let mut rig = Rig::small(8);
        rig.options.full = Some(full);
        rig.options.autocommit_time_ms = Some(3_600_000);
        rig.run(async |life| {
            assert!(life.write(0, 12, 1).await.is_ok());
            assert_eq!((life.status().around, life.read(0, 12).await), (around, vec![1; 12]));
            assert!(life.reactor.now() < Duration::from_secs(1), "nobody waits for the autocommit: {:?}", life.reactor.now());
        });
    }
}
