//! Targets that misbehave in ways a test wants, or tell what they were asked.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, Run, SectorCount, Status, Target};
use forebay_reactor::Reactor;

/// What a target was asked: operation, sector, bytes, FUA.
pub type Log = Arc<Mutex<Vec<(Op, u64, u64, bool)>>>;

/// Memory that logs, fails where it is told, and ends bios at once or later.
pub struct Memory {
    bytes: RefCell<Vec<u8>>,
    pub limits: Limits,
    pub log: Log,
    /// Sectors from here on fail.
    pub bad_from: u64,
    /// Ends each bio this much later than the one before; with what a reactor.
    pub slow: Option<(Reactor, Duration)>,
    /// Tells every second piece of so many sectors as a hole; 0: everything is data.
    pub hole_sectors: u64,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; bytes]),
            limits: Limits::unlimited(),
            log: Log::default(),
            bad_from: u64::MAX,
            slow: None,
            hole_sectors: 0,
        }
    }

    fn execute(&self, bio: &Bio) -> Status {
        if bio.op() == Op::Flush {
            return Status::Ok;
        }
        if bio.extent().end().0 > self.bad_from {
            return Status::IoError;
        }
        let logical = u64::from(self.limits.logical_bytes);
        let start = bio.sector().to_bytes();
        assert!(start.is_multiple_of(logical) && bio.bytes().is_multiple_of(logical), "bios are whole blocks");
        let start = usize::try_from(start).unwrap();
        let mut bytes = self.bytes.borrow_mut();
        let range = &mut bytes[start..start + usize::try_from(bio.bytes()).unwrap()];
        match bio.op() {
            Op::Read => drop(bio.copy_in(range)),
            Op::Write => drop(bio.copy_out(range)),
            Op::Discard | Op::WriteZeroes | Op::Flush => range.fill(0),
        }
        Status::Ok
    }
}

impl Target for Memory {
    fn kind(&self) -> &'static str {
        "memory"
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(self.bytes.borrow().len() as u64 / 512)
    }
    fn submit(&self, bio: Bio) {
        self.log.lock().unwrap().push((bio.op(), bio.sector().0, bio.bytes(), bio.flags().fua));
        let status = self.execute(&bio);
        let Some((reactor, delay)) = &self.slow else { return bio.end(status) };
        let sleep = reactor.sleep(*delay);
        assert!(reactor.spawn(async move {
            sleep.await;
            bio.end(status);
        }));
    }
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let piece = self.hole_sectors;
        if piece == 0 {
            return out.data(extent.count);
        }
        let mut at = extent.start.0;
        while at < extent.end().0 {
            let end = ((at / piece + 1) * piece).min(extent.end().0);
            out.tell(Run { count: SectorCount(end - at), hole: !(at / piece).is_multiple_of(2) });
            at = end;
        }
    }
}

/// Keeps bios until it is told to end them, last come first.
#[derive(Default)]
pub struct Holding {
    held: RefCell<Vec<Bio>>,
}

impl Holding {
    pub fn held(&self) -> usize {
        self.held.borrow().len()
    }

    /// Ends what is held with `status`, the youngest first.
    pub fn release(&self, status: Status) {
        loop {
            let bio = self.held.borrow_mut().pop();
            let Some(bio) = bio else { return };
            if bio.op() == Op::Read {
                let fill = u8::try_from(bio.sector().0 % 251).unwrap();
                bio.copy_in(&vec![fill; usize::try_from(bio.bytes()).unwrap()]);
            }
            bio.end(status);
        }
    }
}

impl Target for Holding {
    fn kind(&self) -> &'static str {
        "holding"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(1 << 21)
    }
    fn submit(&self, bio: Bio) {
        self.held.borrow_mut().push(bio);
    }
}

thread_local! {
    /// The holding target of this thread's server.
    pub static HOLDING: Rc<Holding> = Rc::new(Holding::default());
}
