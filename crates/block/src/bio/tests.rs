//! Ends, parts and awaits of bios: each exactly once, in any order.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::bvec::HeapMemory;
use proptest::prelude::*;

/// Keeps what ended.
#[derive(Default)]
struct Ends(RefCell<Vec<(Bio, u64)>>);

impl End for Ends {
    fn bio_ended(&self, bio: Bio, token: u64) {
        self.0.borrow_mut().push((bio, token));
    }
}

impl Ends {
    fn statuses(&self) -> Vec<(u64, Status)> {
        self.0.borrow().iter().map(|(bio, token)| (*token, bio.status())).collect()
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, bell: &Arc<Bell>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(bell));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

fn payload(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 512)), bytes).unwrap()
}

fn write(ends: &Rc<Ends>, token: u64) -> Bio {
    Bio::write(Sector(100), payload(8192), 0, 8192).on_end(Rc::clone(ends) as Rc<dyn End>, token)
}

#[test]
fn an_ended_bio_comes_back_with_its_status_and_token() {
    let ends = Rc::new(Ends::default());
    write(&ends, 7).end(Status::NoSpace);
    assert_eq!(ends.statuses(), [(7, Status::NoSpace)]);
    let (bio, _) = ends.0.borrow_mut().pop().unwrap();
    assert_eq!((bio.op(), bio.sector(), bio.bytes()), (Op::Write, Sector(100), 8192));
}

#[test]
fn a_dropped_bio_ends_aborted() {
    let ends = Rc::new(Ends::default());
    drop(write(&ends, 1));
    assert_eq!(ends.statuses(), [(1, Status::Aborted)]);
}

#[test]
fn a_dropped_part_aborts_its_parent() {
    let ends = Rc::new(Ends::default());
    let bio = write(&ends, 1);
    let (front, back) = (bio.part(0, 4096), bio.part(4096, 4096));
    bio.end_after_parts();
    front.end(Status::Ok);
    drop(back);
    assert_eq!(ends.statuses(), [(1, Status::Aborted)]);
}

#[test]
fn parts_share_the_segments_and_cut_only_the_cursor() {
    let segments = payload(8192);
    let mut bio = Bio::read(Sector(10), Rc::clone(&segments), 0, 8192).with(Flags { meta: true, ..Flags::default() });
    let address = segments.vecs().as_ptr();
    let front = bio.split_front(1024);
    assert_eq!((front.sector(), front.bytes(), bio.sector(), bio.bytes()), (Sector(10), 1024, Sector(12), 7168));
    assert!(front.flags().meta);
    front.copy_in(&[1; 1024]);
    bio.copy_in(&[2; 7168]);
    front.end(Status::Ok);
    assert!(bio.segments().is_some_and(|shared| Rc::ptr_eq(shared, &segments)));
    assert_eq!(segments.vecs().as_ptr(), address);
    bio.end_after_parts();
    let mut bytes = [0; 8192];
    let whole = Bio::read(Sector(0), segments, 0, 8192);
    assert_eq!(whole.copy_out(&mut bytes), 8192);
    assert!(bytes[..1024] == [1; 1024] && bytes[1024..] == [2; 7168]);
}

/// All orders of 0..n.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for order in orders(n - 1) {
        for at in 0..n {
            let mut longer = order.clone();
            longer.insert(at, n - 1);
            all.push(longer);
        }
    }
    all
}

#[test]
fn behaviour_07_a_split_parent_ends_once_after_the_last_part_with_the_first_error() {
    for order in orders(4) {
        for errors in 0..16_usize {
            let ends = Rc::new(Ends::default());
            let bio = write(&ends, 3);
            let mut parts: Vec<Option<Bio>> = (0..4).map(|part| Some(bio.part(part * 2048, 2048))).collect();
            bio.end_after_parts();
            let mut first = Status::Ok;
            for &at in &order {
                assert_eq!(ends.statuses(), [], "ends only after the last part");
                let failed = [Status::IoError, Status::NoSpace, Status::ReadOnly, Status::Again][at];
                let status = if errors >> at & 1 == 1 { failed } else { Status::Ok };
                first = first.and(status);
                parts[at].take().unwrap().end(status);
            }
            assert_eq!(ends.statuses(), [(3, first)]);
        }
    }
}

#[test]
fn parts_that_end_before_the_parent_is_handed_over_count() {
    let ends = Rc::new(Ends::default());
    let bio = write(&ends, 3);
    bio.part(0, 4096).end(Status::IoError);
    bio.part(4096, 4096).end(Status::Ok);
    bio.end_after_parts();
    assert_eq!(ends.statuses(), [(3, Status::IoError)]);
}

#[test]
fn parts_of_parts_end_from_the_leaves_up() {
    let ends = Rc::new(Ends::default());
    let bio = write(&ends, 3);
    let half = bio.part(4096, 4096);
    let quarter = half.part(0, 2048);
    assert_eq!((quarter.sector(), quarter.bytes()), (Sector(108), 2048));
    half.end_after_parts();
    bio.end_after_parts();
    assert_eq!(ends.statuses(), []);
    quarter.end(Status::NoSpace);
    assert_eq!(ends.statuses(), [(3, Status::NoSpace)]);
}

#[test]
fn a_called_bio_that_is_split_does_not_come_back_early() {
    let bell = Arc::new(Bell::default());
    let part = RefCell::new(None);
    let mut call = call_with(Bio::read(Sector(0), payload(4096), 0, 4096), |mut bio| {
        part.replace(Some(bio.split_front(512)));
        bio.end_after_parts();
    });
    assert!(poll(&mut call, &bell).is_pending(), "a part is still under way");
    part.take().unwrap().end(Status::NoSpace);
    assert_eq!(bell.count(), 1);
    let Poll::Ready(bio) = poll(&mut call, &bell) else { panic!("ended") };
    assert_eq!(bio.status(), Status::NoSpace);
}

#[test]
fn awaiting_the_parts_does_not_steal_the_wake_of_the_caller() {
    let (caller, server) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    let taken = RefCell::new(None);
    let mut call = call_with(Bio::read(Sector(0), payload(4096), 0, 4096), |bio| {
        taken.replace(Some(bio));
    });
    assert!(poll(&mut call, &caller).is_pending());
    let bio = taken.take().unwrap();
    let part = bio.part(0, 4096);
    let mut done = bio.parts_done();
    assert!(poll(&mut done, &server).is_pending());
    part.end(Status::IoError);
    assert_eq!((caller.count(), server.count()), (0, 1));
    let Poll::Ready(status) = poll(&mut done, &server) else { panic!("the part ended") };
    assert_eq!(status, Status::IoError);
    assert_eq!(poll(&mut bio.parts_done(), &server), Poll::Ready(Status::Ok), "asked anew");
    bio.end(status);
    assert_eq!((caller.count(), server.count()), (1, 1));
    assert!(poll(&mut call, &caller).is_ready());
}

#[test]
fn a_part_that_is_awaited_no_longer_counts_for_its_parent() {
    let ends = Rc::new(Ends::default());
    let bell = Arc::new(Bell::default());
    let bio = write(&ends, 5);
    let mut call = call_with(bio.part(0, 512), |part| part.end(Status::IoError));
    assert!(matches!(poll(&mut call, &bell), Poll::Ready(part) if part.status() == Status::IoError));
    let seen = Rc::new(Ends::default());
    bio.part(512, 512).on_end(Rc::clone(&seen) as Rc<dyn End>, 1).end(Status::NoSpace);
    assert_eq!(seen.statuses(), [(1, Status::NoSpace)]);
    bio.end_after_parts();
    assert_eq!(ends.statuses(), [(5, Status::Ok)], "what the parts ended with is for whoever took them");
}

#[test]
#[should_panic(expected = "a bio ends for one")]
fn a_bio_of_somebody_else_cannot_be_awaited() {
    let ends = Rc::new(Ends::default());
    drop(call_with(write(&ends, 1), drop));
}

#[test]
fn dropping_the_future_leaves_the_bio_running() {
    let memory = payload(512);
    let taken = RefCell::new(None);
    drop(call_with(Bio::read(Sector(0), Rc::clone(&memory), 0, 512), |bio| {
        taken.replace(Some(bio));
    }));
    assert_eq!(Rc::strong_count(&memory), 2, "the device may still write there");
    taken.take().unwrap().end(Status::Ok);
    assert_eq!(Rc::strong_count(&memory), 1);
    drop(call_with(Bio::read(Sector(0), Rc::clone(&memory), 0, 512), |bio| bio.end(Status::Ok)));
    assert_eq!(Rc::strong_count(&memory), 1);
}

#[test]
fn a_bio_from_the_pool_carries_nothing_of_its_past() {
    let ends = Rc::new(Ends::default());
    let bell = Arc::new(Bell::default());
    let bio = write(&ends, 1).with(Flags { fua: true, ..Flags::default() });
    // A failed part whose parent never asked for it, and an abandoned await.
    bio.part(0, 512).end(Status::IoError);
    bio.end(Status::NoSpace);
    ends.0.borrow_mut().clear();
    drop(call_with(Bio::flush(), |bio| bio.end(Status::IoError)));
    for _ in 0..8 {
        let bio = Bio::flush();
        assert_eq!((bio.flags(), bio.status(), bio.segments_left()), (Flags::default(), Status::Ok, 0));
        let mut call = call_with(bio, Bio::end_after_parts);
        assert!(matches!(poll(&mut call, &bell), Poll::Ready(bio) if bio.status() == Status::Ok));
    }
}

#[test]
fn advancing_drops_what_is_done() {
    let mut bio = Bio::write(Sector(4), payload(4096), 0, 4096);
    bio.advance(1536);
    assert_eq!((bio.extent(), bio.bytes()), (Extent::new(Sector(7), SectorCount(5)), 2560));
    assert_eq!(bio.remap(Sector(70)).extent(), Extent::new(Sector(70), SectorCount(5)));
}

#[test]
#[should_panic(expected = "a bio is cut at sectors")]
fn half_a_sector_is_not_done() {
    Bio::write(Sector(4), payload(4096), 0, 4096).advance(100);
}

#[test]
#[should_panic(expected = "a part of a bio lies inside it")]
fn a_part_beyond_the_bio_is_a_bug() {
    let _ = Bio::write(Sector(4), payload(4096), 0, 4096).part(u64::MAX - 511, 512);
}

proptest! {
    /// Splits off fronts of random sizes, fills each part with its own byte: the payload shows all
    /// of them in order, and sectors follow.
    #[test]
    fn splitting_off_fronts_covers_the_bio_without_gap_or_overlap(
        cuts in proptest::collection::vec(1..9_u64, 1..12), order in proptest::collection::vec(0..100_usize, 12),
    ) {
        let sectors: u64 = cuts.iter().sum();
        let segments = payload(u32::try_from(sectors * 512).unwrap());
        let ends = Rc::new(Ends::default());
        let mut bio = Bio::read(Sector(1000), Rc::clone(&segments), 0, segments.bytes())
            .on_end(Rc::clone(&ends) as Rc<dyn End>, 0);
        let mut expected = Vec::new();
        let mut parts = Vec::new();
        for (index, cut) in cuts.iter().enumerate() {
            let front = bio.split_front(cut * 512);
            prop_assert_eq!(front.sector().0, 1000 + expected.len() as u64 / 512);
            expected.extend(std::iter::repeat_n(u8::try_from(index).unwrap(), usize::try_from(cut * 512).unwrap()));
            parts.push((index, front));
        }
        prop_assert_eq!(bio.bytes(), 0);
        bio.end_after_parts();
        for pick in order.iter().take(cuts.len()) {
            prop_assert_eq!(ends.statuses().len(), 0);
            let (index, part) = parts.swap_remove(pick % parts.len());
            part.copy_in(&vec![u8::try_from(index).unwrap(); usize::try_from(part.bytes()).unwrap()]);
            part.end(Status::Ok);
        }
        prop_assert_eq!(ends.statuses(), vec![(0, Status::Ok)]);
        let mut bytes = vec![0; expected.len()];
        Bio::read(Sector(0), segments, 0, u32::try_from(expected.len()).unwrap()).copy_out(&mut bytes);
        prop_assert_eq!(bytes, expected);
    }
}

#[test]
fn a_copied_array_shows_the_same_memory_from_a_place_of_its_own() {
    let segments = Segments::ranges(Box::new(HeapMemory::new(4096, 512)), &[(2048, 512), (0, 1024), (1024, 512)]).unwrap();
    let borrowing = Bio::read(Sector(0), Rc::clone(&segments), 512, 1024);
    let expected: Vec<BioVec> = borrowing.pieces().collect();
    let copying = Bio::read(Sector(0), Rc::clone(&segments), 512, 1024).with_copied_segments();
    assert_eq!(copying.pieces().collect::<Vec<_>>(), expected);
    assert_ne!(copying.inner().copied.as_ref().map(|copied| copied.as_ptr()), Some(segments.vecs().as_ptr()));
    copying.end(Status::Ok);
    let next = Bio::read(Sector(0), segments, 0, 512);
    assert!(next.inner().copied.is_none(), "the copy goes with the request");
}
