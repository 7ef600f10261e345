//! A snapshot that goes back into its origin: what is read, what is left, what a crash leaves.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Ability, Limits, Op, SectorCount, Status, Target};
use forebay_reactor::BufferPool;
use forebay_target::delay::{Delay, Leg, Legs};
use forebay_target::snapshot::options::{Discards, StoreKind};
use forebay_target::snapshot::{Merge, MergeSetup, Origin, OriginFront, Setup, Snapshot, SnapshotError, merge, open};

use crate::rig::{P, Rig, Wish};
use crate::support::{MemoryDisk, Seen, flush, reactor, read, write};

/// Merges the first store of the rig while `body` looks on; the others are open as snapshots.
fn merge_with<T>(rig: &Rig, body: impl AsyncFnOnce(&Rc<Merge>, &[Rc<Snapshot>]) -> T) -> T {
    try_merge(rig, body).unwrap()
}

fn try_merge<T>(rig: &Rig, body: impl AsyncFnOnce(&Rc<Merge>, &[Rc<Snapshot>]) -> T) -> Result<T, SnapshotError> {
    let (reactor, pool) = (reactor(), BufferPool::default());
    let origin = Origin::new(&reactor, &pool, MemoryDisk::new(&reactor, Rc::clone(&rig.origin)));
    let sectors = SectorCount(rig.origin.borrow().bytes.len() as u64 / 512);
    let run = async {
        let mut others = Vec::new();
        for wish in &rig.wishes[1..] {
            let cow = MemoryDisk::new(&reactor, Rc::clone(&wish.cow));
            let (origin, chunk_sectors) = (Rc::clone(&origin), wish.chunk_sectors);
            let (store, discards, coalesce) = (StoreKind::Persistent { overflow: false }, Discards::Refused, true);
            let setup = Setup { origin, cow, sectors, store, chunk_sectors, discards, coalesce };
            others.push(open(&reactor, &pool, setup).await.unwrap());
        }
        let cow = MemoryDisk::new(&reactor, Rc::clone(&rig.wishes[0].cow));
        let setup = MergeSetup { origin, cow, sectors, chunk_sectors: rig.wishes[0].chunk_sectors, rate: None };
        let merge = merge(&reactor, &pool, setup).await?;
        merge.begin();
        Ok(body(&merge, &others).await)
    };
    let result = reactor.run(run).unwrap();
    reactor.clear();
    result
}

#[test]
fn when_it_is_done_the_origin_is_the_snapshot() {
    let wish = Wish::new(P, 8, 700);
    let rig = Rig::new(8 * 400, std::slice::from_ref(&wish));
    let mut model = rig.origin_bytes();
    let mut rng = fastrand::Rng::with_seed(3);
    rig.run(async |life| {
        for number in 0..300 {
            let (sector, byte) = (rng.u64(0..3190), u8::try_from(number % 250).unwrap());
            let on_snapshot = rng.bool();
            let target = if on_snapshot { &*life.snapshots[0] as &dyn Target } else { &life.front };
            assert_eq!(write(target, sector, &[byte; 1024], false).await, Status::Ok);
            if on_snapshot {
                let at = usize::try_from(sector * 512).unwrap();
                model[at..at + 1024].fill(byte);
            }
        }
    });
    let other = Wish::new(P, 32, 200);
    let rig = Rig { wishes: vec![wish.clone(), other], ..rig };
    let before = rig.origin_bytes();
    merge_with(&rig, async |merge, others| {
        assert!(read(&**merge, 0, 3200).await.unwrap() == model);
        assert_eq!(write(&**merge, 100, &[251; 9 * 512], false).await, Status::Ok);
        model[100 * 512..109 * 512].fill(251);
        merge.done().await;
        assert_eq!((merge.status().to_string().as_str(), merge.events().count()), ("16/5600 16", 1));
        assert_eq!(merge.status().left, 0);
        assert!(read(&**merge, 0, 3200).await.unwrap() == model);
        assert!(read(&*others[0], 0, 3200).await.unwrap() == before, "the other snapshot keeps what the origin was");
    });
    assert!(rig.origin_bytes() == model);
    assert!(wish.cow.borrow().bytes[4096..4112].iter().all(|&byte| byte == 0));
}

#[test]
fn many_runs_go_under_one_flush_and_entries_are_cleared_after_it() {
    let wish = Wish::new(P, 8, 700);
    let rig = Rig::new(8 * 400, std::slice::from_ref(&wish));
    rig.run(async |life| {
        for chunk in (0..400).step_by(2) {
            assert_eq!(write(&*life.snapshots[0], chunk * 8, &[1; 4096], false).await, Status::Ok);
        }
    });
    let tape = Rc::default();
    rig.origin.borrow_mut().tape = Some((crate::support::tape::Disk::Origin, Rc::clone(&tape)));
    wish.cow.borrow_mut().tape = Some((crate::support::tape::Disk::Fast, Rc::clone(&tape)));
    merge_with(&rig, async |merge, _| {
        merge.done().await;
        assert_eq!(merge.status().steps, 1);
    });
    let steps: Vec<_> = tape.borrow().steps.iter().map(|step| step.seen.clone()).collect();
    let (copied, cleared) = steps.split_at(steps.len() - 3);
    assert_eq!(cleared, [Seen::Flush, Seen::Write(8, 8, false), Seen::Flush], "the origin's flush, then the area, durably");
    assert_eq!(copied.iter().filter(|seen| matches!(seen, Seen::Write(..))).count(), 200);
}

#[test]
fn an_error_ends_the_merging_and_not_the_device() {
    let wish = Wish::new(P, 8, 100);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &[7; 8192], false).await, Status::Ok));
    rig.origin.borrow_mut().bad.push((Op::Write, 8));
    merge_with(&rig, async |merge, _| {
        merge.done().await;
        assert_eq!(merge.status().to_string(), "Merge failed");
        assert_eq!(read(&**merge, 0, 16).await, Ok(vec![7; 8192]));
        assert_eq!(write(&**merge, 8, &[9; 4096], false).await, Status::Ok);
        assert_eq!(write(&**merge, 80, &[9; 512], false).await, Status::Ok);
        assert_eq!(flush(&**merge).await, Status::Ok);
        assert_eq!(read(&**merge, 8, 8).await, Ok(vec![9; 4096]));
    });
    rig.origin.borrow_mut().bad.clear();
    merge_with(&rig, async |merge, _| {
        merge.done().await;
        assert_eq!(merge.status().to_string(), "16/800 16");
    });
    assert_eq!(rig.origin_bytes()[8 * 512], 9);
}

#[test]
fn a_lost_snapshot_is_not_merged() {
    let wish = Wish::new(P, 8, 100);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &[7; 8192], false).await, Status::Ok));
    wish.cow.borrow_mut().bytes[4] = 0;
    let before = rig.origin_bytes();
    merge_with(&rig, async |merge, _| {
        merge.done().await;
        assert_eq!(merge.status().to_string(), "Invalid");
        assert_eq!(read(&**merge, 0, 16).await, Ok(before[..8192].to_vec()));
        assert_eq!(write(&**merge, 0, &[3; 512], false).await, Status::Ok);
    });
    assert_eq!(rig.origin_bytes()[0], 3);
}

#[test]
fn a_flush_that_failed_ends_the_merging_and_no_later_one_succeeds() {
    let wish = Wish::new(P, 8, 100);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &[7; 8192], false).await, Status::Ok));
    rig.origin.borrow_mut().bad.push((Op::Flush, 0));
    merge_with(&rig, async |merge, _| {
        merge.done().await;
        assert_eq!(merge.status().to_string(), "Merge failed");
        rig.origin.borrow_mut().bad.clear();
        assert_eq!(flush(&**merge).await, Status::IoError);
    });
    assert_eq!(wish.cow.borrow().bytes[4096 + 8], 2, "the entries stay");
}

#[test]
fn what_is_written_after_the_clearing_failed_part_way_is_there_when_the_store_is_opened_again() {
    // Sectors of the two areas; the second one is cleared first.
    for (area, cleared) in [(1, true), (34, false)] {
        let wish = Wish::new(P, 1, 100);
        let rig = Rig::new(64, std::slice::from_ref(&wish));
        rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &vec![7; 40 * 512], false).await, Status::Ok));
        let mut model = rig.origin_bytes();
        model[..40 * 512].fill(7);
        wish.cow.borrow_mut().bad.push((Op::Write, area));
        merge_with(&rig, async |merge, _| {
            merge.done().await;
            assert_eq!((merge.status().to_string().as_str(), merge.status().left), ("Merge failed", 40));
            assert_eq!(wish.cow.borrow().bytes[34 * 512..35 * 512].iter().all(|&byte| byte == 0), cleared);
            for (sector, sectors, byte) in [(3, 1, 21), (30, 20, 22), (36, 1, 23)] {
                assert_eq!(write(&**merge, sector, &vec![byte; sectors * 512], false).await, Status::Ok);
                let at = usize::try_from(sector * 512).unwrap();
                model[at..at + sectors * 512].fill(byte);
            }
            assert!(read(&**merge, 0, 64).await.unwrap() == model);
            assert_eq!(flush(&**merge).await, Status::IoError, "nobody knows what the error was of");
        });
        wish.cow.borrow_mut().bad.clear();
        merge_with(&rig, async |merge, _| {
            assert!(read(&**merge, 0, 64).await.unwrap() == model, "area at sector {area}");
            merge.done().await;
            assert_eq!(merge.status().to_string(), "2/100 2");
        });
        assert!(rig.origin_bytes() == model);
    }
}

#[test]
fn a_write_with_fua_that_failed_ends_the_merging_as_a_flush_does() {
    for (at, sector) in [(8, 24), (80, 80)] {
        let wish = Wish::new(P, 8, 100);
        let rig = Rig::new(1024, std::slice::from_ref(&wish));
        rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &[7; 8192], false).await, Status::Ok));
        // A merge that cannot begin: so the chunks stay where they are.
        rig.origin.borrow_mut().bad.push((Op::Write, 0));
        merge_with(&rig, async |merge, _| {
            merge.done().await;
            assert_eq!(flush(&**merge).await, Status::Ok);
            let disk = if at == 8 { &wish.cow } else { &rig.origin };
            disk.borrow_mut().bad.push((Op::Write, sector));
            assert_eq!(write(&**merge, at, &[9; 512], true).await, Status::IoError);
            disk.borrow_mut().bad.pop();
            assert_eq!(flush(&**merge).await, Status::IoError);
        });
    }
}

#[test]
fn a_chunk_behind_the_end_of_the_origin_is_not_forgotten() {
    let wish = Wish::new(P, 8, 100);
    let mut rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 1016, &[7; 4096], false).await, Status::Ok));
    let whole = Rc::clone(&rig.origin);
    for (sectors, refused) in [(1016, true), (1017, false), (1024, false), (2048, false)] {
        rig.origin = crate::support::platter(sectors * 512);
        rig.origin.borrow_mut().bytes[..1016 * 512].copy_from_slice(&whole.borrow().bytes[..1016 * 512]);
        let store = wish.cow.borrow().bytes.clone();
        let merged = try_merge(&rig, async |merge, _| merge.done().await);
        let refusal = SnapshotError::BeyondOrigin { chunk: 127, last: 126 };
        assert_eq!(merged, if refused { Err(refusal) } else { Ok(()) }, "{sectors} sectors");
        assert_eq!(wish.cow.borrow().bytes == store, refused);
        if !refused {
            let end = sectors.min(1024);
            assert!(rig.origin_bytes()[1016 * 512..end * 512].iter().all(|&byte| byte == 7));
        }
        wish.cow.borrow_mut().bytes = store;
    }
}

#[test]
fn a_merge_stops_when_a_snapshot_that_it_saves_for_is_closed() {
    let (wish, other) = (Wish::new(P, 8, 2200), Wish::new(P, 64, 300));
    let rig = Rig::new(8 * 2100, std::slice::from_ref(&wish));
    let before = rig.origin_bytes();
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &vec![7; 2100 * 4096], false).await, Status::Ok));
    let rig = Rig { wishes: vec![wish, other], ..rig };
    merge_with(&rig, async |merge, others| {
        others[0].close().await;
        merge.done().await;
        assert!(merge.status().left > 0, "one step moves 8 MiB");
        assert_eq!(read(&**merge, 8 * 2099, 8).await, Ok(vec![7; 4096]));
    });
    merge_with(&rig, async |merge, others| {
        merge.done().await;
        assert_eq!(merge.status().left, 0);
        assert!(read(&*others[0], 0, 8 * 2100).await.unwrap() == before);
    });
}

#[test]
fn an_origin_shows_its_merge_and_nothing_once_that_is_gone() {
    let wish = Wish::new(P, 8, 100);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &[7; 8192], false).await, Status::Ok));
    let (reactor, pool) = (reactor(), BufferPool::default());
    let origin = Origin::new(&reactor, &pool, MemoryDisk::new(&reactor, Rc::clone(&rig.origin)));
    let front = OriginFront::new(Rc::clone(&origin), SectorCount(1024)).unwrap();
    let disk = |platter, logical_bytes| {
        let limits = Limits { logical_bytes, physical_bytes: 4096, max_sectors: 64, ..Limits::unlimited() };
        MemoryDisk::with_limits(&reactor, platter, limits) as Rc<dyn Target>
    };
    let cow = disk(Rc::clone(&wish.cow), 512);
    let run = async {
        let wish = |cow: &Rc<dyn Target>| MergeSetup {
            origin: Rc::clone(&origin),
            cow: Rc::clone(cow),
            sectors: SectorCount(1024),
            chunk_sectors: 8,
            rate: None,
        };
        let coarse = disk(Rc::clone(&rig.wishes[0].cow), 4096);
        assert_eq!(merge(&reactor, &pool, wish(&coarse)).await.err(), Some(SnapshotError::Fronted));
        assert_eq!((front.limits().discard, front.limits().max_sectors), (Ability::Native, u32::MAX));
        let opened = merge(&reactor, &pool, wish(&cow)).await.unwrap();
        assert_eq!((front.limits().discard, front.limits().max_sectors), (Ability::No, 64));
        assert_eq!(read(&front, 0, 16).await, Ok(vec![7; 8192]));
        opened.close().await;
        drop(opened);
        assert_eq!(read(&front, 0, 16).await, Err(Status::IoError));
        assert_eq!(write(&front, 0, &[1; 512], false).await, Status::IoError);
        let other = disk(crate::support::platter(1 << 20), 512);
        assert_eq!(merge(&reactor, &pool, wish(&other)).await.err(), Some(SnapshotError::Merging));
        let again = merge(&reactor, &pool, wish(&cow)).await.unwrap();
        assert_eq!(read(&front, 0, 16).await, Ok(vec![7; 8192]));
        again.begin();
        again.done().await;
        drop(again);
        assert_eq!(read(&front, 0, 16).await, Ok(vec![7; 8192]));
    };
    reactor.run(run).unwrap();
    reactor.clear();
    assert_eq!(rig.origin_bytes()[..8192], [7; 8192]);
}

/// How long a merge of 5000 chunks of a sector takes at `rate`, when a read of a client took `slow` just before.
fn time_of_merge(rate: Option<u64>, slow: Duration) -> Duration {
    let rig = Rig::new(5008, &[Wish::new(P, 1, 6000)]);
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &vec![1; 5000 * 512], false).await, Status::Ok));
    let (reactor, pool) = (reactor(), BufferPool::default());
    let below = MemoryDisk::new(&reactor, Rc::clone(&rig.origin)) as Rc<dyn Target>;
    let leg = |delay| Leg { below: Rc::clone(&below), delay };
    let legs = Legs { read: leg(slow), ..Legs::all(leg(Duration::ZERO)) };
    let origin = Origin::new(&reactor, &pool, Rc::new(Delay::new(reactor.clone(), legs).unwrap()));
    let cow = MemoryDisk::new(&reactor, Rc::clone(&rig.wishes[0].cow));
    let setup = MergeSetup { origin, cow, sectors: SectorCount(5008), chunk_sectors: 1, rate: rate.and_then(NonZeroU64::new) };
    let time = reactor.run(async {
        let merge = merge(&reactor, &pool, setup).await.unwrap();
        assert!(read(&*merge, 5000, 1).await.is_ok(), "of the origin");
        let began = reactor.now();
        merge.begin();
        merge.done().await;
        assert_eq!(merge.status().left, 0);
        reactor.now().saturating_sub(began)
    });
    reactor.clear();
    time.unwrap()
}

#[test]
fn a_merge_keeps_to_its_rate_and_steps_back_while_requests_are_slow() {
    assert_eq!(time_of_merge(None, Duration::from_millis(5)), Duration::ZERO);
    assert!(time_of_merge(None, Duration::from_millis(50)) > Duration::ZERO);
    let limited = time_of_merge(Some(1 << 20), Duration::ZERO);
    // 2.5 MB, of which a tenth of a second's worth may come at once, in steps of an eighth of a second's worth.
    assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&limited), "{limited:?}");
}

#[test]
fn a_merge_that_waits_for_its_turn_is_closed_at_once() {
    let wish = Wish::new(P, 8, 700);
    let rig = Rig::new(8 * 400, std::slice::from_ref(&wish));
    rig.run(async |life| assert_eq!(write(&*life.snapshots[0], 0, &vec![1; 300 * 4096], false).await, Status::Ok));
    let (reactor, pool) = (reactor(), BufferPool::default());
    let origin = Origin::new(&reactor, &pool, MemoryDisk::new(&reactor, Rc::clone(&rig.origin)));
    let cow = MemoryDisk::new(&reactor, Rc::clone(&wish.cow));
    let setup = MergeSetup { origin, cow, sectors: SectorCount(3200), chunk_sectors: 8, rate: NonZeroU64::new(4096) };
    let run = async {
        let merge = merge(&reactor, &pool, setup).await.unwrap();
        merge.begin();
        reactor.sleep(Duration::from_millis(10_400)).await;
        let (left, now) = (merge.status().left, reactor.now());
        assert!((289..295).contains(&left), "a chunk a second: {left}");
        merge.close().await;
        assert_eq!((merge.status().left, reactor.now()), (left, now));
    };
    reactor.run(run).unwrap();
    reactor.clear();
}
