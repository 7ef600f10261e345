//! An image of a compressed RAM disk with any bytes.
//!
//! The input is read as an image as it is, and with right checksums put in wherever its lengths say
//! that they belong. Laws: nothing panics, what is read is inside of the disk and in order, objects are
//! as long as they may be, as many pages come as the header says, and writing them again gives an
//! image that reads the same.
#![no_main]

use forebay_target::zram::image::format::{Content, Entry, HEADER_BYTES, Header, Reader, SECTION_BYTES_MAX, Writer};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

const HEAD_BYTES: usize = 32;

/// Puts right checksums in, as far as the sections go.
fn seal(image: &mut [u8]) {
    let length = image.len() as u64;
    let Some((header, mut rest)) = image.split_at_mut_checked(HEADER_BYTES) else { return };
    let mut chain = 0;
    let mut sections = 0_u64;
    while let Some((head, _)) = rest.split_first_chunk_mut::<HEAD_BYTES>() {
        let bytes = u32::from_le_bytes([head[16], head[17], head[18], head[19]]) as usize % (SECTION_BYTES_MAX + 1);
        let Some((section, behind)) = rest.split_at_mut_checked(bytes.max(HEAD_BYTES)) else { break };
        let seed = XxHash3_64::oneshot_with_seed(chain, &section[..HEAD_BYTES - 8]);
        chain = XxHash3_64::oneshot_with_seed(seed, &section[HEAD_BYTES..]);
        section[HEAD_BYTES - 8..HEAD_BYTES].copy_from_slice(&chain.to_le_bytes());
        sections += 1;
        rest = behind;
    }
    // Half of the inputs keep what the header says of the sections.
    if header[HEADER_BYTES - 9] & 1 == 0 {
        header[32..40].copy_from_slice(&sections.to_le_bytes());
        header[40..48].copy_from_slice(&length.to_le_bytes());
        header[48..56].copy_from_slice(&chain.to_le_bytes());
    }
    let sum = XxHash3_64::oneshot(&header[..HEADER_BYTES - 8]);
    header[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
}

/// All pages of an image; `None` when it is none.
fn read(image: &[u8]) -> Option<(Header, Vec<Entry<'_>>)> {
    let header = Header::decode(image, image.len() as u64).ok()?;
    let mut reader = Reader::new(header.clone());
    let mut rest = image.get(HEADER_BYTES..)?;
    let mut all = Vec::new();
    while let Some((entries, length)) = reader.section(rest).ok()? {
        all.extend(entries);
        rest = &rest[length..];
    }
    reader.finish().ok()?;
    Some((header, all))
}

fn check(image: &[u8]) {
    let Some((header, pages)) = read(image) else { return };
    assert_eq!(pages.len() as u64, header.held);
    assert!(pages.is_sorted_by(|a, b| a.page < b.page));
    assert!(pages.iter().all(|entry| u64::from(entry.page) < header.pages));
    let mut writer = Writer::default();
    let mut body = Vec::new();
    for entry in &pages {
        if let Content::Packed { codec, object } = entry.content {
            assert!((1..4096).contains(&object.len()) && usize::from(codec) < header.codecs.len());
        }
        if !writer.has_room() {
            body.extend(writer.section().expect("a full section is not empty"));
        }
        writer.push(entry);
    }
    body.extend(writer.section().unwrap_or_default());
    let again = [&writer.header(header.pages, header.codecs.clone()).encode()[..], &body].concat();
    let (_, same) = read(&again).expect("what was written is read");
    assert_eq!(same, pages);
}

fuzz_target!(|data: &[u8]| {
    check(data);
    let mut sealed = data.to_vec();
    seal(&mut sealed);
    check(&sealed);
});
