//! The words of `forebay message`: which device, which message, which number.
//!
//! A first word that is a message's name is the message: a device of that name must be named in front.

use crate::failure::Failure;

/// Every message, and whether a number belongs to it.
const MESSAGES: [(&str, bool); 14] = [
    ("flush", false),
    ("flush_on_suspend", false),
    ("cleaner", false),
    ("clear_stats", false),
    ("scrub", false),
    ("scrub_repair", false),
    ("revive", false),
    ("release", false),
    ("enable_hydration", false),
    ("disable_hydration", false),
    ("hydration_threshold", true),
    ("hydration_batch_size", true),
    ("hydration_rate", true),
    ("hydration_latency_us", true),
];

/// The device, where one is named, and the message with its number.
///
/// # Errors
/// [`Failure::Usage`] when the words are no message.
pub(super) fn split(words: &[String]) -> Result<(Option<String>, String), Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (device, said) = match *words {
        [first, ref rest @ ..] if named(first).is_none() || rest.first().is_some_and(|&word| named(word).is_some()) => {
            (Some(first.to_owned()), rest)
        }
        ref all => (None, all),
    };
    match *said {
        [name] => match named(name) {
            Some((name, false)) => Ok((device, name.to_owned())),
            Some((name, true)) => Err(Failure::Usage(format!("the message {name} needs a number: `forebay message {name} 8`"))),
            None => Err(unknown(name)),
        },
        [name, number] => match named(name) {
            Some((name, true)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok((device, format!("{name} {number}")))
            }
            Some((name, true)) => Err(Failure::Usage(format!("{number:?} is no number for the message {name}"))),
            Some((name, false)) => Err(Failure::Usage(format!("{number:?} is too much behind the message {name}"))),
            None => Err(unknown(name)),
        },
        [] => Err(Failure::Usage("there is no message: see `forebay message --help`".to_owned())),
        _ => Err(unknown(&said.join(" "))),
    }
}

/// The message of this name, case ignored.
fn named(word: &str) -> Option<(&'static str, bool)> {
    MESSAGES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(word))
}

fn unknown(word: &str) -> Failure {
    let names: Vec<_> = MESSAGES.iter().map(|(name, _)| *name).collect();
    Failure::Usage(format!("there is no message {word:?}: use {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_device_a_message_and_a_number() {
        let split = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            split(&words)
        };
        for (text, device, word) in [
            ("flush", None, "flush"),
            ("vol FLUSH", Some("vol"), "flush"),
            ("flush flush", Some("flush"), "flush"),
            ("hydration_threshold 8", None, "hydration_threshold 8"),
            ("vol hydration_rate 0", Some("vol"), "hydration_rate 0"),
            ("cleaner enable_hydration", Some("cleaner"), "enable_hydration"),
        ] {
            assert_eq!(split(text), Ok((device.map(str::to_owned), word.to_owned())), "{text}");
        }
        for text in
            ["vol", "vol nonsense", "flush 8", "vol flush twice", "hydration_threshold", "vol hydration_rate fast", "a b c"]
        {
            assert!(matches!(split(text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
