//! The flushes of one user of a server, and the losses that he was told.
//!
//! ```text
//!   flush ─▶ a loss he does not know? ─ yes ─▶ fails, and he knows it
//!                 └─ no ─▶ server ─▶ a loss meanwhile? ─ yes ─▶ fails, and he knows it
//! ```
//!
//! 1. Every loss makes a flush of every user fail, once: what one of them is told is not lost for the others.
//! 2. A flush succeeds only if the user knows of all losses up to its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::{Bio, End, Status};

use super::remote::Remote;

/// What one user of a server knows.
pub(super) struct Flushes {
    remote: Rc<Remote>,
    /// How many losses he was told.
    told: Cell<u64>,
    /// Flushes that the server has.
    parked: RefCell<Vec<Option<Bio>>>,
}

impl Flushes {
    /// A user who begins now: what was lost before is not his.
    pub(super) fn new(remote: &Rc<Remote>) -> Rc<Self> {
        Rc::new(Self { remote: Rc::clone(remote), told: Cell::new(remote.losses()), parked: RefCell::default() })
    }

    /// Takes a flush: to be sent with `send`, unless there is a loss to be told.
    pub(super) fn submit(self: &Rc<Self>, bio: Bio, send: impl FnOnce(Bio)) {
        if self.tell() {
            return bio.end(Status::IoError);
        }
        let part = bio.part(0, 0);
        let token = self.park(bio);
        send(part.on_end(Rc::clone(self) as Rc<dyn End>, token));
    }

    /// Whether there is a loss that he does not know; he does then.
    fn tell(&self) -> bool {
        let losses = self.remote.losses();
        self.told.replace(losses) != losses
    }

    fn park(&self, bio: Bio) -> u64 {
        let mut parked = self.parked.borrow_mut();
        let at = parked.iter().position(Option::is_none).unwrap_or_else(|| {
            parked.push(None);
            parked.len() - 1
        });
        parked[at] = Some(bio);
        at as u64
    }
}

impl End for Flushes {
    fn bio_ended(&self, part: Bio, token: u64) {
        let status = part.status();
        drop(part);
        let at = usize::try_from(token).expect("it is a place in a list");
        let bio = self.parked.borrow_mut()[at].take().expect("a flush ends once");
        let status = if self.tell() { status.and(Status::IoError) } else { status };
        bio.end(status);
    }
}
