//! What the swarms of all subjects draw alike.

use std::ops::Range;

use fastrand::Rng;

/// One of `from`.
pub(crate) fn choose<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())]
}

/// How often something fails, per million: never for two of three seeds.
pub(crate) fn rate(rng: &mut Rng) -> u32 {
    if rng.u32(0..3) == 0 { choose(rng, &[300, 3_000, 30_000]) } else { 0 }
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
