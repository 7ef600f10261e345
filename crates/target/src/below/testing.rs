//! Helpers of the tests of small targets: a disk in memory and a clock that jumps.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_block::{
    Ability, Allocation, Bio, End, Extent, HeapMemory, Limits, Op, Run, SECTOR_BYTES, Sector, SectorCount, Segments, Status,
    Target, allocation, bio::Call,
};
use forebay_reactor::{Backend, DeviceId, Done, Requests, Tag, Wait};

/// A disk in memory that notes what it was asked, and holds bios back when told to. Sectors of zeroes
/// are its holes.
pub(crate) struct Disk {
    pub(crate) limits: Limits,
    pub(crate) bytes: RefCell<Vec<u8>>,
    /// Every bio, in order.
    pub(crate) seen: RefCell<Vec<(Op, Extent)>>,
    /// Ends every bio with this.
    pub(crate) fails: Cell<Status>,
    pub(crate) hold: Cell<bool>,
    /// Bios that touch this sector fail.
    pub(crate) bad_sector: Cell<Option<u64>>,
    held: RefCell<Vec<Bio>>,
}

impl Disk {
    pub(crate) fn new(sectors: usize) -> Rc<Self> {
        Self::with_limits(sectors, Limits::unlimited())
    }

    pub(crate) fn with_limits(sectors: usize, limits: Limits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            bytes: RefCell::new(vec![0; sectors * SECTOR_BYTES as usize]),
            seen: RefCell::default(),
            fails: Cell::default(),
            hold: Cell::default(),
            bad_sector: Cell::default(),
            held: RefCell::default(),
        })
    }

    pub(crate) fn take_seen(&self) -> Vec<(Op, Extent)> {
        self.seen.take()
    }

    /// Bios that are held.
    pub(crate) fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Does and ends the held bio of this number; those behind it move up.
    pub(crate) fn end_held(&self, number: usize) {
        let bio = self.held.borrow_mut().remove(number);
        self.execute(bio);
    }

    fn execute(&self, bio: Bio) {
        let touches = |sector| bio.extent().overlaps(extent(sector, 1));
        let bad = self.bad_sector.get().is_some_and(touches);
        let refused = bio.op() == Op::Flush && self.limits.flush == Ability::No;
        let status =
            if bad { Status::IoError } else { self.fails.get().and(if refused { Status::Unsupported } else { Status::Ok }) };
        if status.is_ok() {
            let start = usize::try_from(bio.sector().to_bytes()).unwrap();
            let end = start + usize::try_from(bio.bytes()).unwrap();
            let mut bytes = self.bytes.borrow_mut();
            match bio.op() {
                Op::Read => assert_eq!(bio.copy_in(&bytes[start..end]), end - start),
                Op::Write => assert_eq!(bio.copy_out(&mut bytes[start..end]), end - start),
                Op::Discard | Op::WriteZeroes => bytes[start..end].fill(0),
                Op::Flush => {}
            }
        }
        bio.end(status);
    }
}

impl Target for Disk {
    fn kind(&self) -> &'static str {
        "disk"
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(self.bytes.borrow().len() as u64 / u64::from(SECTOR_BYTES))
    }
    fn submit(&self, bio: Bio) {
        self.seen.borrow_mut().push((bio.op(), bio.extent()));
        if self.hold.get() {
            self.held.borrow_mut().push(bio);
        } else {
            self.execute(bio);
        }
    }
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let bytes = self.bytes.borrow();
        let start = usize::try_from(extent.start.to_bytes()).unwrap();
        for sector in bytes[start..].chunks(SECTOR_BYTES as usize).take(usize::try_from(extent.count.0).unwrap()) {
            out.tell(Run { count: SectorCount(1), hole: sector.iter().all(|&byte| byte == 0) });
        }
    }
}

/// What a target tells of a range: lengths in sectors, and whether they are holes.
pub(crate) fn told(target: &dyn Target, extent: Extent) -> Vec<(u64, bool)> {
    match pin!(allocation::runs(target, extent, usize::MAX)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(runs) => runs.into_iter().map(|run| (run.count.0, run.hole)).collect(),
        Poll::Pending => panic!("nobody makes it wait"),
    }
}

/// Keeps how bios ended, in order.
#[derive(Default)]
pub(crate) struct Ends(pub(crate) RefCell<Vec<(u64, Status)>>);

impl End for Ends {
    fn bio_ended(&self, bio: Bio, token: u64) {
        self.0.borrow_mut().push((token, bio.status()));
    }
}

impl Ends {
    pub(crate) fn submit(self: &Rc<Self>, target: &dyn Target, bio: Bio, token: u64) {
        target.submit(bio.on_end(Rc::clone(self) as Rc<dyn End>, token));
    }
}

/// How `bio` ends on a target that ends it at once.
pub(crate) fn status_of(target: &dyn Target, bio: Bio) -> Status {
    let ends = Rc::new(Ends::default());
    ends.submit(target, bio, 0);
    let all = ends.0.take();
    assert_eq!(all.len(), 1, "ended once");
    all[0].1
}

pub(crate) fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

pub(crate) fn memory(bytes: &[u8]) -> Rc<Segments> {
    let mut segments = Segments::whole(Box::new(HeapMemory::new(bytes.len(), 512)), u32::try_from(bytes.len()).unwrap()).unwrap();
    Rc::get_mut(&mut segments).unwrap().bytes_mut().copy_from_slice(bytes);
    segments
}

pub(crate) fn write(sector: u64, bytes: &[u8]) -> Bio {
    Bio::write(Sector(sector), memory(bytes), 0, u32::try_from(bytes.len()).unwrap())
}

pub(crate) fn read(sector: u64, sectors: usize) -> (Bio, Rc<Segments>) {
    let segments = memory(&vec![0xEE; sectors * 512]);
    (Bio::read(Sector(sector), Rc::clone(&segments), 0, segments.bytes()), segments)
}

/// The content of a memory whose bio ended.
pub(crate) fn content(mut segments: Rc<Segments>) -> Vec<u8> {
    Rc::get_mut(&mut segments).expect("the bio gave its share back").bytes_mut().to_vec()
}

pub(crate) fn call(target: &dyn Target, bio: Bio) -> Call {
    forebay_block::call(target, bio)
}

/// A backend without devices, whose clock jumps to the next timer as soon as there is nothing to do.
#[derive(Default)]
pub(crate) struct JumpingClock(Cell<Duration>);

impl Backend for JumpingClock {
    fn name(&self) -> &'static str {
        "clock"
    }
    fn now(&self) -> Duration {
        self.0.get()
    }
    fn attach(&mut self, _device: DeviceId, _file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        Ok(())
    }
    fn offer_memory(&mut self, _base: usize, _bytes: usize) {}
    fn enter(&mut self, _requests: &Requests, _batch: &[Tag], _done: &mut Vec<Done>, wait: Wait) -> io::Result<()> {
        match wait {
            Wait::No => Ok(()),
            Wait::Until(Some(time)) => {
                self.0.set(self.0.get().max(time));
                Ok(())
            }
            Wait::Until(None) => Err(io::Error::other("nothing is left that could happen")),
        }
    }
}
