//! How many seeds it takes until a planted bug is found.
//!
//! ```text
//!   for each bug: seeds 0, 1, 2 … of the subject that it is in ─▶ the first that fails, and how many do
//!                                                              ─▶ shrunk: how few operations fail as well
//! ```
//!
//! A line of the table that this prints is one bug; one that no seed finds is a failure of the tests.

use forebay_block::replant;

use crate::drive::Drive;
use crate::job::{Job, REQUESTS, Subject};
use crate::shrink;

/// Seeds that must find any bug.
const SEEDS: u64 = 1000;

/// The subject in which each bug does harm.
const PLACES: [(&str, Subject); 15] = [
    ("M1", Subject::Cache),
    ("M2", Subject::Cache),
    ("M3", Subject::Cache),
    ("M4", Subject::Cache),
    ("M5", Subject::Snapshot),
    ("M6", Subject::Snapshot),
    ("M7", Subject::Snapshot),
    ("M8", Subject::Zram),
    ("M9", Subject::Clone),
    ("M10", Subject::Mirror),
    ("M11", Subject::Copy),
    ("M13", Subject::Copy),
    ("M14", Subject::Cache),
    ("M15", Subject::Cache),
    ("M16", Subject::Clone),
];

/// Hunts the named bugs, or all; true when each was found.
///
/// # Errors
/// Where a bug is not known, or this build has none.
pub fn run(names: &[String], jobs: usize) -> Result<bool, String> {
    let known = replant::bugs();
    if known.is_empty() {
        return Err("this build has no bugs: build it with --features replant".to_owned());
    }
    if let Some(unknown) = names.iter().find(|name| !known.iter().any(|(known, _)| known == name)) {
        return Err(format!("there is no bug {unknown}"));
    }
    println!(
        "| bug | what others had | found in | by seed | of 1,000 seeds find it | operations left |\n|---|---|---|---|---|---|"
    );
    let mut all = true;
    for (name, origin) in known.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|asked| asked == name)) {
        let subject = PLACES.iter().find(|(bug, _)| bug == name).map_or(Subject::Cache, |(_, subject)| *subject);
        let job = Job { subject, requests: REQUESTS, bug: Some((*name).to_owned()) };
        let failed = Drive::new(job.clone(), 0..SEEDS, jobs).failing();
        let first = failed.iter().min().copied();
        let left = shrink::operations(&job, &failed);
        let tell = |number: Option<u64>| number.map_or("–".to_owned(), |number| number.to_string());
        let left = tell(left.map(|left| left as u64));
        println!("| {name} | {origin} | `{}` | {} | {} | {left} |", subject.name(), tell(first), failed.len());
        all &= !failed.is_empty();
    }
    Ok(all)
}
