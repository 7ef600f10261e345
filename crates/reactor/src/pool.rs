//! Payload buffers: taken from a pool, given back on drop, never allocated in the steady state.
//!
//! A [`Buffer`] is a payload array of one segment whose length is the next power of two. Bios share
//! its segments; a buffer that is dropped while a bio still holds them is used again only after
//! that bio has let go.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{HeapMemory, Segments};

/// Smallest buffer, bytes: the alignment that direct I/O asks for at most.
const CLASS_MIN_BYTES: usize = 4096;

#[derive(Default)]
struct Shelves {
    free: Vec<Vec<Rc<Segments>>>,
    limbo: Vec<(usize, Rc<Segments>)>,
}

/// A pool of payload buffers for one thread.
#[derive(Clone, Default)]
pub struct BufferPool(Rc<RefCell<Shelves>>);

/// Payload memory on loan from a [`BufferPool`].
pub struct Buffer {
    segments: Option<Rc<Segments>>,
    class: usize,
    pool: BufferPool,
}

impl BufferPool {
    /// A buffer of at least `bytes` bytes, from 1 to 1 GiB. Its content is whatever it was.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Buffer {
        let class = bytes.max(CLASS_MIN_BYTES).next_power_of_two();
        let shelf = (class / CLASS_MIN_BYTES).trailing_zeros() as usize;
        let mut shelves = self.0.borrow_mut();
        while shelves.free.len() <= shelf {
            shelves.free.push(Vec::new());
        }
        let mut at = 0;
        while at < shelves.limbo.len() {
            if Rc::strong_count(&shelves.limbo[at].1) == 1 {
                let (shelf, segments) = shelves.limbo.swap_remove(at);
                shelves.free[shelf].push(segments);
            } else {
                at += 1;
            }
        }
        let segments = shelves.free[shelf].pop().unwrap_or_else(|| {
            let memory = HeapMemory::new(class, CLASS_MIN_BYTES);
            let bytes = u32::try_from(class).expect("buffers are at most 1 GiB");
            Segments::whole(Box::new(memory), bytes).expect("a class is not empty")
        });
        Buffer { segments: Some(segments), class: shelf, pool: self.clone() }
    }
}

impl Buffer {
    /// The payload array, to build bios on.
    #[must_use]
    pub fn segments(&self) -> &Rc<Segments> {
        self.segments.as_ref().expect("a buffer holds its memory until it is dropped")
    }

    /// The bytes, while no bio shares them.
    ///
    /// # Panics
    /// When a bio still holds the payload: its I/O has not ended.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let segments = self.segments.as_mut().expect("a buffer holds its memory until it is dropped");
        Rc::get_mut(segments).expect("no bio holds the payload while its bytes are looked at").bytes_mut()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(segments) = self.segments.take() else { return };
        let mut shelves = self.pool.0.borrow_mut();
        if Rc::strong_count(&segments) == 1 {
            shelves.free[self.class].push(segments);
        } else {
            shelves.limbo.push((self.class, segments));
        }
    }
}
