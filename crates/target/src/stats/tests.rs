//! What is counted, and that nothing else changes.

use super::*;
use crate::below::testing::{Disk, Ends, content, extent, read, status_of, told, write};
use forebay_block::Status;

#[test]
fn requests_bytes_and_errors_are_counted_by_operation() {
    let disk = Disk::new(64);
    let stats = Stats::new(disk.clone());
    assert_eq!(status_of(&stats, write(0, &[5; 512])), Status::Ok);
    assert_eq!(status_of(&stats, write(1, &[6; 1536])), Status::Ok);
    assert_eq!(status_of(&stats, Bio::flush()), Status::Ok);
    assert_eq!(status_of(&stats, Bio::discard(extent(8, 56))), Status::Ok);
    let (bio, bytes) = read(1, 2);
    assert_eq!(status_of(&stats, bio), Status::Ok);
    assert_eq!(content(bytes), [6; 1024]);
    disk.fails.set(Status::NoSpace);
    assert_eq!(status_of(&stats, write(0, &[0; 512])), Status::NoSpace);
    assert_eq!(status_of(&stats, Bio::write_zeroes(extent(0, 64))), Status::NoSpace);

    let counted = stats.snapshot();
    let totals = |op| (counted.of(op).requests, counted.of(op).bytes, counted.of(op).errors);
    assert_eq!(totals(Op::Read), (1, 1024, 0));
    assert_eq!(totals(Op::Write), (3, 2560, 1));
    assert_eq!(totals(Op::Flush), (1, 0, 0));
    assert_eq!(totals(Op::Discard), (1, 28_672, 0));
    assert_eq!(totals(Op::WriteZeroes), (1, 32_768, 1));
    assert_eq!(counted.in_flight, 0);
    let bucket = |op, at: usize| counted.of(op).sizes[at];
    assert_eq!((bucket(Op::Write, 0), bucket(Op::Write, 1), bucket(Op::Read, 1)), (2, 1, 1));
    assert_eq!((bucket(Op::Discard, 5), bucket(Op::WriteZeroes, 6)), (1, 1));
    assert_eq!(counted.of(Op::Flush).sizes, [0; SIZE_BUCKETS]);
    let kinds: Vec<Op> = disk.take_seen().iter().map(|(op, _)| *op).collect();
    assert_eq!(kinds, [Op::Write, Op::Write, Op::Flush, Op::Discard, Op::Read, Op::Write, Op::WriteZeroes]);
}

#[test]
fn holes_are_told_and_not_counted() {
    let disk = Disk::new(64);
    disk.bytes.borrow_mut()[512..1024].fill(1);
    let stats = Stats::new(disk);
    assert_eq!(told(&stats, extent(0, 64)), [(1, true), (1, false), (62, true)]);
    assert_eq!(stats.snapshot(), Snapshot::default());
}

#[test]
fn bios_in_flight_may_end_in_any_order() {
    let disk = Disk::new(64);
    disk.hold.set(true);
    let stats = Stats::new(disk.clone());
    let ends = Rc::new(Ends::default());
    for token in 0..4 {
        ends.submit(&stats, write(token, &[1; 512]), token);
    }
    assert_eq!(stats.snapshot().in_flight, 4);
    disk.end_held(2);
    disk.end_held(0);
    ends.submit(&stats, Bio::flush(), 4);
    while stats.snapshot().in_flight > 0 {
        disk.end_held(0);
    }
    let order: Vec<u64> = ends.0.take().iter().map(|(token, _)| *token).collect();
    assert_eq!(order, [2, 0, 1, 3, 4]);
}

#[test]
fn huge_requests_fall_into_the_last_bucket() {
    let counters = Counters::default();
    counters.enter(1 << 62);
    assert_eq!(counters.counts().sizes[SIZE_BUCKETS - 1], 1);
}
