//! `forebay bench`: measurements within one run, with their limits beside them.

pub mod aged;
mod job;
pub mod writecache;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

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

#[expect(clippy::cast_precision_loss, reason = "speeds need no more than 53 bits")]
fn mib_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64()
}
