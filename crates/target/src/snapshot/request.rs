//! What requests to a snapshot do.
//!
//! ```text
//!   read    kept chunks from the store, the others from the origin, and a change of the origin waits
//!   write   kept chunks in the store; others get a place there first:
//!             all of a chunk    the payload itself goes there, nothing is copied
//!             a part of it      the origin's content is copied, and the payload written over it
//!           ended when all places are durable
//! ```
//!
//! Invariants:
//! - I1: a payload over a place that is not durable yet is new data of a whole chunk: whatever a crash
//!   leaves of it, nobody sees it.
//! - I2: a read that went to the origin fails when the snapshot is invalid at its end: the origin may
//!   have changed meanwhile.

use std::rc::Rc;

use forebay_block::{Ability, Bio, End, Extent, Flags, Op, Sector, SectorCount, Status, flush};

use super::map::Stretch;
use super::options::{Discards, StoreKind};
use super::origin::{Run, copy_runs};
use super::{Condition, Snapshot};
use crate::copy::{How, Leg, Zeroes};

/// What a write found to be lacking.
#[derive(Default)]
struct Lacking {
    /// Chunks that it covers: its own payload goes there.
    whole: Vec<Run>,
    /// Chunks that it covers in part: copied first.
    part: Vec<Run>,
    /// There was no room for all.
    full: bool,
}

impl Lacking {
    fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        self.whole.iter().chain(&self.part).flat_map(|run| run.old..run.old + run.count)
    }
}

impl Snapshot {
    /// What `extent` is made of: whole stretches, cut at its ends, as sectors and where they are.
    fn layers(&self, extent: Extent) -> Vec<(Extent, Option<Sector>)> {
        let chunk = self.chunk();
        let map = self.map.borrow();
        let layer = |stretch: Stretch| {
            let start = (stretch.old.start * chunk).max(extent.start.0);
            let end = (stretch.old.end * chunk).min(extent.end().0);
            let inside = start - stretch.old.start * chunk;
            let place = stretch.new.map(|new| Sector(new * chunk + inside));
            (Extent::new(Sector(start), SectorCount(end - start)), place)
        };
        map.stretches(self.chunks(extent)).map(layer).collect()
    }

    pub(super) fn read(&self, bio: Bio) {
        let extent = bio.extent();
        let chunks = self.chunks(extent);
        let mut stretches = 0;
        let first = {
            let map = self.map.borrow();
            let mut all = map.stretches(chunks);
            let first = all.next();
            stretches += usize::from(first.is_some()) + usize::from(all.next().is_some());
            first
        };
        let chunk = self.chunk();
        match first {
            Some(Stretch { old, new: Some(new) }) if stretches == 1 => {
                let place = new * chunk + (extent.start.0 - old.start * chunk);
                self.cow.submit(bio.remap(Sector(place)));
            }
            _ => self.read_tracked(bio),
        }
    }

    /// Sends a read of which a part goes to the origin.
    fn read_tracked(&self, bio: Bio) {
        let extent = bio.extent();
        let slot = self.origin.reads.begin(extent);
        let end = self.this.upgrade().expect("whoever sends a request holds it") as Rc<dyn End>;
        self.parked.pass_with(bio, slot, end, |bio| {
            let layers = self.layers(extent);
            if let [(_, None)] = layers.as_slice() {
                return self.origin.device().submit(bio);
            }
            for (part, place) in layers {
                let piece = bio.part(part.start.since(extent.start).expect("inside").to_bytes(), part.count.to_bytes());
                match place {
                    Some(place) => self.cow.submit(piece.remap(place)),
                    None => self.origin.device().submit(piece),
                }
            }
            bio.end_after_parts();
        });
    }

    /// Makes what was written to the store durable; all else is.
    async fn flush(&self) -> Status {
        while self.mark_due.get() {
            self.settled.after(self.settled.count(), None).await;
        }
        if self.is_invalid() {
            return flush(&*self.cow).await.status();
        }
        let status = self.store.flush().await;
        if !status.is_ok() {
            self.invalidate("a flush of its store failed");
        }
        status
    }

    pub(super) fn write(&self, bio: Bio) {
        let layers = self.layers(bio.extent());
        match layers.as_slice() {
            [(_, Some(place))] if !bio.flags().fua => self.cow.submit(bio.remap(*place)),
            _ => self.jobs.start((self.this.upgrade().expect("whoever sends a request holds it"), bio)),
        }
    }

    pub(super) fn in_steps(&self, bio: Bio) {
        self.jobs.start((self.this.upgrade().expect("whoever sends a request holds it"), bio));
    }

    /// What is done in several steps.
    pub(super) async fn later(self: Rc<Self>, bio: Bio) {
        match bio.op() {
            Op::Discard => return self.discard_later(bio).await,
            Op::Flush => {
                let status = self.flush().await;
                return bio.end(status);
            }
            _ => {}
        }
        while self.copies_enough(bio.extent()) {
            self.settled.after(self.settled.count(), None).await;
        }
        if self.condition.get() != Condition::Active {
            return bio.end(Status::IoError);
        }
        let status = self.write_later(&bio).await;
        if bio.flags().fua && !status.is_ok() {
            self.invalidate("a write that was to be durable at once failed");
        }
        bio.end(status);
    }

    async fn write_later(&self, bio: &Bio) -> Status {
        let extent = bio.extent();
        let lacking = self.claim_for(extent);
        if lacking.full {
            self.give_up(lacking.chunks());
            self.overflow();
            return Status::IoError;
        }
        let sent = self.fill(bio, &lacking).await;
        if !sent.is_ok() {
            self.invalidate("a write to its store failed");
            return Status::IoError;
        }
        while self.is_pending(self.chunks(extent)) {
            self.settled.after(self.settled.count(), None).await;
        }
        let covered = |part: Extent| {
            let inside = |run: &Run| self.run_extent(run).contains(part);
            lacking.whole.iter().any(inside)
        };
        // What a commit took is durable already.
        let mut written = self.kind == StoreKind::Transient;
        let (mut at, end) = (extent.start.0, extent.end().0);
        while at < end {
            // Chunk by chunk as long as payload that is already there lies between; runs else.
            let next = ((at / self.chunk() + 1) * self.chunk()).min(end);
            let part = Extent::new(Sector(at), SectorCount(next - at));
            at = next;
            if covered(part) {
                continue;
            }
            let Some(place) = self.place_of(part.start) else { return bio.parts_done().await.and(Status::IoError) };
            let skip = part.start.since(extent.start).expect("inside").to_bytes();
            self.cow.submit(plain(bio.part(skip, part.count.to_bytes())).remap(place));
            written = true;
        }
        let mut status = bio.parts_done().await;
        if bio.flags().fua && written && status.is_ok() {
            status = self.store.flush().await;
        }
        status.and(if self.is_invalid() { Status::IoError } else { Status::Ok })
    }

    /// Where a sector is kept.
    fn place_of(&self, sector: Sector) -> Option<Sector> {
        let chunk = self.chunk();
        let new = self.map.borrow().get(sector.0 / chunk)?;
        Some(Sector(new * chunk + sector.0 % chunk))
    }

    /// The sectors of the origin that a run stands for, as far as the origin reaches.
    fn run_extent(&self, run: &Run) -> Extent {
        let chunk = self.chunk();
        let end = ((run.old + run.count) * chunk).min(self.origin.device().sectors().0);
        Extent::new(Sector(run.old * chunk), SectorCount(end - run.old * chunk))
    }

    /// Takes the chunks of a write that are lacking and not pending; none of the store where there is no room
    /// for all.
    fn claim_for(&self, extent: Extent) -> Lacking {
        let (mut lacking, before) = (Lacking::default(), self.store.mark());
        for old in self.chunks(extent) {
            if self.map.borrow().get(old).is_some() || self.pending.borrow().contains(&old) {
                continue;
            }
            let Some(new) = self.store.allocate() else {
                lacking.full = true;
                self.store.take_back(before);
                return lacking;
            };
            self.pending.borrow_mut().insert(old);
            let one = Run { snapshot: self.this.upgrade().expect("a job holds it"), old, new, count: 1 };
            let runs = if extent.contains(self.run_extent(&one)) { &mut lacking.whole } else { &mut lacking.part };
            self.push_run(runs, old, new);
        }
        lacking
    }

    /// Fills the places that a write got: its payload into whole chunks, copies into the others.
    async fn fill(&self, bio: &Bio, lacking: &Lacking) -> Status {
        let start = bio.sector();
        for run in &lacking.whole {
            let extent = self.run_extent(run);
            let skip = extent.start.since(start).expect("inside").to_bytes();
            let place = Sector(run.new * self.chunk());
            self.cow.submit(plain(bio.part(skip, extent.count.to_bytes())).remap(place));
        }
        if !lacking.part.is_empty() {
            copy_runs(self.origin.engine(), self.origin.device(), &lacking.part).await;
        }
        let status = bio.parts_done().await;
        if status.is_ok() {
            self.copied(lacking.whole.iter().flat_map(Run::exceptions), false);
        }
        status
    }

    /// Zeroes what is kept whole, discards what is kept in part, and leaves alone what is not kept.
    async fn discard_later(&self, bio: Bio) {
        let extent = bio.extent();
        while self.is_pending(self.chunks(extent)) {
            self.settled.after(self.settled.count(), None).await;
        }
        if self.condition.get() != Condition::Active {
            return bio.end(Status::IoError);
        }
        let chunk = self.chunk();
        let mut status = Status::Ok;
        for (part, place) in self.layers(extent) {
            let Some(place) = place else { continue };
            let (start, end) = (part.start.0.next_multiple_of(chunk), part.end().0 - part.end().0 % chunk);
            let behind = place.0 + (end.max(part.start.0) - part.start.0);
            if start < end {
                let whole = Extent::new(Sector(place.0 + (start - part.start.0)), SectorCount(end - start));
                status = status.and(self.zero(whole).await);
                self.discard_below(&bio, place.0, start - part.start.0);
                self.discard_below(&bio, behind, part.end().0 - end);
            } else {
                self.discard_below(&bio, place.0, part.count.0);
            }
        }
        if self.discards == Discards::ZeroCowAndPassDown && self.origin.device().limits().discard != Ability::No {
            self.origin.wait_more();
            self.origin.save(extent, Some(self)).await;
            self.origin.device().submit(bio.part(0, bio.bytes()));
            self.origin.wait_less();
        }
        status = bio.parts_done().await.and(status);
        bio.end(status);
    }

    /// Passes `count` sectors of a discard on to the store's device, if it takes discards.
    fn discard_below(&self, bio: &Bio, place: u64, count: u64) {
        if count > 0 && self.cow.limits().discard != Ability::No {
            self.cow.submit(bio.part(0, count * 512).remap(Sector(place)));
        }
    }

    /// Makes `extent` of the store's device zeroes.
    async fn zero(&self, extent: Extent) -> Status {
        let leg = Leg::new(Rc::clone(&self.cow), extent.start);
        let how = How { zeroes: Zeroes::Keep, ..How::default() };
        self.origin.engine().zero(&[leg], extent.count, &how).await.status()
    }
}

/// A part of a write that is to be durable at once, without that: one flush does it for all parts, and nobody flushes
/// the store's device beside [`Snapshot`]'s own flushes.
fn plain(part: Bio) -> Bio {
    let flags = Flags { fua: false, ..part.flags() };
    part.with(flags)
}

impl End for Snapshot {
    /// A read that went to the origin ended (I2).
    fn bio_ended(&self, part: Bio, token: u64) {
        let (bio, slot) = self.parked.take(token);
        let status = part.status();
        drop(part);
        self.origin.reads.end(slot);
        bio.end(if self.is_invalid() { Status::IoError } else { status });
    }
}
