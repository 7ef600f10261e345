//! A cache with a side file: what it refuses, and that no crash makes it refuse what is right.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

mod support;

use std::io::ErrorKind;
use std::rc::Rc;

use forebay_target::cache::OpenError;
use forebay_target::cache::disk::side::{Mismatch, SideError, SideState};
use support::rig::{Life, Rig};
use support::side::SideFile;
use support::tape::{Disk, Step};

/// A cache of 20 blocks with a side file.
fn rig() -> (Rig, Rc<SideFile>) {
    let mut rig = Rig::small(20);
    let side = SideFile::new(&rig.tape);
    rig.side = Some(Rc::clone(&side));
    (rig, side)
}

/// Writes three blocks and closes the cache.
async fn fill_and_close(life: &Life) {
    assert!(life.write(5, 3, 1).await.is_ok());
    assert!(life.cache.close().await.is_ok());
}

/// Writes a block and loses power once it is durable.
async fn fill_and_crash(life: &Life) {
    assert!(life.write(5, 1, 1).await.is_ok());
    assert!(life.flush().await.is_ok());
}

fn mismatch(rig: &Rig) -> Mismatch {
    match rig.refusal() {
        OpenError::SideMismatch { side, mismatch } => {
            assert_eq!(side, "cache.side");
            *mismatch
        }
        other => panic!("{other}"),
    }
}

#[test]
fn the_record_is_open_while_the_cache_is_and_clean_once_it_was_closed() {
    let (rig, side) = rig();
    rig.run(async |life| {
        assert_eq!((side.record().state, side.record().seq_count, side.record().dirty_blocks), (SideState::Open, 0, 0));
        fill_and_close(life).await;
    });
    let record = side.record();
    assert!(matches!(&record.state, SideState::Clean(checksums) if checksums.len() == 1), "{record:?}");
    assert_eq!((record.seq_count, record.dirty_blocks), (rig.seq_count(), 3));
    assert_eq!((record.blocks, record.block_bytes, record.origin_sectors.0), (20, 4096, rig.sectors));
    rig.run(async |life| {
        assert_eq!((side.record().state, side.record().seq_count, side.record().dirty_blocks), (SideState::Open, 1, 3));
        assert_eq!(life.read(5, 3).await, [1; 3]);
    });
}

#[test]
fn metadata_that_changed_after_a_clean_end_are_refused_unwritten() {
    let (rig, side) = rig();
    rig.run(fill_and_close);
    for byte in [24, 64 + 16 * 2, 64 + 16 * 19 + 15] {
        rig.fast.borrow_mut().bytes[byte] ^= 8;
        assert_eq!(mismatch(&rig), Mismatch::Changed { slots: (0, 19), pieces: 1 }, "byte {byte}");
        rig.fast.borrow_mut().bytes[byte] ^= 8;
    }
    // Nothing counts in the gap behind the last entry, nor do the data.
    rig.fast.borrow_mut().bytes[64 + 16 * 20] ^= 8;
    rig.run(async |life| assert_eq!(life.read(5, 3).await, [1; 3]));
    assert_eq!(side.record().state, SideState::Open);
}

#[test]
fn a_cache_that_was_used_without_its_side_file_is_refused_until_that_is_deleted() {
    let (mut rig, side) = rig();
    rig.run(fill_and_close);
    rig.side = None;
    rig.run(async |life| {
        assert!(life.write(9, 1, 2).await.is_ok());
        assert!(life.cache.close().await.is_ok());
    });
    rig.side = Some(Rc::clone(&side));
    assert!(matches!(mismatch(&rig), Mismatch::Changed { .. }));
    let sentence = rig.refusal().to_string();
    assert!(sentence.contains("kernel or another program") && sentence.contains("delete cache.side"), "{sentence}");
    side.content.replace(None);
    rig.run(async |life| {
        assert_eq!((life.read(5, 3).await, life.read(9, 1).await), (vec![1; 3], vec![2]));
        assert!(life.cache.close().await.is_ok());
    });
    rig.run(async |life| assert_eq!(life.status().dirty, 4));
}

#[test]
fn two_caches_that_were_exchanged_are_refused_clean_or_not() {
    for crash in [false, true] {
        let (mut one, side) = rig();
        let (mut other, other_side) = rig();
        other_side.cache.replace("another cache".into());
        for rig in [&one, &other] {
            rig.run(async |life| if crash { fill_and_crash(life).await } else { fill_and_close(life).await });
        }
        other.run(async |life| assert!(life.write(50, 1, 3).await.is_ok() && life.cache.close().await.is_ok()));
        std::mem::swap(&mut one.fast, &mut other.fast);
        side.cache.replace("another cache".into());
        other_side.cache.replace("cache".into());
        for rig in [&one, &other] {
            rig.fast.borrow_mut().tape = Some((Disk::Fast, Rc::clone(&rig.tape)));
            assert!(matches!(mismatch(rig), Mismatch::Cache { .. }), "after a crash: {crash}");
        }
    }
}

#[test]
fn a_copy_is_refused_until_the_side_file_is_deleted_unless_nothing_is_in_it() {
    let (rig, side) = rig();
    rig.run(fill_and_close);
    side.cache.replace("a copy".into());
    assert!(matches!(mismatch(&rig), Mismatch::Cache { .. }));
    side.content.replace(None);
    rig.run(async |life| {
        life.cache.message(&["flush"]).await.unwrap();
        assert!(life.cache.close().await.is_ok());
    });
    side.cache.replace("a copy of the copy".into());
    rig.run(fill_and_crash);
    assert_eq!(side.record().cache.to_string(), "a copy of the copy");
}

#[test]
fn an_older_copy_in_the_same_place_is_refused() {
    let (rig, _side) = rig();
    rig.run(fill_and_close);
    let old = rig.fast.borrow().bytes.clone();
    for crash in [false, true] {
        rig.run(async |life| {
            assert!(life.write(9, 1, 2).await.is_ok() && life.flush().await.is_ok());
            assert!(crash || life.cache.close().await.is_ok());
        });
        let new = std::mem::replace(&mut rig.fast.borrow_mut().bytes, old.clone());
        assert!(matches!(mismatch(&rig), Mismatch::Older { .. }), "after a crash: {crash}");
        rig.fast.borrow_mut().bytes = new;
    }
}

#[test]
fn another_origin_is_refused_with_dirty_blocks_and_accepted_without() {
    for crash in [false, true] {
        let (rig, side) = rig();
        rig.run(async |life| if crash { fill_and_crash(life).await } else { fill_and_close(life).await });
        side.origin.replace("another origin".into());
        assert!(matches!(mismatch(&rig), Mismatch::Origin { .. }));
        side.origin.replace("origin".into());
        rig.run(async |life| {
            life.cache.message(&["flush"]).await.unwrap();
            assert!(crash || life.cache.close().await.is_ok());
        });
        side.origin.replace("another origin".into());
        rig.run(async |life| assert_eq!(life.status().dirty, 0));
        assert_eq!(side.record().origin.to_string(), "another origin");
    }
}

#[test]
fn an_origin_of_another_size_is_refused_when_it_is_smaller() {
    let (mut rig, _side) = rig();
    rig.run(fill_and_close);
    let whole = rig.sectors;
    rig.origin.borrow_mut().bytes.truncate(usize::try_from(whole * 256).unwrap());
    rig.sectors = whole / 2;
    assert!(matches!(mismatch(&rig), Mismatch::OriginShrank { .. }));
    rig.origin.borrow_mut().bytes.resize(usize::try_from(whole * 1024).unwrap(), 0);
    rig.sectors = whole * 2;
    rig.run(async |life| assert_eq!(life.read(5, 3).await, [1; 3]));
}

#[test]
fn an_empty_device_in_the_place_of_a_cache_with_dirty_blocks_is_not_formatted() {
    for crash in [false, true] {
        let (rig, _side) = rig();
        rig.run(async |life| if crash { fill_and_crash(life).await } else { fill_and_close(life).await });
        rig.run(async |life| assert!(crash || life.cache.close().await.is_ok()));
        rig.fast.borrow_mut().bytes.fill(0);
        assert!(matches!(mismatch(&rig), Mismatch::Emptied { .. }));
    }
    let (rig, _side) = rig();
    rig.run(async |life| assert!(life.cache.close().await.is_ok()));
    rig.fast.borrow_mut().bytes.fill(0);
    rig.run(async |life| assert_eq!(life.status().free, 20));
}

#[test]
fn a_side_file_that_is_damaged_or_something_else_is_refused() {
    let (rig, side) = rig();
    rig.run(fill_and_close);
    let whole = side.content.take().unwrap();
    let refused = |content: &[u8]| {
        side.content.replace(Some(content.to_vec()));
        match rig.refusal() {
            OpenError::SideContent { problem, .. } => problem,
            other => panic!("{other}"),
        }
    };
    assert_eq!(refused(&whole[..whole.len() - 1]), SideError::Damaged);
    assert_eq!(refused(&whole[..100]), SideError::Damaged);
    assert_eq!(refused(b""), SideError::Magic);
    assert_eq!(refused(b"a letter to a friend"), SideError::Magic);
    rig.fast.borrow_mut().bytes.fill(0);
    assert_eq!(refused(b"a letter to a friend"), SideError::Magic);
}

#[test]
fn a_full_disk_takes_the_side_file_away_and_the_cache_is_served() {
    let (rig, side) = rig();
    rig.run(fill_and_close);
    side.refuses.set(Some(ErrorKind::StorageFull));
    rig.run(async |life| {
        assert!(side.content.borrow().is_none(), "what was recorded is not true any more");
        assert!(life.write(9, 1, 2).await.is_ok());
        // With room again, the clean end is recorded.
        side.refuses.set(None);
        assert!(life.cache.close().await.is_ok());
    });
    assert_eq!(side.record().dirty_blocks, 4);

    rig.run(async |life| {
        side.refuses.set(Some(ErrorKind::StorageFull));
        assert!(life.cache.close().await.is_ok(), "a cache closes well without a record of it");
    });
    assert_eq!(side.record().state, SideState::Open);
    rig.fast.borrow_mut().tape.take();
    side.keeps.set(true);
    assert!(matches!(rig.refusal(), OpenError::Side { action: "writing", .. }));
}

#[test]
fn a_side_file_that_cannot_be_written_for_another_reason_refuses_the_cache() {
    let (rig, side) = rig();
    side.refuses.set(Some(ErrorKind::PermissionDenied));
    assert!(matches!(rig.refusal(), OpenError::Side { action: "writing", .. }));
    assert!(rig.fast.borrow().bytes.iter().all(|&byte| byte == 0), "nothing was formatted");
}

#[test]
fn a_failed_cache_leaves_no_clean_record() {
    let (rig, side) = rig();
    rig.run(async |life| {
        assert!(life.write(5, 1, 1).await.is_ok());
        rig.fast.borrow_mut().bad.push((forebay_block::Op::Flush, 0));
        assert!(!life.cache.close().await.is_ok());
    });
    assert_eq!(side.record().state, SideState::Open);
}

#[test]
fn no_write_comes_between_a_clean_record_and_the_next_open_one() {
    let (rig, side) = rig();
    for stamp in 1..4 {
        rig.run(async |life| {
            for block in 0..30 {
                assert!(life.write(block * 3 % 17, 2, stamp).await.is_ok());
                if block % 7 == 0 {
                    assert!(life.flush().await.is_ok());
                }
            }
            life.cache.message(&["flush"]).await.unwrap();
            assert!(life.write(3, 4, stamp).await.is_ok());
            assert!(life.cache.close().await.is_ok());
        });
    }
    let changes: Vec<_> = side.changes.borrow().iter().map(|(at, _)| *at).collect();
    assert_eq!(changes.len(), 6, "one record of each opening and of each end");
    let tape = rig.tape.borrow();
    let writes = |from: usize, to: usize| tape.steps[from..to].iter().any(|step| step.disk == Disk::Fast && step.writes());
    assert!(!writes(0, changes[0]) && writes(changes[0], changes[1]));
    for clean in [1, 3] {
        assert!(!writes(changes[clean], changes[clean + 1]), "clean {clean}");
    }
    assert!(!writes(changes[5], tape.steps.len()));
    for open in [2, 4] {
        let steps = &tape.steps[changes[open - 1]..changes[open]];
        let flushed = steps.iter().any(|step| step.disk == Disk::Fast && step.seen == support::Seen::Flush);
        assert!(flushed, "what a killed process wrote is durable before a record says that it was there");
    }
    for &clean in &[changes[1], changes[3], changes[5]] {
        let fast: Vec<&Step> = tape.steps[..clean].iter().filter(|step| step.disk == Disk::Fast).collect();
        let last_write = fast.iter().rposition(|step| step.writes()).unwrap();
        assert!(fast[last_write..].iter().any(|step| step.seen == support::Seen::Flush), "the last write is durable");
    }
}

/// Crashes in front of every step of three lives, whatever the disks lost; the side file is what it was
/// at that moment, with the record that came there or not yet.
#[test]
fn a_crash_anywhere_never_makes_the_right_cache_refused() {
    let (rig, side) = rig();
    for stamp in 1..4 {
        rig.run(async |life| {
            assert!(life.write(2, 3, stamp).await.is_ok() && life.flush().await.is_ok());
            assert!(life.write(3, 4, stamp).await.is_ok() && life.flush().await.is_ok());
            if stamp == 2 {
                life.cache.message(&["flush"]).await.unwrap();
            }
            assert!(life.write(4, 1, stamp).await.is_ok());
            assert!(life.cache.close().await.is_ok());
        });
    }
    let steps = rig.tape.borrow().steps.len();
    let base = vec![0; rig.fast.borrow().bytes.len()];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut clean = 0;
    let (later, record) = self::rig();
    for platter in [&later.fast, &later.origin] {
        platter.borrow_mut().tape = None;
    }
    for cut in 0..=steps {
        for (also_now, keep_percent) in [(false, 0), (true, 0), (false, 100), (true, 100), (false, 50), (true, 50)] {
            let image = rig.tape.borrow().image(Disk::Fast, &base, cut, || rng.u32(..100) < keep_percent);
            later.fast.borrow_mut().bytes = image;
            *record.content.borrow_mut() = side.at(cut, also_now);
            clean += usize::from(record.content.borrow().is_some() && matches!(record.record().state, SideState::Clean(_)));
            let opened = later.try_run(async |_| ());
            assert!(opened.is_ok(), "in front of step {cut} of {steps}, keeping {keep_percent}: {opened:?}");
        }
    }
    assert!(clean > 12, "clean records were met: {clean}");
}
