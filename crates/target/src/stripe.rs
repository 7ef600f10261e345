//! Stripe: chunks dealt out to several targets in turn.
//!
//! ```text
//!   chunk      0   1   2 │ 3   4   5 │ 6 …        sector s: chunk k = s / chunk, column k mod n,
//!   column     0   1   2 │ 0   1   2 │ 0          there at (k / n) × chunk + s mod chunk
//! ```
//!
//! Invariants:
//! - I1: reads and writes become one part for each chunk they touch; parts that follow each other on
//!   a column are put together again by the merging below.
//! - I2: discards and zeroes have no payload, so each column gets one part for its whole share.
//! - I3: a flush goes to every column.
//!
//! As the kernel's `striped` target (its table line is `striped N CHUNK [DEVICE OFFSET]…`). Source:
//! `Documentation/admin-guide/device-mapper/striped.rst`.

use std::rc::Rc;

use forebay_block::{Allocation, Bio, Extent, Limits, Op, SECTOR_BYTES, Sector, SectorCount, Status, Target, pass_flush};

use crate::below::{BuildError, check_multiple};
use crate::linear::Linear;

/// Chunks dealt out to several targets in turn.
pub struct Stripe {
    columns: Vec<Linear>,
    chunk: u64,
    sectors: SectorCount,
    limits: Limits,
}

impl Stripe {
    /// Deals `sectors` sectors in chunks of `chunk` sectors to `columns`, each of which gives its
    /// n-th part of them from its own offset on.
    ///
    /// # Errors
    /// When there are no columns, the length is not divisible by their number or their share by the
    /// chunk, the chunk is not whole logical blocks, or a column is too short.
    pub fn new(columns: Vec<(Rc<dyn Target>, Sector)>, chunk: SectorCount, sectors: SectorCount) -> Result<Self, BuildError> {
        let kind = "striped";
        let count = columns.len() as u64;
        for (what, value) in [("number of stripes", count), ("chunk size", chunk.0), ("length", sectors.0)] {
            if value == 0 {
                return Err(BuildError::Zero { kind, what });
            }
        }
        check_multiple(kind, "length", sectors.0, count)?;
        check_multiple(kind, "length of a stripe", sectors.0 / count, chunk.0)?;
        let mut limits = Limits::unlimited();
        for (below, _) in &columns {
            limits = limits.stack(below.limits());
        }
        check_multiple(kind, "chunk size", chunk.0, u64::from(limits.logical_bytes / SECTOR_BYTES))?;
        let all_columns = chunk.to_bytes().saturating_mul(count);
        limits.preferred_bytes = u32::try_from(all_columns).unwrap_or(u32::MAX);
        let share = SectorCount(sectors.0 / count);
        let columns: Result<_, _> = columns.into_iter().map(|(below, offset)| Linear::new(below, offset, share)).collect();
        Ok(Self { columns: columns?, chunk: chunk.0, sectors, limits })
    }

    /// Where column `column` stands when everything before `sector` was dealt out.
    fn dealt(&self, sector: u64, column: u64) -> u64 {
        let count = self.columns.len() as u64;
        let (chunk, inside) = (sector / self.chunk, sector % self.chunk);
        let (row, turn) = (chunk / count, chunk % count);
        match column {
            earlier if earlier < turn => (row + 1) * self.chunk,
            now if now == turn => row * self.chunk + inside,
            _ => row * self.chunk,
        }
    }

    fn submit_chunks(&self, bio: &Bio) {
        let mut skip = 0;
        while skip < bio.bytes() {
            let sector = bio.sector().0 + skip / u64::from(SECTOR_BYTES);
            let room = (self.chunk - sector % self.chunk) * u64::from(SECTOR_BYTES);
            let bytes = room.min(bio.bytes() - skip);
            let column = sector / self.chunk % self.columns.len() as u64;
            let to = Sector(self.dealt(sector, column));
            self.column(column).submit(bio.part(skip, bytes).remap(to));
            skip += bytes;
        }
    }

    fn submit_shares(&self, bio: &Bio) {
        let extent = bio.extent();
        for column in 0..self.columns.len() as u64 {
            let start = self.dealt(extent.start.0, column);
            let share = SectorCount(self.dealt(extent.end().0, column) - start);
            if share.0 > 0 {
                self.column(column).submit(bio.part(0, share.to_bytes()).remap(Sector(start)));
            }
        }
    }

    fn column(&self, column: u64) -> &Linear {
        &self.columns[usize::try_from(column).expect("counted from the columns")]
    }
}

impl Target for Stripe {
    fn kind(&self) -> &'static str {
        "striped"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn submit(&self, bio: Bio) {
        if bio.op() == Op::Flush {
            for column in &self.columns {
                pass_flush(column, bio.part(0, 0));
            }
            return bio.end_after_parts();
        }
        let (start, end) = (bio.sector().0, bio.extent().end().0);
        if start / self.chunk == (end - 1) / self.chunk {
            let column = start / self.chunk % self.columns.len() as u64;
            let to = Sector(self.dealt(start, column));
            return self.column(column).submit(bio.remap(to));
        }
        if bio.flags().no_wait {
            return bio.end(Status::Again);
        }
        match bio.op() {
            Op::Read | Op::Write => self.submit_chunks(&bio),
            _ => self.submit_shares(&bio),
        }
        bio.end_after_parts();
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let mut at = extent.start.0;
        while at < extent.end().0 && !out.is_full() {
            let end = (at - at % self.chunk + self.chunk).min(extent.end().0);
            let column = at / self.chunk % self.columns.len() as u64;
            let there = Extent::new(Sector(self.dealt(at, column)), SectorCount(end - at));
            out.below(self.column(column), there);
            at = end;
        }
    }
}

#[cfg(test)]
mod tests;
