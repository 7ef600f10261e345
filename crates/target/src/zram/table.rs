//! The table: for each page of the disk, 16 bytes that say where its content is.
//!
//! ```text
//!   page number ─▶ leaf (1024 pages, made when one of them is first written) ─▶ slot
//!
//!   slot    value   64 bits   word of a same-filled page, place of the object, or spot on the
//!                             backing device with 16 bits of the checksum above it
//!           bits    32 bits   0..13 size of the object, then the marks and the priority of its codec
//!           time    32 bits   when it was last read or written, seconds; or, for a page that was
//!                             written back, the rest of the checksum
//! ```
//!
//! 1. A leaf is there only while a page of it holds something: a large disk that holds nothing costs
//!    8 bytes for every 4 MiB up to the last page ever written.
//! 2. A slot without object and marks is free, and reads as zeroes.

use super::backing::blocks::Spot;
use super::codec::Priority;
use super::memory::PAGE;

/// Pages of a leaf.
const LEAF_PAGES: usize = 1024;
/// Bits of `Slot::bits` that hold the size, 0 to 4096.
const SIZE_MASK: u32 = 0x1FFF;
/// Bits of `Slot::value` that hold a spot.
const SPOT_MASK: u64 = (1 << Spot::BITS) - 1;

/// Properties of a page.
pub(super) mod mark {
    /// One 64-bit word repeated; no object.
    pub(crate) const SAME: u32 = 1 << 13;
    /// Its object is on the backing device.
    pub(crate) const WRITTEN: u32 = 1 << 14;
    /// Its object is on the way there; whoever reads or writes the page takes the mark away.
    pub(crate) const SELECTED: u32 = 1 << 15;
    /// Nobody asked for it since it was declared idle.
    pub(crate) const IDLE: u32 = 1 << 16;
    /// No codec at all made it smaller.
    pub(crate) const INCOMPRESSIBLE: u32 = 1 << 17;
    /// Every codec after the one that it is compressed with was tried, for nothing.
    pub(crate) const SETTLED: u32 = 1 << 18;
}

/// Where the two bits stand that say by which codec an object was made.
const PRIORITY_SHIFT: u32 = 19;
/// Its bits.
const PRIORITY_MASK: u32 = 3 << PRIORITY_SHIFT;

/// What is known of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) value: u64,
    bits: u32,
    pub(super) time_s: u32,
}

const _: () = assert!(size_of::<Slot>() == 16, "the table costs 16 bytes a page");

impl Slot {
    pub(super) const FREE: Slot = Slot { value: 0, bits: 0, time_s: 0 };

    /// A page that repeats `word`.
    pub(super) fn same(word: u64, time_s: u32) -> Self {
        Self { value: word, bits: mark::SAME, time_s }
    }

    /// A page whose object of `bytes` bytes stands at `place`.
    pub(super) fn object(place: u64, bytes: usize, time_s: u32) -> Self {
        let bits = u32::try_from(bytes).expect("an object is at most a page");
        debug_assert!((1..=4096).contains(&bits), "an object has 1 to 4096 bytes");
        Self { value: place, bits, time_s }
    }

    /// The same page, whose object was made by the codec of this priority, 0 to 3.
    pub(super) fn by(self, priority: Priority) -> Self {
        Self { bits: self.bits & !PRIORITY_MASK | u32::from(priority.0) << PRIORITY_SHIFT, ..self }
    }

    /// The codec that made its object.
    pub(super) fn priority(self) -> Priority {
        Priority(u8::try_from((self.bits & PRIORITY_MASK) >> PRIORITY_SHIFT).expect("two bits"))
    }

    /// The page after what stands in `self` was written to `spot` of the backing device: the whole page
    /// where `whole`, the object as it is otherwise. `checksum` has 48 bits.
    pub(super) fn written(self, spot: Spot, whole: bool, checksum: u64) -> Self {
        debug_assert!(spot.0 <= SPOT_MASK && checksum >> 48 == 0, "48 bits each");
        let [low, high] = [checksum & 0xFFFF_FFFF, checksum >> 32];
        let page = u32::try_from(PAGE).expect("4096");
        let bits = if whole { page } else { self.bits & !(mark::IDLE | mark::SELECTED) };
        let time_s = u32::try_from(low).expect("32 bits");
        Self { value: spot.0 | high << Spot::BITS, bits: bits | mark::WRITTEN, time_s }
    }

    /// Where a page is that was written back, and its checksum.
    pub(super) fn away(self) -> Option<(Spot, u64)> {
        let checksum = (self.value >> Spot::BITS) << 32 | u64::from(self.time_s);
        self.has(mark::WRITTEN).then_some((Spot(self.value & SPOT_MASK), checksum))
    }

    pub(super) fn set(&mut self, marks: u32) {
        self.bits |= marks;
    }

    pub(super) fn clear(&mut self, marks: u32) {
        self.bits &= !marks;
    }

    /// Whether the page holds nothing.
    pub(super) fn is_free(self) -> bool {
        self.bits & (SIZE_MASK | mark::SAME) == 0
    }

    pub(super) fn has(self, mark: u32) -> bool {
        self.bits & mark != 0
    }

    /// Bytes of its object; 0 without one.
    pub(super) fn bytes(self) -> usize {
        (self.bits & SIZE_MASK) as usize
    }

    /// Whether its object is in memory.
    pub(super) fn in_memory(self) -> bool {
        self.bytes() > 0 && !self.has(mark::WRITTEN)
    }
}

struct Leaf {
    slots: Box<[Slot]>,
    used: usize,
}

/// The slots of all pages.
#[derive(Default)]
pub(super) struct Table {
    leaves: Vec<Option<Leaf>>,
    leaves_used: usize,
}

fn split(page: u64) -> (usize, usize) {
    let page = usize::try_from(page).expect("a page number fits the address space");
    (page / LEAF_PAGES, page % LEAF_PAGES)
}

impl Table {
    /// What is known of a page.
    pub(super) fn get(&self, page: u64) -> Slot {
        let (leaf, place) = split(page);
        match self.leaves.get(leaf) {
            Some(Some(leaf)) => leaf.slots[place],
            _ => Slot::FREE,
        }
    }

    /// Notes something else of a page.
    pub(super) fn put(&mut self, page: u64, slot: Slot) {
        let (at, place) = split(page);
        if at >= self.leaves.len() {
            if slot.is_free() {
                return;
            }
            self.leaves.resize_with(at + 1, || None);
        }
        let entry = &mut self.leaves[at];
        if entry.is_none() {
            if slot.is_free() {
                return;
            }
            self.leaves_used += 1;
            *entry = Some(Leaf { slots: vec![Slot::FREE; LEAF_PAGES].into_boxed_slice(), used: 0 });
        }
        let leaf = entry.as_mut().expect("made just above");
        let old = std::mem::replace(&mut leaf.slots[place], slot);
        leaf.used = leaf.used + usize::from(!slot.is_free()) - usize::from(!old.is_free());
        if leaf.used == 0 {
            *entry = None;
            self.leaves_used -= 1;
        }
    }

    /// Changes a page that holds something, and goes on doing so.
    ///
    /// # Panics
    /// When it holds nothing.
    pub(super) fn used_mut(&mut self, page: u64) -> &mut Slot {
        let (leaf, place) = split(page);
        let leaf = self.leaves[leaf].as_mut().expect("a page that holds something has a leaf");
        &mut leaf.slots[place]
    }

    /// The first page from `page` on whose leaf is there; what is between holds nothing.
    pub(super) fn next_present(&self, page: u64) -> Option<u64> {
        let (first, _) = split(page);
        let at = first + self.leaves.get(first..)?.iter().position(Option::is_some)?;
        Some(page.max((at * LEAF_PAGES) as u64))
    }

    /// Memory taken, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Option<Leaf>>() + self.leaves_used * LEAF_PAGES * size_of::<Slot>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    #[test]
    fn slots_are_what_was_noted_last() {
        let mut table = Table::default();
        let mut model = std::collections::BTreeMap::new();
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..20_000_u64 {
            let page = rng.u64(0..5_000);
            let slot = match rng.u32(0..3) {
                0 => Slot::FREE,
                1 => Slot::same(round, 1),
                _ => Slot::object(round, rng.usize(1..=4096), 2),
            };
            table.put(page, slot);
            model.insert(page, slot);
        }
        for page in 0..5_000 {
            assert_eq!(table.get(page), model.get(&page).copied().unwrap_or_default());
        }
        (0..5_000).for_each(|page| table.put(page, Slot::FREE));
        assert_eq!((table.leaves_used, table.next_present(0)), (0, None));
    }

    #[test]
    fn a_written_page_keeps_its_spot_and_48_bits_of_checksum() {
        let object = Slot::object(1, 100, 7);
        for (whole, bytes) in [(true, 4096), (false, 100)] {
            let slot = object.written(Spot(SPOT_MASK), whole, 0xFEDC_BA98_7654);
            assert_eq!((slot.away(), slot.bytes(), slot.in_memory()), (Some((Spot(SPOT_MASK), 0xFEDC_BA98_7654)), bytes, false));
        }
        assert_eq!(object.away(), None);
    }

    #[test]
    fn only_a_page_with_an_object_that_was_not_written_back_is_in_memory() {
        let object = Slot::object(1, 1, 7);
        assert!(object.in_memory() && !object.is_free());
        assert!(!Slot::same(0, 7).in_memory() && !Slot::same(0, 7).is_free());
        assert!(!Slot::FREE.in_memory() && Slot::FREE.is_free());
        assert!(!object.written(Spot(1), false, 0).in_memory());
    }

    #[test]
    fn the_priority_of_the_codec_stands_beside_size_and_marks() {
        let mut slot = Slot::object(7, 4096, 9);
        slot.set(mark::SETTLED | mark::IDLE);
        for priority in Priority::ALL {
            let noted = slot.by(priority);
            assert_eq!((noted.priority(), noted.bytes(), noted.value, noted.time_s), (priority, 4096, 7, 9));
            assert!(noted.has(mark::SETTLED) && noted.has(mark::IDLE) && !noted.has(mark::INCOMPRESSIBLE | mark::WRITTEN));
            assert_eq!(noted.by(Priority::FIRST), slot);
        }
    }

    #[test]
    fn a_large_disk_that_holds_one_page_costs_next_to_nothing() {
        let mut table = Table::default();
        assert_eq!(table.memory_bytes(), 0);
        let last = (1 << 28) - 1;
        table.put(last, Slot::same(7, 0));
        assert_eq!((table.get(last).value, table.get(last - 1)), (7, Slot::FREE));
        assert_eq!(table.next_present(5), Some(last - 1023));
        assert!(table.memory_bytes() < 12 << 20, "{} bytes for 1 TiB", table.memory_bytes());
    }
}
