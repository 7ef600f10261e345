//! A device that keeps nothing: writes vanish, reads give zeroes. For measuring what stands above.

use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, Run, SectorCount, Status, Target};
use forebay_reactor::{DeviceId, Inline, Reactor};

use crate::{DeviceError, ram};

/// A device that keeps nothing.
pub struct NullDevice {
    reactor: Reactor,
    id: DeviceId,
    sectors: SectorCount,
    zeroes: bool,
}

struct Nothing {
    zeroes: bool,
}

impl Inline for Nothing {
    fn execute(&self, bio: &Bio) -> Status {
        if self.zeroes && bio.op() == Op::Read {
            bio.zero();
        }
        Status::Ok
    }
}

impl NullDevice {
    /// A device of zeroes of any size.
    ///
    /// # Errors
    /// When the reactor has too many devices.
    pub fn new(reactor: &Reactor, sectors: SectorCount) -> Result<Rc<Self>, DeviceError> {
        Self::with(reactor, sectors, true, true)
    }

    /// As [`NullDevice::new`], but reads leave their payload as it was, and neighbouring requests are
    /// not merged. The payload may hold what another request left there: only for benchmarks, never
    /// for clients.
    ///
    /// # Errors
    /// When the reactor has too many devices.
    pub fn untouched(reactor: &Reactor, sectors: SectorCount) -> Result<Rc<Self>, DeviceError> {
        Self::with(reactor, sectors, false, false)
    }

    fn with(reactor: &Reactor, sectors: SectorCount, zeroes: bool, merging: bool) -> Result<Rc<Self>, DeviceError> {
        let id = ram::attach(reactor, "null", Rc::new(Nothing { zeroes }), merging)?;
        Ok(Rc::new(Self { reactor: reactor.clone(), id, sectors, zeroes }))
    }

    /// Under which number the reactor knows it, for its counts.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }
}

impl Target for NullDevice {
    fn kind(&self) -> &'static str {
        "null"
    }

    fn limits(&self) -> Limits {
        Limits::unlimited()
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if crate::inside(self.sectors, &bio) {
            self.reactor.submit(self.id, bio);
        } else {
            bio.end(Status::IoError);
        }
    }
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.tell(Run { count: extent.count, hole: self.zeroes });
    }
}
