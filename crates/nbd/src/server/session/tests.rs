//! Each rule about requests, and laws that hold for any of them.

use proptest::prelude::*;

use super::super::export::BlockBytes;
use super::*;
use crate::wire::PutWire;

const SIZE: u64 = 1 << 30;
const MAX: u64 = PAYLOAD_BYTES_MAX as u64;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;
const PAYLOAD_LEN: u16 = 32;

/// Everything an export can offer, with a minimum block size of 512 bytes.
fn all_flags() -> TransmissionFlags {
    TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::SEND_TRIM
        | TransmissionFlags::SEND_WRITE_ZEROES
        | TransmissionFlags::SEND_FAST_ZERO
        | TransmissionFlags::SEND_CACHE
}

fn session_with(flags: TransmissionFlags, framing: Framing, known: bool) -> Session {
    let sizes = BlockBytes::new(512, 4096).unwrap();
    let export = Export::new("disk", SIZE, flags, sizes).unwrap();
    let df = if framing == Framing::Simple { TransmissionFlags::HAS_FLAGS } else { TransmissionFlags::SEND_DF };
    Session::new(0, &export, export.flags | df, framing, framing != Framing::Simple, known)
}

fn session(framing: Framing) -> Session {
    session_with(all_flags(), framing, false)
}

fn header(kind: u16, flags: u16, offset: u64, length: u64) -> RequestHeader {
    RequestHeader { flags: CommandFlags::from_bits(flags), kind, cookie: 77, offset, length }
}

/// The verdict on a write, which carries its flag with extended headers.
fn write(session: &Session, flags: u16, offset: u64, length: u64) -> Verdict {
    let mark = if session.framing() == Framing::Extended { PAYLOAD_LEN } else { 0 };
    session.judge(&header(cmd::WRITE, flags | mark, offset, length))
}

fn accepted(verdict: Verdict) -> Request {
    match verdict {
        Verdict::Accept(request) => request,
        other => panic!("not accepted: {other:?}"),
    }
}

/// Error and bytes to drain of a refusal.
fn refused(verdict: Verdict) -> (WireError, u32) {
    match verdict {
        Verdict::Refuse { to, error, drain, .. } => {
            assert_eq!(to.cookie, 77);
            (error, drain)
        }
        other => panic!("not refused: {other:?}"),
    }
}

fn bytes(header: &RequestHeader, framing: Framing) -> Vec<u8> {
    let mut out = Vec::new();
    let extended = framing == Framing::Extended;
    out.put_u32(if extended { 0x21e4_1c71 } else { 0x2560_9513 });
    out.put_u16(header.flags.bits());
    out.put_u16(header.kind);
    out.put_u64(header.cookie);
    out.put_u64(header.offset);
    if extended {
        out.put_u64(header.length);
    } else {
        out.put_u32(u32::try_from(header.length).unwrap());
    }
    out
}

const FRAMINGS: [Framing; 3] = [Framing::Simple, Framing::Structured, Framing::Extended];

#[test]
fn a_compact_request_reads_as_the_protocol_lays_it_out() {
    let input = b"\x25\x60\x95\x13\0\x01\0\x01COOKIE!!\0\0\0\0\0\0\x10\0\0\0\x02\0data";
    let (header, used) = parse_request(input, Framing::Simple).unwrap().unwrap();
    assert_eq!(used, 28, "the payload is not part of the parse");
    let cookie = u64::from_be_bytes(*b"COOKIE!!");
    let flags = CommandFlags::FUA;
    assert_eq!(header, RequestHeader { flags, kind: 1, cookie, offset: 4096, length: 512 });
}

#[test]
fn an_extended_request_reads_as_the_protocol_lays_it_out() {
    let input = b"\x21\xe4\x1c\x71\0\x20\0\x01COOKIE!!\0\0\0\0\0\0\x10\0\x01\0\0\0\0\0\0\0rest";
    let (header, used) = parse_request(input, Framing::Extended).unwrap().unwrap();
    assert_eq!(used, 32);
    let cookie = u64::from_be_bytes(*b"COOKIE!!");
    let flags = CommandFlags::PAYLOAD_LEN;
    assert_eq!(header, RequestHeader { flags, kind: 1, cookie, offset: 4096, length: 1 << 56 });
}

#[test]
fn the_magic_number_of_the_other_framing_is_wrong() {
    let request = header(cmd::READ, 0, 0, 512);
    for (sent, expected) in
        [(Framing::Simple, Framing::Extended), (Framing::Extended, Framing::Simple), (Framing::Extended, Framing::Structured)]
    {
        assert!(parse_request(&bytes(&request, sent), expected).is_err());
    }
    let error = parse_request(b"GET /index", Framing::Simple).unwrap_err();
    assert_eq!(error, BadRequestMagic { magic: 0x4745_5420 });
}

#[test]
fn every_command_is_accepted_with_its_flags_and_no_others() {
    let session = session(Framing::Structured);
    for (kind, flags) in [
        (cmd::READ, FUA | DF),
        (cmd::WRITE, FUA),
        (cmd::TRIM, FUA),
        (cmd::CACHE, FUA),
        (cmd::WRITE_ZEROES, FUA | NO_HOLE | FAST_ZERO),
        (cmd::BLOCK_STATUS, FUA | REQ_ONE),
    ] {
        let drain = if kind == cmd::WRITE { 512 } else { 0 };
        for bit in 0..16 {
            let verdict = session.judge(&header(kind, 1 << bit, 0, 512));
            if flags & (1 << bit) == 0 {
                assert_eq!(refused(verdict), (WireError::Invalid, drain), "{kind} {bit}");
            } else {
                assert_eq!(accepted(verdict).length, 512, "{kind} {bit}");
            }
        }
        accepted(session.judge(&header(kind, flags, 0, 512)));
    }
    assert_eq!(accepted(session.judge(&header(cmd::FLUSH, FUA, 0, 0))).command, Command::Flush);
    assert_eq!(refused(session.judge(&header(cmd::FLUSH, DF, 0, 0))), (WireError::Invalid, 0));
}

#[test]
fn flags_become_what_the_command_means() {
    let session = session(Framing::Structured);
    let command = |kind, flags| accepted(session.judge(&header(kind, flags, 0, 512))).command;
    assert_eq!(command(cmd::READ, 0), Command::Read { whole: false });
    assert_eq!(command(cmd::READ, DF), Command::Read { whole: true });
    assert_eq!(command(cmd::BLOCK_STATUS, REQ_ONE), Command::BlockStatus { one: true });
    let zeroes = |no_hole, fast| Command::WriteZeroes { no_hole, fast };
    assert_eq!(command(cmd::WRITE_ZEROES, 0), zeroes(false, false));
    assert_eq!(command(cmd::WRITE_ZEROES, NO_HOLE), zeroes(true, false));
    assert_eq!(command(cmd::WRITE_ZEROES, FAST_ZERO), zeroes(false, true));
}

#[test]
fn fua_matters_for_commands_that_write_only() {
    let session = session(Framing::Structured);
    for (kind, writes) in [
        (cmd::READ, false),
        (cmd::WRITE, true),
        (cmd::TRIM, true),
        (cmd::CACHE, false),
        (cmd::WRITE_ZEROES, true),
        (cmd::BLOCK_STATUS, false),
    ] {
        assert_eq!(accepted(session.judge(&header(kind, FUA, 0, 512))).fua, writes);
        assert!(!accepted(session.judge(&header(kind, 0, 0, 512))).fua);
    }
}

#[test]
fn what_was_not_offered_is_invalid() {
    let session = session_with(TransmissionFlags::HAS_FLAGS, Framing::Simple, false);
    for kind in [cmd::FLUSH, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        let length = if kind == cmd::FLUSH { 0 } else { 512 };
        assert_eq!(refused(session.judge(&header(kind, 0, 0, length))), (WireError::Invalid, 0));
    }
    assert_eq!(refused(session.judge(&header(cmd::READ, DF, 0, 512))), (WireError::Invalid, 0));
    assert_eq!(refused(write(&session, FUA, 0, 512)), (WireError::Invalid, 512));
    accepted(write(&session, 0, 0, 512));
}

#[test]
fn unknown_commands_are_invalid_and_their_payload_is_dropped() {
    for kind in [8, 9, 100, u16::MAX] {
        for framing in FRAMINGS {
            let verdict = session(framing).judge(&header(kind, 0, u64::MAX, 4096));
            assert_eq!(refused(verdict), (WireError::Invalid, 0));
        }
        let verdict = session(Framing::Extended).judge(&header(kind, PAYLOAD_LEN, 0, 4096));
        assert_eq!(refused(verdict), (WireError::Invalid, 4096));
    }
}

#[test]
fn a_read_only_export_refuses_what_writes_and_drops_the_payload() {
    let flags = all_flags() | TransmissionFlags::READ_ONLY;
    for framing in FRAMINGS {
        let session = session_with(flags, framing, false);
        assert_eq!(refused(write(&session, 0, 0, 512)), (WireError::NotPermitted, 512));
        for kind in [cmd::TRIM, cmd::WRITE_ZEROES] {
            let verdict = session.judge(&header(kind, 0, 0, 512));
            assert_eq!(refused(verdict), (WireError::NotPermitted, 0));
        }
        accepted(session.judge(&header(cmd::READ, 0, 0, 512)));
        accepted(session.judge(&header(cmd::FLUSH, 0, 0, 0)));
    }
}

#[test]
fn requests_beyond_the_end_fail_as_their_command_demands() {
    for framing in FRAMINGS {
        let session = session(framing);
        for (offset, length) in [(SIZE - 511, 512), (SIZE, 1), (SIZE + 512, 512), (u64::MAX, 1), (1 << 63, 2)] {
            let drain = u32::try_from(length).unwrap();
            assert_eq!(refused(write(&session, 0, offset, length)), (WireError::NoSpace, drain));
            let verdict = session.judge(&header(cmd::WRITE_ZEROES, 0, offset, length));
            assert_eq!(refused(verdict), (WireError::NoSpace, 0));
            for kind in [cmd::READ, cmd::TRIM, cmd::CACHE] {
                let verdict = session.judge(&header(kind, 0, offset, length));
                assert_eq!(refused(verdict), (WireError::Invalid, 0), "{kind}");
            }
        }
        accepted(write(&session, 0, SIZE - 512, 512));
        accepted(session.judge(&header(cmd::READ, 0, SIZE - 1, 1)));
    }
    let verdict = session(Framing::Structured).judge(&header(cmd::BLOCK_STATUS, 0, SIZE, 512));
    assert_eq!(refused(verdict), (WireError::Invalid, 0));
}

#[test]
fn requests_of_no_bytes_succeed_within_the_export_and_block_status_does_not() {
    for framing in FRAMINGS {
        let session = session(framing);
        for kind in [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES] {
            let mark = if kind == cmd::WRITE && framing == Framing::Extended { PAYLOAD_LEN } else { 0 };
            for offset in [0, 5, SIZE] {
                let verdict = session.judge(&header(kind, mark, offset, 0));
                assert!(matches!(verdict, Verdict::Empty(request) if request.length == 0), "{kind}");
            }
            let verdict = session.judge(&header(kind, mark, SIZE + 1, 0));
            assert_eq!(refused(verdict).1, 0);
        }
    }
    let verdict = session(Framing::Structured).judge(&header(cmd::BLOCK_STATUS, 0, 0, 0));
    assert_eq!(refused(verdict), (WireError::Invalid, 0));
}

#[test]
fn requests_of_no_bytes_are_answered_as_the_framing_demands() {
    for (framing, read, other) in [(Framing::Simple, 16, 16), (Framing::Structured, 20, 16), (Framing::Extended, 32, 32)] {
        let session = session(framing);
        for (kind, length) in [(cmd::READ, read), (cmd::TRIM, other)] {
            let Verdict::Empty(request) = session.judge(&header(kind, 0, 0, 0)) else { panic!("not empty") };
            let mut out = Vec::new();
            session.put_empty(&mut out, &request);
            assert_eq!(out.len(), length);
        }
    }
}

#[test]
fn a_flush_has_neither_offset_nor_length() {
    let session = session(Framing::Simple);
    let request = accepted(session.judge(&header(cmd::FLUSH, 0, 0, 0)));
    assert_eq!((request.command, request.length), (Command::Flush, 0));
    for (offset, length) in [(512, 0), (0, 512)] {
        let verdict = session.judge(&header(cmd::FLUSH, 0, offset, length));
        assert_eq!(refused(verdict), (WireError::Invalid, 0));
    }
}

#[test]
fn a_disconnect_is_obeyed_whatever_else_it_says() {
    for framing in FRAMINGS {
        for (flags, length) in [(0, 0), (0xffff, u64::MAX)] {
            let verdict = session(framing).judge(&header(cmd::DISC, flags, 5, length));
            assert_eq!(verdict, Verdict::Disconnect);
        }
    }
}

#[test]
fn writes_up_to_the_limit_are_taken_and_longer_ones_end_the_connection() {
    for framing in FRAMINGS {
        let session = session(framing);
        assert_eq!(accepted(write(&session, 0, 0, MAX)).length, MAX);
        for length in [MAX + 1, u64::from(u32::MAX)] {
            let verdict = write(&session, 0, 0, length);
            let Verdict::RefuseAndClose { to, error, .. } = verdict else { panic!("{verdict:?}") };
            assert_eq!((to.cookie, error), (77, WireError::Invalid));
        }
    }
    let verdict = write(&session(Framing::Extended), 0, 0, u64::MAX);
    assert!(matches!(verdict, Verdict::RefuseAndClose { .. }));
}

#[test]
fn reads_up_to_the_limit_are_taken_and_longer_ones_refused() {
    let session = session(Framing::Structured);
    assert_eq!(accepted(session.judge(&header(cmd::READ, 0, 0, MAX))).length, MAX);
    accepted(session.judge(&header(cmd::READ, DF, 0, MAX)));
    let verdict = session.judge(&header(cmd::READ, 0, 0, MAX + 1));
    assert_eq!(refused(verdict), (WireError::Invalid, 0));
    let verdict = session.judge(&header(cmd::READ, DF, 0, MAX + 1));
    assert_eq!(refused(verdict), (WireError::TooLarge, 0));
}

#[test]
fn commands_without_data_may_be_as_long_as_the_export() {
    let session = session(Framing::Extended);
    for kind in [cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(accepted(session.judge(&header(kind, 0, 0, SIZE))).length, SIZE);
    }
}

#[test]
fn only_a_client_that_knows_the_block_size_must_keep_to_it() {
    for framing in FRAMINGS {
        let blind = session_with(all_flags(), framing, false);
        let knowing = session_with(all_flags(), framing, true);
        for (offset, length) in [(1, 512), (0, 511), (513, 1)] {
            accepted(write(&blind, 0, offset, length));
            accepted(blind.judge(&header(cmd::READ, 0, offset, length)));
            let drain = u32::try_from(length).unwrap();
            assert_eq!(refused(write(&knowing, 0, offset, length)), (WireError::Invalid, drain));
            let verdict = knowing.judge(&header(cmd::READ, 0, offset, length));
            assert_eq!(refused(verdict), (WireError::Invalid, 0));
        }
        accepted(write(&knowing, 0, 512, 1024));
    }
}

#[test]
fn with_extended_headers_a_write_says_that_it_has_a_payload() {
    let session = session(Framing::Extended);
    accepted(session.judge(&header(cmd::WRITE, PAYLOAD_LEN, 0, 512)));
    // Without the flag it is open whether data follows, so nothing after it can be trusted.
    let verdict = session.judge(&header(cmd::WRITE, 0, 0, 512));
    assert!(matches!(verdict, Verdict::RefuseAndClose { .. }));
    assert!(matches!(session.judge(&header(cmd::WRITE, 0, 0, 0)), Verdict::Empty(_)));
}

#[test]
fn with_extended_headers_an_unexpected_payload_is_dropped_or_ends_the_connection() {
    let session = session(Framing::Extended);
    for kind in [cmd::READ, cmd::FLUSH, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        let verdict = session.judge(&header(kind, PAYLOAD_LEN, 0, 20));
        assert_eq!(refused(verdict), (WireError::Invalid, 20), "{kind}");
        let verdict = session.judge(&header(kind, PAYLOAD_LEN, 0, MAX + 1));
        assert!(matches!(verdict, Verdict::RefuseAndClose { .. }), "{kind}");
    }
}

#[test]
fn without_extended_headers_the_payload_flag_is_unknown() {
    for framing in [Framing::Simple, Framing::Structured] {
        let session = session(framing);
        let verdict = session.judge(&header(cmd::WRITE, PAYLOAD_LEN, 0, 512));
        assert_eq!(refused(verdict), (WireError::Invalid, 512));
        let verdict = session.judge(&header(cmd::READ, PAYLOAD_LEN, 0, 512));
        assert_eq!(refused(verdict), (WireError::Invalid, 0));
    }
}

fn any_header() -> impl Strategy<Value = RequestHeader> {
    let near = prop_oneof![0..4096_u64, SIZE - 4096..SIZE + 4096, any::<u64>()];
    let length = prop_oneof![0..4096_u64, MAX - 2..MAX + 3, any::<u64>()];
    let flags = prop_oneof![0..64_u16, any::<u16>(), Just(0)];
    (prop_oneof![8 => 0..8_u16, 1 => any::<u16>()], flags, any::<u64>(), near, length).prop_map(
        |(kind, flags, cookie, offset, length)| RequestHeader {
            flags: CommandFlags::from_bits(flags),
            kind,
            cookie,
            offset,
            length,
        },
    )
}

fn any_framing() -> impl Strategy<Value = Framing> {
    prop_oneof![Just(Framing::Simple), Just(Framing::Structured), Just(Framing::Extended)]
}

proptest! {
    #[test]
    fn a_request_survives_encoding_and_reading(mut header in any_header(), framing in any_framing()) {
        if framing != Framing::Extended {
            header.length &= u64::from(u32::MAX);
        }
        let input = bytes(&header, framing);
        for cut in 0..input.len() {
            prop_assert_eq!(parse_request(&input[..cut], framing), Ok(None));
        }
        prop_assert_eq!(parse_request(&input, framing), Ok(Some((header, input.len()))));
    }

    #[test]
    fn any_bytes_read_as_a_request_nothing_or_an_error(
        input in proptest::collection::vec(any::<u8>(), 0..40),
        framing in any_framing(),
    ) {
        if let Ok(Some((_, used))) = parse_request(&input, framing) {
            prop_assert!(used <= input.len() && used <= REQUEST_BYTES_MAX);
        }
    }

    #[test]
    fn what_is_accepted_lies_within_the_export_and_the_limits(
        header in any_header(),
        framing in any_framing(),
        known in any::<bool>(),
        read_only in any::<bool>(),
    ) {
        let mut flags = all_flags();
        if read_only {
            flags = flags | TransmissionFlags::READ_ONLY;
        }
        let session = session_with(flags, framing, known);
        let before = session;
        match session.judge(&header) {
            Verdict::Accept(request) => {
                prop_assert!(header.offset.checked_add(request.length).unwrap() <= SIZE);
                prop_assert_eq!(request.length == 0, request.command == Command::Flush);
                if matches!(request.command, Command::Read { .. } | Command::Write) {
                    prop_assert!(request.length <= MAX);
                }
                if known {
                    prop_assert!(request.length % 512 == 0 && header.offset % 512 == 0);
                }
                let reads = matches!(
                    request.command,
                    Command::Read { .. } | Command::Flush | Command::Cache | Command::BlockStatus { .. }
                );
                prop_assert!(reads || !read_only);
                prop_assert!(!reads || !request.fua);
            }
            Verdict::Empty(request) => prop_assert_eq!(request.length, 0),
            Verdict::Refuse { drain, .. } => {
                prop_assert!(drain <= PAYLOAD_BYTES_MAX);
                prop_assert!(drain == 0 || u64::from(drain) == header.length);
            }
            Verdict::RefuseAndClose { error, .. } => prop_assert_eq!(error, WireError::Invalid),
            Verdict::Disconnect => prop_assert_eq!(header.kind, cmd::DISC),
        }
        prop_assert_eq!(session, before);
    }
}
