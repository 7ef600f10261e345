//! What the index of the write cache costs in memory, counted by the allocator: at most 32 bytes a
//! block in the worst cases, and below one byte for a cache that was filled in order.

#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fastrand::Rng;
use forebay_target::cache::index::{CacheSlot, CachedExtent, ExtentMap, FreeSpace, OriginBlock, SlotRun, State};

/// Counts the bytes in use and the allocations of each thread, so that tests do not disturb each other.
struct Counting;

thread_local! {
    static BYTES: Cell<usize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get().wrapping_add(layout.size()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // A thread may free what another one allocated; only the difference counts.
        BYTES.set(BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The index of a cache: what is used and what is free.
struct Index {
    map: ExtentMap,
    free: FreeSpace,
    /// Bytes in use when it was empty.
    base: usize,
}

impl Index {
    fn new(blocks: u32) -> Self {
        let base = BYTES.get();
        Self { map: ExtentMap::new(), free: FreeSpace::new(blocks), base }
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

    /// Allocated bytes; checks that the index knows about them.
    fn bytes(&self, what: &str, blocks: u32) -> usize {
        let real = BYTES.get().wrapping_sub(self.base);
        let told = self.map.memory_bytes() + self.free.memory_bytes();
        let (milli_real, milli_told) = (real * 1000 / blocks as usize, told * 1000 / blocks as usize);
        println!("{what}: {}.{:03} bytes a block, {milli_told} thousandths told", milli_real / 1000, milli_real % 1000);
        assert!(told >= real, "{what}: {real} bytes are in use, {told} are told");
        assert!(told <= real + real / 4 + 20_000, "{what}: {real} bytes are in use, {told} are told");
        real
    }
}

/// Blocks of 4 KiB in 256 MiB.
const BLOCKS: u32 = 1 << 16;

fn shuffled(rng: &mut Rng, step: u64) -> Vec<u64> {
    let mut origins: Vec<u64> = (0..u64::from(BLOCKS)).map(|block| block * step).collect();
    rng.shuffle(&mut origins);
    origins
}

#[test]
fn a_cache_of_1_gib_filled_in_order_takes_less_than_a_byte_a_block() {
    const SEQUENTIAL_BLOCKS: u32 = 1 << 18;
    for count in [1, 8, 128] {
        let mut index = Index::new(SEQUENTIAL_BLOCKS);
        for origin in (0..u64::from(SEQUENTIAL_BLOCKS)).step_by(count as usize) {
            index.write(origin, count);
        }
        let bytes = index.bytes(&format!("in order, {count} at a time"), SEQUENTIAL_BLOCKS);
        assert!(bytes < SEQUENTIAL_BLOCKS as usize / 4);
    }
}

#[test]
fn every_block_used_singly_in_random_order_takes_at_most_20_bytes() {
    let origins = shuffled(&mut Rng::with_seed(1), 3);
    let mut index = Index::new(BLOCKS);
    for &origin in &origins {
        index.write(origin, 1);
    }
    assert_eq!(index.map.extents(), u64::from(BLOCKS));
    let bytes = index.bytes("every block alone, random order", BLOCKS);
    assert!(bytes <= 20 * BLOCKS as usize);
}

#[test]
fn every_other_block_free_takes_at_most_32_bytes() {
    let mut rng = Rng::with_seed(2);
    let origins = shuffled(&mut rng, 3);
    let mut index = Index::new(BLOCKS);
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
    let bytes = index.bytes("every other block free", BLOCKS);
    assert!(bytes <= 32 * BLOCKS as usize);
}

#[test]
fn a_cache_in_random_use_for_long_takes_at_most_32_bytes() {
    let mut rng = Rng::with_seed(3);
    let mut index = Index::new(BLOCKS);
    let mut most = 0;
    for round in 0..8 {
        for _ in 0..BLOCKS {
            let origin = rng.u64(..4 * u64::from(BLOCKS));
            if index.free.free_blocks() > BLOCKS / 16 && rng.bool() {
                index.write(origin, rng.choice([1, 1, 1, 2, 8]).expect("five sizes"));
            } else {
                index.drop_block(origin);
            }
        }
        most = most.max(index.bytes(&format!("random use, round {round}"), BLOCKS));
    }
    assert!(most <= 32 * BLOCKS as usize);
}

#[test]
fn a_warm_index_allocates_nothing_to_look_up_and_mark_and_seldom_to_replace() {
    let mut rng = Rng::with_seed(4);
    let origins = shuffled(&mut rng, 3);
    let mut index = Index::new(BLOCKS);
    for &origin in origins.iter().skip(BLOCKS as usize / 4) {
        index.write(origin, 1);
    }
    let mut displaced = Vec::with_capacity(16);
    let before = ALLOCATIONS.get();
    let mut hits = 0;
    for _ in 0..100_000 {
        let block = rng.u64(..3 * u64::from(BLOCKS));
        hits += index.map.pieces(OriginBlock(block)..OriginBlock(block + 64)).count();
        if let Some(found) = index.map.get(OriginBlock(block)) {
            index.map.mark(found.origin, found.slot, found.count, |state| State { busy: !state.busy, ..state });
        }
    }
    assert_eq!(ALLOCATIONS.get(), before, "looking up and marking, {hits} pieces");
    for step in 0..40_000 {
        // One block leaves, another comes, as in a cache that writes back.
        let leaving = origins[BLOCKS as usize / 4 + step];
        let coming = origins[step / 2] + 1;
        index.map.remove(OriginBlock(leaving)..OriginBlock(leaving + 1), &mut displaced);
        if let Some(run) = index.free.allocate(1) {
            let extent = CachedExtent { origin: OriginBlock(coming), slot: run.slot, count: 1, state: State::default() };
            index.map.insert(extent, &mut displaced);
        }
        for old in displaced.drain(..) {
            index.free.release(SlotRun { slot: CacheSlot(old.slot.0), count: old.count });
        }
    }
    let allocations = ALLOCATIONS.get() - before;
    println!("{allocations} allocations for 40000 replacements");
    assert!(allocations < 800, "{allocations} allocations for 40000 replacements");
}
