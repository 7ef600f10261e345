//! Each behaviour of the negotiation, seen by a client that speaks bytes.

use super::super::export::{BlockBytes, Unaligned};
use super::*;
use crate::wire::{PutWire, Reader, info, rep};

mod metadata;

const FIXED: u32 = 1;
const FIXED_NO_ZEROES: u32 = 3;
const HAS_FLAGS: u16 = 1;
const SEND_FLUSH: u16 = 4;
const SEND_DF: u16 = 128;

fn export(name: &str, minimum: u32) -> Export {
    let sizes = BlockBytes::new(minimum, 4096).unwrap();
    Export::new(name, 1 << 30, TransmissionFlags::SEND_FLUSH, sizes).unwrap()
}

fn exports() -> Vec<Export> {
    vec![
        export("disk", 512).with_description("a disk").unwrap().as_default(),
        export("strict", 512).with_unaligned(Unaligned::Refused),
        export("bytes", 1).with_unaligned(Unaligned::Refused),
    ]
}

/// One answer of the server to an option.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    option: u32,
    kind: u32,
    data: Vec<u8>,
}

/// A client and the server's negotiation with it.
struct Client {
    handshake: Handshake,
    exports: Vec<Export>,
}

impl Client {
    fn greeted(flags: u32) -> Self {
        let mut out = Vec::new();
        let mut handshake = Handshake::start(&mut out);
        let progress = handshake.advance(&[], &flags.to_be_bytes(), &mut Vec::new());
        assert_eq!(progress, Progress { consumed: 4, step: Step::Continue });
        Self { handshake, exports: exports() }
    }

    fn new() -> Self {
        Self::greeted(FIXED)
    }

    fn structured() -> Self {
        let mut client = Self::new();
        assert_eq!(client.kinds(opt::STRUCTURED_REPLY, &[]), [rep::ACK]);
        client
    }

    /// Sends one option and returns what comes out and what comes next.
    fn raw(&mut self, kind: u32, data: &[u8]) -> (Vec<u8>, Step) {
        let mut out = Vec::new();
        let input = option(kind, data);
        let mut rest = input.as_slice();
        loop {
            let progress = self.handshake.advance(&self.exports, rest, &mut out);
            rest = &rest[progress.consumed..];
            if rest.is_empty() || !matches!(progress.step, Step::Continue) {
                return (out, progress.step);
            }
        }
    }

    fn send(&mut self, kind: u32, data: &[u8]) -> (Vec<Answer>, Step) {
        let (out, step) = self.raw(kind, data);
        let answers = answers(&out);
        assert!(answers.iter().all(|answer| answer.option == kind));
        (answers, step)
    }

    fn kinds(&mut self, kind: u32, data: &[u8]) -> Vec<u32> {
        self.send(kind, data).0.iter().map(|answer| answer.kind).collect()
    }

    fn go(&mut self, name: &str, wanted: &[u16]) -> Session {
        match self.send(opt::GO, &query(name, wanted)).1 {
            Step::Transmit(session) => session,
            other => panic!("GO ended in {other:?}"),
        }
    }
}

pub(super) fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64(MAGIC_OPTION);
    bytes.put_u32(kind);
    bytes.put_u32(u32::try_from(data.len()).unwrap());
    bytes.extend_from_slice(data);
    bytes
}

/// The data of INFO and GO.
pub(super) fn query(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.put_u16(u16::try_from(wanted.len()).unwrap());
    for kind in wanted {
        data.put_u16(*kind);
    }
    data
}

/// The data of the two options about contexts.
pub(super) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.put_u32(u32::try_from(queries.len()).unwrap());
    for query in queries {
        data.extend(text(query));
    }
    data
}

fn text(text: &str) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u32(u32::try_from(text.len()).unwrap());
    data.extend_from_slice(text.as_bytes());
    data
}

/// Takes a stream of answers apart; it must be whole.
pub(super) fn answers(bytes: &[u8]) -> Vec<Answer> {
    let mut reader = Reader(bytes);
    let mut answers = Vec::new();
    while !reader.is_empty() {
        assert_eq!(reader.u64(), Some(0x0003_e889_0455_65a9));
        let (option, kind) = (reader.u32().unwrap(), reader.u32().unwrap());
        let length = reader.u32().unwrap();
        answers.push(Answer { option, kind, data: reader.bytes(length).unwrap().to_vec() });
    }
    answers
}

/// The payload of the information of this kind.
fn told(answers: &[Answer], kind: u16) -> Option<Vec<u8>> {
    let mut found = answers.iter().filter(|answer| answer.kind == rep::INFO).filter_map(|answer| {
        let mut reader = Reader(&answer.data);
        (reader.u16() == Some(kind)).then(|| reader.0.to_vec())
    });
    let first = found.next();
    assert!(found.next().is_none(), "information comes once");
    first
}

#[test]
fn the_greeting_offers_fixed_newstyle_without_zeroes() {
    let mut out = Vec::new();
    let _handshake = Handshake::start(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_close_the_connection() {
    for flags in [4_u32, 1 << 31, 0xffff_ffff] {
        let mut handshake = Handshake::start(&mut Vec::new());
        let progress = handshake.advance(&[], &flags.to_be_bytes(), &mut Vec::new());
        assert_eq!(progress.step, Step::Close(Close::UnknownFlags));
    }
}

#[test]
fn an_option_without_its_magic_closes_the_connection_without_an_answer() {
    let mut client = Client::new();
    let mut out = Vec::new();
    let progress = client.handshake.advance(&client.exports, &[0x49; 16], &mut out);
    assert_eq!(progress.step, Step::Close(Close::BadMagic));
    assert!(out.is_empty());
}

#[test]
fn a_client_that_is_not_fixed_newstyle_may_only_send_export_name() {
    let (out, step) = Client::greeted(0).raw(opt::LIST, &[]);
    assert_eq!(step, Step::Close(Close::NotFixedNewstyle));
    assert!(out.is_empty());
    let (out, step) = Client::greeted(0).raw(opt::EXPORT_NAME, b"disk");
    assert!(matches!(step, Step::Transmit(_)));
    assert_eq!(out.len(), 134);
}

#[test]
fn export_name_tells_size_and_flags_and_zeroes_only_where_they_were_not_waived() {
    for (flags, length) in [(FIXED, 134), (FIXED_NO_ZEROES, 10)] {
        let (out, step) = Client::greeted(flags).raw(opt::EXPORT_NAME, b"disk");
        let Step::Transmit(session) = step else { panic!("{step:?}") };
        assert_eq!(out.len(), length);
        let mut reader = Reader(&out);
        assert_eq!(reader.u64(), Some(1 << 30));
        assert_eq!(reader.u16(), Some(HAS_FLAGS | SEND_FLUSH));
        assert!(reader.0.iter().all(|byte| *byte == 0));
        assert_eq!((session.export(), session.size_bytes()), (0, 1 << 30));
        assert_eq!(session.framing(), Framing::Simple);
        assert!(!session.client_knows_block_size());
    }
}

#[test]
fn export_name_that_cannot_be_granted_closes_the_connection_without_an_answer() {
    let long = "n".repeat(STRING_BYTES_MAX + 1);
    for (name, reason) in
        [("nothing", Close::UnknownExport), ("strict", Close::BlockSizesUnknown), (long.as_str(), Close::UnknownExport)]
    {
        let (out, step) = Client::new().raw(opt::EXPORT_NAME, name.as_bytes());
        assert_eq!(step, Step::Close(reason));
        assert!(out.is_empty());
    }
}

#[test]
fn export_name_after_extended_headers_closes_the_connection() {
    let mut client = Client::new();
    assert_eq!(client.kinds(opt::EXTENDED_HEADERS, &[]), [rep::ACK]);
    let (out, step) = client.raw(opt::EXPORT_NAME, b"disk");
    assert_eq!(step, Step::Close(Close::ExportNameAfterExtended));
    assert!(out.is_empty());
}

#[test]
fn abort_is_acknowledged_with_or_without_data_and_then_closes() {
    let long = vec![0; 100_000];
    for data in [&[][..], b"bye", &long] {
        let (answers, step) = Client::new().send(opt::ABORT, data);
        assert_eq!(step, Step::Close(Close::Aborted));
        assert_eq!(answers, [Answer { option: opt::ABORT, kind: rep::ACK, data: vec![] }]);
    }
}

#[test]
fn list_names_each_export_with_its_description_and_then_acknowledges() {
    let (answers, step) = Client::new().send(opt::LIST, &[]);
    assert_eq!(step, Step::Continue);
    let kinds: Vec<u32> = answers.iter().map(|answer| answer.kind).collect();
    assert_eq!(kinds, [rep::SERVER, rep::SERVER, rep::SERVER, rep::ACK]);
    assert_eq!(answers[0].data, b"\0\0\0\x04diska disk");
    assert_eq!(answers[1].data, b"\0\0\0\x06strict");
}

#[test]
fn options_without_data_refuse_data_and_the_negotiation_goes_on() {
    let long = vec![1; 40_000];
    let mut client = Client::new();
    for data in [&b"x"[..], &long] {
        for kind in [opt::LIST, opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS, opt::STARTTLS] {
            assert_eq!(client.kinds(kind, data), [rep::ERR_INVALID]);
        }
    }
    assert_eq!(client.go("disk", &[]).framing(), Framing::Simple);
}

#[test]
fn starttls_is_unsupported_and_keeps_what_was_negotiated() {
    let mut client = Client::structured();
    assert_eq!(client.kinds(opt::STARTTLS, &[]), [rep::ERR_UNSUP]);
    assert_eq!(client.go("disk", &[]).framing(), Framing::Structured);
}

#[test]
fn unknown_options_are_unsupported_and_their_data_is_dropped() {
    let (short, long) = (vec![7; 100], vec![7; 3_000_000]);
    let mut client = Client::new();
    for kind in [0, 4, 12, 0xffff_ffff] {
        for data in [&[][..], &short, &long] {
            assert_eq!(client.kinds(kind, data), [rep::ERR_UNSUP]);
        }
    }
    assert_eq!(client.go("disk", &[]).export(), 0);
}

#[test]
fn known_options_with_too_much_data_are_refused_after_it_is_dropped() {
    let mut client = Client::structured();
    let long = vec![0; 1_000_000];
    for kind in [opt::INFO, opt::GO, opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        assert_eq!(client.kinds(kind, &long), [rep::ERR_TOO_BIG]);
    }
    assert_eq!(client.go("disk", &[]).export(), 0);
}

#[test]
fn the_length_of_an_option_is_refused_before_its_data_arrives() {
    let mut client = Client::new();
    let mut header = option(opt::INFO, &[]);
    header.truncate(12);
    header.put_u32(u32::MAX);
    let progress = client.handshake.advance(&client.exports, &header, &mut Vec::new());
    assert_eq!(progress.step, Step::Close(Close::OversizedOption));
}

#[test]
fn a_client_that_never_stops_asking_is_dropped() {
    let mut client = Client::new();
    for _ in 0..OPTIONS_MAX {
        assert_eq!(client.kinds(opt::STARTTLS, &[]), [rep::ERR_UNSUP]);
    }
    assert_eq!(client.raw(opt::STARTTLS, &[]).1, Step::Close(Close::TooManyOptions));
}

#[test]
fn info_tells_what_was_asked_for_and_stays_in_the_negotiation() {
    let mut client = Client::new();
    let (plain, step) = client.send(opt::INFO, &query("disk", &[]));
    assert_eq!(step, Step::Continue);
    assert_eq!(told(&plain, info::EXPORT).unwrap().len(), 10);
    for kind in [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE] {
        assert_eq!(told(&plain, kind), None);
    }
    assert_eq!(plain.last().unwrap().kind, rep::ACK);
    // Unknown kinds are ignored, and a kind asked for twice is told once.
    let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::NAME, 31, 32, 0xffff];
    let (all, _) = client.send(opt::INFO, &query("disk", &wanted));
    assert_eq!(told(&all, info::NAME).unwrap(), b"disk");
    assert_eq!(told(&all, info::DESCRIPTION).unwrap(), b"a disk");
    let sizes = told(&all, info::BLOCK_SIZE).unwrap();
    let mut reader = Reader(&sizes);
    assert_eq!([reader.u32(), reader.u32(), reader.u32()], [Some(512), Some(4096), Some(32 << 20)]);
    let (bare, _) = client.send(opt::INFO, &query("strict", &[info::DESCRIPTION, info::BLOCK_SIZE]));
    assert_eq!(told(&bare, info::DESCRIPTION), None);
}

#[test]
fn the_default_export_answers_to_the_empty_name_and_tells_its_own() {
    let (answers, _) = Client::new().send(opt::INFO, &query("", &[]));
    assert_eq!(told(&answers, info::NAME).unwrap(), b"disk");
    assert_eq!(Client::new().go("", &[]).export(), 0);
    let (_, step) = Client::new().raw(opt::EXPORT_NAME, b"");
    assert!(matches!(step, Step::Transmit(session) if session.export() == 0));
}

#[test]
fn go_enters_the_export_and_remembers_whether_block_sizes_were_asked_for() {
    let blind = Client::new().go("disk", &[info::NAME]);
    assert!(!blind.client_knows_block_size());
    let knowing = Client::new().go("disk", &[info::BLOCK_SIZE]);
    assert!(knowing.client_knows_block_size());
    // What INFO told does not bind a client that enters without asking again.
    let mut client = Client::new();
    client.send(opt::INFO, &query("disk", &[info::BLOCK_SIZE]));
    assert!(!client.go("disk", &[]).client_knows_block_size());
}

#[test]
fn an_export_for_clients_that_know_block_sizes_says_so_and_tells_them() {
    let mut client = Client::new();
    for kind in [opt::INFO, opt::GO] {
        let (answers, step) = client.send(kind, &query("strict", &[]));
        assert_eq!(step, Step::Continue);
        assert!(told(&answers, info::BLOCK_SIZE).is_some());
        assert_eq!(answers.last().unwrap().kind, rep::ERR_BLOCK_SIZE_REQD);
    }
    assert!(client.go("strict", &[info::BLOCK_SIZE]).client_knows_block_size());
    assert_eq!(Client::new().go("bytes", &[]).export(), 2, "bytes have no alignment to know");
}

#[test]
fn info_and_go_refuse_unknown_names_and_malformed_data_and_the_negotiation_goes_on() {
    let mut client = Client::new();
    for kind in [opt::INFO, opt::GO] {
        assert_eq!(client.kinds(kind, &query("nothing", &[])), [rep::ERR_UNKNOWN]);
        assert_eq!(client.kinds(kind, &query("\u{0}", &[])), [rep::ERR_UNKNOWN]);
        let good = query("disk", &[info::NAME]);
        for cut in 0..good.len() {
            assert_eq!(client.kinds(kind, &good[..cut]), [rep::ERR_INVALID], "cut at {cut}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(client.kinds(kind, &longer), [rep::ERR_INVALID]);
        let over_long = query(&"n".repeat(STRING_BYTES_MAX + 1), &[]);
        assert_eq!(client.kinds(kind, &over_long), [rep::ERR_INVALID]);
        let longest = query(&"n".repeat(STRING_BYTES_MAX), &[]);
        assert_eq!(client.kinds(kind, &longest), [rep::ERR_UNKNOWN]);
    }
    assert_eq!(client.go("disk", &[]).export(), 0);
}

#[test]
fn a_name_of_the_greatest_length_is_found() {
    let name = "n".repeat(STRING_BYTES_MAX);
    let mut client = Client::greeted(FIXED_NO_ZEROES);
    client.exports.push(export(&name, 1));
    assert_eq!(client.go(&name, &[]).export(), 3);
    let mut client = Client::greeted(FIXED_NO_ZEROES);
    client.exports.push(export(&name, 1));
    assert!(matches!(client.raw(opt::EXPORT_NAME, name.as_bytes()).1, Step::Transmit(_)));
}

#[test]
fn df_is_offered_only_with_structured_or_extended_replies() {
    for (option, offered, framing) in [
        (None, 0, Framing::Simple),
        (Some(opt::STRUCTURED_REPLY), SEND_DF, Framing::Structured),
        (Some(opt::EXTENDED_HEADERS), SEND_DF, Framing::Extended),
    ] {
        let mut client = Client::new();
        if let Some(option) = option {
            assert_eq!(client.kinds(option, &[]), [rep::ACK]);
        }
        let (answers, step) = client.send(opt::GO, &query("disk", &[]));
        let export = told(&answers, info::EXPORT).unwrap();
        let flags = u16::from_be_bytes([export[8], export[9]]);
        assert_eq!(flags, HAS_FLAGS | SEND_FLUSH | offered);
        let Step::Transmit(session) = step else { panic!("{step:?}") };
        assert_eq!((session.framing(), session.flags().bits()), (framing, flags));
    }
}

#[test]
fn extended_headers_take_precedence_over_structured_replies() {
    let mut client = Client::structured();
    assert_eq!(client.kinds(opt::EXTENDED_HEADERS, &[]), [rep::ACK]);
    assert_eq!(client.kinds(opt::STRUCTURED_REPLY, &[]), [rep::ERR_EXT_HEADER_REQD]);
    assert_eq!(client.go("disk", &[]).framing(), Framing::Extended);
}

#[test]
fn a_server_that_shuts_down_refuses_everything_but_abort() {
    let mut client = Client::new();
    client.handshake.shut_down();
    for kind in [opt::LIST, opt::GO, opt::STARTTLS, opt::SET_META_CONTEXT, 77] {
        assert_eq!(client.kinds(kind, &query("disk", &[])), [rep::ERR_SHUTDOWN]);
    }
    assert_eq!(client.kinds(77, &vec![0; 50_000]), [rep::ERR_SHUTDOWN]);
    assert_eq!(client.raw(opt::ABORT, &[]).1, Step::Close(Close::Aborted));
    let mut client = Client::new();
    client.handshake.shut_down();
    assert_eq!(client.raw(opt::EXPORT_NAME, b"disk").1, Step::Close(Close::ShuttingDown));
}

#[test]
#[should_panic(expected = "the negotiation is over")]
fn going_on_after_the_end_is_a_bug_of_the_caller() {
    let mut client = Client::new();
    client.raw(opt::ABORT, &[]);
    client.raw(opt::LIST, &[]);
}
