//! A stream of NBD requests with any bytes.
//!
//! The first byte of the input chooses what was negotiated. Laws: what is accepted lies within the
//! export and the limits, the bytes to drop are bounded, and each request has exactly one answer
//! whose head is as long as its framing says.
#![no_main]

use forebay_nbd::server::{BlockBytes, Command, Export, Handshake, Request, Session, Step, Verdict, parse_request};
use forebay_nbd::{Framing, PAYLOAD_BYTES_MAX, StatusExtent, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

const SIZE_BYTES: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 512;

fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Negotiates as the bits of `choice` say.
fn negotiate(choice: u8) -> Session {
    let mut flags = TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::SEND_FUA
        | TransmissionFlags::SEND_TRIM
        | TransmissionFlags::SEND_WRITE_ZEROES
        | TransmissionFlags::SEND_FAST_ZERO;
    if choice & 1 != 0 {
        flags = flags | TransmissionFlags::SEND_CACHE;
    }
    if choice & 2 != 0 {
        flags = flags | TransmissionFlags::READ_ONLY;
    }
    let sizes = BlockBytes::new(BLOCK_BYTES, 4096).expect("sound sizes");
    let exports = [Export::new("", SIZE_BYTES, flags, sizes).expect("a sound export")];
    let mut input = 3_u32.to_be_bytes().to_vec();
    match choice >> 2 & 3 {
        0 => {}
        1 => input.extend(option(8, &[])),
        _ => input.extend(option(11, &[])),
    }
    if choice & 16 != 0 {
        input.extend(option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"));
    }
    let go: &[u8] = if choice & 32 != 0 { b"\0\0\0\0\0\x01\0\x03" } else { b"\0\0\0\0\0\0" };
    input.extend(option(7, go));
    let mut handshake = Handshake::start(&mut Vec::new());
    let mut rest = input.as_slice();
    loop {
        let progress = handshake.advance(&exports, rest, &mut Vec::new());
        rest = &rest[progress.consumed..];
        match progress.step {
            Step::Continue => {}
            Step::Transmit(session) => return session,
            other => panic!("{other:?}"),
        }
    }
}

/// Checks an accepted request and answers it; returns the bytes of payload that follow it.
fn answer(session: &Session, request: &Request, out: &mut Vec<u8>) -> u64 {
    let (framing, to, length) = (session.framing(), request.to, request.length);
    let read_only = session.flags().contains(TransmissionFlags::READ_ONLY);
    assert!(to.offset.checked_add(length).is_some_and(|end| end <= SIZE_BYTES));
    assert_eq!(length == 0, request.command == Command::Flush);
    if session.client_knows_block_size() {
        assert!(length % u64::from(BLOCK_BYTES) == 0 && to.offset % u64::from(BLOCK_BYTES) == 0);
    }
    match request.command {
        Command::Read { .. } => {
            assert!(!request.fua);
            framing.put_read(out, to, u32::try_from(length).expect("at most 32 MiB"));
        }
        Command::Write => {
            assert!(!read_only && length <= u64::from(PAYLOAD_BYTES_MAX));
            framing.put_done(out, to);
            return length;
        }
        Command::Trim | Command::WriteZeroes { .. } => {
            assert!(!read_only);
            framing.put_done(out, to);
        }
        Command::Flush | Command::Cache => framing.put_done(out, to),
        Command::BlockStatus { one } => {
            assert_ne!(framing, Framing::Simple);
            let extents = (1..9).map(|index| StatusExtent { length: index << 9, state: index as u32 & 3 });
            framing.put_status(out, to, length, one, extents);
        }
    }
    0
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, mut input)) = data.split_first() else { return };
    let session = negotiate(*choice);
    let framing = session.framing();
    let shortest = if framing == Framing::Extended { 32 } else { 16 };
    let mut out = Vec::new();
    while let Ok(Some((header, used))) = parse_request(input, framing) {
        assert_eq!(used, if framing == Framing::Extended { 32 } else { 28 });
        assert_eq!(parse_request(&input[..used - 1], framing), Ok(None));
        input = &input[used..];
        out.clear();
        let payload = match session.judge(&header) {
            Verdict::Accept(request) => answer(&session, &request, &mut out),
            Verdict::Empty(request) => {
                assert_eq!(request.length, 0);
                session.put_empty(&mut out, &request);
                0
            }
            Verdict::Refuse { to, error, reason, drain } => {
                assert!(drain <= PAYLOAD_BYTES_MAX);
                framing.put_error(&mut out, to, error, reason);
                u64::from(drain)
            }
            Verdict::RefuseAndClose { to, error, reason } => {
                framing.put_error(&mut out, to, error, reason);
                return;
            }
            Verdict::Disconnect => return,
        };
        assert!(out.len() >= shortest);
        let Some(rest) = usize::try_from(payload).ok().and_then(|bytes| input.get(bytes..)) else { return };
        input = rest;
    }
});
