//! Payload buffers: taken from a pool, given back on drop, never allocated in the steady state.
//!
//! ```text
//!   take(bytes) ─▶ shelf of the next power of two ─▶ Buffer ── drop ─▶ shelf
//!                        │ empty                        └─ a bio still holds it ─▶ limbo ─▶ shelf
//!                        ▼
//!                 cut from a region: mapped, offered to the backend for registration
//! ```
//!
//! A [`Buffer`] is a payload array of one segment whose length is the next power of two. Bios share
//! its segments.
//!
//! Invariants:
//! - I1: a buffer that is dropped while a bio holds its segments is used again only after that bio
//!   has let go.
//! - I2: a region that was offered to a backend stays mapped as long as the backend lives, so that
//!   its registration never means other memory.
//! - I3: taking never fails; [`BufferPool::bytes_out`] is there for those who must limit it.
//!
//! Regions begin small and double, so that a small daemon stays small: 4, 8, 16, 32, 32 … MiB.
#![expect(unsafe_code, reason = "payload memory is mapped here")]

mod region;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BioVec, Common, Memory, Segments, SharedMemory};

pub(crate) use self::region::Mapping;
pub use self::region::Region;
use crate::turn::{Reactor, WeakReactor};

/// Smallest buffer, bytes: the alignment that direct I/O asks for at most.
const CLASS_MIN_BYTES: usize = 4096;
/// Largest buffer, bytes: what a backend registers at most in one piece.
const CLASS_MAX_BYTES: usize = 1 << 30;
/// Size of the first region, bytes.
const REGION_MIN_BYTES: usize = 4 << 20;
/// Size of later regions, bytes; larger buffers get one of their own.
const REGION_MAX_BYTES: usize = 32 << 20;
/// Shelves: one per power of two from the smallest to the largest buffer.
const SHELVES: usize = (CLASS_MAX_BYTES / CLASS_MIN_BYTES).trailing_zeros() as usize + 1;
/// Buffers in limbo that a take looks at: more than it adds, so that limbo drains.
const LIMBO_LOOKS: usize = 2;

/// Buffers of one size.
#[derive(Default)]
struct Shelf {
    free: Vec<Rc<Segments>>,
    limbo: VecDeque<Rc<Segments>>,
}

/// A region and how much of it has been cut off.
struct Room {
    mapping: Arc<Mapping>,
    used: usize,
}

struct Store {
    shelves: [Shelf; SHELVES],
    rooms: Vec<Room>,
    next_bytes: usize,
    bytes_out: usize,
    reactor: Option<WeakReactor>,
}

/// A pool of payload buffers for one thread.
#[derive(Clone)]
pub struct BufferPool(Rc<RefCell<Store>>);

/// Payload memory on loan from a [`BufferPool`].
pub struct Buffer {
    segments: Option<Rc<Segments>>,
    shelf: usize,
    pool: BufferPool,
}

/// A piece of a region.
struct Piece {
    mapping: Arc<Mapping>,
    offset: usize,
    bytes: usize,
}

// SAFETY: a piece lies inside its mapping, which it keeps alive and which does not move; pieces of
// a mapping do not overlap, and nothing else makes references into it.
unsafe impl Memory for Piece {
    fn base(&self) -> NonNull<u8> {
        // SAFETY: the offset was cut from inside the mapping.
        unsafe { self.mapping.base().add(self.offset) }
    }
    fn len(&self) -> usize {
        self.bytes
    }
    fn shared(&self) -> Option<SharedMemory> {
        Some(Arc::clone(&self.mapping) as SharedMemory)
    }
    fn page_bytes(&self) -> u32 {
        self.mapping.page_bytes()
    }
}

/// A buffer that is the memory of a payload: nobody else holds it, and nobody gets hold of it.
struct Alone(Buffer);

// SAFETY: the buffer's memory is its piece of a region, which does not move and is kept until the
// buffer is dropped. `Buffer::into_memory` saw that nobody shares it, and inside of here nobody comes
// to.
unsafe impl Memory for Alone {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.only().base()).expect("memory is not at address 0")
    }
    fn len(&self) -> usize {
        self.0.only().bytes() as usize
    }
    fn page_bytes(&self) -> u32 {
        self.0.segments().page_bytes()
    }
}

impl Default for BufferPool {
    /// A pool whose memory is not offered to any backend.
    fn default() -> Self {
        Self::over(None)
    }
}

impl BufferPool {
    /// A pool whose memory the reactor's backend may register.
    #[must_use]
    pub fn new(reactor: &Reactor) -> Self {
        Self::over(Some(reactor.downgrade()))
    }

    fn over(reactor: Option<WeakReactor>) -> Self {
        let shelves = std::array::from_fn(|_| Shelf::default());
        let store = Store { shelves, rooms: Vec::new(), next_bytes: REGION_MIN_BYTES, bytes_out: 0, reactor };
        Self(Rc::new(RefCell::new(store)))
    }

    /// A buffer of at least `bytes` bytes. Its content is whatever it was.
    ///
    /// # Panics
    /// When more than 1 GiB is asked for, or the system has no memory left.
    #[must_use]
    pub fn take(&self, bytes: usize) -> Buffer {
        assert!(bytes <= CLASS_MAX_BYTES, "buffers are at most 1 GiB");
        let class = bytes.max(CLASS_MIN_BYTES).next_power_of_two();
        let number = (class / CLASS_MIN_BYTES).trailing_zeros() as usize;
        let mut store = self.0.borrow_mut();
        store.settle(number, LIMBO_LOOKS);
        let free = store.shelves[number].free.pop();
        let segments = free.unwrap_or_else(|| store.cut(class));
        store.bytes_out += class;
        Buffer { segments: Some(segments), shelf: number, pool: self.clone() }
    }

    /// Bytes on loan, those included that a bio holds beyond its buffer's end.
    #[must_use]
    pub fn bytes_out(&self) -> usize {
        let mut store = self.0.borrow_mut();
        for number in 0..SHELVES {
            store.settle(number, usize::MAX);
        }
        store.bytes_out
    }
}

impl Store {
    /// Moves buffers that no bio holds any more from limbo to their shelf; looks at `most` of them.
    fn settle(&mut self, number: usize, most: usize) {
        let Shelf { free, limbo } = &mut self.shelves[number];
        for _ in 0..most.min(limbo.len()) {
            let Some(segments) = limbo.pop_front() else { break };
            if Rc::strong_count(&segments) == 1 {
                free.push(segments);
                self.bytes_out -= CLASS_MIN_BYTES << number;
            } else {
                limbo.push_back(segments);
            }
        }
    }

    /// Cuts a new buffer from a region with room, or from a new region.
    fn cut(&mut self, bytes: usize) -> Rc<Segments> {
        let fits = |room: &Room| room.mapping.bytes() - room.used >= bytes;
        let at = self.rooms.iter().position(fits).unwrap_or_else(|| {
            let mapping = Arc::new(Mapping::new(bytes.max(self.next_bytes)).expect("the system has memory left"));
            self.next_bytes = (self.next_bytes * 2).min(REGION_MAX_BYTES);
            if let Some(reactor) = self.reactor.as_ref().and_then(WeakReactor::upgrade) {
                reactor.offer_memory(&(Arc::clone(&mapping) as SharedMemory));
                mapping.find_pages();
            }
            self.rooms.push(Room { mapping, used: 0 });
            self.rooms.len() - 1
        });
        let room = &mut self.rooms[at];
        let piece = Piece { mapping: Arc::clone(&room.mapping), offset: room.used, bytes };
        room.used += bytes;
        let bytes = u32::try_from(bytes).expect("at most CLASS_MAX_BYTES");
        Segments::whole(Box::new(piece), bytes).expect("a piece is not empty")
    }
}

impl Buffer {
    /// The payload array, to build bios on.
    ///
    /// # Panics
    /// Never: a buffer holds its memory until it is dropped.
    #[must_use]
    pub fn segments(&self) -> &Rc<Segments> {
        self.segments.as_ref().expect("a buffer holds its memory until it is dropped")
    }

    /// The one segment that a buffer is.
    fn only(&self) -> BioVec {
        *self.segments().vecs().first().expect("an array has a segment")
    }

    /// Makes the buffer a piece of memory for a payload of several; it goes back to its pool with the
    /// payload.
    ///
    /// # Errors
    /// The buffer itself, when a bio still holds it: its I/O has not ended.
    pub fn into_memory(self) -> Result<Box<dyn Memory>, Self> {
        if Rc::strong_count(self.segments()) > 1 || Rc::weak_count(self.segments()) > 0 {
            return Err(self);
        }
        Ok(Box::new(Alone(self)))
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
        let mut store = self.pool.0.borrow_mut();
        if Rc::strong_count(&segments) == 1 {
            store.bytes_out -= CLASS_MIN_BYTES << self.shelf;
            store.shelves[self.shelf].free.push(segments);
        } else {
            store.shelves[self.shelf].limbo.push_back(segments);
        }
    }
}

#[cfg(test)]
mod tests;
