//! Payload that a thread lends to another: the memory is shared, the segment arrays are not.
//!
//! ```text
//!   lender:   Bio ── loan() ─▶ Loan { memory, skip, bytes } ──▶ borrower: Segments::borrowed(memory)
//!             stays with the lender until the borrower is done          bios on it from `skip` on
//! ```
//!
//! 1. The memory lives as long as either side holds it, whatever happens to the other thread.
//! 2. Rust references into it are made by the lender alone, and only while no bio of the lender
//!    holds it ([`Segments::bytes_mut`] and [`Segments::segment_mut`] refuse a borrower).
//! 3. Who touches the bytes when is agreed on by messages: the lender leaves them alone from the
//!    loan until the borrower's answer, as with a device that moves them by itself.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::memory::PAGE_BYTES;
use super::{Keeper, Segments, SegmentsError};
use crate::bio::Bio;

/// Memory that payload of several threads may lie in.
///
/// # Safety
/// `base()..base() + len()` must be readable and writable, must not move, and must stay valid until
/// the value is dropped. Whoever makes a reference into it must know that nobody else uses those
/// bytes meanwhile.
pub unsafe trait Common: Send + Sync {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Length, bytes; not 0.
    fn bytes(&self) -> usize;
    /// As [`Memory::page_bytes`](super::Memory::page_bytes).
    fn page_bytes(&self) -> u32 {
        PAGE_BYTES
    }
}

/// Payload memory that several threads may hold.
pub type SharedMemory = Arc<dyn Common>;

/// A run of payload on its way to another thread.
#[derive(Clone)]
pub struct Loan {
    /// The memory that it lies in.
    pub memory: SharedMemory,
    /// Its first byte, from the start of the memory.
    pub skip: u32,
    /// Its length, bytes; not 0.
    pub bytes: u32,
}

impl Segments {
    /// One segment over the whole of another thread's memory, at most 4 GiB - 1 of it. Bios on it
    /// take loans; nobody gets a reference into it.
    ///
    /// # Errors
    /// [`SegmentsError`] when it is empty or too long.
    pub fn borrowed(memory: SharedMemory) -> Result<Rc<Self>, SegmentsError> {
        let bytes = u32::try_from(memory.bytes()).map_err(|_| SegmentsError::TooLong)?;
        let mut array = Self::empty(1);
        array.push(memory.base(), NonZeroU32::new(bytes).ok_or(SegmentsError::Empty)?)?;
        array.page_bytes = memory.page_bytes();
        array.keeper = Keeper::Thread(memory);
        array.checked()
    }

    /// The memory around it that other threads may hold; `None` where it is this thread's only.
    fn shared(&self) -> Option<SharedMemory> {
        match &self.keeper {
            Keeper::One(memory) => memory.shared(),
            Keeper::Thread(memory) => Some(Arc::clone(memory)),
            Keeper::Each(_) | Keeper::Lender => None,
        }
    }
}

impl Bio {
    /// What is left of the payload, to be worked on by another thread; `None` where it is not one
    /// run of memory that threads may share, or there is none.
    #[must_use]
    pub fn loan(&self) -> Option<Loan> {
        let memory = self.segments()?.shared()?;
        let mut pieces = self.pieces();
        let (first, None) = (pieces.next()?, pieces.next()) else { return None };
        let skip = (first.base() as usize).checked_sub(memory.base().as_ptr() as usize)?;
        Some(Loan { skip: u32::try_from(skip).ok()?, bytes: first.bytes(), memory })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HeapMemory, Memory};
    use super::*;
    use crate::bio::Status;
    use crate::unit::Sector;

    struct Plain(HeapMemory);

    // SAFETY: plain memory, which nobody refers to.
    unsafe impl Send for Plain {}
    // SAFETY: as above.
    unsafe impl Sync for Plain {}
    // SAFETY: as the memory inside.
    unsafe impl Common for Plain {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        fn bytes(&self) -> usize {
            self.0.len()
        }
    }

    /// The only array of a thread over memory that others may hold.
    struct Part(Arc<Plain>);

    // SAFETY: as the memory inside, of which it is the only part.
    unsafe impl Memory for Part {
        fn base(&self) -> NonNull<u8> {
            self.0.base()
        }
        fn len(&self) -> usize {
            self.0.bytes()
        }
        fn shared(&self) -> Option<SharedMemory> {
            Some(Arc::clone(&self.0) as SharedMemory)
        }
    }

    #[test]
    fn a_borrower_on_another_thread_reads_and_fills_what_was_lent() {
        let memory = Part(Arc::new(Plain(HeapMemory::new(8192, 512))));
        let mut segments = Segments::ranges(Box::new(memory), &[(4096, 4096)]).unwrap();
        Rc::get_mut(&mut segments).unwrap().bytes_mut()[4096 + 512..].fill(7);
        let bio = Bio::write(Sector(0), Rc::clone(&segments), 512, 1024);
        let loan = bio.loan().unwrap();
        assert_eq!((loan.skip, loan.bytes), (4096 + 512, 1024));
        let seen = std::thread::scope(|scope| {
            let work = move || {
                let segments = Segments::borrowed(Arc::clone(&loan.memory)).unwrap();
                let write = Bio::write(Sector(0), Rc::clone(&segments), loan.skip, loan.bytes);
                let mut seen = vec![0; 1024];
                assert_eq!(write.copy_out(&mut seen), 1024);
                write.end(Status::Ok);
                let read = Bio::read(Sector(0), segments, loan.skip, loan.bytes);
                read.copy_in(&[9; 1024]);
                read.end(Status::Ok);
                seen
            };
            scope.spawn(work).join().unwrap()
        });
        assert_eq!(seen, [7; 1024]);
        let mut now = vec![0; 1024];
        bio.copy_out(&mut now);
        assert_eq!(now, [9; 1024]);
        bio.end(Status::Ok);
    }

    #[test]
    #[should_panic(expected = "another thread lends")]
    fn a_borrower_gets_no_reference() {
        let mut segments = Segments::borrowed(Arc::new(Plain(HeapMemory::new(512, 512)))).unwrap();
        let _ = Rc::get_mut(&mut segments).unwrap().segment_mut(0);
    }

    #[test]
    fn memory_of_one_thread_is_not_lent() {
        let segments = Segments::whole(Box::new(HeapMemory::new(512, 512)), 512).unwrap();
        let bio = Bio::write(Sector(0), segments, 0, 512);
        assert!(bio.loan().is_none());
        bio.end(Status::Ok);
    }
}
