//! Where a request must be cut so that a device takes it: no I/O, no bios, only arithmetic.
//!
//! The rules, in the order in which they shorten a read or write: the byte limit (counted from the
//! start of the request), a chunk boundary, the number of segments, the largest segment, the gap
//! rule. The result is rounded down to the logical block, and so that it ends on a physical block when
//! the byte limit or a chunk boundary cut it. Facts: `block/blk-merge.c`, Linux 6.12.

use crate::bvec::Pieces;
use crate::limits::Limits;
use crate::unit::{SECTOR_BYTES, Sector};

/// Bytes of the largest prefix of a request that `limits` allow in one piece; 0 when the memory
/// layout allows not even one logical block (the request must then be refused).
#[must_use]
pub fn prefix_bytes(limits: &Limits, sector: Sector, bytes: u64, pieces: Pieces<'_>) -> u64 {
    let mut allowed = bytes.min(byte_limit(limits, sector, bytes));
    let mut taken: u64 = 0;
    let mut segments: u32 = 0;
    for piece in pieces {
        if taken >= allowed {
            break;
        }
        let mask = u64::from(limits.gap_mask);
        let starts_off = (piece.base() as u64) & mask != 0;
        if taken > 0 && mask != 0 && starts_off {
            break;
        }
        let parts = piece.bytes().div_ceil(limits.max_segment_bytes);
        if segments + parts > limits.max_segments {
            taken +=
                u64::from(limits.max_segments - segments) * u64::from(limits.max_segment_bytes).min(u64::from(piece.bytes()));
            break;
        }
        segments += parts;
        taken += u64::from(piece.bytes());
        let ends_off = (piece.base() as u64 + u64::from(piece.bytes())) & mask != 0;
        if mask != 0 && ends_off {
            break;
        }
    }
    if taken < allowed {
        allowed = taken;
    }
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

#[cfg(test)]
mod tests;
