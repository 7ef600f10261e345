//! The memory of a compressed RAM disk: objects of 1 to 4096 bytes, packed so that nothing lies
//! empty between them.
//!
//! ```text
//!   class of 1680 bytes     │ object 0 │ object 1 │ object 2 │ … │ last │
//!   its frames              │ frame       │ frame       │ frame       │      4096 bytes each
//!   remove object 1:        the last one moves into its place
//! ```
//!
//! Invariants:
//! - I1: the objects of a class stand at places 0 to count-1 without a gap. A class takes
//!   `ceil(count × stride / 4096)` frames, which is never more than the kernel's allocator needs for
//!   as many objects of that class, however they came and went: there is nothing to compact. Only where many go one
//!   after the other ([`Objects::remove_later`]), gaps stay until [`Objects::close_gaps`], so that none
//!   is moved that goes next.
//! - I2: an object begins with the number of the page that owns it, so that who moves it can say whose
//!   place changed.
//! - I3: an object of [`HUGE_BYTES`] or more has a frame of its own and never moves.
//!
//! A place is the number of an object in its class, or of its frame. Nothing here knows of codecs or
//! disks; see [`classes`] for the sizes and [`frames`] for where memory comes from.

mod classes;
mod frames;
mod gaps;

pub use self::classes::HUGE_BYTES;
pub(super) use self::classes::PAGE;
use self::classes::{ClassId, Classes};
use self::frames::{Frame, Frames};
use self::gaps::Gaps;

/// Bytes of an owner's number.
const OWNER: usize = classes::HEAD;

/// An object that moved: its owner must note the new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) owner: u32,
    pub(super) place: u64,
}

#[derive(Default)]
struct Class {
    /// Places, gaps included.
    count: usize,
    frames: Vec<Frame>,
    gaps: Gaps,
}

/// The system has no memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoMemory;

/// All objects of a disk.
pub(super) struct Objects {
    sizes: Classes,
    classes: Vec<Class>,
    frames: Frames,
}

impl Objects {
    pub(super) fn new() -> Self {
        let sizes = Classes::new();
        let classes = (0..sizes.count()).map(|_| Class::default()).collect();
        Self { sizes, classes, frames: Frames::default() }
    }

    /// Keeps `bytes` for page `owner`; the place where they are.
    ///
    /// # Errors
    /// When the system has no memory left; nothing changed then.
    pub(super) fn insert(&mut self, owner: u32, bytes: &[u8]) -> Result<u64, NoMemory> {
        let Some(class) = self.sizes.of(bytes.len()) else {
            let frame = self.frames.take().ok_or(NoMemory)?;
            self.frames.bytes_mut(frame)[..bytes.len()].copy_from_slice(bytes);
            return Ok(u64::from(frame.0));
        };
        let place = self.classes[usize::from(class.0)].count;
        if self.frames_for(class, place + 1) > self.classes[usize::from(class.0)].frames.len() {
            let frame = self.frames.take().ok_or(NoMemory)?;
            self.classes[usize::from(class.0)].frames.push(frame);
        }
        self.classes[usize::from(class.0)].count += 1;
        self.put(class, place, owner, bytes);
        Ok(place as u64)
    }

    /// Whether an object of `bytes` bytes takes less memory than one of `other`.
    pub(super) fn is_smaller(&self, bytes: usize, other: usize) -> bool {
        match (self.sizes.of(bytes), self.sizes.of(other)) {
            (Some(class), Some(other)) => class < other,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Puts other bytes in an object's place, when both are of one class.
    pub(super) fn replace(&mut self, old_bytes: usize, place: u64, owner: u32, bytes: &[u8]) -> bool {
        match (self.sizes.of(old_bytes), self.sizes.of(bytes.len())) {
            (None, None) => self.frames.bytes_mut(frame_at(place))[..bytes.len()].copy_from_slice(bytes),
            (Some(old), Some(new)) if old == new => self.put(new, number(place), owner, bytes),
            _ => return false,
        }
        true
    }

    /// Lets an object go, and leaves a gap where it stood.
    pub(super) fn remove_later(&mut self, bytes: usize, place: u64) {
        match self.sizes.of(bytes) {
            None => self.frames.give(frame_at(place)),
            Some(class) => self.classes[usize::from(class.0)].gaps.add(number(place)),
        }
    }

    /// Whether objects left gaps.
    pub(super) fn has_gaps(&self) -> bool {
        self.classes.iter().any(|class| !class.gaps.is_empty())
    }

    /// Moves up to `most` objects into gaps and tells each; true when no gap is left.
    pub(super) fn close_gaps(&mut self, mut most: usize, mut tell: impl FnMut(Moved)) -> bool {
        for at in 0..self.classes.len() {
            let class = ClassId(u8::try_from(at).expect("fewer than 256 classes"));
            while !self.classes[at].gaps.is_empty() {
                let last = self.classes[at].count - 1;
                if !self.classes[at].gaps.take(last) {
                    if most == 0 {
                        return false;
                    }
                    most -= 1;
                    let gap = self.classes[at].gaps.take_first().expect("it is not empty");
                    tell(self.move_to(class, last, gap));
                }
                self.shrink(class, last);
            }
        }
        true
    }

    /// Lets an object go; the last of its class takes its place, unless there are gaps.
    pub(super) fn remove(&mut self, bytes: usize, place: u64) -> Option<Moved> {
        let Some(class) = self.sizes.of(bytes) else {
            self.frames.give(frame_at(place));
            return None;
        };
        if !self.classes[usize::from(class.0)].gaps.is_empty() {
            self.classes[usize::from(class.0)].gaps.add(number(place));
            return None;
        }
        let hole = number(place);
        let last = self.classes[usize::from(class.0)].count.checked_sub(1).expect("a class with an object is not empty");
        assert!(hole <= last, "an object stands among its class (I1)");
        let moved = (hole < last).then(|| self.move_to(class, last, hole));
        self.shrink(class, last);
        moved
    }

    /// Moves an object of a class.
    fn move_to(&mut self, class: ClassId, from: usize, to: usize) -> Moved {
        let stride = self.sizes.stride(class);
        let mut transit = [0; PAGE];
        self.copy_from(class, from, &mut transit[..stride]);
        self.scatter(class, to * stride, &transit[..stride]);
        let owner = transit.first_chunk().expect("an object begins with its owner");
        Moved { owner: u32::from_le_bytes(*owner), place: to as u64 }
    }

    /// The last place of a class is empty: `count` are left.
    fn shrink(&mut self, class: ClassId, count: usize) {
        self.classes[usize::from(class.0)].count = count;
        if self.frames_for(class, count) < self.classes[usize::from(class.0)].frames.len() {
            let frame = self.classes[usize::from(class.0)].frames.pop().expect("longer than another length");
            self.frames.give(frame);
        }
    }

    /// The bytes of an object: where they are, or in `buffer` when they lie in two frames.
    pub(super) fn read<'a>(&'a self, bytes: usize, place: u64, buffer: &'a mut [u8; PAGE]) -> &'a [u8] {
        let Some(class) = self.sizes.of(bytes) else {
            return &self.frames.bytes(frame_at(place))[..bytes];
        };
        let stride = self.sizes.stride(class);
        let (index, inside) = (number(place) * stride / PAGE, number(place) * stride % PAGE);
        let frames = &self.classes[usize::from(class.0)].frames;
        let (from, to) = (inside + OWNER, inside + OWNER + bytes);
        if to <= PAGE {
            return &self.frames.bytes(frames[index])[from..to];
        }
        let first = PAGE - from;
        buffer[..first].copy_from_slice(&self.frames.bytes(frames[index])[from..]);
        buffer[first..bytes].copy_from_slice(&self.frames.bytes(frames[index + 1])[..bytes - first]);
        &buffer[..bytes]
    }

    /// Frames that would be in use after one object of `removed` bytes was let go, if any, and one of
    /// `inserted` bytes was kept.
    pub(super) fn frames_after(&self, removed: Option<usize>, inserted: usize) -> usize {
        let class_of = |bytes: usize| self.sizes.of(bytes);
        let frames_with = |class: Option<ClassId>, more: bool| match class {
            None => isize::from(more) * 2 - 1,
            Some(class) => {
                let count = self.classes[usize::from(class.0)].count;
                let after = if more { count + 1 } else { count.saturating_sub(1) };
                let difference = |frames: usize| isize::try_from(frames).expect("frames fit");
                difference(self.frames_for(class, after)) - difference(self.frames_for(class, count))
            }
        };
        let new = class_of(inserted);
        let change = match removed.map(class_of) {
            Some(old) if old == new => 0,
            Some(old) => frames_with(old, false) + frames_with(new, true),
            None => frames_with(new, true),
        };
        self.frames.used().checked_add_signed(change).expect("no more frames go than are used")
    }

    /// Memory that an object of so many bytes takes.
    pub(super) fn taken_by(&self, bytes: usize) -> usize {
        self.sizes.of(bytes).map_or(PAGE, |class| self.sizes.stride(class))
    }

    /// Frames in use: what the kernel calls the pages of the allocator.
    pub(super) fn frames_used(&self) -> usize {
        self.frames.used()
    }

    /// Memory taken from the system, bytes, everything counted.
    pub(super) fn memory_bytes(&self) -> usize {
        let lists: usize =
            self.classes.iter().map(|class| class.frames.capacity() * size_of::<Frame>() + class.gaps.memory_bytes()).sum();
        self.frames.memory_bytes() + lists + self.classes.capacity() * size_of::<Class>()
    }

    fn frames_for(&self, class: ClassId, count: usize) -> usize {
        (count * self.sizes.stride(class)).div_ceil(PAGE)
    }

    fn put(&mut self, class: ClassId, place: usize, owner: u32, bytes: &[u8]) {
        let stride = self.sizes.stride(class);
        let (index, inside) = (place * stride / PAGE, place * stride % PAGE);
        let frame = self.classes[usize::from(class.0)].frames[index];
        // Objects begin at multiples of 16, so the head lies in one frame.
        self.frames.bytes_mut(frame)[inside..inside + OWNER].copy_from_slice(&owner.to_le_bytes());
        self.scatter(class, place * stride + OWNER, bytes);
    }

    /// Copies `bytes` to byte `at` of a class.
    fn scatter(&mut self, class: ClassId, at: usize, bytes: &[u8]) {
        let (index, inside) = (at / PAGE, at % PAGE);
        let (head, tail) = bytes.split_at(bytes.len().min(PAGE - inside));
        let frames = &self.classes[usize::from(class.0)].frames;
        self.frames.bytes_mut(frames[index])[inside..inside + head.len()].copy_from_slice(head);
        if !tail.is_empty() {
            self.frames.bytes_mut(frames[index + 1])[..tail.len()].copy_from_slice(tail);
        }
    }

    fn copy_from(&self, class: ClassId, place: usize, object: &mut [u8]) {
        let at = place * self.sizes.stride(class);
        let (index, inside) = (at / PAGE, at % PAGE);
        let first = object.len().min(PAGE - inside);
        let (head, tail) = object.split_at_mut(first);
        let frames = &self.classes[usize::from(class.0)].frames;
        head.copy_from_slice(&self.frames.bytes(frames[index])[inside..inside + first]);
        if !tail.is_empty() {
            tail.copy_from_slice(&self.frames.bytes(frames[index + 1])[..tail.len()]);
        }
    }
}

fn number(place: u64) -> usize {
    usize::try_from(place).expect("a place is a number of objects in memory")
}

fn frame_at(place: u64) -> Frame {
    Frame(u32::try_from(place).expect("the place of a whole page is the number of its frame"))
}

#[cfg(test)]
mod tests;
