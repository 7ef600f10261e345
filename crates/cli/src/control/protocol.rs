//! What goes over the control socket: one JSON object a line, a request and its reply by turns.
//!
//! ```text
//!   {"command":"status"}                                       {"status":{…}}
//!   {"command":"message","device":"disk","word":"flush"}       "done"
//!   {"command":"zram_get","device":"disk","name":"bd_stat"}     {"text":"1002 0 1002\n"}
//!   {"command":"wait","device":"disk","events":3}              {"events":4}
//!   {"command":"suspend","device":"disk"}                      {"error":"one sentence"}
//! ```
//!
//! Ratios are null where nothing was counted yet. Units are in the names; counts only grow, but
//! where they are said to be of now.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest line, bytes: far more than any request needs.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// What a client asks.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Request {
    /// What the server does.
    Status {
        /// Only this device.
        device: Option<String>,
    },
    /// A message to a device's write caches, mirrors or clones.
    Message {
        /// Which; may be left out where there is one.
        device: Option<String>,
        /// The message, and its number behind a space where it has one.
        word: String,
    },
    /// Wait until the device has raised more events.
    Wait {
        /// Which; may be left out where there is one.
        device: Option<String>,
        /// How many are known already.
        #[serde(default)]
        events: u64,
    },
    /// Hold new requests back.
    Suspend {
        /// Which; may be left out where there is one.
        device: Option<String>,
    },
    /// Read an attribute of a compressed RAM disk.
    ZramGet {
        /// Which.
        device: String,
        /// Of the attribute.
        name: String,
    },
    /// Write one, and wait until what that asks for is done.
    ZramSet {
        /// Which.
        device: String,
        /// Of the attribute.
        name: String,
        /// What to write.
        value: String,
    },
    /// Save a compressed RAM disk to a file.
    ZramSave {
        /// Which.
        device: String,
        /// The file, by its whole path.
        path: PathBuf,
    },
    /// Restore one that is empty from a file.
    ZramRestore {
        /// Which.
        device: String,
        /// The file, by its whole path.
        path: PathBuf,
    },
    /// Let requests in again.
    Resume {
        /// Which; may be left out where there is one.
        device: Option<String>,
    },
}

/// What the server answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It was done.
    Done,
    /// What was asked for.
    Status(Box<ServerReport>),
    /// How many events the device has raised.
    Events(u64),
    /// The text of an attribute.
    Text(String),
    /// Why it was not done, in one sentence.
    Error(String),
}

/// A server.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerReport {
    /// Version of the program.
    pub version: String,
    /// What carries out I/O: `uring` or `threads`.
    pub engine: String,
    /// Process id.
    pub process_id: u32,
    /// Calls into the kernel for I/O.
    pub enters: u64,
    /// Calls into the kernel for each request of a client.
    pub enters_per_request: Option<f64>,
    /// What is served.
    pub devices: Vec<DeviceReport>,
}

/// A device, layer by layer from the clients down.
#[derive(Debug, Serialize, Deserialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether it was told to hold requests back.
    pub suspended: bool,
    /// Events that its mirrors, snapshots and clones have raised since the server started.
    pub events: u64,
    /// Where it is served.
    pub uris: Vec<String>,
    /// Its table.
    pub table: Vec<RowReport>,
    /// What clients ask.
    pub exports: Vec<ExportReport>,
    /// `stats` targets in the table.
    pub counted: Vec<CountedReport>,
    /// Compressed RAM disks in the table.
    pub zrams: Vec<ZramReport>,
    /// Mirrors in the table.
    pub mirrors: Vec<MirrorReport>,
    /// Clones in the table.
    pub clones: Vec<CloneReport>,
    /// Write caches in the table.
    pub caches: Vec<CacheReport>,
    /// The files and block devices below.
    pub disks: Vec<DiskReport>,
}

/// A line of a table, with the status that the kernel's device mapper would print.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// First sector.
    pub start_sector: u64,
    /// Length.
    pub sectors: u64,
    /// What serves it.
    pub target: String,
    /// Its numbers, where it has some.
    pub status: String,
}

/// An export.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExportReport {
    /// Its name; empty for the default.
    pub name: String,
    /// Clients connected now.
    pub connections: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Of them, reads.
    pub reads: u64,
    /// Of them, writes.
    pub writes: u64,
    /// Of them, flushes.
    pub flushes: u64,
    /// Of them, trims and zeroes.
    pub trims_and_zeroes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests that were not whole sectors.
    pub unaligned: u64,
    /// Bytes sent.
    pub read_bytes: u64,
    /// Bytes received.
    pub written_bytes: u64,
    /// Replies that left with one call into the kernel.
    pub replies_per_send: Option<f64>,
    /// Requests that came with one call into the kernel.
    pub requests_per_receive: Option<f64>,
}

/// A `stats` target.
#[derive(Debug, Serialize, Deserialize)]
pub struct CountedReport {
    /// First sector of the table that it counts.
    pub start_sector: u64,
    /// What it counted, by operation.
    pub operations: Vec<OperationReport>,
    /// Requests below it now.
    pub in_flight: u64,
}

/// What was counted of one operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct OperationReport {
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub operation: String,
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// A write cache.
#[derive(Debug, Serialize, Deserialize)]
pub struct CacheReport {
    /// The fast device.
    pub cache: String,
    /// The slow device.
    pub origin: String,
    /// Whether an error made it read-only.
    pub failed: bool,
    /// Size of a block.
    pub block_bytes: u32,
    /// Blocks of the cache.
    pub blocks: u64,
    /// Blocks that are free now.
    pub free_blocks: u64,
    /// Runs of free blocks now.
    pub free_runs: u64,
    /// Blocks in the longest of them.
    pub longest_free_run: u64,
    /// Blocks that are not on the origin yet.
    pub dirty_blocks: u64,
    /// The same in bytes.
    pub dirty_bytes: u64,
    /// Blocks on their way to the origin now.
    pub writeback_blocks: u64,
    /// Blocks whose way to the origin failed and is tried again.
    pub quarantined_blocks: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Of them, found in the cache.
    pub read_hit_blocks: u64,
    /// Blocks written.
    pub written_blocks: u64,
    /// Of them, overwritten before they were committed.
    pub hit_uncommitted_blocks: u64,
    /// Of them, overwritten after they were committed.
    pub hit_committed_blocks: u64,
    /// Of them, new in the cache.
    pub allocated_blocks: u64,
    /// Of them, sent past the cache.
    pub bypassed_blocks: u64,
    /// Requests that these writes made of the fast device.
    pub write_requests: u64,
    /// Blocks that one such request wrote: what gathering saved.
    pub blocks_per_write_request: Option<f64>,
    /// The same in bytes.
    pub mean_run_bytes: Option<f64>,
    /// Times that a write waited for a free block.
    pub waits_for_space: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Discards asked for.
    pub discards: u64,
    /// Groups committed.
    pub commits: u64,
    /// Memory for all that grows with the cache.
    pub memory_bytes: u64,
}

/// A clone.
#[derive(Debug, Serialize, Deserialize)]
pub struct CloneReport {
    /// First sector of the table that it serves.
    pub start_sector: u64,
    /// The metadata device.
    pub metadata: String,
    /// The destination.
    pub destination: String,
    /// The source.
    pub source: String,
    /// Size of a region.
    pub region_bytes: u64,
    /// Regions.
    pub regions: u32,
    /// Of them, hydrated.
    pub hydrated_regions: u32,
    /// Regions in hydration now.
    pub hydrating_regions: u32,
    /// Regions that could not be copied and are not tried any more.
    pub left_alone_regions: u64,
    /// Whether regions are hydrated that nobody writes to.
    pub hydration: bool,
    /// Regions hydrated so since the server started.
    pub background_regions: u64,
    /// Of them, holes of the source, that were not read.
    pub hole_regions: u64,
    /// Copies that hydrated them.
    pub batches: u64,
    /// Regions that a write waited for.
    pub waited_for_regions: u64,
    /// Copies of a region that failed.
    pub failed_copies: u64,
    /// Commits that wrote metadata.
    pub commits: u64,
    /// Whether an error made it read-only but for what is hydrated.
    pub failed: bool,
}

/// A compressed RAM disk.
#[derive(Debug, Serialize, Deserialize)]
pub struct ZramReport {
    /// First sector of the table that it serves.
    pub start_sector: u64,
    /// Its size.
    pub disk_bytes: u64,
    /// How pages are compressed.
    pub algorithm: String,
    /// Stored pages, uncompressed.
    pub original_bytes: u64,
    /// Their objects in memory.
    pub compressed_bytes: u64,
    /// Pages of memory for the objects, without tables: what the kernel counts as used.
    pub used_bytes: u64,
    /// All memory taken, every table counted.
    pub memory_bytes: u64,
    /// Most that may be used; 0 for any.
    pub limit_bytes: u64,
    /// Most that was used.
    pub used_max_bytes: u64,
    /// Uncompressed bytes for each byte of memory taken.
    pub ratio: Option<f64>,
    /// Pages that repeat one word and take no memory.
    pub same_pages: u64,
    /// Pages that do not shrink and are kept as they are.
    pub huge_pages: u64,
    /// Pages that were ever kept as they are.
    pub huge_pages_since: u64,
    /// Pages freed by discards and write-zeroes.
    pub freed_pages: u64,
    /// Blocks of the backing device in use.
    pub backing_blocks: u64,
    /// Pages read from it.
    pub backing_reads: u64,
    /// Requests that read them; what was read ahead needs none.
    pub backing_read_requests: u64,
    /// Pages that came back into memory because they were read.
    pub backing_promoted: u64,
    /// Freed blocks that were discarded.
    pub backing_discards: u64,
    /// Blocks of 4096 bytes written to it.
    pub backing_writes: u64,
    /// Pages that left memory by that; more than blocks where objects are packed.
    pub backing_left: u64,
    /// Requests that wrote them.
    pub backing_requests: u64,
    /// Pages that left by one such request.
    pub pages_per_backing_request: Option<f64>,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes that failed.
    pub failed_writes: u64,
}

/// A mirror.
#[derive(Debug, Serialize, Deserialize)]
pub struct MirrorReport {
    /// First sector of the table that it serves.
    pub start_sector: u64,
    /// Its legs.
    pub legs: Vec<MirrorLegReport>,
    /// The leg that is copied from, from 0.
    pub source_leg: u64,
    /// All regions.
    pub regions: u64,
    /// Of them, those that all legs have.
    pub in_sync_regions: u64,
    /// Size of a region.
    pub region_bytes: u64,
    /// The log device; none for a log in memory.
    pub log: Option<String>,
    /// Requests that wrote parts of the log.
    pub log_writes: u64,
    /// Writes that wait for `release`.
    pub held_writes: u64,
    /// Whether nothing is promised any more.
    pub failed: bool,
}

/// A leg of a mirror.
#[derive(Debug, Serialize, Deserialize)]
pub struct MirrorLegReport {
    /// Its device.
    pub name: String,
    /// The letter of the kernel's status line.
    pub letter: char,
    /// Whether it gets requests.
    pub alive: bool,
    /// Whether it has everything.
    pub full: bool,
}

/// A file, block device or memory at the bottom.
#[derive(Debug, Serialize, Deserialize)]
pub struct DiskReport {
    /// As the table names it.
    pub name: String,
    /// `file`, `nbd`, `ram` or `null`.
    pub kind: String,
    /// Its size.
    pub size_bytes: u64,
    /// Whether its I/O goes past the page cache.
    pub direct: bool,
    /// Requests that came in.
    pub requests_in: u64,
    /// Requests that went out, merged.
    pub requests_out: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Requests in for each one out.
    pub merge_ratio: Option<f64>,
    /// Bytes of a request out.
    pub mean_run_bytes: Option<f64>,
    /// Requests that failed.
    pub errors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_they_were_on_the_other_side() {
        for (text, request) in [
            (r#"{"command":"status","device":null}"#, Request::Status { device: None }),
            (
                r#"{"command":"message","device":"a","word":"flush"}"#,
                Request::Message { device: Some("a".into()), word: "flush".into() },
            ),
            (r#"{"command":"suspend","device":"a"}"#, Request::Suspend { device: Some("a".into()) }),
            (
                r#"{"command":"zram_get","device":"a","name":"bd_stat"}"#,
                Request::ZramGet { device: "a".into(), name: "bd_stat".into() },
            ),
            (r#"{"command":"wait","device":null,"events":7}"#, Request::Wait { device: None, events: 7 }),
            (r#"{"command":"resume","device":null}"#, Request::Resume { device: None }),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        assert_eq!(serde_json::from_str::<Request>(r#"{"command":"status"}"#).unwrap(), Request::Status { device: None });
    }

    #[test]
    fn replies_name_what_they_are() {
        assert_eq!(serde_json::to_string(&Reply::Done).unwrap(), r#""done""#);
        assert_eq!(serde_json::to_string(&Reply::Error("why".into())).unwrap(), r#"{"error":"why"}"#);
    }
}
