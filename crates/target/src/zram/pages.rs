//! What a compressed RAM disk holds: pages in, pages out, no I/O.
//!
//! ```text
//!   page ─▶ one word repeated? ─ yes ─▶ the word, in the table
//!             │ no
//!             ▼
//!           compress ─▶ fewer than 3625 bytes? ─ yes ─▶ object      else the page as it is
//! ```
//!
//! Invariants:
//! - I1: a write that fails leaves what was there before.
//! - I2: an object is named by exactly one slot, and its size there is its size in memory.
//!
//! Pages are numbered in units of 4096 bytes; times are seconds of the reactor's clock.

use super::codec::{Codec, PACKED_MAX};
use super::memory::{HUGE_BYTES, Moved, Objects, PAGE};
use super::table::{Slot, Table, mark};

/// Why a page was not written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageError {
    /// The memory limit, or the end of the system's memory.
    NoSpace,
    /// What is in memory is not what was put there.
    Corrupt,
}

/// What is held, in pages and bytes; see [`ZramStatus`](super::ZramStatus).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PageCounts {
    /// Pages that hold something.
    pub(super) stored: u64,
    /// Bytes of the objects in memory.
    pub(super) compressed_bytes: u64,
    pub(super) same: u64,
    pub(super) huge: u64,
    pub(super) huge_ever: u64,
    /// Most frames that were in use at once.
    pub(super) frames_max: u64,
}

/// The pages of a disk.
pub(super) struct Pages {
    pub(super) table: Table,
    objects: Objects,
    codec: Codec,
    pub(super) counts: PageCounts,
    /// Frames that may be in use.
    pub(super) frames_limit: Option<u64>,
    /// The page that is written next, or was read last.
    pub(super) page: Box<[u8; PAGE]>,
    packed: Box<[u8; PACKED_MAX]>,
    gathered: Box<[u8; PAGE]>,
}

/// The word that a page repeats, if it does.
fn repeated_word(page: &[u8; PAGE]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let (first, rest) = words.split_first().expect("a page has words");
    rest.iter().all(|word| word == first).then(|| u64::from_le_bytes(*first))
}

impl Pages {
    pub(super) fn new(codec: Codec, frames_limit: Option<u64>) -> Self {
        Self {
            table: Table::default(),
            objects: Objects::new(),
            codec,
            counts: PageCounts::default(),
            frames_limit,
            page: Box::new([0; PAGE]),
            packed: Box::new([0; PACKED_MAX]),
            gathered: Box::new([0; PAGE]),
        }
    }

    /// Keeps `self.page` as page `number`.
    ///
    /// # Errors
    /// [`PageError::NoSpace`]; the page is what it was then (I1).
    pub(super) fn write(&mut self, number: u64, now_s: u32) -> Result<(), PageError> {
        let old = self.table.get(number);
        if let Some(word) = repeated_word(&self.page) {
            self.release(number, old);
            self.counts.same += 1;
            self.counts.stored += 1;
            self.table.put(number, Slot::same(word, now_s));
            return Ok(());
        }
        let packed = self.codec.compress(&self.page, &mut self.packed).filter(|&bytes| bytes < HUGE_BYTES);
        let bytes = packed.unwrap_or(PAGE);
        let replaced = old.in_memory().then_some(old.bytes());
        let frames = self.objects.frames_after(replaced, bytes) as u64;
        if self.frames_limit.is_some_and(|limit| frames > limit) && frames > self.objects.frames_used() as u64 {
            return Err(PageError::NoSpace);
        }
        let place = self.keep(number, old, bytes, packed.is_some())?;
        self.counts.stored += 1;
        self.counts.compressed_bytes += bytes as u64;
        if packed.is_none() {
            self.counts.huge += 1;
            self.counts.huge_ever += 1;
        }
        self.counts.frames_max = self.counts.frames_max.max(self.objects.frames_used() as u64);
        self.table.put(number, Slot::object(place, bytes, now_s));
        Ok(())
    }

    /// Puts the new object in the place of the old one, or anywhere; the old one is gone then.
    fn keep(&mut self, number: u64, old: Slot, bytes: usize, packed: bool) -> Result<u64, PageError> {
        let owner = u32::try_from(number).expect("a disk has at most 2^32 pages");
        let object = if packed { &self.packed[..bytes] } else { &self.page[..] };
        if old.in_memory() && self.objects.replace(old.bytes(), old.value, owner, object) {
            self.uncount(old);
            return Ok(old.value);
        }
        let place = self.objects.insert(owner, object).map_err(|_| PageError::NoSpace)?;
        self.release(number, old);
        // Letting the old object go moves only objects of its own class, and this one is of another.
        Ok(place)
    }

    /// Puts the content of a page into `self.page`.
    ///
    /// # Errors
    /// [`PageError::Corrupt`].
    pub(super) fn read(&mut self, number: u64, now_s: u32) -> Result<(), PageError> {
        let slot = self.table.get(number);
        if slot.is_free() {
            self.page.fill(0);
            return Ok(());
        }
        self.table.used_mut(number).time_s = now_s;
        if slot.has(mark::SAME) {
            let (words, _) = self.page.as_chunks_mut::<8>();
            words.fill(slot.value.to_le_bytes());
            return Ok(());
        }
        let object = self.objects.read(slot.bytes(), slot.value, &mut self.gathered);
        if let Ok(page) = <&[u8; PAGE]>::try_from(object) {
            self.page.copy_from_slice(page);
            return Ok(());
        }
        self.codec.decompress(object, &mut self.page).map_err(|_| PageError::Corrupt)
    }

    /// The word of a page that needs no memory; `Some(0)` for one that holds nothing.
    pub(super) fn word_of(&self, number: u64) -> Option<u64> {
        let slot = self.table.get(number);
        (slot.is_free() || slot.has(mark::SAME)).then_some(slot.value)
    }

    /// Lets a page go; it reads as zeroes.
    pub(super) fn free(&mut self, number: u64) {
        let slot = self.table.get(number);
        self.release(number, slot);
    }

    /// The first page from `number` on that may hold something.
    pub(super) fn next_present(&self, number: u64) -> Option<u64> {
        self.table.next_present(number)
    }

    fn release(&mut self, number: u64, slot: Slot) {
        if slot.is_free() {
            return;
        }
        self.uncount(slot);
        self.table.put(number, Slot::FREE);
        if slot.in_memory()
            && let Some(Moved { owner, place }) = self.objects.remove(slot.bytes(), slot.value)
        {
            self.table.used_mut(u64::from(owner)).value = place;
        }
    }

    fn uncount(&mut self, slot: Slot) {
        self.counts.stored -= 1;
        self.counts.same -= u64::from(slot.has(mark::SAME));
        self.counts.compressed_bytes -= slot.bytes() as u64;
        self.counts.huge -= u64::from(slot.bytes() == PAGE);
    }

    /// Frames in use.
    pub(super) fn frames_used(&self) -> u64 {
        self.objects.frames_used() as u64
    }

    /// How pages are compressed.
    pub(super) fn algorithm(&self) -> super::codec::Algorithm {
        self.codec.algorithm()
    }

    /// Memory taken for objects and the table, bytes, everything counted.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.objects.memory_bytes() + self.table.memory_bytes() + PAGE + PACKED_MAX + PAGE) as u64
    }
}

#[cfg(test)]
mod tests;
