//! Where a request must be cut so that a device takes it: no I/O, only arithmetic.
//!
//! The rules, in the order in which they shorten a read or write: the byte limit (counted from the
//! start of the request), a chunk boundary, the number of segments, the largest segment, the gap
//! rule. The result is rounded down to the logical block, and so that it ends on a physical block when
//! the byte limit or a chunk boundary cut it. Facts: `block/blk-merge.c`, Linux 6.12.
//!
//! A segment counts as several where it is longer than the largest, and on devices that count by page
//! ([`Limits::by_page`]) once for each page that it touches: 10,000 bytes that begin 4,000 bytes into a
//! page of 4,096 are 96 + 4,096 + 4,096 + 1,712. Memory in huge pages counts by these.

use crate::bio::Bio;
use crate::bvec::BioVec;
use crate::limits::Limits;
use crate::unit::{SECTOR_BYTES, Sector};

/// Bytes of the largest prefix of a read or write that `limits` allow in one piece; 0 when the memory
/// layout allows not even one logical block (the request must then be refused).
#[must_use]
pub fn prefix_bytes(limits: &Limits, bio: &Bio) -> u64 {
    let allowed = bio.bytes().min(byte_limit(limits, bio.sector(), bio.bytes()));
    let allowed = allowed.min(segment_limit(limits, bio, allowed));
    allowed - allowed % u64::from(limits.logical_bytes)
}

/// What the byte and chunk limits allow from `sector` on.
fn byte_limit(limits: &Limits, sector: Sector, bytes: u64) -> u64 {
    let mut most = u64::from(limits.max_sectors) * u64::from(SECTOR_BYTES);
    if limits.chunk_sectors > 0 {
        let chunk = u64::from(limits.chunk_sectors);
        most = most.min((chunk - sector.0 % chunk) * u64::from(SECTOR_BYTES));
    }
    if most >= bytes {
        return most;
    }
    // The cut ends on a physical block where that leaves anything.
    let physical = u64::from(limits.physical_bytes);
    let end = sector.to_bytes() + most;
    let rounded = end - end % physical;
    if rounded > sector.to_bytes() { rounded - sector.to_bytes() } else { most }
}

/// What the rules on memory allow of the first `most` bytes; may be more than these.
fn segment_limit(limits: &Limits, bio: &Bio, most: u64) -> u64 {
    let mask = u64::from(limits.gap_mask);
    let rule = Rule::of(limits, bio);
    let mut taken: u64 = 0;
    let mut left = limits.max_segments;
    for piece in bio.pieces() {
        let (start, end) = (piece.base() as u64, piece.base() as u64 + u64::from(piece.bytes()));
        if taken >= most || (taken > 0 && start & mask != 0) {
            break;
        }
        for part in rule.parts(piece) {
            if left == 0 {
                return taken;
            }
            left -= 1;
            taken += u64::from(part);
        }
        if end & mask != 0 {
            break;
        }
    }
    taken
}

/// How a device counts one segment.
#[derive(Clone, Copy)]
struct Rule {
    /// Largest part, bytes.
    most: u32,
    /// No part crosses a multiple of this, a power of two; 0 for no rule.
    page: u32,
}

impl Rule {
    fn of(limits: &Limits, bio: &Bio) -> Self {
        let page = bio.segments().map_or(0, |segments| segments.page_bytes());
        Self { most: limits.max_segment_bytes, page: if limits.by_page { page } else { 0 } }
    }

    /// Whether segments count as they are.
    fn is_plain(self) -> bool {
        self.most == u32::MAX && self.page == 0
    }

    /// Lengths of the parts that `piece` counts as.
    fn parts(self, piece: BioVec) -> impl Iterator<Item = u32> {
        let (mut at, mut left) = (piece.base() as usize, piece.bytes());
        std::iter::from_fn(move || {
            let mut part = left.min(self.most);
            if self.page > 0 {
                let into = u32::try_from(at & (self.page as usize - 1)).expect("less than a page");
                part = part.min(self.page - into);
            }
            at += part as usize;
            left -= part;
            (part > 0).then_some(part)
        })
    }
}

/// How many segments a device counts in `bio`.
#[must_use]
pub fn segments(limits: &Limits, bio: &Bio) -> u32 {
    let rule = Rule::of(limits, bio);
    if rule.is_plain() {
        return bio.segments_left();
    }
    let parts: usize = bio.pieces().map(|piece| rule.parts(piece).count()).sum();
    u32::try_from(parts).unwrap_or(u32::MAX)
}

/// Whether a read or write surely is one request to a device: answered without a walk over its
/// segments; where that would take one, the answer is no.
#[must_use]
#[inline]
pub fn surely_fits(limits: &Limits, bio: &Bio) -> bool {
    if limits.gap_mask != 0 || limits.chunk_sectors != 0 || bio.bytes() > u64::from(limits.max_sectors) * u64::from(SECTOR_BYTES)
    {
        return false;
    }
    limits.max_segments == u32::MAX || segments_at_most(limits, bio) <= u64::from(limits.max_segments)
}

/// No less than [`segments`], without a walk: each segment is whole parts and a rest at either end.
fn segments_at_most(limits: &Limits, bio: &Bio) -> u64 {
    let rule = Rule::of(limits, bio);
    let segments = u64::from(bio.segments_left());
    match (rule.page, rule.most) {
        (0, u32::MAX) => segments,
        (0, most) => segments + bio.bytes() / u64::from(most),
        // Pages that are longer than the largest segment end in a rest of their own, each.
        (page, most) if most < page => 2 * segments + bio.bytes() / u64::from(most) + bio.bytes() / u64::from(page),
        (page, _) => 2 * segments + bio.bytes() / u64::from(page),
    }
}

#[cfg(test)]
mod tests;
