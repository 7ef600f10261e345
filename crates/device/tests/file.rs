//! Files at the bottom of a stack: opening them, what they do, and what goes wrong with them.

#![expect(clippy::disallowed_methods, reason = "a test plays the other process on a thread")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::PoisonError;
use std::time::Duration;

use common::{Bed, STARTING, TempFile, bytes_of, filled, inside_mount, memory, pattern, warnings_of};
use forebay_block::{Ability, Bio, Extent, Flags, Sector, SectorCount, Status, Target};
use forebay_device::{DeviceError, Direct, FileDevice, FileOptions};

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

fn refusal(path: &Path, options: &FileOptions) -> DeviceError {
    let bed = Bed::new();
    FileDevice::open(&bed.reactor, path, options).err().expect("the device is refused")
}

#[test]
fn data_comes_back_on_either_engine_and_with_or_without_direct_io() {
    for direct in [Direct::Auto, Direct::Off] {
        for bed in [Bed::new(), Bed::on_threads()] {
            let temp = TempFile::new("data", 1 << 20);
            let options = FileOptions { direct, ..FileOptions::default() };
            let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
            assert_eq!(device.sectors(), SectorCount(2048));
            assert_eq!(device.limits().memory_align > 1, device.is_direct(), "direct I/O asks for aligned memory");
            assert!(direct == Direct::Auto || !device.is_direct());
            let fua = Flags { fua: true, ..Flags::default() };
            let write = Bio::write(Sector(16), filled(65_536, 1), 0, 65_536).with(fua);
            assert_eq!(bed.status(&*device, write), Status::Ok);
            assert_eq!(bed.status(&*device, Bio::flush()), Status::Ok);
            let found = memory(65_536);
            assert_eq!(bed.status(&*device, Bio::read(Sector(16), Rc::clone(&found), 0, 65_536)), Status::Ok);
            assert_eq!(bytes_of(found), pattern(65_536, 1));
            assert_eq!(&std::fs::read(&temp.0).unwrap()[8192..73_728], pattern(65_536, 1));
        }
    }
}

#[test]
fn errors_of_opening_are_one_sentence_that_says_what_to_do() {
    let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let options = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    let missing = refusal(Path::new("/nonexistent/disk"), &options);
    assert!(missing.to_string().starts_with("/nonexistent/disk does not exist: create it"), "{missing}");
    let directory = refusal(Path::new("/tmp"), &options);
    assert_eq!(directory.to_string(), "/tmp is a directory: give a regular file or a block device");
    let null = refusal(Path::new("/dev/null"), &options);
    assert!(matches!(null, DeviceError::WrongType { found: "character device", .. }), "{null}");
    let empty = TempFile::new("empty", 100);
    let error = refusal(&empty.0, &options);
    assert!(matches!(error, DeviceError::TooSmall { bytes: 100, .. }), "{error}");
    let running = refusal(&std::env::current_exe().unwrap(), &options);
    assert!(running.to_string().contains("it is in use as a program"), "{running}");
}

#[test]
fn a_missing_file_is_made_where_asked_and_an_existing_one_left_alone() {
    let bed = Bed::new();
    let temp = TempFile::new("made", 0);
    std::fs::remove_file(&temp.0).unwrap();
    let options = FileOptions { create_bytes: Some(1 << 20), ..FileOptions::default() };
    let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
    let made = std::fs::metadata(&temp.0).unwrap();
    assert_eq!((device.sectors(), made.blocks(), made.mode() & 0o777), (SectorCount(2048), 0, 0o600));
    drop(bed);
    drop(device);
    let bed = Bed::new();
    let larger = FileOptions { create_bytes: Some(2 << 20), ..options };
    assert_eq!(FileDevice::open(&bed.reactor, &temp.0, &larger).unwrap().sectors(), SectorCount(2048));
}

#[test]
fn a_device_has_one_writer_or_many_readers() {
    let temp = TempFile::new("lock", 1 << 20);
    let options = FileOptions { lock_wait: Duration::from_millis(60), ..FileOptions::default() };
    let reading = FileOptions { read_only: true, ..options.clone() };
    let first = Bed::new();
    let writer = FileDevice::open(&first.reactor, &temp.0, &options).unwrap();
    for options in [&options, &reading] {
        let error = refusal(&temp.0, options);
        let expected = format!("{} is in use by another process, and still was after 60 ms", temp.0.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    drop((writer, first));
    let beds = [Bed::new(), Bed::new()];
    let readers = beds.each_ref().map(|bed| FileDevice::open(&bed.reactor, &temp.0, &reading).unwrap());
    assert!(matches!(refusal(&temp.0, &options), DeviceError::InUse { .. }));
    assert_eq!(beds[0].status(&*readers[0], Bio::flush()), Status::Ok);
}

#[test]
fn opening_waits_for_whoever_has_the_device_to_leave() {
    let temp = TempFile::new("wait", 1 << 20);
    let other = std::fs::File::open(&temp.0).unwrap();
    other.lock().unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(other);
    });
    let bed = Bed::new();
    let patient = FileOptions { lock_wait: Duration::from_mins(1), ..FileOptions::default() };
    let device = FileDevice::open(&bed.reactor, &temp.0, &patient).unwrap();
    assert_eq!(device.sectors(), SectorCount(2048));
    holder.join().unwrap();
}

#[test]
fn a_device_that_was_closed_is_free_at_once() {
    let temp = TempFile::new("closed", 1 << 20);
    let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let options = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    for bed in [Bed::new, Bed::on_threads] {
        for _ in 0..20 {
            let bed = bed();
            let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
            assert_eq!(bed.status(&*device, Bio::flush()), Status::Ok);
        }
    }
}

#[test]
fn a_device_for_reading_takes_no_changes() {
    let temp = TempFile::new("reading", 1 << 20);
    let bed = Bed::new();
    let options = FileOptions { read_only: true, ..FileOptions::default() };
    let device = FileDevice::open(&bed.reactor, &temp.0, &options).unwrap();
    let limits = device.limits();
    assert_eq!((limits.discard, limits.write_zeroes), (Ability::No, Ability::No));
    for bio in [Bio::write(Sector(0), memory(4096), 0, 4096), Bio::discard(extent(0, 8)), Bio::write_zeroes(extent(0, 8))] {
        assert_eq!(bed.status(&*device, bio), Status::ReadOnly);
    }
    assert_eq!(bed.status(&*device, Bio::read(Sector(0), memory(4096), 0, 4096)), Status::Ok);
}

#[test]
fn requests_outside_the_device_fail_and_do_not_make_the_file_longer() {
    let temp = TempFile::new("outside", 1 << 20);
    let bed = Bed::new();
    let device = FileDevice::open(&bed.reactor, &temp.0, &FileOptions::default()).unwrap();
    let bios = [
        Bio::write(Sector(2048), memory(4096), 0, 4096),
        Bio::write(Sector(2044), memory(4096), 0, 4096),
        Bio::read(Sector(u64::MAX >> 10), memory(4096), 0, 4096),
        Bio::discard(extent(2040, 16)),
        Bio::write_zeroes(extent(2040, 16)),
    ];
    for bio in bios {
        assert_eq!(bed.status(&*device, bio), Status::IoError);
    }
    assert_eq!(std::fs::metadata(&temp.0).unwrap().len(), 1 << 20);
}

#[test]
fn a_file_that_shrank_gives_errors_and_one_line_for_each() {
    let temp = TempFile::new("shrunk", 1 << 20);
    let bed = Bed::new();
    let device = FileDevice::open(&bed.reactor, &temp.0, &FileOptions::default()).unwrap();
    std::fs::OpenOptions::new().write(true).open(&temp.0).unwrap().set_len(65_536).unwrap();
    let lines = warnings_of(|| {
        let across = Bio::read(Sector(120), memory(8192), 0, 8192);
        assert_eq!(bed.status(&*device, across), Status::IoError);
        assert_eq!(bed.status(&*device, Bio::read(Sector(1024), memory(4096), 0, 4096)), Status::IoError);
        assert_eq!(bed.status(&*device, Bio::read(Sector(120), memory(4096), 0, 4096)), Status::Ok);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].contains("Read of sectors 1") && lines[0].contains("the device ended"), "{lines:?}");
}

#[test]
fn discards_free_space_and_zeroes_can_keep_it() {
    let temp = TempFile::new("holes", 4 << 20);
    let bed = Bed::new();
    let device = FileDevice::open(&bed.reactor, &temp.0, &FileOptions::default()).unwrap();
    assert_eq!(device.limits().discard, Ability::Native, "this file system makes holes");
    assert_eq!(bed.status(&*device, Bio::write(Sector(0), filled(4 << 20, 1), 0, 4 << 20)), Status::Ok);
    assert_eq!(bed.status(&*device, Bio::flush()), Status::Ok);
    let blocks = || std::fs::metadata(&temp.0).unwrap().blocks();
    let full = blocks();
    assert_eq!(bed.status(&*device, Bio::discard(extent(0, 2048))), Status::Ok);
    assert!(blocks() <= full - 2048, "{} of {full}", blocks());
    let keep = Flags { no_unmap: true, ..Flags::default() };
    let before = blocks();
    assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(2048, 3000)).with(keep)), Status::Ok);
    assert_eq!(bed.status(&*device, Bio::flush()), Status::Ok);
    assert!(blocks() >= before, "the space stays");
    assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(6001, 1001))), Status::Ok);
    let mut expected = pattern(4 << 20, 1);
    for range in [0..2048, 2048..5048, 6001..7002] {
        expected[range.start * 512..range.end * 512].fill(0);
    }
    assert!(std::fs::read(&temp.0).unwrap() == expected);
}

#[test]
fn a_full_file_system_is_no_space() {
    inside_mount("tmpfs", "size=256k", "a_full_file_system_is_no_space", |folder| {
        let path = folder.join("disk");
        let bed = Bed::new();
        let options = FileOptions { create_bytes: Some(1 << 20), ..FileOptions::default() };
        let device = FileDevice::open(&bed.reactor, &path, &options).unwrap();
        assert_eq!(bed.status(&*device, Bio::write(Sector(0), filled(1 << 20, 1), 0, 1 << 20)), Status::NoSpace);
        assert_eq!(bed.status(&*device, Bio::discard(extent(0, 2048))), Status::Ok);
        assert_eq!(bed.status(&*device, Bio::write(Sector(0), filled(65_536, 2), 0, 65_536)), Status::Ok);
        // This file system makes holes but zeroes no ranges: the zeroes are written.
        let keep = Flags { no_unmap: true, ..Flags::default() };
        assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(0, 64)).with(keep)), Status::Ok);
        assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(64, 8))), Status::Ok);
        let found = std::fs::read(&path).unwrap();
        assert!(found[..36_864].iter().all(|&byte| byte == 0));
        assert_eq!(&found[36_864..65_536], &pattern(65_536, 2)[36_864..]);
    });
}

#[test]
fn where_direct_io_is_refused_one_warning_says_so() {
    inside_mount("ramfs", "rw", "where_direct_io_is_refused_one_warning_says_so", |folder| {
        let path = folder.join("disk");
        let bed = Bed::new();
        let options = FileOptions { create_bytes: Some(4 << 20), ..FileOptions::default() };
        let mut device = None;
        let lines = warnings_of(|| device = FileDevice::open(&bed.reactor, &path, &options).ok());
        let device = device.unwrap();
        assert!(!device.is_direct());
        let expected = format!("{}: direct I/O is not possible on this file system: buffered I/O is used", path.display());
        assert_eq!(lines, [expected]);
        // Nor does it make holes: discards are refused, zeroes written.
        let limits = device.limits();
        assert_eq!((limits.discard, limits.write_zeroes, limits.memory_align), (Ability::No, Ability::Emulate, 1));
        assert_eq!(bed.status(&*device, Bio::write(Sector(0), filled(4 << 20, 1), 0, 4 << 20)), Status::Ok);
        assert_eq!(bed.status(&*device, Bio::discard(extent(0, 8))), Status::Unsupported);
        let lines = warnings_of(|| {
            assert_eq!(bed.status(&*device, Bio::write_zeroes(extent(1, 5000))), Status::Ok);
        });
        assert_eq!(lines, Vec::<String>::new(), "another way was found, which is nothing to warn of");
        let mut expected = pattern(4 << 20, 1);
        expected[512..5001 * 512].fill(0);
        assert!(std::fs::read(&path).unwrap() == expected);
        let asked = FileOptions { direct: Direct::Off, ..options };
        drop((bed, device));
        let bed = Bed::new();
        let lines = warnings_of(|| assert!(FileDevice::open(&bed.reactor, &path, &asked).is_ok()));
        assert_eq!(lines, Vec::<String>::new(), "what was asked for needs no warning");
    });
}
