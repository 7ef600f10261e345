//! Requests: what a backend is asked to do, as plain data in fixed slots.
//!
//! A request carries either bios for one device (several when the plug merged them) or one step on
//! a stream (a socket, an eventfd). It stays in its slot until the backend reports it done, so the
//! memory that the kernel works on belongs to the slot and never to a future.
//!
//! Units: `offset` and `bytes` are bytes. A result is a byte count, 0, or a negated errno.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;

use forebay_block::bvec::Pieces;
use forebay_block::{Bio, BioVec, BvecIter, Sector, Segments};

use crate::stream::Held;

/// Index of a device known to a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u16);

/// Most memory segments of one system call (`IOV_MAX`).
const SEGMENTS_MAX: usize = 1024;

/// Slot of a request; names it to the backend while it is in flight.
pub type Tag = u32;

/// What a backend is asked. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Read a device into the bios' payload.
    Read,
    /// Write the bios' payload.
    Write {
        /// Durable before done.
        fua: bool,
    },
    /// Make done writes durable.
    Flush,
    /// Give the range's space back; it reads as anything it held, or zeroes.
    Discard,
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Keep the space allocated.
        no_unmap: bool,
    },
    /// Receive into the parts.
    Receive,
    /// Send the parts.
    Send,
    /// Wait until the descriptor is readable.
    Readable,
}

/// A piece of payload for a stream: `bytes` of `segments` from byte `skip` on.
#[derive(Clone)]
pub struct Part {
    /// Whose memory.
    pub segments: Rc<Segments>,
    /// First byte.
    pub skip: u32,
    /// Length; not 0.
    pub bytes: u32,
}

impl Part {
    /// The memory, segment by segment.
    fn pieces(&self) -> Pieces<'_> {
        BvecIter::over(Sector(0), &self.segments, self.skip, self.bytes).pieces(&self.segments)
    }

    /// Takes `bytes` off the front of `parts`: those that a step has moved.
    /// Where there are fewer, none is left.
    #[expect(clippy::missing_panics_doc, reason = "what is less than a part's bytes fits where they do")]
    pub fn drop_front(parts: &mut Vec<Self>, bytes: usize) {
        let mut left = bytes;
        let mut whole = 0;
        for part in parts.iter_mut() {
            let bytes = part.bytes as usize;
            if left < bytes {
                let skip = u32::try_from(left).expect("less than the part");
                part.skip += skip;
                part.bytes -= skip;
                break;
            }
            left -= bytes;
            whole += 1;
        }
        parts.drain(..whole);
    }
}

/// One step on a stream.
pub struct Stream {
    /// The descriptor; kept open until the step is done.
    pub file: Rc<OwnedFd>,
    /// Memory to receive into or to send, in order.
    pub parts: Vec<Part>,
    pub(crate) reply: Held,
}

/// Where the result of a stream step is left for the future that waits for it.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) result: Cell<Option<(i32, Vec<Part>)>>,
    pub(crate) waker: Cell<Option<Waker>>,
    /// Nobody waits any more: the parts are freed with the request.
    pub(crate) abandoned: Cell<bool>,
}

/// What a backend is asked to do, and for whom.
pub struct Request {
    /// What.
    pub kind: Kind,
    /// Device, for block requests.
    pub device: DeviceId,
    /// First byte on the device that is still to be done.
    pub offset: u64,
    /// Bytes still to be done.
    pub bytes: u64,
    /// Bytes of the first bio's payload that earlier, short results have done.
    pub skip: u64,
    /// The bios served, in order of their sectors; those of a merged request adjoin.
    pub bios: Vec<Bio>,
    /// The stream step, for stream requests.
    pub stream: Option<Stream>,
    /// How often the kernel asked to try again.
    pub(crate) retries: u32,
}

impl Request {
    /// The payload memory that is still to be done, segment by segment, in order.
    ///
    /// # Panics
    /// When `skip` reaches beyond the first bio, which is a bug.
    pub fn pieces(&self) -> impl Iterator<Item = BioVec> + '_ {
        let skip = self.skip;
        self.bios.iter().enumerate().flat_map(move |(at, bio)| {
            let mut iter = bio.iter();
            let segments = bio.segments().map(|segments| &**segments);
            if at == 0 && skip > 0 {
                iter.advance(segments, skip).expect("a short result is shorter than its bio");
            }
            segments.map(|segments| iter.pieces(segments)).unwrap_or_default()
        })
    }
}

impl Request {
    /// Lists the payload memory that is still to be done, or the parts of the stream step, for the
    /// kernel: in order, adjoining pieces as one, at most [`SEGMENTS_MAX`]. What is beyond that is
    /// left to the retry of a short result.
    pub(crate) fn gather(&self, vectors: &mut Vec<libc::iovec>) {
        vectors.clear();
        match &self.stream {
            Some(stream) => append(vectors, stream.parts.iter().flat_map(Part::pieces)),
            None => append(vectors, self.pieces()),
        }
    }
}

fn append(vectors: &mut Vec<libc::iovec>, pieces: impl Iterator<Item = BioVec>) {
    for piece in pieces {
        let bytes = piece.bytes() as usize;
        if let Some(last) = vectors.last_mut()
            && last.iov_base as usize + last.iov_len == piece.base() as usize
        {
            last.iov_len += bytes;
        } else if vectors.len() < SEGMENTS_MAX {
            vectors.push(libc::iovec { iov_base: piece.base().cast(), iov_len: bytes });
        } else {
            break;
        }
    }
}

/// The slots.
#[derive(Default)]
pub struct Requests {
    slots: Vec<Request>,
    free: Vec<Tag>,
}

impl Requests {
    /// The request in slot `tag`.
    ///
    /// # Panics
    /// When there is no such slot: a backend invented a tag.
    #[must_use]
    pub fn get(&self, tag: Tag) -> &Request {
        &self.slots[tag as usize]
    }

    pub(crate) fn get_mut(&mut self, tag: Tag) -> &mut Request {
        &mut self.slots[tag as usize]
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a free slot for a request; its list of bios is empty and keeps its memory.
    pub(crate) fn take(&mut self, kind: Kind, device: DeviceId, offset: u64, bytes: u64) -> Tag {
        let tag = self.free.pop().unwrap_or_else(|| {
            let tag = Tag::try_from(self.slots.len()).expect("fewer than 2^32 requests are in flight");
            self.slots.push(Request { kind, device, offset, bytes, skip: 0, bios: Vec::new(), stream: None, retries: 0 });
            tag
        });
        let slot = self.get_mut(tag);
        assert!(slot.bios.is_empty() && slot.stream.is_none(), "a free slot holds nothing");
        slot.kind = kind;
        slot.device = device;
        slot.offset = offset;
        slot.bytes = bytes;
        slot.skip = 0;
        slot.retries = 0;
        tag
    }

    /// Gives a slot back; what it held must have been taken out.
    pub(crate) fn release(&mut self, tag: Tag) {
        let slot = self.get(tag);
        assert!(slot.bios.is_empty() && slot.stream.is_none(), "a request is released empty");
        self.free.push(tag);
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::{HeapMemory, Segments};

    use super::*;

    #[test]
    fn what_was_sent_leaves_the_front() {
        let segments = Segments::whole(Box::new(HeapMemory::new(4096, 8)), 4096).unwrap();
        for sent in 0..=30 {
            let part = |skip, bytes| Part { segments: Rc::clone(&segments), skip, bytes };
            let mut parts = vec![part(5, 10), part(100, 1), part(200, 19)];
            let all: Vec<u32> = parts.iter().flat_map(|part| part.skip..part.skip + part.bytes).collect();
            Part::drop_front(&mut parts, sent);
            let left: Vec<u32> = parts.iter().flat_map(|part| part.skip..part.skip + part.bytes).collect();
            assert_eq!(left, all[sent..], "{sent}");
            assert!(parts.iter().all(|part| part.bytes > 0));
        }
    }
}
