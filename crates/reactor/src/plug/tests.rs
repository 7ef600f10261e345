//! The merge rules on plain entries.

use forebay_block::{HeapMemory, Sector, Segments};

use super::*;

fn write(sector: u64, sectors: u32) -> Bio {
    let bytes = sectors * 512;
    let segments = Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).unwrap();
    Bio::write(Sector(sector), segments, 0, bytes)
}

fn read(sector: u64, sectors: u32) -> Bio {
    let bytes = sectors * 512;
    let segments = Segments::whole(Box::new(HeapMemory::new(bytes as usize, 4096)), bytes).unwrap();
    Bio::read(Sector(sector), segments, 0, bytes)
}

/// Unplugs the bios and gives the runs as (start, end) sectors, and how many were held back.
fn runs(bios: Vec<Bio>, limits: &Limits) -> (Vec<(u64, u64)>, usize) {
    let mut plug = Plug::default();
    for bio in bios {
        plug.add(DeviceId(0), true, bio);
    }
    let (mut held, mut out) = (Vec::new(), Vec::new());
    plug.sort_into(&mut held, &mut out);
    let mut rest = out.as_slice();
    let mut runs = Vec::new();
    while !rest.is_empty() {
        let n = run_length(rest, limits);
        runs.push((rest[0].start(), rest[n - 1].end()));
        rest = &rest[n..];
    }
    (runs, held.len())
}

#[test]
fn adjoining_writes_merge_in_either_order_and_distant_ones_do_not() {
    let limits = Limits::unlimited();
    assert_eq!(runs(vec![write(0, 8), write(8, 8)], &limits).0, [(0, 16)]);
    assert_eq!(runs(vec![write(8, 8), write(0, 8)], &limits).0, [(0, 16)]);
    assert_eq!(runs(vec![write(0, 8), write(16, 8)], &limits).0, [(0, 8), (16, 24)]);
}

#[test]
fn reads_writes_and_fua_are_never_merged_with_each_other() {
    let limits = Limits::unlimited();
    assert_eq!(runs(vec![write(0, 8), read(8, 8)], &limits).0.len(), 2);
    let fua = forebay_block::Flags { fua: true, ..Default::default() };
    assert_eq!(runs(vec![write(0, 8), write(8, 8).with(fua)], &limits).0.len(), 2);
    assert_eq!(runs(vec![write(0, 8).with(fua), write(8, 8).with(fua)], &limits).0.len(), 2);
    assert_eq!(runs(vec![Bio::flush(), Bio::flush()], &limits).0.len(), 2);
    let alone = forebay_block::Flags { nomerge: true, ..Default::default() };
    assert_eq!(runs(vec![write(0, 8), write(8, 8).with(alone)], &limits).0.len(), 2);
}

#[test]
fn merges_stop_at_each_limit() {
    let sectors = Limits { max_sectors: 24, ..Limits::unlimited() };
    assert_eq!(runs((0..4).map(|i| write(i * 8, 8)).collect(), &sectors).0, [(0, 24), (24, 32)]);
    let segments = Limits { max_segments: 2, ..Limits::unlimited() };
    assert_eq!(runs((0..4).map(|i| write(i * 8, 8)).collect(), &segments).0, [(0, 16), (16, 32)]);
    let chunk = Limits { chunk_sectors: 16, ..Limits::unlimited() };
    assert_eq!(runs((1..4).map(|i| write(i * 8, 8)).collect(), &chunk).0, [(8, 16), (16, 32)]);
    let gap = Limits { gap_mask: 4095, ..Limits::unlimited() };
    assert_eq!(runs(vec![write(0, 1), write(1, 8)], &gap).0, [(0, 1), (1, 9)]);
    assert_eq!(runs(vec![write(0, 8), write(8, 1)], &gap).0, [(0, 9)]);
}

#[test]
fn a_later_overlapping_write_waits_for_the_earlier_one() {
    let limits = Limits::unlimited();
    assert_eq!(runs(vec![write(8, 8), write(0, 16)], &limits), (vec![(8, 16)], 1));
    assert_eq!(runs(vec![write(8, 8), write(8, 8), write(16, 8)], &limits), (vec![(8, 24)], 1));
    assert_eq!(runs(vec![read(0, 8), write(4, 8), read(0, 4)], &limits), (vec![(0, 8), (0, 4)], 1));
    assert_eq!(runs(vec![read(0, 8), read(4, 8)], &limits).1, 0);
}

#[test]
fn what_overlaps_a_waiting_bio_waits_too() {
    let (order, held) = runs(vec![write(0, 8), write(4, 8), write(10, 4)], &Limits::unlimited());
    assert_eq!((order, held), (vec![(0, 8)], 2));
}

#[test]
fn sorting_never_reorders_overlapping_bios_whatever_the_mix() {
    let mut rng = fastrand::Rng::with_seed(7);
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    for _ in 0..rounds {
        let mut plug = Plug::default();
        let count = rng.usize(2..12);
        for _ in 0..count {
            let (start, len) = (rng.u64(0..40), rng.u32(1..6));
            let bio = if rng.bool() { write(start, len) } else { read(start, len) };
            plug.add(DeviceId(rng.u16(0..2)), true, bio);
        }
        let (mut held, mut out) = (Vec::new(), Vec::new());
        plug.sort_into(&mut held, &mut out);
        assert_eq!(held.len() + out.len(), count);
        for (i, a) in out.iter().enumerate() {
            for b in &out[i + 1..] {
                assert!(!conflict(a, b), "two conflicting bios left together");
            }
        }
        for late in &held {
            let blocked = out.iter().chain(&held).any(|early| early.arrival() < late.arrival() && conflict(early, late));
            assert!(blocked, "a bio waits for nothing");
        }
        assert!(held.is_sorted_by_key(Entry::arrival));
    }
}

#[test]
fn reads_that_do_not_merge_leave_in_order_of_arrival() {
    let order = |bios: Vec<Bio>| {
        let mut plug = Plug::default();
        for bio in bios {
            plug.add(DeviceId(3), false, bio);
        }
        let (mut held, mut out) = (Vec::new(), Vec::new());
        plug.sort_into(&mut held, &mut out);
        out.iter().map(|entry| (entry.device(), entry.start())).collect::<Vec<_>>()
    };
    let starts = |starts: &[u64]| starts.iter().map(|&start| (DeviceId(3), start)).collect::<Vec<_>>();
    assert_eq!(order(vec![read(16, 8), read(0, 8), read(8, 8)]), starts(&[16, 0, 8]));
    assert_eq!(order(vec![read(16, 8), read(0, 8), write(8, 8)]), starts(&[0, 16, 8]), "order matters to what overlaps");
}

#[test]
fn the_number_of_an_entry_keeps_what_it_was_made_of() {
    for (at, kind) in [
        Kind::Read,
        Kind::Write { fua: false },
        Kind::Write { fua: true },
        Kind::Flush,
        Kind::Discard,
        Kind::WriteZeroes { no_unmap: false },
        Kind::WriteZeroes { no_unmap: true },
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(kind_number(kind), at as u64);
        for (device, alone, arrival) in [(0, false, 0), (u16::MAX, true, u32::MAX), (7, true, 9)] {
            let entry = Entry::new(DeviceId(device), kind, alone, arrival, Bio::flush());
            assert_eq!((entry.device(), entry.alone(), entry.arrival()), (DeviceId(device), alone, arrival));
            assert_eq!(entry.group(), u64::from(device) << 8 | at as u64);
        }
    }
}
