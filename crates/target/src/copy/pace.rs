//! When a slice may begin: a limit in bytes per second, and foreground I/O first.
//!
//! ```text
//!   slice ─▶ governor: is foreground I/O slower than it should be? ─▶ bucket: are there bytes left? ─▶ begin
//! ```
//!
//! Pure: the clock is told, and nothing sleeps here. Units: bytes, bytes per second, times on the
//! reactor's clock.
//!
//! Invariants:
//! - I1: over any time t the bucket lets at most `rate × t` bytes begin, plus what may come at once: one
//!   tenth of a second's worth, or one slice.
//! - I2: without foreground I/O the governor delays nothing: what was asked of it is that others come
//!   first, not that the copy is slow.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::time::Duration;

/// What may come at once after a pause.
const BURST: Duration = Duration::from_millis(100);
/// Foreground I/O that ended longer ago than this counts as over.
const QUIET_AFTER: Duration = Duration::from_millis(200);
/// The governor changes its mind at most this often.
const REVIEW_EVERY: Duration = Duration::from_millis(20);
/// Shortest and longest delay of a slice.
const DELAY_MIN: Duration = Duration::from_millis(1);
const DELAY_MAX: Duration = Duration::from_millis(256);

/// Bytes per second, as times at which slices may begin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// Bytes per second; `None` for no limit.
    rate: Option<NonZeroU64>,
    /// When all that was let through so far is paid for.
    paid: Duration,
}

impl Bucket {
    pub(crate) fn new(rate: Option<NonZeroU64>) -> Self {
        Self { rate, paid: Duration::ZERO }
    }

    /// When a slice of `bytes` may begin that asks at `now`; counts it.
    pub(crate) fn start(&mut self, bytes: u64, now: Duration) -> Duration {
        let Some(rate) = self.rate else { return now };
        let start = self.paid.max(now.saturating_sub(BURST));
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        self.paid = start.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        start.max(now)
    }
}

/// Delays slices while foreground I/O takes longer than it should.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Governor {
    /// What foreground I/O may take; `None` for no rule.
    limit: Option<Duration>,
    /// Mean time of recent foreground I/O.
    mean: Duration,
    heard: Option<Duration>,
    reviewed: Duration,
    delay: Duration,
}

impl Governor {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Foreground I/O ended at `now` and took `latency`.
    pub(crate) fn note(&mut self, latency: Duration, now: Duration) {
        self.mean = if self.is_quiet(now) { latency } else { (self.mean * 7 + latency) / 8 };
        self.heard = Some(now);
    }

    fn is_quiet(&self, now: Duration) -> bool {
        self.heard.is_none_or(|heard| now.saturating_sub(heard) > QUIET_AFTER)
    }

    /// How long a slice that wants to begin at `now` is to wait.
    pub(crate) fn delay(&mut self, now: Duration) -> Duration {
        let Some(limit) = self.limit else { return Duration::ZERO };
        if self.is_quiet(now) {
            self.delay = Duration::ZERO;
        } else if now.saturating_sub(self.reviewed) >= REVIEW_EVERY {
            self.reviewed = now;
            let half = self.delay / 2;
            self.delay = match (self.mean > limit, half < DELAY_MIN) {
                (true, _) => (self.delay * 2).clamp(DELAY_MIN, DELAY_MAX),
                (false, true) => Duration::ZERO,
                (false, false) => half,
            };
        }
        self.delay
    }
}

/// Bucket and governor together, for work in steps that begin one after the other.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    bucket: Cell<Bucket>,
    governor: Cell<Governor>,
    /// When the last step began.
    began: Cell<Duration>,
}

impl Pace {
    pub(crate) fn new(rate: Option<NonZeroU64>, foreground: Option<Duration>) -> Self {
        let pace = Self::default();
        pace.set_rate(rate);
        pace.set_foreground(foreground);
        pace
    }

    /// Changes the limit in bytes per second.
    pub(crate) fn set_rate(&self, rate: Option<NonZeroU64>) {
        self.bucket.set(Bucket::new(rate));
    }

    /// Changes what foreground I/O may take.
    pub(crate) fn set_foreground(&self, limit: Option<Duration>) {
        self.governor.set(Governor::new(limit));
    }

    /// A request of the foreground ended at `now`, and took so long.
    pub(crate) fn request_ended(&self, latency: Duration, now: Duration) {
        let mut governor = self.governor.get();
        governor.note(latency, now);
        self.governor.set(governor);
    }

    /// When the next step may begin, asked at `now`.
    pub(crate) fn turn(&self, now: Duration) -> Duration {
        let (mut bucket, mut governor) = (self.bucket.get(), self.governor.get());
        let paid = bucket.start(0, now);
        let held = governor.delay(now);
        self.bucket.set(bucket);
        self.governor.set(governor);
        paid.max(self.began.get() + held)
    }

    /// A step of so many bytes begins.
    pub(crate) fn begin(&self, bytes: u64, now: Duration) {
        let mut bucket = self.bucket.get();
        bucket.start(bytes, now);
        self.bucket.set(bucket);
        self.began.set(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_bucket_lets_its_rate_through_and_no_more() {
        for rate in [1_000, 1 << 20, 100 << 20] {
            let mut bucket = Bucket::new(NonZeroU64::new(rate));
            let mut now = Duration::from_secs(5);
            let end = now + Duration::from_secs(10);
            let mut bytes = 0;
            while now < end {
                now = bucket.start(rate / 50, now);
                bytes += rate / 50;
            }
            assert!((rate * 10..=rate * 10 + rate / 5).contains(&bytes), "{bytes} at {rate}");
        }
    }

    #[test]
    fn a_pause_saves_up_a_tenth_of_a_second_and_no_more() {
        let mut bucket = Bucket::new(NonZeroU64::new(1000));
        let now = Duration::from_secs(100);
        let starts = [50, 50, 50, 50].map(|bytes| bucket.start(bytes, now));
        assert_eq!(starts, [now, now, now, now + millis(50)]);
    }

    #[test]
    fn slow_foreground_holds_slices_back_more_and_more_and_quiet_foreground_does_not() {
        let mut governor = Governor::new(Some(millis(5)));
        let mut now = Duration::from_secs(1);
        assert_eq!(governor.delay(now), Duration::ZERO);
        let mut delays = Vec::new();
        for _ in 0..12 {
            governor.note(millis(20), now);
            delays.push(governor.delay(now));
            now += REVIEW_EVERY;
        }
        assert!(delays.is_sorted(), "{delays:?}");
        assert_eq!((delays[0], delays[11]), (DELAY_MIN, DELAY_MAX));
        for _ in 0..40 {
            governor.note(millis(1), now);
            governor.delay(now);
            now += REVIEW_EVERY;
        }
        assert_eq!(governor.delay(now), Duration::ZERO, "foreground I/O is fast again");
        governor.note(millis(50), now);
        assert!(governor.delay(now + REVIEW_EVERY) > Duration::ZERO);
        assert_eq!(governor.delay(now + QUIET_AFTER * 2), Duration::ZERO, "there is none any more");
    }
}
