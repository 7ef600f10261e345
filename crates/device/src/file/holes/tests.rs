//! Real files on the file systems that are there.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::*;

/// A file that is removed at the end.
struct Temp(PathBuf);

impl Temp {
    fn new(folder: &Path, name: &str) -> (Self, File) {
        let path = folder.join(format!("forebay-holes-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        (Self(path), file)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector(start), SectorCount(count))
}

fn found(file: &OwnedFd, extent: Extent, most: usize) -> Vec<(u64, bool)> {
    find(file, extent, most).into_iter().map(|run| (run.count.0, run.hole)).collect()
}

#[test]
fn runs_are_those_that_were_written() {
    for folder in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        let (_temp, mut file) = Temp::new(&folder, "runs");
        file.set_len(8 << 20).unwrap();
        // Sectors 256..512, 520..528, and the last eight.
        for (start, bytes) in [(128 << 10, 128 << 10), (260 << 10, 4096), ((8 << 20) - 4096, 4096)] {
            file.seek(SeekFrom::Start(start)).unwrap();
            file.write_all(&vec![1; bytes]).unwrap();
        }
        let file = OwnedFd::from(file);
        let all = [(256, true), (256, false), (8, true), (8, false), (15_848, true), (8, false)];
        assert_eq!(found(&file, extent(0, 16_384), 64), all, "{}", folder.display());
        assert_eq!(found(&file, extent(0, 16_384), 3), all[..3]);
        assert_eq!(found(&file, extent(300, 1), 64), [(212, false)], "a run is told to its end");
        assert_eq!(found(&file, extent(520, 20), 64), [(8, false), (15_848, true)]);
        assert_eq!(found(&file, extent(5, 3), 64), [(251, true)]);
    }
}

#[test]
fn part_of_a_sector_makes_all_of_it_data() {
    let (_temp, mut file) = Temp::new(&std::env::temp_dir(), "part");
    file.write_all(&[1; 700]).unwrap();
    file.set_len(1 << 20).unwrap();
    file.set_len(700 + (1 << 20)).unwrap();
    let file = OwnedFd::from(file);
    let runs = found(&file, extent(0, 2049), 64);
    assert_eq!(runs, [(8, false), (2041, true)]);
    // Behind the end nothing is known.
    assert_eq!(found(&file, extent(2049, 1), 64), []);
    assert_eq!(found(&file, extent(9000, 1), 64), []);
}

#[test]
fn reserved_space_that_was_never_written_is_a_hole() {
    let (_temp, file) = Temp::new(&std::env::temp_dir(), "reserved");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(found(&OwnedFd::from(file), extent(0, 2048), 64), [(2048, true)]);
}

#[test]
fn what_cannot_tell_tells_nothing() {
    let (reading, _writing) = std::io::pipe().unwrap();
    assert_eq!(found(&reading.into(), extent(0, 8), 64), []);
}
