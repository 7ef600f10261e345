//! The words of a table line behind `clone`, in dm-clone's own grammar.
//!
//! ```text
//!   <metadata> <destination> <source> <region sectors> [<#features> feature… [<#core args> NAME N …]]
//! ```
//!
//! | feature | meaning |
//! |---|---|
//! | `no_hydration` | regions are hydrated by writes only, until `enable_hydration` |
//! | `no_discard_passdown` | discards stay away from the destination |
//! | `hydrate_on_read` | a read of a region that is not hydrated has it hydrated next |
//!
//! | core argument | meaning | default |
//! |---|---|---|
//! | `hydration_threshold` | regions in hydration at which no further batch begins | 1 |
//! | `hydration_batch_size` | most adjacent regions that are copied as one | 1 |
//! | `hydration_rate` | most bytes that hydration begins in a second; 0 for any | 0 |
//! | `hydration_latency_us` | what requests may take before hydration steps back, µs; 0 for any time | 5000 |
//!
//! 1. Names, defaults and the order of words are the kernel's; `hydrate_on_read`, `hydration_rate` and
//!    `hydration_latency_us` are our own, and the kernel refuses a line with them.
//! 2. Each may be given once.
//!
//! Errors: [`OptionError`]. Source: the documentation of the `clone` target 1.0.0.

#![deny(clippy::indexing_slicing)]

use std::fmt::Write as _;

use thiserror::Error;

#[cfg(test)]
mod tests;

/// How a line is written.
const USAGE: &str =
    "clone METADATA DESTINATION SOURCE REGION_SECTORS [COUNT FEATURE… [COUNT hydration_threshold N hydration_batch_size N]]";

/// Most regions in hydration, and in a batch.
const NUMBER_MAX: u32 = 1 << 31;
/// What requests may take while hydration goes on, where nothing is said: 5 ms.
const LATENCY_US: u64 = 5000;
/// Longest time that can be said: a minute.
const LATENCY_US_MAX: u64 = 60_000_000;

/// Why words behind `clone` are refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// A leading word is missing.
    #[error("the {0} of clone is missing: write `{USAGE}`")]
    Missing(&'static str),
    /// The region size is no number.
    #[error("Invalid region size: {0:?} is not a whole number of sectors")]
    Region(String),
    /// A count that does not fit the words behind it.
    #[error("clone: {count:?} is not the number of {what} that follow: write `{USAGE}`")]
    Count {
        /// What was given.
        count: String,
        /// Of what.
        what: &'static str,
    },
    /// A feature that is none, or is given twice.
    #[error("Invalid feature: {0:?}; use no_hydration, no_discard_passdown or hydrate_on_read, each once")]
    Feature(String),
    /// A core argument that is none, or is given twice.
    #[error(
        "Invalid core argument: {0:?}; use hydration_threshold, hydration_batch_size, hydration_rate or hydration_latency_us, each once"
    )]
    Argument(String),
    /// A value that does not fit.
    #[error("Invalid value for argument `{name}': {value:?} is not a whole number up to {most}")]
    Value {
        /// Of which argument.
        name: String,
        /// What was given.
        value: String,
        /// The largest.
        most: u64,
    },
}

/// The words behind `clone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneArgs {
    /// The metadata device, as written.
    pub metadata: String,
    /// The destination, as written.
    pub destination: String,
    /// The source, as written.
    pub source: String,
    /// Size of a region, sectors; judged when the clone opens.
    pub region_sectors: u64,
    /// What was said about the rest.
    pub options: CloneOptions,
}

/// What a clone does beside copying on write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloneOptions {
    /// Hydrate regions that nobody writes to.
    pub hydration: bool,
    /// Send discards to the destination.
    pub discard_passdown: bool,
    /// Hydrate next what was read.
    pub hydrate_on_read: bool,
    /// The numbers.
    pub tuning: Tuning,
}

/// The numbers that can be changed by messages, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Regions in hydration at which no further batch begins; 1 to 2^31.
    pub threshold: u32,
    /// Most adjacent regions in one copy; 1 to 2^31.
    pub batch: u32,
    /// Most bytes per second that hydration begins; 0 for any.
    pub rate: u64,
    /// What requests may take before hydration steps back, microseconds; 0 for any time.
    pub latency_us: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { threshold: 1, batch: 1, rate: 0, latency_us: LATENCY_US }
    }
}

impl Default for CloneOptions {
    fn default() -> Self {
        Self { hydration: true, discard_passdown: true, hydrate_on_read: false, tuning: Tuning::default() }
    }
}

impl CloneArgs {
    /// Reads the words behind `clone`.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut next = |what| words.next().ok_or(OptionError::Missing(what));
        let metadata = next("metadata device")?.to_owned();
        let destination = next("destination")?.to_owned();
        let source = next("source")?.to_owned();
        let region = next("region size")?;
        let region_sectors = whole(region).ok_or_else(|| OptionError::Region(region.to_owned()))?;
        let rest: Vec<&str> = words.collect();
        Ok(Self { metadata, destination, source, region_sectors, options: CloneOptions::parse(&rest)? })
    }
}

impl CloneOptions {
    fn parse(words: &[&str]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let (features, rest) = counted(words, "features")?;
        let (arguments, rest) = counted(rest, "core arguments")?;
        if let Some(word) = rest.first() {
            return Err(OptionError::Count { count: (*word).to_owned(), what: "words" });
        }
        for (at, &feature) in features.iter().enumerate() {
            let twice = features.iter().take(at).any(|before| before.eq_ignore_ascii_case(feature));
            match feature.to_ascii_lowercase().as_str() {
                _ if twice => return Err(OptionError::Feature(feature.to_owned())),
                "no_hydration" => options.hydration = false,
                "no_discard_passdown" => options.discard_passdown = false,
                "hydrate_on_read" => options.hydrate_on_read = true,
                _ => return Err(OptionError::Feature(feature.to_owned())),
            }
        }
        let (pairs, odd) = arguments.as_chunks::<2>();
        if let Some(word) = odd.first() {
            return Err(OptionError::Argument((*word).to_owned()));
        }
        for (at, [name, value]) in pairs.iter().enumerate() {
            if pairs.iter().take(at).any(|[before, _]| before.eq_ignore_ascii_case(name)) {
                return Err(OptionError::Argument((*name).to_owned()));
            }
            options.tuning.set(name, value)?;
        }
        Ok(options)
    }

    /// The words that make these options again: as in a table line, and in the status.
    #[must_use]
    pub fn words(&self) -> String {
        let features = [
            (!self.hydration, "no_hydration"),
            (!self.discard_passdown, "no_discard_passdown"),
            (self.hydrate_on_read, "hydrate_on_read"),
        ];
        let features: Vec<&str> = features.into_iter().filter(|(given, _)| *given).map(|(_, word)| word).collect();
        let mut words = features.len().to_string();
        for feature in features {
            words += " ";
            words += feature;
        }
        words + " " + &self.tuning.words()
    }
}

impl Tuning {
    /// Sets the number of this name, case ignored.
    ///
    /// # Errors
    /// [`OptionError`] when there is none, or the value does not fit it.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let wrong = |most| OptionError::Value { name: name.to_owned(), value: value.to_owned(), most };
        let number = |most| whole(value).filter(|number| *number <= most).ok_or_else(|| wrong(most));
        let regions = || {
            let number = whole(value).and_then(|number| u32::try_from(number).ok());
            number.filter(|number| (1..=NUMBER_MAX).contains(number)).ok_or_else(|| wrong(u64::from(NUMBER_MAX)))
        };
        match name.to_ascii_lowercase().as_str() {
            "hydration_threshold" => self.threshold = regions()?,
            "hydration_batch_size" => self.batch = regions()?,
            "hydration_rate" => self.rate = number(u64::MAX)?,
            "hydration_latency_us" => self.latency_us = number(LATENCY_US_MAX)?,
            _ => return Err(OptionError::Argument(name.to_owned())),
        }
        Ok(())
    }

    /// The core arguments and their count, the kernel's always, our own where they are not the default.
    fn words(self) -> String {
        let mut words = format!("hydration_threshold {} hydration_batch_size {}", self.threshold, self.batch);
        let mut count = 4;
        let default = Self::default();
        for (name, value, usual) in
            [("hydration_rate", self.rate, default.rate), ("hydration_latency_us", self.latency_us, default.latency_us)]
        {
            if value != usual {
                write!(words, " {name} {value}").expect("writing to a string does not fail");
                count += 2;
            }
        }
        format!("{count} {words}")
    }
}

/// A count and as many words as it says; none where there are no words.
fn counted<'a, 'b>(words: &'a [&'b str], what: &'static str) -> Result<(&'a [&'b str], &'a [&'b str]), OptionError> {
    let Some((count, rest)) = words.split_first() else { return Ok((&[], &[])) };
    let wrong = || OptionError::Count { count: (*count).to_owned(), what };
    let number = whole(count).and_then(|count| usize::try_from(count).ok()).ok_or_else(wrong)?;
    rest.split_at_checked(number).ok_or_else(wrong)
}

fn whole(word: &str) -> Option<u64> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    if digits { word.parse().ok() } else { None }
}
