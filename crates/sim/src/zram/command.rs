//! What is done to a running disk beside its requests.

use std::rc::Rc;

use fastrand::Rng;

use crate::draw::choose;
use forebay_target::zram::{RecompressError, WritebackError, Zram};

/// A command, with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// An attribute is written.
    Set(&'static str, String),
    /// Pages are written back while requests go on.
    WriteBack(String),
    /// The same, and the command waits for it.
    WriteBackHere(String),
    /// Objects are compressed again while requests go on.
    Recompress(String),
    /// Everything is forgotten.
    Reset,
    /// A block of the backing device is damaged.
    Damage,
    /// The counters are looked at.
    LookAt,
}

impl Command {
    pub(super) fn draw(rng: &mut Rng, pages: u64) -> Self {
        match rng.u32(0..46) {
            0..10 => Self::Set("idle", choose(rng, &["all", "all", "0", "1", "3"]).to_owned()),
            10..18 => Self::WriteBack(selection(rng, pages)),
            18..24 => Self::WriteBackHere(selection(rng, pages)),
            24..27 => Self::Set("writeback_limit", choose(rng, &[0, 1, 5, 33, 1000]).to_string()),
            27..29 => Self::Set("writeback_limit_enable", choose(rng, &["0", "1"]).to_owned()),
            29..31 => Self::Set("writeback_batch_size", choose(rng, &[1, 2, 32, 1000]).to_string()),
            31 => Self::Set("compact", "1".to_owned()),
            32 => Self::Set("mem_used_max", "0".to_owned()),
            33 => Self::Reset,
            34..37 => Self::Damage,
            37..41 => Self::Recompress(recompression(rng)),
            41 => Self::Set("recomp_algorithm", choose(rng, &["algo=zstd", "algo=deflate priority=3"]).to_owned()),
            42 => Self::Set("algorithm_params", choose(rng, &["algo=zstd level=1", "priority=2 level=5"]).to_owned()),
            _ => Self::LookAt,
        }
    }
}

fn recompression(rng: &mut Rng) -> String {
    let kind = choose(rng, &["", "", "type=idle", "type=huge", "type=huge_idle"]);
    let bound = choose(rng, &["", "", "max_pages=3", "threshold=2000", "priority=1"]);
    format!("{kind} {bound}")
}

/// Compresses pages again; an error says what may not be.
pub(super) async fn recompress(zram: Rc<Zram>, words: String) -> Result<(), String> {
    match zram.recompress(&words).await {
        Err(error @ (RecompressError::Words | RecompressError::Corrupt)) => Err(format!("recompress {words}: {error}")),
        _ => Ok(()),
    }
}

fn selection(rng: &mut Rng, pages: u64) -> String {
    let page = rng.u64(0..pages);
    match rng.u32(0..8) {
        0..3 => "idle".to_owned(),
        3 => "huge".to_owned(),
        4 => "huge_idle".to_owned(),
        5 => format!("page_index={page} page_index={}", rng.u64(0..pages)),
        _ => format!("page_indexes={page}-{} page_indexes=0-{}", rng.u64(page..pages), page / 2),
    }
}

/// Writes pages back; an error says what may not be.
pub(super) async fn write_back(zram: Rc<Zram>, words: String, faults: bool) -> Result<(), String> {
    match zram.writeback(&words).await {
        Err(WritebackError::Device) if !faults => Err(format!("writeback {words} failed on a healthy device")),
        Err(WritebackError::Words) => Err(format!("writeback does not know {words}")),
        _ => Ok(()),
    }
}

/// Whether the counters can be.
pub(super) fn look_at(zram: &Zram, packed: bool) -> Result<(), String> {
    let status = zram.status();
    let lines = zram.get("block_state").map_err(|error| error.to_string())?;
    let pages = lines.lines().count() as u64;
    let count = |letter: char| lines.lines().filter(|line| line[25..].contains(letter)).count() as u64;
    // Objects have 16 bytes at least.
    let blocks_hold = if packed { 256 } else { 1 };
    let consistent = status.original_bytes == pages * 4096
        && status.same_pages == count('s')
        && status.huge_pages == count('h')
        && status.recompressed_pages == count('r')
        && status.backing_blocks.saturating_mul(blocks_hold) >= count('w')
        && status.used_bytes <= status.used_max_bytes
        && status.compressed_bytes <= status.used_bytes;
    if consistent { Ok(()) } else { Err(format!("the numbers do not add up: {status:?}, {} pages away", count('w'))) }
}
