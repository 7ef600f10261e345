//! What pages become in memory, and what is counted.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

use super::super::codec::{Algorithm, CodecParams, Codecs};
use super::*;

fn pages(limit: Option<u64>) -> Pages {
    Pages::new(Codecs::new(&[CodecParams::default()]).unwrap(), limit, None)
}

fn random(seed: u64, bytes: usize) -> [u8; PAGE] {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut page = [0; PAGE];
    page[..bytes].fill_with(|| rng.u8(..));
    page
}

fn write(pages: &mut Pages, number: u64, content: &[u8; PAGE]) -> Result<(), PageError> {
    pages.page.copy_from_slice(content);
    pages.write(number, 0)
}

fn read(pages: &mut Pages, number: u64) -> [u8; PAGE] {
    pages.read(number, 0).unwrap();
    *pages.page
}

#[test]
fn a_repeated_word_takes_no_memory_and_one_that_differs_does() {
    let mut pages = pages(None);
    let mut page = [0; PAGE];
    page.as_chunks_mut::<8>().0.fill(0x0123_4567_89ab_cdef_u64.to_le_bytes());
    write(&mut pages, 3, &page).unwrap();
    assert_eq!((pages.counts.same, pages.frames_used(), pages.counts.stored), (1, 0, 1));
    assert!(read(&mut pages, 3) == page);
    page[4095] ^= 1;
    write(&mut pages, 3, &page).unwrap();
    assert_eq!((pages.counts.same, pages.frames_used(), pages.counts.stored), (0, 1, 1));
    assert!(read(&mut pages, 3) == page);
}

#[test]
fn a_page_that_does_not_shrink_is_kept_whole_and_counted_while_it_is() {
    let mut pages = pages(None);
    write(&mut pages, 0, &random(1, PAGE)).unwrap();
    assert_eq!((pages.counts.huge, pages.counts.compressed_bytes), (1, 4096));
    assert!(read(&mut pages, 0) == random(1, PAGE));
    write(&mut pages, 0, &[0; PAGE]).unwrap();
    assert_eq!((pages.counts.huge, pages.counts.huge_ever, pages.frames_used()), (0, 1, 0));
}

#[test]
fn objects_of_3624_bytes_are_kept_packed_and_of_3625_whole() {
    let mut sizes = std::collections::BTreeSet::new();
    for bytes in 3560..3640 {
        let mut pages = pages(None);
        write(&mut pages, 0, &random(7, bytes)).unwrap();
        sizes.insert(pages.counts.compressed_bytes);
    }
    assert!(sizes.contains(&3624) && sizes.contains(&4096), "{sizes:?}");
    assert!(!sizes.iter().any(|size| (3625..4096).contains(size)), "{sizes:?}");
}

#[test]
fn the_limit_refuses_what_needs_memory_and_leaves_what_was_there() {
    let mut pages = pages(Some(256));
    for number in 0..256 {
        write(&mut pages, number, &random(number, PAGE)).unwrap();
    }
    assert_eq!(write(&mut pages, 256, &random(256, PAGE)), Err(PageError::NoSpace));
    assert_eq!(write(&mut pages, 257, &random(1, 100)), Err(PageError::NoSpace));
    write(&mut pages, 256, &[5; PAGE]).unwrap();
    write(&mut pages, 17, &random(1000, PAGE)).unwrap();
    assert!(read(&mut pages, 17) == random(1000, PAGE));
    write(&mut pages, 18, &[0; PAGE]).unwrap();
    write(&mut pages, 257, &random(1, 100)).unwrap();
    assert_eq!(write(&mut pages, 257, &random(1001, PAGE)), Ok(()), "the frame of the old object becomes free");
    assert!(read(&mut pages, 257) == random(1001, PAGE));
    assert_eq!(pages.counts.frames_max, 256);
}

#[test]
fn pages_are_what_was_written_last_whatever_the_codec() {
    for algorithm in Algorithm::ALL {
        let codecs = Codecs::new(&[CodecParams { algorithm, ..CodecParams::default() }]).unwrap();
        let mut pages = Pages::new(codecs, None, None);
        let mut model = vec![[0; PAGE]; 200];
        let rng = &mut fastrand::Rng::with_seed(9);
        for step in 0..3_000 {
            let at = rng.usize(0..model.len());
            let number = at as u64;
            match rng.u32(0..6) {
                0 => {
                    pages.free(number);
                    model[at] = [0; PAGE];
                }
                1 => {
                    model[at] = [rng.u8(..); PAGE];
                    write(&mut pages, number, &model[at]).unwrap();
                }
                _ => {
                    let bytes = if rng.u32(0..4) == 0 { PAGE } else { rng.usize(1..PAGE) };
                    model[at] = random(step, bytes);
                    write(&mut pages, number, &model[at]).unwrap();
                }
            }
            let other = rng.usize(0..model.len());
            assert!(read(&mut pages, other as u64) == model[other], "{algorithm}, step {step}, page {other}");
        }
        (0..200).for_each(|number| pages.free(number));
        let counts = pages.counts;
        assert_eq!((counts.stored, counts.compressed_bytes, counts.same, counts.huge, pages.frames_used()), (0, 0, 0, 0, 0));
    }
}
