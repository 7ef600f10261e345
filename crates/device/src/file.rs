//! A file or block device at the bottom of a stack, with direct I/O wherever that is possible.
//!
//! ```text
//!   open ─▶ lock ─▶ limits (sysfs, statx) ─▶ attach to the reactor
//!   submit ─▶ Reactor::submit (split, plug, merge) ─▶ backend
//! ```
//!
//! Invariants:
//! - I1: the lock is on the descriptor that carries the I/O, for as long as the kernel holds one of
//!   its requests.
//! - I2: buffered I/O is never a silent choice: it was asked for, or one warning says why.
//! - I3: nothing is written outside the size that the device had when it was opened.
//!
//! Errors of bios: [`Status::IoError`] outside the device, [`Status::ReadOnly`] for changes to a
//! device opened for reading, [`Status::Unsupported`] for discards where no holes can be made, and
//! whatever the kernel reports.

mod holes;
mod limits;
mod open;
mod zeroes;

use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Allocation, Bio, Extent, Limits, LookUp, Op, SectorCount, Status, Target};
use forebay_reactor::{Attachment, DeviceId, JobPool, Reactor};

use self::holes::Holes;
use self::zeroes::Zeroes;
use crate::DeviceError;

/// Whether I/O goes past the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// Direct where the file system takes it; else buffered, with one warning.
    #[default]
    Auto,
    /// Buffered, without a warning.
    Off,
}

/// How to open a file or block device.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Take no changes, and share the device with other readers.
    pub read_only: bool,
    /// Make a file of this size, sparse, where there is none or an empty one.
    pub create_bytes: Option<u64>,
    /// Whether I/O goes past the page cache.
    pub direct: Direct,
    /// How long to wait for whoever has the device now; six times as long where that process is gone and the
    /// kernel has not taken it apart yet.
    pub lock_wait: Duration,
    /// Whether requests are held back for a turn, and neighbours merged; off only to measure what that gains: each
    /// request then leaves by a call of its own.
    pub merging: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { read_only: false, create_bytes: None, direct: Direct::Auto, lock_wait: Duration::from_secs(5), merging: true }
    }
}

/// Write-zeroes requests worked on at once; more wait.
const ZEROES_MAX: usize = 16;

/// Opens `path` as [`FileDevice::open`] does, and locks it, for I/O through the page cache that no reactor carries:
/// for what is smaller than a block, or grows. The lock lasts as long as the descriptor.
///
/// # Errors
/// [`DeviceError`], one sentence.
pub fn open_alone(path: &Path, options: &FileOptions) -> Result<File, DeviceError> {
    let options = FileOptions { direct: Direct::Off, ..options.clone() };
    open::open(path, &options).map(|opened| File::from(opened.file))
}

/// A file or block device.
pub struct FileDevice {
    reactor: Reactor,
    id: DeviceId,
    limits: Limits,
    sectors: SectorCount,
    read_only: bool,
    direct: bool,
    zeroes: JobPool<Bio>,
    /// Who is asked where the file has holes; `None` for block devices, which do not tell.
    holes: Option<Rc<dyn LookUp>>,
}

impl FileDevice {
    /// Opens `path` and attaches it to the reactor. May block for [`FileOptions::lock_wait`].
    ///
    /// # Errors
    /// [`DeviceError`], one sentence.
    pub fn open(reactor: &Reactor, path: &Path, options: &FileOptions) -> Result<Rc<Self>, DeviceError> {
        let opened = open::open(path, options)?;
        let alignment = if opened.direct { limits::alignment(&opened.file) } else { None };
        if options.direct == Direct::Auto && alignment.is_none() {
            limits::make_buffered(&opened.file).map_err(|error| open::system("setting the flags of", path, error))?;
            tracing::warn!("{}: direct I/O is not possible on this file system: buffered I/O is used", path.display());
        }
        let found = if opened.block_device { limits::of_block_device } else { limits::of_file };
        let limits =
            found(&opened.file, alignment, options.read_only).map_err(|error| open::system("looking at", path, error))?;
        let bytes = limits::size_bytes(&opened.file).map_err(|error| open::system("measuring", path, error))?;
        let whole = bytes - bytes % u64::from(limits.logical_bytes);
        if whole == 0 {
            return Err(DeviceError::TooSmall { path: path.to_owned(), bytes, block_bytes: limits.logical_bytes });
        }
        let file = Rc::new(opened.file);
        let holes = (!opened.block_device).then(|| Rc::new(Holes::new(reactor, &file)) as Rc<dyn LookUp>);
        let id = reactor
            .attach(Attachment {
                name: path.display().to_string(),
                limits,
                file: Some(file),
                inline: None,
                merging: options.merging,
            })
            .map_err(|source| DeviceError::System { action: "attaching", path: path.to_owned(), source })?;
        let how = Rc::new(Zeroes::new(reactor, id));
        Ok(Rc::new(Self {
            reactor: reactor.clone(),
            id,
            limits,
            sectors: SectorCount(whole / 512),
            read_only: options.read_only,
            direct: alignment.is_some(),
            zeroes: reactor.job_pool(ZEROES_MAX, move |bio| Rc::clone(&how).write(bio)),
            holes,
        }))
    }

    /// Under which number the reactor knows it, for its counts.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Whether I/O goes past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Why `bio` is not for this device.
    fn refuse(&self, bio: &Bio) -> Option<Status> {
        match bio.op() {
            Op::Read | Op::Flush => {}
            _ if self.read_only => return Some(Status::ReadOnly),
            Op::Discard if self.limits.discard == Ability::No => return Some(Status::Unsupported),
            Op::Write | Op::Discard | Op::WriteZeroes => {}
        }
        (!crate::inside(self.sectors, bio)).then_some(Status::IoError)
    }
}

impl Target for FileDevice {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        match (self.refuse(&bio), bio.op()) {
            (Some(status), _) => bio.end(status),
            (None, Op::WriteZeroes) => self.zeroes.start(bio),
            (None, _) => self.reactor.submit(self.id, bio),
        }
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        match &self.holes {
            Some(holes) => out.ask(holes, extent),
            None => out.data(extent.count),
        }
    }
}
