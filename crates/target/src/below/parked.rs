//! Bios that wait while a part that is the whole of them is below, each with a note.
//!
//! A target that wants to see how a bio ends cannot take over the bio's own end: it belongs to
//! whoever submitted it. So it sends a part down and keeps the bio here meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{Bio, End, Target};

/// Slots of waiting bios; allocates only while more wait than ever before.
pub(crate) struct Parked<T> {
    slots: RefCell<Vec<Option<(Bio, T)>>>,
    free: RefCell<Vec<usize>>,
}

impl<T> Default for Parked<T> {
    fn default() -> Self {
        Self { slots: RefCell::default(), free: RefCell::default() }
    }
}

impl<T> Parked<T> {
    /// Sends `bio` to `below` as a part of itself, which ends at `end` with the token for
    /// [`Parked::take`].
    pub(crate) fn pass(&self, bio: Bio, note: T, end: Rc<dyn End>, below: &dyn Target) {
        self.pass_with(bio, note, end, |part| below.submit(part));
    }

    /// As [`Parked::pass`], for anything that takes a bio.
    pub(crate) fn pass_with(&self, bio: Bio, note: T, end: Rc<dyn End>, submit: impl FnOnce(Bio)) {
        let part = bio.part(0, bio.bytes());
        let slot = self.free.borrow_mut().pop();
        let slot = slot.unwrap_or_else(|| {
            let mut slots = self.slots.borrow_mut();
            slots.push(None);
            slots.len() - 1
        });
        self.slots.borrow_mut()[slot] = Some((bio, note));
        submit(part.on_end(end, slot as u64));
    }

    /// Whether nothing is below.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.borrow().len() == self.free.borrow().len()
    }

    /// The bio and the note that wait under `token`.
    pub(crate) fn take(&self, token: u64) -> (Bio, T) {
        let slot = usize::try_from(token).expect("tokens are slot numbers");
        let waiting = self.slots.borrow_mut()[slot].take();
        self.free.borrow_mut().push(slot);
        waiting.expect("a part ends once")
    }
}
