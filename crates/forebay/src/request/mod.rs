//! Requests to a stack: owned payload for whoever awaits, borrowed slices for whoever blocks.
//!
//! ```text
//!   Stack::read(at, payload)   ─▶ Transfer ── .await ─▶ (result, payload)      owned, given and returned
//!   Disk::read(at, &mut [IoSliceMut])  ─▶ result                              borrowed, for the call
//! ```
//!
//! 1. A future can be forgotten at any point, and then nobody waits for the device; so what it reads
//!    into is never borrowed: the request owns it until it ends, whatever becomes of the future.
//! 2. A request is submitted when its method is called, not when its future is awaited: several of
//!    them leave together, with one call into the system.
//! 3. No segment array is built, copied or walked for a request over a [`Payload`]; the array was
//!    checked when the payload was made.
//!
//! What a request owns, nobody else touches; the compiler sees to that:
//!
//! ```compile_fail,E0382
//! use forebay::{Payload, Stack, block::Sector};
//!
//! fn reuse(stack: &Stack, mut payload: Payload) {
//!     let written = stack.write(Sector(0), payload);
//!     payload.fill(0); // the request has it
//! }
//! ```
//!
//! Positions are sectors of 512 bytes; starts and lengths must be whole logical blocks of the stack
//! ([`Limits::logical_bytes`](forebay_block::Limits)), and where files are opened for direct I/O,
//! memory must be aligned to [`Limits::memory_align`](forebay_block::Limits).

mod disk;
mod payload;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_block::bio::Call;
use forebay_block::bvec::SegmentsError;
use forebay_block::{Ability, Bio, Extent, Flags, Op, Sector, SectorCount, Status, Target, call};

pub use self::disk::{Disk, DiskError, DiskOptions};
pub use self::payload::Payload;
use crate::Stack;

/// Why a request was not done: one sentence.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It reaches beyond the end.
    #[error("sectors {extent} are not all inside the {}: ask for fewer, or for others", .sectors)]
    Outside {
        /// What was asked for.
        extent: Extent,
        /// What there is.
        sectors: SectorCount,
    },
    /// Its place, length or memory is not a multiple of what the stack asks for.
    #[error("the {what} of the request is not a multiple of {bytes} bytes: make it one")]
    Misaligned {
        /// What is not: `start`, `length` or `memory`.
        what: &'static str,
        /// Of how many bytes it must be.
        bytes: u32,
    },
    /// The slices given are no payload: empty, or 4 GiB and more.
    #[error(transparent)]
    Payload(#[from] SegmentsError),
    /// A target or device failed it.
    #[error("{op:?} of sectors {extent} failed: {}", reason(*.status))]
    Failed {
        /// What was asked.
        op: Op,
        /// Of which sectors.
        extent: Extent,
        /// How it ended; never [`Status::Ok`].
        status: Status,
    },
    /// The system does not carry out requests any more.
    #[error("the system does not carry out requests any more: {0}")]
    Backend(#[source] io::Error),
}

fn reason(status: Status) -> &'static str {
    match status {
        Status::Ok => "it was done",
        Status::IoError => "the device failed; its own error is in the log",
        Status::NoSpace => "there is no space left below",
        Status::ReadOnly => "the device may only be read",
        Status::Unsupported => "the device does not know the operation",
        Status::Aborted => "it was given up before it was done",
        Status::Again => "it cannot be done now; try again later",
    }
}

impl From<RequestError> for io::Error {
    fn from(error: RequestError) -> Self {
        let kind = match &error {
            RequestError::Backend(_) => io::ErrorKind::Other,
            RequestError::Outside { .. } | RequestError::Misaligned { .. } | RequestError::Payload(_) => {
                io::ErrorKind::InvalidInput
            }
            RequestError::Failed { status, .. } => match status {
                Status::NoSpace => io::ErrorKind::StorageFull,
                Status::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
                Status::Unsupported => io::ErrorKind::Unsupported,
                Status::Again => io::ErrorKind::WouldBlock,
                Status::Ok | Status::IoError | Status::Aborted => io::ErrorKind::Other,
            },
        };
        io::Error::new(kind, error)
    }
}

/// Why `target` cannot take `bio`, said better than by a status.
fn check(target: &dyn Target, bio: &Bio) -> Result<(), RequestError> {
    let limits = target.limits();
    let (extent, sectors) = (bio.extent(), target.sectors());
    if bio.op() == Op::Flush {
        return Ok(());
    }
    if !Extent::new(Sector(0), sectors).contains(extent) {
        return Err(RequestError::Outside { extent, sectors });
    }
    let misaligned = |what, bytes| Err(RequestError::Misaligned { what, bytes });
    if bio.bytes() == 0 || !bio.bytes().is_multiple_of(u64::from(limits.logical_bytes)) {
        return misaligned("length", limits.logical_bytes);
    }
    if !extent.start.to_bytes().is_multiple_of(u64::from(limits.logical_bytes)) {
        return misaligned("start", limits.logical_bytes);
    }
    if !bio.memory_aligned(limits.memory_align) {
        return misaligned("memory", limits.memory_align);
    }
    let ability = match bio.op() {
        Op::Discard => limits.discard,
        Op::WriteZeroes => limits.write_zeroes,
        Op::Read | Op::Write | Op::Flush => Ability::Native,
    };
    let status = Status::Unsupported;
    if ability == Ability::No { Err(RequestError::Failed { op: bio.op(), extent, status }) } else { Ok(()) }
}

/// What was asked, for the error of a request that failed.
#[derive(Clone, Copy)]
struct Asked {
    op: Op,
    extent: Extent,
}

impl Asked {
    fn of(bio: &Bio) -> Self {
        Self { op: bio.op(), extent: bio.extent() }
    }

    fn outcome(self, status: Status) -> Result<(), RequestError> {
        let Self { op, extent } = self;
        if status.is_ok() { Ok(()) } else { Err(RequestError::Failed { op, extent, status }) }
    }
}

enum Progress {
    Running(Call),
    Refused(Option<RequestError>),
}

/// A request without payload on its way. Dropping it leaves the request running; its result is lost.
pub struct Command {
    asked: Asked,
    progress: Progress,
}

impl Command {
    fn submit(target: &dyn Target, bio: Bio) -> Self {
        let asked = Asked::of(&bio);
        let progress = match check(target, &bio) {
            Ok(()) => Progress::Running(call(target, bio)),
            Err(error) => Progress::Refused(Some(error)),
        };
        Self { asked, progress }
    }

    fn poll_bio(&mut self, cx: &mut Context<'_>) -> Poll<(Result<(), RequestError>, Option<Bio>)> {
        match &mut self.progress {
            Progress::Running(call) => Pin::new(call).poll(cx).map(|bio| (self.asked.outcome(bio.status()), Some(bio))),
            Progress::Refused(error) => {
                let error = error.take().expect("a request is not polled after it gave its result");
                Poll::Ready((Err(error), None))
            }
        }
    }
}

impl Future for Command {
    type Output = Result<(), RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_bio(cx).map(|(result, _)| result)
    }
}

/// A read or write on its way; gives the payload back with the result. Dropping it leaves the request
/// running: the result is lost, and the payload's memory goes back to its pool when the device is done
/// with it, not before.
pub struct Transfer {
    command: Command,
    /// The payload of a request that was refused.
    refused: Option<Payload>,
}

impl Transfer {
    fn submit(target: &dyn Target, payload: Payload, make: impl FnOnce(Payload) -> Bio) -> Self {
        let bio = make(payload);
        let asked = Asked::of(&bio);
        match check(target, &bio) {
            Ok(()) => Self { command: Command { asked, progress: Progress::Running(call(target, bio)) }, refused: None },
            Err(error) => {
                let progress = Progress::Refused(Some(error));
                Self { command: Command { asked, progress }, refused: Some(Payload::out_of(bio)) }
            }
        }
    }
}

impl Future for Transfer {
    type Output = (Result<(), RequestError>, Payload);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.command.poll_bio(cx).map(|(result, bio)| {
            let payload = bio.map(Payload::out_of).or_else(|| this.refused.take());
            (result, payload.expect("a transfer has its payload"))
        })
    }
}

impl Stack {
    /// Fills `payload` from the sectors from `at` on.
    ///
    /// ```
    /// # use forebay::{BufferPool, Engine, Payload, Reactor, Stack, block::Sector, engine};
    /// # let reactor = Reactor::new(engine(Engine::Auto)?);
    /// # let pool = BufferPool::new(&reactor);
    /// # reactor.run(async {
    /// let stack = Stack::open(&reactor, &pool, "disk", "0 2048 linear ram:1M 0").await?;
    /// // Two requests leave together; each gives its payload back.
    /// let one = stack.read(Sector(0), Payload::of(&pool, &[4096])?);
    /// let two = stack.read(Sector(512), Payload::of(&pool, &[4096, 512, 8192])?);
    /// let (result, payload) = one.await;
    /// result?;
    /// assert_eq!(payload.to_vec(), [0; 4096]);
    /// let (result, payload) = two.await;
    /// result?;
    /// assert_eq!(payload.bytes(), 12_800);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the payload comes back with the result"]
    pub fn read(&self, at: Sector, payload: Payload) -> Transfer {
        Transfer::submit(&**self.table(), payload, |payload| {
            let (segments, bytes) = payload.into_segments();
            Bio::read(at, segments, 0, bytes)
        })
    }

    /// Writes `payload` to the sectors from `at` on. Durable after the next [`Stack::flush`].
    ///
    /// ```
    /// # use forebay::{BufferPool, Engine, Payload, Reactor, Stack, block::Sector, engine};
    /// # let reactor = Reactor::new(engine(Engine::Auto)?);
    /// # let pool = BufferPool::new(&reactor);
    /// # reactor.run(async {
    /// let stack = Stack::open(&reactor, &pool, "disk", "0 2048 linear ram:1M 0").await?;
    /// let mut payload = Payload::of(&pool, &[4096, 4096])?;
    /// payload.copy_from(b"a header, and then a body");
    /// let (result, payload) = stack.write(Sector(8), payload).await;
    /// result?;
    /// stack.flush().await?;
    /// // The same array carries the next request; nothing is built for it.
    /// let (result, _payload) = stack.write(Sector(32), payload).await;
    /// result?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the payload comes back with the result"]
    pub fn write(&self, at: Sector, payload: Payload) -> Transfer {
        self.write_with(at, payload, Flags::default())
    }

    /// As [`Stack::write`], with modifiers: [`Flags::fua`] for a write that is durable when it ends.
    #[must_use = "the payload comes back with the result"]
    pub fn write_with(&self, at: Sector, payload: Payload, flags: Flags) -> Transfer {
        Transfer::submit(&**self.table(), payload, |payload| {
            let (segments, bytes) = payload.into_segments();
            Bio::write(at, segments, 0, bytes).with(flags)
        })
    }

    /// Makes every write that ended before durable.
    #[must_use = "what was written is durable once this gave Ok"]
    pub fn flush(&self) -> Command {
        Command::submit(&**self.table(), Bio::flush())
    }

    /// Declares the content of `extent` unneeded; it may read as anything afterwards.
    #[must_use = "the request may fail"]
    pub fn discard(&self, extent: Extent) -> Command {
        Command::submit(&**self.table(), Bio::discard(extent))
    }

    /// Makes `extent` read as zeroes, without a payload.
    #[must_use = "the request may fail"]
    pub fn write_zeroes(&self, extent: Extent) -> Command {
        Command::submit(&**self.table(), Bio::write_zeroes(extent))
    }
}

impl Payload {
    /// The payload of a bio that ended, or was never submitted.
    fn out_of(bio: Bio) -> Self {
        let segments = bio.segments().map(Rc::clone).expect("a transfer has a payload");
        drop(bio);
        Self::alone(segments)
    }
}
