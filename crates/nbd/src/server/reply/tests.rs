//! Replies as a client reads them back.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::wire::Reader;

const TO: ReplyTo = ReplyTo { cookie: 0x1122_3344_5566_7788, offset: 4096 };
const HOLE: u32 = StatusExtent::HOLE;
const ZERO: u32 = StatusExtent::ZERO;

/// A reply, or a chunk of one, as a client sees it.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Simple { cookie: u64, error: u32 },
    Chunk { cookie: u64, offset: Option<u64>, done: bool, kind: u16, payload: Vec<u8> },
}

/// Reads one head with `data` bytes of data left out of its payload.
fn see(bytes: &[u8], data: u64) -> Seen {
    let mut reader = Reader(bytes);
    let magic = reader.u32().unwrap();
    if magic == 0x6744_6698 {
        let error = reader.u32().unwrap();
        let cookie = reader.u64().unwrap();
        assert!(reader.is_empty());
        return Seen::Simple { cookie, error };
    }
    let extended = magic == 0x6e8a_278c;
    assert!(extended || magic == 0x668e_33ef);
    let flags = reader.u16().unwrap();
    assert!(flags < 2, "no flag but DONE is known");
    let kind = reader.u16().unwrap();
    let cookie = reader.u64().unwrap();
    let offset = extended.then(|| reader.u64().unwrap());
    let length = if extended { reader.u64().unwrap() } else { u64::from(reader.u32().unwrap()) };
    let payload = reader.0.to_vec();
    assert_eq!(length, u64::try_from(payload.len()).unwrap() + data);
    Seen::Chunk { cookie, offset, done: flags == 1, kind, payload }
}

fn chunk_of(framing: Framing, kind: u16, done: bool, payload: Vec<u8>) -> Seen {
    let offset = (framing == Framing::Extended).then_some(TO.offset);
    Seen::Chunk { cookie: TO.cookie, offset, done, kind, payload }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    // What was there before stays.
    let mut out = b"before".to_vec();
    write(&mut out);
    assert_eq!(&out[..6], b"before");
    out.split_off(6)
}

const CHUNKED: [Framing; 2] = [Framing::Structured, Framing::Extended];

#[test]
fn success_without_payload_is_simple_except_with_extended_headers() {
    for framing in [Framing::Simple, Framing::Structured] {
        let out = written(|out| framing.put_done(out, TO));
        assert_eq!(see(&out, 0), Seen::Simple { cookie: TO.cookie, error: 0 });
    }
    let out = written(|out| Framing::Extended.put_done(out, TO));
    assert_eq!(out.len(), 32);
    assert_eq!(see(&out, 0), chunk_of(Framing::Extended, 0, true, vec![]));
}

#[test]
fn a_simple_reply_is_laid_out_as_the_protocol_says() {
    let out = written(|out| Framing::Simple.put_error(out, TO, WireError::NoSpace, "full"));
    assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\x1c\x11\x22\x33\x44\x55\x66\x77\x88");
}

#[test]
fn a_structured_chunk_is_laid_out_as_the_protocol_says() {
    let out = written(|out| Framing::Structured.put_read(out, TO, 512));
    let expected = b"\x66\x8e\x33\xef\0\x01\0\x01\x11\x22\x33\x44\x55\x66\x77\x88\0\0\x02\x08\0\0\0\0\0\0\x10\0";
    assert_eq!(out, expected);
}

#[test]
fn an_extended_chunk_is_laid_out_as_the_protocol_says() {
    let out = written(|out| Framing::Extended.put_read_part(out, TO, 8192, 512, false));
    let expected = b"\x6e\x8a\x27\x8c\0\0\0\x01\x11\x22\x33\x44\x55\x66\x77\x88\
        \0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x02\x08\0\0\0\0\0\0\x20\0";
    assert_eq!(out, expected);
}

#[test]
fn errors_carry_their_sentence_where_there_is_room() {
    let error = WireError::Io;
    let out = written(|out| Framing::Simple.put_error_at(out, TO, error, "disk", 5000));
    assert_eq!(see(&out, 0), Seen::Simple { cookie: TO.cookie, error: 5 });
    for framing in CHUNKED {
        let out = written(|out| framing.put_error(out, TO, error, "disk"));
        let payload = b"\0\0\0\x05\0\x04disk".to_vec();
        assert_eq!(see(&out, 0), chunk_of(framing, 0x8001, true, payload));
        let out = written(|out| framing.put_error_at(out, TO, error, "", 5000));
        let payload = b"\0\0\0\x05\0\0\0\0\0\0\0\0\x13\x88".to_vec();
        assert_eq!(see(&out, 0), chunk_of(framing, 0x8002, true, payload));
    }
}

#[test]
fn a_read_may_come_in_parts_and_holes() {
    for framing in CHUNKED {
        let out = written(|out| framing.put_read_part(out, TO, 4096, 1024, false));
        let place = b"\0\0\0\0\0\0\x10\0".to_vec();
        assert_eq!(see(&out, 1024), chunk_of(framing, 1, false, place));
        let out = written(|out| framing.put_read_hole(out, TO, 5120, 1024, true));
        let hole = b"\0\0\0\0\0\0\x14\0\0\0\x04\0".to_vec();
        assert_eq!(see(&out, 0), chunk_of(framing, 2, true, hole));
    }
}

#[test]
fn a_read_of_nothing_has_no_content_chunk() {
    let out = written(|out| Framing::Simple.put_empty_read(out, TO));
    assert_eq!(see(&out, 0), Seen::Simple { cookie: TO.cookie, error: 0 });
    for framing in CHUNKED {
        let out = written(|out| framing.put_empty_read(out, TO));
        assert_eq!(see(&out, 0), chunk_of(framing, 0, true, vec![]));
    }
}

#[test]
fn reads_of_the_greatest_length_fit() {
    let length = PAYLOAD_BYTES_MAX;
    for framing in CHUNKED {
        let out = written(|out| framing.put_read(out, TO, length));
        see(&out, u64::from(length));
    }
    let out = written(|out| Framing::Simple.put_read(out, TO, length));
    assert_eq!(out.len(), 16);
}

/// The extents told by a block status reply.
fn told(framing: Framing, length: u64, one: bool, extents: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let extents = extents.iter().map(|(length, state)| StatusExtent { length: *length, state: *state });
    let out = written(|out| framing.put_status(out, TO, length, one, extents));
    let Seen::Chunk { cookie, offset, done, kind, payload } = see(&out, 0) else { panic!("simple") };
    let extended = framing == Framing::Extended;
    assert_eq!((cookie, done), (TO.cookie, true));
    assert_eq!((offset, kind), if extended { (Some(TO.offset), 6) } else { (None, 5) });
    let mut reader = Reader(&payload);
    assert_eq!(reader.u32(), Some(1), "the id that was negotiated");
    let count = extended.then(|| reader.u32().unwrap());
    let mut told = Vec::new();
    while !reader.is_empty() {
        if extended {
            let length = reader.u64().unwrap();
            told.push((length, u32::try_from(reader.u64().unwrap()).unwrap()));
        } else {
            told.push((u64::from(reader.u32().unwrap()), reader.u32().unwrap()));
        }
    }
    assert!(count.is_none_or(|count| count == u32::try_from(told.len()).unwrap()));
    told
}

#[test]
fn block_status_tells_extents_up_to_the_first_that_reaches_the_end() {
    for framing in CHUNKED {
        let extents = [(512, 0), (1024, HOLE | ZERO), (4096, 0), (512, HOLE)];
        assert_eq!(told(framing, 2048, false, &extents), extents[..3]);
        assert_eq!(told(framing, 1536, false, &extents), extents[..2]);
        assert_eq!(told(framing, 1, false, &extents), extents[..1]);
    }
}

#[test]
fn equal_neighbours_become_one_extent() {
    for framing in CHUNKED {
        let extents = [(512, 0), (512, 0), (512, ZERO), (1024, ZERO), (512, 0)];
        assert_eq!(told(framing, 1 << 20, false, &extents), [(1024, 0), (1536, ZERO), (512, 0)]);
    }
}

#[test]
fn a_request_for_one_extent_gets_one_within_its_range() {
    for framing in CHUNKED {
        let extents = [(4096, 0), (4096, 0), (4096, ZERO)];
        assert_eq!(told(framing, 5000, true, &extents), [(5000, 0)]);
        assert_eq!(told(framing, 1 << 20, true, &extents), [(8192, 0)]);
    }
}

#[test]
fn extents_beyond_32_bits_are_whole_when_extended_and_cut_aligned_otherwise() {
    let long = 1_u64 << 40;
    let extents = [(512, 0), (long, HOLE), (512, 0)];
    assert_eq!(told(Framing::Extended, 2 * long, false, &extents), extents);
    let cut = (1_u64 << 32) - (1 << 16);
    // After a cut extent nothing more is told, because it would be told at the wrong place.
    let asked = u64::from(u32::MAX);
    assert_eq!(told(Framing::Structured, asked, false, &extents), [(512, 0), (cut, HOLE)]);
    assert_eq!(told(Framing::Structured, 512, true, &[(long, 0)]), [(512, 0)]);
}

#[test]
fn block_status_is_bounded() {
    let many: Vec<_> = (0..20_000).map(|index| (512, index % 2)).collect();
    for framing in CHUNKED {
        let told = told(framing, 1 << 30, false, &many);
        assert_eq!(told.len(), usize::try_from(STATUS_EXTENTS_MAX).unwrap());
        assert_eq!(told, many[..told.len()]);
    }
}

#[test]
fn the_longest_read_is_answered_in_every_framing() {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        assert!(!written(|out| framing.put_read(out, ReplyTo { cookie: 1, offset: 0 }, PAYLOAD_BYTES_MAX)).is_empty());
    }
}

#[test]
#[should_panic(expected = "a content chunk is not empty")]
fn a_read_of_no_bytes_that_is_answered_with_content_is_a_bug_of_the_caller() {
    written(|out| Framing::Simple.put_read(out, ReplyTo { cookie: 1, offset: 0 }, 0));
}

#[test]
#[should_panic(expected = "a read is at most 32 MiB")]
fn content_that_is_longer_than_any_read_is_a_bug_of_the_caller() {
    written(|out| Framing::Extended.put_read_hole(out, ReplyTo { cookie: 1, offset: 0 }, 0, PAYLOAD_BYTES_MAX + 1, true));
}

#[test]
#[should_panic(expected = "simple replies have no chunks")]
fn block_status_with_simple_replies_is_a_bug_of_the_caller() {
    told(Framing::Simple, 512, false, &[(512, 0)]);
}

proptest! {
    #[test]
    fn block_status_tells_what_is_there(
        extents in vec((1_u64..100, 0_u32..4), 1..50),
        length in 1_u64..5000,
        one in any::<bool>(),
        extended in any::<bool>(),
    ) {
        let framing = if extended { Framing::Extended } else { Framing::Structured };
        let told = told(framing, length, one, &extents);
        // Byte by byte: the state told is the state given.
        let state_of = |list: &[(u64, u32)]| -> Vec<u32> {
            list.iter().flat_map(|(length, state)| (0..*length).map(|_| *state)).collect()
        };
        let (told_bytes, given) = (state_of(&told), state_of(&extents));
        prop_assert!(!told_bytes.is_empty() && told_bytes.len() <= given.len());
        prop_assert_eq!(&told_bytes[..], &given[..told_bytes.len()]);
        prop_assert!(told.windows(2).all(|pair| pair[0].1 != pair[1].1));
        let asked = usize::try_from(length).unwrap();
        if one {
            prop_assert_eq!(told.len(), 1);
            prop_assert!(told_bytes.len() <= asked);
        } else {
            prop_assert!(told_bytes.len() >= asked.min(given.len()));
            let before_last = told_bytes.len() - usize::try_from(told[told.len() - 1].0).unwrap();
            prop_assert!(before_last < asked);
        }
    }

    #[test]
    fn errors_survive_encoding_and_reading(
        text in "[a-z ]{0,100}",
        at in any::<u64>(),
        cookie in any::<u64>(),
        offset in any::<u64>(),
    ) {
        let to = ReplyTo { cookie, offset };
        for framing in CHUNKED {
            let out = written(|out| framing.put_error_at(out, to, WireError::TooLarge, &text, at));
            let Seen::Chunk { cookie: seen, offset: repeated, done, payload, .. } = see(&out, 0) else {
                panic!("simple")
            };
            prop_assert_eq!((seen, done), (cookie, true));
            prop_assert!(repeated.is_none_or(|repeated| repeated == offset));
            let mut reader = Reader(&payload);
            prop_assert_eq!(reader.u32(), Some(75));
            let length = reader.u16().unwrap();
            prop_assert_eq!(reader.bytes(u32::from(length)).unwrap(), text.as_bytes());
            prop_assert_eq!(reader.u64(), Some(at));
            prop_assert!(reader.is_empty());
        }
    }
}
