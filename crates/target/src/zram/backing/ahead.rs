//! Reading ahead: what a reader who goes on will ask for next comes with what he asks for now.
//!
//! ```text
//!   reads       3  4  5  6  7  8 …
//!   requests    3  4‥12     13‥29 …       the window doubles as long as he goes on
//! ```
//!
//! Invariants:
//! - I1: what is kept is what the device holds: blocks are forgotten when they are taken to be written.
//! - I2: it is checked like everything that comes back, when it is asked for.
//! - I3: at most [`KEPT_MAX`] bytes are kept.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_reactor::Buffer;

use super::super::memory::PAGE;
use super::blocks::{Run, Spot};

/// Bytes that are kept at most.
const KEPT_MAX: usize = 1 << 20;
/// Pages that the first window has.
const WINDOW_MIN: u64 = 8;
/// Pages that a window has at most.
const WINDOW_MAX: u64 = 64;

/// Blocks that were read and not asked for yet.
struct Kept {
    run: Run,
    buffer: Buffer,
}

/// Who reads where, and what was read ahead for him.
#[derive(Default)]
pub(super) struct Ahead {
    kept: VecDeque<Kept>,
    /// The page behind the last one that was read.
    next: u64,
    window: u64,
}

impl Ahead {
    /// These pages are read; tells how many behind them are worth reading too.
    pub(super) fn follow(&mut self, pages: &Range<u64>) -> u64 {
        let goes_on = pages.start == self.next;
        let stays = pages.start + 1 == self.next;
        self.window = match self.window {
            window if goes_on => (window * 2).clamp(WINDOW_MIN, WINDOW_MAX),
            window if stays => window,
            _ => 0,
        };
        self.next = pages.end;
        self.window
    }

    /// What so many bytes from `spot` on are, where that is kept.
    pub(super) fn find(&mut self, spot: Spot, bytes: usize) -> Option<&[u8]> {
        let (first, last) = spot.blocks(bytes).into_inner();
        let holds = |kept: &&mut Kept| first >= kept.run.start && last < kept.run.start + kept.run.count;
        let kept = self.kept.iter_mut().find(holds)?;
        let from = spot.bytes_from(kept.run.start);
        kept.buffer.bytes_mut().get(from..from + bytes)
    }

    /// Keeps what was read of `run`; what was kept longest goes.
    pub(super) fn keep(&mut self, run: Run, buffer: Buffer) {
        self.forget(run);
        self.kept.push_back(Kept { run, buffer });
        while self.bytes() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// Forgets these blocks, which are about to hold something else (I1).
    pub(super) fn forget(&mut self, run: Run) {
        let apart = |other: Run| other.start + other.count <= run.start || run.start + run.count <= other.start;
        self.kept.retain(|kept| apart(kept.run));
    }

    /// Memory taken, bytes.
    pub(super) fn bytes(&self) -> usize {
        let blocks = self.kept.iter().map(|kept| kept.run.count).sum::<u64>();
        usize::try_from(blocks).expect("little is kept (I3)") * PAGE
    }
}

#[cfg(test)]
mod tests {
    use forebay_reactor::BufferPool;

    use super::*;

    #[test]
    fn the_window_doubles_while_a_reader_goes_on_and_closes_when_he_jumps() {
        let mut ahead = Ahead::default();
        let windows: Vec<u64> =
            [7..8, 8..9, 9..12, 11..12, 12..13, 13..14, 14..15].iter().map(|pages| ahead.follow(pages)).collect();
        assert_eq!(windows, [0, 8, 16, 16, 32, 64, 64]);
        assert_eq!((ahead.follow(&(40..41)), ahead.follow(&(41..42)), ahead.follow(&(5..6))), (0, 8, 0));
    }

    #[test]
    fn what_is_kept_is_found_until_its_blocks_are_taken_or_newer_ones_push_it_out() {
        let pool = BufferPool::default();
        let mut ahead = Ahead::default();
        let keep = |ahead: &mut Ahead, start| {
            let mut buffer = pool.take(64 * PAGE);
            buffer.bytes_mut().fill(u8::try_from(start / 64).unwrap());
            ahead.keep(Run { start, count: 64 }, buffer);
        };
        (0..4).for_each(|number| keep(&mut ahead, number * 64));
        assert_eq!(ahead.bytes(), 1 << 20);
        assert_eq!(ahead.find(Spot::behind(127, 16), 4080), Some(&[1; 4080][..]));
        assert_eq!(ahead.find(Spot::behind(127, 32), 4080), None, "half of it is in other blocks");
        keep(&mut ahead, 256);
        assert_eq!(ahead.find(Spot::behind(0, 0), 9), None);
        assert_eq!(ahead.bytes(), 1 << 20);
        ahead.forget(Run { start: 127, count: 1 });
        assert_eq!(ahead.find(Spot::behind(64, 0), 9), None);
        assert_eq!(ahead.bytes(), 3 << 18);
        assert!(ahead.find(Spot::behind(128, 0), 9).is_some());
    }
}
