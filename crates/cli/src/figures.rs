//! Numbers as people read them.

use std::time::Duration;

/// A size with a unit: `0 B`, `512 B`, `1.5 KiB`, `64 MiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut shift = 10;
    let mut unit = 0;
    while bytes >> shift >= 1024 && unit + 1 < units.len() {
        shift += 10;
        unit += 1;
    }
    // Tenths, rounded down, so that 1023.99 MiB does not become 1024.0.
    let whole = bytes >> shift;
    let tenths = ((bytes & ((1 << shift) - 1)) * 10) >> shift;
    let name = units[unit];
    if tenths == 0 || whole >= 100 { format!("{whole} {name}") } else { format!("{whole}.{tenths} {name}") }
}

/// A count with commas: `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `part` of `whole` with one decimal, or `-` where there is no whole.
pub fn ratio(part: u64, whole: u64) -> String {
    quotient(part, whole).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.1}"))
}

/// `part` divided by `whole`, or nothing where there is no whole.
#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
pub fn quotient(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A time span: `3 s`, `2 min 5 s`, `1 h 2 min`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// `one block`, `2 blocks`.
pub fn blocks(blocks: u64) -> String {
    if blocks == 1 { "one block".to_owned() } else { format!("{} blocks", count(blocks)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            ((1 << 30) - 1, "1023 MiB"),
            (10 << 60, "10 EiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn counts_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((blocks(1), blocks(2000)), ("one block".to_owned(), "2,000 blocks".to_owned()));
    }

    #[test]
    fn ratios_of_nothing_are_a_dash() {
        assert_eq!((ratio(3, 2), ratio(3, 0)), ("1.5".to_owned(), "-".to_owned()));
    }

    #[test]
    fn spans_have_two_units_at_most() {
        assert_eq!([0, 61, 3720].map(|s| span(Duration::from_secs(s))), ["0 s", "1 min 1 s", "1 h 2 min"]);
    }
}
