//! Jobs: multi-step work for one argument each, in slots that are made once.
//!
//! ```text
//!   start(arg) ──▶ free slot? ── yes ─▶ slot.set(Some(future)), mark ready
//!                      └─ no ─▶ backlog (FIFO): that is the backpressure
//!   turn:  for each ready slot, lowest first: poll; when done, next from the backlog
//! ```
//!
//! Invariants:
//! - I1: `start` never polls; it only marks ready. So a job can start others while it is polled.
//! - I2: a slot's memory is allocated once; setting a new future into it allocates nothing.
//! - I3: ready slots are polled in order of their index: the order depends on nothing else.
//!
//! Wakers may travel to other threads, but only a [`Mailbox`](crate::mailbox) rouses a reactor
//! that sleeps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Which slots of a pool are ready, and whether any pool of the reactor has one.
pub(crate) struct ReadySet {
    words: Vec<AtomicU64>,
    any: Arc<AtomicBool>,
}

impl ReadySet {
    pub(crate) fn new(slots: usize, any: Arc<AtomicBool>) -> Self {
        Self { words: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(), any }
    }

    pub(crate) fn mark(&self, slot: usize) {
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        self.any.store(true, Ordering::Release);
    }

    fn take_word(&self, word: usize) -> u64 {
        let word = &self.words[word];
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }
}

struct SlotWake {
    ready: Arc<ReadySet>,
    slot: usize,
}

impl Wake for SlotWake {
    fn wake(self: Arc<Self>) {
        self.ready.mark(self.slot);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.mark(self.slot);
    }
}

/// What a reactor polls each turn.
pub(crate) trait Pollable {
    /// Polls every ready job once; returns how many were polled.
    fn poll_ready(&self) -> usize;
    /// Drops every job and everything queued.
    fn clear(&self);
}

type Slot<F> = Pin<Box<Option<F>>>;

struct Pool<A, F, S> {
    slots: Vec<Cell<Option<Slot<F>>>>,
    wakers: Vec<Waker>,
    free: RefCell<Vec<usize>>,
    backlog: RefCell<VecDeque<A>>,
    ready: Arc<ReadySet>,
    make: S,
}

/// Starts jobs of one kind, each from an argument of type `A`.
pub struct JobPool<A> {
    start: Rc<dyn Start<A>>,
}

impl<A> Clone for JobPool<A> {
    fn clone(&self) -> Self {
        Self { start: Rc::clone(&self.start) }
    }
}

trait Start<A> {
    fn start(&self, argument: A);
    fn running(&self) -> usize;
}

impl<A: 'static> JobPool<A> {
    pub(crate) fn new<F, S>(slots: usize, any: Arc<AtomicBool>, make: S) -> (Self, Rc<dyn Pollable>)
    where
        F: Future<Output = ()> + 'static,
        S: Fn(A) -> F + 'static,
    {
        assert!(slots > 0, "a pool needs a slot");
        let ready = Arc::new(ReadySet::new(slots, any));
        let wakers = (0..slots).map(|slot| Waker::from(Arc::new(SlotWake { ready: Arc::clone(&ready), slot }))).collect();
        let pool = Rc::new(Pool {
            slots: (0..slots).map(|_| Cell::new(Some(Box::pin(None)))).collect(),
            wakers,
            free: RefCell::new((0..slots).rev().collect()),
            backlog: RefCell::new(VecDeque::new()),
            ready,
            make,
        });
        (Self { start: Rc::clone(&pool) as Rc<dyn Start<A>> }, pool)
    }

    /// Starts a job, or queues its argument until a slot is free. Never polls (I1).
    pub fn start(&self, argument: A) {
        self.start.start(argument);
    }

    /// Jobs in slots plus arguments that wait for one.
    #[must_use]
    pub fn running(&self) -> usize {
        self.start.running()
    }
}

impl<A, F, S> Pool<A, F, S>
where
    F: Future<Output = ()>,
    S: Fn(A) -> F,
{
    fn fill(&self, slot: usize, argument: A) {
        let mut place = self.slots[slot].take().expect("a free slot is not being polled");
        place.set(Some((self.make)(argument)));
        self.slots[slot].set(Some(place));
        self.ready.mark(slot);
    }

    fn poll_slot(&self, slot: usize) {
        let mut place = self.slots[slot].take().expect("a slot is polled by one turn at a time");
        let mut done = false;
        if let Some(job) = place.as_mut().as_pin_mut() {
            let mut cx = Context::from_waker(&self.wakers[slot]);
            done = job.poll(&mut cx) == Poll::Ready(());
        }
        if done {
            place.set(None);
        }
        self.slots[slot].set(Some(place));
        if done {
            let next = self.backlog.borrow_mut().pop_front();
            match next {
                Some(argument) => self.fill(slot, argument),
                None => self.free.borrow_mut().push(slot),
            }
        }
    }
}

impl<A, F, S> Start<A> for Pool<A, F, S>
where
    F: Future<Output = ()>,
    S: Fn(A) -> F,
{
    fn start(&self, argument: A) {
        let free = self.free.borrow_mut().pop();
        match free {
            Some(slot) => self.fill(slot, argument),
            None => self.backlog.borrow_mut().push_back(argument),
        }
    }

    fn running(&self) -> usize {
        self.slots.len() - self.free.borrow().len() + self.backlog.borrow().len()
    }
}

impl<A, F, S> Pollable for Pool<A, F, S>
where
    F: Future<Output = ()>,
    S: Fn(A) -> F,
{
    fn poll_ready(&self) -> usize {
        let mut polled = 0;
        for word in 0..self.ready.words.len() {
            let mut bits = self.ready.take_word(word);
            while bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                self.poll_slot(word * 64 + bit);
                polled += 1;
            }
        }
        polled
    }

    fn clear(&self) {
        let queued = std::mem::take(&mut *self.backlog.borrow_mut());
        drop(queued);
        for slot in &self.slots {
            if let Some(mut place) = slot.take() {
                place.set(None);
                slot.set(Some(place));
            }
        }
    }
}

/// Tasks of any type, one allocation each: for what lives long (connections, timers, control).
pub(crate) struct Tasks {
    slots: RefCell<Vec<Option<Task>>>,
    wakers: RefCell<Vec<Waker>>,
    free: RefCell<Vec<usize>>,
    ready: Arc<ReadySet>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Most tasks of a reactor at once.
pub(crate) const TASKS_MAX: usize = 16_384;

impl Tasks {
    pub(crate) fn new(any: Arc<AtomicBool>) -> Self {
        Self {
            slots: RefCell::default(),
            wakers: RefCell::default(),
            free: RefCell::default(),
            ready: Arc::new(ReadySet::new(TASKS_MAX, any)),
        }
    }

    /// Takes in a task and marks it ready; gives it back when there are too many.
    pub(crate) fn spawn(&self, task: Task) -> bool {
        let mut slots = self.slots.borrow_mut();
        let slot = match self.free.borrow_mut().pop() {
            Some(slot) => slot,
            None if slots.len() < TASKS_MAX => {
                let slot = slots.len();
                slots.push(None);
                self.wakers.borrow_mut().push(Waker::from(Arc::new(SlotWake { ready: Arc::clone(&self.ready), slot })));
                slot
            }
            None => return false,
        };
        slots[slot] = Some(task);
        self.ready.mark(slot);
        true
    }
}

impl Pollable for Tasks {
    fn poll_ready(&self) -> usize {
        let mut polled = 0;
        let words = self.slots.borrow().len().div_ceil(64);
        for word in 0..words {
            let mut bits = self.ready.take_word(word);
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(mut task) = self.slots.borrow_mut().get_mut(slot).and_then(Option::take) else { continue };
                let waker = self.wakers.borrow()[slot].clone();
                polled += 1;
                if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                    drop(task);
                    self.free.borrow_mut().push(slot);
                } else {
                    self.slots.borrow_mut()[slot] = Some(task);
                }
            }
        }
        polled
    }

    fn clear(&self) {
        let tasks: Vec<_> = self.slots.borrow_mut().iter_mut().map(Option::take).collect();
        drop(tasks);
    }
}

#[cfg(test)]
mod tests;
