//! Devices in memory: RAM and null.

mod common;

use std::rc::Rc;

use common::{Bed, bytes_of, filled, memory, pattern};
use forebay_block::{Bio, Extent, Sector, SectorCount, Status, Target};
use forebay_device::{DeviceError, NullDevice, RamDevice};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

#[test]
fn ram_begins_as_zeroes_and_keeps_what_is_written() {
    let bed = Bed::new();
    let device = RamDevice::new(&bed.reactor, SectorCount(5000)).unwrap();
    let whole = || {
        let found = memory(5000 * 512);
        assert_eq!(bed.status(&*device, Bio::read(Sector(0), Rc::clone(&found), 0, 5000 * 512)), Status::Ok);
        bytes_of(found)
    };
    let mut expected = vec![0; 5000 * 512];
    assert!(whole() == expected);
    assert_eq!(bed.status(&*device, Bio::write(Sector(4872), filled(65_536, 1), 0, 65_536)), Status::Ok);
    expected[4872 * 512..].copy_from_slice(&pattern(65_536, 1));
    assert_eq!(bed.status(&*device, Bio::flush()), Status::Ok);
    assert!(whole() == expected);
    assert_eq!(bed.status(&*device, Bio::discard(extent(4900, 3))), Status::Ok);
    assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(4990, 10))), Status::Ok);
    expected[4900 * 512..4903 * 512].fill(0);
    expected[4990 * 512..].fill(0);
    assert!(whole() == expected);
}

#[test]
fn requests_outside_fail() {
    let bed = Bed::new();
    let ram = RamDevice::new(&bed.reactor, SectorCount(100)).unwrap();
    let null = NullDevice::new(&bed.reactor, SectorCount(100)).unwrap();
    for device in [ram as Rc<dyn Target>, null] {
        assert_eq!(bed.status(&*device, Bio::write(Sector(99), memory(1024), 0, 1024)), Status::IoError);
        assert_eq!(bed.status(&*device, Bio::read(Sector(1 << 54), memory(512), 0, 512)), Status::IoError);
        assert_eq!(bed.status(&*device, Bio::discard(extent(0, 101))), Status::IoError);
        assert_eq!(bed.status(&*device, Bio::write(Sector(99), memory(512), 0, 512)), Status::Ok);
    }
}

#[test]
fn ram_that_does_not_fit_is_refused_before_it_is_taken() {
    let bed = Bed::new();
    for sectors in [1 << 40, 1 << 54, u64::MAX] {
        let error = RamDevice::new(&bed.reactor, SectorCount(sectors)).err().expect("too large");
        assert!(matches!(error, DeviceError::NoMemory { .. }), "{error}");
    }
    let error = RamDevice::new(&bed.reactor, SectorCount(0)).err().expect("too small");
    assert!(matches!(error, DeviceError::TooSmall { .. }), "{error}");
}

#[test]
fn null_reads_zeroes_unless_it_leaves_memory_untouched() {
    let bed = Bed::new();
    let zeroes = NullDevice::new(&bed.reactor, SectorCount(1 << 40)).unwrap();
    let untouched = NullDevice::untouched(&bed.reactor, SectorCount(1 << 40)).unwrap();
    for (device, expected) in [(zeroes, vec![0; 4096]), (untouched, pattern(4096, 3))] {
        let found = filled(4096, 3);
        assert_eq!(bed.status(&*device, Bio::write(Sector(0), Rc::clone(&found), 0, 4096)), Status::Ok);
        assert_eq!(bed.status(&*device, Bio::read(Sector(1 << 39), Rc::clone(&found), 0, 4096)), Status::Ok);
        assert_eq!(bytes_of(found), expected);
    }
}
