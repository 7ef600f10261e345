//! Every I/O error of every short script: the k-th request of each disk fails, once and for good, and again while
//! that is recovered.
//!
//! ```text
//!   script, k-th request fails ─▶ power cut ─▶ opened with the j-th failing ─▶ power cut ─▶ healthy: read back
//! ```
//!
//! Nothing that was acknowledged and durable may be lost, whatever failed; what failed may be there or not. What a
//! target has given up for ever is not looked at; and where a disk fails for good, which cannot be told so, not even
//! when that is forgotten.

use std::cell::RefCell;
use std::future::pending;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::{Bio, Sector, call};
use forebay_reactor::{BufferPool, Reactor};

use super::script::{Operation, SETTLE};
use super::{Make, SEED, TOLD_MAX, Tiny};
use crate::check::{POISON, SECTOR};
use crate::run::{Client, Ledger, Opened};
use crate::world::{Cut, Stop, World};

/// Simulated time after which a life is ended that waits for a disk which never recovers.
const LIFE_MAX: Duration = Duration::from_mins(10);

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs with an error in them.
    pub runs: u64,
    /// Of them, those with another error while they were recovered.
    pub again: u64,
    /// Runs that ended with what may not be.
    pub failed: u64,
}

/// An error to be injected.
#[derive(Clone, Copy, Debug)]
struct Failing {
    disk: usize,
    after: u64,
    for_good: bool,
}

/// Sweeps all scripts of up to `length` operations on variant number `variant` of what `make` makes. Failures are
/// printed. `None` where there is no such variant.
///
/// # Panics
/// Where a healthy world shows a failure.
#[must_use]
pub fn sweep(make: Make, variant: usize, length: u32, jobs: usize) -> Option<Swept> {
    let scripts = make(variant)?.scripts(length);
    let (next, total) = (AtomicU64::new(0), Mutex::new(Swept::default()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                let tiny = make(variant).expect("looked for above");
                let mut worker = Worker { tiny, pool: BufferPool::default(), swept: Swept::default() };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= scripts {
                        break;
                    }
                    worker.script(number);
                }
                let mut total = total.lock().expect("no worker panics while it adds");
                let Swept { runs, again, failed } = worker.swept;
                *total = Swept { runs: total.runs + runs, again: total.again + again, failed: total.failed + failed };
            });
        }
    });
    Some(total.into_inner().expect("all workers have ended"))
}

struct Worker {
    tiny: Tiny,
    pool: BufferPool,
    swept: Swept,
}

/// A world and what is known of it.
struct Run<'a> {
    tiny: &'a Tiny,
    pool: &'a BufferPool,
    world: World,
    ledger: Rc<Ledger>,
    /// What was given up in any life.
    given_up: RefCell<Vec<Range<usize>>>,
}

impl Worker {
    fn script(&mut self, number: u64) {
        let operations = self.tiny.script(number);
        for for_good in [false, true] {
            for disk in 0..(self.tiny.world)().disks() {
                let mut after = 0;
                while self.errors(&operations, Failing { disk, after, for_good }) {
                    after += 1;
                }
            }
        }
    }

    /// All runs of a script with this first error; false where the script asks the disk for less.
    fn errors(&mut self, operations: &[Operation], first: Failing) -> bool {
        let mut seconds = vec![None];
        let mut at = 0;
        while let Some(&second) = seconds.get(at) {
            let run = Run::new(&self.tiny, &self.pool);
            let (reached, recovering) = run.with(operations, first, second);
            if !reached {
                return false;
            }
            if at == 0 {
                // As many errors as this recovery has requests.
                for (disk, requests) in recovering.into_iter().enumerate() {
                    seconds.extend((0..requests).map(|after| Some(Failing { disk, after, for_good: first.for_good })));
                }
            }
            at += 1;
            self.swept.runs += 1;
            self.swept.again += u64::from(second.is_some());
            if let Some(reason) = run.ledger.failure.take() {
                self.swept.failed += 1;
                if self.swept.failed <= TOLD_MAX {
                    println!("{operations:?}, {first:?}, then {second:?}: {reason}");
                }
            }
        }
        true
    }
}

impl<'a> Run<'a> {
    fn new(tiny: &'a Tiny, pool: &'a BufferPool) -> Self {
        let ledger = Ledger::new(SEED, tiny.model.clone());
        Self { tiny, pool, world: (tiny.world)(), ledger: Rc::new(ledger), given_up: RefCell::default() }
    }

    /// Whether the first error was reached, and how many requests each disk saw while that was recovered.
    fn with(&self, operations: &[Operation], first: Failing, second: Option<Failing>) -> (bool, Vec<u64>) {
        self.world.fail(first.disk, first.after, first.for_good);
        let (operations, block) = (operations.to_vec(), self.tiny.block_sectors);
        self.live(|reactor, opened, client| Box::pin(perform(reactor, opened, client, operations, block)));
        let reached = self.world.requests_of(first.disk) > first.after;
        self.world.heal();
        if let Some(second) = second {
            self.world.fail(second.disk, second.after, second.for_good);
            self.live(|_, _, _| Box::pin(async {}));
            self.world.heal();
        }
        let requests = |disk| self.world.requests_of(disk);
        let before: Vec<u64> = (0..self.world.disks()).map(requests).collect();
        let (ledger, pool, bytes) = (Rc::clone(&self.ledger), self.pool.clone(), self.tiny.model.len() * SECTOR);
        let given_up = if first.for_good { self.given_up.take() } else { Vec::new() };
        let read_back = self.live(|_, opened, _| Box::pin(read_back(opened, ledger, pool, bytes, given_up)));
        if !read_back {
            self.ledger.fail("a healthy world did not open".to_owned());
        }
        let after = (0..self.world.disks()).map(requests);
        (reached, after.zip(before).map(|(after, before)| after - before).collect())
    }

    /// One life, ended by a power cut; false where the target did not open.
    fn live(&self, work: impl FnOnce(Reactor, Rc<dyn Opened>, Rc<Client>) -> Work) -> bool {
        let reactor = self.world.restart();
        let client = Client::new(&self.world, &self.ledger, self.pool);
        client.expect_errors();
        let opening = self.tiny.subject.open(&self.world, &reactor, self.pool);
        let (world, life) = (self.world.clone(), reactor.sleep(LIFE_MAX));
        reactor.spawn(async move {
            life.await;
            world.cut_now(Cut::Power);
        });
        let (world, answerer, did_open) = (self.world.clone(), Rc::clone(&client), Rc::new(RefCell::new(None)));
        let (opened, inside) = (Rc::clone(&did_open), reactor.clone());
        let root = async move {
            if let Ok(target) = opening.await {
                *opened.borrow_mut() = Some(Rc::clone(&target));
                work(inside, target, answerer).await;
            }
            world.cut_now(Cut::Power);
            pending::<()>().await;
        };
        let ended = reactor.run(root);
        client.die();
        reactor.clear();
        if ended.is_ok() || self.world.stop() != Some(Stop::Cut(Cut::Power)) {
            self.ledger.fail(format!("{:?}", self.world.stop()));
        }
        self.ledger.model.borrow_mut().cut(Cut::Power);
        let Some(target) = did_open.take() else { return false };
        self.given_up.borrow_mut().extend(target.lost());
        true
    }
}

type Work = Pin<Box<dyn Future<Output = ()>>>;

async fn perform(reactor: Reactor, opened: Rc<dyn Opened>, client: Rc<Client>, operations: Vec<Operation>, block: usize) {
    for operation in operations {
        match operation {
            Operation::Send(ask, first, count) => {
                client.send(opened.target(), ask, first * block..(first + count) * block);
                client.idle().await;
            }
            Operation::Settle => reactor.sleep(SETTLE).await,
            // Where a disk is broken it may fail, or never end.
            Operation::Drain => drop(opened.drain().await),
        }
    }
    drop(opened.leave().await);
}

/// Reads everything but what is lost or was given up before, in one go where nothing is.
async fn read_back(opened: Rc<dyn Opened>, ledger: Rc<Ledger>, pool: BufferPool, bytes: usize, given_up: Vec<Range<usize>>) {
    let mut skipped = [opened.lost(), given_up].concat();
    skipped.sort_unstable_by_key(|lost| lost.start);
    let (mut at, end) = (0, bytes / SECTOR);
    for lost in skipped.into_iter().chain(std::iter::once(end..end)) {
        if at < lost.start {
            read_range(&*opened, &ledger, &pool, at..lost.start).await;
        }
        at = at.max(lost.end);
    }
}

async fn read_range(opened: &dyn Opened, ledger: &Ledger, pool: &BufferPool, sectors: Range<usize>) {
    let bytes = sectors.len() * SECTOR;
    let mut buffer = pool.take(bytes);
    buffer.bytes_mut()[..bytes].fill(POISON);
    let length = u32::try_from(bytes).expect("a tiny device");
    let read = Bio::read(Sector(sectors.start as u64), Rc::clone(buffer.segments()), 0, length);
    let status = call(opened.target(), read).await.status();
    let observed = ledger.model.borrow_mut().observe(sectors.start, &buffer.bytes_mut()[..bytes]);
    match observed {
        _ if !status.is_ok() => ledger.fail(format!("reading back ended with {status:?} in a healthy world")),
        Err(violation) => ledger.fail(violation.to_string()),
        Ok(()) => {}
    }
}
