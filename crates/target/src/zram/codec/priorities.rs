//! The codecs of a disk by priority: the first compresses what is written, the others compress objects
//! again, later.
//!
//! ```text
//!   0   lz4          every write
//!   1   zstd         recompression tries these, in this order, until one makes the object smaller
//!   2   zstd:19
//!   3   –
//! ```
//!
//! 1. An object is unpacked by the codec that its page names: a codec is exchanged only while there is
//!    no object of it, but for its level, which no decoder depends on.

use super::{Algorithm, Codec, CodecError, CodecParams};

/// Which of a disk's codecs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Priority(pub(in super::super) u8);

impl Priority {
    /// The one that compresses what is written.
    pub(in super::super) const FIRST: Priority = Priority(0);
    /// All.
    pub(in super::super) const ALL: [Priority; 4] = [Priority(0), Priority(1), Priority(2), Priority(3)];

    /// That of a number, 0 to 3.
    pub(in super::super) fn numbered(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|priority| u64::from(priority.0) == number)
    }

    /// Its place among those that compress again; `None` for the first.
    pub(in super::super) fn second(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

struct Place {
    params: CodecParams,
    codec: Codec,
}

/// The codecs of a disk; the first is always there.
pub(in super::super) struct Codecs {
    places: [Option<Place>; Priority::ALL.len()],
}

impl Codecs {
    /// Makes codecs, by priority; no more than four.
    ///
    /// # Errors
    /// [`CodecError`].
    pub(in super::super) fn new(params: &[CodecParams]) -> Result<Self, CodecError> {
        let mut codecs = Self { places: [const { None }; 4] };
        for (priority, params) in Priority::ALL.into_iter().zip(params) {
            codecs.set(priority, params.clone())?;
        }
        Ok(codecs)
    }

    /// Codecs of the same parameters, with working memory of their own.
    ///
    /// # Errors
    /// [`CodecError`].
    pub(in super::super) fn again(&self) -> Result<Self, CodecError> {
        let mut codecs = Self { places: [const { None }; 4] };
        for priority in Priority::ALL {
            if let Some(params) = self.params(priority) {
                codecs.set(priority, params.clone())?;
            }
        }
        Ok(codecs)
    }

    /// Puts a codec in its place; the old one stays where that fails.
    ///
    /// # Errors
    /// [`CodecError`].
    pub(in super::super) fn set(&mut self, priority: Priority, params: CodecParams) -> Result<(), CodecError> {
        let codec = Codec::new(&params)?;
        self.places[usize::from(priority.0)] = Some(Place { params, codec });
        Ok(())
    }

    /// The codec for what is written.
    pub(in super::super) fn first(&mut self) -> &mut Codec {
        self.of(Priority::FIRST).expect("the first codec is made with the disk")
    }

    /// The codec of a priority.
    pub(in super::super) fn of(&mut self, priority: Priority) -> Option<&mut Codec> {
        self.places[usize::from(priority.0)].as_mut().map(|place| &mut place.codec)
    }

    /// What it was made from.
    pub(in super::super) fn params(&self, priority: Priority) -> Option<&CodecParams> {
        self.places[usize::from(priority.0)].as_ref().map(|place| &place.params)
    }

    /// What it is.
    pub(in super::super) fn algorithm(&self, priority: Priority) -> Option<Algorithm> {
        self.params(priority).map(|params| params.algorithm)
    }

    /// Those that compress again, in their order.
    pub(in super::super) fn seconds(&self) -> impl Iterator<Item = Priority> {
        Priority::ALL.into_iter().skip(1).filter(|priority| self.params(*priority).is_some())
    }

    /// Whether one of those takes long for a page: milliseconds, not microseconds.
    pub(in super::super) fn are_slow(&self) -> bool {
        let slow = |params: &CodecParams| match params.algorithm {
            Algorithm::Zstd => params.level.is_some_and(|level| level > 9),
            Algorithm::Deflate => params.level.is_some_and(|level| level > 7),
            Algorithm::Lz4 | Algorithm::Store => false,
        };
        self.seconds().any(|priority| self.params(priority).is_some_and(slow))
    }
}
