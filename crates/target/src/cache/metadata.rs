//! The metadata area on the fast device: entries changed in place, unit by unit.
//!
//! ```text
//!   updates by slot   ▓▓▓▓▓▓▓▓▓▓▓▓      ▓        set or clear runs of entries
//!   units             │────│────│────│────│      a unit is written whole
//!                      read whole  whole read    only units changed in part are read first
//! ```
//!
//! The media are the only full copy of the metadata: nothing is kept in memory but the first unit
//! (it holds the superblock) and a few recently written ones, so that a stream of single commits
//! reads nothing. That the rest of a unit is what was read is what makes a torn write harmless:
//! bytes that do not change are the same before and after.
//!
//! Invariants:
//! - I1: one call at a time ([`Metadata`] is used by the commit round and by opening, never both).
//! - I2: bytes of a write beyond the updates equal what is on media.
//!
//! Any error means that the media may hold old or new entries in any mix of sectors; the caller
//! stops writing then.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::rc::Rc;

use forebay_block::bio::Call;
use forebay_block::{Bio, BvecIter, Flags, Sector, SectorCount, Status, Target, bvec, call};
use forebay_reactor::{Buffer, BufferPool};

use super::disk::entry::{ENTRY_BYTES, clear_entries, write_entries};
use super::disk::format::{Geometry, SUPERBLOCK_BYTES};
use super::index::{CacheSlot, SlotRun};

/// Largest unit: what disks and file systems write without reading first.
const UNIT_BYTES_MAX: u32 = 4096;
/// Payload of one metadata write at most; longer updates take several.
const CHUNK_BYTES: u64 = 64 << 10;
/// Metadata writes prepared at the same time, in bytes: what stays in a processor's cache between
/// being filled and being written, and is still enough to keep a disk busy.
const BATCH_BYTES: u64 = 256 << 10;
/// Bytes read by one request when everything is read.
const PIECE_BYTES: u64 = 1 << 20;
/// Such requests in flight.
const PIECES: usize = 4;
/// Blocks of cache for each remembered unit, so that remembering costs at most 1/4 byte a block.
const BLOCKS_PER_LINE: u32 = 16_384;

/// Reads the whole metadata area, several requests ahead, and gives it to `each` in order.
pub(super) async fn read_all(fast: &dyn Target, pool: &BufferPool, geometry: &Geometry, mut each: impl FnMut(&[u8])) -> Status {
    let bytes = geometry.metadata_bytes();
    let mut reading: VecDeque<(Call, Buffer, u64)> = VecDeque::new();
    let (mut next, mut done) = (0, 0);
    while done < bytes {
        while next < bytes && reading.len() < PIECES {
            let length = PIECE_BYTES.min(bytes - next);
            let buffer = pool.take(usize::try_from(length).expect("a piece is 1 MiB"));
            let sector = geometry.start_sector() + SectorCount(next / 512);
            let size = u32::try_from(length).expect("a piece is 1 MiB");
            let bio = Bio::read(sector, Rc::clone(buffer.segments()), 0, size);
            reading.push_back((call(fast, bio), buffer, length));
            next += length;
        }
        let (read, mut buffer, length) = reading.pop_front().expect("something is being read until all is done");
        let status = read.await.status();
        if !status.is_ok() {
            return status;
        }
        each(&buffer.bytes_mut()[..usize::try_from(length).expect("a piece is 1 MiB")]);
        done += length;
    }
    Status::Ok
}

/// A change of a run of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Update {
    /// Whose entries.
    pub(super) slots: SlotRun,
    /// The origin sector of the first block, plus one; `None` clears.
    sector_above: Option<NonZeroU64>,
}

/// A unit that was read or written lately.
struct Line {
    unit: u64,
    bytes: Box<[u8]>,
}

/// A run of units that is written by one request.
struct Chunk {
    first_unit: u64,
    units: u64,
    buffer: Buffer,
    updates: std::ops::Range<usize>,
}

/// The metadata area of one cache.
pub(super) struct Metadata {
    fast: Rc<dyn Target>,
    pool: BufferPool,
    geometry: Geometry,
    unit_bytes: u64,
    first_unit: Box<[u8]>,
    lines: Vec<Option<Line>>,
    /// The sequence number of the entries that are set.
    seq: u64,
    /// Empty between calls; kept for their memory.
    chunks: Vec<Chunk>,
    calls: Vec<Call>,
}

impl Metadata {
    /// The metadata of a cache whose first unit, read from media, is `first_unit`.
    pub(super) fn new(fast: Rc<dyn Target>, pool: BufferPool, geometry: Geometry, first_unit: Box<[u8]>) -> Self {
        let unit_bytes = first_unit.len() as u64;
        let lines = (geometry.blocks() / BLOCKS_PER_LINE).clamp(1, 64);
        let lines = (0..lines).map(|_| None).collect();
        Self { fast, pool, geometry, unit_bytes, first_unit, lines, seq: 0, chunks: Vec::new(), calls: Vec::new() }
    }

    /// Bytes of a unit: the largest size up to 4 KiB that fits the device and the layout, so that
    /// no unit reaches into the data or in front of the cache.
    pub(super) fn unit_bytes(fast: &dyn Target, geometry: &Geometry) -> u64 {
        let limits = fast.limits();
        let mut unit = u64::from(limits.physical_bytes.clamp(limits.logical_bytes, UNIT_BYTES_MAX.max(limits.logical_bytes)));
        let start = geometry.start_sector().to_bytes();
        let fits = |unit: u64| start.is_multiple_of(unit) && geometry.metadata_bytes().is_multiple_of(unit);
        while unit > u64::from(limits.logical_bytes) && !fits(unit) {
            unit /= 2;
        }
        unit
    }

    /// Sets the sequence number of entries that are set from now on.
    pub(super) fn set_seq(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// Memory held, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        (self.lines.iter().flatten().count() + 1) * self.first_unit.len()
    }

    fn sector(&self, unit: u64) -> Sector {
        let sectors = unit * self.unit_bytes / 512;
        self.geometry.start_sector() + SectorCount(sectors)
    }

    /// The units that the entries of `slots` lie in, as first and one past the last.
    fn units(&self, slots: SlotRun) -> (u64, u64) {
        let first = self.geometry.entry_offset(slots.slot);
        let end = first + u64::from(slots.count) * ENTRY_BYTES as u64;
        (first / self.unit_bytes, end.div_ceil(self.unit_bytes))
    }

    /// Writes the superblock with sequence number `seq`, durably: the instant of a commit.
    pub(super) async fn write_superblock(&mut self, seq: u64) -> Status {
        let superblock = self.geometry.superblock(seq).encode();
        self.first_unit[..SUPERBLOCK_BYTES].copy_from_slice(&superblock);
        let mut buffer = self.pool.take(self.first_unit.len());
        buffer.bytes_mut()[..self.first_unit.len()].copy_from_slice(&self.first_unit);
        let bytes = u32::try_from(self.first_unit.len()).expect("a unit is at most the logical block of a device");
        let bio = Bio::write(self.sector(0), Rc::clone(buffer.segments()), 0, bytes);
        call(&*self.fast, bio.with(Flags { fua: true, ..Flags::default() })).await.status()
    }

    /// Appends an update, in pieces that one request can carry and that meet at units.
    /// Entries are set to the sectors from `sector` on, or cleared where there is none.
    pub(super) fn push_update(&self, updates: &mut Vec<Update>, slots: SlotRun, sector: Option<u64>) {
        let most = u32::try_from(CHUNK_BYTES / ENTRY_BYTES as u64).expect("a chunk is small");
        let mut rest = slots;
        let mut sector = sector;
        let update = |slots, sector: Option<u64>| Update {
            slots,
            sector_above: sector.and_then(|sector| NonZeroU64::MIN.checked_add(sector)),
        };
        while rest.count > most {
            let end_bytes = self.geometry.entry_offset(CacheSlot(rest.slot.0 + most));
            let over = u32::try_from(end_bytes % self.unit_bytes / ENTRY_BYTES as u64).expect("below a unit");
            let count = most - over;
            updates.push(update(SlotRun { slot: rest.slot, count }, sector));
            rest = SlotRun { slot: CacheSlot(rest.slot.0 + count), count: rest.count - count };
            sector = sector.map(|sector| sector + u64::from(count) * u64::from(self.geometry.block_sectors()));
        }
        updates.push(update(rest, sector));
    }

    /// Applies the updates, which are in order of their slots and do not overlap. The new content
    /// is in the device's cache afterwards, not yet durable.
    pub(super) async fn apply(&mut self, updates: &[Update]) -> Status {
        let mut next = 0;
        let mut status = Status::Ok;
        while next < updates.len() && status.is_ok() {
            let mut chunks = std::mem::take(&mut self.chunks);
            let mut bytes = 0;
            while next < updates.len() && bytes < BATCH_BYTES {
                let chunk = self.next_chunk(updates, next);
                next = chunk.updates.end;
                bytes += chunk.units * self.unit_bytes;
                chunks.push(chunk);
            }
            status = self.write_chunks(updates, &mut chunks).await;
            chunks.clear();
            self.chunks = chunks;
        }
        status
    }

    /// The run of adjoining units that begins with what is left of update `at`.
    fn next_chunk(&self, updates: &[Update], at: usize) -> Chunk {
        let most = CHUNK_BYTES / self.unit_bytes;
        let (first_unit, mut end) = self.units(updates[at].slots);
        let mut last = at + 1;
        while let Some(update) = updates.get(last) {
            let (first, update_end) = self.units(update.slots);
            // Two chunks never share a unit; only then may a long one end here.
            if first > end || (first == end && update_end - first_unit > most) {
                break;
            }
            end = end.max(update_end);
            last += 1;
        }
        let units = end - first_unit;
        let bytes = usize::try_from(units * self.unit_bytes).expect("a chunk of metadata fits memory");
        Chunk { first_unit, units, buffer: self.pool.take(bytes), updates: at..last }
    }

    async fn write_chunks(&mut self, updates: &[Update], chunks: &mut [Chunk]) -> Status {
        let status = self.load_partial_units(updates, chunks).await;
        if !status.is_ok() {
            return status;
        }
        let mut calls = std::mem::take(&mut self.calls);
        for chunk in chunks.iter_mut() {
            self.fill(updates, chunk);
            let bytes = u32::try_from(chunk.units * self.unit_bytes).expect("a chunk is at most two updates of 64 KiB");
            let bio = Bio::write(self.sector(chunk.first_unit), Rc::clone(chunk.buffer.segments()), 0, bytes);
            calls.push(call(&*self.fast, bio));
        }
        self.calls = calls;
        self.all().await
    }

    /// Brings the present content of units that are changed only in part into the buffers.
    async fn load_partial_units(&mut self, updates: &[Update], chunks: &mut [Chunk]) -> Status {
        let mut calls = std::mem::take(&mut self.calls);
        for chunk in chunks.iter_mut() {
            let mut unit = chunk.first_unit;
            let mut at = chunk.updates.start;
            while unit < chunk.first_unit + chunk.units {
                while at + 1 < chunk.updates.end && self.units(updates[at].slots).1 <= unit {
                    at += 1;
                }
                let skip = (unit - chunk.first_unit) * self.unit_bytes;
                if let Some(whole) = self.whole_units(updates, chunk.updates.end, at, unit) {
                    unit = whole;
                    continue;
                }
                if !self.recall(unit, chunk, skip) {
                    let skip = u32::try_from(skip).expect("inside a chunk");
                    let bytes = u32::try_from(self.unit_bytes).expect("a unit is small");
                    let bio = Bio::read(self.sector(unit), Rc::clone(chunk.buffer.segments()), skip, bytes);
                    calls.push(call(&*self.fast, bio));
                }
                unit += 1;
            }
        }
        self.calls = calls;
        self.all().await
    }

    /// Waits for all calls, which are under way already; their first error.
    async fn all(&mut self) -> Status {
        let mut status = Status::Ok;
        for one in self.calls.drain(..) {
            status = status.and(one.await.status());
        }
        status
    }

    /// When `unit` is covered whole by updates from `at` on: the first unit behind it that is not.
    fn whole_units(&self, updates: &[Update], end: usize, at: usize, unit: u64) -> Option<u64> {
        let mut reached = unit * self.unit_bytes;
        for update in &updates[at..end] {
            let first = self.geometry.entry_offset(update.slots.slot);
            if first > reached {
                break;
            }
            reached = reached.max(first + u64::from(update.slots.count) * ENTRY_BYTES as u64);
        }
        let covered = reached / self.unit_bytes;
        (covered > unit).then_some(covered)
    }

    /// Copies a remembered unit into the chunk; false when it must be read.
    fn recall(&self, unit: u64, chunk: &mut Chunk, skip: u64) -> bool {
        let known = if unit == 0 {
            Some(&self.first_unit)
        } else {
            let line = self.lines[self.line_of(unit)].as_ref();
            line.filter(|line| line.unit == unit).map(|line| &line.bytes)
        };
        let Some(known) = known else { return false };
        let segments = chunk.buffer.segments();
        let skip = u32::try_from(skip).expect("inside a chunk");
        let bytes = u32::try_from(known.len()).expect("a unit is small");
        bvec::copy_in(segments, BvecIter::over(Sector(0), segments, skip, bytes), known);
        true
    }

    fn line_of(&self, unit: u64) -> usize {
        usize::try_from(unit % self.lines.len() as u64).expect("below the number of lines")
    }

    /// Puts the updates into the chunk's buffer, and remembers what will be on media then.
    fn fill(&mut self, updates: &[Update], chunk: &mut Chunk) {
        let base = chunk.first_unit * self.unit_bytes;
        let block_sectors = self.geometry.block_sectors();
        let used = usize::try_from(chunk.units * self.unit_bytes).expect("a chunk fits memory");
        let bytes = &mut chunk.buffer.bytes_mut()[..used];
        for update in &updates[chunk.updates.clone()] {
            let first = usize::try_from(self.geometry.entry_offset(update.slots.slot) - base).expect("inside a chunk");
            let entries = &mut bytes[first..first + update.slots.count as usize * ENTRY_BYTES];
            match update.sector_above {
                Some(above) => write_entries(entries, above.get() - 1, block_sectors, self.seq),
                None => clear_entries(entries),
            }
        }
        self.remember(chunk.first_unit, bytes);
    }

    /// Brings what is remembered of the units from `first` on up to their new content, and remembers
    /// the first and the last of them.
    fn remember(&mut self, first: u64, content: &[u8]) {
        let unit_bytes = self.first_unit.len();
        let mut units = content.chunks_exact(unit_bytes);
        for line in self.lines.iter_mut().flatten() {
            let at = line.unit.checked_sub(first).and_then(|at| usize::try_from(at).ok());
            if let Some(unit) = at.and_then(|at| units.clone().nth(at)) {
                line.bytes.copy_from_slice(unit);
            }
        }
        let last = first + units.len() as u64 - 1;
        let (head, tail) = (units.next(), units.next_back());
        for (unit, bytes) in [(first, head), (last, tail)] {
            let Some(bytes) = bytes else { continue };
            if unit == 0 {
                self.first_unit.copy_from_slice(bytes);
                continue;
            }
            let line = self.line_of(unit);
            match &mut self.lines[line] {
                Some(line) => {
                    line.unit = unit;
                    line.bytes.copy_from_slice(bytes);
                }
                empty @ None => *empty = Some(Line { unit, bytes: bytes.into() }),
            }
        }
    }
}
