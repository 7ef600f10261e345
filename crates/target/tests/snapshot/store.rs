//! The store, byte by byte: new, written, full, lost, opened again.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{Bio, Extent, Limits, Sector, SectorCount, Status, call};
use forebay_reactor::BufferPool;
use forebay_target::snapshot::options::Discards;
use forebay_target::snapshot::{Condition, Origin, Setup, SnapshotError, open};

use crate::rig::{N, P, PO, Rig, Wish};
use crate::support::{MemoryDisk, Platter, Seen, read, write};

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(*word.first_chunk().unwrap())).collect()
}

#[test]
fn a_new_store_is_a_header_and_an_empty_area() {
    let wish = Wish::new(P, 8, 64);
    wish.cow.borrow_mut().bytes[4096..].fill(0xAA);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(life.status(0), "16/512 16"));
    let cow = wish.cow.borrow();
    assert_eq!(cow.bytes[..16], [0x53, 0x6e, 0x41, 0x70, 1, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0]);
    assert!(cow.bytes[16..8192].iter().all(|&byte| byte == 0));
    assert_eq!(cow.bytes[8192], 0xAA);
    let header = cow.seen.iter().position(|seen| matches!(seen, Seen::Write(0, _, true)));
    let area = cow.seen.iter().position(|seen| matches!(seen, Seen::Write(8, ..)));
    assert!(area < header && cow.seen[..header.unwrap()].contains(&Seen::Flush), "a crash leaves no header over an old area");
}

#[test]
fn a_change_of_the_origin_saves_the_chunk_once() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        for byte in [1, 2] {
            assert_eq!(write(&life.front, 42, &[byte; 512], false).await, Status::Ok);
        }
        assert_eq!(life.status(0), "24/512 16");
        assert_eq!(life.snapshots[0].status().exceptions, 1);
    });
    let cow = wish.cow.borrow();
    assert_eq!(words(&cow.bytes[4096..4096 + 32]), [5, 2, 0, 0]);
    assert_eq!(cow.bytes[8192..12_288], old[5 * 4096..6 * 4096]);
    assert_eq!(rig.origin_bytes()[42 * 512], 2);
}

#[test]
fn data_is_durable_before_its_entry_and_the_entry_before_the_origin_changes() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        wish.cow.borrow_mut().seen.clear();
        rig.origin.borrow_mut().bad.push((forebay_block::Op::Write, 0));
        assert_eq!(write(&life.front, 0, &[1; 4096], false).await, Status::IoError);
    });
    let expected = [Seen::Write(16, 8, false), Seen::Flush, Seen::Write(8, 8, false), Seen::Flush];
    assert_eq!(wish.cow.borrow().seen, expected);
}

#[test]
fn a_full_area_goes_on_in_the_next() {
    let wish = Wish::new(P, 8, 600);
    let rig = Rig::new(8 * 400, std::slice::from_ref(&wish));
    wish.cow.borrow_mut().bytes[4096..].fill(0xAA);
    rig.run(async |life| {
        for chunk in 0..257 {
            assert_eq!(write(&life.front, chunk * 8, &[1; 4096], false).await, Status::Ok);
        }
        assert_eq!(life.status(0), format!("{}/4800 24", 260 * 8));
    });
    let cow = wish.cow.borrow();
    let area = words(&cow.bytes[4096..8192]);
    assert_eq!((area[510], area[511]), (255, 257), "the last entry of area 0");
    assert_eq!(words(&cow.bytes[258 * 4096..258 * 4096 + 32]), [256, 259, 0, 0]);
    assert!(cow.bytes[258 * 4096 + 32..259 * 4096].iter().all(|&byte| byte == 0));
}

#[test]
fn many_chunks_of_one_request_are_one_copy_and_one_commit() {
    let wish = Wish::new(P, 8, 600);
    let rig = Rig::new(8 * 400, std::slice::from_ref(&wish));
    rig.run(async |life| {
        wish.cow.borrow_mut().seen.clear();
        assert_eq!(write(&life.front, 4, &vec![1; 120 * 4096], false).await, Status::Ok);
        assert_eq!(life.snapshots[0].status().commits, 1);
    });
    let reads = rig.origin.borrow().seen.iter().filter(|seen| matches!(seen, Seen::Read(..))).count();
    let expected = [Seen::Write(16, 968, true), Seen::Write(8, 8, false), Seen::Flush];
    assert_eq!((reads, wish.cow.borrow().seen.as_slice()), (1, &expected[..]), "large data is durable without a flush");
}

#[test]
fn the_size_that_a_store_has_wins() {
    let wish = Wish::new(P, 8, 64);
    let mut rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&life.front, 0, &[1; 512], false).await, Status::Ok));
    rig.wishes[0].chunk_sectors = 16;
    rig.run(async |life| assert_eq!((life.status(0), life.snapshots[0].status().chunk_sectors), ("24/512 16".to_owned(), 8)));
}

#[test]
fn a_store_that_is_full_is_invalid_for_ever() {
    let wish = Wish::new(P, 8, 6);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        for chunk in 0..4 {
            assert_eq!(write(&*life.snapshots[0], chunk * 8, &[1; 512], false).await, Status::Ok);
        }
        assert_eq!((life.status(0).as_str(), life.snapshots[0].events().count()), ("48/48 16", 0));
        assert_eq!(write(&*life.snapshots[0], 800, &[1; 512], false).await, Status::IoError);
        assert_eq!((life.status(0).as_str(), life.snapshots[0].events().count()), ("Invalid", 1));
        assert_eq!(read(&*life.snapshots[0], 0, 1).await, Err(Status::IoError));
        assert_eq!(write(&life.front, 800, &[7; 512], false).await, Status::Ok);
        assert_eq!(read(&life.front, 800, 1).await, Ok(vec![7; 512]));
    });
    assert_eq!(wish.cow.borrow().bytes[4], 0);
    rig.run(async |life| assert_eq!(life.status(0), "Invalid"));
}

#[test]
fn a_full_store_with_overflow_is_read_until_the_origin_needs_it() {
    let wish = Wish::new(PO, 8, 6);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        let snapshot = &*life.snapshots[0];
        for chunk in 0..4 {
            assert_eq!(write(snapshot, chunk * 8, &[1; 512], false).await, Status::Ok);
        }
        assert_eq!(write(snapshot, 800, &[1; 512], false).await, Status::IoError);
        assert_eq!(life.status(0), "Overflow");
        assert_eq!(write(snapshot, 0, &[1; 512], false).await, Status::IoError);
        assert_eq!(read(snapshot, 0, 1).await, Ok(vec![1; 512]));
        assert_eq!(read(snapshot, 800, 1).await, Ok(old[800 * 512..801 * 512].to_vec()));
        assert_eq!(write(&life.front, 0, &[7; 512], false).await, Status::Ok);
        assert_eq!(life.status(0), "Overflow", "it has that chunk");
        assert_eq!(life.snapshots[0].events().count(), 1);
        assert_eq!(write(&life.front, 800, &[7; 512], false).await, Status::Ok);
        assert_eq!((life.status(0).as_str(), life.snapshots[0].events().count()), ("Invalid", 2));
    });
}

#[test]
fn a_write_that_does_not_fit_takes_no_room_from_the_origin() {
    let wish = Wish::new(PO, 8, 6);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        assert_eq!(write(&*life.snapshots[0], 0, &[1; 512], false).await, Status::Ok);
        assert_eq!(write(&*life.snapshots[0], 804, &[1; 4 * 4096], false).await, Status::IoError);
        assert_eq!(life.status(0), "Overflow");
        assert_eq!(write(&life.front, 800, &[7; 3 * 4096], false).await, Status::Ok);
        assert_eq!(life.status(0), "Overflow", "there is room for three");
        assert_eq!(read(&*life.snapshots[0], 800, 24).await, Ok(old[800 * 512..824 * 512].to_vec()));
    });
}

#[test]
fn a_chunk_that_the_device_cannot_read_is_refused_before_it_is_read() {
    let wish = Wish::new(P, 1, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |_| ());
    let (reactor, pool) = (crate::support::reactor(), BufferPool::default());
    let disk = |platter: &Rc<RefCell<Platter>>, logical_bytes| {
        MemoryDisk::with_limits(
            &reactor,
            Rc::clone(platter),
            Limits { logical_bytes, physical_bytes: 4096, ..Limits::unlimited() },
        )
    };
    wish.cow.borrow_mut().seen.clear();
    let setup = Setup {
        origin: Origin::new(&reactor, &pool, disk(&rig.origin, 512)),
        cow: disk(&wish.cow, 4096),
        sectors: SectorCount(1024),
        store: P,
        chunk_sectors: 8,
        discards: Discards::Refused,
        coalesce: true,
    };
    let error = reactor.run(open(&reactor, &pool, setup)).unwrap().err().unwrap();
    assert_eq!(error.to_string(), "snapshot: chunk 1 is not a multiple of 8");
    assert_eq!(wish.cow.borrow().seen, [Seen::Read(0, 8)]);
}

#[test]
fn errors_of_the_store_lose_the_snapshot_and_not_the_origin() {
    for (op, sector) in [(forebay_block::Op::Write, 16), (forebay_block::Op::Write, 8), (forebay_block::Op::Flush, 0)] {
        let wish = Wish::new(P, 8, 64);
        let rig = Rig::new(1024, std::slice::from_ref(&wish));
        rig.run(async |life| {
            wish.cow.borrow_mut().bad.push((op, sector));
            assert_eq!(write(&life.front, 0, &[7; 512], false).await, Status::Ok);
            assert_eq!(life.snapshots[0].status().condition, Condition::Invalid);
        });
        assert_eq!((wish.cow.borrow().bytes[4], rig.origin_bytes()[0]), (0, 7));
    }
}

#[test]
fn a_flush_that_failed_loses_the_snapshot() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        wish.cow.borrow_mut().bad.push((forebay_block::Op::Flush, 0));
        assert_eq!(crate::support::flush(&*life.snapshots[0]).await, Status::IoError);
        assert_eq!(life.status(0), "Invalid");
    });
}

#[test]
fn a_write_with_fua_that_failed_loses_the_snapshot_and_one_without_does_not() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        let snapshot = &*life.snapshots[0];
        assert_eq!(write(snapshot, 0, &[7; 4096], false).await, Status::Ok);
        wish.cow.borrow_mut().bad.push((forebay_block::Op::Write, 16));
        assert_eq!(write(snapshot, 0, &[8; 512], false).await, Status::IoError);
        assert_eq!((life.status(0), write(snapshot, 1, &[8; 512], true).await), ("24/512 16".to_owned(), Status::Ok));
        assert_eq!(write(snapshot, 0, &[8; 512], true).await, Status::IoError);
        assert_eq!(life.status(0), "Invalid");
    });
}

#[test]
fn the_last_chunk_in_front_of_an_area_that_does_not_fit_is_not_used() {
    let wish = Wish::new(P, 1, 34);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        for sector in 0..31 {
            assert_eq!(write(&life.front, sector, &[1; 512], false).await, Status::Ok);
        }
        assert_eq!(life.status(0), "33/34 2");
        assert_eq!(write(&life.front, 100, &[1; 512], false).await, Status::Ok);
        assert_eq!(life.status(0), "Invalid");
    });
}

#[test]
fn chunks_that_a_crash_left_without_an_entry_are_given_out_again() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&life.front, 0, &[1; 4 * 4096], false).await, Status::Ok));
    // Of four chunks the copies of the second and the fourth had ended, as far as their entries say.
    let entries = [1_u64, 3, 3, 5, 0, 0, 0, 0];
    let bytes: Vec<u8> = entries.iter().flat_map(|word| word.to_le_bytes()).collect();
    wish.cow.borrow_mut().bytes[4096..4096 + 64].copy_from_slice(&bytes);
    rig.run(async |life| {
        assert_eq!(life.status(0), "32/512 16");
        assert_eq!(write(&life.front, 80, &[1; 3 * 4096], false).await, Status::Ok);
        assert_eq!(life.status(0), "56/512 16");
    });
    assert_eq!(words(&wish.cow.borrow().bytes[4096..4096 + 80])[4..], [10, 2, 11, 4, 12, 6]);
    rig.run(async |life| assert_eq!(life.status(0), "56/512 16"));
}

#[test]
fn stores_that_cannot_be_are_refused() {
    let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
        let wish = Wish::new(P, 8, 64);
        let rig = Rig::new(1024, std::slice::from_ref(&wish));
        rig.run(async |life| assert_eq!(write(&life.front, 0, &[1; 8192], false).await, Status::Ok));
        change(&mut wish.cow.borrow_mut().bytes);
        rig.try_run(async |_| ()).unwrap_err().to_string()
    };
    assert!(refusal(&|bytes| bytes[0] = 1).contains("it holds something else"));
    assert!(refusal(&|bytes| bytes[4096 + 8] = 1).contains("where metadata is"));
    assert!(refusal(&|bytes| bytes[4096 + 8] = 3).contains("a second time"));
    assert!(refusal(&|bytes| bytes[4096 + 16] = 0).contains("names chunk 0 a second time"));
    assert!(refusal(&|bytes| bytes.truncate(3 * 4096)).contains("the device ends with chunk 2"));
    assert!(refusal(&|bytes| bytes[12..16].copy_from_slice(&512_u32.to_le_bytes())).contains("no room for a header"));
    let small = Rig::new(1024, &[Wish::new(P, 8, 1)]).try_run(async |_| ()).err();
    assert_eq!(small, Some(SnapshotError::Small { sectors: 8, chunk: 8 }));
}

#[test]
fn what_a_torn_write_left_behind_the_list_is_cleared() {
    let wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&life.front, 0, &[1; 4096], false).await, Status::Ok));
    wish.cow.borrow_mut().bytes[4096 + 512..4096 + 1024].fill(3);
    rig.run(async |life| assert_eq!(life.snapshots[0].status().exceptions, 1));
    assert_eq!(words(&wish.cow.borrow().bytes[4096..4096 + 24]), [0, 2, 0]);
    assert!(wish.cow.borrow().bytes[4096 + 16..8192].iter().all(|&byte| byte == 0));
}

#[test]
fn a_store_that_is_not_persistent_has_no_metadata() {
    let wish = Wish::new(N, 8, 2);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        assert_eq!(life.status(0), "0/16 0");
        assert_eq!(write(&life.front, 0, &[1; 8192], false).await, Status::Ok);
        assert_eq!(life.status(0), "16/16 0");
        assert_eq!(read(&*life.snapshots[0], 0, 16).await, Ok(old[..8192].to_vec()));
        assert_eq!(write(&life.front, 16, &[1; 512], false).await, Status::Ok);
        assert_eq!(life.status(0), "Invalid");
    });
    assert_eq!(wish.cow.borrow().bytes, old[..8192]);
}

#[test]
fn discards_zero_what_is_kept_and_leave_alone_what_is_not() {
    let extent = |start, count| Extent::new(Sector(start), SectorCount(count));
    let mut wish = Wish::new(P, 8, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| {
        assert_eq!(call(&*life.snapshots[0], Bio::discard(extent(0, 8))).await.status(), Status::Unsupported);
    });
    wish.discards = forebay_target::snapshot::options::Discards::ZeroCow;
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        let snapshot = &*life.snapshots[0];
        let before = life.status(0);
        assert_eq!(call(snapshot, Bio::discard(extent(0, 64))).await.status(), Status::Ok);
        assert_eq!((life.status(0), read(snapshot, 0, 64).await), (before, Ok(old[..64 * 512].to_vec())));
        assert_eq!(write(snapshot, 8, &[7; 4096], false).await, Status::Ok);
        assert_eq!(call(snapshot, Bio::discard(extent(4, 20))).await.status(), Status::Ok);
        assert_eq!(read(snapshot, 8, 8).await, Ok(vec![0; 4096]));
        assert_eq!(read(snapshot, 0, 8).await, Ok(old[..4096].to_vec()));
    });
}

#[test]
fn a_discard_that_is_passed_down_is_saved_for_others_and_not_for_itself() {
    let mut wish = Wish::new(P, 8, 64);
    wish.discards = Discards::ZeroCowAndPassDown;
    let rig = Rig::new(1024, &[wish, Wish::new(P, 8, 64)]);
    let old = rig.origin_bytes();
    rig.run(async |life| {
        let [snapshot, other] = [&life.snapshots[0], &life.snapshots[1]];
        assert_eq!(write(&**snapshot, 8, &[7; 4096], false).await, Status::Ok);
        let whole = Extent::new(Sector(0), SectorCount(16));
        assert_eq!(call(&**snapshot, Bio::discard(whole)).await.status(), Status::Ok);
        assert!(rig.origin.borrow().seen.contains(&Seen::Discard(0, 16)));
        assert_eq!((snapshot.status().exceptions, other.status().exceptions), (1, 2));
        assert_eq!(read(&**snapshot, 8, 8).await, Ok(vec![0; 4096]));
        assert_eq!(read(&**other, 0, 16).await, Ok(old[..8192].to_vec()));
        // The disk of this test keeps what is discarded; another one need not.
        rig.origin.borrow_mut().bytes[..8192].fill(0);
        assert_eq!(read(&**other, 0, 16).await, Ok(old[..8192].to_vec()));
    });
}
