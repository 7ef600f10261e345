//! Every order in which senders and the receiver can meet: no message is left lying.

use std::collections::VecDeque;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Event, Flag, Ordering, Ringing};

/// An event of the model, instead of a descriptor.
#[derive(Default)]
pub(crate) struct Bit(Mutex<bool>, Condvar);

impl Bit {
    pub(crate) fn wait(&self) {
        let mut raised = self.0.lock().unwrap();
        while !*raised {
            raised = self.1.wait(raised).unwrap();
        }
    }

    pub(crate) fn is_raised(&self) -> bool {
        *self.0.lock().unwrap()
    }
}

impl Event for Bit {
    fn raise(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn empty(&self) {
        *self.0.lock().unwrap() = false;
    }
}

impl Flag for AtomicBool {
    fn exchange(&self, value: bool) -> bool {
        self.swap(value, Ordering::AcqRel)
    }
}

struct Model {
    queue: Mutex<VecDeque<u32>>,
    ringing: Ringing<Bit, AtomicBool>,
}

/// Has `senders` threads post `each` messages each; the receiver waits as [`super::Mailbox::receive`] does, and
/// calls `hear` when it was roused. Messages that are left lying are a deadlock, which the checker finds.
fn all_orders(senders: u32, each: u32, hear: fn(&Ringing<Bit, AtomicBool>)) {
    loom::model(move || {
        let ringing = Ringing { event: Bit::default(), rung: AtomicBool::new(false) };
        let model = Arc::new(Model { queue: Mutex::default(), ringing });
        let senders: Vec<_> = (0..senders)
            .map(|sender| {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    for message in 0..each {
                        model.queue.lock().unwrap().push_back(sender * each + message);
                        model.ringing.ring();
                    }
                })
            })
            .collect();
        let mut received = Vec::new();
        while received.len() < senders.len() * each as usize {
            let next = model.queue.lock().unwrap().pop_front();
            if let Some(message) = next {
                received.push(message);
                continue;
            }
            model.ringing.event.wait();
            hear(&model.ringing);
        }
        for sender in senders {
            sender.join().unwrap();
        }
        received.sort_unstable();
        assert!(received.iter().zip(0..).all(|(message, expected)| *message == expected));
    });
}

#[test]
fn no_message_of_one_sender_is_left_lying_in_any_order() {
    all_orders(1, 3, Ringing::hear);
}

#[test]
fn no_message_of_two_senders_is_left_lying_in_any_order() {
    all_orders(2, 1, Ringing::hear);
}

#[test]
#[should_panic(expected = "deadlock")]
fn hearing_in_the_wrong_order_leaves_a_message_lying() {
    all_orders(1, 3, |ringing| {
        ringing.rung.exchange(false);
        ringing.event.empty();
    });
}
