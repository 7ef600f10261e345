//! The backend on `io_uring`: one system call a turn hands over what is new and takes what is done.
//!
//! ```text
//!   batch ─▶ queue (where the ring is full) ─▶ submission ring ─▶ kernel ─▶ completion ring ─▶ done
//! ```
//!
//! Invariants:
//! - I1: requests enter the ring in the order of their batches.
//! - I2: each tag in flight gives exactly one completion.
//! - I3: the ring is dropped only when nothing is in flight: stream steps are cancelled, block
//!   requests waited for, so that the kernel never writes into memory that was freed.
//! - I4: without something to submit and without completions there is no system call, unless the
//!   reactor wants to wait. A wait is one call more where the thread stays awake first (`watch.rs`).
//!
//! One thread makes the ring and uses it. Errors: a request's are in its result; the ring's own end
//! the reactor. Sources: `io_uring_setup(2)`, `io_uring_enter(2)`, `io_uring_register(2)`.
#![expect(unsafe_code, reason = "the kernel is given raw addresses here")]

mod features;
mod slot;
mod watch;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

pub use self::features::Features;
use self::features::{FILES_MAX, REGIONS_MAX};
use self::slot::{Regions, Slot, Target};
use self::watch::{AWAKE, Watch};
use crate::backend::{Backend, Done, Wait, monotonic};
use crate::request::{DeviceId, Requests, Tag};

/// Time between two tries when the kernel takes no requests.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// Names completions that belong to no request: of timers and of cancelling.
const NO_TAG: u64 = u64::MAX;

/// The backend on `io_uring`.
pub struct Uring {
    ring: IoUring,
    features: Features,
    devices: Vec<Option<Device>>,
    regions: Regions,
    slots: Vec<Slot>,
    queue: VecDeque<Tag>,
    in_flight: usize,
    /// Of them, steps on streams.
    streams: usize,
    watch: Watch,
    /// What a timer request points to until the kernel has read it.
    timer: Box<types::Timespec>,
    start: Duration,
}

struct Device {
    target: Target,
    /// Keeps an unregistered descriptor open.
    _file: Option<OwnedFd>,
}

/// How a call into the kernel ended.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Done,
    /// Nothing was taken, for want of memory or of room for completions: these are worked off first.
    Busy,
    /// The time is over, or a signal came.
    Woken,
}

impl Call {
    /// What an error of `io_uring_enter` means.
    ///
    /// # Errors
    /// When the ring does not work at all.
    fn of_error(error: io::Error) -> io::Result<Self> {
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(Self::Woken),
            Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM) => Ok(Self::Busy),
            _ => Err(error),
        }
    }
}

impl Uring {
    /// A ring for the calling thread, with all that the kernel offers.
    ///
    /// # Errors
    /// One sentence: `io_uring` is forbidden, missing or too old here.
    pub fn new() -> io::Result<Self> {
        Self::with_features(Features::ALL)
    }

    /// As [`Uring::new`], doing without what is not in `wanted`.
    ///
    /// # Errors
    /// As [`Uring::new`].
    pub fn with_features(wanted: Features) -> io::Result<Self> {
        let (ring, features) = features::build(wanted)?;
        Ok(Self {
            ring,
            features,
            devices: Vec::new(),
            regions: Regions::default(),
            slots: Vec::new(),
            queue: VecDeque::new(),
            in_flight: 0,
            streams: 0,
            watch: Watch::default(),
            timer: Box::new(types::Timespec::new()),
            start: monotonic(),
        })
    }

    /// What is in use.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// Moves requests from the queue into the ring, as many as fit.
    fn fill(&mut self, requests: &Requests) {
        while let Some(&tag) = self.queue.front() {
            if self.ring.submission().is_full() {
                break;
            }
            self.queue.pop_front();
            let request = requests.get(tag);
            let at = tag as usize;
            if at >= self.slots.len() {
                self.slots.resize_with(at + 1, Slot::default);
            }
            let slot = &mut self.slots[at];
            slot.stream = request.stream.is_some();
            let entry = if let Some(stream) = &request.stream {
                slot.step(request, stream)
            } else {
                let device = self.devices.get(usize::from(request.device.0)).and_then(Option::as_ref);
                let target = device.expect("requests go to attached files").target;
                slot.block(request, target, &self.regions, self.features)
            };
            self.push(&entry.user_data(u64::from(tag)));
            self.streams += usize::from(request.stream.is_some());
            self.in_flight += 1;
        }
    }

    /// Puts an entry into the ring, which must have room.
    fn push(&mut self, entry: &io_uring::squeue::Entry) {
        // SAFETY: the entry points to payload memory, to arrays in its tag's slot, or to the timer.
        // The request keeps its bios and parts, and with them the payload, until its completion is
        // reported; slots and timer are heap memory of this backend that does not move, and a slot
        // is filled again only for a tag that is no longer in flight. The reactor drops the backend
        // before the requests, and dropping it waits for everything in flight (I3).
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the caller saw room in the ring");
    }

    /// Whether the kernel has completions that only a call brings into the ring.
    fn kernel_has_more(&mut self) -> bool {
        let submission = self.ring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// Takes completions out of the ring.
    fn reap(&mut self, done: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let Ok(tag) = Tag::try_from(entry.user_data()) else { continue };
            self.streams -= usize::from(std::mem::take(&mut self.slots[tag as usize].stream));
            self.in_flight -= 1;
            done.push(Done { tag, result: entry.result() });
        }
    }

    /// One system call: submits what is in the ring and waits for `least` completions.
    fn call(&mut self, least: usize, timeout: Option<Duration>) -> io::Result<Call> {
        let submitter = self.ring.submitter();
        let result = match timeout {
            Some(timeout) if least > 0 && self.features.has(Features::EXT_ARG) => {
                let timeout = types::Timespec::from(timeout);
                submitter.submit_with_args(least, &types::SubmitArgs::new().timespec(&timeout))
            }
            Some(timeout) if least > 0 => {
                // Ends by itself with the first completion, so that timers do not pile up.
                *self.timer = types::Timespec::from(timeout);
                let entry = opcode::Timeout::new(&raw const *self.timer).count(1).build();
                self.push(&entry.user_data(NO_TAG));
                self.ring.submitter().submit_and_wait(least)
            }
            _ => submitter.submit_and_wait(least),
        };
        result.map_or_else(Call::of_error, |_| Ok(Call::Done))
    }

    /// Hands over everything that is queued, then waits if `wait` says so and nothing is done.
    fn turn(&mut self, requests: &Requests, done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        loop {
            self.fill(requests);
            self.reap(done);
            // Without a deadline argument waiting takes a timer request, and that takes room.
            let room = self.features.has(Features::EXT_ARG) || !self.ring.submission().is_full();
            let all = self.queue.is_empty() && room;
            if let Wait::Until(deadline) = wait
                && all
                && done.is_empty()
                && self.stay_awake(done, deadline)?
            {
                return Ok(());
            }
            let (least, timeout) = match wait {
                Wait::Until(deadline) if all && done.is_empty() => (1, deadline.map(|at| at.saturating_sub(self.now()))),
                Wait::Until(_) | Wait::No => (0, None),
            };
            if least == 0 && self.ring.submission().is_empty() && !self.kernel_has_more() {
                return Ok(());
            }
            let call = self.call(least, timeout)?;
            self.reap(done);
            match call {
                Call::Done if all && self.ring.submission().is_empty() => return Ok(()),
                Call::Done => {}
                Call::Busy if done.is_empty() => self.wait_for_room(done)?,
                // What is done may be what the kernel's memory waits for; the rest stays in the ring for the next turn.
                Call::Busy | Call::Woken => return Ok(()),
            }
        }
    }

    /// Hands over what is in the ring and stays awake for a moment, where that is worth while. Returns whether
    /// something is done.
    fn stay_awake(&mut self, done: &mut Vec<Done>, deadline: Option<Duration>) -> io::Result<bool> {
        let clients_only = self.streams > 0 && self.streams == self.in_flight;
        if !clients_only || !self.features.has(Features::WATCH) || !self.watch.begins() {
            return Ok(false);
        }
        if !self.ring.submission().is_empty() {
            self.call(0, None)?;
            self.reap(done);
            if !self.ring.submission().is_empty() {
                return Ok(!done.is_empty());
            }
        }
        let now = self.now();
        let until = deadline.map_or(now + AWAKE, |deadline| deadline.min(now + AWAKE));
        while done.is_empty() && !self.kernel_has_more() && self.ring.completion().is_empty() && self.now() < until {
            std::hint::spin_loop();
        }
        if self.kernel_has_more() {
            self.call(0, None)?;
        }
        self.reap(done);
        self.watch.ended(!done.is_empty());
        Ok(!done.is_empty())
    }

    /// The kernel takes nothing new: takes over what it has completed, else gives it a moment.
    ///
    /// It is not waited for a completion: the only requests in its hands may be steps of streams whose other end
    /// waits for what is in the ring.
    fn wait_for_room(&mut self, done: &mut Vec<Done>) -> io::Result<()> {
        let flags = io_uring::EnterFlags::GETEVENTS.bits();
        // SAFETY: submits nothing, waits for nothing and passes no argument.
        let result = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, flags, None) };
        result.map_or_else(Call::of_error, |_| Ok(Call::Done))?;
        self.reap(done);
        if done.is_empty() {
            let pause = rustix::time::Timespec::try_from(BUSY_PAUSE).expect("a millisecond fits");
            // A signal shortens the pause, which harms nothing.
            let _ = rustix::thread::nanosleep(&pause);
        }
        Ok(())
    }

    /// Asks the kernel to give up the stream steps in flight.
    fn cancel_streams(&mut self) {
        for tag in 0..self.slots.len() {
            if self.slots[tag].stream && !self.ring.submission().is_full() {
                let entry = opcode::AsyncCancel::new(tag as u64).build();
                self.push(&entry.user_data(NO_TAG));
            }
        }
    }
}

impl Backend for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn now(&self) -> Duration {
        monotonic().saturating_sub(self.start)
    }

    fn attach(&mut self, device: DeviceId, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        assert_eq!(usize::from(device.0), self.devices.len(), "devices are numbered in order");
        let Some(file) = file else {
            self.devices.push(None);
            return Ok(());
        };
        let number = i32::from(device.0);
        let registered = self.features.has(Features::FILES)
            && u32::from(device.0) < FILES_MAX
            && self.ring.submitter().register_files_update(u32::from(device.0), &[file.as_raw_fd()]).is_ok();
        self.devices.push(Some(if registered {
            Device { target: Target { number, registered }, _file: None }
        } else {
            let file = file.try_clone_to_owned()?;
            Device { target: Target { number: file.as_raw_fd(), registered }, _file: Some(file) }
        }));
        Ok(())
    }

    fn offer_memory(&mut self, base: usize, bytes: usize) {
        let index = u16::try_from(self.regions.len()).unwrap_or(REGIONS_MAX);
        if !self.features.has(Features::BUFFERS) || index >= REGIONS_MAX {
            return;
        }
        let region = libc::iovec { iov_base: base as *mut libc::c_void, iov_len: bytes };
        // SAFETY: the caller keeps the memory mapped until this backend, and with it the
        // registration, is gone.
        let result = unsafe { self.ring.submitter().register_buffers_update(u32::from(index), &[region], None) };
        match result {
            Ok(()) => self.regions.add(base, bytes, index),
            Err(error) => tracing::debug!("{bytes} bytes of payload memory stay unregistered (RLIMIT_MEMLOCK?): {error}"),
        }
    }

    fn enter(&mut self, requests: &Requests, batch: &[Tag], done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        self.queue.extend(batch);
        self.turn(requests, done, wait)
    }
}

/// How long to wait before stream steps are cancelled once more: one may have begun anew meanwhile.
const CANCEL_AGAIN: Duration = Duration::from_millis(50);

impl Drop for Uring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        self.queue.clear();
        while self.in_flight > 0 {
            self.cancel_streams();
            if self.call(0, None).is_err() {
                // Memory that the kernel may still write to must not be freed.
                std::process::abort();
            }
            self.reap(&mut done);
            if self.in_flight > 0 && !self.ring.submission().is_full() && self.call(1, Some(CANCEL_AGAIN)).is_err() {
                std::process::abort();
            }
            self.reap(&mut done);
        }
        // The kernel takes a dropped ring apart some time later, seconds under load. Files are let go of now, with
        // their locks, so that they can be opened again. Without a table of files this fails, which is fine.
        let _ = self.ring.submitter().unregister_files();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_short_of_memory_is_asked_again_and_a_broken_ring_is_not() {
        let told = |code| Call::of_error(io::Error::from_raw_os_error(code));
        for busy in [libc::EBUSY, libc::EAGAIN, libc::ENOMEM] {
            assert_eq!(told(busy).unwrap(), Call::Busy);
        }
        for woken in [libc::ETIME, libc::EINTR] {
            assert_eq!(told(woken).unwrap(), Call::Woken);
        }
        for broken in [libc::EBADF, libc::EFAULT, libc::EINVAL, libc::EOPNOTSUPP] {
            assert_eq!(told(broken).unwrap_err().raw_os_error(), Some(broken));
        }
    }
}
