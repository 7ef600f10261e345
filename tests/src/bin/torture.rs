//! Kills servers under file systems for as long as it is told: `torture SECONDS`. See `forebay_tests::kills`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use forebay_tests::kills::{EXT4, Kills, Stack, XFS};
use forebay_tests::run;

/// Cycles on one file system before the next is made.
const CYCLES: u64 = 10;

fn main() -> ExitCode {
    let Some(seconds) = std::env::args().nth(1).and_then(|word| word.parse().ok()) else {
        eprintln!("usage: torture SECONDS");
        return ExitCode::from(2);
    };
    let end = run::now() + Duration::from_secs(seconds);
    let mut kills = 0;
    while run::now() < end {
        for (system, stack) in [EXT4, XFS].into_iter().flat_map(|system| Stack::ALL.map(|stack| (system, stack))) {
            let mut under = Kills::new(system, stack);
            for _ in 0..CYCLES {
                under.cycle();
            }
            kills += under.finish();
            println!("{kills} kills survived");
        }
    }
    ExitCode::SUCCESS
}
