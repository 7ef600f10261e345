//! Codecs: how a page becomes smaller, and a page again.
//!
//! | name | crate | what it is for |
//! |---|---|---|
//! | `lz4` | `lz4_flex` | speed; the default |
//! | `zstd` | `zstd` | size; level 1 to 22, optionally with a dictionary |
//! | `deflate` | `flate2` on `zlib-rs` | what deflate files need; level 1 to 9 |
//! | `store` | | no compression at all |
//!
//! 1. A codec keeps its working memory from page to page.
//! 2. Bytes that are not what a codec made give an error, never a panic, and never more than a page.

mod lz4;
mod priorities;

use std::fmt;
use std::io;
use std::path::Path;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status as Deflated};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

use super::memory::PAGE;

pub(super) use self::priorities::{Codecs, Priority};

/// Bytes of a page's compressed form at most: a little more than a page, for what does not shrink.
pub const PACKED_MAX: usize = PAGE + PAGE / 4;
/// Size from which on a block of LZ4 consists of many short sequences, which `lz4_flex` takes apart faster;
/// below there are runs, and our own decoder is up to eight times as fast.
const DENSE_BYTES: usize = 2600;
/// Level of zstd where none is given.
const ZSTD_LEVEL: i32 = 3;
/// Level of deflate where none is given.
const DEFLATE_LEVEL: i32 = 6;

/// How pages are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// LZ4: fast both ways.
    #[default]
    Lz4,
    /// Zstandard: smaller, slower.
    Zstd,
    /// Deflate.
    Deflate,
    /// Not at all.
    Store,
}

impl Algorithm {
    /// All, in the order in which they are listed.
    pub const ALL: [Algorithm; 4] = [Self::Lz4, Self::Zstd, Self::Deflate, Self::Store];

    /// Its name in options and attributes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Deflate => "deflate",
            Self::Store => "store",
        }
    }

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Levels that it takes; 0 alone where it has none.
    fn levels(self) -> std::ops::RangeInclusive<i32> {
        match self {
            Self::Lz4 | Self::Store => 0..=0,
            Self::Zstd => 1..=22,
            Self::Deflate => 1..=9,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a codec is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecParams {
    /// How.
    pub algorithm: Algorithm,
    /// How hard it tries; its own default where `None`.
    pub level: Option<i32>,
    /// What pages have in common; only for zstd.
    pub dictionary: Option<Vec<u8>>,
}

/// Why a codec cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// A level that the algorithm does not have.
    #[error("{algorithm} has no level {level}: {hint}")]
    Level {
        /// Of what.
        algorithm: Algorithm,
        /// Which.
        level: i32,
        /// What there is.
        hint: String,
    },
    /// A dictionary for an algorithm that takes none.
    #[error("{0} takes no dictionary: use algo=zstd")]
    NoDictionary(Algorithm),
    /// The library refuses.
    #[error("zstd does not start: {0}")]
    Zstd(String),
}

/// Compressed bytes are not what the codec made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A codec with its working memory.
pub struct Codec {
    algorithm: Algorithm,
    works: Works,
}

enum Works {
    Lz4(Box<CompressTable>),
    Zstd { compressor: zstd::bulk::Compressor<'static>, decompressor: zstd::bulk::Decompressor<'static> },
    Deflate { compress: Box<Compress>, decompress: Box<Decompress> },
    Store,
}

impl Codec {
    /// Makes a codec.
    ///
    /// # Errors
    /// [`CodecError`].
    ///
    /// # Panics
    /// Never: levels are checked before they are used.
    pub fn new(params: &CodecParams) -> Result<Self, CodecError> {
        let algorithm = params.algorithm;
        if let Some(level) = params.level
            && !algorithm.levels().contains(&level)
        {
            let hint = match algorithm.levels().into_inner() {
                (0, 0) => "leave the level out".to_owned(),
                (low, high) => format!("use {low} to {high}"),
            };
            return Err(CodecError::Level { algorithm, level, hint });
        }
        if params.dictionary.is_some() && algorithm != Algorithm::Zstd {
            return Err(CodecError::NoDictionary(algorithm));
        }
        let works = match algorithm {
            Algorithm::Lz4 => Works::Lz4(Box::new(CompressTable::small())),
            Algorithm::Zstd => zstd_works(params.level.unwrap_or(ZSTD_LEVEL), params.dictionary.as_deref())?,
            Algorithm::Deflate => {
                let level = u32::try_from(params.level.unwrap_or(DEFLATE_LEVEL)).expect("a level of deflate is 1 to 9");
                let compress = Box::new(Compress::new(Compression::new(level), false));
                Works::Deflate { compress, decompress: Box::new(Decompress::new(false)) }
            }
            Algorithm::Store => Works::Store,
        };
        Ok(Self { algorithm, works })
    }

    /// What it is.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Compresses `page` into `packed`; the bytes used, or `None` when it does not get smaller.
    ///
    /// # Panics
    /// Never.
    pub fn compress(&mut self, page: &[u8; PAGE], packed: &mut [u8; PACKED_MAX]) -> Option<usize> {
        let bytes = match &mut self.works {
            Works::Lz4(table) => compress_into_with_table(page, packed, table).ok()?,
            Works::Zstd { compressor, .. } => compressor.compress_to_buffer(page, &mut packed[..]).ok()?,
            Works::Deflate { compress, .. } => {
                compress.reset();
                let status = compress.compress(page, packed, FlushCompress::Finish).ok()?;
                let bytes = usize::try_from(compress.total_out()).ok()?;
                if status == Deflated::StreamEnd { bytes } else { return None }
            }
            Works::Store => return None,
        };
        (bytes < PAGE).then_some(bytes)
    }

    /// Makes the page that `packed` was made from.
    ///
    /// # Errors
    /// [`Corrupt`] when it was made from none; `page` holds anything then.
    pub fn decompress(&mut self, packed: &[u8], page: &mut [u8; PAGE]) -> Result<(), Corrupt> {
        let bytes = match &mut self.works {
            Works::Lz4(_) if packed.len() < DENSE_BYTES => return lz4::unpack(packed, page).ok_or(Corrupt),
            Works::Lz4(_) => decompress_into(packed, page).map_err(|_| Corrupt)?,
            Works::Zstd { decompressor, .. } => decompressor.decompress_to_buffer(packed, &mut page[..]).map_err(|_| Corrupt)?,
            Works::Deflate { decompress, .. } => {
                decompress.reset(false);
                let status = decompress.decompress(packed, page, FlushDecompress::Finish).map_err(|_| Corrupt)?;
                if status == Deflated::StreamEnd { usize::try_from(decompress.total_out()).map_err(|_| Corrupt)? } else { 0 }
            }
            Works::Store => 0,
        };
        if bytes == PAGE { Ok(()) } else { Err(Corrupt) }
    }
}

fn zstd_works(level: i32, dictionary: Option<&[u8]>) -> Result<Works, CodecError> {
    let failed = |error: std::io::Error| CodecError::Zstd(error.to_string());
    let (mut compressor, decompressor) = match dictionary {
        None => (zstd::bulk::Compressor::new(level).map_err(failed)?, zstd::bulk::Decompressor::new().map_err(failed)?),
        Some(dictionary) => (
            zstd::bulk::Compressor::with_dictionary(level, dictionary).map_err(failed)?,
            zstd::bulk::Decompressor::with_dictionary(dictionary).map_err(failed)?,
        ),
    };
    compressor.include_checksum(false).map_err(failed)?;
    compressor.include_dictid(false).map_err(failed)?;
    Ok(Works::Zstd { compressor, decompressor })
}

/// Largest dictionary, bytes; those of zstd's own tools have about 100 KiB.
const DICTIONARY_BYTES_MAX: u64 = 16 << 20;

/// Reads a dictionary, for [`CodecParams::dictionary`].
///
/// # Errors
/// What the system said, or that it is no regular file of 1 byte to 16 MiB: reading anything else might never end.
pub fn read_dictionary(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || !(1..=DICTIONARY_BYTES_MAX).contains(&metadata.len()) {
        return Err(io::Error::other("a dictionary is a regular file of 1 byte to 16 MiB"));
    }
    std::fs::read(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

    use super::*;

    fn params(algorithm: Algorithm, level: Option<i32>) -> CodecParams {
        CodecParams { algorithm, level, dictionary: None }
    }

    fn page(rng: &mut fastrand::Rng) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let random = rng.usize(0..3500);
        page[..random].fill_with(|| rng.u8(..));
        page
    }

    #[test]
    fn what_was_compressed_comes_back() {
        let rng = &mut fastrand::Rng::with_seed(1);
        let codecs = [
            (Algorithm::Lz4, None),
            (Algorithm::Zstd, None),
            (Algorithm::Zstd, Some(1)),
            (Algorithm::Zstd, Some(19)),
            (Algorithm::Deflate, None),
            (Algorithm::Deflate, Some(1)),
        ];
        for (algorithm, level) in codecs {
            let mut codec = Codec::new(&params(algorithm, level)).unwrap();
            for _ in 0..50 {
                let page = page(rng);
                let mut packed = [0; PACKED_MAX];
                let bytes = codec.compress(&page, &mut packed).unwrap();
                let mut back = [1; PAGE];
                codec.decompress(&packed[..bytes], &mut back).unwrap();
                assert!(back == page, "{algorithm} {level:?}");
            }
        }
    }

    #[test]
    fn what_does_not_shrink_is_said_so() {
        let mut page = [0; PAGE];
        let mut rng = fastrand::Rng::with_seed(2);
        page.fill_with(|| rng.u8(..));
        for algorithm in Algorithm::ALL {
            let mut codec = Codec::new(&params(algorithm, None)).unwrap();
            assert_eq!(codec.compress(&page, &mut [0; PACKED_MAX]), None, "{algorithm}");
        }
    }

    #[test]
    fn hostile_bytes_give_an_error_or_a_page_and_never_more() {
        let rng = &mut fastrand::Rng::with_seed(3);
        for algorithm in Algorithm::ALL {
            let mut codec = Codec::new(&params(algorithm, None)).unwrap();
            for round in 0..3000 {
                let mut packed = [0; PACKED_MAX];
                let page = page(rng);
                let bytes = match codec.compress(&page, &mut packed) {
                    Some(bytes) if round % 3 > 0 => bytes,
                    _ => {
                        packed.fill_with(|| rng.u8(..));
                        rng.usize(0..PACKED_MAX)
                    }
                };
                for _ in 0..rng.usize(1..4) {
                    packed[rng.usize(0..bytes.max(1))] ^= 1 << rng.u32(0..8);
                }
                let cut = if round % 5 == 0 { rng.usize(0..=bytes) } else { bytes };
                let _ = codec.decompress(&packed[..cut], &mut [0; PAGE]);
            }
            assert_eq!(codec.decompress(&[], &mut [0; PAGE]), Err(Corrupt), "{algorithm}");
        }
    }

    #[test]
    fn a_dictionary_makes_pages_smaller_that_are_like_it() {
        let rng = &mut fastrand::Rng::with_seed(4);
        let dictionary: Vec<u8> = (0..PAGE).map(|_| rng.u8(..)).collect();
        let mut page = [0; PAGE];
        page.copy_from_slice(&dictionary);
        page[100..200].fill(7);
        let with = CodecParams { dictionary: Some(dictionary), ..params(Algorithm::Zstd, None) };
        let mut codec = Codec::new(&with).unwrap();
        let mut packed = [0; PACKED_MAX];
        let bytes = codec.compress(&page, &mut packed).unwrap();
        assert!(bytes < 300, "{bytes}");
        let mut back = [0; PAGE];
        codec.decompress(&packed[..bytes], &mut back).unwrap();
        assert!(back == page);
        let without = Codec::new(&params(Algorithm::Zstd, None)).unwrap().compress(&page, &mut packed);
        assert!(without.is_none_or(|bytes| bytes > 3500), "{without:?}");
    }

    #[test]
    fn levels_and_dictionaries_that_do_not_fit_are_refused() {
        let sentence = |params: &CodecParams| Codec::new(params).err().unwrap().to_string();
        assert_eq!(sentence(&params(Algorithm::Zstd, Some(23))), "zstd has no level 23: use 1 to 22");
        assert_eq!(sentence(&params(Algorithm::Lz4, Some(1))), "lz4 has no level 1: leave the level out");
        let dictionary = CodecParams { dictionary: Some(vec![1]), ..CodecParams::default() };
        assert_eq!(sentence(&dictionary), "lz4 takes no dictionary: use algo=zstd");
    }
}
