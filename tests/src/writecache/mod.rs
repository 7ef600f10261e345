//! Pairs of origin and cache that a kernel and Forebay open in turn, in every shape that the kernel takes.
//!
//! ```text
//!  Case ── files ──▶ NAME.origin NAME.cache in the scratch folder
//!       ├─ table ──▶ the same line for the kernel's dmsetup and for `forebay serve`
//!       ├─ attach, load, hash, detach ──▶ lines of a guest's script
//!       └─ judge ──▶ is every sector one that the flushes so far allow?
//! ```
//!
//! Units: sectors of 512 bytes, except where a name says bytes.

pub mod image;
pub mod powercut;

use crate::pattern::{self, Churn, SECTOR};
use crate::{Scratch, run};

/// Size of every origin.
pub const ORIGIN_SECTORS: u64 = 16_384;
/// Size of every cache device: a quarter of the origin, so that loads fill it.
pub const CACHE_BYTES: u64 = 2 << 20;

/// One pair of origin and cache.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the files and of the guest's device.
    pub name: String,
    /// Bytes in a cache block.
    pub block_size: u64,
    /// The option `start_sector`.
    pub start_sector: u64,
    /// Further options, as the table has them.
    pub options: Vec<&'static str>,
    /// Seed of its load.
    pub seed: u64,
}

impl Case {
    /// Block sizes 512 to 4096 with start sectors 0, 3 and 8, and three sets of other options: 12 cases.
    pub fn matrix(seed: u64) -> Vec<Self> {
        let options: [&[&'static str]; 3] = [
            &[],
            &["high_watermark", "30", "low_watermark", "20", "pause_writeback", "0"],
            &["autocommit_blocks", "16", "writeback_jobs", "4", "pause_writeback", "0"],
        ];
        let mut cases = Vec::new();
        for block_size in [512, 1024, 2048, 4096] {
            for start_sector in [0, 3, 8] {
                let number = cases.len();
                let set = (number + number / 3) % options.len();
                cases.push(Self {
                    name: format!("b{block_size}s{start_sector}"),
                    block_size,
                    start_sector,
                    options: options[set].to_vec(),
                    seed: seed * 100 + number as u64,
                });
            }
        }
        cases
    }

    /// The writes that this case's load makes.
    pub fn churn(&self) -> Churn {
        Churn { seed: self.seed, sectors: ORIGIN_SECTORS, grain: self.block_size / SECTOR as u64 }
    }

    /// Path of the origin.
    pub fn origin(&self, scratch: &Scratch) -> String {
        scratch.file(&format!("{}.origin", self.name))
    }

    /// Path of the cache device.
    pub fn cache(&self, scratch: &Scratch) -> String {
        scratch.file(&format!("{}.cache", self.name))
    }

    /// Makes both files, all zeros.
    pub fn make(&self, scratch: &Scratch) {
        let _path = scratch.sparse(&format!("{}.origin", self.name), ORIGIN_SECTORS * SECTOR as u64);
        let _path = scratch.sparse(&format!("{}.cache", self.name), CACHE_BYTES);
    }

    /// The same pair of files in another folder, which gets copies.
    pub fn copy(&self, from: &Scratch, to: &Scratch) {
        run::ok(60, &["cp", "--sparse=always", &self.origin(from), &self.cache(from), &to.file("")]);
    }

    /// The table line, over devices as whoever reads it names them.
    pub fn table(&self, origin: &str, cache: &str) -> String {
        let mut options = self.options.clone();
        let start = self.start_sector.to_string();
        if self.start_sector != 0 {
            options.extend(["start_sector", &start]);
        }
        let count = options.len().to_string();
        options.insert(0, &count);
        format!("0 {ORIGIN_SECTORS} writecache s {origin} {cache} {} {}", self.block_size, options.join(" "))
    }

    /// Guest script: makes the device from the pair at `/mnt`, on loop devices `2 × slot` and `2 × slot + 1`.
    pub fn attach(&self, slot: usize) -> String {
        let (name, origin, cache) = (&self.name, format!("/dev/loop{}", 2 * slot), format!("/dev/loop{}", 2 * slot + 1));
        let losetup = format!("losetup {origin} /mnt/{name}.origin\nlosetup {cache} /mnt/{name}.cache\n");
        losetup + &self.create(&origin, &cache)
    }

    /// Guest script: makes the device from two block devices.
    pub fn create(&self, origin: &str, cache: &str) -> String {
        let (name, table) = (&self.name, self.table(origin, cache));
        format!("echo '{table}' | dmsetup create {name} --noudevsync\ndmsetup mknodes {name}\n")
    }

    /// Guest script: the case's load, `rounds` rounds of it or (0) until it is killed.
    pub fn load(&self, rounds: u64) -> String {
        let Churn { seed, sectors, grain } = self.churn();
        format!("guest-load {0} /dev/mapper/{0} {seed} {sectors} {grain} {rounds}\n", self.name)
    }

    /// Guest script: prints `NAME hash HEX` of the whole device and `NAME: STATUS`.
    pub fn hash(&self) -> String {
        format!("echo {0} hash $(sha256sum </dev/mapper/{0})\ndmsetup status {0} | sed 's/^/{0}: /'\n", self.name)
    }

    /// Guest script: begins to take the device down, which commits and leaves dirty data in the cache; `wait` for its end.
    pub fn detach(&self) -> String {
        format!("dmsetup remove {} --noudevsync &\n", self.name)
    }

    /// The hash that a guest printed for this case.
    pub fn hash_in(&self, output: &str) -> String {
        let start = format!("{} hash ", self.name);
        let line = output.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no hash of {} in\n{output}", self.name)).chars().take(64).collect()
    }

    /// The error number at the head of the status that a guest printed for this case.
    pub fn error_in(&self, output: &str) -> String {
        let start = format!("{}: 0 {ORIGIN_SECTORS} writecache ", self.name);
        let line = output.lines().find_map(|line| line.strip_prefix(&start));
        let line = line.unwrap_or_else(|| panic!("no status of {} in\n{output}", self.name));
        line.split(' ').next().unwrap_or("").to_owned()
    }

    /// The last round of this case of which a guest said `word` (`started` or `flushed`), 0 when none.
    pub fn round_in(&self, output: &str, word: &str) -> u64 {
        let start = format!("{} {word} ", self.name);
        output.lines().filter_map(|line| line.strip_prefix(&start)?.parse().ok()).max().unwrap_or(0)
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
