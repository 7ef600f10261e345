//! Writes pages back: gathers them into runs of blocks, many writes in flight, and lets their memory go.
//!
//! ```text
//!   walk ─▶ take a run of blocks ─▶ pages or objects into one buffer ─▶ one write ─┐ up to `depth` of
//!     ▲                                                                            │ them at once
//!     └─────────── next ◀── each page: still selected? memory goes : block goes ◀──┘
//! ```
//!
//! 1. A page is marked selected while its write is in flight. Whoever reads, writes or frees it takes
//!    the mark away, and the page stays in memory (I1 of the folder).
//! 2. A write that fails is tried again block by block, so that only the pages concerned stay. None of
//!    the blocks is free for others before all of that is over.
//! 3. One command runs at a time.
//! 4. What is written beside pages and objects is zero: nothing of other requests gets to the device.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Bio, Status, call};
use forebay_reactor::Buffer;

use super::super::Zram;
use super::super::memory::PAGE;
use super::super::pages::Pages;
use super::super::table::mark;
use super::blocks::{Blocks, Run, Spot};
use super::fetch::block_sector;
use super::select::{Selection, Walk, Worth};
use super::{Backing, Leaving, checksum};

/// Why pages were not written back, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WritebackError {
    /// There is nowhere to write to.
    #[error("the disk has no backing device: give it one with backing_dev=DEVICE in its table line (ENODEV)")]
    NoBacking,
    /// Words that are none.
    #[error(
        "writeback takes idle, huge, huge_idle, incompressible, page_index=N or page_indexes=LO-HI, inside of the disk (EINVAL)"
    )]
    Words,
    /// Another command runs.
    #[error("pages of this disk are being written back or compressed again: wait until that is done (EAGAIN)")]
    Busy,
    /// The budget is used up, and there is more to write.
    #[error("the writeback limit is used up: raise writeback_limit, or write 0 to writeback_limit_enable (EIO)")]
    Limit,
    /// No block is free.
    #[error("the backing device is full: discard what is not needed, or use a larger one (ENOSPC)")]
    NoSpace,
    /// A write failed.
    #[error("not every page could be written to the backing device, those are still in memory: look at its log (EIO)")]
    Device,
}

/// Time after which the memory of pages that left goes back, while others still leave. Where it goes back
/// at once, most of what is moved into the gaps would leave next.
const GAPS_TIME: Duration = Duration::from_secs(1);
/// Objects that are moved into gaps before others have a turn.
const GAPS_AT_ONCE: usize = 512;

/// Pages on their way to a run of blocks.
pub(in super::super) struct Batch {
    run: Run,
    leaving: Vec<Leaving>,
    buffer: Buffer,
}

/// Resets the mark that a command runs, and closes what gaps it leaves in memory.
struct Running<'a>(&'a Zram, &'a Backing);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.pages.borrow_mut().close_gaps(usize::MAX);
        self.1.running.set(false);
        self.1.ended.raise();
    }
}

impl Zram {
    /// Writes back what `text` selects: `idle`, `huge`, `huge_idle`, `incompressible`, or any number of
    /// `page_index=N` and `page_indexes=LO-HI`.
    ///
    /// # Errors
    /// [`WritebackError`]; what was written until then is written.
    pub async fn writeback(&self, text: &str) -> Result<(), WritebackError> {
        let selection = Selection::parse(text, self.page_count()).ok_or(WritebackError::Words)?;
        let backing = self.backing.as_ref().ok_or(WritebackError::NoBacking)?;
        self.write_selected(backing, selection, None).await
    }

    /// Writes back what `selection` takes; where that is more than `budget` blocks, what frees the most.
    pub(super) async fn write_selected(
        &self,
        backing: &Backing,
        selection: Selection,
        budget: Option<u64>,
    ) -> Result<(), WritebackError> {
        if self.recompression.running.get() || backing.running.replace(true) {
            return Err(WritebackError::Busy);
        }
        let _running = Running(self, backing);
        let mut walk = Walk::new(selection);
        let limit = if backing.limited.get() { backing.limit.get() } else { u64::MAX };
        let mut left = budget.unwrap_or(u64::MAX);
        let most = limit.min(left);
        if most < u64::MAX {
            let pages = self.pages.borrow();
            let costs: &dyn Fn(usize) -> usize =
                if backing.packed { &|bytes| bytes.next_multiple_of(Spot::GRAIN) } else { &|_| PAGE };
            let worth = Worth { frees: &|bytes| pages.taken_by(bytes), costs };
            walk.limit(&pages.table, most.saturating_mul(PAGE as u64), &worth);
        }
        let mut result = Ok(());
        let mut closed_at = self.reactor.now();
        loop {
            backing.wait_until(|in_flight| in_flight < backing.depth()).await;
            if self.closed.get() {
                break;
            }
            match self.gather(backing, &mut walk, &mut left) {
                Ok(Some(batch)) => self.start(backing, batch),
                Ok(None) => break,
                Err(WritebackError::NoSpace) if backing.discarding.get() => {
                    backing.ended.after(backing.ended.count(), None).await;
                    continue;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            give_way().await;
            if self.reactor.now().saturating_sub(closed_at) >= GAPS_TIME {
                self.close_gaps().await;
                closed_at = self.reactor.now();
            }
        }
        backing.wait_until(|in_flight| in_flight == 0).await;
        self.close_gaps().await;
        if backing.failed.take() {
            return Err(WritebackError::Device);
        }
        // A budget of one's own is no error.
        if walk.is_limited() && limit == most { result.and(Err(WritebackError::Limit)) } else { result }
    }

    /// Brings what is left in memory together, with turns for everybody else in between.
    async fn close_gaps(&self) {
        while !self.pages.borrow_mut().close_gaps(GAPS_AT_ONCE) {
            give_way().await;
        }
    }

    fn start(&self, backing: &Backing, batch: Batch) {
        backing.in_flight.set(backing.in_flight.get() + 1);
        let this = self.this.upgrade().expect("a disk is held by whoever commands it");
        self.batches.get().expect("jobs are made with the disk").start((this, batch));
    }

    /// The next pages to leave, with the blocks that they go to, at most `left`, which are counted down.
    fn gather(&self, backing: &Backing, walk: &mut Walk, left: &mut u64) -> Result<Option<Batch>, WritebackError> {
        let mut pages = self.pages.borrow_mut();
        let Some(first) = walk.next(&pages.table) else { return Ok(None) };
        walk.put_back(first);
        let wanted = if backing.limited.get() { backing.range_pages.min(backing.limit.get()) } else { backing.range_pages };
        if wanted == 0 {
            return Err(WritebackError::Limit);
        }
        // Packed objects may need a few blocks more than their bytes.
        let wanted = wanted.min(*left);
        if wanted == 0 {
            return Ok(None);
        }
        let run = blocks_of(&mut pages).take(wanted).ok_or(WritebackError::NoSpace)?;
        backing.ahead.borrow_mut().forget(run);
        let room = usize::try_from(run.count).expect("a run is short") * PAGE;
        let mut buffer = self.pool.take(room);
        let (leaving, bytes) = fill(backing, &mut pages, walk, run, &mut buffer.bytes_mut()[..room]);
        let used = bytes.div_ceil(PAGE) as u64;
        if used < run.count {
            blocks_of(&mut pages).give_tail(Run { start: run.start + used, count: run.count - used });
        }
        if used == 0 {
            return Ok(None);
        }
        *left -= used;
        if backing.limited.get() {
            backing.limit.set(backing.limit.get() - used);
        }
        Ok(Some(Batch { run: Run { count: used, ..run }, leaving, buffer }))
    }

    /// Waits until nothing is written back or saved any more, and lets nothing be written back.
    pub async fn close(&self) {
        self.door.wait_until_open().await;
        self.closed.set(true);
        if let Some(policy) = &self.policy {
            policy.work.raise();
        }
        self.tell_of_room();
        self.recompression.rouse();
        self.wait_for_writeback().await;
    }

    /// Waits until nothing is being written back.
    pub(in super::super) async fn wait_for_writeback(&self) {
        if let Some(backing) = &self.backing {
            while backing.is_busy() {
                backing.ended.after(backing.ended.count(), None).await;
            }
        }
    }
}

impl Backing {
    async fn wait_until(&self, enough: impl Fn(u32) -> bool) {
        while !enough(self.in_flight.get()) {
            self.ended.after(self.ended.count(), None).await;
        }
    }

    /// A write of `count` blocks was sent and ended well or not.
    fn account(&self, status: Status, count: u64) {
        if status.is_ok() {
            self.writes.set(self.writes.get() + count);
        } else {
            self.failed.set(true);
            if self.limited.get() {
                self.limit.set(self.limit.get().saturating_add(count));
            }
        }
    }
}

fn blocks_of(pages: &mut Pages) -> &mut Blocks {
    pages.blocks.as_mut().expect("a disk with a backing device has its blocks")
}

/// Puts what the walk selects into `content`, which goes to `run`, until that is full; tells the bytes
/// up to the last. What lies between is zero up to the end of its block.
fn fill(backing: &Backing, pages: &mut Pages, walk: &mut Walk, run: Run, content: &mut [u8]) -> (Vec<Leaving>, usize) {
    let mut leaving = Vec::with_capacity(usize::try_from(run.count).expect("a run is short"));
    let mut end = 0;
    while let Some(page) = walk.next(&pages.table) {
        let bytes = if backing.packed { pages.table.get(page).bytes() } else { PAGE };
        let Some(place) = content.get_mut(end..end + bytes) else {
            walk.put_back(page);
            break;
        };
        if backing.packed {
            pages.copy_object(page, place);
        } else if pages.copy_to(page, place.as_mut_array().expect("a page")).is_err() {
            backing.failed.set(true);
            continue;
        }
        let spot = Spot::behind(run.start, end);
        leaving.push(Leaving { page, spot, bytes, checksum: checksum(page, spot, place) });
        pages.table.used_mut(page).set(mark::SELECTED);
        spot.blocks(bytes).for_each(|block| blocks_of(pages).own(block));
        let next = (end + bytes).next_multiple_of(Spot::GRAIN);
        content[end + bytes..next].fill(0);
        end = next;
    }
    content[end..end.next_multiple_of(PAGE)].fill(0);
    (leaving, end)
}

/// Writes a batch, and settles each of its pages.
pub(in super::super) async fn write_batch((zram, batch): (Rc<Zram>, Batch)) {
    let backing = zram.backing.as_ref().expect("batches are made for the backing device");
    let count = batch.run.count;
    let status = write(backing, &batch, 0, count).await;
    let mut bad = Vec::new();
    if status.is_ok() || count == 1 {
        backing.account(status, count);
        bad.extend((!status.is_ok()).then_some(batch.run.start));
    } else {
        for at in 0..count {
            let status = write(backing, &batch, at, 1).await;
            backing.account(status, 1);
            bad.extend((!status.is_ok()).then_some(batch.run.start + at));
        }
    }
    settle(&zram, backing, &batch, &bad);
    zram.tell_of_room();
    zram.discard_freed();
    backing.in_flight.set(backing.in_flight.get() - 1);
    backing.ended.raise();
}

async fn write(backing: &Backing, batch: &Batch, at: u64, count: u64) -> Status {
    let bytes = |blocks: u64| u32::try_from(blocks * PAGE as u64).expect("a batch is at most 1 MiB");
    let sector = block_sector(batch.run.start + at);
    let bio = Bio::write(sector, Rc::clone(batch.buffer.segments()), bytes(at), bytes(count));
    backing.requests.set(backing.requests.get() + 1);
    call(&*backing.target, bio).await.status()
}

/// Lets go what is in blocks that are not `bad`, unless somebody asked for it meanwhile.
fn settle(zram: &Zram, backing: &Backing, batch: &Batch, bad: &[u64]) {
    let mut pages = zram.pages.borrow_mut();
    for leaving in &batch.leaving {
        if leaving.spot.blocks(leaving.bytes).any(|block| bad.contains(&block)) {
            pages.stay(leaving);
        } else if pages.leave(leaving) {
            backing.left.set(backing.left.get() + 1);
        }
    }
}

/// Lets everybody else have a turn.
pub(in super::super) async fn give_way() {
    let mut gave = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gave, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
