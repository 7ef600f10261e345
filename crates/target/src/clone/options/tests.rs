//! Words that are taken, and words that are not.

use super::*;

fn parse(line: &str) -> Result<CloneArgs, OptionError> {
    CloneArgs::parse(line.split_whitespace())
}

#[test]
fn a_line_without_options_has_the_kernels_defaults() {
    let args = parse("meta dest src 8").unwrap();
    assert_eq!((args.metadata.as_str(), args.destination.as_str(), args.source.as_str()), ("meta", "dest", "src"));
    assert_eq!((args.region_sectors, args.options), (8, CloneOptions::default()));
    assert_eq!(args.options.words(), "0 4 hydration_threshold 1 hydration_batch_size 1");
    assert_eq!(parse("m d s 8 0").unwrap(), parse("m d s 8 0 0").unwrap());
}

#[test]
fn what_was_written_is_read_again() {
    for words in [
        "0 4 hydration_threshold 1 hydration_batch_size 1",
        "1 no_hydration 4 hydration_threshold 8 hydration_batch_size 64",
        "2 no_hydration no_discard_passdown 4 hydration_threshold 1 hydration_batch_size 1",
        "3 no_hydration no_discard_passdown hydrate_on_read 8 hydration_threshold 2147483648 hydration_batch_size 2 hydration_rate 1048576 hydration_latency_us 0",
        "1 hydrate_on_read 6 hydration_threshold 1 hydration_batch_size 1 hydration_latency_us 100",
    ] {
        assert_eq!(parse(&format!("m d s 8 {words}")).unwrap().options.words(), words);
    }
    let loud = parse("m d s 8 1 NO_Hydration 2 Hydration_Batch_Size 7").unwrap().options;
    assert_eq!((loud.hydration, loud.tuning.batch), (false, 7));
}

#[test]
fn wrong_words_are_refused_with_what_to_write() {
    let error = |line: &str| parse(line).unwrap_err();
    assert_eq!(error("m d s"), OptionError::Missing("region size"));
    assert_eq!(error(""), OptionError::Missing("metadata device"));
    assert_eq!(error("m d s 4k"), OptionError::Region("4k".to_owned()));
    let count = |count: &str, what| OptionError::Count { count: count.to_owned(), what };
    assert_eq!(error("m d s 8 no_hydration"), count("no_hydration", "features"));
    assert_eq!(error("m d s 8 2 no_hydration"), count("2", "features"));
    assert_eq!(error("m d s 8 0 2 hydration_threshold"), count("2", "core arguments"));
    assert_eq!(error("m d s 8 0 0 more"), count("more", "words"));
    assert_eq!(error("m d s 8 1 fast"), OptionError::Feature("fast".to_owned()));
    assert_eq!(error("m d s 8 2 no_hydration No_Hydration"), OptionError::Feature("No_Hydration".to_owned()));
    assert_eq!(error("m d s 8 0 2 hydration 1"), OptionError::Argument("hydration".to_owned()));
    assert_eq!(error("m d s 8 0 1 hydration_threshold"), OptionError::Argument("hydration_threshold".to_owned()));
    let twice = "m d s 8 0 4 hydration_threshold 1 hydration_threshold 2";
    assert_eq!(error(twice), OptionError::Argument("hydration_threshold".to_owned()));
    for (name, value, most) in [
        ("hydration_threshold", "0", 1 << 31),
        ("hydration_batch_size", "2147483649", 1 << 31),
        ("hydration_rate", "-1", u64::MAX),
    ] {
        let wrong = OptionError::Value { name: name.to_owned(), value: value.to_owned(), most };
        assert_eq!(error(&format!("m d s 8 0 2 {name} {value}")), wrong);
    }
    assert!(error("m d s").to_string().contains("write `clone METADATA DESTINATION SOURCE REGION_SECTORS"));
}
