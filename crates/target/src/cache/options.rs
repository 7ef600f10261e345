//! The words of a table line behind `writecache`, in dm-writecache's own grammar.
//!
//! ```text
//!   s  <origin> <fast> <block size> <#words> [start_sector N] [high_watermark N] … [cleaner] …
//! ```
//!
//! 1. Defaults, limits, the rules for numbers and the first words of every error are the kernel's.
//! 2. Option names ignore case and may be repeated; the last one counts. Words behind the counted
//!    ones are ignored.
//! 3. Four options are our own, and the kernel refuses a line with them. Their words come on top of
//!    the 18 that the kernel allows:
//!
//! | Option | Meaning | Default |
//! |---|---|---|
//! | `overwrite new` or `place` | write a committed block anew, so that groups are atomic, or in place as the kernel does | `place` |
//! | `order fifo` or `sweep` | write back the oldest blocks first as the kernel does, or stretch by stretch of slots, so that long runs become free | `sweep` |
//! | `full bypass` or `wait` | what a write does that finds no free block: go to the origin, or wait | `bypass` |
//! | `side PATH` | keep the identity of both devices and checksums of the metadata in a file | none |
//!
//! Units are in the names: sectors of 512 bytes, blocks of the cache, milliseconds, percent.
//!
//! Errors: [`OptionError`]. Only the mode `s` is served; `p` needs memory that a process cannot have.
//!
//! Sources: the observable behaviour of the `writecache` target 1.6.0.

#![deny(clippy::indexing_slicing)]

use thiserror::Error;

#[cfg(test)]
mod tests;

/// Most option words that are not of our own options.
const WORDS_MAX: usize = 18;
const BLOCK_BYTES_MIN: u32 = super::disk::format::BLOCK_BYTES_MIN;
const BLOCK_BYTES_MAX: u32 = super::disk::format::BLOCK_BYTES_MAX;
const PERCENT_MAX: u32 = 100;
const AUTOCOMMIT_MS_MAX: u32 = 3_600_000;
const MAX_AGE_MS_MAX: u32 = 86_400_000;
const PAUSE_MS_MAX: u32 = 60_000;

/// `words` without line breaks and other control characters, which a backslash brings into a word.
fn one_line(words: &str) -> String {
    words.replace(char::is_control, "\u{FFFD}")
}

/// Why a table line is refused. All are the kernel's EINVAL, but for [`OptionError::Pmem`], which is
/// its EOPNOTSUPP.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OptionError {
    /// One of the four leading words is missing, or the mode is unknown.
    #[error("Bad arguments: {}", one_line(.0))]
    Arguments(String),
    /// The mode for persistent memory.
    #[error("Mode p (persistent memory) is not supported: use mode s with a file or block device")]
    Pmem,
    /// The block size is not a number, no power of two or out of range.
    #[error("Invalid block size: {} is not a power of two from 512 to 65536", one_line(.0))]
    BlockBytes(String),
    /// The count of option words is missing, too large or not a number.
    #[error("Invalid number of feature args: {}", one_line(.0))]
    Count(String),
    /// An option is unknown, its argument is missing or out of range.
    #[error("Invalid optional argument: {}", one_line(.0))]
    Option(String),
    /// The watermarks are in the wrong order, defaults included.
    #[error("High watermark must be greater than or equal to low watermark: {high} is less than {low}")]
    Watermarks {
        /// The high watermark in percent.
        high: u32,
        /// The low watermark in percent.
        low: u32,
    },
}

/// What a write does to a committed block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// It takes a new block and frees the old one after the commit.
    New,
    /// It overwrites the block.
    #[default]
    Place,
}

/// Which blocks are written back first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// The oldest.
    Fifo,
    /// All that lies in the next stretch of slots, so that long runs become free.
    #[default]
    Sweep,
}

/// What a write does that finds no free block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Full {
    /// It goes to the origin.
    #[default]
    Bypass,
    /// It waits for a free block.
    Wait,
}

/// The words behind `writecache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheArgs {
    /// The slow device, as written.
    pub origin: String,
    /// The fast device, as written.
    pub fast: String,
    /// Block size in bytes: a power of two, 512 to 65536.
    pub block_bytes: u32,
    /// What was said about the rest.
    pub options: CacheOptions,
}

/// The options that were given. The methods of the same names give what holds, defaults included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Sectors of the fast device in front of the cache.
    pub start_sector: Option<u64>,
    /// Percent of blocks in use at which writeback starts, 0 to 100.
    pub high_watermark: Option<u32>,
    /// Percent of blocks in use at which writeback stops, 0 to 100.
    pub low_watermark: Option<u32>,
    /// Most blocks in writeback at once; 0 is no limit, and so is none given, as far as memory allows.
    pub writeback_jobs: Option<u32>,
    /// Blocks written until a group is committed; 0 commits on every write.
    pub autocommit_blocks: Option<u32>,
    /// Milliseconds from the first write of a group until it is committed, up to 3600000.
    pub autocommit_time_ms: Option<u32>,
    /// Milliseconds that a block may wait for writeback, up to 86400000; without it for ever.
    pub max_age_ms: Option<u32>,
    /// Write everything back and cache nothing new.
    pub cleaner: bool,
    /// Cache only what is marked as a file system's metadata.
    pub metadata_only: bool,
    /// Milliseconds without bypassed writes until writeback goes on, up to 60000; 0 never pauses.
    pub pause_writeback_ms: Option<u32>,
    /// What a write does to a committed block.
    pub overwrite: Option<Overwrite>,
    /// Which blocks are written back first.
    pub order: Option<Order>,
    /// What a write does that finds no free block.
    pub full: Option<Full>,
    /// The side file, as written. Whoever opens the cache reads and writes it.
    pub side: Option<String>,
}

impl CacheArgs {
    /// Reads the words behind `writecache`.
    ///
    /// # Errors
    /// [`OptionError`], the first that applies.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, OptionError> {
        let mut words = words.into_iter();
        let mut leading = |what: &str| words.next().ok_or_else(|| OptionError::Arguments(format!("{what} is missing")));
        let mode = leading("the mode")?;
        if mode.eq_ignore_ascii_case("p") {
            return Err(OptionError::Pmem);
        }
        if !mode.eq_ignore_ascii_case("s") {
            return Err(OptionError::Arguments(format!("the mode is s, not {mode}")));
        }
        let origin = leading("the origin")?.to_owned();
        let fast = leading("the cache device")?.to_owned();
        let block_word = leading("the block size")?;
        let block_bytes = unsigned_32(block_word)
            .filter(|bytes| bytes.is_power_of_two() && (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(bytes))
            .ok_or_else(|| OptionError::BlockBytes(block_word.to_owned()))?;
        let words: Vec<&str> = words.collect();
        let options = CacheOptions::parse(counted(&words)?)?;
        Ok(Self { origin, fast, block_bytes, options })
    }

    /// The line again, as the kernel's `dmsetup table` prints it: the given options in a fixed order,
    /// our own last. White space and backslashes in names are escaped with a backslash.
    #[must_use]
    pub fn to_table(&self) -> String {
        let options = self.options.words();
        let mut line = format!("s {} {} {} {}", escaped(&self.origin), escaped(&self.fast), self.block_bytes, options.len());
        for word in options {
            line.push(' ');
            line.push_str(&escaped(&word));
        }
        line
    }
}

impl CacheOptions {
    fn parse(words: &[&str]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        let mut words = words.iter().copied();
        while let Some(name) = words.next() {
            let lower = name.to_ascii_lowercase();
            match lower.as_str() {
                "cleaner" => options.cleaner = true,
                "metadata_only" => options.metadata_only = true,
                _ if !takes_argument(&lower) => {
                    let why = if ["fua", "nofua"].contains(&lower.as_str()) { "is for mode p only" } else { "is unknown" };
                    return Err(OptionError::Option(format!("{name} {why}")));
                }
                _ => {
                    let missing = || OptionError::Option(format!("{name} has no value"));
                    let value = words.next().ok_or_else(missing)?;
                    let set = options.set(&lower, value);
                    set.ok_or_else(|| OptionError::Option(format!("{name} cannot be {value}")))?;
                }
            }
        }
        let (high, low) = (options.high_watermark(), options.low_watermark());
        if low > high { Err(OptionError::Watermarks { high, low }) } else { Ok(options) }
    }

    /// Sets the option `name`, or nothing where the value is not one of its values.
    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let up_to = |max: u32| unsigned_32(value).filter(|&number| number <= max);
        match name {
            "start_sector" => self.start_sector = Some(unsigned_64(value)?),
            "high_watermark" => self.high_watermark = Some(percent(value)?),
            "low_watermark" => self.low_watermark = Some(percent(value)?),
            "writeback_jobs" => self.writeback_jobs = Some(up_to(u32::MAX)?),
            "autocommit_blocks" => self.autocommit_blocks = Some(up_to(u32::MAX)?),
            "autocommit_time" => self.autocommit_time_ms = Some(up_to(AUTOCOMMIT_MS_MAX)?),
            "max_age" => self.max_age_ms = Some(up_to(MAX_AGE_MS_MAX)?),
            "pause_writeback" => self.pause_writeback_ms = Some(up_to(PAUSE_MS_MAX)?),
            "overwrite" => self.overwrite = Some(choice(value, [("new", Overwrite::New), ("place", Overwrite::Place)])?),
            "order" => self.order = Some(choice(value, [("fifo", Order::Fifo), ("sweep", Order::Sweep)])?),
            "full" => self.full = Some(choice(value, [("bypass", Full::Bypass), ("wait", Full::Wait)])?),
            "side" => self.side = Some(value.to_owned()),
            _ => return None,
        }
        Some(())
    }

    /// Sectors of the fast device in front of the cache.
    #[must_use]
    pub fn start_sector(&self) -> u64 {
        self.start_sector.unwrap_or(0)
    }

    /// Percent of blocks in use at which writeback starts.
    #[must_use]
    pub fn high_watermark(&self) -> u32 {
        self.high_watermark.unwrap_or(50)
    }

    /// Percent of blocks in use at which writeback stops.
    #[must_use]
    pub fn low_watermark(&self) -> u32 {
        self.low_watermark.unwrap_or(45)
    }

    /// Blocks written until a group is committed.
    #[must_use]
    pub fn autocommit_blocks(&self) -> u32 {
        self.autocommit_blocks.unwrap_or(65_536)
    }

    /// Milliseconds from the first write of a group until it is committed.
    #[must_use]
    pub fn autocommit_time_ms(&self) -> u32 {
        self.autocommit_time_ms.unwrap_or(1000)
    }

    /// Milliseconds without bypassed writes until writeback goes on.
    #[must_use]
    pub fn pause_writeback_ms(&self) -> u32 {
        self.pause_writeback_ms.unwrap_or(3000)
    }

    /// The options as words, in the order of the kernel's table, our own last.
    fn words(&self) -> Vec<String> {
        let number = |value: Option<u32>| value.map(|number| number.to_string());
        let flag = |given: bool| given.then(String::new);
        let overwrite = self.overwrite.map(|way| if way == Overwrite::New { "new" } else { "place" }.to_owned());
        let order = self.order.map(|order| if order == Order::Fifo { "fifo" } else { "sweep" }.to_owned());
        let full = self.full.map(|way| if way == Full::Wait { "wait" } else { "bypass" }.to_owned());
        let given = [
            ("start_sector", self.start_sector.map(|sector| sector.to_string())),
            ("high_watermark", number(self.high_watermark)),
            ("low_watermark", number(self.low_watermark)),
            ("writeback_jobs", number(self.writeback_jobs)),
            ("autocommit_blocks", number(self.autocommit_blocks)),
            ("autocommit_time", number(self.autocommit_time_ms)),
            ("max_age", number(self.max_age_ms)),
            ("cleaner", flag(self.cleaner)),
            ("metadata_only", flag(self.metadata_only)),
            ("pause_writeback", number(self.pause_writeback_ms)),
            ("overwrite", overwrite),
            ("order", order),
            ("full", full),
            ("side", self.side.clone()),
        ];
        let mut words = Vec::new();
        for (name, value) in given {
            if let Some(value) = value {
                words.push(name.to_owned());
                words.extend((!value.is_empty()).then_some(value));
            }
        }
        words
    }
}

/// The option words that the first word counts.
fn counted<'a, 'w>(words: &'w [&'a str]) -> Result<&'w [&'a str], OptionError> {
    let Some((&count_word, words)) = words.split_first() else {
        return Err(OptionError::Count("it is missing; write 0 where no options follow".to_owned()));
    };
    let count = unsigned_32(count_word).ok_or_else(|| OptionError::Count(format!("{count_word} is not a number")))?;
    let counted = words
        .get(..count as usize)
        .ok_or_else(|| OptionError::Count(format!("{count} words are announced, {} follow", words.len())))?;
    let kernel_words = count as usize - own_words(counted);
    if kernel_words > WORDS_MAX {
        return Err(OptionError::Count(format!("{kernel_words} words are more than {WORDS_MAX}")));
    }
    Ok(counted)
}

/// How many of these words belong to our own options.
fn own_words(words: &[&str]) -> usize {
    let mut words = words.iter();
    let mut own = 0;
    while let Some(name) = words.next() {
        let name = name.to_ascii_lowercase();
        let value = if takes_argument(&name) { words.next() } else { None };
        if is_own(&name) {
            own += 1 + usize::from(value.is_some());
        }
    }
    own
}

fn is_own(name: &str) -> bool {
    ["overwrite", "order", "full", "side"].contains(&name)
}

fn takes_argument(name: &str) -> bool {
    const KERNEL: [&str; 8] = [
        "start_sector",
        "high_watermark",
        "low_watermark",
        "writeback_jobs",
        "autocommit_blocks",
        "autocommit_time",
        "max_age",
        "pause_writeback",
    ];
    is_own(name) || KERNEL.contains(&name)
}

fn choice<T: Copy, const N: usize>(value: &str, choices: [(&str, T); N]) -> Option<T> {
    choices.iter().find(|(name, _)| value.eq_ignore_ascii_case(name)).map(|&(_, choice)| choice)
}

/// A decimal number without a sign; as in the kernel, one that is too large loses its upper bits.
fn unsigned_64(word: &str) -> Option<u64> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = || word.bytes().fold(0_u64, |number, digit| number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')));
    digits.then(number)
}

fn unsigned_32(word: &str) -> Option<u32> {
    unsigned_64(word).map(|number| (number & 0xffff_ffff) as u32)
}

/// A signed decimal number that, taken modulo 2^32, is 0 to 100.
fn percent(word: &str) -> Option<u32> {
    let number = match word.strip_prefix('-') {
        Some(digits) => unsigned_32(digits)?.wrapping_neg(),
        None => unsigned_32(word)?,
    };
    (number <= PERCENT_MAX).then_some(number)
}

/// A name as one word of a table line.
fn escaped(name: &str) -> String {
    name.chars().fold(String::new(), |mut word, letter| {
        if letter.is_whitespace() || letter == '\\' {
            word.push('\\');
        }
        word.push(letter);
        word
    })
}
