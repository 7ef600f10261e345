//! What is on the fast device: layout, refusals and recovery.

use forebay_target::cache::OpenError;
use forebay_target::cache::disk::{FormatError, SEQ_FREE};

use crate::support::Seen;
use crate::support::rig::{Rig, content, fast_bytes};

const MIB: usize = 1 << 20;

fn formatted(fast_bytes: usize) -> Rig {
    let rig = Rig::new(fast_bytes, 16 * MIB, 4096);
    rig.run(async |_| ());
    rig
}

#[test]
fn behaviour_01_a_zeroed_device_becomes_an_empty_cache() {
    let rig = Rig::new(64 * MIB, 16 * MIB, 4096);
    let status = rig.run(async |life| life.status());
    assert_eq!((status.blocks, status.free, status.dirty, status.failed), (16_320, 16_320, 0, false));
    let mut expected = vec![0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
    expected.extend_from_slice(&16_320_u64.to_le_bytes());
    expected.resize(64, 0);
    assert_eq!(rig.fast.borrow().bytes[..64], expected);
    assert!((0..16_320).all(|slot| rig.entry(slot).seq == SEQ_FREE));
}

#[test]
fn behaviour_02_another_block_size_is_refused() {
    let mut rig = formatted(4 * MIB);
    rig.block_bytes = 512;
    let expected = FormatError::BlockBytesDiffer { recorded_bytes: 4096, wanted_bytes: 512 };
    assert_eq!(rig.refusal(), OpenError::Format(expected));
}

#[test]
fn behaviour_03_the_magic_is_checked_before_the_version() {
    let rig = formatted(4 * MIB);
    rig.fast.borrow_mut().bytes[4] = 2;
    assert_eq!(rig.refusal(), OpenError::Format(FormatError::Version { found: 2 }));
    rig.fast.borrow_mut().bytes[..4].fill(0);
    assert_eq!(rig.refusal(), OpenError::Format(FormatError::Magic { found: 0 }));
}

#[test]
fn behaviour_04_without_magic_and_version_any_content_is_formatted_over() {
    let rig = Rig::new(4 * MIB, 16 * MIB, 4096);
    fastrand::Rng::with_seed(4).fill(&mut rig.fast.borrow_mut().bytes);
    rig.fast.borrow_mut().bytes[..8].fill(0);
    let status = rig.run(async |life| life.status());
    assert_eq!(status.free, u64::from(rig.geometry().blocks()));
    assert_eq!(rig.fast.borrow().bytes[..4], [0x21, 0x93, 0x48, 0x23]);
}

#[test]
fn behaviour_05_the_recorded_number_of_blocks_rules() {
    let rig = formatted(64 * MIB);
    rig.fast.borrow_mut().bytes.resize(128 * MIB, 0);
    assert_eq!(rig.run(async |life| life.status().blocks), 16_320);
    rig.fast.borrow_mut().bytes.truncate(32 * MIB);
    let expected = FormatError::TooSmall { needed_bytes: 64 << 20, have_bytes: 32 << 20 };
    assert_eq!(rig.refusal(), OpenError::Format(expected));
}

#[test]
fn behaviour_06_one_write_and_a_flush_leave_exactly_this() {
    let rig = Rig::new(64 * MIB, 16 * MIB, 4096);
    rig.run(async |life| {
        assert!(life.write(10, 1, 7).await.is_ok());
        assert!(life.flush().await.is_ok());
    });
    assert_eq!((rig.entry(0).origin_sector, rig.entry(0).seq, rig.seq_count()), (80, 0, 1));
    assert_eq!(rig.on_media(), [(0, 80)]);
    assert_eq!(rig.fast.borrow().bytes[512 * 512..][..4096], content(80, 8, 7));
}

/// The image that a kernel leaves when power goes between the superblock of a commit and the
/// clearing of an older copy of the same group: two entries with equal sequence numbers.
#[test]
fn behaviour_15_deviation_equal_sequence_numbers_are_no_error() {
    let rig = Rig::small(8);
    rig.forge(5, &[(1, 80, 4, 1), (6, 80, 4, 2), (3, 160, 4, 3)]);
    rig.run(async |life| {
        assert!(!life.status().failed);
        assert_eq!(life.read(10, 1).await, [2], "the higher slot is the newer one");
        assert!(life.write(10, 1, 9).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert!(life.discard(11, 1).await.is_ok());
    });
    rig.run(async |life| assert_eq!((life.read(10, 1).await, life.read(20, 1).await), (vec![9], vec![3])));
    assert_eq!(rig.entry(1).seq, SEQ_FREE);
}

#[test]
fn behaviour_16_the_higher_sequence_number_is_served_and_the_other_entry_cleared() {
    for (older, newer) in [(2, 5), (5, 2)] {
        let rig = Rig::small(8);
        rig.forge(9, &[(older, 80, 3, 1), (newer, 80, 8, 2)]);
        let steps = rig.tape.borrow().steps.len();
        rig.run(async |life| {
            assert_eq!(life.read(10, 1).await, [2]);
            assert_eq!(life.status().free, 7);
        });
        assert_eq!(rig.entry(older).seq, SEQ_FREE);
        assert_eq!(rig.on_media(), [(newer, 80)]);
        let tape = rig.tape.borrow();
        let steps = tape.steps[steps..].iter().filter(|step| step.writes() || step.seen == Seen::Flush);
        let flushes: Vec<bool> = steps.map(|step| step.seen == Seen::Flush).collect();
        assert_eq!(flushes, [true, false, true], "durable before it loses a copy, cleared, and that durable");
    }
}

#[test]
fn entries_that_were_never_committed_are_free_after_recovery() {
    let rig = Rig::small(8);
    rig.forge(5, &[(0, 80, 5, 1), (1, 88, 6, 1), (2, 96, 4, 1)]);
    let status = rig.run(async |life| life.status());
    assert_eq!((status.free, status.dirty), (7, 1));
    assert_eq!((rig.entry(0).seq, rig.entry(1).seq), (SEQ_FREE, SEQ_FREE));
}

#[test]
fn entries_that_cannot_be_true_are_refused_before_anything_is_written() {
    let rig = Rig::small(8);
    rig.forge(5, &[(0, 83, 1, 1)]);
    assert!(matches!(rig.refusal(), OpenError::Damaged { count: 1, slot: 0, sector: 83 }));
    rig.forge(5, &[(7, rig.sectors, 1, 1)]);
    let expected = OpenError::OriginTooSmall { needed: rig.sectors + 8, sectors: rig.sectors };
    assert_eq!(rig.refusal(), expected);
}

#[test]
fn a_device_without_room_for_a_block_is_refused() {
    for bytes in [0, 512, 4096, 4608] {
        let rig = Rig::new(bytes, 16 * MIB, 4096);
        assert!(matches!(rig.refusal(), OpenError::Format(FormatError::NoRoom { .. })), "{bytes} bytes");
    }
    let rig = Rig::new(8192, 16 * MIB, 4096);
    assert_eq!(rig.run(async |life| life.status().blocks), 1);
    assert_eq!(fast_bytes(1, 4096), 8192);
}
