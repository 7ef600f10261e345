//! What is written is read again, and what was damaged is not.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]
#![allow(clippy::indexing_slicing, reason = "a test may stop at a wrong index")]

use super::*;

/// A page as a test remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kept {
    Same(u64),
    Whole(Vec<u8>),
    Packed(u8, Vec<u8>),
}

type Model = Vec<(u32, bool, Kept)>;

fn noise(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rng.u8(..)).collect()
}

fn pages(rng: &mut fastrand::Rng, count: usize) -> Model {
    let mut page = 0;
    let mut model = Vec::new();
    for _ in 0..count {
        page += rng.u32(1..50);
        let kept = match rng.u32(0..3) {
            0 => Kept::Same(rng.u64(..)),
            1 => Kept::Whole(noise(rng, 4096)),
            _ => {
                let bytes = rng.usize(1..4096);
                Kept::Packed(rng.u8(0..2), noise(rng, bytes))
            }
        };
        model.push((page, rng.bool(), kept));
    }
    model
}

fn image(model: &Model) -> Vec<u8> {
    let mut writer = Writer::default();
    let mut body = Vec::new();
    for (page, away, kept) in model {
        if !writer.has_room() {
            body.extend(writer.section().unwrap());
        }
        let content = match kept {
            Kept::Same(word) => Content::Same(*word),
            Kept::Whole(bytes) => Content::Whole(bytes.as_slice().try_into().unwrap()),
            Kept::Packed(codec, object) => Content::Packed { codec: *codec, object },
        };
        writer.push(&Entry { page: *page, away: *away, content });
    }
    body.extend(writer.section().unwrap_or_default());
    assert!(writer.section().is_none());
    let codecs = vec![CodecMark { algorithm: 1, dictionary: 0 }, CodecMark { algorithm: 2, dictionary: 77 }];
    let header = writer.header(1 << 20, codecs).encode();
    [header.to_vec(), body].concat()
}

fn read(bytes: &[u8]) -> Result<Model, Flaw> {
    let mut reader = Reader::new(Header::decode(bytes, bytes.len() as u64)?);
    let mut rest = bytes.get(HEADER_BYTES..).ok_or(Flaw::Header)?;
    let mut model = Vec::new();
    while let Some((entries, length)) = reader.section(rest)? {
        model.extend(entries.iter().map(|entry| {
            let kept = match entry.content {
                Content::Same(word) => Kept::Same(word),
                Content::Whole(bytes) => Kept::Whole(bytes.to_vec()),
                Content::Packed { codec, object } => Kept::Packed(codec, object.to_vec()),
            };
            (entry.page, entry.away, kept)
        }));
        rest = &rest[length..];
    }
    reader.finish()?;
    if rest.is_empty() { Ok(model) } else { Err(Flaw::Section(0)) }
}

#[test]
fn any_pages_come_back_as_they_were() {
    for seed in 0..60 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let count = [0, 1, 7, 300, 1500][rng.usize(0..5)];
        let model = pages(rng, count);
        let bytes = image(&model);
        assert_eq!(read(&bytes).as_ref(), Ok(&model), "seed {seed}");
        let sections = Header::decode(&bytes, bytes.len() as u64).unwrap().sections;
        assert_eq!(sections > 1, count > 700, "{sections} sections of {count} pages");
    }
}

#[test]
fn every_damaged_bit_torn_end_and_exchanged_section_is_found() {
    let rng = &mut fastrand::Rng::with_seed(1);
    let model = pages(rng, 900);
    let bytes = image(&model);
    for at in (0..HEADER_BYTES + 400).chain((0..2000).map(|_| rng.usize(0..bytes.len()))) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(read(&damaged).is_err(), "byte {at}");
    }
    for end in (0..HEADER_BYTES + 100).chain((0..200).map(|_| rng.usize(0..bytes.len()))) {
        assert!(read(&bytes[..end]).is_err(), "cut at {end}");
        let mut torn = bytes.clone();
        torn[end..].fill(0);
        assert!(read(&torn).is_err() || torn == bytes, "zeroes from {end}");
    }
    // The first sections of an image of the same pages and other content.
    let mut other = model.clone();
    other.iter_mut().take(1).for_each(|(_, away, _)| *away = !*away);
    let other = image(&other);
    assert_eq!(bytes.len(), other.len());
    for at in (HEADER_BYTES..bytes.len()).step_by(4096) {
        let mixed = [&other[..at], &bytes[at..]].concat();
        assert!(read(&mixed).is_err() || mixed == other, "mixed at {at}");
    }
}

#[test]
fn what_is_wrong_is_told() {
    let bytes = image(&pages(&mut fastrand::Rng::with_seed(2), 3));
    let told = |bytes: &[u8]| read(bytes).unwrap_err();
    assert_eq!(told(b""), Flaw::Foreign);
    assert_eq!(told(&[7; 5000]), Flaw::Foreign);
    assert_eq!(told(&bytes[..100]), Flaw::Header);
    assert_eq!(told(&bytes[..bytes.len() - 1]), Flaw::Length { found: bytes.len() as u64 - 1, saved: bytes.len() as u64 });
    let reseal = |change: fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        let sum = XxHash3_64::oneshot(&bytes[..HEADER_SUMMED]);
        bytes[HEADER_SUMMED..HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
        read(&bytes).unwrap_err()
    };
    assert_eq!(reseal(|bytes| bytes[8] = 2), Flaw::Version(2));
    assert_eq!(reseal(|bytes| bytes[12] = 0), Flaw::Header);
    assert_eq!(reseal(|bytes| bytes[12] = 5), Flaw::Header);
    assert_eq!(reseal(|bytes| bytes[16..24].fill(0xFF)), Flaw::Header);
    assert_eq!(reseal(|bytes| bytes[24] = 2), Flaw::Section(0));
    assert_eq!(reseal(|bytes| bytes[48] ^= 1), Flaw::Section(1));
    assert_eq!(reseal(|bytes| bytes[16..24].copy_from_slice(&1_u64.to_le_bytes())), Flaw::Header);
}

/// Makes the checksums right again of an image that has one section.
fn seal(bytes: &mut [u8]) {
    let (header, section) = bytes.split_at_mut(HEADER_BYTES);
    let head = XxHash3_64::oneshot_with_seed(0, &section[..24]);
    let sum = XxHash3_64::oneshot_with_seed(head, &section[32..]).to_le_bytes();
    section[24..32].copy_from_slice(&sum);
    header[48..56].copy_from_slice(&sum);
    let sum = XxHash3_64::oneshot(&header[..HEADER_SUMMED]).to_le_bytes();
    header[HEADER_SUMMED..].copy_from_slice(&sum);
}

#[test]
fn hostile_bytes_behind_right_checksums_are_no_pages() {
    for seed in 0..3000 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let mut bytes = image(&pages(rng, 5));
        let at = rng.usize(HEADER_BYTES..HEADER_BYTES + 32 + 5 * 16);
        bytes[at] = rng.u8(..);
        seal(&mut bytes);
        // Whatever is taken for pages is in order, and inside of the disk.
        if let Ok(model) = read(&bytes) {
            assert!(model.len() == 5 && model.is_sorted_by(|a, b| a.0 < b.0) && model.iter().all(|page| page.0 < 1 << 20));
        }
    }
}

#[test]
fn what_contradicts_itself_behind_right_checksums_is_refused() {
    let model = [(3, false, Kept::Packed(1, vec![9; 100])), (4, true, Kept::Whole(vec![8; 4096])), (5, false, Kept::Same(7))];
    let good = image(&model.to_vec());
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[HEADER_BYTES + at] = value;
        seal(&mut bytes);
        read(&bytes)
    };
    assert_eq!(changed(38, 1), Ok(model.to_vec()), "the same bytes");
    let entry = |number: usize, at: usize| 32 + number * 16 + at;
    for (what, at, value) in [
        ("a head without its magic number", 0, 0),
        ("the number of another section", 8, 1),
        ("something where a head has zeroes", 20, 1),
        ("a codec that the image does not name", entry(0, 6), 2),
        ("a packed page with a word", entry(0, 8), 1),
        ("a whole page with a word", entry(1, 8), 1),
        ("a whole page of 3840 bytes", entry(1, 5), 15),
        ("a mark that nobody knows", entry(2, 7), 0x80 | good[HEADER_BYTES + entry(2, 7)]),
        ("a repeated word with an object", entry(2, 4), 1),
        ("the same page twice", entry(1, 0), 3),
        ("a page behind the end of the disk", entry(2, 2), 16),
    ] {
        assert!(changed(at, value).is_err(), "{what}");
    }
}
