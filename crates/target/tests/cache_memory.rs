//! What the index of the write cache alone takes, counted by the allocator, and that what it says of itself
//! is true. What a whole cache costs is in `cache_costs.rs`.

use allocation_counter::measure;
use fastrand::Rng;
use forebay_target::cache::index::{CachedExtent, ExtentMap, FreeSpace, OriginBlock, State};

/// Counts the bytes in use and the allocations of each thread, so that tests do not disturb each other.
/// The index of a cache: what is used and what is free.
struct Index {
    map: ExtentMap,
    free: FreeSpace,
}

impl Index {
    fn new() -> Self {
        Self { map: ExtentMap::new(), free: FreeSpace::new(BLOCKS) }
    }

    fn write(&mut self, origin: u64, count: u32) {
        let mut origin = origin;
        let mut left = count;
        while left > 0 {
            let run = self.free.allocate(left).expect("the test fits the cache");
            let extent = CachedExtent { origin: OriginBlock(origin), slot: run.slot, count: run.count, state: State::default() };
            let mut displaced = Vec::new();
            self.map.insert(extent, &mut displaced);
            for old in displaced {
                self.free.release(old.slots());
            }
            origin += u64::from(run.count);
            left -= run.count;
        }
    }

    fn drop_block(&mut self, origin: u64) {
        let mut removed = Vec::new();
        self.map.remove(OriginBlock(origin)..OriginBlock(origin + 1), &mut removed);
        for old in removed {
            self.free.release(old.slots());
        }
    }
}

/// Makes an index and gives the bytes that it has allocated then; checks that it knows about them.
fn bytes(what: &str, make: impl FnOnce() -> Index) -> usize {
    let mut index = None;
    let real = measure(|| index = Some(make())).bytes_current;
    let (index, real) = (index.expect("it was made"), usize::try_from(real).expect("it is in use"));
    let told = index.map.memory_bytes() + index.free.memory_bytes();
    let thousandths = |bytes| bytes * 1000 / BLOCKS as usize;
    println!("{what}: {} thousandths of a byte a block, {} told", thousandths(real), thousandths(told));
    assert!(told >= real, "{what}: {real} bytes are in use, {told} are told");
    assert!(told <= real + real / 4 + 20_000, "{what}: {real} bytes are in use, {told} are told");
    real
}

/// Blocks of 4 KiB in 256 MiB.
const BLOCKS: u32 = 1 << 16;

fn shuffled(rng: &mut Rng, step: u64) -> Vec<u64> {
    let mut origins: Vec<u64> = (0..u64::from(BLOCKS)).map(|block| block * step).collect();
    rng.shuffle(&mut origins);
    origins
}

#[test]
fn every_block_used_singly_in_random_order_takes_at_most_20_bytes() {
    let bytes = bytes("every block alone, random order", || {
        let mut index = Index::new();
        for origin in shuffled(&mut Rng::with_seed(1), 3) {
            index.write(origin, 1);
        }
        assert_eq!(index.map.extents(), u64::from(BLOCKS));
        index
    });
    assert!(bytes <= 20 * BLOCKS as usize);
}

#[test]
fn every_other_block_free_takes_at_most_32_bytes() {
    let bytes = bytes("every other block free", || {
        let mut rng = Rng::with_seed(2);
        let origins = shuffled(&mut rng, 3);
        let mut index = Index::new();
        for &origin in &origins {
            index.write(origin, 1);
        }
        // The first write took slot 0, and so on: every other slot becomes free, in random order.
        let mut leaving: Vec<u64> = origins.iter().copied().step_by(2).collect();
        rng.shuffle(&mut leaving);
        for origin in leaving {
            index.drop_block(origin);
        }
        assert_eq!(index.free.runs(), BLOCKS / 2);
        index
    });
    assert!(bytes <= 32 * BLOCKS as usize);
}
