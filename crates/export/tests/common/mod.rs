//! A server on a thread of its own, for tests that are its clients.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod client;
pub mod script;
pub mod targets;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_export::serve::{ExportCounts, Listen, ServeLimits, Server};
use forebay_reactor::mailbox::{Mailbox, Post};
use forebay_reactor::{Backend, BufferPool, Reactor, Threads, Uring};

/// A backend to run a test on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Uring,
    Threads,
    /// The ring, with every client that knows the block sizes on a thread of its own.
    Annexes,
    /// The ring, with threads for those that come after the first.
    Shared,
}

impl Engine {
    pub const ALL: [Self; 3] = [Self::Uring, Self::Threads, Self::Annexes];

    pub fn backend(self) -> Box<dyn Backend> {
        match self {
            Self::Uring | Self::Annexes | Self::Shared => Box::new(Uring::new().unwrap()),
            Self::Threads => Box::new(Threads::new().unwrap()),
        }
    }
}

type Question = Box<dyn FnOnce(&Reactor, &BufferPool, &Server) + Send>;

enum Message {
    Ask(Question),
    Shutdown(Sender<bool>),
    Stop,
}

/// A running server.
pub struct Bed {
    pub path: PathBuf,
    pub uri: String,
    post: Post<Message>,
    thread: Option<JoinHandle<()>>,
    directory: PathBuf,
}

static BEDS: AtomicU32 = AtomicU32::new(0);

/// Long enough for a machine under load.
pub const LONG: Duration = Duration::from_secs(100);

/// Does again, twice at most, what fails: a machine that stands still for seconds overruns time limits that a test must reach.
pub fn patiently(work: impl Fn()) {
    let well = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(&work)).is_ok();
    if !well() && !well() {
        work();
    }
}

/// A directory of the test's own.
pub fn directory() -> PathBuf {
    let number = BEDS.fetch_add(1, Ordering::Relaxed);
    let name = format!("forebay-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::create_dir(&path).unwrap();
    path
}

pub fn limits() -> ServeLimits {
    ServeLimits { drain: Duration::from_mins(1), ..ServeLimits::default() }
}

impl Bed {
    /// Starts a server with what `exports` adds to it.
    pub fn new(engine: Engine, exports: impl FnOnce(&Reactor, &Server) + Send + 'static) -> Self {
        Self::with(engine, limits(), exports)
    }

    pub fn with(engine: Engine, limits: ServeLimits, exports: impl FnOnce(&Reactor, &Server) + Send + 'static) -> Self {
        let directory = directory();
        let path = directory.join("nbd.sock");
        let (ready, started) = channel();
        let socket = path.clone();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(engine.backend());
            let pool = BufferPool::new(&reactor);
            let server = if matches!(engine, Engine::Annexes | Engine::Shared) {
                let home_clients_min = usize::from(engine == Engine::Shared);
                let limits = ServeLimits { annexes_max: 2, home_clients_min, ..limits };
                let server = Server::new(&reactor, &pool, limits);
                server.use_threads(Arc::new(move || Ok(engine.backend())));
                server
            } else {
                Server::new(&reactor, &pool, limits)
            };
            let server = Rc::new(server);
            exports(&reactor, &server);
            let uri = server.listen(Listen::Unix(socket)).unwrap();
            let (post, mut mailbox) = Mailbox::<Message>::new(&reactor, 64).unwrap();
            ready.send((post, uri.to_string())).unwrap();
            reactor
                .run(async {
                    while let Some(message) = mailbox.receive().await {
                        match message {
                            Message::Ask(question) => question(&reactor, &pool, &server),
                            Message::Shutdown(answer) => {
                                let server = Rc::clone(&server);
                                assert!(reactor.spawn(async move { answer.send(server.shutdown().await).unwrap() }));
                            }
                            Message::Stop => {
                                server.shutdown().await;
                                return;
                            }
                        }
                    }
                })
                .unwrap();
        });
        let (post, uri) = started.recv().expect("the server starts");
        Self { path, uri, post, thread: Some(thread), directory }
    }

    /// Asks something on the server's thread.
    pub fn ask<T: Send + 'static>(&self, question: impl FnOnce(&Reactor, &BufferPool, &Server) -> T + Send + 'static) -> T {
        let (sender, answer) = channel();
        let question: Question = Box::new(move |reactor, pool, server| sender.send(question(reactor, pool, server)).unwrap());
        assert!(self.post.post(Message::Ask(question)).is_ok());
        answer.recv_timeout(LONG).expect("the server is alive")
    }

    pub fn counts(&self, export: usize) -> ExportCounts {
        self.ask(move |_, _, server| server.counts()[export].1)
    }

    /// Waits until `condition` holds.
    pub fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if condition(self) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("still not so after 100 s: {what}");
    }

    /// Waits until no client of the export is left.
    pub fn until_left(&self, export: usize) {
        self.until("no connection is left", |bed| bed.counts(export).connections == 0);
    }

    /// Starts a shutdown; the channel tells whether everything was answered.
    pub fn shutdown(&self) -> Receiver<bool> {
        let (sender, answer) = channel();
        assert!(self.post.post(Message::Shutdown(sender)).is_ok());
        answer
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // A server that panicked takes no message; that shows below.
        drop(self.post.post(Message::Stop));
        let ended = self.thread.take().expect("a bed ends once").join();
        std::fs::remove_dir_all(&self.directory).unwrap();
        if !std::thread::panicking() {
            ended.expect("the server did not panic");
        }
    }
}
