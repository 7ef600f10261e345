//! What a metadata device may hold, and what opening makes of it.

use forebay_block::{Limits, Status};

use super::*;
use crate::below::testing::Disk;
use crate::clone::format::FormatError;
use crate::clone::request::tests::{Bench, SECTORS};

/// Bytes of the first and of the second copy of page 0.
const COPIES: [usize; 2] = [2 * PAGE_BYTES, 3 * PAGE_BYTES];

/// A clone of which regions 2 and 5 are hydrated, closed.
fn used() -> Bench {
    let mut bench = Bench::new();
    let clone = bench.still();
    bench.write(&clone, 16, 8, 7);
    bench.flush(&clone);
    bench.write(&clone, 40, 8, 7);
    assert_eq!(bench.close(&clone), Status::Ok);
    bench.kill();
    bench
}

fn hydrated(bench: &Bench) -> Result<u32, OpenError> {
    bench.try_open("8 1 no_hydration").map(|clone| clone.status().hydrated)
}

#[test]
fn a_closed_clone_has_everything_in_both_copies() {
    let bench = used();
    let bytes = bench.metadata.bytes.borrow().clone();
    let [first, second] = COPIES.map(|at| &bytes[at..at + PAGE_BYTES]);
    assert_eq!((first, &bytes[..PAGE_BYTES]), (second, &bytes[PAGE_BYTES..2 * PAGE_BYTES]));
    assert_eq!((hydrated(&bench), &*bench.metadata.bytes.borrow()), (Ok(2), &bytes), "opening writes nothing");
}

#[test]
fn one_damaged_copy_is_mended_from_the_other_and_two_are_refused() {
    for copy in COPIES {
        let mut bench = used();
        let before = bench.metadata.bytes.borrow().clone();
        bench.metadata.bytes.borrow_mut()[copy + 100] ^= 1;
        assert_eq!(hydrated(&bench), Ok(2));
        assert_eq!(*bench.metadata.bytes.borrow(), before);
        bench.kill();
    }
    let bench = used();
    for copy in COPIES {
        bench.metadata.bytes.borrow_mut()[copy + 100] ^= 1;
    }
    let before = bench.metadata.bytes.borrow().clone();
    assert_eq!(hydrated(&bench), Err(OpenError::Format(FormatError::Page { page: 0 })));
    assert_eq!(*bench.metadata.bytes.borrow(), before);
}

#[test]
fn a_copy_that_cannot_be_read_is_an_error_and_zeroes_in_its_place_are_mended() {
    for copy in COPIES {
        let mut bench = used();
        bench.metadata.bad_sector.set(Some(copy as u64 / 512));
        assert_eq!(hydrated(&bench), Err(OpenError::Unreadable));
        bench.kill();
        bench.metadata.bad_sector.set(None);
        bench.metadata.bytes.borrow_mut()[copy..copy + PAGE_BYTES].fill(0);
        assert_eq!(hydrated(&bench), Ok(2));
    }
    let bench = used();
    bench.metadata.fails.set(Status::IoError);
    assert_eq!(hydrated(&bench), Err(OpenError::Device { what: "reading the superblocks" }));
}

#[test]
fn a_crash_between_the_copies_leaves_the_first() {
    let mut bench = used();
    let old = bench.metadata.bytes.borrow()[COPIES[1]..].to_vec();
    let clone = bench.still();
    bench.write(&clone, 56, 8, 7);
    bench.flush(&clone);
    bench.kill();
    bench.metadata.bytes.borrow_mut()[COPIES[1]..].copy_from_slice(&old);
    assert_eq!(hydrated(&bench), Ok(3));
    let bytes = bench.metadata.bytes.borrow();
    assert_eq!(bytes[COPIES[0]..COPIES[1]], bytes[COPIES[1]..COPIES[1] + PAGE_BYTES]);
}

#[test]
fn metadata_of_another_clone_are_refused() {
    let bench = used();
    let error = bench.try_open("16 1 no_hydration").err().unwrap();
    assert_eq!(error, OpenError::Format(FormatError::Region { found: 8, wanted: 16 }));
    assert!(error.to_string().starts_with("the metadata cannot be used: it belongs to a clone with regions of 8 sectors"));
    bench.metadata.bytes.borrow_mut()[..2 * PAGE_BYTES].fill(0x55);
    assert_eq!(hydrated(&bench), Err(OpenError::Format(FormatError::Foreign)));
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let error = |bench: &Bench, words: &str| bench.try_open(words).err().unwrap().to_string();
    assert_eq!(error(&Bench::new(), "12"), "Invalid region size: 12 is not a power of two from 8 to 2097152");
    let mut bench = Bench::new();
    bench.source = Disk::new(SECTORS - 1);
    assert_eq!(error(&bench, "8"), "the source has 99 sectors, and 100 are needed: give a larger one");
    let mut bench = Bench::new();
    bench.metadata = Disk::new(31);
    assert_eq!(error(&bench, "8"), "the metadata device has 31 sectors, and 32 are needed: give a larger one");
    let mut bench = Bench::new();
    let limits = Limits { logical_bytes: 8192, physical_bytes: 8192, ..Limits::unlimited() };
    bench.destination = Disk::with_limits(112, limits);
    let blocks = "Region size is not a multiple of the destination device's logical block size: use a multiple of 16 sectors";
    assert_eq!(error(&bench, "8"), blocks);
    bench.destination = Disk::new(SECTORS);
    bench.metadata = Disk::with_limits(64, limits);
    assert!(error(&bench, "8").starts_with("the metadata device has blocks of 8192 bytes"));
}

#[test]
fn many_pages_are_read_and_written() {
    let mut bench = Bench::blank(8 * 70_000);
    let clone = bench.still();
    assert_eq!(clone.status().line(), "8 8/8 8 0/70000 0 1 no_hydration 4 hydration_threshold 1 hydration_batch_size 1 rw");
    bench.write(&clone, 8 * 69_999, 8, 7);
    bench.write(&clone, 8 * 32_511, 16, 7);
    bench.flush(&clone);
    bench.kill();
    let clone = bench.still();
    assert_eq!(clone.status().hydrated, 3);
    assert_eq!(bench.read(&clone, 8 * 69_998, 16), [vec![0; 8 * 512], vec![7; 8 * 512]].concat());
}
