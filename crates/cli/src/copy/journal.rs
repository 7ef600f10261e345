//! The journal of a copy that can be resumed: how much is durable at every destination.
//!
//! ```text
//!   file:  slot 0 at byte 0 ...... slot 1 at byte 4096         the valid slot with the higher number counts
//!   slot:  magic 8 │ version 4 │ flags 4 │ copy 8 │ bytes 8 │ settled 8 │ number 8 │ zero 12 │ CRC-32C 4
//! ```
//!
//! Invariants:
//! - I1: a slot is written only after a flush of all destinations that began after everything before
//!   `settled` had ended.
//! - I2: slots are written in turns, each durable before the next: whatever moment a crash picks, one of
//!   them is whole.
//! - I3: the copy is named by a fingerprint of its ends: their names, identities and sizes, and when the
//!   source was changed last.
//!
//! Little-endian. See `docs/format.md`.
#![deny(clippy::indexing_slicing)]

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use super::ends::{self, Destination, Source};
use crate::failure::Failure;

const MAGIC: [u8; 8] = *b"FBCOPYJ1";
const VERSION: u32 = 1;
const SLOT_BYTES: usize = 64;
const SLOT_AT: [u64; 2] = [0, 4096];
/// The destinations were zero when the copy began.
const FLAG_ZERO: u32 = 1;

/// What a slot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Which copy it is.
    copy: u64,
    /// Bytes to copy.
    bytes: u64,
    /// Everything before this byte is durable.
    pub settled: u64,
    /// Grows with every slot that is written.
    number: u64,
    /// The destinations were zero where they were not written yet.
    pub zero: bool,
}

impl State {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let flags = if self.zero { FLAG_ZERO } else { 0 };
        let words = [VERSION.to_le_bytes(), flags.to_le_bytes()].concat();
        let longs = [self.copy, self.bytes, self.settled, self.number].map(u64::to_le_bytes).concat();
        let mut slot = [&MAGIC[..], &words, &longs, &[0; 12]].concat();
        slot.extend(crc32c::crc32c(&slot).to_le_bytes());
        slot.try_into().expect("8 + 8 + 32 + 12 + 4 bytes")
    }

    /// `None` for anything that is not a whole slot of this version.
    fn decode(slot: &[u8]) -> Option<Self> {
        let (body, crc) = slot.get(..SLOT_BYTES)?.split_last_chunk::<4>()?;
        let (magic, rest) = body.split_first_chunk::<8>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (flags, rest) = rest.split_first_chunk::<4>()?;
        let (longs, zero) = rest.split_first_chunk::<32>()?;
        let mut longs = longs.as_chunks::<8>().0.iter().map(|&long| u64::from_le_bytes(long));
        let flags = u32::from_le_bytes(*flags);
        let whole = *magic == MAGIC
            && crc32c::crc32c(body) == u32::from_le_bytes(*crc)
            && u32::from_le_bytes(*version) == VERSION
            && flags & !FLAG_ZERO == 0
            && zero.iter().all(|&byte| byte == 0);
        let (copy, bytes, settled, number) = (longs.next()?, longs.next()?, longs.next()?, longs.next()?);
        (whole && settled <= bytes).then_some(Self { copy, bytes, settled, number, zero: flags & FLAG_ZERO != 0 })
    }
}

/// The newest whole slot.
fn newest(file: &[u8]) -> Option<State> {
    let slot = |at: u64| State::decode(file.get(usize::try_from(at).ok()?..)?);
    SLOT_AT.into_iter().filter_map(slot).max_by_key(|state| state.number)
}

/// A fingerprint of the ends of a copy.
fn fingerprint(source: &Source, destinations: &[Destination]) -> u64 {
    let mut words = vec![format!("{}\0{}\0{:?}", source.name, source.bytes, source.seen)];
    words.extend(destinations.iter().map(|to| format!("{}\0{:?}", to.name, to.seen.map(|seen| (seen.identity, seen.bytes)))));
    XxHash3_64::oneshot(words.join("\n").as_bytes())
}

/// A journal that is kept.
pub struct Journal {
    path: PathBuf,
    file: File,
    pub state: State,
}

impl Journal {
    /// What the journal in `path` says; `None` where there is none.
    pub fn read(path: &Path) -> Result<Option<State>, Failure> {
        let file = match std::fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|error| Failure::because(format!("reading {}", path.display()), &error))?,
        };
        if file.is_empty() {
            return Ok(None);
        }
        let damaged = || Failure::Failed(format!("{} is not the journal of a copy: name another file", path.display()));
        newest(&file).map(Some).ok_or_else(damaged)
    }

    /// Goes on with `found`, or begins a new journal; `zero` is whether the destinations are zero.
    pub fn open(
        path: &Path,
        found: Option<State>,
        source: &Source,
        destinations: &[Destination],
        zero: bool,
    ) -> Result<Self, Failure> {
        let copy = fingerprint(source, destinations);
        if found.is_some_and(|state| state.copy != copy || state.bytes != source.bytes) {
            let path = path.display();
            let what = "is the journal of another copy, or the source or a destination has changed since";
            return Err(Failure::Failed(format!("{path} {what}: remove it to copy everything")));
        }
        let failed = |error| Failure::because(format!("writing {}", path.display()), &error);
        let file = File::options().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let begun = State { copy, bytes: source.bytes, settled: 0, number: 0, zero };
        let mut journal = Self { path: path.to_owned(), file, state: found.unwrap_or(begun) };
        if found.is_none() {
            journal.settle(0)?;
            ends::sync_folder(path).map_err(failed)?;
        }
        Ok(journal)
    }

    /// Everything before byte `settled` is durable (I1).
    pub fn settle(&mut self, settled: u64) -> Result<(), Failure> {
        let state = State { settled, number: self.state.number + 1, ..self.state };
        let at = if state.number.is_multiple_of(2) { SLOT_AT[0] } else { SLOT_AT[1] };
        let written = self.file.write_all_at(&state.encode(), at).and_then(|()| self.file.sync_data());
        written.map_err(|error| Failure::because(format!("writing {}", self.path.display()), &error))?;
        self.state = state;
        Ok(())
    }

    /// The copy is over.
    pub fn remove(self) -> Result<(), Failure> {
        let removed = std::fs::remove_file(&self.path).and_then(|()| ends::sync_folder(&self.path));
        removed.map_err(|error| Failure::because(format!("removing {}", self.path.display()), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(number: u64) -> State {
        State { copy: 0x1234_5678_9ABC_DEF0, bytes: 1 << 40, settled: number << 20, number, zero: number % 2 == 1 }
    }

    #[test]
    fn a_slot_says_what_was_written_and_every_flipped_bit_is_noticed() {
        let slot = state(77).encode();
        assert_eq!(State::decode(&slot), Some(state(77)));
        for bit in 0..SLOT_BYTES * 8 {
            let mut broken = slot;
            if let Some(byte) = broken.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            assert_eq!(State::decode(&broken), None, "bit {bit}");
        }
        assert_eq!(State::decode(slot.get(..63).unwrap()), None);
    }

    #[test]
    fn whatever_part_of_a_slot_a_crash_leaves_the_one_before_counts() {
        let (old, new) = (state(6).encode(), state(7).encode());
        for kept in 0..=SLOT_BYTES {
            let mut torn = [0xEE; SLOT_BYTES];
            torn.get_mut(..kept).unwrap().copy_from_slice(new.get(..kept).unwrap());
            let mut file = vec![0; 4096];
            file.get_mut(..SLOT_BYTES).unwrap().copy_from_slice(&old);
            file.extend(torn);
            let expected = if kept == SLOT_BYTES { state(7) } else { state(6) };
            assert_eq!(newest(&file), Some(expected), "{kept}");
        }
        assert_eq!(newest(&[0; 8192]), None);
        assert_eq!(newest(&[]), None);
    }
}
