//! Rules by which pages are written back without a command.
//!
//! ```text
//!   idle_after=600                  pages that nobody asked for in 10 minutes
//!   spill_at=80                     memory in use passes 80 % of the limit: the largest pages, down to 70 %
//!   spill_rate=64M spill_daily=10G  and never more than that in a second, and in a day
//! ```
//!
//! Invariants:
//! - I1: what was written is never more than the rates allow for the time that has passed; a second's
//!   worth can be saved up, no more.
//! - I2: a disk that holds nothing in memory sets no timer.
//! - I3: the writeback limit of the disk holds for the rules as for commands.
//! - I4: where `spill_at` is given, changes that find memory full wait in line (`room.rs`); a pass of the rules that
//!   let nothing go, for more than a rate or a command in its way, sends them off with an error.
//!
//! Times are those of the reactor's clock; a day begins when the disk does.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::super::Zram;
use super::super::memory::PAGE;
use super::WritebackError;
use super::select::{Mode, Selection};
use crate::event::Event;
use crate::lock::{Lock, LockRange, RangeLocks};

/// Percent of the memory limit below `spill_at` at which a spill ends.
const SPILL_DEPTH: u64 = 10;
/// Time between two looks where a rate holds pages back, or nothing could be written.
const PAUSE: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_hours(24);

/// The rules of a disk; none where all are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Seconds after which a page is written back that nobody asked for.
    pub idle_after_s: Option<u32>,
    /// Percent of the memory limit at which pages are written back.
    pub spill_percent: Option<u32>,
    /// Most bytes written in a second.
    pub rate_bytes: Option<u64>,
    /// Most bytes written in a day.
    pub daily_bytes: Option<u64>,
}

impl Rules {
    /// Whether there is something to do.
    #[must_use]
    pub fn are_any(&self) -> bool {
        self.idle_after_s.is_some() || self.spill_percent.is_some()
    }
}

/// What may still be written.
#[derive(Debug)]
struct Allowance {
    rate_pages: Option<u64>,
    daily_pages: Option<u64>,
    /// Pages saved up, in billionths, and since when.
    saved: u128,
    saved_at: Duration,
    day: u128,
    spent_today: u64,
}

impl Allowance {
    fn new(rules: &Rules, now: Duration) -> Self {
        let pages = |bytes: u64| bytes.div_ceil(PAGE as u64);
        let rate_pages = rules.rate_bytes.map(pages);
        Self {
            rate_pages,
            daily_pages: rules.daily_bytes.map(pages),
            saved: u128::from(rate_pages.unwrap_or(0)) * 1_000_000_000,
            saved_at: now,
            day: now.as_nanos() / DAY.as_nanos(),
            spent_today: 0,
        }
    }

    /// Pages that may be written today.
    fn today(&mut self, now: Duration) -> u64 {
        let day = now.as_nanos() / DAY.as_nanos();
        if day != self.day {
            (self.day, self.spent_today) = (day, 0);
        }
        self.daily_pages.map_or(u64::MAX, |daily| daily.saturating_sub(self.spent_today))
    }

    /// Pages that may be written now.
    fn pages(&mut self, now: Duration) -> u64 {
        let daily = self.today(now);
        let Some(rate) = self.rate_pages else { return daily };
        let earned = now.saturating_sub(self.saved_at).as_nanos() * u128::from(rate);
        self.saved = (self.saved + earned).min(u128::from(rate) * 1_000_000_000);
        self.saved_at = now;
        daily.min(u64::try_from(self.saved / 1_000_000_000).unwrap_or(u64::MAX))
    }

    fn spend(&mut self, pages: u64) {
        self.spent_today += pages;
        self.saved = self.saved.saturating_sub(u128::from(pages) * 1_000_000_000);
    }
}

/// What the rules wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// A request that brings something into memory.
    Request,
    /// The time at which pages may be old enough.
    Age(Duration),
    /// A rate, a limit or a device that takes nothing now.
    HeldBack,
}

/// What the rules wanted to write, and did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Nothing,
    /// A rate held it back, or a command that runs.
    ForNow,
    /// The day's amount is spent, or the disk's limit; the device is full, or failed.
    Longer,
}

/// The rules at work.
pub(in super::super) struct Policy {
    rules: Rules,
    allowance: RefCell<Allowance>,
    rest: Cell<Rest>,
    /// Changes that found memory full: one has its turn.
    line: RangeLocks,
    /// Passes that looked for room and are over.
    passes: Cell<u64>,
    /// The last of them that let nothing go, and would hardly let go more were it repeated; 0 for none.
    stuck: Cell<u64>,
    /// There may be more room than before, or none will be made.
    pub(super) room: Event,
    /// Something came into memory, or the disk closes.
    pub(in super::super) work: Rc<Event>,
}

impl Policy {
    pub(in super::super) fn new(rules: Rules, now: Duration) -> Self {
        let allowance = RefCell::new(Allowance::new(&rules, now));
        Self {
            rules,
            allowance,
            rest: Cell::new(Rest::Request),
            line: RangeLocks::new(),
            passes: Cell::new(0),
            stuck: Cell::new(0),
            room: Event::default(),
            work: Rc::default(),
        }
    }

    /// Whether a change that finds memory full may wait.
    pub(super) fn makes_room(&self) -> bool {
        self.rules.spill_percent.is_some()
    }

    /// Whether changes wait.
    pub(super) fn has_line(&self) -> bool {
        self.line.in_use() != (0, 0)
    }

    /// The turn of a change comes behind those that stand in line already.
    pub(super) fn stand_in_line(&self) -> Lock {
        self.line.lock(LockRange::new(0, 1))
    }

    /// Whoever has its turn found no room: the rules look at once, or are about to. Returns the number of passes until
    /// now; `None` when there is no hope, since a pass made no room behind the one that was `asked` for last.
    pub(super) fn ask_for_room(&self, asked: Option<u64>) -> Option<u64> {
        let (resting, passes) = (self.rest.get() == Rest::HeldBack, self.passes.get());
        let hopeless = asked.map_or(resting && passes > 0 && self.stuck.get() == passes, |asked| self.stuck.get() > asked);
        if hopeless {
            return None;
        }
        if !resting {
            self.work.raise();
        }
        Some(passes)
    }

    /// Pages of memory in use at which a spill begins.
    pub(super) fn high(&self, limit: Option<u64>) -> Option<u64> {
        let (percent, limit) = (self.rules.spill_percent?, limit?);
        Some(limit.saturating_mul(percent.into()) / 100)
    }

    /// Whether so many pages of memory in use are a reason to look.
    pub(in super::super) fn concerns(&self, used: u64, limit: Option<u64>) -> bool {
        let over = || self.high(limit).is_some_and(|high| used > high);
        match self.rest.get() {
            Rest::Request => self.rules.idle_after_s.is_some() || over(),
            Rest::Age(_) => over(),
            Rest::HeldBack => false,
        }
    }
}

/// Follows the rules as long as the disk is there.
pub(in super::super) async fn follow(disk: Weak<Zram>) {
    loop {
        let Some(zram) = disk.upgrade().filter(|zram| !zram.closed.get()) else { return };
        let Some(policy) = &zram.policy else { return };
        let (work, seen) = (Rc::clone(&policy.work), policy.work.count());
        let rest = zram.apply(policy).await;
        policy.rest.set(rest);
        let sleep = match rest {
            Rest::Request => None,
            Rest::Age(wait) => Some(zram.reactor.sleep(wait)),
            Rest::HeldBack => Some(zram.reactor.sleep(PAUSE)),
        };
        let over = zram.closed.get();
        // The disk is let go while nothing is done.
        drop(zram);
        if !over {
            work.after(seen, sleep).await;
        }
    }
}

impl Zram {
    /// Writes back what the rules say now.
    async fn apply(&self, policy: &Policy) -> Rest {
        let mut held = self.spill(policy).await;
        if let Some(age_s) = policy.rules.idle_after_s {
            if let Some(before_s) = self.now_s().checked_sub(age_s) {
                self.pages.borrow_mut().mark_idle(Some(before_s));
                held = held.max(self.spend(policy, Mode::Idle, u64::MAX).await);
            }
            if held == Held::Nothing && self.pages.borrow().frames_used() > 0 {
                return Rest::Age(Duration::from_secs(u64::from(age_s).div_ceil(4).clamp(1, 60)));
            }
        }
        if held == Held::Nothing { Rest::Request } else { Rest::HeldBack }
    }

    /// Writes the largest pages back where memory in use is over its mark, or a change waits for room.
    async fn spill(&self, policy: &Policy) -> Held {
        let limit = self.pages.borrow().frames_limit;
        let mut used = self.pages.borrow().frames_used();
        let waited_for = policy.has_line();
        let Some(high) = policy.high(limit).filter(|high| used > *high || waited_for) else { return Held::Nothing };
        let low = high.saturating_sub(limit.unwrap_or(0) * SPILL_DEPTH / 100);
        let (mut held, first) = (Held::Nothing, self.status().backing_writes);
        let mut wanted = used.saturating_sub(low).max(waited_for.into());
        // A compressed page that leaves frees less than a page of memory.
        while wanted > 0 && held == Held::Nothing && !self.closed.get() {
            let before = self.status().backing_writes;
            held = self.spend(policy, Mode::Any, wanted).await;
            used = self.pages.borrow().frames_used();
            wanted = used.saturating_sub(low);
            if self.status().backing_writes == before {
                break;
            }
        }
        policy.passes.set(policy.passes.get() + 1);
        if self.status().backing_writes == first && held != Held::ForNow {
            policy.stuck.set(policy.passes.get());
        }
        self.tell_of_room();
        held
    }

    /// Writes up to `most` pages back, and tells why not all.
    async fn spend(&self, policy: &Policy, mode: Mode, most: u64) -> Held {
        let now = self.reactor.now();
        let allowed = policy.allowance.borrow_mut().pages(now);
        let short = if policy.allowance.borrow_mut().today(now) == 0 { Held::Longer } else { Held::ForNow };
        if allowed == 0 {
            return short;
        }
        let selection = Selection { mode, ranges: vec![0..=self.page_count() - 1] };
        let budget = most.min(self.page_count()).min(allowed);
        let before = self.status().backing_writes;
        let Some(backing) = &self.backing else { return Held::Nothing };
        let done = self.write_selected(backing, selection, Some(budget)).await;
        policy.allowance.borrow_mut().spend(self.status().backing_writes - before);
        match done {
            Ok(()) if budget == most.min(self.page_count()) => Held::Nothing,
            Ok(()) => short,
            Err(WritebackError::Busy) => Held::ForNow,
            Err(_) => Held::Longer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_saves_up_one_second_and_a_day_begins_anew() {
        let rules = Rules { rate_bytes: Some(10 * 4096), daily_bytes: Some(100 * 4096), ..Rules::default() };
        let mut allowance = Allowance::new(&rules, SECOND);
        assert_eq!(allowance.pages(SECOND), 10);
        allowance.spend(10);
        assert_eq!(allowance.pages(SECOND), 0);
        assert_eq!(allowance.pages(SECOND + SECOND / 2), 5);
        assert_eq!(allowance.pages(SECOND * 100), 10, "no more than a second's worth is saved up");
        for second in 200..209 {
            assert_eq!(allowance.pages(SECOND * second), 10);
            allowance.spend(10);
        }
        assert_eq!(allowance.pages(SECOND * 300), 0, "the day's pages are spent");
        assert_eq!(allowance.pages(DAY + SECOND), 10);
    }

    #[test]
    fn without_rates_everything_may_be_written() {
        let mut allowance = Allowance::new(&Rules::default(), Duration::ZERO);
        allowance.spend(1 << 40);
        assert_eq!(allowance.pages(Duration::ZERO), u64::MAX);
    }
}
