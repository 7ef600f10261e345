//! `forebay cache check`: is the cache clean, repairable or damaged?
//!
//! | Verdict | Exit status | Meaning |
//! |---|---|---|
//! | clean | 0 | every entry is free or the one committed copy of its block; or there is no cache yet |
//! | repairable | 1 | a crash left entries that were never committed, or older copies: the next opening clears them |
//! | damaged | 2 | the superblock or an entry cannot be true, or the origin is too small: nothing opens it |

use std::path::Path;
use std::process::ExitCode;

use forebay::block::{SectorCount, Target};
use forebay::{BufferPool, Reactor};
use forebay_target::cache::disk::{Damage, Flaw, Recovered, Recovery};
use serde::Serialize;

use super::media::{CacheFile, Found, look};
use super::{open, run};
use crate::failure::{Failure, Outcome, say};
use crate::figures;
use crate::flags::CheckFlags;

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Clean,
    Repairable,
    Damaged,
}

impl Verdict {
    fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Repairable => 1,
            Self::Damaged => 2,
        }
    }
}

/// What was found.
#[derive(Debug, Serialize)]
struct CheckReport {
    verdict: Verdict,
    /// One sentence each.
    findings: Vec<String>,
    block_bytes: u32,
    blocks: u64,
    /// Blocks that are not on the origin yet.
    dirty_blocks: u64,
    /// Entries to be cleared by the next opening.
    leftover_entries: u64,
    /// Entries that cannot be true.
    damaged_entries: u64,
    /// Blocks with two entries of one sequence number.
    equal_entries: u64,
    /// The smallest origin that everything fits on.
    origin_sectors_needed: u64,
}

/// Checks a cache.
pub fn check(flags: &CheckFlags) -> Outcome {
    run(async |reactor, pool| {
        let report = examine(reactor, pool, flags).await?;
        if flags.place.json {
            say(&format!("{}\n", serde_json::to_string(&report).expect("a report has only names that JSON knows")))?;
        } else {
            say(&people(&flags.place.cache, &report))?;
        }
        Ok(ExitCode::from(report.verdict.code()))
    })
}

async fn examine(reactor: &Reactor, pool: &BufferPool, flags: &CheckFlags) -> Result<CheckReport, Failure> {
    let origin = flags.origin.as_ref().map(|path| open(reactor, path, true)).transpose()?;
    let origin_sectors = origin.map(|origin| origin.sectors());
    Ok(match look(reactor, pool, &flags.place.cache, flags.place.start_sector).await? {
        Found::Fresh => plain(Verdict::Clean, "there is no cache yet: the first block is zeroes".to_owned()),
        Found::Damaged(error) => plain(Verdict::Damaged, error.to_string()),
        Found::Cache(cache) => judge(&cache, &recover(&cache, origin_sectors).await?, origin_sectors),
    })
}

/// A report about something without entries.
fn plain(verdict: Verdict, finding: String) -> CheckReport {
    CheckReport {
        verdict,
        findings: vec![finding],
        block_bytes: 0,
        blocks: 0,
        dirty_blocks: 0,
        leftover_entries: 0,
        damaged_entries: 0,
        equal_entries: 0,
        origin_sectors_needed: 0,
    }
}

async fn recover(cache: &CacheFile, origin: Option<SectorCount>) -> Result<Recovered, Failure> {
    // Without an origin, whatever can be a block at all is one.
    let sectors = origin.unwrap_or(SectorCount(u64::MAX >> 1));
    let mut recovery = Recovery::new(&cache.geometry, cache.superblock.seq_count, sectors);
    cache
        .entries(|entries| {
            recovery.feed(entries);
            Ok(())
        })
        .await?;
    Ok(recovery.finish())
}

fn judge(cache: &CacheFile, recovered: &Recovered, origin: Option<SectorCount>) -> CheckReport {
    let mut findings = Vec::new();
    let mut verdict = Verdict::Clean;
    let leftover: u64 = recovered.clear.iter().map(|run| u64::from(run.count)).sum();
    if leftover > 0 {
        verdict = Verdict::Repairable;
        findings.push(format!(
            "{} were never committed or have a newer copy: the next opening clears them",
            figures::blocks(leftover)
        ));
    }
    if recovered.ties > 0 {
        verdict = Verdict::Repairable;
        let blocks = figures::blocks(recovered.ties);
        findings.push(format!("{blocks} have two entries of one sequence number: the one in the higher slot holds"));
    }
    if recovered.damaged > 0 {
        verdict = Verdict::Damaged;
        findings.extend(recovered.damage.iter().map(damage));
        let unlisted = recovered.damaged.saturating_sub(recovered.damage.len() as u64);
        findings.extend((unlisted > 0).then(|| format!("and {} more", figures::count(unlisted))));
    }
    if let Some(origin) = origin
        && recovered.origin_needed > origin
    {
        verdict = Verdict::Damaged;
        let needed = recovered.origin_needed.0;
        findings.push(format!("the cache needs an origin of {needed} sectors, this one has {}: is it the right one?", origin.0));
    }
    CheckReport {
        verdict,
        findings,
        block_bytes: cache.geometry.block_bytes(),
        blocks: cache.geometry.blocks().into(),
        dirty_blocks: recovered.map.used_blocks(),
        leftover_entries: leftover,
        damaged_entries: recovered.damaged,
        equal_entries: recovered.ties,
        origin_sectors_needed: recovered.origin_needed.0,
    }
}

fn damage(damage: &Damage) -> String {
    let what = match damage.flaw {
        Flaw::Misaligned => "which is not the start of a block",
        Flaw::BeyondOrigin => "which is not on the origin",
    };
    format!("slot {} names sector {}, {what}", damage.slot.0, damage.origin_sector)
}

fn people(path: &Path, report: &CheckReport) -> String {
    let verdict = match report.verdict {
        Verdict::Clean => "clean",
        Verdict::Repairable => "repairable",
        Verdict::Damaged => "damaged",
    };
    let mut text = format!("{}: {verdict}\n", path.display());
    for finding in &report.findings {
        text.extend(["  ", finding, "\n"]);
    }
    if report.blocks > 0 {
        let dirty = figures::bytes(report.dirty_blocks * u64::from(report.block_bytes));
        let of = figures::bytes(report.block_bytes.into());
        let (blocks, of_them) = (figures::blocks(report.blocks), figures::count(report.dirty_blocks));
        text = format!("{text}  {blocks} of {of}, {of_them} of them dirty ({dirty})\n");
    }
    text
}
