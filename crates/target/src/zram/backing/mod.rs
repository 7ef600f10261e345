//! The backing device: where pages go that nobody asks for, and whence they come back.
//!
//! ```text
//!   select.rs   which pages leave          writeback.rs   gathers them, writes them, lets memory go
//!   blocks.rs   where they go              fetch.rs       reads them again
//!   policy.rs   when, without a command         ahead.rs     and what will be asked for next
//!   discard.rs  blocks that nobody needs        room.rs      changes that wait for one of these
//! ```
//!
//! Invariants:
//! - I1: a page leaves memory only when its write has ended well and nobody asked for it meanwhile.
//! - I2: what comes back is checked: 48 bits of checksum over what was stored, the page's number and
//!   the spot. What was damaged, torn, put in the wrong place or left over gives an error, never data.
//! - I3: the limit is charged when a write is sent and refunded when it failed, so it is never passed.
//! - I4: a block is not used again while somebody reads it, or something of it is still owned.

mod ahead;
pub(super) mod blocks;
mod discard;
mod fetch;
mod policy;
mod room;
pub(super) mod select;
mod writeback;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_block::Target;
use twox_hash::XxHash3_64;

use self::ahead::Ahead;
use self::blocks::{Spot, Use};
use super::memory::PAGE;
use crate::event::Event;

pub(super) use self::discard::discard;
pub use self::policy::Rules;
pub(super) use self::policy::{Policy, follow};
pub use self::writeback::WritebackError;
pub(super) use self::writeback::{Batch, give_way, write_batch};

/// Requests in flight while pages are written back, where nothing else is said: the kernel's number.
pub(super) const BATCHES: u32 = 32;
/// Most of them at once, whatever is said.
pub(super) const BATCHES_MAX: usize = 64;
/// Bytes in flight while pages are written back.
const FLIGHT_BYTES_MAX: u64 = 8 << 20;
/// Bytes of one write where the device does not say what it likes.
const RANGE_BYTES: u32 = 256 << 10;
/// Bytes of one write at most.
const RANGE_BYTES_MAX: u32 = 1 << 20;

/// A backing device as a disk is given it.
#[derive(Clone)]
pub struct BackingSetup {
    /// What people call it.
    pub name: String,
    /// The device; its content is lost.
    pub target: Rc<dyn Target>,
    /// How it is used.
    pub options: BackingOptions,
}

/// How a backing device is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingOptions {
    /// Blocks of 4 KiB of one write at most; by the device's preference where `None`.
    pub range_pages: Option<u32>,
    /// Objects are written as they are, one behind the other, instead of whole pages.
    pub packed: bool,
    /// Pages that are read come back into memory, as far as its limit allows.
    pub promote: bool,
    /// Blocks that became free are not discarded.
    pub keep_freed: bool,
    /// When pages are written back without a command.
    pub rules: Rules,
}

/// A page on its way out: where what is stored of it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub(super) page: u64,
    pub(super) spot: Spot,
    /// A whole page, or its object.
    pub(super) bytes: usize,
    pub(super) checksum: u64,
}

/// A backing device in use.
pub(super) struct Backing {
    pub(super) name: String,
    target: Rc<dyn Target>,
    range_pages: u64,
    packed: bool,
    promote: bool,
    /// Blocks of which the device discards a multiple; none where freed blocks are not discarded.
    discard_grain: Option<u64>,
    ahead: RefCell<Ahead>,
    /// Writes in flight at most.
    pub(super) batches: Cell<u32>,
    /// Pages that may still be written, where `limited`.
    pub(super) limit: Cell<u64>,
    pub(super) limited: Cell<bool>,
    running: Cell<bool>,
    in_flight: Cell<u32>,
    failed: Cell<bool>,
    /// Freed blocks are being discarded.
    discarding: Cell<bool>,
    ended: Event,
    /// Pages read.
    pub(super) reads: Cell<u64>,
    /// Requests that read them; what was read ahead needs none.
    pub(super) read_requests: Cell<u64>,
    /// Pages that came back into memory because they were read.
    pub(super) promoted: Cell<u64>,
    /// Blocks discarded.
    pub(super) discards: Cell<u64>,
    /// Blocks written.
    pub(super) writes: Cell<u64>,
    /// Pages whose memory was let go because they were written.
    pub(super) left: Cell<u64>,
    pub(super) requests: Cell<u64>,
}

impl Backing {
    pub(super) fn new(setup: &BackingSetup) -> Self {
        let preferred = match setup.target.limits().preferred_bytes {
            0 => RANGE_BYTES,
            bytes => bytes.clamp(64 << 10, RANGE_BYTES_MAX),
        };
        let page = u32::try_from(PAGE).expect("4096");
        let range_pages = setup.options.range_pages.unwrap_or(preferred / page).clamp(1, RANGE_BYTES_MAX / page);
        Self {
            name: setup.name.clone(),
            target: Rc::clone(&setup.target),
            range_pages: range_pages.into(),
            packed: setup.options.packed,
            promote: setup.options.promote,
            discard_grain: if setup.options.keep_freed { None } else { discard::grain(&setup.target.limits()) },
            ahead: RefCell::default(),
            batches: Cell::new(BATCHES),
            limit: Cell::new(0),
            limited: Cell::new(false),
            running: Cell::new(false),
            in_flight: Cell::new(0),
            failed: Cell::new(false),
            discarding: Cell::new(false),
            ended: Event::default(),
            reads: Cell::new(0),
            read_requests: Cell::new(0),
            promoted: Cell::new(0),
            discards: Cell::new(0),
            writes: Cell::new(0),
            left: Cell::new(0),
            requests: Cell::new(0),
        }
    }

    /// How the blocks of a device are used.
    pub(super) fn block_use(setup: &BackingSetup) -> Use {
        let discarded = !setup.options.keep_freed && discard::grain(&setup.target.limits()).is_some();
        Use { shared: setup.options.packed, discarded }
    }

    /// Whether pages are being written back, or blocks discarded.
    pub(super) fn is_busy(&self) -> bool {
        self.running.get() || self.in_flight.get() > 0 || self.discarding.get()
    }

    /// Forgets what was counted and read ahead.
    pub(super) fn forget(&self) {
        let counters =
            [&self.reads, &self.read_requests, &self.promoted, &self.discards, &self.writes, &self.left, &self.requests];
        for counter in counters {
            counter.set(0);
        }
        self.ahead.take();
    }

    /// Memory taken by what was read ahead, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.ahead.borrow().bytes() as u64
    }

    /// Writes that may be in flight at once.
    fn depth(&self) -> u32 {
        let fit = FLIGHT_BYTES_MAX / (self.range_pages * PAGE as u64);
        let most = u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, u32::try_from(BATCHES_MAX).expect("64"));
        self.batches.get().min(most)
    }
}

/// What is stored of a page must hash to when it comes back from `spot` (I2).
fn checksum(page: u64, spot: Spot, stored: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(page.rotate_left(32) ^ spot.0.rotate_left(4) ^ 0x5A52_414D, stored) >> 16
}

#[cfg(test)]
mod tests;
