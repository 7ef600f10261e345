//! Whether to stay awake for a moment before the thread sleeps.
//!
//! ```text
//!   client  ─ sends ─┄┄┄┄ asleep ┄┄┄┄ roused ─ sends ─┄┄┄┄┄ asleep ┄┄┄
//!   server  ┄┄ roused ─ answers ─┄┄┄┄ asleep ┄┄┄┄ roused ─ answers ─┄┄     each sleeps while the other works
//! ```
//!
//! To rouse a thread takes longer than to answer several short requests. A client with few of them in
//! flight and a server that answers at once fall into step, and most of their time is for rousing
//! each other. If one of them stays awake a little longer, what comes next is there already.
//!
//! Invariants:
//! - I1: only clients are waited for in this way, not devices, and for at most [`AWAKE`] at a time.
//! - I2: staying awake in vain becomes rare at once: after each further time in a row about twice as
//!   many waits go by without, so that a client that is slow or gone costs next to nothing.

use std::time::Duration;

/// How long to stay awake: about what it takes to rouse a thread on a virtual machine. Ten
/// microseconds are too few there, and fifty gained nothing more.
pub(super) const AWAKE: Duration = Duration::from_micros(20);

/// After so many times in vain, 254 waits go by before the next.
const VAIN_MAX: u32 = 8;

/// How staying awake went so far.
#[derive(Default)]
pub(super) struct Watch {
    /// Times in vain, halved by each that was not.
    vain: u32,
    /// Waits that go by without.
    passing: u32,
}

impl Watch {
    /// Whether to stay awake in this wait; [`Watch::ended`] must be told how it went.
    pub(super) fn begins(&mut self) -> bool {
        let begins = self.passing == 0;
        self.passing = self.passing.saturating_sub(1);
        begins
    }

    /// Something came, or nothing.
    pub(super) fn ended(&mut self, came: bool) {
        if came {
            self.vain /= 2;
        } else {
            self.vain = (self.vain + 1).min(VAIN_MAX);
            self.passing = (1 << self.vain) - 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In how many of `waits` it stays awake, when something comes in time as `came` says.
    fn awake(watch: &mut Watch, waits: u32, mut came: impl FnMut(u32) -> bool) -> u32 {
        let mut times = 0;
        for wait in 0..waits {
            if watch.begins() {
                watch.ended(came(wait));
                times += 1;
            }
        }
        times
    }

    #[test]
    fn in_vain_it_becomes_rare_and_success_brings_it_back() {
        let mut watch = Watch::default();
        assert_eq!(awake(&mut watch, 1000, |_| true), 1000);
        assert_eq!(awake(&mut watch, 10_000, |_| false), 46, "twice as rare each time, down to one in 255");
        let back = awake(&mut watch, 1000, |_| true);
        assert!(back >= 1000 - 254, "{back} of 1000");
    }

    #[test]
    fn where_it_helps_half_of_the_time_it_goes_on() {
        let mut watch = Watch::default();
        assert_eq!(awake(&mut watch, 1000, |wait| wait % 2 == 0), 1000);
        let mut random = fastrand::Rng::with_seed(1);
        let often = awake(&mut watch, 10_000, |_| random.u8(..4) > 0);
        assert!(often > 7000, "{often} of 10000 where it helps in three of four");
        let seldom = awake(&mut watch, 10_000, |_| random.u8(..10) == 0);
        assert!(seldom < 500, "{seldom} of 10000 where it helps in one of ten");
    }
}
