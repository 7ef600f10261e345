//! The words of a table line behind `snapshot` and `snapshot-merge`, in the kernel's grammar.
//!
//! ```text
//!   <origin> <cow> P|PO|N <chunk sectors> [<n> [discard_zeroes_cow] [discard_passdown_origin] [merge_rate=SIZE]]
//! ```
//!
//! 1. The store's letter ignores case, and only the first one counts; a word that begins with P may go
//!    on with `O`, for overflow.
//! 2. `merge_rate=SIZE`, most bytes per second that `snapshot-merge` merges, is not of the kernel.
//! 3. A chunk of 0 stands for the default: 32 sectors, or one block of the store where that is more.
//!
//! Errors: [`OptionError`]. Whether a chunk fits the devices is found out when they are open.

use thiserror::Error;

use super::disk::format::CHUNK_SECTORS_MAX;

/// Why a table line is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionError {
    /// One of the leading words is missing.
    #[error("the {what} of {target} is missing: write `{target} ORIGIN COW P|PO|N CHUNK_SECTORS [COUNT FEATURE…]`")]
    Missing {
        /// `snapshot` or `snapshot-merge`.
        target: &'static str,
        /// What is missing.
        what: &'static str,
    },
    /// Not a store that is known.
    #[error("{0:?} is not a store: use P (persistent), PO (persistent, full is not lost) or N (in no way persistent)")]
    Store(String),
    /// Merging needs a store that outlives the process.
    #[error("a store N cannot be merged: only P and PO outlive their server")]
    MergeTransient,
    /// The chunk is no number, no power of two, or too large.
    #[error("{0:?} is not a chunk: use a power of two of sectors up to 2097152, or 0 for the default")]
    Chunk(String),
    /// Stores that keep nothing have no default.
    #[error("a store N has no default for its chunk: write a power of two of sectors")]
    ChunkNotSet,
    /// The number of features is none.
    #[error("{0:?} is not a number of features: use 0, 1, 2 or 3")]
    Count(String),
    /// A feature that is not known, or one that is announced and missing.
    #[error("{0:?} is not a feature: use discard_zeroes_cow, discard_passdown_origin or, to merge, merge_rate=SIZE")]
    Feature(String),
    /// One feature needs the other.
    #[error("discard_passdown_origin is only for lines with discard_zeroes_cow: add it")]
    Passdown,
    /// More words than announced.
    #[error("{0:?} is too much: the number of features says how many follow")]
    Extra(String),
}

/// What keeps the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Header and entries on the device: outlives the process.
    Persistent {
        /// Whether a write that finds no room leaves the snapshot readable.
        overflow: bool,
    },
    /// Data only: gone with the process.
    Transient,
}

impl StoreKind {
    /// As in a table line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Persistent { overflow: false } => "P",
            Self::Persistent { overflow: true } => "PO",
            Self::Transient => "N",
        }
    }

    fn parse(word: &str) -> Result<Self, OptionError> {
        let wrong = || OptionError::Store(word.to_owned());
        let mut letters = word.chars();
        match letters.next().map(|letter| letter.to_ascii_uppercase()) {
            Some('P') => match letters.as_str() {
                "" => Ok(Self::Persistent { overflow: false }),
                "O" | "o" => Ok(Self::Persistent { overflow: true }),
                _ => Err(wrong()),
            },
            Some('N') if letters.as_str().is_empty() => Ok(Self::Transient),
            _ => Err(wrong()),
        }
    }
}

/// What a discard on the snapshot does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discards {
    /// It is refused.
    #[default]
    Refused,
    /// It zeroes what is kept.
    ZeroCow,
    /// It zeroes what is kept, and is done to the origin as well.
    ZeroCowAndPassDown,
}

/// The words behind `snapshot` or `snapshot-merge`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotArgs {
    /// The origin, as written.
    pub origin: String,
    /// The device of the store, as written.
    pub cow: String,
    /// What keeps the chunks.
    pub store: StoreKind,
    /// Size of a chunk, sectors: a power of two, or 0 for the default.
    pub chunk_sectors: u64,
    /// What a discard does.
    pub discards: Discards,
    /// Most bytes per second that are merged; 0 for no limit.
    pub merge_rate: u64,
}

impl SnapshotArgs {
    /// Reads the words behind `target`, which is `snapshot` or `snapshot-merge`. `size` reads a number of bytes with a
    /// unit.
    ///
    /// # Errors
    /// [`OptionError`], the first that applies.
    pub fn parse<'a>(
        target: &'static str,
        words: impl IntoIterator<Item = &'a str>,
        size: impl Fn(&str) -> Option<u64>,
    ) -> Result<Self, OptionError> {
        let mut words = words.into_iter();
        let mut word = |what| words.next().ok_or(OptionError::Missing { target, what });
        let (origin, cow) = (word("origin")?.to_owned(), word("store's device")?.to_owned());
        let store = StoreKind::parse(word("store")?)?;
        let chunk_sectors = chunk(word("chunk")?)?;
        let count = words.next().unwrap_or("0");
        let count = count.parse().ok().filter(|&count: &usize| count <= 3).ok_or_else(|| OptionError::Count(count.to_owned()))?;
        let (mut zeroes, mut passdown, mut merge_rate) = (false, false, 0);
        for _ in 0..count {
            match words.next().unwrap_or_default() {
                feature if feature.eq_ignore_ascii_case("discard_zeroes_cow") => zeroes = true,
                feature if feature.eq_ignore_ascii_case("discard_passdown_origin") => passdown = true,
                other => {
                    let rate = other.strip_prefix("merge_rate=").filter(|_| target == "snapshot-merge").and_then(&size);
                    merge_rate = rate.ok_or_else(|| OptionError::Feature(other.to_owned()))?;
                }
            }
        }
        if let Some(extra) = words.next() {
            return Err(OptionError::Extra(extra.to_owned()));
        }
        let discards = match (zeroes, passdown) {
            (false, false) => Discards::Refused,
            (true, false) => Discards::ZeroCow,
            (true, true) => Discards::ZeroCowAndPassDown,
            (false, true) => return Err(OptionError::Passdown),
        };
        match store {
            StoreKind::Transient if target == "snapshot-merge" => Err(OptionError::MergeTransient),
            StoreKind::Transient if chunk_sectors == 0 => Err(OptionError::ChunkNotSet),
            _ => Ok(Self { origin, cow, store, chunk_sectors, discards, merge_rate }),
        }
    }

    /// The features as the end of a table line says them, with a space in front; empty without any.
    #[must_use]
    pub fn feature_words(&self) -> &'static str {
        match self.discards {
            Discards::Refused => "",
            Discards::ZeroCow => " 1 discard_zeroes_cow",
            Discards::ZeroCowAndPassDown => " 2 discard_zeroes_cow discard_passdown_origin",
        }
    }
}

fn chunk(word: &str) -> Result<u64, OptionError> {
    let number = if word.bytes().all(|byte| byte.is_ascii_digit()) { word.parse::<u64>().ok() } else { None };
    let fits = |&sectors: &u64| sectors == 0 || (sectors.is_power_of_two() && sectors <= CHUNK_SECTORS_MAX);
    number.filter(fits).ok_or_else(|| OptionError::Chunk(word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<SnapshotArgs, OptionError> {
        SnapshotArgs::parse("snapshot", text.split(' '), |word| word.parse().ok())
    }

    #[test]
    fn lines_are_read_as_the_kernel_reads_them() {
        let args = parse("/dev/a /dev/b P 16").unwrap();
        assert_eq!((args.origin.as_str(), args.cow.as_str(), args.chunk_sectors), ("/dev/a", "/dev/b", 16));
        assert_eq!((args.store.word(), args.discards, args.feature_words()), ("P", Discards::Refused, ""));
        assert_eq!(parse("a b po 0").unwrap().store, StoreKind::Persistent { overflow: true });
        assert_eq!(parse("a b n 8 0").unwrap().store.word(), "N");
        assert_eq!(parse("a b P 8 1 DISCARD_zeroes_cow").unwrap().discards, Discards::ZeroCow);
        let both = parse("a b P 8 2 discard_passdown_origin discard_zeroes_cow").unwrap();
        assert_eq!(both.feature_words(), " 2 discard_zeroes_cow discard_passdown_origin");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse("a b P"), Err(OptionError::Missing { target: "snapshot", what: "chunk" }));
        for (text, part) in [
            ("a b X 8", "\"X\" is not a store"),
            ("a b PX 8", "\"PX\" is not a store"),
            ("a b NO 8", "\"NO\" is not a store"),
            ("a b P 7", "\"7\" is not a chunk"),
            ("a b P +8", "\"+8\" is not a chunk"),
            ("a b P 4194304", "is not a chunk"),
            ("a b N 0", "no default"),
            ("a b P 8 4", "\"4\" is not a number of features"),
            ("a b P 8 1 merge_rate=5", "\"merge_rate=5\" is not a feature"),
            ("a b P 8 1", "\"\" is not a feature"),
            ("a b P 8 1 shrink", "\"shrink\" is not a feature"),
            ("a b P 8 1 discard_passdown_origin", "only for lines with discard_zeroes_cow"),
            ("a b P 8 0 more", "\"more\" is too much"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let merge = |text: &str| SnapshotArgs::parse("snapshot-merge", text.split(' '), |word| word.parse().ok());
        assert_eq!(merge("a b N 8"), Err(OptionError::MergeTransient));
        assert_eq!(merge("a b P 8 1 merge_rate=much"), Err(OptionError::Feature("merge_rate=much".to_owned())));
        assert_eq!(merge("a b P 8 1 merge_rate=5").unwrap().merge_rate, 5);
    }
}
