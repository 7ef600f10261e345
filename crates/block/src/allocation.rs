//! Which parts of a target hold data and which are holes, found out without reading them.
//!
//! ```text
//!   ① Target::allocation, a plain call down the stack:   data │ hole │ ask A from 0 │ data │ ask A from 96
//!   ② LookUp::look_up of those who must be asked:                    │ hole 0..64, data 64..200
//!   ③ joined, holes cut to whole logical blocks:          data │   hole       │ data …
//! ```
//!
//! Invariants:
//! - I1: a hole is not allocated and reads as zeroes. What is not known for certain is data.
//! - I2: data whose write ended before the question is never told as a hole, although ② happens
//!   later than ①: a target that moves data down, as a cache does, has it below before it lets go of
//!   it above. So what ① found missing above is found below, by ② as well as at once. Only changes
//!   that were still under way when the question came, or came later, may be told either way.
//! - I3: an answer begins where the question does, has at least one logical block, and may be
//!   shorter than the question: what one answer costs is bounded, whatever the stack looks like.
//!
//! Units: sectors.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use crate::target::Target;
use crate::unit::{Extent, SECTOR_BYTES, Sector, SectorCount};

/// How often the targets of a stack may tell something for one question: a fraction of a millisecond.
const TELLS_MAX: usize = 8192;
/// Most times that devices are asked for one question.
const LOOK_UPS_MAX: usize = 16;
/// Most runs that a device is asked for at a time.
const LOOK_UP_RUNS: usize = 64;

/// Sectors in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many; not 0.
    pub count: SectorCount,
    /// Whether nothing is allocated there, and reads give zeroes.
    pub hole: bool,
}

/// What a device answers when it was asked; the runs follow one another.
pub type Found = Pin<Box<dyn Future<Output = Vec<Run>>>>;

/// A device that must be asked, because the answer takes a wait.
pub trait LookUp {
    /// What is known of `extent`, from its start on, in at most `most` runs. They may end before
    /// the extent does, or beyond it. None at all means that everything counts as data.
    fn look_up(&self, extent: Extent, most: usize) -> Found;
}

/// One thing that a target told.
enum Piece {
    Known(Run),
    Ask { whom: Rc<dyn LookUp>, extent: Extent },
}

/// What the targets of a stack tell, collected in the order of the sectors asked for.
#[derive(Default)]
pub struct Allocation {
    pieces: Vec<Piece>,
    /// How often something was told, and of how many sectors in all.
    tells: usize,
    told: u64,
}

impl Allocation {
    /// The next `count` sectors hold data, or may do so.
    pub fn data(&mut self, count: SectorCount) {
        self.tell(Run { count, hole: false });
    }

    /// The next sectors are in one state.
    pub fn tell(&mut self, run: Run) {
        self.tells += 1;
        self.told += run.count.0;
        match self.pieces.last_mut() {
            Some(Piece::Known(last)) if last.hole == run.hole => last.count = last.count + run.count,
            _ if run.count.0 > 0 => self.pieces.push(Piece::Known(run)),
            _ => {}
        }
    }

    /// About the next sectors `whom` must be asked, who calls them `extent`.
    pub fn ask(&mut self, whom: &Rc<dyn LookUp>, extent: Extent) {
        self.tells += 1;
        self.told += extent.count.0;
        match self.pieces.last_mut() {
            Some(Piece::Ask { whom: last, extent: before }) if same(last, whom) && before.end() == extent.start => {
                before.count = before.count + extent.count;
            }
            _ if extent.count.0 > 0 => self.pieces.push(Piece::Ask { whom: Rc::clone(whom), extent }),
            _ => {}
        }
    }

    /// The next sectors are what `target` calls `extent`, and it tells about them.
    ///
    /// # Panics
    /// When `extent` is not inside of `target`, or it tells of more or fewer sectors.
    pub fn below(&mut self, target: &dyn Target, extent: Extent) {
        assert!(Extent::new(Sector(0), target.sectors()).contains(extent), "a target is asked only about its own sectors");
        let before = self.told;
        target.allocation(extent, self);
        let told = self.told - before;
        assert!(told <= extent.count.0, "a target tells only what it was asked");
        assert!(told == extent.count.0 || self.is_full(), "a target tells all that it was asked while there is room");
    }

    /// Whether enough was told: a target that has more to tell stops here.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tells >= TELLS_MAX
    }
}

fn same(one: &Rc<dyn LookUp>, other: &Rc<dyn LookUp>) -> bool {
    std::ptr::addr_eq(Rc::as_ptr(one), Rc::as_ptr(other))
}

/// What is known of `extent` on `target`, from its start on, in at most `most` runs, neighbours in
/// different states. The targets are asked at once, devices when the future is polled.
///
/// `extent` is whole logical blocks of `target`, and so are the runs, unless the target ends in the
/// middle of one.
///
/// # Panics
/// When `extent` is not inside of `target`.
pub fn runs(target: &dyn Target, extent: Extent, most: usize) -> impl Future<Output = Vec<Run>> + use<> {
    let block = target.limits().logical_bytes / SECTOR_BYTES;
    runs_in_blocks(target, extent, SectorCount(u64::from(block)), most)
}

/// As [`runs`], in whole blocks of `block` sectors counted from the start of `extent`: for who does the same to
/// another target, whose blocks are larger.
///
/// # Panics
/// When `extent` is not inside of `target`, or `block` is 0.
pub fn runs_in_blocks(
    target: &dyn Target,
    extent: Extent,
    block: SectorCount,
    most: usize,
) -> impl Future<Output = Vec<Run>> + use<> {
    assert!(block.0 > 0, "a block has sectors");
    let mut told = Allocation::default();
    told.below(target, extent);
    async move { in_blocks(answer(told.pieces, most).await, block.0, extent.count.0) }
}

/// What a device said, from `extent.start` on.
struct Heard {
    whom: Rc<dyn LookUp>,
    start: Sector,
    runs: Vec<Run>,
}

impl Heard {
    /// What was heard of sector `at` and those behind it.
    fn from(&self, at: Sector) -> Option<Run> {
        let mut skip = at.since(self.start)?.0;
        for run in &self.runs {
            if skip < run.count.0 {
                return Some(Run { count: SectorCount(run.count.0 - skip), ..*run });
            }
            skip -= run.count.0;
        }
        None
    }
}

/// Asks who must be asked, and joins everything. What a device said serves all pieces that it
/// covers: the chunks of a stripe, the gaps between what a cache holds.
async fn answer(pieces: Vec<Piece>, most: usize) -> Vec<Run> {
    let mut joined = Joined::new(most);
    let mut heard: Vec<Heard> = Vec::new();
    let mut asked = 0;
    for piece in pieces {
        let (whom, extent) = match piece {
            Piece::Known(run) => {
                joined.push(run);
                continue;
            }
            Piece::Ask { whom, extent } => (whom, extent),
        };
        let mut at = extent.start;
        while at < extent.end() && !joined.is_full() {
            let left = extent.end().since(at).expect("looked at in the line before");
            let place = heard.iter().position(|heard| same(&heard.whom, &whom));
            if let Some(run) = place.and_then(|place| heard[place].from(at)) {
                let count = run.count.min(left);
                joined.push(Run { count, ..run });
                at = at + count;
                continue;
            }
            if asked == LOOK_UPS_MAX {
                return joined.runs;
            }
            asked += 1;
            let mut found = whom.look_up(Extent::new(at, left), LOOK_UP_RUNS).await;
            found.retain(|run| run.count.0 > 0);
            if found.is_empty() {
                found.push(Run { count: left, hole: false });
            }
            if let Some(place) = place {
                heard.swap_remove(place);
            }
            heard.push(Heard { whom: Rc::clone(&whom), start: at, runs: found });
        }
        if joined.is_full() {
            break;
        }
    }
    joined.runs
}

/// Runs of which neighbours in one state become one.
struct Joined {
    runs: Vec<Run>,
    most: usize,
    full: bool,
}

impl Joined {
    fn new(most: usize) -> Self {
        Self { runs: Vec::new(), most: most.max(1), full: false }
    }

    /// Takes in what comes next; nothing any more once a run would be one too many.
    fn push(&mut self, run: Run) {
        let room = self.runs.len() < self.most;
        match self.runs.last_mut() {
            _ if run.count.0 == 0 || self.full => {}
            Some(last) if last.hole == run.hole => last.count = last.count + run.count,
            _ if room => self.runs.push(run),
            _ => self.full = true,
        }
    }

    fn is_full(&self) -> bool {
        self.full
    }
}

/// Cuts holes to whole blocks of `block` sectors; what is left of them is data. The runs begin on a
/// block and cover at most `all` sectors; where they end inside of a block, that is left out, unless
/// it is the first.
fn in_blocks(runs: Vec<Run>, block: u64, all: u64) -> Vec<Run> {
    let whole = |at: u64| if at == all { all } else { at - at % block };
    let mut joined = Joined::new(usize::MAX);
    let (mut at, mut told) = (0, 0);
    for run in runs {
        let end = at + run.count.0;
        let first = at.next_multiple_of(block);
        if run.hole && first < whole(end) {
            joined.push(Run { count: SectorCount(first - told), hole: false });
            joined.push(Run { count: SectorCount(whole(end) - first), hole: true });
            told = whole(end);
        }
        at = end;
    }
    let end = whole(at).max(block.min(all));
    joined.push(Run { count: SectorCount(end - told), hole: false });
    joined.runs
}

#[cfg(test)]
mod tests;
