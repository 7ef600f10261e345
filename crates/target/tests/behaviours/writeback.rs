//! When blocks go home, in which order, and what people can ask for.

use forebay_block::Op;
use forebay_target::cache::MessageError;
use forebay_target::cache::disk::{Geometry, SEQ_FREE};
use forebay_target::cache::index::CacheSlot;

use crate::support::Seen;
use crate::support::rig::{Rig, content, entry};
use crate::support::tape::{Disk, Tape};

#[test]
fn behaviour_18_writeback_runs_between_the_watermarks() {
    let rig = Rig::new(64 << 20, 64 << 20, 4096);
    rig.run(async |life| {
        assert!(life.write(0, 8159, 1).await.is_ok());
        life.sleep_ms(30_000).await;
        assert_eq!(rig.tape.borrow().on(Disk::Origin).count(), 0, "one block below the watermark");
        assert!(life.write(8159, 1, 1).await.is_ok());
        assert!(life.until(1000, || life.status().free >= 8977).await);
        life.sleep_ms(30_000).await;
        assert_eq!((life.status().free, life.status().writeback), (8977, 0));
    });
}

#[test]
fn behaviour_19_the_oldest_block_goes_first_even_when_it_was_rewritten() {
    let mut rig = Rig::small(16);
    rig.options.writeback_jobs = Some(1);
    rig.options.high_watermark = Some(25);
    rig.options.low_watermark = Some(0);
    rig.run(async |life| {
        for (block, stamp) in [(70, 1), (10, 2), (40, 3), (70, 4)] {
            assert!(life.write(block, 1, stamp).await.is_ok());
            assert!(life.flush().await.is_ok());
        }
        assert_eq!(rig.tape.borrow().on(Disk::Origin).filter(|step| step.writes()).count(), 0);
        assert!(life.write(20, 1, 5).await.is_ok());
        assert!(life.until(1000, || life.status().dirty == 0).await, "{:?}", life.status());
    });
    let tape = rig.tape.borrow();
    let home: Vec<_> =
        tape.on(Disk::Origin).filter(|step| step.writes()).map(|step| (step.seen.clone(), step.bytes[8])).collect();
    let expected = [(70, 4), (10, 2), (40, 3), (20, 5)].map(|(block, stamp)| (Seen::Write(block * 8, 8, false), stamp));
    assert_eq!(home, expected);
}

/// Checks that no entry is cleared on media before the origin durably has what it stood for.
fn check_clearing(tape: &Tape, geometry: &Geometry, fast_bytes: usize) -> usize {
    let mut fast = vec![0; fast_bytes];
    let sector_of = |slot| usize::try_from(geometry.slot_sector(CacheSlot(slot)).to_bytes()).unwrap();
    let mut durable = std::collections::BTreeMap::new();
    let mut written = std::collections::BTreeMap::new();
    let mut cleared = 0;
    for step in &tape.steps {
        match (step.disk, &step.seen) {
            (Disk::Origin, Seen::Write(sector, count, _)) => {
                written.extend((*sector..sector + count).zip(step.bytes.chunks(512).map(<[u8]>::to_vec)));
            }
            (Disk::Origin, Seen::Flush) => durable.append(&mut written),
            (Disk::Fast, Seen::Write(sector, ..)) => {
                let before = fast.clone();
                let at = usize::try_from(sector * 512).unwrap();
                fast[at..at + step.bytes.len()].copy_from_slice(&step.bytes);
                let seq_count = u64::from_le_bytes(before[24..32].try_into().unwrap());
                for slot in 0..geometry.blocks() {
                    let (old, new) = (entry(&before, geometry, slot), entry(&fast, geometry, slot));
                    if old.seq < seq_count && new.seq == SEQ_FREE {
                        cleared += 1;
                        assert_eq!(durable[&old.origin_sector], fast[sector_of(slot)..][..512], "slot {slot}");
                    }
                }
            }
            _ => {}
        }
    }
    cleared
}

#[test]
fn behaviour_20_the_origin_is_flushed_before_entries_are_cleared() {
    let mut rig = Rig::small(32);
    rig.options.high_watermark = Some(50);
    rig.options.low_watermark = Some(20);
    rig.run(async |life| {
        let mut rng = fastrand::Rng::with_seed(20);
        for stamp in 1..80 {
            assert!(life.write(rng.u64(..200), rng.u64(1..4), stamp).await.is_ok());
            if stamp % 5 == 0 {
                assert!(life.flush().await.is_ok());
                life.sleep_ms(5).await;
            }
        }
    });
    let cleared = check_clearing(&rig.tape.borrow(), &rig.geometry(), rig.fast.borrow().bytes.len());
    assert!(cleared > 30, "{cleared} entries were cleared");
}

#[test]
fn behaviour_21_the_message_flush_leaves_everything_on_the_origin() {
    let rig = Rig::small(32);
    rig.run(async |life| {
        for block in [3, 4, 5, 90, 91, 7, 300] {
            assert!(life.write(block, 1, 6).await.is_ok());
        }
        life.cache.message(&["flush"]).await.unwrap();
        assert_eq!((life.status().free, life.status().dirty), (32, 0));
        assert!(life.cache.suspend().await.is_ok());
        assert_eq!(life.cache.message(&["flush"]).await, Err(MessageError::Busy));
    });
    for block in [3, 4, 5, 90, 91, 7, 300_usize] {
        assert_eq!(rig.origin.borrow().bytes[block * 4096..][..4096], content(block as u64 * 8, 8, 6));
    }
    assert_eq!(rig.on_media(), []);
}

#[test]
fn behaviour_22_a_cleaner_caches_nothing_new() {
    let rig = Rig::small(8);
    rig.origin.borrow_mut().bad.push((Op::Write, 80));
    rig.run(async |life| {
        // Block 10 cannot leave, so it is still cached when it is written again.
        assert!(life.write(10, 1, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        life.cache.message(&["cleaner"]).await.unwrap();
        let free = life.status().free;
        assert!(life.write(20, 1, 2).await.is_ok());
        assert_eq!((life.status().free, life.status().around), (free, 1));
        assert_eq!(rig.origin.borrow().bytes[20 * 4096..][..4096], content(160, 8, 2));
        life.sleep_ms(50).await;
        assert!(life.write(10, 1, 3).await.is_ok());
        assert_eq!((life.status().around, life.read(10, 1).await), (1, vec![3]), "updated in the cache");
        rig.origin.borrow_mut().bad.clear();
        assert!(life.until(10_000, || life.status().dirty == 0).await, "{:?}", life.status());
        assert_eq!(life.read(10, 1).await, [3]);
    });
}

#[test]
fn behaviour_25_age_and_autocommit_keep_their_times() {
    let mut rig = Rig::small(8);
    rig.options.max_age_ms = Some(2000);
    rig.run(async |life| {
        assert!(life.write(10, 1, 1).await.is_ok());
        life.sleep_ms(1700).await;
        assert_eq!(rig.tape.borrow().on(Disk::Origin).count(), 0);
        life.sleep_ms(500).await;
        assert_eq!(rig.origin.borrow().bytes[10 * 4096..][..4096], content(80, 8, 1));
    });
}

#[test]
fn behaviour_25_deviation_autocommit_keeps_its_time_while_writeback_pauses() {
    let mut rig = Rig::small(8);
    rig.options.high_watermark = Some(10);
    rig.options.low_watermark = Some(0);
    rig.options.pause_writeback_ms = Some(60_000);
    rig.run(async |life| {
        assert!(life.write(0, 12, 1).await.is_ok());
        assert_eq!(life.status().around, 4);
        assert!(life.until(1200, || rig.seq_count() == 1).await, "committed after a second");
        assert_eq!(life.status().dirty, 8, "writeback pauses");
        let before = rig.tape.borrow().flushes(Disk::Fast);
        assert!(life.write(3, 1, 2).await.is_ok());
        assert!(life.until(1200, || rig.tape.borrow().flushes(Disk::Fast) > before).await, "an overwrite too");
    });
}
