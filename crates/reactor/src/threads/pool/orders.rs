//! The orders in which a reactor and its workers can meet: all work is done and collected, and then the bell is silent.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::super::monitor::model::Modelled;
use super::{Finished, Monitor, Queue, Waiting};
use crate::mailbox::Event;
use crate::mailbox::tests::Bit;

type Done = Finished<Modelled<Vec<u32>>, Bit>;
type Model = (Waiting<Modelled<Queue<u32>>>, Done);

/// How often threads are interrupted at most, where there are several: to try all orders would take hours.
const PREEMPTIONS: Option<usize> = Some(2);

/// Has `workers` workers do `count` pieces of work; the reactor looks, and sleeps until the bell
/// rings.
fn all_orders(workers: u32, count: u32, put: fn(&Done, u32)) {
    let mut checker = Builder::new();
    checker.preemption_bound = PREEMPTIONS.filter(|_| workers > 1);
    checker.check(move || {
        let shared: Arc<Model> = Arc::new((Waiting::new(), Finished::new(Bit::default())));
        let threads: Vec<_> = (0..workers)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    while let Some(work) = shared.0.next() {
                        put(&shared.1, work + 1);
                    }
                })
            })
            .collect();
        shared.0.put(0..count);
        let mut done = Vec::new();
        while done.len() < count as usize {
            shared.1.collect(&mut done);
            if done.len() < count as usize {
                shared.1.bell.wait();
            }
        }
        shared.0.close();
        for thread in threads {
            thread.join().unwrap();
        }
        done.sort_unstable();
        assert!(done.iter().zip(1..).all(|(work, expected)| *work == expected));
        assert!(!shared.1.bell.is_raised(), "the bell rings for nothing");
    });
}

#[test]
fn one_worker_does_all_work_in_any_order_and_the_bell_falls_silent() {
    all_orders(1, 2, Done::put);
}

#[test]
fn two_workers_do_all_work_in_many_orders_and_the_bell_falls_silent() {
    all_orders(2, 2, Done::put);
}

#[test]
#[should_panic(expected = "the bell rings for nothing")]
fn a_bell_that_rings_without_the_lock_may_ring_for_nothing() {
    all_orders(1, 1, |finished, work| {
        let mut done = finished.done.hold();
        done.push(work);
        let first = done.len() == 1;
        drop(done);
        if first {
            finished.bell.raise();
        }
    });
}
