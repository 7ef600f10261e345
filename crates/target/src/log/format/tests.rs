//! The format, byte by byte, and whatever a damaged log may hold.
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use super::*;
use proptest::prelude::*;

/// A log of these entries, as a device would hold it.
fn log(sector_bytes: u32, entries: &[(Head, &[u8], &[u8])]) -> Vec<u8> {
    let unit = sector_bytes as usize;
    let mut bytes = vec![0; unit];
    Super { entries: entries.len() as u64, sector_bytes }.encode(&mut bytes);
    for (head, mark, data) in entries {
        let mut sector = vec![0; unit];
        head.encode(&mut sector);
        sector[HEAD_BYTES..HEAD_BYTES + mark.len()].copy_from_slice(mark);
        bytes.extend(sector);
        bytes.extend(*data);
    }
    bytes
}

fn head(sector: u64, sectors: u64, flags: u64) -> Head {
    Head { sector, sectors, flags, mark_bytes: 0 }
}

#[test]
fn the_bytes_are_those_of_the_format() {
    let data = [9; 4096];
    let mark = Head { flags: MARK, mark_bytes: 4, ..Head::default() };
    let bytes = log(4096, &[(head(0x0102_0304, 1, FUA | METADATA), &[], &data), (mark, b"here", &[])]);
    assert_eq!(&bytes[..8], b"rhswfsj\0");
    assert_eq!(&bytes[8..32], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[4096..4104], [4, 3, 2, 1, 0, 0, 0, 0]);
    assert_eq!(&bytes[4104..4128], [1, 0, 0, 0, 0, 0, 0, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[8192..12288], data);
    assert_eq!(&bytes[12288 + 16..12288 + 37], b"\x08\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0here\0");
    assert_eq!(bytes.len(), 16384);
}

#[test]
fn entries_come_back_and_replay() {
    let mark = Head { flags: MARK, mark_bytes: 2, ..Head::default() };
    let (ones, twos) = ([1; 1024], [2; 512]);
    let bytes = log(
        512,
        &[(head(1, 2, 0), &[], &ones), (head(2, 1, FUA), &[], &twos), (mark, b"ok", &[]), (head(1, 1, DISCARD), &[], &[])],
    );
    let entries: Vec<Entry> = Log::open(&bytes).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 4);
    assert_eq!((entries[2].mark, entries[2].bytes.len(), entries[3].bytes.len()), (&b"ok"[..], 0, 0));
    let mut disk = vec![7; 4 * 512];
    let after: Vec<[u8; 4]> = entries
        .iter()
        .map(|entry| {
            assert!(entry.apply(&mut disk));
            [disk[0], disk[512], disk[1024], disk[1536]]
        })
        .collect();
    assert_eq!(after, [[7, 1, 1, 7], [7, 1, 2, 7], [7, 1, 2, 7], [7, 0, 2, 7]]);
    assert!(!entries[0].apply(&mut [0; 1024]), "outside of the disk");
}

#[test]
fn a_super_that_cannot_be_is_refused() {
    let good = log(512, &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Log::open(&bytes).err()
    };
    assert_eq!(Log::open(&good[..27]).err(), Some(FormatError::NoSuper));
    assert_eq!(Log::open(&good[..100]).err(), Some(FormatError::NoSuper));
    assert!(matches!(with(0, 0), Some(FormatError::Magic(_))));
    assert_eq!(with(8, 2), Some(FormatError::Version(2)));
    assert_eq!(with(25, 3), Some(FormatError::SectorBytes(768)));
    assert_eq!(with(27, 1), Some(FormatError::SectorBytes((1 << 24) + 512)));
    assert_eq!(Log::open(&good).unwrap().count(), 0);
}

#[test]
fn entries_that_cannot_be_are_refused_and_nothing_behind_them_is_read() {
    let sound = head(1, 0, FLUSH);
    let data = [1; 512];
    let bad: [(Head, &[u8], &[u8]); 7] = [
        (Head::default(), &[], &[]),
        (head(0, 0, 1 << 5), &[], &[]),
        (head(0, 1, 0), &[1], &data),
        (Head { mark_bytes: 1, ..head(0, 1, 0) }, &[], &data),
        (Head { flags: MARK, mark_bytes: 481, ..Head::default() }, &[], &[]),
        (head(0, 1, MARK), &[], &data),
        (head(u64::MAX, 1, 0), &[], &data),
    ];
    for entry in bad {
        let bytes = log(512, &[(sound, &[], &[]), entry, (sound, &[], &[])]);
        let read: Vec<_> = Log::open(&bytes).unwrap().collect();
        assert_eq!(read.len(), 2, "{entry:?}");
        assert_eq!(read[1], Err(FormatError::Entry(1)));
    }
    let bytes = log(512, &[(sound, &[], &[]), (head(0, 2, 0), &[], &data)]);
    assert_eq!(Log::open(&bytes).unwrap().last(), Some(Err(FormatError::Truncated(1))));
    let bytes = log(512, &[(head(0, 1 << 60, 0), &[], &data)]);
    assert_eq!(Log::open(&bytes).unwrap().last(), Some(Err(FormatError::Truncated(0))));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        tail in proptest::collection::vec(any::<u8>(), 0..4096), entries in any::<u64>(), flags in 0..64_u8, sectors in any::<u16>(),
    ) {
        let mut bytes = log(512, &[]);
        Super { entries, sector_bytes: 512 }.encode(&mut bytes);
        bytes.extend(tail);
        // Half of the time a head that is nearly sound, so that what follows is looked at as well.
        if bytes.len() > 544 && flags >= 32 {
            head(u64::from(sectors), u64::from(sectors % 8), u64::from(flags - 32)).encode(&mut bytes[512..]);
            bytes[544] = 0;
        }
        let mut disk = vec![0; 65_536];
        let mut read = 0;
        for entry in Log::open(&bytes).unwrap().flatten() {
            entry.apply(&mut disk);
            read += 1;
        }
        prop_assert!(read <= 8);
    }
}
