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

mod adopt;
mod recompress;

use std::fmt::Write as _;

use forebay_block::replant::{Bug, planted};

use super::backing::Leaving;
use super::backing::blocks::{Blocks, Spot};
use super::codec::{Codecs, PACKED_MAX, Priority};
use super::memory::{HUGE_BYTES, Moved, Objects, PAGE};
use super::table::{Slot, Table, mark};

pub(super) use self::recompress::{Attempt, Effort};

/// Why a page was not written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageError {
    /// The memory limit, or the end of the system's memory.
    NoSpace,
    /// It is on the backing device: it must be fetched first.
    Away,
    /// What is in memory or on the backing device is not what was put there.
    Corrupt,
    /// The backing device failed.
    Device,
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
    /// Pages that were written back.
    pub(super) written: u64,
    /// Objects in memory and on the backing device made by the second, third and fourth codec.
    pub(super) recompressed: [u64; 3],
    /// Pages on which one of these was tried.
    pub(super) recompress_tries: u64,
    /// Bytes that objects became smaller by that.
    pub(super) recompress_saved_bytes: u64,
    /// Most frames that were in use at once.
    pub(super) frames_max: u64,
}

/// The pages of a disk.
pub(super) struct Pages {
    pub(super) table: Table,
    objects: Objects,
    pub(super) codecs: Codecs,
    pub(super) counts: PageCounts,
    /// The blocks of the backing device, where there is one.
    pub(super) blocks: Option<Blocks>,
    /// Frames that may be in use.
    pub(super) frames_limit: Option<u64>,
    /// The page that is written next, or was read last.
    pub(super) page: Box<[u8; PAGE]>,
    packed: Box<[u8; PACKED_MAX]>,
    gathered: Box<[u8; PAGE]>,
}

/// The word that a page repeats, if it does.
pub(super) fn repeated_word(page: &[u8; PAGE]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let (first, rest) = words.split_first().expect("a page has words");
    rest.iter().all(|word| word == first).then(|| u64::from_le_bytes(*first))
}

/// Makes a page of the object of `slot`.
fn unpack(
    objects: &Objects,
    codecs: &mut Codecs,
    slot: Slot,
    gathered: &mut [u8; PAGE],
    page: &mut [u8; PAGE],
) -> Result<(), PageError> {
    let object = objects.read(slot.bytes(), slot.value, gathered);
    if let Ok(whole) = <&[u8; PAGE]>::try_from(object) {
        page.copy_from_slice(whole);
        return Ok(());
    }
    let codec = codecs.of(slot.priority()).ok_or(PageError::Corrupt)?;
    codec.decompress(object, page).map_err(|_| PageError::Corrupt)
}

impl Pages {
    pub(super) fn new(codecs: Codecs, frames_limit: Option<u64>, blocks: Option<Blocks>) -> Self {
        Self {
            table: Table::default(),
            objects: Objects::new(),
            codecs,
            counts: PageCounts::default(),
            blocks,
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
        if let Some(word) = repeated_word(&self.page) {
            self.write_same(number, word, now_s);
            return Ok(());
        }
        let packed = self.codecs.first().compress(&self.page, &mut self.packed).filter(|&bytes| bytes < HUGE_BYTES);
        self.store(number, packed, now_s)
    }

    /// Keeps a page that repeats a word.
    pub(super) fn write_same(&mut self, number: u64, word: u64, now_s: u32) {
        self.make_room();
        let old = self.table.get(number);
        self.release(number, old);
        self.counts.same += 1;
        self.counts.stored += 1;
        self.table.put(number, Slot::same(word, now_s));
    }

    /// Keeps a page that the first codec made this object of, or a page that does not shrink.
    ///
    /// # Errors
    /// As [`Pages::write`].
    pub(super) fn write_object(&mut self, number: u64, object: &[u8], now_s: u32) -> Result<(), PageError> {
        if let Ok(whole) = <&[u8; PAGE]>::try_from(object) {
            self.page.copy_from_slice(whole);
            return self.store(number, None, now_s);
        }
        self.packed[..object.len()].copy_from_slice(object);
        self.store(number, Some(object.len()), now_s)
    }

    /// Keeps the first bytes of `self.packed`, or `self.page` where there are none.
    fn store(&mut self, number: u64, packed: Option<usize>, now_s: u32) -> Result<(), PageError> {
        self.make_room();
        let old = self.table.get(number);
        let bytes = packed.unwrap_or(PAGE);
        if !self.has_room(old, bytes) {
            return Err(PageError::NoSpace);
        }
        let place = self.keep(number, old, bytes, packed.is_some())?;
        self.counts.stored += 1;
        self.counts.compressed_bytes += bytes as u64;
        if packed.is_none() {
            self.counts.huge += 1;
            self.counts.huge_ever += 1;
        }
        self.table.put(number, Slot::object(place, bytes, now_s));
        self.note_frames();
        Ok(())
    }

    /// Whether an object of `bytes` bytes may come for the old one.
    fn has_room(&self, old: Slot, bytes: usize) -> bool {
        let replaced = old.in_memory().then_some(old.bytes());
        let frames = self.objects.frames_after(replaced, bytes) as u64;
        frames <= self.objects.frames_used() as u64 || self.frames_limit.is_none_or(|limit| frames <= limit)
    }

    fn note_frames(&mut self) {
        self.counts.frames_max = self.counts.frames_max.max(self.objects.frames_used() as u64);
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
    /// [`PageError::Away`] for a page that was written back; [`PageError::Corrupt`].
    pub(super) fn read(&mut self, number: u64, now_s: u32) -> Result<(), PageError> {
        let slot = self.table.get(number);
        if slot.is_free() {
            self.page.fill(0);
            return Ok(());
        }
        if slot.has(mark::WRITTEN) {
            return Err(PageError::Away);
        }
        let noted = self.table.used_mut(number);
        noted.time_s = now_s;
        noted.clear(mark::IDLE | mark::SELECTED);
        if slot.has(mark::SAME) {
            let (words, _) = self.page.as_chunks_mut::<8>();
            words.fill(slot.value.to_le_bytes());
            return Ok(());
        }
        let Self { objects, codecs, gathered, page, .. } = self;
        unpack(objects, codecs, slot, gathered, page)
    }

    /// The object of a page in memory, as it is kept: 4096 bytes of a page that is kept whole.
    pub(super) fn object<'a>(&'a self, slot: Slot, buffer: &'a mut [u8; PAGE]) -> &'a [u8] {
        debug_assert!(slot.in_memory(), "only pages in memory have objects");
        self.objects.read(slot.bytes(), slot.value, buffer)
    }

    /// Puts the content of a page in memory into `to`, which counts as no access.
    ///
    /// # Errors
    /// [`PageError::Corrupt`].
    pub(super) fn copy_to(&mut self, number: u64, to: &mut [u8; PAGE]) -> Result<(), PageError> {
        let slot = self.table.get(number);
        debug_assert!(slot.in_memory(), "only objects in memory are written back");
        unpack(&self.objects, &mut self.codecs, slot, &mut self.gathered, to)
    }

    /// Whether any of these pages was written back.
    pub(super) fn any_away(&self, numbers: std::ops::Range<u64>) -> bool {
        self.counts.written > 0 && numbers.into_iter().any(|number| self.table.get(number).has(mark::WRITTEN))
    }

    /// Copies the object of a page in memory as it is, which counts as no access.
    pub(super) fn copy_object(&mut self, number: u64, to: &mut [u8]) {
        let slot = self.table.get(number);
        to.copy_from_slice(self.objects.read(slot.bytes(), slot.value, &mut self.gathered));
    }

    /// Makes `self.page` of what the codec of `priority` made and the backing device stored.
    ///
    /// # Errors
    /// [`PageError::Corrupt`].
    pub(super) fn expand(&mut self, stored: &[u8], priority: Priority) -> Result<(), PageError> {
        if let Ok(whole) = <&[u8; PAGE]>::try_from(stored) {
            self.page.copy_from_slice(whole);
            return Ok(());
        }
        let codec = self.codecs.of(priority).ok_or(PageError::Corrupt)?;
        codec.decompress(stored, &mut self.page).map_err(|_| PageError::Corrupt)
    }

    /// The page is on the backing device now: lets its memory go, unless somebody asked for it
    /// meanwhile. Then it stays, and its blocks are given back. True when it left.
    pub(super) fn leave(&mut self, leaving: &Leaving) -> bool {
        let slot = self.table.get(leaving.page);
        let kept = slot.in_memory() && planted(Bug::M8PageChangedMeanwhile);
        if !slot.has(mark::SELECTED) && !kept {
            self.give_blocks(leaving.spot, leaving.bytes);
            return false;
        }
        let whole = leaving.bytes == PAGE;
        self.uncount_object(slot);
        if whole {
            self.uncount_codec(slot);
        }
        self.counts.written += 1;
        self.table.put(leaving.page, slot.written(leaving.spot, whole, leaving.checksum));
        self.objects.remove_later(slot.bytes(), slot.value);
        true
    }

    /// Closes the gaps that pages left in memory, as far as that moves no more than `most` objects; true
    /// when none is left.
    pub(super) fn close_gaps(&mut self, most: usize) -> bool {
        let Self { objects, table, .. } = self;
        objects.close_gaps(most, |moved| table.used_mut(u64::from(moved.owner)).value = moved.place)
    }

    /// Closes all gaps where memory is short. Whoever knows places must look at them again.
    pub(super) fn make_room(&mut self) {
        // An object takes a frame of its own at most, and lets another go later.
        let short = |limit| self.objects.frames_used() as u64 + 2 > limit;
        if self.frames_limit.is_some_and(short) && self.objects.has_gaps() {
            self.close_gaps(usize::MAX);
        }
    }

    /// The page did not get to the backing device: it stays, and its blocks are given back.
    pub(super) fn stay(&mut self, leaving: &Leaving) {
        self.give_blocks(leaving.spot, leaving.bytes);
        if self.table.get(leaving.page).has(mark::SELECTED) {
            self.table.used_mut(leaving.page).clear(mark::SELECTED);
        }
    }

    /// Takes back into memory what is stored of a page, unless the page is something else by now or
    /// there is no room; `self.page` holds its content. True when it came back.
    pub(super) fn promote(&mut self, number: u64, slot: Slot, stored: &[u8], now_s: u32) -> bool {
        if self.table.get(number) != slot {
            return false;
        }
        self.make_room();
        if stored.len() == PAGE {
            return self.write(number, now_s).is_ok();
        }
        let owner = u32::try_from(number).expect("a disk has at most 2^32 pages");
        if !self.has_room(slot, stored.len()) {
            return false;
        }
        let Ok(place) = self.objects.insert(owner, stored) else { return false };
        self.release(number, slot);
        self.counts.stored += 1;
        self.counts.compressed_bytes += stored.len() as u64;
        self.count_codec(slot.priority());
        self.note_frames();
        self.table.put(number, Slot::object(place, stored.len(), now_s).by(slot.priority()));
        true
    }

    fn give_blocks(&mut self, spot: Spot, bytes: usize) {
        let blocks = self.blocks.as_mut().expect("pages are away only with a backing device");
        spot.blocks(bytes).for_each(|block| blocks.give(block));
    }

    /// Marks idle what nobody asked for since `before_s`, and takes the mark from the rest; everything
    /// where `None`, as far as it can be written back.
    pub(super) fn mark_idle(&mut self, before_s: Option<u32>) {
        let mut next = self.next_present(0);
        while let Some(number) = next {
            let slot = self.table.get(number);
            if slot.in_memory() && !slot.has(mark::SELECTED) {
                let old = before_s.is_none_or(|before| slot.time_s <= before);
                let slot = self.table.used_mut(number);
                if old { slot.set(mark::IDLE) } else { slot.clear(mark::IDLE) }
            }
            next = self.next_present(number + 1);
        }
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

    /// A line for each page that holds something: its number, the second of its last access, and its
    /// marks: `s` same, `w` written back, `h` huge, `i` idle, `r` compressed again, `n` incompressible.
    pub(super) fn states(&self) -> String {
        let mut text = String::new();
        let mut next = self.next_present(0);
        while let Some(number) = next {
            let slot = self.table.get(number);
            if !slot.is_free() {
                let flag = |on: bool, letter: char| if on { letter } else { '.' };
                let away = slot.has(mark::WRITTEN);
                let flags = [
                    flag(slot.has(mark::SAME), 's'),
                    flag(away, 'w'),
                    flag(!away && slot.bytes() == PAGE, 'h'),
                    flag(slot.has(mark::IDLE), 'i'),
                    flag(slot.priority() != Priority::FIRST, 'r'),
                    flag(slot.has(mark::INCOMPRESSIBLE), 'n'),
                ];
                let time_s = if away { 0 } else { slot.time_s };
                let flags: String = flags.into_iter().collect();
                writeln!(text, "{number:>12} {time_s:>12}.000000 {flags}").expect("writing to a string does not fail");
            }
            next = self.next_present(number + 1);
        }
        text
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
        match slot.away() {
            Some((from, _)) => self.give_blocks(from, slot.bytes()),
            None if slot.in_memory() => self.remove_object(slot),
            None => {}
        }
    }

    fn remove_object(&mut self, slot: Slot) {
        if let Some(Moved { owner, place }) = self.objects.remove(slot.bytes(), slot.value) {
            self.table.used_mut(u64::from(owner)).value = place;
        }
    }

    fn uncount(&mut self, slot: Slot) {
        self.counts.stored -= 1;
        self.counts.same -= u64::from(slot.has(mark::SAME));
        self.counts.written -= u64::from(slot.has(mark::WRITTEN));
        self.uncount_codec(slot);
        if slot.in_memory() {
            self.uncount_object(slot);
        }
    }

    fn uncount_object(&mut self, slot: Slot) {
        self.counts.compressed_bytes -= slot.bytes() as u64;
        self.counts.huge -= u64::from(slot.bytes() == PAGE);
    }

    fn count_codec(&mut self, priority: Priority) {
        if let Some(count) = priority.second().and_then(|at| self.counts.recompressed.get_mut(at)) {
            *count += 1;
        }
    }

    fn uncount_codec(&mut self, slot: Slot) {
        if let Some(count) = slot.priority().second().and_then(|at| self.counts.recompressed.get_mut(at)) {
            *count -= 1;
        }
    }

    /// Frames in use.
    pub(super) fn frames_used(&self) -> u64 {
        self.objects.frames_used() as u64
    }

    /// Memory that an object of so many bytes takes.
    pub(super) fn taken_by(&self, bytes: usize) -> usize {
        self.objects.taken_by(bytes)
    }

    /// How pages are compressed.
    pub(super) fn algorithm(&self) -> super::codec::Algorithm {
        self.codecs.algorithm(Priority::FIRST).unwrap_or_default()
    }

    /// Memory taken for objects and the table, bytes, everything counted.
    pub(super) fn memory_bytes(&self) -> u64 {
        let blocks = self.blocks.as_ref().map_or(0, Blocks::memory_bytes);
        (self.objects.memory_bytes() + self.table.memory_bytes() + blocks + PAGE + PACKED_MAX + PAGE) as u64
    }
}

#[cfg(test)]
mod tests;
