//! A benchmark's load: writes at a fixed depth, each submitted when an earlier one ended.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use forebay_block::{Bio, End, HeapMemory, Sector, Segments, Status, Target};
use rustix::time::{ClockId, clock_gettime};

/// Payload buffers, one for each request in flight; touched, so that no timing pays for fresh memory.
pub struct Buffers(Vec<Rc<Segments>>);

impl Buffers {
    /// `depth` buffers of `bytes` each, with content that is not zero.
    pub fn new(depth: usize, bytes: u32) -> Self {
        let make = |index: usize| {
            let memory = HeapMemory::new(bytes as usize, 2 << 20);
            let mut segments = Segments::whole(Box::new(memory), bytes).expect("a benchmark's blocks are not empty");
            let fill = u8::try_from(index % 251).expect("below 251") + 1;
            Rc::get_mut(&mut segments).expect("not shared yet").bytes_mut().fill(fill);
            segments
        };
        Self((0..depth).map(make).collect())
    }

    /// The content of one buffer.
    pub fn bytes(&mut self, index: usize) -> &[u8] {
        Rc::get_mut(&mut self.0[index]).expect("no request is in flight").bytes_mut()
    }
}

/// Writes to given sectors, in that order, as many at once as there are buffers.
struct Job {
    target: Rc<dyn Target>,
    buffers: Vec<Rc<Segments>>,
    sectors: Vec<Sector>,
    bytes: u32,
    next: Cell<usize>,
    ended: Cell<usize>,
    failed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    this: std::rc::Weak<Job>,
}

impl Job {
    fn submit_next(&self, slot: u64) {
        let at = self.next.get();
        let Some(&sector) = self.sectors.get(at) else { return };
        self.next.set(at + 1);
        let index = usize::try_from(slot).expect("a slot is an index");
        let bio = Bio::write(sector, Rc::clone(&self.buffers[index]), 0, self.bytes);
        let end: Rc<dyn End> = self.this.upgrade().expect("the job outlives its requests");
        self.target.submit(bio.on_end(end, slot));
    }
}

impl End for Job {
    fn bio_ended(&self, bio: Bio, slot: u64) {
        self.failed.set(self.failed.get() | !bio.status().is_ok());
        drop(bio);
        self.ended.set(self.ended.get() + 1);
        self.submit_next(slot);
        if self.ended.get() == self.sectors.len()
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

/// Writes `bytes` at each of `sectors`; `Ok` when all succeeded.
pub async fn write_all(target: &Rc<dyn Target>, buffers: &Buffers, sectors: &[Sector], bytes: u32) -> Status {
    let job = Rc::new_cyclic(|this| Job {
        target: Rc::clone(target),
        buffers: buffers.0.clone(),
        sectors: sectors.to_vec(),
        bytes,
        next: Cell::new(0),
        ended: Cell::new(0),
        failed: Cell::new(false),
        waker: RefCell::new(None),
        this: this.clone(),
    });
    for slot in 0..buffers.0.len() {
        job.submit_next(slot as u64);
    }
    poll_fn(|cx| {
        if job.ended.get() == job.sectors.len() {
            return Poll::Ready(());
        }
        *job.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
    if job.failed.get() { Status::IoError } else { Status::Ok }
}

/// Real time, which a benchmark is about.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Processor time, of the calling thread or of the whole process.
pub struct CoreTime {
    clock: ClockId,
    start: Duration,
}

impl CoreTime {
    /// Of the calling thread, from now on.
    pub fn start() -> Self {
        Self::on(ClockId::ThreadCPUTime)
    }

    /// Of the whole process, from now on.
    pub fn of_process() -> Self {
        Self::on(ClockId::ProcessCPUTime)
    }

    fn on(clock: ClockId) -> Self {
        Self { clock, start: now(clock) }
    }

    /// Processor time since the start.
    pub fn elapsed(&self) -> Duration {
        now(self.clock).saturating_sub(self.start)
    }
}

fn now(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("a clock is not negative")
}
