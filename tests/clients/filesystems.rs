//! File systems on a served device survive kills of its server: see `forebay_tests::kills`. `cargo xtask torture` goes on
//! for hours.
#![forbid(unsafe_code)]

use forebay_tests::kills::{EXT4, FileSystem, Kills, Stack, XFS};

fn survives(system: FileSystem, stack: Stack, cycles: u64) {
    let mut kills = Kills::new(system, stack);
    for _ in 0..cycles {
        kills.cycle();
    }
    assert_eq!(kills.finish(), cycles);
}

#[test]
fn ext4_survives_kills_of_a_cache() {
    survives(EXT4, Stack::Cache, 6);
}

#[test]
fn xfs_survives_kills_of_a_cache() {
    survives(XFS, Stack::Cache, 5);
}

#[test]
fn ext4_survives_kills_of_an_origin_and_its_snapshot_stays_what_it_was() {
    survives(EXT4, Stack::Origin, 6);
}

#[test]
fn xfs_survives_kills_of_an_origin_and_its_snapshot_stays_what_it_was() {
    survives(XFS, Stack::Origin, 4);
}

#[test]
fn ext4_survives_kills_of_a_mirror_and_its_legs_become_the_same() {
    survives(EXT4, Stack::Mirror, 5);
}

#[test]
fn xfs_survives_kills_of_a_mirror_and_its_legs_become_the_same() {
    survives(XFS, Stack::Mirror, 4);
}
