//! What bytes say: damage to disks, requests, and how lives end, six bytes each.
//!
//! ```text
//!   byte   0      1      2      3      4      5
//!         │ what │ first, count …  │ how  │ with │
//! ```
//!
//! Any bytes are records: what does not fit is folded into its range by whoever carries it out.

use crate::run::Ask;
use crate::world::Cut;

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 6;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A request; with `wait`, everything is answered before the next thing happens.
    Send { ask: Ask, first: u8, count: u8, wait: bool },
    /// Everything is answered, and the target has time for what it does by itself.
    Settle { milliseconds: u16 },
    /// Everything is written down to the bottom.
    Drain,
    /// The running target is told something that changes no content.
    Disturb(u64),
    /// The life ends so many device steps later.
    Cut(Cut, u16),
    /// The life ends in order, and a disk is changed.
    Damage(Damage),
    /// A request of a disk fails.
    Fail { disk: u8, after: u8, for_good: bool },
}

/// A change of a disk behind everybody's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage {
    /// Which disk, of those that may be changed.
    pub(super) disk: u8,
    place: u16,
    how: u8,
    with: u8,
    /// Whether checksums are made right again where there are some.
    pub(super) seal: bool,
}

/// Bytes of what is changed as one: an entry of a cache, of a snapshot.
const ENTRY: usize = 16;
/// Bytes of a sector.
const SECTOR: usize = 512;

impl Record {
    pub(super) fn read(bytes: [u8; RECORD_BYTES]) -> Self {
        let [what, first, count, third, how, with] = bytes;
        let send = |ask| Self::Send { ask, first, count, wait: with & 1 == 1 };
        match what % 18 {
            0..4 => send(Ask::Write),
            4 => send(Ask::WriteFua),
            5 => send(Ask::Zeroes),
            6 => send(Ask::Trim),
            7 | 8 => send(Ask::Read),
            9 => send(Ask::Flush),
            10 => Self::Settle { milliseconds: u16::from_le_bytes([first, count]) },
            11 => Self::Drain,
            12 => Self::Disturb(u64::from_le_bytes([first, count, third, how, with, 0, 0, 0])),
            13 => Self::Cut(if with & 1 == 1 { Cut::Kill } else { Cut::Power }, u16::from_le_bytes([first, count])),
            14 => Self::Fail { disk: first, after: count, for_good: with & 1 == 1 },
            _ => {
                Self::Damage(Damage { disk: first, place: u16::from_le_bytes([count, third]), how, with, seal: how & 0x80 != 0 })
            }
        }
    }
}

impl Damage {
    /// The first byte that it changes on a disk of so many.
    pub(super) fn place(self, bytes: usize) -> usize {
        usize::from(self.place) % bytes
    }

    /// Changes `disk`, which has whole sectors.
    pub(super) fn apply(self, disk: &mut [u8]) {
        let place = self.place(disk.len());
        let with = usize::from(self.with);
        let (entry, sector) = (place / ENTRY * ENTRY, place / SECTOR * SECTOR);
        match self.how & 0x7F {
            0..48 => disk[place] ^= self.with,
            48..64 => disk[place] = self.with,
            64..80 => disk[entry..entry + ENTRY].fill(self.with),
            80..96 => disk.copy_within(with * ENTRY % disk.len()..with * ENTRY % disk.len() + ENTRY, entry),
            96..112 => {
                let word = place / 8 * 8;
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&disk[word..word + 8]);
                let number = u64::from_le_bytes(bytes).wrapping_add(with as u64).wrapping_sub(128);
                disk[word..word + 8].copy_from_slice(&number.to_le_bytes());
            }
            112..120 => disk[sector..sector + SECTOR].fill(self.with),
            _ => disk.copy_within(with * SECTOR % disk.len()..with * SECTOR % disk.len() + SECTOR, sector),
        }
    }
}
