//! The compressed RAM disk: a block device whose pages are kept in memory, compressed.
//!
//! ```text
//!   bio ── page by page ──▶ pages.rs ──▶ codec.rs          how a page becomes smaller
//!                              │    └──▶ memory/           where it is kept
//!                              └───────▶ table.rs          which page is where
//!       large ─▶ crew/                                     compressed on several threads
//!   command ─▶ attributes.rs ─▶ backing/                   pages leave memory, and come back
//!                           └─▶ recompress/                objects become smaller
//!   save, restore ────────────▶ image/                     everything, to a file and back
//! ```
//!
//! What comes before: the table row that the disk serves (`block/target.rs`). What comes after: the
//! backing device, where there is one. A request over pages in memory is served where it is submitted,
//! and ends at once; one over pages that were written back is a job, and so is a large write where there
//! are packers, and a write that waits until a rule has made room.
//!
//! 1. Pages are 4096 bytes. A request that covers a page in part reads it, changes it, and writes it
//!    whole; nothing can come between, since the page is in memory then and no step waits. Ranges are
//!    locked only under large writes that several threads compress.
//! 2. A page that was never written, or was discarded, reads as zeroes and takes no memory.
//! 3. Nothing outlives the process but what is saved to an image; flushes have nothing to do.
//!
//! Errors of bios: [`Status::NoSpace`] for writes over the memory limit, which leave what was there;
//! [`Status::IoError`] outside of the disk, and for pages that the backing device lost.
//!
//! Source: facts of the kernel's `drivers/block/zram`, Linux 6.12.

mod attributes;
mod backing;
mod codec;
mod crew;
pub mod image;
mod memory;
pub mod options;
mod pages;
mod recompress;
mod status;
mod table;

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use forebay_block::allocation::{Allocation, Run};
use forebay_block::{Ability, Bio, BvecIter, Extent, Limits, Op, Sector, SectorCount, Segments, Status, Target, bvec};
use forebay_reactor::{BufferPool, JobPool, Reactor};

pub use self::attributes::AttributeError;
use self::backing::blocks::{Blocks, Run as BlockRun};
use self::backing::{BATCHES_MAX, Backing, Batch, Policy};
pub use self::backing::{BackingOptions, BackingSetup, Rules, WritebackError};
use self::codec::Codecs;
pub use self::codec::{Algorithm, Codec, CodecError, CodecParams, Corrupt, PACKED_MAX, read_dictionary};
use self::crew::Wide;
pub use self::crew::{Hand, PackerThreads, Packers, Parcel};
pub use self::memory::HUGE_BYTES;
use self::memory::PAGE;
use self::pages::{PageError, Pages};
use self::recompress::Recompression;
pub use self::recompress::{RecompressError, RecompressSetup};
pub use self::status::ZramStatus;

/// Bytes of a page.
const PAGE_BYTES: u64 = PAGE as u64;
/// Sectors of a page.
const PAGE_SECTORS: u64 = PAGE_BYTES / 512;
/// Most pages of a disk: 16 TiB.
const PAGES_MAX: u64 = 1 << 32;
/// Requests over pages that are away, served at once; more wait in line.
const JOBS_MAX: usize = 128;

/// What a disk is made of.
#[derive(Clone, Default)]
pub struct Setup {
    /// Its size: whole pages, at most 16 TiB.
    pub sectors: SectorCount,
    /// How pages are compressed.
    pub codec: CodecParams,
    /// Most memory for objects, bytes, rounded up to a page; 0 for any.
    pub mem_limit: u64,
    /// Where pages can be written back to.
    pub backing: Option<BackingSetup>,
    /// How pages that stay become smaller.
    pub recompression: RecompressSetup,
    /// Who compresses large writes beside the thread of the disk; nobody where `None`.
    pub packers: Option<Rc<dyn Packers>>,
}

impl Setup {
    /// All codecs, by priority.
    fn codecs(&self) -> Vec<CodecParams> {
        let seconds = self.recompression.codecs.iter().take(3);
        std::iter::once(&self.codec).chain(seconds).cloned().collect()
    }
}

/// Why a disk cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZramError {
    /// A length that is not whole pages, or too much.
    #[error("zram: the length of {sectors} sectors is not a multiple of 8 from 8 to 2^35: choose another")]
    Length {
        /// What was asked for.
        sectors: u64,
    },
    /// A backing device that cannot hold a page.
    #[error("zram: the backing device has blocks of {block_bytes} bytes and {sectors} sectors: it must hold pages of 4096")]
    Backing {
        /// Its smallest request.
        block_bytes: u32,
        /// Its size.
        sectors: u64,
    },
    /// The reactor has no room for another task.
    #[error("zram: this thread has too many tasks: use fewer devices on it")]
    TooManyTasks,
    /// The codec.
    #[error("zram: {0}")]
    Codec(#[from] CodecError),
}

/// What happened to requests.
#[derive(Default)]
struct Counts {
    failed_reads: Cell<u64>,
    failed_writes: Cell<u64>,
    freed_pages: Cell<u64>,
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}

/// A change that cannot be made at once, and what is left of it.
type Change = (Rc<Zram>, Bio, BvecIter);

/// A compressed RAM disk.
pub struct Zram {
    this: Weak<Zram>,
    reactor: Reactor,
    pool: BufferPool,
    sectors: SectorCount,
    /// How pages are compressed, by priority, for a reset.
    codecs: Vec<CodecParams>,
    /// The memory limit of the table line.
    frames_limit: Option<u64>,
    pages: RefCell<Pages>,
    backing: Option<Backing>,
    policy: Option<Policy>,
    recompression: Recompression,
    wide: Option<Wide>,
    counts: Counts,
    door: image::Door,
    /// Nothing is written back any more.
    closed: Cell<bool>,
    reads: OnceCell<JobPool<(Rc<Zram>, Bio)>>,
    changes: OnceCell<JobPool<Change>>,
    batches: OnceCell<JobPool<(Rc<Zram>, Batch)>>,
    discards: OnceCell<JobPool<(Rc<Zram>, Vec<BlockRun>)>>,
}

/// A stretch of a request inside one page.
struct Stretch {
    page: u64,
    /// Bytes of the page.
    inside: Range<usize>,
    /// Where the payload stands.
    iter: BvecIter,
}

impl Stretch {
    fn is_whole(&self) -> bool {
        self.inside.len() == PAGE
    }
}

/// Cuts a request at pages.
struct Stretches<'a> {
    iter: BvecIter,
    segments: Option<&'a Segments>,
}

impl Stretches<'_> {
    /// One that covers a page, without payload.
    fn whole(page: u64) -> Stretch {
        Stretch { page, inside: 0..PAGE, iter: BvecIter::bare(Sector(page * (PAGE_BYTES / 512)), PAGE_BYTES) }
    }
}

impl<'a> Stretches<'a> {
    fn of(bio: &'a Bio) -> Self {
        Self { iter: bio.iter(), segments: bio.segments().map(|segments| &**segments) }
    }
}

impl Iterator for Stretches<'_> {
    type Item = Stretch;

    fn next(&mut self) -> Option<Stretch> {
        if self.iter.bytes == 0 {
            return None;
        }
        let start = self.iter.sector.to_bytes();
        let from = usize::try_from(start % PAGE_BYTES).expect("less than a page");
        let bytes = self.iter.bytes.min((PAGE - from) as u64);
        let to = from + usize::try_from(bytes).expect("at most a page");
        let mut iter = self.iter;
        iter.bytes = bytes;
        let stretch = Stretch { page: start / PAGE_BYTES, inside: from..to, iter };
        self.iter.advance(self.segments, bytes).expect("inside the request");
        Some(stretch)
    }
}

impl Zram {
    /// Makes an empty disk.
    ///
    /// # Errors
    /// [`ZramError`].
    pub fn new(reactor: &Reactor, pool: &BufferPool, setup: &Setup) -> Result<Rc<Self>, ZramError> {
        let bytes = setup.sectors.0.checked_mul(512).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(PAGE_BYTES));
        if bytes.is_none_or(|bytes| bytes / PAGE_BYTES > PAGES_MAX) {
            return Err(ZramError::Length { sectors: setup.sectors.0 });
        }
        let codecs = Codecs::new(&setup.codecs())?;
        let limit = (setup.mem_limit > 0).then(|| setup.mem_limit.div_ceil(PAGE_BYTES));
        let blocks = setup.backing.as_ref().map(backing_blocks).transpose()?;
        let rules = setup.backing.as_ref().map(|backing| backing.options.rules).filter(Rules::are_any);
        let disk = Rc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            reactor: reactor.clone(),
            pool: pool.clone(),
            sectors: setup.sectors,
            codecs: setup.codecs(),
            frames_limit: limit,
            pages: RefCell::new(Pages::new(codecs, limit, blocks)),
            backing: setup.backing.as_ref().map(Backing::new),
            policy: rules.map(|rules| Policy::new(rules, reactor.now())),
            recompression: Recompression::new(&setup.recompression),
            wide: setup.packers.as_ref().map(|packers| Wide::new(packers, &setup.codec)),
            counts: Counts::default(),
            door: image::Door::default(),
            closed: Cell::new(false),
            reads: OnceCell::new(),
            changes: OnceCell::new(),
            batches: OnceCell::new(),
            discards: OnceCell::new(),
        });
        if disk.backing.is_some() {
            let (reads, changes) = (&disk.reads, &disk.changes);
            reads.get_or_init(|| reactor.job_pool(JOBS_MAX, |(disk, bio): (Rc<Self>, Bio)| disk.read_away(bio)));
            changes.get_or_init(|| reactor.job_pool(JOBS_MAX, |(disk, bio, left): Change| disk.change_later(bio, left)));
            disk.batches.get_or_init(|| reactor.job_pool(BATCHES_MAX, backing::write_batch));
            disk.discards.get_or_init(|| reactor.job_pool(1, backing::discard));
        }
        if let Some(wide) = &disk.wide {
            wide.start(reactor);
        }
        let policy = rules.is_none() || reactor.spawn(backing::follow(Rc::downgrade(&disk)));
        let shrinking = !disk.recompression.is_ruled() || reactor.spawn(recompress::follow(Rc::downgrade(&disk)));
        if !policy || !shrinking {
            return Err(ZramError::TooManyTasks);
        }
        Ok(disk)
    }

    fn page_count(&self) -> u64 {
        self.sectors.to_bytes() / PAGE_BYTES
    }

    /// Seconds of the reactor's clock.
    fn now_s(&self) -> u32 {
        u32::try_from(self.reactor.now().as_secs()).unwrap_or(u32::MAX)
    }

    fn read(&self, bio: &Bio) -> Result<(), PageError> {
        let segments = bio.segments().expect("a read has a payload");
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        for stretch in Stretches::of(bio) {
            if pages.word_of(stretch.page) == Some(0) {
                bvec::zero(segments, stretch.iter);
                continue;
            }
            pages.read(stretch.page, now_s)?;
            bvec::copy_in(segments, stretch.iter, &pages.page[stretch.inside]);
        }
        Ok(())
    }

    /// Writes what is `left` of a request, page by page; where one fails, that and those behind it are left.
    fn write_part(&self, segments: &Segments, left: &mut BvecIter) -> Result<(), PageError> {
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        for stretch in (Stretches { iter: *left, segments: Some(segments) }) {
            let bytes = stretch.iter.bytes;
            if !stretch.is_whole() {
                pages.read(stretch.page, now_s)?;
            }
            bvec::copy_out(segments, stretch.iter, &mut pages.page[stretch.inside]);
            pages.write(stretch.page, now_s)?;
            left.advance(Some(segments), bytes).expect("inside the request");
        }
        Ok(())
    }

    /// Lets the pages go that `bio` covers whole, and zeroes the rest of its range where `exactly`.
    fn clear(&self, bio: &Bio, exactly: bool) -> Result<(), PageError> {
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        let whole = start.div_ceil(PAGE_BYTES)..end / PAGE_BYTES;
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        if whole.start < whole.end {
            let mut next = pages.next_present(whole.start);
            while let Some(page) = next.filter(|page| *page < whole.end) {
                pages.free(page);
                next = pages.next_present(page + 1);
            }
            add(&self.counts.freed_pages, whole.end - whole.start);
        }
        if exactly {
            let range = Stretches { iter: bio.iter(), segments: None };
            for stretch in range.edges() {
                pages.read(stretch.page, now_s)?;
                pages.page[stretch.inside].fill(0);
                pages.write(stretch.page, now_s)?;
            }
        }
        Ok(())
    }

    /// Carries out a request over pages that are in memory, as far as it depends on their content; of a write what is
    /// `left`, which is what was not written afterwards.
    fn serve_left(&self, bio: &Bio, left: &mut BvecIter) -> Result<(), PageError> {
        match bio.op() {
            Op::Read => self.read(bio),
            Op::Write => self.write_part(bio.segments().expect("a write has a payload"), left),
            Op::Discard => self.clear(bio, false),
            Op::WriteZeroes => self.clear(bio, true),
            Op::Flush => Ok(()),
        }
    }

    fn end(&self, bio: Bio, done: Result<(), PageError>) {
        let status = match done {
            Ok(()) => Status::Ok,
            Err(PageError::NoSpace) => Status::NoSpace,
            Err(PageError::Corrupt | PageError::Away | PageError::Device) => Status::IoError,
        };
        if !status.is_ok() {
            add(if bio.op() == Op::Read { &self.counts.failed_reads } else { &self.counts.failed_writes }, 1);
        }
        if !matches!(bio.op(), Op::Read | Op::Flush) {
            self.door.count_change();
            self.tell_of_room();
        }
        if bio.op() == Op::Write {
            self.note_growth();
        }
        self.discard_freed();
        if bio.op() == Op::Write {
            self.recompression.rouse();
        }
        bio.end(status);
    }

    /// Something came into memory: the rules may have to look.
    fn note_growth(&self) {
        let Some(policy) = &self.policy else { return };
        let pages = self.pages.borrow();
        if policy.concerns(pages.frames_used(), pages.frames_limit) {
            policy.work.raise();
        }
    }

    /// Whether a page that `bio` touches was written back.
    fn is_away(&self, bio: &Bio) -> bool {
        let (start, end) = (bio.sector().to_bytes(), bio.sector().to_bytes() + bio.bytes());
        self.pages.borrow().any_away(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
    }

    fn is_inside(&self, bio: &Bio) -> bool {
        bio.extent().start.0.checked_add(bio.extent().count.0).is_some_and(|end| end <= self.sectors.0)
    }
}

/// The blocks of a backing device.
fn backing_blocks(setup: &BackingSetup) -> Result<Blocks, ZramError> {
    let (block_bytes, sectors) = (setup.target.limits().logical_bytes, setup.target.sectors());
    if u64::from(block_bytes) > PAGE_BYTES || sectors.to_bytes() < PAGE_BYTES {
        return Err(ZramError::Backing { block_bytes, sectors: sectors.0 });
    }
    Ok(Blocks::new(sectors.to_bytes() / PAGE_BYTES, Backing::block_use(setup)))
}

impl Stretches<'_> {
    /// The first and the last stretch, where they do not cover their page.
    fn edges(mut self) -> impl Iterator<Item = Stretch> {
        let first = self.next().filter(|first| !first.is_whole());
        let bytes = self.iter.bytes % PAGE_BYTES;
        self.iter.advance(None, self.iter.bytes - bytes).expect("inside the request");
        first.into_iter().chain(self.next())
    }
}

impl Target for Zram {
    fn kind(&self) -> &'static str {
        "zram"
    }

    fn limits(&self) -> Limits {
        let page = u32::try_from(PAGE_BYTES).expect("4096");
        Limits {
            physical_bytes: page,
            preferred_bytes: page,
            discard_grain_bytes: page,
            discard: Ability::Native,
            ..Limits::unlimited()
        }
    }

    fn sectors(&self) -> SectorCount {
        self.sectors
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        let pages = self.pages.borrow();
        let mut at = extent.start.0;
        while at < extent.end().0 && !out.is_full() {
            let page = at / PAGE_SECTORS;
            let hole = pages.table.get(page).is_free();
            let next = if hole { pages.next_present(page).map_or(u64::MAX, |present| present.max(page + 1)) } else { page + 1 };
            let end = next.saturating_mul(PAGE_SECTORS).min(extent.end().0);
            out.tell(Run { count: SectorCount(end - at), hole });
            at = end;
        }
    }

    fn submit(&self, bio: Bio) {
        if !self.is_inside(&bio) {
            return bio.end(Status::IoError);
        }
        if self.door.holds(bio.op()) {
            return self.door.park(bio);
        }
        if let Some(wide) = &self.wide
            && let Some(lock) = wide.lock(&bio)
        {
            return wide.begin(self.this.upgrade().expect("a target is held by whoever submits to it"), bio, lock);
        }
        let this = || self.this.upgrade().expect("a target is held by whoever submits to it");
        if bio.op() == Op::Read && self.is_away(&bio) {
            return self.reads.get().expect("pages are away only with a backing device").start((this(), bio));
        }
        let mut left = bio.iter();
        let changes = matches!(bio.op(), Op::Write | Op::WriteZeroes);
        let later = changes && (self.has_line() || self.edge_away(bio.op(), &left).is_some());
        let done = if later { Err(PageError::NoSpace) } else { self.serve_left(&bio, &mut left) };
        if later || (bio.op() == Op::Write && done == Err(PageError::NoSpace) && self.makes_room()) {
            return self.changes.get().expect("only a backing device makes changes wait").start((this(), bio, left));
        }
        self.end(bio, done);
    }
}

#[cfg(test)]
mod tests;
