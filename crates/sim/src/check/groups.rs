//! The oracle of atomic groups: for caches that overwrite no committed block and bypass nothing.
//!
//! What the cache commits is a group: all blocks that were written since the commit before. So if a
//! write W is found after a crash, the group that W is in was committed, and with it every write that
//! had been acknowledged when W was issued. Let T be the latest issue of a write that is found: no
//! write acknowledged before T may be missing, which is "what is lost is the newest, and there are
//! no holes". And a block is committed whole: where one sector of a block shows W, no other sector
//! of that block that W wrote to shows anything that had been answered before W was issued.
//!
//! Only writes of the life that ended are held to that: a kill before may have taken older ones, and
//! what was read after it stands for what is left of them.
//!
//! Zeroes and trims may go around the cache, so they prove nothing about groups and need not
//! survive; content that they leave is checked by the other oracle.

use super::history::Tick;
use super::model::bar;
use super::{Model, Violation};

impl Model {
    /// Checks everything observed since the cut against the rules above, for cache blocks of
    /// `block_sectors`; called before [`Model::settle`].
    ///
    /// # Errors
    /// The first sector that breaks a rule.
    pub(super) fn check_groups(&self, block_sectors: usize) -> Result<(), Violation> {
        let latest = (0..self.len()).filter_map(|sector| self.issue_of_write(sector)).max().unwrap_or(0);
        for sector in 0..self.len() {
            self.check_no_hole(sector, latest)?;
        }
        for start in (0..self.len()).step_by(block_sectors) {
            self.check_block(start, (start + block_sectors).min(self.len()))?;
        }
        Ok(())
    }

    /// When the write was issued that is found in `sector`; `None` where it is not a write's
    /// content, or might be what a trim left.
    fn issue_of_write(&self, sector: usize) -> Option<Tick> {
        self.write_found(sector).map(|op| self.history.record(op).issued)
    }

    fn write_found(&self, sector: usize) -> Option<u32> {
        let found = self.seen()[sector]?;
        let bar = self.crash_bar(sector);
        let mut matches = self.matches(sector, found, bar);
        let version = matches.next()?;
        let certain = matches.next().is_none() && !Self::is_trimmed(version);
        (certain && self.history.record(version.op).is_write()).then_some(version.op)
    }

    fn check_no_hole(&self, sector: usize, latest: Tick) -> Result<(), Violation> {
        let Some(found) = self.seen()[sector] else { return Ok(()) };
        let history = &self.history;
        let bar = bar(history, self.versions(sector), |op| {
            let record = history.record(op);
            record.ok && record.is_write() && record.ended < latest && record.issued > self.settled
        });
        let bar = bar.max(self.crash_bar(sector));
        if self.matches(sector, found, bar).next().is_some() {
            return Ok(());
        }
        let what = format!("a later write (issued at tick {latest}) survived, but here a restart brought back");
        Err(self.violation(sector, found, bar, &what))
    }

    fn check_block(&self, start: usize, end: usize) -> Result<(), Violation> {
        let mut last = None;
        for sector in start..end {
            let Some(op) = self.write_found(sector) else { continue };
            if last == Some(op) {
                continue;
            }
            last = Some(op);
            let record = self.history.record(op);
            for other in record.sectors.start.max(start)..record.sectors.end.min(end) {
                let Some(found) = self.seen()[other] else { continue };
                if self.matches(other, found, record.issued.max(self.crash_bar(other))).next().is_none() {
                    let what = format!("v{op} is in sector {sector} of the same block, but here a restart brought back");
                    return Err(self.violation(other, found, record.issued, &what));
                }
            }
        }
        Ok(())
    }
}
