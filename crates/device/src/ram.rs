//! A device in memory: as fast as a copy, gone with the process.
//!
//! Its pages are huge where the system has huge pages, and all touched when it is made: the first
//! touch of a page costs many times a copy of it, and a device's speed must not depend on what was
//! written before. For the same reason a discard zeroes and gives no memory back. What was never
//! written, or zeroed since, is told as a hole all the same, by pieces of [`PIECE_SECTORS`].

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, Run, SectorCount, Status, Target};
use forebay_reactor::{Attachment, DeviceId, Inline, Reactor, Region};

use crate::DeviceError;

/// Sectors of which it is known together whether they hold data.
const PIECE_SECTORS: u64 = 128;

/// A device in memory.
pub struct RamDevice {
    reactor: Reactor,
    id: DeviceId,
    sectors: SectorCount,
    store: Rc<Store>,
}

struct Store {
    region: RefCell<Region>,
    written: RefCell<Written>,
}

/// Which pieces may hold something other than zeroes, a bit each.
struct Written {
    words: Vec<u64>,
    sectors: u64,
}

impl Written {
    fn new(sectors: SectorCount) -> Self {
        let words = sectors.0.div_ceil(64 * PIECE_SECTORS);
        Self { words: vec![0; usize::try_from(words).expect("fewer than the bytes of the device")], sectors: sectors.0 }
    }

    fn set(&mut self, pieces: Range<u64>, written: bool) {
        for piece in pieces {
            let word = &mut self.words[usize::try_from(piece / 64).expect("inside the device")];
            let bit = 1 << (piece % 64);
            *word = if written { *word | bit } else { *word & !bit };
        }
    }

    fn write(&mut self, extent: Extent) {
        self.set(extent.start.0 / PIECE_SECTORS..extent.end().0.div_ceil(PIECE_SECTORS), true);
    }

    fn zero(&mut self, extent: Extent) {
        let end =
            if extent.end().0 == self.sectors { self.sectors.div_ceil(PIECE_SECTORS) } else { extent.end().0 / PIECE_SECTORS };
        self.set(extent.start.0.div_ceil(PIECE_SECTORS)..end, false);
    }

    fn holds(&self, sector: u64) -> bool {
        let piece = sector / PIECE_SECTORS;
        self.words[usize::try_from(piece / 64).expect("inside the device")] & (1 << (piece % 64)) != 0
    }
}

impl Inline for Store {
    fn execute(&self, bio: &Bio) -> Status {
        let mut region = self.region.borrow_mut();
        let start = usize::try_from(bio.sector().to_bytes());
        let range = start.ok().and_then(|start| Some(start..start.checked_add(usize::try_from(bio.bytes()).ok()?)?));
        let Some(bytes) = range.and_then(|range| region.as_mut_slice().get_mut(range)) else {
            return Status::IoError;
        };
        match bio.op() {
            Op::Read => {
                bio.copy_in(bytes);
            }
            Op::Write => {
                self.written.borrow_mut().write(bio.extent());
                bio.copy_out(bytes);
            }
            Op::Discard | Op::WriteZeroes => {
                bytes.fill(0);
                self.written.borrow_mut().zero(bio.extent());
            }
            Op::Flush => {}
        }
        Status::Ok
    }
}

impl RamDevice {
    /// A device of zeroes. Takes the memory at once: about 0.3 s a GiB.
    ///
    /// # Errors
    /// [`DeviceError::NoMemory`] when it is larger than what is free.
    pub fn new(reactor: &Reactor, sectors: SectorCount) -> Result<Rc<Self>, DeviceError> {
        let bytes = sectors.0.saturating_mul(512);
        let available = available_bytes();
        let too_large = || DeviceError::NoMemory { bytes, available };
        if bytes > available {
            return Err(too_large());
        }
        if bytes == 0 {
            return Err(DeviceError::TooSmall { path: PathBuf::from("a RAM device"), bytes, block_bytes: 512 });
        }
        let region = Region::new(usize::try_from(bytes).map_err(|_| too_large())?).map_err(|_| too_large())?;
        let store = Rc::new(Store { region: RefCell::new(region), written: RefCell::new(Written::new(sectors)) });
        let id = attach(reactor, "ram", Rc::clone(&store) as Rc<dyn Inline>, true)?;
        Ok(Rc::new(Self { reactor: reactor.clone(), id, sectors, store }))
    }

    /// Under which number the reactor knows it, for its counts.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }
}

pub(crate) fn attach(
    reactor: &Reactor,
    name: &'static str,
    inline: Rc<dyn Inline>,
    merging: bool,
) -> Result<DeviceId, DeviceError> {
    let limits = Limits::unlimited();
    let attachment = Attachment { name: name.to_owned(), limits, file: None, inline: Some(inline), merging };
    let failed = |source| DeviceError::System { action: "attaching", path: PathBuf::from(name), source };
    reactor.attach(attachment).map_err(failed)
}

/// Memory that can be used without pushing others out, bytes; unlimited where the system does not say.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

impl Target for RamDevice {
    fn kind(&self) -> &'static str {
        "ram"
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
        let written = self.store.written.borrow();
        let mut at = extent.start.0;
        while at < extent.end().0 && !out.is_full() {
            let end = ((at / PIECE_SECTORS + 1) * PIECE_SECTORS).min(extent.end().0);
            out.tell(Run { count: SectorCount(end - at), hole: !written.holds(at) });
            at = end;
        }
    }
}
