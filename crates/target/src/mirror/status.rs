//! What a mirror tells about itself, and the kernel's line of it.

use super::Mirror;
use super::log::LogState;
use super::scrub::ScrubReport;

/// A leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegStatus {
    /// Its device.
    pub name: String,
    /// The letter of the kernel's line: A alive, F flush failed, D write failed, S resync failed, R read
    /// failed, U something else.
    pub letter: char,
    /// Whether it gets requests.
    pub alive: bool,
    /// Whether it has everything.
    pub full: bool,
}

/// A snapshot of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// Its legs, in the order of the table line.
    pub legs: Vec<LegStatus>,
    /// The leg that is copied from.
    pub source: usize,
    /// Regions that no leg lacks.
    pub in_sync: u64,
    /// All regions.
    pub regions: u64,
    /// Size of a region, sectors.
    pub region_sectors: u64,
    /// The log device; `None` for a log in memory.
    pub log: Option<(String, LogState)>,
    /// Requests that wrote parts of the log.
    pub log_writes: u64,
    /// Writes that wait until somebody knows of a leg's failure.
    pub held: usize,
    /// Pieces of 512 KiB that were copied.
    pub copied_pieces: u64,
    /// Whether the last full leg failed a flush, after which nothing is promised.
    pub broken: bool,
    /// The last scrub.
    pub scrub: Option<ScrubReport>,
}

impl MirrorStatus {
    /// The numbers of the kernel's status line.
    #[must_use]
    pub fn line(&self) -> String {
        let names: Vec<&str> = self.legs.iter().map(|leg| leg.name.as_str()).collect();
        let letters: String = self.legs.iter().map(|leg| leg.letter).collect();
        let log = match &self.log {
            None => "1 core".to_owned(),
            Some((name, state)) => format!("3 disk {name} {}", state.letter()),
        };
        format!("{} {} {}/{} 1 {letters} {log}", names.len(), names.join(" "), self.in_sync, self.regions)
    }
}

impl Mirror {
    /// A snapshot.
    #[must_use]
    pub fn status(&self) -> MirrorStatus {
        let state = self.state.borrow();
        let (alive, full) = (state.legs.alive(), state.regions.full());
        let leg = |(at, leg): (usize, &super::Leg)| LegStatus {
            name: leg.name.clone(),
            letter: state.legs.letter(at),
            alive: alive.contains(at),
            full: full.contains(at),
        };
        MirrorStatus {
            legs: self.legs.iter().enumerate().map(leg).collect(),
            source: state.source,
            in_sync: state.regions.in_sync(),
            regions: state.regions.count(),
            region_sectors: state.regions.size(),
            log: self.log_name.clone().map(|name| (name, self.log.state())),
            log_writes: self.log.writes.get(),
            held: self.held.borrow().len(),
            copied_pieces: self.engine.slices(),
            broken: self.broken.get(),
            scrub: self.scrubbed.borrow().clone(),
        }
    }
}
