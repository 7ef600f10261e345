//! Large writes against small ones, and everything that may come between their parcels.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use std::cell::{Cell, RefCell};

use forebay_block::{Bio, SectorCount, Status};
use forebay_reactor::{BufferPool, Engine, Reactor, engine};

use super::super::memory::PAGE;
use super::super::{Algorithm, AttributeError, CodecParams, Setup, Zram};
use super::parcel::PARCEL_BYTES;
use super::*;
use crate::below::testing::{Ends, JumpingClock, call, content, extent, read, write};

/// Packers that do what a test tells them.
#[derive(Default)]
struct Told {
    waiting: RefCell<Vec<Parcel>>,
    begun: RefCell<Vec<Parcel>>,
    done: RefCell<Vec<Parcel>>,
    hand: RefCell<Hand>,
    came_back: Rc<Event>,
    /// Parcels are begun at once.
    eager: Cell<bool>,
}

impl Told {
    /// Packs what was begun, the last first.
    fn finish(&self, most: usize) {
        for _ in 0..most {
            let Some(mut parcel) = self.begun.borrow_mut().pop() else { break };
            parcel.pack(&mut self.hand.borrow_mut());
            self.done.borrow_mut().push(parcel);
        }
        self.came_back.raise();
    }
}

impl Packers for Told {
    fn least_bytes(&self, _algorithm: Algorithm) -> u64 {
        PARCEL_BYTES
    }
    fn has_room(&self) -> bool {
        self.waiting.borrow().len() + self.begun.borrow().len() < 6
    }
    fn give(&self, parcel: Parcel) {
        if self.eager.get() { &self.begun } else { &self.waiting }.borrow_mut().push(parcel);
    }
    fn take(&self) -> Option<Parcel> {
        self.done.borrow_mut().pop()
    }
    fn take_back(&self) -> Option<Parcel> {
        self.waiting.borrow_mut().pop()
    }
    fn will_tell(&self) -> bool {
        self.done.borrow().is_empty()
    }
    fn came_back(&self) -> Rc<Event> {
        Rc::clone(&self.came_back)
    }
}

struct Rig {
    reactor: Reactor,
    told: Rc<Told>,
    zram: Rc<Zram>,
    ends: Rc<Ends>,
}

impl Rig {
    fn new(mem_limit: u64) -> Self {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let told = Rc::new(Told::default());
        told.eager.set(true);
        let packers: Rc<dyn Packers> = Rc::clone(&told) as Rc<dyn Packers>;
        let zram = disk(&reactor, Algorithm::Lz4, mem_limit, Some(packers));
        Self { reactor, told, zram, ends: Rc::default() }
    }

    fn submit(&self, bio: Bio, token: u64) {
        self.ends.submit(&*self.zram, bio, token);
        (0..4).for_each(|_| self.reactor.turn(false).unwrap());
    }

    fn finish(&self, most: usize) {
        self.told.finish(most);
        (0..4).for_each(|_| self.reactor.turn(false).unwrap());
    }

    fn ended(&self) -> Vec<(u64, Status)> {
        self.ends.0.take()
    }

    fn content(&self, sector: u64, sectors: usize) -> Vec<u8> {
        let (bio, memory) = read(sector, sectors);
        assert_eq!(self.reactor.run(call(&*self.zram, bio)).unwrap().status(), Status::Ok);
        content(memory)
    }
}

fn disk(reactor: &Reactor, algorithm: Algorithm, mem_limit: u64, packers: Option<Rc<dyn Packers>>) -> Rc<Zram> {
    let codec = CodecParams { algorithm, ..CodecParams::default() };
    let setup = Setup { sectors: SectorCount(8 * 1024), codec, mem_limit, packers, ..Setup::default() };
    Zram::new(reactor, &BufferPool::default(), &setup).unwrap()
}

/// Pages of all kinds.
fn pages(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut content = vec![0; bytes];
    for page in content.chunks_mut(PAGE) {
        match rng.u32(0..5) {
            0 => page.fill(rng.u8(..)),
            1 => page.fill_with(|| rng.u8(..)),
            2 => page.fill_with(|| rng.u8(b'a'..b'e')),
            _ => {
                let noise = rng.usize(0..page.len());
                page[..noise].fill_with(|| rng.u8(..));
            }
        }
    }
    content
}

#[test]
fn what_is_kept_is_the_same_whoever_packs_it() {
    for algorithm in Algorithm::ALL {
        let reactor = Reactor::new(engine(Engine::Auto).unwrap());
        let threads: Rc<dyn Packers> = Rc::new(PackerThreads::new(&reactor, 2));
        let (alone, helped) = (disk(&reactor, algorithm, 0, None), disk(&reactor, algorithm, 0, Some(threads)));
        let rng = &mut fastrand::Rng::with_seed(1);
        let mut model = vec![0; 8 * 1024 * 512];
        for round in 0..60 {
            // Several at once, apart or not.
            let writes: Vec<(u64, Vec<u8>)> = (0..rng.u64(1..4))
                .map(|at| {
                    let start = rng.u64(0..6000);
                    (start, pages(round * 10 + at, rng.usize(1..=[8, 300, 2000][at as usize % 3]) * 512))
                })
                .collect();
            for disk in [&alone, &helped] {
                let calls: Vec<_> = writes.iter().map(|(sector, bytes)| call(&**disk, write(*sector, bytes))).collect();
                for call in calls {
                    assert_eq!(reactor.run(call).unwrap().status(), Status::Ok);
                }
            }
            for (sector, bytes) in writes {
                model[sector as usize * 512..][..bytes.len()].copy_from_slice(&bytes);
            }
            let kept = |disk: &Zram| {
                let status = disk.status();
                let pages = (status.original_bytes, status.same_pages, status.huge_pages);
                (pages, status.compressed_bytes, status.used_bytes)
            };
            assert_eq!(kept(&helped), kept(&alone), "{algorithm}, round {round}");
        }
        for sector in (0..8 * 1024).step_by(1024) {
            let (bio, memory) = read(sector, 1024);
            assert_eq!(reactor.run(call(&*helped, bio)).unwrap().status(), Status::Ok);
            assert!(content(memory) == model[sector as usize * 512..][..1024 * 512], "{algorithm}");
        }
    }
}

#[test]
fn a_change_that_overlaps_waits_and_the_later_one_wins() {
    let rig = Rig::new(0);
    let [first, second] = [pages(1, 1 << 20), pages(2, 1 << 20)];
    rig.submit(write(4, &first), 1);
    assert_eq!((rig.ended(), rig.told.begun.borrow().len()), (vec![], 6));
    rig.submit(write(500, &[7; 512]), 2);
    rig.submit(Bio::discard(extent(600, 64)), 3);
    rig.submit(write(1000, &second), 4);
    rig.submit(write(5000, &[8; 512]), 5);
    rig.submit(Bio::write_zeroes(extent(2100, 8)), 6);
    assert_eq!(rig.ended(), [(5, Status::Ok)], "only what is apart goes by");
    assert!(rig.content(500, 1) != [7; 512], "a write that waits is not there yet");
    rig.finish(5);
    assert_eq!(rig.ended(), []);
    rig.finish(1);
    let status = |tokens: &[u64]| tokens.iter().map(|token| (*token, Status::Ok)).collect::<Vec<_>>();
    assert_eq!(rig.ended(), status(&[1, 2, 3]));
    assert!(rig.content(500, 1) == [7; 512]);
    while !rig.told.begun.borrow().is_empty() {
        rig.finish(1);
    }
    assert_eq!(rig.ended(), status(&[4, 6]));
    let mut model = vec![0; 6000 * 512];
    model[4 * 512..][..1 << 20].copy_from_slice(&first);
    model[500 * 512..501 * 512].fill(7);
    model[600 * 512..664 * 512].fill(0);
    model[1000 * 512..][..1 << 20].copy_from_slice(&second);
    model[5000 * 512..5001 * 512].fill(8);
    model[2100 * 512..2108 * 512].fill(0);
    assert!(rig.content(0, 6000) == model);
}

#[test]
fn what_nobody_has_begun_is_taken_back() {
    let rig = Rig::new(0);
    rig.told.eager.set(false);
    let first = pages(3, 1 << 20);
    rig.submit(write(0, &first), 1);
    assert_eq!(rig.ended(), [(1, Status::Ok)]);
    assert!(rig.content(0, 2048) == first);
    // One that is begun is waited for, while the others are taken back.
    let second = pages(4, 1 << 20);
    rig.told.eager.set(true);
    rig.submit(write(0, &second), 2);
    let begun = rig.told.begun.borrow_mut().split_off(1);
    rig.told.waiting.borrow_mut().extend(begun);
    assert_eq!(rig.ended(), []);
    rig.finish(1);
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
    assert!(rig.content(0, 2048) == second);
}

#[test]
fn writes_find_each_others_parcels() {
    let rig = Rig::new(0);
    let contents: Vec<_> = (0..3).map(|seed| pages(10 + seed, 1 << 19)).collect();
    for (content, token) in contents.iter().zip(0..) {
        rig.ends.submit(&*rig.zram, write(token * 1024, content), token);
    }
    (0..4).for_each(|_| rig.reactor.turn(false).unwrap());
    let mut ended = Vec::new();
    while !rig.told.begun.borrow().is_empty() {
        rig.finish(2);
        ended.extend(rig.ended());
    }
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(ended, [(0, Status::Ok), (1, Status::Ok), (2, Status::Ok)]);
    contents.iter().zip(0..).for_each(|(content, at)| assert!(rig.content(at * 1024, 1024) == *content, "write {at}"));
}

#[test]
fn a_write_over_the_limit_ends_when_its_parcels_are_back() {
    let rig = Rig::new(64 * PAGE as u64);
    let mut rng = fastrand::Rng::with_seed(5);
    let noise: Vec<u8> = (0..1 << 20).map(|_| rng.u8(..)).collect();
    rig.submit(write(0, &noise), 1);
    assert_eq!(rig.ended(), []);
    rig.finish(6);
    assert_eq!(rig.ended(), [(1, Status::NoSpace)]);
    let status = rig.zram.status();
    assert_eq!((status.used_bytes, status.failed_writes), (64 * PAGE as u64, 1));
    rig.submit(write(4096, &vec![3; 1 << 20]), 2);
    rig.finish(6);
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
}

#[test]
fn nothing_is_forgotten_or_exchanged_under_a_write_and_small_ones_end_at_once() {
    let rig = Rig::new(0);
    rig.ends.submit(&*rig.zram, write(0, &[5; PAGE]), 1);
    assert_eq!(rig.ended(), [(1, Status::Ok)], "without a turn");
    let first = pages(6, 1 << 20);
    rig.submit(write(0, &first), 2);
    assert_eq!(rig.zram.reset(), Err(AttributeError::Busy));
    rig.finish(6);
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
    assert_eq!(rig.zram.reset(), Ok(()));
    rig.submit(write(0, &first), 3);
    rig.finish(6);
    assert!(rig.content(0, 2048) == first);
}

#[test]
fn changes_that_wait_for_a_write_wait_for_an_image_too() {
    let rig = Rig::new(0);
    let first = pages(7, 1 << 20);
    rig.submit(write(0, &first), 1);
    rig.submit(write(0, &[9; 512]), 2);
    let cut = rig.zram.cut().unwrap();
    rig.finish(6);
    assert_eq!(rig.ended(), [(1, Status::Ok)]);
    drop(cut);
    (0..4).for_each(|_| rig.reactor.turn(false).unwrap());
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
    assert!(rig.content(0, 1) == [9; 512] && rig.content(1, 2047) == first[512..]);
}
