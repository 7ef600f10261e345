//! The journal of a copy that can be resumed: how much is durable at every destination.
//!
//! ```text
//!   slot 0 in block 0, slot 1 in block 1, 4096 bytes each        the whole slot with the higher number counts
//!   slot:  magic 8 │ version 4 │ flags 4 │ copy 8 │ bytes 8 │ settled 8 │ number 8 │ zero 12 │ CRC-32C 4
//! ```
//!
//! Invariants:
//! - I1: a slot is written only after a flush of all destinations that began after everything before
//!   `settled` had ended. A flush that fails ends the copy: what it should have saved may be lost, and
//!   is written again by the next run, since no slot speaks of it.
//! - I2: slots are written in turns, each durable before the next: whatever moment a crash picks, one of
//!   them is whole.
//!
//! Little-endian; units are bytes. See `docs/format.md`.
#![deny(clippy::indexing_slicing)]

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Bio, Flags, HeapMemory, Sector, SectorCount, Segments, Status, Target, call, flush};

use super::{Engine, How, Leg, Outcome, Watch};

const MAGIC: [u8; 8] = *b"FBCOPYJ1";
const VERSION: u32 = 1;
const SLOT_BYTES: usize = 64;
/// Bytes of the block that a slot has for itself: torn off it, no write harms the other.
const BLOCK_BYTES: u32 = 4096;
/// The destinations were zero when the copy began.
const FLAG_ZERO: u32 = 1;

/// Bytes of a journal.
pub const JOURNAL_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// What a slot says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Which copy it is: whatever tells copies apart.
    pub copy: u64,
    /// Bytes to copy.
    pub bytes: u64,
    /// Everything before this byte is durable; a whole sector.
    pub settled: u64,
    /// Grows with every slot that is written.
    pub number: u64,
    /// The destinations were zero where they were not written yet.
    pub zero: bool,
}

/// What there is in place of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes: a copy may begin.
    Nothing,
    /// A journal.
    Journal(Settled),
    /// Something else.
    Other,
}

impl Settled {
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
        let (copy, bytes, settled, number) = (longs.next()?, longs.next()?, longs.next()?, longs.next()?);
        let whole = *magic == MAGIC
            && crc32c::crc32c(body) == u32::from_le_bytes(*crc)
            && u32::from_le_bytes(*version) == VERSION
            && flags & !FLAG_ZERO == 0
            && zero.iter().all(|&byte| byte == 0)
            && settled <= bytes
            && settled.is_multiple_of(512);
        whole.then_some(Self { copy, bytes, settled, number, zero: flags & FLAG_ZERO != 0 })
    }
}

impl Found {
    /// What the bytes of a journal say.
    #[must_use]
    pub fn decode(journal: &[u8]) -> Self {
        let slots = journal.chunks(BLOCK_BYTES as usize).take(2);
        match slots.filter_map(Settled::decode).max_by_key(|settled| settled.number) {
            Some(settled) => Self::Journal(settled),
            None if journal.iter().all(|&byte| byte == 0) => Self::Nothing,
            None => Self::Other,
        }
    }
}

/// A journal that is kept, on a target of [`JOURNAL_BYTES`].
pub struct Journal {
    target: Rc<dyn Target>,
    state: RefCell<Settled>,
}

impl Journal {
    /// What is on `target`.
    ///
    /// # Errors
    /// That of the read.
    pub async fn find(target: &dyn Target) -> Result<Found, Status> {
        let mut memory = block_memory(2 * BLOCK_BYTES);
        let read = Bio::read(Sector(0), Rc::clone(&memory), 0, 2 * BLOCK_BYTES);
        let status = call(target, read).await.status();
        if !status.is_ok() {
            return Err(status);
        }
        // The read is over: nobody else holds the memory.
        Ok(Rc::get_mut(&mut memory).map_or(Found::Other, |memory| Found::decode(memory.bytes_mut())))
    }

    /// Goes on with what was found.
    #[must_use]
    pub fn resume(target: Rc<dyn Target>, state: Settled) -> Self {
        Self { target, state: RefCell::new(state) }
    }

    /// Begins the journal of a new copy: `state` with nothing settled.
    ///
    /// # Errors
    /// That of the write.
    pub async fn begin(target: Rc<dyn Target>, state: Settled) -> Result<Self, Status> {
        let journal = Self { target, state: RefCell::new(Settled { settled: 0, number: 0, ..state }) };
        journal.settle(0).await?;
        Ok(journal)
    }

    /// What it says now.
    #[must_use]
    pub fn state(&self) -> Settled {
        *self.state.borrow()
    }

    /// Notes that everything before byte `settled` is durable (I1).
    async fn settle(&self, settled: u64) -> Result<(), Status> {
        let before = self.state();
        let state = Settled { settled, number: before.number + 1, ..before };
        let mut memory = block_memory(BLOCK_BYTES);
        let bytes = Rc::get_mut(&mut memory).expect("nobody else has it yet").bytes_mut();
        if let Some(slot) = bytes.first_chunk_mut::<SLOT_BYTES>() {
            *slot = state.encode();
        }
        let sector = Sector(state.number % 2 * u64::from(BLOCK_BYTES / 512));
        let write = Bio::write(sector, memory, 0, BLOCK_BYTES).with(Flags { fua: true, ..Flags::default() });
        let status = call(&*self.target, write).await.status();
        if !status.is_ok() {
            return Err(status);
        }
        *self.state.borrow_mut() = state;
        Ok(())
    }

    /// Notes every now and then how far a copy to `to` is that began at sector `first`. Ends only with
    /// an error. `busy` is set while a flush or a slot is on its way.
    async fn keep(&self, engine: &Engine, watch: &Watch, first: u64, to: &[Leg], every: Duration, busy: &Cell<bool>) -> NotNoted {
        loop {
            engine.inner.reactor.sleep(every).await;
            busy.set(true);
            // Before the flush begins (I1).
            let settled = (first + watch.settled().0) * 512;
            for (number, leg) in to.iter().enumerate() {
                let status = flush(&*leg.target).await.status();
                if !status.is_ok() {
                    return NotNoted::Flush { leg: number, status };
                }
            }
            if let Err(status) = self.settle(settled).await {
                return NotNoted::Journal(status);
            }
            busy.set(false);
        }
    }
}

fn block_memory(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).expect("a block is not empty")
}

/// Why it could not be noted how far a copy is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNoted {
    /// A destination failed its flush: what was written to it since the last note may be lost.
    Flush {
        /// Its place in the list of destinations.
        leg: usize,
        /// How it ended.
        status: Status,
    },
    /// The journal could not be written.
    Journal(Status),
}

impl Engine {
    /// As [`Engine::copy`], from where the journal says: sectors `settled..count` of all ends. About every
    /// `every` the destinations are flushed and the journal notes how far they are durable. The watch of
    /// `how`, which must be there, counts from where the copy begins.
    ///
    /// The last stretch is neither flushed nor noted: when everything has arrived that is the caller's,
    /// who then has no more use for the journal.
    ///
    /// # Errors
    /// [`NotNoted`]. The copy is over by then, and may be resumed.
    ///
    /// # Panics
    /// Without a watch.
    pub async fn copy_noting(
        &self,
        from: &Leg,
        to: &[Leg],
        count: SectorCount,
        how: &How,
        journal: &Journal,
        every: Duration,
    ) -> Result<Outcome, NotNoted> {
        let watch = how.watch.as_ref().expect("how far a copy is comes from its watch");
        let first = (journal.state().settled / 512).min(count.0);
        let behind = |leg: &Leg| Leg::new(Rc::clone(&leg.target), leg.sector + SectorCount(first));
        let (rest_from, rest_to): (Leg, Vec<Leg>) = (behind(from), to.iter().map(behind).collect());
        let busy = Cell::new(false);
        let mut copying = Box::pin(self.copy(&rest_from, &rest_to, SectorCount(count.0 - first), how));
        let mut keeping = pin!(journal.keep(self, watch, first, to, every, &busy));
        let (mut outcome, mut failed) = (None, None);
        std::future::poll_fn(|cx| {
            if outcome.is_none()
                && let Poll::Ready(made) = copying.as_mut().poll(cx)
            {
                outcome = Some(made);
            }
            if failed.is_none()
                && (outcome.is_none() || busy.get())
                && let Poll::Ready(status) = keeping.as_mut().poll(cx)
            {
                failed = Some(status);
                busy.set(false);
                // What is in flight is waited for.
                watch.cancel();
            }
            if outcome.is_some() && !busy.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        match (failed, outcome) {
            (None, Some(outcome)) => Ok(outcome),
            (failed, _) => Err(failed.unwrap_or(NotNoted::Journal(Status::Aborted))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use forebay_block::{Limits, Op};
    use forebay_reactor::{BufferPool, Reactor};

    use super::super::Settings;
    use super::*;
    use crate::below::testing::{Disk, JumpingClock};

    /// A disk that writes and does not flush.
    struct Forgetful(Rc<Disk>);

    impl Target for Forgetful {
        fn kind(&self) -> &'static str {
            "forgetful"
        }
        fn limits(&self) -> Limits {
            self.0.limits()
        }
        fn sectors(&self) -> SectorCount {
            self.0.sectors()
        }
        fn submit(&self, bio: Bio) {
            if bio.op() == Op::Flush { bio.end(Status::NoSpace) } else { self.0.submit(bio) }
        }
    }

    #[test]
    fn who_failed_is_told_and_nothing_is_noted() {
        for on_journal in [false, true] {
            let (reactor, pool) = (Reactor::new(Box::new(JumpingClock::default())), BufferPool::default());
            let (good, bad) = (Disk::new(64), Rc::new(Forgetful(Disk::new(64))) as Rc<dyn Target>);
            let leg = |target: Rc<dyn Target>| Leg::new(target, Sector(0));
            let second: Rc<dyn Target> = if on_journal { Disk::new(64) } else { bad };
            let kept = Disk::new(16);
            let rate = NonZeroU64::new(4096);
            let engine = Engine::new(&reactor, &pool, &Settings { piece_bytes: 4096, rate, ..Settings::default() });
            let how = How { watch: Some(Rc::default()), ..How::default() };
            let run = async {
                let journal = Journal::begin(Rc::clone(&kept) as Rc<dyn Target>, state(0)).await.unwrap();
                kept.fails.set(if on_journal { Status::IoError } else { Status::Ok });
                let (from, to) = (leg(Disk::new(64)), [leg(good), leg(second)]);
                let every = Duration::from_secs(2);
                let ended = Box::pin(engine.copy_noting(&from, &to, SectorCount(64), &how, &journal, every)).await;
                (ended.err(), journal.state().settled)
            };
            let flush = NotNoted::Flush { leg: 1, status: Status::NoSpace };
            let expected = if on_journal { NotNoted::Journal(Status::IoError) } else { flush };
            assert_eq!(reactor.run(Box::pin(run)).unwrap(), (Some(expected), 0));
            reactor.clear();
        }
    }

    fn state(number: u64) -> Settled {
        Settled { copy: 0x1234_5678_9ABC_DEF0, bytes: 1 << 40, settled: number << 20, number, zero: number % 2 == 1 }
    }

    #[test]
    fn a_slot_says_what_was_written_and_every_flipped_bit_is_noticed() {
        let slot = state(77).encode();
        assert_eq!(Settled::decode(&slot), Some(state(77)));
        for bit in 0..SLOT_BYTES * 8 {
            let mut broken = slot;
            if let Some(byte) = broken.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            assert_eq!(Settled::decode(&broken), None, "bit {bit}");
        }
        assert_eq!(Settled::decode(slot.get(..63).unwrap()), None);
    }

    #[test]
    fn whatever_part_of_a_slot_a_crash_leaves_the_one_before_counts() {
        let (old, new) = (state(6).encode(), state(7).encode());
        for kept in 0..=SLOT_BYTES {
            let mut torn = [0xEE; SLOT_BYTES];
            torn.get_mut(..kept).unwrap().copy_from_slice(new.get(..kept).unwrap());
            let mut journal = vec![0; 4096];
            journal.get_mut(..SLOT_BYTES).unwrap().copy_from_slice(&old);
            journal.extend(torn);
            let expected = if kept == SLOT_BYTES { state(7) } else { state(6) };
            assert_eq!(Found::decode(&journal), Found::Journal(expected), "{kept}");
        }
        assert_eq!(Found::decode(&[0; 8192]), Found::Nothing);
        assert_eq!(Found::decode(&[]), Found::Nothing);
        assert_eq!(Found::decode(b"a letter"), Found::Other);
    }
}
