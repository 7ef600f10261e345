//! A fast device of the write cache with any superblock and any entries.
//!
//! The input is eight bytes that choose the block size, how the entries are cut and the size of the
//! origin, then a superblock and entries; the device has room for as many blocks as entries are there.
//! Laws: nothing panics, a superblock never claims more than the device holds, the cut changes nothing,
//! every slot is either free or holds one block of the origin, the slots to clear are free, and
//! recovery of what recovery leaves finds the same again with nothing to clear.
//!
//! The input is read as a side file, too, as it is and with a right checksum behind it: what is read is
//! what encoding gives, and what it says of the cache can be told.
#![no_main]

use forebay_block::SectorCount;
use forebay_target::cache::disk::entry::clear_entries;
use forebay_target::cache::disk::side::{Checksums, Found, Record, seal};
use forebay_target::cache::disk::{ENTRY_BYTES, Geometry, Media, Recovered, Recovery, SUPERBLOCK_BYTES};
use forebay_target::cache::index::{CachedExtent, OriginBlock};
use libfuzzer_sys::fuzz_target;

fn recover(geometry: &Geometry, seq_count: u64, origin: SectorCount, entries: &[u8], cut: usize) -> Recovered {
    let mut recovery = Recovery::new(geometry, seq_count, origin);
    for part in entries.chunks(cut * ENTRY_BYTES) {
        recovery.feed(part);
    }
    assert_eq!(recovery.slots_left(), 0);
    recovery.finish()
}

fn extents(recovered: &Recovered) -> Vec<CachedExtent> {
    recovered.map.extents_from(OriginBlock(0)).collect()
}

fn check(geometry: &Geometry, origin: SectorCount, recovered: &Recovered) {
    let blocks = geometry.blocks();
    assert_eq!(u64::from(recovered.free.free_blocks()) + recovered.map.used_blocks(), u64::from(blocks));
    let mut used = vec![false; blocks as usize];
    let mut end = OriginBlock(0);
    for extent in extents(recovered) {
        assert!(extent.origin >= end);
        end = extent.end();
        for slot in extent.slot.0..extent.slots().end() {
            assert!(!std::mem::replace(&mut used[slot as usize], true), "slot {slot} holds two blocks");
        }
    }
    assert!(end.0 * u64::from(geometry.block_sectors()) <= origin.0);
    for run in &recovered.clear {
        assert!((run.slot.0..run.end()).all(|slot| !used[slot as usize]), "a used slot is cleared");
    }
    assert!(recovered.damage.len() as u64 <= recovered.damaged);
}

/// Reads a side file with and without a right checksum; the record, where it is one.
fn side_file(data: &[u8]) -> Option<Record> {
    let mut sealed = data.to_vec();
    seal(&mut sealed);
    let mut last = None;
    for bytes in [data, &sealed] {
        if let Ok(record) = Record::decode(bytes) {
            assert_eq!(record.encode(), bytes);
            last = Some(record);
        }
    }
    last
}

fn judge(record: &Record, geometry: &Geometry, seq_count: u64, dirty_blocks: u64) {
    let mut checksums = Checksums::new(geometry.blocks());
    checksums.feed(&vec![0; SUPERBLOCK_BYTES + ENTRY_BYTES * geometry.blocks() as usize]);
    let checksums = checksums.finish();
    let origin = Some((&record.origin, record.origin_sectors));
    let found = Found { geometry: *geometry, seq_count, dirty_blocks, checksums: &checksums, cache: &record.cache, origin };
    if let Ok(Some(mismatch)) | Err(mismatch) = record.judge(&found) {
        assert!(mismatch.sentence("a side file").contains("a side file"));
    }
}

fuzz_target!(|data: &[u8]| {
    if let Some(record) = side_file(data) {
        let metadata = (64 + 16 * u64::from(record.blocks)).next_multiple_of(record.block_bytes.into());
        let bytes = metadata + u64::from(record.blocks) * u64::from(record.block_bytes);
        if let (true, Ok(geometry)) = (record.blocks < 1 << 16, Geometry::for_device(bytes, 0, record.block_bytes)) {
            judge(&record, &geometry, record.seq_count / 2, record.dirty_blocks);
            judge(&record, &geometry, record.seq_count, 0);
        }
    }
    let Some((choice, device)) = data.split_first_chunk::<8>() else { return };
    let Some((superblock, entries)) = device.split_first_chunk::<SUPERBLOCK_BYTES>() else { return };
    let block_bytes = 512 << (choice[0] % 8);
    let cut = usize::from(choice[1]) + 1;
    let origin = SectorCount(u64::from_le_bytes([choice[2], choice[3], choice[4], choice[5], choice[6], choice[7], 0, 0]));
    let room = (entries.len() / ENTRY_BYTES) as u64;
    let metadata = (SUPERBLOCK_BYTES as u64 + 16 * room).next_multiple_of(u64::from(block_bytes));
    let device_bytes = metadata + room * u64::from(block_bytes);
    let Ok(media) = Media::read(superblock, device_bytes, 0, block_bytes) else { return };
    let Media::Formatted(geometry, superblock) = media else { return };

    let bytes = ENTRY_BYTES * geometry.blocks() as usize;
    let mut entries = entries[..bytes].to_vec();
    let seq_count = superblock.seq_count;
    let recovered = recover(&geometry, seq_count, origin, &entries, cut);
    check(&geometry, origin, &recovered);
    assert_eq!(extents(&recover(&geometry, seq_count, origin, &entries, 1 << 20)), extents(&recovered));

    for run in &recovered.clear {
        clear_entries(&mut entries[ENTRY_BYTES * run.slot.0 as usize..ENTRY_BYTES * run.end() as usize]);
    }
    let again = recover(&geometry, seq_count, origin, &entries, cut);
    assert_eq!(extents(&again), extents(&recovered));
    assert!(again.clear.is_empty() && again.ties == 0);
    assert_eq!(again.damage, recovered.damage);
});
