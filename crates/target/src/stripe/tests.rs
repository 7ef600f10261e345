//! Stripes against a flat model.

use super::*;
use crate::below::testing::{Disk, Ends, content, extent, read, status_of, told, write};
use forebay_block::{Ability, Flags};
use proptest::prelude::*;

fn striped(disks: &[Rc<Disk>], chunk: u64, sectors: u64) -> Result<Stripe, BuildError> {
    let columns = disks.iter().enumerate().map(|(at, disk)| (Rc::clone(disk) as Rc<dyn Target>, Sector(at as u64))).collect();
    Stripe::new(columns, SectorCount(chunk), SectorCount(sectors))
}

fn disks(count: usize, sectors: usize) -> Vec<Rc<Disk>> {
    (0..count).map(|_| Disk::new(sectors)).collect()
}

#[test]
fn chunks_are_dealt_in_turn_from_each_offset() {
    let disks = disks(3, 20);
    let stripe = striped(&disks, 4, 36).unwrap();
    for sector in 0..36 {
        let mark = u8::try_from(sector).unwrap();
        assert_eq!(status_of(&stripe, write(sector, &[mark; 512])), Status::Ok);
        let chunk = sector / 4;
        let expected = extent(chunk % 3 + chunk / 3 * 4 + sector % 4, 1);
        let column = usize::try_from(chunk % 3).unwrap();
        assert_eq!(disks[column].take_seen(), [(Op::Write, expected)], "sector {sector}");
    }
    let (bio, bytes) = read(0, 36);
    assert_eq!(status_of(&stripe, bio), Status::Ok);
    assert!(content(bytes).chunks(512).enumerate().all(|(sector, bytes)| bytes.iter().all(|byte| usize::from(*byte) == sector)));
}

#[test]
fn a_flush_reaches_every_column_and_an_error_of_one_is_the_result() {
    let disks = disks(3, 20);
    let stripe = striped(&disks, 4, 36).unwrap();
    disks[1].fails.set(Status::NoSpace);
    assert_eq!(status_of(&stripe, Bio::flush()), Status::NoSpace);
    assert!(disks.iter().all(|disk| disk.take_seen() == [(Op::Flush, extent(0, 0))]));
    assert_eq!(status_of(&stripe, write(0, &vec![0; 36 * 512])), Status::NoSpace);
    assert_eq!(status_of(&stripe, write(0, &[0; 4 * 512])), Status::Ok, "the first column is well");
}

#[test]
fn a_column_without_flushes_does_not_hide_that_of_the_others() {
    let without = Disk::with_limits(20, Limits { flush: Ability::No, ..Limits::unlimited() });
    let disks = [without, Disk::new(20)];
    let stripe = striped(&disks, 4, 32).unwrap();
    assert_eq!((stripe.limits().flush, status_of(&stripe, Bio::flush())), (Ability::Native, Status::Ok));
    assert_eq!((disks[0].take_seen(), disks[1].take_seen()), (vec![], vec![(Op::Flush, extent(0, 0))]));
}

#[test]
fn a_bio_over_several_columns_ends_with_the_last() {
    let disks = disks(2, 20);
    let stripe = striped(&disks, 4, 32).unwrap();
    disks[0].hold.set(true);
    let ends = Rc::new(Ends::default());
    ends.submit(&stripe, write(0, &[1; 8 * 512]), 9);
    assert_eq!(ends.0.borrow().len(), 0);
    disks[0].end_held(0);
    assert_eq!(ends.0.take(), [(9, Status::Ok)]);
}

#[test]
fn a_bio_that_may_not_wait_is_not_cut() {
    let disks = disks(2, 20);
    let stripe = striped(&disks, 4, 32).unwrap();
    let no_wait = Flags { no_wait: true, ..Flags::default() };
    assert_eq!(status_of(&stripe, write(3, &[1; 1024]).with(no_wait)), Status::Again);
    assert!(disks.iter().all(|disk| disk.take_seen().is_empty()));
    assert_eq!(status_of(&stripe, write(2, &[1; 1024]).with(no_wait)), Status::Ok);
}

#[test]
fn holes_of_all_columns_are_put_together_as_they_were_dealt() {
    let disks = disks(3, 20);
    let stripe = striped(&disks, 4, 36).unwrap();
    assert_eq!(told(&stripe, extent(0, 36)), [(36, true)]);
    for sector in [3, 4, 5, 8, 9, 10, 11, 12, 30] {
        assert_eq!(status_of(&stripe, write(sector, &[1; 512])), Status::Ok);
    }
    let all = [(3, true), (3, false), (2, true), (5, false), (17, true), (1, false), (5, true)];
    assert_eq!(told(&stripe, extent(0, 36)), all);
    assert_eq!(told(&stripe, extent(9, 22)), [(4, false), (17, true), (1, false)]);
}

#[test]
fn lengths_must_be_divisible() {
    let error = |count, chunk, sectors| striped(&disks(count, 64), chunk, sectors).err().unwrap().to_string();
    assert_eq!(error(0, 4, 32), "striped: number of stripes is 0: give at least 1");
    assert_eq!(error(2, 0, 32), "striped: chunk size is 0: give at least 1");
    assert_eq!(error(2, 4, 0), "striped: length is 0: give at least 1");
    assert_eq!(error(3, 4, 32), "striped: length 32 is not a multiple of 3");
    assert_eq!(error(2, 4, 36), "striped: length of a stripe 18 is not a multiple of 4");
    let too_long = "linear: sectors 1+64 do not fit the 64 sectors below: choose a smaller length or offset";
    assert_eq!(error(2, 4, 128), too_long);
    let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
    let below: Rc<dyn Target> = Disk::with_limits(64, limits);
    let stripe = Stripe::new(vec![(below, Sector(0))], SectorCount(4), SectorCount(64));
    assert_eq!(stripe.err().unwrap().to_string(), "striped: chunk size 4 is not a multiple of 8");
}

#[test]
fn the_preferred_size_covers_all_columns() {
    let stripe = striped(&disks(3, 64), 8, 48).unwrap();
    assert_eq!((stripe.limits().preferred_bytes, stripe.sectors(), stripe.kind()), (3 * 4096, SectorCount(48), "striped"));
}

proptest! {
    #[test]
    fn a_stripe_is_a_flat_disk(
        count in 1..5_usize, chunk in 1..6_u64, rows in 1..6_u64,
        steps in proptest::collection::vec((0..3_u8, 0..200_u64, 1..80_u64), 1..30),
    ) {
        let sectors = count as u64 * chunk * rows;
        let disks = disks(count, 64);
        let stripe = striped(&disks, chunk, sectors).unwrap();
        let mut model = vec![0; usize::try_from(sectors * 512).unwrap()];
        for (number, (kind, start, length)) in steps.into_iter().enumerate() {
            let start = start % sectors;
            let length = length.min(sectors - start);
            let range = usize::try_from(start * 512).unwrap()..usize::try_from((start + length) * 512).unwrap();
            let bio = match kind {
                0 => {
                    let mark = u8::try_from(number + 1).unwrap();
                    let bytes: Vec<u8> = (0..length * 512).map(|at| mark ^ u8::try_from(at / 512).unwrap()).collect();
                    model[range].copy_from_slice(&bytes);
                    write(start, &bytes)
                }
                1 => {
                    model[range].fill(0);
                    Bio::write_zeroes(extent(start, length))
                }
                _ => {
                    model[range].fill(0);
                    Bio::discard(extent(start, length))
                }
            };
            prop_assert_eq!(status_of(&stripe, bio), Status::Ok);
            for disk in &disks {
                let parts = disk.take_seen().len();
                prop_assert!(kind == 0 || parts <= 1, "one share for each column");
            }
            let (bio, bytes) = read(0, usize::try_from(sectors).unwrap());
            prop_assert_eq!(status_of(&stripe, bio), Status::Ok);
            for disk in &disks {
                disk.take_seen();
            }
            prop_assert_eq!(&content(bytes), &model);
        }
    }
}
