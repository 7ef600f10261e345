//! Warm bios allocate nothing: 100,000 of them through a table that splits each in two.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use allocation_counter::measure;
use forebay_block::{Bio, End, Extent, HeapMemory, Limits, Row, Sector, SectorCount, Segments, Status, Table, Target, call};

/// Keeps what it is given until asked to end it, as a device does.
#[derive(Default)]
struct Later(RefCell<Vec<Bio>>);

impl Target for Later {
    fn kind(&self) -> &'static str {
        "later"
    }
    fn limits(&self) -> Limits {
        Limits::unlimited()
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(1000)
    }
    fn submit(&self, bio: Bio) {
        self.0.borrow_mut().push(bio);
    }
}

impl Later {
    fn end_one(&self) {
        let bio = self.0.borrow_mut().pop();
        bio.expect("a bio is there").end(Status::Ok);
    }
}

#[derive(Default)]
struct Count(Cell<u64>);

impl End for Count {
    fn bio_ended(&self, bio: Bio, _token: u64) {
        assert!(bio.status().is_ok());
        self.0.set(self.0.get() + 1);
    }
}

fn two_rows() -> ([Rc<Later>; 2], Table) {
    let below = [Rc::new(Later::default()), Rc::new(Later::default())];
    let row = |start, target: &Rc<Later>| Row {
        extent: Extent::new(Sector(start), SectorCount(1000)),
        target: Rc::clone(target) as Rc<dyn Target>,
    };
    let table = Table::new(vec![row(0, &below[0]), row(1000, &below[1])]).expect("the rows follow each other");
    (below, table)
}

fn end_both(below: &[Rc<Later>; 2]) {
    for target in below {
        target.end_one();
    }
}

#[test]
fn a_hundred_thousand_warm_bios_allocate_nothing() {
    let (below, table) = two_rows();
    let segments = Segments::whole(Box::new(HeapMemory::new(8192, 512)), 8192).expect("8 KiB fit");
    let count = Rc::new(Count::default());
    let end: Rc<dyn End> = Rc::clone(&count) as Rc<dyn End>;
    let ended = |bios: u64| {
        for _ in 0..bios {
            table.submit(Bio::write(Sector(996), Rc::clone(&segments), 0, 4096).on_end(Rc::clone(&end), 0));
            end_both(&below);
        }
    };
    let awaited = |bios: u64| {
        let mut cx = Context::from_waker(Waker::noop());
        for number in 0..bios {
            let mut call = pin!(call(&table, Bio::read(Sector(996), Rc::clone(&segments), 0, 4096)));
            assert!(call.as_mut().poll(&mut cx).is_pending());
            if number % 3 == 0 {
                // Nobody waits for this one any more: it must still return to the pool.
                call.set(call_nobody());
            }
            end_both(&below);
            let ready = call.as_mut().poll(&mut cx);
            assert!(matches!(ready, Poll::Ready(bio) if bio.status().is_ok()));
        }
    };
    ended(100);
    awaited(100);
    assert_eq!(measure(|| ended(50_000)).count_total, 0);
    assert_eq!(measure(|| awaited(50_000)).count_total, 0);
    assert_eq!(count.0.get(), 50_100);
}

/// A call that is over at once.
fn call_nobody() -> forebay_block::bio::Call {
    forebay_block::call_with(Bio::flush(), |bio| bio.end(Status::Ok))
}
