//! Copies of payload, where the work itself is one: into and out of memory that is a device. Every
//! copy that is made of a request's bytes or segments below a frontend is made here or counted here, so
//! that tests can show where there is none.

use std::cell::Cell;

use super::{BvecIter, Segments};

/// What was copied so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes of payload.
    pub bytes: u64,
    /// Segments: entries of arrays that requests got for their own.
    pub segments: u64,
}

thread_local! {
    static COPIED: Cell<Copied> = const { Cell::new(Copied { bytes: 0, segments: 0 }) };
}

/// What was copied on this thread so far.
#[must_use]
pub fn copied() -> Copied {
    COPIED.get()
}

fn count_bytes(bytes: usize) {
    let so_far = COPIED.get();
    COPIED.set(Copied { bytes: so_far.bytes + bytes as u64, ..so_far });
}

/// Counts `segments` that a request got for its own.
pub(crate) fn count_segments(segments: usize) {
    let so_far = COPIED.get();
    COPIED.set(Copied { segments: so_far.segments + segments as u64, ..so_far });
}

/// Copies the payload from the cursor on into `to`; returns the bytes copied.
pub fn copy_out(segments: &Segments, iter: BvecIter, to: &mut [u8]) -> usize {
    let mut at = 0;
    for piece in iter.pieces(segments) {
        let n = (piece.bytes() as usize).min(to.len() - at);
        let (source, dest) = (piece.base(), &mut to[at..at + n]);
        // SAFETY: the piece lies in memory that `segments` keeps alive (I3); `copy` allows that
        // the two overlap; `dest` has exactly `n` bytes.
        unsafe { std::ptr::copy(source, dest.as_mut_ptr(), n) };
        at += n;
        if at == to.len() {
            break;
        }
    }
    count_bytes(at);
    at
}

/// Copies `from` into the payload from the cursor on; returns the bytes copied.
///
/// # Panics
/// When the memory may not be written, which is a bug of whoever made a read over it.
#[expect(clippy::must_use_candidate, reason = "called for what it does")]
pub fn copy_in(segments: &Segments, iter: BvecIter, from: &[u8]) -> usize {
    assert!(segments.writable, "memory that may only be read is not written");
    let mut at = 0;
    for piece in iter.pieces(segments) {
        let n = (piece.bytes() as usize).min(from.len() - at);
        let (source, dest) = (&from[at..at + n], piece.base());
        // SAFETY: as in `copy_out`, in the other direction; nobody holds a reference to payload
        // memory while it is shared (I4).
        unsafe { std::ptr::copy(source.as_ptr(), dest, n) };
        at += n;
        if at == from.len() {
            break;
        }
    }
    count_bytes(at);
    at
}

/// Fills the payload from the cursor on with zeroes.
///
/// # Panics
/// As [`copy_in`].
pub fn zero(segments: &Segments, iter: BvecIter) {
    assert!(segments.writable, "memory that may only be read is not written");
    for piece in iter.pieces(segments) {
        // SAFETY: the piece lies in memory that `segments` keeps alive (I3), unreferenced (I4).
        unsafe { std::ptr::write_bytes(piece.base(), 0, piece.bytes() as usize) };
    }
}
