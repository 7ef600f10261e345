//! What the swarms of all subjects draw alike.

use std::ops::Range;

use fastrand::Rng;

use crate::world::FaultOptions;

/// One of `from`.
pub(crate) fn choose<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())]
}

/// How often something fails, per million: never for two of three seeds.
pub(crate) fn rate(rng: &mut Rng) -> u32 {
    if rng.u32(0..3) == 0 { choose(rng, &[300, 3_000, 30_000]) } else { 0 }
}

/// How often flushes fail, per million: there are few of them, so more often than other requests.
pub(crate) fn flush_rate(rng: &mut Rng) -> u32 {
    if rng.u32(0..3) == 0 { choose(rng, &[3_000, 30_000, 300_000]) } else { 0 }
}

/// Sectors that are broken for good, on a disk of so many: none for three of four disks.
pub(crate) fn bad_sectors(rng: &mut Rng, sectors: u64) -> Vec<Range<u64>> {
    let ranges = if rng.u32(0..4) == 0 { rng.usize(1..3) } else { 0 };
    let mut range = || {
        let start = rng.u64(0..sectors);
        start..(start + rng.u64(1..16)).min(sectors)
    };
    (0..ranges).map(|_| range()).collect()
}

/// How a disk of so many sectors fails: whether discards may, and whether everything may from some request on for good.
pub(crate) fn faults(rng: &mut Rng, sectors: u64, discards: bool, for_good: bool) -> FaultOptions {
    FaultOptions {
        read_error: rate(rng),
        write_error: rate(rng),
        flush_error: flush_rate(rng),
        discard_error: if discards { rate(rng) } else { 0 },
        short: rate(rng),
        again: rate(rng),
        stuck: rate(rng) / 30,
        fail_at: (rng.u32(0..3) == 0).then(|| rng.u64(0..1_000)),
        fail_from: (for_good && rng.u32(0..6) == 0).then(|| rng.u64(0..2_000)),
        unreadable: bad_sectors(rng, sectors),
        unwritable: bad_sectors(rng, sectors),
    }
}
