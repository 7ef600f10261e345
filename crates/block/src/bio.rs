//! One block operation in flight: what it asks, its payload, and what happens when it ends.
//!
//! ```text
//!   Bio::write(..) ── on_end / call ──▶ Target::submit(bio) ─ … ─▶ bio.end(status)
//!                                             │ part()                 │
//!                                             ▼                        ▼
//!                                       child bios ── last one ends ─▶ parent ends, first error wins
//! ```
//!
//! Invariants:
//! - I1: a bio is moved, never copied, and ended exactly once. One that is dropped instead ends
//!   with [`Status::Aborted`].
//! - I2: payload segments are shared with children, never copied; only the cursor is cut.
//! - I3: a parent ends after its last child, with the first error.
//! - I4: bios come from a pool of their thread: making and ending one allocates nothing once warm.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::bvec::{self, BvecIter, Segments};
use crate::target::Target;
use crate::unit::{Extent, SECTOR_SHIFT, Sector, SectorCount};

/// What a bio asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Fill the payload from the device.
    Read,
    /// Put the payload on the device.
    Write,
    /// Make every write that ended before durable.
    Flush,
    /// The range's content is no longer needed.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

/// Modifiers of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The write is durable before it ends.
    pub fua: bool,
    /// Keep this bio out of merges.
    pub nomerge: bool,
    /// File-system metadata, as far as the caller knows.
    pub meta: bool,
    /// Write-zeroes must leave the space allocated.
    pub no_unmap: bool,
}

/// Result of a bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Ok,
    /// The device failed, or the request was outside it or misaligned.
    IoError,
    /// No space left below.
    NoSpace,
    /// The target may not be written.
    ReadOnly,
    /// The target does not know the operation.
    Unsupported,
    /// Given up before it was done.
    Aborted,
    /// Not now; the same request may succeed later.
    Again,
}

impl Status {
    /// All values, for tables that must be exhaustive.
    pub const ALL: [Status; 7] =
        [Self::Ok, Self::IoError, Self::NoSpace, Self::ReadOnly, Self::Unsupported, Self::Aborted, Self::Again];

    /// Whether the operation was done.
    #[must_use]
    pub fn is_ok(self) -> bool {
        self == Self::Ok
    }

    /// The first error of two results in order.
    #[must_use]
    pub fn and(self, later: Status) -> Status {
        if self.is_ok() { later } else { self }
    }
}

/// Something that is told when a bio ended.
pub trait End {
    /// Takes the ended bio back; `token` is what was given to [`Bio::on_end`].
    fn bio_ended(&self, bio: Bio, token: u64);
}

enum Ender {
    Nobody,
    Call(Rc<dyn End>, u64),
    Parent(Rc<Meet>),
    Awaited,
}

/// Where a bio meets those who wait for it: its awaiting future, or its children.
#[derive(Default)]
struct Meet {
    bio: Cell<Option<Bio>>,
    waker: Cell<Option<Waker>>,
    children: Cell<u32>,
    status: Cell<Status>,
    abandoned: Cell<bool>,
}

impl Meet {
    fn child_ended(self: Rc<Self>, status: Status) {
        self.status.set(self.status.get().and(status));
        let left = self.children.get().checked_sub(1).expect("a child ends once (I1)");
        self.children.set(left);
        if left > 0 {
            return;
        }
        if let Some(parent) = self.bio.take() {
            let status = self.status.replace(Status::Ok);
            drop(self);
            parent.end(status);
        } else if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct Inner {
    op: Op,
    flags: Flags,
    status: Status,
    iter: BvecIter,
    segments: Option<Rc<Segments>>,
    ender: Ender,
    meet: Rc<Meet>,
}

thread_local! {
    /// Ended bios of this thread, ready for the next use (I4).
    static POOL: RefCell<Vec<Box<Inner>>> = const { RefCell::new(Vec::new()) };
}

/// Bios kept for reuse on a thread; more than this many in flight at once are freed again.
const POOL_MAX: usize = 4096;

/// One block operation in flight.
pub struct Bio(Option<Box<Inner>>);

impl Bio {
    fn new(op: Op, iter: BvecIter, segments: Option<Rc<Segments>>) -> Self {
        let pooled = POOL.with_borrow_mut(Vec::pop);
        let mut inner = pooled.unwrap_or_else(|| {
            Box::new(Inner {
                op,
                flags: Flags::default(),
                status: Status::Ok,
                iter,
                segments: None,
                ender: Ender::Nobody,
                meet: Rc::default(),
            })
        });
        inner.op = op;
        inner.flags = Flags::default();
        inner.status = Status::Ok;
        inner.iter = iter;
        inner.segments = segments;
        Self(Some(inner))
    }

    /// Reads into `bytes` of `segments` from byte `skip` on.
    ///
    /// # Panics
    /// When that range is not inside the segments.
    #[must_use]
    pub fn read(sector: Sector, segments: Rc<Segments>, skip: u32, bytes: u32) -> Self {
        Self::new(Op::Read, BvecIter::over(sector, &segments, skip, bytes), Some(segments))
    }

    /// Writes `bytes` of `segments` from byte `skip` on.
    ///
    /// # Panics
    /// When that range is not inside the segments.
    #[must_use]
    pub fn write(sector: Sector, segments: Rc<Segments>, skip: u32, bytes: u32) -> Self {
        Self::new(Op::Write, BvecIter::over(sector, &segments, skip, bytes), Some(segments))
    }

    /// Makes earlier ended writes durable.
    #[must_use]
    pub fn flush() -> Self {
        Self::new(Op::Flush, BvecIter::bare(Sector(0), 0), None)
    }

    /// Declares a range's content unneeded.
    #[must_use]
    pub fn discard(extent: Extent) -> Self {
        Self::new(Op::Discard, BvecIter::bare(extent.start, extent.count.to_bytes()), None)
    }

    /// Makes a range read as zeroes.
    #[must_use]
    pub fn write_zeroes(extent: Extent) -> Self {
        Self::new(Op::WriteZeroes, BvecIter::bare(extent.start, extent.count.to_bytes()), None)
    }

    fn inner(&self) -> &Inner {
        self.0.as_ref().expect("a bio holds its state until it ends")
    }

    fn inner_mut(&mut self) -> &mut Inner {
        self.0.as_mut().expect("a bio holds its state until it ends")
    }

    /// Sets the modifiers.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Self {
        self.inner_mut().flags = flags;
        self
    }

    /// Says who takes the bio back when it ends.
    #[must_use]
    pub fn on_end(mut self, end: Rc<dyn End>, token: u64) -> Self {
        self.inner_mut().ender = Ender::Call(end, token);
        self
    }

    /// What is asked.
    #[must_use]
    pub fn op(&self) -> Op {
        self.inner().op
    }

    /// The modifiers.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.inner().flags
    }

    /// The result, once ended.
    #[must_use]
    pub fn status(&self) -> Status {
        self.inner().status
    }

    /// The cursor.
    #[must_use]
    pub fn iter(&self) -> BvecIter {
        self.inner().iter
    }

    /// First sector.
    #[must_use]
    pub fn sector(&self) -> Sector {
        self.inner().iter.sector
    }

    /// Bytes left.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner().iter.bytes
    }

    /// The range on the device, in sectors.
    #[must_use]
    pub fn extent(&self) -> Extent {
        Extent::new(self.sector(), SectorCount(self.bytes() >> SECTOR_SHIFT))
    }

    /// The payload array, for reads and writes.
    #[must_use]
    pub fn segments(&self) -> Option<&Rc<Segments>> {
        self.inner().segments.as_ref()
    }

    /// Segments of payload memory left; 0 without payload.
    #[must_use]
    pub fn segments_left(&self) -> u32 {
        self.segments().map_or(0, |segments| self.iter().segments_left(segments))
    }

    /// Whether every segment of the payload starts and ends on a multiple of `align` bytes, a
    /// power of two; true without payload. Answered without a walk.
    #[must_use]
    pub fn memory_aligned(&self, align: u32) -> bool {
        self.segments().is_none_or(|segments| self.iter().is_aligned(segments, align))
    }

    /// The payload memory, segment by segment; empty without payload.
    #[must_use]
    pub fn pieces(&self) -> bvec::Pieces<'_> {
        match self.segments() {
            Some(segments) => self.iter().pieces(segments),
            None => bvec::Pieces::default(),
        }
    }

    /// Copies the payload of a write into `to`; returns the bytes copied.
    pub fn copy_out(&self, to: &mut [u8]) -> usize {
        self.segments().map_or(0, |segments| bvec::copy_out(segments, self.iter(), to))
    }

    /// Fills the payload of a read from `from`; returns the bytes copied.
    pub fn copy_in(&self, from: &[u8]) -> usize {
        self.segments().map_or(0, |segments| bvec::copy_in(segments, self.iter(), from))
    }

    /// Fills the payload of a read with zeroes.
    pub fn zero(&self) {
        if let Some(segments) = self.segments() {
            bvec::zero(segments, self.iter());
        }
    }

    /// Moves the bio to another place on the target below; the payload stays.
    #[must_use]
    pub fn remap(mut self, sector: Sector) -> Self {
        self.inner_mut().iter.sector = sector;
        self
    }

    /// A child over `bytes` of this bio from byte `skip` on, sharing its payload (I2). The parent
    /// must be given to [`Bio::end_after_parts`], or [`Bio::parts_done`] awaited.
    ///
    /// # Panics
    /// When the range is not inside the bio, or `skip` is not whole sectors.
    #[must_use]
    pub fn part(&self, skip: u64, bytes: u64) -> Bio {
        let inner = self.inner();
        assert!(skip + bytes <= inner.iter.bytes, "a part of a bio lies inside it");
        assert!(skip.is_multiple_of(512), "a bio is cut at sectors");
        let mut iter = inner.iter;
        iter.advance(inner.segments.as_deref(), skip).expect("inside, checked above");
        iter.bytes = bytes;
        let mut child = Self::new(inner.op, iter, inner.segments.clone());
        child.inner_mut().flags = inner.flags;
        inner.meet.children.set(inner.meet.children.get() + 1);
        child.inner_mut().ender = Ender::Parent(Rc::clone(&inner.meet));
        child
    }

    /// Cuts this bio short after `bytes` and returns the rest of it as this bio: the front becomes
    /// a child. As the kernel does when it splits at a limit.
    #[must_use]
    pub fn split_front(&mut self, bytes: u64) -> Bio {
        let front = self.part(0, bytes);
        let inner = self.inner_mut();
        inner.iter.advance(inner.segments.as_deref(), bytes).expect("inside, checked by part");
        front
    }

    /// Drops the first `bytes` from this bio because they are done.
    ///
    /// # Panics
    /// When fewer are left, or they are not whole sectors.
    pub fn advance(&mut self, bytes: u64) {
        let inner = self.inner_mut();
        inner.iter.advance(inner.segments.as_deref(), bytes).expect("only what is there can be done");
    }

    /// Ends this bio as soon as all its parts have ended: with the first error (I3).
    pub fn end_after_parts(self) {
        let meet = Rc::clone(&self.inner().meet);
        if meet.children.get() == 0 {
            let status = meet.status.replace(Status::Ok);
            drop(meet);
            self.end(status);
        } else {
            meet.bio.set(Some(self));
        }
    }

    /// Waits until all parts made so far have ended; their first error, after which the bio can be
    /// cut into parts again.
    pub fn parts_done(&self) -> PartsDone<'_> {
        PartsDone(&self.inner().meet)
    }

    /// Gives the bio back to whoever asked, with its result.
    pub fn end(mut self, status: Status) {
        self.finish(status);
    }

    fn finish(&mut self, status: Status) {
        let Some(mut inner) = self.0.take() else { return };
        inner.status = status;
        match std::mem::replace(&mut inner.ender, Ender::Nobody) {
            Ender::Nobody => recycle(inner),
            Ender::Call(end, token) => end.bio_ended(Bio(Some(inner)), token),
            Ender::Parent(parent) => {
                recycle(inner);
                parent.child_ended(status);
            }
            Ender::Awaited => {
                let meet = Rc::clone(&inner.meet);
                if meet.abandoned.replace(false) {
                    return recycle(inner);
                }
                meet.bio.set(Some(Bio(Some(inner))));
                if let Some(waker) = meet.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

fn recycle(mut inner: Box<Inner>) {
    inner.segments = None;
    // A meeting place that somebody still holds is not ready for another use.
    if Rc::strong_count(&inner.meet) > 1 {
        return;
    }
    POOL.with_borrow_mut(|pool| {
        if pool.len() < POOL_MAX {
            pool.push(inner);
        }
    });
}

impl Drop for Bio {
    fn drop(&mut self) {
        let aborted = self.0.as_ref().is_some_and(|inner| !matches!(inner.ender, Ender::Nobody));
        if aborted {
            self.finish(Status::Aborted);
        } else if let Some(inner) = self.0.take() {
            recycle(inner);
        }
    }
}

/// Future of [`Bio::parts_done`].
pub struct PartsDone<'a>(&'a Rc<Meet>);

impl Future for PartsDone<'_> {
    type Output = Status;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Status> {
        if self.0.children.get() == 0 {
            return Poll::Ready(self.0.status.replace(Status::Ok));
        }
        self.0.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Future of [`call`].
pub struct Call(Option<Rc<Meet>>);

/// Submits `bio` at once and returns a future that gives it back when it ended. Look at
/// [`Bio::status`] then. Dropping the future leaves the bio running; its result is lost.
pub fn call(target: &dyn Target, bio: Bio) -> Call {
    call_with(bio, |bio| target.submit(bio))
}

/// As [`call`], for anything that takes a bio.
pub fn call_with(mut bio: Bio, submit: impl FnOnce(Bio)) -> Call {
    let meet = Rc::clone(&bio.inner().meet);
    bio.inner_mut().ender = Ender::Awaited;
    submit(bio);
    Call(Some(meet))
}

impl Future for Call {
    type Output = Bio;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Bio> {
        let meet = self.0.as_ref().expect("a call is not polled after it gave its bio back");
        if let Some(bio) = meet.bio.take() {
            self.0 = None;
            return Poll::Ready(bio);
        }
        meet.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(meet) = self.0.take()
            && meet.bio.take().is_none()
        {
            meet.abandoned.set(true);
        }
    }
}

#[cfg(test)]
mod tests;
