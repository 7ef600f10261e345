//! `forebay bench bvec`: what a request costs, and what borrowing its segments and registering its
//! memory save.

mod file;
mod null;

use std::fmt::Write as _;
use std::process::ExitCode;

use forebay_reactor::{Engine, Reactor, engine};
use serde::Serialize;

use self::file::FileLine;
use self::null::NullLine;
use super::report::{Curve, Report, write_html};
use super::{BenchError, failed};
use crate::flags::BvecFlags;

/// Runs the benchmark and prints its figures.
///
/// # Errors
/// One sentence on what it lacked.
pub fn run(flags: &BvecFlags) -> Result<ExitCode, BenchError> {
    let sizes = |all: &[u32]| if flags.block_size.is_empty() { all.to_vec() } else { flags.block_size.clone() };
    let told = |line: &FileLine| {
        if !flags.json {
            eprintln!("measured {} of {} bytes in {}", line.op, line.block_size, line.segments);
        }
    };
    if let Some(folder) = &flags.dir {
        return present(flags, file::run(folder, &sizes(&file::BLOCK_SIZES), told)?);
    }
    let reactor = Reactor::new(engine(Engine::Auto).map_err(failed)?);
    present(flags, null::run(&reactor, &sizes(&null::BLOCK_SIZES))?)
}

/// A kind of line, for a table, a plot and JSON.
trait Line: Serialize {
    const TITLE: &'static str;
    const ABOUT: &'static str;

    /// The names of the columns.
    fn head() -> String;
    /// As a line of the table.
    fn text(&self) -> String;
    /// Its step on the axis.
    fn step(&self) -> String;
    /// The curves of a plot.
    fn curves(lines: &[Self]) -> Vec<Curve>
    where
        Self: Sized;
}

fn present<L: Line>(flags: &BvecFlags, lines: Vec<L>) -> Result<ExitCode, BenchError> {
    let report = Report::new("bvec", lines);
    let mut table = format!("{}\n", L::head());
    for line in &report.rows {
        let _ = writeln!(table, "{}", line.text());
    }
    if let Some(path) = &flags.html {
        let about = format!("{} on {}, Linux {}. {}", report.command, report.cpu, report.kernel, L::ABOUT);
        let steps: Vec<String> = report.rows.iter().map(Line::step).collect();
        write_html(path, L::TITLE, &about, &steps, &L::curves(&report.rows), &table)?;
    }
    if flags.json {
        println!("{}", report.json()?);
    } else if flags.html.is_none() {
        print!("{table}");
    }
    Ok(ExitCode::SUCCESS)
}

impl Line for NullLine {
    const TITLE: &'static str = "Borrowed segments";
    const ABOUT: &'static str =
        "Random reads of a null device, batches of 32, 4 KiB segments; thousand requests a second on one core.";

    fn head() -> String {
        format!(
            "{:>8} {:>8} {:>11} {:>12} {:>8} {:>9}  {:<22} {:<22} {}",
            "block", "segments", "copy KIOPS", "borrow KIOPS", "copy ns", "borrow ns", "borrow/copy", "borrow/smallest", "core"
        )
    }

    fn text(&self) -> String {
        format!(
            "{:>8} {:>8} {:>11.0} {:>12.0} {:>8.1} {:>9.1}  {:<22} {:<22} {:.2}",
            self.block_size,
            self.segments,
            self.copy_kiops,
            self.borrow_kiops,
            self.copy_ns,
            self.borrow_ns,
            self.borrow_over_copy.to_string(),
            self.borrow_over_smallest.to_string(),
            self.core_share
        )
    }

    fn step(&self) -> String {
        self.block_size.to_string()
    }

    fn curves(lines: &[Self]) -> Vec<Curve> {
        vec![
            Curve { name: "copying", colour: "#b33", values: lines.iter().map(|line| line.copy_kiops).collect() },
            Curve { name: "borrowing", colour: "#27c", values: lines.iter().map(|line| line.borrow_kiops).collect() },
        ]
    }
}

impl Line for FileLine {
    const TITLE: &'static str = "Registered memory and files";
    const ABOUT: &'static str = "Random requests to a file with direct I/O, depth 32; processor time of a request, µs.";

    fn head() -> String {
        format!(
            "{:>7} {:>6} {:>8} {:>9} {:>13}  {:<22} {:>11} {:>16} {:>6}",
            "block",
            "op",
            "segments",
            "plain µs",
            "registered µs",
            "plain/registered",
            "plain KIOPS",
            "registered KIOPS",
            "enters"
        )
    }

    fn text(&self) -> String {
        format!(
            "{:>7} {:>6} {:>8} {:>9.2} {:>13.2}  {:<22} {:>11.1} {:>16.1} {:>6.3}",
            self.block_size,
            self.op,
            self.segments,
            self.plain_cpu_us,
            self.registered_cpu_us,
            self.plain_over_registered.to_string(),
            self.plain_kiops,
            self.registered_kiops,
            self.enters_per_request
        )
    }

    fn step(&self) -> String {
        format!("{} {} {}", self.op, self.block_size, self.segments)
    }

    fn curves(lines: &[Self]) -> Vec<Curve> {
        vec![
            Curve { name: "plain", colour: "#b33", values: lines.iter().map(|line| line.plain_cpu_us).collect() },
            Curve { name: "registered", colour: "#27c", values: lines.iter().map(|line| line.registered_cpu_us).collect() },
        ]
    }
}
