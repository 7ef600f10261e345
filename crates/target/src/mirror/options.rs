//! The words of a mirror's table line, as values. Pure.
//!
//! ```text
//!   core <2|1> REGION [sync|nosync]       N DEVICE OFFSET … [COUNT [handle_errors] [keep_log] [resync_rate=SIZE]]
//!   disk <3|2> LOG REGION [sync|nosync]   N DEVICE OFFSET … …
//! ```
//!
//! As the kernel's, with one feature more: `resync_rate=SIZE`, bytes per second that are copied to
//! bring legs up to date. Regions and offsets are in sectors of 512 bytes.

use forebay_block::{Sector, SectorCount};

use super::who::legs::LEGS_MAX;

/// Whether the log is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// It is.
    #[default]
    AsLogged,
    /// Everything is copied, whatever it says.
    All,
    /// Nothing is, whatever it says.
    None,
}

/// What is done about errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Writes that a leg missed are held back until somebody knows.
    pub handle_errors: bool,
    /// They are not: the log remembers.
    pub keep_log: bool,
    /// Most bytes per second that are copied to bring legs up to date; 0 for no limit.
    pub resync_rate: u64,
}

impl Features {
    /// Whether clients wait for somebody to know of a leg's failure.
    #[must_use]
    pub fn hold(&self) -> bool {
        self.handle_errors && !self.keep_log
    }
}

/// A mirror's table line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorArgs {
    /// The log device; `None` for a log in memory.
    pub log: Option<String>,
    /// Size of a region.
    pub region: SectorCount,
    /// Whether the log is believed.
    pub sync: Sync,
    /// Devices and where on them the mirror begins; 2 to [`LEGS_MAX`].
    pub legs: Vec<(String, Sector)>,
    /// What is done about errors.
    pub features: Features,
}

/// Why words are no mirror.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Too few words.
    #[error("the {0} of mirror is missing: write `mirror core 1 REGION N DEVICE OFFSET … [COUNT FEATURE…]`")]
    Missing(&'static str),
    /// Not a number.
    #[error("mirror: the {what} {word:?} is not a whole number")]
    Number {
        /// What it should be.
        what: &'static str,
        /// What it is.
        word: String,
    },
    /// Neither log.
    #[error("mirror: the log {0:?} is not known: use core or disk")]
    Log(String),
    /// The log has other arguments.
    #[error("mirror: a {log} log has {wanted} arguments, not {found}")]
    LogArguments {
        /// `core` or `disk`.
        log: &'static str,
        /// How many it may have.
        wanted: &'static str,
        /// How many were announced.
        found: u64,
    },
    /// Neither `sync` nor `nosync`.
    #[error("mirror: {0:?} is neither sync nor nosync")]
    Sync(String),
    /// The size of a region.
    #[error("mirror: a region of {0} sectors is not possible: give a power of two, at least 2")]
    Region(u64),
    /// The number of legs.
    #[error("mirror: {0} legs are not possible: give 2 to {LEGS_MAX}")]
    Legs(u64),
    /// A feature that is not known.
    #[error("mirror does not know {0:?}: use handle_errors, keep_log or resync_rate=SIZE")]
    Feature(String),
    /// The kernel asks for both.
    #[error("mirror: keep_log means something only with handle_errors: give both")]
    KeepLogAlone,
    /// Too many words.
    #[error("mirror: {0:?} is too much")]
    Extra(String),
}

struct Words<'a, I: Iterator<Item = &'a str>>(I);

impl<'a, I: Iterator<Item = &'a str>> Words<'a, I> {
    fn word(&mut self, what: &'static str) -> Result<&'a str, OptionError> {
        self.0.next().ok_or(OptionError::Missing(what))
    }

    fn number(&mut self, what: &'static str) -> Result<u64, OptionError> {
        let word = self.word(what)?;
        let plain = word.bytes().all(|byte| byte.is_ascii_digit());
        let number = if plain { word.parse().ok() } else { None };
        number.ok_or_else(|| OptionError::Number { what, word: word.to_owned() })
    }
}

impl MirrorArgs {
    /// Reads the words behind `mirror`. `size` reads a number of bytes with a unit.
    ///
    /// # Errors
    /// [`OptionError`], the first that applies.
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>, size: impl Fn(&str) -> Option<u64>) -> Result<Self, OptionError> {
        let mut words = Words(words);
        let kind = words.word("log")?;
        let (name, own, wanted) = match kind {
            "core" => ("core", 1, "1 or 2"),
            "disk" => ("disk", 2, "2 or 3"),
            other => return Err(OptionError::Log(other.to_owned())),
        };
        let count = words.number("number of log arguments")?;
        if count != own && count != own + 1 {
            return Err(OptionError::LogArguments { log: name, wanted, found: count });
        }
        let log = if own == 2 { Some(words.word("log device")?.to_owned()) } else { None };
        let region = words.number("region size")?;
        if region < 2 || !region.is_power_of_two() {
            return Err(OptionError::Region(region));
        }
        let sync = match if count > own { words.word("sync or nosync")? } else { "" } {
            "" => Sync::AsLogged,
            "sync" => Sync::All,
            "nosync" => Sync::None,
            other => return Err(OptionError::Sync(other.to_owned())),
        };
        let count = words.number("number of legs")?;
        if !(2..=LEGS_MAX as u64).contains(&count) {
            return Err(OptionError::Legs(count));
        }
        let mut leg = || Ok((words.word("device")?.to_owned(), Sector(words.number("offset")?)));
        let legs = (0..count).map(|_| leg()).collect::<Result<_, _>>()?;
        let features = Self::features(&mut words, size)?;
        Ok(Self { log, region: SectorCount(region), sync, legs, features })
    }

    fn features<'a>(
        words: &mut Words<'a, impl Iterator<Item = &'a str>>,
        size: impl Fn(&str) -> Option<u64>,
    ) -> Result<Features, OptionError> {
        let mut features = Features::default();
        let Some(count) = words.0.next() else { return Ok(features) };
        let number = || OptionError::Number { what: "number of features", word: count.to_owned() };
        let count: u64 = count.parse().map_err(|_| number())?;
        for _ in 0..count {
            let word = words.word("feature")?;
            match word {
                "handle_errors" => features.handle_errors = true,
                "keep_log" => features.keep_log = true,
                other => {
                    let rate = other.strip_prefix("resync_rate=").and_then(&size);
                    features.resync_rate = rate.ok_or_else(|| OptionError::Feature(other.to_owned()))?;
                }
            }
        }
        if let Some(word) = words.0.next() {
            return Err(OptionError::Extra(word.to_owned()));
        }
        if features.keep_log && !features.handle_errors {
            return Err(OptionError::KeepLogAlone);
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<MirrorArgs, OptionError> {
        MirrorArgs::parse(line.split_whitespace(), |word| word.parse().ok())
    }

    #[test]
    fn the_kernels_lines_are_understood() {
        let args = parse("core 2 1024 nosync 2 a 0 b 8 1 handle_errors").unwrap();
        assert_eq!((args.log, args.region.0, args.sync), (None, 1024, Sync::None));
        assert_eq!(args.legs, [("a".to_owned(), Sector(0)), ("b".to_owned(), Sector(8))]);
        assert!(args.features.hold());
        let args = parse("disk 2 log 64 3 a 0 b 0 c 0 3 handle_errors keep_log resync_rate=5").unwrap();
        assert_eq!((args.log.as_deref(), args.sync, args.legs.len()), (Some("log"), Sync::AsLogged, 3));
        assert_eq!(args.features, Features { handle_errors: true, keep_log: true, resync_rate: 5 });
        assert!(!args.features.hold());
        assert_eq!(parse("disk 3 log 2 sync 2 a 0 b 0").unwrap().sync, Sync::All);
        assert_eq!(parse("core 1 2 2 a 0 b 0 0").unwrap().features, Features::default());
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
        for (line, error) in [
            ("", OptionError::Missing("log")),
            ("clustered 1 8 2 a 0 b 0", OptionError::Log("clustered".into())),
            ("core 3 8 sync block_on_error 2 a 0 b 0", OptionError::LogArguments { log: "core", wanted: "1 or 2", found: 3 }),
            ("disk 1 log 2 a 0 b 0", OptionError::LogArguments { log: "disk", wanted: "2 or 3", found: 1 }),
            ("core 1 3 2 a 0 b 0", OptionError::Region(3)),
            ("core 1 1 2 a 0 b 0", OptionError::Region(1)),
            ("core 2 8 perhaps 2 a 0 b 0", OptionError::Sync("perhaps".into())),
            ("core 1 8 1 a 0", OptionError::Legs(1)),
            ("core 1 8 10 a 0", OptionError::Legs(10)),
            ("core 1 8 2 a 0 b", OptionError::Missing("offset")),
            ("core 1 8 2 a 0 b x", OptionError::Number { what: "offset", word: "x".into() }),
            ("core 1 8 2 a 0 b 0 1 keep_log", OptionError::KeepLogAlone),
            ("core 1 8 2 a 0 b 0 1 quick", OptionError::Feature("quick".into())),
            ("core 1 8 2 a 0 b 0 1 resync_rate=x", OptionError::Feature("resync_rate=x".into())),
            ("core 1 8 2 a 0 b 0 0 more", OptionError::Extra("more".into())),
            ("core 1 8 2 a 0 b 0 2 handle_errors", OptionError::Missing("feature")),
        ] {
            assert_eq!(parse(line), Err(error), "{line}");
        }
    }
}
