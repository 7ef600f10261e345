//! Targets, the nodes of a stack, and the table that maps extents to them.
//!
//! ```text
//!   Table  0 ........ 1000 ........ 5000      a bio over 900..1100 becomes two children,
//!          │ linear   │ writecache │          remapped to 900.. of the first and 0.. of the second
//! ```
//!
//! A target takes a bio with [`Target::submit`], a plain call that never blocks: it remaps the bio
//! and passes it on, ends it at once, or starts a job that ends it later. Sectors count from the
//! target's own start. What comes before: a frontend. What comes after: the target's own file, and
//! at the bottom a device.

use std::fmt;
use std::rc::Rc;

use crate::allocation::Allocation;
use crate::bio::{Bio, Call, Op, Status, call_with};
use crate::limits::{Ability, Limits};
use crate::split::{prefix_bytes, surely_fits};
use crate::unit::{Extent, SECTOR_SHIFT, Sector, SectorCount};

/// A node of a stack.
pub trait Target {
    /// What it is, as in a table line: `linear`, `writecache`, `file`.
    fn kind(&self) -> &'static str;

    /// What it accepts and offers.
    fn limits(&self) -> Limits;

    /// Its size.
    fn sectors(&self) -> SectorCount;

    /// Takes a bio over `0..sectors()` and ends it, now or later, exactly once. Never blocks.
    fn submit(&self, bio: Bio);

    /// Tells which parts of `extent`, which lies in `0..sectors()`, are data and which are holes, in
    /// order and without a gap, until all is told or `out` is full. Never blocks. Whoever does not
    /// know says data; see [`mod@crate::allocation`] for what a hole is, and for asking.
    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.data(extent.count);
    }
}

/// Passes `bio`, a flush, on to `target`; where that has nothing to flush, ends it as done.
pub fn pass_flush(target: &dyn Target, bio: Bio) {
    if target.limits().flush == Ability::No { bio.end(Status::Ok) } else { target.submit(bio) }
}

/// Makes durable what `target` says is done, as [`call`](crate::call) with a flush; done at once where there is
/// nothing to flush.
pub fn flush(target: &dyn Target) -> Call {
    call_with(Bio::flush(), |bio| pass_flush(target, bio))
}

/// One line of a table: where it starts, how long it is, what serves it.
pub struct Row {
    /// Range of the table.
    pub extent: Extent,
    /// What serves it; its own sectors count from 0.
    pub target: Rc<dyn Target>,
}

/// Why rows do not make a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// No rows.
    Empty,
    /// A row does not start where the one before ends; the position where it should.
    Gap(Sector),
    /// A row is empty, or longer than its target.
    Length(Extent),
    /// A row does not start or end on its target's logical block.
    Misaligned(Extent),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the table has no lines"),
            Self::Gap(at) => {
                write!(f, "the table has a hole or an overlap at {at}: let each line start where the one before ends")
            }
            Self::Length(extent) => write!(f, "table line {extent} is empty or longer than its target"),
            Self::Misaligned(extent) => write!(f, "table line {extent} does not fit its target's block size"),
        }
    }
}

impl std::error::Error for TableError {}

/// Ordered extents, each served by a target; no holes, no overlap; itself a target.
///
/// Bios that are out of range, not whole logical blocks, or in memory that the targets cannot take
/// end with [`Status::IoError`], and bios that may not wait but would have to be cut with
/// [`Status::Again`]: nothing below ever sees them.
pub struct Table {
    rows: Vec<Row>,
    limits: Limits,
    sectors: SectorCount,
}

impl Table {
    /// Checks the rows and makes the table.
    ///
    /// # Errors
    /// [`TableError`] names the first row that does not fit.
    pub fn new(rows: Vec<Row>) -> Result<Self, TableError> {
        let first = rows.first().ok_or(TableError::Empty)?;
        let mut limits = first.target.limits();
        let mut end = Sector(0);
        for row in &rows {
            let below = row.target.limits();
            let grain = u64::from(below.logical_bytes / 512);
            if row.extent.start != end {
                return Err(TableError::Gap(end));
            }
            if row.extent.count.0 == 0 || row.extent.count > row.target.sectors() {
                return Err(TableError::Length(row.extent));
            }
            if row.extent.start.0 % grain != 0 || row.extent.count.0 % grain != 0 {
                return Err(TableError::Misaligned(row.extent));
            }
            limits = limits.stack(below);
            end = row.extent.end();
        }
        Ok(Self { rows, limits, sectors: SectorCount(end.0) })
    }

    /// The rows in order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether `bio` may enter: inside, aligned, with the payload that its operation needs.
    fn refuse(&self, bio: &Bio) -> Option<Status> {
        let needs_payload = matches!(bio.op(), Op::Read | Op::Write);
        let inside_block = u64::from(self.limits.logical_bytes) - 1;
        let whole = Extent::new(Sector(0), self.sectors);
        let extent = bio.extent();
        let fits = whole.contains(extent)
            && bio.bytes() > 0
            && (bio.bytes() | extent.start.to_bytes()) & inside_block == 0
            && bio.segments().is_some() == needs_payload
            && bio.memory_aligned(self.limits.memory_align);
        let offered = match bio.op() {
            Op::Discard => self.limits.discard != Ability::No,
            Op::WriteZeroes => self.limits.write_zeroes != Ability::No,
            Op::Read | Op::Write | Op::Flush => true,
        };
        match (fits, offered) {
            (_, false) => Some(Status::Unsupported),
            (false, true) => Some(Status::IoError),
            (true, true) => (bio.flags().no_wait && self.must_cut(bio)).then_some(Status::Again),
        }
    }

    /// Whether `bio` would become several requests.
    fn must_cut(&self, bio: &Bio) -> bool {
        let fits_row = self.rows.iter().any(|row| row.extent.contains(bio.extent()));
        let payload = matches!(bio.op(), Op::Read | Op::Write);
        !fits_row || (payload && !surely_fits(&self.limits, bio) && prefix_bytes(&self.limits, bio) < bio.bytes())
    }

    fn flush_all(&self, bio: Bio) {
        if let [row] = self.rows.as_slice() {
            return pass_flush(&*row.target, bio);
        }
        for row in &self.rows {
            pass_flush(&*row.target, bio.part(0, 0));
        }
        bio.end_after_parts();
    }
}

impl Target for Table {
    fn kind(&self) -> &'static str {
        "table"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if bio.op() == Op::Flush {
            return self.flush_all(bio);
        }
        if let Some(status) = self.refuse(&bio) {
            return bio.end(status);
        }
        let mut at = if self.rows.len() == 1 { 0 } else { self.rows.partition_point(|row| row.extent.end() <= bio.sector()) };
        let first = &self.rows[at];
        if bio.extent().end() <= first.extent.end() {
            let start = Sector(bio.sector().0 - first.extent.start.0);
            return first.target.submit(bio.remap(start));
        }
        let mut skip = 0;
        while skip < bio.bytes() {
            let row = &self.rows[at];
            let start = Sector(bio.sector().0 + (skip >> SECTOR_SHIFT) - row.extent.start.0);
            let room = (row.extent.count - SectorCount(start.0)).to_bytes();
            let bytes = room.min(bio.bytes() - skip);
            row.target.submit(bio.part(skip, bytes).remap(start));
            skip += bytes;
            at += 1;
        }
        bio.end_after_parts();
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let mut start = extent.start;
        let first = self.rows.partition_point(|row| row.extent.end() <= start);
        for row in &self.rows[first..] {
            let end = row.extent.end().min(extent.end());
            let Some(count) = end.since(start).filter(|count| count.0 > 0 && !out.is_full()) else { break };
            out.below(&*row.target, Extent::new(Sector(start.0 - row.extent.start.0), count));
            start = end;
        }
    }
}

#[cfg(test)]
mod tests;
