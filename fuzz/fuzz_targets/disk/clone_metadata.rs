//! The metadata device of a clone with any damage.
//!
//! The input is eight bytes that choose the shape of the clone and what its pages say, and then edits of
//! four bytes each: which of the four blocks, where in it, what is changed there, and whether the checksum
//! is made right again.
//! Laws: nothing panics, what is decoded is what encoding gives, a page that counts is one of its two
//! intact copies, the newer where both are, and a device is fresh only when it holds nothing.
#![no_main]

use forebay_block::SectorCount;
use forebay_target::clone::format::{Geometry, Media, PAGE_BYTES, PAGE_WORDS, Page, Place, seal_page, seal_superblock};
use libfuzzer_sys::fuzz_target;

fn page(geometry: &Geometry, commit: u64, pattern: u64) -> Vec<u8> {
    let mut block = vec![0; PAGE_BYTES];
    let regions = u64::from(geometry.regions()).min(PAGE_WORDS as u64 * 64);
    let word = |at: u64| match regions.saturating_sub(64 * at) {
        0 => 0,
        left @ 1..64 => pattern & ((1 << left) - 1),
        _ => pattern,
    };
    let bits: Vec<u64> = (0..PAGE_WORDS as u64).map(word).collect();
    Page::encode(0, commit, &bits, &mut block);
    block
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, edits)) = data.split_first_chunk::<8>() else { return };
    let sectors = u64::from(u32::from_le_bytes([choice[0], choice[1], choice[2], 0])) + 1;
    let Ok(geometry) = Geometry::new(SectorCount(sectors), 8 << (choice[3] % 19)) else { return };
    let (old, more) = (u64::from(choice[4]).wrapping_mul(0x0101_0101_0101_0101), u64::from(choice[5]) << 8);
    let (first_commit, second_commit) = (u64::from(choice[6] % 4), u64::from(choice[7] % 4));
    let mut superblock = vec![0; PAGE_BYTES];
    geometry.encode(&mut superblock);
    let mut blocks =
        [superblock.clone(), superblock, page(&geometry, first_commit, old | more), page(&geometry, second_commit, old)];
    for edit in edits.chunks_exact(4) {
        let number = usize::from(edit[0] % 4);
        let block = &mut blocks[number];
        block[usize::from(u16::from_le_bytes([edit[1], edit[2]])) % PAGE_BYTES] ^= edit[3];
        if edit[0] & 0x80 != 0 {
            if number < 2 { seal_superblock(block) } else { seal_page(block) }
        }
        if edit[0] & 0x40 != 0 {
            block.fill(0);
        }
    }
    match Media::read(&blocks[0], &blocks[1], &geometry) {
        Ok(Media::Fresh) => assert!(blocks[..2].iter().flatten().all(|&byte| byte == 0)),
        Ok(Media::Formatted { mend }) => {
            let mut right = vec![0; PAGE_BYTES];
            geometry.encode(&mut right);
            assert!(blocks[0] == right || blocks[1] == right);
            assert_eq!(mend, blocks[0] != blocks[1]);
        }
        Err(_) => {}
    }
    let [first, second] = [2, 3].map(|number| {
        let found = Page::decode(&blocks[number], 0, &geometry)?;
        let mut again = vec![0; PAGE_BYTES];
        Page::encode(0, found.commit, &found.bits, &mut again);
        assert_eq!(again, blocks[number]);
        Some(found)
    });
    let Ok((chosen, stale)) = Page::choose(first.clone(), second.clone(), 0) else { return };
    let (kept, other) = match stale {
        Some(Place::First) => (second, first),
        Some(Place::Second) | None => (first, second),
    };
    assert_eq!(kept.as_ref(), Some(&chosen));
    if let Some(other) = other {
        assert!(stale.is_none() || other.commit < chosen.commit);
        assert!(other.bits.iter().zip(&chosen.bits).all(|(other, chosen)| other & !chosen == 0));
    }
});
