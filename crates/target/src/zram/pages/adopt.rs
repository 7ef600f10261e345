//! Objects that were made elsewhere, and are kept as they are.

use super::super::codec::Priority;
use super::super::table::Slot;
use super::{PageError, Pages};

impl Pages {
    /// Keeps `object`, which the codec of `priority` made of a page that repeats no word and which is
    /// shorter than what is kept whole, as page `number`, which holds nothing.
    ///
    /// # Errors
    /// [`PageError::NoSpace`].
    pub(in super::super) fn adopt(
        &mut self,
        number: u64,
        object: &[u8],
        priority: Priority,
        now_s: u32,
    ) -> Result<(), PageError> {
        debug_assert!(self.table.get(number).is_free(), "only a page that holds nothing takes another's object");
        let bytes = object.len();
        if !self.has_room(Slot::FREE, bytes) {
            return Err(PageError::NoSpace);
        }
        self.packed[..bytes].copy_from_slice(object);
        let place = self.keep(number, Slot::FREE, bytes, true)?;
        self.counts.stored += 1;
        self.counts.compressed_bytes += bytes as u64;
        if let Some(count) = priority.second().and_then(|at| self.counts.recompressed.get_mut(at)) {
            *count += 1;
        }
        self.table.put(number, Slot::object(place, bytes, now_s).by(priority));
        self.note_frames();
        Ok(())
    }
}
