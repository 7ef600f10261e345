//! Table text: what a stack is made of, as people write it.
//!
//! ```text
//!   START LENGTH TARGET ARGUMENTS      one line each, or separated by semicolons; # starts a comment
//!
//!   0     2048   linear DEVICE OFFSET
//!   2048  8192   striped COUNT CHUNK DEVICE OFFSET [DEVICE OFFSET]…
//!   10240 8      error
//!   …            delay DEVICE OFFSET MS [DEVICE OFFSET MS [DEVICE OFFSET MS]]
//!   …            flakey DEVICE OFFSET UP_S DOWN_S [COUNT error_reads|error_writes|drop_writes …]
//!   …            log-writes DEVICE LOG_DEVICE
//!   …            stats DEVICE OFFSET
//!   …            mirror core|disk COUNT [LOG] REGION [sync|nosync] N [DEVICE OFFSET]… [COUNT FEATURE…]
//!   …            zram [algo=NAME] [mem_limit=SIZE] [backing_dev=DEVICE] …
//!   …            clone METADATA DESTINATION SOURCE REGION_SECTORS [COUNT FEATURE… [COUNT NAME N…]]
//!   …            writecache s ORIGIN CACHE BLOCK_BYTES COUNT [OPTION [VALUE]]…
//!   …            snapshot ORIGIN COW P|PO|N CHUNK [COUNT FEATURE…]
//!   …            snapshot-origin ORIGIN
//!   …            snapshot-merge ORIGIN COW P|PO CHUNK [COUNT FEATURE…]
//! ```
//!
//! The lines are those of the kernel's device mapper, with paths where it has device numbers. Starts,
//! lengths, offsets and chunks are sectors of 512 bytes. A device is the path of a file or block
//! device, `ram:SIZE`, `null:SIZE` or the URI of an NBD server (see [`DeviceName`]). The options of `zram` are in
//! `forebay_target::zram::options`, those of `clone` in `forebay_target::clone::options`.
//!
//! Errors: [`TextError`], one sentence that names the line and the word. Nothing is opened here.

mod names;
mod words;

use std::time::Duration;

use forebay_block::{Extent, Sector, SectorCount};
use forebay_target::cache::options::{CacheArgs, OptionError};
use forebay_target::clone::options::{CloneArgs, OptionError as CloneOptionError};
use forebay_target::flaky::{DownReads, DownWrites, Flakiness};
use forebay_target::mirror::options::{MirrorArgs, OptionError as MirrorOptionError};
use forebay_target::snapshot::options::{OptionError as SnapshotOptionError, SnapshotArgs};
use forebay_target::zram::options::{OptionError as ZramOptionError, ZramOptions};

pub use self::names::TableNames;
use crate::device::{DeviceName, NameError, parse_bytes};

/// Why text is not a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table line {line}: {problem}")]
pub struct TextError {
    /// Place in the text, from 1.
    pub line: usize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("there is nothing: write START LENGTH TARGET ARGUMENTS, for example `0 2048 linear disk.img 0`")]
    Empty,
    #[error("the {0} is missing: write START LENGTH TARGET ARGUMENTS, for example `0 2048 linear disk.img 0`")]
    Front(&'static str),
    #[error("the {what} {word:?} is not a whole number")]
    Number { what: &'static str, word: String },
    #[error("the length is 0: give at least one sector")]
    NoLength,
    #[error("it starts at sector {found}, but the line before ends at {wanted}: leave no holes and no overlaps")]
    Hole { found: u64, wanted: u64 },
    #[error("{0:?} is too long: sectors are numbered up to 2^54")]
    TooLong(String),
    #[error(
        "the target {0:?} is not known: use linear, striped, error, delay, flakey, log-writes, stats, mirror, zram, \
         writecache, clone, snapshot or snapshot-origin"
    )]
    Target(String),
    #[error("the {what} of {target} is missing: write `{usage}`")]
    Missing { target: &'static str, what: &'static str, usage: &'static str },
    #[error("{word:?} is too much for {target}: write `{usage}`")]
    Extra { target: &'static str, word: String, usage: &'static str },
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("flakey does not know {0:?}: use error_reads, error_writes or drop_writes")]
    Feature(String),
    #[error(transparent)]
    Cache(#[from] OptionError),
    #[error(transparent)]
    Mirror(#[from] MirrorOptionError),
    #[error(transparent)]
    Zram(#[from] ZramOptionError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotOptionError),
    #[error(transparent)]
    Clone(#[from] CloneOptionError),
}

/// A device and where on it something begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which device.
    pub device: DeviceName,
    /// First sector used.
    pub offset: Sector,
}

/// Where one class of a delay's requests goes, and how long it waits before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detour {
    /// Where they go.
    pub place: Place,
    /// How long they wait.
    pub delay: Duration,
}

/// What serves a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetText {
    /// A run of sectors of a device.
    Linear(Place),
    /// Chunks dealt out to several devices.
    Striped {
        /// Length of a chunk.
        chunk: SectorCount,
        /// The devices, at least one.
        columns: Vec<Place>,
    },
    /// Everything fails.
    Error,
    /// Requests wait before they go on.
    Delay {
        /// Reads, and everything that has no detour of its own.
        read: Detour,
        /// Writes, discards and zeroes, and flushes without a detour of their own.
        write: Option<Detour>,
        /// Flushes.
        flush: Option<Detour>,
    },
    /// A device that misbehaves now and then.
    Flakey(Place, Flakiness),
    /// Writes go on and into a log.
    LogWrites {
        /// Where requests go.
        device: DeviceName,
        /// Where the log goes.
        log: DeviceName,
    },
    /// What passes is counted.
    Stats(Place),
    /// The same content on several devices.
    Mirror {
        /// Its words.
        args: MirrorArgs,
        /// Its legs.
        legs: Vec<Place>,
        /// Its log device.
        log: Option<DeviceName>,
    },
    /// A compressed RAM disk.
    Zram {
        /// Its words.
        options: ZramOptions,
        /// Where pages are written back to.
        backing: Option<DeviceName>,
    },
    /// A copy of a source that is in use while it is made.
    Clone {
        /// Its words.
        args: CloneArgs,
        /// Where it is written what was copied.
        metadata: DeviceName,
        /// The copy.
        destination: DeviceName,
        /// What is copied.
        source: DeviceName,
    },
    /// The write cache.
    Writecache {
        /// Its words.
        args: CacheArgs,
        /// The slow device.
        origin: DeviceName,
        /// The fast device.
        fast: DeviceName,
    },
    /// A snapshot of a device.
    Snapshot {
        /// Its words.
        args: SnapshotArgs,
        /// What it is of.
        origin: DeviceName,
        /// Where its store is.
        cow: DeviceName,
    },
    /// A device of which there are snapshots.
    SnapshotOrigin(DeviceName),
    /// A snapshot that goes back into its origin.
    SnapshotMerge {
        /// Its words.
        args: SnapshotArgs,
        /// Where it goes.
        origin: DeviceName,
        /// Where its store is.
        cow: DeviceName,
    },
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowText {
    /// Place in the text, from 1.
    pub line: usize,
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// What serves them.
    pub target: TargetText,
}

/// A table as text says it should be: at least one row, from sector 0, without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableText {
    rows: Vec<RowText>,
}

/// Sectors of a table at most: their bytes fit 63 bits.
const SECTORS_MAX: u64 = 1 << 54;

impl TableText {
    /// Reads a table. Opens nothing.
    ///
    /// # Errors
    /// [`TextError`], the first that applies.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        let mut rows: Vec<RowText> = Vec::new();
        for line in words::lines(text) {
            let end = rows.last().map_or(Sector(0), |row| row.extent.end());
            let row = row(&line.words, line.number, end);
            rows.push(row.map_err(|problem| TextError { line: line.number, problem })?);
        }
        if rows.is_empty() {
            return Err(TextError { line: 1, problem: Problem::Empty });
        }
        Ok(Self { rows })
    }

    /// The rows in order.
    #[must_use]
    pub fn rows(&self) -> &[RowText] {
        &self.rows
    }

    /// Whether opening the table changes its devices even when nobody writes: a cache is formatted
    /// or mended, a log begun, a mirror brought up to date, a backing device taken. An origin of snapshots
    /// counts, too: its device is shared with them, and they write to it.
    #[must_use]
    pub fn writes_when_opened(&self) -> bool {
        let writes = |row: &RowText| {
            matches!(
                row.target,
                TargetText::Writecache { .. }
                    | TargetText::LogWrites { .. }
                    | TargetText::Mirror { .. }
                    | TargetText::Zram { backing: Some(_), .. }
                    | TargetText::Snapshot { .. }
                    | TargetText::SnapshotOrigin(_)
                    | TargetText::SnapshotMerge { .. }
                    | TargetText::Clone { .. }
            )
        };
        self.rows.iter().any(writes)
    }
}

fn row(words: &[String], line: usize, end: Sector) -> Result<RowText, Problem> {
    let mut words = words.iter().map(String::as_str);
    let start_word = words.next().ok_or(Problem::Front("start"))?;
    let start = number("start", start_word)?;
    let length_word = words.next().ok_or(Problem::Front("length"))?;
    let length = number("length", length_word)?;
    let target = words.next().ok_or(Problem::Front("target"))?;
    if start != end.0 {
        return Err(Problem::Hole { found: start, wanted: end.0 });
    }
    if length == 0 {
        return Err(Problem::NoLength);
    }
    if start.checked_add(length).is_none_or(|end| end > SECTORS_MAX) {
        return Err(Problem::TooLong(length_word.to_owned()));
    }
    let extent = Extent::new(Sector(start), SectorCount(length));
    Ok(RowText { line, extent, target: target_text(target, words)? })
}

fn number(what: &'static str, word: &str) -> Result<u64, Problem> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { word.parse().ok() } else { None };
    number.ok_or_else(|| Problem::Number { what, word: word.to_owned() })
}

fn target_text<'a>(target: &str, words: impl Iterator<Item = &'a str>) -> Result<TargetText, Problem> {
    let words: Vec<&str> = words.collect();
    let arguments = |target, usage| Arguments { target, usage, words: words.iter() };
    match target {
        "linear" => {
            let mut arguments = arguments("linear", "linear DEVICE OFFSET");
            let place = arguments.place()?;
            arguments.end(TargetText::Linear(place))
        }
        "stats" => {
            let mut arguments = arguments("stats", "stats DEVICE OFFSET");
            let place = arguments.place()?;
            arguments.end(TargetText::Stats(place))
        }
        "error" => arguments("error", "error").end(TargetText::Error),
        "striped" => arguments("striped", "striped COUNT CHUNK DEVICE OFFSET [DEVICE OFFSET]…").striped(),
        "delay" => arguments("delay", "delay DEVICE OFFSET MS [DEVICE OFFSET MS [DEVICE OFFSET MS]]").delay(),
        "flakey" => arguments("flakey", "flakey DEVICE OFFSET UP_S DOWN_S [COUNT FEATURE…]").flakey(),
        "log-writes" => {
            let mut arguments = arguments("log-writes", "log-writes DEVICE LOG_DEVICE");
            let (device, log) = (arguments.device("device")?, arguments.device("log device")?);
            arguments.end(TargetText::LogWrites { device, log })
        }
        "mirror" => {
            let args = MirrorArgs::parse(words.iter().copied(), parse_bytes)?;
            let place = |(device, offset): &(String, Sector)| Ok(Place { device: device_name(device)?, offset: *offset });
            let legs = args.legs.iter().map(place).collect::<Result<_, Problem>>()?;
            let log = args.log.as_deref().map(device_name).transpose()?;
            Ok(TargetText::Mirror { args, legs, log })
        }
        "zram" => {
            let options = ZramOptions::parse(words.iter().copied())?;
            let backing = options.backing.as_deref().map(device_name).transpose()?;
            Ok(TargetText::Zram { options, backing })
        }
        "clone" => {
            let args = CloneArgs::parse(words.iter().copied())?;
            let (metadata, destination) = (device_name(&args.metadata)?, device_name(&args.destination)?);
            let source = device_name(&args.source)?;
            Ok(TargetText::Clone { args, metadata, destination, source })
        }
        "writecache" => {
            let args = CacheArgs::parse(words.iter().copied())?;
            let (origin, fast) = (device_name(&args.origin)?, device_name(&args.fast)?);
            Ok(TargetText::Writecache { args, origin, fast })
        }
        "snapshot" => {
            let args = SnapshotArgs::parse("snapshot", words.iter().copied(), parse_bytes)?;
            let (origin, cow) = (device_name(&args.origin)?, device_name(&args.cow)?);
            Ok(TargetText::Snapshot { args, origin, cow })
        }
        "snapshot-merge" => {
            let args = SnapshotArgs::parse("snapshot-merge", words.iter().copied(), parse_bytes)?;
            let (origin, cow) = (device_name(&args.origin)?, device_name(&args.cow)?);
            Ok(TargetText::SnapshotMerge { args, origin, cow })
        }
        "snapshot-origin" => {
            let mut arguments = arguments("snapshot-origin", "snapshot-origin ORIGIN");
            let origin = arguments.device("origin")?;
            arguments.end(TargetText::SnapshotOrigin(origin))
        }
        other => Err(Problem::Target(other.to_owned())),
    }
}

fn device_name(word: &str) -> Result<DeviceName, Problem> {
    Ok(DeviceName::read(word)?)
}

/// The words behind a target's name.
struct Arguments<'a> {
    target: &'static str,
    usage: &'static str,
    words: std::slice::Iter<'a, &'a str>,
}

impl<'a> Arguments<'a> {
    fn word(&mut self, what: &'static str) -> Result<&'a str, Problem> {
        self.words.next().copied().ok_or(Problem::Missing { target: self.target, what, usage: self.usage })
    }

    fn number(&mut self, what: &'static str) -> Result<u64, Problem> {
        number(what, self.word(what)?)
    }

    fn device(&mut self, what: &'static str) -> Result<DeviceName, Problem> {
        device_name(self.word(what)?)
    }

    fn place(&mut self) -> Result<Place, Problem> {
        Ok(Place { device: self.device("device")?, offset: Sector(self.number("offset")?) })
    }

    fn detour(&mut self) -> Result<Detour, Problem> {
        Ok(Detour { place: self.place()?, delay: Duration::from_millis(self.number("delay")?) })
    }

    fn has_more(&self) -> bool {
        !self.words.as_slice().is_empty()
    }

    fn end(mut self, target: TargetText) -> Result<TargetText, Problem> {
        match self.words.next() {
            None => Ok(target),
            Some(&word) => Err(Problem::Extra { target: self.target, word: word.to_owned(), usage: self.usage }),
        }
    }

    fn striped(mut self) -> Result<TargetText, Problem> {
        let count = self.number("number of stripes")?;
        let chunk = SectorCount(self.number("chunk")?);
        let mut columns = Vec::new();
        while (columns.len() as u64) < count {
            columns.push(self.place()?);
        }
        self.end(TargetText::Striped { chunk, columns })
    }

    fn delay(mut self) -> Result<TargetText, Problem> {
        let read = self.detour()?;
        let write = if self.has_more() { Some(self.detour()?) } else { None };
        let flush = if self.has_more() { Some(self.detour()?) } else { None };
        self.end(TargetText::Delay { read, write, flush })
    }

    fn flakey(mut self) -> Result<TargetText, Problem> {
        let place = self.place()?;
        let up = Duration::from_secs(self.number("time up")?);
        let down = Duration::from_secs(self.number("time down")?);
        let count = if self.has_more() { self.number("number of features")? } else { 0 };
        let mut flakiness = Flakiness::failing(up, down);
        if count > 0 {
            (flakiness.reads, flakiness.writes) = (DownReads::Served, DownWrites::Served);
        }
        for _ in 0..count {
            match self.word("feature")? {
                "error_reads" => flakiness.reads = DownReads::Failed,
                "error_writes" => flakiness.writes = DownWrites::Failed,
                "drop_writes" => flakiness.writes = DownWrites::Dropped,
                other => return Err(Problem::Feature(other.to_owned())),
            }
        }
        self.end(TargetText::Flakey(place, flakiness))
    }
}

impl TargetText {
    /// The name of the target, as in a table line.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Linear(_) => "linear",
            Self::Striped { .. } => "striped",
            Self::Error => "error",
            Self::Delay { .. } => "delay",
            Self::Flakey(..) => "flakey",
            Self::LogWrites { .. } => "log-writes",
            Self::Stats(_) => "stats",
            Self::Mirror { .. } => "mirror",
            Self::Zram { .. } => "zram",
            Self::Clone { .. } => "clone",
            Self::Writecache { .. } => "writecache",
            Self::Snapshot { .. } => "snapshot",
            Self::SnapshotOrigin(_) => "snapshot-origin",
            Self::SnapshotMerge { .. } => "snapshot-merge",
        }
    }

    /// Whether it writes nothing to a device that it names.
    pub(crate) fn only_reads(&self, name: &DeviceName) -> bool {
        matches!(self, Self::Clone { metadata, destination, source, .. } if source == name && ![metadata, destination].contains(&name))
    }

    /// The devices that it names.
    #[must_use]
    pub fn devices(&self) -> Vec<&DeviceName> {
        match self {
            Self::Linear(place) | Self::Flakey(place, _) | Self::Stats(place) => vec![&place.device],
            Self::Striped { columns, .. } => columns.iter().map(|place| &place.device).collect(),
            Self::Error => Vec::new(),
            Self::Delay { read, write, flush } => {
                [Some(read), write.as_ref(), flush.as_ref()].into_iter().flatten().map(|detour| &detour.place.device).collect()
            }
            Self::LogWrites { device, log } => vec![device, log],
            Self::Zram { backing, .. } => backing.iter().collect(),
            Self::Writecache { origin, fast, .. } => vec![origin, fast],
            Self::Snapshot { origin, cow, .. } | Self::SnapshotMerge { origin, cow, .. } => vec![origin, cow],
            Self::SnapshotOrigin(device) => vec![device],
            Self::Mirror { legs, log, .. } => legs.iter().map(|leg| &leg.device).chain(log).collect(),
            Self::Clone { metadata, destination, source, .. } => vec![metadata, destination, source],
        }
    }
}

#[cfg(test)]
mod tests;
