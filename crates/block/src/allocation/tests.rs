//! Rounding, bounds and what is asked how often, over devices that answer in every way.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::bio::Bio;
use crate::limits::Limits;
use crate::target::{Row, Table};

/// A device whose sectors are holes where `holes` says so. Must be asked, or tells by itself.
struct Leaf {
    holes: Vec<bool>,
    logical_bytes: u32,
    asked: Option<Rc<Asked>>,
    dyn_asked: Option<Rc<dyn LookUp>>,
}

/// Answers for a leaf, `most_runs` at a time.
struct Asked {
    holes: Vec<bool>,
    most_runs: usize,
    times: Cell<usize>,
}

impl LookUp for Asked {
    fn look_up(&self, extent: Extent, most: usize) -> Found {
        self.times.set(self.times.get() + 1);
        let mut found = in_runs(&self.holes[usize::try_from(extent.start.0).unwrap()..]);
        found.truncate(most.min(self.most_runs));
        Box::pin(async { found })
    }
}

fn in_runs(holes: &[bool]) -> Vec<Run> {
    holes.chunk_by(PartialEq::eq).map(|run| Run { count: SectorCount(run.len() as u64), hole: run[0] }).collect()
}

impl Leaf {
    fn telling(holes: &[bool], logical_bytes: u32) -> Rc<Self> {
        Rc::new(Self { holes: holes.to_vec(), logical_bytes, asked: None, dyn_asked: None })
    }

    fn asked(holes: &[bool], logical_bytes: u32, most_runs: usize) -> Rc<Self> {
        let asked = Rc::new(Asked { holes: holes.to_vec(), most_runs, times: Cell::new(0) });
        let dyn_asked = Some(Rc::clone(&asked) as Rc<dyn LookUp>);
        Rc::new(Self { holes: holes.to_vec(), logical_bytes, asked: Some(asked), dyn_asked })
    }

    fn times(&self) -> usize {
        self.asked.as_ref().unwrap().times.get()
    }
}

impl Target for Leaf {
    fn kind(&self) -> &'static str {
        "leaf"
    }
    fn limits(&self) -> Limits {
        Limits { logical_bytes: self.logical_bytes, ..Limits::unlimited() }
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(self.holes.len() as u64)
    }
    fn submit(&self, _: Bio) {
        unreachable!("nothing is read to find out what is allocated");
    }
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        if let Some(asked) = &self.dyn_asked {
            return out.ask(asked, extent);
        }
        for at in extent.start.0..extent.end().0 {
            if out.is_full() {
                return;
            }
            out.tell(Run { count: SectorCount(1), hole: self.holes[usize::try_from(at).unwrap()] });
        }
    }
}

/// Chunks of eight sectors from two leaves in turn.
struct Dealt(Rc<Leaf>, Rc<Leaf>);
impl Target for Dealt {
    fn kind(&self) -> &'static str {
        "dealt"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(1600)
    }
    fn submit(&self, _: Bio) {}
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        assert_eq!(extent.start, Sector(0));
        for at in (0..extent.count.0).step_by(8) {
            let column = if at / 8 % 2 == 0 { &self.0 } else { &self.1 };
            out.below(&**column, Extent::new(Sector(at / 16 * 8), SectorCount(8)));
        }
    }
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

/// What `runs` answers; devices here answer without a wait.
fn told(target: &dyn Target, extent: Extent, most: usize) -> Vec<(u64, bool)> {
    let mut future = pin!(runs(target, extent, most));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(runs) => runs.into_iter().map(|run| (run.count.0, run.hole)).collect(),
        Poll::Pending => panic!("nobody makes it wait"),
    }
}

/// `count` sectors, of which runs of 1 to `longest` are holes and data in turn.
fn random_holes(random: &mut fastrand::Rng, count: usize, longest: usize) -> Vec<bool> {
    let mut holes = Vec::new();
    let mut hole = random.bool();
    while holes.len() < count {
        holes.extend(std::iter::repeat_n(hole, random.usize(1..=longest)));
        hole = !hole;
    }
    holes.truncate(count);
    holes
}

#[test]
fn a_target_that_does_not_know_says_data() {
    struct Plain;
    impl Target for Plain {
        fn kind(&self) -> &'static str {
            "plain"
        }
        fn limits(&self) -> Limits {
            Limits::unlimited()
        }
        fn sectors(&self) -> SectorCount {
            SectorCount(100)
        }
        fn submit(&self, _: Bio) {}
    }
    assert_eq!(told(&Plain, extent(7, 93), 10), [(93, false)]);
    assert_eq!(told(&Plain, extent(7, 0), 10), []);
}

#[test]
fn every_hole_told_is_one_and_every_whole_block_of_one_is_told() {
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..2000 {
        let logical_bytes = [512, 1024, 4096][random.usize(..3)];
        let block = logical_bytes as usize / 512;
        let mut rows = Vec::new();
        let mut all = Vec::new();
        for _ in 0..random.usize(1..4) {
            let blocks = random.usize(1..30);
            let holes = random_holes(&mut random, blocks * block, 3 * block);
            let leaf = if random.bool() {
                Leaf::telling(&holes, logical_bytes)
            } else {
                Leaf::asked(&holes, logical_bytes, random.usize(1..9))
            };
            let skipped = random.usize(0..=(blocks - 1) / 2) * block;
            rows.push(Row { extent: extent(all.len() as u64, (holes.len() - skipped) as u64), target: leaf });
            all.extend(&holes[..holes.len() - skipped]);
        }
        let table = Table::new(rows).unwrap();
        let start = random.usize(..all.len() / block) * block;
        let count = random.usize(1..=(all.len() - start) / block) * block;
        let most = [1, 2, 1000][random.usize(..3)];
        let found = told(&table, extent(start as u64, count as u64), most);
        assert!(!found.is_empty() && found.len() <= most, "round {round}: {found:?}");
        assert!(found.windows(2).all(|pair| pair[0].1 != pair[1].1), "round {round}: neighbours differ: {found:?}");
        let mut at = start;
        for &(length, hole) in &found {
            let end = at + usize::try_from(length).unwrap();
            assert!(length > 0 && end <= start + count && end.is_multiple_of(block), "round {round}: {found:?}");
            for whole in (at..end).step_by(block) {
                assert_eq!(all[whole..whole + block].iter().all(|&hole| hole), hole, "round {round}: block {whole} of {found:?}");
            }
            at = end;
        }
        assert!(most < 1000 || at == start + count, "round {round}: all of it is told: {found:?}");
    }
}

#[test]
fn what_a_device_said_once_serves_all_pieces_that_it_covers() {
    let holes = [vec![true; 600], vec![false; 200]].concat();
    let (one, other) = (Leaf::asked(&holes, 512, 64), Leaf::asked(&holes, 512, 64));
    let dealt = Dealt(Rc::clone(&one), Rc::clone(&other));
    assert_eq!(told(&dealt, extent(0, 1600), 10), [(1200, true), (400, false)]);
    assert_eq!((one.times(), other.times()), (1, 1));
}

#[test]
fn an_answer_is_short_where_a_longer_one_would_cost_too_much() {
    let holes: Vec<bool> = (0..1 << 20).map(|at| at % 2 == 0).collect();
    let telling = Leaf::telling(&holes, 512);
    assert_eq!(told(&*telling, extent(0, 1 << 20), usize::MAX).len(), TELLS_MAX);
    let asked = Leaf::asked(&holes, 512, usize::MAX);
    assert_eq!(told(&*asked, extent(0, 1 << 20), usize::MAX).len(), LOOK_UPS_MAX * LOOK_UP_RUNS);
    assert_eq!(asked.times(), LOOK_UPS_MAX);
    let asked = Leaf::asked(&holes, 512, usize::MAX);
    assert_eq!(told(&*asked, extent(4, 1000), 1), [(1, true)]);
    assert_eq!(asked.times(), 1);
    // Not even one run for each time it is asked, but one block all the same.
    let slow = Leaf::asked(&holes[..4096], 64 << 10, 1);
    assert_eq!(told(&*slow, extent(0, 4096), 100), [(128, false)]);
}

#[test]
fn a_device_that_answers_nothing_counts_as_data() {
    let silent = Leaf::asked(&[true; 100], 512, 0);
    assert_eq!(told(&*silent, extent(0, 100), 10), [(100, false)]);
    assert_eq!(silent.times(), 1);
}

#[test]
#[should_panic(expected = "a target is asked only about its own sectors")]
fn asking_beyond_the_end_is_a_bug() {
    drop(runs(&*Leaf::telling(&[true; 8], 512), extent(4, 8), 1));
}

#[test]
fn blocks_may_be_coarser_than_those_of_the_target() {
    let holes: Vec<bool> = (0..64).map(|sector| matches!(sector, 3..13 | 15..33 | 50..64)).collect();
    let leaf = Leaf::telling(&holes, 512);
    let mut answer = pin!(runs_in_blocks(&*leaf, extent(0, 60), SectorCount(8), 64));
    let Poll::Ready(runs) = answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { panic!("nobody must be asked") };
    let runs: Vec<_> = runs.iter().map(|run| (run.count.0, run.hole)).collect();
    assert_eq!(runs, [(16, false), (16, true), (24, false), (4, true)]);
}
