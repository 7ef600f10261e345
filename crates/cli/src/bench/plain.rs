//! `forebay bench zram --plain`: plain writes and reads of a compressed RAM disk in this process, on one
//! thread, each asked for when the one before has ended.
//!
//! Blocks in random order, each written once and read once a repetition, with lz4 and data that is
//! compressible by 60 %. The disk is full before the clock starts; payload is made before, too.

use std::fmt::Write as _;
use std::rc::Rc;

use forebay_block::{Bio, Sector, SectorCount, Status, call};
use forebay_reactor::{Buffer, BufferPool, Reactor};
use forebay_target::zram::{Setup, Zram};
use serde::Serialize;

use super::job::Stopwatch;
use super::report::Curve;
use super::zram::noise_and_zeroes;
use super::{BenchError, Spread, failed, mib_s};

const SIZES: [u32; 2] = [4096, 128 << 10];
/// Payloads, used in turns.
const PAYLOADS: usize = 32;
const REPETITIONS: usize = 5;

/// One line of the table; speeds in MiB/s, medians.
#[derive(Serialize)]
pub struct PlainLine {
    /// Bytes of a request.
    pub block_size: u32,
    /// Writes.
    pub write_mib_s: Spread,
    /// Reads.
    pub read_mib_s: Spread,
    /// Bytes that the disk held.
    pub original_bytes: u64,
    /// Memory in use for them, as the kernel counts it.
    pub used_bytes: u64,
    /// And with all tables.
    pub memory_bytes: u64,
}

/// Measures a disk of `bytes` bytes.
///
/// # Errors
/// When there is not enough memory.
pub async fn run(reactor: &Reactor, bytes: u64) -> Result<Vec<PlainLine>, BenchError> {
    let largest = u64::from(SIZES[1]);
    let bytes = bytes / largest * largest;
    if bytes == 0 {
        return Err(BenchError("the size is less than 128 KiB: give at least 128K".to_owned()));
    }
    let pool = BufferPool::new(reactor);
    let mut lines = Vec::new();
    for block in SIZES {
        let setup = Setup { sectors: SectorCount(bytes / 512), ..Setup::default() };
        let zram = Zram::new(reactor, &pool, &setup).map_err(failed)?;
        let mut job = Job::new(&pool, zram, block, bytes);
        job.pass(true).await?;
        let (mut writes, mut reads) = (Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            writes.push(job.pass(true).await?);
            reads.push(job.pass(false).await?);
        }
        job.check()?;
        let status = job.zram.status();
        lines.push(PlainLine {
            block_size: block,
            write_mib_s: Spread::of(writes.into_iter()),
            read_mib_s: Spread::of(reads.into_iter()),
            original_bytes: status.original_bytes,
            used_bytes: status.used_bytes,
            memory_bytes: status.memory_bytes,
        });
    }
    Ok(lines)
}

struct Job {
    zram: Rc<Zram>,
    block: u32,
    bytes: u64,
    order: Vec<Sector>,
    written: Vec<Buffer>,
    read: Vec<Buffer>,
}

impl Job {
    fn new(pool: &BufferPool, zram: Rc<Zram>, block: u32, bytes: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(5);
        let size = block as usize;
        let mut written: Vec<Buffer> = (0..PAYLOADS).map(|_| pool.take(size)).collect();
        for page in written.iter_mut().flat_map(|buffer| buffer.bytes_mut().chunks_mut(4096)) {
            noise_and_zeroes(&mut rng, page);
        }
        let mut read: Vec<Buffer> = (0..PAYLOADS).map(|_| pool.take(size)).collect();
        for buffer in &mut read {
            buffer.bytes_mut().fill(1);
        }
        let mut order: Vec<Sector> = (0..bytes / u64::from(block)).map(|at| Sector(at * u64::from(block) / 512)).collect();
        rng.shuffle(&mut order);
        Self { zram, block, bytes, order, written, read }
    }

    /// Writes or reads every block once; MiB/s.
    async fn pass(&mut self, write: bool) -> Result<f64, BenchError> {
        let clock = Stopwatch::start();
        for (at, &sector) in self.order.iter().enumerate() {
            let bio = if write {
                Bio::write(sector, Rc::clone(self.written[at % PAYLOADS].segments()), 0, self.block)
            } else {
                Bio::read(sector, Rc::clone(self.read[at % PAYLOADS].segments()), 0, self.block)
            };
            if call(&*self.zram, bio).await.status() != Status::Ok {
                return Err(BenchError("the disk failed: is there enough memory?".to_owned()));
            }
        }
        Ok(mib_s(self.bytes, clock.elapsed()))
    }

    /// Whether the last blocks read are what was written there.
    fn check(&mut self) -> Result<(), BenchError> {
        let last = (self.order.len() - 1) % PAYLOADS;
        let size = self.block as usize;
        let same = self.written[last].bytes_mut()[..size] == self.read[last].bytes_mut()[..size];
        if same { Ok(()) } else { Err(BenchError("the disk gave back something else than was written".to_owned())) }
    }
}

/// The table for people.
#[expect(clippy::cast_precision_loss, reason = "a ratio of sizes")]
pub fn text(lines: &[PlainLine]) -> String {
    let mut text = format!("{:>7} {:<28} {:<28} {}\n", "block", "written MiB/s", "read MiB/s", "memory in use / data");
    for line in lines {
        let ratio = line.used_bytes as f64 / line.original_bytes as f64;
        let (write, read) = (whole(line.write_mib_s), whole(line.read_mib_s));
        let _ = writeln!(text, "{:>7} {write:<28} {read:<28} {ratio:.4}", line.block_size);
    }
    text
}

fn whole(spread: Spread) -> String {
    format!("{:.0} ({:.0} to {:.0})", spread.median, spread.min, spread.max)
}

/// Its plot.
pub fn curves(lines: &[PlainLine]) -> Vec<Curve> {
    let values = |pick: fn(&PlainLine) -> f64| lines.iter().map(pick).collect();
    vec![
        Curve { name: "written, MiB/s", colour: "#b33", values: values(|line| line.write_mib_s.median) },
        Curve { name: "read, MiB/s", colour: "#27c", values: values(|line| line.read_mib_s.median) },
    ]
}
