//! What a whole cache costs in memory and in allocations, counted by the allocator: index, free space,
//! metadata, ages, groups that are being committed, and the scratch space of all jobs.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]
mod support;

use std::cell::Cell;
use std::rc::Rc;

use allocation_counter::measure;
use forebay_block::{Bio, Extent, Row, Sector, SectorCount, Segments, Table, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::cache::options::{CacheOptions, Order, Overwrite};
use forebay_target::cache::{Cache, Setup, open};
use support::front::Front;
use support::rig::fast_bytes;
use support::{flush, payload, reactor};

const BLOCK: u32 = 4096;

/// What a cache is opened over, allocated before it.
struct Disks {
    fast: Rc<Front>,
    origin: Rc<Front>,
    memory: Rc<Segments>,
}

impl Disks {
    fn new(reactor: &Reactor, blocks: u32) -> Self {
        let (all, data) = (fast_bytes(blocks, BLOCK), blocks as usize * BLOCK as usize);
        let fast = Front::new(reactor, all, vec![0; all - data]);
        Self { fast, origin: Front::new(reactor, data * 4, Vec::new()), memory: payload(&vec![7; 1 << 20]) }
    }

    async fn open(self, reactor: &Reactor, pool: &BufferPool, options: CacheOptions) -> Bed {
        let Self { fast, origin, memory } = self;
        let sectors = origin.sectors();
        let setup = Setup { fast, origin, sectors, block_bytes: BLOCK, options, extend: true, side: None };
        let cache = open(reactor, pool, setup).await.unwrap();
        let row = Row { extent: Extent::new(Sector(0), sectors), target: Rc::clone(&cache) as Rc<dyn Target> };
        Bed { table: Table::new(vec![row]).unwrap(), cache, memory }
    }
}

struct Bed {
    cache: Rc<Cache>,
    table: Table,
    memory: Rc<Segments>,
}

impl Bed {
    async fn write(&self, block: u64, blocks: u32) {
        let bio = Bio::write(Sector(block * 8), Rc::clone(&self.memory), 0, blocks * BLOCK);
        assert!(call(&self.table, bio).await.status().is_ok());
    }

    async fn read(&self, block: u64, blocks: u32) {
        let bio = Bio::read(Sector(block * 8), Rc::clone(&self.memory), 0, blocks * BLOCK);
        assert!(call(&self.table, bio).await.status().is_ok());
    }
}

/// A cache whose memory is looked at after each step.
///
/// What is in use between steps is what counts. Growing a list can need the old and the new one for a moment,
/// or nothing, or only page tables; the allocator decides that.
struct Watched<'a> {
    reactor: &'a Reactor,
    bed: Bed,
    bytes: Cell<i64>,
    bytes_most: Cell<i64>,
}

impl Watched<'_> {
    fn step(&self, work: impl Future<Output = ()>) {
        let change = measure(|| self.reactor.run(work).unwrap()).bytes_current;
        self.bytes.set(self.bytes.get() + change);
        self.bytes_most.set(self.bytes_most.get().max(self.bytes.get()));
    }
}

/// The most bytes in use while `body` runs on a cache of `blocks`, beyond those of a cache of `few` blocks: what
/// jobs and requests in flight take is the same in both.
fn growth(few: u32, blocks: u32, options: &CacheOptions, body: &impl Fn(&Watched, u64)) -> i64 {
    let most = [few, blocks].map(|blocks| {
        let (reactor, pool) = (reactor(), BufferPool::default());
        let disks = Disks::new(&reactor, blocks);
        let mut bed = None;
        let opening = measure(|| bed = Some(reactor.run(disks.open(&reactor, &pool, options.clone())).unwrap()));
        let bytes = Cell::new(opening.bytes_current);
        let watched = Watched { reactor: &reactor, bed: bed.unwrap(), bytes_most: bytes.clone(), bytes };
        assert_eq!(watched.bed.cache.status().blocks, u64::from(blocks));
        body(&watched, u64::from(blocks));
        println!("{blocks} blocks: at most {} bytes", watched.bytes_most.get());
        assert!(reactor.run(watched.bed.cache.close()).unwrap().is_ok());
        reactor.clear();
        watched.bytes_most.get()
    });
    most[1] - most[0]
}

#[test]
fn a_cache_of_1_gib_that_was_filled_in_order_costs_less_than_a_byte_a_block() {
    let blocks = 261_123;
    for size in [1, 16, 256] {
        let bytes = growth(64, blocks, &CacheOptions::default(), &|watched, blocks| {
            let bed = &watched.bed;
            let mut writes = (0..(blocks * 49 / 100).saturating_sub(u64::from(size))).step_by(size as usize).peekable();
            while writes.peek().is_some() {
                watched.step(async {
                    for block in writes.by_ref().take(1000) {
                        bed.write(block, size).await;
                    }
                });
            }
            watched.step(async { assert!(flush(&bed.table).await.is_ok()) });
        });
        assert!(bytes < i64::from(blocks), "{bytes} bytes for {blocks} blocks, {size} at a time");
    }
}

#[test]
fn single_blocks_in_random_order_cost_at_most_32_bytes_each_whatever_the_options() {
    let (few, blocks) = (20_000, 80_000);
    for (order, overwrite, max_age_ms) in [
        (Order::Sweep, Overwrite::Place, None),
        (Order::Fifo, Overwrite::Place, None),
        (Order::Fifo, Overwrite::New, Some(86_400_000)),
        (Order::Sweep, Overwrite::New, Some(86_400_000)),
    ] {
        let options = CacheOptions {
            order: Some(order),
            overwrite: Some(overwrite),
            max_age_ms,
            high_watermark: Some(100),
            low_watermark: Some(95),
            pause_writeback_ms: Some(0),
            ..CacheOptions::default()
        };
        let bytes = growth(few, blocks, &options, &|watched, blocks| {
            let bed = &watched.bed;
            let mut rng = fastrand::Rng::with_seed(1);
            for thousand in 1..=blocks / 250 {
                watched.step(async {
                    for _ in 0..1000 {
                        bed.write(rng.u64(..blocks * 2), 1).await;
                    }
                });
                if thousand % 30 == 0 {
                    watched.step(async { assert!(flush(&bed.table).await.is_ok()) });
                }
            }
            watched.step(async {
                for _ in 0..blocks / 4 {
                    let extent = Extent::new(Sector(rng.u64(..blocks * 2) * 8), SectorCount(8));
                    assert!(call(&bed.table, Bio::discard(extent)).await.status().is_ok());
                }
            });
        });
        let each = bytes / i64::from(blocks - few);
        assert!(each <= 32, "{order:?}, {overwrite:?}, {max_age_ms:?}: {each} bytes a block");
    }
}

/// Allocations of `count` requests once everything is warm.
fn allocations(options: &CacheOptions, count: u64, body: &impl AsyncFn(&Bed, u64)) -> u64 {
    let (reactor, pool) = (reactor(), BufferPool::default());
    let disks = Disks::new(&reactor, 20_000);
    let bed = reactor.run(disks.open(&reactor, &pool, options.clone())).unwrap();
    let requests = || {
        let all = async {
            for number in 0..count {
                body(&bed, number).await;
            }
        };
        reactor.run(all).unwrap();
    };
    requests();
    let made = measure(requests).count_total;
    reactor.clear();
    made
}

#[test]
fn a_warm_cache_allocates_nothing_for_a_read_or_an_overwrite() {
    let blocks = |number: u64| number * 7919 % 9000;
    let made = allocations(&CacheOptions::default(), 100_000, &async |bed, number| {
        if number % 2 == 0 { bed.write(blocks(number), 1).await } else { bed.read(blocks(number), 1).await }
    });
    assert!(made < 100, "{made} allocations for 100000 requests");
}

#[test]
fn new_blocks_commits_and_writeback_allocate_next_to_nothing() {
    for (order, overwrite) in [(Order::Sweep, Overwrite::Place), (Order::Fifo, Overwrite::New)] {
        let options = CacheOptions {
            order: Some(order),
            overwrite: Some(overwrite),
            autocommit_blocks: Some(1000),
            pause_writeback_ms: Some(0),
            ..CacheOptions::default()
        };
        let made = allocations(&options, 100_000, &async |bed, number| {
            bed.write(number * 7919 % 40_000, 1).await;
            bed.read(number * 5323 % 40_000, 1).await;
        });
        println!("{order:?}, {overwrite:?}: {made} allocations for 200000 requests");
        assert!(made < 12_000, "{made} allocations for 200000 requests");
    }
}
