//! Headers, entries and places, with the numbers of the format's own example.

use super::*;

#[test]
fn a_header_is_what_the_kernel_writes() {
    let header = Header { valid: true, chunk_sectors: 8 };
    let bytes = header.encode();
    assert_eq!(bytes, [0x53, 0x6e, 0x41, 0x70, 1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0]);
    assert_eq!(Header::decode(&bytes), Ok(Some(header)));
    let invalid = Header { valid: false, ..header };
    assert_eq!(Header::decode(&invalid.encode()), Ok(Some(invalid)));
}

#[test]
fn what_is_no_store_is_told_apart() {
    assert_eq!(Header::decode(&[0; 512]), Ok(None));
    assert_eq!(Header::decode(b"not a store at all"), Err(FormatError::Magic(u32::from_le_bytes(*b"not "))));
    let mut bytes = Header { valid: true, chunk_sectors: 8 }.encode();
    bytes[8] = 2;
    assert_eq!(Header::decode(&bytes), Err(FormatError::Version(2)));
    bytes[8] = 1;
    for wrong in [0_u32, 3, 1 << 22] {
        bytes[12..].copy_from_slice(&wrong.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(FormatError::ChunkSize(wrong)));
    }
    assert_eq!(Header::decode(&[]), Ok(None));
}

#[test]
fn an_entry_is_two_numbers_and_a_zero_chunk_ends_the_list() {
    let entry = Exception { old: 5, new: 2 };
    let bytes = entry.encode();
    assert_eq!(bytes, [5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(Exception::decode(&bytes), Some(entry));
    assert_eq!(Exception::decode(&Exception { old: 9, new: 0 }.encode()), None);
    assert_eq!(Exception::decode(&bytes[..15]), None);
}

#[test]
fn areas_stand_between_their_data() {
    let small = Layout::new(8);
    assert_eq!((small.area_entries(), [0, 1, 2].map(|area| small.area_chunk(area))), (256, [1, 258, 515]));
    let large = Layout::new(128);
    assert_eq!((large.area_entries(), large.area_chunk(1)), (4096, 4098));
    assert_eq!([0, 2, 257, 258, 259].map(|chunk| small.data_from(chunk)), [2, 2, 257, 259, 259]);
    assert_eq!(small.sector(3), Sector(24));
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let layout = Layout::new(8);
    assert_eq!(layout.check(0, Exception { old: 1, new: 2 }, 100), Ok(()));
    assert_eq!(layout.check(0, Exception { old: 1, new: 100 }, 100), Err(FormatError::Beyond { new: 100, last: 99 }));
    assert_eq!(layout.check(7, Exception { old: 1, new: 258 }, 1000), Err(FormatError::Overlay { index: 7, new: 258 }));
    assert_eq!(layout.check(7, Exception { old: 1, new: 1 }, 1000), Err(FormatError::Overlay { index: 7, new: 1 }));
}
