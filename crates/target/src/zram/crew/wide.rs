//! A large write, from its lock to its end.
//!
//! 1. Between the lock and the last parcel, nobody else changes its pages; reads go on, and find each
//!    page as it was or as it will be.
//! 2. The write ends when all its parcels are back, whatever became of them.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{Bio, BvecIter, Op, Segments, bvec};
use forebay_reactor::{JobPool, Reactor};

use super::super::backing::give_way;
use super::super::codec::CodecParams;
use super::super::pages::PageError;
use super::super::{PAGE_BYTES, Zram};
use super::Packers;
use super::parcel::{Became, PARCEL_BYTES, Parcel};
use crate::event::Event;
use crate::lock::{Lock, LockRange, RangeLocks};

/// Large writes served at once; more wait in line.
const WRITES_MAX: usize = 64;
/// Pages compressed here between two looks at the packers.
const HERE_PAGES: u64 = 4;

/// A large write, or a change that overlaps one.
type Change = (Rc<Zram>, Bio, Lock);

/// A write whose parcels are under way.
struct Progress {
    job: u64,
    parcels: u32,
    done: Result<(), PageError>,
}

/// Large writes of a disk.
pub(in super::super) struct Wide {
    packers: Rc<dyn Packers>,
    came_back: Rc<Event>,
    locks: RangeLocks,
    changes: OnceCell<JobPool<Change>>,
    progress: RefCell<Vec<Progress>>,
    jobs: Cell<u64>,
    /// Parcels to use again.
    spare: RefCell<Vec<Parcel>>,
    params: RefCell<Arc<CodecParams>>,
}

impl Wide {
    pub(in super::super) fn new(packers: &Rc<dyn Packers>, params: &CodecParams) -> Self {
        Self {
            packers: Rc::clone(packers),
            came_back: packers.came_back(),
            locks: RangeLocks::new(),
            changes: OnceCell::new(),
            progress: RefCell::default(),
            jobs: Cell::new(0),
            spare: RefCell::default(),
            params: RefCell::new(Arc::new(params.clone())),
        }
    }

    pub(in super::super) fn start(&self, reactor: &Reactor) {
        self.changes.get_or_init(|| reactor.job_pool(WRITES_MAX, write_wide));
    }

    /// Compresses by other parameters from now on. No large write may be under way.
    pub(in super::super) fn set_params(&self, params: &CodecParams) {
        self.params.replace(Arc::new(params.clone()));
    }

    /// Whether large writes, or changes that wait for them, are under way.
    pub(in super::super) fn is_busy(&self) -> bool {
        self.locks.in_use() != (0, 0)
    }

    fn is_wide(&self, bio: &Bio) -> bool {
        bio.op() == Op::Write && bio.bytes() >= self.packers.least_bytes(self.params.borrow().algorithm)
    }

    /// The place in line of a request that is a large write, or overlaps one.
    pub(in super::super) fn lock(&self, bio: &Bio) -> Option<Lock> {
        if matches!(bio.op(), Op::Read | Op::Flush) {
            return None;
        }
        let (start, end) = (bio.sector().to_bytes() / PAGE_BYTES, bio.extent().end().to_bytes().div_ceil(PAGE_BYTES));
        let range = LockRange::new(start, (end - start).max(1));
        (self.is_wide(bio) || self.locks.is_locked(range)).then(|| self.locks.lock(range))
    }

    /// Has the request served when its turn comes.
    pub(in super::super) fn begin(&self, zram: Rc<Zram>, bio: Bio, lock: Lock) {
        self.changes.get().expect("jobs are made with the disk").start((zram, bio, lock));
    }

    fn progress<T>(&self, job: u64, look: impl FnOnce(&mut Progress) -> T) -> T {
        let mut all = self.progress.borrow_mut();
        look(all.iter_mut().find(|progress| progress.job == job).expect("a write is listed until it ends"))
    }

    fn finish(&self, job: u64) -> Result<(), PageError> {
        let mut all = self.progress.borrow_mut();
        let at = all.iter().position(|progress| progress.job == job).expect("a write is listed until it ends");
        all.swap_remove(at).done
    }

    /// Has the pages of a parcel from `first` on packed.
    fn send(&self, job: u64, first: u64, segments: &Segments, iter: BvecIter) {
        let params = self.params.borrow();
        let mut parcel = self.spare.borrow_mut().pop().unwrap_or_else(|| Parcel::new(&params));
        parcel.reuse(job, first, &params);
        bvec::copy_out(segments, iter, parcel.content.as_flattened_mut());
        self.progress(job, |progress| progress.parcels += 1);
        self.packers.give(parcel);
    }
}

/// Serves a large write, or a change that overlaps one, in its turn.
async fn write_wide((zram, bio, lock): Change) {
    let guard = lock.await;
    match zram.change_wide(&bio).await {
        Some(done) => zram.end(bio, done),
        None => zram.door.park(bio),
    }
    drop(guard);
}

impl Zram {
    /// Makes a large write, or a change that overlaps one; `None` when it has to wait at the door.
    async fn change_wide(&self, bio: &Bio) -> Option<Result<(), PageError>> {
        let wide = self.wide.as_ref().expect("large writes are those of a disk with packers");
        if !wide.is_wide(bio) || self.has_line() {
            return self.change(bio, bio.iter()).await;
        }
        let mut done = self.bring_edges(bio.op(), &bio.iter()).await;
        if self.door.holds(bio.op()) {
            return None;
        }
        if done.is_ok() {
            let job = wide.jobs.get();
            wide.jobs.set(job + 1);
            self.share(wide, bio, job);
            // Others who are ready have work for the packers, too.
            give_way().await;
            self.wait_for(wide, job).await;
            done = wide.finish(job);
        }
        // Nobody else changed its pages meanwhile, nor will now.
        if done == Err(PageError::NoSpace) && self.makes_room() { self.change(bio, bio.iter()).await } else { Some(done) }
    }

    /// Compresses the front of a write here, while packers compress its back.
    fn share(&self, wide: &Wide, bio: &Bio, job: u64) {
        wide.progress.borrow_mut().push(Progress { job, parcels: 0, done: Ok(()) });
        let segments = bio.segments().expect("a write has a payload");
        let (start, end) = (bio.sector().to_bytes(), bio.extent().end().to_bytes());
        let part = |from: u64, to: u64| {
            let mut iter = bio.iter();
            iter.advance(Some(segments), from - start).expect("inside the request");
            iter.bytes = to - from;
            iter
        };
        let (mut from, mut to) = (start, end / PAGE_BYTES * PAGE_BYTES);
        let mut done = if to < end { self.write_part(segments, &mut part(to, end)) } else { Ok(()) };
        while from < to && done.is_ok() {
            while to - from >= PARCEL_BYTES + HERE_PAGES * PAGE_BYTES && wide.packers.has_room() {
                to -= PARCEL_BYTES;
                wide.send(job, to / PAGE_BYTES, segments, part(to, to + PARCEL_BYTES));
            }
            let next = ((from / PAGE_BYTES + HERE_PAGES) * PAGE_BYTES).min(to);
            done = self.write_part(segments, &mut part(from, next));
            from = next;
            self.collect(wide);
        }
        wide.progress(job, |progress| progress.done = progress.done.and(done));
    }

    /// Keeps what came back, and goes on with what nobody has begun, until all of a write is done.
    async fn wait_for(&self, wide: &Wide, job: u64) {
        loop {
            let seen = wide.came_back.count();
            self.collect(wide);
            if wide.progress(job, |progress| progress.parcels == 0) {
                return;
            }
            match wide.packers.take_back() {
                Some(parcel) => self.unwrap(wide, parcel),
                None if wide.packers.will_tell() => wide.came_back.after(seen, None).await,
                None => {}
            }
        }
    }

    /// Keeps all that came back.
    fn collect(&self, wide: &Wide) {
        while let Some(parcel) = wide.packers.take() {
            self.unwrap(wide, parcel);
        }
    }

    /// Keeps the pages of a parcel, packed or not.
    fn unwrap(&self, wide: &Wide, parcel: Parcel) {
        let (mut pages, now_s) = (self.pages.borrow_mut(), self.now_s());
        let mut done = Ok(());
        for (number, became) in parcel.pages() {
            let kept = match became {
                Became::Same(word) => {
                    pages.write_same(number, word, now_s);
                    Ok(())
                }
                Became::Object(object) => pages.write_object(number, object, now_s),
                Became::Nothing(page) => {
                    pages.page.copy_from_slice(page);
                    pages.write(number, now_s)
                }
            };
            done = done.and(kept);
        }
        let ended = wide.progress(parcel.job, |progress| {
            progress.parcels -= 1;
            progress.done = progress.done.and(done);
            progress.parcels == 0
        });
        wide.spare.borrow_mut().push(parcel);
        if ended {
            // Its write may wait, and another one found it.
            wide.came_back.raise();
        }
    }
}
