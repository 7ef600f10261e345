//! What either side reads, whatever the other one writes.

use forebay_block::{Bio, Sector, Status, call};
use forebay_target::snapshot::Condition;

use crate::rig::{N, P, PO, Rig, Wish};
use crate::support::{Seen, flush, payload, read, write};

/// Bytes of `sectors` sectors, random.
fn random(rng: &mut fastrand::Rng, sectors: usize) -> Vec<u8> {
    (0..sectors * 512).map(|_| rng.u8(..)).collect()
}

#[test]
fn an_origin_and_three_snapshots_are_what_a_model_says() {
    const SECTORS: usize = 1000;
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let wishes = [Wish::new(P, 8, 400), Wish::new(PO, 64, 40), Wish::new(N, 16, 200)];
        let rig = Rig::new(SECTORS, &wishes);
        let mut model: Vec<Vec<u8>> = vec![rig.origin_bytes(); 4];
        for life in 0..3 {
            if life > 0 {
                // What is not persistent begins anew.
                model[3] = model[0].clone();
            }
            rig.run(async |life| {
                for _ in 0..80 {
                    let length = if rng.bool() { rng.usize(1..=8) } else { rng.usize(1..=200) };
                    let start = rng.usize(0..SECTORS - length);
                    let (range, bytes) = (start * 512..(start + length) * 512, random(&mut rng, length));
                    let who = rng.usize(0..4);
                    let target =
                        |who: usize| if who == 0 { &life.front as &dyn forebay_block::Target } else { &*life.snapshots[who - 1] };
                    if rng.bool() {
                        assert_eq!(write(target(who), start as u64, &bytes, rng.bool()).await, Status::Ok);
                        model[who][range].copy_from_slice(&bytes);
                    } else {
                        let found = read(target(who), start as u64, u32::try_from(length).unwrap()).await.unwrap();
                        assert!(found == model[who][range], "seed {seed}: {who} at {start}+{length}");
                    }
                }
                for (who, snapshot) in life.snapshots.iter().enumerate() {
                    assert_eq!(flush(&**snapshot).await, Status::Ok);
                    let found = read(&**snapshot, 0, 1000).await.unwrap();
                    assert!(found == model[who + 1], "seed {seed}: snapshot {who} as a whole");
                    assert_eq!(snapshot.status().condition, Condition::Active);
                }
            });
        }
        assert!(rig.origin_bytes() == model[0], "seed {seed}");
    }
}

#[test]
fn a_chunk_that_several_snapshots_lack_is_read_once() {
    let wishes = [Wish::new(P, 8, 64), Wish::new(P, 8, 64), Wish::new(P, 32, 64)];
    let rig = Rig::new(1024, &wishes);
    rig.run(async |life| {
        rig.origin.borrow_mut().seen.clear();
        assert_eq!(write(&life.front, 8, &[1; 4096], false).await, Status::Ok);
    });
    let mut read = [0; 32];
    for seen in &rig.origin.borrow().seen {
        if let &Seen::Read(start, count) = seen {
            read[usize::try_from(start).unwrap()..usize::try_from(start + count).unwrap()]
                .iter_mut()
                .for_each(|count| *count += 1);
        }
    }
    assert_eq!(read, [1; 32]);
}

#[test]
fn a_whole_chunk_is_not_copied_and_a_part_is_once() {
    let rig = Rig::new(1024, &[Wish::new(P, 8, 64)]);
    rig.run(async |life| {
        rig.origin.borrow_mut().seen.clear();
        assert_eq!(write(&*life.snapshots[0], 16, &[1; 8192], false).await, Status::Ok);
        assert_eq!(rig.origin.borrow().seen, []);
        assert_eq!(write(&*life.snapshots[0], 35, &[1; 512], false).await, Status::Ok);
        assert_eq!(rig.origin.borrow().seen, [Seen::Read(32, 8)]);
        assert_eq!(write(&*life.snapshots[0], 37, &[1; 512], false).await, Status::Ok);
        assert_eq!(rig.origin.borrow().seen.len(), 1);
    });
}

#[test]
fn writes_that_wait_for_one_chunk_all_get_through() {
    let wish = Wish::new(P, 64, 64);
    let rig = Rig::new(1024, std::slice::from_ref(&wish));
    let old = rig.origin_bytes();
    rig.run(async |life| {
        let snapshot = &*life.snapshots[0];
        let send = |target: &dyn forebay_block::Target, sector, byte| {
            forebay_block::call(target, forebay_block::Bio::write(Sector(sector), payload(&[byte; 512]), 0, 512))
        };
        let all = [send(snapshot, 0, 1), send(&life.front, 1, 2), send(snapshot, 2, 3), send(&life.front, 3, 4)];
        for one in all {
            assert_eq!(one.await.status(), Status::Ok);
        }
        assert_eq!(snapshot.status().exceptions, 1);
        let seen = |bytes: Vec<u8>| [0, 1, 2, 3].map(|sector| bytes[sector * 512]);
        let before = seen(old);
        assert_eq!(seen(read(snapshot, 0, 4).await.unwrap()), [1, before[1], 3, before[3]]);
        assert_eq!(seen(read(&life.front, 0, 4).await.unwrap()), [before[0], 2, before[2], 4]);
    });
}

#[test]
fn an_origin_that_ends_inside_a_chunk_is_saved_to_its_end() {
    let rig = Rig::new(70, &[Wish::new(P, 64, 8)]);
    let old = rig.origin_bytes();
    rig.run(async |life| {
        assert_eq!(write(&life.front, 69, &[1; 512], false).await, Status::Ok);
        assert_eq!(read(&*life.snapshots[0], 64, 6).await, Ok(old[64 * 512..].to_vec()));
        assert_eq!(write(&*life.snapshots[0], 64, &[9; 6 * 512], false).await, Status::Ok);
        assert_eq!(read(&*life.snapshots[0], 64, 6).await, Ok(vec![9; 6 * 512]));
    });
}

#[test]
fn changes_that_wait_when_a_snapshot_closes_are_saved_first() {
    let rig = Rig::new(8 * 400, &[Wish::new(P, 8, 500)]);
    let old = rig.origin_bytes();
    rig.run(async |life| {
        // More than are saved for at once: the last ones wait in front.
        let bio = |chunk: u64| Bio::write(Sector(chunk * 8), payload(&[1; 4096]), 0, 4096);
        let changes: Vec<_> = (0..400).map(|chunk| call(&life.front, bio(chunk))).collect();
        life.snapshots[0].close().await;
        for change in changes {
            assert_eq!(change.await.status(), Status::Ok);
        }
    });
    assert!(rig.origin_bytes().iter().all(|&byte| byte == 1));
    rig.run(async |life| assert!(read(&*life.snapshots[0], 0, 3200).await.unwrap() == old));
}
