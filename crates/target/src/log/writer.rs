//! Puts entries on the log device, one behind the other, and the super after those that matter.
//!
//! ```text
//!   queue ──▶ entry at `next`, many in flight ──▶ after a flush, FUA or mark: hold the queue, wait
//!                                                 for all, write the super, go on
//! ```
//!
//! Invariants:
//! - I1: the super counts only entries that are on the device.
//! - I2: entries lie without gap in the order in which they were queued.
//! - I3: when the log is full or fails, nothing more is logged; what the super counts stays good.

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;

use forebay_block::{Bio, HeapMemory, Memory, SECTOR_BYTES, Sector, Segments, Status};

use super::LogState;
use super::format::{FLUSH, FUA, HEAD_BYTES, Head, MARK, Super};

/// Most bytes of zeroes that are kept in memory for an entry of zeroes.
const ZEROES_BYTES: u32 = 65_536;

/// One entry, ready to be written.
pub(super) struct Entry {
    flags: u64,
    /// Head and data.
    payload: Rc<Segments>,
}

/// How entries are laid out.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Bytes of a sector of the log.
    pub(super) sector_bytes: u32,
    /// Alignment of payload memory, bytes.
    pub(super) memory_align: u32,
}

impl Shape {
    fn memory(self, bytes: u32) -> Box<dyn Memory> {
        Box::new(HeapMemory::new(bytes as usize, self.memory_align as usize))
    }

    /// An entry with `data` bytes behind its head, which `fill` writes.
    pub(super) fn entry(self, head: Head, data: u32, fill: impl FnOnce(&mut [u8])) -> Entry {
        let bytes = self.sector_bytes + data;
        let mut payload = Segments::whole(self.memory(bytes), bytes).expect("entries are well below 4 GiB");
        let memory = Rc::get_mut(&mut payload).expect("nobody shares it yet").bytes_mut();
        let (sector, rest) = memory.split_at_mut(self.sector_bytes as usize);
        head.encode(sector);
        fill(rest);
        Entry { flags: head.flags, payload }
    }

    /// An entry of `data` zeroes, which take up to [`ZEROES_BYTES`] of memory.
    pub(super) fn zeroes(self, head: Head, data: u32) -> Entry {
        let start = self.sector_bytes.next_multiple_of(self.memory_align);
        let mut ranges = vec![(0, self.sector_bytes)];
        let mut left = data;
        while left > 0 {
            let part = left.min(ZEROES_BYTES);
            ranges.push((start as usize, part));
            left -= part;
        }
        let memory = self.memory(start + ZEROES_BYTES.min(data));
        let mut payload = Segments::ranges(memory, &ranges).expect("entries are well below 4 GiB");
        head.encode(Rc::get_mut(&mut payload).expect("nobody shares it yet").bytes_mut());
        Entry { flags: head.flags, payload }
    }

    /// A mark; the text must fit behind the head.
    pub(super) fn mark(self, text: &[u8]) -> Entry {
        let head = Head { flags: MARK, mark_bytes: text.len() as u64, ..Head::default() };
        let mut entry = self.entry(head, 0, |_| ());
        let memory = Rc::get_mut(&mut entry.payload).expect("nobody shares it yet").bytes_mut();
        memory[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(text);
        entry
    }

    fn superblock(self, entries: u64) -> Bio {
        let mut payload = Segments::whole(self.memory(self.sector_bytes), self.sector_bytes).expect("a sector");
        let memory = Rc::get_mut(&mut payload).expect("nobody shares it yet").bytes_mut();
        Super { entries, sector_bytes: self.sector_bytes }.encode(memory);
        Bio::write(Sector(0), payload, 0, self.sector_bytes)
    }
}

/// What to write next.
pub(super) enum Step {
    Entry(Bio),
    Super(Bio),
}

#[derive(PartialEq, Eq)]
enum SuperState {
    /// Says all that must be said.
    Current,
    /// To be written once nothing else is in flight.
    Due,
    InFlight,
}

/// Where the log stands.
pub(super) struct Writer {
    shape: Shape,
    queue: VecDeque<Entry>,
    /// Size of the log, sectors of 512 bytes.
    log_sectors: u64,
    /// Where the next entry goes, sectors of 512 bytes.
    next: u64,
    entries: u64,
    in_flight: u64,
    superblock: SuperState,
    state: LogState,
    waiters: Vec<Waker>,
}

impl Writer {
    /// A log without entries, whose super is yet to be written.
    pub(super) fn new(shape: Shape, log_sectors: u64) -> Self {
        Self {
            shape,
            queue: VecDeque::new(),
            log_sectors,
            next: u64::from(shape.sector_bytes / SECTOR_BYTES),
            entries: 0,
            in_flight: 0,
            superblock: SuperState::Due,
            state: LogState::Logging,
            waiters: Vec::new(),
        }
    }

    pub(super) fn state(&self) -> LogState {
        self.state
    }

    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    pub(super) fn push(&mut self, entries: impl IntoIterator<Item = Entry>) {
        if self.state == LogState::Logging {
            self.queue.extend(entries);
        }
    }

    /// What can be written now.
    pub(super) fn step(&mut self) -> Option<Step> {
        match self.superblock {
            SuperState::InFlight => return None,
            SuperState::Due if self.in_flight > 0 || self.state != LogState::Logging => return None,
            SuperState::Due => {
                self.superblock = SuperState::InFlight;
                return Some(Step::Super(self.shape.superblock(self.entries)));
            }
            SuperState::Current => {}
        }
        let entry = self.queue.pop_front()?;
        let sectors = u64::from(entry.payload.bytes() / SECTOR_BYTES);
        if self.next + sectors > self.log_sectors {
            self.stop(LogState::Full);
            return None;
        }
        let bytes = entry.payload.bytes();
        let bio = Bio::write(Sector(self.next), entry.payload, 0, bytes);
        self.next += sectors;
        self.entries += 1;
        self.in_flight += 1;
        if entry.flags & (FLUSH | FUA | MARK) != 0 {
            self.superblock = SuperState::Due;
        }
        Some(Step::Entry(bio))
    }

    pub(super) fn entry_ended(&mut self, status: Status) {
        self.in_flight -= 1;
        if !status.is_ok() {
            self.stop(LogState::Failed(status));
        }
    }

    pub(super) fn super_ended(&mut self, status: Status) {
        self.superblock = SuperState::Current;
        if !status.is_ok() {
            self.stop(LogState::Failed(status));
        }
    }

    fn stop(&mut self, state: LogState) {
        if self.state == LogState::Logging {
            tracing::warn!("log-writes: logging ends after {} entries: {state}", self.entries);
            self.state = state;
        }
        self.queue.clear();
    }

    /// Whether nothing is left to write; who waits for that is woken by [`Writer::take_waiters`].
    pub(super) fn is_settled(&self) -> bool {
        let stopped = self.state != LogState::Logging;
        let said = self.superblock == SuperState::Current || (stopped && self.superblock == SuperState::Due);
        self.queue.is_empty() && self.in_flight == 0 && said
    }

    pub(super) fn wait(&mut self, waker: Waker) {
        self.waiters.push(waker);
    }

    pub(super) fn take_waiters(&mut self) -> Vec<Waker> {
        if self.is_settled() { std::mem::take(&mut self.waiters) } else { Vec::new() }
    }
}
