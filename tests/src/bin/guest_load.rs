//! The load that runs inside a guest kernel: patterns written with direct I/O, and a word to the host after each flush.
//!
//! `guest-load NAME DEVICE SEED SECTORS GRAIN ROUNDS` writes `ROUNDS` rounds of `Churn` (0: until it is killed),
//! flushes after each but the last, and prints `NAME started N` and `NAME flushed N`.
//! With `GUEST_LOAD_MARKS=LOG` it also leaves the marks `started-N` and `flushed-N` in the log-writes device LOG.
#![forbid(unsafe_code)]

use forebay_tests::pattern::{self, Churn, SECTOR};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;

/// The largest request of a churn: 128 blocks of 4 KiB.
const BUFFER: usize = 128 * 4096;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        [name, device, seed, sectors, grain, rounds] => {
            let churn = Churn { seed: number(seed), sectors: number(sectors), grain: number(grain) };
            load(name, &open(device), churn, number(rounds));
        }
        _ => panic!("see the head of guest_load.rs for the arguments"),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn open(device: &str) -> File {
    let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).expect("an open flag");
    let file = OpenOptions::new().write(true).custom_flags(direct).open(device);
    file.unwrap_or_else(|error| panic!("cannot open {device}: {error}"))
}

/// Says to the host, and to the recorder if there is one, how far the load is.
fn say(name: &str, what: &str, round: u64) {
    println!("{name} {what} {round}");
    if let Ok(log) = std::env::var("GUEST_LOAD_MARKS") {
        let status = Command::new("dmsetup").args(["message", &log, "0", "mark", &format!("{what}-{round}")]).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot mark {log}");
    }
}

fn load(name: &str, device: &File, churn: Churn, rounds: u64) {
    let mut buffer = Aligned::new();
    let last = if rounds == 0 { u64::MAX } else { rounds };
    for round in 1..=last {
        say(name, "started", round);
        for write in churn.round(round) {
            buffer.write(device, write, round);
        }
        if round != rounds {
            device.sync_all().expect("the flush after a round");
            say(name, "flushed", round);
        }
    }
}

/// A buffer at a page boundary, as direct I/O wants it.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; BUFFER + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start }
    }

    fn write(&mut self, device: &File, sectors: std::ops::Range<u64>, version: u64) {
        let length = usize::try_from(sectors.end - sectors.start).expect("a small request") * SECTOR;
        let bytes = &mut self.bytes[self.start..self.start + length];
        pattern::fill(bytes, sectors.start, version);
        let place = sectors.start * SECTOR as u64;
        device.write_all_at(bytes, place).unwrap_or_else(|error| panic!("write of {sectors:?}: {error}"));
    }
}
