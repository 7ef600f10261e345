//! `forebay bench kcopyd`: sequential writes to an origin of which there is a fresh snapshot.
//!
//! The job: 512 KiB sequential writes at depth 8 to an origin with a new persistent snapshot, ending
//! with a flush; nothing of it is in the snapshot's store before, so everything is copied there. For each
//! chunk size, interleaved in one run: *off*, each chunk copied on its own by requests that nothing merges, each
//! dispatched at once by a call of its own (in memory, where nothing is dispatched, only the former); *on*, as it comes;
//! and the *limit*, the same bytes read from the origin, written to the
//! store's device and written to the origin, by requests of 512 KiB at the same depth.
//!
//! Over RAM, and over files with direct I/O in a folder, which were written whole before.

use std::cell::Cell;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Flags, HeapMemory, Sector, SectorCount, Segments, Status, Target, call};
use forebay_device::{FileDevice, FileOptions, RamDevice};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::event::Event;
use forebay_target::snapshot::options::{Discards, StoreKind};
use forebay_target::snapshot::{Condition, Origin, OriginFront, Setup, open};
use serde::Serialize;

use super::job::{Buffers, Stopwatch, write_all};
use super::report::{Curve, Report, write_html};
use super::{BenchError, Spread, failed, mib_s};
use crate::flags::KcopydFlags;

const REQUEST_BYTES: u32 = 512 << 10;
const DEPTH: usize = 8;
const CHUNK_SIZES: [u32; 3] = [4096, 32_768, 524_288];
const REPETITIONS: usize = 5;
const TIME_MIN: Duration = Duration::from_secs(2);

/// One line of the table; speeds in MiB/s, medians.
#[derive(Serialize)]
struct Line {
    /// `ram` or `file`.
    device: &'static str,
    /// Chunk size, bytes.
    chunk_size: u32,
    /// Each chunk on its own.
    off_mib_s: f64,
    /// As it comes.
    on_mib_s: f64,
    /// The same bytes by large requests.
    limit_mib_s: f64,
    /// On over off, repetition by repetition.
    on_over_off: Spread,
    /// On over the limit.
    on_over_limit: Spread,
}

/// An origin and the device of a store, twice: where neighbouring requests are merged, and where not.
/// A file is open for one user only, so these are other files.
struct Pairs {
    name: &'static str,
    merged: [Rc<dyn Target>; 2],
    alone: [Rc<dyn Target>; 2],
}

impl Pairs {
    fn of(&self, merging: bool) -> &[Rc<dyn Target>; 2] {
        if merging { &self.merged } else { &self.alone }
    }
}

/// Files that are removed when they are dropped.
struct Scratch(Vec<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            // A file that is gone already is what is wanted.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// One sentence on what it lacked.
pub fn run(flags: &KcopydFlags) -> Result<ExitCode, BenchError> {
    let backend = forebay_reactor::engine(forebay_reactor::Engine::Auto).map_err(failed)?;
    let reactor = Reactor::new(backend);
    let mut scratch = Scratch(Vec::new());
    let lines = reactor.run(measure(&reactor, flags, &mut scratch)).map_err(failed)??;
    drop(scratch);
    let report = Report::new("kcopyd", lines);
    if let Some(path) = &flags.html {
        let about = format!(
            "{} on {}, Linux {}. 512 KiB sequential writes at depth 8 to an origin with a fresh snapshot.",
            report.command, report.cpu, report.kernel
        );
        let steps: Vec<String> = report.rows.iter().map(|line| format!("{} {}", line.device, line.chunk_size)).collect();
        let values = |pick: fn(&Line) -> f64| report.rows.iter().map(pick).collect();
        let curves = [
            Curve { name: "chunk by chunk", colour: "#b33", values: values(|line| line.off_mib_s) },
            Curve { name: "gathered", colour: "#27c", values: values(|line| line.on_mib_s) },
            Curve { name: "large requests", colour: "#293", values: values(|line| line.limit_mib_s) },
        ];
        write_html(path, "Copy on write", &about, &steps, &curves, &text(&report.rows))?;
    }
    if flags.json {
        println!("{}", report.json()?);
    } else if flags.html.is_none() {
        print!("{}", text(&report.rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// The table for people; speeds in MiB/s.
fn text(lines: &[Line]) -> String {
    let mut text =
        format!("{:>6} {:>7} {:>9} {:>9} {:>9}  {:<22} {}\n", "device", "chunk", "off", "on", "limit", "on/off", "on/limit");
    for line in lines {
        let _ = writeln!(
            text,
            "{:>6} {:>7} {:>9.0} {:>9.0} {:>9.0}  {:<22} {}",
            line.device,
            line.chunk_size,
            line.off_mib_s,
            line.on_mib_s,
            line.limit_mib_s,
            line.on_over_off.to_string(),
            line.on_over_limit
        );
    }
    text
}

async fn measure(reactor: &Reactor, flags: &KcopydFlags, scratch: &mut Scratch) -> Result<Vec<Line>, BenchError> {
    let requests = flags.size / u64::from(REQUEST_BYTES);
    let bytes = requests * u64::from(REQUEST_BYTES);
    // Data, an area for each 256 chunks of 4 KiB, a header, and an area behind.
    let store_bytes = bytes + (bytes / 200).next_multiple_of(1 << 20) + (4 << 20);
    let bench =
        Bench { reactor: reactor.clone(), pool: BufferPool::new(reactor), buffers: Buffers::new(DEPTH, REQUEST_BYTES), bytes };
    let mut lines = Vec::new();
    let device = |bytes: u64| -> Result<Rc<dyn Target>, BenchError> {
        Ok(RamDevice::new(reactor, SectorCount(bytes / 512)).map_err(failed)?)
    };
    let merged = [device(bytes)?, device(store_bytes)?];
    let ram = Pairs { name: "ram", alone: merged.clone(), merged };
    Box::pin(bench.table(&ram, flags.json, &mut lines)).await?;
    drop(ram);
    let mut file = |name: &str, bytes: u64, merging: bool| -> Result<Rc<dyn Target>, BenchError> {
        let path = flags.dir.join(format!("forebay-bench-{name}-{}.img", std::process::id()));
        let options = FileOptions { merging, create_bytes: Some(bytes), ..FileOptions::default() };
        let device = FileDevice::open(reactor, &path, &options).map_err(failed)?;
        scratch.0.push(path);
        Ok(device)
    };
    let merged = [file("origin", bytes, true)?, file("store", store_bytes, true)?];
    let alone = [file("origin-off", bytes, false)?, file("store-off", store_bytes, false)?];
    let files = Pairs { name: "file", merged, alone };
    for device in files.merged.iter().chain(&files.alone) {
        bench.write_whole(device).await?;
    }
    Box::pin(bench.table(&files, flags.json, &mut lines)).await?;
    Ok(lines)
}

/// What a run needs, made once.
struct Bench {
    reactor: Reactor,
    pool: BufferPool,
    buffers: Buffers,
    bytes: u64,
}

impl Bench {
    /// Measures one kind of device with every chunk size.
    async fn table(&self, pairs: &Pairs, quiet: bool, lines: &mut Vec<Line>) -> Result<(), BenchError> {
        for chunk_size in CHUNK_SIZES {
            lines.push(Box::pin(self.line(pairs, chunk_size)).await?);
            if !quiet {
                eprintln!("measured chunks of {chunk_size} bytes on {}", pairs.name);
            }
        }
        Ok(())
    }

    async fn line(&self, pairs: &Pairs, chunk_size: u32) -> Result<Line, BenchError> {
        let (mut offs, mut ons, mut limits) = (Vec::new(), Vec::new(), Vec::new());
        let mut shortest = Duration::ZERO;
        self.saved(pairs, chunk_size, true).await?;
        while ons.len() < REPETITIONS || shortest < TIME_MIN {
            let off = self.saved(pairs, chunk_size, false).await?;
            let on = self.saved(pairs, chunk_size, true).await?;
            let limit = self.limit(pairs).await?;
            shortest += off.min(on).min(limit);
            for (times, time) in [(&mut offs, off), (&mut ons, on), (&mut limits, limit)] {
                times.push(time);
            }
        }
        let speed = |times: &[Duration]| Spread::of(times.iter().map(|time| mib_s(self.bytes, *time))).median;
        let ratio = |a: &[Duration], b: &[Duration]| Spread::of(a.iter().zip(b).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()));
        Ok(Line {
            device: pairs.name,
            chunk_size,
            off_mib_s: speed(&offs),
            on_mib_s: speed(&ons),
            limit_mib_s: speed(&limits),
            on_over_off: ratio(&ons, &offs),
            on_over_limit: ratio(&ons, &limits),
        })
    }

    async fn write_whole(&self, device: &Rc<dyn Target>) -> Result<(), BenchError> {
        let written = write_all(device, &self.buffers, &sectors(device.sectors().to_bytes()), REQUEST_BYTES).await;
        succeeded(written.and(call(&**device, Bio::flush()).await.status()))
    }

    /// The job on an origin with a fresh snapshot.
    async fn saved(&self, pairs: &Pairs, chunk_size: u32, gathered: bool) -> Result<Duration, BenchError> {
        let [device, cow] = pairs.of(gathered);
        let blank = HeapMemory::new(4096, 4096);
        let blank = Segments::whole(Box::new(blank), 4096).expect("4096 bytes are not none");
        let flags = Flags { fua: true, ..Flags::default() };
        succeeded(call(&**cow, Bio::write(Sector(0), blank, 0, 4096).with(flags)).await.status())?;
        let origin = Origin::new(&self.reactor, &self.pool, Rc::clone(device));
        let setup = Setup {
            origin: Rc::clone(&origin),
            cow: Rc::clone(cow),
            sectors: device.sectors(),
            store: StoreKind::Persistent { overflow: false },
            chunk_sectors: u64::from(chunk_size / 512),
            discards: Discards::Refused,
            coalesce: gathered,
        };
        let snapshot = open(&self.reactor, &self.pool, setup).await.map_err(failed)?;
        let front: Rc<dyn Target> = Rc::new(OriginFront::new(origin, device.sectors()).map_err(failed)?);
        let clock = Stopwatch::start();
        let written = write_all(&front, &self.buffers, &sectors(self.bytes), REQUEST_BYTES).await;
        let flushed = call(&*front, Bio::flush()).await.status();
        let time = clock.elapsed();
        succeeded(written.and(flushed))?;
        let status = snapshot.status();
        snapshot.close().await;
        let kept = status.exceptions * u64::from(chunk_size);
        if status.condition == Condition::Active && kept == self.bytes {
            Ok(time)
        } else {
            Err(BenchError(format!("the snapshot did not keep everything: {status:?}")))
        }
    }

    /// The same bytes read, written and written again by large requests.
    async fn limit(&self, pairs: &Pairs) -> Result<Duration, BenchError> {
        let devices = pairs.of(true).clone();
        let mover = Rc::new(Mover {
            devices: devices.clone(),
            pool: self.pool.clone(),
            sectors: sectors(self.bytes),
            next: Cell::new(0),
            workers: Cell::new(DEPTH),
            failed: Cell::new(false),
            ended: Event::default(),
        });
        let clock = Stopwatch::start();
        for _ in 0..DEPTH {
            if !self.reactor.spawn(Rc::clone(&mover).work()) {
                return Err(BenchError("too many tasks".to_owned()));
            }
        }
        while mover.workers.get() > 0 {
            mover.ended.after(mover.ended.count(), None).await;
        }
        let flushed = call(&*devices[1], Bio::flush()).await.status().and(call(&*devices[0], Bio::flush()).await.status());
        let time = clock.elapsed();
        succeeded(if mover.failed.get() { Status::IoError } else { flushed })?;
        Ok(time)
    }
}

/// Moves everything from the first device to the second, and back over itself.
struct Mover {
    devices: [Rc<dyn Target>; 2],
    pool: BufferPool,
    sectors: Vec<Sector>,
    next: Cell<usize>,
    workers: Cell<usize>,
    failed: Cell<bool>,
    ended: Event,
}

impl Mover {
    async fn work(self: Rc<Self>) {
        let buffer = self.pool.take(REQUEST_BYTES as usize);
        while let Some(&sector) = self.sectors.get(self.next.get()) {
            self.next.set(self.next.get() + 1);
            let [from, to] = &self.devices;
            let read = Bio::read(sector, Rc::clone(buffer.segments()), 0, REQUEST_BYTES);
            let write = || Bio::write(sector, Rc::clone(buffer.segments()), 0, REQUEST_BYTES);
            let mut status = call(&**from, read).await.status();
            status = status.and(call(&**to, write()).await.status());
            status = status.and(call(&**from, write()).await.status());
            self.failed.set(self.failed.get() | !status.is_ok());
        }
        self.workers.set(self.workers.get() - 1);
        self.ended.raise();
    }
}

/// Where requests over the first `bytes` begin.
fn sectors(bytes: u64) -> Vec<Sector> {
    (0..bytes / u64::from(REQUEST_BYTES)).map(|at| Sector(at * u64::from(REQUEST_BYTES) / 512)).collect()
}

fn succeeded(status: Status) -> Result<(), BenchError> {
    if status.is_ok() { Ok(()) } else { Err(BenchError(format!("a device failed ({status:?}): is the disk full?"))) }
}
