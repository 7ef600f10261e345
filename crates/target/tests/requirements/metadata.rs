//! What commits cost in metadata writes, and what else these writes carry.

use forebay_block::Limits;
use forebay_target::cache::disk::{ENTRY_BYTES, SEQ_FREE};
use forebay_target::cache::options::Overwrite;

use crate::support::Seen;
use crate::support::rig::{Rig, entry, fast_bytes};
use crate::support::tape::{Disk, Step};

/// Bytes of metadata that a step wrote.
fn metadata_bytes(rig: &Rig, step: &Step) -> usize {
    match step.seen {
        Seen::Write(sector, ..) if sector * 512 < rig.geometry().metadata_bytes() && step.disk == Disk::Fast => step.bytes.len(),
        _ => 0,
    }
}

/// Rounds that nobody asked for clear many entries at once; each durable write pays for its own round
/// only, and the other rounds add less than a fourteenth.
#[test]
fn a_durable_write_of_one_block_costs_at_most_8_kib_of_metadata() {
    for overwrite in [Overwrite::Place, Overwrite::New] {
        for (logical_bytes, physical_bytes) in [(512, 512), (512, 4096), (4096, 4096)] {
            let mut rig = Rig::small(4000);
            rig.fast_limits = Limits { logical_bytes, physical_bytes, ..Limits::unlimited() };
            rig.options.overwrite = Some(overwrite);
            rig.run(async |life| {
                let mut rng = fastrand::Rng::with_seed(1);
                let (mut total, mut alone) = (0, 0);
                for number in 1..=3000_u64 {
                    let steps = rig.tape.borrow().steps.len();
                    assert!(life.write_fua(rng.u64(..1500), 1, number.to_le_bytes()[0] | 1).await.is_ok());
                    let tape = rig.tape.borrow();
                    let bytes: usize = tape.steps[steps..].iter().map(|step| metadata_bytes(&rig, step)).sum();
                    // One flush: nothing but the round of this write.
                    let own = tape.steps[steps..].iter().filter(|step| step.seen == Seen::Flush).count() == 1;
                    assert!(bytes <= 8192 || !own, "{bytes} bytes for write {number}, {overwrite:?}, units of {physical_bytes}");
                    total += bytes;
                    alone += u64::from(own);
                    assert!(total as u64 <= 8750 * number, "{total} bytes for {number} writes");
                }
                assert!(alone > 2900, "{alone} writes had a round of their own");
            });
        }
    }
}

/// Replays the tape and checks of every metadata write that nothing changes on media but the
/// superblock's number, entries of the group, and entries that are cleared.
fn check_metadata_writes(rig: &Rig) -> usize {
    let geometry = rig.geometry();
    let mut media = vec![0; usize::try_from(geometry.metadata_bytes()).unwrap()];
    let mut checked = 0;
    for step in rig.tape.borrow().steps.iter().filter(|step| metadata_bytes(rig, step) > 0) {
        let Seen::Write(sector, ..) = step.seen else { unreachable!("a metadata write is a write") };
        let at = usize::try_from(sector * 512).unwrap();
        let before = media.clone();
        media[at..at + step.bytes.len()].copy_from_slice(&step.bytes);
        if before[..4] == [0; 4] {
            continue;
        }
        checked += 1;
        let seq_count = u64::from_le_bytes(before[24..32].try_into().unwrap());
        assert!(media[..24] == before[..24] && media[32..64] == before[32..64], "of the superblock only the number changes");
        let new_count = u64::from_le_bytes(media[24..32].try_into().unwrap());
        assert!(new_count == seq_count || new_count == seq_count + 1);
        for slot in 0..geometry.blocks() {
            let (old, new) = (entry(&before, &geometry, slot), entry(&media, &geometry, slot));
            let fits = old == new || new.seq == SEQ_FREE || (old.seq >= seq_count && new.seq == seq_count);
            assert!(fits, "slot {slot} of group {seq_count}: {old:?} became {new:?}");
        }
        let end = 64 + geometry.blocks() as usize * ENTRY_BYTES;
        assert_eq!(media[end..], before[end..], "bytes behind the entries stay");
    }
    checked
}

#[test]
fn metadata_writes_change_nothing_but_what_they_are_for() {
    for (seed, physical_bytes) in [(1, 512), (2, 4096), (3, 512), (4, 4096)] {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut rig = Rig::new(fast_bytes(60_000, 512), 64 << 20, 512);
        rig.fast_limits = Limits { physical_bytes, ..Limits::unlimited() };
        rig.options.overwrite = Some(if seed % 2 == 0 { Overwrite::New } else { Overwrite::Place });
        let checked = rig.run(async |life| {
            for stamp in 1..120 {
                let (first, blocks) = (rng.u64(..50_000), [1, 1, 40, 3000][rng.usize(..4)]);
                match rng.u32(..8) {
                    0 => assert!(life.discard(first, blocks).await.is_ok()),
                    1 => assert!(life.flush().await.is_ok()),
                    2 => assert!(life.write_zeroes(first, blocks).await.is_ok()),
                    3 if rng.u32(..4) == 0 => life.cache.message(&["flush"]).await.unwrap(),
                    3 | 4 => assert!(life.write_fua(first, blocks, stamp).await.is_ok()),
                    _ => assert!(life.write(first, blocks, stamp).await.is_ok()),
                }
            }
            check_metadata_writes(&rig)
        });
        assert!(checked > 50, "{checked} metadata writes");
    }
}

/// Units that were written one by one, then as a whole by a discard, then one by one again.
#[test]
fn a_unit_that_was_remembered_and_then_written_with_others_is_not_brought_back() {
    let mut rig = Rig::new(fast_bytes(170_000, 512), 96 << 20, 512);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(100), Some(100));
    rig.run(async |life| {
        // So the only free slots are those of the blocks that are discarded.
        assert!(life.write_fua(1000, 169_800, 1).await.is_ok());
        for block in 0..200 {
            assert!(life.write_fua(block, 1, 1).await.is_ok());
        }
        assert!(life.discard(0, 200).await.is_ok());
        let discarded = || rig.on_media().into_iter().filter(|&(_, sector)| sector < 200).count();
        assert_eq!(discarded(), 0);
        for block in 500..700 {
            assert!(life.write_fua(block, 1, 2).await.is_ok());
        }
        assert_eq!(discarded(), 0, "entries came back");
    });
    check_metadata_writes(&rig);
}
