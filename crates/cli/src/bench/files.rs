//! `forebay bench writecache --dir DIR`: the same job on files of a real disk, with direct I/O.
//!
//! Three files are made in DIR, written whole before the clock starts, and removed afterwards. The
//! bare file is measured by the same job, in turn with the cache.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Extent, Sector, SectorCount, Target, call};
use forebay_device::{FileDevice, FileOptions};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::options::CacheOptions;
use forebay_target::cache::{Setup, open};
use serde::Serialize;

use super::job::{Buffers, Stopwatch, write_all};
use super::{BenchError, Spread, failed, mib_s};

const REQUEST_BYTES: u32 = 512 << 10;
const DEPTH: usize = 32;
const REPETITIONS: usize = 5;
const TIME_MIN: Duration = Duration::from_secs(2);

/// One line of the table; speeds in MiB/s, medians.
#[derive(Serialize)]
pub struct FileLine {
    /// Cache block size, bytes.
    pub block_size: u32,
    /// Through the cache, its final commit included.
    pub on_mib_s: f64,
    /// To the bare file, its flush included.
    pub raw_mib_s: f64,
    /// The cache over the bare file, repetition by repetition.
    pub on_over_raw: Spread,
}

/// A file that is removed when it is dropped.
struct Scratch {
    path: PathBuf,
    device: Rc<FileDevice>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A file that is gone already is what is wanted.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Runs the job of `bytes` for each block size on files in `folder`.
///
/// # Errors
/// When the folder has no room, or a device fails.
pub async fn run(reactor: &Reactor, folder: &Path, bytes: u64, sizes: &[u32]) -> Result<Vec<FileLine>, BenchError> {
    let requests = bytes / u64::from(REQUEST_BYTES);
    assert!(requests > 0, "the command line takes sizes from one request on");
    let bytes = requests * u64::from(REQUEST_BYTES);
    let pool = BufferPool::new(reactor);
    let buffers = Buffers::new(DEPTH, REQUEST_BYTES);
    let fast_bytes = (bytes * 5 / 2 * 528 / 512 + (1 << 20)).next_multiple_of(1 << 20);
    let fast = scratch(reactor, folder, "fast", fast_bytes, &buffers).await?;
    let bare = scratch(reactor, folder, "bare", bytes, &buffers).await?;
    let origin = scratch(reactor, folder, "origin", bytes, &buffers).await?;
    let mut order: Vec<u64> = (0..requests).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let sectors: Vec<Sector> = order.iter().map(|at| Sector(at * u64::from(REQUEST_BYTES) / 512)).collect();
    let mut lines = Vec::new();
    for &block_bytes in sizes {
        let (mut raws, mut ons) = (Vec::new(), Vec::new());
        while ons.len() < REPETITIONS || ons.iter().sum::<Duration>() < TIME_MIN {
            raws.push(timed(&(Rc::clone(&bare.device) as Rc<dyn Target>), &buffers, &sectors).await?);
            let first = Extent::new(Sector(0), SectorCount(128));
            if !call(&*fast.device, Bio::write_zeroes(first)).await.status().is_ok() {
                return Err(BenchError(format!("{} cannot be written", fast.path.display())));
            }
            let setup = Setup {
                fast: Rc::clone(&fast.device) as Rc<dyn Target>,
                origin: Rc::clone(&origin.device) as Rc<dyn Target>,
                sectors: origin.device.sectors(),
                block_bytes,
                options: CacheOptions::default(),
                extend: true,
                side: None,
            };
            let cache = open(reactor, &pool, setup).await.map_err(failed)?;
            ons.push(timed(&(Rc::clone(&cache) as Rc<dyn Target>), &buffers, &sectors).await?);
            cache.close().await;
        }
        let speed = |times: &[Duration]| Spread::of(times.iter().map(|time| mib_s(bytes, *time))).median;
        let ratios = ons.iter().zip(&raws).map(|(on, raw)| raw.as_secs_f64() / on.as_secs_f64());
        lines.push(FileLine {
            block_size: block_bytes,
            on_mib_s: speed(&ons),
            raw_mib_s: speed(&raws),
            on_over_raw: Spread::of(ratios),
        });
    }
    Ok(lines)
}

/// Makes a file of `bytes` and writes it whole.
async fn scratch(reactor: &Reactor, folder: &Path, name: &str, bytes: u64, buffers: &Buffers) -> Result<Scratch, BenchError> {
    let path = folder.join(format!("forebay-bench-{name}-{}.img", std::process::id()));
    let file =
        std::fs::File::create_new(&path).map_err(|error| BenchError(format!("cannot make {}: {error}", path.display())))?;
    file.set_len(bytes).map_err(failed)?;
    drop(file);
    let device = FileDevice::open(reactor, &path, &FileOptions::default()).map_err(failed)?;
    let scratch = Scratch { path, device };
    let requests = bytes / u64::from(REQUEST_BYTES);
    let sectors: Vec<Sector> = (0..requests).map(|at| Sector(at * u64::from(REQUEST_BYTES) / 512)).collect();
    timed(&(Rc::clone(&scratch.device) as Rc<dyn Target>), buffers, &sectors).await?;
    Ok(scratch)
}

/// Time of the writes and the flush that makes them durable.
async fn timed(target: &Rc<dyn Target>, buffers: &Buffers, sectors: &[Sector]) -> Result<Duration, BenchError> {
    let clock = Stopwatch::start();
    let written = write_all(target, buffers, sectors, REQUEST_BYTES).await;
    let flushed = call(&**target, Bio::flush()).await.status();
    let time = clock.elapsed();
    if written.and(flushed).is_ok() {
        Ok(time)
    } else {
        Err(BenchError(format!("a write to the {} failed: is the disk full?", target.kind())))
    }
}
