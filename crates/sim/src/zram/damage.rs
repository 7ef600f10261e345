//! Damage to the backing device: what a device may do to blocks behind everybody's back.

use fastrand::Rng;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Bytes at whose multiples packed objects begin.
const GRAIN: usize = 16;

/// What happens to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Bits turn over.
    Rotten,
    /// The end of a write did not arrive.
    Torn,
    /// A write went to the block before.
    Misdirected,
    /// A write did not arrive at all.
    Stale,
}

impl Damage {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        [Self::Rotten, Self::Torn, Self::Misdirected, Self::Stale][rng.usize(0..4)]
    }

    /// Whether nothing of what was stored can be left as it was.
    pub(super) fn is_everywhere(self, packed: bool) -> bool {
        !packed || self == Self::Rotten
    }

    /// Does it to one block; `earlier` is what the device held some time ago.
    pub(super) fn befall(self, rng: &mut Rng, bytes: &mut [u8], block: usize, earlier: &[u8]) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let before = bytes[range.clone()].to_vec();
        match self {
            Self::Rotten => {}
            Self::Torn => {
                let from = range.start + rng.usize(1..8) * 512;
                bytes[from..range.end].copy_from_slice(&earlier[from..range.end]);
            }
            Self::Misdirected => {
                let from = if block == 0 { bytes.len() - BLOCK } else { range.start - BLOCK };
                bytes.copy_within(from..from + BLOCK, range.start);
            }
            Self::Stale => bytes[range.clone()].copy_from_slice(&earlier[range.clone()]),
        }
        if bytes[range.clone()] == before {
            bytes[range.start + rng.usize(0..BLOCK)] ^= 1 << rng.u32(0..8);
        }
    }

    /// Does it to every block, so that no object is left alone where it can be everywhere.
    pub(super) fn befall_all(self, rng: &mut Rng, bytes: &mut [u8], earlier: &[u8], packed: bool) {
        if packed && self == Self::Rotten {
            for grain in bytes.chunks_exact_mut(GRAIN) {
                grain[rng.usize(0..GRAIN)] ^= 1 << rng.u32(0..8);
            }
            return;
        }
        for block in (0..bytes.len() / BLOCK).rev() {
            self.befall(rng, bytes, block, earlier);
        }
    }
}
