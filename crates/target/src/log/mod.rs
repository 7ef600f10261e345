//! Log: every write is also put into a log on a second target, in the order in which it became
//! durable, so that any moment of the disk's life can be replayed.
//!
//! ```text
//!   write ends ──▶ unflushed ── taken by the next flush that is submitted
//!                                  └─ that flush ends ──▶ log: these writes, then the flush
//!   FUA write ends ─────────────────────────────────────▶ log: at once
//!   mark ───────────────────────────────────────────────▶ log: at once
//! ```
//!
//! Invariants:
//! - I1: a write is in the log only once it is durable; a flush covers the writes that had ended when
//!   it was submitted, and no others. `W1 W2 W3 C3 C2 flush C1 Cflush` (C: ends) logs
//!   `W3 W2 flush`, and `W1` with the next.
//! - I2: the data is copied when the write is submitted: its memory belongs to the caller again as
//!   soon as it ends.
//! - I3: a failed write is not logged, and a failed flush gives back the writes it took.
//! - I4: the log never fails a bio. When it is full or fails, [`LogWrites::state`] says so, and the
//!   bios pass.
//!
//! Discards are logged as writes are. Zeroes are logged as data, because a replayer's discard need
//! not give zeroes. The format is that of the kernel's `log-writes` target ([`mod@format`]).

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use forebay_block::{Allocation, Bio, End, Extent, Limits, Op, SECTOR_BYTES, SectorCount, Status, Target, bvec};

use crate::below::{BuildError, Parked};

pub mod format;
mod writer;

use format::{DISCARD, FLUSH, FUA, HEAD_BYTES, Head, METADATA};
use writer::{Entry, Shape, Step, Writer};

/// Most bytes of data in an entry; longer writes become several.
const ENTRY_BYTES_MAX: u32 = 64 << 20;

/// Tokens of the log's own bios; those of passing bios are slot numbers.
const TOKEN_ENTRY: u64 = u64::MAX;
const TOKEN_SUPER: u64 = u64::MAX - 1;

/// Whether the log still grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// It does.
    Logging,
    /// The log target has no room for the next entry.
    Full,
    /// The log target failed a write.
    Failed(Status),
}

impl fmt::Display for LogState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logging => f.write_str("logging"),
            Self::Full => f.write_str("the log device is full"),
            Self::Failed(status) => write!(f, "the log device failed a write ({status:?})"),
        }
    }
}

/// Why a mark was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkError {
    /// The text does not fit a sector of the log.
    #[error("log-writes: the mark has {bytes} bytes, and at most {most} fit: shorten it")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest that fits.
        most: usize,
    },
    /// The log has ended.
    #[error("log-writes: the mark was not logged: {0}")]
    Ended(LogState),
}

/// What a bio below will mean for the log once it has ended.
enum Note {
    Write { entries: Vec<Entry>, fua: bool },
    Flush { covers: Vec<Entry> },
}

struct Inner {
    /// Itself, for the bios that it sends.
    me: Weak<Inner>,
    log: Rc<dyn Target>,
    shape: Shape,
    parked: Parked<Note>,
    unflushed: RefCell<Vec<Entry>>,
    writer: RefCell<Writer>,
    writing: Cell<bool>,
}

impl Inner {
    fn end(&self) -> Rc<dyn End> {
        self.me.upgrade().expect("it runs")
    }

    /// Writes what can be written. Not nested: a bio that ends inside of `submit` only leaves more
    /// for the loop that is running.
    fn pump(&self) {
        if self.writing.replace(true) {
            return;
        }
        loop {
            let step = self.writer.borrow_mut().step();
            match step {
                Some(Step::Entry(bio)) => self.log.submit(bio.on_end(self.end(), TOKEN_ENTRY)),
                Some(Step::Super(bio)) => self.log.submit(bio.on_end(self.end(), TOKEN_SUPER)),
                None => break,
            }
        }
        self.writing.set(false);
        let waiters = self.writer.borrow_mut().take_waiters();
        for waker in waiters {
            waker.wake();
        }
    }

    fn log(&self, entries: impl IntoIterator<Item = Entry>) {
        self.writer.borrow_mut().push(entries);
        self.pump();
    }

    /// The entries of a write, discard or write-zeroes.
    fn entries_of(&self, bio: &Bio) -> Vec<Entry> {
        let unit = u64::from(self.shape.sector_bytes);
        let fua = if bio.flags().fua { FUA } else { 0 };
        let flags = fua | if bio.flags().meta { METADATA } else { 0 };
        let start = bio.sector().to_bytes();
        if bio.op() == Op::Discard {
            let head = Head { sector: start / unit, sectors: bio.bytes() / unit, flags: flags | DISCARD, mark_bytes: 0 };
            return vec![self.shape.entry(head, 0, |_| ())];
        }
        let mut entries = Vec::new();
        let (mut at, mut iter) = (0, bio.iter());
        while at < bio.bytes() {
            let bytes = u32::try_from(bio.bytes() - at).map_or(ENTRY_BYTES_MAX, |left| left.min(ENTRY_BYTES_MAX));
            let head = Head { sector: (start + at) / unit, sectors: u64::from(bytes) / unit, flags, mark_bytes: 0 };
            entries.push(match bio.segments() {
                Some(segments) => self.shape.entry(head, bytes, |to| {
                    bvec::copy_out(segments, iter, to);
                }),
                None => self.shape.zeroes(head, bytes),
            });
            at += u64::from(bytes);
            iter.advance(bio.segments().map(|segments| &**segments), u64::from(bytes)).expect("inside the bio");
        }
        entries
    }

    fn data_ended(&self, status: Status, note: Note) {
        match (note, status.is_ok()) {
            (Note::Write { entries, fua: true }, true) => self.log(entries),
            (Note::Write { entries, fua: false }, true) => self.unflushed.borrow_mut().extend(entries),
            (Note::Write { .. }, false) => {}
            (Note::Flush { mut covers }, true) => {
                covers.push(self.shape.entry(Head { flags: FLUSH, ..Head::default() }, 0, |_| ()));
                self.log(covers);
            }
            (Note::Flush { mut covers }, false) => {
                let mut unflushed = self.unflushed.borrow_mut();
                covers.append(&mut unflushed);
                *unflushed = covers;
            }
        }
    }
}

impl End for Inner {
    fn bio_ended(&self, ended: Bio, token: u64) {
        let status = ended.status();
        drop(ended);
        match token {
            TOKEN_ENTRY => self.writer.borrow_mut().entry_ended(status),
            TOKEN_SUPER => self.writer.borrow_mut().super_ended(status),
            _ => {
                let (bio, note) = self.parked.take(token);
                self.data_ended(status, note);
                return bio.end(status);
            }
        }
        self.pump();
    }
}

/// Logs the writes that pass to the target below.
pub struct LogWrites {
    below: Rc<dyn Target>,
    inner: Rc<Inner>,
}

impl LogWrites {
    /// Logs the writes that pass to `below` on `log`, whose old content is lost. A sector of the log
    /// is the larger of both logical blocks, and bios must be multiples of it.
    ///
    /// # Errors
    /// When the log has no room for a super and an entry, or `below` is not whole sectors of the log.
    pub fn new(below: Rc<dyn Target>, log: Rc<dyn Target>) -> Result<Self, BuildError> {
        let kind = "log-writes";
        let sector_bytes = below.limits().logical_bytes.max(log.limits().logical_bytes);
        let unit = u64::from(sector_bytes / SECTOR_BYTES);
        let log_sectors = log.sectors().0;
        if log_sectors < 2 * unit {
            return Err(BuildError::Outside { kind, start: 0, count: 2 * unit, below: log_sectors });
        }
        if !below.sectors().0.is_multiple_of(unit) {
            return Err(BuildError::NotMultiple { kind, what: "length", value: below.sectors().0, unit });
        }
        let shape = Shape { sector_bytes, memory_align: log.limits().memory_align.max(SECTOR_BYTES) };
        let inner = Rc::new_cyclic(|me| Inner {
            me: Weak::clone(me),
            log,
            shape,
            parked: Parked::default(),
            unflushed: RefCell::default(),
            writer: RefCell::new(Writer::new(shape, log_sectors)),
            writing: Cell::new(false),
        });
        inner.pump();
        Ok(Self { below, inner })
    }

    /// Whether the log still grows.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.inner.writer.borrow().state()
    }

    /// Entries logged so far, some of them perhaps still on their way.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.inner.writer.borrow().entries()
    }

    /// Puts a mark into the log, behind everything that is in it.
    ///
    /// # Errors
    /// When the text does not fit, or the log has ended.
    pub fn mark(&self, text: &str) -> Result<(), MarkError> {
        let most = self.inner.shape.sector_bytes as usize - HEAD_BYTES;
        if text.len() > most {
            return Err(MarkError::TooLong { bytes: text.len(), most });
        }
        if self.state() != LogState::Logging {
            return Err(MarkError::Ended(self.state()));
        }
        self.inner.log([self.inner.shape.mark(text.as_bytes())]);
        Ok(())
    }

    /// Waits until everything logged so far is on the log target, and its super says so.
    pub async fn settled(&self) {
        poll_fn(|cx| {
            let mut writer = self.inner.writer.borrow_mut();
            if writer.is_settled() {
                return Poll::Ready(());
            }
            writer.wait(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Logs what was written since the last flush, and a mark that this is the end, and makes the log
    /// durable. As the kernel does when the target goes.
    pub async fn close(&self) -> LogState {
        let unflushed = self.inner.unflushed.take();
        self.inner.log(unflushed);
        self.inner.log([self.inner.shape.mark(b"dm-log-writes-end")]);
        self.settled().await;
        let flushed = forebay_block::flush(&*self.inner.log).await.status();
        match self.state() {
            LogState::Logging if !flushed.is_ok() => LogState::Failed(flushed),
            state => state,
        }
    }
}

impl Target for LogWrites {
    fn kind(&self) -> &'static str {
        "log-writes"
    }

    fn limits(&self) -> Limits {
        let below = self.below.limits();
        let unit = self.inner.shape.sector_bytes;
        Limits { logical_bytes: unit, physical_bytes: below.physical_bytes.max(unit), ..below }
    }

    fn sectors(&self) -> SectorCount {
        self.below.sectors()
    }

    fn submit(&self, bio: Bio) {
        if bio.op() == Op::Read || self.state() != LogState::Logging {
            return self.below.submit(bio);
        }
        let note = match bio.op() {
            Op::Flush => Note::Flush { covers: self.inner.unflushed.take() },
            _ => Note::Write { entries: self.inner.entries_of(&bio), fua: bio.flags().fua },
        };
        self.inner.parked.pass(bio, note, self.inner.end(), &*self.below);
    }

    fn allocation(&self, extent: Extent, out: &mut Allocation) {
        out.below(&*self.below, extent);
    }
}

#[cfg(test)]
mod tests;
