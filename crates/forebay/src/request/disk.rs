//! A stack for programs that block: every call returns when its request ended, and borrows the
//! caller's slices until then.

use std::io::{self, IoSlice, IoSliceMut};
use std::rc::Rc;

use forebay_block::{Bio, Extent, Flags, Limits, Sector, SectorCount, Target, call, lend, lend_mut};
use forebay_device::FileOptions;
use forebay_reactor::{BufferPool, Engine, Reactor, engine};

use super::{Asked, Payload, RequestError, check};
use crate::{Devices, OpenError, Stack, StackError, TableText};

/// Why a disk does not open: one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Neither `io_uring` nor threads are to be had.
    #[error("I/O cannot be started: {0}")]
    Engine(#[source] io::Error),
    /// The stack does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// How a disk is opened.
#[derive(Clone, Debug, Default)]
pub struct DiskOptions {
    /// What carries out I/O.
    pub engine: Engine,
    /// How its files are opened.
    pub files: FileOptions,
}

/// A stack with an engine of its own, for one thread, without async.
///
/// ```
/// use std::io::{IoSlice, IoSliceMut};
///
/// use forebay::Disk;
/// use forebay::block::Sector;
///
/// let disk = Disk::open("0 2048 linear ram:1M 0")?;
/// let (head, body) = ([1; 512], [2; 1024]);
/// disk.write(Sector(8), &[IoSlice::new(&head), IoSlice::new(&body)])?;
/// disk.flush()?;
///
/// let (mut first, mut rest) = ([0; 1024], [0; 512]);
/// disk.read(Sector(8), &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut rest)])?;
/// assert_eq!((first[511], first[512], rest[511]), (1, 2, 2));
/// disk.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The slices are borrowed: the device works on the caller's own memory, and warm calls allocate
/// nothing. Should a call be left while a device still works (by a panic, or because the system does
/// not carry out requests any more), the process ends, since the memory cannot be given back.
///
/// Files are opened for direct I/O where their file system takes it; slices must then be aligned
/// ([`Limits::memory_align`]). Memory of a [`Payload`] always is.
pub struct Disk {
    stack: Stack,
    pool: BufferPool,
    reactor: Reactor,
}

impl Disk {
    /// Opens the stack that `text` describes.
    ///
    /// # Errors
    /// [`DiskError`], one sentence.
    pub fn open(text: &str) -> Result<Self, DiskError> {
        Self::open_with(text, &DiskOptions::default())
    }

    /// As [`Disk::open`], with a choice of how.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn open_with(text: &str, options: &DiskOptions) -> Result<Self, DiskError> {
        let text = TableText::parse(text).map_err(OpenError::from)?;
        let reactor = Reactor::new(engine(options.engine).map_err(DiskError::Engine)?);
        let pool = BufferPool::new(&reactor);
        let devices = Devices::new(&reactor, options.files.clone());
        let opening = Stack::open_on(&devices, &pool, "disk", &text, options.files.read_only);
        let stack = reactor.run(opening).map_err(DiskError::Engine)??;
        Ok(Self { stack, pool, reactor })
    }

    /// Its size.
    #[must_use]
    pub fn sectors(&self) -> SectorCount {
        self.stack.sectors()
    }

    /// What it accepts and offers.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.stack.table().limits()
    }

    /// The stack: its status, messages, and requests to await on [`Disk::reactor`].
    #[must_use]
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// What carries out the requests.
    #[must_use]
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Memory for payloads; the system knows it in advance where it can.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Fills `slices`, in order, from the sectors from `at` on. Empty slices are left out.
    ///
    /// # Errors
    /// [`RequestError`]; the content of the slices is not defined then.
    pub fn read(&self, at: Sector, slices: &mut [IoSliceMut<'_>]) -> Result<(), RequestError> {
        lend_mut(slices, |segments| self.transfer(Bio::read(at, Rc::clone(segments), 0, segments.bytes())))?
    }

    /// Writes `slices`, in order, to the sectors from `at` on. Empty slices are left out. Durable after
    /// the next [`Disk::flush`].
    ///
    /// # Errors
    /// [`RequestError`]; any part may be written then.
    pub fn write(&self, at: Sector, slices: &[IoSlice<'_>]) -> Result<(), RequestError> {
        self.write_with(at, slices, Flags::default())
    }

    /// As [`Disk::write`], with modifiers: [`Flags::fua`] for a write that is durable when it ends.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_with(&self, at: Sector, slices: &[IoSlice<'_>], flags: Flags) -> Result<(), RequestError> {
        lend(slices, |segments| self.transfer(Bio::write(at, Rc::clone(segments), 0, segments.bytes()).with(flags)))?
    }

    /// Fills a payload that is ready, from the sectors from `at` on: nothing is built for the request.
    ///
    /// # Errors
    /// As [`Disk::read`].
    pub fn read_payload(&self, at: Sector, payload: &mut Payload) -> Result<(), RequestError> {
        self.transfer(Bio::read(at, payload.shared(), 0, payload.bytes()))
    }

    /// Writes a payload that is ready, to the sectors from `at` on: nothing is built for the request.
    ///
    /// # Errors
    /// As [`Disk::write`].
    pub fn write_payload(&self, at: Sector, payload: &mut Payload) -> Result<(), RequestError> {
        self.transfer(Bio::write(at, payload.shared(), 0, payload.bytes()))
    }

    /// Makes every write that ended before durable.
    ///
    /// # Errors
    /// [`RequestError`]; it is not known what is durable then.
    pub fn flush(&self) -> Result<(), RequestError> {
        self.transfer(Bio::flush())
    }

    /// Declares the content of `extent` unneeded; it may read as anything afterwards.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn discard(&self, extent: Extent) -> Result<(), RequestError> {
        self.transfer(Bio::discard(extent))
    }

    /// Makes `extent` read as zeroes, without a payload.
    ///
    /// # Errors
    /// [`RequestError`]; any part may be zeroes then.
    pub fn write_zeroes(&self, extent: Extent) -> Result<(), RequestError> {
        self.transfer(Bio::write_zeroes(extent))
    }

    fn transfer(&self, bio: Bio) -> Result<(), RequestError> {
        let table: &dyn Target = &**self.stack.table();
        let asked = Asked::of(&bio);
        check(table, &bio)?;
        let ended = self.reactor.run(call(table, bio)).map_err(RequestError::Backend)?;
        asked.outcome(ended.status())
    }

    /// Makes everything durable and ends the caches; dirty blocks stay in them.
    ///
    /// # Errors
    /// When not everything could be committed.
    pub fn close(self) -> Result<(), StackError> {
        match self.reactor.run(self.stack.close()) {
            Ok(closed) => closed,
            Err(_) => Err(StackError::Commit(self.stack.name().to_owned())),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The tasks of caches hold the reactor, and the reactor holds them.
        self.reactor.clear();
    }
}
