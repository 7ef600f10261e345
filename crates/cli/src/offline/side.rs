//! The side file of a cache that nobody serves: found, read, shown. Nothing here writes one.

use std::path::PathBuf;

use forebay::SideFile;
use forebay::cache::SideStore as _;
use forebay::cache::disk::side::{Record, SideError, SideState};
use serde::Serialize;

use crate::failure::Failure;
use crate::figures;
use crate::flags::CachePlace;

/// A side file that exists.
pub(super) struct Beside {
    /// Its path.
    pub(super) path: String,
    /// What it says.
    pub(super) record: Result<Record, SideError>,
}

/// Where the side file of a cache is: where it was said, else beside the cache when there is one.
pub(super) fn path(place: &CachePlace) -> Option<PathBuf> {
    let beside = SideFile::beside(&place.cache);
    place.side.clone().or_else(|| beside.exists().then_some(beside))
}

/// Reads the side file of a cache.
///
/// # Errors
/// When one was named and is missing, or one cannot be read.
pub(super) fn read(place: &CachePlace) -> Result<Option<Beside>, Failure> {
    let Some(path) = path(place) else { return Ok(None) };
    let name = path.display().to_string();
    let content = SideFile::new(&path).read();
    let content = content.map_err(|error| Failure::because(format!("reading the side file {name}"), &error))?;
    let content = content.ok_or_else(|| Failure::Failed(format!("there is no side file {name}: leave --side out")))?;
    Ok(Some(Beside { path: name, record: Record::decode(&content) }))
}

/// A side file, for JSON.
#[derive(Debug, Serialize)]
pub(super) struct SideReport {
    path: String,
    /// `open`, `clean`, or what is wrong with the file.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<RecordReport>,
}

#[derive(Debug, Serialize)]
struct RecordReport {
    sequence: u64,
    dirty_blocks: u64,
    cache: String,
    origin: String,
    origin_sectors: u64,
}

impl Beside {
    /// What it says, for JSON.
    pub(super) fn report(&self) -> SideReport {
        let state = match &self.record {
            Ok(Record { state: SideState::Open, .. }) => "open".to_owned(),
            Ok(Record { state: SideState::Clean(_), .. }) => "clean".to_owned(),
            Err(problem) => problem.to_string(),
        };
        let record = self.record.as_ref().ok().map(|record| RecordReport {
            sequence: record.seq_count,
            dirty_blocks: record.dirty_blocks,
            cache: record.cache.to_string(),
            origin: record.origin.to_string(),
            origin_sectors: record.origin_sectors.0,
        });
        SideReport { path: self.path.clone(), state, record }
    }
}

impl SideReport {
    /// The same for people, in a line.
    pub(super) fn line(&self) -> String {
        let Some(record) = &self.record else { return format!("side file {}: {}", self.path, self.state) };
        format!(
            "side file {}: {}, sequence {}, {} dirty; cache {}; origin {} of {}",
            self.path,
            self.state,
            record.sequence,
            figures::blocks(record.dirty_blocks),
            record.cache,
            record.origin,
            figures::bytes(record.origin_sectors.saturating_mul(512)),
        )
    }
}
