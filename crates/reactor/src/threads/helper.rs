//! A thread that makes blocking calls for a reactor, one after the other, on either backend.
//!
//! ```text
//!   ask(question) ──▶ queue ──▶ thread: work(question) ──▶ a mailbox for each question ──▶ answer
//! ```
//!
//! For calls that no ring makes and that may take long: `lseek` on a file system far away. The
//! thread starts with the first question and ends with its helper, which waits for the call that is
//! being made.

use std::cell::OnceCell;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::mailbox::{Mailbox, Post};
use crate::turn::Reactor;

/// Stack of a helper's thread, bytes; it only makes system calls.
const STACK_BYTES: usize = 128 << 10;

/// A thread that makes blocking calls for a reactor.
pub struct Helper<Q, A> {
    name: &'static str,
    thread: OnceCell<Running<Q, A>>,
}

struct Running<Q, A> {
    /// `None` when it is told to end.
    queue: Option<Sender<(Q, Post<A>)>>,
    thread: Option<JoinHandle<()>>,
}

impl<Q: Send + 'static, A: Send + 'static> Helper<Q, A> {
    /// A helper whose thread, once there is one, is called `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, thread: OnceCell::new() }
    }

    /// Has the thread answer `question`, and tells where the answer will come in. `work` makes what
    /// answers questions, when there is no thread yet.
    ///
    /// # Errors
    /// When the system gives no thread or no descriptor.
    pub fn ask<W>(&self, reactor: &Reactor, question: Q, work: impl FnOnce() -> io::Result<W>) -> io::Result<Mailbox<A>>
    where
        W: FnMut(Q) -> A + Send + 'static,
    {
        let running = if let Some(running) = self.thread.get() {
            running
        } else {
            let running = Running::start(self.name, work()?)?;
            self.thread.get_or_init(|| running)
        };
        let (post, mailbox) = Mailbox::new(reactor, 1)?;
        let sent = running.queue.as_ref().is_some_and(|queue| queue.send((question, post)).is_ok());
        if sent { Ok(mailbox) } else { Err(io::Error::other("the thread is gone")) }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Running<Q, A> {
    fn start(name: &str, mut work: impl FnMut(Q) -> A + Send + 'static) -> io::Result<Self> {
        let (queue, questions) = channel::<(Q, Post<A>)>();
        let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || {
            for (question, post) in questions {
                // Whoever asked may have left.
                let _ = post.post(work(question));
            }
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }
}

impl<Q, A> Drop for Running<Q, A> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("work does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;

    use super::*;
    use crate::backend::{Engine, engine};

    #[test]
    fn questions_are_answered_in_order_on_one_other_thread() {
        for choice in [Engine::Uring, Engine::Threads] {
            let reactor = Reactor::new(engine(choice).unwrap());
            let helper = Helper::<u32, (u32, ThreadId)>::new("forebay-test");
            let work = || {
                let mut count = 0;
                Ok(move |question| {
                    count += 1;
                    (question * 10 + count, std::thread::current().id())
                })
            };
            let answers = [1, 2, 3].map(|question| helper.ask(&reactor, question, work).unwrap());
            let found = reactor
                .run(async {
                    let mut found = Vec::new();
                    for mut answer in answers.into_iter().rev() {
                        found.push(answer.receive().await.unwrap());
                    }
                    found
                })
                .unwrap();
            assert_eq!([found[0].0, found[1].0, found[2].0], [33, 22, 11]);
            assert!(found.iter().all(|answer| answer.1 == found[0].1 && answer.1 != std::thread::current().id()));
        }
    }

    #[test]
    fn who_asked_may_leave_and_the_helper_waits_for_the_call_under_way() {
        let reactor = Reactor::new(engine(Engine::Auto).unwrap());
        let (starts, started) = channel();
        let (go, gone) = channel();
        let helper = Helper::<(), ()>::new("forebay-test");
        let work = || {
            Ok(move |()| {
                starts.send(()).unwrap();
                gone.recv().unwrap();
            })
        };
        drop(helper.ask(&reactor, (), work).unwrap());
        started.recv().unwrap();
        go.send(()).unwrap();
        drop(helper);
        started.recv().unwrap_err();
    }

    #[test]
    fn no_thread_without_a_question_and_no_answer_without_work() {
        let reactor = Reactor::new(engine(Engine::Auto).unwrap());
        let helper = Helper::<u32, u32>::new("forebay-test");
        let refused = helper.ask(&reactor, 1, || Err::<fn(u32) -> u32, _>(io::Error::other("no descriptor")));
        assert_eq!(refused.err().unwrap().to_string(), "no descriptor");
        assert!(helper.thread.get().is_none());
    }
}
