//! What an open file or block device takes: from sysfs for block devices, from `statx` for both,
//! and by trying where the kernel does not say.
//!
//! Sources: `Documentation/ABI/stable/sysfs-block`, `statx(2)`, `fallocate(2)`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_block::{Ability, Limits};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

/// Largest request to a file, sectors: 4 MiB, where the price of a request no longer shows.
const FILE_MAX_SECTORS: u32 = 8192;
/// Largest request to a block device, sectors: 1 GiB. The kernel refuses vectors in registered memory of
/// 2 GiB, and drivers without a limit of their own name one far beyond.
const DEVICE_MAX_SECTORS: u32 = 1 << 21;
/// Most memory segments of a request: what `preadv` takes (`IOV_MAX`).
const SEGMENTS_MAX: u32 = 1024;
/// Size at which files and devices that name none do well, bytes.
const PREFERRED_BYTES: u32 = 1 << 20;
/// Alignments that direct I/O may ask for, bytes, tried in this order.
const ALIGNMENTS: [u32; 2] = [512, 4096];

/// What direct I/O on an open descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    pub(super) memory: u32,
    pub(super) offset: u32,
}

/// How direct I/O on `file` must be aligned; `None` when it is not possible after all.
pub(super) fn alignment(file: &OwnedFd) -> Option<Alignment> {
    let asked = StatxFlags::DIOALIGN;
    if let Ok(found) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked)
        && found.stx_mask & asked.bits() != 0
    {
        let (memory, offset) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
        let usable = memory.is_power_of_two() && offset.is_power_of_two();
        return usable.then_some(Alignment { memory, offset: offset.max(512) });
    }
    let mut memory = vec![0u8; 3 * 4096];
    let skip = memory.as_ptr().align_offset(4096);
    for align in ALIGNMENTS {
        let piece = memory.get_mut(skip..)?.get_mut(..align as usize)?;
        if rustix::io::pread(file, piece, u64::from(align)) != Err(Errno::INVAL) {
            return Some(Alignment { memory: align, offset: align });
        }
    }
    None
}

/// Makes I/O on `file` buffered.
pub(super) fn make_buffered(file: &OwnedFd) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT))
}

/// Size of an open file or block device, bytes.
pub(super) fn size_bytes(file: &OwnedFd) -> Result<u64, Errno> {
    rustix::fs::seek(file, SeekFrom::End(0))
}

/// What a regular file takes; `alignment` is `None` for buffered I/O.
pub(super) fn of_file(file: &OwnedFd, alignment: Option<Alignment>, read_only: bool) -> Result<Limits, Errno> {
    let stat = rustix::fs::fstat(file)?;
    let grain = u32::try_from(stat.st_blksize).unwrap_or(4096).clamp(512, PREFERRED_BYTES).next_power_of_two();
    let punch = !read_only && punches(file, stat.st_size)?;
    let logical = alignment.map_or(512, |found| found.offset);
    Ok(Limits {
        logical_bytes: logical,
        physical_bytes: grain.min(4096).max(logical),
        preferred_bytes: PREFERRED_BYTES,
        memory_align: alignment.map_or(1, |found| found.memory),
        max_sectors: FILE_MAX_SECTORS,
        max_segments: SEGMENTS_MAX,
        discard_grain_bytes: if punch { grain.max(logical) } else { 0 },
        discard: if punch { Ability::Native } else { Ability::No },
        write_zeroes: zeroes(read_only, punch),
        ..Limits::unlimited()
    })
}

fn zeroes(read_only: bool, native: bool) -> Ability {
    match (read_only, native) {
        (true, _) => Ability::No,
        (false, true) => Ability::Native,
        (false, false) => Ability::Emulate,
    }
}

/// Whether the file system makes holes: tried behind the end, where it changes nothing.
fn punches(file: &OwnedFd, size: i64) -> Result<bool, Errno> {
    let end = u64::try_from(size).unwrap_or(0).next_multiple_of(4096);
    match rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, end, 4096) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::PERM | Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a block device takes.
pub(super) fn of_block_device(file: &OwnedFd, alignment: Option<Alignment>, read_only: bool) -> Result<Limits, Errno> {
    let queue = Queue::of(file)?;
    Ok(queue.limits(alignment, read_only))
}

/// The folder of a block device's queue in sysfs.
pub(super) struct Queue(PathBuf);

impl Queue {
    fn of(file: impl AsFd) -> Result<Self, Errno> {
        let device = rustix::fs::fstat(file)?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Ok(Self::at(Path::new(&format!("/sys/dev/block/{major}:{minor}"))))
    }

    /// Of the device whose folder is `device`; a partition has its disk's queue.
    pub(super) fn at(device: &Path) -> Self {
        let disk = if device.join("partition").exists() { device.join("..") } else { device.to_owned() };
        Self(disk.join("queue"))
    }

    /// A number of the queue; 0 where the kernel does not say.
    fn number(&self, name: &str) -> u64 {
        std::fs::read_to_string(self.0.join(name)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// As [`Queue::number`], not above `most`, or `missing` when it is 0.
    fn positive(&self, name: &str, most: u32, missing: u32) -> u32 {
        match self.number(name) {
            0 => missing,
            value => u32::try_from(value).unwrap_or(most).min(most),
        }
    }

    pub(super) fn limits(&self, alignment: Option<Alignment>, read_only: bool) -> Limits {
        let block = |name: &str| match self.positive(name, 1 << 20, 512) {
            bytes if bytes.is_power_of_two() && bytes >= 512 => bytes,
            _ => 4096,
        };
        let logical = block("logical_block_size").max(alignment.map_or(512, |found| found.offset));
        let max_sectors = self.positive("max_sectors_kb", DEVICE_MAX_SECTORS / 2, 512) * 2;
        let preferred = self.positive("optimal_io_size", max_sectors.saturating_mul(512), PREFERRED_BYTES);
        let gap_mask = self.positive("virt_boundary_mask", u32::MAX, 0);
        // A device that can only discard but not zero would need an ioctl; it counts as unable.
        let unmap = !read_only && self.number("discard_max_bytes") > 0 && self.number("write_zeroes_max_bytes") > 0;
        Limits {
            logical_bytes: logical,
            physical_bytes: block("physical_block_size").max(logical),
            preferred_bytes: preferred,
            memory_align: alignment.map_or(1, |found| found.memory),
            max_sectors: max_sectors.max(logical / 512),
            max_segments: self.positive("max_segments", SEGMENTS_MAX, SEGMENTS_MAX),
            max_segment_bytes: self.positive("max_segment_size", u32::MAX, u32::MAX).max(logical),
            // Past the page cache the device's own controller sees the payload, page by page. A request
            // that the kernel has to cut costs a thread of its own.
            by_page: alignment.is_some(),
            gap_mask: if alignment.is_some() && (gap_mask.wrapping_add(1)).is_power_of_two() { gap_mask } else { 0 },
            chunk_sectors: self.positive("chunk_sectors", u32::MAX, 0),
            discard_grain_bytes: if unmap { self.positive("discard_granularity", 1 << 30, logical).max(logical) } else { 0 },
            discard: if unmap { Ability::Native } else { Ability::No },
            write_zeroes: zeroes(read_only, unmap),
            ..Limits::unlimited()
        }
    }
}

#[cfg(test)]
mod tests;
