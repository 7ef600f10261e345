//! Memory mapped in one piece: aligned to 2 MiB and advised to be made of huge pages, which makes
//! it cheaper to map, to walk and to register.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::Common;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size and alignment of a huge page, bytes.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Size of the smallest page of any Linux, bytes.
const PAGE_BYTES: usize = 4096;
/// `madvise(2)`: make huge pages of what is in place, now (6.1). Not in every C library's headers yet.
const MADV_COLLAPSE: libc::c_int = 25;

/// A private, zeroed mapping that is unmapped on drop.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    /// Whether it was found to consist of huge pages only.
    huge: AtomicBool,
}

impl Mapping {
    /// Maps `bytes`, rounded up to whole huge pages; nothing is touched yet.
    ///
    /// # Errors
    /// When the system has no such range.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let length = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) }?;
        let start: *mut u8 = start.cast();
        let lead = start.align_offset(HUGE_PAGE_BYTES);
        let unused = [(0, lead), (lead + bytes, HUGE_PAGE_BYTES - lead)];
        for (offset, length) in unused.into_iter().filter(|&(_, length)| length > 0) {
            let start = start.wrapping_add(offset);
            // SAFETY: the range lies in the mapping just made, outside the part that is kept.
            unsafe { rustix::mm::munmap(start.cast(), length) }?;
        }
        let base = NonNull::new(start.wrapping_add(lead)).expect("a mapping is not at address 0");
        let mapping = Self { base, bytes, huge: AtomicBool::new(false) };
        // SAFETY: advice on the mapping's own range; it does not change what is in it. Where huge
        // pages are switched off, small ones do as well.
        let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(mapping)
    }
}

// SAFETY: a mapping is plain memory that belongs to the process, not to a thread; it gives out its
// address and never a reference.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

// SAFETY: the range stays mapped and in its place until the mapping is dropped. References are made by
// the one owner of a `Region`, or of an array over a piece that nothing else overlaps.
unsafe impl Common for Mapping {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn page_bytes(&self) -> u32 {
        let bytes = if self.huge.load(Ordering::Relaxed) { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        u32::try_from(bytes).expect("pages are shorter than 4 GiB")
    }
}

impl Mapping {
    /// Finds out whether all of it is in place and made of huge pages, and makes them where that is
    /// missing. A backend that registered the memory brought it into place, and keeps it so.
    pub(crate) fn find_pages(&self) {
        // SAFETY: advice on the mapping's own range; it leaves the content as it is.
        let result = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes, MADV_COLLAPSE) };
        self.huge.store(result == 0, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own and nobody can reach it any more: owners of parts
        // hold the mapping.
        let result = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(result.is_ok(), "a mapping can be unmapped");
    }
}

/// Zeroed memory for one owner, of huge pages where the system has them, all in place from the
/// start.
pub struct Region {
    mapping: Mapping,
    bytes: usize,
}

impl Region {
    /// Maps and touches `bytes`.
    ///
    /// # Errors
    /// When the system has not that much memory. More than is free may end the process instead:
    /// the system hands out memory that it does not have.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mut region = Self { mapping: Mapping::new(bytes)?, bytes };
        region.touch()?;
        Ok(region)
    }

    /// Brings every page into memory, so that the first use of none costs a page fault.
    fn touch(&mut self) -> io::Result<()> {
        let (base, bytes) = (self.mapping.base.as_ptr().cast(), self.mapping.bytes);
        // SAFETY: advice on the mapping's own range; it leaves the content as it is.
        match unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL) => {
                for byte in self.as_mut_slice().iter_mut().step_by(PAGE_BYTES) {
                    *byte = std::hint::black_box(0);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable for at least `bytes`, lives as long as `self`, and is
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr(), self.bytes) }
    }

    /// The bytes, to change them.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base.as_ptr(), self.bytes) }
    }
}
