//! The list of entries as it comes from a device that may hold anything.
//!
//! Invariants:
//! - I1: what is taken in lies inside the device and not over metadata, and names no chunk twice.
//! - I2: nothing behind the first entry that ends the list counts, whatever it is.
//!
//! Units: chunks. Pure.

#![deny(clippy::indexing_slicing)]

use super::format::{ENTRY_BYTES, Exception, FormatError, Layout};

/// Entries in the making.
pub struct List {
    layout: Layout,
    chunks: u64,
    entries: Vec<Exception>,
    ended: bool,
    unclean: bool,
}

impl List {
    /// None yet, of a store on a device of `chunks` whole chunks.
    #[must_use]
    pub fn new(layout: Layout, chunks: u64) -> Self {
        Self { layout, chunks, entries: Vec::new(), ended: false, unclean: false }
    }

    /// Takes in the next bytes of areas, in whole entries.
    ///
    /// # Errors
    /// [`FormatError::Beyond`] and [`FormatError::Overlay`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        for entry in bytes.chunks_exact(ENTRY_BYTES) {
            if let Some(exception) = Exception::decode(entry).filter(|_| !self.ended) {
                self.layout.check(self.entries.len() as u64, exception, self.chunks)?;
                self.entries.push(exception);
            } else {
                self.ended = true;
                self.unclean |= entry.iter().any(|&byte| byte != 0);
            }
        }
        Ok(())
    }

    /// Whether its end was found.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether something else than zeroes was found behind its end.
    #[must_use]
    pub fn is_unclean(&self) -> bool {
        self.unclean
    }

    /// The entries, in their order.
    ///
    /// # Errors
    /// [`FormatError::Twice`] where a chunk of the origin or of the store is named twice.
    pub fn finish(self) -> Result<Vec<Exception>, FormatError> {
        for key in [|entry: &Exception| entry.old, |entry: &Exception| entry.new] {
            let mut all: Vec<(u64, u64)> = self.entries.iter().map(key).zip(0..).collect();
            all.sort_unstable();
            let pairs = all.iter().zip(all.iter().skip(1));
            if let Some((_, &(chunk, index))) = pairs.into_iter().find(|(one, next)| one.0 == next.0) {
                return Err(FormatError::Twice { index, chunk });
            }
        }
        Ok(self.entries)
    }
}
