//! Which pages leave memory: pure, from the words of a command to a plan.
//!
//! ```text
//!   idle                 pages marked idle
//!   huge                 pages kept as they are
//!   huge_idle            both
//!   incompressible       pages that no codec made smaller
//!   page_index=N         that page; page_indexes=LO-HI those from LO to HI; several may be given
//! ```
//!
//! A budget that does not reach for all takes what frees the most memory for it: the largest objects
//! where each page costs a block, and packed those whose size class is the roomiest for their size.
//! What is taken is written in the order of the pages, so that neighbours stay neighbours.
//!
//! Source: `Documentation/admin-guide/blockdev/zram.rst`, Linux 6.12 and 6.16.

use std::ops::RangeInclusive;

use super::super::memory::PAGE;
use super::super::table::{Slot, Table, mark};

/// Which pages of those in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Mode {
    Idle,
    Huge,
    HugeIdle,
    Incompressible,
    /// Every one that is in memory.
    Any,
}

/// What a command selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Selection {
    pub(in super::super) mode: Mode,
    /// Pages, ascending, without overlap.
    pub(in super::super) ranges: Vec<RangeInclusive<u64>>,
}

impl Selection {
    /// Reads the words of a command for a disk of `pages` pages; `None` when they are none.
    pub(in super::super) fn parse(text: &str, pages: u64) -> Option<Self> {
        let mut mode = None;
        let mut ranges = Vec::new();
        for word in text.split_whitespace() {
            match word.split_once('=') {
                Some(("page_index", number)) => {
                    let number = index(number, pages)?;
                    ranges.push(number..=number);
                }
                Some(("page_indexes", both)) => {
                    let (low, high) = both.split_once('-')?;
                    let (low, high) = (index(low, pages)?, index(high, pages)?);
                    ranges.push((low <= high).then_some(low..=high)?);
                }
                Some(("type", name)) if mode.is_none() => mode = Some(named(name)?),
                None if mode.is_none() => mode = Some(named(word)?),
                _ => return None,
            }
        }
        match (mode, ranges.is_empty()) {
            (None, true) | (Some(_), false) => None,
            (Some(mode), true) => Some(Self { mode, ranges: (pages > 0).then(|| 0..=pages - 1).into_iter().collect() }),
            (None, false) => Some(Self { mode: Mode::Any, ranges: joined(ranges) }),
        }
    }

    /// Whether a page may leave.
    pub(in super::super) fn takes(&self, slot: Slot) -> bool {
        let idle = slot.has(mark::IDLE);
        let huge = slot.bytes() == PAGE;
        slot.in_memory()
            && !slot.has(mark::SELECTED)
            && match self.mode {
                Mode::Idle => idle,
                Mode::Huge => huge,
                Mode::HugeIdle => huge && idle,
                Mode::Incompressible => slot.has(mark::INCOMPRESSIBLE),
                Mode::Any => true,
            }
    }
}

fn named(name: &str) -> Option<Mode> {
    match name {
        "idle" => Some(Mode::Idle),
        "huge" => Some(Mode::Huge),
        "huge_idle" => Some(Mode::HugeIdle),
        "incompressible" => Some(Mode::Incompressible),
        _ => None,
    }
}

fn index(text: &str, pages: u64) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if plain { text.parse().ok()? } else { return None };
    (number < pages).then_some(number)
}

/// Ranges in order, those that meet made one.
fn joined(mut ranges: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    ranges.sort_by_key(|range| *range.start());
    let mut joined: Vec<RangeInclusive<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start() <= last.end() => *last = *last.start()..=*last.end().max(range.end()),
            _ => joined.push(range),
        }
    }
    joined
}

/// A walk over the pages of a selection, in order; it can stop anywhere and go on later.
#[derive(Clone, Debug)]
pub(in super::super) struct Walk {
    selection: Selection,
    range: usize,
    next: u64,
    /// How many objects of each size leave, where not all do.
    shares: Option<Vec<u64>>,
    /// A page that was to leave and did not fit.
    held: Option<u64>,
}

/// What the budget of a walk is worth.
pub(in super::super) struct Worth<'a> {
    /// Memory that an object of so many bytes takes.
    pub(in super::super) frees: &'a dyn Fn(usize) -> usize,
    /// Bytes that it takes of the budget.
    pub(in super::super) costs: &'a dyn Fn(usize) -> usize,
}

impl Walk {
    pub(in super::super) fn new(selection: Selection) -> Self {
        let next = selection.ranges.first().map_or(0, |range| *range.start());
        Self { selection, range: 0, next, shares: None, held: None }
    }

    /// Restricts the walk to what frees the most memory for a budget of so many bytes.
    pub(in super::super) fn limit(&mut self, table: &Table, budget: u64, worth: &Worth<'_>) {
        let mut counts = vec![0_u64; PAGE + 1];
        let mut scout = self.clone();
        while let Some(page) = scout.next(table) {
            counts[table.get(page).bytes()] += 1;
        }
        let mut sizes: Vec<usize> = (1..=PAGE).filter(|&bytes| counts[bytes] > 0).collect();
        // Thousandths of a byte for each byte; of equals the largest, which need the fewest reads.
        let rank = |&bytes: &usize| ((worth.frees)(bytes) * 1000 / (worth.costs)(bytes), bytes);
        sizes.sort_unstable_by_key(|bytes| std::cmp::Reverse(rank(bytes)));
        let (mut left, mut shares, mut all) = (budget, vec![0; PAGE + 1], true);
        for bytes in sizes {
            let cost = (worth.costs)(bytes) as u64;
            shares[bytes] = counts[bytes].min(left / cost);
            all &= shares[bytes] == counts[bytes];
            left -= shares[bytes] * cost;
        }
        self.shares = (!all).then_some(shares);
    }

    /// Whether pages were left out to keep within a budget.
    pub(in super::super) fn is_limited(&self) -> bool {
        self.shares.is_some()
    }

    /// A page that [`Walk::next`] gave waits for the next time.
    pub(in super::super) fn put_back(&mut self, page: u64) {
        self.held = Some(page);
    }

    /// The next page to leave.
    pub(in super::super) fn next(&mut self, table: &Table) -> Option<u64> {
        if let Some(page) = self.held.take().filter(|&page| self.selection.takes(table.get(page))) {
            return Some(page);
        }
        loop {
            let range = self.selection.ranges.get(self.range)?;
            let page = table.next_present(self.next).filter(|page| page <= range.end());
            let Some(page) = page else {
                self.range += 1;
                self.next = self.selection.ranges.get(self.range).map_or(0, |range| *range.start());
                continue;
            };
            self.next = page + 1;
            let slot = table.get(page);
            if self.selection.takes(slot) && self.has_share(slot.bytes()) {
                return Some(page);
            }
        }
    }

    /// Whether one more object of so many bytes leaves.
    fn has_share(&mut self, bytes: usize) -> bool {
        let Some(share) = self.shares.as_mut().and_then(|shares| shares.get_mut(bytes)) else { return true };
        let some = *share > 0;
        *share -= u64::from(some);
        some
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    fn table(sizes: &[usize]) -> Table {
        let mut table = Table::default();
        for (page, &bytes) in sizes.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            table.put(page as u64, Slot::object(0, bytes, 0));
        }
        table
    }

    fn pages(mut walk: Walk, table: &Table) -> Vec<u64> {
        std::iter::from_fn(|| walk.next(table)).collect()
    }

    fn parse(text: &str) -> Option<Selection> {
        Selection::parse(text, 100)
    }

    #[test]
    fn commands_are_read() {
        for (text, mode) in [
            ("idle", Mode::Idle),
            ("huge\n", Mode::Huge),
            ("type=huge_idle", Mode::HugeIdle),
            (" incompressible ", Mode::Incompressible),
        ] {
            assert_eq!(parse(text), Some(Selection { mode, ranges: vec![0..=99] }), "{text}");
        }
        let text = "page_index=7 page_indexes=20-30 page_indexes=25-40 page_index=0";
        assert_eq!(parse(text), Some(Selection { mode: Mode::Any, ranges: vec![0..=0, 7..=7, 20..=40] }));
        for text in [
            "",
            "all",
            "idle huge",
            "page_index=100",
            "page_index=-1",
            "page_indexes=5-4",
            "page_indexes=5",
            "type=",
            "idle page_index=1",
            "page_index=",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_budget_takes_the_largest_pages_in_the_order_of_the_disk() {
        let table = table(&[100, 4096, 0, 200, 300, 200, 200, 4096]);
        let any = Selection { mode: Mode::Any, ranges: vec![0..=99] };
        let limited = |budget: u64| {
            let mut walk = Walk::new(any.clone());
            walk.limit(&table, budget * 4096, &Worth { frees: &|bytes| bytes, costs: &|_| 4096 });
            (walk.is_limited(), pages(walk, &table))
        };
        assert_eq!(pages(Walk::new(any.clone()), &table), [0, 1, 3, 4, 5, 6, 7]);
        assert_eq!(limited(1), (true, vec![1]));
        assert_eq!(limited(3), (true, vec![1, 4, 7]));
        assert_eq!(limited(5), (true, vec![1, 3, 4, 5, 7]));
        assert_eq!((limited(0).1, limited(7).1.len(), limited(99)), (vec![], 7, (false, vec![0, 1, 3, 4, 5, 6, 7])));
    }

    #[test]
    fn a_budget_of_bytes_takes_what_frees_the_most_for_each() {
        let table = table(&[100, 200, 200, 300, 100]);
        let limited = |budget| {
            let mut walk = Walk::new(Selection { mode: Mode::Any, ranges: vec![0..=99] });
            let frees = |bytes| if bytes == 200 { 300 } else { bytes };
            walk.limit(&table, budget, &Worth { frees: &frees, costs: &|bytes| bytes });
            pages(walk, &table)
        };
        assert_eq!(limited(399), [0, 1], "what is left takes smaller ones");
        assert_eq!(limited(400), [1, 2]);
        assert_eq!(limited(700), [1, 2, 3]);
        assert_eq!(limited(900).len(), 5);
    }

    #[test]
    fn a_page_that_was_put_back_comes_next_unless_it_is_gone() {
        let mut table = table(&[10; 5]);
        let mut walk = Walk::new(Selection { mode: Mode::Any, ranges: vec![0..=99] });
        let first = walk.next(&table).unwrap();
        walk.put_back(first);
        assert_eq!((walk.next(&table), walk.next(&table)), (Some(0), Some(1)));
        walk.put_back(1);
        table.put(1, Slot::FREE);
        assert_eq!(walk.next(&table), Some(2));
    }

    #[test]
    fn only_ranges_are_walked_and_only_marked_pages_taken() {
        let mut table = table(&[10; 50]);
        for page in [5, 20, 21] {
            table.used_mut(page).set(mark::IDLE);
        }
        table.used_mut(21).set(mark::SELECTED);
        let parse = |text| Selection::parse(text, 50).unwrap();
        assert_eq!(pages(Walk::new(parse("idle")), &table), [5, 20]);
        assert_eq!(pages(Walk::new(parse("page_indexes=19-22 page_index=3")), &table), [3, 19, 20, 22]);
        assert_eq!(pages(Walk::new(parse("huge")), &table), []);
    }
}
