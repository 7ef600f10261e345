//! What a server may send to a client, any bytes at all.
//!
//! The first byte of the input chooses: a handshake, or replies in one of the three framings to requests
//! that are in flight. Laws: payload lies inside of a read that is in flight; no byte of a read comes twice;
//! a read that ends without an error has all of its bytes; each request ends once; what is asked for more
//! bytes is bounded; what was entered is sound.
#![no_main]

use forebay_nbd::client::{Ask, Entered, Handshake, Session, Step, Took};
use forebay_nbd::{Framing, TransmissionFlags};
use libfuzzer_sys::fuzz_target;

const READ_BYTES: u64 = 64;

/// All bytes come in at once.
fn negotiate(mut input: &[u8]) {
    let mut handshake = Handshake::new("disk");
    let mut out = Vec::new();
    while let Ok((used, step)) = handshake.advance(input, &mut out) {
        input = &input[used..];
        match step {
            Step::Continue => assert!(used > 0),
            Step::NeedMore(bytes) => {
                assert!(used == 0 && bytes > input.len() && bytes <= 32 << 10);
                return;
            }
            Step::Enter(entered) => {
                assert!(entered.size_bytes < 1 << 63);
                assert!(entered.minimum_bytes.is_power_of_two() && entered.minimum_bytes <= 1 << 16);
                assert!(entered.preferred_bytes.is_power_of_two() && entered.preferred_bytes >= entered.minimum_bytes);
                assert!(entered.maximum_bytes >= entered.minimum_bytes);
                return;
            }
        }
    }
}

/// What is in flight, by slot.
struct Flying {
    ask: Ask,
    filled: Vec<bool>,
}

fn replies(framing: Framing, mut input: &[u8]) {
    let entered = Entered {
        size_bytes: 1 << 30,
        flags: TransmissionFlags::HAS_FLAGS,
        framing,
        minimum_bytes: 1,
        preferred_bytes: 4096,
        maximum_bytes: 1 << 25,
        allocation: Some(1),
    };
    let mut session = Session::new(&entered);
    let mut flying: Vec<Option<Flying>> = Vec::new();
    let mut header = Vec::new();
    let asks = [Ask::Read, Ask::Read, Ask::Write { fua: true }, Ask::Flush, Ask::Trim, Ask::Status];
    for (at, ask) in asks.into_iter().enumerate() {
        let slot = session.start(ask, at as u64 * READ_BYTES, READ_BYTES, &mut header);
        assert_eq!(slot, at);
        let bytes = if ask == Ask::Read { READ_BYTES as usize } else { 0 };
        flying.push(Some(Flying { ask, filled: vec![false; bytes] }));
    }
    let fill = |flying: &mut Vec<Option<Flying>>, slot: usize, skip: u32, bytes: u32| {
        let read = flying[slot].as_mut().expect("payload belongs to what is in flight");
        for filled in &mut read.filled[skip as usize..(skip + bytes) as usize] {
            assert!(!std::mem::replace(filled, true), "no byte comes twice");
        }
    };
    let end = |flying: &mut Vec<Option<Flying>>, ended: forebay_nbd::client::Ended| {
        let over = flying[ended.slot].take().expect("each request ends once");
        assert!(ended.error.is_some() || over.filled.iter().all(|filled| *filled));
        assert!(ended.extents.is_empty() || over.ask == Ask::Status);
        assert!(ended.extents.len() <= 1024 && ended.extents.iter().all(|extent| extent.length > 0));
    };
    loop {
        if let Some(payload) = session.payload() {
            let bytes = payload.bytes.min(input.len() as u32);
            fill(&mut flying, payload.slot, payload.skip, bytes);
            input = &input[bytes as usize..];
            match session.received(bytes) {
                Ok(Some(ended)) => end(&mut flying, ended),
                Ok(None) if bytes < payload.bytes => return,
                Ok(None) => {}
                Err(_) => return,
            }
            continue;
        }
        let Ok((used, took)) = session.take(input) else { return };
        input = &input[used..];
        match took {
            Took::NeedMore(bytes) => {
                assert!(used == 0 && bytes > input.len() && bytes < 8192);
                return;
            }
            Took::Nothing | Took::Payload => assert!(used > 0),
            Took::Zeroes(at) => fill(&mut flying, at.slot, at.skip, at.bytes),
            Took::Ended(ended) => end(&mut flying, ended),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, input)) = data.split_first() else { return };
    match choice % 4 {
        0 => negotiate(input),
        1 => replies(Framing::Simple, input),
        2 => replies(Framing::Structured, input),
        _ => replies(Framing::Extended, input),
    }
});
