//! A disk that is served as it is.

use std::future::ready;
use std::rc::Rc;

use forebay_block::Target;
use forebay_reactor::{BufferPool, Reactor};

use crate::run::{Disturbed, Later, Opened, Subject};
use crate::world::{SimDisk, World};

/// The first disk of a world.
pub(super) struct DiskSubject;

impl Subject for DiskSubject {
    fn open(&self, world: &World, reactor: &Reactor, _pool: &BufferPool) -> Later<Rc<dyn Opened>> {
        let disk = world.disk(reactor, 0);
        Box::pin(ready(Ok(Rc::new(OpenedDisk(disk)) as Rc<dyn Opened>)))
    }

    fn bottom(&self) -> Option<usize> {
        Some(0)
    }
}

/// A disk in one of its lives.
struct OpenedDisk(Rc<SimDisk>);

impl Opened for OpenedDisk {
    fn target(&self) -> &dyn Target {
        &*self.0
    }

    fn disturb(&self, _number: u64) -> Later<Disturbed> {
        Box::pin(ready(Ok(Disturbed::Silently)))
    }

    fn drain(&self) -> Later<()> {
        Box::pin(ready(Ok(())))
    }

    fn leave(&self) -> Later<()> {
        let disk = Rc::clone(&self.0);
        Box::pin(async move {
            let status = forebay_block::flush(&*disk).await.status();
            if status.is_ok() { Ok(()) } else { Err(format!("{status:?}")) }
        })
    }

    fn atomic_block_sectors(&self) -> Option<usize> {
        None
    }

    fn is_latched(&self) -> bool {
        false
    }
}
