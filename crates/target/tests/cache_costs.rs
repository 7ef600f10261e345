//! What a whole cache costs in memory and in allocations, counted by the allocator: index, free space,
//! metadata, ages, groups that are being committed, and the scratch space of all jobs.
#![allow(clippy::unwrap_used, clippy::large_futures, reason = "a test that fails may panic, and runs one future at a time")]
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{Bio, Extent, Limits, Op, Row, Sector, SectorCount, Segments, Status, Table, Target, call};
use forebay_reactor::{Attachment, BufferPool, DeviceId, Inline, Reactor};
use forebay_target::cache::options::{CacheOptions, Order, Overwrite};
use forebay_target::cache::{Cache, Setup, open};
use support::rig::fast_bytes;
use support::{flush, payload, reactor};

struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get().wrapping_add(layout.size()));
        PEAK.set(PEAK.get().max(BYTES.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.set(BYTES.get().wrapping_sub(layout.size()).wrapping_add(size));
        PEAK.set(PEAK.get().max(BYTES.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the rules of `realloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A disk that keeps only its first bytes, in which the metadata lie.
struct Front {
    reactor: Reactor,
    id: DeviceId,
    sectors: SectorCount,
}

struct FrontBytes(RefCell<Vec<u8>>);

impl Inline for FrontBytes {
    fn execute(&self, bio: &Bio) -> Status {
        let mut bytes = self.0.borrow_mut();
        let start = usize::try_from(bio.sector().to_bytes()).unwrap();
        let end = start + usize::try_from(bio.bytes()).unwrap();
        match (bio.op(), bytes.get_mut(start..end)) {
            (Op::Read, Some(kept)) => drop(bio.copy_in(kept)),
            (Op::Write, Some(kept)) => drop(bio.copy_out(kept)),
            (Op::Read, None) => bio.zero(),
            _ => {}
        }
        Status::Ok
    }
}

impl Front {
    fn new(reactor: &Reactor, bytes: usize, kept: usize) -> Rc<Self> {
        let inline: Rc<dyn Inline> = Rc::new(FrontBytes(RefCell::new(vec![0; kept])));
        let limits = Limits::unlimited();
        let attachment = Attachment { name: "front".into(), limits, file: None, inline: Some(inline), merging: true };
        let id = reactor.attach(attachment).unwrap();
        Rc::new(Self { reactor: reactor.clone(), id, sectors: SectorCount(bytes as u64 / 512) })
    }
}

impl Target for Front {
    fn kind(&self) -> &'static str {
        "front"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        self.sectors
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
}

const BLOCK: u32 = 4096;

struct Bed {
    cache: Rc<Cache>,
    table: Table,
    memory: Rc<Segments>,
    /// Allocated bytes before the cache was opened.
    base: usize,
}

impl Bed {
    async fn open(reactor: &Reactor, pool: &BufferPool, blocks: u32, options: CacheOptions) -> Self {
        let fast = Front::new(reactor, fast_bytes(blocks, BLOCK), fast_bytes(blocks, BLOCK) - blocks as usize * BLOCK as usize);
        let origin = Front::new(reactor, blocks as usize * BLOCK as usize * 4, 0);
        let memory = payload(&vec![7; 1 << 20]);
        let (sectors, base) = (origin.sectors, BYTES.get());
        PEAK.set(base);
        let setup = Setup { fast, origin, sectors, block_bytes: BLOCK, options, extend: true };
        let cache = open(reactor, pool, setup).await.unwrap();
        assert_eq!(cache.status().blocks, u64::from(blocks));
        let row = Row { extent: Extent::new(Sector(0), sectors), target: Rc::clone(&cache) as Rc<dyn Target> };
        Self { table: Table::new(vec![row]).unwrap(), cache, memory, base }
    }

    async fn write(&self, block: u64, blocks: u32) {
        let bio = Bio::write(Sector(block * 8), Rc::clone(&self.memory), 0, blocks * BLOCK);
        assert!(call(&self.table, bio).await.status().is_ok());
    }

    async fn read(&self, block: u64, blocks: u32) {
        let bio = Bio::read(Sector(block * 8), Rc::clone(&self.memory), 0, blocks * BLOCK);
        assert!(call(&self.table, bio).await.status().is_ok());
    }

    /// The most bytes that the cache has had allocated since it began to open.
    fn peak(&self) -> usize {
        PEAK.get() - self.base
    }
}

/// Bytes at the peak of `body` in a cache of `blocks`, beyond those in one of `few` blocks: what jobs
/// and requests in flight take is the same in both.
fn growth(few: u32, blocks: u32, options: &CacheOptions, body: &impl AsyncFn(&Bed, u64)) -> usize {
    let peaks = [few, blocks].map(|blocks| {
        let (reactor, pool) = (reactor(), BufferPool::default());
        let run = async {
            let bed = Bed::open(&reactor, &pool, blocks, options.clone()).await;
            body(&bed, u64::from(blocks)).await;
            let told = bed.cache.status().memory_bytes;
            println!("{blocks} blocks: peak {} bytes, {told} told", bed.peak());
            assert!(bed.cache.close().await.is_ok());
            bed.peak()
        };
        let peak = reactor.run(run).unwrap();
        reactor.clear();
        peak
    });
    peaks[1].saturating_sub(peaks[0])
}

#[test]
fn a_cache_of_1_gib_that_was_filled_in_order_costs_less_than_a_byte_a_block() {
    let blocks = 261_123;
    for size in [1, 16, 256] {
        let bytes = growth(64, blocks, &CacheOptions::default(), &async |bed, blocks| {
            let mut block = 0;
            while block + u64::from(size) < blocks * 49 / 100 {
                bed.write(block, size).await;
                block += u64::from(size);
            }
            assert!(flush(&bed.table).await.is_ok());
        });
        assert!(bytes < blocks as usize, "{bytes} bytes for {blocks} blocks, {size} at a time");
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
        let bytes = growth(few, blocks, &options, &async |bed, blocks| {
            let mut rng = fastrand::Rng::with_seed(1);
            for number in 0..blocks * 4 {
                bed.write(rng.u64(..blocks * 2), 1).await;
                if number % 30_000 == 0 {
                    assert!(flush(&bed.table).await.is_ok());
                }
            }
            for _ in 0..blocks / 4 {
                let extent = Extent::new(Sector(rng.u64(..blocks * 2) * 8), SectorCount(8));
                assert!(call(&bed.table, Bio::discard(extent)).await.status().is_ok());
            }
        });
        let each = bytes / (blocks - few) as usize;
        assert!(each <= 32, "{order:?}, {overwrite:?}, {max_age_ms:?}: {each} bytes a block at the peak");
    }
}

/// Allocations of `count` requests once everything is warm.
fn allocations(options: &CacheOptions, count: u64, body: &impl AsyncFn(&Bed, u64)) -> usize {
    let (reactor, pool) = (reactor(), BufferPool::default());
    let run = async {
        let bed = Bed::open(&reactor, &pool, 20_000, options.clone()).await;
        for number in 0..count {
            body(&bed, number).await;
        }
        let before = ALLOCATIONS.get();
        for number in 0..count {
            body(&bed, number).await;
        }
        ALLOCATIONS.get() - before
    };
    let made = reactor.run(run).unwrap();
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
