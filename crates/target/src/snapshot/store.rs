//! The store of one snapshot in use: it gives out chunks, and makes exceptions durable.
//!
//! Invariants:
//! - I1: a chunk is given out once, whatever becomes of it, unless it is taken back before anything of it
//!   was written.
//! - I2: one commit at a time; the order of its writes is that of [`super::disk::round`].
//! - I3: after a commit that failed, nothing is committed any more: the device is in doubt.
//! - I4: whatever was read while the store opened is durable before it is used.
//! - I5: behind the entries of the present area there are zeroes on disk from the opening on: what a
//!   torn write left there is cleared before the store is used.
//! - I6: chunks that a crash left unused in front of others are given out first: none is lost for good.
//!
//! Units: chunks of the store, unless a name says otherwise.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::bio::Call;
use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Flags, Sector, Status, Target, call};
use forebay_reactor::{Buffer, BufferPool};

use super::SnapshotError;
use super::disk::format::{ENTRY_BYTES, FIRST_DATA, HEADER_BYTES};
use super::disk::round::{self, blank_area, block_bytes, entry_offset, plan};
use super::disk::{Exception, Header, Layout, List, Piece, Position};
use super::flushes::Flushes;
use super::holes::{Holes, Mark};
use crate::below::check_multiple;

/// Largest request of metadata, bytes.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Areas that are read at a time while a store opens.
const AREAS_AHEAD: u64 = 16;

/// Entries for which areas are made ready ahead.
const AHEAD_ENTRIES: u64 = 2048;

/// Where the next commit writes.
#[derive(Default)]
struct Journal {
    position: Position,
    tail: Vec<Exception>,
    /// The last area that is known to be durably zeroes behind the list.
    blank: u64,
}

/// A store.
pub(super) struct Store {
    cow: Rc<dyn Target>,
    pool: BufferPool,
    layout: Layout,
    /// Whole chunks of the device.
    chunks: u64,
    next: Cell<u64>,
    holes: RefCell<Holes>,
    /// None in a store that is not persistent.
    journal: Option<RefCell<Journal>>,
    flushes: Flushes,
}

/// What a persistent store was found to be.
pub(super) struct Loaded {
    pub(super) store: Store,
    pub(super) valid: bool,
    /// In the order in which they were committed.
    pub(super) entries: Vec<Exception>,
}

/// How much of a store is in use, sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Given out, header and areas included.
    pub used: u64,
    /// Size of its device.
    pub total: u64,
    /// Header and areas.
    pub metadata: u64,
}

impl Store {
    fn new(cow: Rc<dyn Target>, pool: &BufferPool, chunk_sectors: u64, journal: Option<RefCell<Journal>>) -> Self {
        let layout = Layout::new(chunk_sectors);
        let chunks = cow.sectors().0 / chunk_sectors;
        let next = Cell::new(if journal.is_some() { FIRST_DATA } else { 0 });
        let (flushes, holes) = (Flushes::of(&cow), RefCell::default());
        Self { cow, pool: pool.clone(), layout, chunks, next, holes, journal, flushes }
    }

    /// A store that is gone with the process.
    pub(super) fn transient(cow: Rc<dyn Target>, pool: &BufferPool, chunk_sectors: u64) -> Self {
        Self::new(cow, pool, chunk_sectors, None)
    }

    /// Opens the store on `cow`, or makes one with `chunk_sectors` where there is none. The size that a
    /// store has wins over the one that is asked for.
    pub(super) async fn open(cow: Rc<dyn Target>, pool: &BufferPool, chunk_sectors: u64) -> Result<Loaded, SnapshotError> {
        let block = cow.limits().logical_bytes.max(u32::try_from(HEADER_BYTES).expect("a few bytes"));
        let mut first = read(&cow, pool, 0, u64::from(block)).await.map_err(SnapshotError::Read)?;
        let header = Header::decode(first.bytes_mut())?;
        let Some(header) = header else {
            let store = Self::new(cow, pool, chunk_sectors, Some(RefCell::default()));
            store.format().await?;
            return Ok(Loaded { store, valid: true, entries: Vec::new() });
        };
        let found = u64::from(header.chunk_sectors);
        check_multiple("snapshot", "chunk", found, u64::from(block) / 512)?;
        if found != chunk_sectors {
            tracing::warn!("snapshot: the store has chunks of {found} sectors, not of {chunk_sectors}: its own size is used");
        }
        let store = Self::new(cow, pool, found, Some(RefCell::default()));
        store.check_room()?;
        let entries = if header.valid { store.load().await? } else { Vec::new() };
        // What was read may have been left by a process that died before it was durable.
        let status = store.flush().await;
        if !status.is_ok() {
            return Err(SnapshotError::Write(status));
        }
        Ok(Loaded { store, valid: header.valid, entries })
    }

    /// Whether the device has room for a header and an area.
    fn check_room(&self) -> Result<(), SnapshotError> {
        let (sectors, chunk) = (self.cow.sectors().0, self.layout.chunk_sectors());
        if self.chunks < FIRST_DATA { Err(SnapshotError::Small { sectors, chunk }) } else { Ok(()) }
    }

    /// Makes an empty store: the header last, so that a crash leaves a device without a store.
    async fn format(&self) -> Result<(), SnapshotError> {
        self.check_room()?;
        let mut status = self.write_piece(&blank_area(self.layout, 0)).await;
        if status.is_ok() {
            status = self.flush().await;
        }
        if status.is_ok() {
            status = self.write_header(true, self.layout.chunk_bytes()).await;
        }
        if status.is_ok() { Ok(()) } else { Err(SnapshotError::Write(status)) }
    }

    /// Writes the header over the first `bytes` of the device.
    async fn write_header(&self, valid: bool, bytes: u64) -> Status {
        let chunk_sectors = u32::try_from(self.layout.chunk_sectors()).expect("a chunk is at most 2^21 sectors");
        let header = Header { valid, chunk_sectors }.encode();
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(REQUEST_BYTES_MAX);
            let mut buffer = self.zeroes(length);
            if at == 0 && (valid || !planted(Bug::M6HeaderRace)) {
                buffer.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header);
            }
            let status = self.write(at, length, &buffer, true).await.status();
            if !status.is_ok() {
                return status;
            }
            at += length;
        }
        Status::Ok
    }

    /// Reads all entries, and clears what stands behind them (I5).
    async fn load(&self) -> Result<Vec<Exception>, SnapshotError> {
        let mut list = List::new(self.layout, self.chunks);
        let ahead = (REQUEST_BYTES_MAX / self.layout.chunk_bytes()).clamp(1, AREAS_AHEAD);
        let mut area = 0;
        while !list.is_ended() && self.layout.area_chunk(area) < self.chunks {
            let fits = |area: &u64| self.layout.area_chunk(*area) < self.chunks;
            let areas: Vec<u64> = (area..area + ahead).take_while(fits).collect();
            self.load_areas(&areas, &mut list).await?;
            area += ahead;
            if planted(Bug::M7AreaNotLoaded) {
                break;
            }
        }
        let unclean = list.is_unclean();
        let entries = list.finish()?;
        let count = entries.len() as u64;
        let per_area = self.layout.area_entries();
        let position = Position { area: count / per_area, filled: count % per_area };
        let per_block = self.block() / ENTRY_BYTES as u64;
        let tail_length = usize::try_from(position.filled % per_block).expect("a block is small");
        let tail = entries[entries.len() - tail_length..].to_vec();
        let highest = entries.iter().map(|entry| entry.new + 1).max().unwrap_or(0);
        self.next.set(self.layout.data_from(highest));
        if !planted(Bug::M5SpaceLeaked) {
            self.holes.replace(Holes::between(&entries, self.layout, self.chunks));
        }
        if unclean {
            let offset = entry_offset(self.layout, Position { filled: position.filled - tail.len() as u64, ..position });
            let end = entry_offset(self.layout, Position { filled: per_area, ..position });
            let piece = Piece { offset, bytes: end - offset, entries: tail.clone() };
            let status = self.write_piece(&piece).await;
            if !status.is_ok() {
                return Err(SnapshotError::Write(status));
            }
        }
        *self.journal.as_ref().expect("only persistent stores are loaded").borrow_mut() =
            Journal { position, tail, blank: position.area };
        Ok(entries)
    }

    /// Reads `areas` at once and takes in what they hold, up to the end of the list.
    async fn load_areas(&self, areas: &[u64], list: &mut List) -> Result<(), SnapshotError> {
        let bytes = self.layout.chunk_bytes();
        let mut calls = Vec::new();
        let start = |area| self.layout.sector(self.layout.area_chunk(area)).to_bytes();
        for &area in areas.iter().filter(|_| bytes <= REQUEST_BYTES_MAX) {
            let buffer = self.pool.take(length(bytes));
            calls.push((self.read(start(area), bytes, &buffer), buffer));
        }
        let mut result = Ok(());
        for (one, mut buffer) in calls {
            let read = fine(one.await.status()).map_err(SnapshotError::Read);
            result = result.and(read);
            if result.is_ok() && !list.is_ended() {
                result = list.feed(&buffer.bytes_mut()[..length(bytes)]).map_err(SnapshotError::from);
            }
        }
        result?;
        let large = areas.first().filter(|_| bytes > REQUEST_BYTES_MAX);
        for at in (0..bytes).step_by(length(REQUEST_BYTES_MAX)).filter(|_| large.is_some()) {
            let buffer = read(&self.cow, &self.pool, start(areas[0]) + at, REQUEST_BYTES_MAX).await;
            list.feed(&buffer.map_err(SnapshotError::Read)?.bytes_mut()[..length(REQUEST_BYTES_MAX)])?;
        }
        Ok(())
    }

    /// Size of a chunk and where things are.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    fn block(&self) -> u64 {
        block_bytes(self.layout, self.cow.limits().logical_bytes)
    }

    /// Gives out a chunk (I1); `None` when no room is left. The last one in front of an area that does
    /// not fit any more is not given out: who reads a full area goes on with the next.
    pub(super) fn allocate(&self) -> Option<u64> {
        if let Some(hole) = self.holes.borrow_mut().take(self.layout) {
            return Some(hole);
        }
        let new = self.next.get();
        if self.journal.is_none() {
            self.next.set(new + 1);
            return (new < self.chunks).then_some(new);
        }
        let closes_area = self.layout.is_metadata(new + 1) && new + 1 >= self.chunks;
        if new >= self.chunks || closes_area {
            return None;
        }
        self.next.set(self.layout.data_from(new + 1));
        Some(new)
    }

    /// How much is given out, to be told to [`Store::take_back`].
    pub(super) fn mark(&self) -> Mark {
        let holes = self.holes.borrow();
        Mark { next: self.next.get(), at: holes.at, left: holes.left }
    }

    /// Takes back what was given out since `mark`: nothing of it was written (I1).
    pub(super) fn take_back(&self, mark: Mark) {
        assert!(mark.next <= self.next.get(), "chunks are given out in ascending order");
        self.next.set(mark.next);
        let mut holes = self.holes.borrow_mut();
        (holes.at, holes.left) = (mark.at, mark.left);
    }

    /// Makes `new` durable, whose data is (I2). The flush that ends it covers whatever was written to
    /// the device before it began.
    pub(super) async fn commit(&self, new: &[Exception]) -> Status {
        let Some(journal) = &self.journal else { return Status::Ok };
        let (round, blank) = {
            let journal = journal.borrow();
            (plan(self.layout, self.block(), journal.position, &journal.tail, new), journal.blank)
        };
        let round::Round { pieces, position, tail } = round;
        let mut ready = blank;
        if position.area > blank {
            ready = self.last_ahead(position);
            let mut status = self.blank(blank + 1..=ready).await;
            if status.is_ok() {
                status = self.flush().await;
            }
            if !status.is_ok() {
                return status;
            }
        }
        let mut writes = Vec::new();
        for piece in &pieces {
            self.start_piece(piece, &mut writes);
        }
        let half_full = position.filled > self.layout.area_entries() / 2;
        let ahead = if half_full || position.area > 0 { self.last_ahead(position).max(ready) } else { ready };
        for area in ready + 1..=ahead {
            self.start_piece(&blank_area(self.layout, area), &mut writes);
        }
        let mut status = all(writes).await;
        if status.is_ok() {
            status = self.flush().await;
        }
        if status.is_ok() {
            *journal.borrow_mut() = Journal { position, tail, blank: ahead };
        }
        status
    }

    /// The last area that should be ready when the list ends at `position`, as far as the device goes.
    fn last_ahead(&self, position: Position) -> u64 {
        let most = position.area + AHEAD_ENTRIES.div_ceil(self.layout.area_entries());
        let fits = |area: &u64| self.layout.area_chunk(*area) < self.chunks;
        (position.area..=most).take_while(fits).last().unwrap_or(position.area)
    }

    /// Fills areas with zeroes.
    async fn blank(&self, areas: std::ops::RangeInclusive<u64>) -> Status {
        let mut writes = Vec::new();
        for area in areas {
            self.start_piece(&blank_area(self.layout, area), &mut writes);
        }
        all(writes).await
    }

    /// How many flushes were begun: what is written now is durable when a later one has succeeded.
    pub(super) fn flushes_begun(&self) -> u64 {
        self.flushes.begun()
    }

    /// Whether what had been written when `begun` flushes were begun is durable.
    pub(super) fn is_flushed(&self, begun: u64) -> bool {
        self.journal.is_none() || self.flushes.covered(begun)
    }

    /// Clears the entries behind `kept`, which are all that stay. Their chunks are not given out again
    /// before the store is opened anew; what counts as in use is what those that stay need.
    pub(super) async fn forget(&self, kept: &[Exception]) -> Status {
        let Some(journal) = &self.journal else { return Status::Ok };
        let round::Retreat { pieces, position, tail } =
            round::retreat(self.layout, self.block(), journal.borrow().position, kept);
        for piece in &pieces {
            let mut status = self.write_piece(piece).await;
            if status.is_ok() {
                status = self.flush().await;
            }
            if !status.is_ok() {
                return status;
            }
        }
        self.next.set(self.layout.area_chunk(position.area) + position.filled + 1);
        self.holes.take();
        *journal.borrow_mut() = Journal { position, tail, blank: position.area };
        Status::Ok
    }

    /// Marks the store as lost, for ever.
    pub(super) async fn invalidate(&self) -> Status {
        if self.journal.is_none() {
            return Status::Ok;
        }
        let block = u64::from(self.cow.limits().logical_bytes).max(512);
        // No other flush may take the error of this one.
        self.flushes.idle().await;
        self.write_header(false, block).await
    }

    /// How much is in use.
    pub(super) fn usage(&self) -> Usage {
        let chunk = self.layout.chunk_sectors();
        let areas = self.journal.as_ref().map_or(0, |journal| journal.borrow().position.area + 2);
        let used = if self.journal.is_some() { self.next.get() } else { self.next.get().min(self.chunks) };
        let used = used - self.holes.borrow().left;
        Usage { used: used * chunk, total: self.cow.sectors().0, metadata: areas * chunk }
    }

    /// Makes everything durable that was written before. Whoever flushes the device does it here: of two flushes side
    /// by side, the one that succeeds says nothing.
    pub(super) async fn flush(&self) -> Status {
        self.flushes.flush().await
    }

    fn zeroes(&self, bytes: u64) -> Buffer {
        let mut buffer = self.pool.take(length(bytes));
        buffer.bytes_mut()[..length(bytes)].fill(0);
        buffer
    }

    fn write(&self, offset: u64, bytes: u64, buffer: &Buffer, fua: bool) -> Call {
        let bytes = u32::try_from(bytes).expect("a request of metadata is at most 1 MiB");
        let sector = Sector::from_bytes(offset).expect("metadata is in whole sectors");
        let flags = Flags { fua, meta: true, ..Flags::default() };
        call(&*self.cow, Bio::write(sector, Rc::clone(buffer.segments()), 0, bytes).with(flags))
    }

    fn read(&self, offset: u64, bytes: u64, buffer: &Buffer) -> Call {
        start_read(&self.cow, offset, bytes, buffer)
    }

    async fn write_piece(&self, piece: &Piece) -> Status {
        let mut writes = Vec::new();
        self.start_piece(piece, &mut writes);
        all(writes).await
    }

    /// Starts the writes of a piece.
    fn start_piece(&self, piece: &Piece, writes: &mut Vec<(Call, Buffer)>) {
        let mut entries = piece.entries.iter();
        for at in (0..piece.bytes).step_by(length(REQUEST_BYTES_MAX)) {
            let bytes = (piece.bytes - at).min(REQUEST_BYTES_MAX);
            let mut buffer = self.zeroes(bytes);
            for (place, entry) in buffer.bytes_mut()[..length(bytes)].chunks_exact_mut(ENTRY_BYTES).zip(entries.by_ref()) {
                place.copy_from_slice(&entry.encode());
            }
            writes.push((self.write(piece.offset + at, bytes, &buffer, false), buffer));
        }
    }
}

/// Waits for all writes; their first error.
async fn all(writes: Vec<(Call, Buffer)>) -> Status {
    let mut status = Status::Ok;
    for (write, _buffer) in writes {
        status = status.and(write.await.status());
    }
    status
}

fn start_read(cow: &Rc<dyn Target>, offset: u64, bytes: u64, buffer: &Buffer) -> Call {
    let bytes = u32::try_from(bytes).expect("a request of metadata is at most 1 MiB");
    let sector = Sector::from_bytes(offset).expect("metadata is in whole sectors");
    call(&**cow, Bio::read(sector, Rc::clone(buffer.segments()), 0, bytes))
}

async fn read(cow: &Rc<dyn Target>, pool: &BufferPool, offset: u64, bytes: u64) -> Result<Buffer, Status> {
    let buffer = pool.take(length(bytes));
    let status = start_read(cow, offset, bytes, &buffer).await.status();
    fine(status).map(|()| buffer)
}

fn fine(status: Status) -> Result<(), Status> {
    if status.is_ok() { Ok(()) } else { Err(status) }
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request of metadata is at most 1 MiB")
}
