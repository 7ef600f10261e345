//! Disks and requests from the same bytes, so that both change together.
//!
//! ```text
//!   bytes ─▶ which target, records ─▶ requests ─▶ power cut ─▶ open ─▶ read back ─┐
//!              ┌──────────────────────────────────────────────────────────────────┘
//!              └─▶ leave ─▶ damage ─▶ open ─▶ what is there now is what must be kept ─▶ requests ─▶ …
//! ```
//!
//! The targets are the tiny ones of [`enumerate`](crate::enumerate): caches, mirrors, clones, snapshots.
//!
//! Invariants:
//! - I1: a target over damaged disks opens or says in a sentence why not. It never panics, hangs, or asks a disk for what
//!   no layer may ask.
//! - I2: what the first read of everything shows after damage is the content from then on: requests, crashes and
//!   restarts keep it as they keep everything else.
//! - I3: without damage and faults nothing fails.
//! - I4: of a mirror only the log is damaged, while its legs are equal: legs that differ behind its back are nobody's
//!   content. The source of a clone is never damaged, since it is never written.

mod record;

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Sector, call};
use forebay_reactor::{BufferPool, Reactor};
use forebay_target::clone::format::{PAGE_BYTES, seal_page, seal_superblock};

use crate::check::{Act, Model, POISON, SECTOR};
use crate::enumerate::{Operation, SEED, SUBJECTS, Tiny};
use crate::run::{Ask, Client, Disturbed, Ledger, Opened};
use crate::world::{Cut, Moment, Stop, World};

use record::{Damage, RECORD_BYTES, Record};

/// Records that are carried out; more bytes mean nothing.
const RECORDS_MAX: usize = 120;
/// Longest request, in blocks of the target.
const BLOCKS_MAX: usize = 8;
/// Seconds after which a life with faults is ended: where a disk is broken for good, requests may wait for ever.
const FAULTY_MAX_S: u64 = 600;
/// More than the longest time for which a target is suspended.
const SUSPENDED_MAX: Duration = Duration::from_millis(1);

/// Carries out what `input` says.
///
/// # Errors
/// Says which invariant was broken, and how.
///
/// # Panics
/// When a target finds a bug in itself.
pub fn play(input: &[u8]) -> Result<(), String> {
    let Some((&[name, variant], records)) = input.split_first_chunk::<2>() else { return Ok(()) };
    let pairs = SUBJECTS.iter().filter(|subject| subject.name != "copy");
    let subject = pairs.clone().nth(usize::from(name) % pairs.count()).expect("inside of the list");
    let variants = (0..).map_while(subject.make).count();
    let tiny = (subject.make)(usize::from(variant) % variants).expect("inside of the variants");
    let records = records.as_chunks::<RECORD_BYTES>().0.iter().take(RECORDS_MAX);
    let mut pair = Pair::new(subject.name, tiny, records.map(|bytes| Record::read(*bytes)).collect());
    pair.lives();
    pair.scene.ledger().failure.take().map_or(Ok(()), Err)
}

/// One input in the making.
struct Pair {
    name: &'static str,
    tiny: Tiny,
    world: World,
    scene: Rc<Scene>,
    /// How the last life ended.
    ended: Option<Cut>,
}

/// What a life shares with whoever outlives it.
struct Scene {
    records: Vec<Record>,
    next: Cell<usize>,
    pool: BufferPool,
    world: World,
    ledger: RefCell<Rc<Ledger>>,
    client: RefCell<Option<Rc<Client>>>,
    opened: RefCell<Option<Rc<dyn Opened>>>,
    block_sectors: usize,
    /// What is trimmed shows nothing that nobody may see.
    trims: bool,
    /// Damage or faults: errors are no failures any more.
    loose: Cell<bool>,
    /// The life left in order, everything durable and all copies of it equal.
    tidy: Cell<bool>,
    /// Nothing more can be found out.
    over: Cell<bool>,
    /// The target was told something, and may be suspended for a moment.
    disturbed: Cell<bool>,
}

impl Pair {
    fn new(name: &'static str, tiny: Tiny, records: Vec<Record>) -> Self {
        let world = (tiny.world)();
        let scene = Scene {
            records,
            next: Cell::new(0),
            pool: BufferPool::default(),
            world: world.clone(),
            ledger: RefCell::new(Rc::new(Ledger::new(SEED, tiny.model.clone()))),
            client: RefCell::default(),
            opened: RefCell::default(),
            block_sectors: tiny.block_sectors,
            trims: tiny.operations.iter().any(|operation| matches!(operation, Operation::Send(Ask::Trim, ..))),
            // Stores of snapshots may be full at any time.
            loose: Cell::new(name == "snapshot"),
            tidy: Cell::new(false),
            over: Cell::new(false),
            disturbed: Cell::new(false),
        };
        Self { name, tiny, world, scene: Rc::new(scene), ended: None }
    }

    fn lives(&mut self) {
        let mut last = false;
        while !self.scene.is_over() {
            let damaged = self.damage();
            self.live(damaged, last);
            if last {
                return;
            }
            last = self.scene.next.get() == self.scene.records.len();
        }
    }

    /// Carries out the damage that is next; whether there was some.
    fn damage(&mut self) -> bool {
        let mut damaged = false;
        while let Some(Record::Damage(damage)) = self.scene.peek() {
            self.scene.take();
            let equal = self.name != "mirror" || self.scene.tidy.get() && self.world.counts().faults == 0;
            if self.ended != Some(Cut::Kill) && equal {
                self.damage_disk(damage);
                damaged = true;
            }
        }
        damaged
    }

    fn damage_disk(&self, damage: Damage) {
        let disks = self.world.disks();
        let which = usize::from(damage.disk);
        let disk = match self.name {
            "mirror" => disks - 1,
            "clone" => which % 2,
            _ => which % disks,
        };
        self.world.preset(disk, |bytes| {
            damage.apply(bytes);
            if damage.seal && self.name == "clone" && disk == 0 {
                let number = damage.place(bytes.len()) / PAGE_BYTES;
                let page = &mut bytes[number * PAGE_BYTES..(number + 1) * PAGE_BYTES];
                if number < 2 { seal_superblock(page) } else { seal_page(page) }
            }
        });
    }

    fn live(&mut self, damaged: bool, last: bool) {
        let scene = &self.scene;
        self.world.heal();
        scene.tidy.set(false);
        scene.loose.set(scene.loose.get() || damaged);
        let reactor = self.world.restart();
        let opening = self.tiny.subject.open(&self.world, &reactor, &scene.pool);
        let (shared, bottom) = (Rc::clone(scene), self.tiny.subject.bottom().filter(|_| last));
        let timer = reactor.clone();
        let root = async move {
            let opened = match opening.await {
                Ok(opened) => opened,
                Err(reason) => return shared.refused(&reason),
            };
            *shared.opened.borrow_mut() = Some(Rc::clone(&opened));
            shared.live(&timer, &*opened, damaged, bottom).await;
        };
        let result = reactor.run(root);
        if let Some(client) = scene.client.take() {
            client.die();
        }
        let (opened, ledger) = (scene.opened.take(), scene.ledger());
        match self.world.stop() {
            Some(Stop::Cut(cut)) => {
                self.ended = Some(cut);
                let mut model = ledger.model.borrow_mut();
                if let Some(opened) = &opened {
                    model.set_atomic(opened.atomic_block_sectors());
                }
                model.cut(cut);
            }
            Some(stop) => ledger.fail(format!("{stop:?}")),
            None if result.is_ok() => {}
            None => ledger.fail("the reactor gave up without a reason".to_owned()),
        }
        reactor.clear();
    }
}

impl Scene {
    fn ledger(&self) -> Rc<Ledger> {
        Rc::clone(&self.ledger.borrow())
    }

    fn is_over(&self) -> bool {
        self.over.get() || self.ledger().failed()
    }

    fn peek(&self) -> Option<Record> {
        self.records.get(self.next.get()).copied()
    }

    fn take(&self) -> Option<Record> {
        let record = self.peek()?;
        self.next.set(self.next.get() + 1);
        Some(record)
    }

    fn refused(&self, reason: &str) {
        self.over.set(true);
        self.tolerate(Err(format!("a healthy target did not open: {reason}")));
    }

    /// A step of the target that must succeed unless something may have gone wrong.
    fn tolerate(&self, result: Result<(), String>) {
        if let Err(reason) = result
            && !self.loose.get()
        {
            self.ledger().fail(reason);
        }
    }

    async fn live(&self, timer: &Reactor, opened: &dyn Opened, damaged: bool, bottom: Option<usize>) {
        let read = if damaged { self.adopt(opened).await } else { self.read_back(opened).await };
        if let Err(reason) = read {
            self.over.set(true);
            return self.tolerate(Err(reason));
        }
        let client = Client::new(&self.world, &self.ledger(), &self.pool);
        *self.client.borrow_mut() = Some(Rc::clone(&client));
        if self.loose.get() {
            client.expect_errors();
        }
        while !self.is_over() && !matches!(self.peek(), None | Some(Record::Damage(_))) {
            let record = self.take().expect("it was looked at");
            self.carry_out(record, timer, opened, &client).await;
        }
        client.idle().await;
        self.leave(timer, opened, &client, bottom).await;
        if !self.is_over() {
            self.world.cut_now(Cut::Power);
            pending::<()>().await;
        }
    }

    async fn carry_out(&self, record: Record, timer: &Reactor, opened: &dyn Opened, client: &Rc<Client>) {
        match record {
            Record::Send { ask, first, count, wait } => {
                let ledger = self.ledger();
                let blocks = ledger.model.borrow().len() / self.block_sectors;
                let first = usize::from(first) % blocks;
                let ask = if ask == Ask::Trim && !self.trims { Ask::Write } else { ask };
                let end = first + 1 + usize::from(count) % BLOCKS_MAX.min(blocks - first);
                client.send(opened.target(), ask, first * self.block_sectors..end * self.block_sectors);
                if wait || client.in_flight() > 16 {
                    client.idle().await;
                }
            }
            Record::Settle { milliseconds } => {
                client.idle().await;
                timer.sleep(Duration::from_millis(milliseconds.into())).await;
            }
            Record::Drain => self.tolerate(self.drain(timer, opened).await),
            Record::Disturb(number) => {
                self.disturbed.set(true);
                let flush = self.ledger().model.borrow_mut().begin(Act::Flush, 0..0);
                let result = opened.disturb(number).await;
                self.ledger().model.borrow_mut().end(flush, result == Ok(Disturbed::Flushed));
                self.tolerate(result.map(|_| ()));
            }
            Record::Cut(cut, step) => self.world.cut_at(cut, Moment::Step(u64::from(step % 512))),
            Record::Fail { disk, after, for_good } => {
                self.world.fail(usize::from(disk) % self.world.disks(), u64::from(after % 32), for_good);
                self.loose.set(true);
                client.expect_errors();
                let (world, time) = (self.world.clone(), timer.sleep(Duration::from_secs(FAULTY_MAX_S)));
                timer.spawn(async move {
                    time.await;
                    world.cut_now(Cut::Power);
                });
            }
            Record::Damage(_) => unreachable!("a life ends before damage"),
        }
    }

    async fn drain(&self, timer: &Reactor, opened: &dyn Opened) -> Result<(), String> {
        if self.disturbed.take() {
            timer.sleep(SUSPENDED_MAX).await;
        }
        opened.drain().await
    }

    /// Ends a life in order: everything is written down, and durable.
    async fn leave(&self, timer: &Reactor, opened: &dyn Opened, client: &Rc<Client>, bottom: Option<usize>) {
        let drained = self.drain(timer, opened).await;
        let equal = drained.is_ok();
        self.tolerate(drained.map_err(|reason| format!("a healthy target did not drain: {reason}")));
        let ledger = self.ledger();
        if let Some(bottom) = bottom.filter(|_| equal) {
            let model = ledger.model.borrow();
            let checked = self.world.look(bottom, |bytes| model.check_idle(0, &bytes[..bytes.len().min(model.len() * SECTOR)]));
            if let Err(violation) = checked {
                ledger.fail(format!("at the bottom, once drained: {violation}"));
            }
        }
        client.send(opened.target(), Ask::Flush, 0..0);
        client.idle().await;
        let left = opened.leave().await;
        self.tidy.set(equal && left.is_ok());
        self.tolerate(left.map_err(|reason| format!("a healthy target did not stop: {reason}")));
    }

    /// Holds everything against what may have survived.
    async fn read_back(&self, opened: &dyn Opened) -> Result<(), String> {
        let ledger = self.ledger();
        let sectors = ledger.model.borrow().len();
        let found = self.read(opened, sectors).await?;
        let observed = ledger.model.borrow_mut().observe(0, &found);
        let settled = observed.and_then(|()| ledger.model.borrow_mut().settle());
        if let Err(violation) = settled {
            ledger.fail(violation.to_string());
        }
        Ok(())
    }

    /// Takes what a target over damaged disks shows as its content.
    async fn adopt(&self, opened: &dyn Opened) -> Result<(), String> {
        let old = self.ledger();
        let sectors = old.model.borrow().len();
        let found = self.read(opened, sectors).await?;
        if old.failed() {
            return Ok(());
        }
        let seed = old.seed + 1;
        *self.ledger.borrow_mut() = Rc::new(Ledger::new(seed, Model::of_content(seed, found)));
        self.read_back(opened).await
    }

    async fn read(&self, opened: &dyn Opened, sectors: usize) -> Result<Vec<u8>, String> {
        let bytes = sectors * SECTOR;
        let mut buffer = self.pool.take(bytes);
        buffer.bytes_mut()[..bytes].fill(POISON);
        let length = u32::try_from(bytes).expect("a tiny device");
        let status = call(opened.target(), Bio::read(Sector(0), Rc::clone(buffer.segments()), 0, length)).await.status();
        if status.is_ok() {
            Ok(buffer.bytes_mut()[..bytes].to_vec())
        } else {
            Err(format!("reading everything ended with {status:?} in a healthy world"))
        }
    }
}

#[cfg(test)]
mod tests;
