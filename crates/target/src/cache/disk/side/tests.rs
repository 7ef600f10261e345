//! Side files as bytes, and what a record says about the devices it meets.
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use proptest::prelude::*;

use super::*;
use crate::cache::disk::Geometry;

fn record(state: SideState) -> Record {
    Record {
        state,
        origin_sectors: SectorCount(4096),
        start_sector: 0,
        block_bytes: 4096,
        blocks: 10_000,
        seq_count: 7,
        dirty_blocks: 3,
        origin: Name::new("inode 5"),
        cache: Name::new("inode 6"),
    }
}

fn clean() -> Record {
    record(SideState::Clean(vec![11, 12, 13]))
}

/// A cache of 10,000 blocks of 4096 bytes.
fn geometry() -> Geometry {
    let metadata = (64_u64 + 16 * 10_000).next_multiple_of(4096);
    Geometry::for_device(metadata + 10_000 * 4096, 0, 4096).unwrap()
}

/// What is found where `record` is right.
fn found<'a>(record: &'a Record, checksums: &'a [u32]) -> Found<'a> {
    Found {
        geometry: geometry(),
        seq_count: record.seq_count,
        dirty_blocks: record.dirty_blocks,
        checksums,
        cache: &record.cache,
        origin: Some((&record.origin, record.origin_sectors)),
    }
}

#[test]
fn a_record_lies_in_its_file_as_the_format_says() {
    let bytes = clean().encode();
    assert_eq!(bytes.len(), 320 + 3 * 4 + 4);
    assert_eq!(bytes[..8], *b"FBAYSIDE");
    assert_eq!(bytes[8..16], [1, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(bytes[16..24], 4096_u64.to_le_bytes());
    assert_eq!(bytes[32..40], [0, 0x10, 0, 0, 0x10, 0x27, 0, 0]);
    assert_eq!(bytes[40..64], [7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[64..72], *b"inode 5\0");
    assert_eq!(bytes[192..200], *b"inode 6\0");
    assert_eq!(bytes[320..332], [11, 0, 0, 0, 12, 0, 0, 0, 13, 0, 0, 0]);
    assert_eq!(Record::decode(&bytes), Ok(clean()));
    let open = record(SideState::Open).encode();
    assert_eq!((open.len(), Record::decode(&open)), (324, Ok(record(SideState::Open))));
}

#[test]
fn every_cut_and_every_changed_byte_is_found() {
    let bytes = clean().encode();
    for length in 0..bytes.len() {
        assert!(Record::decode(&bytes[..length]).is_err(), "{length} bytes");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x20;
        assert!(Record::decode(&changed).is_err(), "byte {at}");
    }
    assert_eq!(Record::decode(b"something else"), Err(SideError::Magic));
    let mut newer = bytes;
    newer[8] = 2;
    assert_eq!(Record::decode(&newer), Err(SideError::Version { found: 2 }));
}

#[test]
fn fields_that_cannot_be_are_damage_even_with_a_right_checksum() {
    let bytes = clean().encode();
    let sealed = |at: usize, value: u8| {
        let mut changed = bytes[..bytes.len() - 4].to_vec();
        changed[at] = value;
        seal(&mut changed);
        Record::decode(&changed)
    };
    assert_eq!(sealed(16, 0), Ok(clean()));
    for (at, value) in
        [(12, 0), (12, 1), (12, 3), (33, 0x11), (33, 0), (37, 0), (56, 2), (60, 1), (66, 0), (70, 0xff), (70, b'\n')]
    {
        assert_eq!(sealed(at, value), Err(SideError::Damaged), "byte {at} = {value}");
    }
}

#[test]
fn names_are_cut_between_letters_and_have_no_line_breaks() {
    assert_eq!(Name::new("a\nb\0c").to_string(), "abc");
    let long = Name::new(&"ä".repeat(100));
    assert_eq!(long.to_string(), "ä".repeat(64));
    let odd = Name::new(&format!("x{}", "ä".repeat(100)));
    assert_eq!(odd.to_string().len(), 127);
    let with = Record { origin: long, ..clean() };
    assert_eq!(Record::decode(&with.encode()), Ok(with));
}

#[test]
fn checksums_are_crc32c_of_64_kib_whatever_the_cuts() {
    let metadata: Vec<u8> = (0..163_840_u32).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
    let of = |cut: usize| {
        let mut checksums = Checksums::new(10_000);
        metadata.chunks(cut).for_each(|part| checksums.feed(part));
        checksums.finish()
    };
    let whole = of(metadata.len());
    assert_eq!(whole, [&metadata[..65_536], &metadata[65_536..131_072], &metadata[131_072..160_064]].map(crc32c::crc32c));
    for cut in [1, 512, 4096, 65_536, 100_000] {
        assert_eq!(of(cut), whole, "{cut}");
    }
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn what_agrees_is_accepted() {
    assert_eq!(clean().judge(&found(&clean(), &[11, 12, 13])), Ok(None));
    let open = record(SideState::Open);
    assert_eq!(open.judge(&found(&open, &[])), Ok(None));
    let later = Found { seq_count: 1000, dirty_blocks: 9, ..found(&open, &[]) };
    assert_eq!(open.judge(&later), Ok(None));
    let grown = Found { origin: Some((&open.origin, SectorCount(8192))), ..found(&open, &[]) };
    assert_eq!(open.judge(&grown), Ok(None));
}

#[test]
fn changed_metadata_are_refused_with_their_place() {
    let clean = clean();
    let refusal = |checksums: &[u32]| clean.judge(&found(&clean, checksums)).unwrap_err();
    assert_eq!(refusal(&[10, 12, 13]), Mismatch::Changed { slots: (0, 4091), pieces: 1 });
    assert_eq!(refusal(&[11, 10, 13]), Mismatch::Changed { slots: (4092, 8187), pieces: 1 });
    assert_eq!(refusal(&[11, 12, 10]), Mismatch::Changed { slots: (8188, 9999), pieces: 1 });
    assert_eq!(refusal(&[0, 0, 0]), Mismatch::Changed { slots: (0, 4091), pieces: 3 });
    let sentence = refusal(&[10, 12, 10]).sentence("c.side");
    assert!(
        sentence.contains("the superblock or slots 0 to 4091 and 1 more places") && sentence.contains("delete c.side"),
        "{sentence}"
    );
    let empty = Record { dirty_blocks: 0, ..clean.clone() };
    assert!(matches!(empty.judge(&found(&empty, &[1, 2, 3])), Err(Mismatch::Changed { .. })));
}

#[test]
fn another_cache_is_refused_unless_nothing_depends_on_it() {
    let (clean, open, other) = (clean(), record(SideState::Open), Name::new("inode 99"));
    let other_file = Found { cache: &other, ..found(&clean, &[1, 2, 3]) };
    assert!(matches!(clean.judge(&other_file), Err(Mismatch::Cache { .. })));
    assert!(matches!(open.judge(&other_file), Err(Mismatch::Cache { .. })));
    let copied = Found { cache: &other, ..found(&clean, &[11, 12, 13]) };
    assert!(matches!(clean.judge(&copied), Err(Mismatch::Cache { .. })), "the metadata say nothing about the data");
    let empty = Record { dirty_blocks: 0, ..clean.clone() };
    let also_empty = Found { dirty_blocks: 0, ..other_file.clone() };
    assert!(matches!(empty.judge(&also_empty), Ok(Some(Mismatch::Cache { .. }))));
    assert!(matches!(empty.judge(&other_file), Err(Mismatch::Cache { .. })));
    assert!(matches!(clean.judge(&also_empty), Err(Mismatch::Cache { .. })));

    let older = Found { seq_count: 6, ..found(&open, &[]) };
    assert_eq!(open.judge(&older), Err(Mismatch::Older { recorded: 7, found: 6 }));
    let layout = Record { blocks: 9999, ..open.clone() };
    assert_eq!(layout.judge(&older), Err(Mismatch::Layout { recorded: (9999, 4096), found: (10_000, 4096) }));
}

#[test]
fn another_or_smaller_origin_is_refused_when_there_are_dirty_blocks() {
    let other = Name::new("inode 99");
    for record in [clean(), record(SideState::Open)] {
        let right = found(&record, &[11, 12, 13]);
        let swapped = Found { origin: Some((&other, record.origin_sectors)), ..right.clone() };
        assert!(matches!(record.judge(&swapped), Err(Mismatch::Origin { .. })));
        let drained = Found { dirty_blocks: 0, ..swapped };
        assert!(matches!(record.judge(&drained), Ok(Some(Mismatch::Origin { .. }))));
        let smaller = Found { origin: Some((&record.origin, SectorCount(4095))), ..right.clone() };
        assert!(matches!(record.judge(&smaller), Err(Mismatch::OriginShrank { .. })));
        let unknown = Found { origin: None, ..right };
        assert_eq!(record.judge(&unknown), Ok(None));
    }
}

#[test]
fn an_empty_device_is_refused_where_dirty_blocks_were() {
    let (clean, open) = (clean(), record(SideState::Open));
    assert_eq!(clean.judge_fresh(&clean.cache), Err(Mismatch::Emptied { dirty_blocks: Some(3) }));
    assert_eq!(open.judge_fresh(&open.cache), Err(Mismatch::Emptied { dirty_blocks: None }));
    let drained = Record { dirty_blocks: 0, ..clean };
    assert_eq!(drained.judge_fresh(&Name::new("inode 99")), Ok(()));
    let first = Record { dirty_blocks: 0, seq_count: 0, ..open };
    assert_eq!(first.judge_fresh(&first.cache), Ok(()));
    assert!(first.judge_fresh(&Name::new("inode 99")).is_err());
}

#[test]
fn a_refusal_says_what_was_recorded_what_was_found_and_what_to_do() {
    let (recorded, found) = (Name::new("inode 5"), Name::new("inode 6"));
    let (was, is) = (SectorCount(4096), SectorCount(4095));
    for (mismatch, words) in [
        (
            Mismatch::Emptied { dirty_blocks: Some(3) },
            "c.side knows of one with 3 dirty blocks: if they may be lost, delete c.side",
        ),
        (Mismatch::Emptied { dirty_blocks: None }, "c.side knows of one that was in use"),
        (
            Mismatch::Layout { recorded: (10, 512), found: (9, 4096) },
            "of 10 blocks of 512 bytes, and this one has 9 of 4096: if files",
        ),
        (Mismatch::Older { recorded: 7, found: 6 }, "its sequence number is 6 and was 7 already: if files"),
        (Mismatch::Cache { recorded: recorded.clone(), found: found.clone() }, "another cache (inode 5; this one is inode 6)"),
        (Mismatch::Origin { recorded, found }, "another origin (inode 5; this one is inode 6)"),
        (Mismatch::OriginShrank { recorded: was, found: is }, "the origin had 4096 sectors and has 4095 now"),
        (Mismatch::Changed { slots: (4092, 8187), pieces: 1 }, "closed here, in slots 4092 to 8187: if the kernel"),
    ] {
        let sentence = mismatch.sentence("c.side");
        assert!(sentence.contains(words), "{sentence}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_and_only_one_encoding_is_read(
        head in proptest::option::of(any::<bool>()), mut bytes in proptest::collection::vec(any::<u8>(), 0..400), fixed in any::<bool>(),
    ) {
        if let Some(open) = head {
            let model = if open { record(SideState::Open) } else { clean() }.encode();
            let at = bytes.len() % model.len();
            bytes = [&model[..at], &bytes[..bytes.len().min(4)], model.get(at + 4..model.len() - 4).unwrap_or_default()].concat();
        }
        if fixed {
            seal(&mut bytes);
        }
        if let Ok(record) = Record::decode(&bytes) {
            prop_assert_eq!(record.encode(), bytes);
        }
    }
}
