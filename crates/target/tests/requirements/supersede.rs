//! Bypassed writes, zeroes and discards that supersede cached copies: a power cut never uncovers
//! something older than flushed data.

use forebay_block::{Ability, Bio, Extent, Limits, Op, Sector, SectorCount, Status, call};

use crate::support::Seen;
use crate::support::rig::{Life, Rig};
use crate::support::tape::Disk;

/// Cuts the power in front of every step from `from` on and checks that every sector of block 5 is
/// one of what `allowed` gives for that cut.
fn after_cuts(rig: &Rig, from: usize, allowed: impl Fn(usize) -> &'static [u8]) {
    let mut rng = fastrand::Rng::with_seed(3);
    let (fast, origin) = (vec![0; rig.fast.borrow().bytes.len()], vec![0; rig.origin.borrow().bytes.len()]);
    let steps = rig.tape.borrow().steps.len();
    for cut in from..=steps {
        for _ in 0..8 {
            let other = small();
            let keep = [0, 50, 100][rng.usize(..3)];
            other.fast.borrow_mut().bytes = rig.tape.borrow().image(Disk::Fast, &fast, cut, || rng.u32(..100) < keep);
            other.origin.borrow_mut().bytes = rig.tape.borrow().image(Disk::Origin, &origin, cut, || rng.u32(..100) < keep);
            let stamps = other.run(async |life| life.read_sectors(40, 8).await.unwrap());
            let fits = stamps.iter().all(|stamp| allowed(cut).contains(stamp));
            assert!(fits, "cut in front of step {cut} of {from}..{steps}: {stamps:?}");
        }
    }
}

fn small() -> Rig {
    let mut rig = Rig::new(16 * 4096 + 4096, 1 << 20, 4096);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(100), Some(100));
    rig
}

/// Block 5 is 1 on the origin and 2 in the cache, both durable.
async fn newer_in_the_cache(life: &Life) {
    assert!(life.write(5, 1, 1).await.is_ok());
    life.cache.message(&["flush"]).await.unwrap();
    assert!(life.write_fua(5, 1, 2).await.is_ok());
}

#[test]
fn zeroes_are_durable_on_the_origin_before_the_cached_copy_goes() {
    let rig = small();
    let (from, flushed) = rig.run(async |life| {
        newer_in_the_cache(life).await;
        let from = rig.tape.borrow().steps.len();
        assert!(life.write_zeroes(4, 3).await.is_ok());
        assert_eq!(life.read(4, 3).await, [0; 3]);
        assert_eq!(rig.on_media(), [], "the entry is cleared when the request ends");
        assert!(life.flush().await.is_ok());
        (from, rig.tape.borrow().steps.len())
    });
    after_cuts(&rig, from, |cut| if cut < flushed { &[0, 2] } else { &[0] });
}

#[test]
fn zeroes_of_uncommitted_blocks_leave_the_durable_copy_until_then() {
    let rig = small();
    let (from, flushed) = rig.run(async |life| {
        newer_in_the_cache(life).await;
        let from = rig.tape.borrow().steps.len();
        assert!(life.write(5, 1, 3).await.is_ok());
        assert!(life.write_zeroes(5, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        (from, rig.tape.borrow().steps.len())
    });
    after_cuts(&rig, from, |cut| if cut < flushed { &[0, 2, 3] } else { &[0] });
}

#[test]
fn zeroes_of_part_of_a_block_and_on_an_origin_without_them_go_through_the_cache() {
    let rig = small();
    rig.run(async |life| {
        assert!(life.write(5, 2, 1).await.is_ok());
        assert!(call(&*life.cache, Bio::write_zeroes(Extent::new(Sector(44), SectorCount(6)))).await.status().is_ok());
        assert_eq!(life.read_sectors(40, 16).await.unwrap(), [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(rig.tape.borrow().on(Disk::Origin).filter(|step| step.writes()).count(), 0);
    });
    let mut rig = small();
    rig.origin_limits = Limits { write_zeroes: Ability::No, ..Limits::unlimited() };
    rig.run(async |life| {
        assert!(life.write(5, 3, 1).await.is_ok());
        assert!(life.write_zeroes(4, 3).await.is_ok());
        assert_eq!(life.read(4, 4).await, [0, 0, 0, 1]);
        assert_eq!(rig.tape.borrow().on(Disk::Origin).filter(|step| step.writes()).count(), 0);
    });
}

#[test]
fn failed_zeroes_leave_the_cached_copy() {
    let rig = small();
    rig.run(async |life| {
        newer_in_the_cache(life).await;
        rig.origin.borrow_mut().bad.push((Op::WriteZeroes, 40));
        assert_eq!(life.write_zeroes(5, 1).await, Status::IoError);
        assert_eq!(life.read(5, 1).await, [2]);
        rig.origin.borrow_mut().bad.clear();
        assert!(life.write_zeroes(5, 1).await.is_ok());
        assert_eq!(life.read(5, 1).await, [0]);
    });
}

#[test]
fn a_discarded_block_reads_as_something_it_once_was() {
    let rig = small();
    let from = rig.run(async |life| {
        newer_in_the_cache(life).await;
        assert!(life.write(6, 1, 9).await.is_ok());
        let from = rig.tape.borrow().steps.len();
        assert!(life.discard(5, 1).await.is_ok());
        assert!([0, 1, 2].contains(&life.read(5, 1).await[0]));
        assert!(life.write(5, 1, 4).await.is_ok());
        assert!(life.flush().await.is_ok());
        assert_eq!(life.read(5, 2).await, [4, 9]);
        from
    });
    let steps = rig.tape.borrow().steps.len();
    after_cuts(&rig, from, |cut| if cut < steps { &[0, 1, 2, 4] } else { &[4] });
}

#[test]
fn a_write_past_the_cache_after_a_discard_is_not_hidden_by_an_older_copy() {
    let rig = small();
    let (from, flushed) = rig.run(async |life| {
        newer_in_the_cache(life).await;
        assert!(life.write(5, 1, 3).await.is_ok());
        life.cache.message(&["cleaner"]).await.unwrap();
        assert!(life.discard(5, 1).await.is_ok());
        let from = rig.tape.borrow().steps.len();
        assert!(life.write(5, 1, 6).await.is_ok());
        assert_eq!(life.status().around, 1);
        assert!(life.flush().await.is_ok());
        (from, rig.tape.borrow().steps.len())
    });
    after_cuts(&rig, from, |cut| if cut < flushed { &[0, 1, 2, 3, 6] } else { &[6] });
}

/// A block goes home, and is then written past the full cache before its entry is cleared.
#[test]
fn a_durable_bypassed_write_is_not_hidden_by_the_entry_of_what_went_home() {
    let mut rig = small();
    rig.options.max_age_ms = Some(1000);
    let from = rig.run(async |life| {
        assert!(life.write_fua(5, 1, 1).await.is_ok());
        assert!(
            life.until(2000, || rig.tape.borrow().on(Disk::Origin).any(|step| matches!(step.seen, Seen::Write(40, ..)))).await
        );
        life.cache.message(&["cleaner"]).await.unwrap();
        assert!(life.write_fua(5, 1, 2).await.is_ok());
        rig.tape.borrow().steps.len()
    });
    after_cuts(&rig, from, |_| &[2]);
}

#[test]
fn a_discard_below_waits_for_nothing_and_reaches_the_origin() {
    let rig = small();
    rig.run(async |life| {
        assert!(life.discard(20, 4).await.is_ok());
        assert_eq!(rig.tape.borrow().steps.last().map(|step| step.seen.clone()), Some(Seen::Discard(160, 32)));
        assert_eq!((life.status().discards, life.status().discarded), (1, 4));
    });
    let mut rig = small();
    rig.origin_limits = Limits { discard: Ability::No, ..Limits::unlimited() };
    rig.run(async |life| {
        newer_in_the_cache(life).await;
        assert!(life.discard(5, 1).await.is_ok());
        assert!(!rig.tape.borrow().on(Disk::Origin).any(|step| matches!(step.seen, Seen::Discard(..))));
        assert_eq!(rig.on_media(), []);
    });
}
