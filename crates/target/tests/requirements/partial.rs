//! Requests that are not whole blocks: any 512-byte-aligned request is served, whatever the block size.

use forebay_block::{Bio, Extent, Limits, Op, Sector, SectorCount, Status, call};
use forebay_target::cache::options::Overwrite;

use crate::support::Seen;
use crate::support::rig::{Life, Rig, fast_bytes};
use crate::support::tape::Disk;

const SECTORS: u64 = 2048;

fn rig(block_bytes: u32, blocks: u32) -> Rig {
    let mut rig = Rig::new(fast_bytes(blocks, block_bytes), 1 << 20, block_bytes);
    (rig.options.high_watermark, rig.options.low_watermark) = (Some(100), Some(100));
    rig
}

async fn zero(life: &Life, sector: u64, sectors: u64) -> Status {
    call(&*life.cache, Bio::write_zeroes(Extent::new(Sector(sector), SectorCount(sectors)))).await.status()
}

#[test]
fn every_part_of_a_block_of_every_size_is_written_and_read() {
    for shift in 9..=16 {
        let block_sectors = 1_u64 << (shift - 9);
        let rig = rig(1 << shift, 12);
        rig.run(async |life| {
            let mut model = vec![0; 2048];
            let mut stamp = 0;
            let mut rng = fastrand::Rng::with_seed(shift);
            for _ in 0..150 {
                stamp = stamp % 250 + 1;
                let sector = rng.u64(..6 * block_sectors);
                let sectors = rng.u64(1..=3 * block_sectors);
                let range = usize::try_from(sector).unwrap()..usize::try_from(sector + sectors).unwrap();
                match rng.u32(..8) {
                    0 => assert!(life.flush().await.is_ok()),
                    1 => {
                        assert!(zero(life, sector, sectors).await.is_ok());
                        model[range].fill(0);
                    }
                    2 => assert_eq!(life.read_sectors(sector, sectors).await.unwrap(), model[range]),
                    _ => {
                        assert!(life.write_sectors(sector, sectors, stamp, rng.u32(..4) == 0).await.is_ok());
                        model[range].fill(stamp);
                    }
                }
            }
            assert_eq!(
                life.read_sectors(0, 9 * block_sectors).await.unwrap(),
                model[..usize::try_from(9 * block_sectors).unwrap()]
            );
            assert!(life.cache.close().await.is_ok());
        });
    }
}

#[test]
fn a_new_block_is_filled_from_the_origin_and_a_replaced_one_from_the_cache() {
    let mut rig = rig(4096, 8);
    rig.options.overwrite = Some(Overwrite::New);
    rig.run(async |life| {
        assert!(life.write(5, 1, 1).await.is_ok());
        life.cache.message(&["flush"]).await.unwrap();
        let steps = rig.tape.borrow().steps.len();
        assert!(life.write_sectors(42, 2, 2, false).await.is_ok());
        let seen: Vec<_> = rig.tape.borrow().steps[steps..].iter().map(|step| (step.disk, step.seen.clone())).collect();
        assert_eq!(seen[0], (Disk::Origin, Seen::Read(40, 8)));
        assert!(life.flush().await.is_ok());
        let steps = rig.tape.borrow().steps.len();
        assert!(life.write_sectors(45, 1, 3, false).await.is_ok());
        assert!(rig.tape.borrow().steps[steps..].iter().all(|step| step.disk == Disk::Fast), "the newest copy is in the cache");
        assert_eq!(life.read_sectors(40, 8).await.unwrap(), [1, 1, 2, 2, 1, 3, 1, 1]);
    });
}

#[test]
fn part_of_a_cached_block_is_overwritten_without_a_fill() {
    let rig = rig(4096, 8);
    rig.run(async |life| {
        assert!(life.write(5, 1, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        let steps = rig.tape.borrow().steps.len();
        assert!(life.write_sectors(42, 2, 2, false).await.is_ok());
        let slot = rig.geometry().metadata_bytes() / 512;
        let seen: Vec<_> = rig.tape.borrow().steps[steps..].iter().map(|step| step.seen.clone()).collect();
        assert_eq!(seen, [Seen::Write(slot + 2, 2, false)]);
    });
}

#[test]
fn a_failed_fill_fails_only_that_write() {
    let mut rig = rig(4096, 16);
    rig.options.overwrite = Some(Overwrite::New);
    rig.run(async |life| {
        assert!(life.write(8, 4, 1).await.is_ok());
        assert!(life.flush().await.is_ok());
        rig.origin.borrow_mut().bad.push((Op::Read, 40));
        let slot = rig.geometry().metadata_bytes() / 512;
        rig.fast.borrow_mut().bad.push((Op::Read, slot + 8));
        assert_eq!(life.write_sectors(42, 1, 2, false).await, Status::IoError, "the origin does not give the rest of the block");
        assert_eq!(life.write_sectors(74, 1, 2, false).await, Status::IoError, "the cache does not either");
        assert!(life.write_sectors(66, 1, 2, false).await.is_ok());
        assert!(life.write(5, 1, 2).await.is_ok(), "a whole block needs no fill");
        rig.origin.borrow_mut().bad.clear();
        rig.fast.borrow_mut().bad.clear();
        assert!(!life.status().failed);
        assert!(life.flush().await.is_ok());
        assert_eq!(life.read(5, 1).await, [2]);
        assert_eq!(life.read_sectors(64, 16).await.unwrap(), [1, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    });
}

#[test]
fn with_large_sectors_below_requests_of_their_size_are_served() {
    for block_bytes in [4096, 16_384] {
        let mut rig = rig(block_bytes, 16);
        let limits = Limits { logical_bytes: 4096, physical_bytes: 4096, ..Limits::unlimited() };
        (rig.fast_limits, rig.origin_limits) = (limits, limits);
        rig.run(async |life| {
            assert!(life.write_sectors(8, 16, 1, true).await.is_ok());
            assert!(life.write_sectors(16, 8, 2, true).await.is_ok());
            assert_eq!(life.read_sectors(0, 32).await.unwrap(), [[0; 8], [1; 8], [2; 8], [0; 8]].concat());
        });
        let aligned = |seen: &Seen| match *seen {
            Seen::Read(sector, count) | Seen::Write(sector, count, _) => sector % 8 == 0 && count % 8 == 0,
            Seen::Flush | Seen::Discard(..) | Seen::Zero(..) => true,
        };
        assert!(rig.tape.borrow().steps.iter().all(|step| aligned(&step.seen)));
        rig.run(async |life| assert_eq!(life.read_sectors(0, 32).await.unwrap(), [[0; 8], [1; 8], [2; 8], [0; 8]].concat()));
    }
}

#[test]
fn the_whole_device_up_to_its_last_sector_is_served() {
    let rig = rig(65_536, 4);
    rig.run(async |life| {
        assert!(life.write_sectors(SECTORS - 1, 1, 7, true).await.is_ok());
        assert!(life.write_sectors(0, SECTORS, 8, false).await.is_ok());
        assert!(life.write_sectors(SECTORS - 3, 2, 9, false).await.is_ok());
        let read = life.read_sectors(0, SECTORS).await.unwrap();
        assert_eq!(read[2043..], [8, 8, 9, 9, 8]);
    });
}
