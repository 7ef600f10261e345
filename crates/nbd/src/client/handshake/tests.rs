//! The client's negotiation against the server's own, and against servers that break the rules.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::server::{self, BlockBytes, Export};

fn export(name: &str) -> Export {
    let flags = TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN;
    Export::new(name, 1 << 20, flags, BlockBytes::new(512, 8192).unwrap()).unwrap()
}

/// A negotiation with the server of this crate, which has the export `disk`; `piece` bytes come in at a time.
fn negotiate(name: &str, piece: usize) -> Result<Entered, Refused> {
    let exports = [export("disk").as_default()];
    let (mut to_client, mut to_server, mut pending) = (Vec::new(), Vec::new(), Vec::new());
    let mut server = server::Handshake::start(&mut pending);
    let mut client = Handshake::new(name);
    loop {
        let (used, step) = client.advance(&to_client, &mut to_server)?;
        to_client.drain(..used);
        match step {
            Step::Enter(entered) => return Ok(entered),
            Step::Continue => continue,
            Step::NeedMore(bytes) => assert!(bytes > to_client.len()),
        }
        while pending.is_empty() {
            let progress = server.advance(&exports, &to_server, &mut pending);
            to_server.drain(..progress.consumed);
            assert!(!matches!(progress.step, server::Step::Close(_) | server::Step::NeedMore { .. }), "{progress:?}");
        }
        to_client.extend(pending.drain(..piece.min(pending.len())));
    }
}

#[test]
fn the_best_framing_and_everything_about_the_export_is_found_out_however_it_comes_in() {
    for piece in [1, 2, 7, 19, 20, 4096] {
        let entered = negotiate("disk", piece).unwrap();
        assert_eq!((entered.framing, entered.size_bytes), (Framing::Extended, 1 << 20));
        assert_eq!((entered.minimum_bytes, entered.preferred_bytes), (512, 8192));
        assert!(entered.flags.contains(TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN));
        assert!(entered.allocation.is_some());
        assert_eq!(negotiate("", piece).unwrap(), entered, "the default export");
    }
}

#[test]
fn an_export_that_is_not_there_is_told_with_the_servers_words() {
    let refused = negotiate("tape", 64).unwrap_err();
    assert_eq!(refused.to_string(), "the server has no export \"tape\": it says \"there is no export of this name\"");
}

/// The greeting of a server with these flags.
fn greeting(flags: u16) -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT".to_vec();
    bytes.put_u16(flags);
    bytes
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64(MAGIC_OPTION_REPLY);
    bytes.put_u32(option);
    bytes.put_u32(kind);
    bytes.put_u32(u32::try_from(data.len()).unwrap());
    bytes.extend(data);
    bytes
}

/// What becomes of a server that sends all of `input`, whatever it is asked; `None` when it wants more.
fn hear(input: &[u8]) -> Option<Result<Entered, Refused>> {
    let mut client = Handshake::new("disk");
    let (mut rest, mut out) = (input, Vec::new());
    loop {
        match client.advance(rest, &mut out) {
            Ok((used, Step::Continue)) => rest = &rest[used..],
            Ok((_, Step::NeedMore(bytes))) => {
                assert!(bytes > rest.len() && bytes <= HEAD_BYTES + ANSWER_BYTES_MAX as usize);
                return None;
            }
            Ok((_, Step::Enter(entered))) => return Some(Ok(entered)),
            Err(refused) => return Some(Err(refused)),
        }
    }
}

fn info_export(size: u64) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u16(info::EXPORT);
    data.put_u64(size);
    data.put_u16(1);
    data
}

fn info_block(sizes: [u32; 3]) -> Vec<u8> {
    let mut data = Vec::new();
    data.put_u16(info::BLOCK_SIZE);
    for size in sizes {
        data.put_u32(size);
    }
    data
}

/// Refuses extended headers and structured replies, then answers GO with `answers`.
fn simple_server(answers: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = greeting(3);
    bytes.extend(answer(opt::EXTENDED_HEADERS, rep::ERR_UNSUP, b""));
    bytes.extend(answer(opt::STRUCTURED_REPLY, rep::ERR_UNSUP, b""));
    for (kind, data) in answers {
        bytes.extend(answer(opt::GO, *kind, data));
    }
    bytes
}

#[test]
fn a_server_that_knows_little_is_used_as_it_is() {
    let bytes = simple_server(&[(rep::INFO, info_export(4096)), (rep::ACK, Vec::new())]);
    let entered = hear(&bytes).unwrap().unwrap();
    assert_eq!((entered.framing, entered.size_bytes, entered.allocation), (Framing::Simple, 4096, None));
    assert_eq!((entered.minimum_bytes, entered.preferred_bytes, entered.maximum_bytes), (1, 4096, 32 << 20));
}

#[test]
fn a_server_without_go_is_entered_by_name() {
    for (flags, zeroes) in [(1, 124), (3, 0)] {
        let mut bytes = greeting(flags);
        for option in [opt::EXTENDED_HEADERS, opt::STRUCTURED_REPLY, opt::GO] {
            bytes.extend(answer(option, rep::ERR_UNSUP, b"no"));
        }
        bytes.put_u64(1 << 16);
        bytes.put_u16(5);
        bytes.resize(bytes.len() + zeroes, 0);
        assert_eq!(hear(&bytes).unwrap().unwrap().size_bytes, 1 << 16);
        assert_eq!(hear(&bytes[..bytes.len() - 1]), None);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ack = || (rep::ACK, Vec::new());
    assert_eq!(hear(b"SSH-2.0-OpenSSH_9.2p1\r\n"), Some(Err(Refused::NotNbd)));
    assert_eq!(hear(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0"), Some(Err(Refused::Oldstyle)));
    assert_eq!(hear(&greeting(2)), Some(Err(Refused::Oldstyle)));
    assert!(matches!(hear(&simple_server(&[ack()])), Some(Err(Refused::Broken(_)))));
    assert_eq!(hear(&simple_server(&[(rep::ERR_TLS_REQD, Vec::new())])), Some(Err(Refused::Tls)));
    let huge = simple_server(&[(rep::INFO, info_export(1 << 63)), ack()]);
    assert!(matches!(hear(&huge), Some(Err(Refused::Unsound(_)))));
    for sizes in
        [[0, 512, 512], [3, 4096, 4096], [1 << 17, 1 << 17, 1 << 20], [512, 1000, 4096], [4096, 512, 4096], [512, 4096, 1024]]
    {
        let bytes = simple_server(&[(rep::INFO, info_export(4096)), (rep::INFO, info_block(sizes)), ack()]);
        assert!(matches!(hear(&bytes), Some(Err(Refused::Unsound(_)))), "{sizes:?}");
    }
    let endless: Vec<_> = (0..100).map(|_| (rep::INFO, info_export(4096))).collect();
    assert!(matches!(hear(&simple_server(&endless)), Some(Err(Refused::Broken(_)))));
    let mut long = greeting(3);
    long.extend(answer(opt::EXTENDED_HEADERS, rep::ERR_UNSUP, &vec![0; 20_000]));
    assert!(matches!(hear(&long), Some(Err(Refused::Broken(_)))));
}

#[test]
fn an_answer_of_the_longest_length_and_the_last_that_is_listened_to_are_taken() {
    let longest = vec![b'x'; ANSWER_BYTES_MAX as usize];
    let mut bytes = greeting(3);
    bytes.extend(answer(opt::EXTENDED_HEADERS, rep::ERR_UNSUP, &longest));
    assert_eq!(hear(&bytes), None, "the next answer is waited for");
    let mut answers: Vec<_> = (1..ANSWERS_MAX).map(|_| (rep::INFO, info_export(4096))).collect();
    answers.push((rep::ACK, Vec::new()));
    assert!(hear(&simple_server(&answers)).unwrap().is_ok());
    answers.insert(0, (rep::INFO, info_export(4096)));
    assert!(matches!(hear(&simple_server(&answers)), Some(Err(Refused::Broken(_)))));
}

#[test]
fn block_sizes_at_the_edge_of_what_the_protocol_allows_are_entered() {
    for sizes in [[1, 512, 4096], [1 << 16, 1 << 16, 1 << 16], [1, 1 << 26, 32 << 20], [512, 4096, u32::MAX]] {
        let bytes = simple_server(&[(rep::INFO, info_export(4096)), (rep::INFO, info_block(sizes)), (rep::ACK, Vec::new())]);
        let entered = hear(&bytes).unwrap().unwrap();
        assert_eq!([entered.minimum_bytes, entered.preferred_bytes, entered.maximum_bytes], sizes);
    }
}

#[test]
fn words_of_a_server_are_harmless_on_a_terminal() {
    let bytes = simple_server(&[(rep::ERR_UNKNOWN, b"\x1b[2Jgone\n\xff".to_vec())]);
    let text = hear(&bytes).unwrap().unwrap_err().to_string();
    assert!(!text.contains('\x1b') && text.contains("gone"), "{text}");
}

proptest! {
    #[test]
    fn no_bytes_make_the_client_panic(start in 0_usize..4, bytes in vec(any::<u8>(), 0..200)) {
        let mut input = [Vec::new(), greeting(3), simple_server(&[]), simple_server(&[(rep::INFO, info_export(4096))])][start].clone();
        input.extend(bytes);
        let _ = hear(&input);
    }

    #[test]
    fn a_changed_byte_harms_nobody(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let sizes = info_block([512, 4096, 1 << 20]);
        let mut bytes = simple_server(&[(rep::INFO, info_export(4096)), (rep::INFO, sizes), (rep::ACK, Vec::new())]);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(Ok(entered)) = hear(&bytes) {
            prop_assert!(entered.minimum_bytes.is_power_of_two() && entered.preferred_bytes >= entered.minimum_bytes);
            prop_assert!(entered.size_bytes < 1 << 63);
        }
    }
}
