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
use super::super::{PAGE_BYTES, Stretch, Stretches, Zram};
use super::{Backing, checksum};

/// Most pages that one request fetches.
const FETCH_MAX: usize = 64;

/// A page that is away, and where its content goes.
struct Wanted {
    page: u64,
    checksum: u64,
    stretch: Stretch,
}

/// Pages in consecutive blocks.
struct Fetch {
    block: u64,
    wanted: Vec<Wanted>,
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
        let mut fetches: Vec<Fetch> = Vec::new();
        let mut done = Ok(());
        for stretch in Stretches::of(bio) {
            let page = stretch.page;
            if let Some((block, checksum)) = pages.table.get(page).block() {
                pages.blocks.as_mut().expect("a page is away only with a backing device").hold(block);
                let wanted = Wanted { page, checksum, stretch };
                match fetches.last_mut() {
                    Some(last) if last.block + last.wanted.len() as u64 == block && last.wanted.len() < FETCH_MAX => {
                        last.wanted.push(wanted);
                    }
                    _ => fetches.push(Fetch { block, wanted: vec![wanted] }),
                }
                continue;
            }
            match pages.read(page, now_s) {
                Ok(()) => _ = bvec::copy_in(segments, stretch.iter, &pages.page[stretch.inside]),
                Err(error) => done = Err(error),
            }
        }
        (fetches, done)
    }

    fn send(&self, fetch: Fetch) -> (Fetch, Buffer, Call) {
        let backing = self.backing.as_ref().expect("a page is away only with a backing device");
        let bytes = fetch.wanted.len() * PAGE;
        let buffer = self.pool.take(bytes);
        let length = u32::try_from(bytes).expect("a fetch is small");
        let bio = Bio::read(block_sector(fetch.block), Rc::clone(buffer.segments()), 0, length);
        backing.reads.set(backing.reads.get() + fetch.wanted.len() as u64);
        let call = call(&*backing.target, bio);
        (fetch, buffer, call)
    }

    /// Checks what came, and copies it to where it is wanted.
    fn take_in(&self, bio: &Bio, fetch: &Fetch, content: &[u8]) -> Result<(), PageError> {
        let segments = bio.segments().expect("a read has a payload");
        let (content, _) = content.as_chunks::<PAGE>();
        for ((wanted, content), block) in fetch.wanted.iter().zip(content).zip(fetch.block..) {
            self.check(wanted.page, block, wanted.checksum, content)?;
            bvec::copy_in(segments, wanted.stretch.iter, &content[wanted.stretch.inside.clone()]);
        }
        Ok(())
    }

    /// Whether what came from `block` is what `page` was.
    fn check(&self, page: u64, block: u64, expected: u64, content: &[u8; PAGE]) -> Result<(), PageError> {
        if checksum(page, block, content) == expected {
            return Ok(());
        }
        let name = self.backing.as_ref().map_or("", |backing: &Backing| &backing.name);
        tracing::error!("{name}: block {block} does not hold what page {page} was: the read fails");
        Err(PageError::Corrupt)
    }

    fn let_go(&self, fetch: &Fetch) {
        let mut pages = self.pages.borrow_mut();
        let blocks = pages.blocks.as_mut().expect("a page is away only with a backing device");
        (fetch.block..).take(fetch.wanted.len()).for_each(|block| blocks.let_go(block));
    }

    /// Serves a write, or zeroes, over pages that are away in part.
    pub(in super::super) async fn change_away(self: Rc<Self>, bio: Bio) {
        let mut done = Ok(());
        while let (Ok(()), Some(page)) = (done, self.edge_away(&bio)) {
            done = self.bring_back(page).await;
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
        let Some((block, expected)) = slot.block() else { return Ok(()) };
        self.pages.borrow_mut().blocks.as_mut().expect("a page is away only with a backing device").hold(block);
        let stretch = Stretches::whole(page);
        let (fetch, mut buffer, call) = self.send(Fetch { block, wanted: vec![Wanted { page, checksum: expected, stretch }] });
        let status = call.await.status();
        let done = self.keep(slot, page, status.is_ok().then(|| &*buffer.bytes_mut()));
        self.let_go(&fetch);
        done
    }

    fn keep(&self, slot: super::super::table::Slot, page: u64, content: Option<&[u8]>) -> Result<(), PageError> {
        let content = content.and_then(|content| content.first_chunk::<PAGE>()).ok_or(PageError::Device)?;
        let (block, expected) = slot.block().expect("it was away");
        self.check(page, block, expected, content)?;
        let now_s = self.now_s();
        let mut pages = self.pages.borrow_mut();
        if pages.table.get(page) != slot {
            return Ok(());
        }
        pages.page.copy_from_slice(content);
        pages.write(page, now_s)
    }
}

/// Where a block begins.
pub(super) fn block_sector(block: u64) -> Sector {
    Sector(block * (PAGE_BYTES / 512))
}
