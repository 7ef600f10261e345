//! Superblocks and pages: right, wrong, torn.

#![allow(clippy::indexing_slicing, reason = "tests of the parser, not the parser")]

use proptest::prelude::*;

use super::*;

fn geometry(sectors: u64, region: u64) -> Geometry {
    Geometry::new(SectorCount(sectors), region).unwrap()
}

fn superblock(geometry: &Geometry) -> Vec<u8> {
    let mut block = vec![0; PAGE_BYTES];
    geometry.encode(&mut block);
    block
}

fn page(number: u32, commit: u64, bits: &[u64]) -> Vec<u8> {
    let mut block = vec![0; PAGE_BYTES];
    Page::encode(number, commit, bits, &mut block);
    block
}

/// As [`page`], without the bits of regions that are not there.
fn bits_within(geometry: &Geometry, number: u32, mut bits: Vec<u64>) -> Vec<u64> {
    bits.resize(PAGE_WORDS, 0);
    for region in geometry.regions_of(number)..PAGE_REGIONS {
        bits[(region / 64) as usize] &= !(1 << (region % 64));
    }
    bits
}

#[test]
fn the_bytes_are_those_of_the_description() {
    let shape = geometry(100, 8);
    let block = superblock(&shape);
    assert_eq!(&block[..28], b"FBAYCLON\x01\0\0\0\x08\0\0\0\x64\0\0\0\0\0\0\0\x0d\0\0\0");
    assert!(block[28..60].iter().chain(&block[64..]).all(|&byte| byte == 0));
    assert_eq!(block[60..64], crc32c::crc32c(&block[..60]).to_le_bytes());
    let block = page(0, 7, &bits_within(&shape, 0, vec![0b1_0000_0000_0011]));
    assert_eq!(block[4..16], [0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((&block[32..35], &block[35..]), (&[3, 0x10, 0][..], &[0; PAGE_BYTES - 35][..]));
    assert_eq!(block[..4], crc32c::crc32c(&block[4..]).to_le_bytes());
}

#[test]
fn pages_lie_behind_the_superblocks_all_first_copies_before_all_second_ones() {
    let shape = geometry(u64::from(PAGE_REGIONS) * 8 * 2 + 1, 8);
    assert_eq!((shape.regions(), shape.pages(), shape.blocks()), (2 * PAGE_REGIONS + 1, 3, 8));
    assert_eq!(Place::ALL.map(Geometry::superblock), [Sector(0), Sector(8)]);
    assert_eq!([0, 2].map(|number| shape.page(Place::First, number)), [Sector(16), Sector(32)]);
    assert_eq!([0, 2].map(|number| shape.page(Place::Second, number)), [Sector(40), Sector(56)]);
}

#[test]
fn shapes_have_limits() {
    let shape = |sectors, region| Geometry::new(SectorCount(sectors), region);
    for region in [0, 4, 7, 24, 4_194_304, u64::MAX] {
        assert_eq!(shape(1 << 30, region), Err(ShapeError::Region(region)));
    }
    assert_eq!(shape(1 << 34, 8).map(|shape| shape.regions()), Ok(1 << 31));
    assert_eq!(shape((1 << 34) + 1, 8), Err(ShapeError::Count((1 << 31) + 1)));
    assert_eq!(shape(1, 2_097_152).map(|shape| shape.regions()), Ok(1));
}

#[test]
fn a_device_is_fresh_ours_or_refused() {
    let (shape, zeroes) = (geometry(100, 8), vec![0; PAGE_BYTES]);
    let ours = superblock(&shape);
    let read = |first: &[u8], second: &[u8]| Media::read(first, second, &shape);
    assert_eq!(read(&zeroes, &zeroes), Ok(Media::Fresh));
    assert_eq!(read(&ours, &ours), Ok(Media::Formatted { mend: false }));
    assert_eq!(read(&ours, &zeroes), Ok(Media::Formatted { mend: true }));
    assert_eq!(read(&zeroes, &ours), Ok(Media::Formatted { mend: true }));
    assert_eq!(read(&vec![7; PAGE_BYTES], &zeroes), Err(FormatError::Foreign));
    assert_eq!(read(&zeroes, &vec![7; PAGE_BYTES]), Err(FormatError::Foreign));
    let mut kernel = zeroes.clone();
    kernel[32..36].copy_from_slice(&[0x64, 0x7f, 0xf2, 0x8a]);
    assert_eq!(read(&kernel, &zeroes), Err(FormatError::Kernel));
    let mut torn = ours.clone();
    torn[20] ^= 1;
    assert_eq!(read(&torn, &ours), Ok(Media::Formatted { mend: true }));
    assert_eq!(read(&torn, &torn), Err(FormatError::Super));
    let mut later = ours.clone();
    later[8] = 2;
    let crc = crc32c::crc32c(&later[..60]);
    later[60..64].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(read(&later, &later), Err(FormatError::Version { found: 2 }));
    let other = superblock(&geometry(101, 8));
    assert_eq!(read(&ours, &other), Err(FormatError::Super));
    assert_eq!(read(&other, &other), Err(FormatError::Size { found: 101, wanted: 100 }));
    let other = superblock(&geometry(100, 16));
    assert_eq!(read(&other, &other), Err(FormatError::Region { found: 16, wanted: 8 }));
}

#[test]
fn the_newer_copy_counts_and_the_intact_one() {
    let state = |commit, bits| Page { commit, bits: vec![bits] };
    let (old, new) = (state(4, 0b001), state(5, 0b011));
    let choose = |first: &Option<Page>, second: &Option<Page>| Page::choose(first.clone(), second.clone(), 3);
    let (some_old, some_new) = (Some(old.clone()), Some(new.clone()));
    assert_eq!(choose(&some_new, &some_new), Ok((new.clone(), None)));
    assert_eq!(choose(&some_new, &some_old), Ok((new.clone(), Some(Place::Second))));
    assert_eq!(choose(&some_old, &some_new), Ok((new, Some(Place::First))));
    assert_eq!(choose(&some_old, &None), Ok((old.clone(), Some(Place::Second))));
    assert_eq!(choose(&None, &some_old), Ok((old.clone(), Some(Place::First))));
    let damaged = Err(FormatError::Page { page: 3 });
    assert_eq!(choose(&None, &None), damaged);
    // A region that was hydrated is never cold again, and one commit has one content.
    assert_eq!(choose(&some_old, &Some(state(5, 0b110))), damaged);
    assert_eq!(choose(&some_old, &Some(state(4, 0b011))), damaged);
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(
        sectors in 1_u64..1 << 24, region_log in 3_u32..12, commit in any::<u64>(),
        number in any::<u32>(), bits in prop::collection::vec(any::<u64>(), 0..PAGE_WORDS),
    ) {
        let shape = geometry(sectors, 1 << region_log);
        let block = superblock(&shape);
        prop_assert_eq!(Geometry::decode(&block), Some(shape));
        let number = number % shape.pages();
        let bits = bits_within(&shape, number, bits);
        let block = page(number, commit, &bits);
        prop_assert_eq!(Page::decode(&block, number, &shape), Some(Page { commit, bits }));
        prop_assert_eq!(Page::decode(&block, number + 1, &shape), None);
    }

    #[test]
    fn a_block_with_a_wrong_byte_is_no_block(at in 0..PAGE_BYTES, flip in 1_u8.., bits in any::<u64>()) {
        let shape = geometry(8 * 200, 8);
        let mut block = superblock(&shape);
        block[at] ^= flip;
        prop_assert_eq!(Geometry::decode(&block), None);
        let mut block = page(0, 9, &bits_within(&shape, 0, vec![bits, bits, bits, bits]));
        block[at] ^= flip;
        prop_assert_eq!(Page::decode(&block, 0, &shape), None);
    }

    #[test]
    fn a_torn_first_copy_leaves_the_state_before_or_after(
        old in any::<u64>(), more in any::<u64>(), survives in any::<u8>(),
    ) {
        let shape = geometry(8 * u64::from(PAGE_REGIONS), 8);
        let state = |commit, word| page(0, commit, &vec![word; PAGE_WORDS]);
        let (before, after) = (state(1, old), state(2, old | more));
        let mut torn = before.clone();
        for part in (0..8).filter(|part| survives & (1 << part) != 0) {
            torn[part * 512..(part + 1) * 512].copy_from_slice(&after[part * 512..(part + 1) * 512]);
        }
        let (chosen, _) = Page::choose(Page::decode(&torn, 0, &shape), Page::decode(&before, 0, &shape), 0).unwrap();
        prop_assert!(chosen.bits == vec![old; PAGE_WORDS] || chosen.bits == vec![old | more; PAGE_WORDS]);
        let whole = survives == u8::MAX || (more & !old == 0 && survives & 1 != 0);
        prop_assert_eq!(chosen.commit, if whole { 2 } else { 1 });
    }
}
