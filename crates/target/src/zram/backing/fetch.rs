//! Reads of pages that were written back.
//!
//! ```text
//!   read     what is in memory or was read ahead is copied at once; the rest by one request for each
//!            run of blocks, all at the same time, with what the reader will ask for next
//!   change   the pages that it covers in part are brought back to memory first (room.rs)
//! ```
//!
//! 1. Blocks are held from the look into the table to the end of the read, so what arrives is the
//!    content that the page had then, whatever became of the page meanwhile.
//! 2. A page is brought back only if it is still where it was: who wrote it meanwhile wins. One that
//!    was read comes back only within the memory limit and below the mark at which pages are spilled.

use std::rc::Rc;

use forebay_block::bio::Call;
use forebay_block::{Bio, Sector, bvec, call};
use forebay_reactor::Buffer;

use super::super::memory::PAGE;
use super::super::pages::{PageError, Pages};
use super::super::table::Slot;
use super::super::{PAGE_BYTES, Stretch, Stretches, Zram};
use super::blocks::{Run, Spot};
use super::{Backing, checksum};

/// Most blocks that one request fetches.
const FETCH_MAX: u64 = 256;

/// A page that is away, and where its content goes.
struct Wanted {
    slot: Slot,
    stretch: Stretch,
}

impl Wanted {
    fn spot(&self) -> Spot {
        self.slot.away().expect("only pages that are away are wanted").0
    }
}

/// Pages in consecutive blocks.
struct Fetch {
    first: u64,
    count: u64,
    wanted: Vec<Wanted>,
    /// More is fetched than is wanted now.
    ahead: bool,
}

impl Fetch {
    /// As few as reach for all that is wanted, each of blocks in a row.
    fn all(mut wanted: Vec<Wanted>) -> Vec<Self> {
        wanted.sort_by_key(Wanted::spot);
        let mut fetches: Vec<Self> = Vec::new();
        for wanted in wanted {
            let (first, last) = wanted.spot().blocks(wanted.slot.bytes()).into_inner();
            match fetches.last_mut() {
                Some(fetch) if first <= fetch.first + fetch.count && last - fetch.first < FETCH_MAX => {
                    fetch.count = last + 1 - fetch.first;
                    fetch.wanted.push(wanted);
                }
                _ => fetches.push(Self { first, count: last + 1 - first, wanted: vec![wanted], ahead: false }),
            }
        }
        fetches
    }

    /// Fetches these pages too, as far as they follow on the device.
    fn extend(&mut self, behind: impl Iterator<Item = Slot>) {
        for slot in behind {
            let Some((at, _)) = slot.away() else { return };
            let (first, last) = at.blocks(slot.bytes()).into_inner();
            if first < self.first || first > self.first + self.count || last - self.first >= FETCH_MAX {
                return;
            }
            self.count = self.count.max(last + 1 - self.first);
            self.ahead = true;
        }
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.count).expect("a fetch is small") * PAGE
    }

    /// What is stored of a page in what came.
    fn stored<'a>(&self, wanted: &Wanted, content: &'a [u8]) -> &'a [u8] {
        let from = wanted.spot().bytes_from(self.first);
        &content[from..from + wanted.slot.bytes()]
    }
}

impl Zram {
    /// Serves a read of which a part is away.
    pub(in super::super) async fn read_away(self: Rc<Self>, bio: Bio) {
        let (fetches, mut done) = self.read_present(&bio);
        let sent: Vec<_> = fetches.into_iter().map(|fetch| self.send(fetch)).collect();
        for (fetch, mut buffer, call) in sent {
            let status = call.await.status();
            let came = if status.is_ok() { self.take_in(&bio, &fetch, buffer.bytes_mut()) } else { Err(PageError::Device) };
            if status.is_ok() && fetch.ahead {
                let run = Run { start: fetch.first, count: fetch.count };
                self.backing().ahead.borrow_mut().keep(run, buffer);
            }
            self.let_go(&fetch);
            done = done.and(came);
        }
        if self.backing().promote {
            self.note_growth();
        }
        self.end(bio, done);
    }

    fn backing(&self) -> &Backing {
        self.backing.as_ref().expect("a page is away only with a backing device")
    }

    /// Copies what is in memory or was read ahead, and lists the rest, whose blocks are held from here on.
    fn read_present(&self, bio: &Bio) -> (Vec<Fetch>, Result<(), PageError>) {
        let segments = bio.segments().expect("a read has a payload");
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        let range = start / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let window = self.backing().ahead.borrow_mut().follow(&range);
        let mut wanted = Vec::new();
        let mut done = Ok(());
        for stretch in Stretches::of(bio) {
            let slot = pages.table.get(stretch.page);
            if slot.away().is_some() {
                let one = Wanted { slot, stretch };
                if !self.read_kept(&mut pages, bio, &one) {
                    wanted.push(one);
                }
                continue;
            }
            match pages.read(stretch.page, now_s) {
                Ok(()) => _ = bvec::copy_in(segments, stretch.iter, &pages.page[stretch.inside]),
                Err(error) => done = Err(error),
            }
        }
        let mut fetches = Fetch::all(wanted);
        if let Some(last) = fetches.last_mut() {
            let behind = (range.end..self.page_count()).take(usize::try_from(window).expect("a window is small"));
            last.extend(behind.map(|page| pages.table.get(page)));
        }
        drop(pages);
        for fetch in &fetches {
            self.hold(fetch);
        }
        (fetches, done)
    }

    /// Serves what is wanted from what was read ahead, if it is there and right.
    fn read_kept(&self, pages: &mut Pages, bio: &Bio, wanted: &Wanted) -> bool {
        let backing = self.backing();
        let mut ahead = backing.ahead.borrow_mut();
        let (at, expected) = wanted.slot.away().expect("only pages that are away are wanted");
        let stored = ahead.find(at, wanted.slot.bytes());
        let Some(stored) = stored.filter(|stored| checksum(wanted.stretch.page, at, stored) == expected) else { return false };
        backing.reads.set(backing.reads.get() + 1);
        self.deliver(pages, bio, wanted, stored).is_ok()
    }

    fn send(&self, fetch: Fetch) -> (Fetch, Buffer, Call) {
        let backing = self.backing();
        let buffer = self.pool.take(fetch.bytes());
        let length = u32::try_from(fetch.bytes()).expect("a fetch is small");
        let bio = Bio::read(block_sector(fetch.first), Rc::clone(buffer.segments()), 0, length);
        backing.reads.set(backing.reads.get() + fetch.wanted.len() as u64);
        backing.read_requests.set(backing.read_requests.get() + 1);
        let call = call(&*backing.target, bio);
        (fetch, buffer, call)
    }

    /// Checks what came, and copies it to where it is wanted.
    fn take_in(&self, bio: &Bio, fetch: &Fetch, content: &[u8]) -> Result<(), PageError> {
        let mut pages = self.pages.borrow_mut();
        for wanted in &fetch.wanted {
            let stored = fetch.stored(wanted, content);
            self.check(wanted.stretch.page, wanted.slot, stored)?;
            self.deliver(&mut pages, bio, wanted, stored)?;
        }
        Ok(())
    }

    /// Copies what is stored of a page to where it is wanted, and back into memory where that is asked for.
    fn deliver(&self, pages: &mut Pages, bio: &Bio, wanted: &Wanted, stored: &[u8]) -> Result<(), PageError> {
        let segments = bio.segments().expect("a read has a payload");
        pages.expand(stored, wanted.slot.priority())?;
        bvec::copy_in(segments, wanted.stretch.iter, &pages.page[wanted.stretch.inside.clone()]);
        let backing = self.backing();
        // Nothing comes back because the disk is being saved.
        if backing.promote && self.door.is_open() {
            let mark = self.policy.as_ref().and_then(|policy| policy.high(pages.frames_limit)).unwrap_or(u64::MAX);
            let back = pages.frames_used() < mark && pages.promote(wanted.stretch.page, wanted.slot, stored, self.now_s());
            backing.promoted.set(backing.promoted.get() + u64::from(back));
        }
        Ok(())
    }

    /// Whether what came is what `page` was.
    fn check(&self, page: u64, slot: Slot, stored: &[u8]) -> Result<(), PageError> {
        let (at, expected) = slot.away().expect("only pages that are away are checked");
        if checksum(page, at, stored) == expected {
            return Ok(());
        }
        let name = self.backing.as_ref().map_or("", |backing: &Backing| &backing.name);
        tracing::error!("{name}: block {} does not hold what page {page} was: the read fails", at.block());
        Err(PageError::Corrupt)
    }

    fn let_go(&self, fetch: &Fetch) {
        let mut pages = self.pages.borrow_mut();
        let blocks = pages.blocks.as_mut().expect("a page is away only with a backing device");
        (fetch.first..).take(fetch.bytes() / PAGE).for_each(|block| blocks.let_go(block));
    }

    /// Reads a page and keeps it in memory, if it is still away then.
    pub(in super::super) async fn bring_back(&self, page: u64) -> Result<(), PageError> {
        let slot = self.pages.borrow().table.get(page);
        if slot.away().is_none() {
            return Ok(());
        }
        let fetch = Fetch::all(vec![Wanted { slot, stretch: Stretches::whole(page) }]).swap_remove(0);
        self.hold(&fetch);
        let (fetch, mut buffer, call) = self.send(fetch);
        let status = call.await.status();
        let done = if status.is_ok() { self.keep(&fetch, buffer.bytes_mut()) } else { Err(PageError::Device) };
        self.let_go(&fetch);
        done
    }

    /// Puts back into memory what came, unless the page is something else by now.
    fn keep(&self, fetch: &Fetch, content: &[u8]) -> Result<(), PageError> {
        let now_s = self.now_s();
        for wanted in &fetch.wanted {
            let (page, stored) = (wanted.stretch.page, fetch.stored(wanted, content));
            self.check(page, wanted.slot, stored)?;
            let mut pages = self.pages.borrow_mut();
            if pages.table.get(page) == wanted.slot {
                pages.expand(stored, wanted.slot.priority())?;
                pages.write(page, now_s)?;
            }
        }
        Ok(())
    }

    fn hold(&self, fetch: &Fetch) {
        let mut pages = self.pages.borrow_mut();
        let blocks = pages.blocks.as_mut().expect("a page is away only with a backing device");
        (fetch.first..).take(fetch.bytes() / PAGE).for_each(|block| blocks.hold(block));
    }
}

/// Where a block begins.
pub(super) fn block_sector(block: u64) -> Sector {
    Sector(block * (PAGE_BYTES / 512))
}
