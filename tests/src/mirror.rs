//! Mirrors that a kernel and Forebay open in turn, and their log on disk, read by hand.
//!
//! ```text
//!  Mirror ── files ──▶ NAME.0 NAME.1 … NAME.log in the scratch folder
//!         ├─ table ──▶ the same line for the kernel's dmsetup and for `forebay serve`
//!         ├─ attach, load, synced, hash, detach ──▶ lines of a guest's script
//!         └─ Log ────▶ which regions are clean; where they are, all legs must be equal
//! ```
//!
//! Units: sectors of 512 bytes, except where a name says bytes.

use crate::pattern::{self, Churn, SECTOR};
use crate::{Scratch, run};

/// Size of every mirror.
pub const SECTORS: u64 = 8192;
/// Size of every log device.
pub const LOG_BYTES: u64 = 16 << 10;

/// A mirror.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// Name of the files and of the guest's device.
    pub name: String,
    /// Number of legs.
    pub legs: usize,
    /// Size of a region.
    pub region: u64,
    /// Seed of its load.
    pub seed: u64,
}

impl Mirror {
    /// Ten mirrors: two and three legs, regions of 8 sectors up to 2048.
    pub fn matrix(seed: u64) -> Vec<Self> {
        let shapes = [(2, 8), (2, 16), (2, 64), (2, 256), (2, 1024), (2, 2048), (3, 8), (3, 32), (3, 128), (3, 512)];
        let mirror = |(number, (legs, region)): (u64, (usize, u64))| Self {
            name: format!("l{legs}r{region}"),
            legs,
            region,
            seed: seed * 100 + number,
        };
        (0..).zip(shapes).map(mirror).collect()
    }

    /// How many regions it has.
    pub fn regions(&self) -> u64 {
        SECTORS.div_ceil(self.region)
    }

    /// The writes that its load makes.
    pub fn churn(&self) -> Churn {
        Churn { seed: self.seed, sectors: SECTORS, grain: 8 }
    }

    /// Paths of the legs, and of the log.
    pub fn files(&self, scratch: &Scratch) -> (Vec<String>, String) {
        let leg = |leg| scratch.file(&format!("{}.{leg}", self.name));
        ((0..self.legs).map(leg).collect(), scratch.file(&format!("{}.log", self.name)))
    }

    /// Makes all files, all zeros.
    pub fn make(&self, scratch: &Scratch) {
        for leg in 0..self.legs {
            let _path = scratch.sparse(&format!("{}.{leg}", self.name), SECTORS * SECTOR as u64);
        }
        let _path = scratch.sparse(&format!("{}.log", self.name), LOG_BYTES);
    }

    /// The same files in another folder, which gets copies.
    pub fn copy(&self, from: &Scratch, to: &Scratch) {
        let (legs, log) = self.files(from);
        let mut words = vec!["cp".to_owned(), "--sparse=always".to_owned()];
        words.extend(legs.into_iter().chain([log, to.file("")]));
        run::ok(60, &words);
    }

    /// The table line, over devices as whoever reads it names them; `sync` is empty, `sync` or `nosync`.
    pub fn table(&self, legs: &[String], log: &str, sync: &str) -> String {
        let count = if sync.is_empty() { 2 } else { 3 };
        let places: Vec<String> = legs.iter().map(|leg| format!("{leg} 0")).collect();
        format!("0 {SECTORS} mirror disk {count} {log} {} {sync} {} {}", self.region, self.legs, places.join(" "))
    }

    /// Guest script: makes the device from the files at `/mnt`, on loop devices from `4 × slot` on.
    pub fn attach(&self, slot: usize, sync: &str) -> String {
        let device = |number: usize| format!("/dev/loop{}", 4 * slot + number);
        let name = &self.name;
        let leg = |leg: usize| format!("losetup {} /mnt/{name}.{leg}\n", device(leg));
        let script = (0..self.legs).map(leg).collect::<String>() + &format!("losetup {} /mnt/{name}.log\n", device(self.legs));
        let legs: Vec<String> = (0..self.legs).map(device).collect();
        let table = self.table(&legs, &device(self.legs), sync);
        script + &format!("echo '{table}' | dmsetup create {name} --noudevsync\ndmsetup mknodes {name}\n")
    }

    /// Guest script: the load, `rounds` rounds of it or (0) until it is killed.
    pub fn load(&self, rounds: u64) -> String {
        let Churn { seed, sectors, grain } = self.churn();
        format!("guest-load {0} /dev/mapper/{0} {seed} {sectors} {grain} {rounds}\n", self.name)
    }

    /// Guest script: waits until all regions are in sync.
    pub fn synced(&self) -> String {
        let all = self.regions();
        format!("until dmsetup status {} | grep -q ' {all}/{all} '; do sleep 0.1; done\n", self.name)
    }

    /// Guest script: prints `NAME hash HEX` of the whole device.
    pub fn hash(&self) -> String {
        format!("echo {0} hash $(sha256sum </dev/mapper/{0})\n", self.name)
    }

    /// Guest script: prints `NAME: STATUS`.
    pub fn status(&self) -> String {
        format!("dmsetup status {0} | sed 's/^/{0}: /'\n", self.name)
    }

    /// Guest script: takes the device down.
    pub fn detach(&self) -> String {
        format!("dmsetup remove {} --noudevsync\n", self.name)
    }

    /// The hash that a guest printed.
    pub fn hash_in(&self, output: &str) -> String {
        let start = format!("{} hash ", self.name);
        let line = output.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no hash of {} in\n{output}", self.name)).chars().take(64).collect()
    }

    /// The last round of which a guest said `word` (`started` or `flushed`), 0 when none.
    pub fn round_in(&self, output: &str, word: &str) -> u64 {
        let start = format!("{} {word} ", self.name);
        output.lines().filter_map(|line| line.strip_prefix(&start)?.parse().ok()).max().unwrap_or(0)
    }

    /// What the first leg holds; every region that the log calls clean must be the same on all legs.
    pub fn read(&self, scratch: &Scratch) -> Vec<u8> {
        let (legs, log) = self.files(scratch);
        let log = Log::read(&log);
        assert_eq!(log.regions, self.regions(), "{}: regions in the log", self.name);
        let legs: Vec<Vec<u8>> = legs.iter().map(|leg| std::fs::read(leg).expect("a leg")).collect();
        let bytes = usize::try_from(self.region).expect("a small region") * SECTOR;
        for region in (0..self.regions()).filter(|&region| log.is_clean(region)) {
            let start = usize::try_from(region).expect("a small mirror") * bytes;
            let end = (start + bytes).min(legs[0].len());
            let same = legs.iter().all(|leg| leg[start..end] == legs[0][start..end]);
            assert!(same, "{}: region {region} is clean, and the legs differ", self.name);
        }
        legs.into_iter().next().expect("a mirror has legs")
    }

    /// Panics unless every sector of `whole` holds its last flushed version or a later one that was started.
    pub fn judge(&self, whole: &[u8], flushed: u64, started: u64) {
        let allowed = self.churn().allowed(flushed, started);
        for ((sector, bytes), allowed) in (0_u64..).zip(whole.chunks_exact(SECTOR)).zip(&allowed) {
            let found = pattern::version_of(bytes, sector);
            assert!(
                found.is_some_and(|version| allowed.contains(&version)),
                "{}: sector {sector} holds version {found:?} and may hold {allowed:?} (flushed {flushed}, started {started})",
                self.name
            );
        }
        assert_eq!(whole.len(), allowed.len() * SECTOR, "{}: size of the device", self.name);
    }
}

/// A log on disk.
#[derive(Clone, Debug)]
pub struct Log {
    /// Regions that it counts.
    pub regions: u64,
    bytes: Vec<u8>,
}

impl Log {
    /// Reads a log, which must have the format's magic and version 2.
    pub fn read(path: &str) -> Self {
        let bytes = std::fs::read(path).expect("a log");
        assert_eq!(bytes[..8], *b"rRiM\x02\0\0\0", "magic and version");
        Self { regions: u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")), bytes }
    }

    /// Whether it calls a region clean.
    pub fn is_clean(&self, region: u64) -> bool {
        let byte = 1024 + usize::try_from(region / 8).expect("a small log");
        self.bytes[byte] >> (region % 8) & 1 == 1
    }

    /// How many regions are clean.
    pub fn clean(&self) -> u64 {
        (0..self.regions).filter(|&region| self.is_clean(region)).count() as u64
    }
}
