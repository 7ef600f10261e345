//! Copies of chunks from the origin into stores: each sector is read once, however many want it.
//!
//! ```text
//!   small chunks    ├───┼───┼───┼───┤        runs of chunks that adjoin on both sides are one run
//!   large chunks  ├───────────────────┤
//!   cut into      ├─┼───────────────┼─┤      each cut is read once and written to whoever covers it
//! ```
//!
//! A large copy is durable when it is over, so that its commit waits for no flush in front of its own. Small ones
//! merge with others, which that would keep them from, and are durable by a flush for all. What such a write says is
//! believed with the flush of its commit, which waits for those under way.
//!
//! Units: chunks of each store in [`Run`], sectors in [`Cut`].

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use forebay_block::{Sector, SectorCount, Target};

use super::super::Snapshot;
use super::super::disk::Exception;
use crate::copy::piece::MERGE_BYTES_MAX;
use crate::copy::{Engine, How, Leg};

/// Chunks that adjoin each other on the origin and in the store that is to get them.
pub(in super::super) struct Run {
    pub(in super::super) snapshot: Rc<Snapshot>,
    /// First chunk of the origin.
    pub(in super::super) old: u64,
    /// Its place in the store.
    pub(in super::super) new: u64,
    /// Chunks; at least 1.
    pub(in super::super) count: u64,
}

impl Run {
    /// Sectors of the origin, of which there are `end`.
    fn sectors(&self, end: u64) -> (u64, u64) {
        let chunk = self.snapshot.chunk();
        (self.old * chunk, ((self.old + self.count) * chunk).min(end))
    }

    pub(in super::super) fn exceptions(&self) -> impl Iterator<Item = Exception> + use<> {
        let (old, new) = (self.old, self.new);
        (0..self.count).map(move |at| Exception { old: old + at, new: new + at })
    }
}

/// Sectors of the origin that go to the same runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cut {
    start: u64,
    end: u64,
    /// Numbers of the runs.
    runs: Vec<usize>,
}

/// Cuts `ranges`, which may overlap, into pieces that belong to the same ones throughout.
fn cut(ranges: &[(u64, u64)]) -> Vec<Cut> {
    let mut edges: Vec<u64> = ranges.iter().flat_map(|&(start, end)| [start, end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let piece = |pair: &[u64]| {
        let covers = |&(start, end): &(u64, u64)| start <= pair[0] && pair[1] <= end;
        let runs = (0..ranges.len()).filter(|&run| covers(&ranges[run])).collect();
        Cut { start: pair[0], end: pair[1], runs }
    };
    edges.windows(2).map(piece).filter(|cut| !cut.runs.is_empty()).collect()
}

/// Copies `runs` and tells each snapshot what became of its own: durable soon, or lost.
pub(in super::super) async fn copy(engine: &Engine, origin: &Rc<dyn Target>, runs: &[Run]) {
    let end = origin.sectors().0;
    let ranges: Vec<_> = runs.iter().map(|run| run.sectors(end)).collect();
    let cuts = cut(&ranges);
    let durable = |cut: &Cut| {
        let kept = cut.runs.iter().all(|&number| runs[number].snapshot.outlives());
        kept && (cut.end - cut.start) * 512 >= u64::from(MERGE_BYTES_MAX)
    };
    let copy_one = |cut: &Cut| {
        let from = Leg::new(Rc::clone(origin), Sector(cut.start));
        let leg = |&number: &usize| {
            let run: &Run = &runs[number];
            let place = run.new * run.snapshot.chunk() + (cut.start - ranges[number].0);
            Leg::new(Rc::clone(run.snapshot.cow()), Sector(place))
        };
        let to: Vec<Leg> = cut.runs.iter().map(leg).collect();
        let count = SectorCount(cut.end - cut.start);
        let how = How { keep_going: true, durable: durable(cut), ..How::default() };
        async move { engine.copy(&from, &to, count, &how).await }
    };
    let outcomes = all(cuts.iter().map(copy_one)).await;
    let (mut lost, mut flushed) = (vec![false; runs.len()], vec![true; runs.len()]);
    for (cut, outcome) in cuts.iter().zip(&outcomes) {
        for (leg, &number) in cut.runs.iter().enumerate() {
            lost[number] |= outcome.cancelled || !outcome.unread.is_empty() || outcome.leg(leg).is_some();
            flushed[number] &= durable(cut);
        }
    }
    for ((run, lost), flushed) in runs.iter().zip(lost).zip(flushed) {
        if lost {
            run.snapshot.invalidate("a chunk could not be copied into its store");
        } else {
            run.snapshot.copied(run.exceptions(), flushed);
        }
    }
}

/// Waits for several things side by side; what became of them, in their order.
pub(in super::super) async fn all<F: Future>(things: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut under_way: Vec<Result<Pin<Box<F>>, F::Output>> = things.map(|thing| Ok(Box::pin(thing))).collect();
    poll_fn(|cx| {
        let mut left = 0;
        for place in &mut under_way {
            let Ok(thing) = place else { continue };
            match thing.as_mut().poll(cx) {
                Poll::Ready(output) => *place = Err(output),
                Poll::Pending => left += 1,
            }
        }
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    under_way.into_iter().filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_want_is_cut_once() {
        let cuts = cut(&[(8, 24), (0, 64), (24, 32)]);
        let plain: Vec<_> = cuts.iter().map(|cut| (cut.start, cut.end, cut.runs.as_slice())).collect();
        let expected: [(u64, u64, &[usize]); 4] = [(0, 8, &[1]), (8, 24, &[0, 1]), (24, 32, &[1, 2]), (32, 64, &[1])];
        assert_eq!(plain, expected);
        assert_eq!(cut(&[(0, 8), (16, 24)]).len(), 2);
    }
}
