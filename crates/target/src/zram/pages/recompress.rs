//! One page compressed again, by a codec that makes it smaller.
//!
//! ```text
//!   object ─▶ page ─▶ each codec after its own, in order ─▶ a smaller size class? ─ yes ─▶ the new object
//!                                                             no codec: marked, not tried again
//! ```
//!
//! 1. The page reads the same before and after, and its time of access stays.
//! 2. An object changes only for one of a smaller class: anything else would not save memory.

use super::super::codec::Priority;
use super::super::memory::HUGE_BYTES;
use super::super::table::{Slot, mark};
use super::{PageError, Pages, unpack};

/// Which codecs are tried, and what is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Effort {
    /// The first one that is tried.
    pub(in super::super) from: Priority,
    /// And the last.
    pub(in super::super) to: Priority,
    /// The new object must have fewer bytes; 0 for any.
    pub(in super::super) threshold: usize,
}

impl Effort {
    /// All codecs, any size.
    pub(in super::super) const FULL: Effort = Effort { from: Priority(1), to: Priority(3), threshold: 0 };
}

/// What became of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Attempt {
    /// There was nothing to try.
    None,
    /// No codec was better.
    Vain,
    /// It takes less memory now.
    Smaller,
}

impl Slot {
    /// Whether another codec may make its object smaller.
    pub(in super::super) fn may_shrink(self) -> bool {
        self.in_memory() && !self.has(mark::SELECTED | mark::SETTLED)
    }
}

impl Pages {
    /// Tries to make the object of a page in memory smaller.
    ///
    /// # Errors
    /// [`PageError`]; the page is what it was then.
    pub(in super::super) fn recompress(&mut self, number: u64, effort: Effort) -> Result<Attempt, PageError> {
        self.make_room();
        let slot = self.table.get(number);
        debug_assert!(slot.may_shrink(), "only objects in memory are compressed again");
        let after = |priority: Priority| priority > slot.priority();
        let asked = |priority: Priority| priority >= effort.from && priority <= effort.to;
        if !self.codecs.seconds().any(|priority| after(priority) && asked(priority)) {
            return Ok(Attempt::None);
        }
        let Self { objects, codecs, gathered, page, packed, .. } = self;
        unpack(objects, codecs, slot, gathered, page)?;
        // Whether nothing is left that a later attempt may do better.
        let mut settled = true;
        let mut found = None;
        for priority in Priority::ALL.into_iter().filter(|priority| after(*priority)) {
            let Some(codec) = codecs.of(priority) else { continue };
            if !asked(priority) {
                settled = false;
                continue;
            }
            let bytes = codec.compress(page, packed).filter(|bytes| *bytes < HUGE_BYTES);
            let Some(bytes) = bytes.filter(|bytes| objects.is_smaller(*bytes, slot.bytes())) else { continue };
            if effort.threshold == 0 || bytes < effort.threshold {
                found = Some((priority, bytes));
                break;
            }
            settled = false;
        }
        self.counts.recompress_tries += 1;
        self.table.used_mut(number).clear(mark::IDLE);
        let Some((priority, bytes)) = found else {
            if settled {
                self.settle(number, slot);
            }
            return Ok(Attempt::Vain);
        };
        // The new object may need a frame of another class before a frame of the old one is free.
        if !self.has_room(slot, bytes) {
            return Ok(Attempt::Vain);
        }
        let place = self.keep(number, slot, bytes, true)?;
        self.count_recompressed(slot, priority, bytes);
        self.table.put(number, Slot::object(place, bytes, slot.time_s).by(priority));
        self.note_frames();
        Ok(Attempt::Smaller)
    }

    /// Notes that nothing makes this page smaller.
    fn settle(&mut self, number: u64, slot: Slot) {
        let never = slot.priority() == Priority::FIRST;
        self.table.used_mut(number).set(if never { mark::SETTLED | mark::INCOMPRESSIBLE } else { mark::SETTLED });
    }

    fn count_recompressed(&mut self, old: Slot, priority: Priority, bytes: usize) {
        self.counts.stored += 1;
        self.counts.compressed_bytes += bytes as u64;
        self.counts.recompress_saved_bytes += (old.bytes() - bytes) as u64;
        self.count_codec(priority);
    }

    /// Whether a codec made an object that is still there.
    pub(in super::super) fn has_object_by(&self, priority: Priority) -> bool {
        let seconds = || self.counts.recompressed.iter().sum::<u64>();
        match priority.second() {
            Some(at) => self.counts.recompressed.get(at).is_some_and(|count| *count > 0),
            None => self.counts.stored > self.counts.same + seconds(),
        }
    }

    /// Another codec is there: every page may be tried again.
    pub(in super::super) fn unsettle(&mut self) {
        let mut next = self.next_present(0);
        while let Some(number) = next {
            if self.table.get(number).in_memory() {
                self.table.used_mut(number).clear(mark::SETTLED | mark::INCOMPRESSIBLE);
            }
            next = self.next_present(number + 1);
        }
    }
}
