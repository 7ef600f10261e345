//! `forebay zram advise`: what each codec would make of somebody's data, page by page as a compressed
//! RAM disk does it.
//!
//! ```text
//!   FILE… ─▶ up to 4,096 pages, spread evenly ─▶ each codec in turn ─▶ ratio, speed of both ways
//! ```
//!
//! Speeds are of one core, in time that the core worked. Nothing is written.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use forebay_target::zram::{Algorithm, Codec, CodecParams, HUGE_BYTES, PACKED_MAX};

use crate::failure::{Failure, Outcome, say};
use crate::figures;

/// Most pages that are looked at.
const SAMPLES_MAX: u64 = 4096;
const PAGE: usize = 4096;
/// What is compared: each algorithm, and the levels of it that differ most.
const CHOICES: [(Algorithm, Option<i32>); 6] = [
    (Algorithm::Lz4, None),
    (Algorithm::Zstd, Some(1)),
    (Algorithm::Zstd, Some(3)),
    (Algorithm::Zstd, Some(12)),
    (Algorithm::Deflate, Some(1)),
    (Algorithm::Deflate, Some(6)),
];

type Page = [u8; PAGE];

/// `forebay zram advise`.
pub fn run(files: &[PathBuf]) -> Outcome {
    let pages = sample(files)?;
    let Some(first) = pages.first() else {
        return Err(Failure::Failed("the files hold less than a page of 4096 bytes: name larger ones".to_owned()));
    };
    let repeats = |page: &&Page| page.chunks_exact(8).all(|word| word == &page[..8]);
    let same = pages.iter().filter(repeats).count();
    let looked = format!("{} pages looked at, {same} of them repeat one word and take no memory\n", pages.len());
    let head = format!("{:<12} {:>7} {:>10} {:>14} {:>14}\n", "", "ratio", "kept whole", "in, MiB/s", "out, MiB/s");
    let mut text = looked + &head;
    let others: Vec<&Page> = pages.iter().filter(|page| !repeats(page)).collect();
    let others = if others.is_empty() { vec![first] } else { others };
    for (algorithm, level) in CHOICES {
        text += &line(algorithm, level, &others, pages.len())?;
    }
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Pages from all over the files.
fn sample(files: &[PathBuf]) -> Result<Vec<Page>, Failure> {
    let mut opened = Vec::new();
    for path in files {
        let failed = |error| Failure::because(format!("cannot read {}", path.display()), &error);
        let mut file = File::open(path).map_err(failed)?;
        let bytes = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(failed)?;
        opened.push((path, file, bytes / PAGE as u64));
    }
    let total: u64 = opened.iter().map(|(_, _, pages)| pages).sum();
    let step = total.div_ceil(SAMPLES_MAX).max(1);
    let (mut pages, mut next) = (Vec::new(), 0);
    for (path, file, count) in &opened {
        while next < *count {
            let mut page = [0; PAGE];
            let read = file.read_exact_at(&mut page, next * PAGE as u64);
            read.map_err(|error| Failure::because(format!("cannot read {}", path.display()), &error))?;
            pages.push(page);
            next += step;
        }
        next -= count;
    }
    Ok(pages)
}

/// What one codec makes of `pages`, which are `all` together with those that take no memory.
fn line(algorithm: Algorithm, level: Option<i32>, pages: &[&Page], all: usize) -> Result<String, Failure> {
    let params = CodecParams { algorithm, level, dictionary: None };
    let mut codec = Codec::new(&params).map_err(|error| Failure::Failed(error.to_string()))?;
    let mut packed = Box::new([0; PACKED_MAX]);
    let mut objects: Vec<Vec<u8>> = Vec::with_capacity(pages.len());
    let (mut whole, mut stored) = (0_u64, 0_u64);
    let began = core_time();
    for page in pages {
        match codec.compress(page, &mut packed).filter(|&bytes| bytes < HUGE_BYTES) {
            Some(bytes) => objects.push(packed[..bytes].to_vec()),
            None => whole += 1,
        }
    }
    let into = core_time().saturating_sub(began);
    stored += objects.iter().map(|object| object.len() as u64).sum::<u64>() + whole * PAGE as u64;
    let mut page = Box::new([0; PAGE]);
    let began = core_time();
    for object in &objects {
        if codec.decompress(object, &mut page).is_err() {
            return Err(Failure::Failed(format!("{algorithm} does not read what it wrote: this is a bug, please report it")));
        }
    }
    let out = core_time().saturating_sub(began);
    let name = level.map_or_else(|| algorithm.to_string(), |level| format!("{algorithm} {level}"));
    let ratio = figures::quotient(all as u64 * PAGE as u64, stored).unwrap_or(0.0);
    let (fast, slow) = (speed(pages.len(), into), speed(objects.len(), out));
    Ok(format!("{name:<12} {ratio:>7.2} {whole:>10} {fast:>14.0} {slow:>14.0}\n"))
}

/// Pages in a time, as MiB a second.
fn speed(pages: usize, time: Duration) -> f64 {
    let kib = u32::try_from(pages * (PAGE / 1024)).unwrap_or(u32::MAX);
    f64::from(kib) / 1024.0 / time.as_secs_f64().max(1e-9)
}

/// Time that this thread had a core.
fn core_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a clock is not negative")
}
