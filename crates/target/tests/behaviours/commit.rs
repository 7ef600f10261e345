//! What is durable when, and what a power cut leaves.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::Op;

use crate::support::Seen;
use crate::support::rig::{Rig, content};
use crate::support::tape::{Disk, Step};

/// Opens what a power cut left and gives the stamps of these blocks.
fn after_cut(rig: &Rig, image: Vec<u8>, first: u64, blocks: u64) -> Vec<u8> {
    let other = Rig::small(8);
    other.fast.borrow_mut().bytes = image;
    other.origin.borrow_mut().bytes.clone_from(&rig.origin.borrow().bytes);
    other.run(async |life| life.read(first, blocks).await)
}

fn is_superblock(step: &Step) -> bool {
    matches!(step.seen, Seen::Write(0, _, true))
}

#[test]
fn behaviour_07_what_was_never_committed_is_as_if_never_written() {
    let rig = Rig::small(8);
    let image = rig.run(async |life| {
        assert!(life.write(10, 1, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert!(life.write(11, 1, 2).await.is_ok());
        rig.fast.borrow().bytes.clone()
    });
    assert_eq!(after_cut(&rig, image, 10, 2), [1, 0]);
}

#[test]
fn behaviour_08_a_group_is_there_as_a_whole_or_not_at_all() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        for block in [3, 30, 300] {
            assert!(life.write(block, 1, 5).await.is_ok());
        }
        assert!(life.flush().await.is_ok());
    });
    let mut rng = fastrand::Rng::with_seed(8);
    let mut seen = [false; 2];
    let base = vec![0; rig.fast.borrow().bytes.len()];
    let steps = rig.tape.borrow().steps.len();
    for cut in 0..=steps {
        for _ in 0..20 {
            let chance = [0, 50, 100][rng.usize(..3)];
            let image = rig.tape.borrow().image(Disk::Fast, &base, cut, || rng.u32(..100) < chance);
            let other = Rig::small(8);
            other.fast.borrow_mut().bytes = image;
            let stamps =
                other.run(async |life| [life.read(3, 1).await, life.read(30, 1).await, life.read(300, 1).await].concat());
            assert!(stamps == [0; 3] || stamps == [5; 3], "cut in front of step {cut} of {steps}: {stamps:?}");
            seen[usize::from(stamps[0] == 5)] = true;
            assert!(cut < steps || stamps == [5; 3], "the flush succeeded before this cut");
        }
    }
    assert_eq!(seen, [true, true]);
}

#[test]
fn behaviour_09_the_superblock_follows_the_flush_of_entries_and_data() {
    let rig = Rig::small(64);
    rig.run(async |life| {
        for round in 0..5 {
            assert!(life.write(round * 20, 7, 1).await.is_ok());
            assert!(life.flush().await.is_ok());
        }
    });
    let tape = rig.tape.borrow();
    let mut commits = 0;
    let mut unflushed = 0;
    for step in tape.on(Disk::Fast) {
        match &step.seen {
            Seen::Flush => unflushed = 0,
            _ if is_superblock(step) && step.bytes[24] == commits + 1 => {
                assert_eq!(unflushed, 0, "the superblock of commit {commits} comes behind the flush");
                commits += 1;
            }
            Seen::Write(0, ..) => assert!(step.bytes[..4] == [0; 4] || step.bytes[24] == commits, "no superblock comes early"),
            Seen::Write(..) => unflushed += 1,
            Seen::Read(..) | Seen::Discard(..) | Seen::Zero(..) => {}
        }
    }
    assert_eq!(commits, 5);
}

#[test]
fn behaviour_10_a_flush_without_new_writes_does_not_reach_the_cache() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 2, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        let steps = rig.tape.borrow().steps.len();
        for _ in 0..3 {
            assert!(life.flush().await.is_ok());
        }
        assert_eq!(rig.tape.borrow().steps.len(), steps);
    });
}

#[test]
fn behaviour_11_an_overwrite_in_place_is_flushed_without_a_new_group() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write(3, 1, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        let steps = rig.tape.borrow().steps.len();
        assert!(life.write(3, 1, 2).await.is_ok());
        assert!(life.flush().await.is_ok());
        let slot_sector = rig.geometry().metadata_bytes() / 512;
        let seen: Vec<Seen> = rig.tape.borrow().steps[steps..].iter().map(|step| step.seen.clone()).collect();
        assert_eq!(seen, [Seen::Write(slot_sector, 8, false), Seen::Flush]);
    });
    assert_eq!(rig.seq_count(), 1);
}

/// A committed block is overwritten in place and goes into writeback before the flush; the origin is
/// slow. The kernel's cache forgets such blocks and reports success without a flush.
#[test]
fn behaviour_12_deviation_a_flush_covers_blocks_in_writeback() {
    let mut rig = Rig::small(8);
    rig.options.max_age_ms = Some(2000);
    rig.options.autocommit_time_ms = Some(3_600_000);
    rig.origin_slowness = Some(Rc::new(|op, _| Duration::from_secs(if op == Op::Write { 60 } else { 0 })));
    rig.run(async |life| {
        assert!(life.write(3, 1, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        life.sleep_ms(1000).await;
        assert!(life.write(3, 1, 2).await.is_ok());
        assert!(life.until(2000, || life.status().writeback == 1).await, "its age sends it home");
        let flushes = rig.tape.borrow().flushes(Disk::Fast);
        assert!(life.flush().await.is_ok());
        assert_eq!(life.status().writeback, 1, "the origin has not got it yet");
        assert_eq!(rig.tape.borrow().flushes(Disk::Fast), flushes + 1);
    });
    let image =
        rig.tape.borrow().image(Disk::Fast, &vec![0; rig.fast.borrow().bytes.len()], rig.tape.borrow().steps.len(), || false);
    assert_eq!(after_cut(&rig, image, 3, 1), [2]);
}

#[test]
fn a_durable_write_is_committed_before_it_ends() {
    let rig = Rig::small(8);
    rig.run(async |life| {
        assert!(life.write_fua(3, 2, 1).await.is_ok());
        assert_eq!((rig.seq_count(), rig.on_media()), (1, vec![(0, 24), (1, 32)]));
        assert!(life.write_fua(3, 2, 2).await.is_ok());
        let last = rig.tape.borrow().steps.last().map(|step| step.seen.clone());
        assert_eq!(last, Some(Seen::Flush), "what lies in committed blocks is flushed");
    });
    let slot = usize::try_from(rig.geometry().metadata_bytes()).unwrap();
    assert_eq!(rig.fast.borrow().bytes[slot..][..8192], content(24, 16, 2));
}
