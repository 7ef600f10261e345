//! What a power cut would find on a disk, and every disk that it might leave.
//!
//! Of the writes that are not durable any may survive, whole or in units that do not tear; a sector never gets
//! older. Units: sectors of 512 bytes.

use super::disk::SECTOR;

/// A write that a power cut may take or leave.
#[derive(Clone, Debug)]
pub struct Pending {
    pub(super) order: u64,
    pub(super) sector: usize,
    pub(super) data: Vec<u8>,
}

/// What a power cut would find on a disk.
#[derive(Clone, Debug)]
pub struct Remains {
    pub(super) durable: Vec<u8>,
    pub(super) durable_order: Vec<u64>,
    pub(super) tear_sectors: usize,
    /// The writes that are not durable, in the order of their effects; those in flight are the last.
    pub pending: Vec<Pending>,
}

impl Remains {
    /// Units of write number `at` that survive a cut each for itself.
    ///
    /// # Panics
    /// When there is no such write.
    #[must_use]
    pub fn units(&self, at: usize) -> usize {
        let Pending { sector, data, .. } = &self.pending[at];
        (sector + data.len() / SECTOR).div_ceil(self.tear_sectors) - sector / self.tear_sectors
    }

    /// The disk after a cut that leaves those units of each write, by its number, that `survives`.
    #[must_use]
    pub fn after(&self, survives: impl Fn(usize, usize) -> bool) -> Vec<u8> {
        let (mut bytes, mut orders) = (self.durable.clone(), None);
        for (at, Pending { order, sector, data }) in self.pending.iter().enumerate() {
            for (index, content) in data.chunks_exact(SECTOR).enumerate() {
                let place = sector + index;
                if !survives(at, place / self.tear_sectors - sector / self.tear_sectors) {
                    continue;
                }
                let newest = &mut orders.get_or_insert_with(|| self.durable_order.clone())[place];
                if *order > *newest {
                    *newest = *order;
                    bytes[place * SECTOR..(place + 1) * SECTOR].copy_from_slice(content);
                }
            }
        }
        bytes
    }
}
