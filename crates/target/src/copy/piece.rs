//! One slice of a copy: read once, written everywhere.
//!
//! ```text
//!   pace ─▶ room ─▶ read ── failed ─▶ read again in blocks ─▶ what is unreadable is known exactly
//!                     └─▶ data │ zeroes │ data ─▶ all destinations, in one go ─▶ errors by destination
//! ```
//!
//! Invariants:
//! - I1: where nothing could be read, no destination is touched.
//! - I2: the writes of a slice are all submitted in one turn: they merge with those of its neighbours.
//! - I3: in a copy in order, a slice writes after the slice before it has written or has given up, and
//!   has its room before the slice behind it: nobody waits for room that only he could give back.

use std::rc::Rc;

use forebay_block::bio::{Call, call};
use forebay_block::replant::{Bug, planted};
use forebay_block::{Ability, Bio, Extent, Flags, SECTOR_BYTES, Sector, SectorCount, Segments, Status};

use super::outcome::Tally;
use super::room::Room;
use super::{Engine, How, Leg, Zeroes};
use crate::event::Event;

/// Slices from this size on are not merged with others: nothing is gained, and reads and writes
/// overlap better.
pub(crate) const MERGE_BYTES_MAX: u32 = 256 << 10;
/// Reads that failed are tried again in blocks of this size first, sectors.
const RETRY_SECTORS: u64 = 8;
/// Retries in flight at once.
const RETRIES_MAX: usize = 64;

/// What a slice belongs to.
pub(super) struct Work<'a> {
    pub(super) from: &'a Leg,
    pub(super) to: &'a [Leg],
    pub(super) how: &'a How,
    pub(super) tally: &'a Tally,
    /// For copies in order, whose turn it is.
    pub(super) order: Option<&'a Order>,
    /// Was waited for already until it may begin.
    pub(super) ready: bool,
}

/// Whose turn it is in a copy in order: the slice that begins at a sector.
#[derive(Default)]
pub(super) struct Order {
    room: Turn,
    write: Turn,
}

#[derive(Default)]
struct Turn {
    next: std::cell::Cell<u64>,
    moved: Event,
}

impl Turn {
    async fn wait(&self, at: Sector) {
        while self.next.get() != at.0 {
            let seen = self.moved.count();
            self.moved.after(seen, None).await;
        }
    }

    fn pass(&self, slice: Extent) {
        if self.next.get() == slice.start.0 {
            self.next.set(slice.end().0);
            self.moved.raise();
        }
    }
}

/// A stretch of a slice, in sectors from the start of the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) extent: Extent,
    pub(super) zero: bool,
}

/// A write on its way to a destination.
pub(super) struct Sent {
    leg: usize,
    span: Span,
    call: Call,
}

impl Work<'_> {
    /// Whether nothing more is to be begun.
    pub(super) fn is_stopped(&self, engine: &Engine) -> bool {
        let cancelled = engine.inner.closed.get() || self.how.watch.as_ref().is_some_and(|watch| watch.is_cancelled());
        if cancelled && !self.tally.is_stopped() {
            self.tally.cancelled();
        }
        self.tally.is_stopped()
    }

    /// Logical blocks of all ends, sectors: holes and errors are told in these.
    pub(super) fn block_sectors(&self) -> u64 {
        let ends = std::iter::once(self.from).chain(self.to);
        let bytes = ends.map(|leg| leg.target.limits().logical_bytes).max().unwrap_or(SECTOR_BYTES);
        u64::from(bytes / SECTOR_BYTES)
    }

    fn keeps_going(&self) -> bool {
        self.how.keep_going && self.order.is_none()
    }

    /// Copies `slice`, which fits a room.
    pub(super) async fn copy(&self, engine: &Engine, slice: Extent) {
        if let Some(watch) = &self.how.watch {
            watch.begin(slice);
        }
        if let Some(order) = self.order {
            order.room.wait(slice.start).await;
        }
        if !self.ready && !self.is_stopped(engine) {
            engine.pace(slice.count.to_bytes(), self.how).await;
        }
        let stopped = self.is_stopped(engine);
        let bytes = usize::try_from(slice.count.to_bytes()).expect("a slice fits memory");
        let mut room = if stopped { None } else { Some(engine.inner.rooms.take(bytes).await) };
        if let Some(order) = self.order {
            order.room.pass(slice);
        }
        let mut spans = engine.inner.spans.borrow_mut().pop().unwrap_or_default();
        let mut clean = false;
        if let Some(room) = &mut room {
            clean = self.read(engine, room, slice, &mut spans).await;
        }
        if let Some(order) = self.order {
            order.write.wait(slice.start).await;
            if self.tally.is_stopped() {
                clean = false;
                spans.clear();
            }
        }
        if let Some(room) = &room {
            let mut sent = engine.inner.sent.borrow_mut().pop().unwrap_or_default();
            self.submit(engine, room.segments(), slice, &spans, &mut sent);
            if let Some(order) = self.order {
                order.write.pass(slice);
            }
            clean &= self.settle(engine, room.segments(), slice, &mut sent).await;
            engine.inner.sent.borrow_mut().push(sent);
        } else if let Some(order) = self.order {
            order.write.pass(slice);
        }
        spans.clear();
        engine.inner.spans.borrow_mut().push(spans);
        if let Some(watch) = &self.how.watch {
            watch.end(slice, clean);
        }
    }

    /// Reads the slice into the room; `spans` are what is to be written of it. Returns whether that is
    /// all of it.
    async fn read(&self, engine: &Engine, room: &mut Room<'_>, slice: Extent, spans: &mut Vec<Span>) -> bool {
        let mut clean = true;
        let bytes = narrow(slice.count.to_bytes());
        let read = self.bio_read(room.segments(), slice, slice, bytes >= MERGE_BYTES_MAX);
        let status = call(&*self.from.target, read).await.status();
        if let Some(watch) = &self.how.watch {
            watch.add(|seen| seen.read += slice.count.to_bytes());
        }
        spans.push(Span { extent: slice, zero: false });
        if !status.is_ok() && !planted(Bug::M11ReadErrorDropped) {
            let bad = self.read_again(room.segments(), slice).await;
            tracing::debug!("copy: reading {} sectors from {} failed in {} places", slice.count.0, slice.start.0, bad.len());
            for &extent in &bad {
                self.tally.unread(extent);
                cut_out(spans, extent);
            }
            clean = bad.is_empty();
            if !clean && !self.keeps_going() {
                spans.clear();
                self.tally.stop();
            }
        }
        let grain = u64::from(self.how.detect_bytes / SECTOR_BYTES).next_multiple_of(self.block_sectors());
        if self.how.detect_bytes > 0
            && !spans.is_empty()
            && let Some(content) = room.content()
        {
            let mut all = engine.inner.spans.borrow_mut().pop().unwrap_or_default();
            for span in spans.iter() {
                find_zeroes(content, slice.start, *span, grain, &mut all);
            }
            std::mem::swap(spans, &mut all);
            all.clear();
            engine.inner.spans.borrow_mut().push(all);
        }
        clean
    }

    fn bio_read(&self, segments: &Rc<Segments>, slice: Extent, extent: Extent, nomerge: bool) -> Bio {
        let skip = narrow((extent.start.0 - slice.start.0) * u64::from(SECTOR_BYTES));
        let sector = self.from.sector + SectorCount(extent.start.0);
        Bio::read(sector, Rc::clone(segments), skip, narrow(extent.count.to_bytes())).with(Flags { nomerge, ..Flags::default() })
    }

    /// Reads a slice that could not be read at once block by block; returns what stays unreadable.
    async fn read_again(&self, segments: &Rc<Segments>, slice: Extent) -> Vec<Extent> {
        let block = self.block_sectors();
        let mut bad = vec![slice];
        for step in [RETRY_SECTORS.max(block), block] {
            let mut left = Vec::new();
            let mut parts = bad.iter().flat_map(|&extent| cut(extent, step));
            loop {
                let batch: Vec<_> = parts.by_ref().take(RETRIES_MAX).collect();
                if batch.is_empty() {
                    break;
                }
                let send = |&part: &Extent| call(&*self.from.target, self.bio_read(segments, slice, part, true));
                let calls: Vec<Call> = batch.iter().map(send).collect();
                for (part, call) in batch.iter().zip(calls) {
                    if !call.await.status().is_ok() {
                        left.push(*part);
                    }
                }
            }
            bad = left;
        }
        bad
    }

    /// Submits what is to be written of the slice to every destination (I2).
    fn submit(&self, engine: &Engine, segments: &Rc<Segments>, slice: Extent, spans: &[Span], sent: &mut Vec<Sent>) {
        let legs = if planted(Bug::M13SecondLegEmpty) { 1 } else { self.to.len() };
        for (number, leg) in self.to.iter().enumerate().take(legs) {
            for &span in spans {
                let bytes = span.extent.count.to_bytes();
                let by_zeroes = span.zero && leg.target.limits().write_zeroes != Ability::No;
                if let Some(watch) = &self.how.watch {
                    watch.add(|seen| match (span.zero, self.how.zeroes) {
                        (true, Zeroes::Skip) => seen.skipped += bytes,
                        _ if by_zeroes => seen.zeroed += bytes,
                        _ => seen.written += bytes,
                    });
                }
                if span.zero && self.how.zeroes == Zeroes::Skip {
                    continue;
                }
                let bio = if by_zeroes {
                    engine.bio_zeroes(leg, span.extent, self.how)
                } else {
                    bio_write(leg, segments, slice, span.extent, self.how)
                };
                sent.push(Sent { leg: number, span, call: call(&*leg.target, bio) });
            }
        }
    }

    /// Waits for what was sent, and notes what failed. Returns whether nothing did.
    async fn settle(&self, engine: &Engine, segments: &Rc<Segments>, slice: Extent, sent: &mut Vec<Sent>) -> bool {
        let mut clean = true;
        for Sent { leg: number, span, call: sending } in sent.drain(..) {
            let ended = sending.await;
            let mut status = ended.status();
            if span.zero && status == Status::Unsupported {
                // What was said to be possible is not: the zeroes are in memory all the same.
                let leg = &self.to[number];
                status = call(&*leg.target, bio_write(leg, segments, slice, span.extent, self.how)).await.status();
            }
            clean &= status.is_ok();
            self.note(number, span.extent, status);
        }
        engine.inner.slices.set(engine.inner.slices.get() + 1);
        clean
    }

    /// Notes how a write to a destination ended.
    fn note(&self, leg: usize, extent: Extent, status: Status) {
        if status.is_ok() {
            return;
        }
        self.tally.unwritten(leg, extent, status);
        if !self.keeps_going() {
            self.tally.stop();
        }
    }

    /// Makes `slice`, of any length, zeroes at every destination; nothing is read.
    pub(super) async fn zero(&self, engine: &Engine, slice: Extent) {
        if let Some(watch) = &self.how.watch {
            watch.begin(slice);
        }
        if let Some(order) = self.order {
            order.room.wait(slice.start).await;
            order.room.pass(slice);
            order.write.wait(slice.start).await;
        }
        let mut clean = !self.is_stopped(engine);
        if self.how.zeroes == Zeroes::Skip {
            if let Some(watch) = &self.how.watch {
                watch.add(|seen| seen.skipped += slice.count.to_bytes() * self.to.len() as u64);
            }
        } else if clean {
            let mut counted = slice.start;
            for (number, leg) in self.to.iter().enumerate() {
                let status = engine.zero_leg(leg, slice, self.how, &mut counted).await;
                clean &= status.is_ok();
                self.note(number, slice, status);
            }
        }
        if let Some(order) = self.order {
            order.write.pass(slice);
        }
        if let Some(watch) = &self.how.watch {
            watch.end(slice, clean);
        }
    }
}

fn bio_write(leg: &Leg, segments: &Rc<Segments>, slice: Extent, extent: Extent, how: &How) -> Bio {
    let skip = narrow((extent.start.0 - slice.start.0) * u64::from(SECTOR_BYTES));
    let bytes = narrow(extent.count.to_bytes());
    let flags = Flags { nomerge: bytes >= MERGE_BYTES_MAX, fua: how.durable, ..Flags::default() };
    Bio::write(leg.sector + SectorCount(extent.start.0), Rc::clone(segments), skip, bytes).with(flags)
}

fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).expect("a slice has less than 4 GiB")
}

/// `extent` in steps of `step` sectors.
fn cut(extent: Extent, step: u64) -> impl Iterator<Item = Extent> {
    let end = extent.end().0;
    (extent.start.0..end).step_by(usize::try_from(step).expect("a few sectors")).map(move |at| {
        let count = step.min(end - at);
        Extent::new(Sector(at), SectorCount(count))
    })
}

/// Takes `hole` out of the spans.
fn cut_out(spans: &mut Vec<Span>, hole: Extent) {
    let Some(place) = spans.iter().position(|span| span.extent.contains(hole)) else { return };
    let Span { extent, zero } = spans.remove(place);
    let before = hole.start.since(extent.start).map(|count| Extent::new(extent.start, count));
    let after = extent.end().since(hole.end()).map(|count| Extent::new(hole.end(), count));
    let parts = [before, after].into_iter().flatten().filter(|part| part.count.0 > 0);
    spans.splice(place..place, parts.map(|extent| Span { extent, zero }));
}

/// Tells the zeroes of `span` from its data in steps of `grain` sectors; `content` begins at `start`.
fn find_zeroes(content: &[u8], start: Sector, span: Span, grain: u64, out: &mut Vec<Span>) {
    let first = out.len();
    for part in cut(span.extent, grain) {
        let skip = usize::try_from((part.start.0 - start.0) * u64::from(SECTOR_BYTES)).expect("inside a slice");
        let bytes = narrow(part.count.to_bytes()) as usize;
        let zero = is_zero(&content[skip..skip + bytes]);
        match out[first..].last_mut() {
            Some(last) if last.zero == zero => last.extent.count = last.extent.count + part.count,
            _ => out.push(Span { extent: part, zero }),
        }
    }
}

/// Whether all bytes are zero: by stretches, so that the compiler looks at many at a time.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|stretch| stretch.iter().fold(0, |all, byte| all | byte) == 0)
}
