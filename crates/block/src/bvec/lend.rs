//! Lending plain slices to requests for the length of a call.
//!
//! ```text
//!   lend_mut(slices, |segments| … submit … wait …)     the slices are the caller's again
//!              └─ an array over them ─┘ └─ nobody holds the array any more, or the process ends
//! ```
//!
//! Invariants:
//! - I1: a lent array is held by its lender as well, so nobody can own it alone; when the call is
//!   over, also by a panic, nobody else holds it. A device that still works on the memory has a bio,
//!   and a bio holds the array: where one was forgotten or left in flight, the process ends rather
//!   than give back memory that may still be written.
//! - I2: memory that was lent for reading only is never written: the array says so, and
//!   [`Bio::read`](crate::Bio::read) refuses it.
//! - I3: warm calls allocate nothing: the array is used again.
//!
//! Only calls that wait can borrow. A future can be forgotten at any point, and then nothing waits.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::rc::Rc;

use super::copy::count_segments;
use super::{Segments, SegmentsError, uniform_bytes};

/// Where the payload of a new request lies.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// In an array that is ready.
    Prepared(&'a Segments),
    /// In slices to be read.
    Slices(&'a [IoSlice<'a>]),
    /// In slices to be written.
    SlicesMut(&'a [IoSliceMut<'a>]),
}

impl Source<'_> {
    /// How many segments a request must have of its own: none where it borrows a ready array, else
    /// one for each slice that is not empty.
    #[must_use]
    pub fn segments_to_own(self) -> usize {
        match self {
            Self::Prepared(_) => 0,
            Self::Slices(slices) => slices.iter().filter(|slice| !slice.is_empty()).count(),
            Self::SlicesMut(slices) => slices.iter().filter(|slice| !slice.is_empty()).count(),
        }
    }
}

/// Lends `slices` as payload of writes while `call` runs. Empty slices are left out.
///
/// Ends the process when something still holds the array after the call (I1).
///
/// # Errors
/// [`SegmentsError`] when all slices are empty, or hold 4 GiB or more; `call` does not run then.
pub fn lend<R>(slices: &[IoSlice<'_>], call: impl FnOnce(&Rc<Segments>) -> R) -> Result<R, SegmentsError> {
    let mut hold = Hold::new(Source::Slices(slices), false);
    for slice in slices {
        hold.add(NonNull::from(&**slice))?;
    }
    hold.during(call)
}

/// Lends `slices` as payload of reads and writes while `call` runs. Empty slices are left out.
///
/// Ends the process when something still holds the array after the call (I1).
///
/// # Errors
/// As [`lend`].
pub fn lend_mut<R>(slices: &mut [IoSliceMut<'_>], call: impl FnOnce(&Rc<Segments>) -> R) -> Result<R, SegmentsError> {
    let mut hold = Hold::new(Source::SlicesMut(slices), true);
    for slice in slices {
        hold.add(NonNull::from(&mut **slice))?;
    }
    hold.during(call)
}

thread_local! {
    /// An array without segments, for the next loan of this thread (I3).
    static SPARE: Cell<Option<Rc<Segments>>> = const { Cell::new(None) };
}

/// The lender's hold on a lent array.
struct Hold(Rc<Segments>);

impl Hold {
    fn new(source: Source<'_>, writable: bool) -> Self {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut hold = Self(spare.unwrap_or_else(|| Rc::new(Segments::empty(0))));
        let array = hold.array();
        array.vecs.reserve(source.segments_to_own());
        array.writable = writable;
        hold
    }

    fn array(&mut self) -> &mut Segments {
        Rc::get_mut(&mut self.0).expect("nobody has seen the array yet")
    }

    fn add(&mut self, slice: NonNull<[u8]>) -> Result<(), SegmentsError> {
        let bytes = u32::try_from(slice.len()).map_err(|_| SegmentsError::TooLong)?;
        let Some(bytes) = NonZeroU32::new(bytes) else { return Ok(()) };
        self.array().push(slice.cast(), bytes)
    }

    fn during<R>(mut self, call: impl FnOnce(&Rc<Segments>) -> R) -> Result<R, SegmentsError> {
        let array = self.array();
        if array.vecs.is_empty() {
            return Err(SegmentsError::Empty);
        }
        array.uniform = uniform_bytes(&array.vecs);
        count_segments(array.vecs.len());
        Ok(call(&self.0))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(array) = Rc::get_mut(&mut self.0) else {
            eprintln!("a request still works on memory that was lent for a call that is over: the process ends");
            std::process::abort();
        };
        array.vecs.clear();
        array.bytes = 0;
        array.address_bits = 0;
        let spare = Rc::clone(&self.0);
        // While the thread ends there is no next hold.
        let _ = SPARE.try_with(|place| place.set(Some(spare)));
    }
}

#[cfg(test)]
mod tests;
