//! The pool of jobs: its backlog, its order, and the reuse of its slots.

use std::task::Poll;

use super::*;

type Log = Rc<RefCell<Vec<u32>>>;

struct Bed {
    jobs: JobPool<u32>,
    pollable: Rc<dyn Pollable>,
    log: Log,
    gate: Rc<Cell<bool>>,
    any: Arc<AtomicBool>,
}

/// A pool whose jobs note their argument when they begin and again, plus 100, when they end; in
/// between they wait for the gate.
fn pool(slots: usize) -> Bed {
    let log = Log::default();
    let gate = Rc::new(Cell::new(false));
    let any = Arc::new(AtomicBool::new(false));
    let (seen, open) = (Rc::clone(&log), Rc::clone(&gate));
    let (jobs, pollable) = JobPool::new(slots, Arc::clone(&any), move |argument: u32| {
        let (log, gate) = (Rc::clone(&seen), Rc::clone(&open));
        async move {
            log.borrow_mut().push(argument);
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if gate.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            log.borrow_mut().push(argument + 100);
        }
    });
    Bed { jobs, pollable, log, gate, any }
}

#[test]
fn starting_polls_nothing_and_marks_ready() {
    let Bed { jobs, pollable, log, any, .. } = pool(2);
    jobs.start(1);
    assert!(log.borrow().is_empty() && any.load(Ordering::Relaxed));
    assert_eq!((pollable.poll_ready(), log.take()), (1, vec![1]));
}

#[test]
fn what_finds_no_slot_waits_in_order_of_arrival() {
    let Bed { jobs, pollable, log, gate, .. } = pool(2);
    for argument in 1..=5 {
        jobs.start(argument);
    }
    assert_eq!(jobs.running(), 5);
    pollable.poll_ready();
    assert_eq!(log.take(), [1, 2], "two slots, so two jobs");
    gate.set(true);
    while jobs.running() > 0 {
        assert!(pollable.poll_ready() > 0, "jobs that run are ready");
    }
    assert_eq!(log.take(), [101, 102, 3, 103, 4, 104, 5, 105]);
}

#[test]
fn ready_jobs_are_polled_in_order_of_their_slots() {
    let Bed { jobs, pollable, log, .. } = pool(130);
    for argument in 0..130 {
        jobs.start(argument);
    }
    assert_eq!(pollable.poll_ready(), 130);
    assert_eq!(log.take(), (0..130).collect::<Vec<_>>());
}

#[test]
fn a_job_may_start_others_while_it_is_polled() {
    let again: Rc<RefCell<Option<JobPool<u32>>>> = Rc::default();
    let log = Log::default();
    let (inner, seen) = (Rc::clone(&again), Rc::clone(&log));
    let (jobs, pollable) = JobPool::new(1, Arc::default(), move |argument: u32| {
        let (again, log) = (Rc::clone(&inner), Rc::clone(&seen));
        async move {
            log.borrow_mut().push(argument);
            if argument > 0 {
                again.borrow().as_ref().unwrap().start(argument - 1);
            }
        }
    });
    *again.borrow_mut() = Some(jobs.clone());
    jobs.start(3);
    for expected in [3, 2, 1, 0] {
        assert_eq!((pollable.poll_ready(), log.take()), (1, vec![expected]));
    }
    assert_eq!((pollable.poll_ready(), jobs.running()), (0, 0));
    again.take();
}

#[test]
fn a_wake_that_comes_after_its_job_ended_harms_nothing() {
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    let slot = Rc::clone(&kept);
    let (jobs, pollable) = JobPool::new(1, Arc::default(), move |(): ()| {
        let slot = Rc::clone(&slot);
        std::future::poll_fn(move |cx| {
            *slot.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        })
    });
    jobs.start(());
    assert_eq!((pollable.poll_ready(), jobs.running()), (1, 0));
    let waker = kept.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waker.wake_by_ref());
    });
    pollable.poll_ready();
    jobs.start(());
    pollable.poll_ready();
    assert_eq!(jobs.running(), 0, "the slot still works");
}

#[test]
fn clearing_drops_jobs_and_backlog() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let drops = Rc::new(Cell::new(0));
    let (jobs, pollable) = JobPool::new(1, Arc::default(), |held: Dropped| async move {
        std::future::pending::<()>().await;
        drop(held);
    });
    jobs.start(Dropped(Rc::clone(&drops)));
    jobs.start(Dropped(Rc::clone(&drops)));
    pollable.poll_ready();
    pollable.clear();
    assert_eq!(drops.get(), 2);
}

#[test]
fn tasks_reuse_their_slots_and_are_refused_beyond_the_most() {
    let tasks = Tasks::new(Arc::default());
    for _ in 0..3 {
        for _ in 0..TASKS_MAX {
            assert!(tasks.spawn(Box::pin(async {})));
        }
        assert!(!tasks.spawn(Box::pin(async {})));
        assert_eq!(tasks.poll_ready(), TASKS_MAX);
    }
    assert_eq!(tasks.slots.borrow().len(), TASKS_MAX);
}
