//! Where a server has holes, as its block status tells.
//!
//! 1. Bytes are a hole where the server says both that nothing is allocated and that they read as zeroes;
//!    whole sectors of them are told. Everything else, and what the server does not tell, is data.
//! 2. What a server tells beyond its export, or without end, is cut.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use forebay_block::allocation::Found;
use forebay_block::{Extent, LookUp, Run, SECTOR_BYTES, Sector, SectorCount};
use forebay_nbd::StatusExtent;

use super::remote::Remote;

/// Longest range of one question, bytes.
const ASK_BYTES_MAX: u64 = 1 << 30;

/// Asks a server for its holes.
pub(super) struct Status {
    remote: Rc<Remote>,
}

impl Status {
    pub(super) fn new(remote: &Rc<Remote>) -> Self {
        Self { remote: Rc::clone(remote) }
    }
}

impl LookUp for Status {
    fn look_up(&self, extent: Extent, most: usize) -> Found {
        let block = u64::from(self.remote.offer.minimum_bytes);
        let all = self.remote.offer.size_bytes;
        let start = extent.start.to_bytes();
        let from = start - start % block;
        let to = extent.end().to_bytes().min(from + ASK_BYTES_MAX).next_multiple_of(block).min(all - all % block);
        let Some(bytes) = to.checked_sub(from).filter(|bytes| *bytes > 0) else { return Box::pin(async { Vec::new() }) };
        let answer = self.remote.ask_status(from, bytes);
        Box::pin(async move {
            let extents = poll_fn(|cx| {
                if let Some(extents) = answer.extents.borrow_mut().take() {
                    return Poll::Ready(extents);
                }
                answer.waker.set(Some(cx.waker().clone()));
                Poll::Pending
            })
            .await;
            runs(from, &extents, extent.start, Sector(all / u64::from(SECTOR_BYTES)), most)
        })
    }
}

/// The runs that `extents`, which begin at byte `from`, tell from sector `start` on, none behind `end`.
fn runs(from: u64, extents: &[StatusExtent], start: Sector, end: Sector, most: usize) -> Vec<Run> {
    let sector_bytes = u64::from(SECTOR_BYTES);
    let mut runs = Vec::new();
    let mut told = start;
    let mut tell = |until: Sector, hole: bool, told: &mut Sector| {
        if let Some(count) = until.since(*told).filter(|count| *count > SectorCount(0)) {
            runs.push(Run { count, hole });
            *told = until;
        }
    };
    let mut at = from;
    for extent in extents {
        let next = at.saturating_add(extent.length);
        if extent.state == StatusExtent::HOLE | StatusExtent::ZERO {
            let first = Sector(at.div_ceil(sector_bytes)).max(told);
            let last = Sector(next / sector_bytes).min(end);
            if last > first {
                tell(first, false, &mut told);
                tell(last, true, &mut told);
            }
        }
        at = next;
        if Sector(at / sector_bytes) >= end {
            break;
        }
    }
    tell(Sector(at / sector_bytes).min(end), false, &mut told);
    runs.truncate(most);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(length: u64, state: u32) -> StatusExtent {
        StatusExtent { length, state }
    }

    fn told(from: u64, extents: &[StatusExtent], start: u64, end: u64) -> Vec<(u64, bool)> {
        runs(from, extents, Sector(start), Sector(end), 64).into_iter().map(|run| (run.count.0, run.hole)).collect()
    }

    #[test]
    fn whole_sectors_of_a_hole_are_told() {
        assert_eq!(told(0, &[extent(700, 0), extent(1400, 3), extent(1000, 0)], 0, 100), [(2, false), (2, true), (2, false)]);
        assert_eq!(told(0, &[extent(4096, 3)], 0, 100), [(8, true)]);
        assert_eq!(told(0, &[extent(4096, 3)], 2, 100), [(6, true)]);
    }

    #[test]
    fn what_only_reads_as_zeroes_or_is_only_not_allocated_is_data() {
        assert_eq!(told(0, &[extent(512, 1), extent(512, 2), extent(512, 0)], 0, 8), [(3, false)]);
    }

    #[test]
    fn what_is_told_beyond_the_end_is_cut() {
        assert_eq!(told(0, &[extent(u64::MAX, 3), extent(u64::MAX, 0)], 4, 10), [(6, true)]);
        assert_eq!(told(1 << 62, &[extent(u64::MAX, 0)], 1 << 53, 1 << 54), [(1 << 53, false)]);
        assert_eq!(told(0, &[], 4, 10), []);
    }
}
