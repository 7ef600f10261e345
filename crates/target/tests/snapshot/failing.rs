//! Stores whose device fails: flushes go one at a time, since of two side by side the one may take the error of the
//! other; and a store is marked as lost as soon as that is possible.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Bio, Limits, Op, SectorCount, Status, Target, call};
use forebay_reactor::BufferPool;
use forebay_target::snapshot::options::Discards;
use forebay_target::snapshot::{Condition, Origin, OriginFront, Setup, open};

use crate::rig::{P, Rig, Wish};
use crate::support::{MemoryDisk, payload, platter, reactor, write};

/// A disk that holds flushes back until it is told how they end.
struct Slow {
    disk: Rc<MemoryDisk>,
    hold: Cell<bool>,
    held: RefCell<Vec<Bio>>,
}

impl Slow {
    fn end_all(&self, status: Status) {
        self.hold.set(false);
        for bio in self.held.take() {
            bio.end(status);
        }
    }
}

impl Target for Slow {
    fn kind(&self) -> &'static str {
        "slow"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn sectors(&self) -> SectorCount {
        self.disk.sectors()
    }

    fn submit(&self, bio: Bio) {
        if self.hold.get() && bio.op() == Op::Flush { self.held.borrow_mut().push(bio) } else { self.disk.submit(bio) }
    }
}

/// What a flush of a client that fails means for what is committed meanwhile; with `fua`, one that is in a write.
fn a_failing_flush_of_a_client(fua: bool) {
    let (reactor, pool) = (reactor(), BufferPool::default());
    let (below, cow) = (platter(1024 * 512), platter(512 * 512));
    let disk = MemoryDisk::new(&reactor, Rc::clone(&cow));
    let slow = Rc::new(Slow { disk, hold: Cell::default(), held: RefCell::default() });
    let origin = Origin::new(&reactor, &pool, MemoryDisk::new(&reactor, Rc::clone(&below)));
    let (store, discards, sectors) = (P, Discards::Refused, SectorCount(1024));
    let setup = Setup {
        origin: Rc::clone(&origin),
        cow: Rc::clone(&slow) as Rc<dyn Target>,
        sectors,
        store,
        chunk_sectors: 8,
        discards,
        coalesce: true,
    };
    let run = async {
        let snapshot = open(&reactor, &pool, setup).await.unwrap();
        let front = OriginFront::new(Rc::clone(&origin), sectors).unwrap();
        assert_eq!(write(&*snapshot, 0, &[1; 4096], false).await, Status::Ok);
        slow.hold.set(true);
        let asked = if fua {
            let flags = forebay_block::Flags { fua: true, ..Default::default() };
            call(&*snapshot, Bio::write(forebay_block::Sector(0), payload(&[2; 512]), 0, 512).with(flags))
        } else {
            call(&*snapshot, Bio::flush())
        };
        reactor.sleep(Duration::from_secs(1)).await;
        let changed = call(&front, Bio::write(forebay_block::Sector(80), payload(&[7; 4096]), 0, 4096));
        reactor.sleep(Duration::from_secs(1)).await;
        assert_eq!(slow.held.borrow().len(), 1, "the commit waits until it is known how that ends");
        assert_eq!(below.borrow().bytes[80 * 512], 0, "and so does the change");
        slow.end_all(Status::IoError);
        assert_eq!((asked.await.status(), changed.await.status()), (Status::IoError, Status::Ok));
        assert_eq!(snapshot.status().condition, Condition::Invalid);
        assert_eq!(snapshot.status().exceptions, 1, "nothing was called durable");
    };
    reactor.run(run).unwrap();
    reactor.clear();
    assert_eq!((cow.borrow().bytes[4], below.borrow().bytes[80 * 512]), (0, 7));
}

#[test]
fn a_commit_does_not_believe_its_flush_while_one_of_a_client_may_fail() {
    a_failing_flush_of_a_client(false);
}

#[test]
fn nor_while_a_write_that_is_to_be_durable_at_once_may_fail() {
    a_failing_flush_of_a_client(true);
}

#[test]
fn a_store_that_is_gone_is_marked_when_it_comes_back_and_the_origin_does_not_wait_for_that() {
    for by_close in [false, true] {
        let wish = Wish::new(P, 8, 64);
        let rig = Rig::new(1024, std::slice::from_ref(&wish));
        rig.run(async |life| {
            wish.cow.borrow_mut().bad.extend([(Op::Write, 0), (Op::Write, 16)]);
            assert_eq!(write(&life.front, 0, &[7; 512], false).await, Status::Ok);
            assert_eq!((life.status(0).as_str(), wish.cow.borrow().bytes[4]), ("Invalid", 1));
            if by_close {
                wish.cow.borrow_mut().bad.clear();
                life.snapshots[0].close().await;
            } else {
                life.reactor.sleep(Duration::from_mins(1)).await;
                assert_eq!(wish.cow.borrow().bytes[4], 1);
                wish.cow.borrow_mut().bad.clear();
                life.reactor.sleep(Duration::from_secs(11)).await;
            }
        });
        assert_eq!(wish.cow.borrow().bytes[4], 0);
        rig.run(async |life| assert_eq!(life.status(0), "Invalid"));
    }
}
