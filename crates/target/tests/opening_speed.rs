//! How fast a cache opens: its metadata from memory to the index and the free space, in GB/s. The aim
//! is 1 GB/s on a machine of its own; the test allows for a slow one that is busy with others, and finds what
//! grows with the square.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

mod support;

use std::time::{Duration, Instant};

use forebay_block::Target;
use forebay_reactor::BufferPool;
use forebay_target::cache::disk::{Entry, Geometry, SEQ_FREE};
use forebay_target::cache::options::CacheOptions;
use forebay_target::cache::{Setup, open};
use support::front::Front;
use support::reactor;

/// Entries of 64 MiB.
const BLOCKS: u32 = 1 << 22;
const BLOCK: u32 = 4096;
const SEQ: u64 = 1 << 40;

/// The metadata of a cache whose slots hold what `entry` says, as origin block and sequence number.
fn metadata(geometry: &Geometry, mut entry: impl FnMut(u32) -> (u64, u64)) -> Vec<u8> {
    let mut bytes = geometry.superblock(SEQ).encode().to_vec();
    for slot in 0..geometry.blocks() {
        let (block, seq) = entry(slot);
        bytes.extend_from_slice(&Entry { origin_sector: block.saturating_mul(8), seq }.encode());
    }
    bytes.resize(usize::try_from(geometry.metadata_bytes()).unwrap(), 0);
    bytes
}

/// The shortest of three openings, and how many blocks were found.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn opening(geometry: &Geometry, metadata: &[u8]) -> (Duration, u64) {
    let openings = (0..3).map(|_| {
        let (reactor, pool) = (reactor(), BufferPool::default());
        let bytes = usize::try_from(geometry.cache_bytes()).unwrap();
        let fast = Front::new(&reactor, bytes, metadata.to_vec());
        let origin = Front::new(&reactor, bytes * 4, Vec::new());
        let sectors = origin.sectors();
        let setup =
            Setup { fast, origin, sectors, block_bytes: BLOCK, options: CacheOptions::default(), extend: true, side: None };
        let began = Instant::now();
        let cache = reactor.run(open(&reactor, &pool, setup)).unwrap().unwrap();
        let took = began.elapsed();
        let found = cache.status().dirty;
        reactor.clear();
        (took, found)
    });
    openings.min().unwrap()
}

#[test]
fn metadata_of_every_kind_opens_fast() {
    let geometry = Geometry::for_device(u64::from(BLOCKS) * u64::from(BLOCK + 16) + 8192, 0, BLOCK).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut shuffled: Vec<u64> = (0..u64::from(geometry.blocks())).map(|block| block * 4).collect();
    rng.shuffle(&mut shuffled);
    let at = |slot: u32| shuffled[slot as usize];
    let contents = [
        ("in order", metadata(&geometry, |slot| (u64::from(slot), 7))),
        ("mixed: runs of 16 and of 1, a third free", {
            metadata(&geometry, |slot| match slot / 16 % 3 {
                0 => (at(slot / 16 * 16) + u64::from(slot % 16), u64::from(slot / 1000)),
                1 => (at(slot) + 2, u64::from(slot / 1000)),
                _ => (u64::MAX, SEQ_FREE),
            })
        }),
        ("every block alone, in random order", metadata(&geometry, |slot| (at(slot), u64::from(slot)))),
        ("empty", metadata(&geometry, |_| (u64::MAX, SEQ_FREE))),
    ];
    for (name, metadata) in contents {
        let (took, found) = opening(&geometry, &metadata);
        let bytes = u32::try_from(metadata.len()).unwrap();
        let speed = f64::from(bytes) / took.as_secs_f64() / 1e9;
        println!("{name}: {found} blocks found in {took:?}, {speed:.2} GB/s");
        // A tenth of what a busy machine does; what grows faster than the metadata is slower by far.
        assert!(speed > 0.005, "{name}: {speed:.3} GB/s");
    }
}
