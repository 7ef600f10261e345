//! The orders in which a reactor and its crew can meet: all work is done, and whoever waits for a ring hears it.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::super::monitor::model::Modelled;
use super::{Line, Monitor, Shared};
use crate::mailbox::Event;
use crate::mailbox::tests::Bit;

type Model = Shared<Modelled<Line<u32>>>;

/// How often threads are interrupted at most, where there are several: to try all orders would take hours.
const PREEMPTIONS: Option<usize> = Some(2);

/// Gives `count` numbers to `threads` threads that add one, as a reactor does that sleeps until work is done, and
/// then closes the crew. What is left lying, or rings for nobody, is a deadlock, which the checker finds.
fn all_orders(threads: u32, count: u32) {
    let mut checker = Builder::new();
    checker.preemption_bound = PREEMPTIONS.filter(|_| threads > 1);
    checker.check(move || {
        let shared = Arc::new((Model::new(), Bit::default()));
        let crew: Vec<_> = (0..threads)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let mut done = None;
                    while let Some(work) = shared.0.exchange(done.take(), || shared.1.raise()) {
                        done = Some(work + 1);
                    }
                })
            })
            .collect();
        (0..count).for_each(|number| shared.0.give(number));
        let mut done = Vec::new();
        while done.len() < count as usize {
            if shared.0.ring_next() {
                shared.1.wait();
                shared.1.empty();
            }
            done.append(&mut shared.0.0.hold().done);
        }
        shared.0.close();
        for thread in crew {
            thread.join().unwrap();
        }
        done.sort_unstable();
        assert!(done.iter().zip(1..).all(|(work, expected)| *work == expected));
        assert!(!shared.1.is_raised(), "a ring that nobody asked for");
    });
}

#[test]
fn one_thread_does_all_work_in_any_order() {
    all_orders(1, 2);
}

#[test]
fn two_threads_do_all_work_in_many_orders() {
    all_orders(2, 2);
}
