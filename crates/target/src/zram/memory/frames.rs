//! Frames: pages of memory, taken one by one out of large chunks.
//!
//! ```text
//!   chunk 0   ████░░██        a frame is number of chunk × 512 + place in it
//!   chunk 1   ░░░░░░░░  ◀─ all free: given back to the system, but for one
//! ```
//!
//! 1. The lowest chunk with a free frame is used first, so that the highest empty out.
//! 2. Chunks begin small, so that little data takes little memory, and grow to 2 MiB, where the
//!    system has huge pages. All of a chunk is in memory from the start.

use std::collections::BTreeSet;

use forebay_reactor::Region;

use super::classes::PAGE;

/// Frames in the largest chunk.
const CHUNK_FRAMES: usize = 512;
/// Frames in the first chunk.
const FIRST_FRAMES: usize = 16;

/// Number of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame(pub(super) u32);

impl Frame {
    fn chunk(self) -> usize {
        self.0 as usize / CHUNK_FRAMES
    }

    fn place(self) -> usize {
        self.0 as usize % CHUNK_FRAMES
    }
}

/// Memory of one chunk.
enum Memory {
    /// Less than a huge page.
    Small(Box<[u8]>),
    /// A huge page, where the system has them.
    Large(Region),
}

impl Memory {
    /// `None` when the system has no memory left.
    fn new(frames: usize) -> Option<Self> {
        if frames < CHUNK_FRAMES {
            return Some(Self::Small(vec![0; frames * PAGE].into_boxed_slice()));
        }
        Region::new(CHUNK_FRAMES * PAGE).ok().map(Self::Large)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(region) => region.as_slice(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(region) => region.as_mut_slice(),
        }
    }
}

/// A chunk: memory, while it has some, and the places in it that are free.
struct Chunk {
    memory: Option<Memory>,
    frames: usize,
    free: Vec<u16>,
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.free.len() == self.frames
    }
}

/// All frames of a disk.
#[derive(Default)]
pub(super) struct Frames {
    chunks: Vec<Chunk>,
    /// Chunks with memory and a free frame.
    open: BTreeSet<usize>,
    /// Chunks without memory.
    gone: BTreeSet<usize>,
    used: usize,
}

impl Frames {
    /// A frame with whatever was in it; `None` when the system has no memory left.
    pub(super) fn take(&mut self) -> Option<Frame> {
        let at = match self.open.first() {
            Some(&at) => at,
            None => self.grow()?,
        };
        let chunk = &mut self.chunks[at];
        let place = chunk.free.pop().expect("an open chunk has a free frame");
        if chunk.free.is_empty() {
            self.open.remove(&at);
        }
        self.used += 1;
        Some(Frame(u32::try_from(at * CHUNK_FRAMES + usize::from(place)).expect("a disk has fewer than 2^32 frames")))
    }

    /// Gives a frame back.
    pub(super) fn give(&mut self, frame: Frame) {
        let at = frame.chunk();
        let chunk = &mut self.chunks[at];
        chunk.free.push(u16::try_from(frame.place()).expect("a place in a chunk is below 512"));
        self.used -= 1;
        let surplus = chunk.is_empty() && self.open.iter().any(|&open| open != at && self.chunks[open].is_empty());
        if surplus {
            self.chunks[at].memory = None;
            self.open.remove(&at);
            self.gone.insert(at);
        } else {
            self.open.insert(at);
        }
    }

    /// The content of a frame.
    pub(super) fn bytes(&self, frame: Frame) -> &[u8] {
        let memory = self.chunks[frame.chunk()].memory.as_ref().expect("a used frame has memory");
        &memory.bytes()[frame.place() * PAGE..][..PAGE]
    }

    /// The content of a frame, to change it.
    pub(super) fn bytes_mut(&mut self, frame: Frame) -> &mut [u8] {
        let memory = self.chunks[frame.chunk()].memory.as_mut().expect("a used frame has memory");
        &mut memory.bytes_mut()[frame.place() * PAGE..][..PAGE]
    }

    /// Frames in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Memory taken from the system, bytes: chunks, used or not, and what describes them.
    pub(super) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.iter().filter(|chunk| chunk.memory.is_some());
        let chunk_bytes: usize = chunks.map(|chunk| chunk.frames * PAGE + chunk.free.capacity() * 2).sum();
        chunk_bytes + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Makes memory for another chunk, and opens it.
    fn grow(&mut self) -> Option<usize> {
        let (at, frames) = match self.gone.first() {
            Some(&at) => (at, self.chunks[at].frames),
            None => (self.chunks.len(), (FIRST_FRAMES << self.chunks.len().min(8)).min(CHUNK_FRAMES)),
        };
        let memory = Some(Memory::new(frames)?);
        let free = (0..u16::try_from(frames).expect("a chunk has at most 512 frames")).rev().collect();
        let chunk = Chunk { memory, frames, free };
        if self.gone.remove(&at) {
            self.chunks[at] = chunk;
        } else {
            self.chunks.push(chunk);
        }
        self.open.insert(at);
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    #[test]
    fn frames_are_apart_and_keep_what_is_in_them() {
        let mut frames = Frames::default();
        let taken: Vec<Frame> = (0..3000).map(|_| frames.take().unwrap()).collect();
        for (number, &frame) in taken.iter().enumerate() {
            frames.bytes_mut(frame).fill((number % 251) as u8);
        }
        assert_eq!(frames.used(), 3000);
        for (number, &frame) in taken.iter().enumerate() {
            assert!(frames.bytes(frame).iter().all(|&byte| byte == (number % 251) as u8), "frame {number}");
        }
    }

    #[test]
    fn little_data_takes_little_memory_and_empty_chunks_go_back() {
        let mut frames = Frames::default();
        let first = frames.take().unwrap();
        assert!(frames.memory_bytes() < 70_000, "{}", frames.memory_bytes());
        let others: Vec<Frame> = (0..20_000).map(|_| frames.take().unwrap()).collect();
        assert!(frames.memory_bytes() > 20_000 * PAGE);
        others.into_iter().for_each(|frame| frames.give(frame));
        assert!(frames.memory_bytes() < 4 << 20, "{}", frames.memory_bytes());
        frames.give(first);
        assert_eq!(frames.used(), 0);
        let again: Vec<Frame> = (0..20_000).map(|_| frames.take().unwrap()).collect();
        assert_eq!((frames.used(), again.len()), (20_000, 20_000));
    }
}
