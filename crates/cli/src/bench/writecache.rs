//! `forebay bench writecache`: large random writes through the write cache, in memory.
//!
//! The job: 512 KiB random writes at depth 32, each block of the size once, fast device and origin
//! in RAM. For each cache block size, interleaved in one run: a plain memory copy of the same blocks
//! to the same places, the bare RAM device, the cache with one request a block, the cache with
//! extended requests. Every repetition starts from an empty formatted cache and ends with the final
//! commit; only then the clock stops.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Extent, Sector, SectorCount, Target, call};
use forebay_device::RamDevice;
use forebay_reactor::{BufferPool, Reactor, Region};
use forebay_target::cache::options::CacheOptions;
use forebay_target::cache::{Cache, Setup, open};
use serde::Serialize;

use super::job::{Buffers, Stopwatch, write_all};
use super::{BenchError, Spread, failed, mib_s};

/// Bytes of one request.
const REQUEST_BYTES: u32 = 512 << 10;
/// Requests in flight.
const DEPTH: usize = 32;
/// Least repetitions of each figure.
const PAIRS_MIN: usize = 5;
/// Each figure is measured for at least this long.
const TIME_MIN: Duration = Duration::from_secs(2);
/// Cache block sizes, bytes.
pub const BLOCK_SIZES: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// One line of the table; speeds in MiB/s, medians.
#[derive(Serialize)]
pub struct Line {
    /// Cache block size, bytes.
    pub block_size: u32,
    /// One request for each cache block.
    pub off_mib_s: f64,
    /// Extended requests.
    pub on_mib_s: f64,
    /// The same job on the bare RAM device.
    pub raw_mib_s: f64,
    /// The same copies without any device.
    pub memcpy_mib_s: f64,
    /// Extended over one by one, repetition by repetition.
    pub on_over_off: Spread,
    /// Extended over the bare device.
    pub on_over_raw: Spread,
    /// The bare device over the plain copies.
    pub raw_over_memcpy: Spread,
}

/// What a run needs, made and touched once.
struct Bench {
    reactor: Reactor,
    pool: BufferPool,
    fast: Rc<RamDevice>,
    origin: Rc<RamDevice>,
    plain: Region,
    buffers: Buffers,
    sectors: Vec<Sector>,
}

/// Runs the table for a job of `bytes`, with the given block sizes; `told` hears each finished line.
///
/// # Errors
/// When there is not enough memory.
pub async fn run(reactor: &Reactor, bytes: u64, sizes: &[u32], told: impl Fn(&Line)) -> Result<Vec<Line>, BenchError> {
    let mut bench = Bench::new(reactor, bytes)?;
    let mut lines = Vec::new();
    for &block_bytes in sizes {
        let line = bench.line(block_bytes).await?;
        told(&line);
        lines.push(line);
    }
    Ok(lines)
}

impl Bench {
    fn new(reactor: &Reactor, bytes: u64) -> Result<Self, BenchError> {
        let requests = bytes / u64::from(REQUEST_BYTES);
        assert!(requests > 0, "the command line takes sizes from one request on");
        let bytes = requests * u64::from(REQUEST_BYTES);
        // 2.5 times the size in blocks, and metadata of 16 bytes for each block of 512.
        let fast_bytes = (bytes * 5 / 2 * 528 / 512 + (1 << 20)).next_multiple_of(1 << 20);
        let device = |bytes: u64| RamDevice::new(reactor, SectorCount(bytes / 512)).map_err(failed);
        let mut order: Vec<u64> = (0..requests).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        let sectors = order.iter().map(|at| Sector(at * u64::from(REQUEST_BYTES) / 512)).collect();
        let size = usize::try_from(bytes).map_err(failed)?;
        Ok(Self {
            reactor: reactor.clone(),
            pool: BufferPool::new(reactor),
            fast: device(fast_bytes)?,
            origin: device(bytes)?,
            plain: Region::new(size).map_err(failed)?,
            buffers: Buffers::new(DEPTH, REQUEST_BYTES),
            sectors,
        })
    }

    fn bytes(&self) -> u64 {
        self.sectors.len() as u64 * u64::from(REQUEST_BYTES)
    }

    async fn line(&mut self, block_bytes: u32) -> Result<Line, BenchError> {
        let (mut copies, mut raws, mut offs, mut ons) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut shortest = Duration::ZERO;
        self.repeat_once(block_bytes).await?;
        while ons.len() < PAIRS_MIN || shortest < TIME_MIN {
            let copy = self.plain_copy();
            let raw = self.bare_device().await?;
            let off = self.cached(block_bytes, false).await?;
            let on = self.cached(block_bytes, true).await?;
            shortest += copy.min(raw).min(off).min(on);
            for (times, time) in [(&mut copies, copy), (&mut raws, raw), (&mut offs, off), (&mut ons, on)] {
                times.push(time);
            }
        }
        let bytes = self.bytes();
        let speed = |times: &[Duration]| Spread::of(times.iter().map(|time| mib_s(bytes, *time))).median;
        let ratio = |a: &[Duration], b: &[Duration]| Spread::of(a.iter().zip(b).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()));
        Ok(Line {
            block_size: block_bytes,
            off_mib_s: speed(&offs),
            on_mib_s: speed(&ons),
            raw_mib_s: speed(&raws),
            memcpy_mib_s: speed(&copies),
            on_over_off: ratio(&ons, &offs),
            on_over_raw: ratio(&ons, &raws),
            raw_over_memcpy: ratio(&raws, &copies),
        })
    }

    /// One untimed round, so that pools and caches are warm.
    async fn repeat_once(&mut self, block_bytes: u32) -> Result<(), BenchError> {
        self.plain_copy();
        self.bare_device().await?;
        self.cached(block_bytes, true).await?;
        Ok(())
    }

    fn plain_copy(&mut self) -> Duration {
        let clock = Stopwatch::start();
        for (at, sector) in self.sectors.iter().enumerate() {
            let start = usize::try_from(sector.to_bytes()).expect("inside memory");
            let to = &mut self.plain.as_mut_slice()[start..start + REQUEST_BYTES as usize];
            to.copy_from_slice(self.buffers.bytes(at % DEPTH));
        }
        clock.elapsed()
    }

    async fn bare_device(&self) -> Result<Duration, BenchError> {
        let device: Rc<dyn Target> = Rc::clone(&self.origin) as Rc<dyn Target>;
        let clock = Stopwatch::start();
        let written = write_all(&device, &self.buffers, &self.sectors, REQUEST_BYTES).await;
        let flushed = call(&*device, Bio::flush()).await.status();
        let time = clock.elapsed();
        if written.and(flushed).is_ok() { Ok(time) } else { Err(BenchError("the RAM device failed a write".to_owned())) }
    }

    async fn cached(&self, block_bytes: u32, extend: bool) -> Result<Duration, BenchError> {
        let cache = self.fresh_cache(block_bytes, extend).await?;
        let target: Rc<dyn Target> = Rc::clone(&cache) as Rc<dyn Target>;
        let clock = Stopwatch::start();
        let written = write_all(&target, &self.buffers, &self.sectors, REQUEST_BYTES).await;
        let flushed = call(&*target, Bio::flush()).await.status();
        let time = clock.elapsed();
        let status = cache.status();
        cache.close().await;
        if !written.and(flushed).is_ok() || status.around > 0 || status.dirty * u64::from(block_bytes) != self.bytes() {
            return Err(BenchError(format!("not all writes went into the cache: {status:?}")));
        }
        Ok(time)
    }

    /// An empty formatted cache.
    async fn fresh_cache(&self, block_bytes: u32, extend: bool) -> Result<Rc<Cache>, BenchError> {
        let first = Extent::new(Sector(0), SectorCount(8));
        let wiped = call(&*self.fast, Bio::write_zeroes(first)).await.status();
        if !wiped.is_ok() {
            return Err(BenchError("the RAM device failed a write".to_owned()));
        }
        let setup = Setup {
            fast: Rc::clone(&self.fast) as Rc<dyn Target>,
            origin: Rc::clone(&self.origin) as Rc<dyn Target>,
            sectors: self.origin.sectors(),
            block_bytes,
            options: CacheOptions::default(),
            extend,
            side: None,
        };
        open(&self.reactor, &self.pool, setup).await.map_err(failed)
    }
}
