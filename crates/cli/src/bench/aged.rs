//! `forebay bench writecache --aged`: whether free space stays in long runs.
//!
//! A 64 MiB cache in front of an origin whose regions of 8 MiB answer after 0 to 60 ms takes 2.1 GiB
//! of random 4, 32 and 512 KiB writes at depth 32, so that it is full all the time and blocks become
//! free in whatever order their copies end. Then writeback runs to the low watermark and stops, and
//! 32 writes of 512 KiB go to sectors that are not cached: how many requests do they become, and how
//! fast are they beside the same writes to a fresh cache? These are repeated, with the same sectors
//! discarded in between.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Extent, Op, Sector, SectorCount, Target, call};
use forebay_device::RamDevice;
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::options::CacheOptions;
use forebay_target::cache::{Cache, Setup, open};
use forebay_target::delay::Delay;
use serde::Serialize;

use super::job::{Buffers, Stopwatch, write_all};
use super::{BenchError, Spread, failed, mib_s};

const CACHE_BYTES: u64 = 64 << 20;
const ORIGIN_BYTES: u64 = 1 << 30;
/// The load writes to this much from the start; the measured writes go behind it.
const LOAD_BYTES: u64 = 768 << 20;
/// Bytes that the load writes: 545,000 blocks of 4 KiB.
const LOAD_TOTAL: u64 = 545_000 * 4096;
const REGION_SECTORS: u64 = (8 << 20) / 512;
const DELAY_MAX_MS: u64 = 60;
const DEPTH: usize = 32;
const REQUEST_BYTES: u32 = 512 << 10;
const REQUESTS: u64 = 32;
const REPETITIONS: usize = 40;

/// One line of the table.
#[derive(Serialize)]
pub struct AgedLine {
    /// Cache block size, bytes.
    pub block_size: u32,
    /// Speed of the 32 writes on the aged cache, median.
    pub aged_mib_s: f64,
    /// The same on a fresh cache.
    pub fresh_mib_s: f64,
    /// Requests to the fast device for each write of 512 KiB.
    pub requests_per_write: f64,
    /// Aged over fresh, repetition by repetition.
    pub aged_over_fresh: Spread,
    /// Runs of free slots after the drain, and the longest, in blocks.
    pub free_runs: u64,
    /// See `free_runs`.
    pub free_longest: u64,
}

struct Side {
    cache: Rc<Cache>,
    target: Rc<dyn Target>,
}

/// Measures one block size.
///
/// # Errors
/// When there is not enough memory, or a write fails.
pub async fn run(reactor: &Reactor, block_bytes: u32) -> Result<AgedLine, BenchError> {
    let pool = BufferPool::new(reactor);
    let aged = side(reactor, &pool, block_bytes).await?;
    let fresh = side(reactor, &pool, block_bytes).await?;
    let buffers = Buffers::new(DEPTH, REQUEST_BYTES);
    load(&aged, &buffers).await?;
    drained(reactor, &aged.cache).await;
    let state = aged.cache.status();

    let (mut aged_times, mut fresh_times) = (Vec::new(), Vec::new());
    let mut requests = 0;
    for repetition in 0..=REPETITIONS {
        let before = aged.cache.status().write_requests;
        let aged_time = measured(&aged, &buffers).await?;
        let after = aged.cache.status().write_requests;
        let fresh_time = measured(&fresh, &buffers).await?;
        // The first touches what no write touched before.
        if repetition > 0 {
            requests += after - before;
            aged_times.push(aged_time);
            fresh_times.push(fresh_time);
        }
    }
    aged.cache.close().await;
    fresh.cache.close().await;
    let bytes = REQUESTS * u64::from(REQUEST_BYTES);
    let speed = |times: &[Duration]| Spread::of(times.iter().map(|time| mib_s(bytes, *time))).median;
    let ratios = aged_times.iter().zip(&fresh_times).map(|(aged, fresh)| fresh.as_secs_f64() / aged.as_secs_f64());
    Ok(AgedLine {
        block_size: block_bytes,
        aged_mib_s: speed(&aged_times),
        fresh_mib_s: speed(&fresh_times),
        requests_per_write: per_write(requests),
        aged_over_fresh: Spread::of(ratios),
        free_runs: state.free_runs,
        free_longest: state.free_longest,
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn per_write(requests: u64) -> f64 {
    requests as f64 / (REQUESTS as f64 * REPETITIONS as f64)
}

async fn side(reactor: &Reactor, pool: &BufferPool, block_bytes: u32) -> Result<Side, BenchError> {
    let ram = |bytes: u64| RamDevice::new(reactor, SectorCount(bytes / 512)).map_err(failed);
    let slow = |op: Op, extent: Extent| match op {
        Op::Read | Op::Write => Duration::from_millis(extent.start.0 / REGION_SECTORS * 37 % (DELAY_MAX_MS + 1)),
        Op::Flush | Op::Discard | Op::WriteZeroes => Duration::ZERO,
    };
    let setup = Setup {
        fast: ram(CACHE_BYTES)?,
        origin: Rc::new(Delay::by(reactor.clone(), ram(ORIGIN_BYTES)?, Box::new(slow)).map_err(failed)?),
        sectors: SectorCount(ORIGIN_BYTES / 512),
        block_bytes,
        options: CacheOptions { pause_writeback_ms: Some(0), ..CacheOptions::default() },
        extend: true,
        side: None,
    };
    let cache = open(reactor, pool, setup).await.map_err(failed)?;
    Ok(Side { target: Rc::clone(&cache) as Rc<dyn Target>, cache })
}

/// Writes until the cache has taken or passed on the whole load.
async fn load(side: &Side, buffers: &Buffers) -> Result<(), BenchError> {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut left = LOAD_TOTAL;
    while left > 0 {
        let bytes: u32 = [4 << 10, 32 << 10, 512 << 10][rng.usize(..3)];
        let sectors: Vec<Sector> =
            (0..DEPTH).map(|_| Sector(rng.u64(..LOAD_BYTES / u64::from(bytes)) * u64::from(bytes) / 512)).collect();
        if !write_all(&side.target, buffers, &sectors, bytes).await.is_ok() {
            return Err(BenchError("a write of the load failed".to_owned()));
        }
        left = left.saturating_sub(u64::from(bytes) * DEPTH as u64);
    }
    Ok(())
}

/// Waits until writeback has come to the low watermark and stopped.
async fn drained(reactor: &Reactor, cache: &Cache) {
    let mut quiet = 0;
    while quiet < 5 {
        let before = cache.status();
        reactor.sleep(Duration::from_millis(100)).await;
        let after = cache.status();
        quiet = if after.free == before.free && after.writeback == 0 { quiet + 1 } else { 0 };
    }
}

/// The 32 writes and their commit; then the sectors are discarded again.
async fn measured(side: &Side, buffers: &Buffers) -> Result<Duration, BenchError> {
    let request_sectors = u64::from(REQUEST_BYTES) / 512;
    let first = LOAD_BYTES / 512;
    let sectors: Vec<Sector> = (0..REQUESTS).map(|at| Sector(first + (at * 13 % REQUESTS) * 2 * request_sectors)).collect();
    let clock = Stopwatch::start();
    let written = write_all(&side.target, buffers, &sectors, REQUEST_BYTES).await;
    let flushed = call(&*side.target, Bio::flush()).await.status();
    let time = clock.elapsed();
    let range = Extent::new(Sector(first), SectorCount(REQUESTS * 2 * request_sectors));
    let discarded = call(&*side.target, Bio::discard(range)).await.status();
    if written.and(flushed).and(discarded).is_ok() { Ok(time) } else { Err(BenchError("a measured write failed".to_owned())) }
}
