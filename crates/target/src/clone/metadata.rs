//! The metadata device of a clone: read when it opens, written page by page, each in two places.
//!
//! ```text
//!   open: superblocks ─▶ fresh?  ─ yes ─▶ all pages, flush, superblocks, flush
//!                          │ no
//!                          ▼
//!         pages, both copies ─▶ neither intact? ─ yes ─▶ refused, nothing written
//!                          │ no
//!                          ▼
//!         flush, so that what was read is durable ─▶ the copy that does not count is written again, flush
//! ```
//!
//! 1. Of a page the first copy is written only when the second holds the state before, durably, and
//!    the second only when the first is durable.
//! 2. A page that cannot be read is no damaged one: it may hold the newer state, and nobody knows. It is
//!    an error. Of the superblocks, which never change, one that cannot be read does not matter.

use std::cell::Cell;
use std::rc::Rc;

use forebay_block::replant::{Bug, planted};
use forebay_block::{Bio, Sector, SectorCount, Status, Target, call, flush};
use forebay_reactor::{Buffer, BufferPool};

use super::admin::OpenError;
use super::format::{Geometry, Media, PAGE_BYTES, Page, Place};
use super::regions::Regions;

/// Pages read or written with one buffer: 1 MiB.
const PAGES_AT_ONCE: u32 = 256;
/// Bytes of a page, as a request counts them.
const PAGE: u32 = 4096;

const _: () = assert!(PAGE as usize == PAGE_BYTES);

/// What a block that cannot be read is filled with.
const UNREADABLE: u8 = 0xFF;

/// The metadata device of an open clone.
pub(super) struct Metadata {
    target: Rc<dyn Target>,
    pool: BufferPool,
    geometry: Geometry,
    /// Number of the commit under way, or of the last.
    commit: Cell<u64>,
}

impl Metadata {
    /// Opens the metadata of a clone, or begins it where there is none.
    pub(super) async fn open(
        target: Rc<dyn Target>,
        pool: &BufferPool,
        geometry: Geometry,
    ) -> Result<(Self, Regions), OpenError> {
        let this = Self { target, pool: pool.clone(), geometry, commit: Cell::new(1) };
        let mut regions = Regions::new(geometry.regions());
        let (mut blocks, bad) = this.read(Geometry::superblock(Place::First), 2).await;
        if bad == 2 {
            return Err(OpenError::Device { what: "reading the superblocks" });
        }
        let (first, second) = blocks.bytes_mut()[..2 * PAGE_BYTES].split_at(PAGE_BYTES);
        match Media::read(first, second, &geometry)? {
            Media::Fresh => this.begin().await?,
            Media::Formatted { mend } => {
                let mended = this.load(&mut regions).await?;
                if mend {
                    this.write_superblocks().await?;
                }
                if mend || mended {
                    done("a flush of the metadata", this.flush().await)?;
                }
            }
        }
        Ok((this, regions))
    }

    /// Blocks of 4096 bytes in use, and of the device.
    pub(super) fn blocks(&self) -> (u64, u64) {
        (self.geometry.blocks(), self.target.sectors().to_bytes() / u64::from(PAGE))
    }

    /// Reads so many blocks, and tells how many cannot be read: they have a content that is neither a
    /// page nor a superblock, nor fresh.
    async fn read(&self, sector: Sector, blocks: u32) -> (Buffer, usize) {
        let bytes = blocks * PAGE;
        let mut buffer = self.pool.take(bytes as usize);
        let whole = Bio::read(sector, Rc::clone(buffer.segments()), 0, bytes);
        if call(&*self.target, whole).await.status().is_ok() {
            return (buffer, 0);
        }
        let mut bad = Vec::new();
        for block in 0..blocks {
            let at = sector + SectorCount(u64::from(block * PAGE / 512));
            let one = Bio::read(at, Rc::clone(buffer.segments()), block * PAGE, PAGE);
            if !call(&*self.target, one).await.status().is_ok() {
                tracing::warn!("clone: block {} of the metadata cannot be read", at.to_bytes() / u64::from(PAGE));
                bad.push((block * PAGE) as usize);
            }
        }
        for &at in &bad {
            buffer.bytes_mut()[at..at + PAGE_BYTES].fill(UNREADABLE);
        }
        (buffer, bad.len())
    }

    /// Reads pages from one of their places (2).
    async fn read_pages(&self, place: Place, first: u32, count: u32) -> Result<Buffer, OpenError> {
        match self.read(self.geometry.page(place, first), count).await {
            (pages, 0) => Ok(pages),
            _ => Err(OpenError::Unreadable),
        }
    }

    /// Writes a fresh device: the superblocks only when all pages are durable.
    async fn begin(&self) -> Result<(), OpenError> {
        let blank: Vec<u64> = Vec::new();
        let mut first = 0;
        while first < self.geometry.pages() {
            let end = (first + PAGES_AT_ONCE).min(self.geometry.pages());
            let pages: Vec<_> = (first..end).map(|page| (page, blank.clone())).collect();
            for place in Place::ALL {
                done("writing new metadata", self.write(&pages, place).await)?;
            }
            first = end;
        }
        done("a flush of new metadata", self.flush().await)?;
        self.write_superblocks().await?;
        done("a flush of new metadata", self.flush().await)
    }

    async fn write_superblocks(&self) -> Result<(), OpenError> {
        let mut buffer = self.pool.take(PAGE_BYTES);
        buffer.bytes_mut()[..PAGE_BYTES].fill(0);
        self.geometry.encode(&mut buffer.bytes_mut()[..PAGE_BYTES]);
        for place in Place::ALL {
            let write = Bio::write(Geometry::superblock(place), Rc::clone(buffer.segments()), 0, PAGE);
            done("writing a superblock", call(&*self.target, write).await.status())?;
        }
        Ok(())
    }

    /// Reads all pages and mends the copies that do not count; whether there were any.
    async fn load(&self, regions: &mut Regions) -> Result<bool, OpenError> {
        let mut first = 0;
        let mut mend = Vec::new();
        while first < self.geometry.pages() {
            let count = (self.geometry.pages() - first).min(PAGES_AT_ONCE);
            let mut copies =
                [self.read_pages(Place::First, first, count).await?, self.read_pages(Place::Second, first, count).await?];
            for page in first..first + count {
                let at = ((page - first) * PAGE) as usize;
                let [one, other] =
                    copies.each_mut().map(|copy| Page::decode(&copy.bytes_mut()[at..at + PAGE_BYTES], page, &self.geometry));
                let (found, stale) = Page::choose(one, other, page)?;
                regions.load(page, &found.bits);
                self.commit.set(self.commit.get().max(found.commit));
                mend.extend(stale.map(|place| (page, place, found)));
            }
            first += count;
        }
        done("a flush of the metadata", self.flush().await)?;
        for (page, place, found) in &mend {
            done("mending the metadata", self.write_as(&[(*page, &found.bits)], *place, found.commit).await)?;
        }
        Ok(!mend.is_empty())
    }

    /// Begins a commit: pages are written with a new number from here on.
    pub(super) fn next_commit(&self) {
        self.commit.set(self.commit.get() + 1);
    }

    /// Writes pages, with their bits, to one of their two places, and makes them durable.
    pub(super) async fn write_durably(&self, pages: &[(u32, Vec<u64>)], place: Place) -> Status {
        let mut status = self.write(pages, place).await;
        if planted(Bug::M9LiveSlotOverwritten) {
            status = status.and(self.write(pages, Place::Second).await);
        }
        if status.is_ok() { self.flush().await } else { status }
    }

    async fn write(&self, pages: &[(u32, Vec<u64>)], place: Place) -> Status {
        for pages in pages.chunks(PAGES_AT_ONCE as usize) {
            let pages: Vec<(u32, &Vec<u64>)> = pages.iter().map(|(page, bits)| (*page, bits)).collect();
            let status = self.write_as(&pages, place, self.commit.get()).await;
            if !status.is_ok() {
                return status;
            }
        }
        Status::Ok
    }

    async fn write_as(&self, pages: &[(u32, &Vec<u64>)], place: Place, commit: u64) -> Status {
        let mut buffer = self.pool.take(pages.len() * PAGE_BYTES);
        let blocks = buffer.bytes_mut().chunks_exact_mut(PAGE_BYTES);
        for ((page, bits), block) in pages.iter().zip(blocks) {
            block.fill(0);
            Page::encode(*page, commit, bits, block);
        }
        let bytes = PAGE * u32::try_from(pages.len()).expect("at most PAGES_AT_ONCE");
        let gather = Bio::write(Sector(0), Rc::clone(buffer.segments()), 0, bytes);
        for (at, (page, _)) in (0_u64..).zip(pages) {
            let part = gather.part(at * u64::from(PAGE), u64::from(PAGE));
            self.target.submit(part.remap(self.geometry.page(place, *page)));
        }
        let status = gather.parts_done().await;
        gather.end(status);
        status
    }

    /// Makes durable what was written.
    async fn flush(&self) -> Status {
        flush(&*self.target).await.status()
    }
}

fn done(what: &'static str, status: Status) -> Result<(), OpenError> {
    if status.is_ok() { Ok(()) } else { Err(OpenError::Device { what }) }
}

#[cfg(test)]
mod tests;
