//! Entries as bytes.
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use super::*;

#[test]
fn the_first_write_of_the_worked_example_is_origin_sector_80_in_group_0() {
    let mut bytes = [0xff; 48];
    write_entries(&mut bytes[..16], 80, 8, 0);
    assert_eq!(bytes[..16], [80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..], [0xff; 32]);
}

#[test]
fn a_run_counts_up_by_blocks_with_one_sequence_number() {
    let mut bytes = [0; 16 * 100];
    for (first, block_sectors, seq) in [(0, 1, 0), (800, 8, 7), (1 << 40, 128, u64::MAX - 1), (u64::MAX - 99, 1, 3)] {
        write_entries(&mut bytes, first, block_sectors, seq);
        for (index, entry) in bytes.as_chunks().0.iter().enumerate() {
            let origin_sector = first + index as u64 * u64::from(block_sectors);
            assert_eq!(Entry::decode(entry), Entry { origin_sector, seq });
        }
    }
}

#[test]
fn every_entry_reads_back_as_it_was_written() {
    let values = [0, 1, 0xff, 1 << 47, 1 << 63, u64::MAX - 1, u64::MAX];
    for origin_sector in values {
        for seq in values {
            let entry = Entry { origin_sector, seq };
            assert_eq!(Entry::decode(&entry.encode()), entry);
        }
    }
}

#[test]
fn cleared_entries_are_free() {
    let mut bytes = [7; 64];
    clear_entries(&mut bytes[16..48]);
    assert_eq!(bytes[..16], [7; 16]);
    assert_eq!(bytes[16..48], [0xff; 32]);
    assert_eq!(Entry::decode(&[0xff; 16]).seq, SEQ_FREE);
}
