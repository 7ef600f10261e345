//! Reads of pages that were written back, and changes to parts of them.
//!
//! ```text
//!   read     what is in memory is copied at once; the rest by one request for each run of blocks, all
//!            at the same time
//!   change   the pages that it covers in part are brought back to memory first
//! ```
//!
//! 1. Blocks are held from the look into the table to the end of the read, so what arrives is the
//!    content that the page had then, whatever became of the page meanwhile.
//! 2. A page is brought back only if it is still where it was: who wrote it meanwhile wins.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::bio::Call;
use forebay_block::{Bio, Op, Sector, bvec, call};
use forebay_reactor::Buffer;

use super::super::memory::PAGE;
use super::super::pages::PageError;
use super::super::table::Slot;
use super::super::{PAGE_BYTES, Stretch, Stretches, Zram};
use super::blocks::Spot;
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
                _ => fetches.push(Self { first, count: last + 1 - first, wanted: vec![wanted] }),
            }
        }
        fetches
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
            self.let_go(&fetch);
            done = done.and(came);
        }
        self.end(bio, done);
    }

    /// Copies what is in memory, and lists the rest, whose blocks are held from here on.
    fn read_present(&self, bio: &Bio) -> (Vec<Fetch>, Result<(), PageError>) {
        let segments = bio.segments().expect("a read has a payload");
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        let mut wanted = Vec::new();
        let mut done = Ok(());
        for stretch in Stretches::of(bio) {
            let slot = pages.table.get(stretch.page);
            if slot.away().is_some() {
                wanted.push(Wanted { slot, stretch });
                continue;
            }
            match pages.read(stretch.page, now_s) {
                Ok(()) => _ = bvec::copy_in(segments, stretch.iter, &pages.page[stretch.inside]),
                Err(error) => done = Err(error),
            }
        }
        drop(pages);
        let fetches = Fetch::all(wanted);
        for fetch in &fetches {
            self.hold(fetch);
        }
        (fetches, done)
    }

    fn send(&self, fetch: Fetch) -> (Fetch, Buffer, Call) {
        let backing = self.backing.as_ref().expect("a page is away only with a backing device");
        let buffer = self.pool.take(fetch.bytes());
        let length = u32::try_from(fetch.bytes()).expect("a fetch is small");
        let bio = Bio::read(block_sector(fetch.first), Rc::clone(buffer.segments()), 0, length);
        backing.reads.set(backing.reads.get() + fetch.wanted.len() as u64);
        let call = call(&*backing.target, bio);
        (fetch, buffer, call)
    }

    /// Checks what came, and copies it to where it is wanted.
    fn take_in(&self, bio: &Bio, fetch: &Fetch, content: &[u8]) -> Result<(), PageError> {
        let segments = bio.segments().expect("a read has a payload");
        let mut pages = self.pages.borrow_mut();
        for wanted in &fetch.wanted {
            let stored = fetch.stored(wanted, content);
            self.check(wanted.stretch.page, wanted.slot, stored)?;
            pages.expand(stored, wanted.slot.priority())?;
            bvec::copy_in(segments, wanted.stretch.iter, &pages.page[wanted.stretch.inside.clone()]);
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

    /// Serves a write, or zeroes, over pages that are away in part.
    pub(in super::super) async fn change_away(self: Rc<Self>, bio: Bio) {
        let mut done = Ok(());
        while let (Ok(()), Some(page)) = (done, self.edge_away(&bio)) {
            done = self.bring_back(page).await;
        }
        if self.door.holds(bio.op()) {
            return self.door.park(bio);
        }
        // Nothing waits between the last look and the change.
        let done = done.and_then(|()| self.serve(&bio));
        self.end(bio, done);
    }

    /// A page that is away and that `bio` changes in part.
    pub(in super::super) fn edge_away(&self, bio: &Bio) -> Option<u64> {
        if !matches!(bio.op(), Op::Write | Op::WriteZeroes) {
            return None;
        }
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        let edges = [start, end].into_iter().filter(|at| !at.is_multiple_of(PAGE_BYTES)).map(|at| at / PAGE_BYTES);
        let pages = self.pages.borrow();
        edges.into_iter().find(|&page| pages.any_away(Range { start: page, end: page + 1 }))
    }

    /// Reads a page and keeps it in memory, if it is still away then.
    async fn bring_back(&self, page: u64) -> Result<(), PageError> {
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
