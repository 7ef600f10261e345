//! The write cache against a plain array, without crashes: random requests, options and restarts.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]

mod support;

use std::rc::Rc;

use forebay_block::{Bio, Extent, Sector, SectorCount, Target, call};
use forebay_reactor::BufferPool;
use forebay_target::cache::options::{CacheOptions, Full, Order, Overwrite};
use forebay_target::cache::{Cache, Setup, open};
use support::{MemoryDisk, flush, platter, reactor, read, write};

const ORIGIN_SECTORS: u64 = 2048;

fn options(rng: &mut fastrand::Rng) -> CacheOptions {
    CacheOptions {
        order: Some(if rng.bool() { Order::Fifo } else { Order::Sweep }),
        overwrite: Some(if rng.bool() { Overwrite::New } else { Overwrite::Place }),
        full: Some(if rng.bool() { Full::Wait } else { Full::Bypass }),
        pause_writeback_ms: Some(0),
        autocommit_blocks: Some([0, 1, 7, 65_536][rng.usize(..4)]),
        ..CacheOptions::default()
    }
}

async fn one_request(cache: &Cache, rng: &mut fastrand::Rng, model: &mut [u8], stamp: u8) {
    let start = rng.u64(..ORIGIN_SECTORS);
    let most = [1, 8, 64, 600][rng.usize(..4)].min(ORIGIN_SECTORS - start);
    let count = rng.u64(1..=most);
    let range = usize::try_from(start * 512).unwrap()..usize::try_from((start + count) * 512).unwrap();
    let extent = Extent::new(Sector(start), SectorCount(count));
    match rng.u32(..20) {
        0..8 => {
            let bytes = vec![stamp; range.len()];
            assert!(write(cache, start, &bytes, rng.u32(..4) == 0).await.is_ok());
            model[range].copy_from_slice(&bytes);
        }
        8 => {
            assert!(call(cache, Bio::write_zeroes(extent)).await.status().is_ok());
            model[range].fill(0);
        }
        9 => assert!(flush(cache).await.is_ok()),
        10 if rng.u32(..8) == 0 => {
            cache.message(&["flush"]).await.unwrap();
            let status = cache.status();
            assert_eq!((status.free, status.dirty), (status.blocks, 0), "{status:?}");
        }
        _ => {
            let got = read(cache, start, u32::try_from(count).unwrap()).await.unwrap();
            let wrong = got.iter().zip(&model[range]).position(|(a, b)| a != b);
            assert!(wrong.is_none(), "byte {wrong:?} of sectors {extent} differs");
        }
    }
}

#[test]
fn reads_return_what_was_written_whatever_the_options() {
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let block_bytes = 512u32 << rng.u32(..8);
        let fast = platter(usize::try_from(rng.u64(6..64) * u64::from(block_bytes)).unwrap() + 8192);
        let origin = platter(usize::try_from(ORIGIN_SECTORS * 512).unwrap());
        let mut model = vec![0; usize::try_from(ORIGIN_SECTORS * 512).unwrap()];
        let mut stamp = 0u8;
        for _ in 0..6 {
            let reactor = reactor();
            let setup = Setup {
                fast: MemoryDisk::new(&reactor, Rc::clone(&fast)),
                origin: MemoryDisk::new(&reactor, Rc::clone(&origin)),
                sectors: SectorCount(ORIGIN_SECTORS),
                block_bytes,
                options: options(&mut rng),
                extend: rng.u32(..4) > 0,
                side: None,
            };
            let pool = BufferPool::default();
            let run = async {
                let cache = open(&reactor, &pool, setup).await.unwrap();
                assert_eq!(cache.sectors(), SectorCount(ORIGIN_SECTORS));
                for _ in 0..60 {
                    stamp = stamp.wrapping_add(1);
                    one_request(&cache, &mut rng, &mut model, stamp).await;
                }
                assert!(cache.close().await.is_ok());
            };
            reactor.run(run).unwrap();
            reactor.clear();
        }
    }
}
