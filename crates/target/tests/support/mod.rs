//! A reactor on a clock that jumps, and disks in memory: what the tests of this crate run on.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod front;
pub mod rig;
pub mod side;
pub mod tape;

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, HeapMemory, Limits, Op, Sector, SectorCount, Segments, Status, Target, call};
use forebay_reactor::{Attachment, Backend, DeviceId, Done, Inline, Reactor, Requests, Tag, Wait};

/// A backend without devices whose clock jumps to whatever is waited for.
#[derive(Default)]
pub struct Jumping(Duration);

impl Backend for Jumping {
    fn name(&self) -> &'static str {
        "jumping"
    }
    fn now(&self) -> Duration {
        self.0
    }
    fn attach(&mut self, _: DeviceId, _: Option<BorrowedFd<'_>>) -> io::Result<()> {
        Ok(())
    }
    fn offer_memory(&mut self, _: usize, _: usize) {}
    fn enter(&mut self, _: &Requests, _: &[Tag], _: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        match wait {
            Wait::No => {}
            Wait::Until(Some(at)) => self.0 = self.0.max(at),
            Wait::Until(None) => return Err(io::Error::other("everything waits and nothing will happen")),
        }
        Ok(())
    }
}

/// What happened at a disk, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Read(u64, u64),
    Write(u64, u64, bool),
    Flush,
    Discard(u64, u64),
    Zero(u64, u64),
}

/// A disk's content; survives the reactor that used it.
#[derive(Default)]
pub struct Platter {
    pub bytes: Vec<u8>,
    pub seen: Vec<Seen>,
    /// Operations on these sectors fail; a flush counts as one of sector 0.
    pub bad: Vec<(Op, u64)>,
    /// Where to note what was carried out, and as which disk.
    pub tape: Option<(tape::Disk, Rc<RefCell<tape::Tape>>)>,
}

impl Platter {
    /// Notes an operation with what is on the disk now.
    fn note(&self, seen: Seen, range: std::ops::Range<usize>) {
        let Some((disk, tape)) = &self.tape else { return };
        let bytes = if matches!(seen, Seen::Write(..)) { self.bytes[range].to_vec() } else { Vec::new() };
        tape.borrow_mut().steps.push(tape::Step { disk: *disk, seen, bytes });
    }
}

/// A disk in memory on which every request is done at once.
pub struct MemoryDisk {
    reactor: Reactor,
    id: DeviceId,
    pub platter: Rc<RefCell<Platter>>,
    sectors: SectorCount,
    limits: Limits,
}

struct Carry(Rc<RefCell<Platter>>);

impl Inline for Carry {
    fn execute(&self, bio: &Bio) -> Status {
        let mut platter = self.0.borrow_mut();
        let (start, count) = (bio.extent().start.0, bio.extent().count.0);
        let range = usize::try_from(start * 512).unwrap()..usize::try_from((start + count) * 512).unwrap();
        let seen = match bio.op() {
            Op::Read => Seen::Read(start, count),
            Op::Write => Seen::Write(start, count, bio.flags().fua),
            Op::Flush => Seen::Flush,
            Op::Discard => Seen::Discard(start, count),
            Op::WriteZeroes => Seen::Zero(start, count),
        };
        platter.seen.push(seen.clone());
        if platter.bad.iter().any(|&(op, sector)| op == bio.op() && (start..start + count.max(1)).contains(&sector)) {
            return Status::IoError;
        }
        match bio.op() {
            Op::Read => {
                bio.copy_in(&platter.bytes[range.clone()]);
            }
            Op::Write => {
                bio.copy_out(&mut platter.bytes[range.clone()]);
            }
            Op::WriteZeroes => platter.bytes[range.clone()].fill(0),
            Op::Flush | Op::Discard => {}
        }
        platter.note(seen, range);
        Status::Ok
    }
}

impl MemoryDisk {
    pub fn new(reactor: &Reactor, platter: Rc<RefCell<Platter>>) -> Rc<Self> {
        Self::with_limits(reactor, platter, Limits::unlimited())
    }

    pub fn with_limits(reactor: &Reactor, platter: Rc<RefCell<Platter>>, limits: Limits) -> Rc<Self> {
        let sectors = SectorCount(platter.borrow().bytes.len() as u64 / 512);
        let inline: Rc<dyn Inline> = Rc::new(Carry(Rc::clone(&platter)));
        let attachment = Attachment { name: "memory".into(), limits, file: None, inline: Some(inline), merging: true };
        let id = reactor.attach(attachment).unwrap();
        Rc::new(Self { reactor: reactor.clone(), id, platter, sectors, limits })
    }
}

impl Target for MemoryDisk {
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn sectors(&self) -> SectorCount {
        self.sectors
    }
    fn submit(&self, bio: Bio) {
        self.reactor.submit(self.id, bio);
    }
}

pub fn platter(bytes: usize) -> Rc<RefCell<Platter>> {
    Rc::new(RefCell::new(Platter { bytes: vec![0; bytes], ..Platter::default() }))
}

pub fn reactor() -> Reactor {
    Reactor::new(Box::new(Jumping::default()))
}

/// Payload memory that holds `bytes`.
pub fn payload(bytes: &[u8]) -> Rc<Segments> {
    let length = u32::try_from(bytes.len()).unwrap();
    let mut segments = Segments::whole(Box::new(HeapMemory::new(bytes.len(), 4096)), length).unwrap();
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(bytes);
    segments
}

pub async fn write(target: &dyn Target, sector: u64, bytes: &[u8], fua: bool) -> Status {
    let bio = Bio::write(Sector(sector), payload(bytes), 0, u32::try_from(bytes.len()).unwrap());
    let flags = forebay_block::Flags { fua, ..Default::default() };
    call(target, bio.with(flags)).await.status()
}

pub async fn read(target: &dyn Target, sector: u64, sectors: u32) -> Result<Vec<u8>, Status> {
    let mut segments = payload(&vec![0xee; sectors as usize * 512]);
    let bio = call(target, Bio::read(Sector(sector), Rc::clone(&segments), 0, sectors * 512)).await;
    let status = bio.status();
    drop(bio);
    if status.is_ok() { Ok(Rc::get_mut(&mut segments).unwrap().bytes_mut().to_vec()) } else { Err(status) }
}

pub async fn flush(target: &dyn Target) -> Status {
    call(target, Bio::flush()).await.status()
}
