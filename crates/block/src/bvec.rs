//! Payload memory as an immutable array of segments, and the cursor that moves over it.
//!
//! ```text
//!   Segments (shared, immutable)      BvecIter (24 bytes, the only thing that moves)
//!   ┌───────┬───────┬───────┐         index ── segment it stands in
//!   │ vec 0 │ vec 1 │ vec 2 │         done  ── bytes of that segment already behind
//!   └───────┴───────┴───────┘         bytes ── bytes left
//! ```
//!
//! Invariants:
//! - I1: a segment is never empty: [`BioVec`] cannot be built with length 0.
//! - I2: the array never changes after it was built; splitting and cloning share it. The compiler
//!   refuses to write to payload that a bio shares:
//!
//!   ```compile_fail,E0596
//!   use forebay_block::{Bio, HeapMemory, Sector, Segments};
//!
//!   let segments = Segments::whole(Box::new(HeapMemory::new(4096, 512)), 4096).unwrap();
//!   let bio = Bio::write(Sector(0), segments.clone(), 0, 4096);
//!   segments.bytes_mut()[0] = 1; // the array is shared with the bio
//!   bio.end(forebay_block::Status::Ok);
//!   ```
//! - I3: the memory of all segments is owned by the [`Segments`] and lives as long as they do, so
//!   a forgotten future or bio keeps it alive and frees nothing that a device may still write. Only
//!   memory that was lent for the length of a call ([`lend_mut`]) has another owner, and that call
//!   does not return before the last bio has let go of it.
//! - I4: Rust references into the memory exist only while one owner holds the [`Segments`]
//!   ([`Segments::bytes_mut`] asks for `&mut`); everything else copies through raw pointers.
//!
//! Source: the facts of the kernel's `include/linux/bvec.h` and `Documentation/block/biovecs.rst`.
#![expect(unsafe_code, reason = "raw memory segments are made and copied here and nowhere else in this crate")]

mod copy;
mod lend;
mod loan;
mod memory;

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::rc::Rc;

pub(crate) use self::copy::count_segments;
pub use self::copy::{Copied, copied, copy_in, copy_out, zero};
pub use self::lend::{Source, lend, lend_mut};
pub use self::loan::{Common, Loan, SharedMemory};
use self::memory::PAGE_BYTES;
pub use self::memory::{HeapMemory, Memory};
use crate::unit::{SECTOR_BYTES, SECTOR_SHIFT, Sector};

/// Bits of a byte count that are not whole sectors.
const SECTOR_MASK: u32 = SECTOR_BYTES - 1;

/// One segment of payload memory: where it starts and how many bytes it has, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioVec {
    base: NonNull<u8>,
    bytes: NonZeroU32,
    /// Bytes of the payload before it.
    start: u32,
}

impl BioVec {
    /// Address of the first byte. Only devices and backends have a use for it.
    #[must_use]
    #[inline]
    pub fn base(self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length, bytes; at least 1.
    #[must_use]
    #[inline]
    pub fn bytes(self) -> u32 {
        self.bytes.get()
    }

    fn part(self, skip: u32, bytes: u32) -> Self {
        assert!(skip + bytes <= self.bytes.get(), "a part of a segment lies inside it");
        // SAFETY: `skip` is below the segment's length, so the result points into the same memory.
        let base = unsafe { self.base.add(skip as usize) };
        Self { base, bytes: NonZeroU32::new(bytes).expect("a part of a segment is not empty"), start: self.start + skip }
    }
}

/// Why a segment array was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentsError {
    /// A segment of length 0 (I1), or no segment at all.
    Empty,
    /// A segment that reaches beyond its memory.
    Outside,
    /// More than 4 GiB - 1 in all.
    TooLong,
}

impl std::fmt::Display for SegmentsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Empty => "a segment is empty: leave it out",
            Self::Outside => "a segment reaches beyond its memory",
            Self::TooLong => "the segments hold 4 GiB or more: split the request",
        })
    }
}

impl std::error::Error for SegmentsError {}

/// What keeps the memory of a segment array alive.
enum Keeper {
    /// The array, which owns one piece of memory.
    One(Box<dyn Memory>),
    /// The array, which owns a piece of memory for each segment.
    Each(#[expect(dead_code, reason = "held, so that the segments stay valid")] Box<[Box<dyn Memory>]>),
    /// Several threads, of which another has lent it to this one.
    Thread(SharedMemory),
    /// Whoever lent it, for the length of a call.
    Lender,
}

/// An immutable array of segments together with the memory they lie in.
pub struct Segments {
    vecs: Vec<BioVec>,
    bytes: u32,
    /// Length of every segment but the last, when they are all alike; else 0.
    uniform: u32,
    /// Bits set in the address of any segment, or in a length beyond whole sectors, so that
    /// alignment is known without a walk.
    address_bits: usize,
    /// Size of the pages that all memory surely consists of, bytes.
    page_bytes: u32,
    /// Whether the memory may be written: by reads of a device.
    writable: bool,
    keeper: Keeper,
}

impl Segments {
    /// One segment over the first `bytes` of `memory`.
    ///
    /// # Errors
    /// [`SegmentsError`] when `bytes` is 0 or more than the memory holds.
    pub fn whole(memory: Box<dyn Memory>, bytes: u32) -> Result<Rc<Self>, SegmentsError> {
        Self::ranges(memory, &[(0, bytes)])
    }

    /// Segments over the given `(offset, length)` byte ranges of `memory`, in that order.
    ///
    /// # Errors
    /// [`SegmentsError`] names what is wrong; nothing is built then.
    pub fn ranges(memory: Box<dyn Memory>, ranges: &[(usize, u32)]) -> Result<Rc<Self>, SegmentsError> {
        let mut array = Self::empty(ranges.len());
        for &(offset, bytes) in ranges {
            array.add(&*memory, offset, bytes)?;
        }
        array.page_bytes = memory.page_bytes();
        array.keeper = Keeper::One(memory);
        array.checked()
    }

    /// One segment over the first bytes of each piece of memory, as many as stand beside it.
    ///
    /// # Errors
    /// As [`Segments::ranges`].
    pub fn each(memories: Vec<(Box<dyn Memory>, u32)>) -> Result<Rc<Self>, SegmentsError> {
        let mut array = Self::empty(memories.len());
        for (memory, bytes) in &memories {
            array.add(&**memory, 0, *bytes)?;
        }
        array.page_bytes = memories.iter().map(|(memory, _)| memory.page_bytes()).min().unwrap_or(PAGE_BYTES);
        array.keeper = Keeper::Each(memories.into_iter().map(|(memory, _)| memory).collect());
        array.checked()
    }

    fn empty(room: usize) -> Self {
        let vecs = Vec::with_capacity(room);
        let (keeper, page_bytes) = (Keeper::Lender, PAGE_BYTES);
        Self { vecs, bytes: 0, uniform: 0, address_bits: 0, page_bytes, writable: true, keeper }
    }

    /// Adds the `bytes` at `offset` of `memory`, which the array must come to keep.
    fn add(&mut self, memory: &dyn Memory, offset: usize, bytes: u32) -> Result<(), SegmentsError> {
        let bytes = NonZeroU32::new(bytes).ok_or(SegmentsError::Empty)?;
        let end = offset.checked_add(bytes.get() as usize).ok_or(SegmentsError::Outside)?;
        if end > memory.len() {
            return Err(SegmentsError::Outside);
        }
        // SAFETY: `offset` lies inside the memory, checked just above.
        let base = unsafe { memory.base().add(offset) };
        self.push(base, bytes)
    }

    fn push(&mut self, base: NonNull<u8>, bytes: NonZeroU32) -> Result<(), SegmentsError> {
        let start = self.bytes;
        self.bytes = start.checked_add(bytes.get()).ok_or(SegmentsError::TooLong)?;
        self.address_bits |= base.as_ptr() as usize | (bytes.get() & SECTOR_MASK) as usize;
        self.vecs.push(BioVec { base, bytes, start });
        Ok(())
    }

    fn checked(mut self) -> Result<Rc<Self>, SegmentsError> {
        if self.vecs.is_empty() {
            return Err(SegmentsError::Empty);
        }
        self.uniform = uniform_bytes(&self.vecs);
        Ok(Rc::new(self))
    }

    /// The segments.
    #[must_use]
    #[inline]
    pub fn vecs(&self) -> &[BioVec] {
        &self.vecs
    }

    /// Length of all segments together, bytes; known without a walk.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Size of the machine's pages that the memory surely consists of, bytes, a power of two: see
    /// [`Memory::page_bytes`].
    #[must_use]
    #[inline]
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Whether a device may write to the memory. Memory that was lent for a write may only be read.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// All memory as one slice, for an owner that shares the array with nobody (I4).
    ///
    /// # Panics
    /// When the segments lie in several pieces of memory: look at [`Segments::segment_mut`] then.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Keeper::One(memory) = &self.keeper else { panic!("only an array over one piece of memory is one slice") };
        // SAFETY: `Memory` promises valid memory for its length; `&mut self` means that no bio,
        // device or iterator shares this array, so nothing else touches the bytes meanwhile.
        unsafe { std::slice::from_raw_parts_mut(memory.base().as_ptr(), memory.len()) }
    }

    /// The bytes of one segment, for an owner that shares the array with nobody (I4); `None` behind
    /// the last.
    ///
    /// # Panics
    /// When another thread lends the memory, which is a bug.
    #[must_use]
    pub fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        assert!(!matches!(self.keeper, Keeper::Thread(_)), "memory that another thread lends is not referred to");
        let vec = *self.vecs.get(index)?;
        // SAFETY: the keeper keeps the segment's memory valid; `&mut self` means, as in `bytes_mut`,
        // that nothing else touches it meanwhile, and that there is one such slice at a time. Lent
        // arrays are never owned alone: their lender holds them, too.
        Some(unsafe { std::slice::from_raw_parts_mut(vec.base(), vec.bytes() as usize) })
    }

    /// Segment that holds byte `at` of the payload, and the bytes of it before that; the end counts
    /// to the last. O(1) in uniform arrays, else O(log n): nothing walks.
    fn locate(&self, at: u32) -> (u32, u32) {
        let index = match at.checked_div(self.uniform) {
            Some(index) => (index as usize).min(self.vecs.len() - 1),
            None => self.vecs.partition_point(|vec| vec.start <= at) - 1,
        };
        (narrow(index as u64), at - self.vecs[index].start)
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("a position inside a segment array fits 32 bits")
}

fn uniform_bytes(vecs: &[BioVec]) -> u32 {
    let Some((last, rest)) = vecs.split_last() else { return 0 };
    let Some(first) = rest.first() else { return last.bytes() };
    let alike = rest.iter().all(|vec| vec.bytes() == first.bytes()) && last.bytes() <= first.bytes();
    if alike { first.bytes() } else { 0 }
}

/// A cursor was asked to move beyond its end; it stands at the end now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastEnd;

/// The cursor of a request: where on the device, how much is left, where in the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BvecIter {
    /// Next sector on the device.
    pub sector: Sector,
    /// Bytes left.
    pub bytes: u64,
    index: u32,
    done: u32,
}

impl BvecIter {
    /// A cursor over `bytes` bytes that begin `skip` bytes into `segments`.
    ///
    /// # Panics
    /// When the range is not inside the segments.
    #[must_use]
    #[inline]
    pub fn over(sector: Sector, segments: &Segments, skip: u32, bytes: u32) -> Self {
        assert!(u64::from(skip) + u64::from(bytes) <= u64::from(segments.bytes), "a bio's payload lies inside its segments");
        let (index, done) = if skip == 0 { (0, 0) } else { segments.locate(skip) };
        Self { sector, bytes: u64::from(bytes), index, done }
    }

    /// A cursor for an operation without payload.
    #[must_use]
    #[inline]
    pub fn bare(sector: Sector, bytes: u64) -> Self {
        Self { sector, bytes, index: 0, done: 0 }
    }

    /// Bytes of `segments` before the cursor.
    #[must_use]
    #[inline]
    pub fn skip(&self, segments: &Segments) -> u32 {
        segments.vecs[self.index as usize].start + self.done
    }

    /// Moves by `bytes`: O(1) inside a segment and in uniform arrays, else O(log n). Steps need not be whole
    /// sectors as long as the length is: the end stands on a sector, and `sector` is the one that
    /// holds the next byte.
    ///
    /// # Errors
    /// [`PastEnd`] when fewer bytes are left; the cursor then stands at its end.
    pub fn advance(&mut self, segments: Option<&Segments>, bytes: u64) -> Result<(), PastEnd> {
        let step = bytes.min(self.bytes);
        // Bytes of the current sector that are behind: with 1,200 left of 1,536, the cursor stands
        // 336 into its sector, and 200 further is one sector and 24.
        let behind = self.bytes.wrapping_neg() & u64::from(SECTOR_MASK);
        self.sector = Sector(self.sector.0 + ((behind + step) >> SECTOR_SHIFT));
        self.bytes -= step;
        if let Some(segments) = segments {
            let inside = segments.vecs[self.index as usize];
            let done = u64::from(self.done) + step;
            if done < u64::from(inside.bytes()) {
                self.done = narrow(done);
            } else {
                (self.index, self.done) = segments.locate(narrow(u64::from(inside.start) + done));
            }
        }
        if step < bytes { Err(PastEnd) } else { Ok(()) }
    }

    /// The segments from here on, cut to what is left.
    #[must_use]
    #[inline]
    pub fn pieces<'a>(&self, segments: &'a Segments) -> Pieces<'a> {
        self.pieces_of(&segments.vecs)
    }

    /// As [`BvecIter::pieces`], over a copy of the array.
    #[inline]
    pub(crate) fn pieces_of<'a>(&self, vecs: &'a [BioVec]) -> Pieces<'a> {
        Pieces { vecs, index: self.index as usize, done: self.done, left: self.bytes }
    }

    /// Whether what is left starts, in every segment, on a multiple of `align` bytes (a power of
    /// two), and has lengths that are multiples of `align` or of a sector, whichever is less. A
    /// walk only where a segment outside of what is left may be the one that is misaligned.
    #[must_use]
    #[inline]
    pub fn is_aligned(&self, segments: &Segments, align: u32) -> bool {
        let mask = u64::from(align) - 1;
        let fits = |base: u64, bytes: u64| (base | (bytes & u64::from(SECTOR_MASK))) & mask == 0;
        fits(segments.address_bits as u64 | u64::from(self.done), self.bytes)
            || self.pieces(segments).all(|piece| fits(piece.base() as u64, u64::from(piece.bytes())))
    }

    /// How many segments are left from here on, known without a walk.
    #[must_use]
    #[inline]
    pub fn segments_left(&self, segments: &Segments) -> u32 {
        if self.bytes == 0 {
            return 0;
        }
        let inside = segments.vecs[self.index as usize];
        let end = u64::from(self.done) + self.bytes;
        if end <= u64::from(inside.bytes()) {
            return 1;
        }
        let (last, _) = segments.locate(narrow(u64::from(inside.start) + end - 1));
        last - self.index + 1
    }
}

/// Iterator over what is left of a payload, segment by segment.
#[derive(Clone, Default)]
pub struct Pieces<'a> {
    vecs: &'a [BioVec],
    index: usize,
    done: u32,
    left: u64,
}

impl Iterator for Pieces<'_> {
    type Item = BioVec;

    fn next(&mut self) -> Option<BioVec> {
        if self.left == 0 {
            return None;
        }
        let vec = *self.vecs.get(self.index)?;
        let room = u64::from(vec.bytes() - self.done).min(self.left);
        let piece = vec.part(self.done, narrow(room));
        self.left -= room;
        self.index += 1;
        self.done = 0;
        Some(piece)
    }
}

#[cfg(test)]
mod tests;
