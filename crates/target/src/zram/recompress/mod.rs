//! Recompression: objects that stay in memory become smaller, by slower codecs.
//!
//! ```text
//!   request.rs   what a command asks for        pages/recompress.rs   one page
//!   here         a walk over the pages, by command or by rule
//!
//!   recompress_after=60   pages that nobody asked for in a minute, a few a turn, as long as there are any
//! ```
//!
//! Invariants:
//! - I1: a turn compresses at most [`TURN_PAGES`] pages again, one where a codec is slow, and looks at no
//!   more than [`TURN_SLOTS`]: requests are served between turns.
//! - I2: a disk on which nothing can become smaller sets no timer: the rule waits for a write.
//! - I3: commands exclude each other and writeback, as in the kernel. The rule excludes nobody: a page
//!   is compressed again between two turns, or not at all.
//!
//! Ages are seconds of the reactor's clock.

mod request;

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use super::Zram;
use super::backing::select::Selection;
use super::codec::CodecParams;
use super::pages::{Attempt, Effort};
use super::table::Slot;
use crate::event::Event;

use self::request::Request;
pub(super) use self::request::{Params, second_algorithm};

/// Pages compressed again in a turn, at most.
const TURN_PAGES: u32 = 4;
/// Pages looked at in a turn, at most.
const TURN_SLOTS: u32 = 16_384;
/// Time that the rule leaves to everybody else after each turn.
const RULE_PAUSE: Duration = Duration::from_millis(1);
/// Time that a command leaves: the shortest after which the next turn has begun.
const COMMAND_PAUSE: Duration = Duration::from_nanos(1);
/// Longest time between two looks for pages that are old enough.
const LOOK_MAX_S: u64 = 60;

/// How pages that are in memory become smaller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecompressSetup {
    /// The codecs that are tried, in this order; at most three.
    pub codecs: Vec<CodecParams>,
    /// Seconds after which a page is compressed again that nobody asked for; never where `None`.
    pub after_s: Option<u32>,
}

/// Why pages were not compressed again, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecompressError {
    /// Words that are none.
    #[error(
        "recompress takes type=idle, huge or huge_idle, threshold=BYTES below 3625, max_pages=N, algo=NAME and priority=1 to 3 (EINVAL)"
    )]
    Words,
    /// No such codec.
    #[error("the disk has no such second codec: give it one with recomp=NAME in its table line, or recomp_algorithm (EINVAL)")]
    NoCodec,
    /// Another command runs.
    #[error("pages of this disk are being compressed again or written back: wait until that is done (EAGAIN)")]
    Busy,
    /// An object in memory is not what was put there.
    #[error("a page could not be unpacked, the memory of this machine may be broken: look at its log (EIO)")]
    Corrupt,
}

/// Recompression at work.
pub(super) struct Recompression {
    after_s: Option<u32>,
    /// A command runs.
    pub(super) running: Cell<bool>,
    /// The rule waits for something to come into memory.
    resting: Cell<bool>,
    work: Rc<Event>,
}

impl Recompression {
    pub(super) fn new(setup: &RecompressSetup) -> Self {
        Self { after_s: setup.after_s, running: Cell::default(), resting: Cell::default(), work: Rc::default() }
    }

    /// Whether there is a rule to follow.
    pub(super) fn is_ruled(&self) -> bool {
        self.after_s.is_some()
    }

    /// Something came into memory, or the disk closes.
    pub(super) fn rouse(&self) {
        if self.resting.replace(false) {
            self.work.raise();
        }
    }
}

/// Resets the mark that a command runs.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// What a walk does.
struct Walk<'a> {
    effort: Effort,
    /// Pages that may still be tried.
    left: u64,
    takes: &'a mut dyn FnMut(Slot) -> bool,
    next: u64,
    pause: Duration,
}

impl Zram {
    /// Compresses again what `text` selects: `type=idle|huge|huge_idle`, `threshold=BYTES`,
    /// `max_pages=N`, `algo=NAME` and `priority=N`, each optional.
    ///
    /// # Errors
    /// [`RecompressError`].
    pub async fn recompress(&self, text: &str) -> Result<(), RecompressError> {
        let request = Request::parse(text).ok_or(RecompressError::Words)?;
        let effort = request.effort(&self.pages.borrow().codecs).ok_or(RecompressError::NoCodec)?;
        let written_back = self.backing.as_ref().is_some_and(super::Backing::is_busy);
        if written_back || self.recompression.running.replace(true) {
            return Err(RecompressError::Busy);
        }
        let _running = Running(&self.recompression.running);
        let selection = Selection { mode: request.mode, ranges: Vec::new() };
        let mut takes = |slot: Slot| selection.takes(slot) && slot.bytes() >= request.threshold;
        self.walk(Walk { effort, left: request.max_pages, takes: &mut takes, next: 0, pause: COMMAND_PAUSE }).await
    }

    /// Tries pages, a few a turn, until all were looked at or the disk closes.
    async fn walk(&self, mut walk: Walk<'_>) -> Result<(), RecompressError> {
        let turn_pages = if self.pages.borrow().codecs.are_slow() { 1 } else { TURN_PAGES };
        while self.step(&mut walk, turn_pages)? && !self.closed.get() {
            self.reactor.sleep(walk.pause).await;
        }
        Ok(())
    }

    /// Goes on for a turn (I1); whether there is more to look at.
    fn step(&self, walk: &mut Walk<'_>, turn_pages: u32) -> Result<bool, RecompressError> {
        let mut pages = self.pages.borrow_mut();
        let mut tries = 0;
        for _ in 0..TURN_SLOTS {
            let Some(number) = pages.next_present(walk.next).filter(|_| walk.left > 0) else { return Ok(false) };
            walk.next = number + 1;
            let slot = pages.table.get(number);
            if !slot.may_shrink() || !(walk.takes)(slot) {
                continue;
            }
            let attempt = pages.recompress(number, walk.effort).map_err(|_| {
                tracing::error!("page {number} in memory is not what was put there");
                RecompressError::Corrupt
            })?;
            if attempt == Attempt::None {
                continue;
            }
            walk.left -= 1;
            tries += 1;
            if tries == turn_pages {
                break;
            }
        }
        Ok(true)
    }

    /// Compresses again what is old enough; when there may be more, if ever.
    async fn shrink_old(&self, after_s: u32) -> Option<Duration> {
        // A page that comes while others are looked at must be seen.
        self.recompression.resting.set(true);
        let now_s = self.now_s();
        let last = self.pages.borrow().codecs.seconds().last()?;
        let mut young = false;
        let mut takes = |slot: Slot| {
            let old = now_s.checked_sub(after_s).is_some_and(|before_s| slot.time_s <= before_s);
            young |= !old && slot.priority() < last;
            old
        };
        // What is broken is told once, by the walk; it is tried again with the next.
        let done = self.walk(Walk { effort: Effort::FULL, left: u64::MAX, takes: &mut takes, next: 0, pause: RULE_PAUSE }).await;
        let look = Duration::from_secs(u64::from(after_s).div_ceil(4).clamp(1, LOOK_MAX_S));
        (young || done.is_err()).then_some(look)
    }
}

/// Follows the rule as long as the disk is there.
pub(super) async fn follow(disk: Weak<Zram>) {
    loop {
        let Some(zram) = disk.upgrade().filter(|zram| !zram.closed.get()) else { return };
        let Some(after_s) = zram.recompression.after_s else { return };
        let (work, seen) = (Rc::clone(&zram.recompression.work), zram.recompression.work.count());
        let look = zram.shrink_old(after_s).await;
        // With a time to look at, whatever comes meanwhile is seen then.
        if look.is_some() {
            zram.recompression.resting.set(false);
        }
        let sleep = look.map(|look| zram.reactor.sleep(look));
        let over = zram.closed.get();
        // The disk is let go while nothing is done.
        drop(zram);
        if !over {
            work.after(seen, sleep).await;
        }
    }
}

#[cfg(test)]
mod tests;
