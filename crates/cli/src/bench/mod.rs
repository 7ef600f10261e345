//! `forebay bench`: measurements within one run, with their limits beside them.
//!
//! Variants are interleaved, each figure is the median of at least five repetitions, and ratios are
//! taken repetition by repetition: the speed of a machine changes by the minute, a ratio does not.

pub mod aged;
mod bvec;
mod files;
mod job;
mod kcopyd;
mod plain;
mod report;
pub mod writecache;
mod zram;

use std::fmt;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use forebay_reactor::Reactor;
use serde::Serialize;

use self::aged::AgedLine;
use self::files::FileLine;
use self::report::{Curve, Report, write_html};
use self::writecache::Line;
use crate::failure::{Failure, Outcome};
use crate::flags::{BenchCommand, WritecacheFlags};

/// Why a benchmark gave no figures, as one sentence.
#[derive(Debug)]
pub struct BenchError(pub String);

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BenchError {}

fn failed(error: impl fmt::Display) -> BenchError {
    BenchError(error.to_string())
}

/// Median, smallest and largest of some repetitions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1).expect("a figure is measured at least once");
        Self { median: values[last / 2], min: values[0], max: values[last] }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }
}

#[expect(clippy::cast_precision_loss, reason = "speeds need no more than 53 bits")]
fn mib_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64()
}

/// A row of any of the tables; the fields of its kind are its JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Speed(Line),
    Aged(AgedLine),
    Files(FileLine),
}

/// Runs a benchmark.
///
/// # Errors
/// One sentence on what it lacked.
pub fn run(command: &BenchCommand) -> Outcome {
    match command {
        BenchCommand::Bvec(flags) => bvec::run(flags).map_err(|error| Failure::Failed(error.to_string())),
        BenchCommand::Kcopyd(flags) => kcopyd::run(flags).map_err(|error| Failure::Failed(error.to_string())),
        BenchCommand::Zram(flags) => zram::run(flags).map_err(|error| Failure::Failed(error.to_string())),
        BenchCommand::Writecache(flags) => run_writecache(flags).map_err(|error| Failure::Failed(error.to_string())),
    }
}

fn run_writecache(flags: &WritecacheFlags) -> Result<ExitCode, BenchError> {
    let backend = forebay_reactor::engine(forebay_reactor::Engine::Auto).map_err(failed)?;
    let reactor = Reactor::new(backend);
    let sizes = if flags.block_size.is_empty() { writecache::BLOCK_SIZES.to_vec() } else { flags.block_size.clone() };
    let rows = reactor.run(measure(&reactor, flags, &sizes)).map_err(failed)??;
    let report = Report::new("writecache", rows);
    if let Some(path) = &flags.html {
        let about = format!("{} on {}, Linux {}. 512 KiB random writes at depth 32.", report.command, report.cpu, report.kernel);
        write_html(path, "Write cache", &about, &steps(&report.rows), &curves(&report.rows), &text(&report.rows))?;
    }
    if flags.json {
        println!("{}", report.json()?);
    } else if flags.html.is_none() {
        print!("{}", text(&report.rows));
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(reactor: &Reactor, flags: &WritecacheFlags, sizes: &[u32]) -> Result<Vec<Row>, BenchError> {
    let told = |line: &str| {
        if !flags.json {
            eprintln!("{line}");
        }
    };
    if let Some(folder) = &flags.dir {
        let lines = files::run(reactor, folder, flags.size, sizes).await?;
        return Ok(lines.into_iter().map(Row::Files).collect());
    }
    let lines =
        writecache::run(reactor, flags.size, sizes, |line| told(&format!("measured {} byte blocks", line.block_size))).await?;
    let mut rows: Vec<Row> = lines.into_iter().map(Row::Speed).collect();
    if flags.aged {
        for &size in sizes {
            rows.push(Row::Aged(aged::run(reactor, size).await?));
            told(&format!("aged a cache of {size} byte blocks"));
        }
    }
    Ok(rows)
}

/// The table for people; speeds in MiB/s.
fn text(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut kind = "";
    for row in rows {
        let (name, head, line) = describe(row);
        if name != kind {
            let gap = if kind.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{head}");
            kind = name;
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

fn describe(row: &Row) -> (&'static str, String, String) {
    match row {
        Row::Speed(line) => (
            "speed",
            format!(
                "{:>6} {:>9} {:>9} {:>9} {:>9}  {:<22} {:<22} {}",
                "block", "off", "on", "raw", "memcpy", "on/off", "on/raw", "raw/memcpy"
            ),
            format!(
                "{:>6} {:>9.0} {:>9.0} {:>9.0} {:>9.0}  {:<22} {:<22} {}",
                line.block_size,
                line.off_mib_s,
                line.on_mib_s,
                line.raw_mib_s,
                line.memcpy_mib_s,
                line.on_over_off.to_string(),
                line.on_over_raw.to_string(),
                line.raw_over_memcpy
            ),
        ),
        Row::Aged(line) => (
            "aged",
            format!(
                "{:>6} {:>9} {:>9} {:>12}  {:<22} {}",
                "block", "aged", "fresh", "requests/wr", "aged/fresh", "free runs, longest"
            ),
            format!(
                "{:>6} {:>9.0} {:>9.0} {:>12.2}  {:<22} {}, {}",
                line.block_size,
                line.aged_mib_s,
                line.fresh_mib_s,
                line.requests_per_write,
                line.aged_over_fresh.to_string(),
                line.free_runs,
                line.free_longest
            ),
        ),
        Row::Files(line) => (
            "files",
            format!("{:>6} {:>9} {:>9}  {}", "block", "on", "raw", "on/raw"),
            format!("{:>6} {:>9.0} {:>9.0}  {}", line.block_size, line.on_mib_s, line.raw_mib_s, line.on_over_raw),
        ),
    }
}

fn steps(rows: &[Row]) -> Vec<String> {
    let sizes = rows.iter().filter_map(|row| match row {
        Row::Speed(line) => Some(line.block_size),
        Row::Files(line) => Some(line.block_size),
        Row::Aged(_) => None,
    });
    sizes.map(|size| size.to_string()).collect()
}

fn curves(rows: &[Row]) -> Vec<Curve> {
    let speed = |pick: fn(&Line) -> f64| -> Vec<f64> {
        rows.iter().filter_map(|row| if let Row::Speed(line) = row { Some(pick(line)) } else { None }).collect()
    };
    let files = |pick: fn(&FileLine) -> f64| -> Vec<f64> {
        rows.iter().filter_map(|row| if let Row::Files(line) = row { Some(pick(line)) } else { None }).collect()
    };
    let all = [
        Curve { name: "one request a block", colour: "#b33", values: speed(|line| line.off_mib_s) },
        Curve { name: "extended requests", colour: "#27c", values: speed(|line| line.on_mib_s) },
        Curve { name: "bare RAM device", colour: "#293", values: speed(|line| line.raw_mib_s) },
        Curve { name: "plain copy", colour: "#888", values: speed(|line| line.memcpy_mib_s) },
        Curve { name: "cache on files", colour: "#27c", values: files(|line| line.on_mib_s) },
        Curve { name: "bare file", colour: "#293", values: files(|line| line.raw_mib_s) },
    ];
    all.into_iter().filter(|curve| !curve.values.is_empty()).collect()
}
