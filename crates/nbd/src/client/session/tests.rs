//! Replies as the server of this crate makes them, in any order and any pieces; and replies that break the
//! rules.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::server::ReplyTo;
use crate::{TransmissionFlags, WireError};

const FRAMINGS: [Framing; 3] = [Framing::Simple, Framing::Structured, Framing::Extended];

fn entered(framing: Framing) -> Entered {
    Entered {
        size_bytes: 1 << 30,
        flags: TransmissionFlags::HAS_FLAGS,
        framing,
        minimum_bytes: 1,
        preferred_bytes: 4096,
        maximum_bytes: 1 << 25,
        allocation: Some(1),
    }
}

/// A client with its requests' memory, as far as they are reads.
struct Bed {
    session: Session,
    framing: Framing,
    memory: Vec<Vec<u8>>,
    ended: Vec<Ended>,
}

impl Bed {
    fn new(framing: Framing) -> Self {
        Self { session: Session::new(&entered(framing)), framing, memory: Vec::new(), ended: Vec::new() }
    }

    /// Starts a request; what the server has to reply to.
    fn start(&mut self, ask: Ask, offset: u64, length: u64) -> ReplyTo {
        let mut out = Vec::new();
        let slot = self.session.start(ask, offset, length, &mut out);
        let (header, used) = crate::server::parse_request(&out, self.framing).unwrap().expect("a whole request");
        assert_eq!((used, header.offset, header.length), (out.len(), offset, length));
        if self.memory.len() <= slot {
            self.memory.resize(slot + 1, Vec::new());
        }
        self.memory[slot] = vec![0xee; if ask == Ask::Read { usize::try_from(length).unwrap() } else { 0 }];
        ReplyTo { cookie: header.cookie, offset }
    }

    /// Takes in all of `input`, `piece` bytes at a time.
    fn hear(&mut self, input: &[u8], piece: usize) -> Result<(), Violation> {
        let (mut buffer, mut rest) = (Vec::new(), input);
        loop {
            self.take_all(&mut buffer)?;
            if rest.is_empty() {
                return Ok(());
            }
            let (head, tail) = rest.split_at(piece.min(rest.len()));
            buffer.extend(head);
            rest = tail;
        }
    }

    fn take_all(&mut self, buffer: &mut Vec<u8>) -> Result<(), Violation> {
        loop {
            if let Some(payload) = self.session.payload() {
                let bytes = buffer.len().min(payload.bytes as usize);
                let skip = payload.skip as usize;
                self.memory[payload.slot][skip..skip + bytes].copy_from_slice(&buffer[..bytes]);
                buffer.drain(..bytes);
                let ended = self.session.received(u32::try_from(bytes).unwrap())?;
                self.ended.extend(ended);
                if bytes < payload.bytes as usize {
                    return Ok(());
                }
                continue;
            }
            let (used, took) = self.session.take(buffer)?;
            buffer.drain(..used);
            match took {
                Took::NeedMore(bytes) => {
                    assert!(used == 0 && bytes > buffer.len() && bytes < 8192, "{bytes}");
                    return Ok(());
                }
                Took::Nothing | Took::Payload => assert!(used > 0),
                Took::Zeroes(at) => self.memory[at.slot][at.skip as usize..][..at.bytes as usize].fill(0),
                Took::Ended(ended) => self.ended.push(ended),
            }
        }
    }
}

/// Appends the reply to a read of `data` in pieces that end at `cuts`, in an order that `shuffle` tells;
/// runs of zeroes are told as holes.
fn put_pieces(framing: Framing, out: &mut Vec<u8>, to: ReplyTo, data: &[u8], cuts: &[usize], shuffle: u64) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % data.len()).chain([0, data.len()]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<(usize, usize)> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
    let turn = usize::try_from(shuffle).unwrap() % pieces.len();
    pieces.rotate_left(turn);
    if shuffle % 2 == 1 {
        pieces.reverse();
    }
    for (number, &(from, end)) in pieces.iter().enumerate() {
        let (last, length) = (number + 1 == pieces.len(), u32::try_from(end - from).unwrap());
        let offset = to.offset + from as u64;
        if data[from..end].iter().all(|byte| *byte == 0) {
            framing.put_read_hole(out, to, offset, length, last);
        } else {
            framing.put_read_part(out, to, offset, length, last);
            out.extend(&data[from..end]);
        }
    }
}

proptest! {
    #[test]
    fn reads_are_filled_however_they_are_answered(
        framing in 0_usize..3,
        data in vec(vec(prop_oneof![Just(0_u8), any::<u8>()], 1..200), 1..6),
        cuts in vec(any::<usize>(), 0..6),
        shuffle in 0_u64..8,
        piece in 1_usize..300,
    ) {
        let framing = FRAMINGS[framing];
        let mut bed = Bed::new(framing);
        let asked: Vec<_> = data.iter().enumerate().map(|(at, data)| bed.start(Ask::Read, at as u64 * 4096, data.len() as u64)).collect();
        let mut input = Vec::new();
        for (to, data) in asked.iter().zip(&data).rev() {
            if framing == Framing::Simple {
                framing.put_read(&mut input, *to, u32::try_from(data.len()).unwrap());
                input.extend(data);
            } else {
                put_pieces(framing, &mut input, *to, data, &cuts, shuffle);
            }
        }
        prop_assert_eq!(bed.hear(&input, piece), Ok(()));
        prop_assert_eq!(bed.ended.len(), data.len());
        prop_assert!(bed.ended.iter().all(|ended| ended.error.is_none()));
        prop_assert_eq!(bed.memory, data);
    }

    #[test]
    fn no_bytes_write_outside_of_a_read_or_make_the_client_panic(
        framing in 0_usize..3,
        reads in 0_u64..3,
        chunks in vec((any::<bool>(), 0_u16..9, 0_u64..4, vec(any::<u8>(), 0..40), 0_u32..60), 0..12),
        piece in 1_usize..300,
    ) {
        let framing = FRAMINGS[framing];
        let mut bed = Bed::new(framing);
        let mut asked: Vec<_> = (0..reads).map(|at| bed.start(Ask::Read, at * 16, 16)).collect();
        asked.push(bed.start(Ask::Status, 0, 4096));
        asked.push(bed.start(Ask::Flush, 0, 0));
        let mut input = Vec::new();
        for (valid, kind, whom, body, length) in chunks {
            let to = asked[usize::try_from(whom).unwrap() % asked.len()];
            let cookie = if valid { to.cookie } else { to.cookie ^ (1 << length) };
            match framing {
                Framing::Simple => {
                    input.put_u32(MAGIC_REPLY_SIMPLE);
                    input.put_u32(length / 40);
                    input.put_u64(cookie);
                }
                Framing::Structured | Framing::Extended => {
                    input.put_u32(if framing == Framing::Extended { MAGIC_REPLY_EXTENDED } else { MAGIC_REPLY_STRUCTURED });
                    input.put_u16(u16::from(length % 2 == 1));
                    input.put_u16(if kind > 6 { 0x8000 + kind - 6 } else { kind });
                    input.put_u64(cookie);
                    if framing == Framing::Extended {
                        input.put_u64(0);
                        input.put_u64(u64::from(length));
                    } else {
                        input.put_u32(length);
                    }
                    if valid {
                        input.put_u64(to.offset + u64::from(length % 5));
                    }
                }
            }
            input.extend(body);
        }
        // Every write to memory is an index into a vector: one that is outside panics.
        let _ = bed.hear(&input, piece);
    }
}

#[test]
fn everything_without_data_ends_in_every_framing() {
    for framing in FRAMINGS {
        let mut bed = Bed::new(framing);
        let asks = [Ask::Write { fua: true }, Ask::Flush, Ask::Trim, Ask::WriteZeroes { no_hole: true }];
        let asked = asks.map(|ask| bed.start(ask, 512, 512));
        let mut input = Vec::new();
        asked[..3].iter().for_each(|to| framing.put_done(&mut input, *to));
        framing.put_error(&mut input, asked[3], WireError::NoSpace, "full");
        bed.hear(&input, 3).unwrap();
        let errors: Vec<_> = bed.ended.iter().map(|ended| ended.error).collect();
        assert_eq!(errors, [None, None, None, Some(28)], "{framing:?}");
    }
}

#[test]
fn a_slot_is_used_again_and_a_late_reply_to_its_former_request_is_not_taken() {
    let mut bed = Bed::new(Framing::Simple);
    let first = bed.start(Ask::Flush, 0, 0);
    let mut input = Vec::new();
    Framing::Simple.put_done(&mut input, first);
    bed.hear(&input, 16).unwrap();
    let second = bed.start(Ask::Flush, 0, 0);
    assert_eq!(first.cookie & 0xffff_ffff, second.cookie & 0xffff_ffff);
    assert_eq!(bed.hear(&input, 16), Err(Violation::Cookie));
}

#[test]
fn status_is_taken_extent_by_extent() {
    for framing in [Framing::Structured, Framing::Extended] {
        let mut bed = Bed::new(framing);
        let to = bed.start(Ask::Status, 0, 1 << 20);
        let extents: Vec<_> =
            (1..300).map(|at| StatusExtent { length: at * 512, state: u32::try_from(at % 2 * 3).unwrap() }).collect();
        let mut input = Vec::new();
        framing.put_status(&mut input, to, 1 << 29, false, extents.iter().copied());
        bed.hear(&input, 11).unwrap();
        assert_eq!(bed.ended, [Ended { slot: 0, error: None, extents }]);
    }
}

/// What comes of a reply to a read of 100 bytes at 1,000.
fn broken(framing: Framing, put: impl FnOnce(&mut Vec<u8>, ReplyTo)) -> Result<(), Violation> {
    let mut bed = Bed::new(framing);
    let to = bed.start(Ask::Read, 1000, 100);
    let mut input = Vec::new();
    put(&mut input, to);
    bed.hear(&input, 1 << 20)
}

#[test]
fn a_read_that_is_not_answered_in_full_or_twice_is_a_violation() {
    let framing = Framing::Structured;
    assert_eq!(broken(framing, |out, to| framing.put_read_hole(out, to, 1000, 99, true)), Err(Violation::Missing));
    assert_eq!(broken(framing, |out, to| framing.put_empty_read(out, to)), Err(Violation::Missing));
    assert_eq!(broken(framing, |out, to| Framing::Simple.put_done(out, to)), Err(Violation::Missing));
    assert_eq!(broken(framing, |out, to| framing.put_read_part(out, to, 1000, 101, true)), Err(Violation::Range));
    assert_eq!(broken(framing, |out, to| framing.put_read_part(out, to, 999, 10, true)), Err(Violation::Range));
    let twice = broken(framing, |out, to| {
        framing.put_read_hole(out, to, 1000, 50, false);
        framing.put_read_hole(out, to, 1049, 51, true);
    });
    assert_eq!(twice, Err(Violation::Range));
    assert_eq!(broken(framing, |out, _| out.extend([0; 16])), Err(Violation::Magic(0)));
    assert_eq!(
        broken(Framing::Extended, |out, to| framing.put_read(out, to, 100)),
        Err(Violation::Magic(MAGIC_REPLY_STRUCTURED))
    );
}

#[test]
fn an_error_in_the_middle_of_a_read_is_its_error() {
    for framing in [Framing::Structured, Framing::Extended] {
        let mut bed = Bed::new(framing);
        let to = bed.start(Ask::Read, 0, 100);
        let mut input = Vec::new();
        framing.put_read_hole(&mut input, to, 0, 50, false);
        framing.put_error_at(&mut input, to, WireError::Io, "bad sector", 50);
        bed.hear(&input, 5).unwrap();
        assert_eq!(bed.ended, [Ended { slot: 0, error: Some(5), extents: Vec::new() }]);
    }
}

#[test]
fn the_last_words_of_a_connection_are_one_whole_request_behind_what_is_there() {
    for framing in FRAMINGS {
        let mut out = b"unsent".to_vec();
        Session::new(&entered(framing)).put_disconnect(&mut out);
        let (header, used) = crate::server::parse_request(&out[6..], framing).unwrap().expect("a whole request");
        assert_eq!((&out[..6], used, header.kind), (&b"unsent"[..], out.len() - 6, cmd::DISC), "{framing:?}");
    }
}

/// Appends a chunk with this body, the last or not the last of its reply.
fn put_chunk(framing: Framing, out: &mut Vec<u8>, to: ReplyTo, kind: u16, last: bool, body: &[u32]) {
    out.put_u32(if framing == Framing::Extended { MAGIC_REPLY_EXTENDED } else { MAGIC_REPLY_STRUCTURED });
    out.put_u16(u16::from(last));
    out.put_u16(kind);
    out.put_u64(to.cookie);
    let length = u32::try_from(body.len() * 4).unwrap();
    if framing == Framing::Extended {
        out.put_u64(to.offset);
        out.put_u64(u64::from(length));
    } else {
        out.put_u32(length);
    }
    for word in body {
        out.put_u32(*word);
    }
}

/// What comes of a reply to a block status that is made of these chunks.
fn status_of(framing: Framing, chunks: &[(u16, &[u32])]) -> Result<Vec<Ended>, Violation> {
    let mut bed = Bed::new(framing);
    let to = bed.start(Ask::Status, 0, 1 << 20);
    let mut input = Vec::new();
    for (at, (kind, body)) in chunks.iter().enumerate() {
        put_chunk(framing, &mut input, to, *kind, at + 1 == chunks.len(), body);
    }
    bed.hear(&input, 1 << 20).map(|()| bed.ended)
}

#[test]
fn a_block_status_that_contradicts_itself_or_what_was_asked_is_a_violation() {
    let (compact, wide) = (chunk::BLOCK_STATUS, chunk::BLOCK_STATUS_EXT);
    let ended = |extents| Ok(vec![Ended { slot: 0, error: None, extents }]);
    let extent = StatusExtent { length: 512, state: 3 };
    let structured = |chunks: &[(u16, &[u32])]| status_of(Framing::Structured, chunks);
    assert_eq!(structured(&[(compact, &[1, 512, 3])]), ended(vec![extent]));
    assert_eq!(structured(&[(compact, &[1, 512, 0xff03])]), ended(vec![extent]), "bits that nobody knows say nothing");
    assert_eq!(structured(&[(compact, &[2, 512, 3])]), Err(Violation::Status), "of a context that was not selected");
    assert_eq!(structured(&[(compact, &[1, 0, 3])]), Err(Violation::Status), "an extent of nothing");
    assert_eq!(structured(&[(compact, &[1, 512, 3]), (compact, &[1, 512, 3])]), Err(Violation::Status), "told twice");
    assert_eq!(structured(&[(compact, &[1])]), Err(Violation::Length(4)));
    assert_eq!(structured(&[(compact, &[1, 512])]), Err(Violation::Length(8)));
    assert_eq!(structured(&[(wide, &[1, 1, 0, 512, 0, 3])]), Err(Violation::Kind(wide)));
    let extended = |chunks: &[(u16, &[u32])]| status_of(Framing::Extended, chunks);
    assert_eq!(extended(&[(wide, &[1, 1, 0, 512, 0, 3])]), ended(vec![extent]));
    assert_eq!(extended(&[(wide, &[1, 2, 0, 512, 0, 3])]), Err(Violation::Status), "the count is not that of the extents");
    assert_eq!(extended(&[(wide, &[2, 1, 0, 512, 0, 3])]), Err(Violation::Status));
    assert_eq!(extended(&[(compact, &[1, 512, 3])]), Err(Violation::Kind(compact)));
}

#[test]
fn of_a_block_status_without_end_the_first_1024_extents_are_kept() {
    let body: Vec<u32> = std::iter::once(1).chain((0..1500).flat_map(|_| [512, 0])).collect();
    let ended = status_of(Framing::Structured, &[(chunk::BLOCK_STATUS, &body)]).unwrap();
    assert_eq!(ended[0].extents.len(), 1024);
}
