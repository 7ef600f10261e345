//! The worker threads, their queue, and the bell that rings when one is done.
//!
//! That no work is left lying, and that the bell is silent when there is none, is checked with every order in which
//! threads can meet.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::monitor::{Guarded, Monitor};
use super::work::Work;
use crate::mailbox::Event;

/// Worker threads: requests that the system works on at once.
const WORKERS: usize = 16;
/// Stack of a worker, bytes; it only makes system calls.
const STACK_BYTES: usize = 128 << 10;

/// What is to be done.
struct Queue<W> {
    waiting: VecDeque<W>,
    closing: bool,
}

/// The queue of the workers.
struct Waiting<M>(M);

impl<W, M: Monitor<Value = Queue<W>>> Waiting<M> {
    fn new() -> Self {
        Self(M::new(Queue { waiting: VecDeque::new(), closing: false }))
    }

    /// Queues work, in order.
    fn put(&self, work: impl Iterator<Item = W>) {
        let mut queue = self.0.hold();
        let before = queue.waiting.len();
        queue.waiting.extend(work);
        let added = queue.waiting.len() - before;
        drop(queue);
        for _ in 0..added.min(WORKERS) {
            self.0.wake_one();
        }
    }

    /// What is to be done next; `None` in the end.
    fn next(&self) -> Option<W> {
        let mut queue = self.0.hold();
        loop {
            if queue.closing {
                return None;
            }
            if let Some(work) = queue.waiting.pop_front() {
                return Some(work);
            }
            queue = self.0.wait(queue);
        }
    }

    fn close(&self) {
        let mut queue = self.0.hold();
        queue.closing = true;
        queue.waiting.clear();
        drop(queue);
        self.0.wake_all();
    }
}

/// What is done, and the bell that says so: it has rung exactly when something is there, so that nobody who waits for
/// it is roused for nothing, again and again.
struct Finished<M, E> {
    done: M,
    bell: E,
}

impl<W, M: Monitor<Value = Vec<W>>, E: Event> Finished<M, E> {
    fn new(bell: E) -> Self {
        Self { done: M::new(Vec::new()), bell }
    }

    fn put(&self, work: W) {
        let mut done = self.done.hold();
        done.push(work);
        if done.len() == 1 {
            self.bell.raise();
        }
    }

    /// Moves what is done to `into`, and silences the bell.
    fn collect(&self, into: &mut Vec<W>) {
        let mut done = self.done.hold();
        if !done.is_empty() {
            self.bell.empty();
            into.append(&mut done);
        }
    }
}

struct Shared {
    waiting: Waiting<Guarded<Queue<Work>>>,
    finished: Finished<Guarded<Vec<Work>>, OwnedFd>,
}

/// The workers.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts them. But for a [`Helper`](super::Helper), no other threads are started for I/O.
    pub(super) fn start() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { waiting: Waiting::new(), finished: Finished::new(bell) });
        let mut workers = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(WORKERS) };
        for number in 0..WORKERS {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("forebay-io-{number}")).stack_size(STACK_BYTES);
            workers.threads.push(builder.spawn(move || {
                while let Some(mut work) = shared.waiting.next() {
                    work.execute();
                    shared.finished.put(work);
                }
            })?);
        }
        Ok(workers)
    }

    /// What becomes readable when work is done.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.shared.finished.bell
    }

    /// Queues work, in order.
    pub(super) fn submit(&self, work: impl Iterator<Item = Work>) {
        self.shared.waiting.put(work);
    }

    /// Moves what is done to `into`, and silences the bell.
    pub(super) fn collect(&self, into: &mut Vec<Work>) {
        self.shared.finished.collect(into);
    }
}

impl Drop for Workers {
    /// Waits for the calls that are being made; what is queued is dropped.
    fn drop(&mut self) {
        self.shared.waiting.close();
        for thread in self.threads.drain(..) {
            thread.join().expect("a worker does not panic");
        }
    }
}

#[cfg(test)]
mod orders;
