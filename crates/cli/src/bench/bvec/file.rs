//! `forebay bench bvec --dir DIR`: what registered memory and files save on a real file with direct I/O.
//!
//! Random reads and writes at depth 32, each submitted when an earlier one ended, to two files that
//! were written whole. One side knows the ring's registered buffers and files; the other is the same
//! ring without them: plain `read` and `write` of one segment, `readv` and `writev` of several. Memory
//! and layout are the same on both. A figure is processor time of the whole process, threads of the
//! kernel for it included, for each request.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Bio, End, Op, Sector, Segments, Target};
use forebay_device::{FileDevice, FileOptions};
use forebay_reactor::uring::Features;
use forebay_reactor::{BufferPool, Reactor, Uring};
use serde::Serialize;

use crate::bench::job::{CoreTime, Stopwatch};
use crate::bench::{BenchError, Spread, failed};

/// Request sizes, bytes.
pub const BLOCK_SIZES: [u32; 3] = [4096, 65_536, 524_288];
/// Bytes of each of the two files.
const FILE_BYTES: u64 = 256 << 20;
/// Requests in flight.
const DEPTH: usize = 32;
/// Bytes of the segments where a request has several.
const SEGMENT_BYTES: u32 = 4096;
/// Bytes of a repetition, and its most requests.
const REPETITION_BYTES: u64 = 32 << 20;
const REQUESTS_MAX: u64 = 4096;
/// Repetitions of each figure.
const REPETITIONS: usize = 15;

/// One line of the table.
#[derive(Serialize)]
pub struct FileLine {
    /// Bytes of a request.
    pub block_size: u32,
    /// `read` or `write`.
    pub op: &'static str,
    /// Segments of a request.
    pub segments: u32,
    /// Processor time of a request without registration, µs; median.
    pub plain_cpu_us: f64,
    /// The same with it.
    pub registered_cpu_us: f64,
    /// Plain over registered, repetition by repetition: above 1 where registering saves.
    pub plain_over_registered: Spread,
    /// Thousand requests a second without registration.
    pub plain_kiops: f64,
    /// The same with it.
    pub registered_kiops: f64,
    /// Calls into the system for each request, with registration.
    pub enters_per_request: f64,
}

/// What one side needs.
struct Side {
    reactor: Reactor,
    path: PathBuf,
    device: Rc<FileDevice>,
    pool: BufferPool,
}

impl Drop for Side {
    fn drop(&mut self) {
        // A file that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Side {
    fn new(folder: &Path, name: &str, features: Features) -> Result<Self, BenchError> {
        let reactor = Reactor::new(Box::new(Uring::with_features(features).map_err(failed)?));
        let path = folder.join(format!("forebay-bench-{name}-{}.img", std::process::id()));
        let make = || std::fs::File::create_new(&path)?.set_len(FILE_BYTES);
        make().map_err(|error| BenchError(format!("cannot make {}: {error}", path.display())))?;
        let device = FileDevice::open(&reactor, &path, &FileOptions::default()).map_err(failed)?;
        let side = Self { pool: BufferPool::new(&reactor), reactor, path, device };
        let fill = Load::new(&side, Op::Write, 1 << 20, 1);
        fill.run(&side.reactor, FILE_BYTES >> 20, true)?;
        Ok(side)
    }
}

/// Requests of one kind at a steady depth.
struct Load {
    me: Weak<Self>,
    device: Rc<FileDevice>,
    arrays: Vec<Rc<Segments>>,
    op: Op,
    bytes: u32,
    random: std::cell::RefCell<fastrand::Rng>,
    in_order: Cell<bool>,
    next: Cell<u64>,
    until: Cell<u64>,
    ended: Cell<u64>,
    failed: Cell<bool>,
}

impl Load {
    fn new(side: &Side, op: Op, bytes: u32, segments: u32) -> Rc<Self> {
        let arrays = (0..DEPTH).map(|_| array(&side.pool, bytes, segments)).collect();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            device: Rc::clone(&side.device),
            arrays,
            op,
            bytes,
            random: std::cell::RefCell::new(fastrand::Rng::with_seed(u64::from(bytes))),
            in_order: Cell::new(false),
            next: Cell::new(0),
            until: Cell::new(0),
            ended: Cell::new(0),
            failed: Cell::new(false),
        })
    }

    fn submit(&self, slot: usize) {
        let number = self.next.get();
        if number == self.until.get() {
            return;
        }
        self.next.set(number + 1);
        let blocks = FILE_BYTES / u64::from(self.bytes);
        let block = if self.in_order.get() { number } else { self.random.borrow_mut().u64(..blocks) };
        let (sector, segments) = (Sector(block * u64::from(self.bytes) / 512), Rc::clone(&self.arrays[slot]));
        let bio = match self.op {
            Op::Read => Bio::read(sector, segments, 0, self.bytes),
            _ => Bio::write(sector, segments, 0, self.bytes),
        };
        let end: Rc<dyn End> = self.me.upgrade().expect("the load outlives its requests");
        self.device.submit(bio.on_end(end, slot as u64));
    }

    fn run(&self, reactor: &Reactor, requests: u64, in_order: bool) -> Result<(), BenchError> {
        self.in_order.set(in_order);
        self.until.set(self.until.get() + requests);
        for slot in 0..self.arrays.len() {
            self.submit(slot);
        }
        while self.ended.get() < self.until.get() {
            reactor.turn(true).map_err(failed)?;
        }
        if self.failed.get() { Err(BenchError("a request failed: is the disk full?".to_owned())) } else { Ok(()) }
    }
}

impl End for Load {
    fn bio_ended(&self, bio: Bio, slot: u64) {
        self.failed.set(self.failed.get() | !bio.status().is_ok());
        drop(bio);
        self.ended.set(self.ended.get() + 1);
        self.submit(usize::try_from(slot).expect("a slot is an index"));
    }
}

/// Payload of the pool in that many segments, none of which adjoin; touched.
fn array(pool: &BufferPool, bytes: u32, segments: u32) -> Rc<Segments> {
    if segments == 1 {
        let mut buffer = pool.take(bytes as usize);
        buffer.bytes_mut().fill(7);
        let memory = buffer.into_memory().ok().expect("nobody shares a fresh buffer");
        return Segments::whole(memory, bytes).expect("a request is not empty");
    }
    let memories = (0..segments).map(|_| {
        let mut buffer = pool.take(2 * SEGMENT_BYTES as usize);
        buffer.bytes_mut().fill(7);
        (buffer.into_memory().ok().expect("nobody shares a fresh buffer"), SEGMENT_BYTES)
    });
    Segments::each(memories.collect()).expect("a request is not empty")
}

/// Measures all sizes on two files in `folder`.
///
/// # Errors
/// When there is no `io_uring`, no direct I/O or no room, or a request fails.
pub fn run(folder: &Path, sizes: &[u32], told: impl Fn(&FileLine)) -> Result<Vec<FileLine>, BenchError> {
    let unregistered = Features::ALL.without(Features::FILES).without(Features::BUFFERS).without(Features::FIXED_VECTORS);
    let plain = Side::new(folder, "plain", unregistered)?;
    let registered = Side::new(folder, "registered", Features::ALL)?;
    if !registered.device.is_direct() {
        return Err(BenchError(format!("{} takes no direct I/O: choose another folder", folder.display())));
    }
    let mut lines = Vec::new();
    for &bytes in sizes {
        for op in [Op::Read, Op::Write] {
            let several = bytes / SEGMENT_BYTES;
            for segments in if several > 1 { vec![1, several] } else { vec![1] } {
                let line = line(&plain, &registered, op, bytes, segments)?;
                told(&line);
                lines.push(line);
            }
        }
    }
    Ok(lines)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn line(plain: &Side, registered: &Side, op: Op, bytes: u32, segments: u32) -> Result<FileLine, BenchError> {
    let requests = (REPETITION_BYTES / u64::from(bytes)).min(REQUESTS_MAX);
    let loads = [plain, registered].map(|side| Load::new(side, op, bytes, segments));
    let mut times = [Vec::new(), Vec::new()];
    let mut walls = [Duration::ZERO; 2];
    let mut enters = 0;
    for repetition in 0..=REPETITIONS {
        for (at, side) in [plain, registered].into_iter().enumerate() {
            let before = side.reactor.counts().enters;
            let (wall, cpu) = (Stopwatch::start(), CoreTime::of_process());
            loads[at].run(&side.reactor, requests, false)?;
            // The first warms pools and caches.
            if repetition > 0 {
                times[at].push(cpu.elapsed());
                walls[at] += wall.elapsed();
                enters += if at == 1 { side.reactor.counts().enters - before } else { 0 };
            }
        }
    }
    let us = |times: &[Duration]| Spread::of(times.iter().map(|time| time.as_secs_f64() * 1e6 / requests as f64)).median;
    let all = requests as f64 * REPETITIONS as f64;
    let [plain_times, registered_times] = &times;
    let ratios = plain_times.iter().zip(registered_times).map(|(a, b)| a.as_secs_f64() / b.as_secs_f64());
    Ok(FileLine {
        block_size: bytes,
        op: if op == Op::Read { "read" } else { "write" },
        segments,
        plain_cpu_us: us(plain_times),
        registered_cpu_us: us(registered_times),
        plain_over_registered: Spread::of(ratios),
        plain_kiops: all / walls[0].as_secs_f64() / 1e3,
        registered_kiops: all / walls[1].as_secs_f64() / 1e3,
        enters_per_request: enters as f64 / all,
    })
}
