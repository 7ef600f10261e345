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
/// Runs beyond those that are needed: too few to trim for.
const FEW: usize = 512;

/// Runs of blocks by age.
pub struct AgeQueue {
    items: VecDeque<u64>,
    /// Index of the first item, counted from the first one ever.
    first: u64,
    /// From which item on a time holds.
    marks: VecDeque<(u64, Duration)>,
    grain: Duration,
    /// Runs that were left when it was trimmed last.
    trimmed: usize,
}

impl AgeQueue {
    /// An empty queue whose times are exact to `grain`.
    #[must_use]
    pub fn new(grain: Duration) -> Self {
        Self { items: VecDeque::new(), first: 0, marks: VecDeque::new(), grain, trimmed: 0 }
    }

    /// Appends a run that came in at `now`.
    pub fn push(&mut self, now: Duration, origin: OriginBlock, count: u32) {
        if self.marks.back().is_none_or(|&(_, time)| now >= time.saturating_add(self.grain)) {
            self.marks.push_back((self.first + self.items.len() as u64, now));
        }
        let (mut origin, mut left) = (origin.0, count);
        while left > 0 {
            let joined = self.join_last(origin, left);
            let part = if joined > 0 { joined } else { left.min(COUNT_MAX) };
            if joined == 0 {
                if self.items.len() == self.items.capacity() {
                    self.items.reserve_exact(self.items.len() / 16 + FEW);
                }
                self.items.push_back(origin << COUNT_BITS | u64::from(part - 1));
            }
            origin += u64::from(part);
            left -= part;
        }
    }

    /// Makes the last run longer, when it ends in front of `origin` and is of the same time; how many
    /// blocks it took.
    fn join_last(&mut self, origin: u64, count: u32) -> u32 {
        let last = self.first + self.items.len() as u64;
        if self.marks.back().is_some_and(|&(from, _)| from >= last) {
            return 0;
        }
        let Some(item) = self.items.back_mut() else { return 0 };
        if (*item >> COUNT_BITS) + u64::from(count_of(*item)) != origin {
            return 0;
        }
        let part = count.min(COUNT_MAX - count_of(*item));
        *item += u64::from(part);
        part
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

    /// Whether it has grown so much since it was trimmed that it should be again.
    #[must_use]
    pub fn is_overgrown(&self) -> bool {
        self.items.len() > self.trimmed + self.trimmed / 8 + FEW
    }

    /// Drops the runs that `keep` refuses, which is asked from the newest run to the oldest.
    pub fn trim(&mut self, mut keep: impl FnMut(OriginBlock, u32) -> bool) {
        let mut mark = self.marks.len();
        let mut to = self.items.len();
        for from in (0..self.items.len()).rev() {
            let item = self.items.get(from).copied().unwrap_or_default();
            if keep(OriginBlock(item >> COUNT_BITS), count_of(item)) {
                to -= 1;
                if let Some(place) = self.items.get_mut(to) {
                    *place = item;
                }
            }
            // The time of a group now holds from the first of it that was kept.
            while let Some(last) = mark.checked_sub(1).and_then(|at| self.marks.get_mut(at))
                && last.0 >= self.first + from as u64
            {
                last.0 = self.first + to as u64;
                mark -= 1;
            }
        }
        self.items.drain(..to);
        self.first += to as u64;
        while self.marks.get(1).is_some_and(|&(item, _)| item <= self.first) {
            self.marks.pop_front();
        }
        self.trimmed = self.items.len();
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
    fn trimming_asks_for_the_newest_first_and_keeps_the_times_of_the_others() {
        let mut queue = AgeQueue::new(SECOND);
        for second in 1..6 {
            queue.push(SECOND * second, OriginBlock(u64::from(second) * 10), 1);
            queue.push(SECOND * second, OriginBlock(7), 1);
        }
        queue.pop();
        let mut asked = Vec::new();
        queue.trim(|origin, _| {
            let keep = origin.0 != 30 && (origin.0 != 7 || !asked.contains(&7));
            asked.push(origin.0);
            keep
        });
        assert_eq!(asked, [7, 50, 7, 40, 7, 30, 7, 20, 7]);
        for (origin, second) in [(20, 2), (40, 4), (50, 5), (7, 5)] {
            assert_eq!(queue.front(), Some((OriginBlock(origin), 1, SECOND * second)));
            queue.pop();
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn runs_that_follow_each_other_at_one_time_are_one() {
        let mut queue = AgeQueue::new(SECOND);
        for block in 0..100_000 {
            queue.push(SECOND, OriginBlock(block), 1);
        }
        assert_eq!((queue.len(), queue.front()), (2, Some((OriginBlock(0), 65_536, SECOND))));
        queue.push(SECOND * 3, OriginBlock(100_000), 1);
        assert_eq!(queue.len(), 3, "another time");
    }

    #[test]
    fn a_queue_in_long_use_that_is_trimmed_stays_short() {
        let mut queue = AgeQueue::new(SECOND);
        let mut most = 0;
        for number in 0..100_000_u64 {
            queue.push(SECOND, OriginBlock(number * 7919 % 1000 * 2), 1);
            if queue.is_overgrown() {
                let mut seen = std::collections::BTreeSet::new();
                queue.trim(|origin, _| seen.insert(origin));
                assert_eq!(queue.len(), seen.len());
            }
            most = most.max(queue.len());
        }
        assert!(most < 2000, "{most}");
    }
}
