//! From requests to bios, and from ended bios back to outcomes.
//!
//! ```text
//!   request ──▶ aligned to blocks? ── yes ─▶ bio ─▶ target ─▶ bio_ended ─▶ (flush) ─▶ finish
//!                     └─ a change, no ─▶ unaligned
//! ```
//!
//! 1. Reads are widened to whole blocks; the client gets only what it asked for.
//! 2. Trims are narrowed to whole blocks, which the protocol allows.
//! 3. Block status is asked of whole blocks too, and the client hears of no byte before its first.
//! 4. Where the target cannot make a single change durable, a flush follows before the reply.
//!
//! Units: offsets and lengths are bytes, on the export's first byte.

use std::rc::Rc;

use forebay_block::{Ability, Bio, End, Extent, Flags, Run, Sector, SectorCount, Status, allocation};

use super::connection::{Connection, Outcome, SlotId};
use super::unaligned::{Guarded, Work};
use crate::nbd::server::{Command, Request, STATUS_EXTENTS_MAX};
use crate::nbd::{StatusExtent, WireError};

/// A range of bytes on an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Span {
    pub(super) fn of(request: &Request) -> Self {
        Self { start: request.to.offset, end: request.to.offset + request.length }
    }

    pub(super) fn bytes(self) -> u64 {
        self.end - self.start
    }

    /// As [`Span::bytes`], where a payload limits it.
    pub(super) fn bytes_u32(self) -> u32 {
        u32::try_from(self.bytes()).expect("payloads are at most 32 MiB and two blocks")
    }

    /// The smallest run of whole blocks around it.
    pub(super) fn widened(self, block: u64) -> Self {
        Self { start: self.start - self.start % block, end: self.end.next_multiple_of(block) }
    }

    /// The largest run of whole blocks inside it; may be empty.
    pub(super) fn narrowed(self, block: u64) -> Self {
        let start = self.start.next_multiple_of(block);
        Self { start, end: (self.end - self.end % block).max(start) }
    }

    pub(super) fn is_aligned(self, block: u64) -> bool {
        self.start.is_multiple_of(block) && self.end.is_multiple_of(block)
    }

    pub(super) fn sector(self) -> Sector {
        Sector::from_bytes(self.start).expect("blocks are whole sectors")
    }

    pub(super) fn extent(self) -> Extent {
        Extent::new(self.sector(), SectorCount::from_bytes(self.bytes()).expect("blocks are whole sectors"))
    }
}

impl Connection {
    /// Bytes of a block of the target: what a bio must be a multiple of.
    pub(super) fn block(&self) -> u64 {
        u64::from(self.served.limits.logical_bytes)
    }

    /// Carries out the request in slot `id`, whose payload is complete.
    pub(super) fn begin(&self, id: SlotId) {
        let request = self.request(id);
        self.count(&request);
        match request.command {
            Command::Read { .. } => self.read(id, Span::of(&request).widened(self.block())),
            Command::Flush => self.send_down(id, Bio::flush()),
            Command::Write => self.change(id, Span::of(&request).is_aligned(self.block())),
            Command::WriteZeroes { fast, .. } => {
                let aligned = Span::of(&request).is_aligned(self.block());
                if fast && !(aligned && self.served.limits.write_zeroes == Ability::Native) {
                    return self.finish(id, Outcome::Failed(WireError::NotSupported, "zeroing would not be fast"));
                }
                self.change(id, aligned);
            }
            Command::Trim if Span::of(&request).narrowed(self.block()).bytes() == 0 => self.finish(id, Outcome::Done),
            Command::Trim => self.change(id, true),
            Command::Cache => self.finish(id, Outcome::Done),
            Command::BlockStatus { .. } => self.served.questions.start((self.me(), id)),
        }
    }

    fn read(&self, id: SlotId, span: Span) {
        let bytes = span.bytes_u32();
        let buffer = self.pool.take(bytes as usize);
        let bio = Bio::read(span.sector(), Rc::clone(buffer.segments()), 0, bytes);
        self.with(id, |slot| {
            let offset = slot.request.map_or(span.start, |request| request.to.offset);
            slot.skip = u32::try_from(offset - span.start).expect("less than a block");
            slot.buffer = Some(buffer);
        });
        self.send_down(id, bio);
    }

    /// Makes a change as soon as the gate lets it in.
    fn change(&self, id: SlotId, aligned: bool) {
        self.with(id, |slot| slot.gated = true);
        let me = self.me();
        if self.served.gate.enter(Rc::clone(&me) as Rc<dyn Guarded>, id, !aligned) {
            me.admitted(id, !aligned);
        }
    }

    fn make_change(&self, id: SlotId, alone: bool) {
        if alone {
            self.served.counts.unaligned.add(1);
            return self.served.jobs.start(Work { connection: self.me(), id });
        }
        let request = self.request(id);
        let bio = match request.command {
            Command::Write => self.whole_write(id, &request),
            Command::WriteZeroes { no_hole, .. } => {
                let flags = Flags { no_unmap: no_hole, ..Flags::default() };
                self.with(id, |slot| slot.flush_after = request.fua);
                Bio::write_zeroes(Span::of(&request).extent()).with(flags)
            }
            _ => {
                self.with(id, |slot| slot.flush_after = request.fua);
                Bio::discard(Span::of(&request).narrowed(self.block()).extent())
            }
        };
        self.send_down(id, bio);
    }

    fn whole_write(&self, id: SlotId, request: &Request) -> Bio {
        let fua = request.fua && self.served.limits.fua != Ability::No;
        let segments = self.with(id, |slot| {
            slot.flush_after = request.fua && !fua;
            Rc::clone(slot.buffer.as_ref().expect("a write has its payload").segments())
        });
        let span = Span::of(request);
        Bio::write(span.sector(), segments, 0, span.bytes_u32()).with(Flags { fua, ..Flags::default() })
    }

    fn send_down(&self, id: SlotId, bio: Bio) {
        let bio = bio.on_end(self.me(), u64::from(id));
        self.served.target.submit(bio);
    }

    /// The work for slot `id` ended with `status`.
    pub(super) fn finish_with(&self, id: SlotId, status: Status) {
        let request = self.request(id);
        let fast = matches!(request.command, Command::WriteZeroes { fast: true, .. });
        let outcome = WireError::from_status(status, fast).map_or(Outcome::Done, |error| Outcome::Failed(error, reason(status)));
        self.finish(id, outcome);
    }
}

impl Guarded for Connection {
    fn admitted(&self, id: SlotId, alone: bool) {
        self.make_change(id, alone);
    }
}

impl End for Connection {
    fn bio_ended(&self, bio: Bio, token: u64) {
        let id = SlotId::try_from(token).expect("tokens are slots");
        let status = bio.status();
        // Lets go of the payload, so that the buffer can be sent and used again.
        drop(bio);
        let flush = self.with(id, |slot| std::mem::take(&mut slot.flush_after));
        if flush && status.is_ok() {
            self.send_down(id, Bio::flush());
        } else {
            self.finish_with(id, status);
        }
    }
}

/// Finds out what the block status request in slot `id` asks.
pub(super) async fn tell_status((connection, id): (Rc<Connection>, SlotId)) {
    let request = connection.request(id);
    let span = Span::of(&request);
    let wide = span.widened(connection.block());
    let extent = Extent {
        count: wide.extent().count.min(connection.served.target.sectors() - SectorCount(wide.sector().0)),
        ..wide.extent()
    };
    let most = if request.command == (Command::BlockStatus { one: true }) { 1 } else { STATUS_EXTENTS_MAX as usize };
    let runs = allocation::runs(&*connection.served.target, extent, most).await;
    connection.with(id, |slot| slot.extents = status_extents(&runs, span.start - wide.start));
    connection.finish(id, Outcome::Done);
}

/// Runs as the protocol tells them, without the first `skip` bytes.
fn status_extents(runs: &[Run], mut skip: u64) -> Vec<StatusExtent> {
    let mut extents = Vec::with_capacity(runs.len());
    for run in runs {
        let bytes = run.count.to_bytes();
        let length = bytes.saturating_sub(skip);
        skip -= bytes - length;
        if length > 0 {
            extents.push(StatusExtent { length, state: if run.hole { StatusExtent::HOLE | StatusExtent::ZERO } else { 0 } });
        }
    }
    extents
}

fn reason(status: Status) -> &'static str {
    match status {
        Status::Ok => "it succeeded",
        Status::IoError => "the device failed",
        Status::NoSpace => "the device has no space left",
        Status::ReadOnly => "the device may not be written",
        Status::Unsupported => "the device cannot do this",
        Status::Aborted => "the device is going away",
        Status::Again => "the device is busy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_widen_and_narrow_to_blocks() {
        let span = |start, end| Span { start, end };
        assert_eq!(span(1, 2).widened(512), span(0, 512));
        assert_eq!(span(511, 513).widened(512), span(0, 1024));
        assert_eq!(span(512, 1024).widened(512), span(512, 1024));
        assert_eq!(span(1, 1535).narrowed(512), span(512, 1024));
        assert_eq!(span(512, 1024).narrowed(512), span(512, 1024));
        assert_eq!(span(1, 1000).narrowed(512).bytes(), 0);
        assert_eq!(span(600, 700).narrowed(512).bytes(), 0);
        assert!(span(4096, 8192).is_aligned(4096) && !span(4096, 8704).is_aligned(4096));
    }
}
