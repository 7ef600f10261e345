//! Status as text: for people, and as the kernel's device mapper prints it.

use std::fmt::Write as _;

use forebay::ScrubReport;

use super::protocol::{
    CacheReport, CloneReport, CountedReport, DeviceReport, DiskReport, ExportReport, MirrorReport, ServerReport, ZramReport,
};
use crate::figures::{bytes, count};

/// The report for people.
pub fn people(report: &ServerReport) -> String {
    let mut text = String::new();
    for device in &report.devices {
        device_text(&mut text, device);
    }
    let enters = ratio(report.enters_per_request);
    line(&mut text, 0, &format!("{}: {} enters, {enters} for each request of a client", report.engine, count(report.enters)));
    text
}

/// A line for each row of each table: `START LENGTH TARGET STATUS`, after the device's name where
/// `named`.
pub fn lines(report: &ServerReport, named: bool) -> String {
    let mut text = String::new();
    for device in &report.devices {
        for row in &device.table {
            if named {
                write!(text, "{}: ", device.name).expect("writing to a string does not fail");
            }
            let whole = format!("{} {} {} {}", row.start_sector, row.sectors, row.target, row.status);
            line(&mut text, 0, whole.trim_end());
        }
    }
    text
}

fn line(text: &mut String, depth: usize, line: &str) {
    writeln!(text, "{:1$}{line}", "", depth * 2).expect("writing to a string does not fail");
}

fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

/// A mean of bytes, rounded down.
fn mean_bytes(mean: Option<f64>) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "means of bytes are small and not negative")]
    mean.map_or_else(|| "-".to_owned(), |mean| bytes(mean as u64))
}

fn device_text(text: &mut String, device: &DeviceReport) {
    let suspended = if device.suspended { ", SUSPENDED: it holds requests back until `forebay resume`" } else { "" };
    let events = if device.events > 0 { format!(", {} events", count(device.events)) } else { String::new() };
    line(text, 0, &format!("{}: {}{events}{suspended}", device.name, bytes(device.size_bytes)));
    for uri in &device.uris {
        line(text, 1, uri);
    }
    for row in &device.table {
        line(text, 1, &format!("sectors {}+{}: {}", row.start_sector, row.sectors, row.target));
    }
    device.exports.iter().for_each(|export| export_text(text, export));
    device.counted.iter().for_each(|counted| counted_text(text, counted));
    device.zrams.iter().for_each(|zram| zram_text(text, zram));
    device.mirrors.iter().for_each(|mirror| mirror_text(text, mirror));
    device.clones.iter().for_each(|clone| clone_text(text, clone));
    device.caches.iter().for_each(|cache| cache_text(text, cache));
    device.disks.iter().for_each(|disk| disk_text(text, disk));
    line(text, 0, "");
}

fn export_text(text: &mut String, export: &ExportReport) {
    let name = if export.name.is_empty() { "default export" } else { "export" };
    let head = format!("{name} {}", export.name);
    line(text, 1, &format!("{}: {} clients, {} requests", head.trim_end(), export.connections, count(export.requests)));
    line(
        text,
        2,
        &format!(
            "{} reads of {}, {} writes of {}, {} flushes, {} trims and zeroes",
            count(export.reads),
            bytes(export.read_bytes),
            count(export.writes),
            bytes(export.written_bytes),
            count(export.flushes),
            count(export.trims_and_zeroes),
        ),
    );
    line(
        text,
        2,
        &format!(
            "{} requests a receive, {} replies a send, {} errors",
            ratio(export.requests_per_receive),
            ratio(export.replies_per_send),
            count(export.errors),
        ),
    );
}

fn counted_text(text: &mut String, counted: &CountedReport) {
    line(text, 1, &format!("stats from sector {}: {} in flight", counted.start_sector, count(counted.in_flight)));
    for operation in counted.operations.iter().filter(|operation| operation.requests > 0) {
        let (requests, size) = (count(operation.requests), bytes(operation.bytes));
        line(text, 2, &format!("{}: {requests} requests, {size}, {} errors", operation.operation, count(operation.errors)));
    }
}

fn zram_text(text: &mut String, zram: &ZramReport) {
    let ratio = ratio(zram.ratio);
    let head = format!("compressed RAM disk of {}, {}", bytes(zram.disk_bytes), zram.algorithm);
    line(text, 1, &format!("{head}: {} in {} of memory, ratio {ratio}", bytes(zram.original_bytes), bytes(zram.memory_bytes)));
    let limit = if zram.limit_bytes > 0 { format!(" of at most {}", bytes(zram.limit_bytes)) } else { String::new() };
    let objects = format!("objects of {} in pages of {}{limit}", bytes(zram.compressed_bytes), bytes(zram.used_bytes));
    line(text, 2, &format!("{objects}, {} at most so far", bytes(zram.used_max_bytes)));
    line(
        text,
        2,
        &format!(
            "{} pages repeat one word, {} do not shrink, {} were freed; {} reads and {} writes failed",
            count(zram.same_pages),
            count(zram.huge_pages),
            count(zram.freed_pages),
            count(zram.failed_reads),
            count(zram.failed_writes),
        ),
    );
    if zram.backing_requests > 0 {
        backing_text(text, zram);
    }
}

fn backing_text(text: &mut String, zram: &ZramReport) {
    let (left, requests) = (count(zram.backing_left), count(zram.backing_requests));
    let mean = ratio(zram.pages_per_backing_request);
    let (used, written) = (count(zram.backing_blocks), count(zram.backing_writes));
    let head = format!("{used} blocks of the backing device in use");
    line(text, 2, &format!("{head}; {left} pages left in {written} blocks, by {requests} requests, {mean} each"));
    line(
        text,
        2,
        &format!(
            "{} pages read by {} requests, {} came back into memory; {} freed blocks discarded",
            count(zram.backing_reads),
            count(zram.backing_read_requests),
            count(zram.backing_promoted),
            count(zram.backing_discards),
        ),
    );
}

fn mirror_text(text: &mut String, mirror: &MirrorReport) {
    let log = mirror.log.as_ref().map_or_else(|| "in memory".to_owned(), |name| format!("on {name}"));
    let failed = if mirror.failed { ", FAILED: it takes no writes; look at the server's log" } else { "" };
    let sync = format!(
        "{} of {} regions of {} in sync",
        count(mirror.in_sync_regions),
        count(mirror.regions),
        bytes(mirror.region_bytes)
    );
    line(text, 1, &format!("mirror: {sync}; log {log}, {} writes to it{failed}", count(mirror.log_writes)));
    for leg in &mirror.legs {
        let state = match (leg.alive, leg.full) {
            (true, true) => "has everything",
            (true, false) => "is being brought up to date",
            (false, _) => "FAILED and is left out until `forebay message revive`",
        };
        line(text, 2, &format!("{} {}: {state}", leg.letter, leg.name));
    }
    if mirror.held_writes > 0 {
        line(text, 2, &format!("{} writes wait until `forebay message release`", count(mirror.held_writes)));
    }
}

/// What a scrub found, as a line, and a line for each run of regions that differ.
pub fn scrub(report: &ScrubReport) -> String {
    let sectors = |sectors: u64| bytes(sectors * 512);
    let repair = if report.repair && report.differing > 0 { ", which are copied now" } else { "" };
    let left = format!("{} out of sync and left out, {} not readable", sectors(report.skipped), sectors(report.unread));
    let mut text = format!("{} compared, {left}; {} regions differ{repair}\n", sectors(report.compared), count(report.differing));
    for run in &report.regions {
        line(&mut text, 1, &format!("regions {} to {}", run.start, run.end - 1));
    }
    text
}

fn clone_text(text: &mut String, clone: &CloneReport) {
    let state = if clone.failed { ", FAILED: only what is hydrated takes writes; look at the server's log" } else { "" };
    line(text, 1, &format!("clone of {} on {}, metadata on {}{state}", clone.source, clone.destination, clone.metadata));
    let (hydrated, all) = (count(clone.hydrated_regions.into()), count(clone.regions.into()));
    let going = if clone.hydration { "" } else { ", hydration is off" };
    let under_way = count(clone.hydrating_regions.into());
    line(
        text,
        2,
        &format!("{hydrated} of {all} regions of {} hydrated, {under_way} under way{going}", bytes(clone.region_bytes)),
    );
    let batches = format!("{} regions by {} copies", count(clone.background_regions), count(clone.batches));
    let waited = count(clone.waited_for_regions);
    line(text, 2, &format!("{batches}, {} of them holes; writes waited for {waited}", count(clone.hole_regions)));
    if clone.left_alone_regions > 0 {
        let alone = count(clone.left_alone_regions);
        line(text, 2, &format!("{alone} regions could not be copied: mend the device, then `forebay message enable_hydration`"));
    }
}

fn cache_text(text: &mut String, cache: &CacheReport) {
    let state = if cache.failed { ", FAILED: it takes no writes; look at the server's log" } else { "" };
    line(text, 1, &format!("cache {} in front of {}{state}", cache.cache, cache.origin));
    let blocks = format!("{} blocks of {}", count(cache.blocks), bytes(cache.block_bytes.into()));
    let dirty = format!("{} dirty ({})", count(cache.dirty_blocks), bytes(cache.dirty_bytes));
    let free = format!(
        "{} free in {} runs, the longest {}",
        count(cache.free_blocks),
        count(cache.free_runs),
        count(cache.longest_free_run)
    );
    line(text, 2, &format!("{blocks}: {dirty}, {} in writeback, {free}", count(cache.writeback_blocks)));
    if cache.quarantined_blocks > 0 {
        let failed = count(cache.quarantined_blocks);
        line(text, 2, &format!("{failed} blocks could not be written to the origin and are tried again"));
    }
    line(text, 2, &format!("read {} blocks, {} of them from the cache", count(cache.read_blocks), count(cache.read_hit_blocks)));
    let written = [
        (cache.allocated_blocks, "new"),
        (cache.hit_uncommitted_blocks, "over uncommitted"),
        (cache.hit_committed_blocks, "over committed"),
        (cache.bypassed_blocks, "past the cache"),
    ];
    let written: Vec<_> = written.iter().map(|(blocks, what)| format!("{} {what}", count(*blocks))).collect();
    line(text, 2, &format!("written {} blocks: {}", count(cache.written_blocks), written.join(", ")));
    let run = mean_bytes(cache.mean_run_bytes);
    let requests = count(cache.write_requests);
    line(
        text,
        2,
        &format!("{} blocks a write request, mean run {run}, {requests} requests", ratio(cache.blocks_per_write_request)),
    );
    line(
        text,
        2,
        &format!(
            "{} flushes, {} discards, {} commits, {} waits for space, {} of memory",
            count(cache.flushes),
            count(cache.discards),
            count(cache.commits),
            count(cache.waits_for_space),
            bytes(cache.memory_bytes),
        ),
    );
}

fn disk_text(text: &mut String, disk: &DiskReport) {
    let how = match (disk.kind.as_str(), disk.direct) {
        ("file", true) => "direct I/O",
        ("file", false) => "buffered I/O",
        (other, _) => other,
    };
    line(text, 1, &format!("disk {}: {}, {how}", disk.name, bytes(disk.size_bytes)));
    line(
        text,
        2,
        &format!(
            "{} requests in, {} out: merge ratio {}, mean run {}, {} in all, {} errors",
            count(disk.requests_in),
            count(disk.requests_out),
            ratio(disk.merge_ratio),
            mean_bytes(disk.mean_run_bytes),
            bytes(disk.bytes),
            count(disk.errors),
        ),
    );
}
