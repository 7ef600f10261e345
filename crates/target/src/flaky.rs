//! Flaky: a target that works for a while, misbehaves for a while, and so on.
//!
//! ```text
//!   made here
//!   │──── up ────│── down ──│──── up ────│── down ──│ …
//! ```
//!
//! The cycle starts when the target is made, on the reactor's clock; which part of it a bio falls
//! into is decided when it is submitted. As the kernel's `flakey` target; source:
//! `Documentation/admin-guide/device-mapper/dm-flakey.rst`. For tests of what stands above.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::Reactor;

use crate::below::BuildError;

/// What happens to reads while the target is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownReads {
    /// They are served.
    Served,
    /// They end with an I/O error (`error_reads`).
    Failed,
}

/// What happens to everything but reads, flushes included, while the target is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownWrites {
    /// They are served.
    Served,
    /// They end well, and nothing is done (`drop_writes`): a disk that lies.
    Dropped,
    /// They end with an I/O error (`error_writes`).
    Failed,
}

/// When a flaky target misbehaves, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flakiness {
    /// How long it works.
    pub up: Duration,
    /// How long it then does not.
    pub down: Duration,
    /// Reads meanwhile.
    pub reads: DownReads,
    /// Everything else meanwhile.
    pub writes: DownWrites,
}

impl Flakiness {
    /// Everything fails while the target is down: what the kernel does when no feature is named.
    #[must_use]
    pub fn failing(up: Duration, down: Duration) -> Self {
        Self { up, down, reads: DownReads::Failed, writes: DownWrites::Failed }
    }
}

/// A target that misbehaves now and then.
pub struct Flaky {
    below: Rc<dyn Target>,
    reactor: Reactor,
    made: Duration,
    flakiness: Flakiness,
}

impl Flaky {
    /// Puts `flakiness` on top of `below`, starting with the time it works.
    ///
    /// # Errors
    /// When both times are 0.
    pub fn new(reactor: Reactor, below: Rc<dyn Target>, flakiness: Flakiness) -> Result<Self, BuildError> {
        if flakiness.up.is_zero() && flakiness.down.is_zero() {
            return Err(BuildError::Zero { kind: "flakey", what: "up interval plus down interval" });
        }
        let made = reactor.now();
        Ok(Self { below, reactor, made, flakiness })
    }

    /// Whether the target misbehaves right now.
    #[must_use]
    pub fn is_down(&self) -> bool {
        let cycle = self.flakiness.up.saturating_add(self.flakiness.down).as_nanos();
        let elapsed = self.reactor.now().saturating_sub(self.made).as_nanos();
        elapsed % cycle >= self.flakiness.up.as_nanos()
    }
}

impl Target for Flaky {
    fn kind(&self) -> &'static str {
        "flakey"
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.below.sectors()
    }

    fn submit(&self, bio: Bio) {
        if !self.is_down() {
            return self.below.submit(bio);
        }
        match (bio.op(), self.flakiness.reads, self.flakiness.writes) {
            (Op::Read, DownReads::Served, _) => self.below.submit(bio),
            (Op::Read, DownReads::Failed, _) | (_, _, DownWrites::Failed) => bio.end(Status::IoError),
            (_, _, DownWrites::Served) => self.below.submit(bio),
            (_, _, DownWrites::Dropped) => bio.end(Status::Ok),
        }
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        if self.is_down() && self.flakiness.reads == DownReads::Failed {
            out.data(extent.count);
        } else {
            out.below(&*self.below, extent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::below::testing::{Disk, JumpingClock, extent, read, status_of, told, write};

    const SECOND: Duration = Duration::from_secs(1);

    fn flaky(flakiness: Flakiness) -> (Rc<Disk>, Reactor, Flaky) {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let disk = Disk::new(64);
        let target = Flaky::new(reactor.clone(), disk.clone(), flakiness).unwrap();
        (disk, reactor, target)
    }

    #[test]
    fn it_is_up_then_down_then_up_again() {
        let (_, reactor, target) = flaky(Flakiness::failing(3 * SECOND, 2 * SECOND));
        let half = Duration::from_millis(500);
        let mut seen = String::new();
        for _ in 0..11 {
            reactor.run(reactor.sleep(half)).unwrap();
            seen.push(if target.is_down() { 'd' } else { 'u' });
            let expected = if target.is_down() { Status::IoError } else { Status::Ok };
            assert_eq!(status_of(&target, write(0, &[1; 512])), expected);
            assert_eq!(status_of(&target, read(0, 1).0), expected);
            assert_eq!(status_of(&target, Bio::flush()), expected);
            reactor.run(reactor.sleep(half)).unwrap();
        }
        assert_eq!(seen, "uuudduuuddu");
    }

    fn down(reads: DownReads, writes: DownWrites) -> (Rc<Disk>, Flaky) {
        let (disk, _, target) = flaky(Flakiness { up: Duration::ZERO, down: SECOND, reads, writes });
        (disk, target)
    }

    #[test]
    fn dropped_writes_end_well_and_leave_the_disk_as_it_was() {
        let (disk, target) = down(DownReads::Served, DownWrites::Dropped);
        assert_eq!(status_of(&target, write(0, &[1; 512])), Status::Ok);
        assert_eq!(status_of(&target, Bio::flush()), Status::Ok);
        assert_eq!(status_of(&target, Bio::write_zeroes(extent(0, 8))), Status::Ok);
        assert_eq!(disk.take_seen(), []);
        assert_eq!(status_of(&target, read(0, 1).0), Status::Ok);
        assert_eq!(disk.take_seen(), [(Op::Read, extent(0, 1))]);
    }

    #[test]
    fn reads_and_writes_may_fail_each_for_themselves() {
        let (_, target) = down(DownReads::Served, DownWrites::Failed);
        assert_eq!((status_of(&target, write(0, &[1; 512])), status_of(&target, read(0, 1).0)), (Status::IoError, Status::Ok));
        let (_, target) = down(DownReads::Failed, DownWrites::Served);
        assert_eq!((status_of(&target, write(0, &[1; 512])), status_of(&target, read(0, 1).0)), (Status::Ok, Status::IoError));
    }

    #[test]
    fn holes_are_told_while_reads_are_served() {
        let (_, target) = down(DownReads::Served, DownWrites::Failed);
        assert_eq!(told(&target, extent(0, 64)), [(64, true)]);
        let (_, target) = down(DownReads::Failed, DownWrites::Served);
        assert_eq!(told(&target, extent(0, 64)), [(64, false)]);
        let (_, _, up) = flaky(Flakiness::failing(SECOND, SECOND));
        assert_eq!(told(&up, extent(0, 64)), [(64, true)]);
    }

    #[test]
    fn a_cycle_without_length_is_refused() {
        let reactor = Reactor::new(Box::new(JumpingClock::default()));
        let target = Flaky::new(reactor, Disk::new(8), Flakiness::failing(Duration::ZERO, Duration::ZERO));
        let error = target.err().unwrap().to_string();
        assert_eq!(error, "flakey: up interval plus down interval is 0: give at least 1");
    }
}
