//! Scripts: short sequences of an alphabet of operations, and their run in a world that is watched.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_reactor::BufferPool;

use super::Tiny;
use crate::check::Model;
use crate::run::{Ask, Client, Ledger};
use crate::world::{Cut, Observer, Remains};

/// One letter of an alphabet. Blocks are those of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A request of so many blocks at a block.
    Send(Ask, usize, usize),
    /// Waits until everything is answered and the target has had time for what it does by itself.
    Settle,
    /// Everything is written down to the bottom.
    Drain,
}

/// The alphabet of targets with eight blocks.
pub(crate) const OPERATIONS: [Operation; 12] = [
    Operation::Send(Ask::Write, 0, 1),
    Operation::Send(Ask::Write, 1, 1),
    Operation::Send(Ask::Write, 0, 2),
    Operation::Send(Ask::Write, 3, 4),
    Operation::Send(Ask::WriteFua, 0, 1),
    Operation::Send(Ask::Write, 6, 1),
    Operation::Send(Ask::Zeroes, 0, 1),
    Operation::Send(Ask::Trim, 0, 2),
    Operation::Send(Ask::Read, 0, 2),
    Operation::Send(Ask::Flush, 0, 0),
    Operation::Settle,
    Operation::Drain,
];

/// What stamps are made of: the same for all scripts, so that equal disks are equal.
pub(crate) const SEED: u64 = 0xE;

/// Time that a target is given to settle, longer than any of its own timers.
pub(super) const SETTLE: Duration = Duration::from_secs(3);

/// A moment at which the power may go.
pub(super) struct Point {
    /// What is on the disks then.
    pub(super) remains: Vec<Remains>,
    /// What a restart may bring back.
    pub(super) model: Model,
}

/// Runs a script, and tells all its device steps; those of opening too where `opening`.
pub(super) fn play(tiny: &Tiny, operations: &[Operation], patient: bool, opening: bool) -> Vec<Point> {
    let world = (tiny.world)();
    let ledger = Rc::new(Ledger::new(SEED, tiny.model.clone()));
    let points = Rc::new(RefCell::new(Vec::new()));
    let (seen, known) = (Rc::clone(&points), Rc::clone(&ledger));
    let observer = Box::new(move |remains| {
        let mut model = known.model.borrow().clone();
        model.cut(Cut::Power);
        seen.borrow_mut().push(Point { remains, model });
    });
    let pool = BufferPool::default();
    let reactor = world.restart();
    let mut observer: Option<Observer> = Some(observer);
    if opening && let Some(observer) = observer.take() {
        world.observe(observer);
    }
    let client = Client::new(&world, &ledger, &pool);
    let opened = tiny.subject.open(&world, &reactor, &pool);
    let (sleeper, sender, begin) = (reactor.clone(), Rc::clone(&client), world.clone());
    let block = tiny.block_sectors;
    let root = async move {
        let opened = opened.await.expect("a healthy target opens");
        if let Some(observer) = observer {
            begin.observe(observer);
        }
        for operation in operations {
            match *operation {
                Operation::Send(ask, first, count) => sender.send(opened.target(), ask, first * block..(first + count) * block),
                Operation::Settle => {
                    sender.idle().await;
                    sleeper.sleep(SETTLE).await;
                }
                Operation::Drain => opened.drain().await.expect("a healthy target drains"),
            }
            if patient {
                sender.idle().await;
            }
        }
        sender.idle().await;
        opened.leave().await.expect("a healthy target can be left");
    };
    reactor.run(root).expect("a healthy world goes on");
    client.die();
    reactor.clear();
    assert!(ledger.failure.borrow().is_none(), "{operations:?}: {:?}", ledger.failure.borrow());
    points.take()
}
