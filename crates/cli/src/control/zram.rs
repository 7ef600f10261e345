//! `forebay zram status`: the columns of zramctl, for the compressed RAM disks of a server.
//!
//! Sizes are rounded up to three digits and a unit, as zramctl does, or exact with `--bytes`.

use std::process::ExitCode;

use super::protocol::{DeviceReport, Reply, Request, ServerReport, ZramReport};
use super::{ask, misunderstood};
use crate::failure::{Failure, Outcome, say};
use crate::flags::ZramStatusFlags;

/// All columns, in zramctl's order; the first `SHOWN` are shown where none are named.
const COLUMNS: [&str; 12] = [
    "NAME",
    "ALGORITHM",
    "DISKSIZE",
    "DATA",
    "COMPR",
    "TOTAL",
    "STREAMS",
    "ZERO-PAGES",
    "MEM-LIMIT",
    "MEM-USED",
    "MIGRATED",
    "COMP-RATIO",
];
const SHOWN: usize = 7;

/// `forebay zram status`.
pub fn status(flags: &ZramStatusFlags) -> Outcome {
    let columns = columns(flags)?;
    let Reply::Status(report) = ask(&flags.reach.control, &Request::Status { device: flags.device.clone() })? else {
        return Err(misunderstood(&flags.reach.control));
    };
    say(&table(&report, &columns, flags))?;
    Ok(ExitCode::SUCCESS)
}

fn columns(flags: &ZramStatusFlags) -> Result<Vec<&'static str>, Failure> {
    if flags.output_all {
        return Ok(COLUMNS.to_vec());
    }
    if flags.output.is_empty() {
        return Ok(COLUMNS[..SHOWN].to_vec());
    }
    let known = |name: &String| {
        let found = COLUMNS.into_iter().find(|column| column.eq_ignore_ascii_case(name));
        found.ok_or_else(|| Failure::Failed(format!("there is no column {name:?}: use {}", COLUMNS.join(", "))))
    };
    flags.output.iter().map(known).collect()
}

fn table(report: &ServerReport, columns: &[&str], flags: &ZramStatusFlags) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !flags.noheadings {
        rows.push(columns.iter().map(|column| (*column).to_owned()).collect());
    }
    for device in &report.devices {
        let cells = |zram: &ZramReport| columns.iter().map(|column| cell(column, device, zram, flags.bytes)).collect();
        rows.extend(device.zrams.iter().map(cells));
    }
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        // Names stand to the left, numbers to the right.
        let padded = row.iter().zip(columns).zip(&widths).map(|((cell, column), &width)| match *column {
            _ if flags.raw => cell.clone(),
            "NAME" | "ALGORITHM" => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += padded.collect::<Vec<_>>().join(" ").trim_end();
        text.push('\n');
    }
    text
}

fn cell(column: &str, device: &DeviceReport, zram: &ZramReport, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { short(bytes) };
    match column {
        "NAME" => device.name.clone(),
        "ALGORITHM" => zram.algorithm.clone(),
        "DISKSIZE" => size(zram.disk_bytes),
        "DATA" => size(zram.original_bytes),
        "COMPR" => size(zram.compressed_bytes),
        "TOTAL" => size(zram.used_bytes),
        "ZERO-PAGES" => zram.same_pages.to_string(),
        "MEM-LIMIT" => size(zram.limit_bytes),
        "MEM-USED" => size(zram.used_max_bytes),
        "COMP-RATIO" => zram.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.4}")),
        // One stream compresses, and no page is ever moved to be compacted.
        "STREAMS" => "1".to_owned(),
        _ => "0".to_owned(),
    }
}

/// A size with one digit behind the point and a unit, as in `1.5G`; without the digit where it is 0.
fn short(bytes: u64) -> String {
    let unit = (0..7).rev().find(|unit| bytes >> (unit * 10) > 0 && *unit < 7).unwrap_or(0_u32);
    let tenths = u128::from(bytes) * 10 / (1_u128 << (unit * 10));
    let letter = ["B", "K", "M", "G", "T", "P", "E"].get(unit as usize).copied().unwrap_or("");
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}{letter}"),
        (whole, tenth) => format!("{whole}.{tenth}{letter}"),
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn sizes_are_short() {
        for (bytes, text) in
            [(0, "0B"), (512, "512B"), (4096, "4K"), (1536 << 20, "1.5G"), (10 << 40, "10T"), (u64::MAX, "15.9E")]
        {
            assert_eq!(short(bytes), text);
        }
    }
}
