//! `cargo xtask check`: what to run before a commit, quick checks first.

use crate::step::Step;

/// Runs every check and reports all that failed, not only the first.
///
/// # Errors
/// Names the checks that failed.
pub fn run() -> Result<(), String> {
    let mut failed = Vec::new();
    let mut note = |name: &str, ok: bool| {
        if !ok {
            failed.push(name.to_owned());
        }
    };
    note("fmt", Step::new("fmt", 60, &["cargo", "fmt", "--all", "--check"]).run());
    note("tidy", crate::tidy::run(&crate::root()).map_err(|reason| eprintln!("{reason}")).is_ok());
    let clippy = ["cargo", "clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"];
    note("clippy", Step::new("clippy", 600, &clippy).run());
    note("tests", crate::suite::unit_tests().failed == 0);
    note("sim", crate::suite::simulate(&["--seeds", "0..200"]).is_ok());
    note("sim zram", crate::suite::simulate(&["zram", "--seeds", "0..200"]).is_ok());
    note("sim copy", crate::suite::simulate(&["copy", "--seeds", "0..100"]).is_ok());
    note("sim served", crate::suite::simulate(&["served", "--seeds", "0..50", "--requests", "400"]).is_ok());
    note("sim nbd", crate::suite::simulate(&["nbd", "--seeds", "0..50", "--requests", "400"]).is_ok());
    let docs = ["cargo", "doc", "--release", "--workspace", "--no-deps"];
    note("docs", Step::new("docs", 600, &docs).env("RUSTDOCFLAGS", "-D warnings").run());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}
