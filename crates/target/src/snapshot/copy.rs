//! Copies of chunks from the origin into stores: each sector is read once, however many want it.
//!
//! ```text
//!   small chunks    ├───┼───┼───┼───┤        runs of chunks that adjoin on both sides are one run
//!   large chunks  ├───────────────────┤
//!   cut into      ├─┼───────────────┼─┤      each cut is read once and written to whoever covers it
//! ```
//!
//! Units: chunks of each store in [`Run`], sectors in [`Cut`].

use std::rc::Rc;

use forebay_block::bio::Call;
use forebay_block::{Bio, Sector, Status, Target, call};
use forebay_reactor::{Buffer, BufferPool};

use super::Snapshot;
use super::disk::Exception;

/// Bytes that one caller copies at a time.
const BATCH_BYTES: u64 = 4 << 20;
/// Largest request, bytes.
const REQUEST_BYTES: u64 = 1 << 20;

/// Chunks that adjoin each other on the origin and in the store that is to get them.
pub(super) struct Run {
    pub(super) snapshot: Rc<Snapshot>,
    /// First chunk of the origin.
    pub(super) old: u64,
    /// Its place in the store.
    pub(super) new: u64,
    /// Chunks; at least 1.
    pub(super) count: u64,
}

impl Run {
    /// Sectors of the origin, of which there are `end`.
    fn sectors(&self, end: u64) -> (u64, u64) {
        let chunk = self.snapshot.chunk();
        (self.old * chunk, ((self.old + self.count) * chunk).min(end))
    }

    pub(super) fn exceptions(&self) -> impl Iterator<Item = Exception> + use<> {
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

/// Cuts `ranges`, which may overlap, into pieces that belong to the same ones throughout, each no
/// longer than `longest`.
fn cut(ranges: &[(u64, u64)], longest: u64) -> Vec<Cut> {
    let mut edges: Vec<u64> = ranges.iter().flat_map(|&(start, end)| [start, end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut cuts = Vec::new();
    for pair in edges.windows(2) {
        let covers = |&(start, end): &(u64, u64)| start <= pair[0] && pair[1] <= end;
        let runs: Vec<usize> = (0..ranges.len()).filter(|&run| covers(&ranges[run])).collect();
        let mut start = pair[0];
        while start < pair[1] && !runs.is_empty() {
            let end = pair[1].min(start + longest);
            cuts.push(Cut { start, end, runs: runs.clone() });
            start = end;
        }
    }
    cuts
}

/// Copies `runs` and tells each snapshot what became of its own: durable soon, or lost.
pub(super) async fn copy(origin: &dyn Target, pool: &BufferPool, runs: &[Run]) {
    let end = origin.sectors().0;
    let ranges: Vec<_> = runs.iter().map(|run| run.sectors(end)).collect();
    let mut results = vec![Status::Ok; runs.len()];
    let cuts = cut(&ranges, REQUEST_BYTES / 512);
    let mut left = cuts.as_slice();
    while !left.is_empty() {
        let mut bytes = 0;
        let batch = left.iter().take_while(|cut| {
            bytes += (cut.end - cut.start) * 512;
            bytes <= BATCH_BYTES
        });
        let (batch, rest) = left.split_at(batch.count().max(1));
        left = rest;
        copy_batch(origin, pool, runs, &ranges, batch, &mut results).await;
    }
    for (run, result) in runs.iter().zip(results) {
        if result.is_ok() {
            run.snapshot.copied(run.exceptions());
        } else {
            run.snapshot.invalidate("a chunk could not be copied into its store");
        }
    }
}

async fn copy_batch(
    origin: &dyn Target,
    pool: &BufferPool,
    runs: &[Run],
    ranges: &[(u64, u64)],
    cuts: &[Cut],
    results: &mut [Status],
) {
    let read = |cut: &Cut| -> (Call, Buffer) {
        let bytes = (cut.end - cut.start) * 512;
        let buffer = pool.take(usize::try_from(bytes).expect("a cut is at most 1 MiB"));
        let bytes = u32::try_from(bytes).expect("a cut is at most 1 MiB");
        (call(origin, Bio::read(Sector(cut.start), Rc::clone(buffer.segments()), 0, bytes)), buffer)
    };
    let reads: Vec<_> = cuts.iter().map(read).collect();
    let mut writes = Vec::new();
    for (cut, (read, buffer)) in cuts.iter().zip(reads) {
        let status = read.await.status();
        for &number in &cut.runs {
            if !status.is_ok() {
                results[number] = results[number].and(status);
                continue;
            }
            let run = &runs[number];
            let place = run.new * run.snapshot.chunk() + (cut.start - ranges[number].0);
            let bytes = u32::try_from((cut.end - cut.start) * 512).expect("a cut is at most 1 MiB");
            let bio = Bio::write(Sector(place), Rc::clone(buffer.segments()), 0, bytes);
            writes.push((number, call(&**run.snapshot.cow(), bio)));
        }
    }
    for (number, write) in writes {
        results[number] = results[number].and(write.await.status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_want_is_cut_once() {
        let cuts = cut(&[(8, 24), (0, 64), (24, 32)], 20);
        let plain: Vec<_> = cuts.iter().map(|cut| (cut.start, cut.end, cut.runs.as_slice())).collect();
        let expected: [(u64, u64, &[usize]); 5] =
            [(0, 8, &[1]), (8, 24, &[0, 1]), (24, 32, &[1, 2]), (32, 52, &[1]), (52, 64, &[1])];
        assert_eq!(plain, expected);
        assert_eq!(cut(&[(0, 8), (16, 24)], 100).len(), 2);
    }
}
