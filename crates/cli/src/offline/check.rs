//! `forebay cache check`: is the cache clean, repairable or damaged?
//!
//! | Verdict | Exit status | Meaning |
//! |---|---|---|
//! | clean | 0 | every entry is free or the one committed copy of its block; or there is no cache yet |
//! | repairable | 1 | a crash left entries that were never committed, or older copies: the next opening clears them |
//! | damaged | 2 | it is no cache, the superblock or an entry cannot be true, the origin is too small, or the side file does not know the cache: nothing opens it |
//! | – | 2 | a file cannot be opened or read, with a sentence on standard error: it may be damaged |

use std::path::Path;
use std::process::ExitCode;

use forebay::block::{SectorCount, Target};
use forebay::{BufferPool, Reactor, known_as};
use forebay_target::cache::disk::side::{Checksums, Found as Present, Mismatch, Record};
use forebay_target::cache::disk::{Damage, Flaw, Recovered, Recovery, SUPERBLOCK_BYTES};
use serde::Serialize;

use super::media::{CacheFile, Found, look};
use super::side::{Beside, SideReport};
use super::{open, run, side};
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

/// An entry that cannot be true.
#[derive(Debug, Serialize)]
struct DamageReport {
    slot: u32,
    origin_sector: u64,
    /// `misaligned` or `beyond_origin`.
    flaw: &'static str,
}

/// What was found.
#[derive(Debug, Serialize)]
struct CheckReport {
    verdict: Verdict,
    /// One sentence each.
    findings: Vec<String>,
    /// The first entries that cannot be true.
    damage: Vec<DamageReport>,
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
    /// The side file, where there is one.
    side: Option<SideReport>,
}

/// Checks a cache.
pub fn check(flags: &CheckFlags) -> Outcome {
    let checked = run(async |reactor, pool| {
        let report = Box::pin(examine(reactor, pool, flags)).await?;
        if flags.place.json {
            say(&format!("{}\n", serde_json::to_string(&report).expect("a report has only names that JSON knows")))?;
        } else {
            say(&people(&flags.place.cache, &report))?;
        }
        Ok(ExitCode::from(report.verdict.code()))
    });
    checked.or_else(|failure| {
        // Whoever asks by the exit status must not take this for repairable.
        failure.report();
        Ok(ExitCode::from(Verdict::Damaged.code()))
    })
}

async fn examine(reactor: &Reactor, pool: &BufferPool, flags: &CheckFlags) -> Result<CheckReport, Failure> {
    let origin = flags.origin.as_ref().map(|path| open(reactor, path)).transpose().map_err(|error| Failure::of(&error))?;
    let origin_sectors = origin.map(|origin| origin.sectors());
    let side = side::read(&flags.place)?;
    let name = known_as(&flags.place.cache);
    let mut report = match look(reactor, pool, &flags.place.cache, flags.place.start_sector).await? {
        Found::Fresh => {
            let mut report = plain(Verdict::Clean, "there is no cache yet: the first block is zeroes".to_owned());
            if let Some(side) = &side {
                report.hold_against(side, |record| record.judge_fresh(&name).map(|()| None));
            }
            report
        }
        Found::Damaged(error) => plain(Verdict::Damaged, format!("it is not a cache, or its superblock is damaged: {error}")),
        Found::Cache(cache) => {
            let (recovered, checksums) = recover(&cache, origin_sectors).await?;
            let mut report = judge(&cache, &recovered, origin_sectors);
            let origin_name = flags.origin.as_deref().map(known_as);
            let found = Present {
                geometry: cache.geometry,
                seq_count: cache.superblock.seq_count,
                dirty_blocks: recovered.map.used_blocks(),
                checksums: &checksums,
                cache: &name,
                origin: origin_name.as_ref().zip(origin_sectors),
            };
            if let Some(side) = &side {
                report.hold_against(side, |record| record.judge(&found));
            }
            report
        }
    };
    report.side = side.map(|side| side.report());
    Ok(report)
}

impl CheckReport {
    /// Adds what a side file says against the cache.
    fn hold_against(&mut self, side: &Beside, verdict: impl FnOnce(&Record) -> Result<Option<Mismatch>, Mismatch>) {
        let finding = match side.record.as_ref().map(verdict) {
            Ok(Ok(None)) => return,
            Ok(Ok(Some(harmless))) => format!("{}; no dirty block depends on that", harmless.difference(&side.path)),
            Ok(Err(mismatch)) => {
                self.verdict = Verdict::Damaged;
                mismatch.sentence(&side.path)
            }
            Err(problem) => {
                self.verdict = Verdict::Damaged;
                format!("the side file {} cannot be used, {problem}: delete it if it was made for this cache", side.path)
            }
        };
        self.findings.push(finding);
    }
}

/// A report about something without entries.
fn plain(verdict: Verdict, finding: String) -> CheckReport {
    CheckReport {
        verdict,
        findings: vec![finding],
        damage: Vec::new(),
        block_bytes: 0,
        blocks: 0,
        dirty_blocks: 0,
        leftover_entries: 0,
        damaged_entries: 0,
        equal_entries: 0,
        origin_sectors_needed: 0,
        side: None,
    }
}

/// Reads all metadata: what they say, and their checksums.
async fn recover(cache: &CacheFile, origin: Option<SectorCount>) -> Result<(Recovered, Vec<u32>), Failure> {
    // Without an origin, whatever can be a block at all is one.
    let sectors = origin.unwrap_or(SectorCount(u64::MAX >> 1));
    let mut recovery = Recovery::new(&cache.geometry, cache.superblock.seq_count, sectors);
    let mut checksums = Checksums::new(cache.geometry.blocks());
    let mut front = SUPERBLOCK_BYTES;
    cache
        .metadata(|bytes| {
            checksums.feed(bytes);
            recovery.feed(bytes.get(std::mem::take(&mut front)..).unwrap_or_default());
            Ok(())
        })
        .await?;
    Ok((recovery.finish(), checksums.finish()))
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
        findings.push(untrue(recovered));
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
        damage: recovered.damage.iter().map(DamageReport::of).collect(),
        block_bytes: cache.geometry.block_bytes(),
        blocks: cache.geometry.blocks().into(),
        dirty_blocks: recovered.map.used_blocks(),
        leftover_entries: leftover,
        damaged_entries: recovered.damaged,
        equal_entries: recovered.ties,
        origin_sectors_needed: recovered.origin_needed.0,
        side: None,
    }
}

/// Damaged entries that people are shown; the number of all of them says more than the rest.
const PLACES_SHOWN: usize = 3;

/// How many entries cannot be true, and where the first ones are.
fn untrue(recovered: &Recovered) -> String {
    let count = match recovered.damaged {
        1 => "1 entry".to_owned(),
        several => format!("{} entries", figures::count(several)),
    };
    let mut places: Vec<_> = recovered.damage.iter().take(PLACES_SHOWN).map(place).collect();
    let unshown = recovered.damaged.saturating_sub(places.len() as u64);
    places.extend((unshown > 0).then(|| format!("and {} more", figures::count(unshown))));
    format!("{count} cannot be true: {}", places.join("; "))
}

fn place(damage: &Damage) -> String {
    let what = match damage.flaw {
        Flaw::Misaligned => "which is not the start of a block",
        Flaw::BeyondOrigin => "which is not on the origin",
    };
    format!("slot {} names sector {}, {what}", damage.slot.0, damage.origin_sector)
}

impl DamageReport {
    fn of(damage: &Damage) -> Self {
        let flaw = match damage.flaw {
            Flaw::Misaligned => "misaligned",
            Flaw::BeyondOrigin => "beyond_origin",
        };
        Self { slot: damage.slot.0, origin_sector: damage.origin_sector, flaw }
    }
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
    if let Some(side) = &report.side {
        text = format!("{text}  {}\n", side.line());
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_target::cache::disk::{ENTRY_BYTES, Entry, Geometry, SEQ_FREE};

    use super::*;

    #[test]
    fn many_damaged_entries_are_one_finding() {
        let geometry = Geometry::for_device(1 << 20, 0, 4096).unwrap();
        let finding = |damaged: u64| {
            let mut recovery = Recovery::new(&geometry, 9, SectorCount(8000));
            let entry = |at: u64| {
                let seq = if at < damaged { 1 } else { SEQ_FREE };
                Entry { origin_sector: if at.is_multiple_of(2) { 1 } else { 80_000 }, seq }.encode()
            };
            let entries: Vec<[u8; ENTRY_BYTES]> = (0..geometry.blocks().into()).map(entry).collect();
            recovery.feed(entries.as_flattened());
            untrue(&recovery.finish())
        };
        assert_eq!(finding(1), "1 entry cannot be true: slot 0 names sector 1, which is not the start of a block");
        assert_eq!(
            finding(200),
            "200 entries cannot be true: slot 0 names sector 1, which is not the start of a block; \
             slot 1 names sector 80000, which is not on the origin; \
             slot 2 names sector 1, which is not the start of a block; and 197 more"
        );
    }
}
