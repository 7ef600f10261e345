//! `cargo xtask miri`: the crates with raw memory, interpreted, so that every access is checked.
//!
//! Not part of a test run: it needs a nightly compiler and many minutes. What starts processes, calls the system, is
//! under a model checker, or is too long for an interpreter is left out.

use crate::step::{Count, Step};

/// A crate whose library tests are interpreted.
struct Interpreted {
    package: &'static str,
    /// Parts of names of tests that are run; all where there are none.
    only: &'static [&'static str],
    /// Parts of names of tests that are not.
    skipped: &'static [&'static str],
}

const CRATES: [Interpreted; 2] = [
    Interpreted {
        package: "forebay-block",
        only: &[],
        skipped: &["a_process_that", "seeking_a_uniform", "behaviour_03", "every_small_case", "behaviour_13"],
    },
    Interpreted {
        package: "forebay-reactor",
        only: &["plug::", "job::", "request::", "stream::"],
        skipped: &["tasks_reuse_their_slots"],
    },
];

/// What one crate takes is minutes on an idle machine.
const LIMIT_S: u32 = 3600;

/// Interprets all of it.
///
/// # Errors
/// Says that something failed, or what is missing.
pub fn run() -> Result<(), String> {
    let count = count();
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed == 0 {
        Ok(())
    } else {
        Err("see the lines marked FAILED above; Miri comes with `rustup component add miri --toolchain nightly`".to_owned())
    }
}

/// Interprets all of it, and counts each crate as one test.
pub fn count() -> Count {
    let mut count = Count::default();
    for Interpreted { package, only, skipped } in CRATES {
        let mut words = vec!["cargo", "+nightly", "miri", "test", "-p", package, "--lib", "--"];
        words.extend(only);
        words.extend(skipped.iter().flat_map(|name| ["--skip", *name]));
        let step = Step::new(&format!("miri {package}"), LIMIT_S, &words);
        count.add(step.env("PROPTEST_CASES", "4").env("MIRIFLAGS", "-Zmiri-disable-isolation").run_as_one());
    }
    count
}
