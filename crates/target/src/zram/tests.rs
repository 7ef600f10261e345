//! A disk against an array of sectors, and what it tells about itself.
#![allow(clippy::cast_possible_truncation, clippy::needless_for_each, reason = "small numbers, and one line for each step")]

mod behaviours;

use super::*;
use crate::below::testing::{JumpingClock, content, extent, read, status_of, write};

fn disk(sectors: u64, mem_limit: u64) -> Rc<Zram> {
    let reactor = Reactor::new(Box::new(JumpingClock::default()));
    let setup = Setup { sectors: SectorCount(sectors), mem_limit, ..Setup::default() };
    Zram::new(&reactor, &BufferPool::default(), &setup).unwrap()
}

fn read_back(disk: &Zram, sector: u64, sectors: usize) -> Vec<u8> {
    let (bio, memory) = read(sector, sectors);
    assert_eq!(status_of(disk, bio), Status::Ok);
    content(memory)
}

fn noise(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| rng.u8(..)).collect()
}

#[test]
fn a_fresh_disk_reads_zeroes_and_counts_nothing() {
    let disk = disk(1 << 31, 0);
    assert_eq!(read_back(&disk, 12_345, 9), [0; 9 * 512]);
    let status = disk.status();
    assert_eq!(status.mm_stat().split_whitespace().collect::<Vec<_>>(), ["0"; 9]);
    assert!(status.memory_bytes < 64 << 10, "{} bytes for an empty disk of 1 TiB", status.memory_bytes);
}

#[test]
fn a_hundred_zero_pages_are_stored_and_take_nothing() {
    let disk = disk(1024, 0);
    assert_eq!(status_of(&*disk, write(0, &vec![0; 409_600])), Status::Ok);
    let status = disk.status();
    assert_eq!((status.original_bytes, status.compressed_bytes, status.used_bytes, status.same_pages), (409_600, 0, 0, 100));
    assert_eq!(status.mm_stat(), "  409600        0        0        0        0      100        0        0        0");
}

#[test]
fn requests_of_any_sectors_do_to_the_disk_what_they_do_to_an_array() {
    const SECTORS: u64 = 8 * 300;
    for seed in 0..6 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let disk = disk(SECTORS, 0);
        let mut model = vec![0; SECTORS as usize * 512];
        for _ in 0..1500 {
            let start = rng.u64(0..SECTORS);
            let most = [1, 8, 40, 300][rng.usize(0..4)].min(SECTORS - start);
            let count = rng.u64(1..=most);
            let range = start as usize * 512..(start + count) as usize * 512;
            match rng.u32(0..8) {
                0..3 => {
                    let bytes = match rng.u32(0..3) {
                        0 => noise(rng, range.len()),
                        1 => vec![rng.u8(0..3); range.len()],
                        _ => noise(rng, 64).into_iter().cycle().take(range.len()).collect(),
                    };
                    assert_eq!(status_of(&*disk, write(start, &bytes)), Status::Ok);
                    model[range].copy_from_slice(&bytes);
                }
                3 => {
                    assert_eq!(status_of(&*disk, Bio::write_zeroes(extent(start, count))), Status::Ok);
                    model[range].fill(0);
                }
                4 => {
                    assert_eq!(status_of(&*disk, Bio::discard(extent(start, count))), Status::Ok);
                    let whole = range.start.next_multiple_of(PAGE)..range.end / PAGE * PAGE;
                    if whole.start < whole.end {
                        model[whole].fill(0);
                    }
                }
                _ => assert!(read_back(&disk, start, count as usize) == model[range], "seed {seed}: {start}+{count}"),
            }
        }
        assert!(read_back(&disk, 0, SECTORS as usize) == model);
        assert_eq!(status_of(&*disk, Bio::discard(extent(0, SECTORS))), Status::Ok);
        assert_eq!((disk.status().original_bytes, disk.status().used_bytes), (0, 0));
    }
}

#[test]
fn a_discard_frees_the_pages_that_it_covers_whole() {
    let disk = disk(1024, 0);
    let rng = &mut fastrand::Rng::with_seed(1);
    assert_eq!(status_of(&*disk, write(0, &noise(rng, 10 * PAGE))), Status::Ok);
    assert_eq!(status_of(&*disk, Bio::discard(extent(4, 28))), Status::Ok);
    assert_eq!((disk.status().freed_pages, disk.status().huge_pages), (3, 7));
    assert_eq!(disk.status().io_stat(), "       0        0        0        3");
}

#[test]
fn over_the_limit_writes_fail_and_repeated_words_still_fit() {
    let disk = disk(8 * 1024, 1 << 20);
    let rng = &mut fastrand::Rng::with_seed(2);
    assert_eq!(status_of(&*disk, write(0, &noise(rng, 1 << 20))), Status::Ok);
    assert_eq!(status_of(&*disk, write(2048, &noise(rng, PAGE))), Status::NoSpace);
    assert_eq!(status_of(&*disk, write(2048, &[7; PAGE])), Status::Ok);
    let status = disk.status();
    assert_eq!((status.used_bytes, status.limit_bytes, status.failed_writes), (1 << 20, 1 << 20, 1));
}

#[test]
fn what_is_outside_or_not_whole_pages_is_refused() {
    let small = disk(8, 0);
    assert_eq!(status_of(&*small, write(8, &[0; 512])), Status::IoError);
    assert_eq!(status_of(&*small, Bio::discard(extent(u64::MAX >> 9, 8))), Status::IoError);
    assert_eq!((small.kind(), small.sectors(), small.limits().is_valid()), ("zram", SectorCount(8), true));
    assert_eq!(status_of(&*small, Bio::flush()), Status::Ok);
    let reactor = Reactor::new(Box::new(JumpingClock::default()));
    for sectors in [0, 7, 12, (1 << 35) + 8, u64::MAX] {
        let setup = Setup { sectors: SectorCount(sectors), ..Setup::default() };
        assert!(matches!(Zram::new(&reactor, &BufferPool::default(), &setup), Err(ZramError::Length { .. })), "{sectors}");
    }
}
