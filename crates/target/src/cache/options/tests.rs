//! Table lines that the kernel accepts or refuses, and our own options.
#![allow(clippy::indexing_slicing, reason = "a test that fails may panic")]

use super::*;

fn parse(line: &str) -> Result<CacheArgs, OptionError> {
    CacheArgs::parse(line.split_whitespace())
}

fn options(words: &str) -> Result<CacheOptions, OptionError> {
    let count = words.split_whitespace().count();
    parse(&format!("s origin fast 4096 {count} {words}")).map(|args| args.options)
}

fn refusal(line: &str) -> String {
    parse(line).unwrap_err().to_string()
}

#[test]
fn the_shortest_line_has_the_kernels_defaults() {
    let args = parse("s /dev/vdb /dev/nvme0n1 4096 0").unwrap();
    assert_eq!((args.origin.as_str(), args.fast.as_str(), args.block_bytes), ("/dev/vdb", "/dev/nvme0n1", 4096));
    let options = args.options;
    assert_eq!(options, CacheOptions::default());
    assert_eq!((options.start_sector(), options.high_watermark(), options.low_watermark()), (0, 50, 45));
    assert_eq!((options.autocommit_blocks(), options.autocommit_time_ms(), options.pause_writeback_ms()), (65_536, 1000, 3000));
    assert_eq!(options.overwrite.unwrap_or_default(), Overwrite::Place);
    assert_eq!(options.order.unwrap_or_default(), Order::Sweep);
    assert_eq!(options.full.unwrap_or_default(), Full::Bypass);
}

#[test]
fn a_line_with_all_the_kernels_options_is_printed_as_it_came() {
    let line = "s 254:0 254:1 4096 18 start_sector 0 high_watermark 60 low_watermark 50 writeback_jobs 10 \
                autocommit_blocks 100 autocommit_time 200 max_age 5000 cleaner metadata_only pause_writeback 0";
    let args = parse(line).unwrap();
    assert_eq!(args.to_table(), line);
    assert_eq!(args.options.max_age_ms, Some(5000));
    assert!(args.options.cleaner && args.options.metadata_only);
}

#[test]
fn the_table_has_a_fixed_order_and_only_what_was_given() {
    let args = parse("S o f 512 7 cleaner Order FIFO low_watermark 1 high_watermark 2 ignored words").unwrap();
    assert_eq!(args.to_table(), "s o f 512 7 high_watermark 2 low_watermark 1 cleaner order fifo");
    let again = parse(&args.to_table()).unwrap();
    assert_eq!(again, args);
}

#[test]
fn names_with_white_space_are_escaped_in_the_table() {
    let words = ["s", "my origin", "back\\slash", "4096", "0"];
    assert_eq!(CacheArgs::parse(words).unwrap().to_table(), "s my\\ origin back\\\\slash 4096 0");
}

#[test]
fn the_side_file_is_any_path_and_keeps_its_case() {
    let args = CacheArgs::parse(["s", "o", "f", "4096", "2", "Side", "My Caches/a.side"]).unwrap();
    assert_eq!(args.options.side.as_deref(), Some("My Caches/a.side"));
    assert_eq!(args.to_table(), "s o f 4096 2 side My\\ Caches/a.side");
    assert_eq!(refusal("s o f 4096 1 side"), "Invalid optional argument: side has no value");
    let full = "start_sector 0 high_watermark 60 low_watermark 50 writeback_jobs 10 autocommit_blocks 100 autocommit_time 200 \
                max_age 5000 cleaner metadata_only pause_writeback 0 side a";
    assert_eq!(options(full).unwrap().side.as_deref(), Some("a"), "its words come on top of the kernel's 18");
}

#[test]
fn missing_words_and_unknown_modes_are_bad_arguments() {
    for line in ["", "s", "s o", "s o f", "x o f 4096 0", "ss o f 4096 0"] {
        assert!(refusal(line).starts_with("Bad arguments"), "{line}");
    }
    assert_eq!(parse("p o f 4096 0"), Err(OptionError::Pmem));
    assert_eq!(parse("P o f 4096 1 nofua"), Err(OptionError::Pmem));
}

#[test]
fn block_sizes_are_powers_of_two_from_512_to_64k() {
    for size in [512_u32, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536] {
        assert_eq!(parse(&format!("s o f {size} 0")).unwrap().block_bytes, size);
    }
    assert_eq!(parse("s o f 4294971392 0").unwrap().block_bytes, 4096, "taken modulo 2^32");
    for size in ["0", "256", "3000", "131072", "-512", "512k", "0x200", "+512", "4k"] {
        assert!(refusal(&format!("s o f {size} 0")).starts_with("Invalid block size"), "{size}");
    }
}

#[test]
fn the_count_of_option_words_is_required_and_limited() {
    for tail in ["", "-1", "x", "1", "2 cleaner", "19 cleaner", "3 max_age 5"] {
        assert!(refusal(&format!("s o f 4096 {tail}")).starts_with("Invalid number of feature args"), "{tail}");
    }
    let cleaners = |count: usize| format!("s o f 4096 {count} {}", "cleaner ".repeat(count));
    parse(&cleaners(18)).unwrap();
    assert!(refusal(&cleaners(19)).starts_with("Invalid number of feature args"));
    assert_eq!(parse("s o f 4096 0 anything goes here").unwrap().options, CacheOptions::default());
}

#[test]
fn our_own_options_come_on_top_of_the_kernels_18_words() {
    let own = "overwrite new order fifo full wait ";
    let all = |count: usize| format!("s o f 4096 {} {own}{}", 6 + count, "cleaner ".repeat(count));
    parse(&all(18)).unwrap();
    assert!(refusal(&all(19)).starts_with("Invalid number of feature args"));
}

#[test]
fn values_within_the_limits_are_taken_and_others_refused() {
    let limits = [
        ("high_watermark", 100),
        ("low_watermark", 50),
        ("writeback_jobs", u32::MAX),
        ("autocommit_blocks", u32::MAX),
        ("autocommit_time", 3_600_000),
        ("max_age", 86_400_000),
        ("pause_writeback", 60_000),
    ];
    for (name, max) in limits {
        for value in [u64::from(max), u64::from(max) + (1 << 32)] {
            let read = options(&format!("{name} {value}")).unwrap();
            assert!(read.words().contains(&max.to_string()), "{name} {value}");
        }
        if max < u32::MAX && max != 50 {
            let above = options(&format!("{name} {}", max + 1)).unwrap_err().to_string();
            assert!(above.starts_with("Invalid optional argument"), "{above}");
        }
        for value in ["-1", "1x", "", "x", "+1", "1.5"] {
            let error = options(&format!("{name} {value}")).unwrap_err().to_string();
            assert!(error.starts_with("Invalid optional argument"), "{name} {value}: {error}");
        }
    }
    assert_eq!(options("start_sector 18446744073709551615").unwrap().start_sector(), u64::MAX);
    assert_eq!(options("high_watermark -0 low_watermark -4294967296").unwrap().high_watermark(), 0);
}

#[test]
fn unknown_options_and_those_of_persistent_memory_are_refused() {
    for words in ["fua", "nofua", "writeback", "cleaner nothing", "overwrite maybe", "order", "full on", "beside /a"] {
        let error = options(words).unwrap_err().to_string();
        assert!(error.starts_with("Invalid optional argument"), "{words}: {error}");
    }
}

#[test]
fn the_last_of_repeated_options_counts_and_case_does_not() {
    let read = options("Max_Age 5 max_age 7 OVERWRITE New overwrite PLACE full WAIT").unwrap();
    assert_eq!((read.max_age_ms, read.overwrite, read.full), (Some(7), Some(Overwrite::Place), Some(Full::Wait)));
}

#[test]
fn a_low_watermark_above_the_high_one_is_refused_defaults_included() {
    let text = "High watermark must be greater than or equal to low watermark";
    for words in ["low_watermark 60", "high_watermark 40", "high_watermark 10 low_watermark 11"] {
        assert!(options(words).unwrap_err().to_string().starts_with(text), "{words}");
    }
    options("high_watermark 45").unwrap();
    options("high_watermark 10 low_watermark 10").unwrap();
}

#[test]
fn a_word_with_a_line_break_is_refused_in_one_line() {
    for words in [["s", "a", "b", "4096\n", "0"], ["s", "a", "b", "512", "\n"], ["\n", "a", "b", "512", "0"]] {
        let error = CacheArgs::parse(words).unwrap_err().to_string();
        assert!(!error.contains('\n'), "{error:?}");
    }
    let error = CacheArgs::parse(["s", "a", "b", "512", "1", "be\nside"]).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error:?}");
}
