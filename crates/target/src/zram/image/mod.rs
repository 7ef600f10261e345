//! Images: the whole disk in a file, so that a restart loses nothing.
//!
//! ```text
//!   save.rs     cut ─▶ section ─▶ section ─▶ … ─▶ header          changes wait, reads go on
//!   restore.rs  header ─▶ refill ─▶ bytes ─▶ bytes ─▶ … ─▶ finish  everything waits
//!   format.rs   pure: the bytes
//! ```
//!
//! What comes after: whoever has the file, and writes or reads it in order.
//!
//! Invariants:
//! - I1: an image holds the disk as it was when the cut was made: all that had ended before is in it,
//!   and nothing that was asked for later.
//! - I2: only an empty disk is restored; where that fails, the disk is empty again.
//! - I3: requests that had to wait are served when the image is done, in their order.
//!
//! Pages in memory go as the objects that they are; those on the backing device are read and go with
//! them, so that an image needs nothing but itself.

pub mod format;
mod restore;
mod save;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{Bio, Op, Target as _};
use twox_hash::XxHash3_64;

use self::format::{CodecMark, Flaw};
use super::Zram;
use super::backing::WritebackError;
use super::codec::{Algorithm, CodecError, CodecParams, Codecs, Priority};
use crate::event::Event;

pub use self::restore::Refill;
pub use self::save::Cut;

/// Why a disk is not saved or restored: one sentence about the file or the disk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Not what was saved.
    #[error(transparent)]
    Flaw(#[from] Flaw),
    /// Something goes on.
    #[error("the disk is being saved or restored: wait until that is done (EBUSY)")]
    Busy,
    /// Something would be lost.
    #[error("the disk holds something: only an empty one is restored, so write 1 to its attribute reset first (EBUSY)")]
    NotEmpty,
    /// The disk is too small.
    #[error("it is the image of a disk of {saved} sectors and this one has {found}: give the table line that length")]
    TooLong {
        /// Sectors of the disk that was saved.
        saved: u64,
        /// Sectors of this disk.
        found: u64,
    },
    /// Objects that this disk cannot read.
    #[error("it was saved with another dictionary: give the table line that one by dict=PATH")]
    Dictionary,
    /// An algorithm that is not known.
    #[error("it was saved with codec number {0}, which this program does not have: use a newer one")]
    Algorithm(u32),
    /// The library refuses.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A page of the backing device is lost.
    #[error("page {0} of the disk, or one of its neighbours, cannot be read: write or discard it, and save again")]
    Unreadable(u64),
    /// Too much for the memory limit.
    #[error("the disk's mem_limit is too small for it: raise it, or add a backing device")]
    NoSpace,
    /// And for the backing device.
    #[error("the disk's mem_limit is too small for it, and the rest could not be written back: {0}")]
    Spill(WritebackError),
}

/// What goes on with the disk as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Work {
    #[default]
    None,
    Saving,
    Restoring,
}

/// Where requests wait while the disk is saved or restored.
#[derive(Default)]
pub(super) struct Door {
    work: Cell<Work>,
    waiting: RefCell<Vec<Bio>>,
    opened: Event,
    /// Changes of the disk so far.
    changes: Cell<u64>,
}

impl Door {
    /// Whether requests of this kind have to wait.
    pub(super) fn holds(&self, op: Op) -> bool {
        match self.work.get() {
            Work::None => false,
            Work::Saving => !matches!(op, Op::Read | Op::Flush),
            Work::Restoring => op != Op::Flush,
        }
    }

    /// The content of the disk may have changed.
    pub(super) fn count_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    /// Has a request wait.
    pub(super) fn park(&self, bio: Bio) {
        self.waiting.borrow_mut().push(bio);
    }

    /// Whether nothing goes on.
    pub(super) fn is_open(&self) -> bool {
        self.work.get() == Work::None
    }

    /// Waits until nothing goes on.
    pub(super) async fn wait_until_open(&self) {
        while !self.is_open() {
            self.opened.after(self.opened.count(), None).await;
        }
    }
}

impl Zram {
    /// Grows whenever the content of the disk may have changed: with every change that a client asked
    /// for, a reset, and when it is restored.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.door.changes.get()
    }
}

/// Keeps the door shut.
struct Shut(Rc<Zram>);

impl Shut {
    fn new(zram: &Zram, work: Work) -> Result<Self, ImageError> {
        // What is on its way into the disk would get between what is restored.
        if !zram.door.is_open() || (work == Work::Restoring && zram.is_serving()) {
            return Err(ImageError::Busy);
        }
        zram.door.work.set(work);
        Ok(Self(zram.this.upgrade().expect("a disk is held by whoever commands it")))
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        let zram = &self.0;
        zram.door.work.set(Work::None);
        zram.door.waiting.take().into_iter().for_each(|bio| zram.submit(bio));
        zram.door.opened.raise();
    }
}

/// Algorithms by their number in images.
const ALGORITHMS: [(u32, Algorithm); 4] =
    [(0, Algorithm::Store), (1, Algorithm::Lz4), (2, Algorithm::Zstd), (3, Algorithm::Deflate)];

/// The codecs of a disk by priority, as far as it has any.
fn marks_of(codecs: &Codecs) -> Vec<CodecMark> {
    let mut marks: Vec<CodecMark> = Priority::ALL.map(|priority| codecs.params(priority).map(mark_of).unwrap_or_default()).into();
    while marks.len() > 1 && marks.last() == Some(&CodecMark::default()) {
        marks.pop();
    }
    marks
}

fn mark_of(codec: &CodecParams) -> CodecMark {
    let number = ALGORITHMS.iter().find(|(_, algorithm)| *algorithm == codec.algorithm).map(|(number, _)| *number);
    let algorithm = number.expect("every algorithm has a number");
    CodecMark { algorithm, dictionary: codec.dictionary.as_deref().map_or(0, |bytes| XxHash3_64::oneshot(bytes).max(1)) }
}

#[cfg(test)]
mod tests;
