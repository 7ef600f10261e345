//! `forebay cache dump`: the geometry of a cache, and its entries as ranges.

use std::fmt::Write as _;
use std::process::ExitCode;

use forebay_target::cache::disk::{ENTRY_BYTES, Entry, Geometry, SEQ_FREE};
use serde::Serialize;

use super::media::{CacheFile, Found, look, not_a_cache};
use super::side::SideReport;
use super::{run, side};
use crate::failure::{Failure, Outcome, say};
use crate::figures;
use crate::flags::DumpFlags;

/// What an entry says about its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Free,
    Committed,
    Uncommitted,
}

/// Slots one after the other that say the same: free, or blocks one after the other of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Range {
    slot: u64,
    blocks: u64,
    state: State,
    /// First sector on the origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin_sector: Option<u64>,
    /// Number of the group that wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

/// Joins entries into ranges.
struct Ranges {
    seq_count: u64,
    block_sectors: u64,
    next_slot: u64,
    open: Option<Range>,
}

impl Ranges {
    fn new(geometry: &Geometry, seq_count: u64) -> Self {
        Self { seq_count, block_sectors: u64::from(geometry.block_sectors()), next_slot: 0, open: None }
    }

    /// Takes the next slot's entry; gives the range that ends in front of it.
    fn add(&mut self, entry: Entry) -> Option<Range> {
        let free = entry.seq == SEQ_FREE;
        let state = match entry.seq {
            SEQ_FREE => State::Free,
            seq if seq < self.seq_count => State::Committed,
            _ => State::Uncommitted,
        };
        let origin_sector = (!free).then_some(entry.origin_sector);
        let sequence = (!free).then_some(entry.seq);
        let slot = self.next_slot;
        self.next_slot += 1;
        if let Some(open) = &mut self.open
            && (open.state, open.sequence) == (state, sequence)
            && open.origin_sector.map(|sector| sector.wrapping_add(open.blocks.wrapping_mul(self.block_sectors))) == origin_sector
        {
            open.blocks += 1;
            return None;
        }
        self.open.replace(Range { slot, blocks: 1, state, origin_sector, sequence })
    }

    fn finish(self) -> Option<Range> {
        self.open
    }
}

/// The geometry, for JSON.
#[derive(Serialize)]
struct GeometryReport {
    start_sector: u64,
    block_bytes: u32,
    blocks: u32,
    metadata_bytes: u64,
    cache_bytes: u64,
    sequence: u64,
}

/// Prints what is in a cache.
pub fn dump(flags: &DumpFlags) -> Outcome {
    let place = &flags.place;
    run(async |reactor, pool| {
        let name = place.cache.display();
        match look(reactor, pool, &place.cache, place.start_sector).await? {
            Found::Fresh if place.json => say("{\"geometry\":null,\"side\":null,\"ranges\":[]}\n")?,
            Found::Fresh => say(&format!("{name} holds no cache yet: its first block is zeroes\n"))?,
            Found::Damaged(error) => return Err(not_a_cache(&name, &error)),
            Found::Cache(cache) => {
                let side = side::read(place)?.map(|side| side.report());
                if place.json { json(&cache, side).await? } else { people(&cache, side).await? }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Reads all entries and gives each range to `show`.
async fn ranges(cache: &CacheFile, mut show: impl FnMut(Range) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut ranges = Ranges::new(&cache.geometry, cache.superblock.seq_count);
    let each = |entries: &[u8]| {
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        entries.iter().filter_map(|entry| ranges.add(Entry::decode(entry))).try_for_each(&mut show)
    };
    cache.entries(each).await?;
    ranges.finish().map_or(Ok(()), show)
}

/// Bytes gathered before they are printed.
const PRINT_BYTES: usize = 64 << 10;

async fn json(cache: &CacheFile, side: Option<SideReport>) -> Result<(), Failure> {
    let geometry = &cache.geometry;
    let report = GeometryReport {
        start_sector: geometry.start_sector().0,
        block_bytes: geometry.block_bytes(),
        blocks: geometry.blocks(),
        metadata_bytes: geometry.metadata_bytes(),
        cache_bytes: geometry.cache_bytes(),
        sequence: cache.superblock.seq_count,
    };
    let geometry = serde_json::to_string(&report).expect("a report has only names that JSON knows");
    let side = serde_json::to_string(&side).expect("a report has only names that JSON knows");
    let mut text = format!("{{\"geometry\":{geometry},\"side\":{side},\"ranges\":[");
    let mut comma = "";
    ranges(cache, |range| {
        text.push_str(comma);
        comma = ",";
        text.push_str(&serde_json::to_string(&range).expect("a range has only names that JSON knows"));
        print_when_long(&mut text)
    })
    .await?;
    text.push_str("]}\n");
    say(&text)
}

async fn people(cache: &CacheFile, side: Option<SideReport>) -> Result<(), Failure> {
    let geometry = &cache.geometry;
    let mut text = format!(
        "{} of {} from sector {}: {} of metadata, {} in all, sequence {}\n",
        figures::blocks(geometry.blocks().into()),
        figures::bytes(geometry.block_bytes().into()),
        geometry.start_sector().0,
        figures::bytes(geometry.metadata_bytes()),
        figures::bytes(geometry.cache_bytes()),
        cache.superblock.seq_count,
    );
    if let Some(side) = side {
        writeln!(text, "{}", side.line()).expect("writing to a string does not fail");
    }
    ranges(cache, |range| {
        writeln!(text, "{}", line(&range)).expect("writing to a string does not fail");
        print_when_long(&mut text)
    })
    .await?;
    say(&text)
}

fn line(range: &Range) -> String {
    let slots = format!("slot {}+{}", range.slot, range.blocks);
    let state = if range.state == State::Uncommitted { " not committed" } else { "" };
    match (range.origin_sector, range.sequence) {
        (Some(sector), Some(sequence)) => format!("{slots}: sector {sector}, sequence {sequence}{state}"),
        _ => format!("{slots}: free"),
    }
}

fn print_when_long(text: &mut String) -> Result<(), Failure> {
    if text.len() >= PRINT_BYTES {
        say(text)?;
        text.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_continue_each_other_are_one_range() {
        let geometry = Geometry::for_device(1 << 20, 0, 4096).unwrap();
        let mut ranges = Ranges::new(&geometry, 5);
        let entry = |origin_sector, seq| Entry { origin_sector, seq };
        let entries =
            [entry(0, SEQ_FREE), entry(99, SEQ_FREE), entry(80, 4), entry(88, 4), entry(96, 3), entry(112, 3), entry(120, 5)];
        let mut found: Vec<_> = entries.into_iter().filter_map(|entry| ranges.add(entry)).collect();
        found.extend(ranges.finish());
        let lines: Vec<_> = found.iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "slot 0+2: free",
                "slot 2+2: sector 80, sequence 4",
                "slot 4+1: sector 96, sequence 3",
                "slot 5+1: sector 112, sequence 3",
                "slot 6+1: sector 120, sequence 5 not committed",
            ]
        );
        let json = serde_json::to_string(&found[1]).unwrap();
        assert_eq!(json, r#"{"slot":2,"blocks":2,"state":"committed","origin_sector":80,"sequence":4}"#);
    }
}
