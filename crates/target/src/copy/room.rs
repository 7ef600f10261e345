//! Room for slices: bytes in flight are bounded, and a slice can always be copied.
//!
//! ```text
//!   take(bytes) ─▶ first in the queue? bytes left? ─▶ buffer from the pool ─▶ Room ── drop ─▶ next in the queue
//!                                                 └─ the pool has lent its share ─▶ the reserve
//! ```
//!
//! Invariants:
//! - I1: rooms are given in the order in which they were asked for, so that large ones get their turn.
//! - I2: where the pool may run out, one buffer for the largest slice is kept in reserve. While it is
//!   out, a slice of this engine is in flight and will give it back: whoever waits here waits for a
//!   slice, never for strangers.
//! - I3: the reserve is used again only when no bio holds its memory any more.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use forebay_block::Segments;
use forebay_reactor::{Buffer, BufferPool};

/// Who hands out room.
pub(super) struct Rooms {
    pool: BufferPool,
    /// Largest slice, bytes.
    piece_bytes: usize,
    /// Most bytes in flight.
    most: u64,
    /// Bytes that the pool may have lent to all its users when more is taken from it.
    pool_bytes_max: usize,
    taken: Cell<u64>,
    reserve: RefCell<Option<Buffer>>,
    queue: RefCell<VecDeque<(u64, Waker)>>,
    tickets: Cell<u64>,
}

impl Rooms {
    pub(super) fn new(pool: &BufferPool, piece_bytes: usize, most: u64, pool_bytes_max: usize) -> Self {
        let reserve = RefCell::new((pool_bytes_max < usize::MAX).then(|| pool.take(piece_bytes)));
        let most = most.max(piece_bytes as u64);
        let pool = pool.clone();
        let (taken, queue, tickets) = (Cell::default(), RefCell::default(), Cell::default());
        Self { pool, piece_bytes, most, pool_bytes_max, taken, reserve, queue, tickets }
    }

    /// Bytes in flight.
    pub(super) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// Room for `bytes`, at most a slice.
    pub(super) fn take(&self, bytes: usize) -> Take<'_> {
        assert!(bytes <= self.piece_bytes, "a slice is cut before it asks for room");
        Take { rooms: self, bytes, ticket: None }
    }

    fn try_take(&self, bytes: usize) -> Option<Room<'_>> {
        if self.most - self.taken.get() < bytes as u64 {
            return None;
        }
        let lent = |pool: &BufferPool| pool.bytes_out().saturating_add(bytes);
        let open = self.pool_bytes_max == usize::MAX || lent(&self.pool) <= self.pool_bytes_max;
        let buffer = if open { Some(self.pool.take(bytes)) } else { self.reserve.borrow_mut().take() };
        let room = Room { rooms: self, buffer, bytes, reserve: !open };
        room.buffer.is_some().then(|| {
            self.taken.set(self.taken.get() + bytes as u64);
            room
        })
    }

    fn wake_first(&self) {
        if let Some((_, waker)) = self.queue.borrow().front() {
            waker.wake_by_ref();
        }
    }
}

/// Future of [`Rooms::take`].
pub(super) struct Take<'a> {
    rooms: &'a Rooms,
    bytes: usize,
    ticket: Option<u64>,
}

impl<'a> Future for Take<'a> {
    type Output = Room<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Room<'a>> {
        let rooms = self.rooms;
        let first = rooms.queue.borrow().front().map(|(ticket, _)| *ticket);
        if (first.is_none() || first == self.ticket)
            && let Some(room) = rooms.try_take(self.bytes)
        {
            if self.ticket.take().is_some() {
                rooms.queue.borrow_mut().pop_front();
            }
            rooms.wake_first();
            return Poll::Ready(room);
        }
        let mut queue = rooms.queue.borrow_mut();
        if let Some(mine) = self.ticket {
            let place = queue.iter_mut().find(|(ticket, _)| *ticket == mine);
            place.expect("a ticket stays in the queue until its room").1.clone_from(cx.waker());
        } else {
            let ticket = rooms.tickets.get();
            rooms.tickets.set(ticket + 1);
            queue.push_back((ticket, cx.waker().clone()));
            self.ticket = Some(ticket);
        }
        Poll::Pending
    }
}

impl Drop for Take<'_> {
    fn drop(&mut self) {
        let Some(mine) = self.ticket else { return };
        self.rooms.queue.borrow_mut().retain(|(ticket, _)| *ticket != mine);
        self.rooms.wake_first();
    }
}

/// Room for one slice; given back on drop.
pub(super) struct Room<'a> {
    rooms: &'a Rooms,
    buffer: Option<Buffer>,
    bytes: usize,
    reserve: bool,
}

impl Room<'_> {
    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("a room has its buffer until it is dropped")
    }

    /// Its memory.
    pub(super) fn segments(&self) -> &Rc<Segments> {
        self.buffer().segments()
    }

    /// What is in it; `None` while a bio holds it.
    pub(super) fn content(&mut self) -> Option<&[u8]> {
        if Rc::strong_count(self.segments()) > 1 {
            return None;
        }
        let bytes = self.bytes;
        self.buffer.as_mut().and_then(|buffer| buffer.bytes_mut().get(..bytes))
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        if self.reserve {
            let held = Rc::strong_count(buffer.segments()) > 1;
            let reserve = if held { self.rooms.pool.take(self.rooms.piece_bytes) } else { buffer };
            self.rooms.reserve.borrow_mut().replace(reserve);
        }
        self.rooms.taken.set(self.rooms.taken.get() - self.bytes as u64);
        self.rooms.wake_first();
    }
}
