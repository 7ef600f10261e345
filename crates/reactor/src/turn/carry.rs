//! Devices whose requests somebody else than the backend carries out, with a protocol of his own: a server
//! far away.
//!
//! ```text
//!   plug ─▶ sort, merge ─▶ carrier.carry(tag, request) ─ … ─▶ Reactor::carried(tag, result) ─▶ Bio::end
//! ```
//!
//! Such a device has what every other has: splitting at its limits, the plug with its merges, counts, and
//! failed merged requests tried again in their parts (I3 of [`super`]).

use std::io;
use std::rc::Rc;

use super::{Attachment, Reactor};
use crate::backend::Done;
use crate::request::{DeviceId, Request, Tag};

/// Who carries out the requests of a device.
pub trait Carrier {
    /// Takes a request, which stays in its slot until [`Reactor::carried`] is called for it, once. Called
    /// while the plug is emptied: nothing is submitted and no bio is ended from here.
    fn carry(&self, tag: Tag, request: &Request);
}

impl Reactor {
    /// Makes a device known whose requests `carrier` carries out. The attachment has neither a file nor
    /// anybody who serves it in memory.
    ///
    /// # Errors
    /// As [`Reactor::attach`].
    ///
    /// # Panics
    /// As [`Reactor::attach`], or when the device has two ways to be served.
    pub fn attach_carried(&self, attachment: Attachment, carrier: Rc<dyn Carrier>) -> io::Result<DeviceId> {
        assert!(attachment.file.is_none() && attachment.inline.is_none(), "a device is served in one way");
        self.attach_with(attachment, Some(carrier))
    }

    /// A carrier is done with a request: `result` is a byte count, 0 for operations that move none, or a
    /// negated errno. Its memory is touched no more. The bios end later in this turn.
    pub fn carried(&self, tag: Tag, result: i32) {
        self.0.done.borrow_mut().push(Done { tag, result });
    }

    /// Takes back what carriers are done with; true when there was any.
    pub(super) fn reap_carried(&self) -> bool {
        let any = !self.0.done.borrow().is_empty();
        if any {
            self.reap();
        }
        any
    }
}
