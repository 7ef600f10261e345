//! The worker threads, their queue, and the bell that rings when one is done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use super::work::Work;

/// Worker threads: requests that the system works on at once.
const WORKERS: usize = 16;
/// Stack of a worker, bytes; it only makes system calls.
const STACK_BYTES: usize = 128 << 10;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    done: Mutex<Vec<Work>>,
    bell: OwnedFd,
}

/// The workers.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A lock that a panic cannot have poisoned: a panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Starts them. But for a [`Helper`](super::Helper), no other threads are started for I/O.
    pub(super) fn start() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { queue: Mutex::default(), filled: Condvar::new(), done: Mutex::default(), bell });
        let mut workers = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(WORKERS) };
        for number in 0..WORKERS {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("forebay-io-{number}")).stack_size(STACK_BYTES);
            workers.threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(workers)
    }

    /// What becomes readable when work is done.
    pub(super) fn bell(&self) -> &OwnedFd {
        &self.shared.bell
    }

    /// Queues work, in order.
    pub(super) fn submit(&self, work: impl Iterator<Item = Work>) {
        let mut queue = lock(&self.shared.queue);
        let before = queue.waiting.len();
        queue.waiting.extend(work);
        let added = queue.waiting.len() - before;
        drop(queue);
        for _ in 0..added.min(WORKERS) {
            self.shared.filled.notify_one();
        }
    }

    /// Moves what is done to `into`, and silences the bell.
    pub(super) fn collect(&self, into: &mut Vec<Work>) {
        let mut done = lock(&self.shared.done);
        if done.is_empty() {
            return;
        }
        // An empty bell is no error: whoever rang it is heard now.
        let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
        into.append(&mut done);
    }
}

impl Shared {
    fn work(&self) {
        while let Some(mut work) = self.next() {
            work.execute();
            let mut done = lock(&self.done);
            done.push(work);
            let first = done.len() == 1;
            drop(done);
            if first {
                // A bell at its highest count rings just as well.
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.closing {
                return None;
            }
            if let Some(work) = queue.waiting.pop_front() {
                return Some(work);
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Workers {
    /// Waits for the calls that are being made; what is queued is dropped.
    fn drop(&mut self) {
        let mut queue = lock(&self.shared.queue);
        queue.closing = true;
        queue.waiting.clear();
        drop(queue);
        self.shared.filled.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("a worker does not panic");
        }
    }
}
