//! Threads that compute for a reactor, beside its own.
//!
//! ```text
//!   give(work) ──▶ waiting ──▶ a thread works on it, in place ──▶ done ──▶ take()
//!                     │                                            └─ rings the mailbox, if asked to
//!                     └─ take_back(): what no thread has begun
//! ```
//!
//! Work is a value that its thread owns meanwhile: nothing is shared. Nothing here blocks the
//! reactor's thread but the lock around the two lists, which is held to move a value in or out.
//!
//! 1. A message comes into the mailbox when work is done after [`Crew::ring_next`], and at no other
//!    time: who has enough to do looks now and then, and is not roused.
//! 2. Dropping a crew waits for the work that has begun, and drops the rest.
//!
//! That no work is left lying and no ring is lost is checked with every order in which threads can meet.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::monitor::{Guarded, Monitor};
use crate::mailbox::Mailbox;
use crate::turn::Reactor;

/// Stack of a thread, bytes: codecs keep their tables elsewhere.
const STACK_BYTES: usize = 512 << 10;

struct Line<W> {
    waiting: VecDeque<W>,
    done: Vec<W>,
    /// Threads that sleep.
    idle: usize,
    /// What is done next rings.
    ring: bool,
    closing: bool,
}

/// The lists, for the reactor and its threads.
struct Shared<M>(M);

impl<W, M: Monitor<Value = Line<W>>> Shared<M> {
    fn new() -> Self {
        Self(M::new(Line { waiting: VecDeque::new(), done: Vec::new(), idle: 0, ring: false, closing: false }))
    }

    /// What is to be done next, after what was done; `None` in the end.
    fn exchange(&self, done: Option<W>, ring: impl FnOnce()) -> Option<W> {
        let mut line = self.0.hold();
        if let Some(done) = done {
            line.done.push(done);
            if std::mem::take(&mut line.ring) {
                drop(line);
                ring();
                line = self.0.hold();
            }
        }
        loop {
            if line.closing {
                return None;
            }
            if let Some(work) = line.waiting.pop_front() {
                return Some(work);
            }
            line.idle += 1;
            line = self.0.wait(line);
            line.idle -= 1;
        }
    }

    fn give(&self, work: W) {
        let mut line = self.0.hold();
        line.waiting.push_back(work);
        let sleeping = line.idle > 0;
        drop(line);
        if sleeping {
            self.0.wake_one();
        }
    }

    fn ring_next(&self) -> bool {
        let mut line = self.0.hold();
        line.ring = line.done.is_empty();
        line.ring
    }

    fn close(&self) {
        let mut line = self.0.hold();
        line.closing = true;
        line.waiting.clear();
        drop(line);
        self.0.wake_all();
    }
}

/// Threads that compute for a reactor.
pub struct Crew<W> {
    shared: Arc<Shared<Guarded<Line<W>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Send + 'static> Crew<W> {
    /// Starts `count` threads that are called `name`; `hand` makes what each of them works with. Messages
    /// come into the mailbox as [`Crew::ring_next`] asks for them.
    ///
    /// # Errors
    /// When the system gives no thread or no descriptor.
    pub fn start<H>(reactor: &Reactor, name: &str, count: usize, mut hand: impl FnMut() -> H) -> io::Result<(Self, Mailbox<()>)>
    where
        H: FnMut(&mut W) + Send + 'static,
    {
        let (post, mailbox) = Mailbox::new(reactor, 1)?;
        let shared = Arc::new(Shared::new());
        let mut crew = Self { shared: Arc::clone(&shared), threads: Vec::with_capacity(count) };
        for _ in 0..count {
            let (shared, post, mut hand) = (Arc::clone(&shared), post.clone(), hand());
            let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            crew.threads.push(builder.spawn(move || {
                let mut done = None;
                // A full mailbox has a message that was not heard yet, which is as good.
                let ring = || drop(post.post(()));
                while let Some(mut work) = shared.exchange(done.take(), ring) {
                    hand(&mut work);
                    done = Some(work);
                }
            })?);
        }
        Ok((crew, mailbox))
    }

    /// Has the next free thread do `work`.
    pub fn give(&self, work: W) {
        self.shared.give(work);
    }

    /// Work that waits for a thread.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.0.hold().waiting.len()
    }

    /// Work that is done.
    #[must_use]
    pub fn take(&self) -> Option<W> {
        self.shared.0.hold().done.pop()
    }

    /// Has the work that is done next ring. False when something is done already: nothing rings then.
    #[must_use]
    pub fn ring_next(&self) -> bool {
        self.shared.ring_next()
    }

    /// Work that was given last and that no thread has begun.
    #[must_use]
    pub fn take_back(&self) -> Option<W> {
        self.shared.0.hold().waiting.pop_back()
    }
}

impl<W> Drop for Crew<W> {
    fn drop(&mut self) {
        self.shared.close();
        for thread in self.threads.drain(..) {
            thread.join().expect("work does not panic");
        }
    }
}

#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread::ThreadId;

    use super::*;
    use crate::backend::{Engine, engine};

    type Sum = (u64, Option<ThreadId>);

    #[test]
    fn all_work_is_done_by_other_threads_and_comes_back() {
        for choice in [Engine::Uring, Engine::Threads] {
            let reactor = Reactor::new(engine(choice).unwrap());
            let hand = || |work: &mut Sum| *work = (work.0 * 2, Some(std::thread::current().id()));
            let (crew, mut mailbox) = Crew::<Sum>::start(&reactor, "forebay-test", 2, hand).unwrap();
            (0..1000).for_each(|number| crew.give((number, None)));
            let mut sums = Vec::new();
            while sums.len() < 1000 {
                if crew.ring_next() {
                    reactor.run(mailbox.receive()).unwrap().unwrap();
                }
                sums.extend(std::iter::from_fn(|| crew.take()));
            }
            let here = std::thread::current().id();
            assert!(sums.iter().all(|sum| sum.1.is_some_and(|id| id != here)));
            assert_eq!(sums.iter().map(|sum| sum.0).sum::<u64>(), 999_000);
            drop(crew);
            assert_eq!(reactor.run(async { while mailbox.receive().await.is_some() {} }).unwrap(), ());
        }
    }

    #[test]
    fn what_no_thread_has_begun_is_taken_back_and_the_end_waits_for_the_rest() {
        let reactor = Reactor::new(engine(Engine::Auto).unwrap());
        let (starts, started) = channel();
        let (go, gone) = channel();
        let mut ends = Some((starts, gone));
        let hand = || {
            let (starts, gone) = ends.take().unwrap();
            move |_: &mut u32| {
                starts.send(()).unwrap();
                gone.recv().unwrap();
            }
        };
        let (crew, _mailbox) = Crew::start(&reactor, "forebay-test", 1, hand).unwrap();
        (1..4).for_each(|number| crew.give(number));
        started.recv().unwrap();
        assert_eq!((crew.waiting(), crew.take_back(), crew.take_back(), crew.take_back()), (2, Some(3), Some(2), None));
        go.send(()).unwrap();
        drop(crew);
        started.recv().unwrap_err();
    }
}
