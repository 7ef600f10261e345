//! What the log holds after writes, flushes and marks in every order.

use super::format::{FormatError, Log, MARK};
use super::*;
use crate::below::testing::{Disk, Ends, JumpingClock, content, extent, read, status_of, told, write};
use forebay_block::Flags;
use forebay_reactor::Reactor;
use proptest::prelude::*;

fn fua() -> Flags {
    Flags { fua: true, ..Flags::default() }
}

struct Setup {
    disk: Rc<Disk>,
    log: Rc<Disk>,
    target: LogWrites,
}

fn setup() -> Setup {
    let (disk, log) = (Disk::new(64), Disk::new(1024));
    let target = LogWrites::new(disk.clone(), log.clone()).unwrap();
    Setup { disk, log, target }
}

/// What an entry is, for comparing: flags, sector, sectors, first byte of the data or mark.
type Seen = (u64, u64, u64, u8);

fn entries(log: &Disk) -> Result<Vec<Seen>, FormatError> {
    let bytes = log.bytes.borrow();
    let seen = |entry: format::Entry<'_>| {
        let first = entry.bytes.first().or(entry.mark.first()).copied();
        (entry.head.flags, entry.head.sector, entry.head.sectors, first.unwrap_or(0))
    };
    Log::open(&bytes)?.map(|entry| entry.map(seen)).collect()
}

#[test]
fn writes_are_logged_by_the_flush_that_covers_them_in_order_of_their_ends() {
    // The documented example: W1 W2 W3, C3 C2, flush, C1, Cflush.
    let Setup { disk, log, target } = setup();
    let ends = Rc::new(Ends::default());
    disk.hold.set(true);
    for number in 1..=3 {
        ends.submit(&target, write(number, &[u8::try_from(number).unwrap(); 512]), number);
    }
    disk.end_held(2);
    disk.end_held(1);
    ends.submit(&target, Bio::flush(), 9);
    disk.end_held(0);
    assert_eq!(entries(&log), Ok(vec![]), "nothing is durable yet");
    disk.end_held(0);
    assert_eq!(entries(&log), Ok(vec![(0, 3, 1, 3), (0, 2, 1, 2), (FLUSH, 0, 0, 0)]));
    disk.hold.set(false);
    assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
    assert_eq!(entries(&log).unwrap()[3..], [(0, 1, 1, 1), (FLUSH, 0, 0, 0)]);
    let order: Vec<u64> = ends.0.take().iter().map(|(token, _)| *token).collect();
    assert_eq!(order, [3, 2, 1, 9]);
}

#[test]
fn holes_are_those_of_the_target_and_not_logged() {
    let Setup { log, target, .. } = setup();
    assert_eq!(status_of(&target, write(4, &[1; 1024])), Status::Ok);
    assert_eq!(told(&target, extent(0, 64)), [(4, true), (2, false), (58, true)]);
    assert_eq!(entries(&log), Ok(vec![]));
}

#[test]
fn a_fua_write_is_logged_when_it_ends_and_covers_nothing_else() {
    let Setup { log, target, .. } = setup();
    assert_eq!(status_of(&target, write(4, &[1; 1024])), Status::Ok);
    assert_eq!(status_of(&target, write(6, &[2; 512]).with(fua())), Status::Ok);
    let meta = Flags { meta: true, ..Flags::default() };
    assert_eq!(status_of(&target, write(8, &[3; 512]).with(meta)), Status::Ok);
    assert_eq!(entries(&log), Ok(vec![(FUA, 6, 1, 2)]));
    assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
    assert_eq!(entries(&log).unwrap()[1..], [(0, 4, 2, 1), (METADATA, 8, 1, 3), (FLUSH, 0, 0, 0)]);
}

#[test]
fn discards_zeroes_and_marks_are_logged_and_reads_are_not() {
    let Setup { log, target, .. } = setup();
    assert_eq!(status_of(&target, Bio::discard(extent(8, 16))), Status::Ok);
    assert_eq!(status_of(&target, Bio::write_zeroes(extent(0, 40))), Status::Ok);
    let (bio, bytes) = read(0, 4);
    assert_eq!(status_of(&target, bio), Status::Ok);
    assert_eq!(content(bytes), [0; 2048]);
    target.mark("before").unwrap();
    assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
    let expected = vec![(MARK, 0, 0, b'b'), (DISCARD, 8, 16, 0), (0, 0, 40, 0), (FLUSH, 0, 0, 0)];
    assert_eq!(entries(&log), Ok(expected));
    assert_eq!(target.entries(), 4);
}

#[test]
fn zeroes_longer_than_their_memory_are_logged_in_full() {
    let (disk, log) = (Disk::new(2048), Disk::new(4096));
    log.bytes.borrow_mut().fill(0xAA);
    let target = LogWrites::new(disk, log.clone()).unwrap();
    assert_eq!(status_of(&target, Bio::write_zeroes(extent(7, 300)).with(fua())), Status::Ok);
    let bytes = log.bytes.borrow();
    let entry = Log::open(&bytes).unwrap().next().unwrap().unwrap();
    assert_eq!((entry.head.sector, entry.head.sectors), (7, 300));
    assert_eq!(entry.bytes, vec![0; 300 * 512]);
}

#[test]
fn the_data_is_the_one_of_the_submission() {
    let Setup { disk, log, target } = setup();
    disk.hold.set(true);
    let ends = Rc::new(Ends::default());
    let payload = crate::below::testing::memory(&[5; 512]);
    let bio = Bio::write(forebay_block::Sector(0), Rc::clone(&payload), 0, 512).with(fua());
    ends.submit(&target, bio, 0);
    Bio::read(forebay_block::Sector(0), payload, 0, 512).copy_in(&[6; 512]);
    disk.end_held(0);
    assert_eq!(entries(&log), Ok(vec![(FUA, 0, 1, 5)]));
}

#[test]
fn failed_writes_are_not_logged_and_a_failed_flush_covers_nothing() {
    let Setup { disk, log, target } = setup();
    assert_eq!(status_of(&target, write(1, &[1; 512])), Status::Ok);
    disk.fails.set(Status::IoError);
    assert_eq!(status_of(&target, write(2, &[2; 512])), Status::IoError);
    assert_eq!(status_of(&target, Bio::flush()), Status::IoError);
    disk.fails.set(Status::Ok);
    assert_eq!(entries(&log), Ok(vec![]));
    assert_eq!(status_of(&target, write(3, &[3; 512])), Status::Ok);
    assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
    assert_eq!(entries(&log), Ok(vec![(0, 1, 1, 1), (0, 3, 1, 3), (FLUSH, 0, 0, 0)]));
}

#[test]
fn the_super_counts_only_entries_that_are_on_the_log() {
    let Setup { log, target, .. } = setup();
    log.hold.set(true);
    assert_eq!(status_of(&target, write(1, &[1; 512])), Status::Ok);
    assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
    target.mark("later").unwrap();
    // In flight: the write and the flush. The second to arrive must not be counted before the first.
    log.end_held(1);
    assert_eq!(entries(&log), Ok(vec![]));
    log.end_held(0);
    assert_eq!(entries(&log), Ok(vec![]), "the super is on its way");
    log.end_held(0);
    assert_eq!(entries(&log).unwrap().len(), 2);
    log.hold.set(false);
    log.end_held(0);
    assert_eq!(entries(&log).unwrap()[2..], [(MARK, 0, 0, b'l')]);
}

#[test]
fn a_full_log_ends_the_log_and_no_bio() {
    let (disk, log) = (Disk::new(64), Disk::new(6));
    let target = LogWrites::new(disk, log.clone()).unwrap();
    assert_eq!(status_of(&target, write(0, &[1; 512]).with(fua())), Status::Ok);
    assert_eq!(status_of(&target, write(0, &[1; 1536]).with(fua())), Status::Ok);
    assert_eq!(target.state(), LogState::Full);
    assert_eq!(status_of(&target, write(0, &[1; 512]).with(fua())), Status::Ok);
    assert_eq!(entries(&log), Ok(vec![(FUA, 0, 1, 1)]));
    assert_eq!(target.mark("no").unwrap_err().to_string(), "log-writes: the mark was not logged: the log device is full");
}

#[test]
fn a_failed_log_ends_the_log_and_no_bio() {
    let Setup { log, target, .. } = setup();
    log.fails.set(Status::NoSpace);
    assert_eq!(status_of(&target, write(0, &[1; 512]).with(fua())), Status::Ok);
    assert_eq!(target.state(), LogState::Failed(Status::NoSpace));
    log.fails.set(Status::Ok);
    assert_eq!(status_of(&target, write(0, &[1; 512]).with(fua())), Status::Ok);
    assert_eq!(entries(&log), Ok(vec![]));
}

#[test]
fn a_mark_must_fit_its_sector() {
    let Setup { target, .. } = setup();
    target.mark(&"m".repeat(480)).unwrap();
    let error = target.mark(&"m".repeat(481)).unwrap_err().to_string();
    assert_eq!(error, "log-writes: the mark has 481 bytes, and at most 480 fit: shorten it");
}

#[test]
fn closing_logs_what_no_flush_covered() {
    let Setup { log, target, .. } = setup();
    assert_eq!(status_of(&target, write(1, &[1; 512])), Status::Ok);
    log.hold.set(true);
    let reactor = Reactor::new(Box::new(JumpingClock::default()));
    let device = log.clone();
    let ender = async {
        let state = target.close();
        let mut state = std::pin::pin!(state);
        poll_fn(|cx| {
            let done = std::future::Future::poll(state.as_mut(), cx);
            if done.is_pending() {
                device.end_held(0);
                cx.waker().wake_by_ref();
            }
            done
        })
        .await
    };
    assert_eq!(reactor.run(ender).unwrap(), LogState::Logging);
    assert_eq!(entries(&log), Ok(vec![(0, 1, 1, 1), (MARK, 0, 0, b'd')]));
    assert_eq!(log.take_seen().last(), Some(&(Op::Flush, extent(0, 0))));
}

#[test]
fn sectors_of_the_log_are_the_larger_block_of_both() {
    let large = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
    let log = Disk::with_limits(1024, large);
    let target = LogWrites::new(Disk::new(64), log.clone()).unwrap();
    assert_eq!(target.limits().logical_bytes, 4096);
    assert_eq!(status_of(&target, write(16, &[4; 8192]).with(fua())), Status::Ok);
    assert_eq!(entries(&log), Ok(vec![(FUA, 2, 2, 4)]));
    let error = |below, log| LogWrites::new(below, log).err().unwrap().to_string();
    let short = error(Disk::new(64), Disk::with_limits(8, large));
    assert_eq!(short, "log-writes: sectors 0+16 do not fit the 8 sectors below: choose a smaller length or offset");
    assert_eq!(error(Disk::new(60), Disk::with_limits(1024, large)), "log-writes: length 60 is not a multiple of 8");
}

proptest! {
    /// Replaying the log up to the last flush gives the disk as it was at that flush, when all
    /// writes ended before.
    #[test]
    fn replay_gives_the_disk_as_of_every_flush(steps in proptest::collection::vec((0..6_u8, 0..60_u64, 1..12_u64), 1..40)) {
        let (disk, log) = (Disk::new(64), Disk::new(4096));
        let target = LogWrites::new(disk.clone(), log.clone()).unwrap();
        let mut flushed = Vec::new();
        for (number, (kind, sector, sectors)) in steps.into_iter().enumerate() {
            let extent = extent(sector, sectors.min(64 - sector));
            let bio = match kind {
                0 => Bio::flush(),
                1 => Bio::discard(extent),
                2 => Bio::write_zeroes(extent),
                _ => write(sector, &vec![u8::try_from(number + 1).unwrap(); usize::try_from(extent.count.to_bytes()).unwrap()]),
            };
            prop_assert_eq!(status_of(&target, bio), Status::Ok);
            if kind == 0 {
                flushed.push(disk.bytes.borrow().clone());
            }
        }
        let bytes = log.bytes.borrow();
        let mut replayed = vec![0; 64 * 512];
        let mut flushes = flushed.iter();
        for entry in Log::open(&bytes).unwrap() {
            let entry = entry.unwrap();
            prop_assert!(entry.apply(&mut replayed));
            if entry.head.flags & FLUSH != 0 {
                prop_assert_eq!(Some(&replayed), flushes.next());
            }
        }
        prop_assert_eq!(flushes.next(), None);
    }
}
