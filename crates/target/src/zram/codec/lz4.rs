//! LZ4 blocks back into pages, at the speed of a copy where a page repeats itself.
//!
//! ```text
//!   block      sequence, sequence, …, literals alone
//!   sequence   token │ more literal length │ literals │ offset │ more match length
//!              4 + 4 bits                              16 bits, little-endian
//!   a length of 15 goes on in bytes, until one is not 255; a match has 4 bytes more than its length
//! ```
//!
//! Pages are often half empty, and a run of zeroes is a match that overlaps itself. That is copied here
//! in strides that double, where a decoder for files of any kind copies a few bytes at a time.
//!
//! 1. Whatever the block is, nothing outside of it is read and nothing outside of the page written, and
//!    anything that does not make exactly one page is refused.
//!
//! Source: the LZ4 block format, `lz4_Block_format.md`, 2022.
#![deny(clippy::indexing_slicing)]

use super::super::memory::PAGE;

/// Bytes of the shortest match.
const MATCH_MIN: usize = 4;
/// A length, or a part of one, that goes on in more bytes.
const GOES_ON: usize = 15;
/// Bytes that a short sequence may have, token and offset included, rounded up for the copy.
const SHORT_BYTES: usize = 24;
/// Bytes of a page that it may touch: literals, and the longest match that does not go on.
const SHORT_ROOM: usize = 64;
/// The longest match whose length does not go on; also the shortest offset that copies it in one step.
const SHORT_MATCH: usize = MATCH_MIN + GOES_ON - 1;

/// Makes the page of a block; `None` when it is not the block of a page, `page` holds anything then.
pub(super) fn unpack(block: &[u8], page: &mut [u8; PAGE]) -> Option<()> {
    let (mut at, mut to) = (0, 0);
    loop {
        while let Some(next) = short(block, at, page, to) {
            (at, to) = next;
        }
        let token = usize::from(*block.get(at)?);
        at += 1;
        let literals = length(block, &mut at, token >> 4)?;
        page.get_mut(to..to + literals)?.copy_from_slice(block.get(at..at + literals)?);
        (at, to) = (at + literals, to + literals);
        if at == block.len() {
            return (to == PAGE).then_some(());
        }
        let offset = usize::from(u16::from_le_bytes(*block.get(at..)?.first_chunk()?));
        at += 2;
        let bytes = length(block, &mut at, token & GOES_ON)? + MATCH_MIN;
        repeat(page, to, offset, bytes)?;
        to += bytes;
    }
}

/// A sequence with few literals and a short match, far from both ends and not over itself: where the
/// next one stands, and how far the page is. `None` leaves all to the general way.
#[inline]
fn short(block: &[u8], at: usize, page: &mut [u8; PAGE], to: usize) -> Option<(usize, usize)> {
    let sequence: &[u8; SHORT_BYTES] = block.get(at..)?.first_chunk()?;
    let token = usize::from(sequence[0]);
    let (literals, rest) = (token >> 4, token & GOES_ON);
    if literals == GOES_ON || rest == GOES_ON || to + SHORT_ROOM > PAGE {
        return None;
    }
    let offset = usize::from(u16::from_le_bytes(*sequence.get(1 + literals..)?.first_chunk()?));
    let end = to + literals;
    let from = end.checked_sub(offset)?;
    if offset < SHORT_MATCH {
        return None;
    }
    let (_, copied) = sequence.split_first()?;
    page.get_mut(to..)?.first_chunk_mut::<16>()?.copy_from_slice(copied.first_chunk::<16>()?);
    let repeated: [u8; SHORT_MATCH] = *page.get(from..)?.first_chunk()?;
    *page.get_mut(end..)?.first_chunk_mut()? = repeated;
    Some((at + 3 + literals, end + MATCH_MIN + rest))
}

/// A length that begins with `part` and may go on.
#[inline]
fn length(block: &[u8], at: &mut usize, part: usize) -> Option<usize> {
    let mut sum = part;
    if part < GOES_ON {
        return Some(sum);
    }
    while sum <= PAGE {
        let byte = *block.get(*at)?;
        *at += 1;
        sum += usize::from(byte);
        if byte < u8::MAX {
            return Some(sum);
        }
    }
    None
}

/// Copies `bytes` bytes to `to` from `offset` bytes before, where they may overlap.
#[inline]
fn repeat(page: &mut [u8; PAGE], to: usize, offset: usize, bytes: usize) -> Option<()> {
    let from = to.checked_sub(offset).filter(|_| offset > 0)?;
    if to + bytes > PAGE {
        return None;
    }
    if offset == 1 {
        let byte = *page.get(from)?;
        page.get_mut(to..to + bytes)?.fill(byte);
        return Some(());
    }
    // What was copied is a part of what is repeated: each step copies all that is there.
    let mut done = 0;
    while done < bytes {
        let step = (offset + done).min(bytes - done);
        page.copy_within(from..from + step, to + done);
        done += step;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a test may panic")]

    use lz4_flex::block::{compress_into, decompress_into};

    use super::*;

    /// Pages of all kinds: noise, runs, short and long repetitions.
    fn page(rng: &mut fastrand::Rng) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let mut at = 0;
        while at < PAGE {
            let most = [8, 40, 400, PAGE][rng.usize(0..4)];
            let bytes = rng.usize(1..=most).min(PAGE - at);
            match rng.u32(0..4) {
                0 => page[at..at + bytes].fill(rng.u8(0..3)),
                1 => page[at..at + bytes].fill_with(|| rng.u8(..)),
                2 => page[at..at + bytes].fill_with(|| rng.u8(b'a'..b'e')),
                _ if at > 0 => {
                    let offset = rng.usize(1..=at.min(100));
                    (at..at + bytes).for_each(|to| page[to] = page[to - offset]);
                }
                _ => {}
            }
            at += bytes;
        }
        page
    }

    #[test]
    fn blocks_become_the_pages_that_they_were() {
        let rng = &mut fastrand::Rng::with_seed(1);
        for round in 0..4000 {
            let page = page(rng);
            let mut block = [0; PAGE + PAGE / 4];
            let bytes = compress_into(&page, &mut block).unwrap();
            let mut back = [1; PAGE];
            assert_eq!(unpack(&block[..bytes], &mut back), Some(()), "round {round}");
            assert!(back == page, "round {round}");
        }
    }

    #[test]
    fn damaged_blocks_are_taken_and_refused_as_by_another_decoder() {
        let rng = &mut fastrand::Rng::with_seed(2);
        let mut refused = 0;
        for round in 0..8000 {
            let mut block = [0; PAGE + PAGE / 4];
            let mut bytes = compress_into(&page(rng), &mut block).unwrap();
            for _ in 0..rng.usize(1..4) {
                block[rng.usize(0..bytes)] = rng.u8(..);
            }
            if rng.u32(0..4) == 0 {
                bytes = rng.usize(0..bytes);
            }
            let (mut ours, mut theirs) = ([0; PAGE], [0; PAGE]);
            let done = unpack(&block[..bytes], &mut ours);
            let expected = decompress_into(&block[..bytes], &mut theirs).ok().filter(|length| *length == PAGE);
            refused += u32::from(done.is_none());
            // A block that ends with a match is against the format; one of them takes it.
            if done.is_some() && expected.is_some() {
                assert!(ours == theirs, "round {round}");
            }
            assert!(done.is_none() || expected.is_some(), "round {round}: only we take it");
        }
        assert!(refused > 2000, "{refused} of 8000 were refused");
    }

    #[test]
    fn what_is_not_a_block_of_a_page_is_refused() {
        for block in [&[][..], &[0], &[0xF0], &[0xFF; 40], &[0x10, 7], &[0x00, 0, 0], &[0x1F, 7, 2, 0, 255], &[0x1F, 7, 0, 0, 0]]
        {
            assert_eq!(unpack(block, &mut [0; PAGE]), None, "{block:?}");
        }
        // A literal and 4095 copies of it are a page only with the literals that end it.
        let mut block = vec![0x1F, 7, 1, 0];
        let length: usize = PAGE - 1 - 5 - 19;
        block.extend(std::iter::repeat_n(255, length / 255));
        block.extend([u8::try_from(length % 255).unwrap(), 0x50, 7, 7, 7, 7, 7]);
        let mut page = [0; PAGE];
        assert_eq!((unpack(&block, &mut page), page), (Some(()), [7; PAGE]));
        block.pop();
        assert_eq!(unpack(&block, &mut page), None);
    }
}
