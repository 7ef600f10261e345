//! One request to a server, from its arrival until it is answered, on whatever connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use forebay_block::{BvecIter, Sector, bvec};
use forebay_nbd::StatusExtent;
use forebay_nbd::client::Ask;
use forebay_reactor::{Part, Tag};

/// Who is told when it is done.
pub(super) enum Whom {
    /// The reactor, about this request.
    Reactor(Tag),
    /// Who asked for a block status.
    Status(Rc<StatusAnswer>),
}

/// One request to a server.
pub(super) struct Work {
    pub(super) whom: Whom,
    pub(super) ask: Ask,
    /// First byte.
    pub(super) offset: u64,
    /// Length, bytes.
    pub(super) bytes: u64,
    /// Memory to fill or to send, in order.
    pub(super) parts: Vec<Part>,
    /// Place in the order of arrival.
    pub(super) arrived: u64,
    /// When it was sent in full: those of a batch all at once, [`Duration::MAX`] until then.
    pub(super) started: Duration,
    /// Batch of its connection that it left with.
    pub(super) batch: u64,
    /// How many changes had been acknowledged when a flush left: it covers these.
    pub(super) covers: u64,
    /// Losses of the server that count against it.
    pub(super) losses: u32,
    /// A write with FUA on a server without: followed by a flush, which it becomes, before it counts as done.
    pub(super) then_flush: bool,
    /// A change that was there when connections were lost; what is later and overlaps it waits.
    pub(super) replayed: bool,
}

impl Work {
    /// Whether it changes what the server stores.
    pub(super) fn changes(&self) -> bool {
        matches!(self.ask, Ask::Write { .. } | Ask::Trim | Ask::WriteZeroes { .. })
    }

    /// Whether payload follows its header.
    pub(super) fn has_payload(&self) -> bool {
        matches!(self.ask, Ask::Write { .. })
    }

    /// Bytes of payload in either direction.
    pub(super) fn payload_bytes(&self) -> u64 {
        if matches!(self.ask, Ask::Read | Ask::Write { .. }) { self.bytes } else { 0 }
    }

    /// Whether the two share a byte.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.ask != Ask::Flush && self.offset < end && start < self.end()
    }

    /// Behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    /// Appends the memory of `bytes` bytes of the payload from byte `skip` on to `parts`.
    pub(super) fn slice(&self, skip: u32, bytes: u32, parts: &mut Vec<Part>) {
        self.each(skip, bytes, |part| parts.push(part));
    }

    /// Copies `from` into the payload from byte `skip` on.
    pub(super) fn copy_in(&self, skip: u32, mut from: &[u8]) {
        let bytes = u32::try_from(from.len()).expect("received bytes fit an input buffer");
        self.each(skip, bytes, |part| {
            let iter = BvecIter::over(Sector(0), &part.segments, part.skip, part.bytes);
            let copied = bvec::copy_in(&part.segments, iter, from);
            from = from.get(copied..).unwrap_or_default();
        });
    }

    /// Fills `bytes` bytes of the payload from byte `skip` on with zeroes.
    pub(super) fn zero(&self, skip: u32, bytes: u32) {
        self.each(skip, bytes, |part| {
            bvec::zero(&part.segments, BvecIter::over(Sector(0), &part.segments, part.skip, part.bytes));
        });
    }

    fn each(&self, mut skip: u32, mut bytes: u32, mut take: impl FnMut(Part)) {
        for part in &self.parts {
            if bytes == 0 {
                break;
            }
            if skip >= part.bytes {
                skip -= part.bytes;
                continue;
            }
            let length = bytes.min(part.bytes - skip);
            take(Part { segments: Rc::clone(&part.segments), skip: part.skip + skip, bytes: length });
            bytes -= length;
            skip = 0;
        }
    }
}

/// Where the answer to a block status is left.
#[derive(Default)]
pub(super) struct StatusAnswer {
    pub(super) extents: RefCell<Option<Vec<StatusExtent>>>,
    pub(super) waker: Cell<Option<Waker>>,
}

impl StatusAnswer {
    pub(super) fn give(&self, extents: Vec<StatusExtent>) {
        *self.extents.borrow_mut() = Some(extents);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
