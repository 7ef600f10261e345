//! Where requests are cut: the largest prefix that a plain reading of the rules allows.

use std::rc::Rc;

use super::*;
use crate::bvec::{BioVec, BvecIter, HeapMemory, Segments};
use proptest::prelude::*;

const KIB: u64 = 1024;

fn limits() -> Limits {
    Limits::unlimited()
}

/// Segments at the given (offset, bytes) of one piece of memory that starts on 64 KiB.
fn memory(ranges: &[(usize, u32)]) -> Rc<Segments> {
    let end = ranges.iter().map(|(offset, bytes)| offset + *bytes as usize).max().unwrap();
    Segments::ranges(Box::new(HeapMemory::new(end, 65_536)), ranges).unwrap()
}

fn whole(sector: u64, segments: &Rc<Segments>) -> Bio {
    Bio::write(Sector(sector), Rc::clone(segments), 0, segments.bytes())
}

fn prefix(limits: &Limits, sector: u64, segments: &Rc<Segments>) -> u64 {
    prefix_bytes(limits, &whole(sector, segments))
}

/// Cuts a whole request; the lengths of the parts, stopping at one that cannot be cut.
fn parts(limits: &Limits, sector: u64, segments: &Rc<Segments>) -> Vec<u64> {
    let mut bio = whole(sector, segments);
    let mut lengths = Vec::new();
    while bio.bytes() > 0 {
        let bytes = prefix_bytes(limits, &bio);
        assert!(bytes <= bio.bytes());
        lengths.push(bytes);
        if bytes == 0 {
            break;
        }
        bio.advance(bytes);
    }
    lengths
}

#[test]
fn behaviour_10_segment_count_cuts_129_pages_at_128() {
    let pages: Vec<(usize, u32)> = (0..129).map(|page| (page * 8192, 4096)).collect();
    let segments = memory(&pages);
    let limits = Limits { max_segments: 128, ..limits() };
    assert_eq!(parts(&limits, 0, &segments), [512 * KIB, 4 * KIB]);
}

#[test]
fn behaviour_11_byte_limit_cuts_and_ends_on_a_physical_block() {
    let segments = memory(&[(0, 3 << 20)]);
    let limits = Limits { physical_bytes: 4096, max_sectors: 2560, ..limits() };
    assert_eq!(parts(&limits, 0, &segments), [1280 * KIB, 1280 * KIB, 512 * KIB]);
    assert_eq!(parts(&limits, 8, &segments), [1280 * KIB, 1280 * KIB, 512 * KIB]);
    assert_eq!(parts(&limits, 1, &segments), [1280 * KIB - 512, 1280 * KIB, 512 * KIB + 512]);
}

#[test]
fn a_limit_below_a_physical_block_still_makes_progress() {
    let segments = memory(&[(0, 8192)]);
    let limits = Limits { physical_bytes: 4096, max_sectors: 3, ..limits() };
    assert_eq!(parts(&limits, 0, &segments), [1536, 1536, 1024, 1536, 1536, 1024]);
}

#[test]
fn behaviour_12_the_gap_rule_cuts_between_segments() {
    let limits = Limits { gap_mask: 4095, ..limits() };
    assert_eq!(parts(&limits, 0, &memory(&[(0, 4096), (8192 + 512, 3584)])), [4096, 3584]);
    // The first may start off the boundary, the last may end off it.
    assert_eq!(parts(&limits, 0, &memory(&[(512, 3584), (8192, 4096), (16384, 512)])), [8192]);
    // A segment in between that ends off the boundary is the last of its request.
    assert_eq!(parts(&limits, 0, &memory(&[(0, 4096), (8192, 512), (16384, 4096)])), [4608, 4096]);
}

#[test]
fn behaviour_13_no_request_crosses_a_chunk() {
    let limits = Limits { chunk_sectors: 256, ..limits() };
    let segments = memory(&[(0, 300 * 1024)]);
    assert_eq!(parts(&limits, 0, &segments), [128 * KIB, 128 * KIB, 44 * KIB]);
    for start in 0..600 {
        let mut at = start;
        for bytes in parts(&limits, start, &segments) {
            let sectors = bytes / 512;
            assert_eq!(at / 256, (at + sectors - 1) / 256, "{sectors} sectors from {at} cross a chunk");
            at += sectors;
        }
        assert_eq!(at, start + 600);
    }
}

#[test]
fn a_segment_longer_than_allowed_counts_as_several() {
    let limits = Limits { max_segments: 4, max_segment_bytes: 4096, ..limits() };
    assert_eq!(parts(&limits, 0, &memory(&[(0, 40_960)])), [16 * KIB, 16 * KIB, 8 * KIB]);
    // 1 + 2 parts leave one for the third segment, which needs two: cut inside of it.
    assert_eq!(parts(&limits, 0, &memory(&[(0, 1024), (8192, 8192), (32768, 8192)])), [1024 + 8192 + 4096, 4096]);
}

#[test]
fn memory_that_fits_no_logical_block_is_told_by_0() {
    let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, max_segments: 4, ..limits() };
    let scattered: Vec<(usize, u32)> = (0..8).map(|at| (at * 1024, 512)).collect();
    assert_eq!(prefix(&limits, 0, &memory(&scattered)), 0);
    assert_eq!(prefix(&Limits { max_segments: 12, ..limits }, 0, &memory(&scattered)), 4096);
    let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, gap_mask: 4095, ..Limits::unlimited() };
    assert_eq!(prefix(&limits, 0, &memory(&[(0, 512), (4096, 3584)])), 0);
}

/// What these pieces count as, byte by byte: a part ends where it is full, or at the end of a page.
fn count(limits: &Limits, pieces: &[BioVec]) -> u64 {
    let mut count = 0;
    for piece in pieces {
        let mut in_part = 0;
        for at in 0..piece.bytes() {
            let page_starts = limits.by_page && (piece.base() as usize + at as usize).is_multiple_of(4096);
            if at == 0 || in_part == limits.max_segment_bytes || page_starts {
                count += 1;
                in_part = 0;
            }
            in_part += 1;
        }
    }
    count
}

/// Whether one request may carry exactly these pieces, straight from the rules.
fn allowed_memory(limits: &Limits, pieces: &[BioVec]) -> bool {
    let parts = if limits.by_page {
        count(limits, pieces)
    } else {
        pieces.iter().map(|piece| u64::from(piece.bytes().div_ceil(limits.max_segment_bytes))).sum()
    };
    let on = |address: u64| address & u64::from(limits.gap_mask) == 0;
    let start = |piece: &BioVec| piece.base() as u64;
    let gaps = pieces.windows(2).any(|pair| !on(start(&pair[0]) + u64::from(pair[0].bytes())) || !on(start(&pair[1])));
    parts <= u64::from(limits.max_segments) && !gaps
}

/// The largest prefix that the rules allow, by trying all lengths from the longest down.
fn model(limits: &Limits, sector: u64, segments: &Rc<Segments>) -> u64 {
    let bytes = u64::from(segments.bytes());
    let mut most = u64::from(limits.max_sectors) * 512;
    if limits.chunk_sectors > 0 {
        most = most.min((sector + 1).next_multiple_of(u64::from(limits.chunk_sectors)).saturating_sub(sector) * 512);
    }
    if most < bytes {
        let end = (sector * 512 + most) / u64::from(limits.physical_bytes) * u64::from(limits.physical_bytes);
        most = if end > sector * 512 { end - sector * 512 } else { most };
    }
    let logical = u64::from(limits.logical_bytes);
    let longest = bytes.min(most) / logical;
    let fits = |blocks: &u64| {
        let cut = u32::try_from(blocks * logical).unwrap();
        let pieces: Vec<BioVec> = BvecIter::over(Sector(sector), segments, 0, cut).pieces(segments).collect();
        allowed_memory(limits, &pieces)
    };
    (1..=longest).rev().find(fits).unwrap_or(0) * logical
}

/// Every layout of up to four segments from a small set of starts and lengths.
fn small_layouts() -> Vec<Vec<(usize, u32)>> {
    let shapes = [(0, 512), (0, 1024), (512, 512), (512, 1536), (0, 2048), (1024, 2560)];
    let mut layouts: Vec<Vec<(usize, u32)>> = vec![Vec::new()];
    let mut from = 0;
    for depth in 0..4_usize {
        let until = layouts.len();
        for at in from..until {
            for (offset, bytes) in shapes {
                let mut longer = layouts[at].clone();
                longer.push((depth * 4096 + offset, bytes));
                layouts.push(longer);
            }
        }
        from = until;
    }
    layouts.retain(|layout| !layout.is_empty());
    layouts
}

/// Every combination of small limits: 2 * 2 * 3 * 3 * 3 * 2 * 3.
fn small_limits() -> Vec<Limits> {
    let mut all = Vec::new();
    for (logical_bytes, physical_bytes) in [(512, 512), (512, 2048), (1024, 2048)] {
        for max_sectors in [2, 5, 1000] {
            for max_segments in [1, 2, 100] {
                for max_segment_bytes in [1024, 1536, u32::MAX] {
                    for gap_mask in [0, 1023] {
                        for chunk_sectors in [0, 4, 6] {
                            let rest = Limits::unlimited();
                            all.push(Limits {
                                logical_bytes,
                                physical_bytes,
                                max_sectors,
                                max_segments,
                                max_segment_bytes,
                                gap_mask,
                                chunk_sectors,
                                ..rest
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

#[test]
fn every_small_case_agrees_with_the_rules() {
    let layouts = small_layouts();
    let limits = small_limits();
    let mut cases = 0_u32;
    for layout in &layouts {
        let segments = memory(layout);
        for limits in &limits {
            let grain = u64::from(limits.logical_bytes / 512);
            for sector in [0, 3 * grain] {
                let expected = model(limits, sector, &segments);
                let got = prefix(limits, sector, &segments);
                assert_eq!(got, expected, "{layout:?} from sector {sector} under {limits:?}");
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 1554 * 486 * 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn all_parts_together_are_the_request_and_each_is_allowed(
        layout in proptest::collection::vec((0..8_usize, 1..20_u32), 1..20),
        sector in 0..100_u64,
        max_sectors in 1..64_u32,
        max_segments in 1..6_u32,
        max_segment_sectors in 1..16_u32,
        gap in prop::bool::ANY,
        chunk_sectors in prop::sample::select(vec![0_u32, 8, 24]),
        physical_shift in 0..4_u32,
        by_page in prop::bool::ANY,
    ) {
        let ranges: Vec<(usize, u32)> =
            layout.iter().enumerate().map(|(at, (start, sectors))| (at * 16384 + start * 512, sectors * 512)).collect();
        let segments = memory(&ranges);
        let limits = Limits {
            max_sectors, max_segments, max_segment_bytes: max_segment_sectors * 512, chunk_sectors,
            physical_bytes: 512 << physical_shift, gap_mask: if gap { 4095 } else { 0 }, by_page, ..limits()
        };
        let mut bio = whole(sector, &segments);
        let fits = surely_fits(&limits, &bio);
        while bio.bytes() > 0 {
            let bytes = prefix_bytes(&limits, &bio);
            prop_assert!(bytes > 0 && bytes.is_multiple_of(512));
            prop_assert!(!fits || bytes == bio.bytes(), "what surely fits is one request");
            let part = bio.part(0, bytes);
            let pieces: Vec<BioVec> = part.pieces().collect();
            prop_assert!(allowed_memory(&limits, &pieces));
            prop_assert_eq!(u64::from(super::segments(&limits, &part)), count(&limits, &pieces));
            prop_assert!(segments_at_most(&limits, &part) >= count(&limits, &pieces));
            prop_assert!(bytes <= u64::from(max_sectors) * 512);
            if chunk_sectors > 0 {
                let chunk = u64::from(chunk_sectors);
                prop_assert_eq!(bio.sector().0 / chunk, (bio.sector().0 + bytes / 512 - 1) / chunk);
            }
            bio.advance(bytes);
        }
        prop_assert_eq!(bio.sector().0, sector + u64::from(segments.bytes()) / 512);
    }
}

#[test]
fn plain_memory_counts_page_by_page_where_the_device_does() {
    let limits = Limits { max_segments: 128, max_segment_bytes: 65_536, by_page: true, ..limits() };
    let aligned = memory(&[(0, 1 << 20)]);
    assert_eq!(parts(&limits, 0, &aligned), [512 * KIB, 512 * KIB]);
    assert_eq!(super::segments(&limits, &whole(0, &aligned)), 256);
    // Half a page at either end: 129 pages are touched.
    let shifted = memory(&[(2048, 512 << 10)]);
    assert_eq!(parts(&limits, 0, &shifted), [510 * KIB, 2 * KIB]);
    assert_eq!(parts(&Limits { by_page: false, ..limits }, 0, &aligned), [1024 * KIB]);
    // The example of the module's documentation.
    let example = Bio::write(Sector(0), memory(&[(4000, 10_000), (16_384, 240)]), 0, 10_240);
    assert_eq!(super::segments(&limits, &example), 5);
}
