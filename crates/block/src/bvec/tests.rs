//! Segments and cursors against a model: the payload as one plain vector of bytes.

use std::io::{IoSlice, IoSliceMut};

use super::*;
use crate::bio::{Bio, Status};
use proptest::prelude::*;

/// A segment array whose payload, read through the segments, is `model`.
struct Layout {
    segments: Rc<Segments>,
    model: Vec<u8>,
    lengths: Vec<u32>,
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segments of {:?}", self.lengths)
    }
}

fn layout(lengths: &[u32]) -> Layout {
    // Segments lie in reverse order with 16 bytes between them, so that order in memory and order
    // in the payload differ.
    let room: usize = lengths.iter().map(|bytes| *bytes as usize + 16).sum();
    let mut end = room;
    let ranges: Vec<(usize, u32)> = lengths
        .iter()
        .map(|bytes| {
            end -= *bytes as usize + 16;
            (end, *bytes)
        })
        .collect();
    let segments = Segments::ranges(Box::new(HeapMemory::new(room, 512)), &ranges).unwrap();
    let model: Vec<u8> = (0..segments.bytes()).map(|at| (at % 251) as u8).collect();
    let all = BvecIter::over(Sector(0), &segments, 0, segments.bytes());
    assert_eq!(copy_in(&segments, all, &model), model.len());
    Layout { segments, model, lengths: lengths.to_vec() }
}

fn bytes_of(segments: &Segments, iter: BvecIter) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(iter.bytes).unwrap()];
    assert_eq!(copy_out(segments, iter, &mut bytes), bytes.len());
    bytes
}

/// Uniform arrays with a shorter last segment, and arrays without any rule.
fn any_layout() -> impl Strategy<Value = Layout> {
    let uniform = (1..40_u32, 1..12_usize, 1..=40_u32).prop_map(|(each, count, last)| {
        let mut lengths = vec![each; count];
        *lengths.last_mut().unwrap() = last.min(each);
        lengths
    });
    let free = proptest::collection::vec(1..40_u32, 1..12);
    prop_oneof![uniform, free].prop_map(|lengths| layout(&lengths))
}

fn within(layout: &Layout, share: u32) -> u32 {
    u32::try_from(u64::from(layout.segments.bytes()) * u64::from(share) / 1000).unwrap()
}

/// Lengths of the pieces that a cursor at `skip` with `bytes` left must show.
fn model_pieces(lengths: &[u32], skip: u32, bytes: u32) -> Vec<u32> {
    let mut owner = Vec::new();
    for (index, length) in lengths.iter().enumerate() {
        owner.extend(std::iter::repeat_n(index, *length as usize));
    }
    let part = &owner[skip as usize..(skip + bytes) as usize];
    part.chunk_by(|a, b| a == b).map(|run| u32::try_from(run.len()).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Behaviour 1: both halves of a split show the original bytes, over the same array.
    #[test]
    fn behaviour_01_split_halves_are_the_whole(layout in any_layout(), cut in 0..=1000_u32) {
        let Layout { segments, model, .. } = &layout;
        let before: Vec<BioVec> = segments.vecs().to_vec();
        let address = segments.vecs().as_ptr();
        let cut = within(&layout, cut);
        let mut back = BvecIter::over(Sector(0), segments, 0, segments.bytes());
        let front = BvecIter { bytes: u64::from(cut), ..back };
        back.advance(Some(segments), u64::from(cut)).unwrap();
        let mut both = bytes_of(segments, front);
        both.extend(bytes_of(segments, back));
        prop_assert_eq!(&both, model);
        prop_assert_eq!(segments.vecs().as_ptr(), address);
        prop_assert_eq!(segments.vecs(), before.as_slice());
    }

    /// Behaviour 2: steps add up, and a saved cursor is the way back.
    #[test]
    fn behaviour_02_advancing_twice_is_advancing_by_the_sum(
        layout in any_layout(), a in 0..=1000_u32, b in 0..=1000_u32,
    ) {
        let segments = &layout.segments;
        let (a, b) = (within(&layout, a.min(b)), within(&layout, a.max(b)));
        let start = BvecIter::over(Sector(7), segments, 0, segments.bytes());
        let mut twice = start;
        twice.advance(Some(segments), u64::from(a)).unwrap();
        let saved = twice;
        twice.advance(Some(segments), u64::from(b - a)).unwrap();
        let mut once = start;
        once.advance(Some(segments), u64::from(b)).unwrap();
        prop_assert_eq!(twice, once);
        prop_assert_eq!(bytes_of(segments, once), layout.model[b as usize..].to_vec());
        prop_assert_eq!(bytes_of(segments, saved), layout.model[a as usize..].to_vec());
        prop_assert_eq!(start, BvecIter::over(Sector(7), segments, 0, segments.bytes()));
    }

    #[test]
    fn pieces_and_their_count_follow_the_model(layout in any_layout(), skip in 0..=1000_u32, bytes in 0..=1000_u32) {
        let segments = &layout.segments;
        let skip = within(&layout, skip);
        let bytes = (segments.bytes() - skip) * bytes / 1000;
        let iter = BvecIter::over(Sector(0), segments, skip, bytes);
        let expected = model_pieces(&layout.lengths, skip, bytes);
        let pieces: Vec<u32> = iter.pieces(segments).map(BioVec::bytes).collect();
        prop_assert_eq!(iter.segments_left(segments) as usize, expected.len());
        prop_assert_eq!(pieces, expected);
        let part = bytes_of(segments, iter);
        prop_assert_eq!(part.as_slice(), &layout.model[skip as usize..(skip + bytes) as usize]);
    }

    #[test]
    fn walking_in_small_steps_shows_every_byte_once(layout in any_layout(), steps in proptest::collection::vec(1..30_u64, 600)) {
        let segments = &layout.segments;
        let mut iter = BvecIter::over(Sector(0), segments, 0, segments.bytes());
        let mut seen = Vec::new();
        for step in steps {
            let step = step.min(iter.bytes);
            seen.extend(bytes_of(segments, BvecIter { bytes: step, ..iter }));
            iter.advance(Some(segments), step).unwrap();
        }
        prop_assert_eq!(iter.bytes, 0);
        prop_assert_eq!(&seen, &layout.model);
    }

    #[test]
    fn filling_and_zeroing_touch_only_what_the_cursor_covers(layout in any_layout(), a in 0..=1000_u32, b in 0..=1000_u32) {
        let Layout { segments, model, .. } = &layout;
        let (a, b) = (within(&layout, a.min(b)), within(&layout, a.max(b)));
        let mut expected = model.clone();
        expected[a as usize..b as usize].fill(0);
        zero(segments, BvecIter::over(Sector(0), segments, a, b - a));
        let all = BvecIter::over(Sector(0), segments, 0, segments.bytes());
        prop_assert_eq!(&bytes_of(segments, all), &expected);
        expected[a as usize..b as usize].fill(255);
        copy_in(segments, BvecIter::over(Sector(0), segments, a, b - a), &vec![255; model.len()]);
        prop_assert_eq!(&bytes_of(segments, all), &expected);
    }

    #[test]
    fn the_sector_follows_the_next_byte_in_steps_of_any_size(steps in proptest::collection::vec(1..900_u64, 1..12)) {
        let mut iter = BvecIter::bare(Sector(40), 16 * 512);
        let mut behind = 0;
        for step in steps {
            let step = step.min(iter.bytes);
            iter.advance(None, step).unwrap();
            behind += step;
            prop_assert_eq!(iter.sector, Sector(40 + behind / 512));
            prop_assert_eq!(iter.bytes, 16 * 512 - behind);
        }
    }

    #[test]
    fn alignment_is_judged_by_what_is_left(
        lengths in proptest::collection::vec(1..5_u32, 1..6), odd in 0..6_usize, skip in 0..30_u32, shift in 0..3_u32,
    ) {
        let align = 512_u32 << shift;
        let mut at = 0;
        let mut ranges: Vec<(usize, u32)> = Vec::new();
        for (index, sectors) in lengths.iter().enumerate() {
            let start = at + if index == odd { 256 } else { 0 };
            ranges.push((start, sectors * 512));
            at = (start + *sectors as usize * 512).next_multiple_of(2048);
        }
        let segments = Segments::ranges(Box::new(HeapMemory::new(at, 4096)), &ranges).unwrap();
        let skip = (skip * 512).min(segments.bytes());
        let iter = BvecIter::over(Sector(0), &segments, skip, segments.bytes() - skip);
        let expected = iter.pieces(&segments).all(|piece| (piece.base() as usize).is_multiple_of(align as usize));
        prop_assert_eq!(iter.is_aligned(&segments, align), expected);
    }
}

#[test]
fn behaviour_03_empty_segments_are_refused() {
    let memory = || Box::new(HeapMemory::new(4096, 512));
    assert_eq!(Segments::ranges(memory(), &[(0, 512), (512, 0)]).err(), Some(SegmentsError::Empty));
    assert_eq!(Segments::ranges(memory(), &[]).err(), Some(SegmentsError::Empty));
    assert_eq!(Segments::whole(memory(), 0).err(), Some(SegmentsError::Empty));
    assert_eq!(Segments::whole(memory(), 4097).err(), Some(SegmentsError::Outside));
    assert_eq!(Segments::ranges(memory(), &[(usize::MAX, 1)]).err(), Some(SegmentsError::Outside));
    let twice_the_most = vec![(0, 4096); 1 << 20];
    assert_eq!(Segments::ranges(memory(), &twice_the_most).err(), Some(SegmentsError::TooLong));
}

#[test]
fn behaviour_04_advancing_past_the_end_is_a_clamped_error() {
    for lengths in [vec![512, 512, 512], vec![512, 100, 924]] {
        let segments = layout(&lengths).segments;
        let mut iter = BvecIter::over(Sector(10), &segments, 0, 1536);
        iter.advance(Some(&segments), 1000).unwrap();
        assert_eq!(iter.advance(Some(&segments), u64::MAX), Err(PastEnd));
        assert_eq!((iter.sector, iter.bytes), (Sector(13), 0));
        assert_eq!(iter.pieces(&segments).count(), 0);
        assert_eq!(iter.segments_left(&segments), 0);
        assert_eq!(iter.advance(Some(&segments), 0), Ok(()));
        assert_eq!(iter.advance(Some(&segments), 1), Err(PastEnd));
        assert_eq!((iter.sector, iter.bytes), (Sector(13), 0));
    }
}

#[test]
fn behaviour_05_a_request_over_a_prepared_array_owns_no_segments() {
    let segments = layout(&[4096, 100, 412]).segments;
    assert_eq!(Source::Prepared(&segments).segments_to_own(), 0);
    let bio = Bio::write(Sector(0), Rc::clone(&segments), 0, 4608);
    assert!(bio.segments().is_some_and(|borrowed| Rc::ptr_eq(borrowed, &segments)));
    let [mut one, mut two] = [[0; 4096], [0; 4096]];
    assert_eq!(Source::Slices(&[IoSlice::new(&one)]).segments_to_own(), 1);
    assert_eq!(Source::Slices(&[IoSlice::new(&one), IoSlice::new(&[]), IoSlice::new(&two)]).segments_to_own(), 2);
    assert_eq!(Source::SlicesMut(&[IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).segments_to_own(), 2);
    bio.end(Status::Ok);
}

/// The compiler's half of behaviour 6 is the example in the module's documentation.
#[test]
fn behaviour_06_memory_is_writable_only_while_nobody_shares_it() {
    let mut segments = layout(&[512]).segments;
    let bio = Bio::write(Sector(0), Rc::clone(&segments), 0, 512);
    assert!(Rc::get_mut(&mut segments).is_none());
    bio.end(Status::Ok);
    let alone = Rc::get_mut(&mut segments).expect("the bio gave its share back when it ended");
    alone.bytes_mut()[0] = 77;
}

#[test]
fn seeking_a_uniform_array_needs_no_walk() {
    // 2^20 segments of one byte each, and 10^6 seeks: a walk would visit 5 * 10^11 segments.
    let ranges: Vec<(usize, u32)> = (0..1 << 20).map(|at| (at, 1)).collect();
    let segments = Segments::ranges(Box::new(HeapMemory::new(1 << 20, 512)), &ranges).unwrap();
    let mut sum = 0;
    for seek in 0..1_000_000_u32 {
        let iter = BvecIter::over(Sector(0), &segments, seek, 1);
        sum += u64::from(iter.segments_left(&segments));
    }
    assert_eq!(sum, 1_000_000);
}

#[test]
fn copies_stop_at_the_shorter_side() {
    let Layout { segments, model, .. } = layout(&[3, 5, 2]);
    let all = BvecIter::over(Sector(0), &segments, 0, 10);
    let mut few = [0; 4];
    assert_eq!(copy_out(&segments, all, &mut few), 4);
    assert_eq!(few, model[..4]);
    let mut many = [9; 12];
    assert_eq!(copy_out(&segments, all, &mut many), 10);
    assert_eq!(many[10..], [9, 9]);
    assert_eq!(copy_out(&segments, all, &mut []), 0);
    assert_eq!(copy_in(&segments, all, &[]), 0);
}

#[test]
fn heap_memory_is_aligned_and_zeroed() {
    let memory = HeapMemory::new(100, 4096);
    assert!((memory.base().as_ptr() as usize).is_multiple_of(4096));
    let mut segments = Segments::whole(Box::new(memory), 100).unwrap();
    let bytes = Rc::get_mut(&mut segments).unwrap().bytes_mut();
    assert_eq!(bytes, [0; 100]);
}

#[test]
fn segments_in_pieces_of_memory_of_their_own_are_written_one_by_one() {
    let memory = |bytes| Box::new(HeapMemory::new(bytes, 512)) as Box<dyn Memory>;
    let mut segments = Segments::each(vec![(memory(4096), 512), (memory(512), 512), (memory(1024), 1024)]).unwrap();
    assert_eq!((segments.bytes(), segments.vecs().len()), (2048, 3));
    let alone = Rc::get_mut(&mut segments).unwrap();
    for (index, fill) in [(0, 1), (1, 2), (2, 3)] {
        alone.segment_mut(index).unwrap().fill(fill);
    }
    assert!(alone.segment_mut(3).is_none());
    let all = bytes_of(&segments, BvecIter::over(Sector(0), &segments, 0, 2048));
    assert_eq!(all, [vec![1; 512], vec![2; 512], vec![3; 1024]].concat());
    assert_eq!(Segments::each(Vec::new()).err(), Some(SegmentsError::Empty));
    assert_eq!(Segments::each(vec![(memory(512), 513)]).err(), Some(SegmentsError::Outside));
}

/// Every array of one to four segments of 1, 2, 3 or 512 bytes.
fn small_arrays() -> Vec<Vec<u32>> {
    let mut arrays: Vec<Vec<u32>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..4 {
        let until = arrays.len();
        for at in from..until {
            for bytes in [1, 2, 3, 512] {
                let mut longer = arrays[at].clone();
                longer.push(bytes);
                arrays.push(longer);
            }
        }
        from = until;
    }
    arrays.remove(0);
    arrays
}

/// Places that matter in a payload: around every border, and around the end of a sector.
fn places(lengths: &[u32]) -> Vec<u32> {
    let mut places = std::collections::BTreeSet::new();
    let mut at = 0;
    for &bytes in lengths {
        places.extend([at, at + 1, at + bytes - 1, at + bytes / 2]);
        at += bytes;
    }
    places.extend([at, at.min(511), at.min(512), at.min(513)]);
    places.into_iter().collect()
}

#[test]
fn the_cursor_agrees_with_the_model_in_every_small_array() {
    let mut cases = 0_u32;
    for lengths in small_arrays() {
        let segments = layout(&lengths).segments;
        let places = places(&lengths);
        for (first, &skip) in places.iter().enumerate() {
            for (second, &middle) in places.iter().enumerate().skip(first) {
                let whole = BvecIter::over(Sector(9), &segments, skip, segments.bytes() - skip);
                // From `skip` to `middle` in one step is where a cursor begins that starts there.
                let mut moved = whole;
                moved.advance(Some(&segments), u64::from(middle - skip)).unwrap();
                let there = BvecIter::over(Sector(9), &segments, middle, segments.bytes() - middle);
                assert_eq!((moved.index, moved.done, moved.bytes), (there.index, there.done, there.bytes), "{lengths:?}");
                for &end in &places[second..] {
                    let part = BvecIter::over(Sector(9), &segments, middle, end - middle);
                    let expected = model_pieces(&lengths, middle, end - middle);
                    let pieces: Vec<u32> = part.pieces(&segments).map(BioVec::bytes).collect();
                    assert_eq!(pieces, expected, "{middle}..{end} of {lengths:?}");
                    assert_eq!(part.segments_left(&segments) as usize, expected.len(), "{middle}..{end} of {lengths:?}");
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 50_000, "{cases}");
}

#[test]
fn the_sector_is_that_of_the_next_byte_after_any_two_steps() {
    for bytes in (512..=1536).step_by(512) {
        for first in 0..=bytes {
            let mut once = BvecIter::bare(Sector(100), bytes);
            once.advance(None, first).unwrap();
            for second in [0, 1, 255, 511, 512, 513, 1024].into_iter().filter(|second| first + second <= bytes) {
                let mut twice = once;
                twice.advance(None, second).unwrap();
                assert_eq!((twice.sector, twice.bytes), (Sector(100 + (first + second) / 512), bytes - first - second));
            }
        }
    }
}
