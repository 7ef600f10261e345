//! Buffers: where they come from, when they come back, and what is counted.

use std::cell::Cell;
use std::sync::Arc;

use forebay_block::{Bio, Sector};

use super::*;

fn address(buffer: &Buffer) -> usize {
    buffer.segments().vecs()[0].base() as usize
}

#[test]
fn sizes_are_rounded_up_and_aligned() {
    let pool = BufferPool::default();
    for (asked, got) in [(1, 4096), (4096, 4096), (4097, 8192), (1 << 20, 1 << 20), (1_500_000, 2 << 20)] {
        let mut buffer = pool.take(asked);
        assert_eq!((buffer.bytes_mut().len(), address(&buffer) % 4096), (got, 0));
    }
}

#[test]
fn a_dropped_buffer_is_used_again() {
    let pool = BufferPool::default();
    let first = address(&pool.take(8192));
    assert_eq!(address(&pool.take(8192)), first);
    let (one, two) = (pool.take(8192), pool.take(8192));
    assert_ne!(address(&one), address(&two));
}

#[test]
fn memory_that_a_bio_holds_is_not_used_again_before_it_ends() {
    let pool = BufferPool::default();
    let buffer = pool.take(4096);
    let held = address(&buffer);
    let bio = Bio::write(Sector(0), Rc::clone(buffer.segments()), 0, 4096);
    drop(buffer);
    let others: Vec<_> = (0..100).map(|_| pool.take(4096)).collect();
    assert!(others.iter().all(|other| address(other) != held));
    drop(others);
    assert_eq!(pool.bytes_out(), 4096, "the bio still has it");
    drop(bio);
    assert_eq!(pool.bytes_out(), 0);
    let again: Vec<_> = (0..101).map(|_| pool.take(4096)).collect();
    assert!(again.iter().any(|other| address(other) == held));
}

#[test]
fn limbo_drains_by_taking_alone() {
    let pool = BufferPool::default();
    let mut bios = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..1000 {
        let buffer = pool.take(4096);
        seen.insert(address(&buffer));
        bios.push(Bio::write(Sector(round), Rc::clone(buffer.segments()), 0, 4096));
        if bios.len() > 8 {
            drop(bios.remove(0));
        }
    }
    assert!(seen.len() < 40, "{} buffers for 8 in use", seen.len());
}

#[test]
fn loans_are_counted() {
    let pool = BufferPool::default();
    let (small, large) = (pool.take(100), pool.take(1 << 20));
    assert_eq!(pool.bytes_out(), 4096 + (1 << 20));
    drop(small);
    assert_eq!(pool.bytes_out(), 1 << 20);
    drop(large);
    assert_eq!(pool.bytes_out(), 0);
}

#[test]
fn regions_begin_small_and_large_buffers_get_their_own() {
    let pool = BufferPool::default();
    let sizes = |pool: &BufferPool| pool.0.borrow().rooms.iter().map(|room| room.mapping.bytes() >> 20).collect::<Vec<_>>();
    let first = pool.take(4096);
    assert_eq!(sizes(&pool), [4]);
    let large = pool.take(64 << 20);
    assert_eq!(sizes(&pool), [4, 64]);
    let third = pool.take(4 << 20);
    assert_eq!(sizes(&pool), [4, 64, 16]);
    // What is left of the first region serves small buffers.
    let fourth = pool.take(4096);
    assert_eq!(address(&fourth), address(&first) + 4096);
    drop((large, third));
    assert_eq!(sizes(&pool), [4, 64, 16], "regions stay, their buffers are used again");
}

#[test]
fn a_region_is_zeroed_aligned_and_its_own() {
    let mut region = Region::new(3_000_000).unwrap();
    assert_eq!((region.as_slice().len(), region.as_slice().as_ptr() as usize % (2 << 20)), (3_000_000, 0));
    assert!(region.as_slice().iter().all(|&byte| byte == 0));
    region.as_mut_slice().fill(7);
    let other = Region::new(1).unwrap();
    assert_eq!((other.as_slice(), region.as_slice()[2_999_999]), (&[0][..], 7));
}

#[test]
fn offered_memory_stays_mapped_as_long_as_the_backend_lives() {
    use crate::backend::{Backend, Done, Wait};
    use crate::request::{DeviceId, Requests, Tag};

    struct Keeper(Rc<Cell<(usize, usize)>>);
    impl Backend for Keeper {
        fn name(&self) -> &'static str {
            "keeper"
        }
        fn now(&self) -> std::time::Duration {
            std::time::Duration::ZERO
        }
        fn attach(&mut self, _: DeviceId, _: Option<std::os::fd::BorrowedFd<'_>>) -> std::io::Result<()> {
            Ok(())
        }
        fn offer_memory(&mut self, base: usize, bytes: usize) {
            self.0.set((base, bytes));
        }
        fn enter(&mut self, _: &Requests, _: &[Tag], _: &mut Vec<Done>, _: Wait) -> std::io::Result<()> {
            Ok(())
        }
    }

    let offered = Rc::new(Cell::new((0, 0)));
    let reactor = Reactor::new(Box::new(Keeper(Rc::clone(&offered))));
    let pool = BufferPool::new(&reactor);
    let buffer = pool.take(4096);
    assert_eq!(offered.get(), (address(&buffer), 4 << 20));
    let mapping = Arc::downgrade(&pool.0.borrow().rooms[0].mapping);
    drop((buffer, pool));
    assert!(mapping.upgrade().is_some(), "the backend may still know it");
    drop(reactor);
    assert!(mapping.upgrade().is_none(), "and with the backend it goes");
}

#[test]
fn a_buffer_becomes_memory_only_while_nobody_shares_it_and_goes_back_with_the_payload() {
    let pool = BufferPool::default();
    let shared = pool.take(4096);
    let bio = Bio::write(Sector(0), Rc::clone(shared.segments()), 0, 4096);
    let shared = shared.into_memory().err().expect("a bio still has it");
    drop(bio);
    let (one, two) = (address(&shared), pool.take(8192));
    let memories = vec![(shared.into_memory().ok().unwrap(), 512), (two.into_memory().ok().unwrap(), 8192)];
    let mut payload = Segments::each(memories).unwrap();
    assert_eq!((payload.vecs()[0].base() as usize, payload.bytes()), (one, 8704));
    Rc::get_mut(&mut payload).unwrap().segment_mut(1).unwrap().fill(9);
    assert_eq!(pool.bytes_out(), 4096 + 8192);
    let bio = Bio::read(Sector(0), payload, 0, 8704);
    assert_eq!(pool.bytes_out(), 4096 + 8192, "the bio has it");
    drop(bio);
    assert_eq!((pool.bytes_out(), address(&pool.take(4096))), (0, one));
}
