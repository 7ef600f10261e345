//! Memory that payload lives in: what any kind of it promises, and the plain kind.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use super::loan::SharedMemory;

/// Size of the smallest page of any Linux, bytes.
pub(super) const PAGE_BYTES: u32 = 4096;

/// Memory that payload may live in.
///
/// # Safety
/// `base()..base() + len()` must be readable and writable, must not move, must stay valid until the
/// value is dropped, and belongs to the value alone; no reference to it may exist while the value is
/// shared.
pub unsafe trait Memory {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Length, bytes.
    fn len(&self) -> usize;
    /// Size of the pages of the machine that it surely consists of, bytes, a power of two: what starts
    /// at a multiple of it is contiguous for that long.
    fn page_bytes(&self) -> u32 {
        PAGE_BYTES
    }
    /// Whether there is nothing in it.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What it is a part of and other threads may hold; `None` where it is one thread's only.
    fn shared(&self) -> Option<SharedMemory> {
        None
    }
}

/// Plain zeroed heap memory with a chosen alignment: payload where no pool is at hand.
pub struct HeapMemory {
    base: NonNull<u8>,
    layout: Layout,
}

impl HeapMemory {
    /// Allocates `bytes` zeroed bytes at a multiple of `align`.
    ///
    /// # Panics
    /// When `bytes` is 0 or `align` is not a power of two.
    #[must_use]
    pub fn new(bytes: usize, align: usize) -> Self {
        assert!(bytes > 0, "payload memory is never empty");
        let layout = Layout::from_size_align(bytes, align).expect("alignment is a power of two");
        // SAFETY: the layout has a size above 0, checked above.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { base, layout }
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation is owned by the value, does not move with it, and is freed in drop.
unsafe impl Memory for HeapMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}
