//! One life of an origin and its snapshots: opened, read back, used, cut off.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use forebay_block::{Bio, Flags, Sector, SectorCount, Status, Target, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::snapshot::options::StoreKind;
use forebay_target::snapshot::{Condition, Merge, MergeSetup, Origin, OriginFront, Setup, Snapshot, SnapshotError, merge, open};

use super::run::{Book, Plan};
use super::swarm::{ORIGIN, Place, Swarm};
use crate::check::{Act, POISON, SECTOR};
use crate::run::{Client, Ledger};
use crate::world::{SimDisk, World};

/// Sectors read at once when everything is read back.
const READ_BACK: usize = 256;
/// Seconds of simulated time after which a life with faults is ended.
const FAULTY_MAX_S: u64 = 600;
/// Errors in a row of one client after which a life is ended.
const ERRORS_MAX: u32 = 12;

/// Something that is read and written.
struct View {
    target: Rc<dyn Target>,
    ledger: Rc<Ledger>,
    client: Rc<Client>,
    /// Where it is a snapshot: its place.
    snapshot: Option<(usize, Rc<Snapshot>)>,
}

impl View {
    fn is_lost(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|(_, snapshot)| snapshot.status().condition == Condition::Invalid)
    }
}

pub(super) struct Life<'a> {
    swarm: &'a Swarm,
    world: &'a World,
    reactor: &'a Reactor,
    pool: &'a BufferPool,
    plan: Plan,
    rng: Rng,
    /// Requests of the whole seed.
    requests: u64,
    disks: Vec<Rc<SimDisk>>,
    origin: Rc<Origin>,
    /// The origin, or what is merged into it, comes first.
    views: Vec<View>,
    merge: Option<Rc<Merge>>,
    /// Snapshots that a merge has overfilled while they were read back.
    gone: Vec<(usize, Rc<Snapshot>)>,
}

impl<'a> Life<'a> {
    pub(super) fn new(
        swarm: &'a Swarm,
        world: &'a World,
        reactor: &'a Reactor,
        pool: &'a BufferPool,
        plan: Plan,
        rng: Rng,
        requests: u64,
    ) -> Self {
        let disks: Vec<_> = (0..=swarm.places.len()).map(|number| world.disk(reactor, number)).collect();
        let origin = Origin::new(reactor, pool, Rc::clone(&disks[ORIGIN]) as Rc<dyn Target>);
        Self { swarm, world, reactor, pool, plan, rng, requests, disks, origin, views: Vec::new(), merge: None, gone: Vec::new() }
    }

    /// Answers count for nothing any more.
    pub(super) fn die(&self) {
        self.views.iter().for_each(|view| view.client.die());
    }

    /// The snapshots that were open.
    pub(super) fn snapshots(&self) -> Vec<(usize, Rc<Snapshot>)> {
        self.views.iter().filter_map(|view| view.snapshot.clone()).chain(self.gone.clone()).collect()
    }

    /// Whether a merge was under way and is done.
    pub(super) fn is_merged(&self) -> bool {
        self.merge.as_ref().is_some_and(|merge| merge.status().left == 0)
    }

    /// Ends the life at once.
    async fn end_now(&self) {
        self.world.cut_now(self.plan.cut);
        pending::<()>().await;
    }

    pub(super) async fn live(&mut self, book: &mut Book) {
        let opened = self.open_all(book).await && self.read_back(book).await;
        if book.failed() {
            return;
        }
        if !opened {
            return self.end_now().await;
        }
        if self.plan.last {
            self.finish(book).await;
        } else {
            self.world.set_faults(self.plan.faults);
            if self.plan.faults {
                self.end_in_time();
                self.views.iter().for_each(|view| view.client.expect_errors());
            }
            self.take_snapshots(book).await;
            self.load(book).await;
        }
        if !book.failed() {
            self.end_now().await;
        }
    }

    /// Ends the life when somebody waits for a disk that never recovers.
    fn end_in_time(&self) {
        let (world, cut) = (self.world.clone(), self.plan.cut);
        let time = self.reactor.sleep(Duration::from_secs(FAULTY_MAX_S));
        self.reactor.spawn(async move {
            time.await;
            world.cut_now(cut);
        });
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.swarm.sectors as u64)
    }

    fn store(&self, place: usize) -> Rc<dyn Target> {
        Rc::clone(&self.disks[place + 1]) as Rc<dyn Target>
    }

    fn add(&mut self, target: Rc<dyn Target>, ledger: &Rc<Ledger>, snapshot: Option<(usize, Rc<Snapshot>)>) {
        let client = Client::new(self.world, ledger, self.pool);
        // Errors of snapshots have reasons of their own, which `look_at` asks for.
        if self.plan.faults_in_recovery || snapshot.is_some() {
            client.expect_errors();
        }
        self.views.push(View { target, ledger: Rc::clone(ledger), client, snapshot });
    }

    /// Opens everything that there is; false where a fault was in the way.
    async fn open_all(&mut self, book: &mut Book) -> bool {
        let top: Rc<dyn Target> = if let Some(place) = book.merging {
            let (origin, cow, sectors) = (Rc::clone(&self.origin), self.store(place), self.sectors());
            let chunk_sectors = self.swarm.places[place].chunk_sectors;
            let opened = merge(self.reactor, self.pool, MergeSetup { origin, cow, sectors, chunk_sectors, rate: None }).await;
            match opened {
                Ok(merge) => {
                    self.merge = Some(Rc::clone(&merge));
                    merge
                }
                Err(error) => return self.did_not_open(book, &error),
            }
        } else {
            Rc::new(OriginFront::new(Rc::clone(&self.origin), self.sectors()).expect("the disk is that large"))
        };
        let ledger = Rc::clone(&book.top);
        self.add(top, &ledger, None);
        for place in 0..self.swarm.places.len() {
            let Some(ledger) = book.snapshots[place].clone() else { continue };
            let snapshot = match self.open(place).await {
                Ok(snapshot) => snapshot,
                Err(error) => return self.did_not_open(book, &error),
            };
            if snapshot.status().condition == Condition::Invalid {
                if !book.lost[place] {
                    book.fail(format!("the snapshot in place {place} was found lost without a reason"));
                }
                book.snapshots[place] = None;
                snapshot.close().await;
                continue;
            }
            if let Err(reason) = all_is_used(&snapshot) {
                book.fail(format!("the snapshot in place {place}: {reason}"));
                return false;
            }
            self.add(Rc::clone(&snapshot) as Rc<dyn Target>, &ledger, Some((place, snapshot)));
        }
        if let Some(merge) = &self.merge {
            merge.begin();
        }
        true
    }

    async fn open(&self, place: usize) -> Result<Rc<Snapshot>, SnapshotError> {
        let Place { store, chunk_sectors, discards } = self.swarm.places[place];
        let (origin, cow, sectors) = (Rc::clone(&self.origin), self.store(place), self.sectors());
        let coalesce = self.swarm.coalesce;
        open(self.reactor, self.pool, Setup { origin, cow, sectors, store, chunk_sectors, discards, coalesce }).await
    }

    fn did_not_open(&self, book: &Book, error: &SnapshotError) -> bool {
        self.world.note(&[6], || format!("did not open: {error}"));
        if !self.plan.faults_in_recovery && (!self.plan.faults || self.views.is_empty()) {
            book.fail(format!("a healthy world did not open: {error}"));
        }
        false
    }

    /// Reads everything and holds it against what may have survived; false where a fault was in the way.
    async fn read_back(&mut self, book: &Book) -> bool {
        for view in &self.views {
            let sectors = self.swarm.sectors;
            for first in (0..sectors).step_by(READ_BACK) {
                let count = READ_BACK.min(sectors - first);
                let bytes = count * SECTOR;
                let mut buffer = self.pool.take(bytes);
                buffer.bytes_mut()[..bytes].fill(POISON);
                let length = u32::try_from(bytes).expect("a piece of the device is small");
                let bio = Bio::read(Sector(first as u64), Rc::clone(buffer.segments()), 0, length);
                let status = call(&*view.target, bio).await.status();
                if !status.is_ok() && view.is_lost() && !self.plan.faults_in_recovery {
                    break;
                }
                if !status.is_ok() {
                    if !self.plan.faults_in_recovery {
                        book.fail(format!("reading back {first}+{count} failed with {status:?} in a healthy world"));
                    }
                    return false;
                }
                view.ledger.count_checks(count);
                let observed = view.ledger.model.borrow_mut().observe(first, &buffer.bytes_mut()[..bytes]);
                if let Err(violation) = observed {
                    view.ledger.fail(format!("{} at {:?}: {violation}", view.target.kind(), view.snapshot.as_ref().map(|s| s.0)));
                    return false;
                }
            }
        }
        self.world.note(&[7], || "everything read back".to_owned());
        let (lost, views) = std::mem::take(&mut self.views).into_iter().partition(View::is_lost);
        self.views = views;
        self.gone = lost.into_iter().filter_map(|view: View| view.snapshot).collect();
        for view in &self.views {
            if let Err(violation) = view.ledger.model.borrow_mut().settle() {
                view.ledger.fail(violation.to_string());
                return false;
            }
        }
        true
    }

    /// Takes new snapshots where there is room, of an origin at rest.
    async fn take_snapshots(&mut self, book: &mut Book) {
        for place in 0..self.swarm.places.len() {
            // While a merge is under way, the origin is not what who reads it sees.
            let taken = book.snapshots[place].is_some() || book.merging.is_some();
            if taken || self.rng.bool() || !self.make_durable(&book.top).await || !self.clear_store(place).await {
                continue;
            }
            let opened = self.open(place).await;
            self.world.note(&[13, place as u64, u64::from(opened.is_ok())], || format!("snapshot in place {place}"));
            match opened {
                Ok(snapshot) => {
                    let ledger = book.branch(place);
                    self.add(Rc::clone(&snapshot) as Rc<dyn Target>, &ledger, Some((place, snapshot)));
                }
                Err(_) if self.plan.faults => {}
                Err(error) => book.fail(format!("a healthy world took no snapshot: {error}")),
            }
        }
    }

    /// Makes what the origin holds durable, as who takes a snapshot does.
    async fn make_durable(&self, top: &Rc<Ledger>) -> bool {
        let op = top.model.borrow_mut().begin(Act::Flush, 0..0);
        let status = call(&*self.views[0].target, Bio::flush()).await.status();
        top.model.borrow_mut().end(op, status.is_ok());
        status.is_ok()
    }

    /// Clears the first block of a store, so that a new one is made there.
    async fn clear_store(&self, place: usize) -> bool {
        if self.swarm.places[place].store == StoreKind::Transient {
            return true;
        }
        let store = self.store(place);
        let block = store.limits().logical_bytes;
        let mut buffer = self.pool.take(block as usize);
        buffer.bytes_mut().fill(0);
        let flags = Flags { fua: true, ..Flags::default() };
        let bio = Bio::write(Sector(0), Rc::clone(buffer.segments()), 0, block).with(flags);
        call(&*store, bio).await.status() == Status::Ok
    }

    /// Sends requests until the life's cut has struck or enough were sent.
    async fn load(&mut self, book: &Book) {
        let end = (book.requests() + self.plan.requests).min(self.requests);
        let (mut armed, mut last) = (false, 0);
        let load = self.swarm.load.clone();
        while !book.failed() && book.requests() < self.requests {
            if book.requests() >= end && !armed {
                armed = true;
                self.world.cut_at(self.plan.cut, self.plan.moment);
            }
            self.look_at(book);
            if self.views[0].client.errors.get() > ERRORS_MAX {
                return;
            }
            if self.rng.u32(0..1000) < load.pauses_per_mille {
                self.reactor.sleep(Duration::from_micros(self.rng.u64(0..load.pause_max_ms * 1000))).await;
            }
            let busiest = self.views.iter().max_by_key(|view| view.client.in_flight()).expect("there is an origin");
            let in_flight: usize = self.views.iter().map(|view| view.client.in_flight()).sum();
            if in_flight >= load.depth {
                busiest.client.change().await;
                continue;
            }
            let to_origin = self.views.len() == 1 || self.rng.u32(0..100) < self.swarm.origin_percent;
            let number = if to_origin { 0 } else { self.rng.usize(1..self.views.len()) };
            let ask = load.ask(&mut self.rng);
            let sectors = load.sectors(&mut self.rng, last);
            last = sectors.end;
            let view = &self.views[number];
            if self.world.takes() {
                view.client.send(&*view.target, ask, sectors);
            } else {
                view.ledger.pass_over();
            }
        }
        for view in &self.views {
            view.client.idle().await;
        }
        self.look_at(book);
    }

    /// Asks snapshots that failed requests for the reason.
    fn look_at(&self, book: &Book) {
        if self.plan.faults || self.plan.faults_in_recovery {
            return;
        }
        for view in &self.views {
            let Some((place, snapshot)) = &view.snapshot else { continue };
            if view.client.errors.get() > 0 && snapshot.status().condition == Condition::Active {
                book.fail(format!("a request to the snapshot in place {place} failed, which is well"));
            }
        }
    }

    /// With all disks healthy: a merge comes to its end, and the origin's disk is right.
    async fn finish(&self, book: &Book) {
        if let Some(merge) = &self.merge {
            merge.done().await;
            let status = merge.status();
            if status.left > 0 || status.usage.used != status.usage.metadata {
                return book.fail(format!("a healthy merge did not come to its end: {status:?}"));
            }
            merge.close().await;
        }
        for view in &self.views {
            if let Some((_, snapshot)) = view.snapshot.as_ref().filter(|_| !view.is_lost()) {
                snapshot.close().await;
            }
        }
        let model = book.top.model.borrow();
        let checked = self.world.look(ORIGIN, |bytes| model.check_idle(0, &bytes[..model.len() * SECTOR]));
        book.top.count_checks(model.len());
        if let Err(violation) = checked {
            book.fail(format!("on the origin's disk in the end: {violation}"));
        }
    }
}

/// Whether a store that was just opened keeps no room that nobody uses, but for areas that lie behind the present one:
/// there may be as many as a store has.
fn all_is_used(snapshot: &Snapshot) -> Result<(), String> {
    let status = snapshot.status();
    let (usage, chunk) = (status.usage, status.chunk_sectors);
    let areas = usage.total / chunk / (32 * chunk + 1) + 2;
    if (usage.used - usage.metadata) / chunk <= status.exceptions + areas {
        return Ok(());
    }
    Err(format!("a part of its store is in use for nothing: {status:?}"))
}
