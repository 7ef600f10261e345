//! The words of a table line behind `zram`: `NAME=VALUE`, each at most once.
//!
//! ```text
//!   0 2097152 zram algo=zstd level=3 dict=PATH mem_limit=256M
//! ```
//!
//! | name | value | where it is not given |
//! |---|---|---|
//! | `algo` | `lz4`, `zstd`, `deflate` or `store` | `lz4` |
//! | `level` | 1 to 22 for zstd, 1 to 9 for deflate | 3, 6 |
//! | `dict` | path of a dictionary for zstd | none |
//! | `backing_dev` | file, block device, `ram:SIZE` or NBD server; its content is lost | none |
//! | `image` | file that the disk is restored from when it is there, and saved to in the end | none |
//! | `range_pages` | blocks of 4 KiB of one write to it, 1 to 256 | what the device prefers |
//! | `packed` | `yes`: objects are written as they are, several to a block | `no` |
//! | `promote` | `yes`: pages that are read come back into memory, within `mem_limit` and `spill_at` | `no` |
//! | `discard` | `no`: blocks that became free are not discarded | `yes`, where the device can |
//! | `idle_after` | seconds after which a page is written back that nobody asked for | never |
//! | `spill_at` | percent of `mem_limit` in use at which the largest pages are, 11 to 100; writes wait for room then | never |
//! | `spill_rate` | most bytes that these two write in a second | any |
//! | `spill_daily` | and in a day | any |
//! | `recomp` | codecs that make objects smaller later, up to 3, as in `zstd,zstd:19` | none |
//! | `threads` | threads that compress large writes, 1 to 64 | one for each core, 4 at most |
//! | `recompress_after` | seconds after which that is done to a page that nobody asked for | by command only |
//! | `mem_limit` | bytes with `K`, `M`, `G` or `T`; 0 for none | none |

use super::backing::BackingOptions;
use super::codec::{Algorithm, CodecParams};
use super::recompress::RecompressSetup;

/// The options of a compressed RAM disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZramOptions {
    /// How pages are compressed.
    pub algorithm: Algorithm,
    /// How hard that tries.
    pub level: Option<i32>,
    /// Path of the dictionary.
    pub dictionary: Option<String>,
    /// Most memory for objects, bytes; 0 for any.
    pub mem_limit: u64,
    /// Where pages can be written back to.
    pub backing: Option<String>,
    /// Path of the file that the disk is restored from and saved to.
    pub image: Option<String>,
    /// How that is done.
    pub writeback: BackingOptions,
    /// How pages that stay become smaller.
    pub recompression: RecompressSetup,
    /// Threads that compress large writes, that of the disk counted.
    pub threads: Option<u32>,
}

/// Why words are not options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No `=` in it.
    #[error("{0:?} is not an option of zram: write NAME=VALUE, as in algo=lz4")]
    Word(String),
    /// A name that is not one.
    #[error(
        "zram has no option {0:?}: use algo, level, dict, mem_limit, backing_dev, image, range_pages, packed, promote, discard, idle_after, spill_at, spill_rate, spill_daily, recomp, recompress_after or threads"
    )]
    Name(String),
    /// A name given twice.
    #[error("the option {0} of zram is given twice: leave one out")]
    Twice(String),
    /// How to write back, without a device to write to.
    #[error(
        "range_pages, packed, promote, discard, idle_after and spill_at of zram are about a backing device: add backing_dev=DEVICE"
    )]
    NoBacking,
    /// A rule without a codec to follow it with.
    #[error("recompress_after of zram needs a second codec: add recomp=NAME, as in recomp=zstd")]
    NoCodec,
    /// A value that does not fit.
    #[error("{value:?} is no {name} of zram: use {hint}")]
    Value {
        /// Of which option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is taken.
        hint: &'static str,
    },
}

impl ZramOptions {
    /// Reads the words behind `zram`.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| OptionError::Word(word.to_owned()))?;
            if seen.contains(&name) {
                return Err(OptionError::Twice(name.to_owned()));
            }
            seen.push(name);
            options.set(name, value)?;
        }
        if options.writeback != BackingOptions::default() && options.backing.is_none() {
            return Err(OptionError::NoBacking);
        }
        if options.recompression.after_s.is_some() && options.recompression.codecs.is_empty() {
            return Err(OptionError::NoCodec);
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let wrong = |name, hint| OptionError::Value { name, value: value.to_owned(), hint };
        match name {
            "algo" => self.algorithm = Algorithm::named(value).ok_or_else(|| wrong("algo", "lz4, zstd, deflate or store"))?,
            "level" => self.level = Some(value.parse().map_err(|_| wrong("level", "a whole number"))?),
            "dict" if value.is_empty() => return Err(wrong("dict", "the path of a dictionary")),
            "dict" => self.dictionary = Some(value.to_owned()),
            "mem_limit" => self.mem_limit = size(value).ok_or_else(|| wrong("mem_limit", "a size such as 256M"))?,
            "backing_dev" if value.is_empty() => return Err(wrong("backing_dev", "the path of a file or block device")),
            "backing_dev" => self.backing = Some(value.to_owned()),
            "image" if value.is_empty() => return Err(wrong("image", "the path of a file")),
            "image" => self.image = Some(value.to_owned()),
            "range_pages" => {
                let pages = value.parse().ok().filter(|pages| (1..=256).contains(pages));
                self.writeback.range_pages = Some(pages.ok_or_else(|| wrong("range_pages", "1 to 256"))?);
            }
            "promote" => self.writeback.promote = flag(value).ok_or_else(|| wrong("promote", "yes or no"))?,
            "discard" => self.writeback.keep_freed = !flag(value).ok_or_else(|| wrong("discard", "yes or no"))?,
            "packed" => self.writeback.packed = flag(value).ok_or_else(|| wrong("packed", "yes or no"))?,
            "recomp" => {
                let codecs =
                    seconds(value).ok_or_else(|| wrong("recomp", "up to 3 of lz4, zstd and deflate, as in zstd,zstd:19"))?;
                self.recompression.codecs = codecs;
            }
            "threads" => {
                let threads = value.parse().ok().filter(|threads| (1..=64).contains(threads));
                self.threads = Some(threads.ok_or_else(|| wrong("threads", "1 to 64"))?);
            }
            "recompress_after" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                self.recompression.after_s = Some(seconds.ok_or_else(|| wrong("recompress_after", "a number of seconds"))?);
            }
            "idle_after" | "spill_at" | "spill_rate" | "spill_daily" => return self.set_rule(name, value),
            _ => return Err(OptionError::Name(name.to_owned())),
        }
        Ok(())
    }
}

impl ZramOptions {
    fn set_rule(&mut self, name: &str, value: &str) -> Result<(), OptionError> {
        let wrong = |name, hint| OptionError::Value { name, value: value.to_owned(), hint };
        let rate = |name| size(value).filter(|bytes| *bytes >= 4096).ok_or_else(|| wrong(name, "a size of 4K or more"));
        match name {
            "idle_after" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
                self.writeback.rules.idle_after_s = Some(seconds.ok_or_else(|| wrong("idle_after", "a number of seconds"))?);
            }
            "spill_at" => {
                let percent = value.parse().ok().filter(|percent| (11..=100).contains(percent));
                self.writeback.rules.spill_percent =
                    Some(percent.ok_or_else(|| wrong("spill_at", "a percentage from 11 to 100"))?);
            }
            "spill_rate" => self.writeback.rules.rate_bytes = Some(rate("spill_rate")?),
            _ => self.writeback.rules.daily_bytes = Some(rate("spill_daily")?),
        }
        Ok(())
    }
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

/// Codecs with a comma between, each with an optional level behind a colon.
fn seconds(text: &str) -> Option<Vec<CodecParams>> {
    let codec = |word: &str| {
        let (name, level) = word.split_once(':').map_or((word, None), |(name, level)| (name, Some(level)));
        let algorithm = Algorithm::named(name).filter(|algorithm| *algorithm != Algorithm::Store)?;
        let level = level.map_or(Some(None), |level| level.parse().ok().map(Some))?;
        Some(CodecParams { algorithm, level, dictionary: None })
    };
    let codecs: Vec<CodecParams> = text.split(',').map(codec).collect::<Option<_>>()?;
    (codecs.len() <= 3).then_some(codecs)
}

/// Bytes with an optional suffix K, M, G, T, P or E (powers of 1024), as the kernel reads them.
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (text.get(..at)?, 10),
        (at, 'M' | 'm') => (text.get(..at)?, 20),
        (at, 'G' | 'g') => (text.get(..at)?, 30),
        (at, 'T' | 't') => (text.get(..at)?, 40),
        (at, 'P' | 'p') => (text.get(..at)?, 50),
        (at, 'E' | 'e') => (text.get(..at)?, 60),
        _ => (text, 0),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = if plain { digits.parse().ok()? } else { return None };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    fn parse(text: &str) -> Result<ZramOptions, String> {
        ZramOptions::parse(text.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_have_defaults_and_are_read() {
        assert_eq!(parse(""), Ok(ZramOptions::default()));
        let options = parse("mem_limit=256M algo=zstd level=9 dict=a=b").unwrap();
        assert_eq!((options.algorithm, options.level, options.mem_limit), (Algorithm::Zstd, Some(9), 256 << 20));
        assert_eq!(options.dictionary.as_deref(), Some("a=b"));
        let options = parse("idle_after=600 spill_at=80 backing_dev=a spill_rate=64M spill_daily=10G").unwrap();
        let rates = (options.writeback.rules.rate_bytes, options.writeback.rules.daily_bytes);
        assert_eq!((options.writeback.rules.idle_after_s, options.writeback.rules.spill_percent), (Some(600), Some(80)));
        assert_eq!(rates, (Some(64 << 20), Some(10 << 30)));
        let options = parse("recomp=zstd,deflate:9 recompress_after=60").unwrap();
        let codecs: Vec<_> = options.recompression.codecs.iter().map(|codec| (codec.algorithm, codec.level)).collect();
        assert_eq!(codecs, [(Algorithm::Zstd, None), (Algorithm::Deflate, Some(9))]);
        assert_eq!((options.recompression.after_s, options.threads), (Some(60), None));
        assert_eq!(parse("threads=4").map(|options| options.threads), Ok(Some(4)));
        let options = parse("image=disk.img backing_dev=/dev/sdb range_pages=32 packed=yes discard=no").unwrap();
        assert_eq!(options.image.as_deref(), Some("disk.img"));
        let writeback = options.writeback;
        assert_eq!((options.backing.as_deref(), writeback.range_pages, writeback.packed), (Some("/dev/sdb"), Some(32), true));
        assert_eq!((writeback.keep_freed, writeback.promote), (true, false));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, sentence) in [
            ("lz4", "\"lz4\" is not an option of zram: write NAME=VALUE, as in algo=lz4"),
            (
                "speed=1",
                "zram has no option \"speed\": use algo, level, dict, mem_limit, backing_dev, image, range_pages, packed, promote, discard, idle_after, spill_at, spill_rate, spill_daily, recomp, recompress_after or threads",
            ),
            ("algo=lz4 algo=lz4", "the option algo of zram is given twice: leave one out"),
            ("algo=lzma", "\"lzma\" is no algo of zram: use lz4, zstd, deflate or store"),
            ("level=high", "\"high\" is no level of zram: use a whole number"),
            ("mem_limit=-1", "\"-1\" is no mem_limit of zram: use a size such as 256M"),
            ("range_pages=0", "\"0\" is no range_pages of zram: use 1 to 256"),
            ("spill_at=5 backing_dev=a", "\"5\" is no spill_at of zram: use a percentage from 11 to 100"),
            ("idle_after=0", "\"0\" is no idle_after of zram: use a number of seconds"),
            (
                "idle_after=5",
                "range_pages, packed, promote, discard, idle_after and spill_at of zram are about a backing device: add backing_dev=DEVICE",
            ),
            ("packed=1", "\"1\" is no packed of zram: use yes or no"),
            (
                "recomp=zstd,store",
                "\"zstd,store\" is no recomp of zram: use up to 3 of lz4, zstd and deflate, as in zstd,zstd:19",
            ),
            (
                "recomp=zstd,zstd,zstd,zstd",
                "\"zstd,zstd,zstd,zstd\" is no recomp of zram: use up to 3 of lz4, zstd and deflate, as in zstd,zstd:19",
            ),
            ("threads=0", "\"0\" is no threads of zram: use 1 to 64"),
            ("recomp=zstd recompress_after=0", "\"0\" is no recompress_after of zram: use a number of seconds"),
            ("recompress_after=9", "recompress_after of zram needs a second codec: add recomp=NAME, as in recomp=zstd"),
            ("image=", "\"\" is no image of zram: use the path of a file"),
            ("dict=", "\"\" is no dict of zram: use the path of a dictionary"),
        ] {
            assert_eq!(parse(text), Err(sentence.to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes_have_the_kernels_suffixes() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("1k", Some(1024)),
            ("3G", Some(3 << 30)),
            ("1E", Some(1 << 60)),
            ("16E", None),
            ("", None),
            ("K", None),
            ("1KB", None),
            ("+1", None),
            ("é", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
