//! Reading the metadata of a cache that nobody serves.
//!
//! Units: bytes and sectors of 512 bytes, as named. Entries are read 1 MiB at a time, so that a
//! cache of any size takes little memory here.

use std::fmt::Display;
use std::path::Path;
use std::rc::Rc;

use forebay::block::{Bio, Sector, Target, call};
use forebay::{BufferPool, Reactor};
use forebay_device::{DeviceError, FileDevice};
use forebay_target::cache::disk::format::BLOCK_BYTES_MIN;
use forebay_target::cache::disk::{ENTRY_BYTES, FormatError, Geometry, Media, SUPERBLOCK_BYTES, Superblock};

use super::open;
use crate::failure::Failure;

/// Bytes read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// What is at the place of a cache.
pub(super) enum Found {
    /// Zeroes: a device that was never a cache, and becomes one when it is served.
    Fresh,
    /// A cache.
    Cache(CacheFile),
    /// Something that cannot be a cache.
    Damaged(FormatError),
}

/// A cache that is open for reading.
pub(super) struct CacheFile {
    device: Rc<FileDevice>,
    pool: BufferPool,
    path: String,
    pub(super) geometry: Geometry,
    pub(super) superblock: Superblock,
}

/// Why nothing can be done with what is at the place of a cache.
pub(super) fn not_a_cache(name: &dyn Display, error: &FormatError) -> Failure {
    Failure::Failed(format!("{name} is not a cache, or its superblock is damaged: {error}"))
}

/// Looks at the cache that begins at `start_sector` of `path`.
///
/// # Errors
/// When the device cannot be opened or read.
pub(super) async fn look(reactor: &Reactor, pool: &BufferPool, path: &Path, start_sector: u64) -> Result<Found, Failure> {
    let device = match open(reactor, path) {
        Err(DeviceError::TooSmall { bytes, .. }) => {
            return Ok(Found::Damaged(FormatError::NoRoom { device_bytes: bytes, start_sector }));
        }
        opened => opened.map_err(|error| Failure::of(&error))?,
    };
    let device_bytes = device.sectors().to_bytes();
    let unit = u64::from(device.limits().logical_bytes);
    let name = path.display().to_string();
    let behind = Failure::Usage(format!("{name}: start sector {start_sector} is behind its end, or not on one of its blocks"));
    let fits = start_sector.checked_mul(512).is_some_and(|start| start.is_multiple_of(unit) && start + unit <= device_bytes);
    if !fits {
        return Err(behind);
    }
    let first = read(&device, pool, &name, start_sector, unit).await?;
    let superblock: &[u8; SUPERBLOCK_BYTES] = first.first_chunk().expect("a block is at least 512 bytes");
    let read_as = |block_bytes| Media::read(superblock, device_bytes, start_sector, block_bytes);
    Ok(match read_as(recorded_block_bytes(superblock)) {
        Ok(Media::Fresh(_)) => Found::Fresh,
        Ok(Media::Formatted(geometry, superblock)) => {
            Found::Cache(CacheFile { device, pool: pool.clone(), path: name, geometry, superblock })
        }
        // Zeroes have no block size.
        Err(_) if superblock.iter().all(|&byte| byte == 0) => {
            read_as(BLOCK_BYTES_MIN).map_or_else(Found::Damaged, |_| Found::Fresh)
        }
        // Something else altogether has no block size either: that it is no cache says more.
        Err(FormatError::BlockBytes { block_bytes }) => match read_as(BLOCK_BYTES_MIN) {
            Err(error @ (FormatError::Magic { .. } | FormatError::Version { .. })) => Found::Damaged(error),
            _ => Found::Damaged(FormatError::BlockBytes { block_bytes }),
        },
        Err(error) => Found::Damaged(error),
    })
}

/// The block size that a superblock names, whatever it is worth.
pub(super) fn recorded_block_bytes(superblock: &[u8; SUPERBLOCK_BYTES]) -> u32 {
    let (words, _) = superblock.as_chunks::<4>();
    words.get(2).copied().map_or(0, u32::from_le_bytes)
}

async fn read(device: &FileDevice, pool: &BufferPool, name: &str, sector: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
    let length = u32::try_from(bytes).expect("pieces are 1 MiB at most");
    let mut buffer = pool.take(length as usize);
    let bio = call(device, Bio::read(Sector(sector), Rc::clone(buffer.segments()), 0, length)).await;
    let good = bio.status().is_ok();
    drop(bio);
    if !good {
        return Err(Failure::Failed(format!("{name} cannot be read at sector {sector}: look at the system's log")));
    }
    Ok(buffer.bytes_mut()[..length as usize].to_vec())
}

impl CacheFile {
    /// Reads all entries, in slot order: `each` gets whole entries, several at a time.
    ///
    /// # Errors
    /// When the device cannot be read, or `each` says so.
    pub(super) async fn entries(&self, mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut front = SUPERBLOCK_BYTES;
        self.metadata(|bytes| each(bytes.get(std::mem::take(&mut front)..).unwrap_or_default())).await
    }

    /// Reads the superblock and all entries, as they lie there.
    ///
    /// # Errors
    /// When the device cannot be read, or `each` says so.
    pub(super) async fn metadata(&self, mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
        let end = SUPERBLOCK_BYTES as u64 + u64::from(self.geometry.blocks()) * ENTRY_BYTES as u64;
        let unit = u64::from(self.device.limits().logical_bytes);
        let end_of_reads = end.next_multiple_of(unit);
        let mut at = 0;
        while at < end {
            let bytes = PIECE_BYTES.min(end_of_reads - at);
            let sector = self.geometry.start_sector().0 + at / 512;
            let piece = read(&self.device, &self.pool, &self.path, sector, bytes).await?;
            let to = usize::try_from(bytes.min(end - at)).expect("a piece is 1 MiB");
            each(piece.get(..to).unwrap_or_default())?;
            at += bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_size_is_read_from_the_superblock() {
        let superblock = Superblock { block_bytes: 4096, blocks: 7, seq_count: 3 };
        assert_eq!(recorded_block_bytes(&superblock.encode()), 4096);
        assert_eq!(recorded_block_bytes(&[0; SUPERBLOCK_BYTES]), 0);
    }
}
