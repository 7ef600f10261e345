//! Laws of the negotiation that hold for any bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::export::{BlockBytes, Unaligned};
use super::tests::{answers, contexts, option, query};
use super::*;

fn exports() -> Vec<Export> {
    let export = |name: &str, minimum| {
        let sizes = BlockBytes::new(minimum, 4096).unwrap();
        Export::new(name, 1 << 20, TransmissionFlags::SEND_TRIM, sizes).unwrap()
    };
    vec![export("disk", 512).as_default(), export("strict", 512).with_unaligned(Unaligned::Refused)]
}

/// How a negotiation went: all output, the end if there was one, and the input used up.
#[derive(Debug, PartialEq)]
struct Course {
    out: Vec<u8>,
    end: Option<Step>,
    consumed: usize,
}

/// Runs a negotiation in which `input` arrives in pieces of the given sizes, over and over.
fn run(input: &[u8], pieces: &[usize]) -> Course {
    let exports = exports();
    let mut out = Vec::new();
    let mut handshake = Handshake::start(&mut out);
    let (mut consumed, mut arrived) = (0, 0);
    for piece in pieces.iter().cycle() {
        arrived = input.len().min(arrived + piece);
        loop {
            let before = out.len();
            let held = &input[consumed..arrived];
            let progress = handshake.advance(&exports, held, &mut out);
            assert!(progress.consumed <= held.len());
            assert!(out.len() - before < 1024, "an answer is as large as the server's exports");
            consumed += progress.consumed;
            match progress.step {
                Step::Continue => assert!(progress.consumed > 0, "no progress"),
                Step::NeedMore { bytes } => {
                    assert_eq!(progress.consumed, 0);
                    assert!(bytes > held.len() && bytes <= INPUT_BYTES_MAX);
                    break;
                }
                end => return Course { out, end: Some(end), consumed },
            }
        }
        if arrived == input.len() {
            break;
        }
    }
    Course { out, end: None, consumed }
}

/// An option that a client could send: mostly sensible, sometimes not.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("disk"), Just("strict"), Just(""), Just("nothing")];
    let asked = prop_oneof![Just("base:"), Just("base:allocation"), Just("x-y:z")];
    let about = (name.clone(), vec(0_u16..6, 0..5)).prop_map(|(name, kinds)| query(name, &kinds));
    let context = (name, vec(asked, 0..4)).prop_map(|(name, queries)| contexts(name, &queries));
    let empty = Just(Vec::new());
    let junk = vec(any::<u8>(), 0..40);
    let long = (32_000_usize..34_000).prop_map(|length| vec![0; length]);
    prop_oneof![
        4 => (prop_oneof![Just(6_u32), Just(7)], about).prop_map(|(kind, data)| option(kind, &data)),
        4 => (9_u32..11, context).prop_map(|(kind, data)| option(kind, &data)),
        4 => (prop_oneof![Just(3_u32), Just(5), Just(8), Just(11)], empty)
            .prop_map(|(kind, data)| option(kind, &data)),
        1 => (0_u32..14, prop_oneof![3 => junk.boxed(), 1 => long.boxed()])
            .prop_map(|(kind, data)| option(kind, &data)),
    ]
}

/// Client flags and then options.
fn any_conversation() -> impl Strategy<Value = Vec<u8>> {
    (prop_oneof![9 => 0_u32..4, 1 => any::<u32>()], vec(any_option(), 0..12)).prop_map(|(flags, options)| {
        let mut bytes = flags.to_be_bytes().to_vec();
        for option in &options {
            bytes.extend_from_slice(option);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn how_the_input_is_cut_changes_nothing(
        input in any_conversation(),
        pieces in vec(1_usize..5000, 1..8),
    ) {
        let whole = run(&input, &[input.len()]);
        prop_assert_eq!(&whole, &run(&input, &pieces));
        prop_assert_eq!(&whole, &run(&input, &[1]));
    }

    #[test]
    fn any_bytes_are_answered_in_bounds(
        mut input in vec(any::<u8>(), 0..300),
        flags in 0_u8..4,
        with_magic in any::<bool>(),
    ) {
        // With sound client flags and magic the bytes get further.
        if let (Some(head), true) = (input.get_mut(..12), with_magic) {
            head.copy_from_slice(b"\0\0\0\0IHAVEOPT");
            head[3] = flags;
        }
        let course = run(&input, &[input.len().max(1)]);
        prop_assert!(course.consumed <= input.len());
    }

    #[test]
    fn answers_are_well_formed_until_the_end(input in any_conversation()) {
        let course = run(&input, &[input.len()]);
        let said = &course.out[18..];
        // EXPORT_NAME is the one option whose answer has no head.
        let named = matches!(course.end, Some(Step::Transmit(_))) && !said.ends_with(&[0; 4]);
        if !named && !said.ends_with(&[0; 124]) {
            let options = answers(said).len();
            prop_assert!(options <= 12 * 8);
        }
    }

    #[test]
    fn cutting_a_sensible_option_short_is_never_a_success(
        kind in prop_oneof![Just(6_u32), Just(7), Just(9), Just(10)],
        keep in 0.0..1.0_f64,
    ) {
        let mut input = 1_u32.to_be_bytes().to_vec();
        input.extend(option(opt::STRUCTURED_REPLY, &[]));
        let data =
            if kind < 8 { query("disk", &[1, 2, 3]) } else { contexts("disk", &["base:allocation"]) };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss,
            reason = "a share of a few dozen bytes")]
        let cut = (data.len() as f64 * keep) as usize;
        input.extend(option(kind, &data[..cut]));
        let course = run(&input, &[input.len()]);
        prop_assert_eq!(course.end, None);
        let refusal = 0x8000_0003_u32.to_be_bytes();
        prop_assert!(course.out.windows(4).any(|bytes| bytes == refusal));
    }
}
