//! Power cuts of a real kernel: its writes recorded by dm-log-writes, and laid down again up to any moment.
//!
//! ```text
//!  writecache over linear origin and linear cache, both parts of one recorded disk:   [ origin │ cache ]
//!  log:   w w w FLUSH w w FUA w w FLUSH … mark "flushed 3" …
//!         └─ durable ─┘└ any subset ┘└ cut
//! ```
//!
//! 1. What was written before the last flush before the cut is there, and what was written with FUA is.
//! 2. Of the rest, each write is there, missing, or torn at a sector, as the seed says.
//!
//! The log's format is that of the kernel's `log-writes` target: a head, then for each write one sector that
//! describes it, followed by its data. Units: sectors of 512 bytes.

use super::{CACHE_BYTES, Case, ORIGIN_SECTORS};
use crate::Scratch;
use crate::pattern::SECTOR;
use std::fs;
use std::ops::Range;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Room for a log: several times what a load writes.
const LOG_BYTES: u64 = 64 << 20;

/// Makes the recorded disk and its log.
pub fn make(case: &Case, scratch: &Scratch) {
    let _path = scratch.sparse(&format!("{}.disk", case.name), ORIGIN_SECTORS * SECTOR as u64 + CACHE_BYTES);
    let _path = scratch.sparse(&format!("{}.log", case.name), LOG_BYTES);
}

/// Guest script: makes the case's device over a recorded disk, on loop devices `2 × slot` and `2 × slot + 1`.
pub fn attach(case: &Case, slot: usize) -> String {
    let (name, disk, log) = (&case.name, format!("/dev/loop{}", 2 * slot), format!("/dev/loop{}", 2 * slot + 1));
    let cache_sectors = CACHE_BYTES / SECTOR as u64;
    let whole = ORIGIN_SECTORS + cache_sectors;
    let table = case.table(&format!("/dev/mapper/{name}-o"), &format!("/dev/mapper/{name}-c"));
    format!(
        "losetup {disk} /mnt/{name}.disk\nlosetup {log} /mnt/{name}.log\n\
         make() {{ dmsetup create $1 --noudevsync && dmsetup mknodes $1; }}\n\
         echo '0 {whole} log-writes {disk} {log}' | make {name}-log\n\
         echo '0 {ORIGIN_SECTORS} linear /dev/mapper/{name}-log 0' | make {name}-o\n\
         echo '0 {cache_sectors} linear /dev/mapper/{name}-log {ORIGIN_SECTORS}' | make {name}-c\n\
         echo '{table}' | make {name}\n"
    )
}

/// Guest script: begins to take everything down, the recorder last; `wait` for its end.
pub fn detach(case: &Case) -> String {
    format!("(for part in '' -o -c -log; do dmsetup remove {}$part --noudevsync; done) &\n", case.name)
}

/// One entry of a log.
struct Entry {
    sectors: Range<u64>,
    flags: u64,
    /// Where its data, or its mark's text, stands in the log.
    content: Range<usize>,
}

/// What a kernel wrote, in the order in which it can have become durable.
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// What is left after a power cut.
pub struct Cut {
    /// The recorded disk.
    pub disk: Vec<u8>,
    /// The last round that was marked as flushed before the cut.
    pub flushed: u64,
    /// The last round that was marked as started before the cut.
    pub started: u64,
    /// How many writes were lost or torn.
    pub lost: usize,
}

impl Log {
    /// Reads the log that a guest left.
    pub fn read(case: &Case, scratch: &Scratch) -> Self {
        let path = scratch.file(&format!("{}.log", case.name));
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        assert_eq!((word(0), word(8)), (MAGIC, 1), "{path}: magic and version of the log");
        assert_eq!(word(24) & 0xffff_ffff, SECTOR as u64, "{path}: sector size of the log");
        let mut entries = Vec::new();
        let mut at = SECTOR;
        for _ in 0..word(16) {
            let (start, count, flags, text) = (word(at), word(at + 8), word(at + 16), word(at + 24));
            let length = if flags & DISCARD == 0 { small(count) * SECTOR } else { 0 };
            let content = if flags & MARK == 0 { at + SECTOR..at + SECTOR + length } else { at + 32..at + 32 + small(text) };
            entries.push(Entry { sectors: start..start + count, flags, content });
            at += SECTOR + length;
        }
        Self { bytes, entries }
    }

    /// The number of moments at which power can be cut.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What is left when power is cut before entry `at`, with the losses that `seed` picks.
    pub fn cut(&self, at: usize, seed: u64) -> Cut {
        let mut random = fastrand::Rng::with_seed(seed);
        let before = &self.entries[..at];
        let durable = before.iter().rposition(|entry| entry.flags & FLUSH != 0).map_or(0, |flush| flush);
        let bytes = small(ORIGIN_SECTORS) * SECTOR + small(CACHE_BYTES);
        let mut cut = Cut { disk: vec![0; bytes], flushed: 0, started: 0, lost: 0 };
        for (index, entry) in before.iter().enumerate() {
            let content = &self.bytes[entry.content.clone()];
            if entry.flags & MARK != 0 {
                cut.note(&String::from_utf8_lossy(content));
                continue;
            }
            let mut kept = content;
            if index >= durable && entry.flags & FUA == 0 && random.bool() {
                let sectors = content.len() / SECTOR;
                kept = &content[..random.usize(0..=sectors) * random.usize(0..=1) * SECTOR];
                cut.lost += usize::from(kept.len() < content.len());
            }
            let to = small(entry.sectors.start) * SECTOR;
            cut.disk[to..to + kept.len()].copy_from_slice(kept);
        }
        cut
    }
}

impl Cut {
    /// Writes the two halves of the disk as a pair of origin and cache.
    pub fn leave(&self, case: &Case, scratch: &Scratch) {
        let (origin, cache) = self.disk.split_at(small(ORIGIN_SECTORS) * SECTOR);
        let _path = scratch.write(&format!("{}.origin", case.name), origin);
        let _path = scratch.write(&format!("{}.cache", case.name), cache);
    }

    fn note(&mut self, mark: &str) {
        let (what, round) = mark.trim_end_matches('\0').split_once('-').unwrap_or_else(|| panic!("not a mark: {mark:?}"));
        let round = round.parse().unwrap_or_else(|_| panic!("not a mark: {mark:?}"));
        match what {
            "started" => self.started = round,
            "flushed" => self.flushed = round,
            _ => panic!("not a mark: {mark:?}"),
        }
    }
}

fn small(number: u64) -> usize {
    usize::try_from(number).expect("test images fit in memory")
}
