//! Changes that do not begin and end on blocks: read what surrounds them, change it, write it back.
//!
//! ```text
//!   block      │········│········│········│
//!   request         ├───────────────┤           read the first and the last block,
//!   written    ├──────────────────────────┤     put the payload between, write the whole
//! ```
//!
//! Invariants:
//! - I1: while such a change runs, no other change of the export is in flight, from whatever
//!   connection: what is written back of the surroundings is what they hold. Exports of the same
//!   target share a gate.
//! - I2: the gate is fair: who waits is let in in the order of coming, so neither kind starves.
//! - I3: a change that fails half-way may have been applied in part, as any write that fails.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_block::{Bio, Flags, Status, call};

use super::connection::{Connection, SlotId};
use super::submit::Span;
use crate::nbd::server::{Command, Request};

/// Lets aligned changes in together and each unaligned one alone.
#[derive(Default)]
pub(super) struct Gate(RefCell<Inside>);

#[derive(Default)]
struct Inside {
    together: usize,
    alone: bool,
    queue: VecDeque<Waiting>,
    pumping: bool,
}

/// Who makes changes that pass a gate.
pub(super) trait Guarded {
    /// Makes the change `id`, which the gate has let in, alone or together with others.
    fn admitted(&self, id: SlotId, alone: bool);
}

struct Waiting {
    who: Rc<dyn Guarded>,
    id: SlotId,
    alone: bool,
}

impl Inside {
    fn take_in(&mut self, alone: bool) -> bool {
        if self.alone || (alone && self.together > 0) {
            return false;
        }
        if alone {
            self.alone = true;
        } else {
            self.together += 1;
        }
        true
    }
}

impl Gate {
    /// Asks to be let in: true at once, or false, and [`Guarded::admitted`] is called later.
    pub(super) fn enter(&self, who: Rc<dyn Guarded>, id: SlotId, alone: bool) -> bool {
        let mut inside = self.0.borrow_mut();
        if inside.queue.is_empty() && inside.take_in(alone) {
            return true;
        }
        inside.queue.push_back(Waiting { who, id, alone });
        false
    }

    /// One that was let in has ended; lets in who may come now.
    pub(super) fn leave(&self) {
        {
            let mut inside = self.0.borrow_mut();
            if inside.alone {
                inside.alone = false;
            } else {
                inside.together = inside.together.checked_sub(1).expect("who leaves was inside");
            }
            // A change that ends at once leaves while others are being let in: they go on there.
            if inside.pumping || inside.queue.is_empty() {
                return;
            }
            inside.pumping = true;
        }
        while let Some(next) = self.next() {
            next.who.admitted(next.id, next.alone);
        }
    }

    fn next(&self) -> Option<Waiting> {
        let mut inside = self.0.borrow_mut();
        let alone = inside.queue.front().map(|front| front.alone);
        if let Some(alone) = alone
            && inside.take_in(alone)
        {
            return inside.queue.pop_front();
        }
        inside.pumping = false;
        None
    }
}

/// An unaligned change that was let in alone.
pub(super) struct Work {
    pub(super) connection: Rc<Connection>,
    pub(super) id: SlotId,
}

impl Work {
    /// Makes the change and answers it.
    pub(super) async fn run(self) {
        let status = self.change().await;
        self.connection.finish_with(self.id, status);
    }

    async fn change(&self) -> Status {
        let request = self.connection.request(self.id);
        let status = match request.command {
            Command::Write => self.write(&request).await,
            _ => self.zero(&request).await,
        };
        if status.is_ok() && request.fua { self.submit(Bio::flush()).await } else { status }
    }

    async fn submit(&self, bio: Bio) -> Status {
        call(&*self.connection.served.target, bio).await.status()
    }

    async fn write(&self, request: &Request) -> Status {
        let block = self.connection.block();
        let span = Span::of(request);
        let wide = span.widened(block);
        let mut status = Status::Ok;
        if wide.start < span.start {
            let keep = Span { start: wide.start, end: span.start };
            status = self.fill(wide, keep).await;
        }
        if span.end < wide.end && status.is_ok() {
            let keep = Span { start: span.end, end: wide.end };
            status = self.fill(wide, keep).await;
        }
        if !status.is_ok() {
            return status;
        }
        let segments =
            self.connection.with(self.id, |slot| Rc::clone(slot.buffer.as_ref().expect("it has its payload").segments()));
        self.submit(Bio::write(wide.sector(), segments, 0, wide.bytes_u32())).await
    }

    /// Reads the block around `keep`, and copies `keep` from it to its place in the payload, which
    /// lies on `wide`.
    async fn fill(&self, wide: Span, keep: Span) -> Status {
        let around = keep.widened(self.connection.block());
        let mut edge = self.connection.pool.take(bytes(around.bytes()));
        let bio = Bio::read(around.sector(), Rc::clone(edge.segments()), 0, around.bytes_u32());
        let status = self.submit(bio).await;
        if status.is_ok() {
            let from = bytes(keep.start - around.start);
            let to = bytes(keep.start - wide.start);
            let length = bytes(keep.bytes());
            self.connection.with(self.id, |slot| {
                let payload = slot.buffer.as_mut().expect("it has its payload").bytes_mut();
                payload[to..to + length].copy_from_slice(&edge.bytes_mut()[from..from + length]);
            });
        }
        status
    }

    async fn zero(&self, request: &Request) -> Status {
        let block = self.connection.block();
        let span = Span::of(request);
        let whole = span.narrowed(block);
        let first = Span { start: span.start, end: span.end.min(whole.start) };
        let last = Span { start: span.end.min(whole.end).max(first.end), end: span.end };
        let mut status = Status::Ok;
        for part in [first, last] {
            if part.bytes() > 0 && status.is_ok() {
                status = self.zero_inside(part).await;
            }
        }
        if whole.bytes() > 0 && status.is_ok() {
            let no_unmap = matches!(request.command, Command::WriteZeroes { no_hole: true, .. });
            let flags = Flags { no_unmap, ..Flags::default() };
            status = self.submit(Bio::write_zeroes(whole.extent()).with(flags)).await;
        }
        status
    }

    /// Makes `part`, which lies inside of one block or two, zero.
    async fn zero_inside(&self, part: Span) -> Status {
        let around = part.widened(self.connection.block());
        let mut buffer = self.connection.pool.take(bytes(around.bytes()));
        let length = around.bytes_u32();
        let status = self.submit(Bio::read(around.sector(), Rc::clone(buffer.segments()), 0, length)).await;
        if !status.is_ok() {
            return status;
        }
        buffer.bytes_mut()[bytes(part.start - around.start)..][..bytes(part.bytes())].fill(0);
        self.submit(Bio::write(around.sector(), Rc::clone(buffer.segments()), 0, length)).await
    }
}

fn bytes(length: u64) -> usize {
    usize::try_from(length).expect("payloads fit memory")
}
