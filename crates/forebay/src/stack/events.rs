//! The events of a stack: what its mirrors, snapshots and clones raise when people should look.
//!
//! The number of a stack is the sum of those of its targets, so it only grows while the stack is open, and begins
//! with 0 when it is opened.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use forebay_target::event::Event;

use super::{Stack, StackError};
use crate::snapshots::OpenSnapshot;
use crate::stack::clones::OpenClone;

impl Stack {
    fn sources(&self) -> Vec<Rc<Event>> {
        let mirrors = self.mirrors.iter().map(|(_, mirror)| mirror.events());
        let snapshots = self.snapshots.iter().map(OpenSnapshot::events);
        mirrors.chain(snapshots).chain(self.clones.iter().map(OpenClone::events)).collect()
    }

    /// How many events there were since it was opened: a leg or the log of a mirror failed, or all its regions came in
    /// sync; a snapshot became invalid or full; a merge ended; every region of a clone was hydrated, some were left
    /// alone, or it became read-only.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.sources().iter().map(|event| event.count()).sum()
    }

    /// Waits until there were more than `seen` events; how many there were then.
    ///
    /// # Errors
    /// When nothing in it raises any.
    pub async fn events_after(&self, seen: u64) -> Result<u64, StackError> {
        let sources = self.sources();
        if sources.is_empty() {
            return Err(StackError::NoEvents(self.name.clone()));
        }
        while self.events() <= seen {
            let mut any: Vec<_> = sources.iter().map(|event| Box::pin(event.after(event.count(), None))).collect();
            poll_fn(|cx| {
                let raised = any.iter_mut().any(|event| event.as_mut().poll(cx).is_ready());
                if raised { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        Ok(self.events())
    }
}
