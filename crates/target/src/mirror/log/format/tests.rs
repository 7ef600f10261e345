//! The log's bytes are the kernel's, and hostile ones do no harm.

#![expect(clippy::indexing_slicing, reason = "a test that indexes wrongly fails")]

use super::*;

#[test]
fn a_log_is_laid_out_as_the_kernel_lays_it_out() {
    let mut image = Image::new(70, 512);
    assert_eq!(image.bytes().len(), 1536, "1,024 bytes, 2 words of bits, whole blocks");
    assert_eq!(image.bytes()[..16], [0x72, 0x52, 0x69, 0x4d, 2, 0, 0, 0, 70, 0, 0, 0, 0, 0, 0, 0]);
    assert!(image.bytes()[16..].iter().all(|&byte| byte == 0));
    image.set(0, true);
    image.set(9, true);
    image.set(69, true);
    assert_eq!(image.bytes()[1024..1033], [1, 2, 0, 0, 0, 0, 0, 0, 0b10_0000]);
    assert_eq!(image.dirty().collect::<Vec<_>>(), [1..9, 10..69]);
    image.set(9, false);
    assert_eq!(image.bytes()[1025], 0);
    assert_eq!(log_bytes(2_097_152, 512), 257 * 1024, "1 TiB in regions of 512 KiB");
    assert_eq!(log_bytes(1, 4096), 4096);
}

#[test]
fn only_blocks_that_changed_are_told() {
    let mut image = Image::new(3 * 4096, 512);
    let told = |image: &mut Image, most| {
        let mut told = Vec::new();
        image.take_changed(most, |at, bytes| told.push((at, bytes.len())));
        told
    };
    assert_eq!(told(&mut image, 4096), [(0, 512)]);
    assert!(!image.is_changed());
    image.set(0, true);
    image.set(4096 * 2, true);
    image.set(5000, true);
    assert_eq!(told(&mut image, 4096), [(1024, 1536)]);
    image.change_all();
    assert_eq!(told(&mut image, 1024), [(0, 1024), (1024, 1024), (2048, 512)]);
}

#[test]
fn bits_are_taken_over_and_new_regions_are_dirty_unless_told() {
    let mut old = Image::new(20, 512);
    (0..20).for_each(|region| old.set(region, region % 3 == 0));
    let header = decode(old.bytes()).unwrap().unwrap();
    assert_eq!(header, Header { regions: 20, behind: None });
    for (regions, fresh_clean) in [(20, false), (30, false), (30, true), (10, false)] {
        let mut new = Image::new(regions, 512);
        new.adopt(&header, &old.bytes()[1024..], fresh_clean);
        for region in 0..regions {
            let wanted = if region < 20 { region % 3 == 0 } else { fresh_clean };
            assert_eq!(new.is_clean(region), wanted, "region {region} of {regions}");
        }
        assert!((regions..64).all(|region| !new.is_clean(region)), "pad bits are 0");
    }
}

#[test]
fn a_record_counts_until_somebody_else_opened_the_log() {
    let behind = Behind { legs: LegSet::only(0), of: 3 };
    let mut image = Image::new(20, 512);
    image.record(Some(behind));
    assert_eq!(decode(image.bytes()).unwrap(), Some(Header { regions: 20, behind: Some(behind) }));
    assert_eq!(image.bytes()[8], 21);

    let mut by_the_kernel = image.bytes().to_vec();
    by_the_kernel[8] = 20;
    assert_eq!(decode(&by_the_kernel).unwrap(), Some(Header { regions: 20, behind: None }));
    for byte in 64..92 {
        let mut damaged = image.bytes().to_vec();
        damaged[byte] ^= 1;
        assert_eq!(decode(&damaged).unwrap().unwrap().behind, None, "byte {byte}");
    }
    image.record(None);
    assert_eq!(image.bytes(), Image::new(20, 512).bytes());
}

#[test]
fn what_is_no_log_is_none_and_a_strange_version_is_refused() {
    assert_eq!(decode(&[]), Ok(None));
    assert_eq!(decode(&[0; 512]), Ok(None));
    let mut image = Image::new(1, 512).bytes().to_vec();
    image[4] = 1;
    assert!(decode(&image).unwrap().is_some());
    image[4] = 3;
    assert_eq!(decode(&image), Err(FormatError::Version(3)));
    for length in 0..100 {
        let _ = decode(&image[..length]);
    }
}
