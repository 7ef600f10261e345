//! Times recovery: how fast the metadata of a cache becomes its index, without the reading of it.
//!
//! `cargo run --release -p forebay-target --example recovery_speed [BLOCKS [CASE]]`

use std::time::Duration;

use fastrand::Rng;
use forebay_block::SectorCount;
use forebay_target::cache::disk::{Entry, Geometry, Recovery, SEQ_FREE};

/// A name, and the origin block and sequence number of each slot.
type Case = (&'static str, fn(&mut Rng, u32) -> Vec<(u64, u64)>);

const CASES: [Case; 6] = [
    ("in order", |_, blocks| (0..blocks).map(|slot| (u64::from(slot), 7)).collect()),
    ("random, groups of 1000", |rng, blocks| shuffled(rng, blocks).zip(0..).map(|(block, at)| (block, at / 1000)).collect()),
    ("random, groups of 1", |rng, blocks| shuffled(rng, blocks).zip(0..).collect()),
    ("random, every other free", |rng, blocks| {
        shuffled(rng, blocks).zip(0..).map(|(block, at)| (block, if at % 2 == 0 { 3 } else { SEQ_FREE })).collect()
    }),
    ("random, each block twice", |rng, blocks| shuffled(rng, blocks).zip(0..).map(|(block, at)| (block / 8, at)).collect()),
    ("empty", |_, blocks| (0..blocks).map(|_| (u64::MAX, SEQ_FREE)).collect()),
];

/// Different origin blocks in random order, on an origin four times as large as the cache.
fn shuffled(rng: &mut Rng, blocks: u32) -> impl Iterator<Item = u64> {
    let mut all: Vec<u64> = (0..u64::from(blocks)).map(|block| block * 4).collect();
    rng.shuffle(&mut all);
    all.into_iter()
}

fn main() {
    let blocks: u32 = std::env::args().nth(1).map_or(1 << 22, |word| word.parse().expect("BLOCKS is a number"));
    let device_bytes = u64::from(blocks) * (4096 + 16) + 8192;
    let geometry = Geometry::for_device(device_bytes, 0, 4096).expect("the device is large enough");
    println!("{blocks} blocks, {} MiB of entries; best of 9, processor time", u64::from(blocks) >> 16);
    let only = std::env::args().nth(2).unwrap_or_default();
    for (name, make) in CASES.into_iter().filter(|(name, _)| name.contains(&only)) {
        let media: Vec<u8> = make(&mut Rng::with_seed(1), geometry.blocks())
            .into_iter()
            .flat_map(|(block, seq)| Entry { origin_sector: block.saturating_mul(8), seq }.encode())
            .collect();
        let mut times: Vec<_> = (0..9).map(|_| recover(&geometry, &media)).collect();
        times.sort_by_key(|&(total, ..)| total);
        let (total, feed, extents, bytes) = times[0];
        let ns = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(geometry.blocks());
        println!(
            "{name:26} feed {:5.2} ns, finish {:5.2} ns, total {:5.2} ns an entry = {:5.2} GB/s; {extents} extents, {:.2} bytes a block",
            ns(feed),
            ns(total.saturating_sub(feed)),
            ns(total),
            16.0 / ns(total),
            bytes / f64::from(geometry.blocks()),
        );
    }
}

fn recover(geometry: &Geometry, media: &[u8]) -> (Duration, Duration, u64, f64) {
    let start = cpu_time();
    let mut recovery = Recovery::new(geometry, 1 << 40, SectorCount(geometry.cache_bytes() / 512 * 4));
    for part in media.chunks(1 << 20) {
        recovery.feed(part);
    }
    let feed = cpu_time().saturating_sub(start);
    let recovered = recovery.finish();
    let total = cpu_time().saturating_sub(start);
    let kib = (recovered.map.memory_bytes() + recovered.free.memory_bytes()).div_ceil(1024);
    let bytes = f64::from(u32::try_from(kib).expect("a cache of this machine")) * 1024.0;
    (total, feed, recovered.map.extents(), bytes)
}

/// Processor time of this thread, which other processes do not lengthen much.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().expect("processor time is never negative")
}
