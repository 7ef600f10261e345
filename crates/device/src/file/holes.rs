//! Where a file has holes, as its file system tells.
//!
//! ```text
//!   from `at`:  first data at or behind it? ── at it ──▶ data, up to the next hole
//!                        └─ further ─▶ a hole up to there        └─ none ─▶ a hole up to the end
//! ```
//!
//! Invariants:
//! - I1: what the file system does not tell, or only for part of a sector, is data. A file system
//!   without holes says that a file is all data.
//! - I2: the answer is as the file was at some time after the question: every write that had ended is
//!   seen. Space that is reserved and never written counts as a hole: it reads as zeroes.
//! - I3: asking moves the position of the descriptor that carries the I/O, which nothing else uses:
//!   all I/O names its place.
//!
//! A file system may wait for its server, for a change of the file that is under way, or look at each
//! block of a large file, so it is asked on a thread of its own. Sources: `lseek(2)`.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use forebay_block::allocation::Found;
use forebay_block::{Extent, LookUp, Run, SECTOR_BYTES, Sector, SectorCount};
use forebay_reactor::{Helper, Reactor};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// What the thread is asked.
struct Question {
    extent: Extent,
    most: usize,
}

/// Where a file has holes.
pub(super) struct Holes {
    reactor: Reactor,
    file: Rc<OwnedFd>,
    helper: Helper<Question, Vec<Run>>,
}

impl Holes {
    pub(super) fn new(reactor: &Reactor, file: &Rc<OwnedFd>) -> Self {
        Self { reactor: reactor.clone(), file: Rc::clone(file), helper: Helper::new("forebay-holes") }
    }
}

impl LookUp for Holes {
    fn look_up(&self, extent: Extent, most: usize) -> Found {
        let work = || {
            let file = self.file.try_clone()?;
            Ok(move |question: Question| find(&file, question.extent, question.most))
        };
        match self.helper.ask(&self.reactor, Question { extent, most }, work) {
            Ok(mut answer) => Box::pin(async move { answer.receive().await.unwrap_or_default() }),
            Err(error) => {
                tracing::debug!("holes of a file are not looked for: {error}");
                Box::pin(async { Vec::new() })
            }
        }
    }
}

/// The runs of `file` from the start of `extent` on, at most `most`, the last one to its own end.
fn find(file: &OwnedFd, extent: Extent, most: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut at = extent.start;
    while at < extent.end() && runs.len() < most {
        let Ok((end, hole)) = run_at(file, at) else { break };
        let Some(count) = end.since(at).filter(|count| count.0 > 0) else { break };
        runs.push(Run { count, hole });
        at = end;
    }
    runs
}

/// Where the run that begins at `at` ends, and whether it is a hole.
fn run_at(file: &OwnedFd, at: Sector) -> Result<(Sector, bool), Errno> {
    let start = at.to_bytes();
    let data = match seek(file, SeekFrom::Data(start)) {
        // Nothing but a hole, or the end of the file.
        Err(Errno::NXIO) => seek(file, SeekFrom::End(0))?,
        data => data?,
    };
    let sector_bytes = u64::from(SECTOR_BYTES);
    let until_data = Sector(data / sector_bytes);
    if until_data > at {
        return Ok((until_data, true));
    }
    let hole = seek(file, SeekFrom::Hole(data.max(start)))?;
    // A hole that was made meanwhile begins at once: this much was data when it was asked for.
    Ok((Sector(hole.div_ceil(sector_bytes)).max(at + SectorCount(1)), false))
}

#[cfg(test)]
mod tests;
