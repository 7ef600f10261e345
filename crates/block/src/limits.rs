//! What a target accepts and offers, in bytes and sectors.
//!
//! A bio that exceeds the limits of a device is split by the device ([`crate::split`]); limits of
//! two targets stack with [`Limits::stack`], so that the top of a tree never promises what the
//! bottom cannot do. Source of the field meanings: `block/blk-settings.c`, Linux 6.12.

/// How an operation is done by a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ability {
    /// Refused with [`Status::Unsupported`](crate::Status::Unsupported).
    #[default]
    No,
    /// Done by other operations, at their price.
    Emulate,
    /// Done by the device itself.
    Native,
}

/// What a target accepts and offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest unit of a request, bytes; a power of two from 512.
    pub logical_bytes: u32,
    /// Unit that the device writes without reading first, bytes; at least `logical_bytes`.
    pub physical_bytes: u32,
    /// Request size at which the device does best, bytes; 0 where unknown.
    pub preferred_bytes: u32,
    /// Alignment of payload memory, bytes; a power of two, 1 for any.
    pub memory_align: u32,
    /// Largest read or write, sectors.
    pub max_sectors: u32,
    /// Most memory segments in a request.
    pub max_segments: u32,
    /// Largest single segment, bytes.
    pub max_segment_bytes: u32,
    /// Whether segments count as the machine's memory has them, page by page, and not as the process
    /// sees them.
    pub by_page: bool,
    /// Segments inside a request must meet on multiples of this (a mask); 0 for no rule.
    pub gap_mask: u32,
    /// No read or write crosses a multiple of this, sectors; 0 for no rule.
    pub chunk_sectors: u32,
    /// Unit of a discard, bytes; 0 where discards are not offered.
    pub discard_grain_bytes: u32,
    /// Whether a flush makes earlier ended writes durable. `No`: there is nothing that a flush would do,
    /// what ended counts as durable, and flushes stay away ([`flush`](crate::flush)).
    pub flush: Ability,
    /// Whether single writes can be made durable before they end.
    pub fua: Ability,
    /// Whether discards do anything.
    pub discard: Ability,
    /// Whether zeroes can be written without a payload.
    pub write_zeroes: Ability,
}

impl Limits {
    /// No limits but the 512-byte unit: what a target in memory accepts.
    #[must_use]
    pub const fn unlimited() -> Self {
        Self {
            logical_bytes: 512,
            physical_bytes: 512,
            preferred_bytes: 0,
            memory_align: 1,
            max_sectors: u32::MAX,
            max_segments: u32::MAX,
            max_segment_bytes: u32::MAX,
            by_page: false,
            gap_mask: 0,
            chunk_sectors: 0,
            discard_grain_bytes: 512,
            flush: Ability::Native,
            fua: Ability::Native,
            discard: Ability::Native,
            write_zeroes: Ability::Native,
        }
    }

    /// The limits of something that stands on two targets: the stricter of each, but that it is flushed
    /// when one of them is to be.
    #[must_use]
    pub fn stack(self, below: Limits) -> Limits {
        Limits {
            logical_bytes: self.logical_bytes.max(below.logical_bytes),
            physical_bytes: self.physical_bytes.max(below.physical_bytes),
            preferred_bytes: self.preferred_bytes.max(below.preferred_bytes),
            memory_align: self.memory_align.max(below.memory_align),
            max_sectors: self.max_sectors.min(below.max_sectors),
            max_segments: self.max_segments.min(below.max_segments),
            max_segment_bytes: self.max_segment_bytes.min(below.max_segment_bytes),
            by_page: self.by_page || below.by_page,
            gap_mask: self.gap_mask | below.gap_mask,
            chunk_sectors: stricter_chunk(self.chunk_sectors, below.chunk_sectors),
            discard_grain_bytes: self.discard_grain_bytes.max(below.discard_grain_bytes),
            flush: self.flush.max(below.flush),
            fua: self.fua.min(below.fua),
            discard: self.discard.min(below.discard),
            write_zeroes: self.write_zeroes.min(below.write_zeroes),
        }
    }

    /// Whether the fields agree with each other; a device checks its own limits with this once.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.logical_bytes.is_power_of_two()
            && self.logical_bytes >= 512
            && self.physical_bytes >= self.logical_bytes
            && self.physical_bytes.is_power_of_two()
            && self.memory_align.is_power_of_two()
            && self.max_sectors >= self.logical_bytes / 512
            && self.max_segments > 0
            && self.max_segment_bytes >= self.logical_bytes
    }
}

fn stricter_chunk(a: u32, b: u32) -> u32 {
    match (a, b) {
        (0, other) | (other, 0) => other,
        (a, b) => gcd(a, b),
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacking_takes_the_stricter_of_each() {
        let disk =
            Limits { logical_bytes: 4096, physical_bytes: 4096, max_sectors: 256, chunk_sectors: 96, ..Limits::unlimited() };
        let other = Limits { fua: Ability::No, chunk_sectors: 64, ..Limits::unlimited() };
        let both = disk.stack(other);
        assert_eq!((both.logical_bytes, both.max_sectors, both.chunk_sectors, both.fua), (4096, 256, 32, Ability::No));
        assert!(both.is_valid());
    }

    #[test]
    fn what_stands_on_one_that_is_to_be_flushed_is_to_be_flushed() {
        let without = Limits { flush: Ability::No, ..Limits::unlimited() };
        assert_eq!(without.stack(Limits::unlimited()).flush, Ability::Native);
        assert_eq!(Limits::unlimited().stack(without).flush, Ability::Native);
        assert_eq!(without.stack(without).flush, Ability::No);
    }
}
