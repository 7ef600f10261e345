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
//!   with [`Status::Aborted`]. It ends for one: who must wait for somebody else's bio makes a part.
//! - I2: payload segments are shared with children, never copied; only the cursor is cut.
//! - I3: a parent ends after its last child, with the first error.
//! - I4: bios come from a pool of their thread: making and ending one allocates nothing once warm.

use std::cell::RefCell;
use std::rc::Rc;

use crate::bvec::{self, BioVec, BvecIter, Segments};
use crate::unit::{Extent, SECTOR_SHIFT, Sector, SectorCount};

mod meet;

use meet::Meet;
pub use meet::{Call, PartsDone, call, call_with};

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
#[expect(clippy::struct_excessive_bools, reason = "modifiers are independent of each other")]
pub struct Flags {
    /// The write is durable before it ends.
    pub fua: bool,
    /// Keep this bio out of merges.
    pub nomerge: bool,
    /// File-system metadata, as far as the caller knows.
    pub meta: bool,
    /// Write-zeroes must leave the space allocated.
    pub no_unmap: bool,
    /// End with [`Status::Again`], with nothing done, rather than be cut into several requests.
    pub no_wait: bool,
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
    #[inline]
    pub fn is_ok(self) -> bool {
        self == Self::Ok
    }

    /// The first error of two results in order.
    #[must_use]
    #[inline]
    pub fn and(self, later: Status) -> Status {
        if self.is_ok() { later } else { self }
    }
}

/// Something that is told when a bio ended.
pub trait End {
    /// Takes the ended bio back; `token` is what was given to [`Bio::on_end`].
    fn bio_ended(&self, bio: Bio, token: u64);
}

struct Inner {
    op: Op,
    flags: Flags,
    status: Status,
    iter: BvecIter,
    segments: Option<Rc<Segments>>,
    /// A copy of the array, where one was asked for.
    copied: Option<Box<[BioVec]>>,
    /// Who takes it back when it ends, and what to tell him. At most one of this, `parent` and
    /// `awaited` is there (I1).
    end: Option<Rc<dyn End>>,
    token: u64,
    /// Whose part it is.
    parent: Option<Rc<Meet>>,
    /// Whether a future takes it back.
    awaited: bool,
    meet: Rc<Meet>,
}

thread_local! {
    /// Ended bios of this thread, ready for the next use (I4).
    #[expect(clippy::vec_box, reason = "a bio moves as one pointer, and the box is what is used again")]
    static POOL: RefCell<Vec<Box<Inner>>> = const { RefCell::new(Vec::new()) };
}

/// Bios kept for reuse on a thread; more than this many in flight at once are freed again.
const POOL_MAX: usize = 4096;

/// One block operation in flight.
pub struct Bio(Option<Box<Inner>>);

impl Bio {
    #[inline]
    fn new(op: Op, iter: BvecIter, segments: Option<Rc<Segments>>) -> Self {
        let mut inner = blank();
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
    /// When that range is not inside the segments, or their memory may not be written.
    #[must_use]
    #[inline]
    pub fn read(sector: Sector, segments: Rc<Segments>, skip: u32, bytes: u32) -> Self {
        assert!(segments.is_writable(), "a read writes to its payload");
        Self::new(Op::Read, BvecIter::over(sector, &segments, skip, bytes), Some(segments))
    }

    /// Writes `bytes` of `segments` from byte `skip` on.
    ///
    /// # Panics
    /// When that range is not inside the segments.
    #[must_use]
    #[inline]
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

    #[inline]
    fn inner(&self) -> &Inner {
        self.0.as_ref().expect("a bio holds its state until it ends")
    }

    #[inline]
    fn inner_mut(&mut self) -> &mut Inner {
        self.0.as_mut().expect("a bio holds its state until it ends")
    }

    /// Sets the modifiers.
    #[must_use]
    #[inline]
    pub fn with(mut self, flags: Flags) -> Self {
        self.inner_mut().flags = flags;
        self
    }

    /// Says who takes the bio back when it ends. A part that gets its own end this way no longer
    /// counts as a part of its parent.
    ///
    /// # Panics
    /// When the bio already ends for somebody else (I1).
    #[must_use]
    #[inline]
    pub fn on_end(mut self, end: Rc<dyn End>, token: u64) -> Self {
        self.leave_parent();
        let inner = self.inner_mut();
        inner.end = Some(end);
        inner.token = token;
        self
    }

    /// Gives the bio a copy of its segment array: one allocation and one pass over the segments, held
    /// until it ends. Nothing needs it; it is the switch that measures what borrowing saves. Parts
    /// share the array that was borrowed.
    #[must_use]
    pub fn with_copied_segments(mut self) -> Self {
        let inner = self.inner_mut();
        inner.copied = inner.segments.as_ref().map(|segments| segments.vecs().into());
        bvec::count_segments(inner.copied.as_ref().map_or(0, |copied| copied.len()));
        self
    }

    /// Makes room for somebody who takes the bio back: a parent need not wait for it any more.
    #[inline]
    fn leave_parent(&mut self) {
        let inner = self.inner_mut();
        assert!(inner.end.is_none() && !inner.awaited, "a bio ends for one: wait for a part of it instead (I1)");
        if let Some(parent) = inner.parent.take() {
            parent.child_ended(Status::Ok);
        }
    }

    /// What is asked.
    #[must_use]
    #[inline]
    pub fn op(&self) -> Op {
        self.inner().op
    }

    /// The modifiers.
    #[must_use]
    #[inline]
    pub fn flags(&self) -> Flags {
        self.inner().flags
    }

    /// The result, once ended.
    #[must_use]
    #[inline]
    pub fn status(&self) -> Status {
        self.inner().status
    }

    /// The cursor.
    #[must_use]
    #[expect(clippy::iter_not_returning_iterator, reason = "the kernel's word for the cursor")]
    #[inline]
    pub fn iter(&self) -> BvecIter {
        self.inner().iter
    }

    /// First sector.
    #[must_use]
    #[inline]
    pub fn sector(&self) -> Sector {
        self.inner().iter.sector
    }

    /// Bytes left.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.inner().iter.bytes
    }

    /// The range on the device, in sectors.
    #[must_use]
    #[inline]
    pub fn extent(&self) -> Extent {
        Extent::new(self.sector(), SectorCount(self.bytes() >> SECTOR_SHIFT))
    }

    /// The payload array, for reads and writes.
    #[must_use]
    #[inline]
    pub fn segments(&self) -> Option<&Rc<Segments>> {
        self.inner().segments.as_ref()
    }

    /// Segments of payload memory left; 0 without payload.
    #[must_use]
    #[inline]
    pub fn segments_left(&self) -> u32 {
        self.segments().map_or(0, |segments| self.iter().segments_left(segments))
    }

    /// Whether every segment of the payload starts and ends on a multiple of `align` bytes, a
    /// power of two; true without payload. Answered without a walk.
    #[must_use]
    #[inline]
    pub fn memory_aligned(&self, align: u32) -> bool {
        self.segments().is_none_or(|segments| self.iter().is_aligned(segments, align))
    }

    /// The payload memory, segment by segment; empty without payload.
    #[must_use]
    pub fn pieces(&self) -> bvec::Pieces<'_> {
        let inner = self.inner();
        match (&inner.copied, &inner.segments) {
            (Some(copied), _) => inner.iter.pieces_of(copied),
            (None, Some(segments)) => inner.iter.pieces(segments),
            (None, None) => bvec::Pieces::default(),
        }
    }

    /// Copies the payload of a write into `to`; returns the bytes copied.
    pub fn copy_out(&self, to: &mut [u8]) -> usize {
        self.segments().map_or(0, |segments| bvec::copy_out(segments, self.iter(), to))
    }

    /// Fills the payload of a read from `from`; returns the bytes copied.
    #[expect(clippy::must_use_candidate, reason = "called for what it does")]
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
    #[inline]
    pub fn remap(mut self, sector: Sector) -> Self {
        self.inner_mut().iter.sector = sector;
        self
    }

    /// A child over `bytes` of this bio from byte `skip` on, sharing its payload (I2). The parent
    /// must be given to [`Bio::end_after_parts`], or [`Bio::parts_done`] awaited.
    ///
    /// # Panics
    /// When the range is not inside the bio, or not whole sectors.
    #[must_use]
    pub fn part(&self, skip: u64, bytes: u64) -> Bio {
        let inner = self.inner();
        let end = skip.checked_add(bytes).expect("a part of a bio lies inside it");
        assert!(end <= inner.iter.bytes, "a part of a bio lies inside it");
        assert!(skip.is_multiple_of(512), "a bio is cut at sectors");
        assert!(bytes.is_multiple_of(512), "a part of a bio is whole sectors");
        let mut iter = inner.iter;
        iter.advance(inner.segments.as_deref(), skip).expect("inside, checked above");
        iter.bytes = bytes;
        let mut child = Self::new(inner.op, iter, inner.segments.clone());
        child.inner_mut().flags = inner.flags;
        inner.meet.child_made();
        child.inner_mut().parent = Some(Rc::clone(&inner.meet));
        child
    }

    /// Cuts this bio short after `bytes` and returns the rest of it as this bio: the front becomes
    /// a child. As the kernel does when it splits at a limit.
    ///
    /// # Panics
    /// When fewer are left, or they are not whole sectors.
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
        assert!(bytes.is_multiple_of(512), "a bio is cut at sectors");
        let inner = self.inner_mut();
        inner.iter.advance(inner.segments.as_deref(), bytes).expect("only what is there can be done");
    }

    /// Ends this bio as soon as all its parts have ended: with the first error (I3).
    pub fn end_after_parts(self) {
        match self.inner().meet.take_if_none_left() {
            Some(status) => self.end(status),
            None => Rc::clone(&self.inner().meet).park(self),
        }
    }

    /// Waits until all parts made so far have ended; their first error, after which the bio can be
    /// cut into parts again.
    #[must_use = "a future does nothing until it is awaited"]
    pub fn parts_done(&self) -> PartsDone<'_> {
        PartsDone::new(&self.inner().meet)
    }

    /// Gives the bio back to whoever asked, with its result.
    #[inline]
    pub fn end(mut self, status: Status) {
        self.finish(status);
    }

    fn finish(&mut self, status: Status) {
        let Some(mut inner) = self.0.take() else { return };
        inner.status = status;
        if let Some(end) = inner.end.take() {
            let token = inner.token;
            end.bio_ended(Bio(Some(inner)), token);
        } else if let Some(parent) = inner.parent.take() {
            recycle(inner);
            parent.child_ended(status);
        } else if std::mem::take(&mut inner.awaited) && !inner.meet.was_abandoned() {
            Rc::clone(&inner.meet).give_back(Bio(Some(inner)));
        } else {
            recycle(inner);
        }
    }
}

/// A bio's state from the pool, or a new one.
#[expect(clippy::unnecessary_box_returns, reason = "the box is what the pool keeps")]
fn blank() -> Box<Inner> {
    let pooled = POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten();
    pooled.unwrap_or_else(|| {
        Box::new(Inner {
            op: Op::Flush,
            flags: Flags::default(),
            status: Status::Ok,
            iter: BvecIter::bare(Sector(0), 0),
            segments: None,
            copied: None,
            end: None,
            token: 0,
            parent: None,
            awaited: false,
            meet: Rc::default(),
        })
    })
}

fn recycle(mut inner: Box<Inner>) {
    inner.segments = None;
    inner.copied = None;
    // A meeting place that somebody still holds is not ready for another use.
    if Rc::strong_count(&inner.meet) > 1 {
        return;
    }
    inner.meet.reset();
    // Bios may outlive the pool while their thread ends; they are freed then.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < POOL_MAX {
            pool.push(inner);
        }
    });
}

impl Drop for Bio {
    fn drop(&mut self) {
        let expected = |inner: &Inner| inner.end.is_some() || inner.parent.is_some() || inner.awaited;
        if self.0.as_deref().is_some_and(expected) {
            self.finish(Status::Aborted);
        } else if let Some(inner) = self.0.take() {
            recycle(inner);
        }
    }
}

#[cfg(test)]
mod tests;
