//! Range locks against a model that looks at every pair of ranges.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

/// Counts its wakes.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn range(start: u64, count: u64) -> LockRange {
    LockRange::new(start, count)
}

fn poll(lock: &mut Lock, bell: &Arc<Bell>) -> Option<Guard> {
    let waker = Waker::from(Arc::clone(bell));
    match Pin::new(lock).poll(&mut Context::from_waker(&waker)) {
        Poll::Ready(guard) => Some(guard),
        Poll::Pending => None,
    }
}

#[test]
fn overlapping_ranges_exclude_each_other_and_neighbours_do_not() {
    let locks = RangeLocks::new();
    let first = locks.try_lock(range(10, 5)).expect("nothing is locked yet");
    assert!(locks.try_lock(range(14, 1)).is_none());
    assert!(locks.try_lock(range(0, 11)).is_none());
    let before = locks.try_lock(range(9, 1)).expect("ends where the first starts");
    let behind = locks.try_lock(range(15, 1)).expect("starts where the first ends");
    drop((first, before, behind));
    assert!(locks.try_lock(range(0, 100)).is_some());
    assert_eq!(locks.in_use(), (0, 0));
}

#[test]
fn a_waiter_is_woken_once_by_the_guard_it_waited_for() {
    let locks = RangeLocks::new();
    let bell = Arc::new(Bell::default());
    let held = locks.try_lock(range(0, 8)).expect("free");
    let other = locks.try_lock(range(100, 8)).expect("free");
    let mut wait = locks.lock(range(4, 8));
    assert!(poll(&mut wait, &bell).is_none());
    drop(other);
    assert_eq!(bell.0.load(Ordering::Relaxed), 0, "another range has nothing to do with it");
    drop(held);
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    let guard = poll(&mut wait, &bell).expect("granted");
    assert_eq!(guard.range(), range(4, 8));
    assert!(locks.is_locked(range(11, 1)));
}

#[test]
fn a_later_range_does_not_overtake_a_waiter_that_it_overlaps() {
    let locks = RangeLocks::new();
    let bell = Arc::new(Bell::default());
    let held = locks.try_lock(range(0, 4)).expect("free");
    let mut wide = locks.lock(range(0, 100));
    assert!(locks.try_lock(range(50, 1)).is_none(), "it would starve the wide range");
    let mut narrow = locks.lock(range(50, 1));
    assert!(poll(&mut narrow, &bell).is_none());
    drop(held);
    assert!(poll(&mut narrow, &bell).is_none());
    let wide = poll(&mut wide, &bell).expect("first in line");
    drop(wide);
    assert!(poll(&mut narrow, &bell).is_some());
}

#[test]
fn a_dropped_waiter_lets_those_behind_it_through() {
    let locks = RangeLocks::new();
    let bell = Arc::new(Bell::default());
    let _held = locks.try_lock(range(0, 4)).expect("free");
    let wide = locks.lock(range(0, 100));
    let mut narrow = locks.lock(range(50, 1));
    assert!(poll(&mut narrow, &bell).is_none());
    drop(wide);
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    assert!(poll(&mut narrow, &bell).is_some());
}

#[test]
fn a_granted_lock_that_is_dropped_before_its_poll_unlocks() {
    let locks = RangeLocks::new();
    let lock = locks.lock(range(0, 4));
    assert!(locks.is_locked(range(0, 1)));
    drop(lock);
    assert!(!locks.is_locked(range(0, 4)));
}

#[test]
fn a_waker_may_use_the_locks() {
    struct Looker(std::sync::Mutex<Option<bool>>);
    impl Wake for Looker {
        fn wake(self: Arc<Self>) {
            let held = LOCKS.with(|locks| locks.try_lock(LockRange::new(0, 1)).is_some());
            *self.0.lock().expect("one thread") = Some(held);
        }
    }
    thread_local! {
        static LOCKS: RangeLocks = RangeLocks::new();
    }
    let locks = LOCKS.with(RangeLocks::clone);
    let looker = Arc::new(Looker(std::sync::Mutex::new(None)));
    let held = locks.try_lock(range(0, 1)).expect("free");
    let mut wait = locks.lock(range(0, 1));
    let waker = Waker::from(Arc::clone(&looker));
    assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(held);
    assert_eq!(*looker.0.lock().expect("one thread"), Some(false), "the waiter holds it by then");
}

#[test]
#[should_panic(expected = "an empty range locks nothing")]
fn an_empty_range_is_a_bug() {
    let _ = LockRange::new(7, 0);
}

/// The model: ranges in the order in which they came; one is held when none before overlaps it.
fn model_held(line: &[(usize, LockRange)], at: usize) -> bool {
    !line[..at].iter().any(|(_, earlier)| earlier.overlaps(line[at].1))
}

proptest! {
    #[test]
    fn locks_agree_with_the_model(steps in proptest::collection::vec((0..3_u8, 0..24_u64, 1..9_u64), 1..200)) {
        let locks = RangeLocks::new();
        let bell = Arc::new(Bell::default());
        let mut line: Vec<(usize, LockRange)> = Vec::new();
        let mut waiting: Vec<(usize, Lock)> = Vec::new();
        let mut held: Vec<(usize, Guard)> = Vec::new();
        for (id, (kind, start, count)) in steps.into_iter().enumerate() {
            let range = LockRange::new(start, count);
            let free = !line.iter().any(|(_, other)| other.overlaps(range));
            prop_assert_eq!(locks.is_locked(range), !free);
            match kind {
                0 => {
                    let guard = locks.try_lock(range);
                    prop_assert_eq!(guard.is_some(), free);
                    if let Some(guard) = guard {
                        held.push((id, guard));
                        line.push((id, range));
                    }
                }
                1 => {
                    waiting.push((id, locks.lock(range)));
                    line.push((id, range));
                }
                _ if !line.is_empty() => {
                    let (gone, _) = line.remove(usize::try_from(start).unwrap() % line.len());
                    held.retain(|(id, _)| *id != gone);
                    waiting.retain(|(id, _)| *id != gone);
                }
                _ => {}
            }
            for (id, mut lock) in std::mem::take(&mut waiting) {
                let at = line.iter().position(|(other, _)| *other == id).unwrap();
                let guard = poll(&mut lock, &bell);
                prop_assert_eq!(guard.is_some(), model_held(&line, at));
                if let Some(guard) = guard {
                    held.push((id, guard));
                } else {
                    waiting.push((id, lock));
                }
            }
            prop_assert_eq!(locks.in_use(), (held.len(), waiting.len()));
        }
    }
}
