//! Messages, suspending and resuming, and the numbers of the status line.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Op, Status};
use forebay_target::cache::MessageError;
use forebay_target::cache::options::Full;

use crate::support::rig::{Life, Rig, content};
use crate::support::tape::Disk;
use crate::support::write;

/// Starts a write and tells how it ended.
fn start_write(life: &Life, block: u64, stamp: u8) -> Rc<Cell<Option<Status>>> {
    let done = Rc::new(Cell::new(None));
    let (cache, result) = (Rc::clone(&life.cache), Rc::clone(&done));
    assert!(life.reactor.spawn(async move {
        result.set(Some(write(&*cache, block * 8, &content(block * 8, 8, stamp), false).await));
    }));
    done
}

#[test]
fn the_status_line_counts_as_the_kernel_does() {
    let mut rig = Rig::small(16);
    rig.options.pause_writeback_ms = Some(60_000);
    rig.run(async |life| {
        assert_eq!(life.status().line(), "0 16 16 0 0 0 0 0 0 0 0 0 0 0");
        assert!(life.write(10, 3, 1).await.is_ok());
        assert_eq!(life.status().line(), "0 16 13 0 0 0 3 0 0 0 3 0 0 0", "three blocks written and allocated");
        assert!(life.write(10, 3, 2).await.is_ok());
        assert_eq!(life.status().line(), "0 16 13 0 0 0 6 1 0 0 3 0 0 0", "an uncommitted run is hit once");
        assert!(life.flush().await.is_ok());
        assert!(life.write(10, 3, 3).await.is_ok());
        assert_eq!(life.status().line(), "0 16 13 0 0 0 9 1 1 0 3 0 1 0", "a flush, and a committed run is hit once");
        life.read(9, 5).await;
        assert_eq!(life.status().line(), "0 16 13 0 5 3 9 1 1 0 3 0 1 0", "reads count blocks");
        assert!(life.write(100, 20, 4).await.is_ok());
        assert_eq!(life.status().line(), "0 16 0 0 5 3 29 1 1 7 16 0 1 0", "seven found no room");
        assert!(life.discard(100, 4).await.is_ok());
        assert_eq!(life.status().line(), "0 16 4 0 5 3 29 1 1 7 16 0 1 4", "discards count blocks");
        assert!(life.write_fua(100, 1, 4).await.is_ok());
        assert_eq!(life.status().line(), "0 16 3 0 5 3 30 1 1 7 17 0 1 4", "a durable write is no flush");
        life.cache.message(&["clear_stats"]).await.unwrap();
        assert_eq!(life.status().line(), "0 16 3 0 0 0 0 0 0 0 0 0 0 0");
        rig.fast.borrow_mut().bad.push((Op::Flush, 0));
        assert!(life.write(100, 1, 5).await.is_ok());
        assert_eq!(life.flush().await, Status::IoError);
        assert_eq!(life.status().line(), "1 16 3 0 0 0 1 0 1 0 0 0 1 0", "the error is 1");
    });
}

#[test]
fn a_write_that_waits_for_room_is_counted_as_blocked() {
    let mut rig = Rig::small(8);
    rig.options.full = Some(Full::Wait);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(100), Some(50));
    rig.run(async |life| {
        assert!(life.write(0, 12, 1).await.is_ok());
        let status = life.status();
        assert!(status.blocked >= 1 && status.around == 0, "{status:?}");
        assert_eq!(life.read(0, 12).await, [1; 12]);
    });
}

#[test]
fn in_writeback_is_part_of_what_is_used() {
    let mut rig = Rig::small(16);
    rig.origin_slowness = Some(Rc::new(|op, _| Duration::from_secs(if op == Op::Write { 5 } else { 0 })));
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(50), Some(25));
    rig.run(async |life| {
        for block in 0..8 {
            assert!(life.write(block * 3, 1, 1).await.is_ok());
        }
        assert!(life.until(1000, || life.status().writeback > 0).await);
        let status = life.status();
        assert_eq!((status.free, status.writeback), (8, 5), "down to a quarter, and one more as the kernel does");
        assert!(life.until(6000, || life.status().free == 13).await);
        assert_eq!(life.status().writeback, 0);
    });
}

#[test]
fn messages_are_one_known_word_in_any_case() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        for words in [&[][..], &["flush", "now"], &["flash"], &[""]] {
            assert_eq!(life.cache.message(words).await, Err(MessageError::Unknown(words.join(" "))));
        }
        assert!(life.write(3, 1, 1).await.is_ok());
        life.cache.message(&["FLUSH"]).await.unwrap();
        assert_eq!(life.status().dirty, 0);
    });
}

#[test]
fn suspending_commits_and_holds_back_what_comes_until_the_resume() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 2, 1).await.is_ok());
        assert!(life.cache.suspend().await.is_ok());
        assert_eq!((rig.on_media().len(), life.status().dirty), (2, 2), "committed, and still cached");
        let steps = rig.tape.borrow().steps.len();
        let done = start_write(life, 6, 2);
        life.sleep_ms(10_000).await;
        assert_eq!((done.get(), rig.tape.borrow().steps.len()), (None, steps), "nothing moves");
        life.cache.resume();
        assert!(life.until(10, || done.get() == Some(Status::Ok)).await);
        assert_eq!(life.read(3, 4).await, [1, 1, 0, 2]);
        assert!(life.cache.suspend().await.is_ok());
        assert!(life.cache.suspend().await.is_ok(), "twice is once");
        life.cache.resume();
        assert!(life.flush().await.is_ok());
    });
}

#[test]
fn flush_on_suspend_writes_everything_home_once() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 2, 1).await.is_ok());
        life.cache.message(&["flush_on_suspend"]).await.unwrap();
        assert_eq!(life.status().dirty, 2);
        assert!(life.cache.suspend().await.is_ok());
        assert_eq!(life.status().dirty, 0);
        life.cache.resume();
        assert!(life.write(3, 2, 2).await.is_ok());
        assert!(life.cache.suspend().await.is_ok());
        assert_eq!(life.status().dirty, 2, "once only");
    });
}

#[test]
fn suspending_waits_for_writeback_in_flight() {
    let mut rig = Rig::small(8);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(0), Some(0));
    rig.origin_slowness = Some(Rc::new(|op, _| Duration::from_secs(if op == Op::Write { 5 } else { 0 })));
    rig.run(async |life| {
        assert!(life.write_fua(3, 2, 1).await.is_ok());
        assert!(life.until(100, || life.status().writeback > 0).await);
        assert!(life.cache.suspend().await.is_ok());
        assert_eq!((life.status().writeback, life.status().dirty), (0, 0));
        assert!(rig.tape.borrow().flushes(Disk::Origin) > 0);
    });
}

#[test]
fn closing_keeps_what_is_dirty_and_ends_what_was_held_back() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 2, 1).await.is_ok());
        assert!(life.cache.suspend().await.is_ok());
        let held = start_write(life, 6, 2);
        life.sleep_ms(1).await;
        assert!(life.cache.close().await.is_ok());
        assert!(life.until(10, || held.get() == Some(Status::Aborted)).await);
    });
    rig.run(async |life| {
        assert_eq!((life.status().dirty, life.read(3, 4).await), (2, vec![1, 1, 0, 0]));
    });
}
