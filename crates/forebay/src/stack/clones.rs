//! The clones of a stack: opened, told, asked, closed.

use std::rc::Rc;

use forebay_block::{Extent, SectorCount, Status, Target};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::clone::options::CloneArgs;
use forebay_target::clone::{self, CloneTarget, MessageError, Setup};
use forebay_target::event::Event;

use crate::status::CloneLayer;

/// A clone of a stack, with its devices as the table names them.
pub(crate) struct OpenClone {
    extent: Extent,
    metadata: String,
    destination: String,
    source: String,
    clone: Rc<CloneTarget>,
}

impl OpenClone {
    /// Opens the clone of a row; names and devices are those of metadata, destination and source.
    pub(crate) async fn open(
        reactor: &Reactor,
        pool: &BufferPool,
        args: &CloneArgs,
        extent: Extent,
        names: [String; 3],
        devices: [Rc<dyn Target>; 3],
    ) -> Result<Self, clone::OpenError> {
        let [metadata, destination, source] = devices;
        let sectors: SectorCount = extent.count;
        let (region_sectors, options) = (args.region_sectors, args.options);
        let clone = clone::open(reactor, pool, Setup { metadata, destination, source, sectors, region_sectors, options }).await?;
        let [metadata, destination, source] = names;
        Ok(Self { extent, metadata, destination, source, clone })
    }

    pub(crate) fn target(&self) -> Rc<dyn Target> {
        Rc::clone(&self.clone) as Rc<dyn Target>
    }

    pub(super) fn events(&self) -> Rc<Event> {
        self.clone.events()
    }

    pub(crate) fn layer(&self) -> CloneLayer {
        CloneLayer {
            extent: self.extent,
            metadata: self.metadata.clone(),
            destination: self.destination.clone(),
            source: self.source.clone(),
            status: self.clone.status(),
        }
    }
}

/// Carries out a message on every clone; whether there is one and it is a message for clones.
pub(super) fn message(clones: &[OpenClone], words: &[&str]) -> Result<bool, MessageError> {
    for open in clones {
        open.clone.message(words)?;
    }
    Ok(!clones.is_empty())
}

/// Suspends all clones; the first error.
pub(super) async fn suspend(clones: &[OpenClone]) -> Status {
    let mut status = Status::Ok;
    for open in clones {
        status = status.and(open.clone.suspend().await);
    }
    status
}

/// Lets their requests in again.
pub(super) fn resume(clones: &[OpenClone]) {
    for open in clones {
        open.clone.resume();
    }
}

/// Ends all clones; the first error.
pub(super) async fn close(clones: &[OpenClone]) -> Status {
    let mut status = Status::Ok;
    for open in clones {
        status = status.and(open.clone.close().await);
    }
    status
}
