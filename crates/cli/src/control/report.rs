//! From the counters of a running server to what status shows.

use forebay::{CacheLayer, CloneLayer, CountedLayer, DeviceLayer, MirrorLayer, Stack, StackStatus, ZramLayer};

use super::protocol::{
    CacheReport, CloneReport, CountedReport, DeviceReport, DiskReport, ExportReport, MirrorLegReport, MirrorReport,
    OperationReport, RowReport, ServerReport, ZramReport,
};
use crate::figures::quotient;
use crate::serve::{Running, RunningExport};

/// What the server does; of one device where a name is given.
///
/// # Errors
/// When there is no such device.
pub fn of(running: &Running, device: Option<&str>) -> Result<ServerReport, String> {
    if let Some(name) = device {
        find(running, name)?;
    }
    let exports = running.exports();
    let requests = exports.iter().map(RunningExport::requests).sum();
    let enters = running.reactor().counts().enters;
    let wanted = |stack: &Stack| device.is_none_or(|name| stack.name() == name);
    let stacks = running.stacks().iter().enumerate().filter(|(_, stack)| wanted(stack));
    Ok(ServerReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: running.reactor().backend_name().to_owned(),
        process_id: std::process::id(),
        enters,
        enters_per_request: quotient(enters, requests),
        devices: stacks.map(|(index, stack)| device_report(running, &exports, index, stack)).collect(),
    })
}

/// The device called `name`.
///
/// # Errors
/// When there is none.
pub fn find<'a>(running: &'a Running, name: &str) -> Result<&'a Stack, String> {
    running.stacks().iter().find(|stack| stack.name() == name).ok_or_else(|| {
        let names: Vec<_> = running.stacks().iter().map(Stack::name).collect();
        format!("there is no device {name:?}: this server has {}", names.join(", "))
    })
}

/// The device that is meant: the named one, or the only one.
///
/// # Errors
/// When there is none of that name, or several and no name.
pub fn meant<'a>(running: &'a Running, name: Option<&str>) -> Result<&'a Stack, String> {
    match (name, running.stacks()) {
        (Some(name), _) => find(running, name),
        (None, [only]) => Ok(only),
        (None, several) => {
            let names: Vec<_> = several.iter().map(Stack::name).collect();
            Err(format!("this server has several devices: name one of {}", names.join(", ")))
        }
    }
}

fn device_report(running: &Running, exports: &[RunningExport], index: usize, stack: &Stack) -> DeviceReport {
    let status = stack.status();
    let row = |(extent, target): &(forebay::block::Extent, &'static str)| RowReport {
        start_sector: extent.start.0,
        sectors: extent.count.0,
        target: (*target).to_owned(),
        status: line(&status, *extent),
    };
    DeviceReport {
        name: stack.name().to_owned(),
        size_bytes: status.sectors.to_bytes(),
        suspended: status.suspended,
        events: status.events,
        uris: running.uris().iter().filter(|(device, _)| *device == index).map(|(_, uri)| uri.clone()).collect(),
        table: status.rows.iter().map(row).collect(),
        exports: exports.iter().filter(|export| export.device == index).map(export_report).collect(),
        counted: status.counted.iter().map(counted_report).collect(),
        zrams: status.zrams.iter().map(zram_report).collect(),
        mirrors: status.mirrors.iter().map(mirror_report).collect(),
        clones: status.clones.iter().map(clone_report).collect(),
        caches: status.caches.iter().map(cache_report).collect(),
        disks: status.devices.iter().map(disk_report).collect(),
    }
}

/// The numbers of a row, as the kernel prints them.
fn line(status: &StackStatus, extent: forebay::block::Extent) -> String {
    let cache = status.caches.iter().find(|layer| layer.extent == extent).map(|layer| layer.status.line());
    let zram = || status.zrams.iter().find(|layer| layer.extent == extent).map(|layer| layer.status.mm_stat());
    let snapshot = || status.snapshots.iter().find(|layer| layer.extent == extent).map(|layer| layer.status.to_string());
    let mirror = || status.mirrors.iter().find(|layer| layer.extent == extent).map(|layer| layer.status.line());
    let clone = || status.clones.iter().find(|layer| layer.extent == extent).map(|layer| layer.status.line());
    let text = cache.or_else(zram).or_else(snapshot).or_else(mirror).or_else(clone).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn clone_report(layer: &CloneLayer) -> CloneReport {
    let status = &layer.status;
    CloneReport {
        start_sector: layer.extent.start.0,
        metadata: layer.metadata.clone(),
        destination: layer.destination.clone(),
        source: layer.source.clone(),
        region_bytes: u64::from(status.region_sectors) * 512,
        regions: status.regions,
        hydrated_regions: status.hydrated,
        hydrating_regions: status.hydrating,
        left_alone_regions: status.left_alone,
        hydration: status.options.hydration,
        background_regions: status.counts.in_background,
        hole_regions: status.counts.holes,
        batches: status.counts.batches,
        waited_for_regions: status.counts.waited_for,
        failed_copies: status.counts.failed,
        commits: status.commits,
        failed: status.mode == forebay::clone::Mode::ReadOnly,
    }
}

fn zram_report(layer: &ZramLayer) -> ZramReport {
    let status = &layer.status;
    ZramReport {
        start_sector: layer.extent.start.0,
        disk_bytes: status.disk_bytes,
        algorithm: status.algorithm.name().to_owned(),
        original_bytes: status.original_bytes,
        compressed_bytes: status.compressed_bytes,
        used_bytes: status.used_bytes,
        memory_bytes: status.memory_bytes,
        limit_bytes: status.limit_bytes,
        used_max_bytes: status.used_max_bytes,
        ratio: quotient(status.original_bytes, status.memory_bytes),
        same_pages: status.same_pages,
        huge_pages: status.huge_pages,
        huge_pages_since: status.huge_pages_since,
        freed_pages: status.freed_pages,
        backing_blocks: status.backing_blocks,
        backing_reads: status.backing_reads,
        backing_read_requests: status.backing_read_requests,
        backing_promoted: status.backing_promoted,
        backing_discards: status.backing_discards,
        backing_writes: status.backing_writes,
        backing_left: status.backing_left,
        backing_requests: status.backing_requests,
        pages_per_backing_request: quotient(status.backing_left, status.backing_requests),
        failed_reads: status.failed_reads,
        failed_writes: status.failed_writes,
    }
}

fn mirror_report(layer: &MirrorLayer) -> MirrorReport {
    let status = &layer.status;
    let leg = |leg: &forebay::LegStatus| MirrorLegReport {
        name: leg.name.clone(),
        letter: leg.letter,
        alive: leg.alive,
        full: leg.full,
    };
    MirrorReport {
        start_sector: layer.extent.start.0,
        legs: status.legs.iter().map(leg).collect(),
        source_leg: status.source as u64,
        regions: status.regions,
        in_sync_regions: status.in_sync,
        region_bytes: status.region_sectors * 512,
        log: status.log.as_ref().map(|(name, _)| name.clone()),
        log_writes: status.log_writes,
        held_writes: status.held as u64,
        failed: status.broken,
    }
}

fn export_report(export: &RunningExport) -> ExportReport {
    let counts = &export.counts;
    let requests = export.requests();
    ExportReport {
        name: export.name.clone(),
        connections: counts.connections,
        requests,
        reads: counts.reads,
        writes: counts.writes,
        flushes: counts.flushes,
        trims_and_zeroes: counts.trims + counts.zeroes,
        errors: counts.errors,
        unaligned: counts.unaligned,
        read_bytes: counts.bytes_read,
        written_bytes: counts.bytes_written,
        replies_per_send: quotient(counts.replies, counts.sends),
        requests_per_receive: quotient(requests, counts.receives),
    }
}

fn counted_report(layer: &CountedLayer) -> CountedReport {
    let names = ["read", "write", "flush", "discard", "write_zeroes"];
    let operation = |(name, counts): (&str, &forebay::OpCounts)| OperationReport {
        operation: name.to_owned(),
        requests: counts.requests,
        bytes: counts.bytes,
        errors: counts.errors,
    };
    CountedReport {
        start_sector: layer.extent.start.0,
        operations: names.into_iter().zip(&layer.snapshot.ops).map(operation).collect(),
        in_flight: layer.snapshot.in_flight,
    }
}

fn cache_report(layer: &CacheLayer) -> CacheReport {
    let status = &layer.status;
    let block = u64::from(status.block_bytes);
    let cached = status.writes.saturating_sub(status.around);
    CacheReport {
        cache: layer.fast.clone(),
        origin: layer.origin.clone(),
        failed: status.failed,
        block_bytes: status.block_bytes,
        blocks: status.blocks,
        free_blocks: status.free,
        free_runs: status.free_runs,
        longest_free_run: status.free_longest,
        dirty_blocks: status.dirty,
        dirty_bytes: status.dirty * block,
        writeback_blocks: status.writeback,
        quarantined_blocks: status.quarantined,
        read_blocks: status.reads,
        read_hit_blocks: status.read_hits,
        written_blocks: status.writes,
        hit_uncommitted_blocks: status.hit_uncommitted,
        hit_committed_blocks: status.hit_committed,
        allocated_blocks: status.allocated,
        bypassed_blocks: status.around,
        write_requests: status.write_requests,
        blocks_per_write_request: quotient(cached, status.write_requests),
        mean_run_bytes: quotient(cached * block, status.write_requests),
        waits_for_space: status.blocked,
        flushes: status.flushes,
        discards: status.discards,
        commits: status.commits,
        memory_bytes: status.memory_bytes,
    }
}

fn disk_report(layer: &DeviceLayer) -> DiskReport {
    let counts = &layer.counts;
    DiskReport {
        name: layer.name.clone(),
        kind: layer.kind.to_owned(),
        size_bytes: layer.sectors.to_bytes(),
        direct: layer.direct,
        requests_in: counts.bios,
        requests_out: counts.requests,
        bytes: counts.bytes,
        merge_ratio: quotient(counts.bios, counts.requests),
        mean_run_bytes: quotient(counts.bytes, counts.requests),
        errors: counts.errors,
    }
}
