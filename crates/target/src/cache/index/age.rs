//! The order in which blocks came into the cache, with coarse times: for `order fifo` and `max_age`.
//!
//! Items are runs of origin blocks, 8 bytes each, oldest first. An item may have left the cache or
//! have been replaced since; whoever takes it looks it up. Times are kept for groups of items, so
//! an age is exact to the grain that was chosen.

use std::collections::VecDeque;
use std::time::Duration;

use super::OriginBlock;

const COUNT_BITS: u32 = 16;
const COUNT_MAX: u32 = 1 << COUNT_BITS;

/// Runs of blocks by age.
pub struct AgeQueue {
    items: VecDeque<u64>,
    /// Index of the first item, counted from the first one ever.
    first: u64,
    /// From which item on a time holds.
    marks: VecDeque<(u64, Duration)>,
    grain: Duration,
}

impl AgeQueue {
    /// An empty queue whose times are exact to `grain`.
    #[must_use]
    pub fn new(grain: Duration) -> Self {
        Self { items: VecDeque::new(), first: 0, marks: VecDeque::new(), grain }
    }

    /// Appends a run that came in at `now`.
    pub fn push(&mut self, now: Duration, origin: OriginBlock, count: u32) {
        if self.marks.back().is_none_or(|&(_, time)| now >= time.saturating_add(self.grain)) {
            self.marks.push_back((self.first + self.items.len() as u64, now));
        }
        let (mut origin, mut left) = (origin.0, count);
        while left > 0 {
            let part = left.min(COUNT_MAX);
            self.items.push_back(origin << COUNT_BITS | u64::from(part - 1));
            origin += u64::from(part);
            left -= part;
        }
    }

    /// The oldest run and when it came in.
    #[must_use]
    pub fn front(&self) -> Option<(OriginBlock, u32, Duration)> {
        let item = *self.items.front()?;
        let time = self.marks.front().map_or(Duration::ZERO, |&(_, time)| time);
        Some((OriginBlock(item >> COUNT_BITS), count_of(item), time))
    }

    /// Takes the oldest run away.
    pub fn pop(&mut self) {
        if self.items.pop_front().is_some() {
            self.first += 1;
            while self.marks.get(1).is_some_and(|&(item, _)| item <= self.first) {
                self.marks.pop_front();
            }
        }
        if self.items.is_empty() {
            self.marks.clear();
        }
    }

    /// Puts a run back in front, as old as the oldest.
    pub fn push_front(&mut self, origin: OriginBlock, count: u32, now: Duration) {
        if self.first == 0 || self.items.is_empty() {
            return self.push(now, origin, count);
        }
        let part = count.min(COUNT_MAX);
        self.items.push_front(origin.0 << COUNT_BITS | u64::from(part - 1));
        self.first -= 1;
        if let Some(mark) = self.marks.front_mut() {
            mark.0 = mark.0.min(self.first);
        }
    }

    /// Number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Starts anew with `runs`, all as old as the oldest was.
    pub fn rebuild(&mut self, runs: impl Iterator<Item = (OriginBlock, u32)>) {
        let oldest = self.marks.front().map_or(Duration::ZERO, |&(_, time)| time);
        self.items.clear();
        self.marks.clear();
        for (origin, count) in runs {
            self.push(oldest, origin, count);
        }
        self.items.shrink_to_fit();
    }

    /// Bytes allocated.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.items.capacity() * size_of::<u64>() + self.marks.capacity() * size_of::<(u64, Duration)>()
    }
}

fn count_of(item: u64) -> u32 {
    u32::try_from(item % u64::from(COUNT_MAX)).expect("below 2^16") + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn runs_leave_in_the_order_they_came_with_their_times() {
        let mut queue = AgeQueue::new(SECOND);
        queue.push(SECOND, OriginBlock(7), 3);
        queue.push(SECOND * 5, OriginBlock(1), 70_000);
        assert_eq!(queue.front(), Some((OriginBlock(7), 3, SECOND)));
        queue.pop();
        assert_eq!(queue.front(), Some((OriginBlock(1), 65_536, SECOND * 5)));
        queue.pop();
        assert_eq!(queue.front(), Some((OriginBlock(65_537), 4464, SECOND * 5)));
        queue.push_front(OriginBlock(1), 2, SECOND * 9);
        assert_eq!(queue.front(), Some((OriginBlock(1), 2, SECOND * 5)));
        queue.pop();
        queue.pop();
        assert!(queue.is_empty() && queue.front().is_none());
    }

    #[test]
    fn a_queue_made_anew_is_as_old_as_its_oldest() {
        let mut queue = AgeQueue::new(SECOND);
        for second in 1..6 {
            queue.push(SECOND * second, OriginBlock(u64::from(second)), 1);
        }
        queue.pop();
        queue.rebuild([(OriginBlock(9), 2), (OriginBlock(3), 1)].into_iter());
        assert_eq!((queue.len(), queue.front()), (2, Some((OriginBlock(9), 2, SECOND * 2))));
    }
}
