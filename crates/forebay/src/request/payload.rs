//! The payload of requests that are awaited: memory of a pool, in one or several segments, owned.
//!
//! Invariant: while somebody has a [`Payload`], nobody else holds its segments; a request takes it
//! whole and gives it back when the device is done with it.

use std::rc::Rc;

use forebay_block::bvec::{self, SegmentsError};
use forebay_block::{BvecIter, Memory, Sector, Segments};
use forebay_reactor::BufferPool;

/// Most bytes of a segment: the largest buffer of a pool.
const SEGMENT_MAX: u32 = 1 << 30;

/// Owned payload of a request: one or several segments, seen as one run of bytes.
///
/// The array over the segments is made and checked here, once; requests borrow it. A payload is used
/// again and again: that costs nothing, while making one allocates.
///
/// ```
/// use forebay::{BufferPool, Payload};
///
/// let pool = BufferPool::default();
/// let mut payload = Payload::of(&pool, &[512, 4096])?;
/// assert_eq!((payload.bytes(), payload.segments()), (4608, 2));
/// payload.fill(0);
/// payload.segment_mut(1).expect("there are two").fill(7);
/// let content = payload.to_vec();
/// assert_eq!((content[511], content[512]), (0, 7));
/// # Ok::<(), forebay::block::bvec::SegmentsError>(())
/// ```
pub struct Payload(Rc<Segments>);

impl Payload {
    /// Segments of the given lengths in bytes, each in a buffer of `pool` of its own, aligned to 4096.
    /// Their content is whatever it was.
    ///
    /// # Errors
    /// [`SegmentsError`] when there is no segment, one of length 0 or above 1 GiB, or 4 GiB in all.
    ///
    /// # Panics
    /// When the system has no memory left.
    pub fn of(pool: &BufferPool, lengths: &[u32]) -> Result<Self, SegmentsError> {
        if lengths.iter().any(|&bytes| bytes > SEGMENT_MAX) {
            return Err(SegmentsError::TooLong);
        }
        let piece = |&bytes: &u32| -> (Box<dyn Memory>, u32) {
            let Ok(memory) = pool.take(bytes as usize).into_memory() else { unreachable!("nobody shares a fresh buffer") };
            (memory, bytes)
        };
        Segments::each(lengths.iter().map(piece).collect()).map(Self)
    }

    /// As the payload of nobody else.
    pub(super) fn alone(segments: Rc<Segments>) -> Self {
        assert!(Rc::strong_count(&segments) == 1, "whoever ended a request let go of its payload");
        Self(segments)
    }

    pub(super) fn into_segments(self) -> (Rc<Segments>, u32) {
        let bytes = self.bytes();
        (self.0, bytes)
    }

    pub(super) fn shared(&self) -> Rc<Segments> {
        Rc::clone(&self.0)
    }

    /// Length of all segments together, bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.0.bytes()
    }

    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.0.vecs().len()
    }

    /// The bytes of one segment; `None` behind the last.
    ///
    /// # Panics
    /// When a blocking call over this payload was left by a panic while the device worked on it.
    #[must_use]
    pub fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        Rc::get_mut(&mut self.0).expect("no request is on its way over this payload").segment_mut(index)
    }

    fn all(&self) -> BvecIter {
        BvecIter::over(Sector(0), &self.0, 0, self.bytes())
    }

    /// Copies `from` to the start of the payload; gives the bytes copied, fewer where it is shorter.
    pub fn copy_from(&mut self, from: &[u8]) -> usize {
        bvec::copy_in(&self.0, self.all(), from)
    }

    /// Copies the start of the payload into `to`; gives the bytes copied, fewer where it is shorter.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        bvec::copy_out(&self.0, self.all(), to)
    }

    /// A copy of the content.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes() as usize];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Sets every byte.
    ///
    /// # Panics
    /// As [`Payload::segment_mut`].
    pub fn fill(&mut self, byte: u8) {
        let mut index = 0;
        while let Some(segment) = self.segment_mut(index) {
            segment.fill(byte);
            index += 1;
        }
    }
}
