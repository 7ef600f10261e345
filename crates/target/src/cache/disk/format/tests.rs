//! The layout and the superblock, with the figures that the kernel driver was seen to give.
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use super::*;

const MIB: u64 = 1 << 20;

fn media(geometry: &Geometry, seq_count: u64) -> [u8; SUPERBLOCK_BYTES] {
    geometry.superblock(seq_count).encode()
}

fn put(bytes: &mut [u8; SUPERBLOCK_BYTES], at: usize, value: &[u8]) {
    for (byte, value) in bytes.iter_mut().skip(at).zip(value) {
        *byte = *value;
    }
}

#[test]
fn the_worked_example_of_64_mib_has_16320_blocks() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    assert_eq!(geometry.blocks(), 16_320);
    assert_eq!(geometry.metadata_bytes(), 262_144);
    assert_eq!(geometry.cache_bytes(), 64 * MIB);
    assert_eq!(geometry.slot_sector(CacheSlot(0)), Sector(512));
    assert_eq!(geometry.slot_sector(CacheSlot(5)), Sector(552));
    assert_eq!(geometry.entry_offset(CacheSlot(5)), 144);
    let bytes = media(&geometry, 1);
    assert_eq!(bytes[..16], [0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..32], [0xc0, 0x3f, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..], [0; 32]);
}

#[test]
fn other_sizes_have_the_counts_that_the_kernel_gives() {
    let cases = [(64 * MIB, 512, 127_100), (64 * MIB, 1024, 64_527), (64 * MIB, 2048, 32_513)];
    let more = [(MIB, 4096, 254), (1024 * MIB, 4096, 261_123), (8192, 4096, 1)];
    for (device_bytes, block_bytes, blocks) in cases.into_iter().chain(more) {
        let geometry = Geometry::for_device(device_bytes, 0, block_bytes).unwrap();
        assert_eq!(geometry.blocks(), blocks, "{device_bytes} bytes, blocks of {block_bytes}");
    }
    let none = Geometry::for_device(4608, 0, 4096);
    assert_eq!(none, Err(FormatError::NoRoom { device_bytes: 4608, start_sector: 0 }));
}

#[test]
fn every_small_device_is_filled_and_never_exceeded() {
    for block_bytes in [512, 1024, 4096, 65_536] {
        for start_sector in [0, 3, 8] {
            for sectors in 0..2000_u64 {
                let device_bytes = sectors * 512;
                let room = device_bytes.saturating_sub(start_sector * 512);
                let fits = |blocks: u64| cache_bytes(blocks, u64::from(block_bytes)).unwrap() <= room;
                match Geometry::for_device(device_bytes, start_sector, block_bytes) {
                    Ok(geometry) => {
                        assert!(fits(u64::from(geometry.blocks())));
                        assert!(!fits(u64::from(geometry.blocks()) + 1));
                        let last = geometry.slot_sector(CacheSlot(geometry.blocks() - 1));
                        assert!((last.0 + u64::from(geometry.block_sectors())) * 512 <= device_bytes);
                        assert_eq!((last.0 - start_sector) % u64::from(geometry.block_sectors()), 0);
                    }
                    Err(error) => {
                        assert_eq!(error, FormatError::NoRoom { device_bytes, start_sector });
                        assert!(!fits(1));
                    }
                }
            }
        }
    }
}

#[test]
fn block_sizes_that_are_no_power_of_two_from_512_to_64k_are_refused() {
    for block_bytes in [0, 1, 256, 513, 3072, 131_072, u32::MAX] {
        let error = Geometry::for_device(MIB, 0, block_bytes).unwrap_err();
        assert!(error.to_string().starts_with("Invalid block size"), "{error}");
    }
}

#[test]
fn more_blocks_than_slots_have_numbers_are_refused() {
    let error = Geometry::for_device(1 << 52, 0, 512).unwrap_err();
    assert!(error.to_string().starts_with("Invalid device size"), "{error}");
    Geometry::for_device(u64::MAX, u64::MAX, 512).unwrap_err();
    Geometry::for_device(u64::MAX, 0, 512).unwrap_err();
}

#[test]
fn fresh_is_a_zero_magic_and_version_whatever_follows() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    let mut bytes = [0xa5; SUPERBLOCK_BYTES];
    put(&mut bytes, 0, &[0; 8]);
    assert_eq!(Media::read(&bytes, 64 * MIB, 0, 4096), Ok(Media::Fresh(geometry)));
    put(&mut bytes, 4, &[2]);
    assert_eq!(Media::read(&bytes, 64 * MIB, 0, 4096), Err(FormatError::Magic { found: 0 }));
}

#[test]
fn a_cache_half_formatted_is_a_fresh_device() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    let bytes = geometry.superblock(0).encode_without_magic();
    assert_eq!(bytes[..8], [0; 8]);
    assert_eq!(Media::read(&bytes, 64 * MIB, 0, 4096), Ok(Media::Fresh(geometry)));
}

#[test]
fn what_was_encoded_is_read_back() {
    for (device_bytes, start_sector, block_bytes) in [(64 * MIB, 0, 4096), (MIB, 3, 512), (200 * MIB, 8, 65_536)] {
        let geometry = Geometry::for_device(device_bytes, start_sector, block_bytes).unwrap();
        for seq_count in [0, 1, 1 << 48, u64::MAX - (1 << 48)] {
            let read = Media::read(&media(&geometry, seq_count), device_bytes, start_sector, block_bytes);
            assert_eq!(read, Ok(Media::Formatted(geometry, geometry.superblock(seq_count))));
        }
    }
}

#[test]
fn refusals_come_in_the_kernels_order_with_its_words() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    let refusal = |bytes: &[u8; SUPERBLOCK_BYTES]| Media::read(bytes, 64 * MIB, 0, 4096).unwrap_err().to_string();
    let mut bytes = media(&geometry, 0);
    put(&mut bytes, 16, &(1_u64 << 30).to_le_bytes());
    assert!(refusal(&bytes).starts_with("Memory area is too small"));
    put(&mut bytes, 16, &u64::MAX.to_le_bytes());
    assert!(refusal(&bytes).starts_with("Number of blocks in the superblock"));
    put(&mut bytes, 8, &512_u32.to_le_bytes());
    assert!(refusal(&bytes).starts_with("Block size does not match superblock"));
    put(&mut bytes, 4, &2_u32.to_le_bytes());
    assert!(refusal(&bytes).starts_with("Invalid version in the superblock"));
    put(&mut bytes, 0, &[1]);
    assert!(refusal(&bytes).starts_with("Invalid magic in the superblock"));
}

#[test]
fn the_recorded_number_of_blocks_rules() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    let bytes = media(&geometry, 7);
    let grown = Media::read(&bytes, 128 * MIB, 0, 4096);
    assert_eq!(grown, Ok(Media::Formatted(geometry, geometry.superblock(7))));
    let shrunk = Media::read(&bytes, 32 * MIB, 0, 4096);
    assert_eq!(shrunk, Err(FormatError::TooSmall { needed_bytes: 64 * MIB, have_bytes: 32 * MIB }));
    let mut smaller = bytes;
    put(&mut smaller, 16, &100_u64.to_le_bytes());
    match Media::read(&smaller, 64 * MIB, 0, 4096) {
        Ok(Media::Formatted(geometry, _)) => assert_eq!((geometry.blocks(), geometry.metadata_bytes()), (100, 4096)),
        other => panic!("{other:?}"),
    }
    put(&mut smaller, 16, &0_u64.to_le_bytes());
    assert_eq!(Media::read(&smaller, 64 * MIB, 0, 4096), Err(FormatError::NoBlocks));
}

#[test]
fn a_sequence_number_next_to_the_last_is_damage() {
    let geometry = Geometry::for_device(64 * MIB, 0, 4096).unwrap();
    for seq_count in [u64::MAX, u64::MAX - 1, u64::MAX - (1 << 48) + 1] {
        assert_eq!(Media::read(&media(&geometry, seq_count), 64 * MIB, 0, 4096), Err(FormatError::SeqCount { seq_count }));
    }
}
