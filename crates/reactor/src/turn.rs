//! The loop of one thread: poll what is ready, unplug, enter the backend once, deliver.
//!
//! ```text
//!   ① poll ready jobs (pools in order of their making) ── submit ─▶ plug
//!   ② unplug: sort, merge             when nothing is ready, or the plug holds PLUG_DEPTH_MAX
//!   ③ backend.enter(batch)            waits only if nothing is ready
//!   ④ completions ─▶ Bio::end ─▶ mark jobs ready
//! ```
//!
//! Invariants:
//! - I1: a lone bio leaves in the turn that submitted it; nothing waits for company.
//! - I2: no future is polled and no bio is ended while a list of the reactor is borrowed.
//! - I3: a merged request that fails or comes back short is retried in its parts; only the bio
//!   concerned fails.
//! - I4: completions never run inside `submit` of a device.
//!
//! Bios come in through `turn/submit.rs`; step 4 is in `turn/reap.rs`. Requests to devices that are not
//! the backend's go to their carrier in step 2 (`turn/carry.rs`).

mod carry;
mod reap;
mod submit;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use forebay_block::{Bio, Limits, SharedMemory, Status};

use crate::backend::{Backend, Done, Wait};
use crate::job::{JobPool, Pollable, Tasks};
use crate::plug::{Entry, Plug, run_length};
use crate::request::{DeviceId, Kind, Requests, Stream, Tag};
use crate::stream::Replies;
use crate::timer::{Sleep, Timers};
pub use carry::Carrier;

/// Bios in the plug that end the polling of jobs for this turn, so that a long turn does not keep
/// the device idle.
pub const PLUG_DEPTH_MAX: usize = 256;

/// How often in a turn what was done in memory is delivered before the backend is called.
const INLINE_ROUNDS_MAX: usize = 4;

/// How often a turn polls jobs that others, or they themselves, made ready meanwhile, so that jobs
/// that give way to each other for long do not keep completions waiting.
const POLL_ROUNDS_MAX: usize = 16;

/// A device that carries out bios by itself, in memory, without the backend.
pub trait Inline {
    /// Does what `bio` asks, at once.
    fn execute(&self, bio: &Bio) -> Status;
}

/// What makes a device known to a reactor.
pub struct Attachment {
    /// For log lines: a path, or what the device is.
    pub name: String,
    /// What the device takes; bios are split to fit.
    pub limits: Limits,
    /// The descriptor that carries the I/O; `None` for simulated and inline devices.
    pub file: Option<Rc<OwnedFd>>,
    /// Who carries out bios in memory.
    pub inline: Option<Rc<dyn Inline>>,
    /// Whether requests are held back, and neighbours merged; off only to measure what that gains: each request of
    /// a device that is not inline then leaves by a call of its own.
    pub merging: bool,
}

/// What one device was spared and asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Bios that came in, after splitting at the device's limits.
    pub bios: u64,
    /// Bytes of reads and writes.
    pub bytes: u64,
    /// Requests that went out.
    pub requests: u64,
    /// Requests that failed, each part of a merged one for itself.
    pub errors: u64,
}

/// What a reactor did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnCounts {
    /// Calls into the backend.
    pub enters: u64,
    /// Requests handed to the backend, streams included.
    pub requests: u64,
}

struct Device {
    attachment: Attachment,
    /// Who carries out its requests instead of the backend.
    carrier: Option<Rc<dyn Carrier>>,
    counts: DeviceCounts,
    in_flight: usize,
    held: usize,
}

struct Core {
    /// The first to be dropped: it waits for the kernel to let go of the memory of all others.
    backend: RefCell<Box<dyn Backend>>,
    memory: RefCell<Vec<SharedMemory>>,
    requests: RefCell<Requests>,
    devices: RefCell<Vec<Device>>,
    plug: RefCell<Plug>,
    held: RefCell<Vec<Entry>>,
    sorted: RefCell<Vec<Entry>>,
    batch: RefCell<Vec<Tag>>,
    replies: Rc<Replies>,
    done: RefCell<Vec<Done>>,
    finished: RefCell<Vec<(Bio, Status)>>,
    pools: RefCell<Vec<Rc<dyn Pollable>>>,
    tasks: Rc<Tasks>,
    timers: Rc<Timers>,
    now: Rc<Cell<Duration>>,
    ready: Arc<AtomicBool>,
    /// Wakes the future of [`Reactor::run`]; jobs do not take this away.
    root: Arc<RootWake>,
    counts: Cell<TurnCounts>,
    /// Whether there is a device without merging.
    alone: Cell<bool>,
}

/// Handle of one thread's engine; cheap to clone, bound to its thread.
///
/// The engine owns what the pools and tasks made on it capture: a job that captures a handle for
/// good keeps its own engine alive. Such jobs hold a [`WeakReactor`].
#[derive(Clone)]
pub struct Reactor(Rc<Core>);

/// A handle that does not keep its engine alive.
#[derive(Clone)]
pub struct WeakReactor(Weak<Core>);

impl WeakReactor {
    /// The engine, while somebody else keeps it.
    #[must_use]
    pub fn upgrade(&self) -> Option<Reactor> {
        self.0.upgrade().map(Reactor)
    }
}

struct RootWake {
    ready: Arc<AtomicBool>,
    woken: AtomicBool,
}

impl Wake for RootWake {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.ready.store(true, Ordering::Release);
    }
}

impl Reactor {
    /// An engine on the given backend.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let ready = Arc::new(AtomicBool::new(false));
        let tasks = Rc::new(Tasks::new(Arc::clone(&ready)));
        let now = Rc::new(Cell::new(backend.now()));
        Self(Rc::new(Core {
            backend: RefCell::new(backend),
            memory: RefCell::default(),
            requests: RefCell::default(),
            devices: RefCell::default(),
            plug: RefCell::default(),
            held: RefCell::default(),
            sorted: RefCell::default(),
            batch: RefCell::default(),
            replies: Rc::default(),
            done: RefCell::default(),
            finished: RefCell::default(),
            pools: RefCell::new(vec![Rc::clone(&tasks) as Rc<dyn Pollable>]),
            tasks,
            timers: Rc::default(),
            now,
            root: Arc::new(RootWake { ready: Arc::clone(&ready), woken: AtomicBool::new(false) }),
            ready,
            counts: Cell::default(),
            alone: Cell::default(),
        }))
    }

    /// A handle that does not keep the engine alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakReactor {
        WeakReactor(Rc::downgrade(&self.0))
    }

    /// What the backend is, for people.
    #[must_use]
    pub fn backend_name(&self) -> &'static str {
        self.0.backend.borrow().name()
    }

    /// Time since an arbitrary start, as of the beginning of this turn or the end of its wait.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.now.get()
    }

    /// A timer that is ready `after` from now.
    #[must_use]
    pub fn sleep(&self, after: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(after))
    }

    /// A timer that is ready at `deadline` on this reactor's clock.
    #[must_use]
    pub fn sleep_until(&self, deadline: Duration) -> Sleep {
        Sleep::new(Rc::clone(&self.0.timers), Rc::clone(&self.0.now), deadline)
    }

    /// Makes a pool of `slots` jobs, each made from an argument by `make`.
    pub fn job_pool<A, F, S>(&self, slots: usize, make: S) -> JobPool<A>
    where
        A: 'static,
        F: Future<Output = ()> + 'static,
        S: Fn(A) -> F + 'static,
    {
        let (pool, pollable) = JobPool::new(slots, Arc::clone(&self.0.ready), make);
        self.0.pools.borrow_mut().push(pollable);
        pool
    }

    /// Starts a long-lived task. Returns false when the reactor has too many.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) -> bool {
        self.0.tasks.spawn(Box::pin(task))
    }

    /// Makes a device known.
    ///
    /// # Errors
    /// When the backend cannot use its descriptor, or there are more than 65,535 devices.
    ///
    /// # Panics
    /// When the limits contradict each other.
    pub fn attach(&self, attachment: Attachment) -> io::Result<DeviceId> {
        self.attach_with(attachment, None)
    }

    fn attach_with(&self, attachment: Attachment, carrier: Option<Rc<dyn Carrier>>) -> io::Result<DeviceId> {
        assert!(attachment.limits.is_valid(), "a device's limits agree with each other");
        let mut devices = self.0.devices.borrow_mut();
        let id = u16::try_from(devices.len()).map_err(|_| io::Error::other("more than 65,535 devices on one thread"))?;
        let id = DeviceId(id);
        let file = attachment.file.as_ref().map(|file| file.as_fd());
        self.0.backend.borrow_mut().attach(id, file)?;
        self.0.alone.set(self.0.alone.get() || !attachment.merging);
        devices.push(Device { attachment, carrier, counts: DeviceCounts::default(), in_flight: 0, held: 0 });
        Ok(id)
    }

    /// Offers payload memory to the backend, and keeps it mapped as long as the backend lives.
    pub fn offer_memory(&self, memory: &SharedMemory) {
        self.0.memory.borrow_mut().push(Arc::clone(memory));
        self.0.backend.borrow_mut().offer_memory(memory.base().as_ptr() as usize, memory.bytes());
    }

    /// What a device was asked so far.
    #[must_use]
    pub fn device_counts(&self, device: DeviceId) -> DeviceCounts {
        self.0.devices.borrow()[usize::from(device.0)].counts
    }

    /// What this reactor did so far.
    #[must_use]
    pub fn counts(&self) -> TurnCounts {
        self.0.counts.get()
    }

    pub(crate) fn submit_stream(&self, kind: Kind, stream: Stream) {
        let mut requests = self.0.requests.borrow_mut();
        let tag = requests.take(kind, DeviceId(0), 0, 0);
        requests.get_mut(tag).stream = Some(stream);
        self.0.batch.borrow_mut().push(tag);
    }

    pub(crate) fn replies(&self) -> &Rc<Replies> {
        &self.0.replies
    }

    fn poll_jobs(&self) {
        for _ in 0..POLL_ROUNDS_MAX {
            if !self.0.ready.swap(false, Ordering::AcqRel) {
                break;
            }
            let mut at = 0;
            loop {
                let pool = self.0.pools.borrow().get(at).cloned();
                let Some(pool) = pool else { break };
                pool.poll_ready();
                at += 1;
            }
            if self.0.plug.borrow().len() >= PLUG_DEPTH_MAX {
                break;
            }
        }
    }

    /// Sorts and merges what is in the plug into requests.
    fn unplug(&self) {
        let mut sorted = self.0.sorted.borrow_mut();
        let mut held = self.0.held.borrow_mut();
        let mut devices = self.0.devices.borrow_mut();
        let already_held = held.len();
        self.0.plug.borrow_mut().sort_into(&mut held, &mut sorted);
        for entry in &held[already_held..] {
            devices[usize::from(entry.device().0)].held += 1;
        }
        let mut entries = sorted.drain(..);
        while let Some(first) = entries.as_slice().first() {
            let device = &mut devices[usize::from(first.device().0)];
            let length = run_length(entries.as_slice(), &device.attachment.limits);
            self.start_run(device, entries.by_ref().take(length));
        }
        if !held.is_empty() {
            // Inline devices are done already; nothing in flight will release their held bios.
            for (at, device) in devices.iter_mut().enumerate().filter(|(_, device)| device.held > 0 && device.in_flight == 0) {
                let id = DeviceId(u16::try_from(at).expect("device numbers are 16 bits"));
                self.release_held(&mut held, device, id);
            }
        }
    }

    fn start_run(&self, device: &mut Device, mut run: impl Iterator<Item = Entry>) {
        device.counts.requests += 1;
        if let Some(inline) = &device.attachment.inline {
            let mut finished = self.0.finished.borrow_mut();
            for entry in run {
                let status = inline.execute(&entry.bio);
                finished.push((entry.bio, status));
            }
            return;
        }
        let first = run.next().expect("a run has an entry");
        let mut requests = self.0.requests.borrow_mut();
        let tag = requests.take(first.kind(), first.device(), first.bio.sector().to_bytes(), first.bio.bytes());
        let request = requests.get_mut(tag);
        request.bios.push(first.bio);
        for entry in run {
            request.bytes += entry.bio.bytes();
            request.bios.push(entry.bio);
        }
        device.in_flight += 1;
        match &device.carrier {
            Some(carrier) => carrier.carry(tag, request),
            None => self.0.batch.borrow_mut().push(tag),
        }
    }

    /// One pass of the loop. With `wait`, sleeps in the backend when nothing else is to be done.
    ///
    /// # Errors
    /// When the backend is broken.
    pub fn turn(&self, wait: bool) -> io::Result<()> {
        self.0.now.set(self.0.backend.borrow().now());
        self.0.timers.fire(self.now());
        let mut delivered = false;
        for _ in 0..INLINE_ROUNDS_MAX {
            self.poll_jobs();
            self.unplug();
            let carried = self.reap_carried();
            if self.0.finished.borrow().is_empty() && !carried {
                break;
            }
            // What was done in memory is delivered first: what follows from it joins this call.
            self.deliver();
            delivered = true;
        }
        let woken = self.0.ready.load(Ordering::Acquire) || self.0.root.woken.load(Ordering::Acquire);
        let idle = !delivered && self.0.finished.borrow().is_empty() && !woken;
        let wait = if wait && idle { Wait::Until(self.0.timers.next()) } else { Wait::No };
        let in_flight = self.0.requests.borrow().in_flight();
        if in_flight > 0 || wait != Wait::No {
            let mut batch = self.0.batch.borrow_mut();
            let mut counts = self.0.counts.get();
            counts.enters += u64::from(!batch.is_empty() || wait != Wait::No);
            counts.requests += batch.len() as u64;
            self.0.counts.set(counts);
            let requests = self.0.requests.borrow();
            let mut done = self.0.done.borrow_mut();
            // All that is in flight may end at once: room for that is made while the number grows.
            done.reserve(in_flight);
            self.0.finished.borrow_mut().reserve(in_flight);
            let mut backend = self.0.backend.borrow_mut();
            if self.0.alone.get() {
                self.dispatch_alone(&mut **backend, &requests, &mut batch, &mut done)?;
            }
            backend.enter(&requests, &batch, &mut done, wait)?;
            batch.clear();
            if wait != Wait::No {
                // Whatever runs next must not take the time before the wait for now.
                self.0.now.set(backend.now());
            }
        }
        self.reap();
        self.deliver();
        Ok(())
    }

    /// Hands each request of a device without merging over by a call of its own; the others stay in the batch.
    fn dispatch_alone(
        &self,
        backend: &mut dyn Backend,
        requests: &Requests,
        batch: &mut Vec<Tag>,
        done: &mut Vec<Done>,
    ) -> io::Result<()> {
        let devices = self.0.devices.borrow();
        let is_alone = |tag: Tag| {
            let request = requests.get(tag);
            request.stream.is_none() && !devices[usize::from(request.device.0)].attachment.merging
        };
        let mut at = 0;
        while let Some(&tag) = batch.get(at) {
            if is_alone(tag) {
                batch.remove(at);
                backend.enter(requests, &[tag], done, Wait::No)?;
                let counts = self.0.counts.get();
                self.0.counts.set(TurnCounts { enters: counts.enters + 1, ..counts });
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Runs turns until `root` is done.
    ///
    /// # Errors
    /// When the backend is broken.
    pub fn run<F: Future>(&self, root: F) -> io::Result<F::Output> {
        self.0.root.woken.store(true, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.0.root));
        let mut root = pin!(root);
        loop {
            if self.0.root.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = root.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Ok(output);
            }
            self.turn(true)?;
        }
    }

    /// Drops every job, pool, task and queued bio; bios in flight stay with the backend. For the
    /// end of a process, or of a simulated one.
    pub fn clear(&self) {
        let tasks = Rc::clone(&self.0.tasks) as Rc<dyn Pollable>;
        let pools = self.0.pools.replace(vec![tasks]);
        for pool in pools {
            pool.clear();
        }
        self.0.timers.clear();
        let plugged = std::mem::take(&mut *self.0.plug.borrow_mut());
        drop(plugged);
        let held = std::mem::take(&mut *self.0.held.borrow_mut());
        drop(held);
        self.deliver();
    }
}

#[cfg(test)]
mod tests;
