//! The mirrors of a stack: compared, told things, closed.

use std::rc::Rc;

use forebay_block::{Extent, Status};
use forebay_target::mirror::{Mirror, ScrubReport};

use super::{Stack, StackError};
use crate::status::MirrorLayer;

/// Where in the table, and what.
pub(crate) type OpenMirror = (Extent, Rc<Mirror>);

pub(super) fn layer((extent, mirror): &OpenMirror) -> MirrorLayer {
    MirrorLayer { extent: *extent, status: mirror.status() }
}

pub(super) async fn close_all(mirrors: &[OpenMirror]) -> Status {
    let mut status = Status::Ok;
    for (_, mirror) in mirrors {
        status = status.and(mirror.close().await);
    }
    status
}

impl Stack {
    /// Compares the legs of every mirror; with `repair`, has what differs copied.
    ///
    /// # Errors
    /// When the stack has no mirror.
    pub async fn scrub(&self, repair: bool) -> Result<Vec<ScrubReport>, StackError> {
        self.needs_mirror("scrub compares")?;
        let mut reports = Vec::new();
        for (_, mirror) in &self.mirrors {
            reports.push(mirror.scrub(repair).await);
        }
        Ok(reports)
    }

    pub(super) fn tell_mirrors(&self, tell: fn(&Mirror)) -> Result<(), StackError> {
        self.needs_mirror("this message reaches")?;
        for (_, mirror) in &self.mirrors {
            tell(mirror);
        }
        Ok(())
    }

    fn needs_mirror(&self, what: &'static str) -> Result<(), StackError> {
        if self.mirrors.is_empty() { Err(StackError::NoMirror { name: self.name.clone(), what }) } else { Ok(()) }
    }
}
