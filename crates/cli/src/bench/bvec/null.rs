//! `forebay bench bvec`: what a request costs that borrows its segment array, beside one that copies it.
//!
//! ```text
//!   Table ─▶ linear ─▶ null device ─▶ plug ─▶ turn ─▶ completion list ─▶ bio ended
//! ```
//!
//! Random reads, 128 arrays of 4 KiB segments built before, taken round robin: 32 requests are
//! submitted, one turn carries them out, 32 end. The device completes at once, touches no payload
//! and merges nothing. Both columns take the same path; *copy* gives each request an array of its
//! own, by one allocation and one pass over the segments.
//!
//! A rate is requests per second of one core's time. The job never waits, so with a core of its own
//! this is what a clock on the wall shows; `core_share` says how much of the wall's time it had.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use forebay_block::{Bio, End, Extent, HeapMemory, Row, Sector, SectorCount, Segments, Table, Target};
use forebay_device::NullDevice;
use forebay_reactor::Reactor;
use forebay_target::linear::Linear;
use serde::Serialize;

use crate::bench::job::{CoreTime, Stopwatch};
use crate::bench::{BenchError, Spread, failed};

/// Arrays, and so most requests in flight.
const DEPTH: usize = 128;
/// Requests submitted before a turn.
const BATCH: usize = 32;
/// Length of a segment where the block is not shorter, bytes.
const SEGMENT_BYTES: u32 = 4096;
/// Block sizes, bytes.
pub const BLOCK_SIZES: [u32; 10] = [512, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1_048_576];
/// Sectors of the device.
const DEVICE_SECTORS: u64 = 1 << 31;
/// Where the linear target begins, sectors.
const OFFSET: u64 = 2048;
/// Places that requests go to, in turns.
const PLACES: usize = 4096;
/// Requests of a repetition.
const REQUESTS: u64 = 1 << 21;
/// Repetitions of each figure.
const REPETITIONS: usize = 31;

/// One line of the table.
#[derive(Serialize)]
pub struct NullLine {
    /// Bytes of a request.
    pub block_size: u32,
    /// Segments of a request.
    pub segments: u32,
    /// Thousand requests a second, each copying its array; median.
    pub copy_kiops: f64,
    /// The same, each borrowing it.
    pub borrow_kiops: f64,
    /// Time of a request that copies, ns.
    pub copy_ns: f64,
    /// Time of a request that borrows, ns.
    pub borrow_ns: f64,
    /// Borrowing over copying, repetition by repetition.
    pub borrow_over_copy: Spread,
    /// Borrowing at this size over borrowing at the smallest, repetition by repetition.
    pub borrow_over_smallest: Spread,
    /// Share of the wall's time that the job had a core.
    pub core_share: f64,
}

/// The requests of one block size, and their end.
struct Load {
    me: Weak<Self>,
    table: Rc<Table>,
    arrays: Vec<Rc<Segments>>,
    places: Vec<Sector>,
    bytes: u32,
    next: Cell<usize>,
    ended: Cell<u64>,
    failed: Cell<bool>,
}

impl End for Load {
    fn bio_ended(&self, bio: Bio, _token: u64) {
        self.failed.set(self.failed.get() | !bio.status().is_ok());
        self.ended.set(self.ended.get() + 1);
    }
}

impl Load {
    fn new(table: &Rc<Table>, bytes: u32) -> Rc<Self> {
        let mut rng = fastrand::Rng::with_seed(u64::from(bytes));
        let blocks = table.sectors().to_bytes() / u64::from(bytes);
        let places = (0..PLACES).map(|_| Sector(rng.u64(..blocks) * u64::from(bytes) / 512)).collect();
        let arrays = (0..DEPTH).map(|_| array(bytes)).collect();
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            table: Rc::clone(table),
            arrays,
            places,
            bytes,
            next: Cell::new(0),
            ended: Cell::new(0),
            failed: Cell::new(false),
        })
    }

    fn submit_batch(&self, copying: bool) {
        let end: Rc<dyn End> = self.me.upgrade().expect("the load outlives its requests");
        for _ in 0..BATCH {
            let number = self.next.get();
            self.next.set(number + 1);
            let segments = Rc::clone(&self.arrays[number % DEPTH]);
            let bio = Bio::read(self.places[number % PLACES], segments, 0, self.bytes);
            let bio = if copying { bio.with_copied_segments() } else { bio };
            self.table.submit(bio.on_end(Rc::clone(&end), 0));
        }
    }

    /// Runs the requests of a repetition; time of a core, and of the wall.
    fn run(&self, reactor: &Reactor, copying: bool) -> Result<(Duration, Duration), BenchError> {
        let until = self.ended.get() + REQUESTS;
        let (wall, core) = (Stopwatch::start(), CoreTime::start());
        while self.ended.get() < until {
            self.submit_batch(copying);
            reactor.turn(false).map_err(failed)?;
        }
        let times = (core.elapsed(), wall.elapsed());
        if self.failed.get() { Err(BenchError("a read of the null device failed".to_owned())) } else { Ok(times) }
    }
}

/// Segments that do not adjoin in memory, for a request of `bytes`.
fn array(bytes: u32) -> Rc<Segments> {
    let each = bytes.min(SEGMENT_BYTES);
    let count = (bytes / each) as usize;
    let memory = Box::new(HeapMemory::new(2 * count * each as usize, 4096));
    let ranges: Vec<(usize, u32)> = (0..count).map(|at| (2 * at * each as usize, each)).collect();
    Segments::ranges(memory, &ranges).expect("a benchmark's segments lie in their memory")
}

/// Times of one block size.
#[derive(Default)]
struct Times {
    copy: Vec<Duration>,
    borrow: Vec<Duration>,
    core: Duration,
    wall: Duration,
}

/// Measures all sizes in turns.
///
/// # Errors
/// When a device cannot be made or the backend is broken.
pub fn run(reactor: &Reactor, sizes: &[u32]) -> Result<Vec<NullLine>, BenchError> {
    let null = NullDevice::untouched(reactor, SectorCount(DEVICE_SECTORS)).map_err(failed)?;
    let sectors = SectorCount(DEVICE_SECTORS - OFFSET);
    let linear = Linear::new(null, Sector(OFFSET), sectors).map_err(failed)?;
    let table = Table::new(vec![Row { extent: Extent::new(Sector(0), sectors), target: Rc::new(linear) }]).map_err(failed)?;
    let table = Rc::new(table);
    let loads: Vec<Rc<Load>> = sizes.iter().map(|&bytes| Load::new(&table, bytes)).collect();
    let mut times: Vec<Times> = loads.iter().map(|_| Times::default()).collect();
    for repetition in 0..=REPETITIONS {
        for (load, times) in loads.iter().zip(&mut times) {
            let copy = load.run(reactor, true)?;
            let borrow = load.run(reactor, false)?;
            // The first warms pools and caches.
            if repetition > 0 {
                times.copy.push(copy.0);
                times.borrow.push(borrow.0);
                times.core += copy.0 + borrow.0;
                times.wall += copy.1 + borrow.1;
            }
        }
    }
    let smallest = &times[0].borrow;
    Ok(loads.iter().zip(&times).map(|(load, times)| line(load.bytes, times, smallest)).collect())
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn line(bytes: u32, times: &Times, smallest: &[Duration]) -> NullLine {
    let ns = |times: &[Duration]| Spread::of(times.iter().map(|time| time.as_secs_f64() * 1e9 / REQUESTS as f64)).median;
    let ratio = |a: &[Duration], b: &[Duration]| Spread::of(a.iter().zip(b).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()));
    let (copy_ns, borrow_ns) = (ns(&times.copy), ns(&times.borrow));
    NullLine {
        block_size: bytes,
        segments: bytes.div_ceil(SEGMENT_BYTES),
        copy_kiops: 1e6 / copy_ns,
        borrow_kiops: 1e6 / borrow_ns,
        copy_ns,
        borrow_ns,
        borrow_over_copy: ratio(&times.borrow, &times.copy),
        borrow_over_smallest: ratio(&times.borrow, smallest),
        core_share: times.core.as_secs_f64() / times.wall.as_secs_f64(),
    }
}
