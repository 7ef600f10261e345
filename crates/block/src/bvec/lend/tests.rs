//! Loans: what is seen through them, and what happens to one that is not given back.

use std::process::Command;

use super::*;
use crate::bio::{Bio, Status};
use crate::bvec::{BvecIter, copy_in, copy_out};
use crate::unit::Sector;

fn all(segments: &Segments) -> BvecIter {
    BvecIter::over(Sector(0), segments, 0, segments.bytes())
}

#[test]
fn lent_slices_are_one_payload_and_the_callers_own_again() {
    let (mut one, mut two) = ([1; 512], [2; 1024]);
    let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut []), IoSliceMut::new(&mut two)];
    let found = lend_mut(&mut slices, |segments| {
        assert_eq!((segments.vecs().len(), segments.is_writable()), (2, true));
        let mut found = vec![0; 1536];
        assert_eq!(copy_out(segments, all(segments), &mut found), 1536);
        assert_eq!(copy_in(segments, all(segments), &[7; 1536]), 1536);
        found
    });
    assert_eq!(found.unwrap(), [vec![1; 512], vec![2; 1024]].concat());
    assert_eq!((one, two), ([7; 512], [7; 1024]));
}

#[test]
fn slices_without_a_byte_or_with_too_many_are_refused() {
    let never = |_: &Rc<Segments>| panic!("nothing was lent");
    assert_eq!(lend(&[], never), Err(SegmentsError::Empty));
    assert_eq!(lend(&[IoSlice::new(&[])], never), Err(SegmentsError::Empty));
    let half = vec![0; 1 << 20];
    let many: Vec<IoSlice> = (0..4096).map(|_| IoSlice::new(&half)).collect();
    assert_eq!(lend(&many, never), Err(SegmentsError::TooLong));
    assert_eq!(lend(&many[..4095], |segments| segments.bytes()), Ok(4095 << 20), "and nothing of that is left");
}

#[test]
fn a_loan_follows_another_without_an_allocation_and_one_in_the_other() {
    let bytes = [3; 512];
    let slices = [IoSlice::new(&bytes)];
    let place = |segments: &Rc<Segments>| (Rc::as_ptr(segments), segments.vecs().as_ptr());
    let first = lend(&slices, place).unwrap();
    assert_eq!(lend(&slices, place).unwrap(), first);
    let both = lend(&slices, |outer| (place(outer), lend(&slices, place).unwrap())).unwrap();
    assert_eq!(both.0, first);
    assert_ne!(both.1.0, first.0);
}

#[test]
#[should_panic(expected = "a read writes to its payload")]
fn memory_lent_for_reading_is_no_payload_of_a_read() {
    let bytes = [0; 512];
    let _ = lend(&[IoSlice::new(&bytes)], |segments| drop(Bio::read(Sector(0), Rc::clone(segments), 0, 512)));
}

#[test]
#[should_panic(expected = "memory that may only be read is not written")]
fn memory_lent_for_reading_is_not_filled() {
    let bytes = [0; 512];
    let _ = lend(&[IoSlice::new(&bytes)], |segments| copy_in(segments, all(segments), &[1; 512]));
}

/// What a process does that keeps a lent array beyond its call.
fn keep(how: &str) {
    let mut bytes = [0; 512];
    let mut kept = None;
    let mut weak = None;
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let _ = lend_mut(&mut slices, |segments| match how {
        "bio" => kept = Some(Bio::read(Sector(0), Rc::clone(segments), 0, 512)),
        "forgotten" => {
            #[expect(clippy::disallowed_methods, reason = "what is shown is that forgetting harms nobody")]
            std::mem::forget(Bio::read(Sector(0), Rc::clone(segments), 0, 512));
        }
        "weak" => weak = Some(Rc::downgrade(segments)),
        _ => {
            kept = Some(Bio::write(Sector(0), Rc::clone(segments), 0, 512));
            panic!("the caller gave up");
        }
    });
    if let Some(bio) = kept {
        bio.end(Status::Ok);
    }
    assert!(weak.is_some_and(|weak| weak.upgrade().is_none()));
}

/// The test runs itself again in a process that must not get beyond the call.
#[test]
fn a_process_that_keeps_lent_memory_ends() {
    use std::os::unix::process::ExitStatusExt;
    const HOW: &str = "FOREBAY_TEST_KEEP";
    if let Ok(how) = std::env::var(HOW) {
        keep(&how);
        return;
    }
    for how in ["bio", "forgotten", "weak", "panic"] {
        let name = "bvec::lend::tests::a_process_that_keeps_lent_memory_ends";
        let mut again = Command::new(std::env::current_exe().unwrap());
        let ended = again.args(["--exact", name]).env(HOW, how).output().unwrap();
        assert_eq!(ended.status.signal(), Some(6), "{how}: {ended:?}");
    }
}
