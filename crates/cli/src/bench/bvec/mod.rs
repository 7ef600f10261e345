//! `forebay bench bvec`: what a request costs, and what borrowing its segments and registering its memory save.

mod null;

use std::fmt::Write as _;
use std::process::ExitCode;

use forebay_reactor::{Engine, Reactor, engine};

use super::report::{Curve, Report, write_html};
use super::{BenchError, failed};
use crate::flags::BvecFlags;
use null::NullLine;

/// Runs the benchmark and prints its figures.
///
/// # Errors
/// One sentence on what it lacked.
pub fn run(flags: &BvecFlags) -> Result<ExitCode, BenchError> {
    let sizes = if flags.block_size.is_empty() { null::BLOCK_SIZES.to_vec() } else { flags.block_size.clone() };
    let reactor = Reactor::new(engine(Engine::Auto).map_err(failed)?);
    let report = Report::new("bvec", null::run(&reactor, &sizes)?);
    if let Some(path) = &flags.html {
        let about = format!("{} on {}, Linux {}. {}", report.command, report.cpu, report.kernel, ABOUT);
        write_html(path, "Borrowed segments", &about, &steps(&report.rows), &curves(&report.rows), &text(&report.rows))?;
    }
    if flags.json {
        println!("{}", report.json()?);
    } else if flags.html.is_none() {
        print!("{}", text(&report.rows));
    }
    Ok(ExitCode::SUCCESS)
}

const ABOUT: &str = "Random reads of a null device, batches of 32, 4 KiB segments; thousand requests a second on one core.";

fn text(lines: &[NullLine]) -> String {
    let mut text = format!(
        "{:>8} {:>8} {:>11} {:>12} {:>8} {:>9}  {:<22} {:<22} {}\n",
        "block", "segments", "copy KIOPS", "borrow KIOPS", "copy ns", "borrow ns", "borrow/copy", "borrow/smallest", "core"
    );
    for line in lines {
        let _ = writeln!(
            text,
            "{:>8} {:>8} {:>11.0} {:>12.0} {:>8.1} {:>9.1}  {:<22} {:<22} {:.2}",
            line.block_size,
            line.segments,
            line.copy_kiops,
            line.borrow_kiops,
            line.copy_ns,
            line.borrow_ns,
            line.borrow_over_copy.to_string(),
            line.borrow_over_smallest.to_string(),
            line.core_share
        );
    }
    text
}

fn steps(lines: &[NullLine]) -> Vec<String> {
    lines.iter().map(|line| line.block_size.to_string()).collect()
}

fn curves(lines: &[NullLine]) -> Vec<Curve> {
    vec![
        Curve { name: "copying", colour: "#b33", values: lines.iter().map(|line| line.copy_kiops).collect() },
        Curve { name: "borrowing", colour: "#27c", values: lines.iter().map(|line| line.borrow_kiops).collect() },
    ]
}
