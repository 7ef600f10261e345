//! `forebay bench zram`: writing a compressed RAM disk back, page by page, 32 at a time, and as it is
//! done here, on one file in one run.
//!
//! ```text
//!   pwrite   the bare file, 4 KiB at a time, each waited for      single   the disk, the same way
//!   raw      the bare file, 1 MiB at depth 16                     batch32  32 pages a write, each waited for
//!                                                                 ours     the default
//!                                                                 packed   objects instead of pages
//! ```
//!
//! `single` and `batch32` wait inside of `pwrite`, as the kernel does: an asynchronous write of one page
//! takes the kernel a turn of a worker thread more, with which nobody should be compared. `raw` and
//! `ours` are measured three times in turns; what is told is the turn whose ratio is in the middle.
//!
//! The disk is filled with 4 KiB random writes of data that is compressible by 60 %, everything is
//! marked idle, and the clock runs while idle pages are written back. The file is written whole before.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Limits, Op, Sector, SectorCount, Status, Target, call};
use forebay_device::{FileDevice, FileOptions};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::zram::{BackingOptions, BackingSetup, Setup, Zram};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use super::job::{Buffers, Stopwatch, write_all};
use super::report::{Curve, Report, write_html};
use super::{BenchError, failed, mib_s, plain};
use crate::figures;
use crate::flags::ZramBenchFlags;

const PAGE: u64 = 4096;
/// Bytes of a page that are not zero: 40 %.
const NOISE: usize = 1638;
const RAW_BYTES: u32 = 1 << 20;
const RAW_DEPTH: usize = 16;
/// Times that the bare file and the default are measured.
const TURNS: usize = 3;

/// What was measured; times in seconds.
#[derive(Serialize)]
struct Figures {
    bench: &'static str,
    version: &'static str,
    bytes: u64,
    pwrite_s: f64,
    single_s: f64,
    batch32_s: f64,
    ours_s: f64,
    packed_s: f64,
    raw_s: f64,
    single_cpu_s: f64,
    batch32_cpu_s: f64,
    ours_cpu_s: f64,
    packed_cpu_s: f64,
    /// Blocks in use, pages read, pages written, after `ours`.
    bd_stat: [u64; 3],
    /// Writes that `ours` made.
    requests: u64,
    /// Bytes that `packed` wrote.
    packed_bytes: u64,
}

/// A way to write back: pages of one write, and writes in flight; by default where `None`.
#[derive(Clone, Copy, Default)]
struct Way {
    range_pages: Option<u32>,
    batches: Option<u32>,
    packed: bool,
}

/// What one way took.
struct Took {
    time: Duration,
    core: Duration,
    bd_stat: [u64; 3],
    requests: u64,
}

/// Runs the benchmark.
///
/// # Errors
/// One sentence on what it lacked.
pub fn run(flags: &ZramBenchFlags) -> Result<ExitCode, BenchError> {
    let reactor = Reactor::new(forebay_reactor::engine(forebay_reactor::Engine::Auto).map_err(failed)?);
    if flags.plain {
        let report = Report::new("zram-plain", reactor.run(plain::run(&reactor, flags.size)).map_err(failed)??);
        let steps: Vec<String> = report.rows.iter().map(|line| line.block_size.to_string()).collect();
        let table = plain::text(&report.rows);
        page(flags, &report, "plain writes and reads, lz4, one thread", &steps, &plain::curves(&report.rows), &table)?;
        tell(flags, || report.json(), &table)?;
        return Ok(ExitCode::SUCCESS);
    }
    let figures = reactor.run(measure(&reactor, flags)).map_err(failed)??;
    let about = format!("{} of idle pages written back to a file", figures::bytes(figures.bytes));
    let (steps, curves) = plot(&figures);
    page(flags, &Report::new("zram", Vec::<Figures>::new()), &about, &steps, &curves, &text(&figures))?;
    tell(flags, || serde_json::to_string(&figures).map_err(failed), &text(&figures))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page, where one is wanted.
fn page<Row: Serialize>(
    flags: &ZramBenchFlags,
    report: &Report<Row>,
    what: &str,
    steps: &[String],
    curves: &[Curve],
    table: &str,
) -> Result<(), BenchError> {
    let Some(path) = &flags.html else { return Ok(()) };
    let about = format!("{} on {}, Linux {}: {what}.", report.command, report.cpu, report.kernel);
    write_html(path, "Compressed RAM disk", &about, steps, curves, table)
}

/// Prints what is wanted.
fn tell(flags: &ZramBenchFlags, json: impl FnOnce() -> Result<String, BenchError>, table: &str) -> Result<(), BenchError> {
    if flags.json {
        println!("{}", json()?);
    } else if flags.html.is_none() {
        print!("{table}");
    }
    Ok(())
}

/// Speeds of all ways, MiB/s.
fn plot(figures: &Figures) -> (Vec<String>, Vec<Curve>) {
    let ways = [
        ("pwrite", figures.pwrite_s),
        ("single", figures.single_s),
        ("batch32", figures.batch32_s),
        ("ours", figures.ours_s),
        ("packed", figures.packed_s),
        ("raw", figures.raw_s),
    ];
    let speed = |seconds: f64| mib_s(figures.bytes, Duration::from_secs_f64(seconds));
    let values = ways.iter().map(|(_, seconds)| speed(*seconds)).collect();
    (ways.map(|(name, _)| name.to_owned()).to_vec(), vec![Curve { name: "MiB/s", colour: "#27c", values }])
}

async fn measure(reactor: &Reactor, flags: &ZramBenchFlags) -> Result<Figures, BenchError> {
    let bytes = flags.size / u64::from(RAW_BYTES) * u64::from(RAW_BYTES);
    if bytes == 0 {
        return Err(BenchError("the size is less than 1 MiB: give at least 1M".to_owned()));
    }
    let file = Scratch::new(flags.backing.as_deref());
    let options = FileOptions { create_bytes: Some(bytes + u64::from(RAW_BYTES)), ..FileOptions::default() };
    let device = FileDevice::open(reactor, &file.path, &options).map_err(failed)?;
    if device.sectors().to_bytes() < bytes + PAGE {
        let found = figures::bytes(device.sectors().to_bytes());
        return Err(BenchError(format!("{} has only {found}: give a smaller --size", file.path.display())));
    }
    let target: Rc<dyn Target> = device;
    let pool = BufferPool::new(reactor);
    // The first writes of a file make its blocks; only what follows is compared.
    raw(&target, bytes).await?;
    let told = |what: &str| {
        if !flags.json {
            eprintln!("measured {what}");
        }
    };
    let waiting: Rc<dyn Target> = Rc::new(Waiting::open(&file.path, Rc::clone(&target))?);
    let synchronous = |pages| Way { range_pages: Some(pages), batches: Some(1), packed: false };
    let pwrite = pwrite_loop(&file.path, bytes)?;
    told("the bare file page by page");
    let single = write_back(reactor, &pool, &waiting, bytes, synchronous(1)).await?;
    told("the disk page by page");
    let batch32 = write_back(reactor, &pool, &waiting, bytes, synchronous(32)).await?;
    told("the disk 32 pages at a time");
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let raw = raw(&target, bytes).await?;
        turns.push((raw, write_back(reactor, &pool, &target, bytes, Way::default()).await?));
    }
    turns.sort_by(|(raw, ours), (other_raw, other)| {
        let ratio = |raw: &Duration, ours: &Took| raw.as_secs_f64() / ours.time.as_secs_f64();
        ratio(raw, ours).total_cmp(&ratio(other_raw, other))
    });
    let (raw, ours) = turns.swap_remove(TURNS / 2);
    told("the bare file and the disk in turns");
    let packed = write_back(reactor, &pool, &target, bytes, Way { packed: true, ..Way::default() }).await?;
    Ok(Figures {
        bench: "zram",
        version: env!("CARGO_PKG_VERSION"),
        bytes,
        pwrite_s: pwrite.as_secs_f64(),
        single_s: single.time.as_secs_f64(),
        batch32_s: batch32.time.as_secs_f64(),
        ours_s: ours.time.as_secs_f64(),
        packed_s: packed.time.as_secs_f64(),
        raw_s: raw.as_secs_f64(),
        single_cpu_s: single.core.as_secs_f64(),
        batch32_cpu_s: batch32.core.as_secs_f64(),
        ours_cpu_s: ours.core.as_secs_f64(),
        packed_cpu_s: packed.core.as_secs_f64(),
        bd_stat: ours.bd_stat,
        requests: ours.requests,
        packed_bytes: packed.bd_stat[2] * PAGE,
    })
}

/// A file that is removed in the end, unless somebody named it.
struct Scratch {
    path: PathBuf,
    ours: bool,
}

impl Scratch {
    fn new(named: Option<&Path>) -> Self {
        let path = || PathBuf::from(format!("forebay-bench-zram-{}.img", std::process::id()));
        Self { path: named.map_or_else(path, Path::to_owned), ours: named.is_none() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.ours {
            // A file that is gone already is what is wanted.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The file, each write made and waited for where it is submitted.
struct Waiting {
    file: OwnedFd,
    /// What the file is like.
    like: Rc<dyn Target>,
    pool: BufferPool,
}

impl Waiting {
    fn open(path: &Path, like: Rc<dyn Target>) -> Result<Self, BenchError> {
        Ok(Self { file: open_direct(path)?, like, pool: BufferPool::default() })
    }

    fn write(&self, bio: &Bio) -> Status {
        let bytes = usize::try_from(bio.bytes()).expect("a write fits in memory");
        let mut buffer = self.pool.take(bytes);
        bio.copy_out(&mut buffer.bytes_mut()[..bytes]);
        match rustix::io::pwrite(&self.file, &buffer.bytes_mut()[..bytes], bio.sector().to_bytes()) {
            Ok(written) if written == bytes => Status::Ok,
            _ => Status::IoError,
        }
    }
}

impl Target for Waiting {
    fn kind(&self) -> &'static str {
        "waiting"
    }

    fn limits(&self) -> Limits {
        self.like.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.like.sectors()
    }

    fn submit(&self, bio: Bio) {
        let status = if bio.op() == Op::Write { self.write(&bio) } else { Status::Unsupported };
        bio.end(status);
    }
}

/// Writes the bare file as fast as it takes it.
async fn raw(target: &Rc<dyn Target>, bytes: u64) -> Result<Duration, BenchError> {
    let buffers = Buffers::new(RAW_DEPTH, RAW_BYTES);
    let sectors: Vec<Sector> = (0..bytes / u64::from(RAW_BYTES)).map(|at| Sector(at * u64::from(RAW_BYTES) / 512)).collect();
    let clock = Stopwatch::start();
    let status = write_all(target, &buffers, &sectors, RAW_BYTES).await;
    let time = clock.elapsed();
    if status.is_ok() { Ok(time) } else { Err(BenchError("a write to the file failed: is the disk full?".to_owned())) }
}

/// Writes the bare file page by page, without anything of ours in between.
fn pwrite_loop(path: &Path, bytes: u64) -> Result<Duration, BenchError> {
    let file = open_direct(path)?;
    let memory = vec![7_u8; 2 * 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let page = memory.get(skip..skip + 4096).ok_or_else(|| BenchError("memory cannot be aligned".to_owned()))?;
    let clock = Stopwatch::start();
    for at in (0..bytes).step_by(4096) {
        if rustix::io::pwrite(&file, page, at).map_err(failed)? != page.len() {
            return Err(BenchError("a write to the file came back short: is the disk full?".to_owned()));
        }
    }
    Ok(clock.elapsed())
}

/// The file past the page cache, where it can be.
fn open_direct(path: &Path) -> Result<OwnedFd, BenchError> {
    let open = |flags| rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC | flags, Mode::empty());
    open(OFlags::DIRECT).or_else(|_| open(OFlags::empty())).map_err(failed)
}

/// Fills a disk and writes all of it back.
async fn write_back(
    reactor: &Reactor,
    pool: &BufferPool,
    target: &Rc<dyn Target>,
    bytes: u64,
    way: Way,
) -> Result<Took, BenchError> {
    let pages = bytes / PAGE;
    let backing = BackingSetup {
        name: "file".to_owned(),
        target: Rc::clone(target),
        options: BackingOptions { range_pages: way.range_pages, packed: way.packed, ..BackingOptions::default() },
    };
    let sectors = SectorCount((pages + pages / 2) * 8);
    let setup = Setup { sectors, backing: Some(backing), ..Setup::default() };
    let zram = Zram::new(reactor, pool, &setup).map_err(failed)?;
    fill(&zram, pool, pages).await?;
    if let Some(batches) = way.batches {
        zram.set("writeback_batch_size", &batches.to_string()).await.map_err(failed)?;
    }
    zram.set("idle", "all").await.map_err(failed)?;
    let (clock, core) = (Stopwatch::start(), core_time());
    zram.writeback("idle").await.map_err(failed)?;
    let (time, core) = (clock.elapsed(), core_time().saturating_sub(core));
    let status = zram.status();
    let bd_stat = [status.backing_blocks, status.backing_reads, status.backing_writes];
    Ok(Took { time, core, bd_stat, requests: status.backing_requests })
}

/// Fills a page with data that is compressible by 60 %.
pub fn noise_and_zeroes(rng: &mut fastrand::Rng, page: &mut [u8]) {
    let (noise, zeroes) = page.split_at_mut(NOISE);
    rng.fill(noise);
    zeroes.fill(0);
}

/// Writes each of `pages` pages once, in random order.
async fn fill(zram: &Rc<Zram>, pool: &BufferPool, pages: u64) -> Result<(), BenchError> {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut order: Vec<u32> = (0..u32::try_from(pages).map_err(failed)?).collect();
    rng.shuffle(&mut order);
    let mut buffer = pool.take(4096);
    for page in order {
        let content = buffer.bytes_mut();
        noise_and_zeroes(&mut rng, content);
        let bio = Bio::write(Sector(u64::from(page) * 8), Rc::clone(buffer.segments()), 0, 4096);
        if call(&**zram, bio).await.status() != Status::Ok {
            return Err(BenchError("the disk could not be filled: is there enough memory?".to_owned()));
        }
    }
    Ok(())
}

/// Processor time of all threads so far.
fn core_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a clock is not negative")
}

fn text(figures: &Figures) -> String {
    let line = |name: &str, seconds: f64, core: Option<f64>| {
        let core = core.map_or_else(|| "-".to_owned(), |core| format!("{core:.2}"));
        format!("{name:<10} {seconds:>9.2} {core:>9} {:>12.2} {:>9.2}\n", figures.single_s / seconds, figures.raw_s / seconds)
    };
    let mut text = format!("{:<10} {:>9} {:>9} {:>12} {:>9}\n", "", "seconds", "core s", "single / it", "raw / it");
    text += &line("pwrite", figures.pwrite_s, None);
    text += &line("single", figures.single_s, Some(figures.single_cpu_s));
    text += &line("batch32", figures.batch32_s, Some(figures.batch32_cpu_s));
    text += &line("ours", figures.ours_s, Some(figures.ours_cpu_s));
    text += &line("packed", figures.packed_s, Some(figures.packed_cpu_s));
    text += &line("raw", figures.raw_s, None);
    let [blocks, reads, writes] = figures.bd_stat;
    text + &format!(
        "{} written back by {} writes; bd_stat {blocks} {reads} {writes}; packed in {}\n",
        figures::bytes(figures.bytes),
        figures.requests,
        figures::bytes(figures.packed_bytes)
    )
}
