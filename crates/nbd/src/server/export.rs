//! What a server offers: named exports with their size, abilities and block sizes.
//!
//! 1. Names and descriptions are UTF-8 without NUL, at most [`STRING_BYTES_MAX`] bytes.
//! 2. Block sizes are powers of two, and the size of an export is a multiple of its minimum.
//! 3. A name is compared byte for byte and never used as a path.
//!
//! Units: sizes are bytes.

use crate::wire::{PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, TransmissionFlags};

/// Largest minimum block size the protocol allows, in bytes.
const BLOCK_BYTES_MIN_MAX: u32 = 1 << 16;
/// Smallest preferred block size the protocol allows, in bytes.
const BLOCK_BYTES_PREFERRED_MIN: u32 = 512;

/// Why an export cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The name or the description is too long for the protocol or contains NUL.
    #[error(
        "the {what} of the NBD export is not usable: give one of at most {STRING_BYTES_MAX} bytes \
         without NUL characters"
    )]
    Text {
        /// `name` or `description`.
        what: &'static str,
    },
    /// The block sizes are not what the protocol allows.
    #[error(
        "block sizes of {minimum} (minimum) and {preferred} (preferred) bytes cannot be offered by \
         NBD: give powers of two, the minimum at most 65536, the preferred size at least 512, at \
         least the minimum, and at most 33554432"
    )]
    BlockBytes {
        /// The minimum asked for, in bytes.
        minimum: u32,
        /// The preferred size asked for, in bytes.
        preferred: u32,
    },
    /// The size is beyond what clients can address, or not a multiple of the minimum block size.
    #[error(
        "an NBD export of {size_bytes} bytes cannot be offered: give a multiple of the minimum \
         block size ({minimum} bytes) below 2^63"
    )]
    Size {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// The minimum block size, in bytes.
        minimum: u32,
    },
}

/// What happens to a request that is not a multiple of the minimum block size, when it comes from
/// a client that did not ask for the block sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unaligned {
    /// It is served at byte granularity: the layer above reads, changes and writes.
    Served,
    /// The client is turned away in the handshake (`NBD_REP_ERR_BLOCK_SIZE_REQD`).
    Refused,
}

/// The block sizes of an export, in bytes. The maximum is always [`PAYLOAD_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockBytes {
    minimum: u32,
    preferred: u32,
}

impl BlockBytes {
    /// Block sizes with `minimum` (1 to 65,536) and `preferred` (512 to 32 MiB, at least the
    /// minimum) bytes, both powers of two.
    ///
    /// # Errors
    /// [`ExportError::BlockBytes`] if they are anything else.
    pub fn new(minimum: u32, preferred: u32) -> Result<Self, ExportError> {
        let minimum_good = minimum.is_power_of_two() && minimum <= BLOCK_BYTES_MIN_MAX;
        let preferred_good =
            preferred.is_power_of_two() && preferred >= minimum.max(BLOCK_BYTES_PREFERRED_MIN) && preferred <= PAYLOAD_BYTES_MAX;
        if minimum_good && preferred_good {
            Ok(Self { minimum, preferred })
        } else {
            Err(ExportError::BlockBytes { minimum, preferred })
        }
    }

    /// Smallest unit of a request, in bytes.
    #[must_use]
    pub const fn minimum(self) -> u32 {
        self.minimum
    }

    /// Smallest efficient unit of a request, in bytes.
    #[must_use]
    pub const fn preferred(self) -> u32 {
        self.preferred
    }
}

/// One export as the handshake shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) size_bytes: u64,
    pub(super) flags: TransmissionFlags,
    pub(super) block_bytes: BlockBytes,
    pub(super) unaligned: Unaligned,
    pub(super) default: bool,
}

impl Export {
    /// An export called `name` of `size_bytes` bytes that can do what `flags` say.
    ///
    /// `HAS_FLAGS` is added and `SEND_DF` follows from the negotiation, so neither matters here.
    /// A read-only export never offers TRIM and `WRITE_ZEROES`, and `SEND_FAST_ZERO` is only
    /// offered with `SEND_WRITE_ZEROES`. Unaligned requests of clients that did not ask for block
    /// sizes are served, there is no description, and the export is not the default one.
    ///
    /// # Errors
    /// [`ExportError`] if the protocol cannot express the name or the size.
    pub fn new(name: &str, size_bytes: u64, flags: TransmissionFlags, block_bytes: BlockBytes) -> Result<Self, ExportError> {
        check_text("name", name)?;
        let minimum = block_bytes.minimum;
        if i64::try_from(size_bytes).is_err() || !size_bytes.is_multiple_of(u64::from(minimum)) {
            return Err(ExportError::Size { size_bytes, minimum });
        }
        Ok(Self {
            name: name.to_owned(),
            description: String::new(),
            size_bytes,
            flags: offered(flags),
            block_bytes,
            unaligned: Unaligned::Served,
            default: false,
        })
    }

    /// The same export with a text for people, shown in listings.
    ///
    /// # Errors
    /// [`ExportError::Text`] if it is too long or contains NUL.
    pub fn with_description(mut self, description: &str) -> Result<Self, ExportError> {
        check_text("description", description)?;
        description.clone_into(&mut self.description);
        Ok(self)
    }

    /// The same export with another treatment of clients that did not ask for block sizes.
    #[must_use]
    pub fn with_unaligned(mut self, unaligned: Unaligned) -> Self {
        self.unaligned = unaligned;
        self
    }

    /// The same export, which also answers to the empty name.
    #[must_use]
    pub fn as_default(mut self) -> Self {
        self.default = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if a client that does not know block sizes must be turned away.
    pub(super) fn needs_block_sizes(&self) -> bool {
        self.unaligned == Unaligned::Refused && self.block_bytes.minimum > 1
    }
}

/// Index of the export that `name` means: the one of that name, or for the empty name the first
/// one marked as default.
pub(super) fn find(exports: &[Export], name: &[u8]) -> Option<usize> {
    let named = exports.iter().position(|export| export.name.as_bytes() == name);
    if named.is_none() && name.is_empty() {
        return exports.iter().position(|export| export.default);
    }
    named
}

fn check_text(what: &'static str, text: &str) -> Result<(), ExportError> {
    if text.len() > STRING_BYTES_MAX || text.contains('\0') {
        return Err(ExportError::Text { what });
    }
    Ok(())
}

/// `flags` made consistent, as [`Export::new`] describes.
fn offered(flags: TransmissionFlags) -> TransmissionFlags {
    let mut offered = (flags | TransmissionFlags::HAS_FLAGS).without(TransmissionFlags::SEND_DF);
    if offered.contains(TransmissionFlags::READ_ONLY) {
        offered = offered.without(TransmissionFlags::SEND_TRIM | TransmissionFlags::SEND_WRITE_ZEROES);
    }
    if !offered.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
        offered = offered.without(TransmissionFlags::SEND_FAST_ZERO);
    }
    offered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str) -> Export {
        let sizes = BlockBytes::new(512, 4096).unwrap();
        Export::new(name, 1 << 20, TransmissionFlags::SEND_FLUSH, sizes).unwrap()
    }

    #[test]
    fn block_sizes_keep_to_the_protocol() {
        assert!(BlockBytes::new(1, 512).is_ok());
        assert!(BlockBytes::new(65536, 65536).is_ok());
        assert!(BlockBytes::new(512, 32 << 20).is_ok());
        for (minimum, preferred) in [(0, 512), (3, 512), (1, 256), (1, 1000), (4096, 512), (131_072, 131_072), (1, 64 << 20)] {
            assert_eq!(BlockBytes::new(minimum, preferred), Err(ExportError::BlockBytes { minimum, preferred }));
        }
    }

    #[test]
    fn a_size_that_is_no_multiple_of_the_minimum_or_beyond_63_bits_is_refused() {
        let sizes = BlockBytes::new(512, 512).unwrap();
        let flags = TransmissionFlags::SEND_FLUSH;
        assert!(Export::new("a", 0, flags, sizes).is_ok());
        assert!(Export::new("a", (1 << 63) - 512, flags, sizes).is_ok());
        for size_bytes in [1, 513, 1 << 63] {
            assert!(matches!(Export::new("a", size_bytes, flags, sizes), Err(ExportError::Size { .. })));
        }
    }

    #[test]
    fn names_and_descriptions_keep_to_the_length_of_strings() {
        let sizes = BlockBytes::new(1, 512).unwrap();
        let flags = TransmissionFlags::SEND_FLUSH;
        assert!(Export::new(&"n".repeat(4096), 0, flags, sizes).is_ok());
        for name in ["n".repeat(4097), "a\0b".to_owned()] {
            assert_eq!(Export::new(&name, 0, flags, sizes), Err(ExportError::Text { what: "name" }));
            assert_eq!(plain("a").with_description(&name), Err(ExportError::Text { what: "description" }));
        }
    }

    #[test]
    fn flags_that_contradict_each_other_are_not_offered() {
        let sizes = BlockBytes::new(1, 512).unwrap();
        let all = TransmissionFlags::READ_ONLY
            | TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_TRIM
            | TransmissionFlags::SEND_WRITE_ZEROES
            | TransmissionFlags::SEND_FAST_ZERO
            | TransmissionFlags::SEND_DF;
        let export = Export::new("a", 0, all, sizes).unwrap();
        assert_eq!(export.flags, TransmissionFlags::HAS_FLAGS | TransmissionFlags::READ_ONLY | TransmissionFlags::SEND_FLUSH);
        let fast = Export::new("a", 0, TransmissionFlags::SEND_FAST_ZERO, sizes).unwrap();
        assert_eq!(fast.flags, TransmissionFlags::HAS_FLAGS);
    }

    #[test]
    fn the_empty_name_finds_its_own_export_first_and_then_the_default() {
        let exports = [plain("a"), plain("b").as_default()];
        assert_eq!(find(&exports, b"a"), Some(0));
        assert_eq!(find(&exports, b""), Some(1));
        assert_eq!(find(&exports, b"c"), None);
        let exports = [plain("b").as_default(), plain("")];
        assert_eq!(find(&exports, b""), Some(1));
        assert_eq!(find(&[plain("a")], b""), None);
    }
}
