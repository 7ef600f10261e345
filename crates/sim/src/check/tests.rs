//! The oracle on histories written by hand.

use super::{Act, Model, OpId, SECTOR, stamp};
use crate::world::Cut;

const SEED: u64 = 9;
const WRITE: Act = Act::Write { fua: false };

/// A device whose sectors hold what the test says.
struct Device {
    model: Model,
    content: Vec<u8>,
}

impl Device {
    fn new(sectors: usize) -> Self {
        let mut content = vec![0; sectors * SECTOR];
        stamp(&mut content, SEED, 0, 0);
        Self { model: Model::new(SEED, sectors, false), content }
    }

    /// Puts version `op` of `sector` where `sector` lies.
    fn put(&mut self, sector: usize, op: u32) {
        stamp(&mut self.content[sector * SECTOR..(sector + 1) * SECTOR], SEED, sector as u64, op);
    }

    fn zero(&mut self, sector: usize) {
        self.content[sector * SECTOR..(sector + 1) * SECTOR].fill(0);
    }

    fn done(&mut self, act: Act, sectors: std::ops::Range<usize>) -> u32 {
        let op = self.model.begin(act, sectors);
        self.model.end(op, true);
        op.0
    }

    fn read_ok(&mut self) -> bool {
        let sectors = self.model.len();
        let op = self.model.begin(Act::Read, 0..sectors);
        let checked = self.model.check_read(op, &self.content);
        self.model.end(op, true);
        checked.is_ok()
    }

    /// Whether what lies there now may have come back after a cut.
    fn comes_back(&mut self, cut: Cut) -> bool {
        self.model.cut(cut);
        self.model.observe(0, &self.content).is_ok() && self.model.settle().is_ok()
    }
}

#[test]
fn a_read_returns_the_newest_acknowledged_version_and_nothing_older() {
    let mut device = Device::new(2);
    let first = device.done(WRITE, 0..2);
    assert!(!device.read_ok());
    device.put(0, first);
    device.put(1, first);
    assert!(device.read_ok());
    let second = device.done(WRITE, 1..2);
    assert!(!device.read_ok());
    device.put(1, second);
    assert!(device.read_ok());
}

#[test]
fn a_read_may_see_a_write_that_is_in_flight_with_it() {
    let mut device = Device::new(1);
    let OpId(write) = device.model.begin(WRITE, 0..1);
    assert!(device.read_ok());
    device.put(0, write);
    assert!(device.read_ok());
    let read = device.model.begin(Act::Read, 0..1);
    device.model.end(OpId(write), true);
    device.put(0, 0);
    assert!(device.model.check_read(read, &device.content).is_ok());
    device.model.end(read, true);
    assert!(!device.read_ok());
}

#[test]
fn of_two_overlapping_writes_either_may_win() {
    let mut device = Device::new(1);
    let first = device.model.begin(WRITE, 0..1);
    let second = device.model.begin(WRITE, 0..1);
    device.model.end(second, true);
    device.model.end(first, true);
    device.put(0, first.0);
    assert!(device.read_ok());
    device.put(0, second.0);
    assert!(device.read_ok());
    device.put(0, 0);
    assert!(!device.read_ok());
}

#[test]
fn another_sectors_data_is_never_right() {
    let mut device = Device::new(2);
    let write = device.done(WRITE, 0..2);
    device.put(0, write);
    let (first, second) = device.content.split_at_mut(SECTOR);
    second.copy_from_slice(first);
    assert!(!device.read_ok());
}

#[test]
fn a_failed_write_leaves_old_or_new_until_the_next_one() {
    let mut device = Device::new(1);
    let failed = device.model.begin(WRITE, 0..1);
    device.model.end(failed, false);
    assert!(device.read_ok());
    device.put(0, failed.0);
    assert!(device.read_ok());
    let next = device.done(WRITE, 0..1);
    assert!(!device.read_ok());
    device.put(0, next);
    assert!(device.read_ok());
}

#[test]
fn a_crash_takes_what_was_not_flushed_and_nothing_else() {
    for (version, survives) in [(0, false), (1, false), (2, true), (4, true), (5, true)] {
        let mut device = Device::new(1);
        device.done(WRITE, 0..1);
        device.done(WRITE, 0..1);
        device.done(Act::Flush, 0..0);
        device.done(WRITE, 0..1);
        device.model.begin(WRITE, 0..1);
        device.put(0, version);
        assert_eq!(device.comes_back(Cut::Power), survives, "version {version}");
    }
}

#[test]
fn a_flush_covers_only_what_was_acknowledged_before_it_was_issued() {
    let mut device = Device::new(1);
    let flush = device.model.begin(Act::Flush, 0..0);
    device.done(WRITE, 0..1);
    device.model.end(flush, true);
    assert!(device.comes_back(Cut::Power), "the old version may come back");
}

#[test]
fn fua_outlives_a_power_cut_and_a_failed_flush_promises_nothing() {
    let mut device = Device::new(1);
    device.done(Act::Write { fua: true }, 0..1);
    assert!(!device.comes_back(Cut::Power));
    let mut device = Device::new(1);
    device.done(WRITE, 0..1);
    let flush = device.model.begin(Act::Flush, 0..0);
    device.model.end(flush, false);
    assert!(device.comes_back(Cut::Power));
}

#[test]
fn what_came_back_stays_after_a_power_cut_but_not_after_a_kill() {
    for cut in [Cut::Power, Cut::Kill] {
        let mut device = Device::new(1);
        let write = device.done(WRITE, 0..1);
        device.put(0, write);
        assert!(device.comes_back(cut));
        device.put(0, 0);
        assert!(!device.read_ok(), "{cut:?}");
        let mut again = Device::new(1);
        let write = again.done(WRITE, 0..1);
        again.put(0, write);
        assert!(again.comes_back(cut));
        again.put(0, 0);
        assert_eq!(again.comes_back(Cut::Power), cut == Cut::Kill, "{cut:?}");
    }
}

#[test]
fn a_flush_after_a_kill_covers_what_was_read_back() {
    let mut device = Device::new(1);
    let write = device.done(WRITE, 0..1);
    device.put(0, write);
    assert!(device.comes_back(Cut::Kill));
    device.done(Act::Flush, 0..0);
    device.put(0, 0);
    assert!(!device.comes_back(Cut::Power));
}

#[test]
fn a_trimmed_sector_is_anything_it_once_was() {
    let mut device = Device::new(2);
    let first = device.done(WRITE, 0..2);
    device.done(WRITE, 0..1);
    device.done(Act::Trim, 0..1);
    device.put(1, first);
    for version in [0, first, 2] {
        device.put(0, version);
        assert!(device.read_ok(), "version {version}");
    }
    device.zero(0);
    assert!(device.read_ok());
    device.put(0, 3);
    assert!(!device.read_ok(), "no write ever put that there");
    assert!(!device.comes_back(Cut::Power));
}

#[test]
fn zeroes_are_a_write_of_zeroes() {
    let mut device = Device::new(1);
    device.done(Act::Zeroes, 0..1);
    assert!(!device.read_ok());
    device.zero(0);
    assert!(device.read_ok());
    device.done(Act::Flush, 0..0);
    device.put(0, 0);
    assert!(!device.comes_back(Cut::Power));
}

#[test]
fn groups_allow_no_hole() {
    for (first_survives, right) in [(true, true), (false, false)] {
        let mut device = Device::new(64);
        let first = device.done(WRITE, 0..1);
        let second = device.done(WRITE, 32..33);
        if first_survives {
            device.put(0, first);
        }
        device.put(32, second);
        device.model.set_atomic(Some(8));
        assert_eq!(device.comes_back(Cut::Power), right);
    }
}

#[test]
fn a_block_of_a_group_is_never_a_mix() {
    for (both, right) in [(true, true), (false, false)] {
        let mut device = Device::new(16);
        let OpId(write) = device.model.begin(WRITE, 0..16);
        device.put(0, write);
        if both {
            (1..8).for_each(|sector| device.put(sector, write));
        }
        device.model.set_atomic(Some(8));
        assert_eq!(device.comes_back(Cut::Power), right);
    }
}

#[test]
fn an_interrupted_recovery_changes_nothing() {
    let mut device = Device::new(1);
    device.model.begin(WRITE, 0..1);
    device.model.cut(Cut::Power);
    assert!(device.model.observe(0, &device.content).is_ok());
    device.model.cut(Cut::Power);
    device.put(0, 1);
    assert!(device.model.observe(0, &device.content).is_err());
}

#[test]
fn a_group_owes_nothing_to_writes_that_a_kill_took() {
    let mut device = Device::new(64);
    device.done(Act::Zeroes, 0..1);
    device.done(WRITE, 0..1);
    device.zero(0);
    device.model.set_atomic(Some(8));
    assert!(device.comes_back(Cut::Kill));
    let later = device.done(WRITE, 32..33);
    device.put(32, later);
    device.put(0, 0);
    device.model.set_atomic(Some(8));
    assert!(device.comes_back(Cut::Power));
}
