//! What the layers of a stack did so far, as plain numbers with names.

use forebay_block::{Extent, SectorCount};
use forebay_reactor::DeviceCounts;
use forebay_target::cache::CacheStatus;
use forebay_target::clone::CloneStatus;
use forebay_target::mirror::MirrorStatus;
use forebay_target::stats::Snapshot;
use forebay_target::zram::ZramStatus;

use crate::snapshots::ViewStatus;

/// A snapshot of a stack, layer by layer from the top.
#[derive(Clone, Debug)]
pub struct StackStatus {
    /// Its size.
    pub sectors: SectorCount,
    /// Whether it was told to hold requests back.
    pub suspended: bool,
    /// How many events its mirrors, snapshots and clones have raised since it was opened.
    pub events: u64,
    /// Its table: what serves which sectors.
    pub rows: Vec<(Extent, &'static str)>,
    /// Its write caches.
    pub caches: Vec<CacheLayer>,
    /// Its `stats` targets.
    pub counted: Vec<CountedLayer>,
    /// Its compressed RAM disks.
    pub zrams: Vec<ZramLayer>,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotLayer>,
    /// Its mirrors.
    pub mirrors: Vec<MirrorLayer>,
    /// Its clones.
    pub clones: Vec<CloneLayer>,
    /// The devices at the bottom. A device that several stacks use is counted for all of them.
    pub devices: Vec<DeviceLayer>,
}

/// A write cache.
#[derive(Clone, Debug)]
pub struct CacheLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// The slow device, as the table names it.
    pub origin: String,
    /// The fast device, as the table names it.
    pub fast: String,
    /// What it tells about itself.
    pub status: CacheStatus,
}

/// A clone.
#[derive(Clone, Debug)]
pub struct CloneLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// The metadata device, as the table names it.
    pub metadata: String,
    /// The destination, as the table names it.
    pub destination: String,
    /// The source, as the table names it.
    pub source: String,
    /// What it tells about itself.
    pub status: CloneStatus,
}

/// A `stats` target.
#[derive(Clone, Debug)]
pub struct CountedLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// What it counted.
    pub snapshot: Snapshot,
}

/// A compressed RAM disk.
#[derive(Clone, Debug)]
pub struct ZramLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// What it tells about itself.
    pub status: ZramStatus,
}

/// A snapshot, or one that is being merged.
#[derive(Clone, Debug)]
pub struct SnapshotLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// What it is of, as the table names it.
    pub origin: String,
    /// The device of its store, as the table names it.
    pub cow: String,
    /// What it tells about itself.
    pub status: ViewStatus,
}

/// A mirror.
#[derive(Clone, Debug)]
pub struct MirrorLayer {
    /// The sectors of the table that it serves.
    pub extent: Extent,
    /// What it tells about itself.
    pub status: MirrorStatus,
}

/// A device.
#[derive(Clone, Debug)]
pub struct DeviceLayer {
    /// As the table names it.
    pub name: String,
    /// `file`, `nbd`, `ram` or `null`.
    pub kind: &'static str,
    /// Its size.
    pub sectors: SectorCount,
    /// Whether its I/O goes past the page cache.
    pub direct: bool,
    /// What it was asked, and in how many requests.
    pub counts: DeviceCounts,
}
