//! Failing devices: what fails, what goes on, and that nothing stale is ever served.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Op, Status};
use forebay_target::cache::MessageError;
use forebay_target::cache::options::{Full, Order, Overwrite};

use crate::support::Seen;
use crate::support::rig::{Life, Rig};
use crate::support::tape::Disk;

/// A cache that sends everything home as soon as it is committed.
fn eager(blocks: u32, order: Order) -> Rig {
    let mut rig = Rig::small(blocks);
    rig.options.order = Some(order);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(0), Some(0));
    rig
}

async fn write_home(life: &Life, block: u64, stamp: u8) {
    assert!(life.write(block, 1, stamp).await.is_ok());
    assert!(life.flush().await.is_ok());
}

#[test]
fn blocks_behind_one_that_cannot_go_home_do() {
    for order in [Order::Fifo, Order::Sweep] {
        let rig = eager(32, order);
        rig.origin.borrow_mut().bad.push((Op::Write, 10 * 8));
        rig.run(async |life| {
            write_home(life, 10, 1).await;
            assert!(life.until(100, || life.status().quarantined == 1).await);
            for (number, block) in [100, 5, 200, 12].into_iter().enumerate() {
                write_home(life, block, 2).await;
                assert!(life.until(100, || life.status().dirty == 1).await, "{order:?}, write {number}: {:?}", life.status());
            }
            assert_eq!(life.read(10, 1).await, [1]);
        });
    }
}

#[test]
fn a_quarantined_block_is_tried_again_less_and_less_often_and_leaves_at_last() {
    let rig = eager(32, Order::Fifo);
    rig.origin.borrow_mut().bad.push((Op::Write, 10 * 8));
    rig.run(async |life| {
        write_home(life, 10, 1).await;
        life.sleep_ms(100_000).await;
        let tries = rig.origin.borrow().seen.iter().filter(|seen| matches!(seen, Seen::Write(..))).count();
        assert!((6..12).contains(&tries), "{tries} tries in 100 seconds");
        rig.origin.borrow_mut().bad.clear();
        assert!(life.until(61_000, || life.status().dirty == 0).await);
        assert_eq!(life.status().quarantined, 0);
    });
}

#[test]
fn an_origin_that_is_gone_costs_little_and_everything_goes_home_once_it_is_back() {
    for order in [Order::Fifo, Order::Sweep] {
        let rig = eager(4000, order);
        rig.origin.borrow_mut().bad.extend((0..rig.sectors).step_by(8).map(|sector| (Op::Write, sector)));
        rig.run(async |life| {
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..1500 {
                assert!(life.write(rng.u64(..4096), 1, 3).await.is_ok());
            }
            assert!(life.flush().await.is_ok());
            let dirty = life.status().dirty;
            life.sleep_ms(600_000).await;
            let tries = rig.origin.borrow().seen.iter().filter(|seen| matches!(seen, Seen::Write(..))).count();
            assert!(tries < 40_000, "{order:?}: {tries} tries in ten minutes");
            assert_eq!((life.status().dirty, life.status().failed), (dirty, false));
            assert!(life.status().memory_bytes < 32 * 4000, "{:?}", life.status());
            rig.origin.borrow_mut().bad.clear();
            life.cache.message(&["flush"]).await.unwrap();
            assert_eq!((life.status().dirty, life.status().quarantined), (0, 0), "the message tries at once");
        });
    }
}

#[test]
fn a_block_that_cannot_go_home_fails_the_message_flush_only() {
    let rig = Rig::small(32);
    rig.origin.borrow_mut().bad.push((Op::Write, 10 * 8));
    rig.run(async |life| {
        assert!(life.write(8, 5, 1).await.is_ok());
        assert_eq!(life.cache.message(&["flush"]).await, Err(MessageError::Io));
        assert_eq!((life.status().dirty, life.status().quarantined, life.status().failed), (1, 1, false));
        assert!(life.flush().await.is_ok());
        assert!(life.cache.close().await.is_ok());
    });
    rig.run(async |life| assert_eq!(life.read(8, 5).await, [1; 5]));
}

#[test]
fn a_failed_read_of_the_cache_is_never_answered_from_the_origin() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(10, 3, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        let slot = rig.geometry().metadata_bytes() / 512 + 8;
        rig.fast.borrow_mut().bad.push((Op::Read, slot));
        assert_eq!(life.try_read(11, 1).await, Err(Status::IoError));
        assert_eq!(life.try_read(9, 5).await, Err(Status::IoError));
        assert_eq!((life.read(10, 1).await, life.read(12, 1).await), (vec![1], vec![1]));
        rig.fast.borrow_mut().bad.clear();
        assert_eq!(life.read(9, 5).await, [0, 1, 1, 1, 0]);
        assert!(!life.status().failed);
    });
}

/// Metadata and superblock writes and the flush fail, each at each time of a commit.
#[test]
fn after_an_error_of_the_metadata_writes_fail_and_reads_return_what_is_newest() {
    for (bad, overwrite) in
        [(0, Overwrite::Place), (1, Overwrite::Place), (2, Overwrite::Place), (0, Overwrite::New), (2, Overwrite::New)]
    {
        let mut rig = Rig::small(200);
        rig.options.overwrite = Some(overwrite);
        rig.run(async |life| {
            for block in 0..60 {
                assert!(life.write(block, 1, 1).await.is_ok());
            }
            assert!(life.flush().await.is_ok());
            assert!(life.write(50, 1, 2).await.is_ok());
            assert!(life.write(100, 1, 2).await.is_ok());
            let bad = match bad {
                0 => (Op::Write, 0),
                1 => (Op::Write, 2),
                _ => (Op::Flush, 0),
            };
            rig.fast.borrow_mut().bad.push(bad);
            assert_eq!(life.flush().await, Status::IoError, "{bad:?}");
            assert!(life.status().failed);
            let writes = rig.tape.borrow().steps.iter().filter(|step| step.writes()).count();
            for _ in 0..3 {
                assert_eq!(life.flush().await, Status::IoError);
                assert_eq!(life.write(100, 1, 3).await, Status::IoError);
                assert_eq!(life.write(150, 1, 3).await, Status::IoError);
                assert_eq!(life.discard(50, 1).await, Status::IoError);
                assert_eq!(life.write_zeroes(50, 1).await, Status::IoError);
                assert_eq!(life.cache.message(&["flush"]).await, Err(MessageError::Io));
            }
            assert_eq!(
                rig.tape.borrow().steps.iter().filter(|step| step.writes()).count(),
                writes,
                "nothing is written any more"
            );
            assert_eq!((life.read(49, 3).await, life.read(100, 1).await), (vec![1, 2, 1], vec![2]), "nothing stale is served");
            assert_eq!(life.cache.suspend().await, Status::IoError);
            life.cache.resume();
            assert_eq!((life.read(49, 3).await, life.read(100, 1).await), (vec![1, 2, 1], vec![2]));
            assert_eq!(life.cache.close().await, Status::IoError);
        });
        rig.fast.borrow_mut().bad.clear();
        rig.run(async |life| {
            let (overwritten, fresh) = (life.read(50, 1).await[0], life.read(100, 1).await[0]);
            assert!([1, 2].contains(&overwritten) && [0, 2].contains(&fresh), "old or new: {overwritten}, {fresh}");
            assert_eq!(life.read(0, 50).await, [1; 50]);
        });
    }
}

#[test]
fn metadata_that_cannot_be_read_refuses_the_cache() {
    let rig = Rig::small(400);
    rig.run(async |life| assert!(life.write_fua(3, 1, 1).await.is_ok()));
    for sector in [0, 1, 12] {
        rig.fast.borrow_mut().bad.push((Op::Read, sector));
        rig.refusal();
        rig.fast.borrow_mut().bad.clear();
    }
    rig.run(async |life| assert_eq!(life.read(3, 1).await, [1]));
}

#[test]
fn a_failed_flush_of_the_origin_clears_no_entry() {
    let rig = eager(8, Order::Fifo);
    rig.run(async |life| {
        assert!(life.flush().await.is_ok());
        rig.origin.borrow_mut().bad.push((Op::Flush, 0));
        write_home(life, 10, 1).await;
        life.sleep_ms(500).await;
        assert!(rig.tape.borrow().on(Disk::Origin).any(|step| matches!(step.seen, Seen::Write(..))), "it was copied");
        assert_eq!((life.status().dirty, rig.on_media().len(), life.status().failed), (1, 1, false));
        rig.origin.borrow_mut().bad.clear();
        assert!(life.until(5000, || life.status().dirty == 0).await);
    });
}

#[test]
fn a_bypassed_write_that_fails_fails_alone() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(0, 8, 1).await.is_ok());
        rig.origin.borrow_mut().bad.push((Op::Write, 160));
        assert_eq!(life.write(20, 1, 2).await, Status::IoError);
        assert!(life.write(21, 1, 2).await.is_ok());
        assert!(life.write(3, 1, 2).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert_eq!(life.read(2, 3).await, [1, 2, 1]);
    });
}

#[test]
fn a_writer_that_waits_for_space_on_a_broken_origin_does_not_hold_up_a_suspend() {
    let mut rig = eager(8, Order::Fifo);
    rig.options.full = Some(Full::Wait);
    rig.origin.borrow_mut().bad.extend((0..rig.sectors).step_by(8).map(|sector| (Op::Write, sector)));
    rig.origin_slowness = Some(Rc::new(|_, _| Duration::from_millis(1)));
    rig.run(async |life| {
        assert!(life.write(0, 8, 1).await.is_ok());
        let cache = Rc::clone(&life.cache);
        let done = Rc::new(std::cell::Cell::new(None));
        let result = Rc::clone(&done);
        assert!(life.reactor.spawn(async move {
            let content = crate::support::rig::content(160, 8, 2);
            result.set(Some(crate::support::write(&*cache, 160, &content, false).await));
        }));
        life.sleep_ms(2000).await;
        let before = life.reactor.now();
        assert!(life.cache.suspend().await.is_ok());
        assert!(life.reactor.now().saturating_sub(before) < Duration::from_secs(5));
        assert_eq!(done.get(), None, "it waits for the resume");
        rig.origin.borrow_mut().bad.clear();
        life.cache.resume();
        assert!(life.until(70_000, || done.get() == Some(Status::Ok)).await);
        assert_eq!((life.read(20, 1).await, life.read(0, 8).await), (vec![2], vec![1; 8]));
    });
}
