//! Where writes go, what discards drop, and what failures do.

use forebay_block::{Op, Status};
use forebay_target::cache::disk::SEQ_FREE;

use crate::support::Seen;
use crate::support::rig::Rig;
use crate::support::tape::Disk;

#[test]
fn behaviour_13_a_request_over_cached_and_new_blocks() {
    let rig = Rig::small(16);
    rig.run(async |life| {
        assert!(life.write(10, 3, b'B').await.is_ok());
        assert!(life.flush().await.is_ok());
        let free = life.status().free;
        assert!(life.write(8, 4, b'C').await.is_ok());
        assert!(life.status().free >= free - 4);
        assert_eq!(life.read(8, 5).await, *b"CCCCB");
        assert!(life.flush().await.is_ok());
        assert_eq!(life.read(8, 5).await, *b"CCCCB");
        assert_eq!(life.status().free, free - 2);
    });
    rig.run(async |life| assert_eq!(life.read(8, 5).await, *b"CCCCB"));
}

/// An 8-block cache is filled with block 101 in slot 4, slots 0 to 3 are freed, and blocks around 101
/// are written so that the newest copy of 100 lies in slot 3, next to the old copy of 101.
#[test]
fn behaviour_14_deviation_the_tail_of_a_run_is_looked_up() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(200, 4, b'f').await.is_ok());
        assert!(life.write(101, 1, b'o').await.is_ok());
        assert!(life.write(300, 3, b'f').await.is_ok());
        assert!(life.flush().await.is_ok());
        assert_eq!(rig.on_media().iter().find(|(_, sector)| *sector == 808), Some(&(4, 808)));
        assert!(life.discard(200, 4).await.is_ok());
        assert!(life.write(100, 2, b'p').await.is_ok());
        assert!(life.write(99, 2, b'q').await.is_ok());
        assert!(life.write(100, 2, b'X').await.is_ok());
        assert_eq!(life.read(99, 3).await, *b"qXX");
        assert!(life.flush().await.is_ok());
        assert_eq!(life.read(99, 3).await, *b"qXX");
    });
    rig.run(async |life| assert_eq!(life.read(99, 3).await, *b"qXX"));
}

#[test]
fn behaviour_17_what_finds_no_room_goes_to_the_origin() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(0, 16, 3).await.is_ok());
        let status = life.status();
        assert_eq!((status.free, status.around, status.allocated, status.writes), (0, 8, 8, 16));
        assert_eq!(life.read(0, 16).await, [3; 16]);
        // Writeback of the full cache may have begun; what went past it is one request.
        let tape = rig.tape.borrow();
        let past = tape.on(Disk::Origin).filter(|step| step.writes()).map(|step| step.seen.clone());
        let past: Vec<Seen> = past.filter(|seen| !matches!(seen, Seen::Write(..64, ..))).collect();
        assert_eq!(past, [Seen::Write(64, 64, false)]);
    });
}

#[test]
fn behaviour_23_a_discarded_entry_is_free_on_media_before_the_discard_ends() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 2, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        let steps = rig.tape.borrow().steps.len();
        assert!(life.discard(3, 1).await.is_ok());
        assert_eq!((rig.entry(0).seq, rig.on_media()), (SEQ_FREE, vec![(1, 32)]));
        {
            let tape = rig.tape.borrow();
            let cleared = steps + tape.steps[steps..].iter().position(|step| step.writes() && step.disk == Disk::Fast).unwrap();
            let flush = tape.places(Disk::Fast, |step| step.seen == Seen::Flush);
            assert!(flush.iter().any(|&at| at > cleared), "the clearing is durable");
        }
        let steps = rig.tape.borrow().steps.len();
        assert!(life.discard(100, 4).await.is_ok());
        assert!(rig.tape.borrow().steps[steps..].iter().all(|step| step.disk == Disk::Origin), "a miss writes no metadata");
    });
}

#[test]
fn behaviour_24_deviation_a_failed_write_leaves_no_entry_that_lies() {
    for slot in [0, 1] {
        let rig = Rig::small(2);
        rig.run(async |life| {
            // Both slots of the cache held blocks of other sectors.
            assert!(life.write(90, 2, 8).await.is_ok());
            assert!(life.flush().await.is_ok());
            assert!(life.discard(90, 2).await.is_ok());
            let slots = rig.geometry().metadata_bytes() / 512;
            rig.fast.borrow_mut().bad.push((Op::Write, slots + 8 * slot + 3));
            assert_eq!(life.write(50, 2, 5).await, Status::IoError);
            rig.fast.borrow_mut().bad.clear();
            assert_eq!(life.read(50, 2).await, [0, 0], "they were never written");
            assert!(life.flush().await.is_ok());
            life.cache.message(&["flush"]).await.unwrap();
            assert_eq!(life.read(50, 2).await, [0, 0]);
            assert_eq!(rig.on_media(), []);
            assert!(life.write(50, 2, 6).await.is_ok(), "they stay writable");
            assert_eq!(life.read(50, 2).await, [6, 6]);
        });
    }
}

#[test]
fn behaviour_24_deviation_one_bad_block_of_the_origin_harms_no_other() {
    let mut rig = Rig::small(8);
    rig.options.high_watermark = Some(0);
    rig.options.low_watermark = Some(0);
    rig.origin.borrow_mut().bad.push((Op::Write, 10 * 8 + 1));
    rig.run(async |life| {
        assert!(life.write(8, 5, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert!(life.until(500, || life.status().dirty == 1).await, "{:?}", life.status());
        assert!(!life.status().failed);
        assert_eq!(life.status().quarantined, 1);
        assert!(life.write(10, 1, 2).await.is_ok());
        assert!(life.write(100, 1, 3).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert_eq!((life.read(8, 5).await, life.read(100, 1).await), (vec![1, 1, 2, 1, 1], vec![3]));
        rig.origin.borrow_mut().bad.clear();
        assert!(life.until(5000, || life.status().dirty == 0).await, "tried again: {:?}", life.status());
        assert_eq!(life.status().quarantined, 0);
        assert_eq!(life.read(8, 5).await, [1, 1, 2, 1, 1]);
    });
}
