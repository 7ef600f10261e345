//! The backend where `io_uring` is forbidden: worker threads for files, `poll` for streams.
//!
//! ```text
//!   block request ─▶ queue ─▶ worker: preadv, pwritev2, fdatasync, fallocate ─▶ done, bell
//!   stream step   ─▶ tried at once, without blocking ─▶ else poll until it may go on
//! ```
//!
//! Invariants:
//! - I1: results are those of the ring: a byte count, 0, or a negated errno.
//! - I2: workers touch payload memory only between taking work and giving it back; dropping the
//!   backend waits for that.
//! - I3: a step on a stream never blocks the reactor's thread.
//!
//! Block requests start in order, on several threads at once, as they do on a ring.
#![expect(unsafe_code, reason = "system calls take raw addresses here")]

mod crew;
mod helper;
mod monitor;
mod pool;
mod work;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::crew::Crew;
pub use self::helper::Helper;
use self::pool::Workers;
use self::work::{Work, outcome};
use crate::backend::{Backend, Done, Wait, monotonic};
use crate::request::{DeviceId, Kind, Request, Requests, Tag};

/// The backend on threads.
pub struct Threads {
    workers: Workers,
    devices: Vec<Option<Arc<OwnedFd>>>,
    /// Stream steps that wait until their descriptor is ready.
    streams: Vec<Tag>,
    /// Work that came back, and vectors kept for the next.
    finished: Vec<Work>,
    spare: Vec<Vec<libc::iovec>>,
    vectors: Vec<libc::iovec>,
    start: Duration,
}

impl Threads {
    /// Starts the workers.
    ///
    /// # Errors
    /// When the system gives no threads or no descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            workers: Workers::start()?,
            devices: Vec::new(),
            streams: Vec::new(),
            finished: Vec::new(),
            spare: Vec::new(),
            vectors: Vec::new(),
            start: monotonic(),
        })
    }

    fn work(&mut self, tag: Tag, request: &Request) -> Work {
        let device = self.devices.get(usize::from(request.device.0)).and_then(Option::as_ref);
        let file = Arc::clone(device.expect("requests go to attached files"));
        let mut vectors = self.spare.pop().unwrap_or_default();
        request.gather(&mut vectors);
        Work { tag, kind: request.kind, file, offset: request.offset, bytes: request.bytes, vectors, result: 0 }
    }

    /// Takes what the workers have done.
    fn collect(&mut self, done: &mut Vec<Done>) {
        self.workers.collect(&mut self.finished);
        for work in self.finished.drain(..) {
            done.push(Done { tag: work.tag, result: work.result });
            self.spare.push(work.vectors);
        }
    }

    /// Tries each waiting step again.
    fn advance_streams(&mut self, requests: &Requests, done: &mut Vec<Done>) {
        let Self { streams, vectors, .. } = self;
        streams.retain(|&tag| {
            let result = step(requests.get(tag), vectors);
            done.extend(result.map(|result| Done { tag, result }));
            result.is_none()
        });
    }

    /// Sleeps until a worker is done, a stream is ready, or the time has come.
    fn sleep(&self, requests: &Requests, deadline: Option<Duration>) -> io::Result<()> {
        let mut watched = vec![PollFd::new(self.workers.bell(), PollFlags::IN)];
        for &tag in &self.streams {
            let request = requests.get(tag);
            let stream = request.stream.as_ref().expect("only stream steps are listed");
            let flags = if request.kind == Kind::Send { PollFlags::OUT } else { PollFlags::IN };
            watched.push(PollFd::from_borrowed_fd(stream.file.as_fd(), flags));
        }
        let timeout = deadline.map(|at| at.saturating_sub(self.now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Backend for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn now(&self) -> Duration {
        monotonic().saturating_sub(self.start)
    }

    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        assert_eq!(usize::from(device.0), self.devices.len(), "devices are numbered in order");
        let file = file.map(|file| file.try_clone_to_owned()).transpose()?;
        self.devices.push(file.map(Arc::new));
        Ok(())
    }

    fn offer_memory(&mut self, _base: usize, _bytes: usize) {}

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        let mut block = Vec::new();
        for &tag in batch {
            let request = requests.get(tag);
            if request.stream.is_some() {
                self.streams.push(tag);
            } else {
                block.push(self.work(tag, request));
            }
        }
        if !block.is_empty() {
            self.workers.submit(block.into_iter());
        }
        self.advance_streams(requests, done);
        self.collect(done);
        if let Wait::Until(deadline) = wait
            && done.is_empty()
        {
            self.sleep(requests, deadline)?;
            self.advance_streams(requests, done);
            self.collect(done);
        }
        Ok(())
    }
}

/// One try at a stream step; `None` when it would block.
fn step(request: &Request, vectors: &mut Vec<libc::iovec>) -> Option<i32> {
    let file = &request.stream.as_ref().expect("only stream steps are listed").file;
    if request.kind == Kind::Readable {
        let mut watched = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
        let found = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let events = watched[0].revents().bits();
        return found.is_ok_and(|count| count > 0).then_some(i32::from(events));
    }
    request.gather(vectors);
    // SAFETY: a message header is plain numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    let fd = file.as_raw_fd();
    let result = if request.kind == Kind::Receive {
        // SAFETY: the message describes payload memory that the step keeps alive and nobody else
        // looks at until it is done.
        outcome(unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) })
    } else {
        // SAFETY: as above; sending only reads the memory.
        outcome(unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
    };
    (result != -libc::EAGAIN && result != -libc::EINTR).then_some(result)
}
