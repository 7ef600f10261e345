//! What devices tell of their holes.

mod common;

use std::rc::Rc;

use common::{Bed, TempFile, filled};
use forebay_block::{Bio, Extent, Flags, Sector, SectorCount, Status, Target, allocation};
use forebay_device::{FileDevice, FileOptions, NullDevice, RamDevice};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

fn told(bed: &Bed, target: &dyn Target, extent: Extent) -> Vec<(u64, bool)> {
    let runs = bed.reactor.run(allocation::runs(target, extent, 100)).expect("the backend works");
    runs.into_iter().map(|run| (run.count.0, run.hole)).collect()
}

#[test]
fn a_file_is_a_hole_where_it_was_never_written_trimmed_or_zeroed() {
    for bed in [Bed::new(), Bed::on_threads()] {
        let temp = TempFile::new("allocation", 4 << 20);
        let device = FileDevice::open(&bed.reactor, &temp.0, &FileOptions::default()).unwrap();
        let all = extent(0, 8192);
        let told = |extent| told(&bed, &*device, extent);
        let done = |bio| assert_eq!(bed.status(&*device, bio), Status::Ok);
        assert_eq!(told(all), [(8192, true)]);
        done(Bio::write(Sector(2048), filled(1 << 20, 1), 0, 1 << 20));
        assert_eq!(told(all), [(2048, true), (2048, false), (4096, true)]);
        assert_eq!(told(extent(2000, 100)), [(48, true), (52, false)]);
        done(Bio::discard(extent(2048, 512)));
        assert_eq!(told(all), [(2560, true), (1536, false), (4096, true)]);
        done(Bio::write_zeroes(extent(3072, 8)));
        assert_eq!(told(extent(2560, 1536)), [(512, false), (8, true), (1016, false)]);
        // Part of a block of the file system is zeroed, and stays.
        done(Bio::write_zeroes(extent(2561, 3)));
        assert_eq!(told(extent(2560, 8)), [(8, false)]);
        let keep = Flags { no_unmap: true, ..Flags::default() };
        done(Bio::write_zeroes(extent(4096, 4096)).with(keep));
        assert_eq!(told(extent(4000, 4192)), [(96, false), (4096, true)], "reserved space reads as zeroes");
    }
}

#[test]
fn a_device_for_reading_tells_its_holes_too() {
    let temp = TempFile::new("allocation-reading", 1 << 20);
    let bed = Bed::new();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
    assert_eq!(told(&bed, &*device, extent(0, 2048)), [(2048, true)]);
}

#[test]
fn a_file_that_shrank_is_data_behind_its_end() {
    let temp = TempFile::new("allocation-shrunk", 1 << 20);
    let bed = Bed::new();
    let device = FileDevice::open(&bed.reactor, &temp.0, &FileOptions::default()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&temp.0).unwrap().set_len(65_536).unwrap();
    assert_eq!(told(&bed, &*device, extent(0, 2048)), [(128, true), (1920, false)]);
}

#[test]
fn the_lock_goes_with_the_device_after_it_was_asked() {
    let temp = TempFile::new("allocation-lock", 1 << 20);
    let options = FileOptions { lock_wait: std::time::Duration::ZERO, ..FileOptions::default() };
    for _ in 0..20 {
        // A ring lets go of its files a little later.
        let bed = Bed::on_threads();
        let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
        assert_eq!(told(&bed, &*device, extent(0, 8)), [(8, true)]);
        // One that nobody waits for.
        drop(allocation::runs(&*device, extent(0, 8), 1));
    }
}

#[test]
fn ram_knows_which_pieces_were_written() {
    let bed = Bed::new();
    let device = RamDevice::new(&bed.reactor, SectorCount(5000)).unwrap();
    let all = extent(0, 5000);
    let told = |extent| told(&bed, &*device, extent);
    let done = |bio| assert_eq!(bed.status(&*device, bio), Status::Ok);
    assert_eq!(told(all), [(5000, true)]);
    done(Bio::write(Sector(127), filled(1024, 1), 0, 1024));
    assert_eq!(told(all), [(256, false), (4744, true)]);
    assert_eq!(told(extent(200, 100)), [(56, false), (44, true)]);
    done(Bio::write_zeroes(extent(100, 156)));
    assert_eq!(told(all), [(128, false), (4872, true)]);
    done(Bio::write(Sector(4992), filled(4096, 1), 0, 4096));
    assert_eq!(told(extent(4000, 1000)), [(992, true), (8, false)]);
    done(Bio::discard(extent(4990, 10)));
    done(Bio::discard(extent(0, 128)));
    assert_eq!(told(all), [(5000, true)]);
}

#[test]
fn null_is_one_hole_unless_it_gives_no_zeroes() {
    let bed = Bed::new();
    let zeroes = NullDevice::new(&bed.reactor, SectorCount(1 << 40)).unwrap();
    let untouched = NullDevice::untouched(&bed.reactor, SectorCount(1 << 40)).unwrap();
    for (device, hole) in [(zeroes as Rc<dyn Target>, true), (untouched, false)] {
        assert_eq!(bed.status(&*device, Bio::write(Sector(0), filled(4096, 3), 0, 4096)), Status::Ok);
        assert_eq!(told(&bed, &*device, extent(0, 1 << 40)), [(1 << 40, hole)]);
    }
}
