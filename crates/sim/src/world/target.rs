//! A simulated disk as a target: the bottom of a stack.

use forebay_block::{Ability, Bio, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::turn::Attachment;
use forebay_reactor::{DeviceId, Reactor};

use super::disk::DiskOptions;

/// A disk of a [`World`](super::World), attached to the reactor of one life.
pub struct SimDisk {
    reactor: Reactor,
    device: DeviceId,
    limits: Limits,
    sectors: SectorCount,
}

impl SimDisk {
    pub(crate) fn attach(reactor: &Reactor, options: &DiskOptions) -> Self {
        let attachment =
            Attachment { name: options.name.to_owned(), limits: options.limits, file: None, inline: None, merging: true };
        let device = reactor.attach(attachment).expect("the simulated backend takes every disk");
        Self { reactor: reactor.clone(), device, limits: options.limits, sectors: SectorCount(options.sectors) }
    }
}

impl Target for SimDisk {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        let ability = match bio.op() {
            Op::Discard => self.limits.discard,
            Op::WriteZeroes => self.limits.write_zeroes,
            Op::Flush => self.limits.flush,
            Op::Read | Op::Write => Ability::Native,
        };
        if ability == Ability::No {
            return bio.end(Status::Unsupported);
        }
        self.reactor.submit(self.device, bio);
    }
}
