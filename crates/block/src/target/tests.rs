//! Tables: what they refuse, where they send bios, and when a bio that they cut ends.

use std::cell::{Cell, RefCell};

use super::*;
use crate::bio::{End, Flags};
use crate::bvec::{HeapMemory, Segments};
use proptest::prelude::*;

/// Keeps the bios that reach it.
struct Shelf {
    limits: Limits,
    sectors: u64,
    bios: RefCell<Vec<Bio>>,
}

impl Target for Shelf {
    fn kind(&self) -> &'static str {
        "shelf"
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors)
    }
    fn submit(&self, bio: Bio) {
        self.bios.borrow_mut().push(bio);
    }
}

impl Shelf {
    fn new(sectors: u64, limits: Limits) -> Rc<Self> {
        Rc::new(Self { limits, sectors, bios: RefCell::default() })
    }

    fn seen(&self) -> Vec<(Op, Extent)> {
        self.bios.borrow().iter().map(|bio| (bio.op(), bio.extent())).collect()
    }

    fn end_all(&self, status: Status) {
        for bio in self.bios.take() {
            bio.end(status);
        }
    }
}

/// How often a bio ended, and how.
#[derive(Default)]
struct Count(Cell<u32>, Cell<Option<Status>>);

impl End for Count {
    fn bio_ended(&self, bio: Bio, _token: u64) {
        self.0.set(self.0.get() + 1);
        self.1.set(Some(bio.status()));
    }
}

impl Count {
    fn watch(self: &Rc<Self>, bio: Bio) -> Bio {
        bio.on_end(Rc::clone(self) as Rc<dyn End>, 0)
    }
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

fn row(start: u64, count: u64, shelf: &Rc<Shelf>) -> Row {
    Row { extent: extent(start, count), target: Rc::clone(shelf) as Rc<dyn Target> }
}

/// Three rows of 100, 50 and 30 sectors.
fn three() -> ([Rc<Shelf>; 3], Table) {
    let shelves = [100, 60, 30].map(|sectors| Shelf::new(sectors, Limits::unlimited()));
    let rows = vec![row(0, 100, &shelves[0]), row(100, 50, &shelves[1]), row(150, 30, &shelves[2])];
    let table = Table::new(rows).unwrap();
    (shelves, table)
}

fn payload(bytes: u32) -> Rc<Segments> {
    Segments::whole(Box::new(HeapMemory::new(bytes as usize, 512)), bytes).unwrap()
}

fn write(sector: u64, bytes: u32) -> Bio {
    Bio::write(Sector(sector), payload(bytes), 0, bytes)
}

/// Submits and tells how the bio ended, if it did.
fn submit(table: &Table, bio: Bio) -> Option<Status> {
    let count = Rc::new(Count::default());
    table.submit(count.watch(bio));
    assert!(count.0.get() <= 1);
    count.1.get()
}

#[test]
fn rows_must_follow_each_other() {
    let shelf = Shelf::new(100, Limits::unlimited());
    let error = |rows| Table::new(rows).err();
    assert_eq!(error(vec![]), Some(TableError::Empty));
    assert_eq!(error(vec![row(1, 10, &shelf)]), Some(TableError::Gap(Sector(0))));
    assert_eq!(error(vec![row(0, 10, &shelf), row(11, 10, &shelf)]), Some(TableError::Gap(Sector(10))));
    assert_eq!(error(vec![row(0, 10, &shelf), row(9, 10, &shelf)]), Some(TableError::Gap(Sector(10))));
    assert_eq!(error(vec![row(0, 0, &shelf)]), Some(TableError::Length(extent(0, 0))));
    assert_eq!(error(vec![row(0, 101, &shelf)]), Some(TableError::Length(extent(0, 101))));
    let blocks = Shelf::new(100, Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() });
    assert_eq!(error(vec![row(0, 9, &blocks)]), Some(TableError::Misaligned(extent(0, 9))));
    assert_eq!(error(vec![row(0, 4, &shelf), row(4, 8, &blocks)]), Some(TableError::Misaligned(extent(4, 8))));
}

#[test]
fn a_bio_inside_a_row_is_remapped_and_passed_on_whole() {
    let (shelves, table) = three();
    assert_eq!(submit(&table, write(120, 1024)), None);
    assert_eq!(submit(&table, Bio::discard(extent(150, 30))), None);
    assert_eq!(submit(&table, Bio::write_zeroes(extent(0, 100))), None);
    assert_eq!(shelves[0].seen(), [(Op::WriteZeroes, extent(0, 100))]);
    assert_eq!(shelves[1].seen(), [(Op::Write, extent(20, 2))]);
    assert_eq!(shelves[2].seen(), [(Op::Discard, extent(0, 30))]);
}

#[test]
fn a_bio_over_several_rows_becomes_a_part_for_each() {
    let (shelves, table) = three();
    let count = Rc::new(Count::default());
    table.submit(count.watch(write(90, 80 * 512)));
    assert_eq!(shelves[0].seen(), [(Op::Write, extent(90, 10))]);
    assert_eq!(shelves[1].seen(), [(Op::Write, extent(0, 50))]);
    assert_eq!(shelves[2].seen(), [(Op::Write, extent(0, 20))]);
    shelves[2].end_all(Status::NoSpace);
    shelves[0].end_all(Status::IoError);
    assert_eq!(count.0.get(), 0);
    shelves[1].end_all(Status::Ok);
    assert_eq!((count.0.get(), count.1.get()), (1, Some(Status::NoSpace)));
}

#[test]
fn a_row_without_flushes_neither_gets_one_nor_hides_that_of_the_others() {
    let none = Limits { flush: Ability::No, ..Limits::unlimited() };
    let (volatile, durable) = (Shelf::new(8, Limits::unlimited()), Shelf::new(8, none));
    let table = Table::new(vec![row(0, 8, &durable), row(8, 8, &volatile)]).unwrap();
    assert_eq!(table.limits().flush, Ability::Native);
    let count = Rc::new(Count::default());
    table.submit(count.watch(Bio::flush()));
    assert_eq!((durable.seen(), volatile.seen()), (vec![], vec![(Op::Flush, extent(0, 0))]));
    volatile.end_all(Status::Ok);
    assert_eq!((count.0.get(), count.1.get()), (1, Some(Status::Ok)));
    let table = Table::new(vec![row(0, 8, &durable)]).unwrap();
    assert_eq!((table.limits().flush, submit(&table, Bio::flush())), (Ability::No, Some(Status::Ok)));
    assert_eq!(durable.seen(), []);
}

#[test]
fn a_flush_reaches_every_row_and_ends_after_all() {
    let (shelves, table) = three();
    let count = Rc::new(Count::default());
    table.submit(count.watch(Bio::flush()));
    for shelf in &shelves {
        assert_eq!(count.0.get(), 0);
        assert_eq!(shelf.seen(), [(Op::Flush, extent(0, 0))]);
        shelf.end_all(Status::Ok);
    }
    assert_eq!((count.0.get(), count.1.get()), (1, Some(Status::Ok)));
}

#[test]
fn a_part_that_a_target_drops_ends_the_bio_aborted() {
    let (shelves, table) = three();
    let count = Rc::new(Count::default());
    table.submit(count.watch(write(90, 20 * 512)));
    shelves[0].end_all(Status::Ok);
    drop(shelves[1].bios.take());
    assert_eq!((count.0.get(), count.1.get()), (1, Some(Status::Aborted)));
}

#[test]
fn what_does_not_fit_is_refused_and_reaches_nobody() {
    let (shelves, table) = three();
    let refused = [
        write(180, 512),
        write(179, 1024),
        write(u64::MAX, 512),
        Bio::write(Sector(0), payload(1024), 0, 0),
        Bio::write(Sector(0), payload(1024), 0, 100),
        Bio::discard(extent(0, 0)),
        Bio::discard(extent(0, 181)),
        Bio::write_zeroes(extent(u64::MAX, 1)),
    ];
    for bio in refused {
        assert_eq!(submit(&table, bio), Some(Status::IoError));
    }
    assert!(shelves.iter().all(|shelf| shelf.seen().is_empty()));
}

#[test]
fn operations_that_are_not_offered_are_unsupported() {
    let limits = Limits { discard: Ability::No, write_zeroes: Ability::No, ..Limits::unlimited() };
    let shelf = Shelf::new(8, limits);
    let table = Table::new(vec![row(0, 8, &shelf)]).unwrap();
    assert_eq!(submit(&table, Bio::discard(extent(0, 8))), Some(Status::Unsupported));
    assert_eq!(submit(&table, Bio::write_zeroes(extent(0, 8))), Some(Status::Unsupported));
    assert!(shelf.seen().is_empty());
}

#[test]
fn behaviour_14_what_is_unaligned_is_an_error_and_nothing_is_written() {
    let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, memory_align: 512, ..Limits::unlimited() };
    let shelf = Shelf::new(800, limits);
    let table = Table::new(vec![row(0, 800, &shelf)]).unwrap();
    let unaligned_address = Segments::ranges(Box::new(HeapMemory::new(8192, 4096)), &[(256, 4096)]).unwrap();
    let refused = [
        write(4, 4096),
        write(0, 4096 + 512),
        Bio::write(Sector(0), unaligned_address, 0, 4096),
        Bio::discard(extent(8, 4)),
        Bio::write_zeroes(extent(4, 8)),
    ];
    for bio in refused {
        assert_eq!(submit(&table, bio), Some(Status::IoError));
    }
    assert!(shelf.seen().is_empty());
    assert_eq!(submit(&table, write(8, 8192)), None);
    assert_eq!(shelf.seen(), [(Op::Write, extent(8, 16))]);
}

#[test]
fn behaviour_14_a_bio_that_may_not_wait_and_must_be_cut_is_told_to_come_again() {
    let no_wait = Flags { no_wait: true, ..Flags::default() };
    let shelves = [1, 2].map(|_| Shelf::new(100, Limits { max_sectors: 16, ..Limits::unlimited() }));
    let table = Table::new(vec![row(0, 100, &shelves[0]), row(100, 100, &shelves[1])]).unwrap();
    assert_eq!(submit(&table, write(96, 8 * 512).with(no_wait)), Some(Status::Again));
    assert_eq!(submit(&table, write(0, 17 * 512).with(no_wait)), Some(Status::Again));
    assert_eq!(submit(&table, Bio::discard(extent(99, 2)).with(no_wait)), Some(Status::Again));
    assert!(shelves.iter().all(|shelf| shelf.seen().is_empty()), "nothing is written");
    assert_eq!(submit(&table, write(84, 16 * 512).with(no_wait)), None);
    assert_eq!(submit(&table, Bio::discard(extent(0, 100)).with(no_wait)), None);
    assert_eq!(shelves[0].seen(), [(Op::Write, extent(84, 16)), (Op::Discard, extent(0, 100))]);
}

#[test]
fn a_table_is_a_target_of_another() {
    let (shelves, inner) = three();
    let rows = vec![Row { extent: extent(0, 180), target: Rc::new(inner) }];
    let outer = Table::new(rows).unwrap();
    assert_eq!(submit(&outer, write(140, 20 * 512)), None);
    assert_eq!(shelves[1].seen(), [(Op::Write, extent(40, 10))]);
    assert_eq!(shelves[2].seen(), [(Op::Write, extent(0, 10))]);
    assert_eq!((outer.sectors(), outer.kind(), outer.rows().len()), (SectorCount(180), "table", 1));
}

proptest! {
    /// Writes bytes through a random table into its shelves, and compares with one flat model.
    #[test]
    fn writes_land_where_a_flat_device_would_have_them(
        lengths in proptest::collection::vec(1..20_u64, 1..6),
        writes in proptest::collection::vec((0..100_u64, 1..60_u64), 1..20),
    ) {
        let shelves: Vec<Rc<Shelf>> = lengths.iter().map(|sectors| Shelf::new(*sectors, Limits::unlimited())).collect();
        let mut rows = Vec::new();
        let mut starts = Vec::new();
        let mut end = 0;
        for (shelf, sectors) in shelves.iter().zip(&lengths) {
            rows.push(row(end, *sectors, shelf));
            starts.push(end);
            end += sectors;
        }
        let table = Table::new(rows).unwrap();
        let mut model: Vec<u8> = vec![0; usize::try_from(end * 512).unwrap()];
        let mut disk = model.clone();
        for (number, (start, count)) in writes.into_iter().enumerate() {
            let mark = u8::try_from(number + 1).unwrap();
            let bio = write(start, u32::try_from(count * 512).unwrap());
            let marked: Vec<u8> = (0..count * 512).map(|at| mark ^ u8::try_from(at / 512).unwrap()).collect();
            bio.copy_in(&marked);
            let inside = start + count <= end;
            let count_ends = Rc::new(Count::default());
            table.submit(count_ends.watch(bio));
            for (shelf, base) in shelves.iter().zip(&starts) {
                for bio in shelf.bios.take() {
                    let at = usize::try_from((base + bio.sector().0) * 512).unwrap();
                    bio.copy_out(&mut disk[at..at + usize::try_from(bio.bytes()).unwrap()]);
                    bio.end(Status::Ok);
                }
            }
            prop_assert_eq!(count_ends.0.get(), 1);
            prop_assert_eq!(count_ends.1.get(), Some(if inside { Status::Ok } else { Status::IoError }));
            if inside {
                let at = usize::try_from(start * 512).unwrap();
                model[at..at + marked.len()].copy_from_slice(&marked);
            }
            prop_assert_eq!(&disk, &model);
        }
    }
}
