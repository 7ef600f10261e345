//! The NBD negotiation with any bytes, cut in any way.
//!
//! The first byte of the input is the size of the pieces in which the rest arrives. Laws: the cut
//! changes nothing, progress is made, an answer is not larger than the exports make it, and the
//! input that the server must hold is bounded.
#![no_main]

use forebay_nbd::server::{BlockBytes, Export, Handshake, INPUT_BYTES_MAX, OPTIONS_MAX, Step, Unaligned};
use forebay_nbd::TransmissionFlags;
use libfuzzer_sys::fuzz_target;

/// More than the answer to any one option takes with the exports below, in bytes.
const ANSWER_BYTES_MAX: usize = 1024;

fn exports() -> Vec<Export> {
    let export = |name: &str, flags| {
        let sizes = BlockBytes::new(512, 4096).expect("sound sizes");
        Export::new(name, 1 << 30, flags, sizes).expect("a sound export")
    };
    vec![
        export("disk", TransmissionFlags::SEND_FLUSH).with_description("a disk").expect("short").as_default(),
        export("strict", TransmissionFlags::SEND_TRIM).with_unaligned(Unaligned::Refused),
        export("r", TransmissionFlags::READ_ONLY),
    ]
}

/// All output, the end if there was one, and the input used up.
#[derive(Debug, PartialEq)]
struct Course {
    out: Vec<u8>,
    end: Option<Step>,
    consumed: usize,
}

fn run(input: &[u8], piece: usize) -> Course {
    let exports = exports();
    let mut out = Vec::new();
    let mut handshake = Handshake::start(&mut out);
    let (mut consumed, mut arrived, mut calls) = (0, 0, 0_u64);
    while arrived < input.len() {
        arrived = input.len().min(arrived + piece);
        loop {
            let before = out.len();
            let held = &input[consumed..arrived];
            let progress = handshake.advance(&exports, held, &mut out);
            calls += 1;
            assert!(out.len() - before < ANSWER_BYTES_MAX);
            assert!(progress.consumed <= held.len());
            consumed += progress.consumed;
            match progress.step {
                Step::Continue => assert!(progress.consumed > 0),
                Step::NeedMore { bytes } => {
                    assert!(progress.consumed == 0 && bytes > held.len() && bytes <= INPUT_BYTES_MAX);
                    break;
                }
                end => return Course { out, end: Some(end), consumed },
            }
        }
    }
    assert!(calls <= 2 * input.len() as u64 + u64::from(OPTIONS_MAX));
    Course { out, end: None, consumed }
}

fuzz_target!(|data: &[u8]| {
    let Some((size, input)) = data.split_first() else { return };
    let whole = run(input, input.len().max(1));
    let pieces = run(input, usize::from(*size) + 1);
    assert_eq!(whole, pieces);
});
